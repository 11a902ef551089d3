//! Runs one task after the other, and rolls back if the first node cannot be migrated.

mod config;
mod guard;
mod job;
mod node;
mod preview;

use std::cell::Cell;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::pod::{self, Job};
use super::state::{self, Fleet, NodeState};
use super::task::Task;
use crate::migration::Leg;
use crate::node::Clock;
use kpx_judge::plan::Unwritable;
use kpx_node::action::{Action, KubeCommand, Object};
use kpx_node::apply::{Apply, StepError};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::words::span;

/// A cluster, to be read and changed.
pub trait Cluster: Apply + Clock {
    /// The same cluster, for a change that waits.
    type Beside: Apply;
    /// Reads `items` of the cluster, and of `node` where they are a node's.
    fn read(&mut self, items: &[Item], node: &str) -> impl Future<Output = Evidence>;
    /// Returns an object from the API server; `None` if it does not exist.
    fn object(&mut self, object: &Object)
    -> impl Future<Output = Result<Option<Value>, StepError>>;
    /// Returns the log of a pod of kube-system.
    fn log(&mut self, pod: &str) -> impl Future<Output = Result<String, StepError>>;
    /// Copies kpx into `pod`, which runs on `node`, and starts it there, unless that is done. After
    /// [`StepError::Held`], a new pod may succeed.
    fn copy_kpx(&mut self, node: &str, pod: &Value) -> impl Future<Output = Result<(), StepError>>;
    /// Returns the same cluster, for a change that waits while this one is read and changed.
    fn beside(&self) -> Self::Beside;
    /// Asks an operator to run `command` on `node`; fails if it was not run.
    fn by_hand(&mut self, node: &str, command: &str) -> impl Future<Output = Result<(), String>>;
}

