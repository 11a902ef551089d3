//! Incidents at the ends of connections: tunnels, pods' own networks, programs that take nothing, and objects that kube-proxy ignores.

use serde_json::{Value, json};

use super::incidents::{answer, copy, write};
use crate::support::kpx;

pub(super) const HEALTHY: &str = "pods-with-networks";
pub(super) const EDGE: &str = "10.244.1.4";
pub(super) const LINKS: &str = "node/ip-link.json";
pub(super) const ROUTES: &str = "node/ip-route.json";
pub(super) const NODES: &str = "cluster/nodes.json";
pub(super) const PODS: &str = "node/pod-networks.txt";

pub(super) fn json(change: impl FnOnce(&mut Value)) -> impl FnOnce(&str) -> String {
    |text| {
        let mut value = serde_json::from_str(text).unwrap();
        change(&mut value);
        value.to_string()
    }
}

/// Asserts what is said of `service`: its fate, and words of the sentence and the fix.
pub(super) async fn says(dir: &tempfile::TempDir, service: &str, fate: &str, words: &[&str]) {
    let answer = answer(dir.path().to_str().unwrap(), service).await;
    let text = format!("{} {}", answer["sentence"], answer["causes"][0]["fix"]);
    assert_eq!(answer["fate"], fate, "{text}");
    for part in words {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The id, severity and message of each finding of the doctor.
pub(super) async fn findings(dir: &tempfile::TempDir) -> Vec<(String, String, String)> {
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "doctor", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let text = |of: &Value| of.as_str().unwrap().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    all.map(|finding| {
        (
            text(&finding["id"]),
            text(&finding["severity"]),
            text(&finding["message"]),
        )
    })
    .collect()
}

/// Changes the Node object of the node that is asked.
pub(super) fn own_node(dir: &tempfile::TempDir, change: impl FnOnce(&mut Value)) {
    write(
        dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            change(all.find(|node| node["metadata"]["name"] == "w1").unwrap());
        }),
    );
}

pub(super) fn flannel(up: bool) -> Value {
    let flags = if up {
        vec!["BROADCAST", "UP", "LOWER_UP"]
    } else {
        vec!["BROADCAST"]
    };
    json!({"ifindex": 30, "ifname": "flannel.1", "flags": flags, "mtu": 1450, "operstate": "UNKNOWN",
        "address": "02:00:00:00:00:01", "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 1, "port": 8472}}})
}

/// Leads packets to pods of other nodes in `routed` into the tunnel `device`, and no others.
pub(super) fn lead_pods(dir: &tempfile::TempDir, device: &str, routed: &[&str]) {
    write(
        dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            let to_pods = ["10.244.0.0/24", "10.244.2.0/24"];
            all.retain(|route| !to_pods.contains(&route["dst"].as_str().unwrap()));
            all.extend(routed.iter().map(|to| {
                let gateway = to.trim_end_matches("/24");
                json!({"dst": to, "gateway": gateway, "dev": device, "flags": ["onlink"]})
            }));
        }),
    );
}

