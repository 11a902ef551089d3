//! The state of a fleet's migration, which the cluster itself keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::task::Task;
use crate::loss::ObservedLoss;
use crate::migration::{Leg, Strategy};
use crate::wire::Timeouts;
use kpx_judge::plan::Consent;
use kpx_judge::verdict::LossClass;
use kpx_node::action::{Field, KubeCommand, OURS, Object, Resource};
use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::Time;

/// The name of the ConfigMap that keeps the state, and of the Lease that is held during a run.
pub const NAME: &str = "kpx-migrate";

/// The key in the ConfigMap.
pub const KEY: &str = "state";

/// The migration of a cluster's nodes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// The plan that was confirmed.
    pub plan: FleetPlan,
    /// The direction.
    pub leg: Leg,
    /// The number of tasks of that direction that are done.
    pub done: usize,
    /// The number of tasks towards the new mode that began.
    pub reached: usize,
    /// The change of the configuration, with its undo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<Configured>,
    /// The name of the copies of ConfigMap and DaemonSet, with `--staged`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<String>,
    /// The unique ids of kube-proxy's pods before the current task, on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Vec<String>>,
    /// The unique ids of the pods that the last restart replaced: they may still be terminating.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub old: Vec<String>,
    /// Whether another program set the configuration back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub set_back: bool,
    /// The node that is to be prepared, until kpx starts there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untouched: Option<String>,
    /// Whether an operator requested the rollback.
    #[serde(default)]
    pub requested: bool,
    /// The node that is rolled back alone, while the others stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returning: Option<String>,
    /// The state of each node on which a task has ended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NodeState>,
    /// How long the tasks on each node took, in this direction, in seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub took: BTreeMap<String, BTreeMap<Part, u64>>,
    /// The loss that kpx observed on each node on which it ran.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observed: BTreeMap<String, ObservedLoss>,
    /// Why it was rolled back, or stopped last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whether it has ended.
    pub ended: bool,
}

/// The plan of a fleet's migration, as confirmed.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetPlan {
    /// Its id.
    pub id: String,
    /// When it began.
    pub began: Time,
    /// The old mode, by the configuration.
    pub from: Mode,
    /// The fields that are set in the configuration.
    pub there: Fields,
    /// The fields that a rollback sets if the old text cannot be restored.
    pub back: Fields,
    /// The nodes, in order.
    pub nodes: Vec<String>,
    /// Whether these are all nodes of the cluster.
    pub whole: bool,
    /// The strategy on each node; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The pods that may be evicted although data is lost.
    #[serde(default, skip_serializing_if = "Consent::is_none")]
    pub evict: Consent,
    /// Whether nodes move to a second DaemonSet, by a label.
    pub staged: bool,
    /// The image of the pods on nodes; without one, operators run the commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whether the image is kube-proxy's, into whose container kpx copies itself.
    #[serde(default)]
    pub copies: bool,
    /// The service account of those pods.
    pub service_account: String,
    /// How long each node is watched after its migration, in seconds.
    pub soak: u64,
    /// How long a new pod may take to become ready, in seconds.
    pub ready: u64,
    /// Ids of checks that do not block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
    /// The classes of packets that the new mode may lose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepts: Vec<LossClass>,
    /// How long a command on a node waits.
    pub timeouts: Timeouts,
    /// How long a command on a node may take altogether, in seconds.
    pub limit: u64,
}

/// The change of the configuration.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Configured {
    /// The change.
    pub set: KubeCommand,
    /// Its undo.
    pub back: KubeCommand,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// The new mode is built.
    Prepared,
    /// It ran in the new mode before the migration.
    Already,
    /// It runs in the new mode.
    Migrated,
    /// It runs in the old mode again.
    RolledBack,
}

/// A part of a node's migration.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The new mode is built.
    Prepare,
    /// kube-proxy is restarted.
    Restart,
    /// The new mode is verified, and the old one removed.
    Verify,
    /// The node is watched for the soak time.
    Watch,
    /// The node is rolled back.
    Rollback,
}

