//! `kpx watch`

pub(crate) mod args;
pub(super) mod run;
