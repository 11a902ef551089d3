//! NP: NodePorts and sockets.

mod connections;
mod health;
mod sockets;

use super::Check;
pub(super) use connections::{localhost, secondary};

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[connections::CHECKS, health::CHECKS, sockets::CHECKS];
