//! Doctor checks, as data.
//!
//! A check is one entry in its group's table and one function beside it. The function asks for what it needs with `?`:
//! a missing section leaves as a [`Gap`], and the runner reports the check as skipped or unknown, never as passed.

mod ask;
mod dp;
mod drift;
mod dummy;
mod dv;
mod excluded;
mod facts;
mod finding;
mod flows;
mod foreign;
mod health;
mod ib;
pub mod ignore;
mod inputs;
mod keeper;
mod kernel;
mod km;
mod kp;
mod left_out;
mod modules;
mod moves;
mod mx;
mod objects;
mod others;
mod plugins;
mod projected;
mod proxy;
mod rules;
mod run;
mod servers;
mod settings;
mod setup;
mod silence;
mod sy;
mod traffic;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::backend::Mode;
use crate::evidence::{Gap, Item, Time};
use crate::node::NodeSnapshot;

pub use drift::Drift;
pub use facts::{Facts, MODE, ModeSource};
pub use finding::{Finding, Fix, Proof};
pub use kernel::{LEFTOVERS, OBSERVED};
pub use left_out::LEFT_OUT;
pub use run::{Outcome, run};
pub use silence::fold;

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
    /// When the question is asked.
    pub when: When,
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

/// When a check is asked.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Of a node as it is.
    Now,
    /// Of a node as it is, and before it is moved to one of these modes.
    NowAndFor(&'static [Mode]),
    /// Only before a node is moved to one of these modes.
    For(&'static [Mode]),
}

impl Check {
    /// Returns whether it is asked: of a node as it is, or before it is moved to the mode `target`.
    pub fn is_asked(&self, target: Option<Mode>) -> bool {
        match (target, self.when) {
            (None, when) => !matches!(when, When::For(_)),
            (Some(_), When::Now) => false,
            (Some(target), When::NowAndFor(modes) | When::For(modes)) => modes.contains(&target),
        }
    }

    /// Returns when it is asked, in words.
    pub fn asked_in_words(&self) -> String {
        let modes: Vec<_> = self.targets().iter().map(|mode| mode.name()).collect();
        let options = format!("with --for {}", modes.join("|"));
        match self.when {
            When::Now => "in every run".to_owned(),
            When::NowAndFor(_) => format!("in every run, and {options}"),
            When::For(_) => format!("only {options}"),
        }
    }

    /// Returns the modes that it tells what to heed before a move to.
    pub const fn targets(&self) -> &'static [Mode] {
        match self.when {
            When::Now => &[],
            When::NowAndFor(modes) | When::For(modes) => modes,
        }
    }

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
    keeper::CHECKS,
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
    modules::CHECKS,
    moves::CHECKS,
    health::CHECKS,
    rules::CHECKS,
    foreign::CHECKS,
    servers::CHECKS,
    setup::CHECKS,
    others::CHECKS,
    plugins::CHECKS,
    flows::CHECKS,
    inputs::CHECKS,
];

/// Iterates over every check.
pub fn all() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().copied().flatten()
}

/// Returns what to ask before a node is moved to the mode `target`; without one, of a node as it is.
pub fn asked(target: Option<Mode>) -> Vec<&'static Check> {
    all().filter(|check| check.is_asked(target)).collect()
}

/// Returns what stands in the way of a move of `node` to the mode `target`, and what to heed: an error stops it.
///
/// What must be collected first is `needs(&asked(Some(target)))`.
pub fn assess<'a>(
    node: &'a NodeSnapshot<'a>,
    now: Option<Time>,
    target: Mode,
) -> Vec<(&'static Check, Outcome)> {
    let facts = Facts::new(node, now).before(Some(target));
    let checks = asked(Some(target)).into_iter();
    checks.map(|check| (check, run(check, &facts))).collect()
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
