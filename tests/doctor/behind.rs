//! Objects of the cluster that are behind, or that others than kube-proxy maintain: EndpointSlices, Nodes, names.

use serde_json::json;

use super::carriers::tunnelled;
use super::ends::{HEALTHY, NODES, PODS, ROUTES, findings, json, says};
use super::incidents::{answer, copy, write};
use super::links::{add_policy_rules, add_routes};
use super::meant::add_rule;
use super::objects::{keep, service, slices};
use crate::support::kpx;

const OBJECTS: &str = "cluster/pods.json";
const SERVICES: &str = "cluster/services.json";
const SLICES: &str = "cluster/endpointslices.json";

/// Changes the pod that is the endpoint on the node that is asked.
fn edge(dir: &tempfile::TempDir, change: impl FnOnce(&mut serde_json::Value)) {
    let is_it = |pod: &&mut serde_json::Value| pod["metadata"]["name"] == "edge-z8g9h";
    write(
        dir,
        OBJECTS,
        json(|pods| {
            let mut all = pods["items"].as_array_mut().unwrap().iter_mut();
            change(all.find(is_it).unwrap());
        }),
    );
}

/// A node whose pods' own networks were not read, on which another pod took the place of the endpoint.
fn replaced() -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    std::fs::remove_file(dir.path().join(PODS)).unwrap();
    edge(&dir, |pod| {
        pod["metadata"]["name"] = "edge-new".into();
        pod["status"]["podIP"] = "10.244.1.9".into();
        pod["status"]["podIPs"] = json!([{"ip": "10.244.1.9"}]);
    });
    dir
}

