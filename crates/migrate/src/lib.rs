//! The migration of a node from one mode to another, in stages that can be resumed and rolled back.
//!
//! The journal records each stage twice: its plan with the undo before it begins, and its end. A stage is planned from the
//! live state, so an interrupted stage is simply run again. Only the engines and [`controller`]s wait; everything else is
//! pure.

pub mod accept;
pub mod controller;
pub mod drain;
pub mod engine;
pub mod evict;
pub mod fleet;
pub mod gates;
pub mod journal;
pub mod known;
pub mod log;
pub mod loss;
pub mod migration;
pub mod node;
pub mod preview;
pub mod probes;
pub mod removal;
pub mod stage;
pub mod wire;
