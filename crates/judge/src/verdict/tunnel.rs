//! Tunnels to other nodes: the addresses that Nodes announce for them, of which one that two Nodes have leads to neither; and the
//! packets in which a tunnel carries those of pods, which pass the rules of the node as its own.

use std::net::IpAddr;

use serde::Deserialize;

use super::judge::{Judge, Question};
use super::peers::addresses;
use super::replies::{ends, is_stopped};
use super::{By, Fault, Missing, Obstacle};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::why::decisive;
use crate::trace::{self, Entry, Flow, Outcome};
use kpx_node::cluster::Node;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::links::Link;

/// The protocol of IP in IP.
const IPIP: Proto = Proto::Other(4);

/// Annotations with which agents announce the address of their Node: of flannel, and of Calico, which writes its prefix, too.
const ANNOTATIONS: &[&str] = &[
    "flannel.alpha.coreos.com/public-ip",
    "flannel.alpha.coreos.com/public-ipv6",
    "projectcalico.org/IPv4Address",
    "projectcalico.org/IPv6Address",
];

/// The beginnings of names of VXLAN links whose port is known: that of flannel, which is the kernel's own, and of Calico.
const VXLAN_PORTS: &[(&str, u16)] = &[("flannel", 8472), ("vxlan.calico", 4789)];

impl Judge<'_> {
    /// Returns the fault of a packet to a pod of another node if rules of this one stop the packets of the tunnel to that node, or
    /// from it, or may.
    pub(super) fn stopped_tunnel(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let family = Family::of(question.flow.destination);
        if self.unread[usize::from(family == Family::V6)].is_some() || self.ends_here(outcome) {
            return None;
        }
        let out = outcome.leaves_by()?;
        let links = self.node.links().ok()?.all.iter();
        let (proto, port) = carried_by(links.into_iter().find(|of| of.name == out)?)?;
        let (own, other) = self.both_ends(outcome)?;
        let name = &other.metadata.name;
        let key = (out.to_owned(), name.clone());
        if let Some(known) = self.tunnels.borrow().get(&key) {
            return known.clone();
        }
        let (peer, own) = (end_of(other)?, end_of(own)?);
        let leaves = Flow {
            entry: Entry::Host,
            source: Some(own),
            destination: peer,
            port,
            mark: 0,
            proto,
            established: false,
        };
        let comes = Flow {
            entry: Entry::Outside,
            source: Some(peer),
            destination: own,
            // Each side of VXLAN sends from ports of its own.
            established: proto == IPIP,
            ..leaves.clone()
        };
        let all = [(leaves, false), (comes, true)].into_iter();
        let mut stopped = all.filter_map(|(flow, incoming)| {
            let family = Family::of(flow.destination);
            let outcomes = self.back(family).brief(&flow);
            let first = outcomes.iter().find(|of| ends(of))?;
            let reason = trace::why(first, None);
            if !outcomes.iter().all(is_stopped) {
                let way = if incoming { "from" } else { "to" };
                return Some(Fault::Unknown(Missing::Other(format!(
                    "whether the packets of tunnel {out} {way} {name} pass is unknown: {reason}"
                ))));
            }
            Some(Fault::Obstacle(Box::new(Obstacle::Tunnel {
                link: out.to_owned(),
                carrier: (proto, port),
                node: name.clone(),
                peer,
                incoming,
                reason,
                by: decisive(first).and_then(|hop| By::foreign(hop, family, self.node)),
            })))
        });
        let found = stopped.next();
        self.tunnels.borrow_mut().insert(key, found.clone());
        found
    }

    /// Returns this Node, and the other one to whose pods the packet goes.
    fn both_ends(&self, outcome: &Outcome) -> Option<(&Node, &Node)> {
        let other = self.places.node_of_pod(outcome.destination.0)?;
        let own = self.places.object()?;
        (other.metadata.name != own.metadata.name).then_some((own, other))
    }

    /// Returns the fault of a packet between pods of two nodes that goes through flannel's VXLAN link if one end of it has another MAC
    /// address than its Node announces: the receiver discards it.
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
        let came = (question.flow.entry == Entry::Outside && self.places.is_pod(back))
            .then(link_back)
            .flatten();
        let links = self.node.links().ok()?.all.iter();
        let of_name = |name: &str| links.clone().find(|of| of.name == name);
        let is_vxlan = |of: &&Link| of.kind == "vxlan" && of.name.starts_with("flannel");
        let leaves = out.and_then(of_name).filter(is_vxlan);
        let comes = came.as_deref().and_then(of_name).filter(is_vxlan);
        let (link, far) = match (leaves, comes) {
            (Some(link), _) => (link, to),
            (None, Some(link)) => (link, back),
            (None, None) => return None,
        };
        let mac = |node: &Node| vtep_mac(node, Family::of(far), link);
        let fault = |node: &Node, announced, used: &str, incoming| {
            Some(Fault::Obstacle(Box::new(Obstacle::TunnelMac {
                node: node.metadata.name.clone(),
                link: link.name.clone(),
                announced,
                used: used.to_owned(),
                incoming,
            })))
        };
        if let (Some(announced), Some(used)) = (mac(own), &link.mac)
            && !announced.eq_ignore_ascii_case(used)
        {
            return fault(own, announced, used, true);
        }
        let other = self.places.node_of_pod(far)?;
        let next = match self.router.decide(Lookup::to(Asked::new(far, None))) {
            Decision::Out { gateway, .. } => gateway.unwrap_or(far),
            _ => return None,
        };
        let entry = self.node.neighbour_table().ok()?.on(next, &link.name)?;
        let used = entry.mac.as_deref().filter(|_| entry.permanent)?;
        let announced = mac(other)?;
        if announced.eq_ignore_ascii_case(used) {
            return None;
        }
        fault(other, announced, used, false)
    }

    /// Returns the fault of a packet to a pod of another Node that announces this node's address for its tunnels.
    pub(super) fn same_tunnel_end(&self, outcome: &Outcome) -> Option<Fault> {
        let out = outcome.leaves_by()?;
        if self.node.links().is_err() || !self.is_tunnel(out) {
            return None;
        }
        let (own, other) = self.both_ends(outcome)?;
        ANNOTATIONS.iter().find_map(|annotation| {
            let address = announced(other, annotation);
            let address = address.filter(|_| address == announced(own, annotation))?;
            Some(Fault::Obstacle(Box::new(Obstacle::SameTunnelEnd {
                node: other.metadata.name.clone(),
                address,
                annotation,
            })))
        })
    }
}

