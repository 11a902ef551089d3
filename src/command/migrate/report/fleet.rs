//! The plan and the result of a fleet's migration.

use std::collections::BTreeMap;

use serde::Serialize;

use super::FoundProvider;
use super::guard::GuardStatus;
use crate::render::{Page, Report, Tone};
use crate::report::plan::block;
use crate::report::{CLEAN, FAILED, FOUND, UNKNOWN};
use kpx_judge::plan::Step;
use kpx_migrate::fleet::engine::Event;
use kpx_migrate::fleet::state::{Fleet, NodeState, Part};
use kpx_migrate::fleet::task::Task;
use kpx_migrate::loss::ObservedLoss;
use kpx_migrate::migration::Leg;
use kpx_migrate::preview::{NodePreview, PreviewResult};
use kpx_migrate::wire::Outcome;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::words::{number_of, span};

/// The result of `kpx migrate` for a cluster's nodes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct FleetReport {
    /// The migration's id, once it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The old mode.
    pub from: Mode,
    /// The new mode.
    pub to: Mode,
    /// The outcome.
    pub outcome: Outcome,
    /// The nodes, in order.
    pub nodes: Vec<NodeRow>,
    /// The plan, before anything is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlannedFleet>,
    /// A warning, while nodes that have not migrated yet change to the new mode when their kube-proxy restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub armed: Option<String>,
    /// Why the nodes do not run in the new mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The duration of this run, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// The holder of the Lease, in `kpx migrate status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
    /// The guards of the nodes' bridges, as they are now, of an unfinished migration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardStatus>,
    /// Other objects that an unfinished migration has left in the cluster, and their effect. The command that continues uses or
    /// deletes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// The command that continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Notes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The holder of the cluster's Lease.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LeaseStatus {
    /// No one: no kpx is running the migration.
    Free,
    /// A kpx that runs, or was killed a short time ago.
    Held {
        /// Its identity: host name, process id and start time.
        holder: String,
        /// When it renewed the Lease last.
        renewed: String,
    },
    /// The Lease cannot be read, and why.
    Unknown(String),
}

/// A node and its state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    /// Name of the Node.
    pub name: String,
    /// Its state; `None` if no task has ended there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeState>,
    /// How long the tasks on it took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// The same, part by part.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub took: BTreeMap<Part, u64>,
    /// The loss that kpx observed there, if it ran in a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_loss: Option<ObservedLoss>,
}

/// The plan of a fleet's migration.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlannedFleet {
    /// The place of kube-proxy's configuration.
    pub store: String,
    /// The change of the configuration.
    pub diff: String,
    /// The provider of the cluster.
    pub provider: FoundProvider,
    /// The steps that change it.
    pub steps: Vec<Step>,
    /// Whether nodes move to a second DaemonSet, by a label.
    pub staged: bool,
    /// All tasks, in order.
    pub tasks: Vec<Task>,
    /// The commands on each node, in a pod or by an operator.
    pub commands: Vec<String>,
    /// The preview of each node; empty without an image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub previews: Vec<NodePreview>,
    /// Whether established connections may break.
    #[serde(skip)]
    pub accepts_loss: bool,
    /// How to find out the expected loss, without previews.
    pub loss: String,
}

impl FleetReport {
    /// Returns the report of `fleet` with this outcome.
    pub(crate) fn new(fleet: &Fleet, outcome: Outcome) -> Self {
        let states: &BTreeMap<_, _> = &fleet.nodes;
        let nodes = fleet.plan.nodes.iter().map(|name| {
            let took = fleet.took.get(name);
            NodeRow {
                name: name.clone(),
                state: states.get(name).copied(),
                seconds: took.map(|parts| parts.values().sum()),
                took: took.cloned().unwrap_or_default(),
                observed_loss: fleet.observed.get(name).copied(),
            }
        });
        Self {
            id: Some(fleet.plan.id.clone()),
            from: fleet.plan.from,
            to: fleet.plan.there.mode,
            outcome,
            nodes: nodes.collect(),
            plan: None,
            armed: fleet.is_armed().then(|| {
                format!(
                    "the configuration has mode {}: a node that has not migrated yet changes to it if its kube-proxy \
                     restarts",
                    fleet.plan.there.mode
                )
            }),
            why: fleet.why.clone(),
            seconds: None,
            lease: None,
            guards: Vec::new(),
            left: Vec::new(),
            next: None,
            notes: Vec::new(),
        }
    }

