//! CT: connection tracking.

mod flows;
mod table;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[flows::CHECKS, table::CHECKS];
