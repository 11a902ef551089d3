//! The plan and the result of `kpx migrate`.

mod fleet;
mod guard;
mod loss;
mod planned;
mod provider;
mod status;

use std::borrow::Cow;

use serde::Serialize;

use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FAILED, FOUND, UNKNOWN};
use kpx_migrate::journal::Took;
use kpx_migrate::migration::{Leg, Migration};
use kpx_migrate::preview::Preview;
use kpx_migrate::wire::{Line, NodeReport, Outcome};
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

pub(crate) use fleet::{
    FleetEvent, FleetEventLine, FleetReport, FleetSummary, LeaseStatus, PlannedFleet,
};
pub(crate) use guard::{GuardState, GuardStatus};
pub(crate) use loss::{Offer, Offers};
pub(crate) use planned::{PlannedMigration, PlannedStage};
pub(crate) use provider::FoundProvider;
pub(crate) use status::{BridgeStatus, MigrationStatus, StatusReport};

/// The check of packets that the new mode loses.
pub(crate) const LOST: &str = "MX12";

/// The result of `kpx migrate` on this node.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct MigrateReport {
    /// The part that the coordinator of a fleet reads.
    #[serde(flatten)]
    pub result: NodeReport,
    /// The plan, before anything is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedMigration>,
    /// Whether kube-proxy has served in the new mode.
    #[serde(skip)]
    pub reached: bool,
    /// Whether the migration is being rolled back.
    #[serde(skip)]
    pub back: bool,
    /// Whether the answers of some checks before the switch are unknown.
    #[serde(skip)]
    pub inconclusive: bool,
}

impl MigrateReport {
    /// Returns the report of `migration` with this outcome.
    pub(crate) fn new(migration: &Migration, outcome: Outcome) -> Self {
        Self::of(NodeReport::new(migration, outcome))
    }

    /// Returns the report that kube-proxy already runs in mode `to`.
    pub(crate) const fn already(to: Mode) -> Self {
        Self::of(NodeReport::already(to))
    }

    const fn of(result: NodeReport) -> Self {
        Self {
            result,
            plan: None,
            reached: false,
            back: false,
            inconclusive: false,
        }
    }

    /// Returns whether no finding blocks the migration.
    pub(crate) fn is_free(&self) -> bool {
        let plan = self.plan.as_ref();
        plan.is_none_or(|plan| plan.blockers().is_empty())
    }

    /// Replaces the plan by its preview.
    pub(crate) fn shorten(&mut self) {
        self.result.preview = self.plan.take().map(|plan| plan.preview());
    }

    /// Returns the plan in short.
    fn short(&self) -> Option<Cow<'_, Preview>> {
        let plan = self.plan.as_ref();
        let short = plan.map(|plan| Cow::Owned(plan.preview()));
        short.or_else(|| self.result.preview.as_ref().map(Cow::Borrowed))
    }

    /// Returns the reasons that block the migration: checks, and the worst loss in the new mode.
    pub(crate) fn blocked(&self) -> Option<String> {
        let short = self.short()?;
        let blockers = short.blockers.iter();
        let mut ids: Vec<&str> = blockers.map(|blocker| blocker.id.as_str()).collect();
        ids.dedup();
        let lost = planned::lost_in_words(&short.lost).filter(|_| ids.contains(&LOST));
        let lost = lost.map_or_else(String::new, |lost| {
            format!("; mode {} loses {lost}", self.result.to)
        });
        (!ids.is_empty()).then(|| format!("{}{lost}", ids.join(", ")))
    }

    fn head(&self) -> (Tone, String) {
        let result = &self.result;
        let (from, to) = (result.from, result.to);
        match result.outcome {
            Outcome::Planned => {
                let what = format!(
                    "migrate from mode {from} to mode {to}, strategy {}",
                    result.strategy
                );
                match self.blocked() {
                    None => (Tone::Strong, what),
                    Some(why) => (Tone::Bad, format!("{what}: blocked by {why}")),
                }
            }
            Outcome::Already => (Tone::Good, format!("kube-proxy already runs in mode {to}")),
            Outcome::Migrated => (
                Tone::Good,
                format!("migrated from mode {from} to mode {to}"),
            ),
            Outcome::RolledBack => (Tone::Good, rolled_back(from, to, self.reached)),
            Outcome::Reverted => (
                Tone::Bad,
                format!("rolled back to mode {from}: the migration to mode {to} failed"),
            ),
            Outcome::Prepared if self.back => (
                Tone::Good,
                format!(
                    "prepared for the rollback to mode {from}: restore the configuration and restart kube-proxy"
                ),
            ),
            Outcome::Prepared => (
                Tone::Good,
                format!("prepared for mode {to}; kube-proxy still runs in mode {from}"),
            ),
            Outcome::Stopped if self.back => (
                Tone::Bad,
                format!("stopped during the rollback to mode {from}"),
            ),
            Outcome::Stopped => (
                Tone::Bad,
                format!("stopped during the migration from mode {from} to mode {to}"),
            ),
        }
    }
}

