//! Lists nftables tables and chains over netlink, without their rules.
//!
//! `nft list tables` first reads every rule, which takes two seconds for 88,000 rules; these two dumps read none.

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Hook, NfTablesMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::netlink::dump;
use crate::evidence::{Gap, Item};

/// A table of nftables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Table {
    /// `ip`, `inet`, …
    pub(super) family: &'static str,
    pub(super) name: String,
    pub(super) handle: u64,
}

/// A chain of nftables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Chain {
    /// Family of its table.
    pub(super) family: &'static str,
    pub(super) table: String,
    pub(super) name: String,
    /// Type and hook, for a base chain.
    pub(super) base: Option<Base>,
}

/// Properties of a base chain.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Base {
    /// `filter`, `nat` or `route`.
    pub(super) kind: String,
    /// Number of the hook, from `NF_INET_PRE_ROUTING`.
    pub(super) hook: u32,
    pub(super) priority: i32,
}

/// Built-in chains of iptables-nft: table, type, priority and hooks.
const BUILT_IN: &[(&str, &str, i32, &[u32])] = &[
    ("raw", "filter", -300, &[0, 3]),
    ("mangle", "filter", -150, &[0, 1, 2, 4]),
    ("mangle", "route", -150, &[3]),
    ("nat", "nat", -100, &[0, 3]),
    ("nat", "nat", 100, &[1, 4]),
    ("filter", "filter", 0, &[1, 2, 3]),
    ("security", "filter", 50, &[1, 2, 3]),
];

/// Names of built-in chains, by hook number.
pub(super) const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

impl Table {
    /// Returns whether iptables-nft created the table and all its base chains.
    pub(super) fn is_iptables(&self, chains: &[Chain]) -> bool {
        let mut own = chains
            .iter()
            .filter(|chain| chain.family == self.family && chain.table == self.name);
        matches!(self.family, "ip" | "ip6")
            && BUILT_IN.iter().any(|(table, ..)| *table == self.name)
            && own.all(Chain::is_compatible)
    }
}

impl Chain {
    /// Returns whether iptables-nft lists it: it is no base chain, or one as it creates them.
    pub(super) fn is_compatible(&self) -> bool {
        self.base.is_none() || self.is_built_in()
    }

    /// Returns whether it is a base chain as iptables-nft creates it.
    fn is_built_in(&self) -> bool {
        self.base.as_ref().is_some_and(|base| {
            let mut all = BUILT_IN.iter();
            let hook = usize::try_from(base.hook).ok();
            let name = hook.and_then(|hook| HOOKS.get(hook));
            name.is_some_and(|name| *name == self.name)
                && all.any(|(table, kind, priority, hooks)| {
                    *table == self.table
                        && *kind == base.kind
                        && *priority == base.priority
                        && hooks.contains(&base.hook)
                })
        })
    }
}

/// Returns the base chains that iptables-nft can have in `table` of `family`, by hook.
pub(super) fn built_in(family: &'static str, table: &str) -> Vec<Chain> {
    let rows = BUILT_IN.iter().filter(|(of, ..)| *of == table);
    let mut chains: Vec<_> = rows
        .flat_map(|&(_, kind, priority, hooks)| {
            hooks.iter().map(move |&hook| (hook, kind, priority))
        })
        .collect();
    chains.sort_unstable();
    let chains = chains.into_iter().map(|(hook, kind, priority)| Chain {
        family,
        table: table.to_owned(),
        name: HOOKS[hook as usize].to_owned(),
        base: Some(Base {
            kind: kind.to_owned(),
            hook,
            priority,
        }),
    });
    chains.collect()
}

