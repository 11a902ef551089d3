//! Addresses, ports and labels that look right and lead elsewhere, on nodes whose pods' own networks were not read, too.

use serde_json::{Value, json};

use super::carriers::{add, link};
use super::ends::{HEALTHY, LINKS, PODS, findings, json, says};
use super::first_causes::found;
use super::incidents::{copy, write};
use super::links::{add_routes, says_to};
use super::meant::with_rule;
use super::objects::{keep, service, slices};

const RULES: &str = "node/iptables-save.txt";
const OBJECTS: &str = "cluster/pods.json";
const ADDRESSES: &str = "node/ip-addr.json";

/// A node whose pods' own networks were not read.
fn from_outside() -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    for file in [PODS, "node/tc.json", "node/ip-xfrm-policy.txt"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    dir
}

/// Adds a bridge with `address`/16 and the route to its network.
fn bridge(dir: &tempfile::TempDir, name: &str, address: &str) {
    add(dir, LINKS, link(name, "bridge"));
    add(
        dir,
        ADDRESSES,
        json!({"ifindex": 40, "ifname": name, "addr_info": [{"family": "inet", "local": address, "prefixlen": 16, "scope": "global"}]}),
    );
    let range = format!("{}.0.0/16", address.rsplitn(3, '.').last().unwrap());
    let route =
        json!({"dst": range, "dev": name, "protocol": "kernel", "scope": "link", "flags": []});
    let own = json!({"type": "local", "dst": address, "dev": name, "table": "local", "protocol": "kernel", "scope": "host",
        "prefsrc": address, "flags": []});
    add_routes(dir, &[route, own]);
}

