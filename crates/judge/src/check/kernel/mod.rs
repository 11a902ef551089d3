//! KM: the kernel and its modules.

mod ipvs;
mod loading;
mod modules;
mod release;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[ipvs::CHECKS, release::CHECKS, loading::CHECKS];
