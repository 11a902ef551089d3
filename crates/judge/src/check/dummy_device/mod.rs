//! DV: the link kube-ipvs0.

mod addresses;
mod link;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[addresses::CHECKS, link::CHECKS];
