//! The report of `kpx doctor`.

mod blocks;
mod credentials;
mod formats;
mod human;
mod ignored;
mod seen;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::check::{Check, Finding, Fix, Outcome, Proof, Question, ServiceRef, Severity, Subject};
use crate::cluster::release::Goal;
use crate::evidence::Time;
use crate::render::{Page, Report, Tone};

pub(crate) use crate::view::head::{HEAD, HEAD_WHOLE, Head};
pub(super) use blocks::{Block, blocks, commands, texts};
pub(crate) use formats::{JUNIT_HEAD, JUNIT_TAIL, junit_unread};
pub(crate) use ignored::{EntryStatus, IgnoreEntry, IgnoreFile, Ignored};

/// The report of `kpx doctor`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct DoctorReport {
    /// The node, its mode and its cluster.
    #[serde(flatten)]
    pub head: Head,
    /// When the evidence was collected, if known.
    pub taken: Option<Time>,
    /// The target mode of a planned switch: errors block the switch, warnings do not.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub target: Option<Mode>,
    /// The release that a planned upgrade leads to: errors block the upgrade, warnings do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<Goal>,
    /// The checks that ran, sorted by id.
    pub checks: Vec<CheckResult>,
    /// The findings, by severity.
    pub findings: Vec<Problem>,
    /// The findings that the ignore file hides.
    pub ignored: Vec<Ignored>,
    /// The entries of the ignore file, with their status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_entries: Vec<IgnoreEntry>,
    /// The number of findings and checks.
    pub summary: Summary,
    /// The command to run next: the one that fixes or shows the most.
    pub next: String,
    /// Permissions that the API server denied, and how to get them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// Tables that a tool had to read, with the reason.
    #[serde(skip)]
    pub by_tool: Vec<String>,
    /// The path of the ignore file.
    #[serde(skip)]
    pub ignore_file: Option<String>,
    /// The lowest severity that makes the exit status 1; `None` for never.
    #[serde(skip)]
    pub fail_on: Option<Severity>,
}

/// The result of one check.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CheckResult {
    /// Id of the check.
    pub id: &'static str,
    /// Name of the check, in kebab case.
    pub name: &'static str,
    /// Its group.
    pub group: &'static str,
    /// The highest severity of its findings.
    pub severity: Severity,
    /// Its status.
    pub status: Status,
    /// The healthy state.
    pub title: &'static str,
    /// Why it was skipped or is unknown, or which check explains its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The status of a check.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    /// It found nothing wrong.
    Pass,
    /// It found something wrong.
    Fail,
    /// It does not apply here.
    Skip,
    /// Its data is missing.
    Unknown,
}

/// One finding.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Problem {
    /// The id of its check.
    pub id: &'static str,
    /// The name of its check.
    pub name: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The name of the object that it is about.
    pub subject: String,
    /// The object that it is about.
    pub about: Subject,
    /// All Services that it concerns; none if it concerns the whole node.
    pub services: Vec<ServiceRef>,
    /// What is wrong.
    pub message: String,
    /// The facts that show it.
    pub evidence: Vec<Proof>,
    /// How to fix it.
    pub fix: Fix,
    /// Findings that it explains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consequences: Vec<Consequence>,
}

/// A finding that another one explains.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Consequence {
    /// The id of its check.
    pub id: &'static str,
    /// The name of its check.
    pub name: &'static str,
    /// The object that it is about.
    pub subject: String,
    /// What is wrong.
    pub message: String,
}

/// The number of findings by severity, and of checks by status.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Summary {
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
    /// Failed checks whose findings are consequences of others.
    pub explained: usize,
    /// Checks that do not apply here.
    pub skipped: usize,
    /// Checks whose data is missing.
    pub unknown: usize,
}

