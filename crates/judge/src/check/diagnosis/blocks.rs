//! The findings in blocks: findings that one fix clears are one block.

use std::collections::BTreeSet;

use super::Diagnosed;
use crate::check::{Advice, Fix, ServiceRef, Severity, Weight};

/// Findings that one fix clears, or a finding without such a fix. Numbers are positions among the findings of the diagnosis.
#[derive(Clone, Debug)]
pub struct Block {
    /// The command that clears all of them, if there is one.
    pub advice: Option<Advice>,
    /// The severity of the worst.
    pub severity: Severity,
    /// Whether it is always shown with its fix: Services fail because of it, or are unknown.
    pub is_vital: bool,
    /// The findings; those with the same message are one group.
    pub groups: Vec<Vec<usize>>,
}

impl Block {
    /// Returns the number of findings.
    pub fn count(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Returns the command that clears all findings, if there are several.
    pub fn shared_fix(&self) -> Option<&Advice> {
        self.advice.as_ref().filter(|_| self.count() > 1)
    }
}

/// Returns the blocks of `findings`: the worst first, of errors those that concern the most Services, then those with the fix that clears
/// the most.
pub(super) fn blocks(findings: &[Diagnosed]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for group in groups(findings) {
        let advice = common(findings, &group);
        let severity = findings[group[0]].severity;
        let same = |block: &&mut Block| {
            let there = |at: usize| findings[at].finding.fix.as_ref().and_then(Fix::there);
            advice.is_some()
                && block.advice == advice
                && there(block.groups[0][0]) == there(group[0])
        };
        let ties = &findings[group[0]].finding.ties;
        match blocks.iter_mut().find(same) {
            Some(block) => block.groups.push(group),
            None => blocks.push(Block {
                advice,
                severity,
                is_vital: severity == Severity::Error || ties.weight == Weight::First,
                groups: vec![group],
            }),
        }
    }
    let breadths = blocks.iter().filter_map(|block| breadth(findings, block));
    let most = breadths.max();
    blocks.sort_by_key(|block| {
        let cleared = block.shared_fix().map(|_| block.count());
        let is_error = block.severity == Severity::Error;
        let breadth = is_error.then(|| breadth(findings, block).or(most));
        std::cmp::Reverse((block.severity, block.is_vital, breadth, cleared))
    });
    blocks
}

/// Returns the number of Services that a block concerns; `None` if one of its findings names none, as it is about the node.
fn breadth(findings: &[Diagnosed], block: &Block) -> Option<usize> {
    let mut services = BTreeSet::new();
    for diagnosed in block.groups.iter().flatten().map(|at| &findings[*at]) {
        let consequences = diagnosed.consequences.iter();
        let of_these = consequences.flat_map(|consequence| &consequence.finding.services);
        let all = diagnosed.finding.services.iter().chain(of_these);
        let known = services.len();
        services.extend(all.map(ServiceRef::whole));
        if diagnosed.finding.services.is_empty() && services.len() == known {
            return None;
        }
    }
    Some(services.len())
}

/// Groups findings that have the same message; they are sorted by severity and check already.
fn groups(findings: &[Diagnosed]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let key = |at: usize| {
        let of = &findings[at];
        (of.check.id, of.severity, &of.finding.message)
    };
    for at in 0..findings.len() {
        match groups.iter_mut().find(|group| key(group[0]) == key(at)) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

/// Returns the command of the fix that all findings of a group have, if it changes something.
fn common(findings: &[Diagnosed], group: &[usize]) -> Option<Advice> {
    let of = |at: &usize| {
        let fix = findings[*at].finding.fix.as_ref()?;
        let advice = fix.advice.as_ref()?;
        (!fix.is_to_decide && advice.changes()).then_some((advice, fix.there()))
    };
    let first = group.first().and_then(of)?;
    let is_same = group.iter().all(|at| of(at) == Some(first));
    is_same.then(|| first.0.clone())
}
