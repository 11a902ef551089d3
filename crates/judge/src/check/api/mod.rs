//! AP: the objects of the cluster.

mod addresses;
mod api_server;
mod services;

use super::Check;

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[addresses::CHECKS, api_server::CHECKS, services::CHECKS];
