//! Prints the requirements of a mode, and what blocks the switch to it.

pub(crate) mod nodes;

use serde::Serialize;

use crate::command::doctor::report::{DoctorReport, Status as CheckStatus};
use crate::render::{Page, Report, Tone};
use crate::report::plan::PlanReport;
use crate::report::{CLEAN, FAILED, FOUND, UNKNOWN};
use kpx_judge::check::{Advice, Next};
use kpx_judge::requirements::{Area, Need, Requirements, Standing, Status};
use kpx_node::backend::Mode;

/// The outcome of `kpx preflight`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreflightReport {
    /// The mode to switch to.
    pub to: Mode,
    /// Its requirements, by area.
    pub needs: Vec<Need>,
    /// Why the state of some modules is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
    /// The findings: errors block the switch, warnings are risks.
    pub assessment: DoctorReport,
    /// The changes made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    /// Tests of the kernel in a network namespace of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<Proof>,
    /// The commands that undo the changes, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
    /// The command to run next.
    #[serde(skip)]
    pub next: Option<String>,
}

/// A test of the kernel.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Proof {
    /// The object that the kernel had to create.
    pub what: String,
    /// Why it failed; absent if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PreflightReport {
    /// Returns the report of a mode's requirements and of the checks for the switch to it.
    pub(crate) fn new(requirements: Requirements, assessment: DoctorReport) -> Self {
        let Requirements { to, needs, gaps } = requirements;
        Self {
            to,
            needs,
            gaps,
            assessment,
            plan: None,
            proofs: Vec::new(),
            undo: Vec::new(),
            next: None,
        }
    }

    /// Returns the modules that kpx loads and that are in `status`.
    pub(crate) fn modules(&self, status: Status) -> Vec<String> {
        let modules = self.needs.iter().filter(|need| need.is_loaded_by_kpx());
        let modules = modules.filter(|need| need.status == status);
        modules.map(|need| need.name.clone()).collect()
    }

    /// Returns the modules that kpx loads at boot, sorted: the ones that are loaded or loadable.
    pub(crate) fn modules_at_boot(&self) -> Vec<String> {
        let modules = self.needs.iter().filter(|need| need.is_loaded_by_kpx());
        let modules = modules.filter(|need| {
            need.status == Status::Loadable || need.standing == Some(Standing::Loaded)
        });
        let mut names: Vec<_> = modules.map(|need| need.name.clone()).collect();
        names.sort();
        names
    }

    fn count(&self, status: Status) -> usize {
        let needs = self.needs.iter();
        needs.filter(|need| need.status == status).count()
    }

    fn blockers(&self) -> usize {
        self.assessment.blockers().len()
    }

    fn unknown(&self) -> usize {
        let checks = self.assessment.checks.iter();
        let unknown = checks
            .filter(|check| check.status == CheckStatus::Unknown)
            .count();
        self.count(Status::Unknown) + unknown
    }

    fn failed(&self) -> bool {
        let stopped = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.stopped.is_some());
        stopped || self.proofs.iter().any(|proof| proof.error.is_some())
    }

    fn head(&self) -> (Tone, String) {
        let to = self.to;
        let mut parts = Vec::new();
        let mut part = |count: usize, one: &str, many: &str| match count {
            0 => {}
            1 => parts.push(format!("1 {one}")),
            count => parts.push(format!("{count} {many}")),
        };
        part(
            self.count(Status::Fails),
            "unmet requirement",
            "unmet requirements",
        );
        part(self.blockers(), "blocker", "blockers");
        part(self.unknown(), "unknown", "unknown");
        let what = parts.join(", ");
        match self.exit() {
            FAILED => (Tone::Bad, format!("failed to prepare for mode {to}")),
            FOUND => (Tone::Bad, format!("not ready for mode {to}: {what}")),
            UNKNOWN => (Tone::Unclear, format!("inconclusive for mode {to}: {what}")),
            _ if self.unknown() > 0 => (Tone::Good, format!("prepared for mode {to}, with {what}")),
            _ => match self.count(Status::Loadable) {
                0 => (Tone::Good, format!("ready for mode {to}")),
                1 => (
                    Tone::Good,
                    format!("ready for mode {to}, but 1 module is not loaded"),
                ),
                count => (
                    Tone::Good,
                    format!("ready for mode {to}, but {count} modules are not loaded"),
                ),
            },
        }
    }
}

