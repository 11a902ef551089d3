//! `kpx preflight`

pub(crate) mod args;
mod prove;
pub(crate) mod report;
pub(super) mod run;
