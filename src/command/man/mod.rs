//! `kpx man`

pub(crate) mod args;
pub(super) mod run;
