//! Incidents between the node and its pods: bridges and routes that are gone, links of pods past the node, sockets, limits, and fixes that
//! must not open or cut more than the fault.

use serde_json::{Value, json};

use super::ends::{EDGE, HEALTHY, LINKS, PODS, ROUTES, findings, json, own_node, says};
use super::incidents::{answer, copy, write};
use super::links::{add_policy_rules, add_routes};
use crate::support::kpx;

/// Changes the section of the network of [`EDGE`].
pub(super) fn in_edge(dir: &tempfile::TempDir, change: impl FnOnce(&str) -> String) {
    write(dir, PODS, |text| {
        let at = text.find(&format!("\"local\":\"{EDGE}\"")).unwrap();
        let start = text[..at].rfind("=== ").unwrap();
        let end = text[at..]
            .find("\n=== ")
            .map_or(text.len(), |offset| at + offset);
        let changed = change(&text[start..end]);
        format!("{}{changed}{}", &text[..start], &text[end..])
    });
}

/// Adds a link to the network of [`EDGE`], by which its default route leads.
fn default_by(dir: &tempfile::TempDir, link: &Value, name: &str) {
    in_edge(dir, |text| {
        let own = "[{\"dst\":\"default\",\"gateway\":\"10.244.1.1\",\"dev\":\"eth0\",\"flags\":[]}";
        let other = format!("[{{\"dst\":\"default\",\"dev\":\"{name}\",\"flags\":[]}}");
        let head = "--- node/ip-link.json\n[";
        let text = text.replacen(head, &format!("{head}{link},"), 1);
        text.replacen(own, &other, 1)
    });
}

#[tokio::test]
async fn a_bridge_or_a_route_of_pods_that_is_gone_is_named_and_no_other_route_is_removed() {
    let gone = copy(HEALTHY);
    let is_of_bridge = |of: &Value| of["ifname"] == "cni0" || of["dev"] == "cni0";
    write(
        &gone,
        LINKS,
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.retain(|link| !is_of_bridge(link));
            for link in all {
                link.as_object_mut().unwrap().remove("master");
            }
        }),
    );
    for file in [ROUTES, "node/ip-addr.json"] {
        let without = |all: &mut Value| {
            all.as_array_mut()
                .unwrap()
                .retain(|item| !is_of_bridge(item));
        };
        write(&gone, file, json(without));
    }
    let words = ["the bridge of the pods is gone", "10.244.1.1"];
    says(&gone, "demo/edge:http", "partly", &words).await;

    let routeless = copy(HEALTHY);
    write(
        &routeless,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dst"] != "10.244.1.0/24");
        }),
    );
    let words = ["by its link cni0", "ip route replace", "dev cni0"];
    says(&routeless, "demo/edge:http", "partly", &words).await;
    for dir in [gone, routeless] {
        let path = dir.path().to_str().unwrap();
        let answer = answer(path, "demo/edge").await.to_string();
        assert!(!answer.contains("ip route del default"), "{answer}");
    }
}

