//! Incidents of links, their addresses and the routes that go with them: the cause is the link, the address or the route that hides
//! another, and not what the kernel removed with it.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, LINKS, ROUTES, findings, json, own_node, says};
use super::incidents::{answer, copy, write};
use super::meant::add_rule;
use super::pods::in_edge;
use crate::support::{broken, kpx};

const ADDRESSES: &str = "node/ip-addr.json";

/// The node's end of the link of [`EDGE`].
const PORT: &str = "veth73dafea0";

/// Changes the link called `name`.
fn link(dir: &tempfile::TempDir, name: &str, change: impl Fn(&mut Value)) {
    write(
        dir,
        LINKS,
        json(|links| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            change(all.find(|link| link["ifname"] == *name).unwrap());
        }),
    );
}

/// Removes the routes of IPv4 by `link`, except those that `keeps`.
fn lose_routes(dir: &tempfile::TempDir, link: &str, keeps: impl Fn(&Value) -> bool) {
    let is_lost =
        |of: &Value| of["dev"] == *link && !of["dst"].as_str().unwrap().contains(':') && !keeps(of);
    write(
        dir,
        ROUTES,
        json(|routes| {
            routes.as_array_mut().unwrap().retain(|item| !is_lost(item));
        }),
    );
}

pub(super) fn add_routes(dir: &tempfile::TempDir, new: &[Value]) {
    write(
        dir,
        ROUTES,
        json(|routes| routes.as_array_mut().unwrap().extend_from_slice(new)),
    );
}

/// Adds routing policy rules of IPv4.
pub(super) fn add_policy_rules(dir: &tempfile::TempDir, new: &[Value]) {
    write(dir, "node/ip-rule.json", |text| {
        let (first, rest) = text.split_once('\n').unwrap();
        let mut rules: Vec<Value> = serde_json::from_str(first).unwrap();
        rules.extend_from_slice(new);
        format!("{}\n{rest}", Value::from(rules))
    });
}

/// Removes the IPv4 addresses of `link`, and its routes.
fn flush(dir: &tempfile::TempDir, link: &str) {
    write(
        dir,
        ADDRESSES,
        json(|links| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let own = all.find(|own_link| own_link["ifname"] == *link).unwrap();
            let addresses = own["addr_info"].as_array_mut().unwrap();
            addresses.retain(|address| address["family"] != "inet");
        }),
    );
    lose_routes(dir, link, |_| false);
}

/// Sets `name` down: the kernel removes its routes, but those to its own addresses.
fn set_down(dir: &tempfile::TempDir, name: &str) {
    link(dir, name, |link| {
        link["flags"] = json!(["BROADCAST", "MULTICAST"]);
        link["operstate"] = "DOWN".into();
    });
    lose_routes(dir, name, |route| route["type"] == "local");
}

