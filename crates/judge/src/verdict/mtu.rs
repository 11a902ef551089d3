//! Links of other nodes that take smaller packets than this node sends them.

use super::judge::{Judge, Question};
use super::tunnel::outer_family;
use super::{Fault, Missing};
use crate::trace::{Entry, Outcome};
use kpx_node::net::Family;
use kpx_node::node::links::Link;

/// The MTUs of a node on the way to one of its pods, in bytes.
#[derive(Debug)]
pub(crate) struct Narrow {
    /// The link that has the address of the Node.
    pub(crate) link: String,
    /// Its MTU.
    pub(crate) mtu: u32,
    /// The MTU of the link to the pod.
    pub(crate) behind: u32,
}

impl Judge<'_> {
    /// Returns the doubt about large packets for a pod of another node that was read, if the link of that node has a smaller MTU than all
    /// links that the packets pass else.
    pub(super) fn too_large_there(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let others = self.others.as_ref()?;
        if self.ends_here(outcome) {
            return None;
        }
        let pod = outcome.destination.0;
        let name = &self.far_node(question, outcome)?;
        let out = self.link(outcome.leaves_by()?)?;
        let added = tunnel_overhead(out)?;
        let by = self.peers().address(name, Family::of(pod))?;
        let there = others.narrow(name, by, pod)?;
        let is_pod = question.flow.entry == Entry::Pod;
        let home = || Some(self.link(&self.way_to(outcome.sent_from)?.0)?.mtu);
        let first = is_pod.then(home).flatten().unwrap_or(u32::MAX);
        let sent = out.mtu.min(there.behind).min(first) + added;
        // A link without one is not limited.
        let is_narrow = there.mtu > 0 && there.behind > 0 && out.mtu > 0 && there.mtu < sent;
        is_narrow.then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "{} of node {name} has an MTU of {} bytes, and packets for its pods have up to {sent}: whether larger ones reach it is \
                 unknown",
                there.link, there.mtu
            )))
        })
    }
}

/// Returns how many bytes a link adds to packets; `None` for tunnels of other kinds.
pub(crate) fn tunnel_overhead(link: &Link) -> Option<u32> {
    let over_ipv4 = match link.kind.as_str() {
        "vxlan" | "geneve" => 50,
        "ipip" => 20,
        "wireguard" => 60,
        _ => return (!link.is_tunnel()).then_some(0),
    };
    Some(match outer_family(link) {
        Family::V4 => over_ipv4,
        // Its header has 20 bytes more.
        Family::V6 => over_ipv4 + 20,
    })
}
