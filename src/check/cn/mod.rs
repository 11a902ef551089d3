//! CN: the network plug-in.

mod calico;
mod plugins;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[calico::CHECKS, plugins::CHECKS];
