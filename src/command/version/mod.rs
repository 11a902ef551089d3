//! `kpx version`

pub(crate) mod args;
pub(crate) mod report;
pub(super) mod run;
