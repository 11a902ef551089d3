//! Carries a plan out, and takes back what was done when a step fails.

use thiserror::Error;

use crate::action::Action;
use crate::plan::{Plan, Undo};

/// The one way to change a node or its cluster.
pub trait Apply {
    /// Makes one change. Making it twice is making it once: what is there already, or gone already, is no error.
    fn apply(&mut self, action: &Action) -> impl Future<Output = Result<(), StepError>>;
}

/// Why a change was not made.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum StepError {
    /// The kernel or a tool refused it.
    #[error("{0}")]
    Refused(String),
    /// It takes a privilege that kpx does not have.
    #[error("{0}")]
    Denied(String),
    /// The tool is missing.
    #[error("{0}")]
    Absent(String),
    /// What it changes is not what it was when the plan was made: read it again, and plan again.
    #[error("{0}")]
    Moved(String),
    /// It may not be done just now: the same may be asked again in a while.
    #[error("{0}")]
    Held(String),
}

/// What happens while a plan runs.
#[derive(Clone, Copy, Debug)]
pub enum Event<'p> {
    /// A step begins: its number from 0, and its title.
    Begins(usize, &'p str),
    /// A step is being taken back.
    Undoes(usize, &'p str),
}

/// A plan that stopped.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("step {} failed: {error}", .step + 1)]
pub struct Stopped {
    /// The step that failed, from 0.
    pub step: usize,
    /// Why.
    pub error: StepError,
    /// Steps that were done and could not be taken back, with the reason, newest first.
    pub left: Vec<(usize, String)>,
}

/// Carries out `plan` on `node`; when a step fails, takes back those before it, newest first.
pub async fn run(
    plan: &Plan,
    node: &mut impl Apply,
    watch: impl FnMut(Event<'_>),
) -> Result<(), Stopped> {
    run_while(plan, node, watch, |_| true).await.map(|_| ())
}

/// Carries out `plan` like [`run`], as long as `go_on` says so before each step; returns how many steps were done.
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
            // Of what is no transaction, a part may have been done.
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

/// Takes back the first `done` steps of `plan`, newest first; returns those that could not be, with the reason.
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
            Undo::Never(why) => left.push((number, (*why).to_owned())),
        }
    }
    left
}
