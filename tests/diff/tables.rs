//! The tables of the nftables mode as nft may list them, and how differences in them are shown.

use serde_json::{Value, json};

use super::{each, report_of};
use crate::support::{Change, broken};

const NFT: &str = "node/nft.json";
const SERVICES: &str = "cluster/services.json";

/// Changes the objects that `nft -j` listed.
fn listed(text: &str, change: impl FnOnce(&mut Vec<Value>)) -> String {
    let mut all: Value = serde_json::from_str(text).unwrap();
    change(all["nftables"].as_array_mut().unwrap());
    all.to_string()
}

/// Returns the object `key: name` of sort `kind` in the table for IPv4.
fn find<'a>(all: &'a mut [Value], kind: &str, key: &str, name: &str) -> &'a mut Value {
    let mut objects = all.iter_mut().filter_map(|object| object.get_mut(kind));
    let found = objects.find(|object| object["family"] == "ip" && object[key] == name);
    found.unwrap()
}

fn prefix(addr: &str, len: u8) -> Value {
    json!({ "prefix": { "addr": addr, "len": len } })
}

/// The differences of the healthy node once `nft -j` lists `change`.
async fn report(change: impl Fn(&mut Vec<Value>)) -> Value {
    let change = |text: &str| listed(text, &change);
    report_of(&broken("full-nftables", &[(NFT, &change)])).await
}

#[tokio::test]
async fn a_chain_at_another_hook_is_shown_with_both_hooks() {
    let report = report(|all| {
        find(all, "chain", "name", "filter-input")["prio"] = json!(7);
        let chain = find(all, "chain", "name", "nat-output");
        for key in ["type", "hook", "prio", "policy"] {
            chain.as_object_mut().unwrap().remove(key);
        }
    })
    .await;
    let chains = ["filter-input", "nat-output"].map(|name| format!("kube-proxy chain {name}"));
    assert_eq!(each(&report, "object"), chains);
    assert_eq!(
        each(&report, "have"),
        [
            "type filter hook input priority 7 policy accept",
            "not at a hook",
        ]
    );
    assert_eq!(
        each(&report, "want"),
        [
            "type filter hook input priority 0 policy accept",
            "type nat hook output priority -100 policy accept",
        ]
    );
}

#[tokio::test]
async fn a_missing_chain_is_shown_with_its_hook_and_rules() {
    let report = report(|all| {
        all.retain(|object| {
            let of = |kind: &str, key: &str| {
                object[kind]["family"] == "ip" && object[kind][key] == "filter-input"
            };
            !of("chain", "name") && !of("rule", "chain")
        });
    })
    .await;
    assert_eq!(each(&report, "action"), ["missing"]);
    assert_eq!(
        each(&report, "want"),
        ["type filter hook input priority 0 policy accept\n\
          ct state new jump nodeport-endpoints-check\n\
          ct state new jump service-endpoints-check"]
    );
}

#[tokio::test]
async fn a_set_of_another_kind_is_shown_with_both_kinds() {
    let affinity = "affinity-EBQUYVBC-shop/cart/tcp/http__10.244.1.30/8080";
    let report = report(|all| {
        find(all, "set", "name", "cluster-ips")["flags"] = json!(["interval"]);
        find(all, "set", "name", affinity)["timeout"] = json!(7);
    })
    .await;
    let sets = [affinity, "cluster-ips"].map(|name| format!("set {name}"));
    assert_eq!(each(&report, "object"), sets);
    assert_eq!(
        each(&report, "have"),
        ["ipv4_addr timeout 7s", "ipv4_addr interval"]
    );
    assert_eq!(
        each(&report, "want"),
        ["ipv4_addr timeout 600s", "ipv4_addr"]
    );
}

#[tokio::test]
async fn only_a_chain_of_a_service_that_has_rules_is_extra() {
    let stale = "service-AAAAAAAA-shop/gone/tcp/http";
    let report = report(|all| {
        let table = json!({ "family": "ip", "table": "kube-proxy" });
        let mut add = |kind: &str, key: &str, name: &str| {
            let mut object = table.clone();
            object[key] = json!(name);
            object["handle"] = json!(9000);
            object["expr"] = json!([{ "drop": null }]);
            all.push(json!({ kind: object }));
        };
        for name in ["foreign", stale] {
            add("chain", "name", name);
            add("rule", "chain", name);
        }
        add("chain", "name", "service-BBBBBBBB-shop/emptied/tcp/http");
    })
    .await;
    let stale = format!("kube-proxy chain {stale}");
    assert_eq!(each(&report, "object"), [stale], "{report:#}");
    assert_eq!(each(&report, "action"), ["extra"]);
    assert_eq!(each(&report, "have"), ["drop"]);
}

#[tokio::test]
async fn source_ranges_are_compared_as_the_kernel_lists_them() {
    let three = ["192.0.2.0/25", "198.51.100.0/24", "203.0.113.0/24"];
    let (first, second, third) = (
        prefix("192.0.2.0", 25),
        prefix("198.51.100.0", 24),
        prefix("203.0.113.0", 24),
    );
    for (wanted, live, differences) in [
        // The kernel joins adjacent prefixes.
        (
            &["192.0.2.0/25", "198.51.100.0/24", "198.51.101.0/25"][..],
            json!([{ "range": ["198.51.100.0", "198.51.101.127"] }, first]),
            0,
        ),
        (&three, json!([first, second, third]), 0),
        (&three, json!([first, third]), 1),
    ] {
        let services = |text: &str| {
            let mut all: Value = serde_json::from_str(text).unwrap();
            let mut items = all["items"].as_array_mut().unwrap().iter_mut();
            let service = items.find(|service| service["metadata"]["name"] == "web-restricted");
            service.unwrap()["spec"]["loadBalancerSourceRanges"] = json!(wanted);
            all.to_string()
        };
        let firewall = "firewall-ECWQDEPV-edge/web-restricted/tcp/https";
        let rules = |text: &str| {
            listed(text, |all| {
                let rule = find(all, "rule", "chain", firewall);
                rule["expr"][0]["match"]["right"] = json!({ "set": live });
            })
        };
        let changes: &[(&str, Change<'_>)] = &[(SERVICES, &services), (NFT, &rules)];
        let report = report_of(&broken("full-nftables", changes)).await;
        let objects = each(&report, "object");
        assert_eq!(objects.len(), differences, "{report:#}");
    }
}

#[tokio::test]
async fn every_service_ip_range_of_the_live_table_is_expected_in_it() {
    for ranges in [
        prefix("10.96.0.0", 12),
        json!({ "set": [prefix("10.96.0.0", 16), prefix("10.100.0.0", 16)] }),
        json!({ "set": [prefix("10.96.0.0", 16), "10.100.0.1"] }),
        json!({ "set": [{ "range": ["10.96.0.0", "10.97.127.255"] }] }),
    ] {
        let report = report(|all| {
            let rule = find(
                all,
                "rule",
                "comment",
                "Drop traffic to unallocated ClusterIPs",
            );
            rule["expr"][0]["match"]["right"] = ranges.clone();
        })
        .await;
        assert_eq!(report["changes"], json!([]), "{ranges}");
    }
}
