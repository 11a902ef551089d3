//! Below the rules of IP: MAC addresses, ports of bridges, sizes of packets, entries of tunnels; and timeouts of idle connections.

use serde_json::{Value, json};

use super::ends::{HEALTHY, LINKS, PODS, ROUTES, findings, json, says};
use super::incidents::{answer, copy, write};
use super::meant::with_rule;

/// The MAC address of a pod of the node that serves nothing.
const CLIENT_MAC: &str = "f2:46:ea:0e:55:ff";
/// The MAC address of an endpoint.
const EDGE_MAC: &str = "9a:6c:6f:55:fb:62";
/// The MAC address of another node.
const NODE_MAC: &str = "02:00:00:00:00:17";

/// The verdicts on connections to `service`, each after its client.
async fn fates(dir: &tempfile::TempDir, service: &str) -> Vec<(String, String)> {
    let answer = answer(dir.path().to_str().unwrap(), service).await;
    let cells = answer["paths"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    let all = cells.iter();
    all.map(|cell| (text(&cell["client"]), text(&cell["fate"])))
        .collect()
}

#[tokio::test]
async fn a_rule_for_a_mac_address_concerns_the_pod_that_has_it() {
    let by_mac = |mac: &str| {
        with_rule(
            "raw",
            &format!("-A PREROUTING -m mac --mac-source {mac} -j DROP"),
        )
    };
    // A client.
    let dir = by_mac(CLIENT_MAC);
    for (client, fate) in fates(&dir, "demo/edge:http").await {
        let wanted = if client == "single" { "lost" } else { "works" };
        assert_eq!(fate, wanted, "{client}");
    }
    // An endpoint, whose replies are dropped.
    let words = ["for 33% of connections from pods", "in table raw"];
    says(&by_mac(EDGE_MAC), "demo/edge:http", "partly", &words).await;
    // Packets of other nodes have the addresses of the neighbours that lead there.
    for (mac, fate) in [(NODE_MAC, "partly"), ("02:00:00:00:00:99", "works")] {
        let dir = by_mac(mac);
        let nodes = ["10.210.0.15", "10.210.0.17"]
            .into_iter()
            .zip(["02:00:00:00:00:15", NODE_MAC]);
        add_neighbours(&dir, nodes.map(|(at, mac)| json!({"dst": at, "dev": "eth0", "lladdr": mac, "state": ["REACHABLE"]})));
        says(&dir, "demo/edge:http", fate, &[]).await;
    }
    // Without them, that is not known.
    says(
        &by_mac(NODE_MAC),
        "demo/edge:http",
        "unknown",
        &["raw PREROUTING"],
    )
    .await;
}

fn add_neighbours(dir: &tempfile::TempDir, new: impl IntoIterator<Item = Value>) {
    let add = |all: &mut Value| all.as_array_mut().unwrap().extend(new);
    write(dir, "node/ip-neigh.json", json(add));
}

#[tokio::test]
async fn a_rule_of_a_bridge_concerns_the_pod_that_it_names() {
    let rule = |left: &str, right: &str| {
        let dir = copy(HEALTHY);
        let left = match left {
            "saddr" => json!({"payload": {"protocol": "ether", "field": "saddr"}}),
            key => json!({"meta": {"key": key}}),
        };
        write(
            &dir,
            "node/nft.json",
            json(|rules| {
                let all = rules["nftables"].as_array_mut().unwrap();
                all.push(json!({"table": {"family": "bridge", "name": "filter", "handle": 1}}));
                all.push(json!({"chain": {"family": "bridge", "table": "filter", "name": "INPUT", "handle": 1, "type": "filter",
                    "hook": "input", "prio": -200, "policy": "accept"}}));
                all.push(json!({"rule": {"family": "bridge", "table": "filter", "chain": "INPUT", "handle": 2, "expr": [
                    {"match": {"op": "==", "left": left, "right": right}}, {"drop": null}]}}));
            }),
        );
        dir
    };
    for dir in [rule("saddr", CLIENT_MAC), rule("iifname", &port_of(4))] {
        for (client, fate) in fates(&dir, "demo/edge:http").await {
            let is_its = client == "single";
            assert_eq!(fate != "works", is_its, "{client}: {fate}");
            assert_ne!(fate, "unknown", "{client}");
        }
    }
    says(
        &rule("saddr", "02:00:00:00:00:99"),
        "demo/edge:http",
        "works",
        &[],
    )
    .await;
    // Packets of other machines do not come from the link of a pod, whatever address they have.
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/nft.json",
        json(|rules| {
            let all = rules["nftables"].as_array_mut().unwrap();
            let saddr = json!({"payload": {"protocol": "ether", "field": "saddr"}});
            all.extend([
                json!({"table": {"family": "inet", "name": "guard", "handle": 1}}),
                json!({"chain": {"family": "inet", "table": "guard", "name": "pre", "handle": 1, "type": "filter",
                    "hook": "prerouting", "prio": -300, "policy": "accept"}}),
                json!({"set": {"family": "inet", "table": "guard", "name": "bad", "handle": 3, "type": "ether_addr",
                    "elem": [CLIENT_MAC]}}),
                json!({"rule": {"family": "inet", "table": "guard", "chain": "pre", "handle": 2, "expr": [
                    {"match": {"op": "==", "left": saddr, "right": "@bad"}}, {"drop": null}]}}),
            ]);
        }),
    );
    for (client, fate) in fates(&dir, "demo/edge:http").await {
        let wanted = if client == "single" { "lost" } else { "works" };
        assert_eq!(fate, wanted, "{client}");
    }
}

