//! Objects and settings that are wrong by themselves: kube-proxy does what they say.

mod tunnels;

use super::ends::{HEALTHY, findings, json, says};
use super::incidents::{answer, copy, write};
use super::links::add_routes;
use super::meant::with_rule;
use crate::support::kpx;

const RULES: &str = "node/iptables-save.txt";
const SLICES: &str = "cluster/endpointslices.json";
const SERVICES: &str = "cluster/services.json";
const PODS: &str = "node/pod-networks.txt";

/// Returns the lines of `text` that `is_kept` keeps.
pub(crate) fn keep(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    let kept: Vec<&str> = text.lines().filter(|line| is_kept(line)).collect();
    kept.join("\n") + "\n"
}

/// Changes the slices of Service `name`.
pub(crate) fn slices(dir: &tempfile::TempDir, name: &str, change: impl Fn(&mut serde_json::Value)) {
    let of_service = |slice: &&mut serde_json::Value| {
        slice["metadata"]["labels"]["kubernetes.io/service-name"] == name
    };
    write(
        dir,
        SLICES,
        json(|slices| {
            let all = slices["items"].as_array_mut().unwrap().iter_mut();
            all.filter(of_service).for_each(change);
        }),
    );
}

/// Changes the Service called `name`.
pub(crate) fn service(
    dir: &tempfile::TempDir,
    name: &str,
    change: impl FnOnce(&mut serde_json::Value),
) {
    write(
        dir,
        SERVICES,
        json(|services| {
            let mut all = services["items"].as_array_mut().unwrap().iter_mut();
            change(all.find(|item| item["metadata"]["name"] == name).unwrap());
        }),
    );
}

/// In mode ipvs the node has the addresses of Services itself.
#[tokio::test]
async fn an_endpoint_that_is_the_address_of_a_service_is_the_node_itself_in_mode_ipvs() {
    let dir = copy("full-ipvs");
    slices(&dir, "dual", |slice| {
        slice["endpoints"][0]["addresses"][0] = "10.100.2.1".into();
    });
    write(&dir, "node/ipvsadm-save.txt", |text| {
        text.replace("10.244.1.81:80", "10.100.2.1:80")
    });
    let words = ["endpoint 10.100.2.1:80 is itself served by kube-proxy, for edge/web"];
    says(&dir, "shop/dual", "partly", &words).await;
}

/// A Service whose policy is Local and that has no endpoint here, on a node whose kube-proxy takes pods to be in `range`.
fn without_local_endpoint(range: &str) -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    slices(&dir, "edge-local", |slice| {
        let all = slice["endpoints"].as_array_mut().unwrap();
        all.retain(|endpoint| endpoint["nodeName"] != "w1");
    });
    let lacks = "[0:0] -A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"demo/edge-local:http has no local endpoints\" \
                 -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j DROP\n";
    write(&dir, RULES, |text| {
        let kept = keep(text, |line| {
            !(line.contains("KUBE-SVL-GO6SKCZGEKBTODDC")
                || line.contains("edge-local:http -> 10.244.1.4"))
        });
        let kept = kept.replace("COMMIT\n*nat\n", &format!("{lacks}COMMIT\n*nat\n"));
        kept.replace("-s 10.244.0.0/16", &format!("-s {range}"))
    });
    dir
}

#[tokio::test]
async fn pods_that_kube_proxy_takes_for_outside_are_its_configuration_and_not_the_policy() {
    let pod = ["externalTrafficPolicy is Local"];
    says(
        &without_local_endpoint("10.244.0.0/16"),
        "10.210.0.16:30081",
        "partly",
        &pod,
    )
    .await;
    let dir = without_local_endpoint("10.42.0.0/16");
    for (file, was, is) in [
        (
            "kube-proxy/config.conf",
            "clusterCIDR: 10.244.0.0/16",
            "clusterCIDR: 10.42.0.0/16",
        ),
        (
            "kube-proxy/configz.json",
            "\"clusterCIDR\":\"10.244.0.0/16\"",
            "\"clusterCIDR\":\"10.42.0.0/16\"",
        ),
    ] {
        write(&dir, file, |text| text.replace(was, is));
    }
    let words = [
        "10.42.0.0/16, does not contain 10.244.1.",
        "clusterCIDR to the prefixes",
    ];
    says(&dir, "10.210.0.16:30081", "partly", &words).await;
}

