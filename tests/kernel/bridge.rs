//! The bridge on a real kernel: what it serves, beside the rules of each mode and alone.
//!
//! The judge of `trace` says where the recorded rules of a mode lead; then the bridge is loaded, and packets must go to
//! the same places.

pub(crate) mod follow;
mod guard;
mod ipvs;
mod lease;
mod node;
mod source;

use std::collections::BTreeSet;

use kpx_judge::bridge;
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::nftables::{parse, print};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::netns::Netns;
use super::trace::established;
use super::trace::judge::Judge;
use super::trace::network::Network;
use super::trace::recording::{Recording, Store};
use super::trace::send::{Order, Seen, Sender};
use node::{bridge as recorded, lease};

use crate::random;

/// Every recording with a cluster, and the mode it is of.
const RECORDINGS: &[(&str, Mode)] = &[
    ("dual-iptables", Mode::Iptables),
    ("dual-ipvs", Mode::Ipvs),
    ("dual-nftables", Mode::Nftables),
    ("full-iptables", Mode::Iptables),
    ("full-iptables-masqall", Mode::Iptables),
    ("full-iptables-v1.30", Mode::Iptables),
    ("full-ipvs", Mode::Ipvs),
    ("full-ipvs-lc-strictarp", Mode::Ipvs),
    ("full-ipvs-v1.30", Mode::Ipvs),
    ("full-nftables", Mode::Nftables),
    ("leftover-iptables-to-ipvs", Mode::Ipvs),
    ("leftover-iptables-to-nftables", Mode::Nftables),
    ("scale-2000x10-iptables", Mode::Iptables),
    ("scale-2000x10-nftables", Mode::Nftables),
    ("seed-iptables", Mode::Iptables),
    ("seed-ipvs", Mode::Ipvs),
    ("seed-nftables", Mode::Nftables),
];

#[test]
#[ignore = "needs root and a network namespace"]
fn long_the_bridge_loads_for_every_recording() {
    let netns = Netns::new();
    for &(name, mode) in RECORDINGS {
        for family in ["ip", "ip6"] {
            netns.feed("nft -f -", &format!("add table {family} foreign"));
        }
        let before = netns.run("nft list ruleset");
        let text = recorded(name, mode);
        netns.feed("nft -f -", &text);
        // Again, over the one that stands.
        netns.feed("nft -f -", &text);
        let served = netns.run("nft list map ip kpx-bridge service-ips");
        assert!(
            served.contains("10.96.0.1 . tcp . 443 : goto cluster-endpoint-0"),
            "{name}: {served}"
        );
        netns.feed(
            "nft -f -",
            "delete table ip kpx-bridge\nadd table ip6 kpx-bridge\ndelete table ip6 kpx-bridge",
        );
        assert_eq!(netns.run("nft list ruleset"), before, "{name}");
    }
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_packets_go_where_the_rules_of_the_mode_lead() {
    let mut flows = 0;
    for (name, mode, store, bridged) in [
        ("full-iptables", Mode::Iptables, Store::Nft, true),
        ("full-iptables-masqall", Mode::Iptables, Store::Legacy, true),
        ("full-iptables-v1.30", Mode::Iptables, Store::Nft, false),
        ("dual-iptables", Mode::Iptables, Store::Legacy, true),
        ("dual-iptables", Mode::Iptables, Store::Nft, false),
        ("full-nftables", Mode::Nftables, Store::Nft, true),
        ("dual-nftables", Mode::Nftables, Store::Nft, false),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        match mode {
            Mode::Nftables => recording.restore(&network.node),
            _ => recording.restore_iptables(&network.node, store),
        }
        let about = format!("{name} in {store:?}");
        let judge = Judge::new(about, &recording, &network).await;
        network.node.feed("nft -f -", &recorded(name, mode));
        flows += judge.agree();
    }
    assert!(flows > 2000, "{flows}");
}

/// Rules of kube-proxy alone answer for what no Service offers.
#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_packets_go_there_with_no_other_rules_too() {
    for (name, mode, bridged) in [
        ("full-iptables", Mode::Iptables, true),
        ("dual-iptables", Mode::Iptables, false),
        ("full-nftables", Mode::Nftables, true),
        ("dual-nftables", Mode::Nftables, false),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        let text = format!("flush ruleset\n{}", recorded(name, mode));
        network.node.feed("nft -f -", &text);
        let (flows, mut wrong) = judge.differences();
        // In nftables mode, kube-proxy refuses ports that no Service offers; in iptables mode, it refuses ::1.
        wrong.retain(|what| !what.contains("cluster-ips-check") && !what.contains("to [::1]:"));
        assert_eq!(wrong, [""; 0], "{name}: of {flows} flows");
    }
}

