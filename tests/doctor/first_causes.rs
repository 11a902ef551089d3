//! Incidents whose cause another check knows, or whose rules have a maker: the cause and its own fix come first, and kpx repairs nothing
//! that would be undone at once.

use kpx_node::evidence::Item;
use serde_json::{Value, json};

use super::case::{append, finding, load, replace, run};
use super::ends::{HEALTHY, LINKS, ROUTES, findings, json, lead_pods, own_node, says};
use super::incidents::{answer, copy, write};
use super::links::add_routes;
use crate::support::kpx;

const METRICS: &str = "kube-proxy/metrics.txt";
const PODS: &str = "cluster/pods.json";
const RULES: &str = "node/iptables-save.txt";
const SERVICES: &str = "cluster/services.json";
const SLICES: &str = "cluster/endpointslices.json";
const SOCKETS: &str = "node/ss.txt";

fn path(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

/// The findings of `id`: severity, message and fix.
async fn found(dir: &tempfile::TempDir, id: &str) -> Vec<(String, String, String)> {
    let ran = kpx(&["--from", path(dir), "doctor", "--only", id, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let all = report["findings"].as_array().unwrap().iter();
    all.map(|finding| {
        let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        (
            text("severity"),
            text("message"),
            finding["fix"].to_string(),
        )
    })
    .collect()
}

/// The first finding of the doctor, the ids of those that it explains, and the command to run next.
async fn first(dir: &tempfile::TempDir) -> (String, Vec<String>, String) {
    let ran = kpx(&["--from", path(dir), "doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let first = &report["findings"][0];
    let id = |of: &Value| of["id"].as_str().unwrap().to_owned();
    let below = first["consequences"].as_array().into_iter().flatten();
    (
        id(first),
        below.map(id).collect(),
        report["next"].to_string(),
    )
}

/// Changes an item of a list of objects by its name.
fn object(dir: &tempfile::TempDir, file: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let change = |list: &mut Value| {
        let mut all = list["items"].as_array_mut().unwrap().iter_mut();
        let is_it = |of: &&mut Value| {
            let meta = &of["metadata"];
            meta["name"] == name || meta["labels"]["kubernetes.io/service-name"] == name
        };
        change(all.find(is_it).unwrap());
    };
    write(dir, file, json(change));
}

/// Puts `rules` before the first rule of `chain` in table filter, or at the end, and declares the chains that they begin.
fn filter(dir: &tempfile::TempDir, chain: &str, rules: &[&str]) {
    write(dir, RULES, |text| {
        let at = text.find("*filter").unwrap();
        let (before, table) = text.split_at(at);
        let own: Vec<&str> = rules
            .iter()
            .filter_map(|rule| rule.split(' ').nth(1))
            .collect();
        let mut new: Vec<String> = Vec::new();
        for name in own {
            let line = format!(":{name} - [0:0]\n");
            if name.contains(char::is_lowercase)
                || name.starts_with("KUBE-")
                || name.starts_with("DOCKER")
            {
                let is_known = table.contains(&format!(":{name} ")) || new.contains(&line);
                new.extend((!is_known).then_some(line));
            }
        }
        let table = table.replacen("*filter\n", &format!("*filter\n{}", new.concat()), 1);
        let first = table.find(&format!("-A {chain} "));
        let start = match first {
            Some(first) => table[..first].rfind('\n').unwrap() + 1,
            None => table.find("COMMIT").unwrap(),
        };
        let lines = rules.iter().map(|rule| format!("[0:0] {rule}\n"));
        let lines = lines.collect::<Vec<_>>().concat();
        format!("{before}{}{lines}{}", &table[..start], &table[start..])
    });
}

/// Gives the Service api the external IP `address` and port 22.
fn ssh_at(dir: &tempfile::TempDir, address: &str) {
    object(dir, SERVICES, "api", |service| {
        service["spec"]["externalIPs"] = json!([address]);
        service["spec"]["ports"][0]["port"] = 22.into();
    });
}

#[tokio::test]
async fn a_service_that_takes_a_port_of_the_node_itself_is_found() {
    let listens = |dir: &tempfile::TempDir| {
        write(dir, SOCKETS, |text| {
            format!("tcp LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:((\"sshd\",pid=700,fd=3))\n{text}")
        });
    };
    let dir = copy(HEALTHY);
    ssh_at(&dir, "10.210.0.16");
    listens(&dir);
    let all = found(&dir, "NP01").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].0, "warning");
    assert!(all[0].1.starts_with("sshd of the node listens"), "{all:?}");
    let answer = answer(path(&dir), "10.210.0.16:22").await;
    let of = answer["findings"].as_array().unwrap().iter();
    assert!(
        of.into_iter().any(|finding| finding["id"] == "NP01"),
        "{answer}"
    );
    // The program at the port is unknown, but port 22 is sshd's.
    std::fs::remove_file(dir.path().join(SOCKETS)).unwrap();
    let all = found(&dir, "NP01").await;
    assert!(
        all.iter()
            .any(|finding| finding.1.starts_with("sshd of the node usually listens")),
        "{all:?}"
    );
    // Another address than the node's own is there for the Service, whoever listens on all.
    let dir = copy(HEALTHY);
    ssh_at(&dir, "10.210.0.77");
    listens(&dir);
    assert!(found(&dir, "NP01").await.is_empty());
}

/// Adds an endpoint of web, of which kube-proxy has not written the rules.
fn new_endpoint(dir: &tempfile::TempDir) {
    object(dir, SLICES, "web", |slice| {
        let mut new = slice["endpoints"][1].clone();
        new["addresses"] = json!(["10.244.2.9"]);
        slice["endpoints"].as_array_mut().unwrap().push(new);
    });
}

fn queue(dir: &tempfile::TempDir, at: &str) {
    write(dir, METRICS, |text| {
        let name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} ";
        let start = text.find(name).unwrap() + name.len();
        let end = start + text[start..].find('\n').unwrap();
        format!("{}{at}{}", &text[..start], &text[end..])
    });
}

#[tokio::test]
async fn a_queued_sync_is_awaited_and_not_replaced() {
    let dir = copy(HEALTHY);
    new_endpoint(&dir);
    let sentence = |answer: &Value| answer["sentence"].as_str().unwrap().to_owned();
    let words = sentence(&answer(path(&dir), "demo/web").await);
    assert!(
        words.contains("reach 12 of 15 endpoints (not 10.244.2.9:8080, "),
        "{words}"
    );
    let drift = found(&dir, "IR04").await;
    assert!(
        drift
            .iter()
            .all(|drift| drift.0 == "error" && drift.2.contains("reconcile")),
        "{drift:?}"
    );
    queue(&dir, "1.795838925e+09");
    let drift = found(&dir, "IR04").await;
    assert!(!drift.is_empty());
    for (severity, message, fix) in &drift {
        assert_eq!(severity, "warning");
        assert!(
            message.contains("queued a change at 2026-11-28T04:08:45Z"),
            "{message}"
        );
        assert!(
            !fix.contains("reconcile") && fix.contains("minSyncPeriod"),
            "{fix}"
        );
    }
    // One that was queued an hour ago is stuck.
    let dir = copy(HEALTHY);
    new_endpoint(&dir);
    write(&dir, METRICS, |text| {
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.7958389216008763e+09";
        text.replace(synced, &synced.replace("1.7958389216008763", "1.7958351"))
    });
    queue(&dir, "1.795835200e+09");
    let drift = found(&dir, "IR04").await;
    assert!(drift.iter().all(|drift| drift.0 == "error"), "{drift:?}");
}

#[tokio::test]
async fn a_bug_that_loses_changes_is_the_cause_of_rules_that_are_missing() {
    let dir = copy(HEALTHY);
    new_endpoint(&dir);
    write(&dir, METRICS, |text| text.replace("v1.36.2", "v1.28.2"));
    let ran = kpx(&["--from", path(&dir), "doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let bug = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|report| report["id"] == "KB01");
    let below = bug.unwrap()["consequences"].to_string();
    assert!(below.contains("IR04"), "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_that_lost_its_conditions_is_deleted_before_anything_is_restored() {
    let bare = "-A KUBE-FIREWALL -m comment --comment \"kubernetes firewall for dropping marked packets\" -j DROP";
    let dir = copy(HEALTHY);
    filter(&dir, "KUBE-FIREWALL", &[bare]);
    let (id, below, next) = first(&dir).await;
    assert_eq!(id, "IB04", "{below:?} {next}");
    assert!(
        below.contains(&"AP12".to_owned()) && below.contains(&"IR11".to_owned()),
        "{below:?}"
    );
    assert!(
        next.contains("iptables -D KUBE-FIREWALL -m comment"),
        "{next}"
    );
    let words = ["it lost its conditions", "iptables -D KUBE-FIREWALL"];
    says(&dir, "demo/web", "partly", &words).await;
    // With its mark, it is the kubelet's.
    let dir = copy(HEALTHY);
    filter(
        &dir,
        "KUBE-FIREWALL",
        &[&bare.replace("-j", "-m mark --mark 0x8000/0x8000 -j")],
    );
    assert!(found(&dir, "IB04").await.is_empty());
}

#[test]
fn entries_that_ipset_refuses_are_reported_until_the_set_has_them() {
    let line = |entry: &str, at: u32| {
        format!(
            "E1120 13:00:0{at}.788270 1 ipset.go:168] Failed to add entry: {entry} to ip set: KUBE-CLUSTER-IP, error: error adding \
             entry {entry}, error: exit status 1"
        )
    };
    let mut node = load("seed-ipvs");
    let held = node.text(Item::Ipset).unwrap().lines();
    let entry = held
        .filter_map(|held| held.strip_prefix("add KUBE-CLUSTER-IP "))
        .next_back();
    let entry = entry.unwrap().to_owned();
    let lines = [line("10.96.0.1,udp:53", 1), line(&entry, 2)].join("\n");
    append(&mut node, Item::ProxyLog, &lines);
    assert!(!matches!(
        run(&node, "KP21", None),
        kpx_judge::check::Outcome::Fail(_)
    ));
    let added = format!("add KUBE-CLUSTER-IP {entry}\n");
    replace(&mut node, Item::Ipset, &added, "");
    let found = finding(run(&node, "KP21", None));
    assert!(
        found.message.contains("adding entry") && found.message.contains("syncs fail"),
        "{found:?}"
    );
    assert!(
        found
            .fix
            .unwrap()
            .text()
            .contains("modprobe -a ip_set_hash_ip")
    );
}

#[tokio::test]
async fn hints_and_endpoints_that_terminate_are_named() {
    let zoned = |dir: &tempfile::TempDir, zone: Option<&str>| {
        if let Some(zone) = zone {
            own_node(dir, |node| {
                node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
            });
        }
        object(dir, SLICES, "web", |slice| {
            for endpoint in slice["endpoints"].as_array_mut().unwrap() {
                let zone = if endpoint["nodeName"] == "w1" {
                    "a"
                } else {
                    "b"
                };
                endpoint["hints"] = json!({"forZones": [{"name": zone}]});
            }
        });
    };
    let dir = copy(HEALTHY);
    zoned(&dir, Some("a"));
    let notes = answer(path(&dir), "demo/web:http").await["notes"].to_string();
    assert!(
        notes.contains("leave 2 of 4 endpoints to this zone (not 10.244.0.3:8080, "),
        "{notes}"
    );
    // Hints do not count on a node without a zone.
    let dir = copy(HEALTHY);
    zoned(&dir, None);
    assert!(answer(path(&dir), "demo/web:http").await["notes"].is_null());

    let ending = |serving: bool| {
        let dir = copy(HEALTHY);
        object(&dir, SLICES, "edge-local", |slice| {
            for endpoint in slice["endpoints"].as_array_mut().unwrap() {
                if endpoint["nodeName"] == "w1" {
                    endpoint["conditions"] =
                        json!({"ready": false, "serving": serving, "terminating": true});
                }
            }
        });
        // The rules of kube-proxy without an endpoint here.
        if !serving {
            write(&dir, RULES, |text| {
                let is_local = |line: &&str| {
                    !(line.contains("KUBE-SVL-") && line.contains("demo/edge-local:http"))
                };
                let kept: Vec<&str> = text.lines().filter(is_local).collect();
                kept.join("\n") + "\n"
            });
            filter(
                &dir,
                "KUBE-EXTERNAL-SERVICES",
                &[
                    "-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"demo/edge-local:http has no local endpoints\" -m addrtype \
                 --dst-type LOCAL -m tcp --dport 30081 -j DROP",
                ],
            );
        }
        dir
    };
    let dir = ending(false);
    let answer = answer(path(&dir), "nodeport:30081").await;
    let text = answer.to_string();
    assert!(
        text.contains("demo/edge-z8g9h, is terminating and no longer serves"),
        "{text}"
    );
    assert!(!text.contains("patch service"), "{text}");
}

#[tokio::test]
async fn a_protocol_that_needs_a_helper_of_the_kernel_says_so() {
    let tftp = || {
        let dir = copy(HEALTHY);
        object(&dir, SERVICES, "web", |service| {
            let mut ports = service["spec"]["ports"].as_array_mut().unwrap().iter_mut();
            let port = ports.find(|port| port["protocol"] == "UDP").unwrap();
            port["port"] = 69.into();
        });
        dir
    };
    let notes = answer(path(&tftp()), "demo/web").await["notes"].to_string();
    assert!(notes.contains("nf_conntrack_tftp"), "{notes}");
    let dir = tftp();
    write(&dir, RULES, |text| {
        format!(
            "{text}*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n[0:0] -A PREROUTING -p udp -m udp --dport 69 -j CT --helper \
             tftp\nCOMMIT\n"
        )
    });
    assert!(answer(path(&dir), "demo/web").await["notes"].is_null());
}

/// The fix of the first cause of `service`.
async fn fix_of(dir: &tempfile::TempDir, service: &str) -> String {
    let answer = answer(path(dir), service).await;
    format!("{} {}", answer["fate"], answer["causes"][0]["fix"])
}

#[tokio::test]
async fn the_fix_is_where_the_maker_of_the_rule_keeps_it() {
    let dir = copy(HEALTHY);
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -m comment --comment \"cali:vjrMJCRpqwy5oRoX\" -j cali-from-hep-forward",
            "-A cali-from-hep-forward -i eth0 -g cali-fhfw-eth0",
            "-A cali-fhfw-eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A cali-fhfw-eth0 -m comment --comment \"Drop if no policies passed packet\" -j DROP",
        ],
    );
    let fix = fix_of(&dir, "demo/web-nodeport").await;
    assert!(
        fix.contains("HostEndpoint") && fix.contains("globalnetworkpolicies"),
        "{fix}"
    );

    let marked = |mark: &str| {
        let dir = copy(HEALTHY);
        filter(
            &dir,
            "FORWARD",
            &[
                "-A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMVZWTNDTN\" -j KUBE-ROUTER-FORWARD",
                "-A KUBE-ROUTER-FORWARD -d 10.244.2.2/32 -j KUBE-POD-FW-AAAABBBBCCCCDDDD",
                &format!("-A KUBE-POD-FW-AAAABBBBCCCCDDDD -j MARK --set-xmark {mark}"),
            ],
        );
        dir
    };
    let fix = fix_of(&marked("0x0/0xffffffff"), "demo/web-nodeport").await;
    assert!(
        fix.contains("1.1 or newer") && !fix.contains("get networkpolicies"),
        "{fix}"
    );
    let fix = fix_of(&marked("0x0/0x10000"), "demo/web-nodeport").await;
    assert!(fix.contains("works"), "{fix}");
}

#[tokio::test]
async fn a_rule_of_docker_before_its_container_is_docker_s() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        SLICES,
        json(|slices| {
            let mut all = slices["items"].as_array_mut().unwrap().iter_mut();
            let api = all
                .find(|slice| slice["metadata"]["name"] == "api-h9h2g")
                .unwrap();
            api["endpoints"] =
                json!([{"addresses": ["172.18.0.2"], "conditions": {"ready": true}}]);
        }),
    );
    write(&dir, RULES, |text| {
        text.replace("10.244.0.2:", "172.18.0.2:")
            .replace("10.244.2.3:", "172.18.0.2:")
    });
    write(
        &dir,
        LINKS,
        json(|links| {
            links.as_array_mut().unwrap().push(json!({"ifindex": 40, "ifname": "br-5f0c2a7d11aa", "flags": ["UP", "LOWER_UP"], "mtu": 1500,
            "operstate": "UP", "address": "02:42:ac:12:00:01", "linkinfo": {"info_kind": "bridge"}}));
        }),
    );
    write(
        &dir,
        ROUTES,
        json(|routes| {
            routes.as_array_mut().unwrap().push(
                json!({"dst": "172.18.0.0/16", "dev": "br-5f0c2a7d11aa", "protocol": "kernel",
            "scope": "link", "prefsrc": "172.18.0.1", "flags": []}),
            );
        }),
    );
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -j DOCKER-FORWARD",
            "-A DOCKER-FORWARD -o br-5f0c2a7d11aa -j DOCKER",
            "-A DOCKER ! -i br-5f0c2a7d11aa -o br-5f0c2a7d11aa -j DROP",
        ],
    );
    let answer = answer(path(&dir), "demo/api:http").await;
    let text = answer.to_string();
    assert!(
        text.contains("owner of the rule: Docker") && text.contains("DOCKER-USER"),
        "{text}"
    );
}