#[tokio::test]
async fn endpoints_of_the_other_family_are_no_lack_of_pods() {
    let dir = copy(HEALTHY);
    slices(&dir, "api", |slice| {
        slice["addressType"] = "IPv6".into();
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            let at = endpoint["addresses"][0].as_str().unwrap();
            endpoint["addresses"][0] =
                format!("fd00:10:244::{}", at.rsplit('.').next().unwrap()).into();
        }
    });
    let words = [
        "none of its pods (demo/api-",
        "has an IPv4 address",
        "ipFamilies",
    ];
    says(&dir, "demo/api:http", "lost", &words).await;
}

#[tokio::test]
async fn a_slice_without_the_label_of_its_service_is_named() {
    let dir = copy(HEALTHY);
    service(&dir, "api", |item| {
        item["spec"].as_object_mut().unwrap().remove("selector");
    });
    slices(&dir, "api", |slice| {
        slice["metadata"]["labels"] = serde_json::json!({});
    });
    let words = [
        "EndpointSlice api-h9h2g lacks the label",
        "label endpointslice api-h9h2g kubernetes.io/service-name=api",
    ];
    says(&dir, "demo/api:http", "lost", &words).await;
}

#[tokio::test]
async fn an_alias_of_an_address_resolves_nowhere() {
    for (target, fate, words) in [
        ("10.210.0.50", "refused", "an alias leads to a name"),
        ("db.example.org", "unknown", "an alias of db.example.org"),
    ] {
        let dir = copy(HEALTHY);
        service(&dir, "api", |item| {
            let spec = item["spec"].as_object_mut().unwrap();
            spec.retain(|key, _| key == "ports");
            spec.insert("type".to_owned(), "ExternalName".into());
            spec.insert("externalName".to_owned(), target.into());
        });
        says(&dir, "demo/api", fate, &[words]).await;
    }
}

#[tokio::test]
async fn a_program_that_takes_the_port_of_another_protocol_has_another_fix() {
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        text.replace(
            "udp UNCONN 0 0 0.0.0.0:9001",
            "tcp LISTEN 0 128 0.0.0.0:9001",
        )
    });
    let words = [
        "it takes TCP alone at this port",
        "Set the protocol of the Service's port to TCP",
    ];
    says(&dir, "demo/web:datagrams", "partly", &words).await;
}

#[tokio::test]
async fn another_program_at_the_health_port_is_found() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/healthz.json", |_| {
        "<html>ok</html>".to_owned()
    });
    write(&dir, "node/ss.txt", |text| {
        let kept = keep(text, |line| !line.contains(":10256 "));
        format!("{kept}tcp LISTEN 0 4096 *:10256 *:* users:((\"cloud-agent\",pid=912,fd=7))\n")
    });
    let found = findings(&dir).await;
    let taken = |(id, _, message): &(String, String, String)| {
        id == "KP05" && message.contains("at port 10256")
    };
    assert!(found.iter().any(taken), "{found:?}");
}

#[tokio::test]
async fn dns_for_local_pods_alone_is_an_error_where_none_is_here() {
    let dir = copy(HEALTHY);
    for name in ["kube-dns", "api"] {
        service(&dir, name, |item| {
            item["spec"]["internalTrafficPolicy"] = "Local".into();
        });
    }
    slices(&dir, "kube-dns", |slice| {
        let far = serde_json::json!({"addresses": ["10.244.0.9"], "conditions": {"ready": true}, "nodeName": "cp1"});
        slice["endpoints"] = serde_json::json!([far]);
        slice["ports"] = serde_json::json!([
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}
        ]);
    });
    let severities = async || {
        let found = findings(&dir).await;
        let all = found.into_iter().filter(|(id, ..)| id == "AP04");
        all.map(|(_, severity, _)| severity).collect::<Vec<_>>()
    };
    // A cache of the node answers at the address of kube-dns.
    assert_eq!(severities().await, ["info", "info"]);
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.retain(|link| link["ifname"] != "nodelocaldns");
        }),
    );
    assert_eq!(severities().await, ["error", "info"]);
}

