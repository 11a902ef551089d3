//! Links of the node, and their addresses.

use crate::check::{Facts, Proof};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::links::{Address, Link};

/// The items that [`bridges`] reads.
pub(in crate::check) const PODS: &[Item] = &[
    Item::Links,
    Item::Addresses,
    Item::ProxyConfig,
    Item::ConfigMaps,
    Item::Nodes,
];

/// Returns the bridges that pods are attached to.
pub(in crate::check) fn bridges<'a>(facts: &Facts<'a>) -> Result<Vec<&'a Link>, Gap> {
    let links = &facts.node.links()?.all;
    let addresses = facts.node.addresses();
    let config = facts.configuration().ok();
    let node = facts.this_node().ok();
    let of_node = node.iter().flat_map(|node| &node.spec.pod_cidrs);
    let mut pods: Vec<Cidr> = of_node.filter_map(|text| text.parse().ok()).collect();
    pods.extend(
        Family::BOTH
            .iter()
            .filter_map(|f| config.as_ref()?.cluster_cidr(*f)),
    );
    let has_ports = |link: &Link| {
        let mut masters = links.iter().filter_map(|port| port.master.as_ref());
        link.kind == "bridge" && masters.any(|master| *master == link.name)
    };
    let is_pods = |link: &&Link| {
        let named = ["cni", "cbr"]
            .iter()
            .any(|prefix| link.name.starts_with(prefix));
        let mut at = addresses
            .iter()
            .flat_map(|a| &a.all)
            .filter(|at| at.link == link.name);
        let inside = at.any(|at| pods.iter().any(|cidr| cidr.contains(at.addr.addr)));
        has_ports(link) && (named || inside)
    };
    let found: Vec<_> = links.iter().filter(is_pods).collect();
    if found.is_empty() {
        if links.iter().any(has_ports) {
            // Without its addresses, a bridge may be one of pods.
            addresses?;
        }
        let why = "no pod of this node is on a bridge";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(found)
}

pub(in crate::check) fn link_proof(link: &Link, what: &str) -> Proof {
    Proof::Link {
        link: link.name.clone(),
        state: what.to_owned(),
    }
}

/// Returns the addresses of kube-ipvs0, and those of the other links.
pub(in crate::check) fn split_addresses<'a>(
    facts: &Facts<'a>,
) -> Result<(Vec<&'a Address>, Vec<&'a Address>), Gap> {
    let all = &facts.node.addresses()?.all;
    Ok(all.iter().partition(|address| address.link == DUMMY))
}

pub(in crate::check) fn address_proof(address: &Address) -> Proof {
    Proof::Address {
        link: address.link.clone(),
        address: address.addr.addr,
    }
}
