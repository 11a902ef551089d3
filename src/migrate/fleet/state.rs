//! Where the move of a cluster stands: what is kept in the cluster itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::task::Task;
use crate::action::{Field, KubeCommand, OURS, Object, Resource};
use crate::backend::Mode;
use crate::cluster::edit::Fields;
use crate::evidence::Time;
use crate::migrate::journey::Strategy;
use crate::plan::Consent;

/// The name of the ConfigMap that keeps it, and of the Lease that is held meanwhile.
pub const NAME: &str = "kpx-migrate";

/// The key of the ConfigMap.
pub const KEY: &str = "state";

/// The move of a cluster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// What was agreed to.
    pub plan: FleetPlan,
    /// Which way it goes.
    pub leg: Leg,
    /// How many tasks of that way are done.
    pub done: usize,
    /// How many tasks of the way there were begun.
    pub reached: usize,
    /// How the configuration was changed, and what takes that back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// The name of the copies, where nodes are moved by a label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<String>,
    /// The pods of kube-proxy that the node of the present task had before it, by their unique ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<String>>,
    /// The pods that the last restart replaced, by their unique ids: they may take their time to end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old: Vec<String>,
    /// Whether the way back was asked for.
    #[serde(default)]
    pub asked: bool,
    /// The node that is moved back alone, while the others stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returning: Option<String>,
    /// What became of each node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NodeState>,
    /// Why it turned back, or stopped last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it is over.
    pub ended: bool,
}

/// What was agreed to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetPlan {
    /// Its name.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The mode in the configuration before.
    pub from: Mode,
    /// What is set in the configuration.
    pub there: Fields,
    /// What is set in it on the way back, where the old text cannot be put back.
    pub back: Fields,
    /// The nodes, in order.
    pub nodes: Vec<String>,
    /// Whether these are all that there are.
    pub whole: bool,
    /// What becomes of connections on each node, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// What may be evicted although something is lost with it, where pods are.
    #[serde(default, skip_serializing_if = "Consent::is_none")]
    pub evict: Consent,
    /// Whether nodes are moved by a label, to a DaemonSet of their own.
    pub staged: bool,
    /// The image of kpx, for what is done on the nodes; without one, people do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The service account of those pods.
    pub service_account: String,
    /// How long each node is watched, in seconds.
    pub soak: u64,
    /// How long a new kube-proxy may take to be ready, in seconds.
    pub ready: u64,
    /// Checks that may find something in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
    /// Arguments for what is done on the nodes.
    pub arguments: Vec<String>,
    /// How long what is done on a node may take, in seconds.
    pub limit: u64,
}

/// The way there, or back.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// To the new mode.
    There,
    /// To the old mode.
    Back,
}

/// How the configuration was changed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Configured {
    /// What changes it.
    pub set: KubeCommand,
    /// What takes that back.
    pub back: KubeCommand,
}

/// Where a node stands.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Its new mode is built.
    Prepared,
    /// It ran in the new mode before.
    Already,
    /// It runs in the new mode.
    Migrated,
    /// It is back in the old mode.
    RolledBack,
}

impl FleetPlan {
    /// Returns whether a bridge serves each node while its kube-proxy is restarted.
    pub fn bridges(&self) -> bool {
        let usual = Strategy::usual(self.from, self.there.mode);
        self.strategy.unwrap_or(usual) == Strategy::Bridge
    }
}

impl Fleet {
    /// Returns where `plan` stands when it begins.
    pub fn new(plan: FleetPlan) -> Self {
        Self {
            plan,
            leg: Leg::There,
            done: 0,
            reached: 0,
            configured: None,
            copies: None,
            before: None,
            old: Vec::new(),
            asked: false,
            returning: None,
            nodes: BTreeMap::new(),
            why: None,
            ended: false,
        }
    }

    /// Returns the task to do next; `None` at the end of the way.
    pub fn next(&self) -> Option<Task> {
        self.tasks().get(self.done).cloned()
    }

    /// Returns whether `task` was begun on the way there.
    pub fn began(&self, task: &Task) -> bool {
        self.there()[..self.reached].contains(task)
    }

    /// Notes that the next task is about to be done.
    pub fn begin(&mut self) {
        if self.leg == Leg::There {
            self.reached = self.reached.max(self.done + 1);
        }
    }

    /// Notes that it is done.
    pub fn finish(&mut self) {
        self.done += 1;
        self.before = None;
    }

    /// Turns back.
    pub fn turn(&mut self, why: impl Into<String>) {
        self.leg = Leg::Back;
        self.done = 0;
        self.before = None;
        self.returning = None;
        self.ended = false;
        self.why = Some(why.into());
    }

    /// Returns whether a node that does not get to the new mode can be moved back alone: as long as nothing but its label
    /// leads there.
    pub fn returns_alone(&self) -> bool {
        self.leg == Leg::There && self.plan.staged && !self.began(&Task::Configure)
    }

    /// Notes that `node` is about to be moved back alone.
    pub fn give_back(&mut self, node: &str) {
        self.before = None;
        self.returning = Some(node.to_owned());
    }

    /// Notes that `node` is as it was: it is the next one to be moved.
    pub fn given_back(&mut self, node: &str) {
        let first = Task::Prepare(node.to_owned());
        self.done = self
            .there()
            .iter()
            .position(|task| *task == first)
            .unwrap_or(self.done);
        self.reached = self.done;
        self.before = None;
        self.returning = None;
    }

    /// Returns how many nodes are in the new mode.
    pub fn migrated(&self) -> usize {
        let there = [NodeState::Migrated, NodeState::Already];
        let states = self.nodes.values();
        states.filter(|state| there.contains(state)).count()
    }

    /// Returns whether nodes that are not moved yet go to the new mode when their kube-proxy restarts.
    pub fn is_armed(&self) -> bool {
        self.leg == Leg::There
            && self.began(&Task::Configure)
            && self.migrated() < self.plan.nodes.len()
    }

    /// Returns the state as it is kept.
    pub fn to_text(&self) -> String {
        // A state has nothing that JSON cannot say.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a state that was kept.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }
}

/// Returns the ConfigMap that keeps the state.
pub fn object() -> Object {
    Object::of_system(Resource::ConfigMap, NAME)
}

/// Returns the command that makes the ConfigMap with `text`.
pub fn create(text: &str) -> KubeCommand {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": "kube-system", "labels": {(OURS.0): OURS.1}},
        "data": {(KEY): text},
    });
    KubeCommand::Create {
        object: object(),
        body,
    }
}

/// Returns the command that writes `text`, as long as the ConfigMap has `before`.
pub fn write(before: &str, text: &str) -> KubeCommand {
    KubeCommand::Set {
        object: object(),
        fields: vec![Field::new(
            &["data", KEY],
            Some(Value::from(before)),
            Some(Value::from(text)),
        )],
    }
}

/// Returns the text that the ConfigMap `map` keeps.
pub fn kept(map: &Value) -> Option<&str> {
    map["data"][KEY].as_str()
}
