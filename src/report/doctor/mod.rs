//! What `kpx doctor` found.

mod credentials;
mod formats;
mod head;
mod human;
mod ignored;

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::check::{Check, Finding, Fix, Outcome, Proof, Severity};
use crate::evidence::Time;
use crate::render::{Page, Report};

pub use head::{HEAD, HEAD_WHOLE, Head};
pub use ignored::{EntryStatus, IgnoreEntry, IgnoreFile, Ignored};

/// The outcome of `kpx doctor`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorReport {
    /// What was looked at.
    #[serde(flatten)]
    pub head: Head,
    /// When the node was looked at, where that is known.
    pub taken: Option<Time>,
    /// The mode a move to which was asked about: then an error is what stops it, and a warning what to heed.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub target: Option<Mode>,
    /// One entry per check that ran, sorted by id.
    pub checks: Vec<CheckResult>,
    /// What is wrong, worst first.
    pub findings: Vec<Problem>,
    /// What would be wrong, had the ignore file not hidden it.
    pub ignored: Vec<Ignored>,
    /// What became of the entries of the ignore file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_entries: Vec<IgnoreEntry>,
    /// Figures.
    pub summary: Summary,
    /// Who was refused what by the API server, and how to look again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// The ignore file.
    #[serde(skip)]
    pub ignore_file: Option<String>,
    /// From which severity on the exit status is 1; `None` for never.
    #[serde(skip)]
    pub fail_on: Option<Severity>,
}

/// The outcome of one check.
#[derive(Debug, Serialize)]
pub struct CheckResult {
    /// Which check.
    pub id: &'static str,
    /// Its slug.
    pub name: &'static str,
    /// Its group.
    pub group: &'static str,
    /// How bad a finding of it is, at worst.
    pub severity: Severity,
    /// What came of it.
    pub status: Status,
    /// The healthy state.
    pub title: &'static str,
    /// Why it was skipped or is unknown, or what explains its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Nothing wrong.
    Pass,
    /// Something wrong.
    Fail,
    /// The question does not arise here.
    Skip,
    /// Could not tell.
    Unknown,
}

/// One thing that is wrong.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// The check that found it.
    pub id: &'static str,
    /// The check's slug.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub subject: String,
    /// What was seen, and what was expected.
    pub message: String,
    /// What it was seen in.
    pub evidence: Vec<Proof>,
    /// What mends it.
    pub fix: Fix,
    /// What else is wrong because of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
}

/// A finding that another one explains.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Consequence {
    /// The check that found it.
    pub id: &'static str,
    /// The check's slug.
    pub name: &'static str,
    /// What it is about.
    pub subject: String,
    /// What was seen.
    pub message: String,
}

/// Figures: findings by severity, checks by what came of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// Findings by which traffic is, or will be, lost.
    pub errors: usize,
    /// Findings that are a risk.
    pub warnings: usize,
    /// Findings that are good to know.
    pub infos: usize,
    /// Findings that the ignore file hides.
    pub ignored: usize,
    /// Checks that found nothing.
    pub passed: usize,
    /// Checks that found something.
    pub failed: usize,
    /// Checks whose question does not arise here.
    pub skipped: usize,
    /// Checks that could not tell.
    pub unknown: usize,
}