/// The name of the node's link with this index.
fn port_of(index: u64) -> String {
    let text = std::fs::read_to_string(copy(HEALTHY).path().join(LINKS)).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let mut all = all.as_array().unwrap().iter();
    let of = all.find(|link| link["ifindex"] == index).unwrap();
    of["ifname"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_rule_for_congestion_notification_spares_pods() {
    let rule = "-A FORWARD -p tcp -m ecn --ecn-tcp-cwr -m ecn --ecn-tcp-ece -j DROP";
    says(&with_rule("filter", rule), "demo/edge:http", "works", &[]).await;
    let rule = "-A FORWARD -p tcp -m ecn ! --ecn-tcp-ece -j DROP";
    says(
        &with_rule("filter", rule),
        "demo/edge:http",
        "partly",
        &["filter"],
    )
    .await;
}

#[tokio::test]
async fn a_link_of_a_pod_with_two_sizes_loses_large_packets() {
    let found = async |dir: &tempfile::TempDir| {
        let all = findings(dir).await.into_iter();
        let mut of = all.filter(|(id, ..)| id == "CN15");
        of.next().map(|(_, severity, message)| (severity, message))
    };
    assert_eq!(found(&copy(HEALTHY)).await, None);
    let port = port_of(6);
    let dir = copy(HEALTHY);
    let smaller = |links: &mut Value| {
        let mut all = links.as_array_mut().unwrap().iter_mut();
        all.find(|link| link["ifindex"] == 6).unwrap()["mtu"] = 1400.into();
    };
    write(&dir, LINKS, json(smaller));
    let (severity, message) = found(&dir).await.unwrap();
    assert_eq!(severity, "warning", "{message}");
    let words = format!(
        "packets to pod 10.244.1.4 of more than 1400 bytes are lost: that is the MTU of {port}"
    );
    assert!(message.contains(&words), "{message}");
    let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    assert!(
        answer["findings"].to_string().contains("1400 bytes"),
        "{answer}"
    );
    // In the pod: TCP follows.
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        let at = text.find(EDGE_MAC).unwrap();
        let from = text[..at].rfind("=== ").unwrap();
        let to = text[at..].find("=== ").map_or(text.len(), |end| at + end);
        let own = text[from..to].replace("\"mtu\":1500", "\"mtu\":1400");
        format!("{}{own}{}", &text[..from], &text[to..])
    });
    let (severity, message) = found(&dir).await.unwrap();
    assert_eq!(severity, "info", "{message}");
    assert!(message.contains("datagrams to pod 10.244.1.4"), "{message}");
}