#[tokio::test]
async fn a_firewall_that_stops_health_checks_from_everywhere_is_a_warning() {
    let closed = |rules: &[&str]| {
        let dir = copy(HEALTHY);
        let drop = ["-A INPUT -i eth0 -p tcp -m conntrack --ctstate NEW -j DROP"];
        filter(&dir, "INPUT", &[rules, &drop].concat());
        dir
    };
    let all = found(&closed(&[]), "NP06").await;
    assert!(all.iter().any(|finding| finding.0 == "warning"), "{all:?}");
    let all = found(&closed(&["-A INPUT -s 10.210.0.0/24 -j ACCEPT"]), "NP06").await;
    assert!(all.iter().any(|finding| finding.0 == "info"), "{all:?}");
}

/// Lets Calico carry the packets to pods of other nodes, and announce these addresses.
fn calico(dir: &tempfile::TempDir, own: &str) {
    write(
        dir,
        LINKS,
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.push(json!({"ifindex": 30, "ifname": "vxlan.calico", "flags": ["UP", "LOWER_UP"], "mtu": 1450, "operstate": "UNKNOWN",
            "address": "66:0c:77:01:aa:02", "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 4096, "port": 4789}}}));
            all.push(json!({"ifindex": 44, "ifname": "lxdbr0", "flags": ["UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP",
            "address": "00:16:3e:5d:11:22", "linkinfo": {"info_kind": "bridge"}}));
        }),
    );
    write(
        dir,
        "node/ip-addr.json",
        json(|links| {
            links
                .as_array_mut()
                .unwrap()
                .push(json!({"ifindex": 44, "ifname": "lxdbr0", "addr_info": [
            {"family": "inet", "local": "172.16.100.1", "prefixlen": 24, "scope": "global"}]}));
        }),
    );
    lead_pods(dir, "vxlan.calico", &["10.244.0.0/24", "10.244.2.0/24"]);
    let bridged = json!({"dst": "172.16.100.0/24", "dev": "lxdbr0", "protocol": "kernel", "scope": "link", "prefsrc": "172.16.100.1",
        "flags": []});
    add_routes(dir, &[bridged]);
    write(
        dir,
        "cluster/nodes.json",
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                let (at, tunnel) = match node["metadata"]["name"].as_str().unwrap() {
                    "cp1" => ("10.210.0.15/24", "10.244.0.0"),
                    "w1" => (own, "10.244.1.0"),
                    _ => ("10.210.0.17/24", "10.244.2.0"),
                };
                node["metadata"]["annotations"]["projectcalico.org/IPv4Address"] = at.into();
                node["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"] =
                    tunnel.into();
            }
        }),
    );
}