/// A judge that finds nothing wrong must be one that would.
#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_judge_notices_what_the_bridge_does_otherwise() {
    let recording = Recording::named("seed-iptables");
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    let judge = Judge::new("other".to_owned(), &recording, &network).await;
    let text = recorded("seed-iptables", Mode::Iptables);
    for (from, to) in [
        (
            "10.97.54.248 . tcp . 80 : 10.244.1.16 . 80",
            "10.97.54.248 . tcp . 80 : 10.244.1.99 . 80",
        ),
        (
            "ip saddr != 10.244.0.0/16 meta mark",
            "ip saddr != 0.0.0.0/0 meta mark",
        ),
        (
            "10.96.0.1 . tcp . 443 : goto cluster-endpoint-0",
            "10.96.0.1 . tcp . 443 : goto refuse-drop",
        ),
    ] {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        network.node.feed("nft -f -", &other);
        assert_ne!(judge.differences().1, [""; 0], "{to}");
    }
    network.node.feed("nft -f -", &text);
    assert_eq!(judge.differences().1, [""; 0]);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_client_stays_with_its_endpoint() {
    let recording = Recording::named("full-iptables");
    let network = Network::new(&recording, true);
    network
        .node
        .feed("nft -f -", &recorded("full-iptables", Mode::Iptables));
    let targets = recording.targets();
    let sticky = targets.iter().find(|target| target.sticky).unwrap();
    let mut places = BTreeSet::new();
    for source in network.sources(sticky) {
        let order = Order {
            source,
            target: sticky.clone(),
            count: 30,
        };
        let sent = Sender::new(&network).patient().send(&[order]).remove(0);
        let went: BTreeSet<_> = sent
            .iter()
            .map(|sent| match sent.seen {
                Seen::Through { to, .. } => to,
                seen => panic!("{source:?}: {seen:?}"),
            })
            .collect();
        assert_eq!((sent.len(), went.len()), (30, 1), "{source:?}: {went:?}");
        places.extend(went);
    }
    assert!(!places.is_empty());
}

#[test]
#[ignore = "needs root and network namespaces"]
fn connections_that_have_begun_go_on() {
    let recording = Recording::named("seed-iptables");
    let text = recorded("seed-iptables", Mode::Iptables);
    let down = "delete table ip kpx-bridge";
    // Begun by kube-proxy's rules; the bridge comes and goes.
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    let connections = established::open(&network);
    for change in [text.as_str(), &text, down] {
        network.node.feed("nft -f -", change);
        assert!(connections.iter().all(established::Connection::passes));
    }
    // Begun by the bridge alone; the rules of a mode come, then the bridge goes, and another follows.
    let network = Network::new(&recording, true);
    network.node.feed("nft -f -", &text);
    let connections = established::open(&network);
    recording.restore(&network.node);
    for change in [down, &text] {
        network.node.feed("nft -f -", change);
        assert!(connections.iter().all(established::Connection::passes));
    }
}

/// The table of one family as the kernel has it, in one order.
fn listed(netns: &Netns, family: &str) -> Table {
    let text = netns.run(&format!("nft -j list table {family} {}", bridge::TABLE));
    let mut rules = parse::json(&text).unwrap();
    let mut table = rules.tables.remove(0);
    for set in &mut table.sets {
        set.elements.sort_by_key(print::element);
        // How long ago each was loaded is another matter.
        set.elements
            .iter_mut()
            .for_each(|element| element.expires = None);
    }
    for rule in table.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
        rule.handle = None;
    }
    table.sets.sort_by(|a, b| a.name.cmp(&b.name));
    table.chains.sort_by(|a, b| a.name.cmp(&b.name));
    table
}

#[test]
#[ignore = "needs root and a network namespace"]
fn a_change_ends_where_loading_all_of_it_does() {
    let built = |seed: u64| -> Vec<Table> {
        let evidence = random::evidence(seed, random::DUAL, "iptables", "v1.36.0");
        let node = NodeSnapshot::new(&evidence);
        let state = node.desired(Mode::Iptables).unwrap();
        let marks = bridge::Marks {
            masquerade: 0x1000,
            set: 0x5000,
        };
        bridge::tables(state, &Family::BOTH, marks, &lease()).unwrap()
    };
    let (changed, loaded) = (Netns::new(), Netns::new());
    for netns in [&changed, &loaded] {
        netns.run("ip link add cni0 type bridge");
    }
    let mut have = built(0);
    changed.feed("nft -f -", &bridge::text(&have));
    let mut sizes = 0;
    for seed in 1..30 {
        let want = built(seed);
        for (have, want) in have.iter().zip(&want) {
            let text = bridge::change(have, want);
            sizes += text.len();
            changed.feed("nft -f -", &text);
        }
        loaded.feed("nft -f -", &bridge::text(&want));
        for family in ["ip", "ip6"] {
            assert_eq!(listed(&changed, family), listed(&loaded, family), "{seed}");
        }
        have = want;
    }
    assert!(sizes > 10_000, "{sizes}");
}