impl DoctorReport {
    /// Returns the report of `outcomes`.
    pub(crate) fn new(
        outcomes: Vec<(&'static Check, Outcome)>,
        head: Head,
        taken: Option<Time>,
        ignore: Option<&IgnoreFile>,
        fail_on: Option<Severity>,
    ) -> Self {
        let credentials = credentials::hint(&outcomes);
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
                Outcome::Unknown(reason) => (Status::Unknown, Some(reason.to_string())),
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
        let is_known = |check: &Check| {
            let ours = results.iter().find(|result| result.id == check.id);
            ours.is_some_and(|ours| matches!(ours.status, Status::Pass | Status::Fail))
        };
        let ignore_entries = ignore.map_or_else(Vec::new, |file| file.entries(&found, is_known));
        let ignored = ignore.map_or_else(Vec::new, |file| file.hide(&mut found));
        for result in &mut results {
            if result.status == Status::Fail && !found.contains_key(result.id) {
                result.reason = Some("its findings are ignored".to_owned());
            }
        }
        let mut findings = Vec::new();
        let mut explained = 0;
        let mut folded: BTreeMap<&str, (Option<Severity>, Vec<Consequence>)> = BTreeMap::new();
        for (check, problems) in found.values() {
            if let Some(cause) = cause_of(check, &found) {
                explained += 1;
                let consequences = problems.iter().map(|finding| Consequence {
                    id: check.id,
                    name: check.name,
                    subject: finding.subject.clone(),
                    message: finding.message.clone(),
                });
                let worst = problems.iter().map(|finding| finding.severity).max();
                let (severity, all) = folded.entry(cause).or_default();
                *severity = (*severity).max(worst);
                all.extend(consequences);
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
                about: finding.about.clone(),
                services: finding.services.clone(),
                message: finding.message.clone(),
                evidence: finding.evidence.clone(),
                fix: finding.fix.clone().unwrap_or_else(|| check.fix.into()),
                consequences: Vec::new(),
            }));
        }
        for (cause, (worst, mut consequences)) in folded {
            consequences.sort();
            if let Some(finding) = findings.iter_mut().find(|finding| finding.id == cause) {
                // A cause is as severe as its worst consequence.
                finding.severity = worst.map_or(finding.severity, |w| w.max(finding.severity));
                finding.consequences.extend(consequences);
            }
        }
        findings
            .sort_by(|a, b| (b.severity, a.id, &a.subject).cmp(&(a.severity, b.id, &b.subject)));
        let summary = Summary {
            explained,
            ..Summary::of(&results, &findings, ignored.len())
        };
        let next = next(&findings, summary, false);
        Self {
            next,
            credentials,
            head,
            taken,
            target: None,
            release: None,
            checks: results,
            findings,
            ignored,
            ignore_entries,
            summary,
            by_tool: Vec::new(),
            ignore_file: ignore.map(|file| file.path.clone()),
            fail_on,
        }
    }

    /// Sets the question that the checks answered.
    #[must_use]
    pub(crate) fn before(mut self, question: impl Into<Question>) -> Self {
        let question = question.into();
        (self.target, self.release) = (question.target(), question.goal());
        self.next = next(&self.findings, self.summary, self.planned().is_some());
        self
    }

    /// Returns what is planned, for people; `None` if the checks examined the current state.
    pub(super) fn planned(&self) -> Option<String> {
        let switch = self.target.map(|target| format!("a switch to {target}"));
        switch.or_else(|| Some(format!("an upgrade to {}", self.release?)))
    }

    /// Returns the number of checks that have findings in the report.
    fn failing(&self) -> usize {
        let ids: BTreeSet<&str> = self.findings.iter().map(|finding| finding.id).collect();
        ids.len()
    }

    /// Iterates over the checks with `status`.
    pub(crate) fn with(&self, status: Status) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(move |c| c.status == status)
    }
}

/// Returns the command to run next; `is_planned` says whether the checks examined a planned change.
fn next(findings: &[Problem], summary: Summary, is_planned: bool) -> String {
    let next = blocks::next(&blocks(findings));
    next.unwrap_or_else(|| {
        let next = match (summary.unknown, is_planned) {
            (1.., _) => "kpx doctor --kubeconfig FILE, as root",
            (0, true) => "kpx doctor",
            (0, false) => "kpx show services",
        };
        next.to_owned()
    })
}

/// Returns the id of the first check in the chain of causes of `check`.
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
            explained: 0,
        }
    }
}

impl Problem {
    /// Returns the tone of its severity.
    pub(super) const fn tone(&self) -> Tone {
        match self.severity {
            Severity::Error => Tone::Bad,
            Severity::Warning => Tone::Doubtful,
            Severity::Info => Tone::Strong,
        }
    }
}

impl DoctorReport {
    /// Returns the verdict in a few words, and its tone.
    pub(super) fn answer(&self) -> (Tone, String) {
        human::answer(self)
    }

    /// Returns facts about the node, each with its name.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        human::facts(self)
    }

    /// Returns the number of checks by status, in words.
    pub(super) fn checked(&self) -> String {
        human::checked(self, "")
    }

    /// Returns the ids of the checks with `status` by reason; the reason of most checks is first.
    pub(super) fn by_reason(&self, status: Status) -> Vec<(&str, Vec<&'static str>)> {
        human::by_reason(self, status)
    }

    /// Adds the findings and the status of the checks to the page of another report.
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