/// Asserts that the doctor has one error of obstacles, with these words.
async fn one_obstacle(dir: &tempfile::TempDir, words: &str) {
    let all = findings(dir).await;
    let is_it = |(id, severity, _): &&(String, String, String)| id == "SY16" && severity == "error";
    let found: Vec<_> = all.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{all:?}");
    assert!(found[0].2.contains(words), "{found:?}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn what_took_the_routes_is_the_cause_and_not_the_routes() {
    let gone = copy(HEALTHY);
    flush(&gone, "cni0");
    let words = "no link of the node has 10.244.1.1, the gateway of the pods on bridge cni0";
    one_obstacle(&gone, words).await;
    let fix = "ip addr add 10.244.1.1/24 dev cni0";
    says(&gone, "demo/web:http", "partly", &[words, fix]).await;

    let down = copy(HEALTHY);
    set_down(&down, "cni0");
    one_obstacle(&down, "cni0 is down").await;
    let words = ["cni0 is down", "ip link set dev cni0 up"];
    says(&down, "demo/web:http", "partly", &words).await;

    let down = copy(HEALTHY);
    set_down(&down, "eth0");
    let words = "eth0, the link with an address of this Node, is down";
    one_obstacle(&down, words).await;
    says(
        &down,
        "demo/web:http",
        "partly",
        &[words, "ip link set dev eth0 up"],
    )
    .await;

    let homeless = copy(HEALTHY);
    flush(&homeless, "eth0");
    let words = ["no link of this machine has 10.210.0.16", "--node-ip"];
    says(&homeless, "demo/web:http", "partly", &words).await;
    let all = findings(&homeless).await;
    let has = |id: &str, words: &str| {
        all.iter()
            .any(|(of, severity, text)| of == id && severity == "error" && text.contains(words))
    };
    assert!(has("AP13", "10.210.0.16"), "{all:?}");
    assert!(!has("SY16", "no route"), "{all:?}");
}

#[tokio::test]
async fn an_address_of_the_pods_network_elsewhere_is_removed_and_no_pod_is_moved() {
    let dir = copy(HEALTHY);
    let docker = json!({"ifindex": 33, "ifname": "docker0", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1500,
        "operstate": "UP", "linkinfo": {"info_kind": "bridge"}});
    write(
        &dir,
        LINKS,
        json(|links| links.as_array_mut().unwrap().push(docker)),
    );
    let address = json!({"ifindex": 33, "ifname": "docker0", "addr_info": [
        {"family": "inet", "local": "10.244.1.7", "prefixlen": 29, "scope": "global", "label": "docker0"}]});
    write(
        &dir,
        ADDRESSES,
        json(|links| links.as_array_mut().unwrap().push(address)),
    );
    add_routes(
        &dir,
        &[
            json!({"dst": "10.244.1.0/29", "prefsrc": "10.244.1.7", "dev": "docker0", "protocol": "kernel", "scope": "link", "flags": []}),
        ],
    );
    let words = [
        "docker0 has 10.244.1.7/29",
        "ip addr del 10.244.1.7/29 dev docker0",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    let answer = answer(dir.path().to_str().unwrap(), "demo/web")
        .await
        .to_string();
    assert!(!answer.contains("master docker0"), "{answer}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_route_that_hides_the_one_by_the_endpoints_node_is_the_cause() {
    let route =
        |to: &str, via: &str| json!({"dst": to, "gateway": via, "dev": "eth0", "flags": []});
    let cases = [
        (vec![route("10.244.2.0/25", "10.210.0.15")], "partly"),
        // Both halves lead there, as does what is less specific.
        (
            vec![
                route("10.244.2.0/25", "10.210.0.17"),
                route("10.244.2.128/25", "10.210.0.17"),
            ],
            "works",
        ),
        (vec![route("10.244.0.0/16", "10.210.0.2")], "works"),
    ];
    for (routes, fate) in cases {
        let dir = copy(HEALTHY);
        add_routes(&dir, &routes);
        let words = [
            "hides 10.244.2.0/24 via 10.210.0.17 dev eth0",
            "ip route del 10.244.2.0/25 via 10.210.0.15 dev eth0",
        ];
        let words = if fate == "works" { &[][..] } else { &words[..] };
        says(&dir, "demo/web:http", fate, words).await;
        if fate != "works" {
            one_obstacle(
                &dir,
                "the route 10.244.2.0/25 via 10.210.0.15 dev eth0 hides",
            )
            .await;
        }
    }
    // Not every cluster gives its Nodes ranges of pods.
    let dir = copy(HEALTHY);
    add_routes(&dir, &[route("10.244.2.0/25", "10.210.0.15")]);
    write(
        &dir,
        "cluster/nodes.json",
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                let spec = node["spec"].as_object_mut().unwrap();
                spec.remove("podCIDR");
                spec.remove("podCIDRs");
                node["metadata"]["annotations"]["without"] = "ranges".into();
            }
        }),
    );
    let words = ["hides 10.244.2.0/24 via 10.210.0.17 dev eth0"];
    says(&dir, "demo/web:http", "partly", &words).await;
    // A next hop that nothing has is no machine to bring back.
    let dir = copy(HEALTHY);
    let tunnel = json!({"ifindex": 30, "ifname": "flannel.1", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1450,
        "operstate": "UNKNOWN", "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 1, "port": 8472}}});
    write(
        &dir,
        LINKS,
        json(|links| links.as_array_mut().unwrap().push(tunnel)),
    );
    add_routes(
        &dir,
        &[
            json!({"dst": "10.244.2.0/25", "gateway": "10.244.2.0", "dev": "flannel.1", "flags": ["onlink"]}),
        ],
    );
    let failed = json!({"dst": "10.244.2.0", "dev": "flannel.1", "state": ["FAILED"]});
    write(
        &dir,
        "node/ip-neigh.json",
        json(|neighbours| neighbours.as_array_mut().unwrap().push(failed)),
    );
    let words = [
        "10.244.2.0/25 via 10.244.2.0 dev flannel.1 hides",
        "ip route del 10.244.2.0/25",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_local_route_of_another_table_keeps_packets_at_the_node() {
    let local = json!({"type": "local", "dst": "default", "dev": "lo", "table": "2004", "scope": "host", "flags": []});
    let rule = |rule: &str| {
        let rule = rule.to_owned();
        move |text: &str| {
            text.replacen(
                "[{\"priority\":0,",
                &format!("[{rule},{{\"priority\":0,"),
                1,
            )
        }
    };
    // No packet of Services has the mark, as with a transparent proxy.
    let marked = r#"{"priority":9,"src":"all","fwmark":"0x200","fwmask":"0xf00","table":"2004"}"#;
    let dir = copy(HEALTHY);
    add_routes(&dir, std::slice::from_ref(&local));
    write(&dir, "node/ip-rule.json", rule(marked));
    says(&dir, "demo/web:http", "works", &[]).await;
    write(&dir, "node/iptables-save.txt", |text| {
        let mangle = "*mangle\n";
        assert!(text.contains(mangle), "{text}");
        let first = "-A PREROUTING -i cni0 -p tcp -j MARK --set-xmark 0x200/0xf00\n";
        let at = text.find(mangle).unwrap();
        let end = at + text[at..].find("COMMIT").unwrap();
        format!("{}{first}{}", &text[..end], &text[end..])
    });
    let words = ["end at the node itself", "local default"];
    says(&dir, "demo/web:http", "partly", &words).await;
    let answer = answer(dir.path().to_str().unwrap(), "demo/web:http").await;
    let fix = "ip rule del from all fwmark 0x200/0xf00 lookup 2004 priority 9";
    assert!(answer["causes"].to_string().contains(fix), "{answer}");
}

#[tokio::test]
async fn the_port_of_the_clients_own_link_decides() {
    let hairpin = |of: &mut Value| of["linkinfo"]["info_slave_data"]["hairpin"] = false.into();
    let uplink = json!({"ifindex": 40, "ifname": "eth1", "master": "cni0", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1500,
        "operstate": "UP", "linkinfo": {"info_slave_kind": "bridge", "info_slave_data": {"hairpin": false, "isolated": true}}});
    let own = copy(HEALTHY);
    link(&own, PORT, hairpin);
    let words = ["hairpin mode is off on ports of bridge cni0"];
    says(&own, "demo/edge:http", "partly", &words).await;
    // Kubelet's bridge without hairpin mode.
    link(&own, "cni0", |link| {
        link["flags"].as_array_mut().unwrap().push("PROMISC".into());
    });
    says(&own, "demo/edge:http", "works", &[]).await;

    let other = copy(HEALTHY);
    link(&other, "veth9e457fcf", hairpin);
    says(&other, "demo/edge:http", "works", &[]).await;

    let bridged = copy(HEALTHY);
    write(
        &bridged,
        LINKS,
        json(|links| links.as_array_mut().unwrap().push(uplink)),
    );
    says(&bridged, "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn isolated_ports_cut_off_only_their_own_pods() {
    let ports = ["veth9e457fcf", "veth6b997778", "veth54821184"];
    for (isolated, fate) in [
        (&[PORT, ports[0]][..], "partly"),
        (&[PORT], "works"),
        (&ports, "works"),
    ] {
        let dir = copy(HEALTHY);
        for port in isolated {
            link(&dir, port, |link| {
                link["linkinfo"]["info_slave_data"]["isolated"] = true.into();
            });
        }
        let words: &[&str] = if fate == "partly" {
            &["ports of bridge cni0 are isolated"]
        } else {
            &[]
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn a_locked_port_leaves_open_what_it_takes() {
    for (locked, fate) in [(true, "unknown"), (false, "works")] {
        let dir = copy(HEALTHY);
        link(&dir, PORT, |link| {
            link["linkinfo"]["info_slave_data"]["locked"] = locked.into();
        });
        let words = ["its port veth73dafea0 is locked", "bridge fdb show dev"];
        let words = if locked { &words[..] } else { &[][..] };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn the_network_of_a_virtual_machines_pod_is_not_the_machines() {
    let base = json!({"flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP"});
    let new = |name: &str, index: u32, master: &str, info: Value| {
        let mut link = base.clone();
        link["ifname"] = name.into();
        link["ifindex"] = index.into();
        link["linkinfo"] = info;
        if !master.is_empty() {
            link["master"] = master.into();
        }
        link
    };
    for (tap, fate) in [
        (
            json!({"info_kind": "tun", "info_data": {"type": "tap"}}),
            "works",
        ),
        (json!({"info_kind": "veth"}), "partly"),
    ] {
        let links = [
            new("k6t-eth0", 7, "", json!({"info_kind": "bridge"})),
            new("net0", 8, "k6t-eth0", tap),
            new("eth0", 9, "", json!({"info_kind": "dummy"})),
        ];
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let (before, links_on) = text.split_once("--- node/ip-link.json\n").unwrap();
            let (own, rest) = links_on.split_once("\n--- node/ip-route.json\n").unwrap();
            let (_, rest) = rest.split_once("\n--- node/ip-rule.json\n").unwrap();
            let mut own: Vec<Value> = serde_json::from_str(own).unwrap();
            own[1]["ifname"] = "eth0-nic".into();
            own[1]["master"] = "k6t-eth0".into();
            own.extend(links.clone());
            format!(
                "{before}--- node/ip-link.json\n{}\n--- node/ip-route.json\n[]\n--- node/ip-rule.json\n{rest}",
                json!(own)
            )
        });
        says(&dir, "demo/edge:http", fate, &[]).await;
    }
}

#[tokio::test]
async fn a_link_of_the_nodes_own_beside_that_of_the_pod_reaches_it() {
    let edited = |shim: bool| {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let own = "\"linkinfo\":{\"info_kind\":\"veth\"},\"link_netnsid\":0,\"link_index\":6";
            let new =
                "\"linkinfo\":{\"info_kind\":\"macvlan\"},\"link_netnsid\":0,\"link_index\":2";
            text.replace(own, new)
        });
        if shim {
            let link = json!({"ifindex": 41, "ifname": "mac0", "link_index": 2, "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1500,
                "operstate": "UP", "linkinfo": {"info_kind": "macvlan"}});
            write(
                &dir,
                LINKS,
                json(|links| links.as_array_mut().unwrap().push(link)),
            );
        }
        let by = if shim { "mac0" } else { "eth0" };
        add_routes(
            &dir,
            &[json!({"dst": EDGE, "dev": by, "scope": "link", "flags": []})],
        );
        dir
    };
    let words = "accepts no packets from the node itself";
    for shim in [false, true] {
        let dir = edited(shim);
        let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http")
            .await
            .to_string();
        assert_eq!(answer.contains(words), !shim, "{answer}");
    }
}

#[tokio::test]
async fn a_pod_whose_packets_leave_by_another_link_is_one_finding() {
    let tun = json!({"ifindex": 9, "ifname": "tun0", "flags": ["POINTOPOINT", "NOARP", "UP", "LOWER_UP"], "mtu": 1420,
        "operstate": "UNKNOWN", "linkinfo": {"info_kind": "wireguard"}});
    let rules = |mark: bool| {
        let new = if mark {
            json!([{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 51820}}])
        } else {
            json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "9.9.9.9"}}, {"drop": null}])
        };
        json!({"nftables": [
            {"metainfo": {"json_schema_version": 1, "reader": "kpx"}},
            {"table": {"family": "ip", "name": "own", "handle": 1}},
            {"chain": {"family": "ip", "table": "own", "name": "OUTPUT", "handle": 1, "type": "route", "hook": "output", "prio": -150,
                "policy": "accept"}},
            {"rule": {"family": "ip", "table": "own", "chain": "OUTPUT", "handle": 2, "expr": new}},
        ]})
    };
    for marks in [false, true] {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let head = "--- node/ip-link.json\n[";
            let by_tun = "[{\"dst\":\"default\",\"dev\":\"tun0\",\"table\":\"51820\",\"flags\":[]},{\"dst\":\"default\"";
            let not_marked = "[{\"priority\":9,\"src\":\"all\",\"not\":null,\"fwmark\":\"0xca6c\",\"table\":\"51820\"},{\"priority\":0,";
            let text = text
                .replacen(head, &format!("{head}{tun},"), 1)
                .replacen("[{\"dst\":\"default\"", by_tun, 1)
                .replacen("[{\"priority\":0,", not_marked, 1);
            let (before, _) = text.split_once("--- node/nft.json\n").unwrap();
            format!("{before}--- node/nft.json\n{}", rules(marks))
        });
        if marks {
            let all = findings(&dir).await;
            assert!(
                all.iter().all(|(.., text)| !text.contains("leave by tun0")),
                "{all:?}"
            );
        } else {
            one_obstacle(&dir, "leave by tun0 (wireguard)").await;
        }
    }
}

