//! Checks of the doctor, as data.
//!
//! A check is a row in a table of its group, and a function in the same file. The group is the letters of the id: the check
//! `MX01` is below `mx/`. The function reads evidence with `?`: missing evidence returns a [`Gap`], and the runner reports
//! the check as skipped or unknown, never as passed. `core` has the engine and everything that several groups share.

mod api;
mod bugs;
mod cni;
mod conntrack;
mod core;
mod deprecation;
mod diagnosis;
mod drift;
mod dummy_device;
mod ipset;
mod iptables_backend;
mod iptables_rules;
mod kernel;
mod kube_proxy;
mod mixed_modes;
mod nftables_rules;
mod node_port;
mod services;
mod sysctl;
mod upgrade;
mod virtual_servers;

use std::collections::BTreeSet;

use serde::Serialize;

use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;
use kpx_node::evidence::{Gap, Item};

pub use self::conntrack::{Stale, Why, room_fix, stale};
pub use self::core::ignore;
pub use self::core::{
    Advice, Example, Explain, Facts, Finding, Fix, LEFTOVERS, Line, MODE, ModeSource, NOT_CHECKED,
    OBSERVED, Outcome, ProcessState, Proof, Prose, Reach, Reader, Runs, ServiceRef, Subject, Text,
    Unknown, Word, Writer, bypass_fix, diversion_fix, drifted, first_sync_seconds, get_slices,
    hairpin_fix, home_fix, ipv6_fix, ipv6_refusal, is_as_complete, keep_persistent, limit_fix,
    no_route_fix, obstacle_fix, obstacle_owner, on, quoted, route_fix, rule_fix, run, runs,
    some_services, temper, way_there_fix,
};
pub(crate) use self::core::{Collector, unlabelled};
pub use self::diagnosis::{
    Because, Block, Checked, Consequence, Diagnosed, Diagnosis, Next, Reason, Status, Summary,
    flushed, idle_proxy, root,
};
pub use self::diagnosis::{EntryStatus, EntryUse, Hidden, diagnose};
pub use self::drift::{Drift, is_repairable, restart_fix, rewriting_fix};
pub use self::iptables_backend::lost_conditions;
pub use self::kube_proxy::fold;

/// Findings, or the gap that keeps the check from looking.
pub type Verdict = Result<Vec<Finding>, Gap>;

/// One check.
#[derive(Debug)]
pub struct Check {
    /// Two letters of the group and two digits; never reused.
    pub id: &'static str,
    /// A kebab-case name; never reused.
    pub name: &'static str,
    /// The highest severity of its findings.
    pub severity: Severity,
    /// When it runs.
    pub when: When,
    /// The healthy state, without a full stop.
    pub title: &'static str,
    /// The effect that users notice.
    pub symptom: &'static str,
    /// The mechanism of the fault.
    pub why: &'static str,
    /// How to verify it manually.
    pub verify: &'static str,
    /// Commands of standard tools that show it.
    pub commands: &'static [Example],
    /// The fix of findings that have none of their own.
    pub fix: Text,
    /// Issues and incidents.
    pub incidents: &'static [&'static str],
    /// The items that it reads, in parts that checks share.
    pub needs: &'static [&'static [Item]],
    /// Checks whose findings explain findings of this one, and what both must share. A report prints the consequence
    /// below its cause.
    pub caused_by: &'static [Because],
    /// Returns the findings.
    pub run: fn(&Facts<'_>) -> Verdict,
}

/// The question that the checks answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Question {
    /// The problem.
    #[default]
    Now,
    /// The obstacles to a switch to this mode.
    Switch(Mode),
    /// The changes of an upgrade of kube-proxy to this version.
    Upgrade(Goal),
}

impl Question {
    /// Returns the target mode of a planned switch.
    pub const fn target(self) -> Option<Mode> {
        match self {
            Self::Switch(mode) => Some(mode),
            Self::Now | Self::Upgrade(_) => None,
        }
    }

    /// Returns the version of a planned upgrade.
    pub const fn goal(self) -> Option<Goal> {
        match self {
            Self::Upgrade(goal) => Some(goal),
            Self::Now | Self::Switch(_) => None,
        }
    }
}

impl From<Option<Mode>> for Question {
    /// Returns the question about a switch to the mode `target`; without `target`, the question about the current
    /// state.
    fn from(target: Option<Mode>) -> Self {
        target.map_or(Self::Now, Self::Switch)
    }
}

