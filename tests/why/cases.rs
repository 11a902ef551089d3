//! Broken Services of many causes.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    NFT, NODES, PODS, RULES, SERVICES, SLICES, SYSCTLS, service, slices, with_more, with_pods,
    written,
};
use crate::support::{Ran, broken, kpx, parse, without};

/// From the text of a file to another.
pub(super) type Change = (&'static str, fn(&str) -> String);

/// A broken Service.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) recording: &'static str,
    pub(super) changes: &'static [Change],
    pub(super) args: &'static [&'static str],
    pub(super) cause: &'static str,
}

/// Makes a table of nftables dormant.
fn dormant(text: &str, family: &str, name: &str) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for object in list["nftables"].as_array_mut().unwrap() {
        let table = object.get_mut("table");
        let its = table.filter(|table| table["family"] == family && table["name"] == name);
        if let Some(table) = its {
            table["flags"] = json!(["dormant"]);
        }
    }
    list.to_string()
}

/// Adds a table with a nat chain that leads the cluster IP of `cart` elsewhere.
fn with_rival(text: &str, priority: i32) -> String {
    let of = |more: Value| {
        let mut of = json!({"family": "ip", "table": "guard"});
        of.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        of
    };
    let chain = json!({"name": "pre", "handle": 1, "type": "nat", "hook": "prerouting", "prio": priority, "policy": "accept"});
    let is_cart = json!({"match": {
        "op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "10.100.1.1",
    }});
    let to = json!({"dnat": {"addr": "10.244.2.99", "port": 8080}});
    let rule = json!({"chain": "pre", "handle": 2, "expr": [is_cart, to]});
    let mut list: Value = serde_json::from_str(text).unwrap();
    list["nftables"].as_array_mut().unwrap().extend([
        json!({"table": {"family": "ip", "name": "guard", "handle": 99}}),
        json!({"chain": of(chain)}),
        json!({"rule": of(rule)}),
    ]);
    list.to_string()
}

pub(super) fn before(text: &str, line: &str, new: &str) -> String {
    text.replacen(line, &format!("{new}\n{line}"), 1)
}

/// Routes to the pods of this node, and to those of the other one.
pub(super) const OWN_PODS: &str = r#"{"dst": "10.244.1.0/24", "dev": "cni0", "scope": "link"}"#;

pub(super) const OTHER_PODS: &str =
    r#"{"dst": "10.244.2.0/24", "dev": "eth0", "gateway": "10.0.2.16"}"#;

fn forwarding_off(text: &str) -> String {
    text.replace("net.ipv4.ip_forward = 1", "net.ipv4.ip_forward = 0")
}

/// Sets the conditions of every endpoint: ready, serving, terminating.
pub(super) fn conditions(slice: &mut Value, [ready, serving, terminating]: [bool; 3]) {
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["conditions"] =
            json!({"ready": ready, "serving": serving, "terminating": terminating});
    }
    written(slice, "2026-11-20T12:05:00Z", "");
}

/// Removes the elements of nftables maps that have `addr` in their key.
fn without_element(text: &str, addr: &str) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for object in list["nftables"].as_array_mut().unwrap() {
        let elements = object.get_mut("map").and_then(|map| map.get_mut("elem"));
        if let Some(elements) = elements.and_then(Value::as_array_mut) {
            elements.retain(|element| !element[0].to_string().contains(addr));
        }
    }
    list.to_string()
}