#[tokio::test]
async fn replies_meet_the_mark_that_rules_give_to_their_connection() {
    let rules = |mark: &str| {
        let dir = with_rule(
            "mangle",
            "-A PREROUTING -d 10.97.114.136/32 -j CONNMARK --set-xmark 0x77/0xffffffff",
        );
        write(&dir, RULES, |text| {
            let rule = format!(
                "[0:0] -A FORWARD -m connmark --mark {mark} -m conntrack --ctdir REPLY -j DROP\n"
            );
            let at = text.find("-A FORWARD").unwrap();
            let line = text[..at].rfind('\n').unwrap() + 1;
            format!("{}{rule}{}", &text[..line], &text[line..])
        });
        dir
    };
    says(
        &rules("0x77"),
        "demo/edge:http",
        "partly",
        &["drops the replies", "--mark 0x77"],
    )
    .await;
    says(&rules("0x78"), "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn a_timeout_of_nothing_forgets_every_connection() {
    for (state, usual) in [("syn_sent", 120), ("syn_recv", 60), ("established", 86_400)] {
        let key = format!("net.netfilter.nf_conntrack_tcp_timeout_{state}");
        let dir = copy(HEALTHY);
        write(&dir, "node/sysctl.txt", |text| {
            let kept = keep(text, |line| !line.starts_with(&key));
            format!("{kept}{key} = 0\n")
        });
        let words = [
            format!("_{state} is 0, so the node forgets"),
            format!("sysctl -w {key}={usual}"),
        ];
        let words = words.each_ref().map(String::as_str);
        says(&dir, "demo/edge:http", "lost", &words).await;
        says(&dir, "demo/web:datagrams", "works", &[]).await;
    }
}

#[tokio::test]
async fn a_type_of_service_that_routing_looks_at_is_not_followed() {
    let dir = with_rule(
        "mangle",
        "-A PREROUTING -s 10.244.1.2/32 -j TOS --set-tos 0x10/0x3f",
    );
    says(&dir, "demo/edge:http", "works", &[]).await;
    write(&dir, "node/ip-rule.json", |text| {
        text.replacen(
            '[',
            "[{\"priority\":910,\"src\":\"all\",\"tos\":\"0x10\",\"action\":\"blackhole\"},",
            1,
        )
    });
    says(
        &dir,
        "demo/edge:http",
        "unknown",
        &["the type of service, which kpx does not follow"],
    )
    .await;
}

#[tokio::test]
async fn a_bridge_may_hand_its_packets_to_iptables_without_the_sysctl() {
    for (calls, fate) in [(0, "partly"), (1, "works")] {
        let dir = copy(HEALTHY);
        write(&dir, "node/sysctl.txt", |text| {
            text.replace("bridge-nf-call-iptables = 1", "bridge-nf-call-iptables = 0")
        });
        write(
            &dir,
            "node/ip-link.json",
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                let bridge = all.find(|link| link["ifname"] == "cni0").unwrap();
                bridge["linkinfo"]["info_data"]["nf_call_iptables"] = calls.into();
            }),
        );
        says(&dir, "demo/edge:http", fate, &[]).await;
    }
}

#[tokio::test]
async fn a_route_of_type_broadcast_reaches_no_endpoint() {
    let dir = copy(HEALTHY);
    add_routes(
        &dir,
        &[
            serde_json::json!({"type": "broadcast", "dst": "10.244.2.5", "dev": "eth0", "table": "local", "flags": []}),
        ],
    );
    says(
        &dir,
        "demo/edge:http",
        "partly",
        &["ip route del broadcast 10.244.2.5"],
    )
    .await;
}

