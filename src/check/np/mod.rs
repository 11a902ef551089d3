//! NP: NodePorts and sockets.

mod connections;
mod sockets;

use super::Check;
pub(super) use connections::{localhost, secondary};

/// The tables of the group.
pub(super) const CHECKS: &[&[Check]] = &[connections::CHECKS, sockets::CHECKS];
