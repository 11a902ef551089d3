//! The plan of a node's migration.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{FoundProvider, Offers};
use crate::command::doctor::report::DoctorReport;
use crate::render::{Page, Tone};
use crate::report::packets::PacketsReport;
use crate::report::plan::block;
use kpx_judge::check::{Severity, Subject};
use kpx_judge::plan::{Plan, Step};
use kpx_judge::verdict::LossClass;
use kpx_migrate::loss::{Established, Loss, New};
use kpx_migrate::migration::{Stage, Strategy};
use kpx_migrate::preview::Preview;
use kpx_migrate::removal::Removal;
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

/// The plan of a node's migration.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlannedMigration {
    /// The place of kube-proxy's configuration, or why it is unknown.
    pub store: String,
    /// The change of the configuration.
    pub diff: String,
    /// The provider of the cluster.
    pub provider: FoundProvider,
    /// The stages, in order.
    pub stages: Vec<PlannedStage>,
    /// The expected loss.
    pub loss: Loss,
    /// The reason for the strategy, and the expected loss of the others.
    pub strategies: Offers,
    /// Packets that the new mode treats differently; only in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketsReport>,
    /// Findings: errors block the migration, warnings do not.
    pub assessment: DoctorReport,
}

/// The plan of a stage.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PlannedStage {
    /// The stage.
    pub stage: Stage,
    /// The stage, in words.
    pub title: &'static str,
    /// Its steps, as far as they are known beforehand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// The leftovers of the old mode that it will remove.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removes: Option<Removal>,
    /// Notes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why its steps are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl PlannedStage {
    /// Returns a stage whose steps are unknown, and why.
    pub(crate) fn unknown(stage: Stage, why: &dyn std::error::Error) -> Self {
        Self {
            unknown: Some(why.to_string()),
            ..Self::new(stage, Plan::default())
        }
    }

    /// Returns a stage with its plan.
    pub(crate) fn new(stage: Stage, plan: Plan) -> Self {
        Self {
            stage,
            title: stage.title(),
            steps: plan.steps,
            removes: None,
            notes: plan.notes,
            unknown: None,
        }
    }

    fn page(&self, page: &mut Page, number: usize) {
        page.line("");
        let title = page.paint(Tone::Strong, self.title);
        page.line(&format!("{number:>3}. {title}"));
        if self.stage == Stage::Evict {
            page.line(&format!("     - {}", evicted(self.steps.len())));
        }
        let shown = self.steps.iter().filter(|_| self.stage != Stage::Evict);
        for step in shown {
            page.line(&format!("     - {}", step.title));
            block(page, "       ", "", &step.action.to_string());
            block(page, "       ", "undo: ", &step.undo.to_string());
        }
        if let Some(removal) = &self.removes {
            page.para("     - ", &removal.to_string());
        }
        for note in &self.notes {
            page.para("     note: ", note);
        }
        if let Some(why) = &self.unknown {
            page.para("     unknown: ", why);
        }
    }
}

impl PlannedMigration {
    /// Returns the plan in short.
    pub(crate) fn preview(&self) -> Preview {
        let unknown = self.stages.iter().filter_map(|stage| {
            let why = stage.unknown.as_ref()?;
            Some(format!("stage \"{}\": {why}", stage.title))
        });
        let evicts = self.stages.iter().find(|stage| stage.stage == Stage::Evict);
        Preview {
            blockers: self.assessment.blockers(),
            breaks: match &self.loss.established {
                Established::All(gauge) => gauge.count,
                _ => 0,
            },
            evicts: evicts.map_or(0, |stage| stage.steps.len()),
            loss: self.loss_in_words(),
            lost: self.lost(),
            unknown: unknown.collect(),
        }
    }

    /// Returns the classes of packets that the new mode loses, the worst first.
    pub(crate) fn lost(&self) -> Vec<LossClass> {
        self.classes(|_| true)
    }

