//! KP: kube-proxy's configuration and health.

mod config;
mod health;
mod log;
mod log_fixes;
mod node;
mod setup;
mod silence;

use super::{Check, Finding, Proof};

pub(super) use health::queued_sync;
pub use silence::fold;
pub(super) use silence::pod;

/// The checks of kube-proxy's log, container and process, which say why it does not program the node; the log comes first.
pub(super) const OF_PROXY: [&str; 5] = ["KP21", "KP02", "KP05", "KP06", "KP17"];

/// Returns whether `finding` is that the nft of kube-proxy's image cannot read a set.
pub(super) fn is_of_newer_sets(check: &Check, finding: &Finding) -> bool {
    let mut seen = finding.evidence.iter();
    let is_set = |proof: &Proof| matches!(proof, Proof::Object { what, .. } if *what == "nft-set");
    check.id == "KP16" && seen.any(is_set)
}

/// The check of kube-proxy's mode, which finds that its rules are gone.
pub(super) const OF_MODE: &str = "KP01";

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    config::CHECKS,
    health::CHECKS,
    log::CHECKS,
    node::CHECKS,
    setup::CHECKS,
];