#[tokio::test]
async fn the_address_of_a_bridge_of_containers_is_no_end_of_a_tunnel() {
    let dir = copy(HEALTHY);
    calico(&dir, "172.16.100.1/24");
    says(
        &dir,
        "demo/web:http",
        "partly",
        &["took 172.16.100.1 of lxdbr0", "kubernetes-internal-ip"],
    )
    .await;
    let dir = copy(HEALTHY);
    calico(&dir, "10.210.0.16/24");
    says(&dir, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn a_bridge_that_filters_vlans_is_in_doubt_where_its_ports_are_in_none() {
    for (pvid, fate) in [(0, "unknown"), (1, "works")] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            LINKS,
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                let bridge = all.find(|link| link["ifname"] == "cni0").unwrap();
                bridge["linkinfo"]["info_data"] =
                    json!({"vlan_filtering": 1, "vlan_default_pvid": pvid});
            }),
        );
        let answer = answer(path(&dir), "demo/edge:http").await;
        assert_eq!(answer["fate"], fate, "{answer}");
    }
}

#[tokio::test]
async fn a_pod_is_named_in_the_command_that_is_about_it() {
    // No plugin serves hostPorts here.
    let dir = copy(HEALTHY);
    object(&dir, PODS, "edge-z8g9h", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8081}]);
    });
    let all = found(&dir, "CN06").await;
    assert!(all[0].2.contains("No plugin serves hostPorts"), "{all:?}");
    // One does, and the rule is gone.
    write(&dir, RULES, |text| {
        text.replacen("*nat\n", "*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n", 1)
    });
    let all = found(&dir, "CN06").await;
    assert!(
        all[0].2.contains("kubectl -n demo delete pod edge-z8g9h"),
        "{all:?}"
    );

    // kube-proxy's own.
    let dir = copy(HEALTHY);
    object(&dir, PODS, "kube-proxy-lg2lh", |pod| {
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    let all = found(&dir, "KP02").await;
    assert!(
        all[0].2.contains("logs kube-proxy-lg2lh --previous"),
        "{all:?}"
    );
}

/// The finding on kube-proxy's pod, changed so, with the fix.
async fn of_proxy_pod(id: &str, change: impl FnOnce(&mut Value)) -> String {
    let dir = copy(HEALTHY);
    for file in ["node/processes.json", "kube-proxy/healthz.json"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    object(&dir, PODS, "kube-proxy-lg2lh", change);
    format!("{:?}", found(&dir, id).await)
}

#[tokio::test]
async fn the_reason_why_kube_proxys_container_waits_decides_the_fix() {
    for (reason, words, fix) in [
        (
            "ImagePullBackOff",
            "its image cannot be pulled",
            "describe pod kube-proxy-lg2lh",
        ),
        (
            "CreateContainerConfigError",
            "refers to an object that does not exist",
            "Create the ConfigMap",
        ),
        (
            "RunContainerError",
            "the container runtime cannot start",
            "describe pod",
        ),
        ("ContainerCreating", "is not created yet", "Wait."),
        ("CrashLoopBackOff", "is in CrashLoopBackOff", "--previous"),
    ] {
        let all = of_proxy_pod("KP02", |pod| {
            pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": reason}});
        });
        let all = all.await;
        assert!(all.contains(words) && all.contains(fix), "{reason}: {all}");
    }
    let killed = of_proxy_pod("KP02", |pod| {
        let status = &mut pod["status"]["containerStatuses"][0];
        status["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        status["lastState"] = json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
    });
    let killed = killed.await;
    assert!(
        killed.contains("exceeds its memory limit") && killed.contains("edit daemonset kube-proxy"),
        "{killed}"
    );
}

#[tokio::test]
async fn a_pod_of_kube_proxy_that_was_evicted_or_not_scheduled_says_why() {
    let evicted = of_proxy_pod("KP05", |pod| {
        pod["status"] = json!({"phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage."});
    });
    let evicted = evicted.await;
    assert!(
        evicted.contains("Evicted: The node was low on resource: ephemeral-storage")
            && evicted.contains("delete pod kube-proxy-lg2lh"),
        "{evicted}"
    );
    let waiting = of_proxy_pod("KP05", |pod| {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["w1"]}]}
        ]}}});
        pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "message": "0/3 nodes are available: 1 Insufficient cpu."}]});
    });
    let waiting = waiting.await;
    assert!(
        waiting.contains("1 Insufficient cpu") && waiting.contains("system-node-critical"),
        "{waiting}"
    );
}

