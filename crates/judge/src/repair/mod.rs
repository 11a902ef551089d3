//! Repairs as data, and a node with some of them applied: what would happen to a connection then?
//!
//! Nothing is changed: a repair edits a parsed copy of the node's state, which is walked and judged like the state itself.

mod edits;
mod lists;
mod model;

pub(crate) use edits::with;
pub use model::{Edit, Edited, Repair, RulePlace};
