//! Events of a node's migration.

use serde::{Deserialize, Serialize};

use crate::drain::Gauge;
use crate::engine;
use crate::evict::Leaving;
use crate::gates::{Gate, Status};
use crate::migration::{Leg, Stage};
use kpx_node::apply;
use kpx_node::words::{number_of, span};

/// One event.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A stage begins.
    Begins {
        /// The direction.
        leg: Leg,
        /// The stage.
        stage: Stage,
        /// The stage, in words.
        title: String,
        /// The number of its steps.
        steps: usize,
        /// Its position among the stages, from 1.
        number: usize,
        /// The number of stages.
        of: usize,
    },
    /// A step begins.
    Step {
        /// Its number, from 1.
        step: usize,
        /// The step, in words.
        title: String,
    },
    /// A step is undone.
    Undo {
        /// Its number, from 1.
        step: usize,
        /// The step, in words.
        title: String,
    },
    /// A stage is done.
    Done {
        /// The direction.
        leg: Leg,
        /// The stage.
        stage: Stage,
    },
    /// The gates were checked.
    Gates {
        /// Every gate, with its status.
        gates: Vec<Gate>,
    },
    /// Connections were counted.
    Drain {
        /// Connections that are still open.
        connections: Gauge,
        /// The number of open connections when the drain began.
        at_first: usize,
    },
    /// The pods that have to leave were counted.
    Evict {
        /// Pods that have not left.
        pods: Leaving,
    },
    /// The bridge was updated, or could not be.
    Bridge {
        /// The update, in words.
        text: String,
    },
    /// A stage waits for a condition.
    Waits {
        /// How long it still waits at most, in seconds.
        seconds: u64,
    },
    /// The node changed while a step ran: the stage is planned again.
    Retries {
        /// The error.
        why: String,
    },
    /// A signal asked kpx to stop.
    StopRequested {},
    /// The migration turns to its rollback.
    RollsBack {
        /// The reason.
        why: String,
    },
}

/// An event as it is printed, in words.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct EventLine {
    /// The event.
    #[serde(flatten)]
    pub event: Event,
    /// The event in words; `None` for an event that is only for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
}

impl From<Event> for EventLine {
    fn from(event: Event) -> Self {
        let words = event.in_words().map(|words| words.trim_start().to_owned());
        Self { event, words }
    }
}

impl From<engine::Event<'_>> for Event {
    fn from(event: engine::Event<'_>) -> Self {
        match event {
            engine::Event::Begins(leg, stage, plan, (number, of)) => Self::Begins {
                leg,
                stage,
                title: stage.title().to_owned(),
                steps: plan.steps.len(),
                number,
                of,
            },
            engine::Event::Step(apply::Event::Begins(number, title)) => Self::Step {
                step: number + 1,
                title: title.to_owned(),
            },
            engine::Event::Step(apply::Event::Undoes(number, title)) => Self::Undo {
                step: number + 1,
                title: title.to_owned(),
            },
            engine::Event::Done(leg, stage) => Self::Done { leg, stage },
            engine::Event::Gates(gates) => Self::Gates {
                gates: gates.to_vec(),
            },
            engine::Event::Drain(connections, at_first) => Self::Drain {
                connections: connections.clone(),
                at_first,
            },
            engine::Event::Evict(pods) => Self::Evict { pods: pods.clone() },
            engine::Event::Bridge(text) => Self::Bridge {
                text: text.to_owned(),
            },
            engine::Event::Waits(left) => Self::Waits {
                seconds: left.as_secs(),
            },
            engine::Event::Retries(why) => Self::Retries {
                why: why.to_owned(),
            },
            engine::Event::StopRequested => Self::StopRequested {},
            engine::Event::RollsBack(why) => Self::RollsBack {
                why: why.to_owned(),
            },
        }
    }
}

impl Event {
    /// Returns whether a later event of the same kind soon replaces it, as with a count that falls.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Drain { connections, at_first }
            if connections.count > 0 && connections.count != *at_first)
    }

    /// Returns whether an operator has to act: a disruption budget keeps a pod on the node, or kube-proxy does not start.
    pub fn needs_operator(&self) -> bool {
        match self {
            Self::Evict { .. } => true,
            Self::Gates { gates } => gates.iter().any(|gate| gate.status == Status::Failing),
            _ => false,
        }
    }

    /// Returns the event in words; `None` for an event that is only for programs.
    pub fn in_words(&self) -> Option<String> {
        Some(match self {
            Self::Begins { leg, title, .. } => match leg {
                Leg::There => title.clone(),
                Leg::Back => format!("rollback: {title}"),
            },
            Self::Step { title, .. } => format!("  {title}"),
            Self::Undo { title, .. } => format!("  undo: {title}"),
            Self::Done { .. } => return None,
            Self::Gates { gates } => of_gates(gates),
            Self::Drain {
                connections,
                at_first,
            } => match connections.count {
                0 => "  no connections are open".to_owned(),
                count => format!(
                    "  {count} of {} open: {}",
                    number_of(*at_first, "connection"),
                    connections.holders()
                ),
            },
            Self::Evict { pods } => format!("  {}", pods.in_words()),
            Self::Bridge { text } => format!("bridge: {text}"),
            Self::Waits { seconds } => format!("  waiting at most {} more", span(*seconds)),
            Self::Retries { why } => format!("  {why}: planning again from the live state"),
            Self::StopRequested {} => {
                "stopping after the step in progress; a second signal stops at once".to_owned()
            }
            Self::RollsBack { why } => format!("{why}: rolling back to the old mode"),
        })
    }
}

fn of_gates(gates: &[Gate]) -> String {
    let words = |fits: &dyn Fn(&Gate) -> bool| {
        let some = gates.iter().filter(|gate| fits(gate));
        let words = some.map(|gate| format!("{}: {}", gate.name, gate.reason));
        words.collect::<Vec<_>>().join("; ")
    };
    let blocking = words(&Gate::is_blocking);
    let skipped = words(&|gate| gate.status == Status::Skipped);
    match (blocking.as_str(), skipped.as_str()) {
        ("", "") => "  all gates are passed".to_owned(),
        ("", skipped) => format!("  all gates are passed; skipped without data: {skipped}"),
        (blocking, _) => format!("  waiting: {blocking}"),
    }
}
