//! The result of a command on a node.

use serde::{Deserialize, Serialize};

use crate::journal::Took;
use crate::loss::ObservedLoss;
use crate::migration::{Migration, Strategy};
use crate::preview::Preview;
use kpx_node::backend::Mode;

/// The result of `kpx migrate` on a node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The migration's id, once it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The node, where its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The old mode.
    pub from: Mode,
    /// The new mode.
    pub to: Mode,
    /// The strategy.
    pub strategy: Strategy,
    /// The outcome.
    pub outcome: Outcome,
    /// Why the node does not run in the new mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The command that continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The plan in short, with `--brief`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Preview>,
    /// Notes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The duration of each stage, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub took: Vec<Took>,
    /// The observed loss, once a stage was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_loss: Option<ObservedLoss>,
}

/// The outcome of a migration.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Only planned.
    Planned,
    /// Nothing to do: kube-proxy already runs in the new mode.
    Already,
    /// Migrated to the new mode.
    Migrated,
    /// Rolled back to the old mode, as requested.
    RolledBack,
    /// Rolled back to the old mode because the migration failed.
    Reverted,
    /// Built; the configuration is changed externally.
    Prepared,
    /// Stopped part-way.
    Stopped,
}

impl NodeReport {
    /// Returns the report of `migration` with this outcome.
    pub fn new(migration: &Migration, outcome: Outcome) -> Self {
        Self {
            id: Some(migration.id.clone()),
            node: migration.node.clone(),
            from: migration.from,
            to: migration.to(),
            strategy: migration.strategy,
            outcome,
            why: None,
            next: None,
            preview: None,
            notes: Vec::new(),
            took: Vec::new(),
            observed_loss: None,
        }
    }

    /// Returns the report that kube-proxy already runs in mode `to`.
    pub const fn already(to: Mode) -> Self {
        Self {
            id: None,
            node: None,
            from: to,
            to,
            strategy: Strategy::InPlace,
            outcome: Outcome::Already,
            why: None,
            next: None,
            preview: None,
            notes: Vec::new(),
            took: Vec::new(),
            observed_loss: None,
        }
    }
}