#[tokio::test]
async fn a_mesh_that_set_up_the_node_itself_names_the_pod() {
    let dir = copy(HEALTHY);
    object(&dir, PODS, "kube-proxy-lg2lh", |pod| {
        pod["metadata"]["labels"]["linkerd.io/control-plane-ns"] = "linkerd".into();
    });
    write(&dir, RULES, |text| {
        let text = text.replacen("*nat\n", "*nat\n:PROXY_INIT_REDIRECT - [0:0]\n", 1);
        let first = text.find("-A PREROUTING").unwrap();
        let start = text[..first].rfind('\n').unwrap() + 1;
        let rules = "[0:0] -A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT\n\
                     [0:0] -A PROXY_INIT_REDIRECT -p tcp -m comment --comment \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143\n";
        format!("{}{rules}{}", &text[..start], &text[start..])
    });
    let answer = answer(path(&dir), "demo/web").await;
    let text = answer.to_string();
    assert!(
        text.contains("kube-system/kube-proxy-lg2lh") && text.contains("-F PROXY_INIT_REDIRECT"),
        "{text}"
    );
}

#[tokio::test]
async fn a_kernel_too_old_for_the_mode_explains_what_kube_proxy_lacks() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        text.replace("mode: \"\"", "mode: nftables")
    });
    write(&dir, "node/kernel-release.txt", |_| {
        "5.10.0-28-amd64\n".to_owned()
    });
    write(&dir, RULES, |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("KUBE-"))
            .collect();
        kept.join("\n") + "\n"
    });
    for file in [
        "kube-proxy/healthz.json",
        "kube-proxy/proxy-mode.txt",
        METRICS,
        "kube-proxy/configz.json",
    ] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    object(&dir, PODS, "kube-proxy-lg2lh", |pod| {
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    let (id, below, next) = first(&dir).await;
    assert_eq!(id, "KM08", "{below:?}");
    assert!(below.contains(&"KP02".to_owned()), "{below:?}");
    assert!(!next.contains("reconcile"), "{next}");
    let answer = answer(path(&dir), "demo/web").await;
    let cause = &answer["causes"][0];
    assert!(
        cause["sentence"]
            .as_str()
            .unwrap()
            .contains("needs kernel 5.13"),
        "{cause}"
    );
    assert!(
        cause["meanwhile"].is_null() && cause["fix"].to_string().contains("migrate --to iptables"),
        "{cause}"
    );
    let all = findings(&dir).await;
    assert!(all.iter().all(|finding| finding.0 != "KP01"), "{all:?}");
}

#[tokio::test]
async fn the_link_by_which_pods_count_as_local_must_exist() {
    let local_by = |bridge: &str| {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/config.conf", |text| {
            text.replace("detectLocalMode: \"\"", "detectLocalMode: BridgeInterface")
                .replace(
                    "bridgeInterface: \"\"",
                    &format!("bridgeInterface: {bridge}"),
                )
        });
        dir
    };
    let all = found(&local_by("cbr0"), "KP10").await;
    assert!(
        all[0].1.contains("no link cbr0") && all[0].2.contains("cni0"),
        "{all:?}"
    );
    assert!(found(&local_by("cni0"), "KP10").await.is_empty());
}

