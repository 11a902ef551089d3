//! The journal of a journey: what was about to be done, and what was done, a line of JSON each.
//!
//! A line is on the disk before what it announces begins. So whatever moment kpx is killed at, the journal tells what may
//! have been done, and how to go on from there or back.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::journey::{self, Gone, Journey, Leg, Stage};
use crate::action::Action;
use crate::backend::Mode;
use crate::evidence::Time;
use crate::plan::{Plan, Step, Undo};

/// A line of the journal.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// The first one: what was agreed to.
    Began {
        /// kpx's version.
        kpx: String,
        /// What was agreed to.
        journey: Box<Journey>,
    },
    /// A stage begins.
    Stage {
        /// When.
        at: Time,
        /// On which way.
        leg: Leg,
        /// Which.
        stage: Stage,
        /// What it does.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        steps: Vec<Recorded>,
        /// The kube-proxy that runs, where it is to be restarted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proxy: Option<Proxy>,
    },
    /// A stage is done.
    Done {
        /// When.
        at: Time,
        /// On which way.
        leg: Leg,
        /// Which.
        stage: Stage,
        /// What is not as it should be, and no reason to stop.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// From here on the way leads back.
    Turned {
        /// When.
        at: Time,
        /// Why.
        why: String,
        /// Whether somebody else puts the configuration back, and restarts kube-proxy.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        elsewhere: bool,
    },
    /// kpx gave up, and left the node where it was.
    Stopped {
        /// When.
        at: Time,
        /// Why.
        why: String,
    },
    /// The last one.
    Ended {
        /// When.
        at: Time,
        /// On which way.
        leg: Leg,
    },
}

/// A step as the journal keeps it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Recorded {
    /// What it does, in words.
    pub title: String,
    /// The change.
    pub action: Action,
    /// What takes it back, where that can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Action>,
}

/// A running kube-proxy, told from others by what is known of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Proxy {
    /// Its process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When it started, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i64>,
}

impl Proxy {
    /// Returns whether `self` is another process than `before`; `None` where that cannot be told.
    pub fn differs(self, before: Self) -> Option<bool> {
        // The start is reckoned from the time of the boot, which moves with the clock.
        let started = match (self.started, before.started) {
            (Some(one), Some(other)) => Some(one.abs_diff(other) > 1),
            _ => None,
        };
        match (self.pid, before.pid) {
            (Some(one), Some(other)) => Some(one != other || started == Some(true)),
            _ => started,
        }
    }
}

/// Why a journal cannot be gone on with.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum JournalError {
    /// It holds nothing.
    #[error("the journal is empty: nothing was begun")]
    Empty,
    /// A line is none of a journal.
    #[error("line {0} of the journal is broken: {1}")]
    Broken(usize, String),
    /// Its lines do not follow from each other.
    #[error("line {0} of the journal cannot follow the ones before it")]
    Order(usize),
}

/// Where a journey stands.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct State {
    /// What was agreed to.
    pub journey: Journey,
    /// Which way it goes.
    pub leg: Leg,
    /// How many stages of that way are done.
    pub done: usize,
    /// Whether the stage after them was begun.
    pub begun: bool,
    /// What was begun on the way there, in order.
    begun_there: Vec<(Stage, Vec<Recorded>)>,
    /// The kube-proxy that ran before the restart.
    pub proxy: Option<Proxy>,
    /// Why it turned back, or stopped last.
    pub why: Option<String>,
    /// Whether it is over.
    pub ended: bool,
    /// How far it was gone when it turned back.
    gone: Gone,
    /// What is not as it should be, and no reason to stop.
    pub notes: Vec<String>,
    /// Whether the last line was torn, and left out.
    pub torn: bool,
    /// Whether kube-proxy was seen to serve in the new mode.
    pub reached: bool,
    /// How long the stages took that are done, in order.
    pub took: Vec<Took>,
    /// When the stage that was begun last was begun.
    since: Option<Time>,
}

/// How long a stage took.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct Took {
    /// On which way.
    pub leg: Leg,
    /// The stage.
    pub stage: Stage,
    /// The time, in seconds.
    pub seconds: u64,
}

/// Reads a journal.
///
/// Its last line may be torn: a kpx that was killed while it wrote it had not begun what it announces.
pub fn read(text: &str) -> Result<State, JournalError> {
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut state: Option<State> = None;
    for (number, line) in (1..).zip(whole.lines()) {
        let entry: Entry =
            serde_json::from_str(line).map_err(|e| JournalError::Broken(number, e.to_string()))?;
        match (&mut state, entry) {
            (None, Entry::Began { journey, .. }) => state = Some(State::new(*journey)),
            (Some(_), Entry::Began { .. }) | (None, _) => return Err(JournalError::Order(number)),
            (Some(state), entry) => {
                if !state.follow(entry) {
                    return Err(JournalError::Order(number));
                }
            }
        }
    }
    let mut state = state.ok_or(JournalError::Empty)?;
    state.torn = whole.len() < text.len();
    Ok(state)
}

impl State {
    /// Returns where `journey` stands when it begins.
    pub fn new(journey: Journey) -> Self {
        Self {
            journey,
            leg: Leg::There,
            done: 0,
            begun: false,
            begun_there: Vec::new(),
            proxy: None,
            why: None,
            ended: false,
            gone: Gone::default(),
            notes: Vec::new(),
            torn: false,
            reached: false,
            took: Vec::new(),
            since: None,
        }
    }

