//! The MAC addresses of VXLAN tunnels, to which nodes send the packets for pods of each other.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::judge::{Judge, Question};
use super::place::pod_ranges;
use super::tunnel::end_of;
use super::{Fault, Obstacle, TunnelState, WrongMac};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::{Entry, Outcome};
use kpx_node::cluster::Node;
use kpx_node::net::Family;
use kpx_node::node::links::Link;

/// Annotations with the MAC addresses of Calico's VXLAN links.
const CALICO_MACS: [(Family, &str, &str); 2] = [
    (
        Family::V4,
        "projectcalico.org/VXLANTunnelMACAddr",
        "vxlan.calico",
    ),
    (
        Family::V6,
        "projectcalico.org/VXLANTunnelMACAddrV6",
        "vxlan-v6.calico",
    ),
];

/// A MAC address that several Nodes announce for their ends of one tunnel.
pub(crate) struct SharedMac<'n> {
    /// The tunnel's link on each node.
    pub(crate) link: String,
    /// The address, in lower case.
    pub(crate) mac: String,
    /// The Nodes.
    pub(crate) nodes: Vec<&'n Node>,
}

impl SharedMac<'_> {
    /// Returns the machine-id of these Nodes, if it is the same.
    pub(crate) fn machine(&self) -> Option<&str> {
        let mut ids = self
            .nodes
            .iter()
            .map(|node| &*node.status.node_info.machine_id);
        let first = ids.next().filter(|id| !id.is_empty())?;
        ids.all(|id| id == first).then_some(first)
    }
}

impl Judge<'_> {
    /// Returns the fault of a packet between pods of two nodes through a VXLAN link, if it is sent to another MAC address than the other
    /// end has, or one end of flannel's link has another than its Node announces: the receiver discards it.
    pub(super) fn other_tunnel_mac(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let own = self.places.object()?;
        let (to, back) = (outcome.destination.0, outcome.sent_from);
        let is_out = !self.ends_here(outcome);
        let out = outcome.leaves_by().filter(|_| is_out);
        let link_back = || match self.router.decide(Lookup::to(Asked::new(back, None))) {
            Decision::Out { device, .. } => device,
            _ => None,
        };
        // The node's own packets have the address of its end of the tunnel.
        let node_of = |addr| {
            let by_address = || {
                self.places
                    .node_called(self.others.as_ref()?.node_with(addr)?)
            };
            self.places.node_of_pod(addr).or_else(by_address)
        };
        let is_of_other =
            || node_of(back).is_some_and(|node| node.metadata.name != own.metadata.name);
        let came = (question.flow.entry == Entry::Outside && is_of_other())
            .then(link_back)
            .flatten();
        let links = self.node.links().ok()?.all.iter();
        let of_name = |name: &str| links.clone().find(|link| link.name == name);
        let is_vxlan = |link: &&Link| link.kind == "vxlan";
        let leaves = out.and_then(of_name).filter(is_vxlan);
        let comes = came.as_deref().and_then(of_name).filter(is_vxlan);
        let (link, far) = match (leaves, comes) {
            (Some(link), _) => (link, to),
            (None, Some(link)) => (link, back),
            (None, None) => return None,
        };
        let is_flannel = link.name.starts_with("flannel");
        let mac = |node: &Node| vtep_mac(node, Family::of(far), link).filter(|_| is_flannel);
        let fault = |node: &Node, announced, used: &str, wrong| {
            Some(Fault::Obstacle(Box::new(Obstacle::TunnelMac {
                node: node.metadata.name.clone(),
                link: link.name.clone(),
                announced,
                used: used.to_owned(),
                wrong,
            })))
        };
        if let (Some(announced), Some(used)) = (mac(own), &link.mac)
            && !announced.eq_ignore_ascii_case(used)
        {
            return fault(own, announced, used, WrongMac::Own);
        }
        let other = node_of(far)?;
        let network = || self.other_network(other, link, outcome);
        if let Some(fault) = is_flannel.then(network).flatten() {
            return Some(fault);
        }
        if let Some(fault) = self.one_mac(other, link) {
            return Some(fault);
        }
        let next = match self.router.decide(Lookup::to(Asked::new(far, None))) {
            Decision::Out { gateway, .. } => gateway.unwrap_or(far),
            _ => return None,
        };
        let entry = self.node.neighbour_table().ok()?.on(next, &link.name)?;
        let used = entry.mac.as_deref()?;
        let others = self.others.as_ref();
        let has = others.and_then(|others| others.link_with(&other.metadata.name, next));
        if let Some((_, has)) = has
            && !has.eq_ignore_ascii_case(used)
        {
            return fault(other, has.to_owned(), used, WrongMac::Sent);
        }
        let used = Some(used).filter(|_| entry.permanent)?;
        let announced = mac(other)?;
        let own_mac = link.mac.as_deref();
        if own_mac.is_some_and(|mac| mac.eq_ignore_ascii_case(&announced)) {
            return fault(other, announced, used, WrongMac::Same);
        }
        if announced.eq_ignore_ascii_case(used) {
            return None;
        }
        let far_of = |node: &&Node| {
            let its = vtep_mac(node, Family::of(far), link).filter(|_| is_flannel);
            its.is_some_and(|its| its.eq_ignore_ascii_case(used))
        };
        let mut nodes = self.node.nodes().ok()?.iter();
        let wrong = match nodes.find(far_of) {
            Some(third) if pod_ranges(third).iter().any(|range| range.contains(far)) => {
                WrongMac::SharedRange(third.metadata.name.clone())
            }
            _ => WrongMac::Far,
        };
        fault(other, announced, used, wrong)
    }

    /// Returns the fault of packets to `other` if another Node announces its MAC address for `link`: a link has one way to an address.
    fn one_mac(&self, other: &Node, link: &Link) -> Option<Fault> {
        let shared = shared_macs(self.node.nodes().ok()?);
        let of_other = |shared: &&SharedMac<'_>| {
            let mut nodes = shared.nodes.iter();
            shared.link == link.name && nodes.any(|node| node.metadata.name == other.metadata.name)
        };
        let shared = shared.iter().find(of_other)?;
        let mut nodes = shared.nodes.iter();
        let third = nodes.find(|node| node.metadata.name != other.metadata.name)?;
        let is_own = link.mac.as_deref() == Some(&shared.mac);
        Some(Fault::Obstacle(Box::new(Obstacle::TunnelMac {
            node: other.metadata.name.clone(),
            link: link.name.clone(),
            announced: shared.mac.clone(),
            used: shared.mac.clone(),
            wrong: if is_own {
                WrongMac::Same
            } else {
                WrongMac::OfTwo {
                    third: third.metadata.name.clone(),
                    machine: shared.machine().map(str::to_owned),
                }
            },
        })))
    }

    /// Returns the fault of flannel's VXLAN `link` if it has another VNI than `other` announces, and no link of this node has that one.
    fn other_network(&self, other: &Node, link: &Link, outcome: &Outcome) -> Option<Fault> {
        let to = outcome.destination.0;
        let announced = vtep(other, Family::of(to))?.vni?;
        let links = &self.node.links().ok()?.all;
        // Two networks have a link each; of one that is not listed, the VNI is not known.
        let mut vnis = links
            .iter()
            .filter(|link| link.kind == "vxlan")
            .map(|link| link.vni);
        if vnis.any(|vni| vni.is_none_or(|vni| vni == announced)) {
            return None;
        }
        let labels = &other.metadata.labels;
        Some(Fault::Obstacle(Box::new(Obstacle::OffTunnel {
            link: link.name.clone(),
            state: TunnelState::OtherNetwork {
                own: link.vni?,
                announced,
                windows: labels
                    .get("kubernetes.io/os")
                    .is_some_and(|os| os == "windows"),
            },
            node: other.metadata.name.clone(),
            to,
            way: link.name.clone(),
            agent: self.agent(),
            error: None,
        })))
    }
}

