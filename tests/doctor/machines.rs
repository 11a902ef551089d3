//! Other machines: load balancers that ask for the node's health, machines with the address of a Service, API servers that are gone.

use serde_json::{Value, json};

use super::ends::{HEALTHY, findings, json, own_node, says};
use super::first_causes::makers::add_agent;
use super::first_causes::{SERVICES, SLICES, filter, found, object};
use super::incidents::{copy, write};
use super::links::add_routes;
use crate::support::kpx;

const NEIGHBOURS: &str = "node/ip-neigh.json";

/// Lets every node serve the load balancer of `edge-balanced`.
pub(super) fn balance(dir: &tempfile::TempDir) {
    object(dir, SERVICES, "edge-balanced", |service| {
        service["spec"]["externalTrafficPolicy"] = "Cluster".into();
        let spec = service["spec"].as_object_mut().unwrap();
        spec.remove("healthCheckNodePort");
    });
}

#[tokio::test]
async fn a_firewall_that_stops_health_checks_of_kube_proxy_is_a_warning() {
    const DROP: &str = "-A INPUT -i eth0 -p tcp -m conntrack --ctstate NEW -j DROP";
    let closed = |rules: &[&str]| {
        let dir = copy(HEALTHY);
        balance(&dir);
        filter(&dir, "INPUT", &[rules, &[DROP]].concat());
        dir
    };
    let dir = closed(&[]);
    let all = found(&dir, "NP06").await;
    assert!(all.iter().any(|finding| finding.0 == "warning"), "{all:?}");
    // Machines of the same network get through: the load balancer may be one.
    let near = closed(&["-A INPUT -s 10.210.0.0/24 -j ACCEPT"]);
    assert!(found(&near, "NP06").await.is_empty());
    let open = closed(&["-A INPUT -p tcp -m tcp --dport 10256 -j ACCEPT"]);
    assert!(found(&open, "NP06").await.is_empty());
    // Azure asks from one address.
    let azure = |rules: &[&str]| {
        let dir = closed(rules);
        own_node(&dir, |node| {
            node["spec"]["providerID"] = "azure:///subscriptions/x/w1".into();
        });
        dir
    };
    assert!(
        !found(&azure(&["-A INPUT -s 10.210.0.0/24 -j ACCEPT"]), "NP06")
            .await
            .is_empty()
    );
    let admitted = azure(&["-A INPUT -s 168.63.129.16/32 -j ACCEPT"]);
    assert!(found(&admitted, "NP06").await.is_empty());
    // MetalLB has no load balancer that asks.
    add_agent(&dir, "speaker", "metallb/speaker:v0.15");
    assert!(found(&dir, "NP06").await.is_empty());
    // Its health checks use another port.
    let dir = closed(&[]);
    object(&dir, SERVICES, "edge-balanced", |service| {
        service["metadata"]["annotations"] =
            json!({"service.beta.kubernetes.io/aws-load-balancer-healthcheck-port": "30082"});
    });
    assert!(found(&dir, "NP06").await.is_empty());
}