    /// Returns all stages of the way it goes.
    pub fn stages(&self) -> Vec<Stage> {
        let Journey { from, strategy, .. } = self.journey;
        let to = self.journey.to();
        match self.leg {
            Leg::There => journey::there(from, to, strategy),
            Leg::Back => journey::back(from, to, self.gone),
        }
    }

    /// Returns the stage to go through next; `None` at the end of the way.
    pub fn next(&self) -> Option<Stage> {
        self.stages().get(self.done).copied()
    }

    /// Returns whether the configuration may have been changed.
    pub fn was_configured(&self) -> bool {
        let last = Stage::Build;
        // Whoever else changes it may do so as soon as everything is built.
        self.began(Stage::Configure) || self.journey.elsewhere && self.began(last)
    }

    /// Returns whether `stage` was begun on the way there.
    pub fn began(&self, stage: Stage) -> bool {
        self.begun_there.iter().any(|(of, _)| *of == stage)
    }

    /// Returns the mode that the bridge serves as: the one that clients have come by before it.
    pub const fn served(&self) -> Mode {
        if self.gone.settled {
            self.journey.to()
        } else {
            self.journey.from
        }
    }

    /// Returns whether the bridge has to stand: it is up, and kube-proxy is yet to be restarted, or to be seen to serve.
    pub fn is_bridged(&self) -> bool {
        let stages = self.stages();
        let rest = stages.get(self.done..).unwrap_or_default();
        let up = !rest.contains(&Stage::BridgeUp);
        up && !self.ended && rest.contains(&Stage::BridgeDown) && rest.contains(&Stage::Verify)
    }

    /// Returns whether connections of virtual servers were waited for, and kube-proxy, which removes these at its start, is
    /// yet to be restarted.
    pub fn is_drained(&self) -> bool {
        let stages = self.stages();
        let (done, rest) = stages.split_at(self.done.min(stages.len()));
        !self.ended && done.contains(&Stage::Drain) && rest.contains(&Stage::Restart)
    }

    /// Iterates over what `stage` recorded on the way there, the newest first.
    pub fn recorded(&self, stage: Stage) -> impl Iterator<Item = &Recorded> {
        let of = self.begun_there.iter().filter(move |(of, _)| *of == stage);
        let steps = of.flat_map(|(_, steps)| steps);
        steps.collect::<Vec<_>>().into_iter().rev()
    }

    /// Takes `entry` in; returns whether it can follow the ones before it.
    pub fn follow(&mut self, entry: Entry) -> bool {
        // What is over can be taken back, and nothing else.
        let taken_back = matches!(entry, Entry::Turned { .. }) && self.leg == Leg::There;
        if self.ended && !taken_back {
            return false;
        }
        let ended = std::mem::replace(&mut self.ended, false);
        match entry {
            Entry::Began { .. } => return false,
            Entry::Stage {
                at,
                leg,
                stage,
                steps,
                proxy,
            } => {
                if leg != self.leg || self.next() != Some(stage) {
                    return false;
                }
                self.since = Some(at);
                self.begun = true;
                // The first is the one that ran before anything was changed.
                self.proxy = self.proxy.or(proxy);
                if leg == Leg::There {
                    self.begun_there.push((stage, steps));
                }
            }
            Entry::Done {
                at,
                leg,
                stage,
                notes,
            } => {
                if leg != self.leg || self.next() != Some(stage) {
                    return false;
                }
                self.reached |= (leg, stage) == (Leg::There, Stage::Verify);
                self.took.extend(self.since.take().map(|since| Took {
                    leg,
                    stage,
                    seconds: at.since(since).as_secs(),
                }));
                self.begun = false;
                self.done += 1;
                self.notes.extend(notes);
            }
            Entry::Turned { why, elsewhere, .. } => {
                if self.leg == Leg::Back {
                    return false;
                }
                self.leg = Leg::Back;
                self.gone = Gone {
                    bridged: self.began(Stage::BridgeUp),
                    configured: self.was_configured(),
                    // Whoever keeps pods away since the end is somebody else.
                    cordoned: self.began(Stage::Cordon) && !ended,
                    settled: ended,
                    waits: elsewhere,
                };
                self.journey.elsewhere |= elsewhere;
                self.done = 0;
                self.begun = false;
                self.why = Some(why);
            }
            Entry::Stopped { why, .. } => {
                if self.leg == Leg::There {
                    self.why = Some(why);
                }
            }
            Entry::Ended { leg, .. } => {
                if leg != self.leg || self.next().is_some() {
                    return false;
                }
                self.ended = true;
            }
        }
        true
    }
}

/// Returns the steps of `plan` as the journal keeps them.
pub fn recorded(plan: &Plan) -> Vec<Recorded> {
    let steps = plan.steps.iter();
    steps
        .map(
            |Step {
                 title,
                 action,
                 undo,
             }| Recorded {
                title: title.clone(),
                action: action.clone(),
                undo: match undo {
                    Undo::Do(action) => Some(action.clone()),
                    Undo::Never(_) => None,
                },
            },
        )
        .collect()
}
