//! The link-layer addresses and bridge ports of packets, as far as the evidence has them.

use std::net::IpAddr;
use std::rc::Rc;

use super::packet::{Link, Packet};
use super::region::Asked;
use super::route::{Decision, Lookup, Router};
use kpx_node::cluster::Pod;
use kpx_node::node::links::Link as NodeLink;

impl<'a> Router<'a> {
    /// Returns the MAC address of the machine or pod with `addr`, or of the router that leads there.
    fn mac_of(&self, addr: Asked<'_, IpAddr>) -> Option<&'a str> {
        if let Some(inside) = self.pod_link(addr) {
            return inside.mac.as_deref();
        }
        let Decision::Out {
            device: Some(device),
            gateway,
            ..
        } = self.decide(Lookup::to(addr))
        else {
            return None;
        };
        let all = self.node.neighbour_table().ok()?;
        let found = if let Some(gateway) = gateway {
            all.on(gateway, &device)
        } else {
            let mut on_link = all.all.iter().filter(|entry| *entry.link == *device);
            on_link.find(|entry| !entry.permanent && addr.is_address(entry.address))
        };
        found?.mac.as_deref()
    }

    /// Returns the MAC address from which `packet` came in.
    pub(super) fn sender(&self, packet: &Packet) -> Option<&'a str> {
        self.mac_of(packet.original_source())
    }

    /// Returns the MAC address to which `packet` goes on its last link.
    pub(super) fn receiver(&self, packet: &Packet) -> Option<&'a str> {
        self.mac_of(packet.destination())
    }

    /// Returns whether `packet` came in from `mac`; `None` if that is not known.
    pub(super) fn is_from(&self, mac: &str, packet: &Packet) -> Option<bool> {
        match self.sender(packet) {
            Some(of) => Some(of.eq_ignore_ascii_case(mac)),
            None => self.is_of_pod(mac).then_some(false),
        }
    }

    /// Returns whether a pod of the node has `mac`: only its own packets come from there.
    pub(super) fn is_of_pod(&self, mac: &str) -> bool {
        let all = self.node.pod_networks().into_iter().flatten();
        let links = all.flat_map(|network| &network.links);
        let mut macs = links
            .flat_map(|links| &links.all)
            .filter_map(|link| link.mac.as_deref());
        macs.any(|known| known.eq_ignore_ascii_case(mac))
    }

    /// Returns the port of a bridge behind which the pod with `addr` is.
    pub(super) fn port_of(&self, addr: Asked<'_, IpAddr>) -> Link {
        let port = self
            .pod_link(addr)
            .and_then(|inside| self.far_end(inside))
            .filter(|port| port.master.is_some());
        port.map_or(Link::Unknown, |port| Link::Named(Rc::from(&*port.name)))
    }

    /// Returns whether the link called `name` leads to a pod of the node: only its own packets pass it.
    pub(super) fn leads_to_pod(&self, name: &str) -> bool {
        let all = self.node.pod_networks().into_iter().flatten();
        let links = all.flat_map(|network| &network.links);
        let mut inside = links.flat_map(|links| &links.all);
        inside.any(|inside| self.far_end(inside).is_some_and(|port| port.name == name))
    }

    /// Returns whether a pod of the node has `addr`.
    pub(super) fn has_pod(&self, addr: Asked<'_, IpAddr>) -> bool {
        let pods = self.node.pods().into_iter().flatten();
        let mut addresses = pods
            .filter(|pod| !pod.spec.host_network)
            .flat_map(Pod::addresses);
        addresses.any(|own| addr.is_address(own))
    }

    /// Returns the link of a pod of the node that has `addr`.
    fn pod_link(&self, addr: Asked<'_, IpAddr>) -> Option<&'a NodeLink> {
        self.node
            .pod_networks()
            .into_iter()
            .flatten()
            .find_map(|network| {
                let mut own = network.by_link.iter().map(|(own, _)| *own);
                let is_own = |own: &IpAddr| !own.is_loopback() && addr.is_address(*own);
                network.link_with(own.find(is_own)?)
            })
    }

    fn far_end(&self, inside: &NodeLink) -> Option<&'a NodeLink> {
        let mut links = self.node.links().ok()?.all.iter();
        links.find(|link| Some(link.index) == inside.peer && link.peer == Some(inside.index))
    }
}
