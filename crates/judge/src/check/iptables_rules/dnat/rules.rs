//! The DNAT rules of other software, of every backend.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::Facts;
use crate::check::core::{Collector, by_family, idle_rules, rules_in_use};
use crate::trace::region::{address, ends};
use crate::trace::{Rule, Subsystem};
use kpx_node::backend::iptables::model::{Match, Target};
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::{
    self as nftables, Datum, Expr, NatKind, Statement, Verdict,
};
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family};

/// A DNAT rule of other software.
#[derive(Debug)]
pub(super) struct Dnat {
    pub(super) at: Rule,
    /// The only destination that the rule matches, if it names one.
    pub(super) matches: Option<IpAddr>,
    pub(super) targets: Vec<Destination>,
}

/// The destination of a DNAT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) first: IpAddr,
    pub(super) last: IpAddr,
    /// `None` keeps the port.
    pub(super) port: Option<u16>,
}

impl Destination {
    const fn of(addr: IpAddr, port: Option<u16>) -> Self {
        Self {
            first: addr,
            last: addr,
            port,
        }
    }
}

/// Returns the DNAT rules of other software in iptables, of both backends, and notes in `all` what was not read.
pub(super) fn in_iptables(facts: &Facts<'_>, all: &mut Collector) -> Vec<Dnat> {
    let used = rules_in_use(facts, all);
    let used = used
        .into_iter()
        .map(|(family, rules)| (family, Subsystem::Iptables, rules));
    let idle = by_family(facts, all, |family| idle_rules(facts, family));
    let idle = idle.into_iter();
    let idle = idle.filter_map(|(family, rules)| Some((family, Subsystem::IptablesOther, rules?)));
    let mut found = Vec::new();
    for (family, subsystem, rules) in used.chain(idle) {
        let Some(table) = rules.table("nat") else {
            continue;
        };
        let of = |name: &str| {
            let chain = table.chain(name);
            let rules = chain.into_iter().flat_map(|chain| &chain.rules);
            let to = rules.filter_map(|rule| rule.leads_to());
            to.map(str::to_owned).collect()
        };
        let entries = HOOKS.map(str::to_uppercase);
        for name in reached(entries, of) {
            let chain = table.chain(&name);
            let rules = chain.iter().flat_map(|chain| &chain.rules).enumerate();
            for (at, rule) in rules {
                let targets = match &rule.target {
                    Some(Target::Dnat(nat)) => nat.addrs.map(|(first, last)| Destination {
                        first,
                        last,
                        port: nat.ports.map(|ports| ports.first),
                    }),
                    Some(Target::Other { name: target, .. }) if target == "DNAT" => {
                        let why = format!("{family} nat {name}: `{rule}` has an unknown form");
                        all.note(Gap::Failed(Item::iptables(family), why));
                        None
                    }
                    _ => None,
                };
                found.extend(targets.map(|to| Dnat {
                    at: Rule {
                        family,
                        subsystem,
                        table: "nat".to_owned(),
                        chain: name.clone(),
                        number: at + 1,
                        rule: rule.to_string().trim_start().to_owned(),
                    },
                    matches: rule.matches.iter().find_map(only_destination),
                    targets: vec![to],
                }));
            }
        }
    }
    found
}

/// Returns the address if the match is for one destination.
fn only_destination(of: &Match<'_>) -> Option<IpAddr> {
    match of {
        Match::Destination(cidr) if !cidr.inverted => {
            let bits = Family::of(cidr.value.addr).bits();
            (cidr.value.prefix == bits).then_some(cidr.value.addr)
        }
        _ => None,
    }
}

/// The hooks that translate destinations.
const HOOKS: [&str; 2] = ["prerouting", "output"];

/// Returns the chains that packets reach from `entries`, apart from kube-proxy's; `next` returns where the rules of a chain lead.
fn reached(
    entries: impl IntoIterator<Item = String>,
    next: impl Fn(&str) -> Vec<String>,
) -> BTreeSet<String> {
    let mut left: Vec<_> = entries.into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(name) = left.pop() {
        if name.starts_with("KUBE-") || seen.contains(&name) {
            continue;
        }
        left.extend(next(&name));
        seen.insert(name);
    }
    seen
}

