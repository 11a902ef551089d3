//! `kpx trace` with the kernel as its judge: recorded rulesets are restored, real packets are sent, and conntrack says
//! what became of them.
//!
//! Packets go from a pod, from a pod that is a backend itself, from the node and from outside to everything a Service
//! offers, and to some addresses that none does. kpx looks at the same namespace with its own live readers.

mod judge;
mod network;
mod recording;
mod send;

use judge::Judge;
use kpx::net::Proto;
use network::{Network, Source};
use recording::{Recording, Store, restore};

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_agrees_about_recorded_rules_of_iptables() {
    let mut flows = 0;
    for (name, store, bridged) in [
        ("full-iptables", Store::Nft, true),
        ("full-iptables", Store::Legacy, false),
        ("full-iptables-masqall", Store::Nft, false),
        ("full-iptables-masqall", Store::Legacy, true),
        ("full-iptables-v1.30", Store::Nft, true),
        ("full-iptables-v1.30", Store::Legacy, false),
        ("dual-iptables", Store::Nft, true),
        ("dual-iptables", Store::Legacy, false),
        ("seed-iptables", Store::Nft, true),
        ("seed-iptables", Store::Legacy, false),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore_iptables(&network.node, store);
        let judge = Judge::new(format!("{name} in {store:?}"), &recording, &network).await;
        flows += judge.agree();
    }
    assert!(flows > 500, "{flows}");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_agrees_about_recorded_rules_of_nftables() {
    let mut flows = 0;
    for (name, bridged) in [
        ("full-nftables", true),
        ("full-nftables", false),
        ("dual-nftables", true),
        ("dual-nftables", false),
        ("seed-nftables", true),
    ] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, bridged);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        flows += judge.agree();
    }
    assert!(flows > 500, "{flows}");
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