    /// Returns a node with its state, and the time that its tasks took.
    fn row(&self, node: &NodeRow) -> String {
        let ended = self.seconds.is_some();
        let done = match node.state {
            None if ended => "  not migrated".to_owned(),
            None => String::new(),
            Some(NodeState::Prepared) => format!("  prepared for mode {}", self.to),
            Some(NodeState::Already) => format!("  already in mode {}", self.to),
            Some(NodeState::Migrated) => format!("  migrated to mode {}", self.to),
            Some(NodeState::RolledBack) => format!("  rolled back to mode {}", self.from),
        };
        let seconds = node.seconds.filter(|_| node.state.is_some());
        let took = seconds.map_or(String::new(), took);
        let parts = node.took.iter().filter(|(_, seconds)| **seconds > 0);
        let parts = parts.map(|(part, seconds)| format!("{} {seconds} s", part.name()));
        let parts: Vec<String> = parts.collect();
        let parts = match parts.as_slice() {
            [_, _, ..] if !took.is_empty() => format!(" ({})", parts.join(", ")),
            _ => String::new(),
        };
        format!("{}{done}{took}{parts}", node.name)
    }

    /// Returns the loss that kpx observed on all nodes; `None` if it ran on none.
    fn observed_loss(&self) -> Option<ObservedLoss> {
        let known = self.nodes.iter().filter_map(|node| node.observed_loss);
        known.reduce(ObservedLoss::plus)
    }

    fn head(&self) -> (Tone, String) {
        let (from, to, count) = (self.from, self.to, self.nodes.len());
        let nodes = number_of(count, "node");
        let there = [Some(NodeState::Migrated), Some(NodeState::Already)];
        let moved = self.nodes.iter().filter(|node| there.contains(&node.state));
        let moved = moved.count();
        let took = self.seconds.map_or(String::new(), took);
        match self.outcome {
            Outcome::Planned | Outcome::Prepared => (
                Tone::Strong,
                format!("migrate {nodes} from mode {from} to mode {to}"),
            ),
            Outcome::Already => (
                Tone::Good,
                format!("kube-proxy is already configured for mode {to}"),
            ),
            Outcome::Migrated => (
                Tone::Good,
                format!("migrated {nodes} from mode {from} to mode {to}{took}"),
            ),
            Outcome::RolledBack => (
                Tone::Good,
                format!("rolled back {nodes} to mode {from}{took}"),
            ),
            Outcome::Reverted => (
                Tone::Bad,
                format!(
                    "rolled back {nodes} to mode {from}{took}: the migration of the first node failed"
                ),
            ),
            Outcome::Stopped => (
                Tone::Bad,
                format!("stopped{took}: {moved} of {nodes} in mode {to}"),
            ),
        }
    }
}

impl Report for FleetReport {
    const KIND: &'static str = "FleetReport";

    fn page(&self, page: &mut Page) {
        let (tone, head) = self.head();
        let head = page.paint(tone, &head);
        if self.outcome == Outcome::Planned {
            page.line(&head);
        }
        for (number, node) in (1..).zip(&self.nodes) {
            page.line(&format!("{number:>4}. {}", self.row(node)));
        }
        if let Some(plan) = &self.plan {
            plan.page(page);
        }
        if let Some(armed) = &self.armed {
            page.para("warning: ", armed);
        }
        for note in &self.notes {
            page.para("note: ", note);
        }
        if let Some(why) = &self.why {
            page.para("reason: ", why);
        }
        if let Some(loss) = self.observed_loss() {
            page.line(&format!("observed loss: {}", loss.in_words()));
        }
        if self.outcome != Outcome::Planned {
            page.line(&head);
        }
        if let Some(lease) = &self.lease {
            page.para("lease: ", &lease.in_words());
        }
        for guard in &self.guards {
            page.para("bridge: ", &guard.in_words());
        }
        for left in &self.left {
            page.para("left: ", left);
        }
        if let Some(next) = &self.next {
            page.next(next);
        }
    }

    fn exit(&self) -> u8 {
        match self.outcome {
            Outcome::Planned => self.plan.as_ref().map_or(CLEAN, PlannedFleet::exit),
            Outcome::Already | Outcome::Migrated | Outcome::RolledBack | Outcome::Prepared => CLEAN,
            Outcome::Reverted | Outcome::Stopped => FAILED,
        }
    }
}

impl LeaseStatus {
    fn in_words(&self) -> String {
        match self {
            Self::Free => "free: no kpx is running this migration".to_owned(),
            Self::Held { holder, renewed } => format!("held by {holder}, renewed at {renewed}"),
            Self::Unknown(why) => format!("unknown: {why}"),
        }
    }
}

/// The plan of a fleet's migration in short, for `--yes`: its size, and the expected loss on each node.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct FleetSummary<'r>(pub &'r FleetReport);

