//! One address on two nodes.

use kpx_node::evidence::Item;
use serde_json::Value;

use super::{Pair, bundle};
use crate::support::kpx;

/// Adds an address to `link` of both nodes.
fn with_address(link: &str, address: &str) -> Pair {
    let mut pair = Pair::cluster();
    for at in 0..2 {
        pair.edit(at, Item::Addresses, |text| {
            let mut links: Value = serde_json::from_str(text).unwrap();
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let link = all.find(|of| of["ifname"] == link).unwrap();
            let family = if address.contains(':') {
                "inet6"
            } else {
                "inet"
            };
            let added = serde_json::json!({
                "family": family, "local": address, "prefixlen": 32, "scope": "global",
            });
            link["addr_info"].as_array_mut().unwrap().push(added);
            links.to_string()
        });
    }
    pair
}

#[tokio::test]
async fn an_address_of_two_nodes_in_one_network_is_found() {
    for (link, address, is_found) in [
        ("eth0", "10.0.2.50", true),
        ("eth0", "203.0.113.50", true),
        ("lo", "203.0.113.50", false),
        ("cni0", "10.10.0.1", false),
    ] {
        let (_dir, path) = bundle(&with_address(link, address));
        let ran = kpx(&["--from", &path, "doctor", "--all-nodes", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let mut findings = report["summary"]["findings"].as_array().unwrap().iter();
        let words = format!("nodes node1, node2 have the same address, {address}");
        let found = findings.find(|of| of["message"].as_str().unwrap().contains(&words));
        assert_eq!(found.is_some(), is_found, "{link} {address}: {report}");
        assert!(
            found.is_none_or(|of| of["nodes"].as_array().unwrap().len() == 2),
            "{ran}"
        );
    }
}