    /// Returns those that the operator did not accept.
    pub(crate) fn unaccepted(&self) -> Vec<LossClass> {
        self.classes(|severity| severity == Severity::Error)
    }

    fn classes(&self, is: impl Fn(Severity) -> bool) -> Vec<LossClass> {
        let findings = self.assessment.findings.iter();
        let classes = findings.filter_map(|finding| match finding.about {
            Subject::Packets { class } if is(finding.severity) => Some(class),
            _ => None,
        });
        let classes: BTreeSet<LossClass> = classes.collect();
        classes.into_iter().collect()
    }

    /// Returns the ids of the checks that block the migration.
    pub(crate) fn blockers(&self) -> Vec<&'static str> {
        let findings = self.assessment.findings.iter();
        let errors = findings.filter(|finding| finding.severity == Severity::Error);
        let mut ids: Vec<_> = errors.map(|error| error.id).collect();
        ids.dedup();
        ids
    }

    pub(super) fn page(&self, page: &mut Page, strategy: Strategy, from: Mode, to: Mode) {
        page.line("");
        self.strategies.page(page, (strategy, &self.loss), from, to);
        self.assessment.rest(page);
        page.line("");
        page.line(&format!("configuration: {}", self.store));
        block(page, "     ", "", self.diff.trim_end());
        self.provider.page(page);
        for (number, stage) in (1..).zip(&self.stages) {
            stage.page(page, number);
        }
        if let Some(packets) = &self.packets {
            page.line("");
            packets.summary(page);
        }
    }

    /// Returns the expected loss in words: in the new mode, and during the switch.
    pub(crate) fn loss_in_words(&self) -> String {
        let of = |stage: &&PlannedStage| stage.stage == Stage::Evict && !stage.steps.is_empty();
        let during = match self.stages.iter().find(of) {
            None => in_words(&self.loss),
            Some(stage) => format!(
                "all connections of {}; for processes of this host and clients outside: {}",
                number_of(stage.steps.len(), "evicted pod"),
                in_words(&self.loss)
            ),
        };
        match lost_in_words(&self.lost()) {
            None => during,
            Some(lost) => format!("in the new mode {lost}; during the switch {during}"),
        }
    }
}

/// Returns the `lost` classes of packets in words, the worst first.
pub(super) fn lost_in_words(lost: &[LossClass]) -> Option<String> {
    let (worst, more) = lost.split_first()?;
    let more = match more.len() {
        0 => String::new(),
        more => format!(", and of {}", number_of(more, "other class")),
    };
    Some(format!("connections from {}{more}", worst.words()))
}

fn evicted(count: usize) -> String {
    match count {
        0 => "no pods to evict".to_owned(),
        count => format!("evict {}; -o json lists them", number_of(count, "pod")),
    }
}

/// Returns the expected loss in words.
fn in_words(loss: &Loss) -> String {
    let new = match loss.new {
        New::Kept => "no new connections".to_owned(),
        New::Refused(seconds) => format!(
            "new connections for about {seconds} s: they are refused from kube-proxy's end to its first sync"
        ),
        New::HostsAtRisk => {
            "no new connections of pods and external clients; those of host processes are at risk from the moment \
             kube-ipvs0 has the addresses until kube-proxy's first sync"
                .to_owned()
        }
    };
    let established = match &loss.established {
        Established::None => "no established connections".to_owned(),
        Established::AfterDrain(gauge) => format!(
            "of {} ({}) those that do not end in time, and only with --accept-loss",
            number_of(gauge.count, "established connection"),
            gauge.holders()
        ),
        Established::All(gauge) => {
            format!(
                "all of {} ({})",
                number_of(gauge.count, "established connection"),
                gauge.holders()
            )
        }
        Established::Unknown(gap) => {
            format!("an unknown number of established connections ({gap})")
        }
    };
    let stale = match loss.unfollowed_seconds {
        0 => String::new(),
        seconds => format!("; endpoints are not updated for about {seconds} s"),
    };
    format!("{new}; {established}{stale}")
}
