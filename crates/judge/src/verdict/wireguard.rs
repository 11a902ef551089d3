//! Replies that `WireGuard` drops: an end takes only packets from the addresses that it knows of the other one, those of its pods.

use super::judge::Judge;
use super::peers::addresses;
use super::tunnel::BACKEND_TYPE;
use super::{Fault, Obstacle};
use crate::trace::Outcome;
use kpx_node::cluster::Node;
use kpx_node::net::Family;

/// Annotations with Calico's keys of `WireGuard`, and its links.
const CALICO_KEYS: [(Family, &str, &str); 2] = [
    (
        Family::V4,
        "projectcalico.org/WireguardPublicKey",
        "wireguard.cali",
    ),
    (
        Family::V6,
        "projectcalico.org/WireguardPublicKeyV6",
        "wg-v6.cali",
    ),
];

/// Returns the link by which `node` sends to pods of other nodes, if it announces `WireGuard` for them.
fn wireguard(node: &Node, family: Family) -> Option<&'static str> {
    let annotations = &node.metadata.annotations;
    let is_of_flannel = annotations
        .get(BACKEND_TYPE)
        .is_some_and(|kind| kind == "wireguard");
    let mut keys = CALICO_KEYS.iter();
    let key = keys.find(|(of, key, _)| *of == family && annotations.contains_key(*key));
    key.map(|(.., link)| *link)
        .or_else(|| is_of_flannel.then_some("flannel-wg"))
}

impl Judge<'_> {
    /// Returns the fault of a packet from a pod of this node to the address of another Node: the replies come back through `WireGuard`,
    /// from a source that it does not take.
    pub(super) fn beyond_wireguard(&self, outcome: &Outcome) -> Option<Fault> {
        let own = self.places.object()?;
        let at = outcome.destination.0;
        let link = wireguard(own, Family::of(at))?;
        let is_of_pod = self.places.is_pod_here(outcome.source) == Some(true);
        if outcome.masquerade || !is_of_pod || self.ends_here(outcome) {
            return None;
        }
        let mut nodes = self.node.nodes().ok()?.iter();
        let server = nodes.find(|node| addresses(node).contains(&at))?;
        let both = wireguard(server, Family::of(at)) == Some(link);
        let is_up = self.link(link)?.flag("UP") == Some(true);
        // A tunnel that also carries the nodes' own packets takes their addresses.
        let is_for_pods = outcome.leaves_by() != Some(link);
        (both && is_up && is_for_pods).then(|| {
            Fault::Obstacle(Box::new(Obstacle::UnallowedSource {
                link: link.to_owned(),
                address: at,
                server: server.metadata.name.clone(),
                client: own.metadata.name.clone(),
            }))
        })
    }
}