/// Returns the protocol and the port of the packets in which `link` carries those of pods; `None` if they are not known.
fn carried_by(link: &Link) -> Option<(Proto, u16)> {
    match link.kind.as_str() {
        "vxlan" => {
            let mut known = VXLAN_PORTS.iter();
            let by_name = known.find(|(name, _)| link.name.starts_with(name));
            let port = link.tunnel_port.or(by_name.map(|(_, port)| *port))?;
            Some((Proto::Udp, port))
        }
        "ipip" => Some((IPIP, 0)),
        _ => None,
    }
}

/// What flannel announces of the end of its VXLAN tunnel.
#[derive(Deserialize)]
struct Vtep {
    /// The number of the network.
    #[serde(rename = "VNI")]
    vni: Option<u64>,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

/// Returns the MAC address that flannel announces for `link` of `node` and pods of `family`; `None` if it announces none.
fn vtep_mac(node: &Node, family: Family, link: &Link) -> Option<String> {
    let key = match family {
        Family::V4 => "flannel.alpha.coreos.com/backend-data",
        Family::V6 => "flannel.alpha.coreos.com/backend-v6-data",
    };
    let text = node.metadata.annotations.get(key)?;
    let vtep: Vtep = serde_json::from_str(text).ok()?;
    // Two networks have a link each.
    let is_it = vtep.vni.is_none() || link.vni.is_none() || vtep.vni == link.vni;
    (is_it && !vtep.mac.is_empty()).then_some(vtep.mac)
}

/// Returns the address that `node` announces with `annotation`.
fn announced(node: &Node, annotation: &str) -> Option<IpAddr> {
    let text = node.metadata.annotations.get(annotation)?;
    text.parse::<Cidr>().ok().map(|of| of.addr)
}

/// Returns the IPv4 address of `node` for tunnels: the one that it announces, else its own.
fn end_of(node: &Node) -> Option<IpAddr> {
    let mut all = ANNOTATIONS
        .iter()
        .filter_map(|annotation| announced(node, annotation))
        .chain(addresses(node));
    all.find(IpAddr::is_ipv4)
}
