//! The move of a node from one mode to another, in stages that can be resumed and taken back.
//!
//! Before each stage its plan, with undo, goes into the journal; afterwards that it is done. What a stage does is planned
//! anew from what is there, so a stage that was cut short is simply gone through again. Only [`engine`] waits; everything
//! else is data and decisions over it.

pub mod drain;
pub mod engine;
pub mod evict;
pub mod fleet;
pub mod gates;
pub mod journal;
pub mod journey;
pub mod log;
pub mod loss;
pub mod outlook;
pub mod probes;
pub mod removal;
pub mod stage;
