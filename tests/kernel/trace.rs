//! `kpx trace` with the kernel as its judge: recorded rulesets are restored, real packets are sent, and conntrack shows
//! how they end.
//!
//! Packets go from a pod, from a pod that is a backend itself, from the node and from outside to everything a Service
//! offers, and to some addresses that none does. kpx looks at the same namespace with its own live readers.

pub(crate) mod established;
mod foreign;
pub(crate) mod judge;
mod live;
mod modes;
pub(crate) mod mutate;
pub(crate) mod network;
pub(crate) mod recording;
pub(crate) mod send;
mod userspace;

use std::ops::Range;

use judge::Judge;
use kpx_node::net::Proto;
use mutate::Dice;
use network::{Network, Place, Source};
use recording::{Recording, Store, restore};

use super::netns::{Netns, run};

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_host_the_kernel_agrees_about_recorded_rules_of_iptables() {
    let flows = recorded_rules_of_iptables(&[
        ("full-iptables", Store::Legacy, false),
        ("dual-iptables", Store::Nft, true),
        ("seed-iptables", Store::Nft, true),
    ])
    .await;
    assert!(flows > 300, "{flows}");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_host_the_kernel_agrees_about_all_recorded_rules_of_iptables() {
    let flows = recorded_rules_of_iptables(&[
        ("full-iptables", Store::Nft, true),
        ("full-iptables-masqall", Store::Nft, false),
        ("full-iptables-masqall", Store::Legacy, true),
        ("full-iptables-v1.30", Store::Nft, true),
        ("full-iptables-v1.30", Store::Legacy, false),
        ("dual-iptables", Store::Legacy, false),
        ("seed-iptables", Store::Legacy, false),
    ])
    .await;
    assert!(flows > 400, "{flows}");
}

/// Recordings, the back end that has their rules, and whether the pods are at a bridge; returns how many flows were compared.
async fn recorded_rules_of_iptables(nodes: &[(&str, Store, bool)]) -> usize {
    let mut flows = 0;
    for &(name, store, bridged) in nodes {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore_iptables(&network.node, store);
        let judge = Judge::new(format!("{name} in {store:?}"), &recording, &network).await;
        flows += judge.agree();
    }
    flows
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_agrees_about_recorded_rules_of_nftables() {
    let flows =
        recorded_rules_of_nftables(&[("dual-nftables", true), ("seed-nftables", false)]).await;
    assert!(flows > 200, "{flows}");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_host_the_kernel_agrees_about_all_recorded_rules_of_nftables() {
    let flows = recorded_rules_of_nftables(&[
        ("full-nftables", true),
        ("full-nftables", false),
        ("dual-nftables", false),
        ("seed-nftables", true),
    ])
    .await;
    assert!(flows > 300, "{flows}");
}

async fn recorded_rules_of_nftables(nodes: &[(&str, bool)]) -> usize {
    let mut flows = 0;
    for &(name, bridged) in nodes {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        flows += judge.agree();
    }
    flows
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_traces_what_is_computed() {
    assert!(traced(50).await > 25);
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_host_the_kernel_traces_what_is_computed_for_random_rules() {
    let mut flows = traced(5).await;
    let recording = Recording::named("seed-iptables");
    let network = Network::new(&recording, true);
    let [rules, _] = recording.iptables();
    for round in 0..10 {
        let mut dice = Dice::new(7000 + round);
        let (rules, done) = mutate::iptables(&mut dice, &rules, 8);
        restore(&network.node, Store::Nft, [&rules, ""]);
        let name = format!("round {round}:\n  {}\n", done.join("\n  "));
        let judge = Judge::new(name, &recording, &network).await;
        flows += judge.one_in(10).traced().await;
    }
    assert!(flows > 500, "{flows}");
}

/// Lets the kernel send traces in legacy tables to a program.
fn log_to_netlink(node: &Netns) {
    for family in [2, 10] {
        node.run(&format!(
            "sysctl -q -w net.netfilter.nf_log.{family}=nfnetlink_log"
        ));
    }
}

/// Compares the traces of one in `many` flows over recorded rules; returns how many they are.
async fn traced(many: usize) -> usize {
    let mut flows = 0;
    for (name, store, bridged) in [
        ("full-iptables", Store::Nft, true),
        ("full-iptables", Store::Legacy, false),
        ("dual-iptables", Store::Nft, false),
        ("dual-iptables", Store::Legacy, true),
        ("full-nftables", Store::Nft, true),
        ("dual-nftables", Store::Nft, false),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        match store {
            Store::Nft => recording.restore(&network.node),
            Store::Legacy => {
                recording.restore_iptables(&network.node, store);
                log_to_netlink(&network.node);
            }
        }
        let judge = Judge::new(format!("{name} in {store:?}"), &recording, &network).await;
        flows += judge.one_in(many).traced().await;
    }
    flows
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_chooses_as_often_as_kpx_says() {
    let host = Source::host();
    for (name, service) in [
        ("full-iptables", "10.100.1.9:80"),
        ("full-nftables", "10.100.1.9:80"),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, true);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        judge.frequencies(host, service, Proto::Tcp);
        judge.frequencies(host, "10.97.54.248:80", Proto::Tcp);
        judge.frequencies(host, "10.0.2.15:30080", Proto::Tcp);
    }
    // A chance that is not even.
    let recording = Recording::named("seed-iptables");
    let network = Network::new(&recording, true);
    let [rules, _] = recording.iptables();
    let uneven = rules.replace("--probability 0.33333333349", "--probability 0.1");
    assert_ne!(uneven, rules);
    restore(&network.node, Store::Nft, [&uneven, ""]);
    let judge = Judge::new("uneven".to_owned(), &recording, &network).await;
    judge.frequencies(host, "10.97.54.248:80", Proto::Tcp);
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_modes_differ_in_the_kernel_as_proved() {
    let [flows, differ] = modes::differ_as_proved("seed-iptables", "seed-nftables").await;
    assert!(flows > 50 && differ > 5, "{differ} of {flows}");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_host_modes_differ_in_the_kernel_as_proved_for_every_kind_of_service() {
    let [flows, differ] = modes::differ_as_proved("full-iptables", "full-nftables").await;
    assert!(flows > 50 && differ > 5, "{differ} of {flows}");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_the_kernel_agrees_about_rules_of_iptables_changed_at_random() {
    changed_rules_of_iptables(0..5).await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_the_kernel_agrees_about_more_rules_of_iptables_changed_at_random() {
    changed_rules_of_iptables(5..15).await;
}

async fn changed_rules_of_iptables(rounds: Range<u64>) {
    let recording = Recording::named("seed-iptables");
    for (store, bridged, seed) in [(Store::Nft, true, 1), (Store::Legacy, false, 2)] {
        let network = Network::new(&recording, bridged);
        let [rules, _] = recording.iptables();
        for round in rounds.clone() {
            let mut dice = Dice::new(seed * 1000 + round);
            let (rules, mut done) = mutate::iptables(&mut dice, &rules, 8);
            restore(&network.node, store, [&rules, ""]);
            // Every third time a table of nftables stands beside.
            if round % 3 == 0 {
                let (table, about) = mutate::foreign_table(&mut dice);
                network.node.feed("nft -f -", &table);
                done.push(about);
            }
            let name = format!("{store:?}, round {round}:\n  {}\n", done.join("\n  "));
            Judge::new(name, &recording, &network).await.agree();
            if round % 3 == 0 {
                network.node.feed("nft -f -", "add table inet other; delete table inet other; add table ip other; delete table ip other");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn the_kernel_agrees_about_rules_of_nftables_changed_at_random() {
    changed_rules_of_nftables(0..6).await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_the_kernel_agrees_about_more_rules_of_nftables_changed_at_random() {
    changed_rules_of_nftables(6..20).await;
}

async fn changed_rules_of_nftables(rounds: Range<u64>) {
    let recording = Recording::named("seed-nftables");
    let network = Network::new(&recording, true);
    let rules = recording.text("node/nft.txt");
    for round in rounds {
        let mut dice = Dice::new(3000 + round);
        let (rules, done) = mutate::nftables(&mut dice, &rules, 6);
        network
            .node
            .feed("nft -f -", &format!("flush ruleset\n{rules}"));
        let name = format!("round {round}:\n  {}\n", done.join("\n  "));
        Judge::new(name, &recording, &network).await.agree();
    }
}

/// A table with a nat chain that translates a Service elsewhere, at the priority of iptables and kube-proxy.
const RIVAL: &str = "table ip other { chain pre { type nat hook prerouting priority -100; \
    ip daddr 10.97.54.248 tcp dport 80 dnat to 10.244.1.22:6380; }; }";

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_runs_the_nat_chain_first_that_was_registered_last() {
    let client = Source {
        place: Place::Client,
        addr: Some("10.244.1.200".parse().unwrap()),
    };
    let [service, rival] = ["10.97.54.248:80", "10.244.1.22:6380"];
    let recording = Recording::named("seed-iptables");
    let one_endpoint = |rules: &str| {
        let kept = rules.lines().filter(|line| !line.contains("--probability"));
        kept.collect::<Vec<_>>().join("\n") + "\n"
    };
    let [rules, _] = recording.iptables();
    let rules = one_endpoint(&rules);
    let own = last_endpoint(&rules, "10.97.54.248");
    // In this order; the chain of the last one is in front of the other.
    for (name, steps, wanted, is_likely) in [
        (
            "a table behind iptables",
            &["iptables", RIVAL][..],
            rival,
            true,
        ),
        ("a table before iptables", &[RIVAL, "iptables"], &own, true),
        // No list of tables shows it.
        (
            "an older table with a younger chain",
            &["table ip other { }", "iptables", RIVAL],
            rival,
            false,
        ),
    ] {
        let network = Network::new(&recording, true);
        for step in steps {
            match *step {
                "iptables" => restore(&network.node, Store::Nft, [&rules, ""]),
                table => {
                    network.node.feed("nft -f -", table);
                }
            }
        }
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        judge.order(client, service, wanted, is_likely).await;
    }
}

/// Returns the endpoint that rules without chances lead port 80 of a Service to.
fn last_endpoint(rules: &str, service: &str) -> String {
    let lines = || {
        rules
            .lines()
            .map(|line| line.split_once("] ").map_or(line, |(_, rule)| rule))
    };
    let rule = |chain: &str, words: &[&str]| {
        let chain = format!("-A {chain} ");
        let found = lines()
            .find(|line| line.starts_with(&chain) && words.iter().all(|word| line.contains(word)));
        let (_, last) = found.unwrap().rsplit_once(' ').unwrap();
        last.to_owned()
    };
    let of_service = rule("KUBE-SERVICES", &[service, "--dport 80 "]);
    let of_endpoint = rule(&of_service, &["-j KUBE-SEP-"]);
    rule(&of_endpoint, &["--to-destination "])
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_runs_no_chain_of_a_dormant_table() {
    for (name, store) in [("seed-iptables", Store::Nft), ("seed-nftables", Store::Nft)] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, true);
        match name {
            "seed-iptables" => recording.restore_iptables(&network.node, store),
            _ => recording.restore(&network.node),
        }
        let table = match name {
            "seed-iptables" => "nat",
            _ => "kube-proxy",
        };
        network.node.feed(
            "nft -f -",
            &format!("table ip {table} {{ flags dormant; }}"),
        );
        let judge = Judge::new(format!("{name}, dormant"), &recording, &network).await;
        assert!(judge.agree() > 50);
    }
}

#[tokio::test]
#[ignore = "needs root, ip_vs and dummy links"]
async fn vm_the_kernel_agrees_about_recorded_virtual_servers() {
    assert!(through_virtual_servers(1).await > 500);
}

#[tokio::test]
#[ignore = "needs root, ip_vs and dummy links"]
async fn vm_some_packets_go_through_virtual_servers_as_kpx_says() {
    // No divisor of how many sources a target has, so that each of them has its turn.
    assert!(through_virtual_servers(7).await > 70);
}

/// Judges one in `many` flows of the recordings of the ipvs mode; returns how many that are.
async fn through_virtual_servers(many: usize) -> usize {
    run(&["modprobe", "br_netfilter"], "");
    let mut flows = 0;
    for (name, bridged) in [
        ("seed-ipvs", true),
        ("full-ipvs", true),
        ("dual-ipvs", false),
        ("leftover-iptables-to-ipvs", false),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        let judge = judge.in_turns().one_in(many);
        flows += judge.agree();
        judge.one_in(20 * many).traced().await;
    }
    flows
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn the_kernel_agrees_about_policy_routing() {
    let recording = Recording::named("dual-iptables");
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    for line in [
        "-6 rule add priority 100 lookup 100",
        "-6 route add unreachable fd00:10:244:2::a table 100",
        "rule add priority 200 fwmark 0x4000/0x4000 lookup 101",
        "route add blackhole 10.244.2.10 table 101",
        "rule add priority 300 iif cni0 lookup 102",
        "route add prohibit 10.244.2.12/30 table 102",
        "rule add priority 400 from 10.244.1.200 to 10.244.2.0/24 lookup 103 suppress_prefixlength 30",
        "route add unreachable 10.244.2.8/29 table 103",
        "rule add priority 50 iif lo lookup 104",
        "route add blackhole 203.0.113.0/24 table 104",
        "route add blackhole 10.244.2.12/30 table 104",
    ] {
        network.node.run(&format!("ip {line}"));
    }
    let judge = Judge::new("policy".to_owned(), &recording, &network).await;
    judge.agree();
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn the_kernel_agrees_about_connections_that_are_there() {
    let recording = Recording::named("seed-iptables");
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    let connections = established::open(&network);
    let mut ends = Vec::new();
    for rule in [
        "",
        "FORWARD -m conntrack --ctstate ESTABLISHED -j DROP",
        "FORWARD -m conntrack --ctstate NEW -j DROP",
        "FORWARD -m conntrack --ctstate DNAT -j DROP",
        "FORWARD -m mark --mark 0x4000/0x4000 -j DROP",
        "FORWARD -p tcp --tcp-flags SYN SYN -j DROP",
        "FORWARD -p tcp --tcp-flags SYN,ACK ACK -j DROP",
        "POSTROUTING -t mangle -d 10.244.1.0/24 -m conntrack ! --ctstate NEW -j DROP",
        "OUTPUT -d 10.244.1.0/24 -m conntrack --ctstate ESTABLISHED -j DROP",
        "PREROUTING -t raw -d 10.97.54.248 -j DROP",
        "PREROUTING -t nat -j ACCEPT",
    ] {
        if !rule.is_empty() {
            network.node.run(&format!("iptables-nft -I {rule}"));
        }
        let judge = Judge::new(rule.to_owned(), &recording, &network).await;
        for connection in &connections {
            let arrives = connection.passes();
            // Rules of nat are for first packets: what begins now would go elsewhere.
            if !rule.contains("-t nat") {
                judge.later(connection.source, connection.target, arrives);
            }
            ends.push(arrives);
        }
        if !rule.is_empty() {
            network.node.run(&format!("iptables-nft -D {rule}"));
        }
        connections.iter().for_each(established::Connection::settle);
    }
    let dropped = ends.iter().filter(|arrives| !**arrives).count();
    assert!(dropped > 6 && dropped < ends.len() / 2, "{ends:?}");
}

/// A judge that finds nothing wrong must be one that would.
#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_judge_notices_what_kpx_did_not_read() {
    let recording = Recording::named("seed-iptables");
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    let judge = Judge::new("late".to_owned(), &recording, &network).await;
    for (rule, flow) in [
        (
            "FORWARD -s 10.244.1.200 -d 10.244.1.16 -j DROP",
            "Client 10.244.1.200 to 10.97.54.248:80",
        ),
        ("INPUT -p tcp --dport 22 -j REJECT", "Host to 10.0.2.15:22"),
        (
            "POSTROUTING -t nat -s 192.0.2.10 -j MASQUERADE",
            "Outside 192.0.2.10 to 10.100.99.99:80",
        ),
        (
            "PREROUTING -t nat -d 203.0.113.200 -j DNAT --to 10.244.1.14",
            "Outside 192.0.2.200 to 203.0.113.200:443",
        ),
    ] {
        network.node.run(&format!("iptables-nft -I {rule}"));
        let (_, wrong) = judge.differences();
        assert!(wrong.iter().any(|w| w.contains(flow)), "{rule}: {wrong:?}");
        network.node.run(&format!("iptables-nft -D {rule}"));
    }
    assert_eq!(judge.differences().1, [""; 0]);
}
