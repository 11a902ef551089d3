//! KP: kube-proxy's configuration and health.

mod config;
mod health;
mod log;
mod node;
mod setup;
mod silence;

use super::Check;

pub use silence::fold;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    config::CHECKS,
    health::CHECKS,
    log::CHECKS,
    node::CHECKS,
    setup::CHECKS,
];