/// Carries the packets to pods of other nodes in flannel's VXLAN, with these of its link and routes.
pub(super) fn tunnel(dir: &tempfile::TempDir, link: Option<Value>, routed: &[&str]) {
    write(
        dir,
        LINKS,
        json(|links| links.as_array_mut().unwrap().extend(link)),
    );
    write(
        dir,
        "cluster/pods.json",
        json(|pods| {
            let mut agent = pods["items"][0].clone();
            agent["metadata"]["name"] = "kube-flannel-ds-x7k2p".into();
            agent["metadata"]["namespace"] = "kube-flannel".into();
            agent["metadata"]["labels"] = json!({"app": "flannel"});
            agent["spec"]["nodeName"] = "w1".into();
            agent["spec"]["hostNetwork"] = true.into();
            agent["status"]["podIP"] = "10.210.0.16".into();
            agent["status"]["podIPs"] = json!([{"ip": "10.210.0.16"}]);
            pods["items"].as_array_mut().unwrap().push(agent);
        }),
    );
    lead_pods(dir, "flannel.1", routed);
    write(
        dir,
        NODES,
        json(|nodes| {
            for (at, node) in nodes["items"]
                .as_array_mut()
                .unwrap()
                .iter_mut()
                .enumerate()
            {
                let mac = format!(
                    "02:00:00:00:00:0{}",
                    if node["metadata"]["name"] == "w1" {
                        1
                    } else {
                        at + 3
                    }
                );
                let addresses = node["status"]["addresses"].as_array().unwrap();
                let own = addresses
                    .iter()
                    .find(|address| address["type"] == "InternalIP")
                    .unwrap();
                node["metadata"]["annotations"] = json!({
                    "flannel.alpha.coreos.com/backend-type": "vxlan",
                    "flannel.alpha.coreos.com/public-ip": own["address"],
                    "flannel.alpha.coreos.com/backend-data": json!({"VNI": 1, "VtepMAC": mac}).to_string(),
                });
            }
        }),
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn packets_that_do_not_enter_the_tunnel_are_lost() {
    let both = ["10.244.0.0/24", "10.244.2.0/24"];
    let whole = copy(HEALTHY);
    tunnel(&whole, Some(flannel(true)), &both);
    says(&whole, "demo/edge", "works", &[]).await;
    for (link, routed, words) in [
        (Some(flannel(false)), &[][..], "link flannel.1 is down"),
        (None, &[][..], "link flannel.1 does not exist"),
        (
            Some(flannel(true)),
            &both[..1],
            "no route leads to 10.244.2.5 by tunnel flannel.1",
        ),
    ] {
        let dir = copy(HEALTHY);
        tunnel(&dir, link, routed);
        says(
            &dir,
            "demo/edge",
            "partly",
            &[words, "Restart the network plugin"],
        )
        .await;
    }
    // Annotations that flannel left behind say nothing.
    let left = copy(HEALTHY);
    tunnel(&left, None, &[]);
    write(&left, "cluster/pods.json", |text| {
        text.replace("kube-flannel-ds", "other")
    });
    says(&left, "demo/edge", "works", &[]).await;
    // A router of the network may know the pods.
    let routed = copy(HEALTHY);
    write(
        &routed,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| !route["dst"].as_str().unwrap().starts_with("10.244.2."));
        }),
    );
    let answer = answer(routed.path().to_str().unwrap(), "demo/edge").await;
    assert!(
        !answer["sentence"].as_str().unwrap().contains("tunnel"),
        "{answer}"
    );
}

