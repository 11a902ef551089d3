//! SY: kernel settings.

mod ipvs;
mod routing;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[ipvs::CHECKS, routing::CHECKS];
