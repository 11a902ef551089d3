//! Lists nftables tables and chains over netlink, without their rules.
//!
//! `nft list tables` first reads every rule, which takes two seconds for 88,000 rules; these two dumps read none.

mod listed;
pub(super) mod wire;

use std::collections::BTreeMap;

use super::netlink::{attributes, text, wide, word};
use kpx_node::evidence::{Gap, Item};
use wire::{Answer, Extent, Odd, Reader, consistent, get, key};

/// A table of nftables.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Table {
    /// `ip`, `inet`, …
    pub(super) family: &'static str,
    pub(super) name: String,
    pub(super) handle: u64,
    /// `NFT_TABLE_F_*`.
    pub(super) flags: u32,
    /// The netlink port of its owner, which usually is a process id; 0 if it has none.
    pub(super) owner: u32,
    pub(super) comment: Option<String>,
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

/// A chain with its state.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) chain: Chain,
    pub(super) handle: u64,
    /// `NF_DROP` or `NF_ACCEPT`.
    pub(super) policy: u32,
    /// Number of its rules, and of rules that refer to it: none does to a base chain.
    pub(super) uses: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// `NFT_CHAIN_*`.
    pub(super) flags: u32,
    /// Network devices of the hook.
    pub(super) devices: Vec<String>,
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

/// `NFTA_CHAIN_HOOK`, which only base chains have.
const HOOK: u16 = 4;

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

/// Returns the comment in the user data of an object.
pub(super) fn comment_in(notes: &[u8]) -> Result<Option<&str>, Odd> {
    let mut comment = None;
    for note in super::nft::notes(notes) {
        if let (0, value) = note? {
            comment = Some(text(value)?);
        }
    }
    Ok(comment)
}

/// Lists the tables. Blocks.
pub(super) fn tables(item: Item) -> Result<Vec<Table>, Gap> {
    consistent(item, |reader| tables_by(reader, 0))
}

/// Lists the tables of `family`, all if it is 0. Blocks.
pub(super) fn tables_by(reader: &mut Reader, family: u8) -> Result<Vec<Table>, Gap> {
    reader.ask(
        get::TABLE,
        Extent::All,
        family,
        &[],
        |all: &mut Vec<Table>, answer| {
            let mut table = Table {
                family: family_name(answer.family).unwrap_or("unknown"),
                ..Table::default()
            };
            for attribute in attributes(answer.attributes) {
                match attribute? {
                    (1, value) => text(value)?.clone_into(&mut table.name),
                    (2, value) => table.flags = word(value)?,
                    (4, value) => table.handle = wide(value)?,
                    (6, value) => table.comment = comment_in(value)?.map(str::to_owned),
                    (7, value) => table.owner = word(value)?,
                    _ => {}
                }
            }
            all.push(table);
            Ok(())
        },
    )
}

/// Lists the chains. Blocks.
pub(super) fn chains(item: Item) -> Result<Vec<Chain>, Gap> {
    let headers = consistent(item, |reader| headers(reader, 0))?;
    Ok(headers.into_iter().map(|header| header.chain).collect())
}

/// Lists the chains of `table` at hooks of network devices, by name, with the devices. Blocks.
pub(super) fn devices(item: Item, table: &Table) -> Result<BTreeMap<String, Vec<String>>, Gap> {
    let family = family_number(table.family);
    let headers = consistent(item, |reader| headers(reader, family))?;
    let own = headers
        .into_iter()
        .filter(|header| header.chain.table == table.name && !header.devices.is_empty());
    Ok(own
        .map(|header| (header.chain.name, header.devices))
        .collect())
}

/// Lists the base chains. Blocks.
pub(super) fn base_chains(item: Item) -> Result<Vec<Chain>, Gap> {
    consistent(item, |reader| {
        let take = |bases: &mut Vec<Chain>, answer: Answer<'_>| {
            let mut is_base = false;
            for attribute in attributes(answer.attributes) {
                is_base |= attribute?.0 == HOOK;
            }
            // A node can have thousands of others.
            if is_base {
                bases.push(Header::read(answer)?.chain);
            }
            Ok(())
        };
        reader.ask(get::CHAIN, Extent::All, 0, &[], take)
    })
}

