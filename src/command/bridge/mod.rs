//! `kpx bridge`

pub(crate) mod args;
pub(super) mod follow;
pub(super) mod guard;
pub(super) mod run;