/// Returns the column titles of the table of an area.
const fn titles(area: Area) -> (&'static str, &'static str) {
    match area {
        Area::Kernel => ("KERNEL", "RELEASE"),
        Area::Module => ("MODULE", "STATE"),
        Area::Tool => ("HOST TOOL", "VERSION"),
        Area::Sysctl => ("SYSCTL", "VALUE"),
        Area::Mount => ("HOST PATH", "KUBE-PROXY POD"),
        Area::Configuration => ("CONFIGURATION FIELD", "VALUE"),
        Area::Access => ("API PERMISSION", "STATE"),
    }
}

impl Report for PreflightReport {
    const KIND: &'static str = "PreflightReport";

    fn page(&self, page: &mut Page) {
        let name = self.assessment.head.node.name.as_deref();
        let (tone, head) = self.head();
        let head = page.paint(tone, &head);
        page.line(&format!("{}: {head}", name.unwrap_or("this node")));
        if let Some(plan) = &self.plan {
            page.line("");
            plan.page(page);
        }
        for proof in &self.proofs {
            match &proof.error {
                None => page.para("  tested: ", &proof.what),
                Some(error) => page.para("  FAILED: ", &format!("{}: {error}", proof.what)),
            }
        }
        if !self.undo.is_empty() {
            page.line("  to undo:");
            for command in &self.undo {
                // A command that is cut or wrapped cannot be copied.
                page.line(&format!("        $ {command}"));
            }
        }
        for needs in self.needs.chunk_by(|a, b| a.area == b.area) {
            page.line("");
            table(needs, page);
        }
        if !self.gaps.is_empty() {
            page.line("");
        }
        for gap in &self.gaps {
            page.para("unknown: ", gap);
        }
        self.assessment.rest(page);
        if let Some(next) = &self.next {
            page.next(next);
        }
    }

    fn exit(&self) -> u8 {
        if self.failed() {
            FAILED
        } else if self.count(Status::Fails) + self.blockers() > 0 {
            FOUND
        } else if self.plan.is_none() && self.unknown() > 0 {
            UNKNOWN
        } else {
            CLEAN
        }
    }
}

impl PreflightReport {
    /// Returns the command after this report.
    pub(crate) fn following(&self) -> Option<Next> {
        let to = self.to.name();
        let words: Vec<&str> = match self.exit() {
            FOUND => vec!["explain", self.assessment.findings.first()?.id],
            CLEAN if self.count(Status::Loadable) > 0 => {
                vec!["preflight", "--to", to, "--load", "--persist"]
            }
            CLEAN => vec!["migrate", "--to", to, "--dry-run"],
            UNKNOWN => return Some(Next::Read),
            _ => return None,
        };
        Some(Next::Run(Advice::kpx(words), None))
    }
}

/// Adds the requirements of one area.
fn table(needs: &[Need], page: &mut Page) {
    let Some(first) = needs.first() else {
        return;
    };
    let (name, state) = titles(first.area);
    // Names of sysctls are long: without -o wide there is no room for their purpose.
    let purposes = first.area != Area::Sysctl || page.style().wide;
    let rows = needs.iter().map(|need| {
        let state = match need.status {
            // Colour is never the only signal.
            Status::Fails => need.state.to_uppercase(),
            _ => need.state.clone(),
        };
        let purpose = if purposes { need.purpose } else { "" };
        let texts = [purpose, need.note.as_str()];
        let texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        vec![need.name.clone(), state, texts.join("; ")]
    });
    let rows: Vec<_> = rows.collect();
    page.grid(&[(name, 0), (state, 0), ("", 0)], &rows);
}
