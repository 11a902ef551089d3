//! What is registered at each hook, in the order the kernel runs it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::hop::Hook;
use super::world::Need;
use super::{Chains, Rules, Stop, World};
use kpx_node::backend::nftables::model::{Chain, Table};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;

/// Priorities of `netfilter_ipv4.h`; those of IPv6 are the same.
const RAW: i32 = -300;
const CONNTRACK: i32 = -200;
const MANGLE: i32 = -150;
const NAT_DST: i32 = -100;
const FILTER: i32 = 0;
const SECURITY: i32 = 50;
const NAT_SRC: i32 = 100;
/// IPVS takes requests at `LOCAL_IN` just before nat, and at `LOCAL_OUT` just after (`ip_vs_ops4` in `ip_vs_core.c`).
const IPVS_IN: i32 = NAT_SRC - 1;
const IPVS_OUT: i32 = NAT_DST + 2;

/// One thing registered at a hook.
#[derive(Debug)]
pub(crate) enum Stage<'w, 'a> {
    /// A built-in chain of iptables.
    Iptables {
        chains: &'w Chains<'a>,
        table: &'static str,
    },
    /// A base chain of nftables.
    Nftables { table: &'w Table, chain: &'w Chain },
    /// Every nat chain, whatever its own priority: they share one place (`nf_nat_register_fn`).
    Nat(Nat<'w, 'a>),
    /// IPVS.
    Ipvs,
    /// Connection tracking.
    Conntrack,
    /// An unknown stage.
    Unknown(String),
}

/// The nat chains of a hook. Of chains with the same priority, the kernel runs the one first that was registered last
/// (`nf_hook_entries_grow`).
#[derive(Debug)]
pub(crate) struct Nat<'w, 'a> {
    /// The chains, by priority, then the later one first if the order of tables and chains shows it.
    pub(crate) chains: Vec<Stage<'w, 'a>>,
    /// Other possible orders: an older table may have a newer chain.
    pub(crate) others: Vec<Order>,
    /// Whether the order of tables is known of all chains.
    pub(crate) is_placed: bool,
}

/// An order of nat chains that may be the kernel's.
#[derive(Debug)]
pub(crate) struct Order {
    /// The condition for it to be the kernel's order: `whether …`.
    pub(crate) question: String,
    /// The places of the chains in [`Nat::chains`], in this order.
    pub(crate) places: Vec<usize>,
}

/// A registered hook, with the facts that decide its order.
struct Registered<'w, 'a> {
    priority: i32,
    /// The place of its table among all tables, from 1; `None` if unknown.
    table: Option<usize>,
    /// Whether it has no rules: then its place is of no importance.
    is_empty: bool,
    stage: Stage<'w, 'a>,
}

impl<'w, 'a> Registered<'w, 'a> {
    /// Returns `stage`, whose place among others of the same priority is unknown.
    const fn at(priority: i32, stage: Stage<'w, 'a>) -> Self {
        Self {
            priority,
            table: None,
            is_empty: false,
            stage,
        }
    }
}

/// Returns `all` by priority, then the last registered first. If the table is unknown, the order stays.
fn sorted<'w, 'a>(all: Vec<Registered<'w, 'a>>) -> Vec<Registered<'w, 'a>> {
    let mut all: Vec<(usize, Registered<'w, 'a>)> = all.into_iter().enumerate().collect();
    all.sort_by_key(|(at, of)| {
        let later = of.table.map(|table| (Reverse(table), Reverse(*at)));
        (of.priority, later, *at)
    });
    all.into_iter().map(|(_, of)| of).collect()
}

impl<'w, 'a> Nat<'w, 'a> {
    fn new(all: Vec<Registered<'w, 'a>>) -> Self {
        let all = sorted(all);
        let mut others = Vec::new();
        for (at, of) in all.iter().enumerate() {
            let rivals = || {
                let same = all
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| other.priority == of.priority && !other.is_empty);
                same.filter(|(_, other)| other.table.is_none() || other.table != of.table)
            };
            let Some((first, _)) = rivals().next().filter(|_| !of.is_empty) else {
                continue;
            };
            // Behind itself, it stays where it is.
            if first >= at {
                continue;
            }
            let mut places: Vec<usize> = (0..all.len()).filter(|place| *place != at).collect();
            places.insert(first, at);
            let names: Vec<String> = rivals().map(|(_, other)| other.stage.name()).collect();
            others.push(Order {
                question: format!(
                    "the kernel runs {} before {}: all have priority {}, and it runs the one first that was \
                     registered last",
                    of.stage.name(),
                    super::mismatch::listed(&names),
                    of.priority
                ),
                places,
            });
        }
        Self {
            is_placed: all.iter().all(|registered| registered.table.is_some()),
            chains: all.into_iter().map(|registered| registered.stage).collect(),
            others,
        }
    }
}

