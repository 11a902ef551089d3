//! The report of each command: types, and how they are printed. A report never reads a node or evidence.

pub mod diff;
pub mod doctor;
pub mod explain;
pub mod migrate;
pub mod nodes;
pub mod plan;
pub mod preflight;
pub mod program;
pub mod resolve;
pub mod show;
pub mod snapshot;
pub mod trace;
pub mod why;

/// Exit status: nothing is wrong, or the change is done.
pub const CLEAN: u8 = 0;
/// Exit status: findings at or above `--fail-on`, or differences.
pub const FOUND: u8 = 1;
/// Exit status: the command line is wrong.
pub const USAGE: u8 = 2;
/// Exit status: inconclusive; data is missing, and nothing else is wrong.
pub const UNKNOWN: u8 = 3;
/// Exit status: failed, refused, or stopped part-way.
pub const FAILED: u8 = 4;
