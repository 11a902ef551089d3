//! The journal of a migration: a line of JSON for each stage that begins and for each that is done.
//!
//! A line is on disk before the change that it announces. So the journal of a kpx that was killed shows which changes may have
//! been made, and how to resume or roll back.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::loss::ObservedLoss;
use super::migration::{self, Gone, Leg, Migration, Stage};
use kpx_judge::plan::{Plan, Step, Undo};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;

/// A line of the journal.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum Entry {
    /// The first entry: the confirmed migration.
    Began {
        /// The version of kpx.
        kpx: String,
        /// The migration.
        #[serde(rename = "journey")]
        migration: Box<Migration>,
    },
    /// A stage begins.
    Stage {
        /// The time.
        at: Time,
        /// The direction.
        leg: Leg,
        /// The stage.
        stage: Stage,
        /// Its steps.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        steps: Vec<Recorded>,
        /// The running kube-proxy, before a restart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proxy: Option<Proxy>,
    },
    /// A stage is done.
    Done {
        /// The time.
        at: Time,
        /// The direction.
        leg: Leg,
        /// The stage.
        stage: Stage,
        /// Notes: deviations that did not stop the stage.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// The migration turns to its rollback.
    Turned {
        /// The time.
        at: Time,
        /// The reason.
        why: String,
        /// Whether an operator requested it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        requested: bool,
        /// Whether the configuration is restored, and kube-proxy restarted, externally.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        external: bool,
        /// Whether another program set the configuration back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        set_back: bool,
    },
    /// Loss was observed.
    Observed {
        /// The time.
        at: Time,
        /// The loss.
        loss: ObservedLoss,
    },
    /// kpx stopped part-way.
    Stopped {
        /// The time.
        at: Time,
        /// The reason.
        why: String,
    },
    /// The last entry.
    Ended {
        /// The time.
        at: Time,
        /// The direction.
        leg: Leg,
    },
}

/// A step in the journal.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Recorded {
    /// The step, in words.
    pub title: String,
    /// The change.
    pub action: Action,
    /// Its undo, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Action>,
}

/// The identity of a running kube-proxy.
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
    /// Returns whether `self` is another process than `before`; `None` if that is unknown.
    pub fn differs(self, before: Self) -> Option<bool> {
        // The start is computed from the boot time, which moves with the clock.
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

/// Why a journal cannot be continued.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum JournalError {
    /// It is empty.
    #[error("the journal is empty: the migration did not begin")]
    Empty,
    /// A line cannot be parsed.
    #[error("line {0} of the journal is broken: {1}")]
    Broken(usize, String),
    /// A line cannot follow the ones before it.
    #[error("line {0} of the journal cannot follow the ones before it")]
    Order(usize),
}

/// The state of a migration, by its journal.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct MigrationState {
    /// The migration.
    pub migration: Migration,
    /// The direction.
    pub leg: Leg,
    /// The number of stages of that direction that are done.
    pub done: usize,
    /// Whether the stage after them began.
    pub begun: bool,
    /// The stages that began towards the new mode, with their steps, in order.
    begun_there: Vec<(Stage, Vec<Recorded>)>,
    /// The kube-proxy before the restart.
    pub proxy: Option<Proxy>,
    /// Why it was rolled back, or stopped last.
    pub why: Option<String>,
    /// Whether an operator requested the rollback.
    pub requested: bool,
    /// Whether it was rolled back because another program set the configuration back.
    pub set_back: bool,
    /// Whether it has ended.
    pub ended: bool,
    /// Its progress when it turned to its rollback.
    gone: Gone,
    /// Notes: deviations that did not stop a stage.
    pub notes: Vec<String>,
    /// Whether the last line is incomplete and ignored.
    pub torn: bool,
    /// Whether kube-proxy has served in the new mode.
    pub reached: bool,
    /// The duration of each stage that is done, in order.
    pub took: Vec<Took>,
    /// The observed loss.
    pub observed: ObservedLoss,
    /// When the last stage began.
    since: Option<Time>,
}

/// The duration of a stage.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Took {
    /// The direction.
    pub leg: Leg,
    /// The stage.
    pub stage: Stage,
    /// The duration, in seconds.
    pub seconds: u64,
}