/// The node has the address with that broadcast address itself.
#[tokio::test]
async fn a_wrong_broadcast_address_of_the_node_hides_an_endpoint() {
    let dir = copy(HEALTHY);
    add_routes(
        &dir,
        &[
            serde_json::json!({"type": "broadcast", "dst": "10.244.2.5", "dev": "eth0", "table": "local", "protocol": "kernel",
                "prefsrc": "192.0.2.9", "flags": []}),
        ],
    );
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let eth0 = all.find(|link| link["ifname"] == "eth0").unwrap();
            let own = serde_json::json!({"family": "inet", "local": "192.0.2.9", "prefixlen": 24, "broadcast": "10.244.2.5",
                "scope": "global", "label": "eth0"});
            eth0["addr_info"].as_array_mut().unwrap().push(own);
        }),
    );
    let words = ["takes 10.244.2.5 for a broadcast address"];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let host = answer_for(&dir, "demo/edge:http", "host").await;
    assert_eq!(host, "partly");
}

/// The fate of connections from `source`.
async fn answer_for(dir: &tempfile::TempDir, target: &str, source: &str) -> String {
    let path = dir.path().to_str().unwrap();
    let asked = [
        "--from", path, "why", target, "--source", source, "-o", "json",
    ];
    let ran = kpx(&asked).await;
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    report["fate"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_one_port_of_a_bridge_loses_is_lost_for_its_pod_alone() {
    let dir = copy(HEALTHY);
    let links: serde_json::Value = serde_json::from_str(
        &std::fs::read_to_string(dir.path().join("node/ip-link.json")).unwrap(),
    )
    .unwrap();
    let is_port = |link: &&serde_json::Value| link["master"] == "cni0";
    let port = links.as_array().unwrap().iter().find(is_port).unwrap()["ifname"].clone();
    write(
        &dir,
        "node/tc.json",
        json(|tc| {
            tc["qdiscs"].as_array_mut().unwrap().push(serde_json::json!(
            {"kind": "netem", "handle": "1:", "dev": port, "root": true, "options": {"loss-random": {"loss": 1}}}
        ));
        }),
    );
    // It has no endpoint on this node.
    let answer = answer(dir.path().to_str().unwrap(), "demo/api:http").await;
    let fates: Vec<_> = answer["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|path| (path["client"].clone(), path["fate"].clone()))
        .collect();
    assert!(
        fates.contains(&("pod".into(), "works".into()))
            && fates.contains(&("single".into(), "lost".into())),
        "{fates:?}"
    );
}

#[tokio::test]
async fn an_endpoint_that_names_the_wrong_node_is_not_local() {
    let dir = copy(HEALTHY);
    service(&dir, "edge-local", |item| {
        item["spec"]["internalTrafficPolicy"] = "Local".into();
    });
    slices(&dir, "edge-local", |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            endpoint["nodeName"] = "w2".into();
        }
    });
    let rule = "[0:0] -A KUBE-SERVICES -d 10.101.23.110/32 -p tcp -m comment --comment \"demo/edge-local:http has no local endpoints\" \
                -m tcp --dport 80 -j DROP\n";
    write(&dir, RULES, |text| {
        let kept = keep(text, |line| !line.contains("-d 10.101.23.110/32"));
        kept.replacen("COMMIT\n*nat\n", &format!("{rule}COMMIT\n*nat\n"), 1)
    });
    let words = [
        "does not name w1 as the node of its endpoints",
        "demo/edge-z8g9h",
    ];
    says(&dir, "10.101.23.110:80", "lost", &words).await;
}

#[tokio::test]
async fn two_nodes_with_one_range_of_pods_are_named() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/nodes.json",
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let other = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            other["spec"]["podCIDR"] = "10.244.1.0/24".into();
            other["spec"]["podCIDRs"] = serde_json::json!(["10.244.1.0/24"]);
        }),
    );
    // Both have pods in it.
    slices(&dir, "edge", |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            if endpoint["nodeName"] == "w2" {
                endpoint["addresses"][0] = "10.244.1.77".into();
            }
        }
    });
    let found = findings(&dir).await;
    let words = "nodes w1, w2 have the same podCIDR";
    let is_it = |(id, severity, message): &(String, String, String)| {
        id == "AP13" && severity == "warning" && message.starts_with(words)
    };
    assert!(found.iter().any(is_it), "{found:?}");
}

