//! IR: the rules of iptables.

mod chains;
mod drift;
mod drops;
mod foreign;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    chains::CHECKS,
    drift::CHECKS,
    drops::CHECKS,
    foreign::CHECKS,
];
