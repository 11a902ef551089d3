//! MX: leftovers of another mode.

mod leftovers;
mod migration;
mod modes;
mod worse;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    leftovers::CHECKS,
    migration::CHECKS,
    modes::CHECKS,
    worse::CHECKS,
];