#[tokio::test]
async fn a_rule_that_looks_for_a_text_stops_no_connection() {
    let text = "-m string --string \"BitTorrent\" --algo bm --to 65535";
    let dir = with_rule("filter", &format!("-A FORWARD {text} -j DROP"));
    says(&dir, "demo/edge:http", "works", &[]).await;
    let dir = with_rule(
        "filter",
        &format!("-A FORWARD ! {text} -j DROP").replace("! -m string", "-m string !"),
    );
    says(&dir, "demo/edge:http", "partly", &["drops"]).await;
}

#[tokio::test]
async fn a_kube_proxy_in_a_network_of_its_own_writes_its_rules_there() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        keep(text, |line| !line.contains("KUBE-"))
    });
    write(
        &dir,
        "node/processes.json",
        json(|processes| {
            for process in processes["processes"].as_array_mut().unwrap() {
                process["sameNetwork"] = (process["name"] != "kube-proxy").into();
            }
        }),
    );
    write(
        &dir,
        "cluster/pods.json",
        json(|pods| {
            for pod in pods["items"].as_array_mut().unwrap() {
                if pod["metadata"]["name"]
                    .as_str()
                    .unwrap()
                    .starts_with("kube-proxy")
                {
                    pod["spec"]["hostNetwork"] = false.into();
                }
            }
        }),
    );
    let found = findings(&dir).await;
    let is_it = |(id, _, message): &(String, String, String)| {
        id == "KP01" && message.contains("has a network of its own, and the rules are there")
    };
    assert!(found.iter().any(is_it), "{found:?}");
}

#[tokio::test]
async fn what_the_node_sends_to_pods_is_accepted_by_its_destination() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let at = text.find("*filter\n").unwrap();
        let (before, filter) = text.split_at(at);
        format!(
            "{before}{}",
            filter.replacen(":OUTPUT ACCEPT", ":OUTPUT DROP", 1)
        )
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/edge:http").await;
    let causes = answer["causes"].to_string();
    assert!(causes.contains("-I OUTPUT -d 10.244.0.0/16"), "{causes}");
    assert!(!causes.contains("-I OUTPUT -s 10.244.0.0/16"), "{causes}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_masqueraded_connection_needs_a_source_port() {
    let entries = |state: &str, last: u16| -> String {
        let entry = |port: u16| {
            format!(
                "tcp      6 86000 {state} src=10.244.1.99 dst=10.106.174.46 sport={port} dport=80 src=10.244.2.2 dst=10.210.0.16 \
                 sport=8080 dport={port} [ASSURED] mark=0 use=1\n"
            )
        };
        (1024..=last).map(entry).collect()
    };
    for (state, last, fate, words) in [
        (
            "ESTABLISHED",
            u16::MAX,
            "partly",
            &["64512 of the 64512 source ports", "keep and reuse"][..],
        ),
        ("ESTABLISHED", 60_000, "works", &[]),
        // Newer kernels give these up.
        ("TIME_WAIT", u16::MAX, "unknown", &["in TIME_WAIT"]),
    ] {
        let dir = copy(HEALTHY);
        let all = entries(state, last);
        write(&dir, "node/conntrack.txt", |text| all + text);
        says(&dir, "demo/web-nodeport:http", fate, words).await;
        says(&dir, "demo/web-nodeport:echo", "works", &[]).await;
    }
}