impl Stage<'_, '_> {
    /// Returns what it is called: `chain PREROUTING of table ip nat`.
    fn name(&self) -> String {
        match self {
            Self::Iptables { chains, table } => {
                let store = match chains.store {
                    IptablesBackend::InUse => "iptables",
                    IptablesBackend::Legacy => "iptables-legacy",
                    IptablesBackend::Nft => "iptables-nft",
                };
                format!("table {table} of {store}")
            }
            Self::Nftables { table, chain } => {
                format!(
                    "chain {} of table {} {}",
                    chain.name, table.family, table.name
                )
            }
            Self::Nat(_) => "nat".to_owned(),
            Self::Ipvs => "IPVS".to_owned(),
            Self::Conntrack => "connection tracking".to_owned(),
            Self::Unknown(what) => what.clone(),
        }
    }
}

/// Returns the back end of iptables whose rules are in nftables.
fn nft_store(world: &World<'_, '_>) -> Option<IptablesBackend> {
    let has = |store| world.chains.iter().any(|chains| chains.store == store);
    if has(IptablesBackend::Nft) {
        return Some(IptablesBackend::Nft);
    }
    let version = world.node.evidence().text(Item::IptablesVersion);
    let is_legacy = version.is_ok_and(|text| !text.contains("nf_tables"));
    (has(IptablesBackend::Legacy) || !is_legacy).then_some(IptablesBackend::InUse)
}

