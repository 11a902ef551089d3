//! The ipvs mode.

pub mod change;
pub mod expect;
pub mod model;
pub mod parse;
pub mod print;
pub mod requirements;
pub mod rules;