/// flannel's announcement of the end of its VXLAN tunnel.
#[derive(Deserialize)]
pub(super) struct Vtep {
    /// The number of the network.
    #[serde(rename = "VNI")]
    vni: Option<u64>,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

impl Vtep {
    /// Returns flannel's link of the tunnel for pods of `family`.
    pub(super) fn link(&self, family: Family) -> String {
        let vni = self.vni.unwrap_or(1);
        match family {
            Family::V4 => format!("flannel.{vni}"),
            Family::V6 => format!("flannel-v6.{vni}"),
        }
    }
}

/// Returns the annotation with which flannel announces its ends of tunnels for pods of `family`.
const fn backend_data(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.alpha.coreos.com/backend-data",
        Family::V6 => "flannel.alpha.coreos.com/backend-v6-data",
    }
}

/// Returns what flannel announces of the end of `node` of its VXLAN tunnel for pods of `family`.
pub(super) fn vtep(node: &Node, family: Family) -> Option<Vtep> {
    let text = node.metadata.annotations.get(backend_data(family))?;
    serde_json::from_str(text).ok()
}

/// Returns the MAC address that flannel announces for `link` of `node` and pods of `family`; `None` if it announces none.
fn vtep_mac(node: &Node, family: Family, link: &Link) -> Option<String> {
    let vtep = vtep(node, family)?;
    // Two networks have a link each.
    let is_it = vtep.vni.is_none() || link.vni.is_none() || vtep.vni == link.vni;
    (is_it && !vtep.mac.is_empty()).then_some(vtep.mac)
}

/// Returns the MAC addresses that several of `nodes` announce for one tunnel, unless all of these are one machine.
pub(crate) fn shared_macs(nodes: &[Node]) -> Vec<SharedMac<'_>> {
    let mut all: BTreeMap<(String, String), (Family, Vec<&Node>)> = BTreeMap::new();
    for node in nodes {
        for (family, link, mac) in announced_macs(node) {
            let key = (link, mac.to_ascii_lowercase());
            all.entry(key).or_insert((family, Vec::new())).1.push(node);
        }
    }
    let shared = all.into_iter().filter(|(_, (family, nodes))| {
        let ends: Vec<_> = nodes.iter().map(|node| end_of(node, *family)).collect();
        ends.iter().any(|end| *end != ends[0])
    });
    shared
        .map(|((link, mac), (_, nodes))| SharedMac { link, mac, nodes })
        .collect()
}

/// Returns the links of tunnels for which `node` announces a MAC address.
fn announced_macs(node: &Node) -> Vec<(Family, String, String)> {
    let of_flannel = Family::BOTH.into_iter().filter_map(|family| {
        let vtep = vtep(node, family).filter(|vtep| !vtep.mac.is_empty())?;
        Some((family, vtep.link(family), vtep.mac))
    });
    let of_calico = CALICO_MACS.iter().filter_map(|(family, annotation, link)| {
        let mac = node.metadata.annotations.get(*annotation)?;
        Some((*family, (*link).to_owned(), mac.clone()))
    });
    of_flannel.chain(of_calico).collect()
}
