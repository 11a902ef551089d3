//! `kpx render`

pub(crate) mod args;
pub(super) mod run;
