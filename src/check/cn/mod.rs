//! CN: the network plugin.

mod calico;
mod plugins;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[calico::CHECKS, plugins::CHECKS];
