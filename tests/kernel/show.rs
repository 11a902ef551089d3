//! `kpx show` live, and from the bundle of the same namespace.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::netns::Netns;
use crate::support;

const VIEWS: [&str; 11] = [
    "services",
    "chains",
    "ipvs",
    "sets",
    "addresses",
    "nodeports",
    "conntrack",
    "affinity",
    "modules",
    "sysctls",
    "config",
];

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name)
}

/// Runs kpx; returns what it printed and its exit status.
async fn kpx(args: &[&str]) -> (String, u8) {
    let ran = support::kpx(args).await;
    assert!(matches!(ran.code, 0 | 3), "{ran}");
    (ran.out, ran.code)
}

/// Removes the fields that change between two reads.
fn at_rest(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(at_rest),
        Value::Object(all) => {
            for key in ["packets", "timeout", "secondsLeft"] {
                all.remove(key);
            }
            all.values_mut().for_each(at_rest);
        }
        _ => {}
    }
}

/// Shows every view live and from a bundle, both with `more` arguments, and compares.
async fn same(netns: &Netns, more: &[&str]) {
    let options = netns.options();
    let name = options.netns.as_deref().unwrap();
    let mut live = vec!["--netns", name];
    live.extend_from_slice(more);
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    let bundle = bundle.to_str().unwrap();
    kpx(&[&live[..], &["snapshot", "--file", bundle]].concat()).await;
    for view in VIEWS {
        let (now, code) = kpx(&[&live[..], &["show", view, "-o", "json"]].concat()).await;
        let (then, code_then) = kpx(&["--from", bundle, "show", view, "-o", "json"]).await;
        let of_service = matches!(view, "services" | "chains" | "nodeports");
        assert!(!of_service || now.contains("nginx"), "{view}: {now}");
        let mut now: Value = serde_json::from_str(&now).unwrap();
        let mut then: Value = serde_json::from_str(&then).unwrap();
        for shown in [&mut now, &mut then] {
            at_rest(shown);
            shown.as_object_mut().unwrap().remove("origin");
        }
        assert_eq!(now, then, "{view}");
        assert_eq!(code, code_then, "{view}");
    }
}

/// Makes a node of the rules of `rules` and the sets of `sets`, two recordings.
fn node(rules: &str, sets: &str) -> Netns {
    let netns = Netns::new();
    let read = |name: &str, file: &str| fs::read_to_string(recording(name).join(file)).unwrap();
    let text = read(rules, "node/iptables-save.txt");
    let lines = text.lines().filter(|line| !line.contains("nfacct"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    netns.feed("iptables-restore", &text);
    netns.feed("ipset restore", &read(sets, "node/ipset-save.txt"));
    netns.run("ip addr add 10.0.2.15/24 dev lo");
    netns.run(
        "conntrack -I -p tcp -s 10.0.0.1 -d 10.97.54.248 --sport 4000 --dport 80 --state ESTABLISHED -u \
         ASSURED,SEEN_REPLY -t 3000 -r 10.244.1.14 -q 10.0.0.1 --reply-port-src 80 --reply-port-dst 4000",
    );
    netns
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_bundle_shows_what_the_live_node_does() {
    let netns = node("seed-iptables", "seed-ipvs");
    let cluster = recording("seed-iptables");
    same(&netns, &["--cluster-from", cluster.to_str().unwrap()]).await;
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_bundle_shows_what_the_live_node_does_without_a_cluster() {
    same(&node("seed-iptables", "seed-ipvs"), &["--no-api"]).await;
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_bundle_shows_what_the_live_node_does_in_nftables_mode() {
    let netns = Netns::new();
    let text = fs::read_to_string(recording("seed-nftables").join("node/nft.txt")).unwrap();
    netns.feed("nft -f -", &text);
    let cluster = recording("seed-nftables");
    same(&netns, &["--cluster-from", cluster.to_str().unwrap()]).await;
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn clients_of_recent_lists_are_shown() {
    let netns = node("full-iptables", "full-ipvs");
    // The kernel records the time; the list is forgotten after ten minutes.
    let list = "tee /proc/net/xt_recent/KUBE-SEP-3ZEI2ZNS3OA4Y2Z4";
    netns.feed(list, "+10.244.1.77\n");
    let cluster = recording("full-iptables");
    let cluster = ["--cluster-from", cluster.to_str().unwrap()];
    same(&netns, &cluster).await;
    let options = netns.options();
    let name = options.netns.as_deref().unwrap();
    let live = [
        &["--netns", name],
        &cluster[..],
        &["show", "affinity", "-o", "json"],
    ]
    .concat();
    let (shown, _) = kpx(&live).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let row = &shown["affinity"][0];
    assert_eq!(row["client"], "10.244.1.77", "{shown}");
    assert_eq!(row["backend"], "10.244.1.30:8080", "{shown}");
    let left = row["secondsLeft"].as_u64().unwrap();
    assert!((500..=600).contains(&left), "{shown}");
}
