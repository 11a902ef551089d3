//! The link by which packets come in, and what takes them there: another one than the route to their sender has, or no program.

use serde_json::json;

use super::ends::{HEALTHY, json, says};
use super::incidents::{copy, write};
use super::links::{add_policy_rules, add_routes};
use super::meant::{add_rule, with_rule};
use crate::support::kpx;

/// Asks for the path of packets from outside to `target`.
async fn traced(dir: &tempfile::TempDir, target: &str) -> String {
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "trace", target, "--source", "203.0.113.9"]).await;
    ran.out
}

#[tokio::test]
async fn packets_to_an_address_of_a_second_link_come_in_there() {
    let dir = with_rule(
        "mangle",
        "-A PREROUTING -m rpfilter --validmark --invert -j DROP",
    );
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            links
                .as_array_mut()
                .unwrap()
                .push(json!({"ifname": "eth1", "ifindex": 77, "addr_info": [
                {"family": "inet", "local": "10.220.0.16", "prefixlen": 24, "scope": "global"}]}));
        }),
    );
    write(
        &dir,
        "node/ip-link.json",
        json(|links| {
            links.as_array_mut().unwrap().push(
                json!({"ifname": "eth1", "ifindex": 77, "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"], "mtu": 1500}),
            );
        }),
    );
    add_routes(
        &dir,
        &[
            json!({"dst": "10.220.0.0/24", "dev": "eth1", "scope": "link", "flags": []}),
            json!({"type": "local", "dst": "10.220.0.16", "dev": "eth1", "table": "local", "flags": []}),
        ],
    );
    let second = traced(&dir, "10.220.0.16:30080").await;
    assert!(
        second.contains("LOST:") && second.contains("dropped by rule 1 of"),
        "{second}"
    );
    let first = traced(&dir, "10.210.0.16:30080").await;
    assert!(first.contains("WORKS:"), "{first}");
}

#[tokio::test]
async fn a_rule_for_a_proxy_that_does_not_listen_drops_packets_unless_it_is_of_nft() {
    let rule = "-A PREROUTING -p tcp -m tcp --dport 80 -j TPROXY --on-port 3129 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1";
    let dir = with_rule("mangle", rule);
    let words = ["rule 1 of chain PREROUTING in table mangle drops the packets"];
    says(&dir, "demo/web:http", "partly", &words).await;
    says(&dir, "demo/web:echo", "works", &[]).await;
    write(&dir, "node/ss.txt", |text| {
        format!("{text}tcp LISTEN 0 4096 0.0.0.0:3129 0.0.0.0:* users:((\"squid\",pid=7,fd=3))\n")
    });
    let words = ["hands it to a local proxy at port 3129"];
    says(&dir, "demo/web:http", "unknown", &words).await;
    // A routing policy rule keeps the packets here.
    let marked =
        json!({"priority": 100, "src": "all", "fwmark": "0x1", "fwmask": "0x1", "table": "100"});
    add_policy_rules(&dir, &[marked]);
    let local = json!({"type": "local", "dst": "default", "dev": "lo", "table": "100", "scope": "host", "flags": []});
    add_routes(&dir, &[local]);
    let words = [
        "(TPROXY) hands the packets to squid at port 3129",
        "iptables -t mangle -I PREROUTING -d",
        "-j RETURN",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;

    let of_nft = copy(HEALTHY);
    write(
        &of_nft,
        "node/nft.json",
        json(|rules| {
            let all = rules["nftables"].as_array_mut().unwrap();
            all.push(json!({"table": {"family": "inet", "name": "divert", "handle": 90}}));
            all.push(json!({"chain": {"family": "inet", "table": "divert", "name": "pre", "handle": 1, "type": "filter",
                "hook": "prerouting", "prio": -150, "policy": "accept"}}));
            let port = json!({"payload": {"protocol": "tcp", "field": "dport"}});
            let expr = json!([{"match": {"op": "==", "left": port, "right": 80}}, {"tproxy": {"family": "ip", "port": 3129}}]);
            all.push(json!({"rule": {"family": "inet", "table": "divert", "chain": "pre", "handle": 2, "expr": expr}}));
        }),
    );
    says(&of_nft, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn a_masqueraded_datagram_in_a_tunnel_of_an_old_kernel_may_be_lost() {
    let dir = copy(HEALTHY);
    add_rule(&dir, "nat", "-A POSTROUTING -o flannel.1 -j MASQUERADE");
    write(
        &dir,
        "node/ip-link.json",
        json(|links| {
            links.as_array_mut().unwrap().push(
                json!({"ifname": "flannel.1", "ifindex": 78, "mtu": 1450,
                "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
                "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 1, "port": 8472}}}),
            );
        }),
    );
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            links
                .as_array_mut()
                .unwrap()
                .push(json!({"ifname": "flannel.1", "ifindex": 78, "addr_info": [
                {"family": "inet", "local": "10.244.1.0", "prefixlen": 32, "scope": "global"}]}));
        }),
    );
    write(
        &dir,
        "node/ip-route.json",
        json(|routes| {
            for route in routes.as_array_mut().unwrap() {
                if ["10.244.0.0/24", "10.244.2.0/24"]
                    .map(Into::into)
                    .contains(&route["dst"])
                {
                    let gateway = route["dst"].as_str().unwrap().trim_end_matches("/24");
                    *route = json!({"dst": route["dst"], "gateway": gateway, "dev": "flannel.1", "flags": ["onlink"]});
                }
            }
        }),
    );
    says(&dir, "demo/web:datagrams", "works", &[]).await;
    write(&dir, "node/kernel-release.txt", |_| {
        "5.4.0-135-generic\n".to_owned()
    });
    let words = ["ethtool -k flannel.1 | grep tx-checksum-ip-generic"];
    says(&dir, "demo/web:datagrams", "unknown", &words).await;
    says(&dir, "demo/web:http", "works", &[]).await;
}
