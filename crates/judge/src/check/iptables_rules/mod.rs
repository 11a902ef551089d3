//! IR: the rules of iptables.

mod chains;
mod dnat;
mod drift;
mod drops;
mod foreign;

use super::Check;

pub(super) use foreign::flushes;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    chains::CHECKS,
    dnat::CHECKS,
    drift::CHECKS,
    drops::CHECKS,
    foreign::CHECKS,
];