#[tokio::test]
async fn a_tunnel_without_an_entry_for_the_other_node_is_blamed_and_not_the_address() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        LINKS,
        json(|links| {
            let vxlan = json!({"ifindex": 40, "ifname": "vx7", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1450,
                "operstate": "UNKNOWN", "address": "02:00:00:00:00:07", "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 7}}});
            links.as_array_mut().unwrap().push(vxlan);
        }),
    );
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dst"] != "10.244.2.0/24");
            all.push(json!({"dst": "10.244.2.0/24", "dev": "vx7", "scope": "link", "flags": []}));
        }),
    );
    let failed = json!({"dst": "10.244.2.5", "dev": "vx7", "state": ["FAILED"]});
    add_neighbours(&dir, [failed]);
    let words = [
        "vx7 (a vxlan link) has no entry that leads to 10.244.2.5",
        "bridge fdb show dev vx7",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn node_ports_on_localhost_that_a_sysctl_keeps_from_working_are_found() {
    const KEY: &str = "net.ipv4.conf.all.route_localnet";
    let found = async |dir: &tempfile::TempDir| {
        let all = findings(dir).await;
        all.into_iter().any(|(id, severity, message)| {
            id == "SY08" && severity == "warning" && message.contains("127.0.0.1")
        })
    };
    assert!(!found(&copy(HEALTHY)).await);
    let off = || {
        let dir = copy(HEALTHY);
        let sysctl = "node/sysctl.txt";
        write(&dir, sysctl, |text| {
            text.replace(&format!("{KEY} = 1"), &format!("{KEY} = 0"))
        });
        dir
    };
    assert!(found(&off()).await);
    // They are not wanted.
    let dir = off();
    write(&dir, "kube-proxy/config.conf", |text| {
        text.replace("localhostNodePorts: null", "localhostNodePorts: false")
    });
    write(&dir, "kube-proxy/configz.json", |text| {
        text.replace(
            "\"localhostNodePorts\":true",
            "\"localhostNodePorts\":false",
        )
    });
    assert!(!found(&dir).await);
}

#[tokio::test]
async fn both_ipvs_and_conntrack_see_a_connection_or_neither() {
    let untracked = |conntrack: &str, port: &str| {
        let dir = copy("dual-ipvs");
        write(&dir, "node/iptables-save.txt", |text| {
            let raw = format!(
                "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -s 10.244.0.0/16 {port} -j CT --notrack\nCOMMIT\n"
            );
            format!("{raw}{text}")
        });
        let sysctl = dir.path().join("node/sysctl.txt");
        let text = std::fs::read_to_string(&sysctl).unwrap();
        let new = text.replace(
            "net.ipv4.vs.conntrack = 1",
            &format!("net.ipv4.vs.conntrack = {conntrack}"),
        );
        std::fs::write(&sysctl, new).unwrap();
        dir
    };
    let fate = async |dir: &tempfile::TempDir, service: &str| {
        let all = fates(dir, service).await.into_iter();
        let mut of_pod = all.filter(|(client, _)| client == "pod");
        of_pod.next().unwrap().1
    };
    let lost = untracked("1", "-p tcp --sport 8080");
    assert_ne!(fate(&lost, "shop/front:http").await, "works");
    let words = ["untracks the replies", "gets another source port"];
    let answer = answer(lost.path().to_str().unwrap(), "shop/front:http").await;
    for word in words {
        assert!(answer["causes"].to_string().contains(word), "{answer}");
    }
    let off = untracked("0", "-p tcp --sport 8080");
    assert_eq!(fate(&off, "shop/front:http").await, "works");
}

#[tokio::test]
async fn a_short_timeout_of_idle_connections_is_a_warning_of_each_service() {
    const KEY: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";
    for (seconds, severity) in [
        ("2", Some("warning")),
        ("7200", Some("info")),
        ("86400", None),
    ] {
        let dir = copy(HEALTHY);
        let sysctl = dir.path().join("node/sysctl.txt");
        let text = std::fs::read_to_string(&sysctl).unwrap();
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some((KEY, _)) => format!("{KEY} = {seconds}\n"),
            _ => format!("{line}\n"),
        });
        std::fs::write(&sysctl, lines.collect::<String>()).unwrap();
        let all = findings(&dir).await;
        let found = all.iter().find(|(id, ..)| id == "CT07");
        assert_eq!(
            found.map(|(_, severity, _)| severity.as_str()),
            severity,
            "{all:?}"
        );
        let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
        let is_told = answer["findings"]
            .to_string()
            .contains("idle for 2 s break");
        assert_eq!(is_told, seconds == "2", "{answer}");
        assert_eq!(answer["fate"], "works");
    }
}

#[tokio::test]
async fn a_qdisc_that_loses_some_packets_is_found_with_its_removal() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/tc.json",
        json(|tc| {
            let all = tc["qdiscs"].as_array_mut().unwrap();
            all.push(
                json!({"kind": "netem", "handle": "8001:", "dev": "eth0", "root": true,
                "options": {"limit": 1000, "loss-random": {"loss": 0.3, "correlation": 0}}}),
            );
        }),
    );
    let all = findings(&dir).await;
    let found = all.iter().find(|(id, ..)| id == "SY16");
    let (_, severity, message) = found.unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(severity, "warning");
    assert!(message.contains("eth0 loses 30 %"), "{message}");
}

#[tokio::test]
async fn a_next_hop_of_a_node_that_is_not_ready_is_called_by_the_node() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/nodes.json",
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let w2 = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            let mut conditions = w2["status"]["conditions"]
                .as_array_mut()
                .unwrap()
                .iter_mut();
            let ready = conditions
                .find(|condition| condition["type"] == "Ready")
                .unwrap();
            ready["status"] = "Unknown".into();
        }),
    );
    let failed = json!({"dst": "10.210.0.17", "dev": "eth0", "state": ["FAILED"]});
    add_neighbours(&dir, [failed]);
    let words = [
        "Node w2 is not ready, and 10.210.0.17",
        "kubectl describe node w2",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}
