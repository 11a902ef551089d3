//! The report of `kpx doctor`.

mod blocks;
mod brief;
mod credentials;
mod evidence_line;
mod formats;
mod human;
mod ignored;
pub(crate) mod nodes;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND, UNKNOWN};
pub(crate) use kpx_judge::check::Status;
use kpx_judge::check::{
    self, Advice, Checked, Diagnosed, Diagnosis, Finding, Fix, Next, Proof, Question, Reach,
    ServiceRef, Severity, Subject, Summary,
};
use kpx_judge::verdict::{Failing, Tally};
use kpx_migrate::preview::MigrationBlocker;
use kpx_node::backend::Mode;
use kpx_node::cluster::release::Goal;
use kpx_node::evidence::{ByTool, Time};

pub(crate) use crate::view::head::{HEAD, HEAD_WHOLE, Head};
pub(crate) use blocks::{Block, texts};
pub(crate) use formats::{JUNIT_HEAD, JUNIT_TAIL, junit_unread};
pub(crate) use ignored::{IgnoreEntry, Ignored};

/// The lines of an error that a plan does not repair, and of its fix.
const LINES: usize = 4;

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
    /// The findings that the ignore file or the configuration file hides.
    pub ignored: Vec<Ignored>,
    /// The entries of the ignore file and of the list in the configuration file, with their status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore_entries: Vec<IgnoreEntry>,
    /// The number of findings and checks.
    pub summary: Summary,
    /// The command to run next: the one that fixes or shows the most.
    pub next: String,
    /// The machine to run it on, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_machine: Option<String>,
    /// Whether the command to run next is a dry run, as no other command repairs or explains anything.
    #[serde(skip)]
    pub leads_to_dry_run: bool,
    /// Whether the machine runs no part of Kubernetes, and no cluster is configured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_no_node: bool,
    /// Permissions that the API server denied, and how to get them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// The arguments of the command that shows everything about the findings.
    #[serde(skip)]
    pub details: Vec<String>,
    /// How commands reach the node.
    #[serde(skip)]
    pub reach: Arc<Reach>,
    /// Whether the checks were chosen: each finding is then shown whole.
    #[serde(skip)]
    pub is_chosen: bool,
    /// The findings in blocks: findings that one fix clears are one block.
    #[serde(skip)]
    pub blocks: Vec<check::Block>,
    /// Tables that a tool had to read, with the reason.
    #[serde(skip)]
    pub by_tool: Vec<ByTool>,
    /// The path of the ignore file.
    #[serde(skip)]
    pub ignore_file: Option<String>,
    /// The lowest severity that makes the exit status 1; `None` for never.
    #[serde(skip)]
    pub fail_on: Option<Severity>,
}

/// The parts of a report in addition to the diagnosis.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// The node, its mode and its cluster.
    pub head: Head,
    /// When the evidence was collected, if known.
    pub taken: Option<Time>,
    /// The question that the checks answered.
    pub question: Question,
    /// Tables that a tool had to read, with the reason.
    pub by_tool: Vec<ByTool>,
    /// The path of the ignore file.
    pub ignore_file: Option<String>,
    /// The lowest severity that makes the exit status 1; `None` for never.
    pub fail_on: Option<Severity>,
    /// The arguments of the command that shows everything about the findings.
    pub details: Vec<String>,
    /// Whether the checks were chosen.
    pub is_chosen: bool,
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
    /// The problem.
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
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Consequence {
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
    /// The problem.
    pub message: String,
}

