//! SY: kernel settings.

mod ipvs;
mod kernel_log;
mod neighbours;
mod obstacles;
mod routing;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[
    ipvs::CHECKS,
    kernel_log::CHECKS,
    neighbours::CHECKS,
    obstacles::CHECKS,
    routing::CHECKS,
];

/// Returns whether `check` judges the connections to every Service.
pub(super) fn judges(check: &Check) -> bool {
    obstacles::CHECKS
        .iter()
        .any(|own_check| own_check.id == check.id)
}
