//! What `kpx migrate` is about to do, and what became of it.

mod event;
mod fleet;
mod loss;
mod status;

use serde::Serialize;

use super::doctor::DoctorReport;
use super::plan::block;
use super::{CLEAN, FAILED, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::check::Severity;
use crate::migrate::journal::Took;
use crate::migrate::journey::{Journey, Leg, Stage, Strategy};
use crate::migrate::loss::{Established, Loss, New};
use crate::migrate::outlook::Outlook;
use crate::migrate::removal::Removal;
use crate::plan::{Plan, Step};
use crate::render::{Page, Report, Tone};

pub use event::MigrateEvent;
pub use fleet::{FleetEvent, FleetProspect, FleetReport, NodeRow};
pub use loss::{Offer, Offers};
pub use status::{JourneyStatus, StatusReport};

/// The outcome of `kpx migrate`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrateReport {
    /// The journey's name, once it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The node, where its name is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The mode it leaves.
    pub from: Mode,
    /// The mode it goes to.
    pub to: Mode,
    /// What becomes of connections meanwhile.
    pub strategy: Strategy,
    /// What came of it.
    pub outcome: Outcome,
    /// Why it is not the new mode that came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What is planned, before anything is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Prospect>,
    /// The same in short, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    /// What to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How long each stage took, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub took: Vec<Took>,
    /// Whether kube-proxy was seen to serve in the new mode.
    #[serde(skip)]
    pub reached: bool,
    /// Whether it is on the way back.
    #[serde(skip)]
    pub back: bool,
}

/// What came of a journey.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was done yet.
    Planned,
    /// Nothing was to be done: kube-proxy runs in the mode.
    Already,
    /// The node runs in the new mode.
    Migrated,
    /// The node runs in the old mode, as it was asked to.
    RolledBack,
    /// The node runs in the old mode, for it could not be brought to the new one.
    Reverted,
    /// All is built, and the configuration is for others to change.
    Prepared,
    /// It stopped on the way.
    Stopped,
}

/// What is planned.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Prospect {
    /// Where the configuration is kept, or why that is not known.
    pub store: String,
    /// What changes in it.
    pub diff: String,
    /// The stages, in order.
    pub stages: Vec<StagePlan>,
    /// What is expected to be lost.
    pub loss: Loss,
    /// What other strategies would cost, and why this one is chosen.
    pub strategies: Offers,
    /// What stands in the way, and what to heed.
    pub assessment: DoctorReport,
}

/// What a stage is planned to do.
#[derive(Debug, Serialize)]
pub struct StagePlan {
    /// Which.
    pub stage: Stage,
    /// What it does, in words.
    pub title: &'static str,
    /// Its steps, as far as they are known beforehand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// What it will remove of the mode that is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removes: Option<Removal>,
    /// What to know of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why its steps are not known, where they should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl StagePlan {
    /// Returns that what `stage` does is not known.
    pub fn unknown(stage: Stage, why: &dyn std::error::Error) -> Self {
        Self {
            unknown: Some(why.to_string()),
            ..Self::new(stage, Plan::default())
        }
    }

    /// Returns what `stage` does by `plan`.
    pub fn new(stage: Stage, plan: Plan) -> Self {
        Self {
            stage,
            title: stage.title(),
            steps: plan.steps,
            removes: None,
            notes: plan.notes,
            unknown: None,
        }
    }
}

impl Prospect {
    /// Returns it in short.
    pub fn outlook(&self) -> Outlook {
        let findings = self.assessment.findings.iter();
        let errors = findings.filter(|of| of.severity == Severity::Error);
        let unknown = self.stages.iter().filter_map(|stage| {
            let why = stage.unknown.as_ref()?;
            Some(format!("how to {}: {why}", stage.title))
        });
        let evicts = self.stages.iter().find(|of| of.stage == Stage::Evict);
        Outlook {
            blockers: errors
                .map(|of| format!("{}: {}", of.id, of.message))
                .collect(),
            breaks: match &self.loss.established {
                Established::All(gauge) => gauge.count,
                _ => 0,
            },
            evicts: evicts.map_or(0, |stage| stage.steps.len()),
            loss: self.loss_in_words(),
            unknown: unknown.collect(),
        }
    }

    /// Returns the ids of checks that found what stands in the way.
    pub fn blockers(&self) -> Vec<&'static str> {
        let findings = self.assessment.findings.iter();
        let errors = findings.filter(|of| of.severity == Severity::Error);
        let mut ids: Vec<_> = errors.map(|of| of.id).collect();
        ids.dedup();
        ids
    }
}

