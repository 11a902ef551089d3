//! The move of a cluster's nodes: what is planned, and what became of it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Outcome;
use crate::backend::Mode;
use crate::migrate::fleet::engine::Event;
use crate::migrate::fleet::state::{Fleet, Leg, NodeState};
use crate::migrate::fleet::task::Task;
use crate::migrate::outlook::{Looked, Sight};
use crate::plan::Step;
use crate::render::{Page, Report, Tone};
use crate::report::plan::block;
use crate::report::{CLEAN, FAILED, FOUND, UNKNOWN};

/// The outcome of `kpx migrate` for more than one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetReport {
    /// Its name, once it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The mode that the nodes leave.
    pub from: Mode,
    /// The mode that they go to.
    pub to: Mode,
    /// What came of it.
    pub outcome: Outcome,
    /// The nodes, in order.
    pub nodes: Vec<NodeRow>,
    /// What is planned, before anything is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<FleetProspect>,
    /// What nodes that are not moved yet do when their kube-proxy restarts, where that is more than to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub armed: Option<String>,
    /// Why it is not the new mode that came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How long it took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// The command to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Where it stands, once something was done there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeState>,
}

/// What is planned.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetProspect {
    /// Where the configuration is kept.
    pub store: String,
    /// What changes in it.
    pub diff: String,
    /// The steps that change it.
    pub steps: Vec<Step>,
    /// Whether nodes are moved by a label.
    pub staged: bool,
    /// All tasks, in order.
    pub tasks: Vec<Task>,
    /// What is done on each node: by kpx in a pod, or by hand.
    pub commands: Vec<String>,
    /// What each node says of it; nothing where nobody looked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub looks: Vec<Looked>,
    /// Whether established connections may break.
    #[serde(skip)]
    pub accepts_loss: bool,
    /// How what is expected to be lost can be known, where nobody looked.
    pub loss: String,
}

impl FleetReport {
    /// Reports where `fleet` stands.
    pub fn new(fleet: &Fleet, outcome: Outcome) -> Self {
        let states: &BTreeMap<_, _> = &fleet.nodes;
        let nodes = fleet.plan.nodes.iter().map(|name| NodeRow {
            name: name.clone(),
            state: states.get(name).copied(),
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
                    "the configuration says mode {}: a node that is not moved yet goes there whenever its kube-proxy \
                     happens to restart",
                    fleet.plan.there.mode
                )
            }),
            why: fleet.why.clone(),
            seconds: None,
            next: None,
            notes: Vec::new(),
        }
    }

    fn head(&self) -> (Tone, String) {
        let (from, to, count) = (self.from, self.to, self.nodes.len());
        let s = if count == 1 { "" } else { "s" };
        let nodes = format!("{count} node{s}");
        let there = [Some(NodeState::Migrated), Some(NodeState::Already)];
        let moved = self.nodes.iter().filter(|node| there.contains(&node.state));
        let moved = moved.count();
        let took = self.seconds.map_or(String::new(), took);
        match self.outcome {
            Outcome::Planned | Outcome::Prepared => (
                Tone::Strong,
                format!("{nodes} from mode {from} to mode {to}"),
            ),
            Outcome::Already => (
                Tone::Good,
                format!("kube-proxy is configured for mode {to} already"),
            ),
            Outcome::Migrated => (
                Tone::Good,
                format!("migrated: {nodes} from mode {from} to mode {to}{took}"),
            ),
            Outcome::RolledBack => (
                Tone::Good,
                format!("rolled back: {nodes} to mode {from}{took}"),
            ),
            Outcome::Reverted => (
                Tone::Bad,
                format!(
                    "rolled back: {nodes} to mode {from}{took}, for the first did not get to mode {to}"
                ),
            ),
            Outcome::Stopped => (
                Tone::Bad,
                format!("stopped{took}: {moved} of {nodes} run in mode {to}"),
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
            let state = node
                .state
                .map_or(String::new(), |state| format!("  {}", words(state)));
            page.line(&format!("{number:>4}. {}{state}", node.name));
        }
        if let Some(plan) = &self.plan {
            plan.page(page);
        }
        if let Some(armed) = &self.armed {
            page.para("armed: ", armed);
        }
        for note in &self.notes {
            page.para("note: ", note);
        }
        if let Some(why) = &self.why {
            page.para("because ", why);
        }
        if self.outcome != Outcome::Planned {
            page.line(&head);
        }
        if let Some(next) = &self.next {
            page.line(&format!("next: {next}"));
        }
    }

    fn exit(&self) -> u8 {
        match self.outcome {
            Outcome::Planned => self.plan.as_ref().map_or(CLEAN, FleetProspect::exit),
            Outcome::Already | Outcome::Migrated | Outcome::RolledBack | Outcome::Prepared => CLEAN,
            Outcome::Reverted | Outcome::Stopped => FAILED,
        }
    }
}