impl DoctorReport {
    /// Returns the report of a diagnosis; commands reach the node as `reach` says.
    pub(crate) fn new(diagnosis: Diagnosis, reach: &Arc<Reach>, frame: Frame) -> Self {
        let (next, next_machine) = reach.next(&diagnosis.next);
        let findings = diagnosis.findings.into_iter();
        Self {
            head: frame.head,
            taken: frame.taken,
            target: frame.question.target(),
            release: frame.question.goal(),
            credentials: credentials::hint(&diagnosis.checks),
            checks: diagnosis.checks.iter().map(CheckResult::new).collect(),
            findings: findings
                .map(|finding| Problem::new(finding, reach))
                .collect(),
            ignored: diagnosis.hidden.into_iter().map(Ignored::new).collect(),
            ignore_entries: diagnosis.entries.iter().map(IgnoreEntry::new).collect(),
            summary: diagnosis.summary,
            next,
            next_machine,
            leads_to_dry_run: matches!(diagnosis.next, Next::DryRun(_)),
            is_no_node: false,
            details: frame.details,
            reach: Arc::clone(reach),
            is_chosen: frame.is_chosen,
            blocks: diagnosis.blocks,
            by_tool: frame.by_tool,
            ignore_file: frame.ignore_file,
            fail_on: frame.fail_on,
        }
    }

    /// Makes it the report of a machine that is no node: the next command writes a script that records one.
    pub(crate) fn leads_to_node(&mut self, program: &str) {
        self.is_no_node = true;
        self.next = format!("{program} snapshot --script > snapshot.sh");
        self.next_machine = None;
    }

    /// Returns the planned change, in words; `None` if the checks examined the current state.
    pub(crate) fn planned(&self) -> Option<String> {
        let switch = self.target.map(|target| format!("a switch to {target}"));
        switch.or_else(|| Some(format!("an upgrade to {}", self.release?)))
    }

    /// Returns the command that shows everything about the findings of the check `id`.
    fn details_of(&self, id: &'static str) -> String {
        let words = self.details.iter().map(|word| match word.as_str() {
            "-v" => id.to_owned(),
            word => word.to_owned(),
        });
        self.reach.command(&Advice::kpx(words))
    }

    /// Returns whether connections to any Service fail. Those that are worse in the mode of a planned switch are findings of MX12,
    /// which says whether they block it.
    fn has_failing(&self) -> bool {
        let services = self.head.services.as_ref();
        services.is_some_and(|tally| !tally.failing.is_empty())
    }

    /// Returns the Services whose connections fail and that no finding names: their findings are ignored, or their checks did
    /// not run.
    fn unnamed(&self) -> impl Iterator<Item = &Failing> {
        let is_named = |failing: &&Failing| {
            self.findings.iter().any(|finding| {
                let consequences = finding.consequences.iter();
                let all = consequences.flat_map(|consequence| &consequence.services);
                let mut all = all.chain(&finding.services);
                finding.severity == Severity::Error
                    && all.any(|service| service.whole().to_string() == failing.service)
            })
        };
        let failing = self.head.services.iter().flat_map(|tally| &tally.failing);
        failing.filter(move |failing| !is_named(failing))
    }

    /// Returns whether data is missing: for a check, or for the fate of the connections of a Service.
    fn lacks_data(&self) -> bool {
        let services = self.head.services.as_ref();
        self.summary.unknown > 0 || services.is_some_and(Tally::lacks_evidence)
    }