#[tokio::test]
async fn two_nodes_whose_tunnels_have_one_mac_do_not_reach_each_other() {
    let dir = copy(HEALTHY);
    tunnel(
        &dir,
        Some(flannel(true)),
        &["10.244.0.0/24", "10.244.2.0/24"],
    );
    let own = "02:00:00:00:00:01";
    write(
        &dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let other = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            other["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"] =
                json!({"VNI": 1, "VtepMAC": own}).to_string().into();
        }),
    );
    let set =
        json!({"dst": "10.244.2.0", "dev": "flannel.1", "lladdr": own, "state": ["PERMANENT"]});
    write(
        &dir,
        "node/ip-neigh.json",
        json(|all| all.as_array_mut().unwrap().push(set)),
    );
    let words = [
        "flannel.1 of this node and of node w2 have the same MAC address, 02:00:00:00:00:01",
        "machine-id",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn two_other_nodes_whose_tunnels_have_one_mac_are_not_both_reached() {
    let shared = |annotations: fn(&str) -> Value| {
        let dir = copy(HEALTHY);
        tunnel(
            &dir,
            Some(flannel(true)),
            &["10.244.0.0/24", "10.244.2.0/24"],
        );
        write(
            &dir,
            NODES,
            json(|nodes| {
                for node in nodes["items"].as_array_mut().unwrap() {
                    let name = node["metadata"]["name"].as_str().unwrap().to_owned();
                    let all = node["metadata"]["annotations"].as_object_mut().unwrap();
                    all.extend(annotations(&name).as_object().unwrap().clone());
                    if name != "w1" {
                        node["status"]["nodeInfo"]["machineID"] = "c0ffee".into();
                    }
                }
            }),
        );
        dir
    };
    let dir = shared(|name| match name {
        "w1" => json!({}),
        _ => {
            json!({"flannel.alpha.coreos.com/backend-data": r#"{"VNI": 1, "VtepMAC": "02:00:00:00:00:0A"}"#})
        }
    });
    let words = [
        "nodes cp1 and w2 announce the same MAC address for flannel.1, 02:00:00:00:00:0a",
        "both have machineID c0ffee",
        "machine-id of its own",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    let is_it = |(id, severity, message): &(String, String, String)| {
        (id.as_str(), severity.as_str()) == ("AP13", "error")
            && message.contains("nodes cp1, w2 announce the same MAC address for flannel.1")
    };
    assert!(findings(&dir).await.iter().any(is_it));

    // One machine that registered twice has one end.
    let twice = shared(|name| match name {
        "w1" => json!({}),
        _ => json!({
            "flannel.alpha.coreos.com/backend-data": r#"{"VNI": 1, "VtepMAC": "02:00:00:00:00:0a"}"#,
            "flannel.alpha.coreos.com/public-ip": "10.210.0.17",
        }),
    });
    let all = findings(&twice).await;
    assert!(!all.iter().any(is_it), "{all:?}");
    let apart = shared(|_| json!({}));
    says(&apart, "demo/edge:http", "works", &[]).await;

    let calico = shared(|name| match name {
        "w1" => json!({}),
        _ => json!({"projectcalico.org/VXLANTunnelMACAddr": "66:00:00:00:00:01"}),
    });
    let all = findings(&calico).await;
    let words = "nodes cp1, w2 announce the same MAC address for vxlan.calico";
    assert!(
        all.iter()
            .any(|(id, _, message)| id == "AP13" && message.contains(words)),
        "{all:?}"
    );
}

/// As with flannel's backend host-gw.
#[tokio::test]
async fn a_node_outside_of_the_network_without_a_route_to_its_pods_is_in_doubt() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let other = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            let addresses = other["status"]["addresses"].as_array_mut().unwrap();
            addresses[0]["address"] = "192.168.50.17".into();
        }),
    );
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dst"] != "10.244.2.0/24");
        }),
    );
    let words = [
        "only the default route leads to the pods of w2",
        "backend vxlan",
    ];
    says(&dir, "demo/edge:http", "unknown", &words).await;
}

#[tokio::test]
async fn a_node_that_announces_an_address_of_another_network_is_named() {
    let dir = copy(HEALTHY);
    tunnel(
        &dir,
        Some(flannel(true)),
        &["10.244.0.0/24", "10.244.2.0/24"],
    );
    write(
        &dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let w2 = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            w2["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"] =
                "172.19.0.1".into();
        }),
    );
    let words = [
        "node w2 announces 172.19.0.1",
        "which is no address of that Node",
    ];
    says(&dir, "demo/edge", "partly", &words).await;
}

#[tokio::test]
async fn nodes_with_different_numbers_of_their_tunnels_discard_packets() {
    for (others, links, fate) in [
        (4096, &[1][..], "partly"),
        (4096, &[1, 4096], "works"),
        (1, &[1], "works"),
    ] {
        let dir = copy(HEALTHY);
        let both = ["10.244.0.0/24", "10.244.2.0/24"];
        tunnel(&dir, Some(flannel(true)), &both);
        write_vni(&dir, others, links);
        let words: &[&str] = match fate {
            "partly" => &[
                "flannel.1 has VNI 1, but node w2 has VNI 4096",
                "Windows needs",
            ],
            _ => &[],
        };
        says(&dir, "demo/edge", fate, words).await;
    }
}

/// Lets Node w2, of Windows, announce this VNI, and gives this node's links of flannel others than its own.
fn write_vni(dir: &tempfile::TempDir, announced: u64, links: &[u64]) {
    write(
        dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let w2 = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            w2["metadata"]["labels"]["kubernetes.io/os"] = "windows".into();
            let data = &mut w2["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"];
            let mut vtep: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
            vtep["VNI"] = announced.into();
            *data = vtep.to_string().into();
        }),
    );
    let others: Vec<Value> = links[1..]
        .iter()
        .map(|vni| {
            let mut link = flannel(true);
            link["ifname"] = format!("flannel.{vni}").into();
            link["linkinfo"]["info_data"]["id"] = (*vni).into();
            link
        })
        .collect();
    if !others.is_empty() {
        let add = |all: &mut Value| all.as_array_mut().unwrap().extend(others);
        write(dir, LINKS, json(add));
    }
}