#[tokio::test]
async fn ovn_kubernetes_serves_services_without_kube_proxy() {
    let without_proxy = |ovn: bool| {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "node/processes.json",
            json(|all| all["processes"] = json!([])),
        );
        write(
            &dir,
            PODS,
            json(|pods| {
                let all = pods["items"].as_array_mut().unwrap();
                all.retain(|pod| {
                    !pod["metadata"]["name"]
                        .as_str()
                        .unwrap()
                        .starts_with("kube-proxy")
                });
            }),
        );
        std::fs::remove_dir_all(dir.path().join("kube-proxy")).unwrap();
        if ovn {
            write(
                &dir,
                LINKS,
                json(|links| {
                    links.as_array_mut().unwrap().push(
                        json!({"ifindex": 50, "ifname": "ovn-k8s-mp0", "flags": ["UP", "LOWER_UP"],
                    "mtu": 1400, "operstate": "UNKNOWN", "linkinfo": {"info_kind": "openvswitch"}}),
                    );
                }),
            );
        }
        dir
    };
    assert!(!found(&without_proxy(false), "KP05").await.is_empty());
    assert!(found(&without_proxy(true), "KP05").await.is_empty());
}

#[tokio::test]
async fn what_empties_the_link_of_ipvs_is_stopped_before_its_addresses_are_added() {
    let managers = [
        (
            "/run/NetworkManager/devices/INDEX: managed=true\n",
            "NetworkManager/conf.d",
        ),
        (
            "/run/systemd/netif/links/INDEX: ADMIN_STATE=configured\n",
            "networkctl reload",
        ),
    ];
    for (managed, command) in managers {
        let dir = copy("full-ipvs");
        let mut index = 0;
        let empty = |links: &mut Value| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let dummy = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
            index = dummy["ifindex"].as_u64().unwrap();
            dummy["addr_info"] = json!([]);
        };
        write(&dir, "node/ip-addr.json", json(empty));
        let lost = |routes: &mut Value| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dev"] != "kube-ipvs0");
        };
        write(&dir, ROUTES, json(lost));
        let text = managed.replace("INDEX", &index.to_string());
        std::fs::write(dir.path().join("node/link-managers.txt"), text).unwrap();
        let (id, below, _) = first(&dir).await;
        assert_eq!(id, "DV06");
        assert!(below.contains(&"DV02".to_owned()), "{below:?}");
        let answer = answer(path(&dir), "shop/cart:http").await;
        let cause = &answer["causes"][0];
        let text = cause.to_string();
        assert!(
            text.contains("all addresses of Services are gone"),
            "{text}"
        );
        assert!(
            cause["fix"]["command"].as_str().unwrap().contains(command),
            "{text}"
        );
    }
    // One missing address is not the work of a manager.
    let dir = copy("full-ipvs");
    let one = |links: &mut Value| {
        let mut all = links.as_array_mut().unwrap().iter_mut();
        let dummy = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        dummy["addr_info"].as_array_mut().unwrap().remove(0);
        let text = format!(
            "/run/NetworkManager/devices/{}: managed=true\n",
            dummy["ifindex"]
        );
        std::fs::write(dir.path().join("node/link-managers.txt"), text).unwrap();
    };
    write(&dir, "node/ip-addr.json", json(one));
    let warned = found(&dir, "DV06").await;
    assert!(
        warned[0].0 == "warning" && warned[0].1.contains("may remove"),
        "{warned:?}"
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_route_that_a_daemon_makes_again_is_changed_there() {
    let cases = [
        (json!("bird"), "kubectl get blockaffinities"),
        (json!("zebra"), "vtysh"),
        (json!("dhcp"), "returns with the next message"),
        (json!("openr"), "openr made the route"),
        (json!("static"), "ip route del blackhole 10.244.2.0/26"),
    ];
    for (protocol, command) in cases {
        let dir = copy(HEALTHY);
        let route =
            json!({"type": "blackhole", "dst": "10.244.2.0/26", "protocol": protocol, "flags": []});
        add_routes(&dir, &[route]);
        says(
            &dir,
            "demo/web:http",
            "partly",
            &["blackhole route", command],
        )
        .await;
        let found = found(&dir, "SY16").await;
        assert!(
            found.iter().any(|finding| finding.2.contains(command)),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_policy_that_drops_is_kept_and_pods_are_accepted() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let (before, filter) = text.split_once("*filter\n").unwrap();
        let filter = filter.replacen(":FORWARD ACCEPT", ":FORWARD DROP", 1);
        format!("{before}*filter\n{filter}")
    });
    let words = [
        "its policy drops them",
        "-I FORWARD -s 10.244.0.0/16 -j ACCEPT",
        "-I FORWARD -d 10.244.0.0/16 -j ACCEPT",
    ];
    let answer = answer(path(&dir), "demo/web").await.to_string();
    for word in words {
        assert!(answer.contains(word), "{word}: {answer}");
    }
    assert!(!answer.contains("-P FORWARD ACCEPT"), "{answer}");
}

#[tokio::test]
async fn an_address_that_the_node_has_lost_comes_before_the_slices_that_list_it() {
    let dir = copy(HEALTHY);
    for file in ["node/ip-addr.json", ROUTES] {
        write(&dir, file, |text| {
            text.replace("\"10.210.0.16\"", "\"10.210.0.61\"")
        });
    }
    let words = ["no link of this machine has 10.210.0.16", "--node-ip"];
    says(&dir, "demo/ingress:http", "partly", &words).await;
}

#[tokio::test]
async fn forwarding_that_is_off_is_one_cause_at_the_node_and_its_links() {
    let dir = copy("full-ipvs");
    write(&dir, "node/sysctl.txt", |text| {
        let off = text.replace(".forwarding = 1", ".forwarding = 0");
        off.replace("net.ipv4.ip_forward = 1", "net.ipv4.ip_forward = 0")
    });
    let answer = answer(path(&dir), "edge/web").await;
    let causes = answer["causes"].as_array().unwrap().iter();
    let fixes: Vec<&Value> = causes.map(|cause| &cause["fix"]["command"]).collect();
    assert_eq!(fixes, ["sysctl -w net.ipv4.ip_forward=1"], "{answer:#}");
}

/// kube-proxy does not masquerade what it takes for endpoints of other nodes.
#[tokio::test]
async fn what_kube_proxy_writes_for_local_endpoints_follows_from_its_name() {
    let dir = copy("full-nftables");
    let args = ["kube-proxy", "--hostname-override=node1.corp.local"];
    let process = json!({"pid": 141, "name": "kube-proxy", "sameNetwork": true, "started": 1_795_178_630, "args": args});
    let processes = json!({ "processes": [process] }).to_string();
    std::fs::write(dir.path().join("node/processes.json"), processes).unwrap();
    write(&dir, "node/nft.json", |text| {
        let mut rules: Value = serde_json::from_str(text).unwrap();
        for of in rules["nftables"].as_array_mut().unwrap() {
            if of["set"]["name"] == "hairpin-connections" {
                of["set"].as_object_mut().unwrap().remove("elem");
            }
        }
        rules.to_string()
    });
    let (id, below, _) = first(&dir).await;
    assert_eq!(id, "KP11");
    assert!(below.contains(&"NF02".to_owned()), "{below:?}");
    let answer = answer(path(&dir), "edge/web:http").await;
    let text = format!("{} {}", answer["sentence"], answer["causes"]);
    assert!(text.contains("node1.corp.local"), "{text}");
    assert!(!text.contains("reconcile --apply"), "{text}");
}

/// The page of `command`, without line breaks.
async fn page(dir: &tempfile::TempDir, command: &[&str]) -> String {
    let ran = kpx(&[&["--from", path(dir)], command].concat()).await;
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn ipv6_is_turned_on_at_kube_proxys_link_before_it_gets_addresses() {
    let dir = copy("dual-ipvs");
    let off = "net.ipv6.conf.kube-ipvs0.disable_ipv6 = 1";
    write(&dir, "node/sysctl.txt", |text| format!("{text}{off}\n"));
    let without = |links: &mut Value| {
        let mut all = links.as_array_mut().unwrap().iter_mut();
        let link = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        let all = link["addr_info"].as_array_mut().unwrap();
        all.retain(|address| address["family"] == "inet");
    };
    write(&dir, "node/ip-addr.json", json(without));
    let refused = |last: &str| {
        format!(
            "E1120 13:10:42.300511 1 proxier.go:1680] \"Failed to bind service address\" err=\"error bind address: \
             fd00:10:96::{last} to interface: kube-ipvs0, err: permission denied\"\n"
        )
    };
    write(&dir, "kube-proxy/kube-proxy.log", |text| {
        format!("{text}{}{}", refused("30a"), refused("320"))
    });
    let turn_on = "sysctl -w net.ipv6.conf.kube-ipvs0.disable_ipv6=0";
    let logged = found(&dir, "KP21").await;
    assert_eq!(logged.len(), 1, "{logged:?}");
    for (_, _, fix) in logged.iter().chain(&found(&dir, "DV02").await) {
        assert!(fix.contains(turn_on), "{fix}");
    }
    assert!(first(&dir).await.2.contains("disable_ipv6=0"));
    let plan = page(&dir, &["reconcile"]).await;
    let at = |words: &str| {
        plan.find(words)
            .unwrap_or_else(|| panic!("{words}: {plan}"))
    };
    assert!(at(turn_on) < at("ip addr add fd00:"), "{plan}");
    // A link that is made has the setting of new links.
    write(&dir, "node/sysctl.txt", |text| {
        text.replace(off, "net.ipv6.conf.default.disable_ipv6 = 1")
    });
    assert!(!page(&dir, &["reconcile"]).await.contains(turn_on));
    let no_link = |links: &mut Value| {
        let all = links.as_array_mut().unwrap();
        all.retain(|link| link["ifname"] != "kube-ipvs0");
    };
    write(&dir, "node/ip-addr.json", json(no_link));
    write(&dir, LINKS, json(no_link));
    assert!(page(&dir, &["reconcile"]).await.contains(turn_on));
}

/// Gives an endpoint of web another address, which the rules do not have, at `changed`.
fn moved_endpoint(dir: &tempfile::TempDir, changed: &str) {
    object(dir, SLICES, "web", |slice| {
        slice["endpoints"][1]["addresses"] = json!(["10.244.2.22"]);
        slice["metadata"]["annotations"] =
            json!({ "endpoints.kubernetes.io/last-change-trigger-time": changed });
    });
}

const HEALTHZ: &str = "kube-proxy/healthz.json";

#[tokio::test]
async fn a_kube_proxy_whose_syncs_do_not_end_is_restarted() {
    let dir = copy(HEALTHY);
    moved_endpoint(&dir, "2026-11-28T04:20:00Z");
    write(
        &dir,
        HEALTHZ,
        json(|health| {
            health["currentTime"] = "2026-11-28T05:00:00Z".into();
            health["healthy"] = false.into();
            for family in ["IPv4", "IPv6"] {
                health["status"][family]["healthy"] = false.into();
            }
        }),
    );
    write(&dir, METRICS, |text| {
        let mut lines = Vec::new();
        for line in text.lines() {
            let name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{";
            lines.push(match line.rsplit_once(' ') {
                Some((key, _)) if key.starts_with(name) => format!("{key} 1795839600"),
                _ => line.to_owned(),
            });
        }
        lines.join("\n") + "\n"
    });
    let words = [
        "kube-proxy reports that its rules are not up to date; therefore",
        "delete pod kube-proxy-",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    let (id, below, next) = first(&dir).await;
    assert_eq!(id, "KP05");
    assert!(below.contains(&"IR04".to_owned()), "{below:?}");
    assert!(next.contains("delete"), "{next}");
}

#[tokio::test]
async fn a_change_older_than_the_last_sync_has_not_reached_kube_proxy() {
    let dir = copy(HEALTHY);
    moved_endpoint(&dir, "2026-11-28T04:20:00Z");
    let now = "2026-11-28T05:00:00Z";
    write(
        &dir,
        HEALTHZ,
        json(|health| health["currentTime"] = now.into()),
    );
    let times = |queued: &'static str, synced: &'static str| {
        move |text: &str| {
            let mut lines = Vec::new();
            for line in text.lines() {
                let (key, _) = line.rsplit_once(' ').unwrap_or_default();
                let name = key.split('{').next().unwrap_or_default();
                lines.push(match name {
                    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" => {
                        format!("{key} {queued}")
                    }
                    "kubeproxy_sync_proxy_rules_last_timestamp_seconds" => {
                        format!("{key} {synced}")
                    }
                    _ => line.to_owned(),
                });
            }
            lines.join("\n") + "\n"
        }
    };
    write(&dir, METRICS, times("1795841985", "1795841990"));
    let words = [
        "although it last wrote its rules at 2026-11-28T04:59:50Z",
        "its watch of the API server hangs",
        "delete pod kube-proxy-",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    // Rules that another program removed are repaired.
    let dir = copy(HEALTHY);
    write(
        &dir,
        HEALTHZ,
        json(|health| health["currentTime"] = now.into()),
    );
    write(&dir, METRICS, times("1795841985", "1795841990"));
    write(&dir, RULES, |text| {
        let lines = text.lines().filter(|line| {
            !(line.contains("KUBE-SEP-") && line.contains("demo/web:http") && line.contains("DNAT"))
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    let answer = answer(path(&dir), "demo/web:http").await;
    assert!(answer["fix"].to_string().contains("reconcile"), "{answer}");
}

#[tokio::test]
async fn rules_that_are_left_at_an_address_of_no_service_mislead() {
    let dir = copy("dual-ipvs");
    write(&dir, SERVICES, |text| {
        text.replace("203.0.113.31", "203.0.113.99")
    });
    let words = [
        "no Service has 203.0.113.31:80, and rules that kube-proxy left behind lead to",
        "an endpoint of shop/",
        "reconcile",
    ];
    says(&dir, "203.0.113.31:80", "misled", &words).await;
    // Another program has virtual servers at addresses of its own.
    write(
        &dir,
        "node/ip-addr.json",
        json(|links| {
            let mut moved = None;
            for link in links.as_array_mut().unwrap() {
                let all = link["addr_info"].as_array_mut().unwrap();
                if let Some(at) = all.iter().position(|of| of["local"] == "203.0.113.31") {
                    moved = Some(all.remove(at));
                }
            }
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let own = all.find(|link| link["ifname"] == "eth0").unwrap();
            own["addr_info"].as_array_mut().unwrap().extend(moved);
        }),
    );
    let answer = answer(path(&dir), "203.0.113.31:80").await;
    assert_ne!(answer["fate"], "misled", "{answer}");
}

const CONNECTIONS: &str = "node/conntrack.txt";
const LINK_ADDRESSES: &str = "node/ip-addr.json";

#[tokio::test]
async fn masquerading_takes_a_port_that_is_a_node_port() {
    let dir = copy("dual-ipvs");
    let syn = |port: u16| {
        format!(
            "tcp 6 84 SYN_SENT src=10.100.3.10 dst=10.100.3.10 sport=39616 dport=80 [UNREPLIED] src=10.244.2.10 dst=10.0.2.15 \
             sport=8080 dport={port} mark=0 use=1\n"
        )
    };
    write(&dir, CONNECTIONS, |text| format!("{text}{}", syn(50000)));
    assert!(found(&dir, "NP02").await.is_empty());
    write(&dir, CONNECTIONS, |text| format!("{text}{}", syn(31080)));
    let all = found(&dir, "NP02").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(
        all[0]
            .1
            .starts_with("masquerading gave a connection the NodePort"),
        "{all:?}"
    );
    let of = answer(path(&dir), "shop/front:http").await;
    assert!(of["findings"].to_string().contains("NP02"), "{of}");
}

#[tokio::test]
async fn the_address_of_node_local_dns_is_on_a_link() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        PODS,
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let mut dns = all[0].clone();
            dns["metadata"] = json!({"name": "node-local-dns-x7k2p", "namespace": "kube-system"});
            dns["spec"]["nodeName"] = "w1".into();
            dns["spec"]["hostNetwork"] = true.into();
            dns["spec"]["containers"] = json!([{
                "name": "node-cache",
                "image": "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4",
                "args": ["-localip", "169.254.25.10,10.96.0.10", "-conf", "/etc/Corefile"],
            }]);
            all.push(dns);
        }),
    );
    let all = found(&dir, "CN10").await;
    assert_eq!(all.len(), 1, "{all:?}");
    let words = [
        "no link of the node has this address",
        "logs node-local-dns-x7k2p",
    ];
    says(&dir, "169.254.25.10:53", "lost", &words).await;
    write(
        &dir,
        LINK_ADDRESSES,
        json(|links| {
            let address = json!({"family": "inet", "local": "169.254.25.10", "prefixlen": 32, "scope": "global"});
            links.as_array_mut().unwrap().push(json!({
                "ifindex": 90, "ifname": "nodelocaldns", "flags": ["BROADCAST", "NOARP"], "mtu": 1500, "addr_info": [address],
            }));
        }),
    );
    assert!(found(&dir, "CN10").await.is_empty());
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_by_time_of_day_takes_packets_at_its_times() {
    for (times, fate) in [
        ("--timestart 01:00:00 --timestop 03:00:00", "works"),
        ("--timestart 04:00:00 --timestop 05:00:00", "partly"),
        ("--timestart 22:00:00 --timestop 05:00:00", "partly"),
        ("--weekdays Mon,Tue", "works"),
        ("--weekdays Sat", "partly"),
        ("--kerneltz --timestart 01:00:00", "unknown"),
    ] {
        let dir = copy(HEALTHY);
        let rule =
            format!("-A FORWARD -p tcp -m time {times} --datestop 2038-01-19T03:14:07 -j DROP");
        filter(&dir, "FORWARD", &[&rule]);
        let of = answer(path(&dir), "demo/web:http").await;
        assert_eq!(of["fate"], fate, "{times}: {of}");
    }
}

#[tokio::test]
async fn a_rule_that_spares_packets_from_masquerading_is_not_to_blame_for_a_leftover_address() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        text.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: \"\"")
            .replace("detectLocalMode: ClusterCIDR", "detectLocalMode: \"\"")
    });
    write(
        &dir,
        LINK_ADDRESSES,
        json(|links| {
            let address = json!({"family": "inet", "local": "10.101.213.102", "prefixlen": 32, "scope": "global"});
            links.as_array_mut().unwrap().push(json!({
                "ifindex": 91, "ifname": "kube-ipvs0", "flags": ["BROADCAST", "NOARP"], "mtu": 1500, "addr_info": [address],
            }));
        }),
    );
    write(
        &dir,
        LINKS,
        json(|links| {
            let link = json!({"ifindex": 91, "ifname": "kube-ipvs0", "flags": ["BROADCAST", "NOARP"], "mtu": 1500});
            links.as_array_mut().unwrap().push(link);
        }),
    );
    write(
        &dir,
        ROUTES,
        json(|routes| {
            routes.as_array_mut().unwrap().push(json!({
                "type": "local", "dst": "10.101.213.102", "prefsrc": "10.101.213.102", "dev": "kube-ipvs0", "table": "local",
                "protocol": "kernel", "scope": "host", "flags": [],
            }));
        }),
    );
    write(&dir, RULES, |text| {
        let text = text.replace("*nat\n", "*nat\n:AWS-SNAT-CHAIN-0 - [0:0]\n");
        let at = text.find("*nat").unwrap();
        let (before, nat) = text.split_at(at);
        let end = nat.find("COMMIT").unwrap();
        let rules = "[0:0] -A POSTROUTING -m comment --comment \"AWS SNAT CHAIN\" -j AWS-SNAT-CHAIN-0\n\
                     [0:0] -A AWS-SNAT-CHAIN-0 -d 10.0.0.0/8 -m comment --comment \"AWS SNAT CHAIN\" -j RETURN\n\
                     [0:0] -A AWS-SNAT-CHAIN-0 -m comment --comment \"AWS, SNAT\" -j SNAT --to-source 10.210.0.16 --random-fully\n";
        let nat = nat
            .lines()
            .filter(|line| !line.contains("! -s 10.244.0.0/16"))
            .collect::<Vec<_>>();
        let nat = nat.join("\n") + "\n";
        let end = nat.find("COMMIT").unwrap_or(end);
        format!("{before}{}{rules}{}", &nat[..end], &nat[end..])
    });
    let of = answer(path(&dir), "demo/web:http").await;
    let causes = of["causes"].to_string();
    assert!(causes.contains("of kube-ipvs0"), "{of}");
    assert!(!causes.contains("AWS-SNAT-CHAIN-0"), "{of}");
}

#[tokio::test]
async fn nothing_is_repaired_by_a_node_that_was_not_read() {
    for name in ["full-nftables", "dual-nftables"] {
        let dir = copy(name);
        std::fs::remove_file(dir.path().join("cluster/nodes.json")).unwrap();
        let plan = page(&dir, &["reconcile"]).await;
        assert!(!plan.contains("flush chain"), "{name}: {plan}");
        let diff = page(&dir, &["diff"]).await;
        assert!(!diff.contains("different"), "{name}: {diff}");
    }
}

#[tokio::test]
async fn a_pod_outside_of_the_ranges_of_its_node_may_not_be_reached() {
    let dir = copy(HEALTHY);
    object(&dir, SLICES, "web", |slice| {
        let all = slice["endpoints"].as_array_mut().unwrap();
        let far = all.iter_mut().find(|of| of["nodeName"] == "w2").unwrap();
        far["addresses"] = json!(["10.85.0.2"]);
    });
    write(&dir, RULES, |text| text.replace("10.244.2.2", "10.85.0.2"));
    let words = ["in no range of pods of w2", "/etc/cni/net.d"];
    says(&dir, "demo/web:http", "unknown", &words).await;
}

/// Adds the pod of a network plugin's agent, whose container is called `name`, to the node.
fn add_agent(dir: &tempfile::TempDir, name: &str, image: &str) {
    write(
        dir,
        PODS,
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let mut agent = all[0].clone();
            agent["metadata"] =
                json!({"name": format!("{name}-x7k2p"), "namespace": "kube-system"});
            agent["spec"]["nodeName"] = "w1".into();
            agent["spec"]["hostNetwork"] = true.into();
            agent["spec"]["containers"] = json!([{"name": name, "image": image}]);
            all.push(agent);
        }),
    );
}