/// Lists the tables. Blocks.
pub(super) fn tables(item: Item) -> Result<Vec<Table>, Gap> {
    let attributes = Vec::new();
    let all = ask(item, NfTablesMessage::GetTable(TableMessage { attributes }))?;
    let tables = all.into_iter().filter_map(|(family, message)| {
        let NfTablesMessage::NewTable(message) = message else {
            return None;
        };
        let mut table = Table {
            family,
            name: String::new(),
            handle: 0,
        };
        for attribute in message.attributes {
            match attribute {
                TableAttribute::Name(name) => table.name = name,
                TableAttribute::Handle(handle) => table.handle = handle,
                _ => {}
            }
        }
        Some(table)
    });
    Ok(tables.collect())
}

/// Lists the chains. Blocks.
pub(super) fn chains(item: Item) -> Result<Vec<Chain>, Gap> {
    let attributes = Vec::new();
    let all = ask(item, NfTablesMessage::GetChain(ChainMessage { attributes }))?;
    let chains = all.into_iter().filter_map(|(family, message)| {
        let NfTablesMessage::NewChain(message) = message else {
            return None;
        };
        Some(chain(family, message.attributes))
    });
    Ok(chains.collect())
}

fn chain(family: &'static str, attributes: Vec<ChainAttribute>) -> Chain {
    let (mut table, mut name, mut kind) = (String::new(), String::new(), String::new());
    let mut at = None;
    for attribute in attributes {
        match attribute {
            ChainAttribute::Table(text) => table = text,
            ChainAttribute::Name(text) => name = text,
            ChainAttribute::Type(text) => kind = text,
            ChainAttribute::Hook(hook) => at = Some(hook),
            _ => {}
        }
    }
    let base = at.map(|hook| {
        let (mut number, mut priority) = (0, 0);
        for part in hook {
            match part {
                Hook::Number(is) => number = u32::from(is),
                Hook::Priority(is) => priority = is.cast_signed(),
                _ => {}
            }
        }
        Base {
            kind,
            hook: number,
            priority,
        }
    });
    Chain {
        family,
        table,
        name,
        base,
    }
}

fn ask(item: Item, request: NfTablesMessage) -> Result<Vec<(&'static str, NfTablesMessage)>, Gap> {
    let request = NetfilterMessage::new(
        NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 0),
        NetfilterMessageInner::NfTables(request),
    );
    let answers = dump(item, NETLINK_NETFILTER, &request)?.into_iter();
    let answers = answers.filter_map(|answer| match answer.inner {
        NetfilterMessageInner::NfTables(inner) => Some((name(answer.header.family), inner)),
        _ => None,
    });
    Ok(answers.collect())
}

/// Returns the name of a family in nft's spelling.
fn name(family: NetfilterProtoFamily) -> &'static str {
    match family {
        NetfilterProtoFamily::IPv4 => "ip",
        NetfilterProtoFamily::IPv6 => "ip6",
        NetfilterProtoFamily::Inet => "inet",
        NetfilterProtoFamily::ARP => "arp",
        NetfilterProtoFamily::Bridge => "bridge",
        NetfilterProtoFamily::NetDev => "netdev",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(name: &str, hook: u32, priority: i32) -> Chain {
        Chain {
            family: "ip",
            table: "nat".to_owned(),
            name: name.to_owned(),
            base: Some(Base {
                kind: "nat".to_owned(),
                hook,
                priority,
            }),
        }
    }

    #[test]
    fn base_chains_identify_tables_of_iptables() {
        let nat = Table {
            family: "ip",
            name: "nat".to_owned(),
            handle: 1,
        };
        let user = Chain {
            base: None,
            ..chain("KUBE-SERVICES", 0, 0)
        };
        let own = [chain("PREROUTING", 0, -100), chain("INPUT", 1, 100), user];
        assert!(nat.is_iptables(&own));
        for foreign in [
            chain("prerouting", 0, -100),
            chain("PREROUTING", 0, -101),
            chain("OUTPUT", 0, -100),
        ] {
            let all = [own.as_slice(), std::slice::from_ref(&foreign)].concat();
            assert!(!nat.is_iptables(&all), "{foreign:?}");
        }
        let elsewhere = Table {
            family: "inet",
            ..nat
        };
        assert!(!elsewhere.is_iptables(&[]));
    }
}
