//! The report of each command: types, and how they are printed. A report never reads a node or evidence.

pub(crate) mod backend_status;
pub(crate) mod fate;
pub(crate) mod history;
pub(crate) mod markdown;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod packets;
pub(crate) mod picture;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod program;
#[cfg(test)]
mod schema;
pub(crate) mod traffic_source;

/// Exit status: nothing is wrong, or the change is done.
pub(crate) const CLEAN: u8 = 0;
/// Exit status: findings at or above `--fail-on`, or differences.
pub(crate) const FOUND: u8 = 1;
/// Exit status: the command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// Exit status: inconclusive; data is missing, and nothing else is wrong.
pub(crate) const UNKNOWN: u8 = 3;
/// Exit status: failed, refused, or stopped part-way.
pub(crate) const FAILED: u8 = 4;