#[tokio::test]
async fn reserved_ports_leave_none_for_clients_of_the_node() {
    let dir = copy(HEALTHY);
    write(&dir, "node/sysctl.txt", |text| {
        keep(text, |line| !line.contains("ip_local_"))
            + "net.ipv4.ip_local_port_range = 32768\t60999\nnet.ipv4.ip_local_reserved_ports = 32768-60998\n"
    });
    write(&dir, "node/conntrack.txt", |text| {
        format!(
            "tcp      6 86000 ESTABLISHED src=10.210.0.16 dst=10.101.213.102 sport=60999 dport=80 src=10.244.1.3 dst=10.210.0.16 \
             sport=8080 dport=60999 [ASSURED] mark=0 use=1\n{text}"
        )
    });
    let words = [
        "without 28231 of net.ipv4.ip_local_reserved_ports",
        "sysctl -w net.ipv4.ip_local_reserved_ports=",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn pods_of_this_node_are_its_own_whatever_ranges_other_nodes_have() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "cluster/nodes.json",
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let other = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            other["spec"]["podCIDR"] = "10.244.1.0/24".into();
            other["spec"]["podCIDRs"] = serde_json::json!(["10.244.1.0/24"]);
        }),
    );
    says(&dir, "demo/web", "works", &[]).await;
    slices(&dir, "web", |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            if endpoint["nodeName"] == "w2" {
                endpoint["addresses"][0] = "10.244.1.77".into();
            }
        }
    });
    write(&dir, RULES, |text| {
        text.replace("10.244.2.2", "10.244.1.77")
    });
    let words = [
        "have the same range of pods, 10.244.1.0/24",
        "its own range",
    ];
    says(&dir, "demo/web:http", "unknown", &words).await;
}

#[tokio::test]
async fn metallb_announces_nothing_where_all_nodes_are_left_out() {
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    for (nodes, is_said) in [(&["cp1", "w1", "w2"][..], true), (&["cp1"], false)] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "cluster/nodes.json",
            json(|all| {
                for node in all["items"].as_array_mut().unwrap() {
                    if nodes.contains(&node["metadata"]["name"].as_str().unwrap()) {
                        node["metadata"]["labels"][label] = "".into();
                    }
                }
            }),
        );
        write(
            &dir,
            "cluster/daemonsets.json",
            json(|sets| {
                let all = sets["items"].as_array_mut().unwrap();
                let mut speaker = all[0].clone();
                speaker["metadata"]["name"] = "speaker".into();
                all.push(speaker);
            }),
        );
        let (fate, words) = if is_said {
            (
                "unknown",
                &[
                    "MetalLB announces",
                    "have the label node.kubernetes.io/exclude",
                ][..],
            )
        } else {
            ("works", &[][..])
        };
        says(&dir, "demo/edge-balanced", fate, words).await;
    }
}

#[tokio::test]
async fn metallb_announces_an_address_of_policy_local_where_it_has_endpoints() {
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    for (policy, is_said) in [("Local", true), ("Cluster", false)] {
        let dir = copy(HEALTHY);
        write(&dir, "cluster/services.json", |text| {
            let mut all: serde_json::Value = serde_json::from_str(text).unwrap();
            let items = all["items"].as_array_mut().unwrap().iter_mut();
            for service in items.filter(|of| of["metadata"]["name"] == "edge-balanced") {
                service["spec"]["externalTrafficPolicy"] = policy.into();
                service["metadata"]["generation"] = 7.into();
            }
            all.to_string()
        });
        write(
            &dir,
            "cluster/endpointslices.json",
            json(|all| {
                let slices = all["items"].as_array_mut().unwrap().iter_mut();
                let its = |slice: &&mut serde_json::Value| {
                    slice["metadata"]["labels"]["kubernetes.io/service-name"] == "edge-balanced"
                };
                for slice in slices.filter(its) {
                    let endpoints = slice["endpoints"].as_array_mut().unwrap();
                    endpoints.retain(|endpoint| endpoint["nodeName"] == "w1");
                }
            }),
        );
        write(
            &dir,
            "cluster/nodes.json",
            json(|all| {
                let mut all = all["items"].as_array_mut().unwrap().iter_mut();
                let own = all.find(|node| node["metadata"]["name"] == "w1").unwrap();
                own["metadata"]["labels"][label] = "".into();
            }),
        );
        write(
            &dir,
            "cluster/daemonsets.json",
            json(|sets| {
                let all = sets["items"].as_array_mut().unwrap();
                let mut speaker = all[0].clone();
                speaker["metadata"]["name"] = "speaker".into();
                all.push(speaker);
            }),
        );
        let answer = answer(dir.path().to_str().unwrap(), "demo/edge-balanced").await;
        let words = "all Nodes with an endpoint (externalTrafficPolicy is Local)";
        assert_eq!(answer.to_string().contains(words), is_said, "{answer}");
    }
}