/// When a check runs.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// In every run.
    Now,
    /// In every run, and before a switch to one of these modes.
    NowAndFor(&'static [Mode]),
    /// Only before a switch to one of these modes.
    For(&'static [Mode]),
    /// Only before an upgrade of kube-proxy.
    Upgrade,
}

impl Check {
    /// Returns whether it answers `question`.
    pub fn is_asked(&self, question: impl Into<Question>) -> bool {
        match (question.into(), self.when) {
            (Question::Upgrade(_), when) => matches!(when, When::Upgrade),
            (_, When::Upgrade) | (Question::Switch(_), When::Now) => false,
            (Question::Now, when) => !matches!(when, When::For(_)),
            (Question::Switch(target), When::NowAndFor(modes) | When::For(modes)) => {
                modes.contains(&target)
            }
        }
    }

    /// Returns in words when the check runs.
    pub fn asked_in_words(&self) -> String {
        let modes: Vec<_> = self.targets().iter().map(|mode| mode.name()).collect();
        let options = format!("with --to {}", modes.join("|"));
        match self.when {
            When::Now => "in every run".to_owned(),
            When::NowAndFor(_) => format!("in every run, and {options}"),
            When::For(_) => format!("only {options}"),
            When::Upgrade => "only with --release RELEASE".to_owned(),
        }
    }

    /// Returns the target modes of the switches before which it runs.
    pub const fn targets(&self) -> &'static [Mode] {
        match self.when {
            When::Now | When::Upgrade => &[],
            When::NowAndFor(modes) | When::For(modes) => modes,
        }
    }

    /// Returns a check for tests, with the function `run`.
    #[cfg(any(test, feature = "testing"))]
    pub const fn made_up(id: &'static str, run: fn(&Facts<'_>) -> Verdict) -> Self {
        Self {
            id,
            name: "made-up",
            severity: Severity::Error,
            when: When::Now,
            title: "made up",
            symptom: "",
            why: "",
            verify: "",
            commands: &[],
            fix: Text::plain("Fix it."),
            incidents: &[],
            needs: &[],
            caused_by: &[],
            run,
        }
    }

    /// Returns the name of its group.
    pub fn group(&self) -> &'static str {
        let letters = self.id.get(..2).unwrap_or(self.id);
        let known = GROUPS.iter().find(|group| group.code == letters);
        known.map_or("other", |group| group.name)
    }

    /// Iterates over the items that it reads, without duplicates.
    pub fn items(&self) -> impl Iterator<Item = Item> {
        let mut seen = BTreeSet::new();
        let all = self.needs.iter().copied().flatten().copied();
        all.filter(move |item| seen.insert(*item))
    }
}

/// A group of checks.
#[derive(Debug)]
pub struct Group {
    /// The first two letters of its checks' ids.
    pub code: &'static str,
    /// A kebab-case name.
    pub name: &'static str,
    /// The subject of its checks.
    pub about: &'static str,
    /// The tables of its checks, one per file.
    checks: &'static [&'static [Check]],
}

impl Group {
    const fn new(
        code: &'static str,
        name: &'static str,
        about: &'static str,
        checks: &'static [&'static [Check]],
    ) -> Self {
        Self {
            code,
            name,
            about,
            checks,
        }
    }

    /// Iterates over the checks of the group.
    pub fn checks(&self) -> impl Iterator<Item = &'static Check> + use<> {
        self.checks.iter().copied().flatten()
    }
}

