//! `kpx help`

pub(crate) mod args;
pub(super) mod run;
