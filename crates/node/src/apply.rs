//! Carries out a plan, and undoes its steps when one fails.

mod carry;
mod wire;

pub use carry::{Apply, Event, StepError, Stopped, run, run_while, undo};
pub use wire::{Line, SentPlan};
