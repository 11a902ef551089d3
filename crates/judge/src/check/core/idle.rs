//! Idle connections: timeouts after which the node forgets them.

use std::collections::BTreeSet;

use crate::check::{Facts, ServiceRef};
use kpx_node::net::Proto;

/// Seconds below which an idle timeout breaks connections that are in use: the load balancers of clouds and the pools of clients keep idle
/// ones for longer.
pub(crate) const SHORT_IDLE: u64 = 300;

/// Returns the Services with endpoints of a port of TCP.
pub(crate) fn of_tcp(facts: &Facts<'_>) -> BTreeSet<ServiceRef> {
    let ports = facts.owners().ports().iter();
    let of_tcp = ports.filter(|port| port.proto == Proto::Tcp && !port.endpoints.is_empty());
    of_tcp.map(|port| ServiceRef::from(&port.name)).collect()
}
