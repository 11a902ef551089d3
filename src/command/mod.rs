//! One folder per command: its options (`args`), its work (`run`), its output (`report`).

pub(crate) mod access;
pub(crate) mod bridge;
pub(crate) mod completions;
pub(crate) mod diff;
mod dispatch;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod help;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod migrate;
pub(crate) mod pod;
pub(crate) mod preflight;
pub(crate) mod reconcile;
pub(crate) mod render;
pub(crate) mod report;
pub(crate) mod resolve;
pub(crate) mod screen;
pub(crate) mod serve;
mod shared;
pub(crate) mod show;
pub(crate) mod snapshot;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod version;
pub(crate) mod watch;
pub(crate) mod why;

pub use dispatch::{main, run};
pub use shared::io::Io;