#[tokio::test]
async fn packets_that_leave_a_pod_past_the_node_are_lost() {
    let tun = json!({"ifindex": 9, "ifname": "tun0", "flags": ["POINTOPOINT", "NOARP", "UP", "LOWER_UP"], "mtu": 1420,
        "operstate": "UNKNOWN", "linkinfo": {"info_kind": "wireguard"}});
    let dir = copy(HEALTHY);
    default_by(&dir, &tun, "tun0");
    let words = [
        EDGE,
        "leave by tun0 (wireguard)",
        "FIREWALL_OUTBOUND_SUBNETS",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    // Its own routes to Services and pods lead to the node.
    let split = copy(HEALTHY);
    default_by(&split, &tun, "tun0");
    in_edge(&split, |text| {
        let ranges = ["10.96.0.0/12", "10.244.0.0/16", "10.210.0.0/24"];
        let routes = ranges.map(|to| {
            json!({"dst": to, "gateway": "10.244.1.1", "dev": "eth0", "flags": []}).to_string()
        });
        text.replacen(
            "[{\"dst\":\"default\"",
            &format!("[{},{{\"dst\":\"default\"", routes.join(",")),
            1,
        )
    });
    says(&split, "demo/web:http", "works", &[]).await;

    let macvlan = copy(HEALTHY);
    in_edge(&macvlan, |text| {
        let own = "\"linkinfo\":{\"info_kind\":\"veth\"},\"link_netnsid\":0,\"link_index\":6";
        assert!(text.contains(own), "{text}");
        text.replace(
            own,
            "\"linkinfo\":{\"info_kind\":\"macvlan\"},\"link_netnsid\":0,\"link_index\":2",
        )
    });
    let words = [
        "has a link of type macvlan on eth0",
        "without passing the node's rules",
    ];
    says(&macvlan, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_pod_does_not_find_services_on_its_own_link() {
    for (answers, fate) in [("0", "partly"), ("1", "works")] {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let route = "{\"dst\":\"10.96.0.0/12\",\"dev\":\"eth0\",\"flags\":[]}";
            text.replacen(
                "[{\"dst\":\"default\"",
                &format!("[{route},{{\"dst\":\"default\""),
                1,
            )
        });
        write(&dir, "node/sysctl.txt", |text| {
            let text = crate::support::without(text, "proxy_arp");
            format!(
                "{text}net.ipv4.conf.all.proxy_arp = 0\nnet.ipv4.conf.cni0.proxy_arp = {answers}\n"
            )
        });
        let words: &[&str] = match fate {
            "partly" => &["on its own link eth0", "has no gateway"],
            _ => &[],
        };
        says(&dir, "demo/web:http", fate, words).await;
    }
}

/// Adds a routing policy rule, and routes, those of its table among them.
fn with_policy(dir: &tempfile::TempDir, rule: Value, routes: &[Value]) {
    write(dir, "node/ip-rule.json", |text| {
        let (four, six) = text.split_once('\n').unwrap();
        let mut all: Vec<Value> = serde_json::from_str(four).unwrap();
        all.insert(1, rule);
        format!("{}\n{six}", json!(all))
    });
    write(
        dir,
        ROUTES,
        json(|all| all.as_array_mut().unwrap().extend(routes.iter().cloned())),
    );
}

#[tokio::test]
async fn replies_take_the_way_that_rules_of_routing_give_them() {
    let gateway = json!({"dst": "default", "gateway": "10.210.0.99", "dev": "eth0", "table": "101", "flags": []});
    // The node is an endpoint itself, or a pod is.
    let of_node = json!({"priority": 100, "src": "10.210.0.16", "table": "101"});
    let by_port =
        json!({"priority": 100, "src": "all", "ipproto": "tcp", "sport": 10256, "table": "101"});
    let of_pod = json!({"priority": 100, "src": EDGE, "table": "101"});
    let unrelated = json!({"priority": 100, "src": "10.9.0.0", "srclen": 16, "table": "101"});
    for (rule, service, fate) in [
        (&of_node, "demo/ingress:http", "partly"),
        (&by_port, "demo/ingress:http", "partly"),
        // A bridge carries the replies from pod to pod.
        (&of_pod, "demo/edge:http", "works"),
        (&unrelated, "demo/edge:http", "works"),
    ] {
        let dir = copy(HEALTHY);
        with_policy(&dir, rule.clone(), std::slice::from_ref(&gateway));
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &[
                "ends or diverts the replies to 10.244.1.",
                "rule add from all to 10.244.0.0/16 lookup main",
            ],
        };
        let source = ["--source", "10.244.1.2"];
        let path = dir.path().to_str().unwrap();
        let ran =
            kpx(&[&["--from", path, "why", service, "-o", "json"], &source[..]].concat()).await;
        let answer: Value = serde_json::from_str(&ran.out).unwrap();
        let text = format!("{} {}", answer["sentence"], answer["causes"][0]["fix"]);
        assert_eq!(answer["fate"], fate, "{rule}: {text}");
        for part in words {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[tokio::test]
async fn another_table_than_main_may_lead_elsewhere() {
    let link = json!({"ifindex": 77, "ifname": "vx-other", "flags": ["UP", "LOWER_UP"], "mtu": 1400,
        "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 7}}});
    let way = json!({"dst": "10.244.2.0/23", "gateway": "240.210.0.15", "dev": "vx-other", "table": "150", "flags": ["onlink"]});
    let dir = copy(HEALTHY);
    let rule = json!({"priority": 150, "src": "all", "table": "150"});
    with_policy(&dir, rule, &[way]);
    write(
        &dir,
        LINKS,
        json(|links| links.as_array_mut().unwrap().push(link)),
    );
    let words = ["table 150, which comes before main, leads them by another link"];
    says(&dir, "demo/edge:http", "unknown", &words).await;

    // Past the link of the pods of this node, by an address of the node itself.
    let dir = copy(HEALTHY);
    let way = json!({"dst": "10.244.1.0/25", "gateway": "10.210.0.16", "dev": "eth0", "flags": ["onlink"]});
    add_routes(&dir, &[way]);
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&[
        "--from",
        path,
        "trace",
        "demo/edge:http",
        "--source",
        "host",
    ])
    .await;
    let said = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "endpoint 10.244.1.4:8080 runs on this node, but the route leads off the node, by eth0 via 10.210.0.16";
    assert!(said.contains(words), "{said}");
}

#[tokio::test]
async fn the_filter_of_reverse_paths_is_asked_for_replies_and_where_it_is_loose() {
    let filtered = |link: &str, value: &str| {
        let dir = copy(HEALTHY);
        let key = format!("net.ipv4.conf.{link}.rp_filter");
        write(&dir, "node/sysctl.txt", |text| {
            let all = text.lines().filter(|line| !line.contains("rp_filter"));
            let all: Vec<&str> = all.collect();
            format!(
                "{}\nnet.ipv4.conf.all.rp_filter = 0\n{key} = {value}\n",
                all.join("\n")
            )
        });
        let tunnel = json!({"ifindex": 77, "ifname": "tun7", "flags": ["UP", "LOWER_UP"], "mtu": 1400,
            "linkinfo": {"info_kind": "ipip"}});
        write(
            &dir,
            LINKS,
            json(|links| links.as_array_mut().unwrap().push(tunnel)),
        );
        dir
    };
    let by_tunnel = json!({"dst": "10.244.2.0/24", "dev": "tun7", "flags": []});
    let replace = |dir: &tempfile::TempDir| {
        write(
            dir,
            ROUTES,
            json(|routes| {
                let all = routes.as_array_mut().unwrap();
                all.retain(|route| route["dst"] != "10.244.2.0/24");
                all.push(by_tunnel.clone());
            }),
        );
    };
    // The host sends with its own address, which other nodes answer by eth0.
    for (value, fate) in [("1", "lost"), ("2", "works"), ("0", "works")] {
        let dir = filtered("eth0", value);
        replace(&dir);
        let path = dir.path().to_str().unwrap();
        let asked = [
            "--from",
            path,
            "trace",
            "10.244.2.5:8080",
            "--source",
            "10.210.0.16",
            "-o",
            "json",
        ];
        let ran = kpx(&asked).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            report["fate"] == "lost",
            fate == "lost",
            "{value}: {}",
            ran.out
        );
    }
}

#[tokio::test]
async fn an_address_without_its_local_route_is_not_the_kernels_own() {
    let without = |address: &'static str| {
        json(move |routes| {
            let all = routes.as_array_mut().unwrap();
            let count = all.len();
            all.retain(|route| route["type"] != "local" || route["dst"] != address);
            assert!(all.len() < count);
        })
    };
    let inside = copy(HEALTHY);
    in_edge(&inside, |text| {
        let start = text.find("--- node/ip-route.json\n").unwrap() + 23;
        let end = start + text[start..].find('\n').unwrap();
        let routes = without(EDGE)(&text[start..end]);
        format!("{}{routes}{}", &text[..start], &text[end..])
    });
    let words = [
        "table local there has no route to it",
        "ip route add local 10.244.1.4 dev eth0 table local",
    ];
    says(&inside, "demo/edge:http", "partly", &words).await;

    let gateway = copy(HEALTHY);
    write(&gateway, ROUTES, without("10.244.1.1"));
    write(&gateway, PODS, |text| {
        let failed = json!([{"dst": "10.244.1.1", "dev": "eth0", "state": ["FAILED"]}]);
        let head = "--- node/ip-rule.json\n";
        text.replace(head, &format!("--- node/ip-neigh.json\n{failed}\n{head}"))
    });
    let words = [
        "cni0 of the node has 10.244.1.1",
        "ip route add local 10.244.1.1 dev cni0 table local",
    ];
    says(&gateway, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_pod_whose_sysctl_ignores_arp_requests_is_not_found() {
    for (value, fate, words) in [
        (
            "8",
            "partly",
            &[
                "eth0 answers no request",
                "sysctl -w net.ipv4.conf.eth0.arp_ignore=0",
            ][..],
        ),
        ("1", "works", &[]),
    ] {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let head = "--- node/ss.txt\n";
            assert!(text.contains(head));
            let setting =
                format!("--- node/sysctl.txt\nnet.ipv4.conf.eth0.arp_ignore = {value}\n{head}");
            text.replace(head, &setting)
        });
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

/// Puts `rules` before those of FORWARD.
fn forward_first(dir: &tempfile::TempDir, rules: &str) {
    write(dir, "node/iptables-save.txt", |text| {
        text.replacen("[0:0] -A FORWARD ", &format!("{rules}[0:0] -A FORWARD "), 1)
    });
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn connections_beyond_a_limit_of_all_clients_fail_if_it_is_low_or_was_exceeded() {
    let accept = |limit: &str, count: u32| {
        format!(
            "[9:540] -A FORWARD -p tcp -m limit --limit {limit} --limit-burst 3 -j ACCEPT\n[{count}:2160] -A FORWARD -p tcp -j DROP\n"
        )
    };
    let by_source = |limit: &str, count: u32| {
        format!(
            "[{count}:540] -A FORWARD -p tcp -m hashlimit --hashlimit-above {limit} --hashlimit-mode srcip --hashlimit-name guard -j DROP\n"
        )
    };
    let again = |count: u32| {
        format!(
            "[{count}:540] -A FORWARD -p tcp -m recent --update --seconds 60 --hitcount 10 --name np --mask 255.255.255.255 --rsource -j DROP\n"
        )
    };
    for (rules, severity, count) in [
        (accept("1/sec", 36), "error", 36),
        (accept("1/sec", 0), "error", 0),
        (accept("600/min", 0), "error", 0),
        (accept("100/sec", 36), "error", 36),
        (accept("100/sec", 0), "info", 0),
        // Every client has a limit of its own: one that floods exceeds it, or any if it is low.
        (by_source("1/sec", 0), "info", 0),
        (by_source("1/sec", 31), "error", 31),
        (by_source("100/sec", 31), "warning", 31),
        (again(0), "info", 0),
        (again(31), "error", 31),
    ] {
        let dir = copy(HEALTHY);
        forward_first(&dir, &rules);
        let path = dir.path().to_str().unwrap();
        let answer = answer(path, "demo/web:http").await;
        let fails = severity == "error";
        let fate = if fails { "partly" } else { "works" };
        assert_eq!(answer["fate"], fate, "{rules}{answer}");
        let so_far = format!("{count} packets so far");
        let sentence = answer["sentence"].as_str().unwrap();
        assert_eq!(
            sentence.contains(&so_far),
            fails && count > 0,
            "{rules}{sentence}"
        );
        if fails {
            let fix = answer["causes"][0]["fix"].to_string();
            assert!(fix.contains("-D FORWARD"), "{rules}{fix}");
        }
        let found = findings(&dir).await;
        let own: Vec<_> = found.iter().filter(|finding| finding.0 == "IR16").collect();
        assert_eq!(own.len(), 1, "{found:?}");
        assert_eq!(own[0].1, severity, "{rules}{found:?}");
        assert_eq!(own[0].2.contains(&so_far), count > 0, "{found:?}");
        assert!(
            !found.iter().any(|finding| finding.0 == "SV01"),
            "{found:?}"
        );
    }
    // It is unknown what else the last rule drops.
    let last = copy(HEALTHY);
    let rules = accept("100/sec", 36).replace("-A FORWARD -p tcp -j DROP", "-A FORWARD -j DROP");
    forward_first(&last, &rules);
    says(&last, "demo/web:http", "works", &[]).await;

    let high = copy(HEALTHY);
    forward_first(&high, &accept("100/sec", 0));
    let from = high.path().to_str().unwrap();
    let why = kpx(&["--from", from, "why", "demo/web:http"]).await;
    let words = "more than 100 new connections per second (the rate limit `--limit 100/sec --limit-burst 3`)";
    assert!(why.out.replace("\n  ", " ").contains(words), "{why}");
    let trace = kpx(&["--from", from, "trace", "demo/web:http"]).await;
    let words: Vec<&str> = trace.out.split_whitespace().collect();
    let says = words.join(" ").contains("one of 4 backends, 25% each");
    assert!(says, "{trace}");
}

#[tokio::test]
async fn a_socket_that_is_bound_to_another_link_takes_nothing() {
    for (device, fate) in [("wg0", "partly"), ("eth0", "works")] {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            text.replace("0.0.0.0:8080", &format!("0.0.0.0%{device}:8080"))
        });
        says(&dir, "demo/edge:http", fate, &[]).await;
    }
}

#[tokio::test]
async fn one_connection_exceeds_no_limit() {
    for rules in [
        "-A FORWARD -p tcp -m hashlimit --hashlimit-above 100/sec --hashlimit-mode srcip --hashlimit-name guard -j DROP\n",
        "-A FORWARD -p tcp -m connlimit --connlimit-above 50 --connlimit-mask 32 --connlimit-saddr -j REJECT --reject-with tcp-reset\n",
        "-A FORWARD -p tcp -m limit --limit 25/sec --limit-burst 100 -j ACCEPT\n-A FORWARD -p tcp -j DROP\n",
        "-A FORWARD -p tcp -m conntrack --ctstate NEW -m tcpmss ! --mss 536:65535 -j DROP\n",
        "-A FORWARD -p tcp -m recent --rcheck --seconds 30 --hitcount 6 --name DEFAULT --mask 255.255.255.255 --rsource -j DROP\n",
    ] {
        let dir = copy(HEALTHY);
        write(&dir, "node/iptables-save.txt", |text| {
            text.replacen("-A FORWARD ", &format!("{rules}-A FORWARD "), 1)
        });
        let path = dir.path().to_str().unwrap();
        let answer = answer(path, "demo/web:http").await;
        // The second rule decides only where the first one accepts.
        assert_eq!(answer["fate"], "works", "{rules}{}", answer["sentence"]);
    }
}

#[tokio::test]
async fn a_port_that_no_pod_declares_is_in_doubt_only_without_its_sockets() {
    let undeclared = |dir: &tempfile::TempDir| {
        write(dir, "cluster/pods.json", |text| {
            text.replace("\"containerPort\": 8080", "\"containerPort\": 8081")
                .replace("\"containerPort\":8080", "\"containerPort\":8081")
        });
    };
    let dir = copy(HEALTHY);
    undeclared(&dir);
    says(&dir, "demo/web:http", "works", &[]).await;
    let dir = copy(HEALTHY);
    undeclared(&dir);
    std::fs::remove_file(dir.path().join(PODS)).unwrap();
    says(&dir, "demo/web:http", "unknown", &["8081"]).await;
}

#[tokio::test]
async fn fixes_open_no_more_than_the_fault() {
    // A policy inside a pod may be a kill switch.
    let policy = json!({"nftables": [
        {"metainfo": {"json_schema_version": 1, "reader": "kpx"}},
        {"table": {"family": "ip", "name": "filter", "handle": 1}},
        {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "handle": 1, "type": "filter", "hook": "input", "prio": 0,
            "policy": "drop"}},
    ]});
    let dir = copy(HEALTHY);
    in_edge(&dir, |text| {
        let (before, _) = text.split_once("--- node/nft.json\n").unwrap();
        format!("{before}--- node/nft.json\n{policy}")
    });
    let words = ["policy of ip filter INPUT", "tcp dport 8080 accept"];
    says(&dir, "demo/edge:http", "partly", &words).await;
    // A Local policy leads outsiders to this pod, and is not to blame.
    says(&dir, "demo/edge-local:http", "partly", &words).await;

    // A list of bans stays.
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/nft.json",
        json(|nft| {
            let set = json!({"set": {"family": "ip", "name": "blocked", "table": "guard", "type": "ipv4_addr", "handle": 2,
                "elem": ["10.244.1.2", "10.244.1.3", "192.0.2.7"]}});
            let matched = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "@blocked"}});
            let all = nft["nftables"].as_array_mut().unwrap();
            all.extend([
                json!({"table": {"family": "ip", "name": "guard", "handle": 90}}),
                set,
                json!({"chain": {"family": "ip", "table": "guard", "name": "fwd", "handle": 1, "type": "filter", "hook": "forward",
                    "prio": 0, "policy": "accept"}}),
                json!({"rule": {"family": "ip", "table": "guard", "chain": "fwd", "handle": 3, "expr": [matched, {"drop": null}]}}),
            ]);
        }),
    );
    let words = [
        "in table ip guard",
        "nft 'delete element ip guard blocked { 10.244.1.2, 10.244.1.3 }'",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn the_port_of_a_headless_service_is_that_of_its_pods() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/services.json",
        json(|services| {
            let all = services["items"].as_array_mut().unwrap();
            let web = all.iter_mut().find(|service| {
                service["metadata"]["name"] == "web" && service["metadata"]["namespace"] == "demo"
            });
            let spec = &mut web.unwrap()["spec"];
            spec["clusterIP"] = "None".into();
            spec["clusterIPs"] = json!(["None"]);
        }),
    );
    let words = ["nothing translates port 80 to their port 8080"];
    says(&dir, "demo/web:80", "refused", &words).await;
    says(&dir, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn routes_of_flannel_without_a_tunnel_lead_by_the_nodes() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/nodes.json",
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                node["metadata"]["annotations"] =
                    json!({"flannel.alpha.coreos.com/backend-type": "host-gw"});
            }
        }),
    );
    says(&dir, "demo/edge", "works", &[]).await;
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| {
                let to = route["dst"].as_str().unwrap();
                !to.starts_with("10.244.0.") && !to.starts_with("10.244.2.")
            });
        }),
    );
    let words = ["no route leads to", "host-gw"];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_node_whose_address_is_gone_gets_no_replies_from_other_nodes() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ip-addr.json", |text| {
        text.replace("10.210.0.16", "10.210.0.36")
    });
    let words = ["no link of this machine has 10.210.0.16", "--node-ip"];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn reasons_in_kube_proxys_log_have_their_own_fix() {
    let line = |error: &str| {
        format!(
            "E1128 11:22:01.000000       1 reflector.go:204] \"Failed to watch\" err=\"failed to list *v1.Service: {error}\" type=\"*v1.Service\"\n"
        )
    };
    for (error, words, fix) in [
        (
            "Get \\\"https://10.96.0.1:443/api/v1/services?limit=500&resourceVersion=0\\\": dial tcp 10.96.0.1:443: i/o timeout",
            "api/v1/services\": dial tcp",
            "the address of Service default/kubernetes",
        ),
        (
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time \
             2020-01-01T00:00:00Z is before 2026-01-01T00:00:00Z",
            "is before",
            "Set the clock of this node",
        ),
        (
            "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time \
             2027-01-01T00:00:00Z is after 2026-12-31T00:00:00Z",
            "is after 2026-12-31",
            "Renew the certificate, which has expired",
        ),
    ] {
        let dir = copy(HEALTHY);
        let lines = line(error).repeat(2);
        write(&dir, "kube-proxy/kube-proxy.log", |text| {
            text.to_owned() + &lines
        });
        let path = dir.path().to_str().unwrap();
        let ran = kpx(&["--from", path, "doctor", "KP21", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let found = report["findings"][0].to_string();
        assert!(found.contains(fix), "{found}");
        let message = report["findings"][0]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        assert!(!message.contains("resourceVersion"), "{message}");
    }
}

#[tokio::test]
async fn a_kube_proxy_that_still_asks_the_former_api_server_is_restarted() {
    for (configured, fix) in [
        ("10.210.0.99:6443", "Correct the server"),
        (
            "10.210.0.2:6443",
            "Restart kube-proxy: it still asks 10.210.0.99:6443",
        ),
    ] {
        let dir = copy(HEALTHY);
        let line = "E1128 11:22:01.000000       1 reflector.go:204] \"Failed to watch\" err=\"failed to list *v1.Service: Get \
                    \\\"https://10.210.0.99:6443/api/v1/services\\\": dial tcp 10.210.0.99:6443: connect: no route to host\" \
                    type=\"*v1.Service\"\n";
        write(&dir, "kube-proxy/kube-proxy.log", |text| {
            text.to_owned() + line + line
        });
        let former = "server: https://10.210.0.2:6443";
        if configured != "10.210.0.2:6443" {
            write(&dir, "cluster/configmaps.json", |text| {
                text.replace(former, &format!("server: https://{configured}"))
            });
        }
        let path = dir.path().to_str().unwrap();
        let ran = kpx(&["--from", path, "doctor", "KP21", "-o", "json"]).await;
        assert!(ran.out.contains(fix), "{ran}");
    }
}

#[tokio::test]
async fn a_failure_that_no_other_check_names_has_its_cause_from_why() {
    let all = findings(&copy("more-07-endpoints-without-node-name")).await;
    let is_it = |(id, severity, text): &(String, String, String)| {
        id == "SV01" && severity == "error" && text.contains("as the node of its endpoints")
    };
    assert!(all.iter().any(is_it), "{all:?}");
    // A cause that another check names is not repeated.
    let all = findings(&copy("rules-03-firewalld-forward-reject")).await;
    assert!(all.iter().all(|(id, ..)| id != "SV01"), "{all:?}");
}

/// A node where the network of [`EDGE`] has these rules in table filter.
fn with_rules_inside(rules: &[&str]) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    let rules = rules.join("\n");
    in_edge(&dir, |text| {
        format!(
            "{}\n--- node/iptables-save.txt\n*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{rules}\nCOMMIT",
            text.trim_end()
        )
    });
    dir
}

#[tokio::test]
async fn rules_of_a_pod_that_stop_later_packets_are_found() {
    for (rule, words) in [
        (
            "-A INPUT -p tcp -m conntrack --ctstate ESTABLISHED -j DROP",
            "the packet is dropped by rule 1 of filter INPUT",
        ),
        (
            "-A OUTPUT -p tcp -m tcp --sport 8080 --tcp-flags PSH PSH -j DROP",
            "the reply is dropped by rule 1 of filter OUTPUT",
        ),
        (
            "-A OUTPUT -p tcp -m tcp --sport 8080 --tcp-flags SYN SYN -j DROP",
            "the reply is dropped by rule 1 of filter OUTPUT",
        ),
    ] {
        let dir = with_rules_inside(&[rule]);
        says(&dir, "demo/edge:http", "partly", &[words, "nsenter"]).await;
    }
    let usual = with_rules_inside(&[
        "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A INPUT -p tcp -m tcp --dport 8080 -j ACCEPT",
        "-A INPUT -i lo -j ACCEPT",
        "-A INPUT -j DROP",
        "-A OUTPUT -m conntrack --ctstate INVALID -j DROP",
    ]);
    says(&usual, "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn a_pod_in_which_nothing_listens_at_all_refuses_connections() {
    let dir = copy(HEALTHY);
    in_edge(&dir, |text| {
        let at = text.find("--- node/ss.txt\n").unwrap();
        let begin = at + text[at..].find('\n').unwrap() + 1;
        let end = begin + text[begin..].find("--- ").unwrap();
        format!("{}\n{}", &text[..begin], &text[end..])
    });
    says(
        &dir,
        "demo/edge:http",
        "partly",
        &["nothing in the pod listens", "no port is open"],
    )
    .await;
}

/// The kernel of the pod takes packets from its own addresses for martians.
#[tokio::test]
async fn a_pod_that_has_the_address_of_a_client_is_in_doubt_for_that_client() {
    let dir = copy(HEALTHY);
    let path = dir.path().to_str().unwrap();
    let asked = async |source: &str| {
        let ran = kpx(&["--from", path, "why", "demo/edge:http", "--source", source]).await;
        ran.out
    };
    let client = "10.244.1.2";
    in_edge(&dir, |text| {
        let own = format!("{{\"family\":\"inet\",\"local\":\"{EDGE}\"");
        let other = format!(
            "{{\"family\":\"inet\",\"local\":\"{client}\",\"prefixlen\":32,\"scope\":\"global\"}},"
        );
        assert!(text.contains(&own), "{text}");
        text.replacen(&own, &format!("{other}{own}"), 1)
    });
    let said = asked(client).await;
    assert!(
        said.contains("\nUNKNOWN: ") && said.contains("has the client's address"),
        "{said}"
    );
    let said = asked("10.244.1.3").await;
    assert!(said.contains("\nWORKS: "), "{said}");
}

#[tokio::test]
async fn a_route_in_a_pod_that_gives_packets_a_foreign_source_loses_replies() {
    // An address of another pod of this node comes back to that pod.
    for (source, fate) in [("10.244.77.7", "lost"), ("10.244.1.2", "works")] {
        let dir = copy(HEALTHY);
        write(&dir, PODS, |text| {
            let own =
                "{\"dst\":\"default\",\"gateway\":\"10.244.1.1\",\"dev\":\"eth0\",\"flags\":[]}";
            let other = own.replace("\"flags\"", &format!("\"prefsrc\":\"{source}\",\"flags\""));
            assert!(text.contains(own));
            text.replacen(own, &other, 1)
        });
        let path = dir.path().to_str().unwrap();
        let args = [
            "--from",
            path,
            "why",
            "demo/edge:http",
            "--source",
            "10.244.1.2",
        ];
        let ran = kpx(&args).await;
        let said = ran.out.replace("\n  ", " ");
        match fate {
            "works" => assert!(said.contains("WORKS: "), "{ran}"),
            _ => {
                for part in [
                    "LOST: ",
                    "gives its packets the source 10.244.77.7",
                    "no route to that address",
                ] {
                    assert!(said.contains(part), "{part}: {ran}");
                }
            }
        }
    }
}

/// A pod on an interface of its own, as AWS gives to pods with security groups.
#[tokio::test]
async fn pods_behind_a_table_of_their_own_are_not_lost() {
    let dir = copy(HEALTHY);
    let links = [
        json!({"ifindex": 50, "ifname": "vlan.eth.1", "flags": ["UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP",
            "linkinfo": {"info_kind": "vlan"}}),
    ];
    let edge = "veth54821184";
    write(
        &dir,
        LINKS,
        json(|all| {
            let all = all.as_array_mut().unwrap();
            all.extend(links);
            let own = all.iter_mut().find(|link| link["ifname"] == edge).unwrap();
            own.as_object_mut().unwrap().remove("master");
        }),
    );
    add_routes(
        &dir,
        &[
            json!({"dst": EDGE, "dev": edge, "scope": "link", "flags": []}),
            json!({"dst": EDGE, "dev": edge, "scope": "link", "table": "101", "flags": []}),
            json!({"dst": "default", "gateway": "10.210.0.2", "dev": "vlan.eth.1", "table": "101", "flags": []}),
        ],
    );
    let by = |link: &str| json!({"priority": 10, "src": "all", "iif": link, "table": "101"});
    add_policy_rules(&dir, &[by("vlan.eth.1"), by(edge)]);
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "doctor"]).await;
    assert!(!ran.out.contains("ip route del default"), "{ran}");
    let said = answer(path, "demo/edge:http").await;
    assert_ne!(said["fate"], "lost", "{}", said["sentence"]);
    assert_ne!(said["fate"], "partly", "{}", said["sentence"]);
}

#[tokio::test]
async fn a_second_network_of_a_pod_takes_packets_to_the_ranges_that_it_covers() {
    let net1 = json!({"ifindex": 9, "ifname": "net1", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1500,
        "operstate": "UP", "linkinfo": {"info_kind": "macvlan"}});
    let with_range = |range: &str| {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            let head = "--- node/ip-link.json\n[";
            let text = text.replacen(head, &format!("{head}{net1},"), 1);
            let route = json!({"dst": range, "dev": "net1", "flags": []});
            let head = "[{\"dst\":\"default\"";
            text.replacen(head, &format!("[{route},{{\"dst\":\"default\""), 1)
        });
        dir
    };
    let words = [
        EDGE,
        "in 10.96.0.0/12, leave by net1 (macvlan)",
        "NetworkAttachmentDefinition",
    ];
    says(
        &with_range("10.96.0.0/12"),
        "demo/web:http",
        "partly",
        &words,
    )
    .await;
    says(&with_range("192.168.0.0/16"), "demo/web:http", "works", &[]).await;
}

