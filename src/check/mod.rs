//! Doctor checks, as data.
//!
//! A check is one entry in its group's table and one function beside it. The function asks for what it needs with `?`:
//! a missing section leaves as a [`Gap`], and the runner reports the check as skipped or unknown, never as passed.

mod ask;
mod dp;
mod drift;
mod dummy;
mod dv;
mod facts;
mod finding;
mod ib;
pub mod ignore;
mod kernel;
mod km;
mod kp;
mod mx;
mod objects;
mod proxy;
mod run;
mod settings;
mod sy;
mod traffic;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::evidence::{Gap, Item};

pub use drift::Drift;
pub use facts::{Facts, MODE, ModeSource};
pub use finding::{Finding, Fix, Proof};
pub use kernel::{LEFTOVERS, OBSERVED};
pub use run::{Outcome, run};

/// Findings, or the reason the check could not look.
pub type Verdict = Result<Vec<Finding>, Gap>;

/// One thing the doctor knows how to look for.
#[derive(Debug)]
pub struct Check {
    /// The catalogue's code: two letters of the group, two digits; never reused.
    pub id: &'static str,
    /// A kebab-case slug, never reused either.
    pub name: &'static str,
    /// How bad a finding is, at worst.
    pub severity: Severity,
    /// The healthy state, as one sentence without a full stop.
    pub title: &'static str,
    /// What people notice.
    pub symptom: &'static str,
    /// Why it happens: the mechanism.
    pub why: &'static str,
    /// How to see it by hand.
    pub verify: &'static str,
    /// Standard tools' commands that show it.
    pub commands: &'static [&'static str],
    /// What to do about it, where a finding does not say it better.
    pub fix: &'static str,
    /// Where it was met: issues and incidents.
    pub incidents: &'static [&'static str],
    /// What must be collected first, in parts so that checks can share them.
    pub needs: &'static [&'static [Item]],
    /// Checks whose failure explains a failure of this one: its findings are then told below theirs.
    pub caused_by: &'static [&'static str],
    /// The question itself.
    pub run: fn(&Facts<'_>) -> Verdict,
}

impl Check {
    /// Returns the group: the letters of the id, spelled out.
    pub fn group(&self) -> &'static str {
        let letters = self.id.get(..2).unwrap_or(self.id);
        let known = GROUPS.iter().find(|(code, _, _)| *code == letters);
        known.map_or("other", |(_, name, _)| name)
    }

    /// Iterates over what must be collected first.
    pub fn items(&self) -> impl Iterator<Item = Item> {
        self.needs.iter().copied().flatten().copied()
    }
}

/// The groups: the letters of their ids, the name, and what they look at.
pub const GROUPS: &[(&str, &str, &str)] = &[
    ("MX", "mixed-modes", "leftovers of another mode"),
    ("KP", "kube-proxy", "kube-proxy's configuration and health"),
    ("KM", "kernel", "the kernel and its modules"),
    ("SY", "sysctl", "kernel settings"),
    ("IB", "iptables-backend", "the back ends of iptables"),
    ("IR", "iptables-rules", "the rules of iptables"),
    ("NF", "nftables-rules", "kube-proxy's table in nftables"),
    ("VS", "virtual-servers", "the tables of IPVS"),
    ("DV", "dummy-device", "the link kube-ipvs0"),
    ("IS", "ipset", "IP sets"),
    ("NP", "node-port", "NodePorts and sockets"),
    ("CT", "conntrack", "connection tracking"),
    ("AP", "api", "the objects of the cluster"),
    ("CN", "cni", "the network plug-in"),
    ("DP", "deprecation", "what later releases drop"),
];

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

impl Severity {
    /// Returns the name: `error`, `warning` or `info`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Every check, grouped by file, in the order the doctor runs them.
pub const CHECKS: &[&[Check]] = &[
    mx::CHECKS,
    kp::CHECKS,
    km::CHECKS,
    sy::CHECKS,
    ib::CHECKS,
    dv::CHECKS,
    dp::CHECKS,
    drift::RULES,
    drift::IPVS,
    drift::NFT,
    settings::CHECKS,
    dummy::CHECKS,
    traffic::CHECKS,
    proxy::CHECKS,
    objects::CHECKS,
];

/// Iterates over every check.
pub fn all() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().copied().flatten()
}

/// Returns the checks that `word` names: one by its id or name, or a group's; letters in either case.
pub fn named(word: &str) -> Vec<&'static Check> {
    let is = |name: &str| name.eq_ignore_ascii_case(word);
    let group = |check: &Check| is(check.group()) || is(&check.id[..2]);
    all()
        .filter(|check| is(check.id) || is(check.name) || group(check))
        .collect()
}

/// Returns what must be collected to run `checks`, each item once.
pub fn needs(checks: &[&Check]) -> BTreeSet<Item> {
    checks.iter().flat_map(|check| check.items()).collect()
}
