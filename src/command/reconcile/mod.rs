//! `kpx reconcile`

pub(crate) mod args;
mod cleanup;
mod follow;
mod health;
pub(super) mod plan;
pub(super) mod run;
