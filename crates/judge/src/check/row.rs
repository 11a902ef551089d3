//! One check: a row of its group's table.

use std::collections::BTreeSet;

use serde::Serialize;

use super::core::{Example, Facts, Finding, Text};
use super::diagnosis::Because;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;
use kpx_node::evidence::{Gap, Item};

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

    /// Iterates over the items that it reads, without duplicates.
    pub fn items(&self) -> impl Iterator<Item = Item> {
        let mut seen = BTreeSet::new();
        let all = self.needs.iter().copied().flatten().copied();
        all.filter(move |item| seen.insert(*item))
    }
}

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
