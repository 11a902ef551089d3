//! The link of a pod's packets, if the route to the pod leads elsewhere.

use std::net::IpAddr;

use super::region::Asked;
use super::route::Router;
use kpx_node::net::Family;
use kpx_node::node::links::{Address, Link, Links};

impl<'a> Router<'a> {
    /// Returns the link by which packets of `pod` come in, if its route leads to `devices`, which do not lead to pods of this node.
    pub(crate) fn home(&self, pod: Asked<'_, IpAddr>, devices: &[&str]) -> Option<&'a str> {
        let addresses = self.node.addresses().ok()?.all.as_slice();
        let links = self.node.links().ok()?;
        let link = |name: &str| links.all.iter().find(|link| link.name == name);
        let may_lead_there =
            |device: &&str| link(device).is_some_and(|link| may_have(link, addresses, pod));
        let known = self.link_of(links, pod);
        // The link by which the node reaches others does not lead to a pod that is behind another one.
        let is_of_node = |device: &&str| self.has_address_of_node(addresses, device);
        let is_known = known.is_some() && devices.iter().all(is_of_node);
        if !is_known && devices.iter().any(may_lead_there) {
            return None;
        }
        let home = known.or_else(|| bridge_of(links, addresses, pod))?;
        (!devices.contains(&home)).then_some(home)
    }

    /// Returns whether the link called `name` has an address of this Node.
    fn has_address_of_node(&self, addresses: &[Address], name: &str) -> bool {
        let Ok(own) = self.node.name() else {
            return false;
        };
        let nodes = self.node.nodes().map_or(&[][..], Vec::as_slice);
        let own = nodes.iter().filter(|node| node.metadata.name == own);
        let mut announced = own.flat_map(|node| &node.status.addresses);
        announced.any(|announced| {
            let mut here = addresses.iter().filter(|at| at.link == name);
            here.any(|at| announced.address.parse() == Ok(at.addr.addr))
        })
    }

    /// Returns the link to the network of `pod`, or the bridge of which it is a port, if networks of pods are read.
    fn link_of(&self, links: &'a Links, pod: Asked<'_, IpAddr>) -> Option<&'a str> {
        let mut all = self.node.pod_networks().ok()?.iter();
        let network = all.find(|network| network.addresses.iter().any(|at| pod.is_address(*at)))?;
        let link = network.link_of(links)?;
        let Some(master) = &link.master else {
            return Some(&link.name);
        };
        // With Open vSwitch, its own flows choose the link.
        let mut all = links.all.iter();
        let is_bridge = all.any(|link| link.name == *master && link.kind == "bridge");
        is_bridge.then_some(master.as_str())
    }
}

/// Returns the link of pods that has a network with the address of `pod`.
fn bridge_of<'a>(
    links: &'a Links,
    addresses: &'a [Address],
    pod: Asked<'_, IpAddr>,
) -> Option<&'a str> {
    let is_of_pods = |at: &&Address| {
        let mut found = links.all.iter().filter(|link| link.name == at.link);
        found.any(|link| link.kind == "bridge" || link.carries_pods())
    };
    let home = addresses
        .iter()
        .filter(|at| at.addr.family() == Family::of(pod.shown()) && !at.addr.is_host())
        .filter(|at| pod.is_in(at.addr))
        .find(is_of_pods)?;
    Some(&home.link)
}

/// Returns whether `link` may lead to a pod with the address: it is no tunnel, and has no network of others.
fn may_have(link: &Link, addresses: &[Address], pod: Asked<'_, IpAddr>) -> bool {
    let mut networks = addresses.iter().filter(|at| {
        at.link == link.name
            && at.addr.family() == Family::of(pod.shown())
            && !at.addr.is_host()
            && at.scope == "global"
    });
    link.name != "lo"
        && !link.is_tunnel()
        && !matches!(link.kind.as_str(), "dummy" | "ifb")
        && networks.all(|at| pod.is_in(at.addr))
}
