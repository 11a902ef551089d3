//! Connections that connection tracking saw and no endpoint answered: a doubt if no rule, route or link explains it, for example because
//! another machine or the network between drops packets.

use std::net::SocketAddr;

use foldhash::HashMap;

use super::judge::{Judge, Question};
use super::{Fault, Missing};
use crate::trace::Outcome;
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::conntrack::Entry;

/// The fewest connections without an answer that count as a symptom.
const FEWEST: usize = 3;

/// The number of connections to an endpoint that were opened after the last answered one, and have no answer.
pub(super) type Unanswered = HashMap<SocketAddr, usize>;

/// Counts the tracked connections of `node` without an answer.
pub(super) fn unanswered(node: &NodeSnapshot<'_>) -> Unanswered {
    let tracked = node.conntrack().map_or(&[][..], |all| &all.entries);
    let tcp = || tracked.iter().filter(|entry| entry.proto == Proto::Tcp);
    let is_open = |entry: &&Entry| entry.unreplied && entry.state.as_deref() == Some("SYN_SENT");
    let mut ages: HashMap<SocketAddr, Vec<u32>> = HashMap::default();
    for entry in tcp().filter(is_open) {
        let of_endpoint = ages.entry(entry.reply.source).or_default();
        of_endpoint.push(age(node, entry));
    }
    ages.retain(|_, of_endpoint| of_endpoint.len() >= FEWEST);
    for entry in tcp().filter(|entry| !entry.unreplied) {
        if let Some(of_endpoint) = ages.get_mut(&entry.reply.source) {
            let answered = age(node, entry);
            of_endpoint.retain(|age| *age < answered);
        }
    }
    let counts = ages.into_iter().map(|(at, ages)| (at, ages.len()));
    counts.filter(|(_, count)| *count >= FEWEST).collect()
}

/// Returns the seconds since the last packet of a connection: each gives it the whole time of its state again. 0 if that is not known.
fn age(node: &NodeSnapshot<'_>, entry: &Entry) -> u32 {
    let whole = || {
        let state = entry.state.as_deref()?.to_ascii_lowercase();
        let key = format!("net.netfilter.nf_conntrack_tcp_timeout_{state}");
        node.sysctl().ok()?.get(&key)?.parse::<u32>().ok()
    };
    let left = entry.timeout.zip(whole());
    left.map_or(0, |(left, whole)| whole.saturating_sub(left))
}

impl Judge<'_> {
    /// Returns the doubt about a packet to an endpoint that answered none of several connections.
    pub(super) fn unanswered_lately(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let at = SocketAddr::from(outcome.destination);
        let all = self.unanswered.get_or_init(|| unanswered(self.node));
        let count = all.get(&at).filter(|_| question.flow.proto == Proto::Tcp)?;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "the last {count} connections to {at} were not answered (SYN_SENT in the table of connection tracking), and nothing that kpx \
             has read of this node stops them: look at the endpoint, its node and the network between"
        ))))
    }
}