/// Lists the chains of `family`, all if it is 0. Blocks.
pub(super) fn headers(reader: &mut Reader, family: u8) -> Result<Vec<Header>, Gap> {
    listed(reader, Extent::All, family, &[])
}

/// Returns the chain of a table; `None` if it does not exist. Blocks.
pub(super) fn header(
    reader: &mut Reader,
    family: u8,
    table: &str,
    chain: &str,
) -> Result<Option<Header>, Gap> {
    match listed(reader, Extent::One, family, &key(&[(1, table), (3, chain)])) {
        Err(Gap::Absent(..)) => Ok(None),
        found => {
            let mut found = found?.into_iter();
            Ok(found.find(|header| header.chain.table == table && header.chain.name == chain))
        }
    }
}

fn listed(reader: &mut Reader, extent: Extent, family: u8, key: &[u8]) -> Result<Vec<Header>, Gap> {
    let take = |all: &mut Vec<Header>, answer: Answer<'_>| {
        all.push(Header::read(answer)?);
        Ok(())
    };
    reader.ask(get::CHAIN, extent, family, key, take)
}

impl Header {
    /// A chain with policy ACCEPT that has seen no packets.
    pub(super) const fn new(chain: Chain) -> Self {
        Self {
            chain,
            handle: 0,
            policy: 1,
            uses: 0,
            packets: 0,
            bytes: 0,
            flags: 0,
            devices: Vec::new(),
        }
    }

    pub(super) fn read(answer: Answer<'_>) -> Result<Self, Odd> {
        let mut header = Self::new(Chain {
            family: family_name(answer.family).unwrap_or("unknown"),
            table: String::new(),
            name: String::new(),
            base: None,
        });
        let (mut place, mut kind) = (None, "");
        for attribute in attributes(answer.attributes) {
            match attribute? {
                (1, value) => text(value)?.clone_into(&mut header.chain.table),
                (2, value) => header.handle = wide(value)?,
                (3, value) => text(value)?.clone_into(&mut header.chain.name),
                (HOOK, value) => place = Some(value),
                (5, value) => header.policy = word(value)?,
                (6, value) => header.uses = word(value)?,
                (7, value) => kind = text(value)?,
                (8, value) => {
                    for counter in attributes(value) {
                        match counter? {
                            (1, value) => header.bytes = wide(value)?,
                            (2, value) => header.packets = wide(value)?,
                            _ => {}
                        }
                    }
                }
                (10, value) => header.flags = word(value)?,
                _ => {}
            }
        }
        if let Some(place) = place {
            let (mut hook, mut priority) = (0, 0);
            for attribute in attributes(place) {
                match attribute? {
                    (1, value) => hook = word(value)?,
                    (2, value) => priority = word(value)?.cast_signed(),
                    (3, name) => header.devices = vec![text(name)?.to_owned()],
                    (4, names) => header.devices = device_names(names)?,
                    _ => {}
                }
            }
            header.chain.base = Some(Base {
                kind: kind.to_owned(),
                hook,
                priority,
            });
        }
        Ok(header)
    }
}

/// Returns the names of `NFTA_HOOK_DEVS`; a prefix for several links ends with `*`.
fn device_names(bytes: &[u8]) -> Result<Vec<String>, Odd> {
    let names = attributes(bytes).map(|attribute| match attribute? {
        (2, prefix) => Ok(format!("{}*", text(prefix)?)),
        (_, name) => Ok(text(name)?.to_owned()),
    });
    names.collect()
}

/// Returns the name of `NFPROTO_*`; `None` if it is unknown.
pub(super) const fn family_name(family: u8) -> Option<&'static str> {
    match family {
        1 => Some("inet"),
        2 => Some("ip"),
        3 => Some("arp"),
        5 => Some("netdev"),
        7 => Some("bridge"),
        10 => Some("ip6"),
        _ => None,
    }
}

/// Returns the number of the family `name`, 0 if it is unknown.
pub(super) fn family_number(name: &str) -> u8 {
    (1..=10)
        .find(|number| family_name(*number) == Some(name))
        .unwrap_or(0)
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
            ..Table::default()
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