/// Returns the DNAT rules of other software in tables of nftables, and notes in `all` what was not read.
pub(super) fn in_nftables(facts: &Facts<'_>, all: &mut Collector) -> Vec<Dnat> {
    let rules = match facts.node.nft() {
        // Without nftables there are none.
        Err(Gap::NotApplicable(_)) => None,
        read => all.read(read),
    };
    let tables = rules.into_iter().flat_map(|rules| &rules.tables);
    let mut found = Vec::new();
    for table in tables.filter(|table| table.name != TABLE && !table.is_of_iptables()) {
        let entries = table.chains.iter().filter(|chain| {
            let mut base = chain.base.iter();
            base.any(|base| base.kind == "nat" && HOOKS.contains(&base.hook.as_str()))
        });
        let entries = entries.map(|chain| chain.name.clone());
        let of = |name: &str| {
            let chain = table.chain(name);
            let rules = chain.into_iter().flat_map(|chain| &chain.rules);
            let all = rules.flat_map(|rule| &rule.statements);
            all.flat_map(|statement| jumps(table, statement)).collect()
        };
        for name in reached(entries, of) {
            let chain = table.chain(&name);
            let rules = chain.iter().flat_map(|chain| &chain.rules).enumerate();
            for (at, rule) in rules {
                let mut targets = Vec::new();
                for (addr, port) in rule.statements.iter().filter_map(dnat) {
                    let mut values = Vec::new();
                    if !values_of(table, addr, &mut values) {
                        let why = format!("where `{}` leads is unknown", print::rule(rule));
                        all.note(Gap::Failed(Item::Nft, why));
                    }
                    let port = port.and_then(number);
                    targets.extend(values.into_iter().map(|to| Destination {
                        port: to.port.or(port),
                        ..to
                    }));
                }
                if !targets.is_empty() {
                    found.push(Dnat {
                        at: Rule {
                            family: Family::of(targets[0].first),
                            subsystem: Subsystem::Nftables,
                            table: format!("{} {}", table.family, table.name),
                            chain: name.clone(),
                            number: at + 1,
                            rule: print::rule(rule),
                        },
                        matches: rule.statements.iter().find_map(only_daddr),
                        targets,
                    });
                }
            }
        }
    }
    found
}

/// Returns the chains that a statement leads to.
fn jumps(table: &nftables::Table, of: &Statement) -> Vec<String> {
    let to = |verdict: &Verdict| match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => Some(to.clone()),
        _ => None,
    };
    match of {
        Statement::Verdict(verdict) => to(verdict).into_iter().collect(),
        Statement::Vmap { data, .. } => {
            let verdicts = data_of(table, data).into_iter();
            let verdicts = verdicts.filter_map(|datum| match datum {
                Datum::Verdict(verdict) => to(verdict),
                Datum::Data(_) => None,
            });
            verdicts.collect()
        }
        _ => Vec::new(),
    }
}

/// Returns what a map gives: an inline one, or a map of `table`.
fn data_of<'t>(table: &'t nftables::Table, map: &'t Expr) -> Vec<&'t Datum> {
    match map {
        Expr::Map(entries) => entries.iter().map(|(_, datum)| datum).collect(),
        Expr::Named(name) => {
            let name = name.trim_start_matches('@');
            let elements = table.set(name).into_iter().flat_map(|set| &set.elements);
            elements
                .filter_map(|element| element.value.as_ref())
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the address and port of a DNAT.
fn dnat(of: &Statement) -> Option<(&Expr, Option<&Expr>)> {
    match of {
        Statement::Nat {
            kind: NatKind::Dnat,
            addr: Some(addr),
            port,
            ..
        } => Some((addr, port.as_ref())),
        _ => None,
    }
}

/// Adds the destinations that `expr` may give to `to`; returns whether all are known.
fn values_of(table: &nftables::Table, expr: &Expr, to: &mut Vec<Destination>) -> bool {
    match expr {
        Expr::Word(word) => word.parse().is_ok_and(|addr| {
            to.push(Destination::of(addr, None));
            true
        }),
        Expr::Concat(parts) => match parts.as_slice() {
            [Expr::Word(word), port] => word.parse().is_ok_and(|addr| {
                to.push(Destination::of(addr, number(port)));
                true
            }),
            _ => false,
        },
        Expr::Range(first, last) => match (&**first, &**last) {
            (Expr::Word(first), Expr::Word(last)) => match (first.parse(), last.parse()) {
                (Ok(first), Ok(last)) => {
                    to.push(Destination {
                        first,
                        last,
                        port: None,
                    });
                    true
                }
                _ => false,
            },
            _ => false,
        },
        Expr::Prefix { addr, len } => match &**addr {
            Expr::Word(word) => word.parse().is_ok_and(|addr: IpAddr| {
                if *len > Family::of(addr).bits() {
                    return false;
                }
                let (first, last) = ends(Cidr { addr, prefix: *len });
                let family = Family::of(addr);
                to.push(Destination {
                    first: address(family, first),
                    last: address(family, last),
                    port: None,
                });
                true
            }),
            _ => false,
        },
        Expr::Lookup { data, .. } => data_of(table, data).into_iter().all(|datum| match datum {
            Datum::Data(expr) => values_of(table, expr, to),
            Datum::Verdict(_) => false,
        }),
        _ => false,
    }
}

fn number(expr: &Expr) -> Option<u16> {
    match expr {
        Expr::Number(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

/// Returns the address if the statement matches one destination.
fn only_daddr(of: &Statement) -> Option<IpAddr> {
    let Statement::Match { left, op, right } = of else {
        return None;
    };
    match (left, op.as_str(), right) {
        (Expr::Payload { field, .. }, "==", Expr::Word(word)) if field == "daddr" => {
            word.parse().ok()
        }
        _ => None,
    }
}
