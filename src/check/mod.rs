//! Doctor checks, as data.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::evidence::{Gap, Item};
use crate::node::NodeSnapshot;

/// What a check may look at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The node under examination.
    pub node: &'a NodeSnapshot<'a>,
}

/// Findings, or the reason the check could not look.
pub type Verdict = Result<Vec<Finding>, Gap>;

/// One thing the doctor knows how to look for.
#[derive(Debug)]
pub struct Check {
    /// The catalogue's code: two letters, two digits; never reused.
    pub id: &'static str,
    /// A kebab-case slug.
    pub name: &'static str,
    /// The group: the letters of `id`, spelled out.
    pub group: &'static str,
    /// How bad a finding is, at worst.
    pub severity: Severity,
    /// The healthy state, as one sentence without a full stop.
    pub title: &'static str,
    /// Why it matters: the mechanism.
    pub why: &'static str,
    /// How to see it by hand with standard tools.
    pub verify: &'static str,
    /// What to do about it.
    pub fix: &'static str,
    /// Where it was met: issues and incidents.
    pub incidents: &'static [&'static str],
    /// What must be collected first.
    pub needs: &'static [Item],
    /// The question itself.
    pub run: fn(&Facts<'_>) -> Verdict,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// A risk.
    Warning,
    /// Traffic is, or will be, lost.
    Error,
}

/// One fact that breaks a check.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What the finding is about: a sysctl, a service, a chain.
    pub subject: String,
    /// What was seen, and what was expected.
    pub message: String,
    /// What it was seen in: quoted rules, addresses, lines.
    pub evidence: Vec<String>,
    /// What mends it.
    pub fix: Fix,
}

/// What mends a finding.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Fix {
    /// In words.
    pub text: String,
    /// As a command, where one is safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// Every check, grouped by file, in the order the doctor runs them.
pub const CHECKS: &[&[Check]] = &[];

/// Iterates over every check.
pub fn all() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().copied().flatten()
}

/// Returns what must be collected to run `checks`, each item once.
pub fn needs(checks: &[&Check]) -> BTreeSet<Item> {
    checks
        .iter()
        .flat_map(|check| check.needs)
        .copied()
        .collect()
}
