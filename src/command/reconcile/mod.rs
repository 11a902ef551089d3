//! `kpx reconcile`

pub(crate) mod args;
mod follow;
mod health;
pub(super) mod plan;
pub(super) mod run;
