//! Does one task after the other, and turns back where the first node cannot be moved.

mod config;
mod look;
mod node;

use std::cell::Cell;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::pod::{self, Job};
use super::state::{self, Fleet, Leg, NodeState};
use super::task::Task;
use crate::action::{Action, KubeCommand, Object};
use crate::apply::{Apply, StepError};
use crate::evidence::{Evidence, Gap, Item, Time};
use crate::plan::Unwritable;

/// A cluster, to be read and changed.
pub trait Cluster: Apply {
    /// Reads `items` of the cluster, and of `node` where they are a node's.
    fn read(&mut self, items: &[Item], node: &str) -> impl Future<Output = Evidence>;
    /// Returns an object as the API server has it; `None` where there is none.
    fn object(&mut self, object: &Object)
    -> impl Future<Output = Result<Option<Value>, StepError>>;
    /// Returns the log of a pod of kube-system.
    fn log(&mut self, pod: &str) -> impl Future<Output = Result<String, StepError>>;
    /// Has somebody run `command` on `node`; returns why they did not.
    fn by_hand(&mut self, node: &str, command: &str) -> impl Future<Output = Result<(), String>>;
    /// Returns the present time.
    fn now(&self) -> Time;
    /// Waits.
    fn pause(&mut self, duration: Duration) -> impl Future<Output = ()>;
}

