//! KM: the kernel and its modules.

mod ipvs;
mod kernel;
mod loading;
mod modules;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[ipvs::CHECKS, kernel::CHECKS, loading::CHECKS];