const CASES: &[Case] = &[
    Case {
        name: "missing-rule",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            without(text, "-A KUBE-SERVICES -d 10.100.1.1/32")
        })],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "missing-jump",
        recording: "full-iptables",
        changes: &[(RULES, |text| without(text, "-A PREROUTING"))],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "missing-virtual-server",
        recording: "full-ipvs",
        changes: &[("node/ipvsadm-save.txt", |text| {
            without(text, "-t 10.100.1.1:8080")
        })],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "missing-element",
        recording: "full-nftables",
        changes: &[("node/nft.json", |text| {
            without_element(text, "\"10.100.1.1\"")
        })],
        args: &["10.100.1.1"],
        cause: "rules",
    },
    Case {
        name: "foreign-drop",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            before(
                text,
                "COMMIT",
                "[3:180] -A PREROUTING -d 10.100.1.1/32 -j DROP",
            )
        })],
        args: &["shop/cart:http"],
        cause: "foreign-rule",
    },
    Case {
        name: "foreign-drop-of-one-endpoint",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            before(
                text,
                "[0:0] -A FORWARD",
                "[3:180] -A FORWARD -d 10.244.2.30/32 -j DROP",
            )
        })],
        args: &["shop/cart:http"],
        cause: "foreign-rule",
    },
    Case {
        name: "foreign-accept",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            before(
                text,
                "[0:0] -A PREROUTING",
                "[3:180] -A PREROUTING -d 10.100.1.1/32 -j ACCEPT",
            )
        })],
        args: &["cart.shop.svc.cluster.local"],
        cause: "foreign-rule",
    },
    Case {
        name: "docker-takes-the-node-port",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            before(
                &text.replacen("*nat\n", "*nat\n:DOCKER - [0:0]\n", 1),
                "[0:0] -A PREROUTING",
                "[9:540] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n[9:540] -A DOCKER -p tcp -m tcp --dport 30081 -j DNAT --to-destination 172.17.0.2:80",
            )
        })],
        args: &["nodeport:30081"],
        cause: "foreign-rule",
    },
    Case {
        name: "policy-of-forward",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            text.replacen(
                "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT",
                "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP",
                1,
            )
        })],
        args: &["shop/cart:http"],
        cause: "foreign-rule",
    },
    Case {
        name: "selector",
        recording: "full-iptables",
        changes: &[],
        args: &["shop/empty"],
        cause: "no-endpoints",
    },
    Case {
        name: "node-port-without-endpoints",
        recording: "full-ipvs",
        changes: &[],
        args: &["nodeport:30555"],
        cause: "no-endpoints",
    },
    Case {
        name: "not-ready",
        recording: "full-nftables",
        changes: &[(SLICES, |text| {
            slices(text, "cart", |slice| {
                conditions(slice, [false, false, false]);
            })
        })],
        args: &["shop/cart"],
        cause: "no-endpoints",
    },
    Case {
        name: "terminating",
        recording: "full-iptables",
        changes: &[(SLICES, |text| {
            slices(text, "cart", |slice| {
                conditions(slice, [false, false, true]);
            })
        })],
        args: &["shop/cart"],
        cause: "no-endpoints",
    },
    Case {
        name: "target-port-name",
        recording: "full-iptables",
        changes: &[
            (SLICES, |text| {
                slices(text, "cart", |slice| slice["ports"] = json!([]))
            }),
            (SERVICES, |text| {
                service(text, "cart", |service| {
                    service["spec"]["ports"][0]["targetPort"] = json!("web");
                })
            }),
        ],
        args: &["shop/cart:http"],
        cause: "no-endpoints",
    },
    Case {
        name: "no-selector",
        recording: "full-iptables",
        changes: &[(SERVICES, |text| {
            service(text, "empty", |service| {
                service["spec"]["selector"] = Value::Null;
            })
        })],
        args: &["shop/empty"],
        cause: "no-endpoints",
    },
    Case {
        name: "headless-not-ready",
        recording: "full-iptables",
        changes: &[(SLICES, |text| {
            slices(text, "db", |slice| conditions(slice, [false, false, false]))
        })],
        args: &["shop/db"],
        cause: "no-endpoints",
    },
    Case {
        name: "target-port-number",
        recording: "full-iptables",
        changes: &[
            (SLICES, |text| {
                slices(text, "cart", |slice| {
                    slice["endpoints"][0]["targetRef"] =
                        json!({"kind": "Pod", "name": "cart-0", "namespace": "shop"});
                })
            }),
            (PODS, |text| {
                let pod = json!({
                    "metadata": {"name": "cart-0", "namespace": "shop"},
                    "spec": {"nodeName": "node1", "containers": [{"name": "cart", "ports": [{"containerPort": 9090}]}]},
                    "status": {"podIP": "10.244.1.30"},
                });
                with_pods(text, [pod])
            }),
        ],
        args: &["shop/cart"],
        cause: "undeclared-port",
    },
    Case {
        name: "wrong-port",
        recording: "full-iptables",
        changes: &[],
        args: &["shop/multi:9999"],
        cause: "no-port",
    },
    Case {
        name: "internal-policy",
        recording: "full-iptables",
        changes: &[],
        args: &["shop/agent-remote"],
        cause: "no-local-endpoints",
    },
    Case {
        name: "external-policy",
        recording: "full-nftables",
        changes: &[],
        args: &["edge/web-remote-only"],
        cause: "no-local-endpoints",
    },
    Case {
        name: "source-ranges",
        recording: "full-iptables",
        changes: &[],
        args: &["edge/web-restricted", "--source", "198.18.0.1"],
        cause: "source-ranges",
    },
    Case {
        name: "dns-name",
        recording: "full-iptables",
        changes: &[],
        args: &["web.shop.svc.cluster.local"],
        cause: "no-service",
    },
    Case {
        name: "external-name",
        recording: "full-iptables",
        changes: &[],
        args: &["shop/legacy-db"],
        cause: "external-name",
    },
    Case {
        name: "other-proxy",
        recording: "full-iptables",
        changes: &[],
        args: &["shop/meshed"],
        cause: "other-proxy",
    },
    Case {
        name: "no-cluster-ip",
        recording: "full-iptables",
        changes: &[(SERVICES, |text| {
            service(text, "cart", |service| {
                service["spec"]["clusterIP"] = json!("");
                service["spec"]["clusterIPs"] = json!([]);
            })
        })],
        args: &["shop/cart"],
        cause: "no-cluster-ip",
    },
    Case {
        name: "no-address",
        recording: "full-iptables",
        changes: &[],
        args: &["10.99.99.99:80"],
        cause: "no-address",
    },
    Case {
        name: "no-node-port",
        recording: "full-iptables",
        changes: &[],
        args: &["nodeport:31999"],
        cause: "no-node-port",
    },
    Case {
        name: "stale-conntrack",
        recording: "full-iptables",
        changes: &[("node/conntrack.txt", |text| {
            format!(
                "{text}udp      17 25 src=10.244.1.70 dst=10.96.0.10 sport=40000 dport=53 src=10.244.1.9 dst=10.244.1.70 sport=53 dport=40000 [ASSURED] mark=0 use=1\n"
            )
        })],
        args: &["kube-system/kube-dns:dns"],
        cause: "stale-connections",
    },
    Case {
        name: "stale-conntrack-without-pod-ranges",
        recording: "full-iptables",
        changes: &[
            ("node/conntrack.txt", |text| {
                format!(
                    "{text}udp      17 25 src=10.244.1.70 dst=10.96.0.10 sport=40000 dport=53 src=10.244.1.9 dst=10.244.1.70 sport=53 dport=40000 [ASSURED] mark=0 use=1\n"
                )
            }),
            ("cluster/nodes.json", |text| text.replace("podCIDR", "none")),
            ("node/ip-route.json", |text| with_more(text, &[OWN_PODS])),
            ("node/ip-link.json", |text| {
                with_more(
                    text,
                    &[r#"{"ifindex": 9, "ifname": "cni0", "flags": ["UP"]}"#],
                )
            }),
        ],
        args: &["kube-system/kube-dns:dns"],
        cause: "stale-connections",
    },
    Case {
        name: "stale-backend",
        recording: "full-iptables",
        changes: &[(SLICES, |text| {
            text.replace("\"10.244.1.30\"", "\"10.244.1.31\"")
        })],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "wrong-node",
        recording: "full-iptables",
        changes: &[("node/ip-route.json", |text| with_more(text, &[OTHER_PODS]))],
        args: &["shop/cart"],
        cause: "wrong-node",
    },
    Case {
        name: "no-route",
        recording: "full-iptables",
        changes: &[("node/ip-route.json", |text| {
            text.replacen(
                '[',
                "[{\"type\":\"unreachable\",\"dst\":\"10.244.2.30\"},",
                1,
            )
        })],
        args: &["shop/cart"],
        cause: "route",
    },
    Case {
        name: "forwarding-off",
        recording: "full-iptables",
        changes: &[
            ("node/ip-route.json", |text| {
                with_more(text, &[OWN_PODS, OTHER_PODS])
            }),
            (SYSCTLS, forwarding_off),
        ],
        args: &["shop/cart"],
        cause: "forwarding-off",
    },
    Case {
        name: "link-forwarding-off",
        recording: "full-iptables",
        changes: &[
            ("node/ip-route.json", |text| {
                with_more(text, &[OWN_PODS, OTHER_PODS])
            }),
            (SYSCTLS, |text| {
                let text = text.replace(".forwarding = 0", ".forwarding = 1");
                format!("{text}net.ipv4.conf.cni0.forwarding = 0\n")
            }),
        ],
        args: &["shop/cart"],
        cause: "obstacle",
    },
    Case {
        name: "ttl-ends",
        recording: "full-iptables",
        changes: &[
            ("node/ip-route.json", |text| {
                with_more(text, &[OWN_PODS, OTHER_PODS])
            }),
            (RULES, |text| {
                let rule = "-A PREROUTING -s 10.244.1.0/24 -j TTL --ttl-set 1";
                text.replacen("COMMIT", &format!("{rule}\nCOMMIT"), 1)
            }),
        ],
        args: &["shop/cart"],
        cause: "foreign-rule",
    },
    Case {
        name: "address-of-an-endpoint",
        recording: "full-iptables",
        changes: &[
            ("node/ip-route.json", |text| {
                let local = r#"{"type": "local", "dst": "10.244.2.30", "dev": "eth0", "table": "local", "scope": "host"}"#;
                with_more(text, &[OWN_PODS, OTHER_PODS, local])
            }),
            ("node/ip-addr.json", |text| {
                let own = r#"{"ifname": "eth0", "addr_info": [{"family": "inet", "local": "10.244.2.30", "prefixlen": 32, "scope": "global"}]}"#;
                with_more(text, &[own])
            }),
        ],
        args: &["shop/cart"],
        cause: "obstacle",
    },
    Case {
        name: "hairpin",
        recording: "full-iptables",
        changes: &[(RULES, |text| {
            without(
                text,
                "-s 10.244.1.30/32 -m comment --comment \"shop/cart:http\"",
            )
        })],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "conntrack-full",
        recording: "full-iptables",
        changes: &[("node/sysctl.txt", |text| {
            let kept = without(&without(text, "nf_conntrack_max"), "nf_conntrack_count");
            format!(
                "{kept}net.netfilter.nf_conntrack_count = 1000\nnet.netfilter.nf_conntrack_max = 1000\n"
            )
        })],
        args: &["shop/cart"],
        cause: "table-full",
    },
    Case {
        name: "no-local-port",
        recording: "full-iptables",
        changes: &[
            ("node/sysctl.txt", |text| {
                format!(
                    "{text}net.ipv4.ip_local_port_range = 40000\t40002\nnet.ipv4.ip_local_reserved_ports = 40001\n"
                )
            }),
            ("node/conntrack.txt", |text| {
                let entry = |port: u16| {
                    format!(
                        "tcp      6 100 TIME_WAIT src=10.0.2.15 dst=10.100.1.1 sport={port} dport=8080 src=10.244.1.30 dst=10.0.2.15 \
                         sport=8080 dport={port} [ASSURED] mark=0 use=1\n"
                    )
                };
                entry(40_000) + &entry(40_002) + text
            }),
        ],
        args: &["shop/cart", "--source", "host"],
        cause: "obstacle",
    },
    Case {
        name: "dormant-table-of-iptables",
        recording: "full-iptables",
        changes: &[(NFT, |text| dormant(text, "ip", "nat"))],
        args: &["shop/cart"],
        cause: "dormant",
    },
    Case {
        name: "dormant-table-of-kube-proxy",
        recording: "full-nftables",
        changes: &[(NFT, |text| dormant(text, "ip", "kube-proxy"))],
        args: &["shop/cart"],
        cause: "rules",
    },
    Case {
        name: "rival-nat-chain",
        recording: "full-iptables",
        changes: &[(NFT, |text| with_rival(text, -100))],
        args: &["shop/cart"],
        cause: "foreign-rule",
    },
    Case {
        name: "earlier-nat-chain",
        recording: "full-iptables",
        changes: &[(NFT, |text| with_rival(text, -101))],
        args: &["shop/cart"],
        cause: "foreign-rule",
    },
    Case {
        name: "no-route-to-the-pods-of-one-node",
        recording: "full-iptables",
        changes: &[
            (NODES, |text| {
                let third = json!({
                    "metadata": {"name": "node3"},
                    "spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]},
                    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.2.17"}]},
                });
                with_pods(text, [third])
            }),
            ("node/ip-route.json", |text| {
                let third = r#"{"dst": "10.244.3.0/24", "dev": "eth0", "gateway": "10.0.2.17"}"#;
                with_more(text, &[OWN_PODS, third])
            }),
        ],
        args: &["shop/cart"],
        cause: "pod-route",
    },
    Case {
        name: "chain-of-another-backend",
        recording: "ir16-foreign-drops",
        changes: &[],
        args: &["default/nginx-svc"],
        cause: "foreign-rule",
    },
];