/// What happens on the way.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A task begins.
    Begins(Leg, &'e Task),
    /// A node tells what it does.
    Says(&'e str, &'e str),
    /// A node tells what it waits for, or how far it is: that passes.
    Waits(&'e str, &'e str),
    /// A task is done.
    Done(Leg, &'e Task),
    /// The way turns back, and why.
    Turns(&'e str),
}

/// How it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// All nodes run in the new mode.
    Migrated,
    /// All nodes run in the old mode; and why.
    RolledBack(String),
    /// It is where it is, and why; another run goes on.
    Stopped(String),
}

/// Why a task was not done.
#[derive(Debug, Error)]
enum Trouble {
    #[error("where it stands cannot be written down, so nothing more was done: {0}")]
    State(StepError),
    #[error("{0}")]
    Step(#[from] StepError),
    #[error("{0}")]
    Gap(#[from] Gap),
    #[error("{0}")]
    Config(#[from] Unwritable),
    #[error("{0}")]
    Failed(String),
    #[error("{ASKED}")]
    Asked,
}

/// Why it stopped, where somebody asked it to.
const ASKED: &str = "stopped on request";

/// How often something is looked at while it is waited for, at most.
const TICK: Duration = Duration::from_secs(1);

/// The pause before the first look again; each is twice the one before.
const FIRST: Duration = Duration::from_millis(10);

/// Goes through the rest of the move of a cluster.
pub struct Engine<'e, C> {
    /// Where.
    pub cluster: &'e mut C,
    /// The state as the cluster keeps it; `None` before it does.
    pub saved: Option<String>,
    /// Is told what happens.
    pub tell: &'e mut dyn FnMut(Event<'_>),
    /// Whether somebody asked to stop: it does so after the step in progress, and turns nothing back.
    pub stop: &'e Cell<bool>,
}

impl<C: Cluster> Engine<'_, C> {
    /// Goes on from where `fleet` stands to the end, there or back.
    pub async fn run(&mut self, fleet: &mut Fleet) -> Ended {
        if let Err(why) = self.give_back(fleet).await {
            return Ended::Stopped(why);
        }
        while let Some(task) = fleet.next() {
            if self.stop.get() {
                return self
                    .stopped(fleet, format!("{ASKED}; next step: {}", named(&task)))
                    .await;
            }
            fleet.begin();
            if let Err(trouble) = self.save(fleet).await {
                return Ended::Stopped(trouble.to_string());
            }
            (self.tell)(Event::Begins(fleet.leg, &task));
            let done = self.task(fleet, &task).await;
            let ended = match done {
                Ok(()) => {
                    (self.tell)(Event::Done(fleet.leg, &task));
                    fleet.finish();
                    None
                }
                Err(trouble @ Trouble::State(_)) => return Ended::Stopped(trouble.to_string()),
                Err(trouble) if self.stop.get() => {
                    let why = match trouble {
                        Trouble::Asked => format!("{ASKED}; not finished: {}", named(&task)),
                        trouble => format!("{ASKED}; {}", failure(&task, &trouble)),
                    };
                    return self.stopped(fleet, why).await;
                }
                Err(trouble) => self.fail(fleet, &task, &trouble),
            };
            if let Err(trouble) = self.save(fleet).await {
                return Ended::Stopped(trouble.to_string());
            }
            if let Some(ended) = ended {
                let Err(back) = self.give_back(fleet).await else {
                    return ended;
                };
                let why = fleet.why.clone().unwrap_or_default();
                return Ended::Stopped(format!("{why}; {back}"));
            }
        }
        fleet.ended = true;
        if let Err(trouble) = self.save(fleet).await {
            return Ended::Stopped(trouble.to_string());
        }
        match fleet.leg {
            Leg::There => Ended::Migrated,
            Leg::Back => Ended::RolledBack(fleet.why.clone().unwrap_or_default()),
        }
    }

    /// Stops where `fleet` is, and writes down why.
    async fn stopped(&mut self, fleet: &mut Fleet, why: String) -> Ended {
        fleet.why = Some(why.clone());
        match self.save(fleet).await {
            Ok(()) => Ended::Stopped(why),
            Err(trouble) => Ended::Stopped(format!("{why}; {trouble}")),
        }
    }

    /// Turns back where no node got to the new mode yet; else stops.
    fn fail(&mut self, fleet: &mut Fleet, task: &Task, trouble: &Trouble) -> Option<Ended> {
        let why = failure(task, trouble);
        if fleet.leg == Leg::There && fleet.migrated() == 0 {
            (self.tell)(Event::Turns(&why));
            fleet.turn(why);
            return None;
        }
        if let Some(node) = task.node().filter(|_| fleet.returns_alone()) {
            fleet.give_back(node);
        }
        fleet.why = Some(why.clone());
        Some(Ended::Stopped(why))
    }

    /// Moves the node back that is to go back alone, if there is one; returns why that was not done.
    async fn give_back(&mut self, fleet: &mut Fleet) -> Result<(), String> {
        let Some(node) = fleet.returning.clone() else {
            return Ok(());
        };
        (self.tell)(Event::Says(&node, "back to the old mode, alone"));
        let done = self.revert(fleet, &node).await;
        if done.is_ok() {
            fleet.given_back(&node);
        }
        let kept = self.save(fleet).await;
        done.and(kept)
            .map_err(|trouble| format!("node {node} cannot be moved back alone: {trouble}"))
    }

    /// Writes down where `fleet` stands.
    pub async fn keep(&mut self, fleet: &Fleet) -> Result<(), StepError> {
        let text = fleet.to_text();
        let command = match &self.saved {
            None => state::create(&text),
            Some(before) => state::write(before, &text),
        };
        self.apply(command).await?;
        self.saved = Some(text);
        Ok(())
    }

    async fn save(&mut self, fleet: &Fleet) -> Result<(), Trouble> {
        self.keep(fleet).await.map_err(Trouble::State)
    }

    async fn apply(&mut self, command: KubeCommand) -> Result<(), StepError> {
        self.cluster.apply(&Action::Kube { command }).await
    }

    async fn read(&mut self, items: &[Item], node: &str) -> Evidence {
        self.cluster.read(items, node).await
    }

    async fn there(&mut self, object: &Object) -> Result<Value, Trouble> {
        let found = self.cluster.object(object).await?;
        found.ok_or_else(|| Trouble::Failed(format!("there is no {object}")))
    }

    async fn task(&mut self, fleet: &mut Fleet, task: &Task) -> Result<(), Trouble> {
        if let Some(node) = task.node()
            && fleet.nodes.get(node) == Some(&NodeState::Already)
        {
            return Ok(());
        }
        match task {
            Task::Copy => self.copy(fleet).await,
            Task::Prepare(node) => {
                // Before there is a bridge: from then on somebody keeps it, whatever becomes of the others.
                self.guarded(fleet, node, fleet.plan.ready).await?;
                let already = self.on_node(fleet, node, Job::Prepare).await? == pod::Ended::Already;
                let state = if already {
                    self.unguard(fleet, node).await?;
                    NodeState::Already
                } else {
                    NodeState::Prepared
                };
                fleet.nodes.insert(node.clone(), state);
                Ok(())
            }
            Task::Configure => self.configure(fleet).await,
            Task::Move(node) => {
                self.guard(fleet, node).await?;
                self.restart(fleet, node, task).await
            }
            Task::Return(node) => self.restart(fleet, node, task).await,
            Task::Check(node) => self.check(fleet, node).await,
            Task::Finish(node) => {
                self.guard(fleet, node).await?;
                self.on_node(fleet, node, Job::Finish).await?;
                self.unguard(fleet, node).await?;
                fleet.nodes.insert(node.clone(), NodeState::Migrated);
                Ok(())
            }
            Task::Soak(node) => self.soak(fleet, node).await,
            Task::Merge => self.merge(fleet).await,
            Task::Unconfigure => self.unconfigure(fleet).await,
            Task::Revert(node) => self.revert(fleet, node).await,
        }
    }
}

/// Returns `task`, and the node that it is about.
fn named(task: &Task) -> String {
    match task.node() {
        Some(node) => format!("{task} on node {node}"),
        None => task.to_string(),
    }
}

fn failure(task: &Task, trouble: &Trouble) -> String {
    format!("cannot {}: {trouble}", named(task))
}

/// Pauses that grow: what is done soon is seen soon.
struct Pace(Duration);

impl Pace {
    const fn new() -> Self {
        Self(FIRST)
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(TICK);
        pause
    }
}