#[tokio::test]
async fn a_plugin_without_rules_for_a_pod_is_restarted() {
    let dir = copy(HEALTHY);
    add_agent(&dir, "calico-node", "calico/node");
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -j cali-FORWARD",
            "-A cali-FORWARD -d 10.244.1.0/24 -j cali-to-wl-dispatch",
            "-A cali-to-wl-dispatch -m comment --comment \"Unknown interface\" -j DROP",
        ],
    );
    let words = [
        "cali-to-wl-dispatch",
        "delete pod calico-node-x7k2p",
        "no NetworkPolicy does",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_table_of_the_vpc_cni_has_a_rule_that_leads_to_it() {
    let dir = copy(HEALTHY);
    add_agent(&dir, "aws-node", "amazon-k8s-cni:v1.20.0");
    assert!(found(&dir, "CN09").await.is_empty());
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.push(json!({"dst": "default", "gateway": "10.210.0.2", "dev": "eth1", "table": "2", "flags": []}));
        }),
    );
    let all = found(&dir, "CN09").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].2.contains("delete pod aws-node-x7k2p"), "{all:?}");
    write(&dir, "node/ip-rule.json", |text| {
        text.replacen(
            "[{",
            "[{\"priority\": 512, \"src\": \"all\", \"dst\": \"10.244.1.4\", \"table\": \"main\"}, {",
            1,
        )
    });
    assert!(found(&dir, "CN09").await.is_empty());
}