impl Part {
    /// Returns the part that `task` belongs to; `None` for a task on the cluster.
    pub const fn of(task: &Task) -> Option<Self> {
        match task {
            Task::Prepare(_) => Some(Self::Prepare),
            Task::Move(_) | Task::Return(_) => Some(Self::Restart),
            Task::Check(_) | Task::Finish(_) => Some(Self::Verify),
            Task::Soak(_) => Some(Self::Watch),
            Task::Revert(_) => Some(Self::Rollback),
            Task::Copy | Task::Configure | Task::Merge | Task::Unconfigure => None,
        }
    }

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Restart => "restart",
            Self::Verify => "verify",
            Self::Watch => "watch",
            Self::Rollback => "rollback",
        }
    }
}

impl FleetPlan {
    /// Returns whether a bridge serves each node while its kube-proxy is restarted.
    pub fn bridges(&self) -> bool {
        let usual = Strategy::usual(self.from, self.there.mode);
        self.strategy.unwrap_or(usual) == Strategy::Bridge
    }
}

impl Fleet {
    /// Returns the state in which `plan` begins.
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
            set_back: false,
            untouched: None,
            requested: false,
            returning: None,
            nodes: BTreeMap::new(),
            took: BTreeMap::new(),
            observed: BTreeMap::new(),
            why: None,
            ended: false,
        }
    }

    /// Returns the next task; `None` at the end.
    pub fn next(&self) -> Option<Task> {
        self.tasks().get(self.done).cloned()
    }

    /// Returns whether `task` began on the way to the new mode.
    pub fn began(&self, task: &Task) -> bool {
        self.there()[..self.reached].contains(task)
    }

    /// Returns whether kpx may have changed `node`, or the coordinator its kube-proxy.
    pub fn has_touched(&self, node: &str) -> bool {
        self.began(&Task::Prepare(node.to_owned())) && self.untouched.as_deref() != Some(node)
    }

    /// Returns whether kube-proxy on any node may have been restarted with another configuration.
    pub fn has_moved(&self) -> bool {
        let mut nodes = self.plan.nodes.iter();
        nodes.any(|node| self.began(&Task::Move(node.clone())))
    }

    /// Records that the next task begins.
    pub fn begin(&mut self) {
        if self.leg == Leg::There && self.reached < self.done + 1 {
            self.reached = self.done + 1;
            if let Some(Task::Prepare(node)) = self.next() {
                self.untouched = Some(node);
            }
        }
    }

    /// Records that the current task is done.
    pub fn finish(&mut self) {
        self.done += 1;
        self.before = None;
    }

    /// Records that `task` took `seconds`.
    pub fn spend(&mut self, task: &Task, seconds: u64) {
        if let (Some(node), Some(part)) = (task.node(), Part::of(task)) {
            let took = self.took.entry(node.to_owned()).or_default();
            *took.entry(part).or_default() += seconds;
        }
    }

    /// Turns to the rollback.
    pub fn turn(&mut self, why: impl Into<String>) {
        self.leg = Leg::Back;
        self.done = 0;
        self.before = None;
        self.returning = None;
        self.took.clear();
        self.ended = false;
        self.why = Some(why.into());
    }

    /// Returns whether a node whose migration fails can be rolled back alone: only its label selects the new mode.
    pub fn returns_alone(&self) -> bool {
        self.leg == Leg::There && self.plan.staged && !self.began(&Task::Configure)
    }

    /// Records that `node` is about to be rolled back alone.
    pub fn give_back(&mut self, node: &str) {
        self.before = None;
        self.returning = Some(node.to_owned());
    }

    /// Records that `node` is rolled back: it is the next one to migrate.
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

    /// Returns the number of nodes in the new mode.
    pub fn migrated(&self) -> usize {
        let there = [NodeState::Migrated, NodeState::Already];
        let states = self.nodes.values();
        states.filter(|state| there.contains(state)).count()
    }

    /// Returns whether nodes that have not migrated yet change to the new mode when their kube-proxy restarts.
    pub fn is_armed(&self) -> bool {
        self.leg == Leg::There
            && self.began(&Task::Configure)
            && self.migrated() < self.plan.nodes.len()
    }

    /// Returns the state as text for the ConfigMap.
    pub fn to_text(&self) -> String {
        // Every field can be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a state that the cluster kept.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

/// Returns the ConfigMap that keeps the state.
pub fn object() -> Object {
    Object::of_system(Resource::ConfigMap, NAME)
}

/// Returns the command that creates the ConfigMap with `text`.
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

/// Returns the command that writes `text`; it fails if the ConfigMap no longer holds `before`.
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

/// Returns the text in the ConfigMap `map`.
pub fn kept(map: &Value) -> Option<&str> {
    map["data"][KEY].as_str()
}
