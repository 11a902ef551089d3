//! Addresses that several nodes have in one network, as after a split of VRRP.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::across::Across;
use super::place::ranges_of_all_pods;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Address;

/// Seconds between the recordings of two nodes within which an address does not move from one to the other.
const AT_ONCE: u64 = 60;

impl Across<'_> {
    /// Returns the addresses that `node`, called `name`, and other nodes have in one network, with the names of these nodes and their
    /// links.
    pub(crate) fn shared_addresses(
        &self,
        name: &str,
        node: &NodeSnapshot<'_>,
    ) -> BTreeMap<IpAddr, BTreeMap<String, String>> {
        let mut shared: BTreeMap<IpAddr, BTreeMap<String, String>> = BTreeMap::new();
        let ranges = ranges_of_all_pods(node);
        let is_of_pods = |at: IpAddr| ranges.iter().any(|range| range.contains(at));
        let others = self.nodes.iter().filter(|(other, _)| *other != name);
        let read = others.filter_map(|(other, read)| Some((other, read.as_ref().ok()?)));
        for (other, there) in read.filter(|(_, there)| is_at_once(node, there)) {
            for own in lan_addresses(node).filter(|own| !is_of_pods(own.addr.addr)) {
                let mut its = lan_addresses(there).filter(|its| its.addr.addr == own.addr.addr);
                if let Some(its) = its.find(|its| is_one_network((node, own), (there, its))) {
                    let nodes = shared.entry(own.addr.addr).or_default();
                    nodes.insert(name.to_owned(), own.link.clone());
                    nodes.insert(other.clone(), its.link.clone());
                }
            }
        }
        shared
    }
}

/// Returns whether both nodes were recorded at one time, as far as that is known.
fn is_at_once(one: &NodeSnapshot<'_>, other: &NodeSnapshot<'_>) -> bool {
    let apart = one.taken().zip(other.taken()).map(|(one, other)| {
        let (first, last) = if one < other {
            (one, other)
        } else {
            (other, one)
        };
        last.since(first).as_secs()
    });
    apart.is_none_or(|apart| apart <= AT_ONCE)
}

/// Iterates over the addresses of `node` that its neighbours may ask for.
fn lan_addresses<'n>(node: &'n NodeSnapshot<'_>) -> impl Iterator<Item = &'n Address> {
    let all = node.addresses().map_or(&[][..], |all| &all.all);
    all.iter()
        .filter(|address| address.scope == "global" && !address.is_duplicate())
}

/// Returns whether the links of an address on two nodes have a network in common, without that address.
fn is_one_network(
    (node, own): (&NodeSnapshot<'_>, &Address),
    (there, its): (&NodeSnapshot<'_>, &Address),
) -> bool {
    let of_link = |node: &NodeSnapshot<'_>, of: &Address| -> Vec<_> {
        let home = home_of(node, &of.link);
        let family = of.addr.family();
        let all = lan_addresses(node).map(|at| (&at.link, at.addr));
        all.filter(|(link, at)| **link == home && at.family() == family && at.addr != of.addr.addr)
            .map(|(_, at)| at)
            .collect()
    };
    let far = of_link(there, its);
    of_link(node, own).iter().any(|net| {
        far.iter()
            .any(|at| net.addr != at.addr && net.contains(at.addr))
    })
}

/// Returns the link that `link` is on, if VRRP has made it for an address, else `link` itself.
fn home_of(node: &NodeSnapshot<'_>, link: &str) -> String {
    let links = node.links().map_or(&[][..], |links| &links.all);
    let of_name = links.iter().find(|of| of.name == link);
    let on = of_name
        .filter(|of| of.kind == "macvlan")
        .and_then(|of| links.iter().find(|on| Some(on.index) == of.peer));
    on.map_or_else(|| link.to_owned(), |on| on.name.clone())
}
