//! The state of this node's migration.

use serde::Serialize;

use super::rolled_back;
use crate::render::{Page, Report, Tone};
use crate::report::{CLEAN, FOUND};
use kpx_judge::bridge::Held;
use kpx_judge::check::on;
use kpx_migrate::journal::MigrationState;
use kpx_migrate::migration::{Leg, Stage};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Time};

/// The result of `kpx migrate status`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    /// The newest migration of this node; `None` if there is none.
    pub migration: Option<MigrationStatus>,
    /// The mode to which an unfinished migration of the cluster will switch this node, which has not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_to: Option<Mode>,
    /// The node's bridge, while the migration needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeStatus>,
    /// The command that continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The machine to run it on, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_machine: Option<String>,
}

/// The bridge of a node.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BridgeStatus {
    /// No bridge is loaded.
    NotLoaded,
    /// It is loaded, with this remaining lease.
    Loaded(Held),
    /// It cannot be read, and why.
    Unknown(String),
}

impl From<Result<Option<Held>, Gap>> for BridgeStatus {
    fn from(read: Result<Option<Held>, Gap>) -> Self {
        match read {
            Ok(None) => Self::NotLoaded,
            Ok(Some(held)) => Self::Loaded(held),
            Err(gap) => Self::Unknown(gap.to_string()),
        }
    }
}

impl BridgeStatus {
    fn in_words(&self) -> String {
        match self {
            Self::NotLoaded => "not loaded".to_owned(),
            Self::Loaded(held) => format!("loaded; lease: {}", held.in_words()),
            Self::Unknown(why) => format!("unknown: {why}"),
        }
    }
}

/// The state of a migration.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct MigrationStatus {
    /// Its id.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The old mode.
    pub from: Mode,
    /// The new mode.
    pub to: Mode,
    /// Whether it has ended.
    pub ended: bool,
    /// The direction.
    pub leg: Leg,
    /// The stages of that direction, in order.
    pub stages: Vec<StageStatus>,
    /// Why it was rolled back, or stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether the journal's last line is incomplete: the change that it announced did not begin.
    pub torn: bool,
    /// Whether kube-proxy has served in the new mode.
    pub reached: bool,
    /// The node, if the journal has its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A stage with its progress.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StageStatus {
    /// The stage.
    pub stage: Stage,
    /// Its progress.
    pub status: StageProgress,
}

/// The progress of a stage.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StageProgress {
    /// Done.
    Done,
    /// Begun; it may be partly done.
    Begun,
    /// Not begun.
    Open,
}

impl From<&MigrationState> for MigrationStatus {
    fn from(state: &MigrationState) -> Self {
        let stages = state.stages().into_iter().enumerate().map(|(at, stage)| {
            let status = match at {
                at if at < state.done => StageProgress::Done,
                at if at == state.done && state.begun => StageProgress::Begun,
                _ => StageProgress::Open,
            };
            StageStatus { stage, status }
        });
        Self {
            id: state.migration.id.clone(),
            began: state.migration.began,
            from: state.migration.from,
            to: state.migration.to(),
            ended: state.ended,
            leg: state.leg,
            stages: stages.collect(),
            why: state.why.clone(),
            torn: state.torn,
            reached: state.reached,
            node: state.migration.node.clone(),
        }
    }
}

impl Report for StatusReport {
    const KIND: &'static str = "MigrateStatus";

    fn page(&self, page: &mut Page) {
        let Some(migration) = &self.migration else {
            return self.without(page);
        };
        let (from, to) = (migration.from, migration.to);
        let (tone, head) = match (migration.ended, migration.leg) {
            (true, Leg::There) => (
                Tone::Good,
                format!("migrated from mode {from} to mode {to}"),
            ),
            (true, Leg::Back) => (Tone::Good, rolled_back(from, to, migration.reached)),
            (false, Leg::There) => (
                Tone::Doubtful,
                format!("unfinished: from mode {from} to mode {to}"),
            ),
            (false, Leg::Back) => (
                Tone::Doubtful,
                format!("unfinished rollback: from mode {to} to mode {from}"),
            ),
        };
        page.line(&format!(
            "{} ({}, began {})",
            page.paint(tone, &head),
            migration.id,
            migration.began
        ));
        if let Some(why) = &migration.why {
            page.para("reason: ", why);
        }
        if !migration.ended {
            for row in &migration.stages {
                let mark = match row.status {
                    StageProgress::Done => "done   ",
                    StageProgress::Begun => "running",
                    StageProgress::Open => "to do  ",
                };
                page.line(&format!("  {mark}  {}", row.stage.title()));
            }
        }
        if migration.torn {
            page.para(
                "note: ",
                "the last line of the journal is incomplete: the change that it announced did not begin",
            );
        }
        if let Some(bridge) = &self.bridge {
            page.para("bridge: ", &bridge.in_words());
        }
        if let Some(next) = &self.next {
            page.next(&on(self.next_machine.as_deref(), next));
        }
    }

    fn exit(&self) -> u8 {
        match &self.migration {
            Some(migration) if !migration.ended => FOUND,
            None if self.cluster_to.is_some() => FOUND,
            _ => CLEAN,
        }
    }
}

impl StatusReport {
    /// Adds that the node has no migration of its own.
    fn without(&self, page: &mut Page) {
        match self.cluster_to {
            None => page.line("this node has no migration"),
            Some(to) => {
                let text = format!(
                    "this node has not begun the cluster's migration to mode {to}, which is unfinished"
                );
                page.para("", &page.paint(Tone::Doubtful, &text));
            }
        }
        if let Some(next) = &self.next {
            page.next(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Item;

    #[test]
    fn the_bridge_has_its_lease() {
        let left = Held::Left {
            seconds: 43,
            of: 60,
            keeper: Some("kpx migrate, pid 7".to_owned()),
        };
        let gap = Gap::Denied(Item::NftText, "nft needs root".to_owned());
        for (read, words) in [
            (Ok(None), "not loaded"),
            (
                Ok(Some(left)),
                "loaded; lease: 43 s left of 60 s, kept by kpx migrate, pid 7",
            ),
            (
                Ok(Some(Held::Expired)),
                "loaded; lease: expired: kube-proxy's rules, not the loaded bridge, serve new connections",
            ),
        ] {
            assert_eq!(BridgeStatus::from(read).in_words(), words);
        }
        let unknown = BridgeStatus::from(Err(gap)).in_words();
        assert!(unknown.starts_with("unknown: ") && unknown.contains("nft needs root"));
    }
}