impl MigrateReport {
    /// Reports what came of `journey`.
    pub fn new(journey: &Journey, outcome: Outcome) -> Self {
        Self {
            id: Some(journey.id.clone()),
            node: journey.node.clone(),
            from: journey.from,
            to: journey.to(),
            strategy: journey.strategy,
            outcome,
            why: None,
            next: None,
            plan: None,
            outlook: None,
            notes: Vec::new(),
            took: Vec::new(),
            reached: false,
            back: false,
        }
    }

    /// Reports that kube-proxy runs in mode `to` already.
    pub fn already(to: Mode) -> Self {
        Self {
            id: None,
            node: None,
            from: to,
            to,
            strategy: Strategy::InPlace,
            outcome: Outcome::Already,
            why: None,
            next: None,
            plan: None,
            outlook: None,
            notes: Vec::new(),
            took: Vec::new(),
            reached: false,
            back: false,
        }
    }

    /// Returns whether nothing stands in the way.
    pub fn is_free(&self) -> bool {
        let plan = self.plan.as_ref();
        plan.is_none_or(|plan| plan.blockers().is_empty())
    }

    /// Keeps of the plan what stands in the way, and what it costs.
    pub fn shorten(&mut self) {
        self.outlook = self.plan.take().map(|plan| plan.outlook());
    }

    fn head(&self) -> (Tone, String) {
        let (from, to) = (self.from, self.to);
        match self.outcome {
            Outcome::Planned => (
                Tone::Strong,
                format!("from mode {from} to mode {to}, {}", self.strategy),
            ),
            Outcome::Already => (Tone::Good, format!("kube-proxy runs in mode {to} already")),
            Outcome::Migrated => (
                Tone::Good,
                format!("migrated from mode {from} to mode {to}"),
            ),
            Outcome::RolledBack => (Tone::Good, rolled_back(from, to, self.reached)),
            Outcome::Reverted => (
                Tone::Bad,
                format!("rolled back to mode {from}, for it did not get to mode {to}"),
            ),
            Outcome::Prepared if self.back => (
                Tone::Good,
                format!("prepared for the way back to mode {from}; kube-proxy may be put back now"),
            ),
            Outcome::Prepared => (
                Tone::Good,
                format!("prepared for mode {to}; it serves in mode {from} still"),
            ),
            Outcome::Stopped if self.back => {
                (Tone::Bad, format!("stopped on the way back to mode {from}"))
            }
            Outcome::Stopped => (
                Tone::Bad,
                format!("stopped on the way from mode {from} to mode {to}"),
            ),
        }
    }
}

/// Returns what came of a way back to mode `from`; `reached` tells whether mode `to` was.
pub(super) fn rolled_back(from: Mode, to: Mode, reached: bool) -> String {
    if reached {
        format!("rolled back from mode {to} to mode {from}")
    } else {
        format!("rolled back to mode {from}")
    }
}

/// Returns how long all took, and each of the stages that took a while; nothing where no stage is done.
fn in_time(took: &[Took]) -> Option<String> {
    let all: u64 = took.iter().map(|of| of.seconds).sum();
    let long = took.iter().filter(|of| of.seconds > 0);
    let long: Vec<String> = long
        .map(|of| {
            let back = if of.leg == Leg::Back { "back: " } else { "" };
            format!("{back}{} {} s", of.stage.title(), of.seconds)
        })
        .collect();
    let parts = if long.is_empty() {
        String::new()
    } else {
        format!(" ({})", long.join(", "))
    };
    (!took.is_empty()).then(|| format!("{all} s{parts}"))
}

/// What is about to be done in a few lines, for whoever agreed to it beforehand.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Summary<'r>(pub &'r MigrateReport);

impl Report for Summary<'_> {
    const KIND: &'static str = "MigrateReport";

    fn page(&self, page: &mut Page) {
        let report = self.0;
        let name = report.node.as_deref().unwrap_or("this node");
        let (tone, head) = report.head();
        page.line(&format!("{name}: {}", page.paint(tone, &head)));
        let Some(plan) = &report.plan else {
            return;
        };
        let warnings = plan.assessment.findings.iter();
        let mut warnings: Vec<&str> = warnings.map(|of| of.id).collect();
        warnings.dedup();
        if !warnings.is_empty() {
            page.para("warnings: ", &warnings.join(", "));
        }
        page.para("configuration: ", &plan.store);
        let stages: Vec<&str> = plan.stages.iter().map(|stage| stage.title).collect();
        page.para("stages: ", &stages.join(", "));
        page.para("expected loss: ", &plan.loss_in_words());
        page.line("--dry-run shows the whole plan");
    }

    fn exit(&self) -> u8 {
        self.0.exit()
    }
}

impl Report for MigrateReport {
    const KIND: &'static str = "MigrateReport";

