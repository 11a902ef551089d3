//! The diagnosis: the outcomes of all checks, combined. It has causes and their consequences, ignored findings, which fix
//! clears which findings, and the command to run next. A report prints it, and decides nothing.

mod because;
mod blocks;
mod causes;
mod idle;
mod ignored;
mod next;

use serde::Serialize;

use super::core::ignore::Ignores;
use super::{Check, Finding, Outcome, Question, Severity, Unknown, kube_proxy};
use crate::verdict::Tally;
use kpx_node::evidence::Time;

pub use because::Because;
pub use blocks::Block;
pub use causes::root;
pub use idle::{flushed, idle_proxy};
pub use ignored::{EntryStatus, EntryUse, Hidden};
pub use next::Next;

/// The diagnosis from the outcomes of all checks.
#[derive(Debug)]
pub struct Diagnosis {
    /// The checks, sorted by id.
    pub checks: Vec<Checked>,
    /// The findings that no other one explains, by severity.
    pub findings: Vec<Diagnosed>,
    /// The findings in blocks: the worst first, then those that concern the most Services.
    pub blocks: Vec<Block>,
    /// The findings that the operator ignores, by severity.
    pub hidden: Vec<Hidden>,
    /// The entries of the ignore file.
    pub entries: Vec<EntryUse>,
    /// The number of findings and checks.
    pub summary: Summary,
    /// The command to run next: the one that fixes or shows the most.
    pub next: Next,
}

/// A check and its outcome.
#[derive(Debug)]
pub struct Checked {
    /// The check.
    pub check: &'static Check,
    /// Its status.
    pub status: Status,
    /// Why it was skipped or is unknown, or why its findings are not among the others.
    pub reason: Option<Reason>,
}

/// The status of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It found nothing wrong.
    Pass,
    /// It found something wrong.
    Fail,
    /// It does not apply here.
    Skip,
    /// Its data is missing.
    Unknown,
}

/// Why a check has no findings among the others.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Reason {
    /// It does not apply here.
    #[error("{0}")]
    Skipped(String),
    /// It has no result.
    #[error(transparent)]
    Unknown(Unknown),
    /// The operator ignores its findings.
    #[error("its findings are ignored")]
    Ignored,
    /// Findings of these checks explain all of its findings.
    #[error("explained by {}", .0.join(", "))]
    Explained(Vec<&'static str>),
}

/// A finding that no other one explains.
#[derive(Debug)]
pub struct Diagnosed {
    /// Its check.
    pub check: &'static Check,
    /// The finding.
    pub finding: Finding,
    /// Its severity, or that of its worst consequence.
    pub severity: Severity,
    /// The findings that it explains, sorted by check.
    pub consequences: Vec<Consequence>,
}

/// A finding that another one explains.
#[derive(Debug)]
pub struct Consequence {
    /// Its check.
    pub check: &'static Check,
    /// The finding.
    pub finding: Finding,
}

/// The number of findings by severity, and of checks by status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Findings of severity error.
    pub errors: usize,
    /// Findings of severity warning.
    pub warnings: usize,
    /// Findings of severity info.
    pub infos: usize,
    /// Findings that the ignore file hides.
    pub ignored: usize,
    /// Checks that passed.
    pub passed: usize,
    /// Checks that failed.
    pub failed: usize,
    /// Failed checks whose findings are all consequences of others.
    pub explained: usize,
    /// Checks that do not apply here.
    pub skipped: usize,
    /// Checks whose data is missing.
    pub unknown: usize,
}

/// Returns the diagnosis of the `outcomes` of checks that answer `question`; `ignores` are the operator's, with the time by which
/// they expire. `services` is the verdict on all Services, if there is one. `known` are values for commands, by the words that
/// stand for them.
pub fn diagnose(
    mut outcomes: Vec<(&'static Check, Outcome)>,
    ignores: Option<(&Ignores, Time)>,
    question: Question,
    services: Option<&Tally>,
    known: &[(&str, String)],
) -> Diagnosis {
    kube_proxy::fold(&mut outcomes);
    let mut checks: Vec<Checked> = outcomes.iter().map(Checked::new).collect();
    checks.sort_by_key(|check| check.check.id);
    let mut found = causes::Found::new(outcomes);
    let entries = ignores.map_or_else(Vec::new, |(all, now)| {
        ignored::entries(all, now, &found, &checks)
    });
    let hidden = ignores.map_or_else(Vec::new, |(all, now)| ignored::hide(all, now, &mut found));
    let causes = found.causes();
    for checked in &mut checks {
        checked.settle(&causes);
    }
    let findings = found.diagnosed(&causes);
    let blocks = blocks::blocks(&findings);
    let summary = Summary::of(&checks, &findings, hidden.len());
    Diagnosis {
        next: next::next(
            &findings,
            &blocks,
            summary.unknown,
            question,
            services,
            known,
        ),
        checks,
        findings,
        blocks,
        hidden,
        entries,
        summary,
    }
}

impl Checked {
    fn new((check, outcome): &(&'static Check, Outcome)) -> Self {
        let (status, reason) = match outcome {
            Outcome::Pass => (Status::Pass, None),
            Outcome::Fail(_) => (Status::Fail, None),
            Outcome::Skip(why) => (Status::Skip, Some(Reason::Skipped(why.clone()))),
            Outcome::Unknown(why) => (Status::Unknown, Some(Reason::Unknown(why.clone()))),
        };
        Self {
            check,
            status,
            reason,
        }
    }

    /// Says why none of its findings is among the others.
    fn settle(&mut self, causes: &causes::Causes) {
        if self.status == Status::Fail {
            self.reason = match causes.of(self.check) {
                None => Some(Reason::Ignored),
                Some(roots) => roots.map(Reason::Explained),
            };
        }
    }
}

impl Summary {
    fn of(checks: &[Checked], findings: &[Diagnosed], ignored: usize) -> Self {
        let of = |status| checks.iter().filter(|check| check.status == status).count();
        let at = |severity| {
            findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count()
        };
        let is_explained =
            |checked: &&Checked| matches!(checked.reason, Some(Reason::Explained(_)));
        Self {
            errors: at(Severity::Error),
            warnings: at(Severity::Warning),
            infos: at(Severity::Info),
            ignored,
            passed: of(Status::Pass),
            failed: of(Status::Fail),
            explained: checks.iter().filter(is_explained).count(),
            skipped: of(Status::Skip),
            unknown: of(Status::Unknown),
        }
    }
}
