//! What several commands share.

pub(super) mod apply_on_nodes;
pub(super) mod beside;
pub(super) mod change;
pub(super) mod change_sources;
mod complete_bundle;
pub(super) mod confine;
pub(super) mod counters;
pub(super) mod defaults;
pub(super) mod display;
pub(super) mod failure;
mod finish;
mod foreign;
pub(super) mod identity;
pub(super) mod io;
pub(super) mod journals;
pub(super) mod local_bridge;
pub(super) mod named_checks;
pub(super) mod nodes;
mod origin;
pub(super) mod output;
pub(super) mod pager;
pub(super) mod probe;
mod read;
pub(super) mod redaction;
pub(super) mod root;
pub(super) mod run_checks;
pub(super) mod service_name;
pub(super) mod session;
pub(super) mod source;
pub(super) mod terminal;
pub(super) mod unfit;

/// Advice where evidence is missing.
pub(super) const READABLE: &str =
    "`kpx snapshot -v` lists what kpx can and cannot read of the node and its cluster";
