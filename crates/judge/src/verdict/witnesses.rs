//! What the other nodes know of one: their routes, addresses, links and rules.

use std::fmt;
use std::net::IpAddr;

use super::By;
use super::across::Across;
use super::arp::arp_rule;
use super::mtu::Narrow;
use kpx_node::net::Cidr;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::routes::Route;
use kpx_node::owner::chain_owner::Maker;

/// What the other nodes know of one.
pub(crate) trait Witnesses: fmt::Debug {
    /// Returns whether a node other than `name` has a route to `pods` by one of `addrs`.
    fn lead_there(&self, name: &str, pods: &[Cidr], addrs: &[IpAddr]) -> bool;
    /// Returns the destination of a route of any node to `pod` by one of `addrs`.
    fn range_of(&self, pod: IpAddr, addrs: &[IpAddr]) -> Option<Cidr>;
    /// Returns the name of the node that has `address`.
    fn node_with(&self, address: IpAddr) -> Option<&str>;
    /// Returns the link of the node `name` that has `address`, and its MAC address.
    fn link_with(&self, name: &str, address: IpAddr) -> Option<(&str, &str)>;
    /// Returns the MTUs of the node `name`, which has `address`, on the way to its `pod`.
    fn narrow(&self, name: &str, address: IpAddr, pod: IpAddr) -> Option<Narrow>;
    /// Returns another node than `name` that has `address`, too, and its link.
    fn twin_of(&self, name: &str, address: IpAddr) -> Option<(String, String)>;
    /// Returns the rule of the node `name` that certainly drops the ARP messages between its `address` and the neighbour `there`.
    fn arp_rule(&self, name: &str, address: IpAddr, there: IpAddr) -> Option<By>;
}

/// The states of the nodes.
#[derive(Debug)]
pub(super) struct Others<'n>(pub(super) &'n Across<'n>);

impl Witnesses for Others<'_> {
    fn lead_there(&self, name: &str, pods: &[Cidr], addrs: &[IpAddr]) -> bool {
        let others = self.0.nodes.iter().filter(|(other, _)| *other != name);
        let routes = others.filter_map(|(_, read)| read.as_ref().ok()?.routes().ok());
        let leads_there = |route: &Route| {
            let is_of_pods = pods
                .iter()
                .any(|pods| route.destination.prefix > 0 && pods.contains(route.destination.addr));
            is_of_pods && route.gateway.is_some_and(|by| addrs.contains(&by))
        };
        let mut all = routes.flat_map(|all| &all.all);
        all.any(leads_there)
    }

    fn range_of(&self, pod: IpAddr, addrs: &[IpAddr]) -> Option<Cidr> {
        let read = self.0.nodes.values().flatten();
        let routes = read.filter_map(|node| node.routes().ok());
        let mut all = routes.flat_map(|all| &all.all);
        let leads_there = |route: &&Route| {
            let by_node = route.gateway.is_some_and(|by| addrs.contains(&by));
            by_node && route.destination.prefix > 0 && route.destination.contains(pod)
        };
        if let Some(route) = all.find(leads_there) {
            return Some(route.destination);
        }
        // The network of the pod's own link.
        let name = addrs.iter().find_map(|addr| self.node_with(*addr))?;
        let mut own = self.0.node(name)?.routes().ok()?.all.iter();
        let is_network = |route: &&Route| {
            let range = route.destination;
            route.gateway.is_none() && range.prefix > 0 && !range.is_host() && range.contains(pod)
        };
        own.find(is_network).map(|route| route.destination)
    }

    fn node_with(&self, address: IpAddr) -> Option<&str> {
        let has = |read: &Result<NodeSnapshot<'_>, String>| {
            let own = read.as_ref().ok().and_then(|node| node.addresses().ok());
            own.is_some_and(|own| own.all.iter().any(|own| own.addr.addr == address))
        };
        let mut all = self.0.nodes.iter();
        let (name, _) = all.find(|(_, read)| has(read))?;
        Some(name)
    }

    fn link_with(&self, name: &str, address: IpAddr) -> Option<(&str, &str)> {
        let node = self.0.node(name)?;
        let mut addresses = node.addresses().ok()?.all.iter();
        let own = addresses.find(|own| own.addr.addr == address)?;
        let mut links = node.links().ok()?.all.iter();
        let link = links.find(|link| link.name == own.link)?;
        Some((&link.name, link.mac.as_deref()?))
    }

    fn narrow(&self, name: &str, address: IpAddr, pod: IpAddr) -> Option<Narrow> {
        let node = self.0.node(name)?;
        let links = &node.links().ok()?.all;
        let mtu = |name: &str| Some(links.iter().find(|link| link.name == name)?.mtu);
        let leads_there = |route: &&Route| {
            let is_unicast = route.kind == "unicast" && route.gateway.is_none();
            is_unicast && route.destination.prefix > 0 && route.destination.contains(pod)
        };
        let routes = node.routes().ok()?.all.iter().filter(leads_there);
        let route = routes.max_by_key(|route| route.destination.prefix)?;
        let (link, _) = self.link_with(name, address)?;
        Some(Narrow {
            link: link.to_owned(),
            mtu: mtu(link)?,
            behind: mtu(route.device.as_deref()?)?,
        })
    }

    fn twin_of(&self, name: &str, address: IpAddr) -> Option<(String, String)> {
        let mut others = self.0.nodes.keys().filter(|other| *other != name);
        others.find_map(|other| {
            let (link, _) = self.link_with(other, address)?;
            let links = &self.0.node(other)?.links().ok()?.all;
            // Links such as kube-ipvs0 answer no ARP request.
            let is_asked = |of: &Link| of.name == link && of.kind != "dummy" && link != "lo";
            let answers = links.iter().any(is_asked);
            answers.then(|| (other.clone(), link.to_owned()))
        })
    }

    fn arp_rule(&self, name: &str, address: IpAddr, there: IpAddr) -> Option<By> {
        let (link, _) = self.link_with(name, address)?;
        let node = self.0.node(name)?;
        let (rule, is_certain) = arp_rule(node, link, Some(there))?;
        is_certain.then(|| By::new(rule, Maker::Unknown, node))
    }
}
