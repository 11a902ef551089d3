//! The tasks of a fleet's migration, in order.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::state::Fleet;
use crate::migration::Leg;

/// A task of a fleet's migration.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "task", content = "node")]
pub enum Task {
    /// Copies ConfigMap and DaemonSet for the nodes that migrate.
    Copy,
    /// Builds the new mode on the node.
    Prepare(String),
    /// Changes the configuration of all nodes.
    Configure,
    /// Restarts the node's kube-proxy with the new configuration.
    Move(String),
    /// Checks the log of the node's new kube-proxy.
    Check(String),
    /// Verifies the new mode on the node and removes the old one.
    Finish(String),
    /// Watches the node for the soak time.
    Soak(String),
    /// Returns the node to the first DaemonSet.
    Return(String),
    /// Restores the first DaemonSet and deletes the copies.
    Merge,
    /// Restores the configuration of all nodes.
    Unconfigure,
    /// Rolls the node back to the old mode.
    Revert(String),
}

impl Task {
    /// Returns the node of the task; `None` for a task on the cluster.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Copy | Self::Configure | Self::Merge | Self::Unconfigure => None,
            Self::Prepare(node)
            | Self::Move(node)
            | Self::Check(node)
            | Self::Finish(node)
            | Self::Soak(node)
            | Self::Return(node)
            | Self::Revert(node) => Some(node),
        }
    }
}

impl Display for Task {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy => "copy kube-proxy's ConfigMap and DaemonSet for the nodes that migrate",
            Self::Prepare(_) => "build the new mode beside the old one",
            Self::Configure => "change the configuration of all nodes",
            Self::Move(_) => "restart kube-proxy with the new configuration",
            Self::Check(_) => "check the log of kube-proxy",
            Self::Finish(_) => "verify the new mode and remove the old one",
            Self::Soak(_) => "watch the node",
            Self::Return(_) => "return the node to the first DaemonSet",
            Self::Merge => "restore the first DaemonSet and delete the copies",
            Self::Unconfigure => "restore the configuration of all nodes",
            Self::Revert(_) => "roll back to the old mode",
        })
    }
}

impl Fleet {
    /// Returns all tasks of its direction.
    pub fn tasks(&self) -> Vec<Task> {
        match self.leg {
            Leg::There => self.there(),
            Leg::Back => self.back(),
        }
    }

    pub(super) fn there(&self) -> Vec<Task> {
        let mut tasks = Vec::new();
        tasks.extend(self.plan.staged.then_some(Task::Copy));
        for (number, node) in self.plan.nodes.iter().enumerate() {
            tasks.push(Task::Prepare(node.clone()));
            // As late as possible: from then on, any kube-proxy that restarts changes to the new mode.
            tasks.extend((number == 0 && !self.plan.staged).then_some(Task::Configure));
            tasks.push(Task::Move(node.clone()));
            tasks.push(Task::Check(node.clone()));
            tasks.push(Task::Finish(node.clone()));
            tasks.push(Task::Soak(node.clone()));
        }
        if self.plan.staged && self.plan.whole {
            tasks.push(Task::Configure);
            for node in &self.plan.nodes {
                tasks.push(Task::Return(node.clone()));
                tasks.push(Task::Check(node.clone()));
            }
            tasks.push(Task::Merge);
        }
        tasks
    }

    /// The configuration first, or a restart would change to the new mode again; then the nodes, the last one first.
    fn back(&self) -> Vec<Task> {
        let mut tasks = Vec::new();
        tasks.extend(self.began(&Task::Configure).then_some(Task::Unconfigure));
        for node in self.plan.nodes.iter().rev() {
            if self.began(&Task::Prepare(node.clone())) {
                tasks.push(Task::Revert(node.clone()));
            }
        }
        tasks.extend(self.began(&Task::Copy).then_some(Task::Merge));
        tasks
    }
}
