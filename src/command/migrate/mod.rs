//! `kpx migrate`

pub(crate) mod args;
mod begin;
#[cfg(test)]
mod command_lines;
mod draft;
mod fleet;
mod fleet_draft;
mod local_node;
mod lock;
mod preview;
mod progress;
mod prompt;
mod remote_cluster;
pub(crate) mod report;
pub(super) mod run;
