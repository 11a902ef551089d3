//! The same packets in two modes: the kernel has the rules of one, then the rules of the other.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kpx_judge::proof;
use kpx_judge::proof::difference::{Difference, Harm};
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, ITEMS, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::judge::flow;
use super::network::{Network, Place};
use super::recording::{Recording, Store};
use super::send::{Order, Seen, Sender, Sent};
use crate::support::root;

/// Connections of one flow: with up to four backends, one is missed by chance once in 10^7 flows.
const CONNECTIONS: usize = 60;

/// How a packet ends.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum End {
    Through(SocketAddr),
    Reject,
    Drop,
}

/// How packets of a flow end, and whether their source is another one.
type Ends = BTreeSet<(End, bool)>;

/// Sends all packets under both modes: their ends differ exactly if the proof says so.
///
/// Returns the number of flows, and of those that differ.
pub(crate) async fn differ_as_proved(now: &str, then: &str) -> [usize; 2] {
    let recording = Recording::named(now);
    let network = Network::new(&recording, true);
    recording.restore_iptables(&network.node, Store::Nft);
    let mut evidence = evidence::load(&root().join("testdata/nodes").join(now), ITEMS).unwrap();
    let live = [
        Item::Iptables4,
        Item::Iptables6,
        Item::Nft,
        Item::NftText,
        Item::Addresses,
        Item::Links,
        Item::Routes,
        Item::Rules,
        Item::Sysctl,
        Item::Ipset,
        Item::Ipvs,
    ];
    evidence.extend(network.node.collect(&live).await);
    let ranges =
        r#"{"items":[{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.96.0.0/12"]}}]}"#;
    evidence.insert(Item::ServiceCidrs, Ok(ranges.to_owned()));
    let snapshot = NodeSnapshot::new(&evidence);
    let packets = proof::in_mode(&snapshot, Mode::Nftables, &[Family::V4]).unwrap();
    let orders: Vec<Order> = recording
        .targets()
        .into_iter()
        .filter(|target| target.addr.is_ipv4() && !target.sticky)
        .flat_map(|target| {
            let sources = network.sources(&target).into_iter();
            // In the proof, the node sends from the address that it chooses.
            let sources =
                sources.filter(|source| source.place != Place::Host || source.addr.is_none());
            sources.map(move |source| Order {
                source,
                target: target.clone(),
                count: CONNECTIONS,
            })
        })
        .collect();
    let before = Sender::new(&network).send(&orders);
    network.node.run("nft flush ruleset");
    let rules = Recording::named(then).text("node/nft.txt");
    network.node.feed("nft -f -", &rules);
    let after = Sender::new(&network).send(&orders);
    let mut differ = 0;
    for ((order, before), after) in orders.iter().zip(&before).zip(&after) {
        let flow = flow(order);
        let of = |found: &&Difference| found.contains(&flow);
        let found = packets
            .differences
            .iter()
            .map(|difference| &difference.difference);
        let found: Vec<_> = found.filter(of).collect();
        // Only the chance, or what comes later, is another one.
        let late = |harm| matches!(harm, Harm::Uneven | Harm::Affinity | Harm::Unsure);
        let said = found.iter().any(|difference| !late(difference.harm));
        let (before, after) = (ends(before), ends(after));
        assert_eq!(
            before != after,
            said,
            "{flow:?}: {now} {before:?}, {then} {after:?}, proved {:?}",
            found
                .iter()
                .map(|difference| (difference.harm, &difference.target))
                .collect::<Vec<_>>()
        );
        differ += usize::from(said);
    }
    [orders.len(), differ]
}

fn ends(sent: &[Sent]) -> Ends {
    // Routing answers five times, and once a second from then on (`ip_error`).
    let refused = sent.iter().any(|sent| sent.seen == Seen::Reject);
    let to = |of: &Sent| match of.seen {
        Seen::Through { to, .. } => End::Through(to),
        Seen::Drop if !refused => End::Drop,
        Seen::Reject | Seen::Drop => End::Reject,
    };
    let all: BTreeSet<_> = sent.iter().map(to).collect();
    let ends = all.into_iter().map(|end| {
        let these = sent.iter().filter(|sent| to(sent) == end);
        // A port that is taken is changed by chance, and a rewritten source may keep its port.
        let changed = these.clone().filter(|sent| match sent.seen {
            Seen::Through { source, .. } => source != sent.from,
            Seen::Reject | Seen::Drop => false,
        });
        (end, 2 * changed.count() > these.count())
    });
    ends.collect()
}
