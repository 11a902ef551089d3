//! The link of a pod's packets where the route to the pod leads elsewhere.

use std::net::IpAddr;

use super::region::Asked;
use super::route::Router;
use kpx_node::net::Family;
use kpx_node::node::links::{Address, Link, Links};

impl<'a> Router<'a> {
    /// Returns the link by which packets of `pod` come in, if the route to it leads to `devices`, which do not lead to pods of this
    /// node.
    pub(crate) fn home(&self, pod: Asked<'_, IpAddr>, devices: &[&str]) -> Option<&'a str> {
        let addresses = self.node.addresses().ok()?.all.as_slice();
        let links = self.node.links().ok()?;
        let link = |name: &str| links.all.iter().find(|link| link.name == name);
        let may_lead_there =
            |device: &&str| link(device).is_some_and(|of| may_have(of, addresses, pod));
        if devices.iter().any(may_lead_there) {
            return None;
        }
        let home = self
            .link_of(links, pod)
            .or_else(|| bridge_of(links, addresses, pod))?;
        (!devices.contains(&home)).then_some(home)
    }

    /// Returns the link that leads to the network of `pod`, or the bridge that it is a port of, if networks of pods are read.
    fn link_of(&self, links: &'a Links, pod: Asked<'_, IpAddr>) -> Option<&'a str> {
        let mut all = self.node.pod_networks().ok()?.iter();
        let network = all.find(|of| of.addresses.iter().any(|at| pod.is_address(*at)))?;
        let link = network.link_of(links)?;
        Some(link.master.as_deref().unwrap_or(&link.name))
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
