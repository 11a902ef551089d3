//! The output of other programs: both iptables back ends, nft, ipset, conntrack.

use std::fs;
use std::path::Path;
use std::time::Duration;

use kpx_node::evidence::{Gap, Item};

use super::netns::Netns;

const STORES: &[Item] = &[
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
];

/// The rules of the tutorial cluster's node, without those whose nfacct object is not there.
pub(crate) fn rules() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes/seed-iptables/node/iptables-save.txt");
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter(|line| !line.contains("nfacct"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn count(text: &str) -> usize {
    text.matches(" -A ").count()
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn kube_proxy_in_the_nft_back_end_is_found_there() {
    let netns = Netns::new();
    netns.feed("iptables-nft-restore", &rules());
    netns.run("iptables-legacy -t nat -A OUTPUT -j RETURN");
    let evidence = netns.collect(STORES).await;
    assert_eq!(
        count(evidence.text(Item::Iptables4).unwrap()),
        count(&rules())
    );
    let legacy = evidence.text(Item::IptablesLegacy4).unwrap();
    assert!(legacy.contains("-A OUTPUT -j RETURN"), "{legacy}");
    let why = evidence.text(Item::IptablesNft4).unwrap_err().to_string();
    assert!(why.contains("nft is the iptables back end in use"), "{why}");
    let why = evidence
        .text(Item::IptablesLegacy6)
        .unwrap_err()
        .to_string();
    assert!(why.contains("has no IPv6 rules"), "{why}");
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn kube_proxy_in_the_legacy_back_end_is_found_there() {
    let netns = Netns::new();
    netns.feed("iptables-legacy-restore", &rules());
    netns.run("iptables-nft -A FORWARD -j ACCEPT");
    let evidence = netns.collect(STORES).await;
    assert_eq!(
        count(evidence.text(Item::Iptables4).unwrap()),
        count(&rules())
    );
    let nft = evidence.text(Item::IptablesNft4).unwrap();
    assert!(nft.contains("-A FORWARD -j ACCEPT"), "{nft}");
    assert!(matches!(
        evidence.text(Item::IptablesLegacy4),
        Err(Gap::NotApplicable(_))
    ));
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn reading_creates_no_tables() {
    let netns = Netns::new();
    let evidence = netns.collect(kpx_node::evidence::ITEMS).await;
    assert_eq!(count(evidence.text(Item::Iptables4).unwrap()), 0);
    assert_eq!(netns.run("nft list tables"), "");
    // A file is there only once its module is loaded.
    for names in ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"] {
        assert_eq!(
            netns.feed("sh", &format!("test ! -e {names} || cat {names}")),
            ""
        );
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn tables_of_iptables_are_left_out_of_nft_but_for_their_names() {
    let netns = Netns::new();
    netns.feed("iptables-nft-restore", &rules());
    let native = "table ip kube-proxy { chain services { ip daddr 10.96.0.1 drop; }; }
                  table inet firewalld { chain input { type filter hook input priority 10; }; }";
    netns.feed("nft -f -", native);
    let evidence = netns.collect(&[Item::Nft, Item::NftText]).await;
    let text = evidence.text(Item::Nft).unwrap();
    let document: serde_json::Value = serde_json::from_str(text).unwrap();
    let objects = document["nftables"].as_array().unwrap();
    assert!(objects[0]["metainfo"].is_object());
    let of = |kind: &str, key: &str| -> Vec<String> {
        let found = objects.iter().filter_map(|object| object.get(kind));
        found
            .map(|object| object[key].as_str().unwrap().to_owned())
            .collect()
    };
    let tables = of("table", "name");
    assert!(tables.contains(&"nat".to_owned()), "{tables:?}");
    assert_eq!(of("chain", "name"), ["services", "input"]);
    assert_eq!(of("rule", "table"), ["kube-proxy"]);
    assert!(matches!(
        evidence.text(Item::NftText),
        Err(Gap::NotApplicable(_))
    ));
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_table_that_is_deleted_during_the_read_is_no_error() {
    let netns = Netns::new();
    netns.feed("iptables-nft-restore", &rules());
    netns.feed(
        "nft -f -",
        "table inet firewalld { chain input { type filter hook input priority 10; }; }",
    );
    for round in 0..15 {
        netns.feed("nft -f -", "table ip kube-proxy { chain services { }; }");
        let (evidence, ()) = tokio::join!(netns.collect(&[Item::Nft]), async {
            tokio::time::sleep(Duration::from_millis(round * 3)).await;
            netns.run("nft delete table ip kube-proxy");
        });
        let text = evidence.text(Item::Nft).unwrap();
        assert!(text.contains("firewalld"), "{text}");
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn an_iptables_table_with_native_rules_is_read_by_nft() {
    let netns = Netns::new();
    netns.feed("nft -f -", "table ip nat { set s { type ipv4_addr; }; chain prerouting { type nat hook prerouting priority -100; ip saddr @s accept; }; }");
    let evidence = netns.collect(&[Item::Nft]).await;
    let text = evidence.text(Item::Nft).unwrap();
    assert!(text.contains("\"rule\""), "{text}");
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn sets_and_connections_are_those_of_the_namespace() {
    let netns = Netns::new();
    netns.feed(
        "ipset restore",
        "create KUBE-CLUSTER-IP hash:ip,port\nadd KUBE-CLUSTER-IP 10.96.0.1,tcp:443\n",
    );
    netns.run("conntrack -I -p tcp -s 10.0.0.1 -d 10.96.0.1 --sport 4000 --dport 443 --state ESTABLISHED -u ASSURED,SEEN_REPLY -t 300 -r 10.244.1.5 -q 10.0.0.1 --reply-port-src 6443 --reply-port-dst 4000");
    let evidence = netns.collect(&[Item::Ipset, Item::Conntrack]).await;
    let sets = evidence.text(Item::Ipset).unwrap();
    assert!(
        sets.contains("add KUBE-CLUSTER-IP 10.96.0.1,tcp:443"),
        "{sets}"
    );
    let connections = evidence.text(Item::Conntrack).unwrap();
    assert!(
        connections.contains("src=10.0.0.1 dst=10.96.0.1 sport=4000 dport=443"),
        "{connections}"
    );
    assert!(connections.contains("[ASSURED]"), "{connections}");
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_namespace_that_is_not_there_is_a_gap_of_every_item_in_it() {
    let netns = Netns::new();
    let mut options = netns.options();
    options.netns = Some("kpx-no-such-namespace".to_owned());
    let evidence =
        kpx_host::collect(&[Item::Links, Item::Ipset, Item::KernelRelease], &options).await;
    for item in [Item::Links, Item::Ipset] {
        let why = evidence.text(item).unwrap_err().to_string();
        assert!(why.contains("kpx-no-such-namespace"), "{why}");
    }
    assert!(evidence.text(Item::KernelRelease).is_ok());
}
