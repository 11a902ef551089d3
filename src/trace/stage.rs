//! What is registered at each hook, in the order the kernel runs it.

use super::hop::Hook;
use super::{Chains, Rules, Stop, World};
use crate::backend::nftables::model::{Chain, Table};
use crate::evidence::Gap;
use crate::net::Family;

/// Priorities of `netfilter_ipv4.h`; those of IPv6 are the same.
const RAW: i32 = -300;
const MANGLE: i32 = -150;
const NAT_DST: i32 = -100;
const FILTER: i32 = 0;
const SECURITY: i32 = 50;
const NAT_SRC: i32 = 100;
/// IPVS takes requests at `LOCAL_IN` just before nat, and at `LOCAL_OUT` just after (`ip_vs_ops4` in `ip_vs_core.c`).
const IPVS_IN: i32 = NAT_SRC - 1;
const IPVS_OUT: i32 = NAT_DST + 2;

/// Tables that iptables-nft keeps in nftables.
const OF_IPTABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];

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
    /// Every nat chain, whatever its own priority: they share one place, in the order of their priorities
    /// (`nf_nat_register_fn`).
    Nat(Vec<Stage<'w, 'a>>),
    /// IPVS.
    Ipvs,
    /// An unknown stage.
    Unknown(String),
}

/// Returns what is registered at `hook`, in order.
pub(crate) fn stages<'w, 'a>(
    world: &'w World<'_, 'a>,
    hook: Hook,
    family: Family,
) -> Result<Vec<Stage<'w, 'a>>, Stop> {
    let mut stages: Vec<(i32, Stage<'w, 'a>)> = Vec::new();
    let mut nat: Vec<(i32, Stage<'w, 'a>)> = Vec::new();
    let nat_at = match hook {
        Hook::Prerouting | Hook::Output => Some(NAT_DST),
        Hook::Input | Hook::Postrouting => Some(NAT_SRC),
        Hook::Forward => None,
    };
    for chains in &world.chains {
        if let Rules::Unknown(gap) = &chains.rules {
            stages.push((
                RAW,
                Stage::Unknown(format!("the iptables rules are unknown: {gap}")),
            ));
            continue;
        }
        for (table, priority) in [
            ("raw", RAW),
            ("mangle", MANGLE),
            ("filter", FILTER),
            ("security", SECURITY),
        ] {
            if has(table, hook) && chains.chain(table, hook.chain())?.is_some() {
                stages.push((priority, Stage::Iptables { chains, table }));
            }
        }
        if let Some(priority) = nat_at
            && chains.chain("nat", hook.chain())?.is_some()
        {
            nat.push((
                priority,
                Stage::Iptables {
                    chains,
                    table: "nat",
                },
            ));
        }
    }
    match world.node.nft() {
        Ok(_) | Err(Gap::NotCollected(_) | Gap::Absent(..) | Gap::NotApplicable(_)) => {}
        Err(gap) => stages.push((
            RAW,
            Stage::Unknown(format!("the nftables rules are unknown: {gap}")),
        )),
    }
    if let Ok(rules) = world.node.nft() {
        for table in &rules.tables {
            let fits = match table.family.as_str() {
                "inet" => true,
                "ip" => family == Family::V4,
                "ip6" => family == Family::V6,
                _ => false,
            };
            if !fits {
                continue;
            }
            for chain in &table.chains {
                let Some(base) = chain.base.as_ref().filter(|base| base.hook == hook.name()) else {
                    continue;
                };
                if is_iptables(world, table, chain, hook)? {
                    continue;
                }
                let list = if base.kind == "nat" {
                    &mut nat
                } else {
                    &mut stages
                };
                list.push((base.priority, Stage::Nftables { table, chain }));
            }
        }
    }
    if let Some(at) = nat_at {
        nat.sort_by_key(|(priority, _)| *priority);
        stages.push((
            at,
            Stage::Nat(nat.into_iter().map(|(_, stage)| stage).collect()),
        ));
    }
    match hook {
        Hook::Input => stages.push((IPVS_IN, Stage::Ipvs)),
        Hook::Output => stages.push((IPVS_OUT, Stage::Ipvs)),
        Hook::Prerouting | Hook::Forward | Hook::Postrouting => {}
    }
    stages.sort_by_key(|(priority, _)| *priority);
    Ok(stages.into_iter().map(|(_, stage)| stage).collect())
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

/// Returns whether the base chain of nftables at `hook` is a built-in one of iptables-nft that is walked as such. What
/// iptables cannot show, and chains that other software added, are walked as nftables'.
fn is_iptables(
    world: &World<'_, '_>,
    table: &Table,
    chain: &Chain,
    hook: Hook,
) -> Result<bool, Stop> {
    let named = table.family != "inet"
        && OF_IPTABLES.contains(&table.name.as_str())
        && chain.name == hook.chain();
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