/// What Chaos Mesh and the like leave: a qdisc inside the pod loses what it sends.
#[tokio::test]
async fn a_qdisc_inside_a_pod_loses_its_replies() {
    let with = |qdisc: &str| {
        let dir = copy(HEALTHY);
        in_edge(&dir, |text| {
            format!("{text}\n--- node/tc.json\n{{\"qdiscs\":[{qdisc}],\"filters\":[]}}")
        });
        dir
    };
    let healthy = r#"{"kind":"noqueue","dev":"eth0","root":true}"#;
    says(&with(healthy), "demo/edge:http", "works", &[]).await;

    let lost = r#"{"kind":"blackhole","dev":"eth0","root":true}"#;
    let words = [
        "the tc qdisc of eth0 in the network of pod 10.244.1.4",
        "loses the replies",
        "ns/net tc qdisc del dev eth0 root",
    ];
    says(&with(lost), "demo/edge:http", "partly", &words).await;

    let some = r#"{"kind":"netem","dev":"eth0","root":true,"options":{"loss-random":{"loss":0.3,"correlation":0}}}"#;
    let words = ["loses 30 % of what it sends on purpose"];
    says(&with(some), "demo/edge:http", "unknown", &words).await;
}

/// An empty `/etc/cni/net.d`: seen on a real cluster, where the kubelet says it in the Node's condition.
#[tokio::test]
async fn no_pod_starts_where_the_runtime_has_no_network_configuration() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            let mut all = pods["items"].as_array_mut().unwrap().iter_mut();
            let pod = all.find(|pod| pod["metadata"]["name"] == "client-vfxvm");
            let pod = pod.unwrap();
            pod["metadata"]["labels"] = json!({"app": "nothing"});
            pod["status"] = json!({"phase": "Pending", "containerStatuses": [{"name": "app", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}}}]});
        }),
    );
    own_node(&dir, |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "False", "message": "container runtime network not ready: \
            NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"}]);
    });
    let words =
        ["no pod starts on node w1: Network plugin returns error: cni plugin not initialized"];
    says(&dir, "demo/empty", "refused", &words).await;
    let all = findings(&dir).await;
    let is_told = |(id, severity, message): &(String, String, String)| {
        id == "AP01" && severity == "error" && message.contains("starts on node w1")
    };
    assert!(all.iter().any(is_told), "{all:#?}");
}

#[tokio::test]
async fn the_pod_that_has_the_host_port_of_a_refused_one_is_named() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let named = |pod: &&mut Value, name| pod["metadata"]["name"] == name;
            let ports = json!([{"containerPort": 8080, "hostPort": 30500}]);
            let refused = all.iter_mut().find(|pod| named(pod, "client-vfxvm"));
            let refused = refused.unwrap();
            refused["metadata"]["labels"] = json!({"app": "nothing"});
            refused["spec"]["containers"][0]["ports"] = ports.clone();
            refused["status"] = json!({"phase": "Failed", "reason": "NodePorts",
                "message": "Pod was rejected: Predicate NodePorts failed"});
            let node = refused["spec"]["nodeName"].clone();
            let mut others = all.iter_mut().filter(|pod| pod["spec"]["nodeName"] == node);
            let holder = others.find(|pod| !named(pod, "client-vfxvm")).unwrap();
            holder["spec"]["containers"][0]["ports"] = ports;
            holder["metadata"]["name"] = "holder".into();
        }),
    );
    let words = [
        "Predicate NodePorts failed); pod",
        "/holder has hostPort 30500 there",
    ];
    says(&dir, "demo/empty", "refused", &words).await;
}