    /// Returns the verdict on all Services in words: now, or in the mode of a planned switch.
    pub(crate) fn services(&self) -> Option<String> {
        let now = self.head.services.as_ref().map(ToString::to_string);
        let then = self.head.outlook.as_ref();
        now.or_else(|| {
            then.map(|outlook| format!("in mode {}: {}", outlook.mode, outlook.services))
        })
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

impl CheckResult {
    fn new(of: &Checked) -> Self {
        Self {
            id: of.check.id,
            name: of.check.name,
            group: of.check.group(),
            severity: of.check.severity,
            status: of.status,
            title: of.check.title,
            reason: of.reason.as_ref().map(ToString::to_string),
        }
    }
}

impl Problem {
    fn new(of: Diagnosed, reach: &Arc<Reach>) -> Self {
        let Finding {
            about,
            subject,
            services,
            message,
            evidence,
            fix,
            ..
        } = of.finding;
        let mut fix = fix.unwrap_or_else(|| of.check.fix.into());
        fix.reached_by(reach);
        Self {
            id: of.check.id,
            name: of.check.name,
            severity: of.severity,
            subject,
            about,
            services,
            message,
            evidence,
            fix,
            consequences: of.consequences.into_iter().map(Consequence::new).collect(),
        }
    }
}

impl Consequence {
    fn new(of: check::Consequence) -> Self {
        Self {
            id: of.check.id,
            name: of.check.name,
            severity: of.finding.severity,
            subject: of.finding.subject,
            about: of.finding.about,
            services: of.finding.services,
            message: of.finding.message,
        }
    }
}

impl Problem {
    /// Returns the tone of its severity.
    pub(crate) const fn tone(&self) -> Tone {
        match self.severity {
            Severity::Error => Tone::Bad,
            Severity::Warning => Tone::Doubtful,
            Severity::Info => Tone::Strong,
        }
    }
}

impl DoctorReport {
    /// Iterates over the findings in blocks: the worst first, then those whose fix clears the most.
    pub(crate) fn in_blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let blocks = self.blocks.iter();
        blocks.map(|block| Block::new(block, &self.findings))
    }

    /// Returns the errors.
    pub(crate) fn blockers(&self) -> Vec<MigrationBlocker> {
        let findings = self.findings.iter();
        let errors = findings.filter(|finding| finding.severity == Severity::Error);
        let blockers = errors.map(|error| MigrationBlocker {
            id: error.id.to_owned(),
            message: error.message.clone(),
        });
        blockers.collect()
    }

    /// Returns whether the answer of a check is unknown.
    pub(crate) fn is_unknown(&self) -> bool {
        self.checks
            .iter()
            .any(|check| check.status == Status::Unknown)
    }

    /// Returns the verdict in a few words, and its tone.
    pub(crate) fn answer(&self) -> (Tone, String) {
        human::answer(self)
    }

    /// Returns facts about the node, each with its name.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        human::facts(self)
    }

    /// Returns the number of checks by status, in words.
    pub(crate) fn checked(&self) -> String {
        human::checked(self, "")
    }

    /// Returns the ids of the checks with `status` by reason; the reason of most checks is first.
    pub(crate) fn by_reason(&self, status: Status) -> Vec<(&str, Vec<&'static str>)> {
        human::by_reason(self, status)
    }

    /// Adds the errors that the plan of `kpx reconcile` does not repair, each with its fix.
    pub(crate) fn beside_the_plan(&self, page: &mut Page) {
        let is_beside =
            |block: &Block<'_>| block.severity() == Severity::Error && !block.is_of_plan();
        let beside: Vec<Block<'_>> = self.in_blocks().filter(is_beside).collect();
        if beside.is_empty() {
            return;
        }
        page.line("");
        page.line("errors that this plan does not repair:");
        for block in beside {
            block.cause("  ", LINES, page);
            block.remedy(LINES, |id| self.details_of(id), page);
        }
    }

    /// Adds the findings and the status of the checks to the page of another report.
    pub(crate) fn rest(&self, page: &mut Page) {
        human::rest(self, page);
    }
}

impl Report for DoctorReport {
    const KIND: &'static str = "DoctorReport";

    fn page(&self, page: &mut Page) {
        let style = page.style();
        if self.is_no_node && style.verbose == 0 {
            brief::no_node(self, page);
        } else if style.verbose > 0 || style.wide || self.is_chosen {
            human::page(self, page);
        } else {
            brief::page(self, page);
        }
    }

    fn exit(&self) -> u8 {
        let worst = self.findings.iter().map(|finding| finding.severity).max();
        let failing = self.has_failing().then_some(Severity::Error);
        let worst = worst.max(failing);
        match self.fail_on {
            Some(least) if worst.is_some_and(|worst| worst >= least) => FOUND,
            _ if self.lacks_data() => UNKNOWN,
            _ => CLEAN,
        }
    }
}
