//! Ignores the order of rules in redacted evidence.

use std::collections::{HashMap, HashSet};

use super::{Change, Delta, Object};
use crate::backend::iptables::model::{Match, Rule, Target};
use crate::backend::nftables;
use crate::backend::nftables::model::{Datum, Expr, Statement};
use crate::net::Family;

/// The family and the chain of a rule, and its table in iptables.
type Chain = (Option<Family>, Option<String>, String);

/// Removes changes of rules that differ in their order alone, and joins the rest of a rule that moved with another.
///
/// Endpoints are sorted by address, and redacted addresses sort otherwise than those the rules were made from. The
/// probabilities in a chain belong to places: they are compared as a whole.
pub(super) fn unsort(changes: &mut Vec<Change>) {
    let mut chains: HashMap<Chain, Vec<usize>> = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        let chain = match &change.object {
            Object::IptablesRule { table, chain, .. } => {
                (change.family, Some(table.clone()), chain.clone())
            }
            Object::NftablesRule { chain, .. } => (change.family, None, chain.clone()),
            _ => continue,
        };
        chains.entry(chain).or_default().push(at);
    }
    let mut matched: [HashSet<usize>; 2] = Default::default();
    for places in chains.into_values() {
        let [have, want] = sides(changes, &places);
        let pairs = pairs(&have, &want);
        let probabilities = |side: &[Side], of: fn(&(usize, usize)) -> usize| {
            let mut all: Vec<u32> = pairs
                .iter()
                .filter_map(|pair| side[of(pair)].chance)
                .collect();
            all.sort_unstable();
            all
        };
        if probabilities(&have, |pair| pair.0) == probabilities(&want, |pair| pair.1) {
            matched[0].extend(pairs.iter().map(|(at, _)| have[*at].change));
            matched[1].extend(pairs.iter().map(|(_, at)| want[*at].change));
        }
    }
    let all = std::mem::take(changes).into_iter().enumerate();
    let rest = all.filter_map(|(at, change)| {
        let [have, want] = [&matched[0], &matched[1]].map(|matched| !matched.contains(&at));
        if have && want {
            return Some(change);
        }
        let object = match change.object {
            Object::IptablesRule {
                table,
                chain,
                at,
                rule,
            } => Object::IptablesRule {
                table,
                chain,
                at,
                rule: left(&rule, have, want)?,
            },
            Object::NftablesRule { chain, at, rule } => Object::NftablesRule {
                chain,
                at,
                rule: left(&rule, have, want)?,
            },
            other => other,
        };
        Some(Change { object, ..change })
    });
    *changes = rest.collect();
}

/// A live or a desired rule.
struct Side {
    /// Its change.
    change: usize,
    /// Its parts, without its probability.
    parts: Vec<Part>,
    /// Its probability.
    chance: Option<u32>,
}

/// Returns the live and the desired rules of the changes at `places`.
fn sides(changes: &[Change], places: &[usize]) -> [Vec<Side>; 2] {
    let mut sides: [Vec<Side>; 2] = Default::default();
    for &change in places {
        let rules: [Option<(Vec<Part>, Option<u32>)>; 2] = match &changes[change].object {
            Object::IptablesRule { rule, .. } => {
                [rule.have(), rule.want()].map(|of| of.map(of_rule))
            }
            Object::NftablesRule { rule, .. } => {
                [rule.have(), rule.want()].map(|of| of.map(|rule| (of_statements(rule), None)))
            }
            _ => continue,
        };
        for (side, rule) in sides.iter_mut().zip(rules) {
            side.extend(rule.map(|(parts, chance)| Side {
                change,
                parts,
                chance,
            }));
        }
    }
    sides
}

/// Returns the places of equal rules in both sides.
fn pairs(have: &[Side], want: &[Side]) -> Vec<(usize, usize)> {
    let mut free: Vec<usize> = (0..want.len()).collect();
    let mut pairs = Vec::new();
    for (at, side) in have.iter().enumerate() {
        let found = free
            .iter()
            .position(|other| are_permuted(&side.parts, &want[*other].parts));
        if let Some(found) = found {
            pairs.push((at, free.remove(found)));
        }
    }
    pairs
}

/// Returns what is left of `rule` without its live rule unless `have`, and without its desired one unless `want`.
fn left<R: Clone>(rule: &Delta<R>, have: bool, want: bool) -> Option<Delta<R>> {
    let have = rule.have().filter(|_| have).cloned();
    let want = rule.want().filter(|_| want).cloned();
    match (have, want) {
        (Some(have), Some(want)) => Some(Delta::differs(have, want)),
        (Some(have), None) => Some(Delta::extra(have)),
        (None, Some(want)) => Some(Delta::missing(want)),
        (None, None) => None,
    }
}

/// A part of a rule, so small that a rule at another place has the same.
#[derive(Debug, PartialEq)]
enum Part {
    Match(Match<'static>),
    Target(Target<'static>),
    Statement(Statement),
    Expr(Expr),
    Datum(Datum),
    Comment(String),
}

/// Returns the parts of a rule, and its probability.
fn of_rule(rule: &Rule<'static>) -> (Vec<Part>, Option<u32>) {
    let mut chance = None;
    let mut parts: Vec<Part> = rule.target.clone().map(Part::Target).into_iter().collect();
    for of in &rule.matches {
        match of {
            Match::Random(of) => chance = Some(of.value),
            of => parts.push(Part::Match(of.clone())),
        }
    }
    (parts, chance)
}

fn of_statements(rule: &nftables::model::Rule) -> Vec<Part> {
    let mut parts: Vec<_> = rule
        .comment
        .clone()
        .map(Part::Comment)
        .into_iter()
        .collect();
    for statement in &rule.statements {
        let map = match statement {
            Statement::Vmap {
                data: Expr::Map(map),
                ..
            } => Some(map),
            Statement::Nat {
                addr: Some(Expr::Lookup { data, .. }),
                ..
            } => inline_map(data),
            _ => None,
        };
        match map {
            Some(map) => parts
                .extend(map.iter().flat_map(|(key, datum)| {
                    [Part::Expr(key.clone()), Part::Datum(datum.clone())]
                })),
            None => parts.push(Part::Statement(statement.clone())),
        }
    }
    parts
}

fn inline_map(data: &Expr) -> Option<&Vec<(Expr, Datum)>> {
    if let Expr::Map(map) = data {
        Some(map)
    } else {
        None
    }
}

fn are_permuted(a: &[Part], b: &[Part]) -> bool {
    let mut left: Vec<&Part> = b.iter().collect();
    a.len() == b.len()
        && a.iter().all(|part| {
            let at = left.iter().position(|other| *other == part);
            at.map(|at| left.swap_remove(at)).is_some()
        })
}