    fn page(&self, page: &mut Page) {
        let name = self.node.as_deref().unwrap_or("this node");
        let (tone, head) = self.head();
        // Where something was done, the last line says what came of it.
        if self.outcome == Outcome::Planned {
            page.line(&format!("{name}: {}", page.paint(tone, &head)));
        }
        if let Some(plan) = &self.plan {
            plan.page(page, self);
        }
        if let Some(outlook) = &self.outlook {
            for blocker in &outlook.blockers {
                page.para("in the way: ", blocker);
            }
            for why in &outlook.unknown {
                page.para("not known: ", why);
            }
            page.para("expected loss: ", &outlook.loss);
        }
        for note in &self.notes {
            page.para("note: ", note);
        }
        if let Some(why) = &self.why {
            page.para("because ", why);
        }
        if self.outcome != Outcome::Planned {
            page.line(&format!("{name}: {}", page.paint(tone, &head)));
        }
        if let Some(took) = in_time(&self.took) {
            page.para("took ", &took);
        }
        if let Some(next) = &self.next {
            page.line(&format!("next: {next}"));
        }
    }

    fn exit(&self) -> u8 {
        let short = self.plan.as_ref().map(Prospect::outlook);
        let outlook = short.as_ref().or(self.outlook.as_ref());
        let unknown = outlook.is_some_and(|of| !of.unknown.is_empty());
        let blocked = outlook.is_some_and(|of| !of.blockers.is_empty());
        match self.outcome {
            Outcome::Planned if blocked => FOUND,
            Outcome::Planned if unknown => UNKNOWN,
            Outcome::Planned
            | Outcome::Already
            | Outcome::Migrated
            | Outcome::RolledBack
            | Outcome::Prepared => CLEAN,
            Outcome::Reverted | Outcome::Stopped => FAILED,
        }
    }
}

impl Prospect {
    fn page(&self, page: &mut Page, of: &MigrateReport) {
        self.assessment.rest(page);
        page.line("");
        page.line(&format!("configuration: {}", self.store));
        block(page, "     ", "", self.diff.trim_end());
        for (number, stage) in (1..).zip(&self.stages) {
            page.line("");
            let title = page.paint(Tone::Strong, stage.title);
            page.line(&format!("{number:>3}. {title}"));
            if stage.stage == Stage::Evict {
                // For programs, each is there.
                page.line(&format!("     - {}", evicted(stage.steps.len())));
            }
            let shown = stage.steps.iter().filter(|_| stage.stage != Stage::Evict);
            for step in shown {
                page.line(&format!("     - {}", step.title));
                block(page, "       ", "", &step.action.to_string());
                block(page, "       ", "undo: ", &step.undo.to_string());
            }
            if let Some(removal) = &stage.removes {
                page.para("     - ", &removal.to_string());
            }
            for note in &stage.notes {
                page.para("     note: ", note);
            }
            if let Some(why) = &stage.unknown {
                page.para("     not known: ", why);
            }
        }
        page.line("");
        let chosen = (of.strategy, &self.loss);
        self.strategies.page(page, chosen, of.from, of.to);
    }

    /// Returns what is expected to be lost, in words.
    pub fn loss_in_words(&self) -> String {
        let of = |stage: &&StagePlan| stage.stage == Stage::Evict && !stage.steps.is_empty();
        match self.stages.iter().find(of) {
            None => in_words(&self.loss),
            Some(stage) => format!(
                "what the {} have open ends with them; beside that, of processes of this host and clients outside: {}",
                pods(stage.steps.len()),
                in_words(&self.loss)
            ),
        }
    }
}

fn pods(count: usize) -> String {
    match count {
        1 => "1 pod that is evicted".to_owned(),
        count => format!("{count} pods that are evicted"),
    }
}

fn evicted(count: usize) -> String {
    match count {
        0 => "there is no pod to evict".to_owned(),
        1 => "evict 1 pod; -o json names it".to_owned(),
        count => format!("evict {count} pods; -o json names them"),
    }
}

/// Returns what is expected to be lost, in words.
fn in_words(loss: &Loss) -> String {
    let new = match loss.new {
        New::Kept => "no new connections",
        New::HostsAtRisk => {
            "no new connections of pods and clients outside, but perhaps some that processes of this host make, from when \
             kube-ipvs0 has the addresses until kube-proxy's first sync"
        }
    };
    let established = match &loss.established {
        Established::None => "no established connections".to_owned(),
        Established::AfterDrain(gauge) => format!(
            "of {} established connections those that do not end in time ({}), and only if that is accepted",
            gauge.count,
            gauge.holders()
        ),
        Established::All(gauge) => {
            format!(
                "all {} established connections ({})",
                gauge.count,
                gauge.holders()
            )
        }
        Established::Unknown(gap) => {
            format!("of established connections an unknown number ({gap})")
        }
    };
    let unfollowed = match loss.unfollowed_seconds {
        0 => String::new(),
        seconds => format!("; for about {seconds} s what changes in the cluster is not followed"),
    };
    format!("{new}; {established}{unfollowed}")
}