#[tokio::test]
async fn slices_that_list_none_of_the_ready_pods_are_behind() {
    let dir = replaced();
    let words = [
        "no pod on w1 has the address of endpoint 10.244.1.4:8080",
        "the EndpointSlice controller has not updated it",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    // The pods of a bundle may be some of them.
    write(&dir, OBJECTS, |text| {
        text.replace("\"app\": \"edge\"", "\"app\": \"other\"")
            .replace("\"app\":\"edge\"", "\"app\":\"other\"")
    });
    let words = ["whether a pod still has endpoint 10.244.1.4:8080 is unknown"];
    says(&dir, "demo/edge:http", "unknown", &words).await;
}

#[tokio::test]
async fn slices_of_a_former_selector_list_pods_that_are_gone() {
    let dir = replaced();
    service(&dir, "edge", |service| {
        service["spec"].as_object_mut().unwrap().remove("selector");
    });
    let words = [
        "left from the time when the Service had a selector",
        "delete endpointslice edge-s9dl6",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_ready_pod_that_its_slice_lists_as_not_ready_is_no_lack_of_pods() {
    let dir = copy(HEALTHY);
    slices(&dir, "edge", |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            endpoint["conditions"] =
                json!({"ready": false, "serving": false, "terminating": false});
        }
    });
    let found = findings(&dir).await;
    let is_it = |(id, severity, message): &(String, String, String)| {
        let words = "pod demo/edge-z8g9h is Ready, but its EndpointSlice says otherwise";
        id == "AP01" && severity == "error" && message.contains(words)
    };
    assert!(found.iter().any(is_it), "{found:?}");
}

#[tokio::test]
async fn the_address_of_kube_proxys_pod_tells_that_it_has_a_network_of_its_own() {
    let dir = copy(HEALTHY);
    std::fs::remove_file(dir.path().join("node/processes.json")).unwrap();
    write(&dir, "node/iptables-save.txt", |text| {
        keep(text, |line| !line.contains("KUBE-"))
    });
    write(
        &dir,
        OBJECTS,
        json(|pods| {
            for pod in pods["items"].as_array_mut().unwrap() {
                if pod["metadata"]["name"]
                    .as_str()
                    .unwrap()
                    .starts_with("kube-proxy")
                {
                    pod["spec"]["hostNetwork"] = false.into();
                    pod["status"]["podIP"] = "10.244.1.90".into();
                    pod["status"]["podIPs"] = json!([{"ip": "10.244.1.90"}]);
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

/// Adds an entry to the kernel's log, and one of the same time after it.
fn log(dir: &tempfile::TempDir, line: &str) {
    write(dir, "node/dmesg.txt", |text| {
        format!("{text}[ 1400.000001] {line}\n[ 1401.000001] random: crng reseeded\n")
    });
}

/// Says of `node` that the provider made no route to its pods.
fn without_route(dir: &tempfile::TempDir, node: &str) {
    let condition = json!({"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated",
        "message": "RouteController failed to create a route"});
    write(
        dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let node = all.find(|item| item["metadata"]["name"] == *node).unwrap();
            match node["status"]["conditions"].as_array_mut() {
                Some(conditions) => conditions.push(condition),
                None => node["status"]["conditions"] = json!([condition]),
            }
        }),
    );
}

#[tokio::test]
async fn a_provider_without_a_route_to_the_pods_of_a_node_loses_what_no_tunnel_carries() {
    for (node, word) in [
        ("w2", "packets to the pods of node w2"),
        ("w1", "replies to the pods of node w1"),
    ] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            ROUTES,
            json(|routes| {
                let to_pods = ["10.244.0.0/24", "10.244.2.0/24"];
                let all = routes.as_array_mut().unwrap();
                all.retain(|route| !to_pods.contains(&route["dst"].as_str().unwrap()));
            }),
        );
        without_route(&dir, node);
        let words = [word, "NoRouteCreated", "FailedToCreateRoute"];
        says(&dir, "demo/edge:http", "partly", &words).await;
    }
    // Routes by the Nodes' own addresses, and tunnels, need none of the provider.
    for dir in [copy(HEALTHY), tunnelled()] {
        without_route(&dir, "w2");
        says(&dir, "demo/edge:http", "works", &[]).await;
    }
}

#[tokio::test]
async fn packets_to_a_pod_with_its_own_network_card_of_aws_come_back_from_the_network() {
    let dir = copy(HEALTHY);
    let led = json!({"dst": "10.244.1.4", "gateway": "10.210.0.2", "dev": "eth0", "flags": []});
    add_routes(&dir, &[led]);
    says(&dir, "demo/edge:http", "partly", &["10.244.1.4"]).await;
    let home = json!({"dst": "10.244.1.4", "dev": "cni0", "table": "101", "flags": []});
    add_routes(&dir, &[home]);
    let rules = ["vlan.eth.1", "cni0"]
        .map(|link| json!({"priority": 10, "src": "all", "iif": link, "table": "101"}));
    add_policy_rules(&dir, &rules);
    says(&dir, "demo/edge:http", "works", &[]).await;
}

#[tokio::test]
async fn rules_of_nm_cloud_setup_are_its_own_to_change() {
    let dir = copy(HEALTHY);
    let rule = json!({"priority": 30400, "src": "10.244.1.4", "table": "30400"});
    add_policy_rules(&dir, &[rule]);
    let led = json!({"dst": "default", "gateway": "10.210.0.2", "dev": "eth0", "table": "30400", "flags": []});
    add_routes(&dir, &[led]);
    let words = ["30400", "systemctl disable --now nm-cloud-setup.service"];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_firewall_opens_the_port_of_a_tunnel_in_its_own_way() {
    for (chain, words) in [
        ("nixos-fw", "allowedUDPPorts = [ 8472 ]"),
        ("ufw-user-input", "ufw allow 8472/udp"),
        ("IN_public", "firewall-cmd --permanent --add-port=8472/udp"),
    ] {
        let dir = tunnelled();
        for rule in [
            "-j DROP",
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-i lo -j ACCEPT",
            "-i cni0 -j ACCEPT",
            "-p tcp -j ACCEPT",
        ] {
            add_rule(&dir, "filter", &format!("-A {chain} {rule}"));
        }
        add_rule(&dir, "filter", &format!("-A INPUT -j {chain}"));
        write(&dir, "node/iptables-save.txt", |text| {
            let head = format!("*filter\n:{chain} - [0:0]\n");
            text.replacen("*filter\n", &head, 1)
        });
        says(&dir, "demo/edge:http", "partly", &[words]).await;
    }
}

#[tokio::test]
async fn the_kernels_log_tells_of_a_card_and_of_networks_that_wait() {
    for (line, words) in [
        (
            "xen_netfront: xennet: skb rides the rocket: 19 slots",
            "more parts than the card of this virtual machine takes",
        ),
        (
            "unregister_netdevice: waiting for veth1f2e3d4c to become free. Usage count = 1",
            "makes and removes no networks of pods",
        ),
        (
            "TCP: out of memory -- consider tuning tcp_mem",
            "its memory for TCP was used up",
        ),
    ] {
        let dir = copy(HEALTHY);
        log(&dir, line);
        let found = findings(&dir).await;
        let is_it = |(id, severity, message): &(String, String, String)| {
            id == "SY18" && severity == "warning" && message.contains(words)
        };
        assert!(found.iter().any(is_it), "{line}: {found:?}");
    }
    // A pod that starts meanwhile waits for its network.
    let dir = copy(HEALTHY);
    let line = "unregister_netdevice: waiting for lo to become free. Usage count = 1";
    log(&dir, line);
    edge(&dir, |pod| {
        pod["status"]["containerStatuses"] = json!([{"name": "edge", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}}}]);
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    });
    let found = findings(&dir).await;
    let is_it = |(id, severity, _): &(String, String, String)| id == "SY18" && severity == "error";
    assert!(found.iter().any(is_it), "{found:?}");
}

/// Adds a Service that is another name of `to`, with a port that leads to 80.
fn add_alias(dir: &tempfile::TempDir, name: &str, to: &str, port: u16) {
    let alias = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "demo"},
        "spec": {"type": "ExternalName", "externalName": to,
            "ports": [{"name": "http", "port": port, "targetPort": 80, "protocol": "TCP"}]},
        "status": {"loadBalancer": {}}});
    write(
        dir,
        SERVICES,
        json(|services| services["items"].as_array_mut().unwrap().push(alias)),
    );
}