#[tokio::test]
async fn an_address_in_the_nodes_network_that_nothing_answers_for_is_noted() {
    let asked = async |announcer: Option<&str>, holder: Option<&str>| {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "cluster/daemonsets.json",
            json(|sets| {
                let all = sets["items"].as_array_mut().unwrap();
                if let Some(name) = announcer {
                    let mut set = all[0].clone();
                    set["metadata"]["name"] = name.into();
                    all.push(set);
                }
            }),
        );
        write(
            &dir,
            "node/ip-addr.json",
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                if let Some(name) = holder {
                    let own = all.find(|link| link["ifname"] == *name).unwrap();
                    own["addr_info"].as_array_mut().unwrap().push(
                        serde_json::json!({"family": "inet", "local": "10.210.0.77", "prefixlen": 32, "scope": "global"}),
                    );
                }
            }),
        );
        let answer = answer(dir.path().to_str().unwrap(), "demo/api").await;
        assert_eq!(answer["fate"], "works", "{answer}");
        answer["notes"].to_string()
    };
    let noted = asked(None, None).await;
    assert!(noted.contains("`arping 10.210.0.77`"), "{noted}");
    for (announcer, holder) in [(Some("kube-vip-ds"), None), (None, Some("eth0"))] {
        let noted = asked(announcer, holder).await;
        assert!(!noted.contains("arping"), "{noted}");
    }
}

#[tokio::test]
async fn an_address_that_is_not_the_api_servers_is_named_once() {
    let dir = copy(HEALTHY);
    let line = |kind: &str, path: &str| {
        format!(
            "E1128 11:22:01.000000       1 reflector.go:204] \"Failed to watch\" err=\"failed to list *v1.{kind}: Get \
             \\\"https://10.210.0.9:6443/{path}?limit=500\\\": dial tcp 10.210.0.9:6443: connect: no route to host\" \
             type=\"*v1.{kind}\"\n"
        )
    };
    let lines = line("Service", "api/v1/services")
        + &line("EndpointSlice", "apis/discovery.k8s.io/v1/endpointslices");
    write(&dir, "kube-proxy/kube-proxy.log", |text| {
        text.to_owned() + &lines.repeat(2)
    });
    let all = findings(&dir).await;
    let of_log = all.iter().filter(|(id, ..)| id == "KP21");
    assert_eq!(of_log.count(), 1, "{all:?}");
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "doctor", "KP21", "-o", "json"]).await;
    let words = "Restart kube-proxy: it still asks 10.210.0.9:6443";
    assert!(ran.out.contains(words), "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn one_early_error_of_a_watch_is_not_the_first_cause() {
    let dir = copy(HEALTHY);
    let line = "E1127 20:20:11.750695       1 reflector.go:205] \"Failed to watch\" err=\"failed to list *v1.Service: Unauthorized\" \
                logger=\"UnhandledError\" type=\"*v1.Service\"\n";
    write(&dir, "kube-proxy/kube-proxy.log", |text| {
        line.to_owned() + text
    });
    write(&dir, RULES, |text| {
        keep(text, |line| !line.contains("demo/web-nodeport"))
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/web-nodeport").await;
    let sentence = answer["sentence"].to_string();
    assert!(!sentence.contains("Unauthorized"), "{sentence}");
}

#[tokio::test]
async fn services_that_only_dns_serves_are_shown_by_name() {
    for (spec, words) in [
        (
            serde_json::json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            &["demo/web:http", "4/4", "works"][..],
        ),
        (
            serde_json::json!({"type": "ExternalName", "externalName": "db.example.org", "clusterIP": "", "clusterIPs": []}),
            &["DNS as another name of"],
        ),
    ] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            SERVICES,
            json(|services| {
                let mut all = services["items"].as_array_mut().unwrap().iter_mut();
                let web = all.find(|of| of["metadata"]["name"] == "web").unwrap();
                for (key, value) in spec.as_object().unwrap() {
                    web["spec"][key] = value.clone();
                }
            }),
        );
        let path = dir.path().to_str().unwrap();
        let ran = kpx(&["--from", path, "show", "services", "demo/web"]).await;
        assert_eq!(ran.code, 0, "{ran}");
        for part in words {
            assert!(ran.out.contains(part), "{part}: {ran}");
        }
    }
}