const fn words(state: NodeState) -> &'static str {
    match state {
        NodeState::Prepared => "prepared",
        NodeState::Already => "was in the new mode before",
        NodeState::Migrated => "in the new mode",
        NodeState::RolledBack => "back in the old mode",
    }
}

/// Returns `seconds` as the end of a sentence.
fn took(seconds: u64) -> String {
    match seconds {
        ..=119 => format!(" in {seconds} s"),
        _ => format!(" in {} min {} s", seconds / 60, seconds % 60),
    }
}

impl FleetProspect {
    /// Returns whether a node could be looked at, or none was to be.
    pub fn is_seen(&self) -> bool {
        let failed = |looked: &Looked| matches!(looked.sight, Sight::Failed(_));
        self.looks.is_empty() || !self.looks.iter().all(failed)
    }

    /// Returns the exit status of a dry run: 1 where something blocks a node, 3 where something is not known.
    fn exit(&self) -> u8 {
        let looks = &self.looks;
        let blocks = |looked: &Looked| match &looked.sight {
            Sight::Seen(outlook) => {
                !outlook.blockers.is_empty() || outlook.breaks > 0 && !self.accepts_loss
            }
            Sight::Already | Sight::Failed(_) => false,
        };
        let known = |looked: &Looked| match &looked.sight {
            Sight::Seen(outlook) => outlook.unknown.is_empty(),
            Sight::Already => true,
            Sight::Failed(_) => false,
        };
        if looks.iter().any(blocks) {
            FOUND
        } else if looks.is_empty() || !looks.iter().all(known) {
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
        if self.looks.is_empty() {
            page.para("expected loss: ", &self.loss);
            return;
        }
        page.line("expected loss:");
        for looked in &self.looks {
            page.para(&format!("     {}: ", looked.node), &looked.in_words());
        }
    }
}

/// What happens on the way, for programs a line each.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum FleetEvent<'e> {
    /// A task begins.
    Begins {
        /// On which way.
        leg: Leg,
        /// Which.
        #[serde(flatten)]
        task: &'e Task,
    },
    /// A node tells what it does.
    Says {
        /// Which.
        node: &'e str,
        /// What.
        text: &'e str,
    },
    /// A node tells what it waits for, or how far it is.
    Waits {
        /// Which.
        node: &'e str,
        /// What for.
        text: &'e str,
    },
    /// A task is done.
    Done {
        /// On which way.
        leg: Leg,
        /// Which.
        #[serde(flatten)]
        task: &'e Task,
    },
    /// The way turns back.
    Turns {
        /// Why.
        why: &'e str,
    },
}

impl<'e> From<Event<'e>> for FleetEvent<'e> {
    fn from(event: Event<'e>) -> Self {
        match event {
            Event::Begins(leg, task) => Self::Begins { leg, task },
            Event::Says(node, text) => Self::Says { node, text },
            Event::Waits(node, text) => Self::Waits { node, text },
            Event::Done(leg, task) => Self::Done { leg, task },
            Event::Turns(why) => Self::Turns { why },
        }
    }
}
