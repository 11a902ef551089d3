//! The ipvs mode.

pub mod model;
pub mod parse;
