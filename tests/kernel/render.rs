//! The output of `render`, loaded by the real tools and listed again, is the desired state.

use std::path::Path;

use kpx_judge::diff::{self, Layer};
use kpx_node::backend::Mode;
use kpx_node::backend::program::{self, Part};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::netns::Netns;
use crate::random;

/// Loads everything of `mode` that `evidence` asks for into `netns`, and puts in what is listed then.
pub(crate) fn load(netns: &Netns, evidence: &mut Evidence, mode: Mode) {
    let texts: Vec<(Part, String)> = {
        let node = NodeSnapshot::new(evidence);
        let desired = node.desired(mode).unwrap();
        let cidrs = diff::service_cidrs(&node);
        let parts = Part::of(mode, &Family::BOTH).into_iter();
        parts
            .map(|part| {
                let text = program::text(desired, part, &Family::BOTH, &cidrs);
                (part, text.unwrap())
            })
            .collect()
    };
    for (part, text) in texts {
        match part {
            Part::Sysctl => evidence.insert(Item::Sysctl, Ok(text)),
            Part::Iptables(Family::V4) => {
                netns.feed("iptables-nft-restore --noflush", &text);
                let saved = netns.run("iptables-nft-save -c");
                evidence.insert(Item::Iptables4, Ok(saved));
            }
            Part::Iptables(Family::V6) => {
                netns.feed("ip6tables-nft-restore --noflush", &text);
                let saved = netns.run("ip6tables-nft-save -c");
                evidence.insert(Item::Iptables6, Ok(saved));
            }
            Part::Addresses => {
                netns.feed("ip -batch -", &text);
                // The node's own addresses are not in this namespace.
                let node = evidence.text(Item::Addresses).unwrap();
                let mut node: serde_json::Value = serde_json::from_str(node).unwrap();
                let links = node.as_array_mut().unwrap();
                links.retain(|link| link["ifname"] != "kube-ipvs0");
                let here = netns.run("ip -j addr show dev kube-ipvs0");
                let here: serde_json::Value = serde_json::from_str(&here).unwrap();
                let all = [
                    node.as_array().unwrap().clone(),
                    here.as_array().unwrap().clone(),
                ];
                let all = serde_json::Value::from(all.concat()).to_string();
                evidence.insert(Item::Addresses, Ok(all));
                let links = netns.run("ip -j -d link");
                evidence.insert(Item::Links, Ok(links));
            }
            Part::Ipset => {
                netns.feed("ipset restore", &text);
                evidence.insert(Item::Ipset, Ok(netns.run("ipset save")));
            }
            Part::Ipvs => {
                netns.feed("ipvsadm --restore", &text);
                evidence.insert(Item::IpvsSave, Ok(netns.run("ipvsadm -Sn")));
            }
            Part::Nftables => {
                netns.feed("nft -f -", &text);
                evidence.insert(Item::Nft, Ok(netns.run("nft -j list ruleset")));
            }
        }
    }
}

/// Fails if `evidence` differs from what should be there.
pub(crate) fn same(evidence: &Evidence, mode: Mode, what: &str) {
    let node = NodeSnapshot::new(evidence);
    let found = diff::compare(&node, mode, &Family::BOTH).unwrap();
    assert!(found.unknown.is_empty(), "{what}: {:?}", found.unknown);
    // Loading is no part of the recording's settings.
    let changes: Vec<_> = found
        .changes
        .iter()
        .filter(|c| c.layer() != Layer::Sysctl)
        .collect();
    assert!(changes.is_empty(), "{what}: {changes:#?}");
}

fn recorded(name: &str, mode: Mode) -> Evidence {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name);
    kpx_node::evidence::load(&path, &diff::needs(mode)).unwrap()
}

/// Rules and chains of `iptables-save`, without counters and policies, sorted: the order of Services is free.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| {
        let line = line.split_once("] -A ").map_or(line, |(_, rule)| rule);
        line.split(" [").next().unwrap()
    });
    let mut lines: Vec<_> = lines
        .filter(|line| !line.starts_with(['#', '*']) && !line.ends_with(" ACCEPT"))
        .collect();
    lines.sort_unstable();
    lines
}

