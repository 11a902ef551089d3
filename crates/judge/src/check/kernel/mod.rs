//! KM: the kernel and its modules.

mod ipvs;
mod release;
mod loading;
mod modules;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[ipvs::CHECKS, release::CHECKS, loading::CHECKS];
