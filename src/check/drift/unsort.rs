//! Ignores the order of rules in redacted evidence.

use std::collections::{HashMap, HashSet};

use super::{Change, Delta, Object};
use crate::backend::iptables::model::{Match, Rule, Target};
use crate::backend::nftables;
use crate::backend::nftables::model::{Datum, Expr, Statement};
use crate::net::Family;

/// The family and the chain of a rule, and its table in iptables.
type Chain = (Option<Family>, Option<String>, String);

/// Removes changes of rules that differ in their order alone.
///
/// Endpoints are sorted by address, and redacted addresses sort otherwise than those the rules were made from.
pub(super) fn unsort(changes: &mut Vec<Change>) {
    let chain = |change: &Change| -> Option<Chain> {
        match &change.object {
            Object::IptablesRule { table, chain, .. } => {
                Some((change.family, Some(table.clone()), chain.clone()))
            }
            Object::NftablesRule { chain, .. } => Some((change.family, None, chain.clone())),
            _ => None,
        }
    };
    let mut parts: HashMap<Chain, [Vec<Part>; 2]> = HashMap::new();
    for change in changes.iter() {
        let Some(chain) = chain(change) else {
            continue;
        };
        let sides = parts.entry(chain).or_default();
        match &change.object {
            Object::IptablesRule { rule, .. } => add(sides, rule, of_rule),
            Object::NftablesRule { rule, .. } => add(sides, rule, of_statements),
            _ => {}
        }
    }
    let same: HashSet<Chain> = parts
        .into_iter()
        .filter(|(_, [have, want])| are_permuted(have, want))
        .map(|(chain, _)| chain)
        .collect();
    changes.retain(|change| chain(change).is_none_or(|chain| !same.contains(&chain)));
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

fn add<R>(sides: &mut [Vec<Part>; 2], rule: &Delta<R>, parts: impl Fn(&R) -> Vec<Part>) {
    let [have, want] = sides;
    have.extend(rule.have().into_iter().flat_map(&parts));
    want.extend(rule.want().into_iter().flat_map(&parts));
}

fn of_rule(rule: &Rule<'static>) -> Vec<Part> {
    let matches = rule.matches.iter().cloned().map(Part::Match);
    matches
        .chain(rule.target.clone().map(Part::Target))
        .collect()
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
