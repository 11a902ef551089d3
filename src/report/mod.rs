//! What each command found, ready to print or serialise.

pub mod diff;
pub mod doctor;
pub mod explain;
pub mod migrate;
pub mod plan;
pub mod preflight;
pub mod program;
pub mod resolve;
pub mod show;
pub mod snapshot;
pub mod trace;

/// Exit status: nothing wrong, or done.
pub const CLEAN: u8 = 0;
/// Exit status: findings at or above `--fail-on`, or differences.
pub const FOUND: u8 = 1;
/// Exit status: the command line is wrong.
pub const USAGE: u8 = 2;
/// Exit status: could not tell; nothing known to be wrong, something not known that was asked for.
pub const UNKNOWN: u8 = 3;
/// Exit status: failed, refused, or stopped part-way.
pub const FAILED: u8 = 4;
