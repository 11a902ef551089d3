//! The networks of pods on the node.

use std::net::IpAddr;

use super::links::{self, Link, Links};
use crate::evidence::{Evidence, Gap, IPTABLES, Item, pod_networks};

/// The network of a pod, or of another container.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    /// A process inside.
    pub pid: u32,
    /// The addresses of its links.
    pub addresses: Vec<IpAddr>,
    /// The same, each with the name of its link.
    pub by_link: Vec<(IpAddr, String)>,
    /// The addresses that the kernel does not use, as IPv6 found another machine or pod with them.
    pub duplicates: Vec<IpAddr>,
    /// Its links, if they can be read.
    pub links: Option<Links>,
    /// Its addresses, links, sockets and rules.
    pub evidence: Evidence,
}

impl PodNetwork {
    /// Returns the link of the node that leads to it, the far end of one of its own; `None` if none does, or none is known.
    pub fn link_of<'n>(&self, node: &'n Links) -> Option<&'n Link> {
        // A link of these kinds is on one of the node; a pair has each other.
        let is_on = |own: &Link| matches!(own.kind.as_str(), "macvlan" | "ipvlan");
        let is_end = |own: &Link, far: &Link| {
            let is_pair = far.peer == Some(own.index);
            own.peer == Some(far.index) && (is_pair || is_on(own) || far.kind != "veth")
        };
        let mut all = self.links.iter().flat_map(|inside| &inside.all);
        all.find_map(|own| node.all.iter().find(|far| is_end(own, far)))
    }

    /// Returns the link of it that has `address`.
    pub fn link_with(&self, address: IpAddr) -> Option<&Link> {
        let (_, own) = self.by_link.iter().find(|(of, _)| *of == address)?;
        let mut links = self.links.as_ref()?.all.iter();
        links.find(|link| link.name == *own)
    }

    /// Returns whether it has rules of its own, as far as they are read.
    pub fn has_rules(&self) -> bool {
        let nft = self.evidence.text(Item::Nft);
        nft.is_ok_and(|text| text.contains("\"table\""))
            || IPTABLES.iter().any(|item| self.evidence.has(*item))
    }

    /// Returns whether its rules are read.
    pub fn knows_rules(&self) -> bool {
        self.evidence.has(Item::Nft)
    }
}

/// Parses the text of [`Item::PodNetworks`].
pub(super) fn parse(text: &str) -> Result<Vec<PodNetwork>, Gap> {
    let all = pod_networks::parse(Item::PodNetworks, text)?.into_iter();
    let read = all.map(|network| {
        let addresses = network
            .evidence
            .text(Item::Addresses)
            .and_then(links::addresses)?;
        Ok(PodNetwork {
            pid: network.pid,
            addresses: addresses.all.iter().map(|at| at.addr.addr).collect(),
            by_link: addresses
                .all
                .iter()
                .map(|at| (at.addr.addr, at.link.clone()))
                .collect(),
            duplicates: addresses
                .all
                .iter()
                .filter(|at| at.is_duplicate())
                .map(|at| at.addr.addr)
                .collect(),
            links: network
                .evidence
                .text(Item::Links)
                .and_then(links::links)
                .ok(),
            evidence: network.evidence,
        })
    });
    read.collect()
}
