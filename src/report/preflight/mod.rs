//! What `kpx preflight` found: everything a mode needs on a node, and what stands in the way of a move to it.

mod modules;
mod others;

use serde::Serialize;

use super::doctor::{DoctorReport, Status as CheckStatus};
use super::plan::PlanReport;
use super::{CLEAN, FAILED, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::check::{Facts, Severity};
use crate::evidence::Item;
use crate::render::{Page, Report, Tone};

/// What [`PreflightReport::new`] reads beside what the checks do.
pub const NEEDS: &[Item] = &[
    Item::KernelRelease,
    Item::Modules,
    Item::ModulesBuiltin,
    Item::ModulesDep,
    Item::ModulesLoad,
    Item::Modprobe,
    Item::Ipvs,
    Item::Sysctl,
    Item::Links,
    Item::Addresses,
    Item::IptablesVersion,
    Item::IpsetVersion,
    Item::NftVersion,
    Item::ConntrackVersion,
    Item::ProxyConfig,
    Item::ConfigMaps,
    Item::Services,
    Item::Nodes,
    Item::Pods,
    Item::DaemonSets,
    Item::Metrics,
    Item::Access,
];

/// The outcome of `kpx preflight`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreflightReport {
    /// The mode.
    pub to: Mode,
    /// What it needs, by area.
    pub needs: Vec<Need>,
    /// Why modules' states are not known, where they are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
    /// What stands in the way of a move, and what to heed.
    pub assessment: DoctorReport,
    /// What was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanReport>,
    /// What the kernel was seen to do, in a network namespace of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<Proof>,
    /// The commands that take back what was done, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo: Vec<String>,
}

/// Something a mode needs on a node.
#[derive(Clone, Debug, Serialize)]
pub struct Need {
    /// What kind of thing it is.
    pub area: Area,
    /// Its name.
    pub name: String,
    /// Whether it is there.
    pub status: Status,
    /// How it is there, in a word or as a value.
    pub state: String,
    /// What for.
    pub purpose: &'static str,
    /// What to know about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// What kind of thing a need is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// The kernel's release.
    Kernel,
    /// A kernel module.
    Module,
    /// A program of the host.
    Tool,
    /// A kernel setting.
    Sysctl,
    /// A file or folder of the host that kube-proxy's pod must see.
    Mount,
    /// A field of kube-proxy's configuration.
    Configuration,
    /// A right at the API server.
    Access,
}

/// Whether a need is met.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It is.
    Ready,
    /// It will be as soon as somebody asks for it.
    Loadable,
    /// It is not, and the mode can do without, or brings it along.
    Risk,
    /// It is not.
    Fails,
    /// What would tell was not read.
    Unknown,
}