/// Returns the result of a rollback to mode `from`; `reached` is true if kube-proxy served in mode `to` before.
pub(crate) fn rolled_back(from: Mode, to: Mode, reached: bool) -> String {
    if reached {
        format!("rolled back from mode {to} to mode {from}")
    } else {
        format!("rolled back to mode {from}")
    }
}

/// Returns the total time, and the time of each stage that took at least a second; `None` if no stage is done.
fn in_time(took: &[Took]) -> Option<String> {
    let all: u64 = took.iter().map(|part| part.seconds).sum();
    let long = took.iter().filter(|part| part.seconds > 0);
    let long: Vec<String> = long
        .map(|text| {
            let back = match text.leg {
                Leg::There => "",
                Leg::Back => "rollback: ",
            };
            format!("{back}{} {} s", text.stage.title(), text.seconds)
        })
        .collect();
    let parts = if long.is_empty() {
        String::new()
    } else {
        format!(" ({})", long.join(", "))
    };
    (!took.is_empty()).then(|| format!("{all} s{parts}"))
}

/// The plan in short, for `--yes`: its size, the warnings and the expected loss.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Summary<'r>(pub &'r MigrateReport);

impl Report for Summary<'_> {
    const KIND: &'static str = Line::REPORT;

    fn page(&self, page: &mut Page) {
        let report = self.0;
        let name = report.result.node.as_deref().unwrap_or("this node");
        let (tone, head) = report.head();
        page.line(&format!("{name}: {}", page.paint(tone, &head)));
        let Some(plan) = &report.plan else {
            return;
        };
        let warnings = plan.assessment.findings.iter();
        let mut warnings: Vec<&str> = warnings.map(|warning| warning.id).collect();
        warnings.dedup();
        if !warnings.is_empty() {
            page.para("warnings: ", &warnings.join(", "));
        }
        page.para("expected loss: ", &plan.loss_in_words());
        let steps: usize = plan.stages.iter().map(|stage| stage.steps.len()).sum();
        page.line(&format!(
            "{}, {}: --dry-run shows them",
            number_of(plan.stages.len(), "stage"),
            number_of(steps, "step")
        ));
    }

    fn exit(&self) -> u8 {
        self.0.exit()
    }
}

impl Report for MigrateReport {
    const KIND: &'static str = Line::REPORT;

    fn page(&self, page: &mut Page) {
        let result = &self.result;
        let name = result.node.as_deref().unwrap_or("this node");
        let (tone, head) = self.head();
        // The result is the last line; the head of a plan is the first.
        if result.outcome == Outcome::Planned {
            page.line(&format!("{name}: {}", page.paint(tone, &head)));
        }
        if let Some(plan) = &self.plan {
            plan.page(page, result.strategy, result.from, result.to);
        }
        if let Some(preview) = &result.preview {
            for blocker in &preview.blockers {
                page.para("blocked: ", &blocker.to_string());
            }
            for why in &preview.unknown {
                page.para("unknown: ", why);
            }
            page.para("expected loss: ", &preview.loss);
        }
        for note in &result.notes {
            page.para("note: ", note);
        }
        if let Some(why) = &result.why {
            page.para("reason: ", why);
        }
        if result.outcome != Outcome::Planned {
            page.line(&format!("{name}: {}", page.paint(tone, &head)));
        }
        if let Some(took) = in_time(&result.took) {
            page.para("took ", &took);
        }
        if let Some(loss) = result.observed_loss {
            page.line(&format!("observed loss: {}", loss.in_words()));
        }
        if let Some(next) = &result.next {
            page.next(next);
        }
    }

    fn exit(&self) -> u8 {
        let preview = self.short();
        let unknown = preview
            .as_ref()
            .is_some_and(|preview| !preview.unknown.is_empty());
        let blocked = preview.is_some_and(|preview| !preview.blockers.is_empty());
        match self.result.outcome {
            Outcome::Planned if blocked => FOUND,
            Outcome::Planned if unknown || self.inconclusive => UNKNOWN,
            Outcome::Planned
            | Outcome::Already
            | Outcome::Migrated
            | Outcome::RolledBack
            | Outcome::Prepared => CLEAN,
            Outcome::Reverted | Outcome::Stopped => FAILED,
        }
    }
}
