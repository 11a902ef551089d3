//! Differences that depend on this node's Node object, if it is unknown.

use std::collections::BTreeSet;

use super::Change;
use kpx_node::backend::Mode;
use kpx_node::cluster::config::NodePortsAt;
use kpx_node::desired::{DesiredState, Hint};

/// Differences that may come from the Node being unknown: its zone chooses endpoints, and its addresses and pod prefix are in
/// rules.
#[derive(Debug)]
pub(super) struct Doubt {
    /// Service ports, and their Services, whose rules depend on the zone or on the node's address.
    services: BTreeSet<String>,
    /// Whether rules of no Service in particular depend on the node's address.
    general: bool,
    /// Whether any rule may depend on the Node.
    all: bool,
}

impl Doubt {
    /// Returns the doubt about `desired`, which was built without a Node.
    pub(super) fn of(desired: &DesiredState) -> Self {
        let config = &desired.config;
        let primary = config
            .node_ports_at(desired.mode)
            .contains(&NodePortsAt::Primary);
        let ports = desired.families.iter().flat_map(|state| &state.ports);
        let ports = ports.filter(|port| {
            let mut endpoints = port.endpoints.iter();
            port.has_firewall() || endpoints.any(|endpoint| endpoint.zone != Hint::None)
        });
        let names = ports.flat_map(|port| {
            let service = format!("{}/{}", port.namespace, port.service);
            [service, port.spn.clone()]
        });
        Self {
            services: names.collect(),
            general: primary,
            all: config.detect_local_mode == "NodeCIDR" || primary && desired.mode == Mode::Ipvs,
        }
    }

    /// Returns whether `change` may come from it.
    pub(super) fn covers(&self, change: &Change) -> bool {
        let of_service = |service: &String| self.services.contains(service);
        self.all || change.service.as_ref().map_or(self.general, of_service)
    }
}
