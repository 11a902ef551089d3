//! `kpx cleanup`

pub(crate) mod args;
pub(super) mod run;