#[tokio::test]
async fn an_alias_translates_no_port() {
    let dir = copy(HEALTHY);
    add_alias(&dir, "inside", "web.demo.svc.cluster.local", 8080);
    add_alias(&dir, "outside", "www.example.com", 8080);
    add_alias(&dir, "same", "web.demo.svc.cluster.local", 80);
    let kept = "does not translate its port 8080 to 80";
    let lacks = "demo/web has no port 8080";
    for (service, fate, words) in [
        (
            "demo/inside",
            "refused",
            &[kept, lacks, "Connect to port 80"][..],
        ),
        ("demo/inside:8080", "refused", &[kept, lacks]),
        ("demo/outside", "unknown", &[kept]),
        ("demo/same", "unknown", &["it exists only in DNS"]),
    ] {
        says(&dir, service, fate, words).await;
    }
}

#[tokio::test]
async fn only_the_controller_of_its_class_gives_a_service_an_address() {
    let dir = copy(HEALTHY);
    service(&dir, "edge-local", |service| {
        service["spec"]["type"] = "LoadBalancer".into();
        service["spec"]["loadBalancerClass"] = "service.k8s.aws/nlb".into();
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/edge-local").await;
    let text = answer["causes"].to_string();
    for words in [
        "its loadBalancerClass service.k8s.aws/nlb",
        "recreate the Service without",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[tokio::test]
async fn a_headless_service_is_traced_as_it_is_explained() {
    let dir = copy(HEALTHY);
    slices(&dir, "web-headless", |slice| {
        slice["endpoints"] = json!([{"addresses": ["10.210.0.50"], "conditions": {"ready": true}}]);
    });
    let path = dir.path().to_str().unwrap();
    let doubt = "whether anything answers at endpoint 10.210.0.50:8080 is unknown";
    for args in [["why", "demo/web-headless"], ["trace", "demo/web-headless"]] {
        let ran = kpx(&["--from", path, args[0], args[1], "-o", "json"]).await;
        assert!(ran.out.contains(doubt), "{args:?}: {ran}");
    }
}

#[tokio::test]
async fn a_port_of_a_headless_service_that_no_pod_has_is_not_traced() {
    let dir = copy(HEALTHY);
    service(&dir, "web-headless", |service| {
        service["spec"]["ports"][0]["port"] = 80.into();
    });
    let path = dir.path().to_str().unwrap();
    for (target, is_traced) in [
        ("demo/web-headless:80", false),
        ("demo/web-headless:http", true),
    ] {
        let ran = kpx(&["--from", path, "trace", target]).await;
        assert_eq!(ran.err.is_empty(), is_traced, "{ran}");
    }
}

#[tokio::test]
async fn the_kernel_drops_what_a_pod_with_its_own_network_card_of_aws_answers_to_probes() {
    for (value, is_named) in [("1", true), ("0", false)] {
        let dir = copy(HEALTHY);
        edge(&dir, |pod| {
            pod["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": 8080}});
            let name = pod["spec"]["containers"][0]["name"].clone();
            pod["status"]["containerStatuses"] = json!([{"name": name, "ready": false, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-11-20T12:40:00Z"}}}]);
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "False"}]);
        });
        write(
            &dir,
            SLICES,
            json(|slices| {
                for slice in slices["items"].as_array_mut().unwrap() {
                    if slice["metadata"]["labels"]["kubernetes.io/service-name"] == "edge" {
                        slice["endpoints"]
                            .as_array_mut()
                            .unwrap()
                            .retain_mut(|endpoint| {
                                endpoint["conditions"] = json!({"ready": false});
                                endpoint["nodeName"] == "w1"
                            });
                    }
                }
            }),
        );
        let home = json!({"dst": "10.244.1.4", "dev": "cni0", "table": "101", "flags": []});
        add_routes(&dir, &[home]);
        let rule = json!({"priority": 10, "src": "all", "iif": "vlan.eth.1", "table": "101"});
        add_policy_rules(&dir, &[rule]);
        write(&dir, "node/sysctl.txt", |text| {
            format!("{text}net.ipv4.tcp_early_demux = {value}\n")
        });
        let found = findings(&dir).await;
        let is_it = |(id, _, message): &(String, String, String)| {
            id == "AP01"
                && message.contains("net.ipv4.tcp_early_demux is 1, with which the kernel drops")
        };
        assert_eq!(found.iter().any(is_it), is_named, "{found:?}");
    }
}

#[tokio::test]
async fn a_policy_that_azure_npm_applies_is_meant() {
    let dir = copy(HEALTHY);
    add_rule(
        &dir,
        "filter",
        "-A AZURE-NPM-TARGET-SETS -d 10.244.1.4 -m comment --comment DROP-ALL-TO-app:edge-IN-ns-demo -j DROP",
    );
    add_rule(&dir, "filter", "-A AZURE-NPM -j AZURE-NPM-TARGET-SETS");
    add_rule(&dir, "filter", "-A FORWARD -j AZURE-NPM");
    write(&dir, "node/iptables-save.txt", |text| {
        let heads = "*filter\n:AZURE-NPM - [0:0]\n:AZURE-NPM-TARGET-SETS - [0:0]\n";
        text.replacen("*filter\n", heads, 1)
    });
    let found = findings(&dir).await;
    let is_error =
        |(id, severity, _): &(String, String, String)| id == "IR16" && severity == "error";
    assert!(!found.iter().any(is_error), "{found:?}");
}