/// An event of a migration.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A task begins.
    Begins(Leg, &'e Task),
    /// A node reports what it does: the node, and the text.
    Reports(&'e str, &'e str),
    /// A node reports what it waits for, or its progress: the node, and the text. The next such event replaces it.
    Waits(&'e str, &'e str),
    /// A task is done.
    Done(Leg, &'e Task),
    /// The migration turns to its rollback, and why.
    RollsBack(&'e str),
}

/// How a run ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// All nodes run in the new mode.
    Migrated,
    /// All nodes run in the old mode again, and why.
    RolledBack(String),
    /// It stopped part-way, and why; another run continues.
    Stopped(String),
}

/// Why a task failed.
#[derive(Debug, Error)]
enum TaskError {
    #[error("cannot save the state, so nothing more was done: {0}")]
    State(StepError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Gap(#[from] Gap),
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    SetBack(String),
    #[error("{STOPPED}")]
    StopRequested,
}

/// How long a node that is not ready is waited for, in seconds: a machine may reboot.
const REBOOT: u64 = 600;

/// After how many seconds a wait is reported.
const REPORTED: u64 = 5;

/// Why a run stopped on a signal.
const STOPPED: &str = "stopped on request";

/// The longest pause between two checks of a condition.
const TICK: Duration = Duration::from_secs(1);

/// The first pause between two checks; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(10);

/// Runs the remaining tasks of a fleet's migration.
pub struct Engine<'e, C> {
    /// The cluster.
    pub cluster: &'e mut C,
    /// The state as the cluster keeps it; `None` if it keeps none yet.
    pub saved: Option<String>,
    /// Receives events.
    pub on_event: &'e mut dyn FnMut(Event<'_>),
    /// Whether a stop is requested: the engine stops after the step in progress and rolls nothing back.
    pub stop: &'e Cell<bool>,
}

impl<C: Cluster> Engine<'_, C> {
    /// Runs from `fleet` to the end of the migration or its rollback.
    pub async fn run(&mut self, fleet: &mut Fleet) -> Ended {
        if let Err(why) = self.give_back(fleet).await {
            return Ended::Stopped(why);
        }
        while let Some(task) = fleet.next() {
            if self.stop.get() {
                return self
                    .stopped(fleet, format!("{STOPPED}; next step: {}", named(&task)))
                    .await;
            }
            fleet.begin();
            if let Err(error) = self.save(fleet).await {
                return Ended::Stopped(error.to_string());
            }
            (self.on_event)(Event::Begins(fleet.leg, &task));
            let began = self.cluster.now();
            let done = self.task(fleet, &task).await;
            fleet.spend(&task, self.cluster.now().since(began).as_secs());
            let ended = match done {
                Ok(()) => {
                    (self.on_event)(Event::Done(fleet.leg, &task));
                    fleet.finish();
                    None
                }
                Err(error @ TaskError::State(_)) => return Ended::Stopped(error.to_string()),
                Err(error) if self.stop.get() => {
                    let why = match error {
                        TaskError::StopRequested => {
                            format!("{STOPPED}; not finished: {}", named(&task))
                        }
                        error => format!("{STOPPED}; {}", failure(&task, &error)),
                    };
                    return self.stopped(fleet, why).await;
                }
                Err(error) => self.fail(fleet, &task, &error),
            };
            if let Err(error) = self.save(fleet).await {
                return Ended::Stopped(error.to_string());
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
        if let Err(error) = self.save(fleet).await {
            return Ended::Stopped(error.to_string());
        }
        match fleet.leg {
            Leg::There => Ended::Migrated,
            Leg::Back => Ended::RolledBack(fleet.why.clone().unwrap_or_default()),
        }
    }

    /// Stops and saves the reason.
    async fn stopped(&mut self, fleet: &mut Fleet, why: String) -> Ended {
        fleet.why = Some(why.clone());
        match self.save(fleet).await {
            Ok(()) => Ended::Stopped(why),
            Err(error) => Ended::Stopped(format!("{why}; {error}")),
        }
    }

    /// Turns to the rollback if no node runs in the new mode yet; otherwise stops.
    fn fail(&mut self, fleet: &mut Fleet, task: &Task, error: &TaskError) -> Option<Ended> {
        let why = failure(task, error);
        fleet.set_back |= matches!(error, TaskError::SetBack(_));
        if fleet.leg == Leg::There && fleet.migrated() == 0 {
            (self.on_event)(Event::RollsBack(&why));
            fleet.turn(why);
            return None;
        }
        if let Some(node) = task.node().filter(|_| fleet.returns_alone()) {
            fleet.give_back(node);
        }
        fleet.why = Some(why.clone());
        Some(Ended::Stopped(why))
    }

    /// Rolls back the node that is to be rolled back alone, if there is one; fails with the reason.
    async fn give_back(&mut self, fleet: &mut Fleet) -> Result<(), String> {
        let Some(node) = fleet.returning.clone() else {
            return Ok(());
        };
        (self.on_event)(Event::Reports(
            &node,
            "rolling this node back to the old mode; the others stay",
        ));
        let done = self.revert(fleet, &node).await;
        if done.is_ok() {
            fleet.given_back(&node);
        }
        let kept = self.save(fleet).await;
        done.and(kept)
            .map_err(|error| format!("cannot roll back node {node} alone: {error}"))
    }

    /// Saves `fleet` in the cluster.
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

    async fn save(&mut self, fleet: &Fleet) -> Result<(), TaskError> {
        self.keep(fleet).await.map_err(TaskError::State)
    }

    async fn apply(&mut self, command: KubeCommand) -> Result<(), StepError> {
        self.cluster.apply(&Action::Kube { command }).await
    }

    async fn read(&mut self, items: &[Item], node: &str) -> Evidence {
        self.cluster.read(items, node).await
    }

    /// Reports that the engine has waited for `what` on `node` for `waited` of at most `limit` seconds, unless it has just begun to.
    fn waits(&mut self, node: &str, what: &str, waited: u64, limit: u64) {
        if waited >= REPORTED {
            let left = span(limit.saturating_sub(waited));
            let words = format!("waiting for {what}: at most {left} more");
            (self.on_event)(Event::Waits(node, &words));
        }
    }

    async fn there(&mut self, object: &Object) -> Result<Value, TaskError> {
        let found = self.cluster.object(object).await?;
        found.ok_or_else(|| TaskError::Failed(format!("{object} not found")))
    }

    async fn task(&mut self, fleet: &mut Fleet, task: &Task) -> Result<(), TaskError> {
        if let Some(node) = task.node()
            && fleet.nodes.get(node) == Some(&NodeState::Already)
        {
            return Ok(());
        }
        match task {
            Task::Copy => self.copy(fleet).await,
            Task::Prepare(node) => {
                // Before the bridge is loaded: the guard keeps it even if other pods are lost.
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

/// Returns `task` with its node, in words.
fn named(task: &Task) -> String {
    match task.node() {
        Some(node) => format!("{task} on node {node}"),
        None => task.to_string(),
    }
}

fn failure(task: &Task, error: &TaskError) -> String {
    format!("cannot {}: {error}", named(task))
}

/// Pauses that grow: short tasks end early, long ones poll rarely.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_second() {
        let mut pace = Pace::new();
        let pauses = std::array::from_fn(|_| pace.next().as_millis());
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }
}
