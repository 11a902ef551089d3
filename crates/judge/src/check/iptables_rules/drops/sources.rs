//! The sources and destinations of traced packets.

use std::net::{IpAddr, SocketAddr};

use crate::trace::Entry;
use crate::trace::region::Ranges;
use crate::trace::sources::{self, Pods, Source};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Port, Role};

/// The sources of traced packets.
pub(super) struct Sources {
    /// Pods of this node; the second is for Services whose endpoint is the first.
    pods: Vec<Source>,
    host: Option<Source>,
    outside: Option<Source>,
    /// The node's own address, for NodePorts.
    own: Option<IpAddr>,
}

impl Sources {
    pub(super) fn of(node: &NodeSnapshot<'_>, family: Family) -> Self {
        let known = Pods::of(node, node.slices().map_or(&[], Vec::as_slice));
        let no_destination = match family {
            Family::V4 => IpAddr::from([0, 0, 0, 0]),
            Family::V6 => IpAddr::from([0_u16; 8]),
        };
        let mut found = Self {
            pods: Vec::new(),
            host: None,
            outside: None,
            own: sources::own_address(node, family),
        };
        let mut taken = Vec::new();
        for _ in 0..2 {
            for source in sources::usual(no_destination, &taken, node, known) {
                match source.entry {
                    Entry::Pod => found.pods.push(source),
                    Entry::Host => found.host = Some(source),
                    Entry::Outside => found.outside = Some(source),
                }
            }
            taken.extend(found.pods.iter().filter_map(|pod| pod.addr));
        }
        found
    }

    /// Iterates over the addresses of the pods.
    pub(super) fn pods(&self) -> impl Iterator<Item = IpAddr> {
        self.pods.iter().filter_map(|pod| pod.addr)
    }

    /// Returns a known pod whose address is one of `addresses`.
    pub(super) fn pod_in(&self, addresses: &Ranges) -> Option<&Source> {
        let mut pods = self.pods.iter();
        pods.find(|pod| pod.addr.is_some_and(|addr| addresses.has(addr)))
    }

    /// Returns the sources and destinations to trace for `port`.
    pub(super) fn flows(&self, port: &Port, family: Family) -> Vec<(&Source, SocketAddr)> {
        let mut flows = Vec::new();
        let behind = |source: &Source| {
            port.endpoints
                .iter()
                .any(|at| Some(at.addr.ip()) == source.addr)
        };
        let pod = self.pods.iter().find(|pod| !behind(pod));
        let addresses = port
            .addresses
            .iter()
            .filter(|(_, at)| Family::of(*at) == family);
        for &(role, addr) in addresses {
            let Some(number) = port.port else { continue };
            let to = SocketAddr::new(addr, number);
            if role == Role::ClusterIp {
                flows.extend(pod.into_iter().chain(&self.host).map(|pod| (pod, to)));
            } else {
                flows.extend(self.outside.iter().map(|outside| (outside, to)));
            }
        }
        if let (Some(number), Some(own)) = (port.node_port, self.own) {
            let to = SocketAddr::new(own, number);
            flows.extend(self.outside.iter().map(|outside| (outside, to)));
        }
        flows
    }
}
