//! NP: NodePorts and sockets.

mod connections;
mod health;
mod sockets;

use super::Check;
pub(super) use connections::{localhost, secondary};
pub(super) use sockets::{is_proxys, socket_proof};

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[connections::CHECKS, health::CHECKS, sockets::CHECKS];