#[test]
#[ignore = "needs root and a network namespace"]
fn rules_of_the_iptables_mode_come_back_as_recorded() {
    for name in [
        "dual-iptables",
        "full-iptables",
        "full-iptables-masqall",
        "full-iptables-v1.30",
        "seed-iptables",
    ] {
        let netns = Netns::new();
        netns.run("nfacct add ct_state_invalid_dropped_pkts");
        netns.run("nfacct add localhost_nps_accepted_pkts");
        let before = recorded(name, Mode::Iptables);
        let mut after = before.clone();
        load(&netns, &mut after, Mode::Iptables);
        same(&after, Mode::Iptables, name);
        for item in [Item::Iptables4, Item::Iptables6] {
            let (before, after) = (before.text(item).unwrap(), after.text(item).unwrap());
            assert_eq!(lines(after), lines(before), "{name} {item}");
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn the_tables_of_the_nftables_mode_come_back_as_recorded() {
    for name in ["dual-nftables", "full-nftables", "seed-nftables"] {
        let netns = Netns::new();
        let mut evidence = recorded(name, Mode::Nftables);
        load(&netns, &mut evidence, Mode::Nftables);
        same(&evidence, Mode::Nftables, name);
        // Loading again replaces the loaded rules.
        load(&netns, &mut evidence, Mode::Nftables);
        same(&evidence, Mode::Nftables, name);
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn sets_come_back_as_recorded() {
    for name in ["dual-ipvs", "full-ipvs", "seed-ipvs"] {
        let netns = Netns::new();
        let evidence = recorded(name, Mode::Ipvs);
        let node = NodeSnapshot::new(&evidence);
        let desired = node.desired(Mode::Ipvs).unwrap();
        let text = program::text(desired, Part::Ipset, &Family::BOTH, &[]).unwrap();
        netns.feed("ipset restore", &text);
        // Loading again changes nothing.
        netns.feed("ipset restore", &text);
        let mut after = evidence.clone();
        after.insert(Item::Ipset, Ok(netns.run("ipset save")));
        same(&after, Mode::Ipvs, name);
    }
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_all_of_the_ipvs_mode_comes_back_as_recorded() {
    for name in ["dual-ipvs", "full-ipvs-lc-strictarp", "full-ipvs-v1.30"] {
        let netns = Netns::new();
        let mut evidence = recorded(name, Mode::Ipvs);
        let addresses = evidence.text(Item::Addresses).unwrap().to_owned();
        load(&netns, &mut evidence, Mode::Ipvs);
        // kube-ipvs0 as it is here, everything else as it was on the node.
        let here = netns.run("ip -j addr show dev kube-ipvs0");
        let here: serde_json::Value = serde_json::from_str(&here).unwrap();
        let mut all: serde_json::Value = serde_json::from_str(&addresses).unwrap();
        let all = all.as_array_mut().unwrap();
        all.retain(|link| link["ifname"] != "kube-ipvs0");
        all.extend(here.as_array().unwrap().iter().cloned());
        let all = serde_json::Value::from(all.clone()).to_string();
        evidence.insert(Item::Addresses, Ok(all));
        same(&evidence, Mode::Ipvs, name);
    }
}

/// Random clusters in `mode`, for kube-proxies that write differently; few, as the emulated machine is slow. The last is
/// one without IPv4.
fn clusters(mode: Mode, versions: &[&str]) {
    for (seed, families) in [
        (0, random::DUAL),
        (1, random::DUAL),
        (2, random::DUAL),
        (3, random::ONLY_V6),
    ] {
        for version in versions {
            let netns = Netns::new();
            // Rules that match a link by its index load only where it is there.
            netns.run("ip link add cni0 type bridge");
            let mut evidence = random::evidence(seed, families, mode.name(), version);
            load(&netns, &mut evidence, mode);
            same(&evidence, mode, &format!("seed {seed}, {version}"));
        }
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn host_random_clusters_come_back_in_iptables_mode() {
    clusters(Mode::Iptables, &["v1.28.0", "v1.36.0"]);
}

#[test]
#[ignore = "needs root and a network namespace"]
fn host_random_clusters_come_back_in_nftables_mode() {
    clusters(
        Mode::Nftables,
        &["v1.30.0", "v1.34.0", "v1.35.0", "v1.36.0"],
    );
}

#[test]
#[ignore = "needs root and ip_vs"]
fn vm_random_clusters_come_back_in_ipvs_mode() {
    clusters(Mode::Ipvs, &["v1.28.0", "v1.36.0"]);
}