/// Returns what is registered at `hook`, in order.
pub(crate) fn stages<'w, 'a>(
    world: &'w World<'_, 'a>,
    hook: Hook,
    family: Family,
) -> Result<Vec<Stage<'w, 'a>>, Stop> {
    let mut stages: Vec<Registered<'w, 'a>> = Vec::new();
    let mut nat: Vec<Registered<'w, 'a>> = Vec::new();
    let nat_at = match hook {
        Hook::Prerouting | Hook::Output => Some(NAT_DST),
        Hook::Input | Hook::Postrouting => Some(NAT_SRC),
        Hook::Forward => None,
    };
    let in_nftables = nft_store(world);
    let tables = world.node.nft().map_or(&[][..], |rules| &rules.tables);
    for chains in &world.chains {
        if let Rules::Unknown(gap) = &chains.rules {
            // The kernel's own list has them, too.
            let of_iptables =
                |table: &&Table| table.family == family.nft_name() && table.is_of_iptables();
            let mut listed = tables.iter().filter(of_iptables).peekable();
            if Some(chains.store) == in_nftables
                && listed.peek().is_some()
                && listed.all(|table| !table.chains.is_empty())
            {
                continue;
            }
            let stage = Stage::Unknown(format!("the iptables rules are unknown: {gap}"));
            stages.push(Registered::at(RAW, stage));
            continue;
        }
        let place = |name: &str| {
            let is_it = |table: &Table| table.family == family.nft_name() && table.name == name;
            let at = tables.iter().position(is_it);
            at.filter(|_| Some(chains.store) == in_nftables)
        };
        let sleeps = |name: &str| place(name).is_some_and(|at| tables[at].dormant);
        for (table, priority) in [
            ("raw", RAW),
            ("mangle", MANGLE),
            ("filter", FILTER),
            ("security", SECURITY),
        ] {
            let is_there = || -> Result<bool, Stop> {
                Ok(chains.chain(table, hook.chain())?.is_some()
                    || chains.is_unseen(table, hook.chain())? && table != "security")
            };
            if has(table, hook) && is_there()? && !sleeps(table) {
                stages.push(Registered {
                    table: place(table).map(|at| at + 1),
                    ..Registered::at(priority, Stage::Iptables { chains, table })
                });
            }
        }
        let table = "nat";
        let chain = chains.chain(table, hook.chain())?;
        let is_unseen = chains.is_unseen(table, hook.chain())?;
        if let Some(priority) = nat_at
            && (chain.is_some() || is_unseen)
            && !sleeps(table)
        {
            nat.push(Registered {
                table: place(table).map(|at| at + 1),
                is_empty: chain.is_some_and(|chain| chain.rules.is_empty()),
                ..Registered::at(priority, Stage::Iptables { chains, table })
            });
        }
    }
    match world.node.nft() {
        Ok(_) | Err(Gap::NotCollected(_) | Gap::Absent(..) | Gap::NotApplicable(_)) => {}
        Err(gap) => {
            let stage = Stage::Unknown(format!("the nftables rules are unknown: {gap}"));
            stages.push(Registered::at(RAW, stage));
        }
    }
    for (at, table) in tables.iter().enumerate() {
        let fits = match table.family.as_str() {
            "inet" => true,
            "ip" => family == Family::V4,
            "ip6" => family == Family::V6,
            _ => false,
        };
        // The kernel takes the hooks of a dormant table away.
        if !fits || table.dormant {
            continue;
        }
        for chain in &table.chains {
            let Some(base) = chain.base.as_ref().filter(|base| base.hook == hook.name()) else {
                continue;
            };
            if is_iptables(world, table, chain, hook)? {
                continue;
            }
            if table.has_unread_flag {
                let stage = Stage::Unknown(format!(
                    "whether the kernel runs table {0} {1} is unknown: it has a flag that nft 1.0.6 and older do not show in JSON \
                     (`nft list table {0} {1}` shows it)",
                    table.family, table.name
                ));
                stages.push(Registered::at(base.priority, stage));
                continue;
            }
            let list = if base.kind == "nat" {
                &mut nat
            } else {
                &mut stages
            };
            list.push(Registered {
                table: Some(at + 1),
                is_empty: chain.rules.is_empty() && base.policy == "accept",
                ..Registered::at(base.priority, Stage::Nftables { table, chain })
            });
        }
    }
    if let Some(at) = nat_at {
        stages.push(Registered::at(at, Stage::Nat(Nat::new(nat))));
    }
    match hook {
        Hook::Input => stages.push(Registered::at(IPVS_IN, Stage::Ipvs)),
        Hook::Output => stages.push(Registered::at(IPVS_OUT, Stage::Ipvs)),
        Hook::Prerouting | Hook::Forward | Hook::Postrouting => {}
    }
    if matches!(hook, Hook::Prerouting | Hook::Output) {
        stages.push(Registered::at(CONNTRACK, Stage::Conntrack));
    }
    Ok(sorted(stages)
        .into_iter()
        .map(|sorted| sorted.stage)
        .collect())
}

/// Returns the tables of iptables that have a built-in chain at `hook`.
pub(crate) fn tables(hook: Hook) -> impl Iterator<Item = &'static str> {
    let nat = (hook != Hook::Forward).then_some("nat");
    let others = ["raw", "mangle", "filter", "security"];
    others
        .into_iter()
        .filter(move |table| has(table, hook))
        .chain(nat)
}

/// Returns whether `table` of iptables has a built-in chain at `hook`.
fn has(table: &str, hook: Hook) -> bool {
    match table {
        "raw" => matches!(hook, Hook::Prerouting | Hook::Output),
        "filter" | "security" => matches!(hook, Hook::Input | Hook::Forward | Hook::Output),
        _ => true,
    }
}

/// Returns whether the base chain of nftables at `hook` is a built-in one of iptables-nft that is walked as such.
/// Chains that iptables cannot show, and chains that other software added, are walked as chains of nftables.
fn is_iptables(
    world: &World<'_, '_>,
    table: &Table,
    chain: &Chain,
    hook: Hook,
) -> Result<bool, Stop> {
    let named = table.is_of_iptables() && chain.name == hook.chain();
    if !named {
        return Ok(false);
    }
    for chains in &world.chains {
        if chains.chain(&table.name, &chain.name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the built-in chains: every walk begins with some of them.
pub fn base_chains() -> BTreeSet<Need> {
    let hooks = [
        Hook::Prerouting,
        Hook::Input,
        Hook::Forward,
        Hook::Output,
        Hook::Postrouting,
    ];
    let of = |hook: Hook| {
        let tables = tables(hook);
        tables.map(move |table| Need {
            table: table.to_owned(),
            chain: hook.chain().to_owned(),
        })
    };
    hooks.into_iter().flat_map(of).collect()
}