pub(super) fn mutated(recording: &str, changes: &[Change]) -> TempDir {
    let changes = changes.iter();
    let changes: Vec<(&str, crate::support::Change<'_>)> =
        changes.map(|(file, change)| (*file, change as _)).collect();
    broken(recording, &changes)
}

pub(super) async fn why_in(dir: &Path, args: &[&str]) -> Ran {
    let from = dir.to_str().unwrap();
    let mut ran = kpx(&[&["--from", from, "why"], args].concat()).await;
    // Fixes name the bundle, which has another path each time.
    ran.out = ran.out.replace(&format!("--from {from} "), "");
    if !args.contains(&"-o") {
        for line in ran.out.lines() {
            // A command is never wrapped.
            let is_command = ["fix: ", "look: ", "option: ", "next: "]
                .iter()
                .any(|name| line.starts_with(name));
            let fits = line.chars().count() <= 80 || is_command;
            assert!(fits, "{args:?}: {line}");
        }
    }
    ran
}

/// Runs the cases whose position modulo 4 is `part`, and compares each page.
async fn cases(part: usize) {
    for case in CASES.iter().skip(part).step_by(4) {
        let dir = mutated(case.recording, case.changes);
        let ran = why_in(dir.path(), &[case.args, &["-o", "json"]].concat()).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
        let first = &report["causes"][0];
        assert_eq!(first["cause"], case.cause, "{}: {ran}", case.name);
        assert_eq!(first["sentence"], report["sentence"], "{}", case.name);
        let command = first["fix"]["command"].as_str();
        let text = first["fix"]["text"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{}: no fix", case.name);
        if let Some(command) = command {
            assert_understood(case.name, command);
        }
        let page = why_in(dir.path(), case.args).await;
        insta::assert_snapshot!(case.name, page);
    }
}

/// Fails if kpx does not understand `command`, or if it is of a tool that the node may lack.
fn assert_understood(name: &str, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    match words[0] {
        "kpx" => assert!(parse(&words).is_ok(), "{name}: {command}"),
        tool => assert!(
            [
                "kubectl",
                "conntrack",
                "ip",
                "sysctl",
                "iptables",
                "iptables-nft",
                "nft",
                "docker"
            ]
            .contains(&tool),
            "{name}: {command}"
        ),
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn broken_services_first_quarter() {
    cases(0).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn broken_services_second_quarter() {
    cases(1).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn broken_services_third_quarter() {
    cases(2).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn broken_services_fourth_quarter() {
    cases(3).await;
}
