//! What there is to do, in order.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::state::{Fleet, Leg};

/// A part of the move of a cluster.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "task", content = "node")]
pub enum Task {
    /// Makes a second ConfigMap and a second DaemonSet, for the nodes that are moved.
    Copy,
    /// Has the node built for the new mode.
    Prepare(String),
    /// Changes the configuration of all nodes.
    Configure,
    /// Has the node's kube-proxy start anew, with the new configuration.
    Move(String),
    /// Looks at what the node's new kube-proxy says.
    Check(String),
    /// Has the node verified, and rid of the old mode.
    Finish(String),
    /// Watches the node for a while.
    Soak(String),
    /// Gives the node back to the first DaemonSet.
    Return(String),
    /// Sets the first DaemonSet back, and deletes the copies.
    Merge,
    /// Sets the configuration of all nodes back.
    Unconfigure,
    /// Takes the node back to the old mode.
    Revert(String),
}

impl Task {
    /// Returns the node that it is about.
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
            Self::Copy => {
                "make copies of kube-proxy's ConfigMap and DaemonSet for the nodes that are moved"
            }
            Self::Prepare(_) => "build the new mode beside the one that serves",
            Self::Configure => "change the configuration of all nodes",
            Self::Move(_) => "start kube-proxy with the new configuration",
            Self::Check(_) => "look at what kube-proxy says",
            Self::Finish(_) => "wait until it serves in the new mode, and remove the old one",
            Self::Soak(_) => "watch it for a while",
            Self::Return(_) => "give the node back to the first DaemonSet",
            Self::Merge => "set the first DaemonSet back and delete the copies",
            Self::Unconfigure => "set the configuration of all nodes back",
            Self::Revert(_) => "go back to the old mode",
        })
    }
}

impl Fleet {
    /// Returns all tasks of the way it goes.
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
            // As late as can be: from then on every restart of any kube-proxy leads to the new mode.
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

    /// The configuration first, or any restart would lead to the new mode again; then the nodes, the last one first.
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
