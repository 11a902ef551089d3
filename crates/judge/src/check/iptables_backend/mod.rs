//! IB: the back ends of iptables.

mod backends;
mod tables;

use super::Check;

pub use tables::lost_conditions;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[backends::CHECKS, tables::CHECKS];
