//! Incidents whose cause another check knows, or whose rules have a maker: the cause and its own fix come first, and kpx repairs nothing
//! that would be undone at once.

pub(super) mod makers;
mod proxy;

use kpx_node::evidence::Item;
use proxy::page;
use serde_json::{Value, json};

use super::case::{append, finding, load, replace, run};
use super::ends::{HEALTHY, LINKS, ROUTES, json, own_node, says};
use super::incidents::{answer, copy, write};
use crate::support::kpx;

const METRICS: &str = "kube-proxy/metrics.txt";
const PODS: &str = "cluster/pods.json";
const RULES: &str = "node/iptables-save.txt";
pub(super) const SERVICES: &str = "cluster/services.json";
pub(super) const SLICES: &str = "cluster/endpointslices.json";
const SOCKETS: &str = "node/ss.txt";

pub(super) fn path(dir: &tempfile::TempDir) -> &str {
    dir.path().to_str().unwrap()
}

/// The findings of `id`: severity, message and fix.
pub(super) async fn found(dir: &tempfile::TempDir, id: &str) -> Vec<(String, String, String)> {
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
pub(super) fn object(
    dir: &tempfile::TempDir,
    file: &str,
    name: &str,
    change: impl FnOnce(&mut Value),
) {
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
pub(super) fn filter(dir: &tempfile::TempDir, chain: &str, rules: &[&str]) {
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

#[tokio::test]
async fn a_pod_is_named_in_the_command_that_is_about_it() {
    // No plugin serves hostPorts here.
    let dir = copy(HEALTHY);
    object(&dir, PODS, "edge-z8g9h", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8081}]);
    });
    let all = found(&dir, "CN06").await;
    assert!(all[0].2.contains("No plugin serves hostPorts"), "{all:?}");
    // A Service with an address of the node takes the packets first.
    let served = copy(HEALTHY);
    object(&served, PODS, "edge-z8g9h", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 80}]);
    });
    object(&served, "cluster/services.json", "api", |service| {
        service["spec"]["externalIPs"] = json!(["10.210.0.16"]);
    });
    assert_eq!(found(&served, "CN06").await, []);
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

/// Gives an endpoint of web another address, which the rules do not have, at `changed`.
fn moved_endpoint(dir: &tempfile::TempDir, changed: &str) {
    object(dir, SLICES, "web", |slice| {
        slice["endpoints"][1]["addresses"] = json!(["10.244.2.22"]);
        slice["metadata"]["annotations"] =
            json!({ "endpoints.kubernetes.io/last-change-trigger-time": changed });
    });
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
    object(&dir, PODS, "node-local-dns-x7k2p", |dns| {
        dns["status"] = json!({"phase": "Running", "containerStatuses": [{"name": "node-cache", "ready": false, "restartCount": 41,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]});
    });
    let all = found(&dir, "CN10").await;
    assert!(
        all.iter()
            .any(|of| of.1.contains("nothing listens at this address")),
        "{all:?}"
    );
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
