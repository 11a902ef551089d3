//! Links that are not the way of a pod: VPNs, further interfaces of the machine, bridges inside the node, links without the pod's gateway.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, LINKS, ROUTES, findings, json, says};
use super::incidents::{answer, copy, write};
use super::links::{add_policy_rules, add_routes, says_to};
use super::pods::in_edge;

const ADDRESSES: &str = "node/ip-addr.json";

fn add(dir: &tempfile::TempDir, file: &str, what: Value) {
    write(
        dir,
        file,
        json(|all| all.as_array_mut().unwrap().push(what)),
    );
}

/// Adds a link, with this address if it is given.
fn add_link(dir: &tempfile::TempDir, name: &str, kind: Option<&str>, address: Option<(&str, u8)>) {
    let mut link = json!({"ifindex": 40, "ifname": name, "flags": ["UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP"});
    if let Some(kind) = kind {
        link["linkinfo"] = json!({"info_kind": kind});
    }
    add(dir, LINKS, link);
    let own = address.map(|(local, prefix)| json!({"family": "inet", "local": local, "prefixlen": prefix, "scope": "global"}));
    let own: Vec<Value> = own.into_iter().collect();
    add(
        dir,
        ADDRESSES,
        json!({"ifindex": 40, "ifname": name, "addr_info": own}),
    );
}

#[tokio::test]
async fn a_rule_for_the_default_route_of_a_vpn_leads_packets_past_the_nodes_of_endpoints() {
    let of_pods = json!({"priority": 700, "src": "10.244.1.0", "srclen": 24, "table": "77"});
    let of_all = json!({"priority": 700, "src": "all", "table": "77"});
    for (rule, kind) in [(&of_pods, "tun"), (&of_pods, "wireguard"), (&of_all, "tun")] {
        let dir = copy(HEALTHY);
        add_link(&dir, "vpn0", Some(kind), None);
        add_policy_rules(&dir, std::slice::from_ref(rule));
        add_routes(
            &dir,
            &[
                json!({"dst": "default", "dev": "vpn0", "table": "77", "scope": "link", "flags": []}),
            ],
        );
        // Both endpoints are on other nodes.
        let words = ["routing policy rule 700", "vpn0"];
        let answer = answer(dir.path().to_str().unwrap(), "demo/api:http").await;
        assert!(
            ["unknown", "partly", "lost"].contains(&answer["fate"].as_str().unwrap()),
            "{answer:#}"
        );
        let text = answer.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{answer:#}");
    }
    // A network plugin leads packets for the pods of one node into its tunnel.
    let dir = copy(HEALTHY);
    add_link(&dir, "wg-nodes", Some("wireguard"), None);
    add_policy_rules(&dir, &[of_all]);
    let route = json!({"dst": "10.244.2.0/24", "dev": "wg-nodes", "table": "77", "scope": "link", "flags": []});
    add_routes(&dir, &[route]);
    says(&dir, "demo/api:http", "works", &[]).await;
}

#[tokio::test]
async fn kube_router_has_a_route_to_each_node_or_has_lost_it() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let is_there = |route: &Value| {
                route["gateway"] == "10.210.0.15" || route["gateway"] == "10.210.0.17"
            };
            routes
                .as_array_mut()
                .unwrap()
                .retain(|route| !is_there(route));
        }),
    );
    // A router may lead the packets there.
    says(&dir, "demo/api:http", "works", &[]).await;
    add_link(&dir, "kube-bridge", Some("bridge"), None);
    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            let pod = json!({"metadata": {"name": "kube-router-x", "namespace": "kube-system", "labels": {"k8s-app": "kube-router"}},
                "spec": {"nodeName": "w1", "hostNetwork": true, "containers": [{"name": "kube-router"}]},
                "status": {"phase": "Running"}});
            pods["items"].as_array_mut().unwrap().push(pod);
        }),
    );
    let words = [
        "no route leads to the pods of other nodes",
        "ip route replace 10.244.",
    ];
    says(&dir, "demo/api:http", "unknown", &words).await;
}

#[tokio::test]
async fn a_pod_of_a_further_interface_does_not_leave_by_the_first_with_its_address() {
    let dir = copy(HEALTHY);
    add_link(&dir, "eth1", None, Some(("10.244.7.7", 16)));
    let pod = json!({"priority": 1536, "src": EDGE, "table": "2"});
    add_policy_rules(&dir, std::slice::from_ref(&pod));
    add_routes(
        &dir,
        &[
            json!({"dst": "default", "gateway": "10.244.0.1", "dev": "eth1", "table": "2", "flags": []}),
        ],
    );
    let past =
        json!({"priority": 1024, "src": "all", "dst": "10.244.0.0", "dstlen": 16, "table": "main"});
    add_policy_rules(&dir, &[past]);
    let words = ["leave by eth0 with its address", "is for eth1"];
    says_to(&dir, "demo/api:http", EDGE, "unknown", &words).await;
}