/// The groups, in the order in which the doctor runs and prints them.
pub const GROUPS: &[Group] = &[
    Group::new(
        "MX",
        "mixed-modes",
        "leftovers of another mode",
        mixed_modes::CHECKS,
    ),
    Group::new(
        "KP",
        "kube-proxy",
        "kube-proxy's configuration and health",
        kube_proxy::CHECKS,
    ),
    Group::new(
        "KB",
        "bugs",
        "known bugs of kube-proxy's release",
        &[bugs::CHECKS],
    ),
    Group::new("KM", "kernel", "the kernel and its modules", kernel::CHECKS),
    Group::new("SY", "sysctl", "sysctls", sysctl::CHECKS),
    Group::new(
        "IB",
        "iptables-backend",
        "the backends of iptables",
        iptables_backend::CHECKS,
    ),
    Group::new(
        "IR",
        "iptables-rules",
        "rules of iptables",
        iptables_rules::CHECKS,
    ),
    Group::new(
        "NF",
        "nftables-rules",
        "kube-proxy's tables in nftables",
        &[nftables_rules::CHECKS],
    ),
    Group::new(
        "VS",
        "virtual-servers",
        "virtual servers of IPVS",
        virtual_servers::CHECKS,
    ),
    Group::new(
        "DV",
        "dummy-device",
        "the link kube-ipvs0",
        dummy_device::CHECKS,
    ),
    Group::new("IS", "ipset", "IP sets", &[ipset::CHECKS]),
    Group::new(
        "NP",
        "node-port",
        "NodePorts and sockets",
        node_port::CHECKS,
    ),
    Group::new("CT", "conntrack", "connection tracking", conntrack::CHECKS),
    Group::new("AP", "api", "objects of the cluster", api::CHECKS),
    Group::new("CN", "cni", "the network plugin", cni::CHECKS),
    Group::new(
        "DP",
        "deprecation",
        "what later releases remove",
        &[deprecation::CHECKS],
    ),
    Group::new("SV", "services", "Services that fail", &[services::CHECKS]),
    Group::new(
        "UP",
        "upgrade",
        "what an upgrade of kube-proxy changes",
        &[upgrade::CHECKS],
    ),
];

/// The severity of a finding.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// For information.
    Info,
    /// A risk to traffic.
    Warning,
    /// Traffic is lost, or will be.
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

/// How commands name kube-proxy's ConfigMap: as kubeadm does.
pub(crate) const CONFIG_MAP: &str = "configmap kube-proxy";

/// Returns the known names of this node, of kube-proxy's pod on it and of its ConfigMap, by the words that stand for them in
/// commands.
pub fn names(facts: &Facts<'_>) -> Vec<(&'static str, String)> {
    let node = facts.node_name();
    let pod = node
        .as_deref()
        .and_then(|node| kube_proxy::pod(facts, Some(node)));
    let map = Some(facts.map_name()).filter(|name| name != "kube-proxy");
    let map = map.map(|name| format!("configmap {name}"));
    let names = [("NODE", node), ("POD", pod), (CONFIG_MAP, map)];
    names
        .into_iter()
        .filter_map(|(word, name)| Some((word, name?)))
        .collect()
}

/// Iterates over every check, group by group.
pub fn all() -> impl Iterator<Item = &'static Check> {
    GROUPS.iter().flat_map(Group::checks)
}

/// Returns the checks that answer `question`.
pub fn asked(question: impl Into<Question>) -> Vec<&'static Check> {
    let question = question.into();
    all().filter(|check| check.is_asked(question)).collect()
}

/// Returns the checks of the current state, except those that judge every Service.
pub fn beside_the_verdict() -> Vec<&'static Check> {
    let mut checks = asked(None);
    checks.retain(|check| !sysctl::judges(check) && !explains(check));
    checks
}

/// Returns whether `check` needs the outcomes of all others first.
pub fn explains(check: &Check) -> bool {
    services::explains(check)
}

/// Returns the checks that say why kube-proxy does not program the node, the checks of their causes, and the checks of objects that
/// kube-proxy has not programmed.
pub fn of_proxy() -> Vec<&'static Check> {
    let ids = kube_proxy::OF_PROXY.into_iter();
    let ids = ids.chain(
        all()
            .filter(|check| kube_proxy::OF_PROXY.contains(&check.id))
            .flat_map(|check| {
                let causes = check.caused_by.iter();
                causes.flat_map(Because::checks).copied()
            }),
    );
    let ids: BTreeSet<&str> = ids.collect();
    asked(None)
        .into_iter()
        .filter(|check| ids.contains(check.id) || check.needs.contains(&drift::DRIFT))
        .collect()
}

/// Returns the checks that `word` names, ignoring case: an id, a name, or the name or code of a group.
pub fn named(word: &str) -> Vec<&'static Check> {
    let is = |name: &str| name.eq_ignore_ascii_case(word);
    let group = |check: &Check| is(check.group()) || is(&check.id[..2]);
    all()
        .filter(|check| is(check.id) || is(check.name) || group(check))
        .collect()
}

/// Returns the items that `checks` read.
pub fn needs(checks: &[&Check]) -> BTreeSet<Item> {
    checks.iter().flat_map(|check| check.items()).collect()
}