/// Something the kernel was asked to do, and whether it did.
#[derive(Clone, Debug, Serialize)]
pub struct Proof {
    /// What, in words.
    pub what: String,
    /// Why it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PreflightReport {
    /// Returns what the mode `to` needs, by what `facts` tell of the node, beside what the checks found.
    pub fn new(facts: &Facts<'_>, to: Mode, assessment: DoctorReport) -> Self {
        let mut needs = others::kernel(facts, to);
        needs.extend(modules::needs(facts, to));
        needs.extend(others::tools(facts, to));
        needs.extend(others::sysctls(facts, to));
        needs.extend(others::mounts(facts, to));
        needs.extend(others::configuration(facts, to));
        needs.extend(others::access(facts));
        Self {
            to,
            gaps: modules::gaps(facts, &needs),
            needs,
            assessment,
            plan: None,
            proofs: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Returns the modules that are needed and that are in `status`.
    pub fn modules(&self, status: Status) -> Vec<String> {
        let modules = self.needs.iter().filter(|need| need.area == Area::Module);
        let modules = modules.filter(|need| need.status == status && !need.stays_out());
        modules.map(|need| need.name.clone()).collect()
    }

    /// Returns the needed modules that are loaded or could be, sorted.
    pub fn to_name_at_boot(&self) -> Vec<String> {
        let modules = self.needs.iter().filter(|need| need.area == Area::Module);
        let modules = modules.filter(|need| {
            let there = matches!(need.status, Status::Loadable)
                || need.status == Status::Ready && need.state == modules::LOADED;
            there && !need.stays_out()
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
        let findings = self.assessment.findings.iter();
        findings.filter(|of| of.severity == Severity::Error).count()
    }

    fn not_known(&self) -> usize {
        let checks = self.assessment.checks.iter();
        let unknown = checks
            .filter(|of| of.status == CheckStatus::Unknown)
            .count();
        self.count(Status::Unknown) + unknown
    }

    fn failed(&self) -> bool {
        let stopped = self.plan.as_ref().is_some_and(|of| of.stopped.is_some());
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
            "need is not met",
            "needs are not met",
        );
        part(self.blockers(), "blocker", "blockers");
        part(
            self.not_known(),
            "thing is not known",
            "things are not known",
        );
        let what = parts.join(", ");
        match self.exit() {
            FAILED => (Tone::Bad, format!("failed to prepare for mode {to}")),
            FOUND => (Tone::Bad, format!("not ready for mode {to}: {what}")),
            UNKNOWN => (
                Tone::Unclear,
                format!("nothing known to be wrong for mode {to}: {what}"),
            ),
            _ if self.not_known() > 0 => (Tone::Good, format!("prepared for mode {to}; {what}")),
            _ => match self.count(Status::Loadable) {
                0 => (Tone::Good, format!("ready for mode {to}")),
                1 => (
                    Tone::Good,
                    format!("ready for mode {to}, with 1 module still to be loaded"),
                ),
                count => (
                    Tone::Good,
                    format!("ready for mode {to}, with {count} modules still to be loaded"),
                ),
            },
        }
    }
}

impl Need {
    /// Whether kpx does not load the module: what it does to packets on bridges is the network's to decide.
    fn stays_out(&self) -> bool {
        self.name == modules::BRIDGE
    }
}

impl Area {
    /// Returns the titles of its table.
    const fn titles(self) -> (&'static str, &'static str) {
        match self {
            Self::Kernel => ("KERNEL", "IS"),
            Self::Module => ("MODULE", "STANDING"),
            Self::Tool => ("TOOL OF THE HOST", "VERSION"),
            Self::Sysctl => ("SETTING", "VALUE"),
            Self::Mount => ("SEEN BY KUBE-PROXY'S POD", "STATE"),
            Self::Configuration => ("FIELD OF THE CONFIGURATION", "VALUE"),
            Self::Access => ("RIGHT AT THE API SERVER", "STATE"),
        }
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
                None => page.para("  seen: ", &proof.what),
                Some(error) => page.para("  FAILED: ", &format!("{}: {error}", proof.what)),
            }
        }
        if !self.undo.is_empty() {
            page.line("  to take it back:");
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
            page.para("not known: ", gap);
        }
        self.assessment.rest(page);
        self.next(page);
    }

    fn exit(&self) -> u8 {
        if self.failed() {
            FAILED
        } else if self.count(Status::Fails) + self.blockers() > 0 {
            FOUND
        } else if self.plan.is_none() && self.not_known() > 0 {
            UNKNOWN
        } else {
            CLEAN
        }
    }
}

impl PreflightReport {
    fn next(&self, page: &mut Page) {
        let to = self.to;
        let next = match self.exit() {
            FOUND => match self.assessment.findings.first() {
                Some(worst) => format!("kpx explain {}", worst.id),
                None => return,
            },
            CLEAN if self.count(Status::Loadable) > 0 => {
                format!("kpx preflight --to {to} --load --persist")
            }
            CLEAN => format!("kpx diff --mode {to}"),
            _ => return,
        };
        page.line(&format!("next: {next}"));
    }
}

/// Adds the needs of one area.
fn table(needs: &[Need], page: &mut Page) {
    let Some(first) = needs.first() else {
        return;
    };
    let (name, state) = first.area.titles();
    // Names of settings leave no room for what they are for.
    let purposes = first.area != Area::Sysctl || page.style().wide;
    let rows = needs.iter().map(|need| {
        let state = match need.status {
            // Colour is never the only signal, and here there is none.
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
