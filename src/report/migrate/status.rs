//! Where journeys stand.

use serde::Serialize;

use super::rolled_back;
use crate::backend::Mode;
use crate::evidence::Time;
use crate::migrate::journal::State;
use crate::migrate::journey::{Leg, Stage};
use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND};

/// The outcome of `kpx migrate status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The newest journey of this node, if there is one.
    pub journey: Option<JourneyStatus>,
    /// The command to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Where a journey stands.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JourneyStatus {
    /// Its name.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The mode it leaves.
    pub from: Mode,
    /// The mode it goes to.
    pub to: Mode,
    /// Whether it is over.
    pub ended: bool,
    /// Which way it goes, or went at the end.
    pub leg: Leg,
    /// The stages of that way, in order.
    pub stages: Vec<StageStatus>,
    /// Why it turned back, or stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the journal's last line was torn: what it announced was not begun.
    pub torn: bool,
    /// Whether kube-proxy was seen to serve in the new mode.
    pub reached: bool,
    /// The Node, where the journal has its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// How far a stage is.
#[derive(Debug, Serialize)]
pub struct StageStatus {
    /// Which.
    pub stage: Stage,
    /// How far.
    pub status: Progress,
}

/// How far a stage is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// Done.
    Done,
    /// Begun, and perhaps done in part.
    Begun,
    /// Not begun.
    Open,
}

impl From<&State> for JourneyStatus {
    fn from(state: &State) -> Self {
        let stages = state.stages().into_iter().enumerate().map(|(at, stage)| {
            let status = match at {
                at if at < state.done => Progress::Done,
                at if at == state.done && state.begun => Progress::Begun,
                _ => Progress::Open,
            };
            StageStatus { stage, status }
        });
        Self {
            id: state.journey.id.clone(),
            began: state.journey.began,
            from: state.journey.from,
            to: state.journey.to(),
            ended: state.ended,
            leg: state.leg,
            stages: stages.collect(),
            why: state.why.clone(),
            torn: state.torn,
            reached: state.reached,
            node: state.journey.node.clone(),
        }
    }
}

impl Report for StatusReport {
    const KIND: &'static str = "MigrateStatus";

    fn page(&self, page: &mut Page) {
        let Some(journey) = &self.journey else {
            return page.line("no migration was begun on this node");
        };
        let (from, to) = (journey.from, journey.to);
        let (tone, head) = match (journey.ended, journey.leg) {
            (true, Leg::There) => (
                Tone::Good,
                format!("migrated from mode {from} to mode {to}"),
            ),
            (true, Leg::Back) => (Tone::Good, rolled_back(from, to, journey.reached)),
            (false, Leg::There) => (
                Tone::Doubtful,
                format!("on the way from mode {from} to mode {to}"),
            ),
            (false, Leg::Back) => (
                Tone::Doubtful,
                format!("on the way back from mode {to} to mode {from}"),
            ),
        };
        page.line(&format!(
            "{} ({}, began {})",
            page.paint(tone, &head),
            journey.id,
            journey.began
        ));
        if let Some(why) = &journey.why {
            page.para("because ", why);
        }
        if !journey.ended {
            for row in &journey.stages {
                let mark = match row.status {
                    Progress::Done => "done ",
                    Progress::Begun => "BEGUN",
                    Progress::Open => "open ",
                };
                page.line(&format!("  {mark}  {}", row.stage.title()));
            }
        }
        if journey.torn {
            page.para(
                "note: ",
                "the journal's last line is torn: what it announced was not begun",
            );
        }
        if let Some(next) = &self.next {
            page.line(&format!("next: {next}"));
        }
    }

    fn exit(&self) -> u8 {
        match &self.journey {
            Some(journey) if !journey.ended => FOUND,
            _ => CLEAN,
        }
    }
}
