//! What happens on the way, for programs a line each.

use serde::Serialize;

use crate::apply;
use crate::migrate::drain::Gauge;
use crate::migrate::engine::Event;
use crate::migrate::evict::Leaving;
use crate::migrate::gates::{Gate, Status};
use crate::migrate::journey::{Leg, Stage};

/// One event.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum MigrateEvent<'e> {
    /// A stage begins.
    Begins {
        /// On which way.
        leg: Leg,
        /// Which.
        stage: Stage,
        /// What it does.
        title: &'static str,
        /// How many steps it has.
        steps: usize,
        /// The how manieth stage of its way it is, from 1.
        number: usize,
        /// How many stages that way has.
        of: usize,
    },
    /// A step begins.
    Step {
        /// Its number from 1.
        step: usize,
        /// What it does.
        title: &'e str,
    },
    /// A step is taken back.
    Undo {
        /// Its number from 1.
        step: usize,
        /// What it did.
        title: &'e str,
    },
    /// A stage is done.
    Done {
        /// On which way.
        leg: Leg,
        /// Which.
        stage: Stage,
    },
    /// The gates were looked at.
    Gates {
        /// How they stand.
        gates: &'e [Gate],
    },
    /// Connections were counted.
    Drain {
        /// What was counted.
        connections: &'e Gauge,
        /// How many there were when it began.
        at_first: usize,
    },
    /// The pods that are to leave were counted.
    Evict {
        /// What was counted.
        pods: &'e Leaving,
    },
    /// The bridge followed the cluster, or could not.
    Bridge {
        /// What it did.
        text: &'e str,
    },
    /// A step failed because the node changed meanwhile: it is looked at again.
    Again {
        /// What failed.
        why: &'e str,
    },
    /// Somebody asked to stop.
    Asked {},
    /// The way turns back.
    Turns {
        /// Why.
        why: &'e str,
    },
}

impl<'e> From<Event<'e>> for MigrateEvent<'e> {
    fn from(event: Event<'e>) -> Self {
        match event {
            Event::Begins(leg, stage, plan, (number, of)) => Self::Begins {
                leg,
                stage,
                title: stage.title(),
                steps: plan.steps.len(),
                number,
                of,
            },
            Event::Step(apply::Event::Begins(number, title)) => Self::Step {
                step: number + 1,
                title,
            },
            Event::Step(apply::Event::Undoes(number, title)) => Self::Undo {
                step: number + 1,
                title,
            },
            Event::Done(leg, stage) => Self::Done { leg, stage },
            Event::Gates(gates) => Self::Gates { gates },
            Event::Drain(connections, at_first) => Self::Drain {
                connections,
                at_first,
            },
            Event::Evict(pods) => Self::Evict { pods },
            Event::Bridge(text) => Self::Bridge { text },
            Event::Again(why) => Self::Again { why },
            Event::Asked => Self::Asked {},
            Event::Turns(why) => Self::Turns { why },
        }
    }
}

impl MigrateEvent<'_> {
    /// Whether another of its kind follows soon, and makes it old: a count that falls.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Drain { connections, at_first }
            if connections.count > 0 && connections.count != *at_first)
    }

    /// Returns the event in words, for people; `None` for what says nothing to them.
    pub fn in_words(&self) -> Option<String> {
        Some(match self {
            Self::Begins { leg, title, .. } => match leg {
                Leg::There => (*title).to_owned(),
                Leg::Back => format!("on the way back: {title}"),
            },
            Self::Step { title, .. } => format!("  {title}"),
            Self::Undo { title, .. } => format!("  taking back: {title}"),
            Self::Done { .. } => return None,
            Self::Gates { gates } => {
                let words = |fits: &dyn Fn(&Gate) -> bool| {
                    let some = gates.iter().filter(|gate| fits(gate));
                    let words = some.map(|gate| format!("{}: {}", gate.name, gate.reason));
                    words.collect::<Vec<_>>().join("; ")
                };
                let open = words(&Gate::is_open);
                let skipped = words(&|gate| gate.status == Status::Skipped);
                match (open.as_str(), skipped.as_str()) {
                    ("", "") => "  all is well".to_owned(),
                    ("", skipped) => format!("  all that is known is well; not known: {skipped}"),
                    (open, _) => format!("  waiting: {open}"),
                }
            }
            Self::Drain {
                connections,
                at_first,
            } => match connections.count {
                0 => "  no connections are open".to_owned(),
                count => format!(
                    "  {count} of {at_first} connections are open: {}",
                    connections.holders()
                ),
            },
            Self::Evict { pods } => format!("  {}", pods.in_words()),
            Self::Bridge { text } => format!("the bridge: {text}"),
            Self::Again { why } => format!("  {why}: planning again from the live state"),
            Self::Asked {} => {
                "asked to stop: what is under way ends first; asked again, it is left as it is"
                    .to_owned()
            }
            Self::Turns { why } => format!("{why}: back to the old mode"),
        })
    }
}