impl DoctorReport {
    /// Returns the report of what came of checks.
    pub fn new(
        outcomes: Vec<(&'static Check, Outcome)>,
        head: Head,
        taken: Option<Time>,
        ignore: Option<&IgnoreFile>,
        fail_on: Option<Severity>,
    ) -> Self {
        let mut results = Vec::new();
        let mut found = BTreeMap::new();
        for (check, outcome) in outcomes {
            let (status, reason) = match outcome {
                Outcome::Pass => (Status::Pass, None),
                Outcome::Fail(findings) => {
                    found.insert(check.id, (check, findings));
                    (Status::Fail, None)
                }
                Outcome::Skip(reason) => (Status::Skip, Some(reason)),
                Outcome::Unknown(reason) => (Status::Unknown, Some(reason)),
            };
            results.push(CheckResult {
                id: check.id,
                name: check.name,
                group: check.group(),
                severity: check.severity,
                status,
                title: check.title,
                reason,
            });
        }
        results.sort_by_key(|result| result.id);
        let told = |check: &Check| {
            let ours = results.iter().find(|result| result.id == check.id);
            ours.is_some_and(|ours| matches!(ours.status, Status::Pass | Status::Fail))
        };
        let ignore_entries = ignore.map_or_else(Vec::new, |file| file.entries(&found, told));
        let ignored = ignore.map_or_else(Vec::new, |file| file.hide(&mut found));
        for result in &mut results {
            if result.status == Status::Fail && !found.contains_key(result.id) {
                result.reason = Some("what it found is ignored".to_owned());
            }
        }
        let mut findings = Vec::new();
        let mut folded: BTreeMap<&str, (Option<Severity>, Vec<Consequence>)> = BTreeMap::new();
        for (check, problems) in found.values() {
            if let Some(cause) = cause_of(check, &found) {
                let consequences = problems.iter().map(|finding| Consequence {
                    id: check.id,
                    name: check.name,
                    subject: finding.subject.clone(),
                    message: finding.message.clone(),
                });
                let worst = problems.iter().map(|finding| finding.severity).max();
                let (severity, told) = folded.entry(cause).or_default();
                *severity = (*severity).max(worst);
                told.extend(consequences);
                if let Some(result) = results.iter_mut().find(|result| result.id == check.id) {
                    result.reason = Some(format!("explained by {cause}"));
                }
                continue;
            }
            findings.extend(problems.iter().map(|finding| Problem {
                id: check.id,
                name: check.name,
                severity: finding.severity,
                subject: finding.subject.clone(),
                message: finding.message.clone(),
                evidence: finding.evidence.clone(),
                fix: finding.fix.clone().unwrap_or_else(|| Fix {
                    text: check.fix.to_owned(),
                    command: None,
                }),
                consequences: Vec::new(),
            }));
        }
        for (cause, (worst, mut consequences)) in folded {
            consequences.sort();
            if let Some(finding) = findings.iter_mut().find(|finding| finding.id == cause) {
                // What is lost by it counts, however mild it looks itself.
                finding.severity = worst.map_or(finding.severity, |w| w.max(finding.severity));
                finding.consequences.extend(consequences);
            }
        }
        findings
            .sort_by(|a, b| (b.severity, a.id, &a.subject).cmp(&(a.severity, b.id, &b.subject)));
        let summary = Summary::of(&results, &findings, ignored.len());
        let unknown = results.iter().filter(|of| of.status == Status::Unknown);
        let credentials = credentials::hint(unknown.filter_map(|of| of.reason.as_deref()));
        Self {
            credentials,
            head,
            taken,
            target: None,
            checks: results,
            findings,
            ignored,
            ignore_entries,
            summary,
            ignore_file: ignore.map(|file| file.path.clone()),
            fail_on,
        }
    }

    /// Says that the checks were asked about a move to the mode `target`.
    #[must_use]
    pub fn before(mut self, target: Option<Mode>) -> Self {
        self.target = target;
        self
    }

    /// Iterates over the checks of which `status` came.
    pub fn with(&self, status: Status) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(move |c| c.status == status)
    }
}

/// Returns the check whose findings explain those of `check`: the last one up the chain of causes.
fn cause_of(
    check: &Check,
    found: &BTreeMap<&'static str, (&'static Check, Vec<Finding>)>,
) -> Option<&'static str> {
    let up = |check: &Check| check.caused_by.iter().find_map(|id| found.get(id));
    let mut cause = up(check)?.0;
    while let Some((next, _)) = up(cause) {
        cause = next;
    }
    Some(cause.id)
}

impl Summary {
    fn of(checks: &[CheckResult], findings: &[Problem], ignored: usize) -> Self {
        let of = |status| checks.iter().filter(|c| c.status == status).count();
        let at = |severity| findings.iter().filter(|f| f.severity == severity).count();
        Self {
            errors: at(Severity::Error),
            warnings: at(Severity::Warning),
            infos: at(Severity::Info),
            ignored,
            passed: of(Status::Pass),
            failed: of(Status::Fail),
            skipped: of(Status::Skip),
            unknown: of(Status::Unknown),
        }
    }
}

impl DoctorReport {
    /// Adds to `page` what another report quotes: the problems, and what came of the checks.
    pub(super) fn rest(&self, page: &mut Page) {
        human::rest(self, page);
    }
}

impl Report for DoctorReport {
    const KIND: &'static str = "DoctorReport";

    fn page(&self, page: &mut Page) {
        human::page(self, page);
    }

    fn exit(&self) -> u8 {
        let worst = self.findings.iter().map(|finding| finding.severity).max();
        match self.fail_on {
            Some(least) if worst.is_some_and(|worst| worst >= least) => FOUND,
            _ if self.summary.unknown > 0 => UNKNOWN,
            _ => CLEAN,
        }
    }
}