/// Gives endpoint `was` of Service `name` the address `is`.
fn readdress(dir: &tempfile::TempDir, name: &str, (was, is): (&str, &str), is_known: bool) {
    slices(dir, name, |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            if endpoint["addresses"][0] == was {
                endpoint["addresses"][0] = is.into();
                if !is_known {
                    endpoint.as_object_mut().unwrap().remove("nodeName");
                    endpoint.as_object_mut().unwrap().remove("targetRef");
                }
            }
        }
    });
    write(dir, RULES, |text| {
        let lines = text.lines().map(|line| {
            if line.contains(&format!("/{name}:")) {
                line.replace(was, is)
            } else {
                line.to_owned()
            }
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
}

#[tokio::test]
async fn a_program_on_loopback_is_deaf_at_the_address_of_its_node() {
    let dir = from_outside();
    says(&dir, "demo/ingress", "works", &[]).await;
    // kube-proxy's metrics are at 127.0.0.1:10249.
    slices(&dir, "ingress", |slice| {
        slice["ports"][0]["port"] = 10249.into();
    });
    write(&dir, RULES, |text| text.replace(":10256", ":10249"));
    let words = [
        "nothing in the pod listens at 10.210.0.16:10249",
        "it listens at 127.0.0.1:10249",
        "0.0.0.0",
    ];
    says(&dir, "demo/ingress", "partly", &words).await;
}

#[tokio::test]
async fn an_api_server_that_announces_an_address_of_each_node_is_not_reached() {
    let dir = from_outside();
    bridge(&dir, "docker0", "172.17.0.1");
    says(&dir, "default/kubernetes", "works", &[]).await;
    readdress(&dir, "kubernetes", ("10.210.0.2", "172.17.0.1"), true);
    let words = [
        "nothing listens on 172.17.0.1:6443",
        "link docker0 of this node has the address, too",
        "--advertise-address",
    ];
    says(&dir, "default/kubernetes", "refused", &words).await;
}

#[tokio::test]
async fn a_pod_elsewhere_in_the_network_of_a_bridge_of_each_node_is_not_reached() {
    for dir in [copy(HEALTHY), from_outside()] {
        bridge(&dir, "cni-podman0", "10.88.0.1");
        says(&dir, "demo/edge:http", "works", &[]).await;
        readdress(&dir, "edge", ("10.244.2.5", "10.88.0.5"), true);
        let words = [
            "10.88.0.5 is the address of pod demo/edge-69jhk on node w2",
            "10.88.0.0/16, a network of its own on each node",
            "cni-podman0",
            "/etc/cni/net.d",
        ];
        says(&dir, "demo/edge:http", "partly", &words).await;
    }
}

#[tokio::test]
async fn an_endpoint_outside_in_the_range_of_a_network_of_docker_stays_on_the_node() {
    const BRIDGE: &str = "br-4f2a91c0d3e7";
    let dir = copy(HEALTHY);
    bridge(&dir, BRIDGE, "172.18.0.1");
    readdress(&dir, "edge", ("10.244.2.5", "172.18.5.5"), false);
    // A container may have the address.
    let words = ["outside of the cluster"];
    says(&dir, "demo/edge:http", "unknown", &words).await;
    let entry = json!({"dst": "172.18.5.5", "dev": BRIDGE, "state": ["FAILED"]});
    add(&dir, "node/ip-neigh.json", entry);
    let words = [
        "br-4f2a91c0d3e7, a bridge inside the node, has 172.18.0.1/16",
        "the endpoint 172.18.5.5",
        "docker network inspect 4f2a91c0d3e7",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_service_with_a_cluster_ip_and_the_label_of_headless_services_is_ignored() {
    let dir = copy(HEALTHY);
    service(&dir, "api", |service| {
        service["metadata"]["labels"] = json!({"service.kubernetes.io/headless": ""});
    });
    write(&dir, RULES, |text| {
        keep(text, |line| !line.contains("\"demo/api:"))
    });
    let words = [
        "its label service.kubernetes.io/headless",
        "label service api service.kubernetes.io/headless-",
    ];
    says(&dir, "demo/api:http", "lost", &words).await;
    assert!(found(&dir, "IR03").await.is_empty());
}

/// Changes the pod `name`, and returns it.
fn pod(dir: &tempfile::TempDir, name: &str, change: impl Fn(&mut Value)) -> Value {
    let mut found = Value::Null;
    write(
        dir,
        OBJECTS,
        json(|pods| {
            let mut all = pods["items"].as_array_mut().unwrap().iter_mut();
            let pod = all.find(|pod| pod["metadata"]["name"] == name).unwrap();
            change(pod);
            found = pod.clone();
        }),
    );
    found
}

#[tokio::test]
async fn a_port_that_a_pod_declares_for_another_protocol_is_in_doubt() {
    let declares = |pod: &mut Value, number: u16, protocol: &str| {
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": number, "protocol": protocol}]);
    };
    let dir = from_outside();
    pod(&dir, "edge-z8g9h", |pod| declares(pod, 8080, "TCP"));
    says(&dir, "demo/edge:http", "works", &[]).await;
    pod(&dir, "edge-z8g9h", |pod| declares(pod, 8080, "UDP"));
    let words = [
        "the protocol of port 8080",
        "declare 8080/udp alone",
        "to UDP",
    ];
    says(&dir, "demo/edge:http", "unknown", &words).await;
    // Pods of two workloads: one has the port.
    let mut other = pod(&dir, "edge-z8g9h", |pod| declares(pod, 9113, "TCP"));
    declares(&mut other, 8080, "TCP");
    other["metadata"]["name"] = "main-x2k4p".into();
    other["metadata"]["ownerReferences"][0]["name"] = "main".into();
    other["metadata"]["labels"]["part"] = "main".into();
    other["status"]["podIP"] = "10.244.1.9".into();
    other["status"]["podIPs"] = json!([{"ip": "10.244.1.9"}]);
    write(
        &dir,
        OBJECTS,
        json(|pods| pods["items"].as_array_mut().unwrap().push(other)),
    );
    let words = [
        "may match too much: pod demo/edge-z8g9h declares 9113 alone",
        "selector app=edge matches the pods of DaemonSet edge as well as those of DaemonSet main",
        "Add part=main to the selector",
    ];
    says(&dir, "demo/edge:http", "unknown", &words).await;
}

#[tokio::test]
async fn pods_of_calico_need_an_answer_for_their_gateway() {
    const CLIENT: &str = "10.244.1.2";
    let dir = from_outside();
    add(&dir, LINKS, link("cali0a1b2c3d4e5", "veth"));
    let route = json!({"dst": CLIENT, "dev": "cali0a1b2c3d4e5", "scope": "link", "flags": []});
    add_routes(&dir, &[route]);
    write(&dir, "node/sysctl.txt", |text| {
        format!(
            "{text}net.ipv4.conf.cali0a1b2c3d4e5.proxy_arp = 1\nnet.ipv4.conf.cali0a1b2c3d4e5.forwarding = 1\n"
        )
    });
    says_to(&dir, "demo/edge:http", CLIENT, "works", &[]).await;
    write(
        &dir,
        "node/ip-route.json",
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dst"] != "default");
            let gateway = all
                .iter()
                .find(|route| route["dev"] == "eth0")
                .unwrap()
                .clone();
            let mut to_services = gateway;
            to_services["dst"] = "10.0.0.0/8".into();
            all.push(to_services);
        }),
    );
    let words = [
        "the node does not answer for 169.254.1.1",
        "proxy ARP needs a route",
        "default route",
    ];
    says_to(&dir, "demo/edge:http", CLIENT, "lost", &words).await;
}

#[tokio::test]
async fn a_rule_for_translated_connections_meets_those_of_services() {
    let rule = |status: &str| {
        with_rule(
            "mangle",
            &format!(
                "-A FORWARD -m conntrack --ctstatus {status} -m mark ! --mark 0x1bd20 -j DROP"
            ),
        )
    };
    let words = [
        "mangle drops",
        "NetBird",
        "ct status dnat meta mark set 0x1bd20",
    ];
    says(&rule("DNAT"), "demo/edge:http", "partly", &words).await;
    // The endpoint's own connections to itself are masqueraded.
    let words = ["from its own pods", "drops the replies"];
    says(&rule("SNAT"), "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_file_system_that_became_read_only_stops_the_pods_of_the_node() {
    let dir = copy(HEALTHY);
    let log = |line: &str| {
        write(&dir, "node/dmesg.txt", |text| {
            format!("{text}[ 1400.000001] {line}\n[ 1401.000001] random: crng reseeded\n")
        });
    };
    log("EXT4-fs (vda1): re-mounted. Quota mode: none.");
    let is_of_disk = |(_, message, _): &(String, String, String)| message.contains("read-only");
    assert!(!found(&dir, "SY18").await.iter().any(is_of_disk));
    for line in [
        "EXT4-fs (vda1): Remounting filesystem read-only",
        "XFS (vda1): Filesystem has been shut down due to log error (0x2).",
    ] {
        log(line);
        let all = found(&dir, "SY18").await;
        let found = all.iter().find(|finding| is_of_disk(finding)).unwrap();
        assert_eq!(found.0, "warning");
        assert!(found.2.contains("drain"), "{found:?}");
    }
    // Pods that do not start are its consequence.
    pod(&dir, "edge-z8g9h", |pod| {
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        pod["status"]["containerStatuses"] = json!([{"name": "edge", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CreateContainerError", "message": "read-only file system"}}}]);
    });
    let all = findings(&dir).await;
    let is_error = |(id, severity, message): &(String, String, String)| {
        id == "SY18" && severity == "error" && message.contains("read-only")
    };
    assert!(all.iter().any(is_error), "{all:#?}");
}

#[tokio::test]
async fn the_kernels_log_says_who_denies_kube_proxy_a_file() {
    let dir = copy("more-01-lxc-conntrack-readonly");
    let line = "E0908 10:14:02.104290 1 proxier.go:1] \"Failed to execute iptables-restore\" err=\"exit status 4: Fatal: can't open lock file \
                /run/xtables.lock: Permission denied\\n\" ipFamily=\"IPv4\"\n";
    write(&dir, "kube-proxy/kube-proxy.log", |_| line.repeat(2));
    let finding = |all: Vec<(String, String, String)>| {
        let mut all = all.into_iter();
        all.find(|(_, message, _)| message.contains("xtables.lock"))
            .unwrap()
    };
    let (_, message, fix) = finding(found(&dir, "KP21").await);
    assert!(message.ends_with("Permission denied"), "{message}");
    assert!(fix.contains("restorecon -v /run/xtables.lock"), "{fix}");
    let denial = "[ 3600.331021] audit: type=1400 audit(1795173600.331:400): avc:  denied  { read } for  pid=9100 comm=\"iptables-restor\" \
                  name=\"xtables.lock\" dev=\"tmpfs\" scontext=system_u:system_r:container_t:s0 tclass=file permissive=0\n";
    std::fs::write(dir.path().join("node/dmesg.txt"), denial).unwrap();
    let (_, message, _) = finding(found(&dir, "KP21").await);
    assert!(message.ends_with("SELinux denies it"), "{message}");
}

#[tokio::test]
async fn a_pod_in_the_network_of_its_node_does_not_start_where_a_program_has_its_port() {
    let dir = from_outside();
    pod(&dir, "edge-z8g9h", |pod| {
        pod["spec"]["hostNetwork"] = true.into();
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 10248, "protocol": "TCP"}]);
        pod["status"]["podIP"] = "10.210.0.16".into();
        pod["status"]["podIPs"] = json!([{"ip": "10.210.0.16"}]);
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        pod["status"]["containerStatuses"] = json!([{"name": "app", "ready": false, "restartCount": 9,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}]);
    });
    slices(&dir, "edge", |slice| {
        let all = slice["endpoints"].as_array_mut().unwrap();
        all.retain(|endpoint| endpoint["nodeName"] == "w1");
        all[0]["addresses"][0] = "10.210.0.16".into();
        all[0]["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    });
    let words = [
        "kubelet (pid 109) on the node has its port 10248",
        "ss -lntup",
    ];
    says(&dir, "demo/edge:http", "misled", &words).await;
    let all = findings(&dir).await;
    let is_told = |(id, _, message): &(String, String, String)| {
        id == "AP01" && message.contains("kubelet (pid 109) on the node has its port 10248")
    };
    assert!(all.iter().any(is_told), "{all:#?}");
    // The program of another port.
    pod(&dir, "edge-z8g9h", |pod| {
        pod["spec"]["containers"][0]["ports"] =
            json!([{"containerPort": 10999, "protocol": "TCP"}]);
    });
    let all = findings(&dir).await;
    assert!(
        !all.iter()
            .any(|(_, _, message)| message.contains("on the node has its port")),
        "{all:#?}"
    );
}

#[tokio::test]
async fn pods_in_the_network_of_nodes_without_an_address_of_the_family_are_not_endpoints() {
    let dir = copy(HEALTHY);
    pod(&dir, "edge-z8g9h", |pod| {
        pod["spec"]["hostNetwork"] = true.into();
        pod["status"]["podIP"] = "10.210.0.16".into();
        pod["status"]["podIPs"] = json!([{"ip": "10.210.0.16"}]);
    });
    service(&dir, "edge", |service| {
        service["spec"]["ipFamilies"] = json!(["IPv6"]);
        service["spec"]["clusterIP"] = "fd00:10:96::9".into();
        service["spec"]["clusterIPs"] = json!(["fd00:10:96::9"]);
    });
    slices(&dir, "edge", |slice| {
        slice["addressType"] = "IPv6".into();
        slice["endpoints"] = json!([]);
    });
    let found = found(&dir, "AP01").await;
    let is_told = |(_, message, fix): &(String, String, String)| {
        message.contains("use the network of their Nodes, and Node w1 has no IPv6 address")
            && fix.contains("--node-ip=IPV4,IPV6")
    };
    assert!(found.iter().any(is_told), "{found:#?}");
}

#[tokio::test]
async fn a_pod_of_this_node_behind_its_card_is_not_reached_from_it() {
    const POD: &str = "10.210.0.99";
    let dir = from_outside();
    readdress(&dir, "edge", ("10.244.1.4", POD), true);
    // The only endpoint.
    slices(&dir, "edge", |slice| {
        let all = slice["endpoints"].as_array_mut().unwrap();
        all.retain(|endpoint| endpoint["nodeName"] == "w1");
    });
    write(&dir, RULES, |text| {
        let is_other = |line: &str| line.contains("10.244.0.5") || line.contains("10.244.2.5");
        let kept = keep(text, |line| {
            !(line.contains("demo/edge:") && is_other(line))
        });
        let lines = kept.lines().map(|line| {
            let to = line.contains("demo/edge:") && line.contains(POD);
            match line.split_once(" -m statistic").filter(|_| to) {
                Some((head, tail)) => format!("{head} -j{}", tail.split(" -j").last().unwrap()),
                None => line.to_owned(),
            }
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    pod(&dir, "edge-z8g9h", |pod| {
        pod["status"]["podIP"] = POD.into();
        pod["status"]["podIPs"] = json!([{"ip": POD}]);
    });
    let entry = json!({"dst": POD, "dev": "eth0", "state": ["FAILED"]});
    add(&dir, "node/ip-neigh.json", entry);
    let words = [
        "10.210.0.99 is pod demo/edge-z8g9h of this node",
        "eth0, the node's own card",
        "macvlan",
    ];
    says(&dir, "demo/edge:http", "lost", &words).await;
}

#[tokio::test]
async fn a_masqueraded_packet_may_miss_the_policy_of_ipsec_for_its_source() {
    let dir = copy(HEALTHY);
    readdress(&dir, "edge", ("10.244.2.5", "10.16.10.5"), false);
    let words = ["outside of the cluster"];
    says(&dir, "demo/edge:http", "unknown", &words).await;
    write(&dir, "node/ip-xfrm-policy.txt", |text| {
        format!(
            "{text}src 10.244.0.0/16 dst 10.16.10.0/24 \n\tdir out priority 379519 ptype main \n\ttmpl src 10.210.0.16 dst 203.0.113.20\n\t\tproto \
             esp reqid 1 mode tunnel\n"
        )
    });
    write(&dir, RULES, |text| {
        text.replace(
            "-A POSTROUTING ",
            "-A POSTROUTING -s 10.244.0.0/16 -d 10.16.10.0/24 -j MASQUERADE\n[0:0] -A POSTROUTING ",
        )
    });
    let words = [
        "replaces the source 10.244.1.",
        "src 10.244.0.0/16 dst 10.16.10.0/24 dir out",
        "without IPsec",
    ];
    says(&dir, "demo/edge:http", "unknown", &words).await;
}

#[tokio::test]
async fn pods_that_ask_an_address_of_no_service_for_names_are_reported() {
    let dir = copy(HEALTHY);
    let ask = |address: &str, answered: &str| {
        let queries = (0..3).map(|at| {
            format!(
                "udp      17 2{at} src=10.244.1.2 dst={address} sport=4000{at} dport=53 {answered} src={address} dst=10.244.1.2 sport=53 \
                 dport=4000{at} mark=0 use=1\n"
            )
        });
        let queries: String = queries.collect();
        write(&dir, "node/conntrack.txt", |text| {
            format!("{text}{queries}")
        });
    };
    let is_told = |(severity, message, fix): &(String, String, String)| {
        severity == "error"
            && message.contains("no Service has it: kube-system/kube-dns has 10.96.0.10")
            && fix.contains("with the clusterIP 10.96.0.53")
    };
    // A resolver outside, and a Service that is gone but answered.
    ask("10.50.0.53", "[UNREPLIED]");
    ask("10.96.0.54", "");
    assert!(!found(&dir, "CT04").await.iter().any(is_told));
    ask("10.96.0.53", "[UNREPLIED]");
    let all = found(&dir, "CT04").await;
    assert!(all.iter().any(is_told), "{all:#?}");
}

#[tokio::test]
async fn the_kernels_log_tells_of_links_that_flap_and_processors_that_hang() {
    let log = |line: &str, times: usize| {
        let dir = copy(HEALTHY);
        add(&dir, LINKS, link("eno1", "dummy"));
        write(&dir, "node/dmesg.txt", |text| {
            let lines = (0..times).map(|at| format!("[ 140{at}.000001] {line}\n"));
            let lines = lines.collect::<Vec<_>>().concat();
            format!("{text}{lines}[ 1500.000001] random: crng reseeded\n")
        });
        dir
    };
    for (line, times, word) in [
        (
            "ixgbe 0000:04:00.0 eno1: NIC Link is Down",
            3,
            "eno1 lost its carrier",
        ),
        (
            "bond0: (slave eno1): link status definitely down, disabling slave",
            4,
            "eno1 lost its carrier",
        ),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [kworker/3:1:2291]",
            1,
            "a processor",
        ),
        (
            "rcu: INFO: rcu_sched self-detected stall on CPU",
            1,
            "a processor",
        ),
        (
            "swapper/2: page allocation failure: order:0, mode:0x480020(GFP_ATOMIC), nodemask=(null)",
            1,
            "no memory for packets",
        ),
    ] {
        let all = found(&log(line, times), "SY18").await;
        let is_it = |(severity, message, _): &(String, String, String)| {
            severity == "warning" && message.contains(word)
        };
        assert!(all.iter().any(is_it), "{line}: {all:#?}");
    }
    // A link that came up once more, that of a pod, and the nft of kube-proxy, which KB01 explains.
    for line in [
        "ixgbe 0000:04:00.0 eno1: NIC Link is Down",
        "cali0a1b2c3d4e5: Link is Down",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [nft:2291]",
    ] {
        let all = found(&log(line, 1), "SY18").await;
        assert!(
            !all.iter().any(|(severity, ..)| severity == "warning"),
            "{line}: {all:#?}"
        );
    }
}
