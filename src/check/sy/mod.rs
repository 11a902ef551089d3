//! SY: kernel settings.

mod ipvs;
mod neighbours;
mod routing;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[ipvs::CHECKS, neighbours::CHECKS, routing::CHECKS];
