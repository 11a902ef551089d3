//! CT: connection tracking.

mod flows;
mod table;

pub(in crate::check) use flows::FLOWS;
pub use flows::{Stale, Why, stale};
pub(in crate::check) use flows::{connection, stale_of};
pub use table::room_fix;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[flows::CHECKS, table::CHECKS];