#[tokio::test]
async fn a_pod_in_the_network_of_the_node_asks_the_resolver_of_the_node() {
    const NAME: &str = "web.demo.svc.cluster.local:80";
    let dir = copy(HEALTHY);
    let from = dir.path().to_str().unwrap().to_owned();
    let ask = async |name: &str, source: &str| {
        let ran = kpx(&[
            "--from", &from, "why", name, "--source", source, "-o", "json",
        ])
        .await;
        let answer: Value = serde_json::from_str(&ran.out).unwrap();
        format!(
            "{} {} {}",
            answer["fate"], answer["sentence"], answer["fix"]
        )
    };
    let agent = "kube-system/kube-proxy-lg2lh";
    let text = ask(NAME, agent).await;
    for part in [
        "\"refused\"",
        "hostNetwork with dnsPolicy ClusterFirst",
        "ClusterFirstWithHostNet",
        "patch daemonset/kube-proxy",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // By its address, and from a pod with a network of its own.
    for (name, source) in [("demo/web:http", agent), (NAME, "demo/client-vfxvm")] {
        let text = ask(name, source).await;
        assert!(text.starts_with("\"works\""), "{text}");
    }
    object(&dir, "cluster/pods.json", "kube-proxy-lg2lh", |pod| {
        pod["spec"]["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    });
    assert!(ask(NAME, agent).await.starts_with("\"works\""));
}

/// Adds entries to the neighbours on eth0.
fn know(dir: &tempfile::TempDir, all: &[(&str, &str)]) {
    write(
        dir,
        NEIGHBOURS,
        json(|entries| {
            let new = all.iter().map(|(address, mac)| {
                json!({"dst": address, "dev": "eth0", "lladdr": mac, "state": ["REACHABLE"]})
            });
            entries.as_array_mut().unwrap().extend(new);
        }),
    );
}

#[tokio::test]
async fn a_machine_that_is_no_node_may_have_the_address_of_a_load_balancer() {
    const NODES: [(&str, &str); 2] = [
        ("10.210.0.15", "02:00:00:00:00:15"),
        ("10.210.0.17", "02:00:00:00:00:17"),
    ];
    let with = |mac: &str, nodes: &[(&str, &str)]| {
        let dir = copy(HEALTHY);
        balance(&dir);
        add_agent(&dir, "speaker", "metallb/speaker:v0.15");
        know(&dir, nodes);
        know(&dir, &[("10.210.0.200", mac)]);
        dir
    };
    let words = "another machine has 10.210.0.200";
    let dir = with("00:1b:a9:30:11:02", &NODES);
    says(
        &dir,
        "demo/edge-balanced:http",
        "partly",
        &[words, "00:1b:a9:30:11:02", "arping"],
    )
    .await;
    let all = findings(&dir).await;
    assert!(
        all.iter().any(|finding| finding.2.starts_with(words)),
        "{all:?}"
    );
    let gateway = with("00:1b:a9:30:11:02", &NODES);
    let route = json!({"dst": "default", "gateway": "10.210.0.200", "dev": "eth0", "metric": 900, "flags": []});
    add_routes(&gateway, &[route]);
    let said = ["10.210.0.200, the address of a load balancer, is also that of a gateway"];
    says(&gateway, "demo/edge-balanced:http", "partly", &said).await;
    for (mac, nodes) in [
        // Another node, the router, and a group of VRRP.
        ("02:00:00:00:00:17", &NODES[..]),
        ("2e:dc:d9:70:2a:0b", &NODES),
        ("00:00:5E:00:01:0A", &NODES),
        // It may be that of a node whose link-layer address is not known.
        ("00:1b:a9:30:11:02", &NODES[..1]),
    ] {
        let all = findings(&with(mac, nodes)).await;
        assert!(
            !all.iter().any(|finding| finding.2.starts_with(words)),
            "{mac}: {all:?}"
        );
    }
}

#[tokio::test]
async fn an_api_server_that_is_gone_is_not_a_machine_to_bring_back() {
    let silent = |servers: &[&str]| {
        let dir = copy(HEALTHY);
        object(&dir, SLICES, "kubernetes", |slice| {
            let all = servers.iter();
            let all = all.map(|at| json!({"addresses": [at], "conditions": {"ready": true}}));
            slice["endpoints"] = all.collect();
        });
        write(
            &dir,
            NEIGHBOURS,
            json(|entries| {
                let failed = json!({"dst": "10.210.0.19", "dev": "eth0", "state": ["FAILED"]});
                entries.as_array_mut().unwrap().push(failed);
            }),
        );
        write(&dir, "node/iptables-save.txt", |text| {
            text.replace("10.210.0.2:6443", "10.210.0.19:6443")
                .replace("-s 10.210.0.2/32", "-s 10.210.0.19/32")
        });
        dir
    };
    let fix_of = async |dir: &tempfile::TempDir| {
        let all = found(dir, "SY16").await;
        all.iter()
            .map(|finding| finding.2.clone())
            .collect::<String>()
    };
    let fix = fix_of(&silent(&["10.210.0.15", "10.210.0.19"])).await;
    assert!(fix.contains("identity=kube-apiserver"), "{fix}");
    // The API servers of a provider are on no Node.
    let fix = fix_of(&silent(&["10.210.0.19"])).await;
    assert!(fix.contains("Bring the machine"), "{fix}");
}