#[tokio::test]
async fn a_chain_of_kube_router_without_any_policy_is_no_policys() {
    let jump = "-A KUBE-POD-FW-YKJ3IUWOVTXSDNQ2 -d 10.244.1.3/32 -j KUBE-NWPLCY-DEFAULT";
    let rules = |more: &[&str]| {
        let dir = copy(HEALTHY);
        let first = ["-A FORWARD -d 10.244.1.3/32 -j KUBE-POD-FW-YKJ3IUWOVTXSDNQ2"];
        let last = [
            "-A KUBE-POD-FW-YKJ3IUWOVTXSDNQ2 -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable",
            "-A KUBE-NWPLCY-DEFAULT -s 203.0.113.1/32 -j MARK --set-xmark 0x10000/0x10000",
        ];
        filter(&dir, "FORWARD", &[&first, more, &last].concat());
        dir
    };
    let of = answer(path(&rules(&[])), "demo/web:http").await.to_string();
    assert!(of.contains("no NetworkPolicy does"), "{of}");
    let of = answer(path(&rules(&[jump])), "demo/web:http")
        .await
        .to_string();
    assert!(!of.contains("no NetworkPolicy does"), "{of}");
}

#[tokio::test]
async fn a_role_that_lacks_rules_gets_these_and_no_other_binding() {
    let with = |refused: &[(&str, &str, &str)]| {
        let dir = copy(HEALTHY);
        let line = |(verb, resource, group): &(&str, &str, &str)| {
            format!(
                "E1129 18:00:18.100000       1 reflector.go:205] \"Failed to watch\" err=\"{resource} is forbidden: User \\\"system:serviceaccount:kube-system:kube-proxy\\\" cannot {verb} resource \\\"{resource}\\\" in API group \\\"{group}\\\" at the cluster scope\" logger=\"UnhandledError\"\n"
            )
        };
        let lines: String = refused.iter().map(line).collect();
        write(&dir, "kube-proxy/kube-proxy.log", |text| {
            text.to_owned() + &lines.repeat(2)
        });
        dir
    };
    let watch = [("watch", "services", ""), ("watch", "nodes", "")];
    let all = found(&with(&watch), "KP21").await;
    assert!(
        all[0].2.contains("patch clusterrole system:node-proxier"),
        "{all:?}"
    );
    assert!(
        all[0].2.contains(r#"[\"nodes\"],\"verbs\":[\"watch\"]"#),
        "{all:?}"
    );
    let none = [("list", "services", ""), ("list", "nodes", "")];
    let all = found(&with(&none), "KP21").await;
    assert!(all[0].2.contains("create clusterrolebinding"), "{all:?}");
}

#[tokio::test]
async fn a_kube_proxy_that_may_seldom_ask_the_api_server_does_not_finish_its_first_sync() {
    let with = |qps: &str, burst: &str, first: bool| {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/config.conf", |text| {
            let text = text.replacen("qps: 0\n", &format!("qps: {qps}\n"), 1);
            text.replacen("burst: 0\n", &format!("burst: {burst}\n"), 1)
        });
        if first {
            write(&dir, METRICS, |text| {
                let is_last =
                    |line: &&str| line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp");
                let lines = text.lines().filter(|line| !is_last(line));
                lines.flat_map(|line| [line, "\n"]).collect()
            });
        }
        dir
    };
    let all = found(&with("0.01", "1", true), "KP06").await;
    assert!(
        all[0].1.contains("one request to the API server in 100 s"),
        "{all:?}"
    );
    for (qps, burst, first) in [("0.01", "1", false), ("0.01", "10", true), ("5", "1", true)] {
        let all = found(&with(qps, burst, first), "KP06").await;
        let mut said = all.iter().map(|(_, message, _)| message);
        assert!(
            !said.any(|message| message.contains("first sync")),
            "{all:?}"
        );
    }
}
