//! The link of a pod's packets where the route to the pod leads elsewhere.

use std::net::IpAddr;

use super::region::Asked;
use super::route::Router;
use kpx_node::net::Family;
use kpx_node::node::links::{Address, Link};

/// Kinds of links that lead to other nodes or nowhere, not to pods of this one.
const ELSEWHERE: [&str; 8] = [
    "vxlan",
    "geneve",
    "wireguard",
    "ipip",
    "sit",
    "gre",
    "dummy",
    "ifb",
];

impl<'a> Router<'a> {
    /// Returns the link of pods whose network has the address of `pod`, if the route to it leads to `devices`, which do not lead
    /// to pods of this node.
    pub(crate) fn home(&self, pod: Asked<'_, IpAddr>, devices: &[&str]) -> Option<&'a str> {
        let addresses = self.node.addresses().ok()?.all.as_slice();
        let links = self.node.links().ok()?.all.as_slice();
        let link = |name: &str| links.iter().find(|link| link.name == name);
        let is_of_pods = |at: &&Address| {
            let found = link(&at.link);
            found.is_some_and(|link| link.kind == "bridge" || link.carries_pods())
        };
        let home = addresses
            .iter()
            .filter(|at| at.addr.family() == Family::of(pod.shown()) && !at.addr.is_host())
            .filter(|at| pod.is_in(at.addr))
            .find(is_of_pods)?;
        let may_lead_there = |device: &&str| {
            **device == home.link || link(device).is_some_and(|link| may_have(link, addresses, pod))
        };
        (!devices.iter().any(may_lead_there)).then_some(home.link.as_str())
    }
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
        && !ELSEWHERE.contains(&link.kind.as_str())
        && networks.all(|at| pod.is_in(at.addr))
}