impl Report for FleetSummary<'_> {
    const KIND: &'static str = FleetReport::KIND;

    fn page(&self, page: &mut Page) {
        let report = self.0;
        let (tone, head) = report.head();
        let head = page.paint(tone, &head);
        page.line(&head);
        let previews = report.plan.iter().flat_map(|plan| &plan.previews);
        let previews: Vec<_> = previews.collect();
        for (number, node) in (1..).zip(&report.nodes) {
            let preview = previews.iter().find(|preview| preview.node == node.name);
            let words = preview.map_or(String::new(), |preview| {
                format!(": expected loss: {}", preview.in_words())
            });
            page.para(&format!("{number:>4}. "), &format!("{}{words}", node.name));
        }
        for note in &report.notes {
            page.para("note: ", note);
        }
        let tasks = report.plan.as_ref().map_or(0, |plan| plan.tasks.len());
        page.line(&format!(
            "{}: --dry-run or -v shows them",
            number_of(tasks, "step")
        ));
    }

    fn exit(&self) -> u8 {
        self.0.exit()
    }
}

/// Returns the duration `seconds` as the end of a sentence: ` in 40 s`.
fn took(seconds: u64) -> String {
    format!(" in {}", span(seconds))
}

impl PlannedFleet {
    /// Returns whether at least one preview succeeded, or there were none to run.
    pub(crate) fn is_previewed(&self) -> bool {
        let failed = |preview: &NodePreview| matches!(preview.result, PreviewResult::Failed(_));
        self.previews.is_empty() || !self.previews.iter().all(failed)
    }

    /// Returns the exit status of a dry run: 1 if a node is blocked, 3 if data is missing.
    fn exit(&self) -> u8 {
        let previews = &self.previews;
        let blocks = |node: &NodePreview| match &node.result {
            PreviewResult::Known(preview) => {
                !preview.blockers.is_empty() || preview.breaks > 0 && !self.accepts_loss
            }
            PreviewResult::Already | PreviewResult::Failed(_) => false,
        };
        let known = |node: &NodePreview| match &node.result {
            PreviewResult::Known(preview) => preview.unknown.is_empty(),
            PreviewResult::Already => true,
            PreviewResult::Failed(_) => false,
        };
        if previews.iter().any(blocks) {
            FOUND
        } else if previews.is_empty() || !previews.iter().all(known) {
            UNKNOWN
        } else {
            CLEAN
        }
    }

    fn page(&self, page: &mut Page) {
        page.line("");
        page.line(&format!("configuration: {}", self.store));
        block(page, "     ", "", self.diff.trim_end());
        for step in &self.steps {
            page.line(&format!("     - {}", step.title));
            block(page, "       ", "", &step.action.to_string());
            block(page, "       ", "undo: ", &step.undo.to_string());
        }
        self.provider.page(page);
        page.line("");
        page.line("on each node:");
        for command in &self.commands {
            page.line(&format!("     {command}"));
        }
        page.line("");
        for (number, task) in (1..).zip(&self.tasks) {
            let node = task
                .node()
                .map_or(String::new(), |node| format!("{node}: "));
            page.line(&format!("{number:>4}. {node}{task}"));
        }
        page.line("");
        if self.previews.is_empty() {
            page.para("expected loss: ", &self.loss);
            return;
        }
        page.line("expected loss:");
        for preview in &self.previews {
            page.para(&format!("     {}: ", preview.node), &preview.in_words());
        }
    }
}

/// An event of a fleet's migration, with its time.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FleetEventLine<'e> {
    /// When it happened.
    pub(crate) time: Time,
    /// The event.
    #[serde(flatten)]
    pub(crate) event: FleetEvent<'e>,
}

impl FleetEventLine<'_> {
    /// The `kind` in the JSON envelope.
    pub(crate) const KIND: &'static str = "FleetEvent";
}

/// An event of a fleet's migration: a line of JSON each.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "event")]
pub(crate) enum FleetEvent<'e> {
    /// A task begins.
    Begins {
        /// The direction.
        leg: Leg,
        /// The task.
        #[serde(flatten)]
        task: &'e Task,
    },
    /// A node reports what it does.
    Reports {
        /// The node.
        node: &'e str,
        /// Its effect.
        text: &'e str,
    },
    /// A node reports what it waits for, or its progress.
    Waits {
        /// The node.
        node: &'e str,
        /// The event that it waits for.
        text: &'e str,
    },
    /// A task is done.
    Done {
        /// The direction.
        leg: Leg,
        /// The task.
        #[serde(flatten)]
        task: &'e Task,
    },
    /// The migration turns to its rollback.
    RollsBack {
        /// The reason.
        why: &'e str,
    },
}

impl<'e> From<Event<'e>> for FleetEvent<'e> {
    fn from(event: Event<'e>) -> Self {
        match event {
            Event::Begins(leg, task) => Self::Begins { leg, task },
            Event::Reports(node, text) => Self::Reports { node, text },
            Event::Waits(node, text) => Self::Waits { node, text },
            Event::Done(leg, task) => Self::Done { leg, task },
            Event::RollsBack(why) => Self::RollsBack { why },
        }
    }
}