#[tokio::test]
async fn a_client_in_the_range_of_a_bridge_inside_the_node_gets_no_reply() {
    let dir = copy(HEALTHY);
    let docker = json!({"ifindex": 40, "ifname": "docker0", "flags": ["NO-CARRIER", "BROADCAST", "UP"], "mtu": 1500,
        "operstate": "DOWN", "linkinfo": {"info_kind": "bridge"}});
    add(&dir, LINKS, docker);
    let own =
        json!([{"family": "inet", "local": "172.17.0.1", "prefixlen": 16, "scope": "global"}]);
    add(
        &dir,
        ADDRESSES,
        json!({"ifindex": 40, "ifname": "docker0", "addr_info": own}),
    );
    add_routes(
        &dir,
        &[
            json!({"dst": "172.17.0.0/16", "prefsrc": "172.17.0.1", "dev": "docker0", "protocol": "kernel", "scope": "link", "flags": []}),
        ],
    );
    let words = [
        "docker0, a bridge inside the node, has 172.17.0.1/16",
        "ip route replace 172.17.4.9/32 via 10.210.0.2 dev eth0",
    ];
    says_to(&dir, "demo/edge-local:http", "172.17.4.9", "lost", &words).await;
}

#[tokio::test]
async fn with_strict_arp_the_node_answers_for_the_addresses_of_the_asking_link_alone() {
    let dir = copy(HEALTHY);
    in_edge(&dir, |text| {
        let own = "[{\"dst\":\"default\",\"gateway\":\"10.244.1.1\",\"dev\":\"eth0\",\"flags\":[]}";
        let other = "[{\"dst\":\"default\",\"gateway\":\"10.210.0.16\",\"dev\":\"eth0\",\"flags\":[\"onlink\"]}";
        text.replacen(own, other, 1)
    });
    says_to(&dir, "demo/api:http", EDGE, "works", &[]).await;
    write(&dir, "node/sysctl.txt", |text| {
        text.replace(
            "net.ipv4.conf.all.arp_ignore = 0",
            "net.ipv4.conf.all.arp_ignore = 1",
        )
    });
    let words = [
        "net.ipv4.conf.all.arp_ignore is not 0 (strict ARP)",
        "10.210.0.16, the gateway of the pod",
        "sysctl -w net.ipv4.conf.all.arp_ignore=0",
    ];
    says_to(&dir, "demo/api:http", EDGE, "lost", &words).await;
}

#[tokio::test]
async fn without_slices_a_service_that_the_rules_reject_is_no_error() {
    let dir = copy(HEALTHY);
    std::fs::remove_file(dir.path().join("cluster/endpointslices.json")).unwrap();
    let found = findings(&dir).await;
    let is_of_empty = |finding: &(String, String, String)| finding.2.contains("has no endpoints");
    assert!(!found.iter().any(is_of_empty), "{found:?}");
}

#[tokio::test]
async fn a_vpn_with_the_address_of_the_node_needs_no_arp() {
    for (kind, needs_it) in [("wireguard", false), ("tun", false), ("veth", true)] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            LINKS,
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                let eth0 = all.find(|link| link["ifname"] == "eth0").unwrap();
                eth0["flags"] = json!(["POINTOPOINT", "NOARP", "UP", "LOWER_UP"]);
                eth0["linkinfo"] = json!({"info_kind": kind});
            }),
        );
        let found = findings(&dir).await;
        let is_said = found.iter().any(|of| of.2.contains("ARP is off at eth0"));
        assert_eq!(is_said, needs_it, "{kind}: {found:?}");
    }
}

#[tokio::test]
async fn two_links_of_one_network_answer_for_each_others_addresses() {
    for (filter, ignore, fate) in [
        ("0", "0", "works"),
        ("1", "0", "unknown"),
        ("1", "1", "lost"),
    ] {
        let dir = copy(HEALTHY);
        add_link(&dir, "eth1", Some("veth"), Some(("10.210.0.116", 24)));
        let own = json!({"type": "local", "dst": "10.210.0.116", "dev": "eth1", "table": "local", "scope": "host", "flags": []});
        add_routes(&dir, &[own]);
        write(&dir, "node/sysctl.txt", |text| {
            let of_eth0 = text.lines().filter(|line| line.contains(".conf.eth0."));
            let of_eth1: Vec<_> = of_eth0.map(|line| line.replace("eth0", "eth1")).collect();
            let text = format!("{text}{}\n", of_eth1.join("\n"));
            let text = text.replace(
                "conf.eth1.rp_filter = 0",
                &format!("conf.eth1.rp_filter = {filter}"),
            );
            text.replace(
                "conf.all.arp_ignore = 0",
                &format!("conf.all.arp_ignore = {ignore}"),
            )
        });
        let to = "10.210.0.116:30080";
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["rp_filter", "eth1"],
        };
        says_to(&dir, to, "10.210.0.77", fate, words).await;
    }
}
