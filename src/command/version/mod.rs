//! `kpx version`

pub(crate) mod args;
pub(super) mod run;
