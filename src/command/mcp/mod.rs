//! `kpx mcp`

mod answer;
pub(crate) mod args;
mod dump;
pub(super) mod run;
mod schemas;
mod tools;
