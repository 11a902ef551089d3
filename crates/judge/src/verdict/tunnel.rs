//! The addresses that Nodes announce for tunnels: one that two Nodes have leads to neither.

use super::judge::Judge;
use super::{Fault, Obstacle};
use crate::trace::Outcome;
use kpx_node::net::Cidr;

/// Annotations with which agents announce the address of their Node: of flannel, and of Calico, which writes its prefix, too.
const ANNOTATIONS: &[&str] = &[
    "flannel.alpha.coreos.com/public-ip",
    "flannel.alpha.coreos.com/public-ipv6",
    "projectcalico.org/IPv4Address",
    "projectcalico.org/IPv6Address",
];

impl Judge<'_> {
    /// Returns the fault of a packet to a pod of another Node that announces this node's address for its tunnels.
    pub(super) fn same_tunnel_end(&self, outcome: &Outcome) -> Option<Fault> {
        let out = outcome.leaves_by()?;
        if self.node.links().is_err() || !self.is_tunnel(out) {
            return None;
        }
        let name = self.places.node_of_pod(outcome.destination.0)?;
        let own = self.places.object()?;
        let nodes = self.node.nodes().ok()?;
        let other = nodes.iter().find(|of| of.metadata.name == name)?;
        if other.metadata.name == own.metadata.name {
            return None;
        }
        ANNOTATIONS.iter().find_map(|annotation| {
            let of = |node: &kpx_node::cluster::Node| {
                let text = node.metadata.annotations.get(*annotation)?;
                text.parse::<Cidr>().ok().map(|of| of.addr)
            };
            let address = of(other).filter(|address| of(own) == Some(*address))?;
            Some(Fault::Obstacle(Box::new(Obstacle::SameTunnelEnd {
                node: name.to_owned(),
                address,
                annotation,
            })))
        })
    }
}