/// Reads a journal.
///
/// An incomplete last line is ignored: kpx was killed while it wrote the line, before the change that the line announces.
pub fn read(text: &str) -> Result<MigrationState, JournalError> {
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut state: Option<MigrationState> = None;
    for (number, line) in (1..).zip(whole.lines()) {
        let entry: Entry =
            serde_json::from_str(line).map_err(|e| JournalError::Broken(number, e.to_string()))?;
        match (&mut state, entry) {
            (None, Entry::Began { migration, .. }) => state = Some(MigrationState::new(*migration)),
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

impl MigrationState {
    /// Returns the state in which `migration` begins.
    pub fn new(migration: Migration) -> Self {
        Self {
            migration,
            leg: Leg::There,
            done: 0,
            begun: false,
            begun_there: Vec::new(),
            proxy: None,
            why: None,
            requested: false,
            set_back: false,
            ended: false,
            gone: Gone::default(),
            notes: Vec::new(),
            torn: false,
            reached: false,
            took: Vec::new(),
            observed: ObservedLoss::default(),
            since: None,
        }
    }

    /// Returns all stages of its direction.
    pub fn stages(&self) -> Vec<Stage> {
        let Migration { from, strategy, .. } = self.migration;
        let to = self.migration.to();
        match self.leg {
            Leg::There => migration::there(from, to, strategy),
            Leg::Back => migration::back(from, to, self.gone),
        }
    }

    /// Returns the next stage; `None` at the end.
    pub fn next(&self) -> Option<Stage> {
        self.stages().get(self.done).copied()
    }

    /// Returns whether the configuration may have been changed.
    pub fn was_configured(&self) -> bool {
        let last = Stage::Build;
        // An external change may come as soon as everything is built.
        self.began(Stage::Configure) || self.migration.external && self.began(last)
    }

    /// Returns whether `stage` began on the way to the new mode.
    pub fn began(&self, stage: Stage) -> bool {
        self.begun_there.iter().any(|(of, _)| *of == stage)
    }

    /// Returns the mode that the bridge serves as: the one that clients used before it.
    pub const fn served(&self) -> Mode {
        if self.gone.settled {
            self.migration.to()
        } else {
            self.migration.from
        }
    }

    /// Returns whether the bridge has to serve: it is loaded, and kube-proxy is not verified yet.
    pub fn is_bridged(&self) -> bool {
        let stages = self.stages();
        let rest = stages.get(self.done..).unwrap_or_default();
        let up = !rest.contains(&Stage::BridgeUp);
        up && !self.ended && rest.contains(&Stage::BridgeDown) && rest.contains(&Stage::Verify)
    }

    /// Returns whether connections through virtual servers were drained, and kube-proxy, which removes virtual servers when
    /// it starts, is not restarted yet.
    pub fn is_drained(&self) -> bool {
        let stages = self.stages();
        let (done, rest) = stages.split_at(self.done.min(stages.len()));
        !self.ended && done.contains(&Stage::Drain) && rest.contains(&Stage::Restart)
    }

    /// Returns whether it waits for an external change of the configuration and a restart of kube-proxy.
    pub fn is_prepared(&self) -> bool {
        let next = self.next();
        !self.ended && self.migration.external && next.is_some_and(Stage::is_configuration)
    }

    /// Returns the steps that `stage` recorded on the way to the new mode, the newest first.
    pub fn recorded(&self, stage: Stage) -> impl Iterator<Item = &Recorded> {
        let of = self.begun_there.iter().filter(move |(of, _)| *of == stage);
        let steps = of.flat_map(|(_, steps)| steps);
        steps.collect::<Vec<_>>().into_iter().rev()
    }

    /// Applies `entry`; returns whether it can follow the ones before it.
    pub fn follow(&mut self, entry: Entry) -> bool {
        // A migration that has ended can only be rolled back.
        let rolls_back = matches!(entry, Entry::Turned { .. }) && self.leg == Leg::There;
        if self.ended && !rolls_back {
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
                // The first one ran before any change.
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
            Entry::Turned {
                why,
                requested,
                external,
                set_back,
                ..
            } => {
                if self.leg == Leg::Back {
                    return false;
                }
                self.leg = Leg::Back;
                self.gone = Gone {
                    bridged: self.began(Stage::BridgeUp),
                    configured: self.was_configured(),
                    // After the end, a cordon is not kpx's.
                    cordoned: self.began(Stage::Cordon) && !ended,
                    settled: ended,
                    waits: external,
                };
                self.migration.external |= external;
                self.done = 0;
                self.begun = false;
                self.requested = requested;
                self.set_back = set_back;
                self.why = Some(why);
            }
            Entry::Observed { loss, .. } => self.observed = self.observed.plus(loss),
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

/// Returns the steps of `plan` for the journal.
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