#[tokio::test]
async fn a_pod_without_its_address_is_lost() {
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        text.replace(
            &format!("\"local\":\"{EDGE}\""),
            "\"local\":\"10.244.1.77\"",
        )
    });
    says(
        &dir,
        "demo/edge",
        "partly",
        &["has lost its address", "delete pod edge-"],
    )
    .await;
}

#[tokio::test]
async fn connections_that_wait_for_a_program_leave_its_answer_open() {
    let waiting = |text: &str| {
        let at = text.find(&format!("\"local\":\"{EDGE}\"")).unwrap();
        let (before, after) = text.split_at(at);
        format!(
            "{before}{}",
            after.replacen("LISTEN 0 128 0.0.0.0:8080", "LISTEN 3 128 0.0.0.0:8080", 1)
        )
    };
    let dir = copy(HEALTHY);
    write(&dir, PODS, waiting);
    says(
        &dir,
        "demo/edge:http",
        "unknown",
        &[&format!("{EDGE}:8080"), "3 connections wait"],
    )
    .await;
    // One of two sockets that share the port.
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        let own = "tcp LISTEN 0 128 0.0.0.0:8080 0.0.0.0:*";
        let full = own.replace("LISTEN 0", "LISTEN 129");
        text.replace(own, &format!("{own}\n{full}"))
    });
    let words = ["1 of the 2 sockets that share port 8080", "129 wait for it"];
    says(&dir, "demo/edge:http", "partly", &words).await;
    // Datagrams that no program reads.
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        text.replace("UNCONN 0 0 0.0.0.0:9001", "UNCONN 19968 0 0.0.0.0:9001")
    });
    says(&dir, "demo/web:datagrams", "unknown", &["19968 bytes"]).await;
    // A program of the node's own network.
    let dir = copy(HEALTHY);
    write(&dir, "node/ss.txt", |text| {
        text.lines().fold(String::new(), |all, line| {
            let is_it = line.contains(":10256");
            let mut words: Vec<&str> = line.split_whitespace().collect();
            if is_it {
                words[2] = "4097";
                words[3] = "4096";
            }
            all + &words.join(" ") + "\n"
        })
    });
    says(
        &dir,
        "demo/ingress",
        "partly",
        &["10.210.0.16:10256 takes no connections"],
    )
    .await;
}

#[tokio::test]
async fn what_ends_in_the_network_of_the_client_is_refused() {
    let dir = copy(HEALTHY);
    write(&dir, PODS, |text| {
        let own = format!("\"local\":\"{EDGE}\"");
        let at = text.find(&own).unwrap();
        let start = text[..at].rfind("=== ").unwrap();
        let end = text[at..]
            .find("\n=== ")
            .map_or(text.len(), |offset| at + offset);
        let service = json!({"family": "inet", "local": "10.101.213.102", "prefixlen": 32, "scope": "global"});
        let local = json!({"type": "local", "dst": "10.101.213.102", "dev": "lo", "table": "local", "scope": "host", "flags": []});
        let section = text[start..end]
            .replacen("\"addr_info\":[", &format!("\"addr_info\":[{service},"), 1)
            .replacen(
                "[{\"dst\":\"default\"",
                &format!("[{local},{{\"dst\":\"default\""),
                1,
            );
        format!("{}{section}{}", &text[..start], &text[end..])
    });
    let words = [EDGE, "end at the pod itself", "nothing listens there"];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_bridge_port_that_is_neither_learnt_from_nor_flooded_is_in_doubt() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        LINKS,
        json(|links| {
            for link in links.as_array_mut().unwrap() {
                if link["master"] == "cni0" {
                    link["linkinfo"]["info_slave_data"]["learning"] = false.into();
                    link["linkinfo"]["info_slave_data"]["flood"] = false.into();
                }
            }
        }),
    );
    says(
        &dir,
        "demo/edge:http",
        "unknown",
        &["both learning and flood are off"],
    )
    .await;
}

