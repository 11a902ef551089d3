//! Carries a plan out, and undoes it when a step fails.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::action::{Action, Plan, Undo};

/// The only interface through which a node or its cluster is changed.
pub trait Apply {
    /// Makes one change. It is idempotent: an object that exists already, or is gone already, is no error.
    fn apply(&mut self, action: &Action) -> impl Future<Output = Result<(), StepError>>;
}

/// Why a change failed.
#[derive(Clone, Debug, Deserialize, Eq, Error, PartialEq, Serialize)]
pub enum StepError {
    /// The kernel or a tool refused it.
    #[error("{0}")]
    Refused(String),
    /// kpx lacks the privilege.
    #[error("{0}")]
    Denied(String),
    /// The tool is missing.
    #[error("{0}")]
    Absent(String),
    /// The object changed after the plan was made: read it again, and plan again.
    #[error("{0}")]
    Moved(String),
    /// Refused for now: retry later.
    #[error("{0}")]
    Held(String),
}

/// An event while a plan runs.
#[derive(Clone, Copy, Debug)]
pub enum Event<'p> {
    /// A step begins: its number from 0, and its title.
    Begins(usize, &'p str),
    /// A step is undone.
    Undoes(usize, &'p str),
}

/// A plan that stopped.
#[derive(Clone, Debug, Deserialize, Eq, Error, PartialEq, Serialize)]
#[error("step {} failed: {error}", .step + 1)]
pub struct Stopped {
    /// The step that failed, from 0.
    pub step: usize,
    /// The error.
    pub error: StepError,
    /// Steps that were done and could not be undone, with the reason, newest first.
    pub left: Vec<(usize, String)>,
}

/// Carries out `plan` on `node`; when a step fails, undoes the ones before it, newest first.
pub async fn run(
    plan: &Plan,
    node: &mut impl Apply,
    watch: impl FnMut(Event<'_>),
) -> Result<(), Stopped> {
    run_while(plan, node, watch, |_| true).await.map(|_| ())
}

/// Carries out `plan` like [`run`], as long as `go_on` returns true before each step; returns the number of steps done.
pub async fn run_while<N: Apply>(
    plan: &Plan,
    node: &mut N,
    mut watch: impl FnMut(Event<'_>),
    go_on: impl Fn(&N) -> bool,
) -> Result<usize, Stopped> {
    for (number, step) in plan.steps.iter().enumerate() {
        if !go_on(node) {
            return Ok(number);
        }
        watch(Event::Begins(number, &step.title));
        if let Err(error) = node.apply(&step.action).await {
            // A step that is not a transaction may be partly done.
            let done = number + usize::from(!step.action.is_atomic());
            let left = undo(plan, done, node, &mut watch).await;
            return Err(Stopped {
                step: number,
                error,
                left,
            });
        }
    }
    Ok(plan.steps.len())
}

/// Undoes the first `done` steps of `plan`, newest first; returns the steps that could not be undone, with the reason.
pub async fn undo(
    plan: &Plan,
    done: usize,
    node: &mut impl Apply,
    mut watch: impl FnMut(Event<'_>),
) -> Vec<(usize, String)> {
    let mut left = Vec::new();
    for (number, step) in plan.steps.iter().enumerate().take(done).rev() {
        watch(Event::Undoes(number, &step.title));
        match &step.undo {
            Undo::Do(action) => {
                if let Err(error) = node.apply(action).await {
                    left.push((number, error.to_string()));
                }
            }
            Undo::Never(why) => left.push((number, why.to_string())),
        }
    }
    left
}