#[tokio::test]
async fn firewalld_that_forwards_its_own_ports_alone_has_to_forward_others() {
    for (strict, words) in [
        ("yes", "StrictForwardPorts=no"),
        ("no", "--add-source=10.244.0.0/16"),
    ] {
        let dir = copy(HEALTHY);
        let file = dir.path().join("node/firewalls.txt");
        let text = format!("/etc/firewalld/firewalld.conf: StrictForwardPorts={strict}\n");
        std::fs::write(file, text).unwrap();
        let filter = r#"[{"table": {"family": "inet", "name": "firewalld", "handle": 90}},
            {"chain": {"family": "inet", "table": "firewalld", "name": "filter_FORWARD", "handle": 91, "type": "filter",
                "hook": "forward", "prio": 10, "policy": "accept"}},
            {"chain": {"family": "inet", "table": "firewalld", "name": "filter_FWD_public", "handle": 92}},
            {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_FORWARD", "handle": 93, "expr": [
                {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eth0"}},
                {"jump": {"target": "filter_FWD_public"}}]}},
            {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_FORWARD", "handle": 94, "expr": [
                {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}},
                {"accept": null}]}},
            {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_FWD_public", "handle": 95, "expr": [
                {"match": {"op": "==", "left": {"ct": {"key": "state"}}, "right": "new"}},
                {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]}}]"#;
        let filter: serde_json::Value = serde_json::from_str(filter).unwrap();
        write(
            &dir,
            "node/nft.json",
            json(|rules| {
                let all = rules["nftables"].as_array_mut().unwrap();
                all.extend_from_slice(filter.as_array().unwrap());
            }),
        );
        let path = dir.path().to_str().unwrap();
        let args = [
            "--from",
            path,
            "why",
            "demo/web-nodeport:http",
            "--source",
            "203.0.113.9",
            "-o",
            "json",
        ];
        let ran = kpx(&args).await;
        let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let fix = answer["causes"][0]["fix"].to_string();
        assert!(
            fix.contains(words),
            "{strict}: {fix} {}",
            answer["sentence"]
        );
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn slices_by_hand_that_kube_proxy_does_not_read_are_named() {
    let by_hand = |change: fn(&mut serde_json::Value)| {
        let dir = copy(HEALTHY);
        service(&dir, "api", |api| {
            api["spec"].as_object_mut().unwrap().remove("selector");
        });
        slices(&dir, "api", |slice| {
            slice["metadata"]["name"] = "api-1".into();
            let labels = slice["metadata"]["labels"].as_object_mut().unwrap();
            labels.remove("endpointslice.kubernetes.io/managed-by");
            change(slice);
        });
        dir
    };
    let without_number = by_hand(|slice| {
        for port in slice["ports"].as_array_mut().unwrap() {
            port.as_object_mut().unwrap().remove("port");
        }
    });
    let words = [
        "has a port named http (TCP) without a number",
        "edit endpointslice api-1",
    ];
    says(&without_number, "demo/api:http", "lost", &words).await;
    let of_names = by_hand(|slice| {
        slice["addressType"] = "FQDN".into();
        slice["endpoints"] = serde_json::json!([{"addresses": ["db.corp.local"]}]);
    });
    let words = [
        "EndpointSlice (api-1) lists host names (db.corp.local; addressType FQDN)",
        "ExternalName",
    ];
    says(&of_names, "demo/api:http", "lost", &words).await;
    let without_label = by_hand(|slice| {
        let labels = slice["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove("kubernetes.io/service-name");
    });
    let all = findings(&without_label).await;
    let words = "EndpointSlice api-1 lacks the label kubernetes.io/service-name";
    assert!(
        all.iter()
            .any(|(id, _, message)| id == "AP01" && message.contains(words)),
        "{all:?}"
    );
}