#[tokio::test]
async fn node_ports_are_asked_at_the_address_of_the_node_that_a_link_has() {
    let fate_of = async |dir: &tempfile::TempDir| {
        let answer = answer(dir.path().to_str().unwrap(), "demo/edge-local").await;
        answer["fate"].as_str().unwrap().to_owned()
    };
    let healthy = fate_of(&copy(HEALTHY)).await;
    let other = json!({"type": "InternalIP", "address": "100.64.7.7"});
    for (is_only, expected) in [(false, healthy.as_str()), (true, "unknown")] {
        let dir = copy(HEALTHY);
        own_node(&dir, |own| {
            let addresses = own["status"]["addresses"].as_array_mut().unwrap();
            if is_only {
                addresses.retain(|address| address["type"] != "InternalIP");
            }
            addresses.insert(0, other.clone());
        });
        assert_eq!(fate_of(&dir).await, expected);
    }
}

/// Asks why a client cannot reach `service`, and asserts the fate, and words of the sentence and of the first fix.
pub(super) async fn says_to(
    dir: &tempfile::TempDir,
    service: &str,
    source: &str,
    fate: &str,
    words: &[&str],
) {
    let from = dir.path().to_str().unwrap();
    let args = [
        "--from", from, "why", service, "--source", source, "-o", "json",
    ];
    let ran = kpx(&args).await;
    let answer: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
    let text = format!("{} {}", answer["sentence"], answer["causes"][0]["fix"]);
    assert_eq!(answer["fate"], fate, "{text}");
    for part in words {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn a_node_that_sees_one_direction_alone_drops_what_follows() {
    let by = |to: &str, gateway: &str, table: &str| json!({"dst": to, "gateway": gateway, "dev": "eth0", "table": table, "flags": []});
    let client = "10.210.0.17";
    // The client is next to this node: it sends its packets directly.
    let dir = copy(HEALTHY);
    add_routes(&dir, &[by(client, "10.210.0.15", "main")]);
    let words = [
        "leads replies by 10.210.0.15, node cp1",
        "ip route del 10.210.0.17/32 via 10.210.0.15 dev eth0",
    ];
    says_to(&dir, "nodeport:30080", client, "lost", &words).await;
    // The kube-proxy of a node whose connection tracking was liberal when it started drops nothing.
    write(&dir, "node/sysctl.txt", |text| {
        let off = "net.netfilter.nf_conntrack_tcp_be_liberal = 0";
        text.replace(off, "net.netfilter.nf_conntrack_tcp_be_liberal = 1")
    });
    for file in ["node/iptables-save.txt", "node/ip6tables-save.txt"] {
        write(&dir, file, |text| {
            let kept = text.lines().filter(|line| !line.contains("INVALID"));
            kept.flat_map(|line| [line, "\n"]).collect()
        });
    }
    says_to(
        &dir,
        "nodeport:30080",
        client,
        "unknown",
        &["whether it drops them is unknown"],
    )
    .await;
    // Routers and the node of the client itself see both directions, as does a node that is the way to everywhere.
    for (to, gateway) in [
        (client, "10.210.0.2"),
        (client, "10.210.0.17"),
        ("default", "10.210.0.15"),
    ] {
        let dir = copy(HEALTHY);
        if to == "default" {
            lose_routes(&dir, "eth0", |route| route["dst"] != "default");
        }
        add_routes(&dir, &[by(to, gateway, "main")]);
        says_to(&dir, "nodeport:30080", client, "works", &[]).await;
        says_to(&dir, "nodeport:30080", "outside", "works", &[]).await;
    }
}

#[tokio::test]
async fn replies_of_pods_by_another_table_leave_by_a_third_node() {
    for (gateway, fate) in [("10.210.0.15", "partly"), ("10.210.0.2", "works")] {
        let dir = copy(HEALTHY);
        add_routes(
            &dir,
            &[
                json!({"dst": "default", "gateway": gateway, "dev": "eth0", "table": "100", "flags": []}),
            ],
        );
        let rules = r#"{"priority":99,"src":"all","dst":"10.244.0.0","dstlen":16,"table":"main"},{"priority":100,"src":"10.244.1.0","srclen":24,"table":"100"}"#;
        write(&dir, "node/ip-rule.json", |text| {
            text.replacen(
                "[{\"priority\":0,",
                &format!("[{rules},{{\"priority\":0,"),
                1,
            )
        });
        let words = [
            "of table 100 leads replies by 10.210.0.15, node cp1",
            "ip rule del from 10.244.1.0/24 lookup 100 priority 100",
        ];
        let words = if fate == "works" { &[][..] } else { &words[..] };
        says(&dir, "nodeport:30080", fate, words).await;
        says(&dir, "demo/web:http", "works", &[]).await;
    }
}

#[tokio::test]
async fn neighbours_that_get_no_answer_do_not_reach_the_node_by_ipv6() {
    // The neighbour's question, and the node's answer; the node's own table knows who asks.
    for (rule, is_found) in [
        (
            "-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 135 -j DROP",
            true,
        ),
        (
            "-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type 136 -j DROP",
            true,
        ),
        (
            "-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 128 -j DROP",
            false,
        ),
    ] {
        let change = |text: &str| {
            let (head, tail) = text.split_once("*filter").unwrap();
            let (chains, rules) = tail.split_once("[0:0] -A ").unwrap();
            format!("{head}*filter{chains}[0:0] {rule}\n[0:0] -A {rules}")
        };
        let dir = broken("dual-iptables", &[("node/ip6tables-save.txt", &change)]);
        let found = findings(&dir).await;
        let is_it = |of: &(String, String, String)| of.2.contains("neighbour discovery");
        assert_eq!(found.iter().any(is_it), is_found, "{rule}: {found:?}");
    }
}

#[tokio::test]
async fn a_filter_of_reverse_paths_that_asks_for_marks_may_drop_marked_packets() {
    let marks = "-A PREROUTING -i eth0 -p tcp -j MARK --set-xmark 0x2100/0xff00";
    for (valid, mark, fate) in [
        ("1", Some(marks), "unknown"),
        ("0", Some(marks), "works"),
        // All packets have mark 0.
        ("1", None, "works"),
    ] {
        let dir = copy(HEALTHY);
        write(&dir, "node/sysctl.txt", |text| {
            let text = text.replace("conf.eth0.rp_filter = 0", "conf.eth0.rp_filter = 1");
            text.replace(
                "conf.all.src_valid_mark = 0",
                &format!("conf.all.src_valid_mark = {valid}"),
            )
        });
        let route = json!({"dst": "10.244.0.0/16", "dev": "cni0", "scope": "link", "table": "55", "flags": []});
        add_routes(&dir, &[route]);
        let rule = json!({"priority": 620, "src": "all", "fwmark": "0x2100", "fwmask": "0xff00", "table": "55"});
        add_policy_rules(&dir, &[rule]);
        if let Some(mark) = mark {
            add_rule(&dir, "mangle", mark);
        }
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["rp_filter of eth0", "routing policy rule 620"],
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}
