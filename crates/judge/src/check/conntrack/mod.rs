//! CT: connection tracking.

mod flows;
mod table;

pub(in crate::check) use flows::FLOWS;
pub(in crate::check) use flows::stale_of;
pub use flows::{Stale, Why, stale};
pub use table::room_fix;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[flows::CHECKS, table::CHECKS];