#[tokio::test]
async fn a_machine_without_the_address_of_its_node_is_named() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ip-addr.json", |text| {
        text.replace("10.210.0.16", "10.210.0.36")
    });
    let all = findings(&dir).await;
    let message = "no link of this machine has 10.210.0.16, the InternalIP of its Node w1";
    let is_it = |(id, severity, text): &(String, String, String)| {
        id == "AP13" && severity == "error" && text.contains(message)
    };
    assert!(all.iter().any(is_it), "{all:?}");
    assert!(
        !all.iter().any(|(_, _, text)| text.contains("a rule keeps")),
        "{all:?}"
    );
}

#[tokio::test]
async fn trouble_of_the_api_server_ends_with_the_objects_that_are_read() {
    let failed = "E1128 04:08:01.000000       1 reflector.go:204] \"Failed to watch\" err=\"failed to list *v1.Service: Get \
                  \\\"https://10.210.0.2:6443/api/v1/services\\\": dial tcp 10.210.0.2:6443: connect: connection refused\" \
                  type=\"*v1.Service\"\n";
    let read = "I1128 04:08:02.000000       1 shared_informer.go:409] \"Caches are synced\" controller=\"service config\"\n";
    let old = failed.replace("1128 04:08", "1127 20:00");
    for (lines, is_trouble) in [
        (failed.repeat(2), true),
        (failed.repeat(2) + read, false),
        (old.repeat(2), false),
    ] {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/kube-proxy.log", |text| {
            text.to_owned() + &lines
        });
        let all = findings(&dir).await;
        let found = all.iter().any(|(id, ..)| id == "KP21");
        assert_eq!(found, is_trouble, "{lines}: {all:?}");
    }
}

#[tokio::test]
async fn kube_proxy_with_another_name_has_no_local_endpoint() {
    let dir = copy(HEALTHY);
    write(&dir, "node/processes.json", |text| {
        text.replace("--hostname-override=w1", "--hostname-override=other")
    });
    // It writes rules that drop what comes from outside.
    write(&dir, "node/iptables-save.txt", |text| {
        let others = text.lines().filter(|line| !line.contains("KUBE-SVL-"));
        let drop = "-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"demo/edge-local:http has no local endpoints\" \
                    -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j DROP\n";
        others.fold(String::new(), |all, line| {
            let first = line.starts_with("-A KUBE-FIREWALL ") && !all.contains(drop);
            all + if first { drop } else { "" } + line + "\n"
        })
    });
    let words = ["kube-proxy runs with the name other", "hostname-override"];
    says(&dir, "demo/edge-local", "partly", &words).await;
}

/// A clusterCIDR that contains the network of the nodes: a machine there is no pod, and sees addresses of pods.
#[tokio::test]
async fn a_machine_of_the_nodes_network_in_the_range_of_pods_is_outside_of_the_cluster() {
    let dir = copy(HEALTHY);
    let machine = "10.210.0.99";
    write(&dir, "node/iptables-save.txt", |text| {
        text.replace(EDGE, machine)
    });
    write(
        &dir,
        "cluster/endpointslices.json",
        json(|slices| {
            let slices = slices["items"].as_array_mut().unwrap().iter_mut();
            for endpoint in slices
                .filter_map(|slice| slice["endpoints"].as_array_mut())
                .flatten()
            {
                if endpoint["addresses"][0] == EDGE {
                    endpoint["addresses"][0] = machine.into();
                    let fields = endpoint.as_object_mut().unwrap();
                    fields.retain(|key, _| !["targetRef", "nodeName"].contains(&&**key));
                }
            }
        }),
    );
    for file in ["kube-proxy/config.conf", "kube-proxy/configz.json"] {
        write(&dir, file, |text| {
            text.replace("10.244.0.0/16", "10.0.0.0/8")
        });
    }
    let words = [
        "10.210.0.99",
        "outside of the cluster",
        "needs a route to the pods",
    ];
    says(&dir, "demo/edge:http", "unknown", &words).await;
}
