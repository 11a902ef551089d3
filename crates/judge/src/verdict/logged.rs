//! What the kernel's log of the last hour says of packets that it dropped.

use std::net::IpAddr;

use kpx_node::evidence::Item;
use kpx_node::evidence::kernel_log::{self, Entry, Martian, Message};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;

/// Datagrams of a tunnel that came from a node with a wrong checksum: the kernel dropped them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Corrupted {
    /// The tunnel's link here.
    pub(crate) link: String,
    /// The node that sent them.
    pub(crate) node: String,
    /// Its address.
    pub(crate) address: IpAddr,
}

impl Corrupted {
    /// Returns what `entry` of the log of `node` says of them.
    pub(crate) fn of(node: &NodeSnapshot<'_>, entry: &Entry<'_>) -> Option<Self> {
        let Message::BadChecksum {
            source,
            destination,
        } = entry.message()?
        else {
            return None;
        };
        let address = source.ip();
        let is_tunnel = |link: &&Link| link.tunnel_port == Some(destination.port());
        let link = node.links().ok()?.all.iter().find(is_tunnel)?;
        let mut nodes = node.nodes().ok()?.iter();
        let sender = nodes.find(|node| {
            let mut all = node.status.addresses.iter();
            all.any(|own| own.address.parse() == Ok(address))
        })?;
        Some(Self {
            link: link.name.clone(),
            node: sender.metadata.name.clone(),
            address,
        })
    }
}

/// Returns the datagrams of tunnels to `node` that had a wrong checksum.
pub(super) fn corrupted(node: &NodeSnapshot<'_>) -> Vec<Corrupted> {
    let lines = lines_with(node, "UDP: bad checksum");
    let entries = kernel_log::of_last_hour(&lines);
    let mut found: Vec<Corrupted> = Vec::new();
    for of_tunnel in entries.filter_map(|entry| Corrupted::of(node, entry)) {
        if !found.contains(&of_tunnel) {
            found.push(of_tunnel);
        }
    }
    found
}

/// Returns the packets that the kernel of `node` dropped for their way back, the newest first.
pub(super) fn martians<'n>(node: &'n NodeSnapshot<'n>) -> Vec<Martian<'n>> {
    let lines = lines_with(node, "martian source");
    let found = kernel_log::of_last_hour(&lines).filter_map(|entry| match entry.message()? {
        Message::Martian(martian) => Some(martian),
        _ => None,
    });
    let mut found: Vec<Martian<'n>> = found.collect();
    found.reverse();
    found
}

/// Returns the lines of the log, none if `words` are nowhere in it: each simulated repair asks again. Without the log, nothing is claimed.
fn lines_with<'a>(node: &'a NodeSnapshot<'_>, words: &str) -> Vec<Entry<'a>> {
    let log = node.evidence().text(Item::KernelLog);
    let log = log.ok().filter(|log| log.contains(words));
    log.map_or_else(Vec::new, kernel_log::parse)
}
