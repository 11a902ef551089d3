//! The Services that are probed before and after a migration.

use kpx_migrate::probes::{Answerer, answerer, clients, targets};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, ITEMS, Item, load};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use serde_json::json;

use crate::support::root;

/// The API server and DNS, and of each family three others and three NodePorts; of UDP, DNS alone.
#[test]
fn a_few_services_of_each_kind_are_probed() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let targets = targets(node.desired(Mode::Iptables).unwrap(), &[]);
    let shown: Vec<String> = targets.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "default/kubernetes:https (tcp 10.96.0.1:443)",
            "kube-system/kube-dns:dns (udp 10.96.0.10:53)",
            "kube-system/kube-dns:dns-tcp (tcp 10.96.0.10:53)",
            "default/nginx-svc (tcp 10.97.54.248:80)",
            "default/nginx-svc-nodeport (tcp 10.109.235.134:80)",
            "edge/ext:api (tcp 10.100.2.6:9000)",
            "default/nginx-svc-nodeport by NodePort (tcp 10.0.2.15:31082)",
            "edge/lb-proxy:http by NodePort (tcp 10.0.2.15:30083)",
            "edge/np-local:http by NodePort (tcp 10.0.2.15:30084)",
            "default/nginx-svc-nodeport by NodePort (tcp 10.0.2.15:31082) from outside the cluster",
            "edge/lb-proxy:http by NodePort (tcp 10.0.2.15:30083) from outside the cluster",
            "edge/np-local:http by NodePort (tcp 10.0.2.15:30084) from outside the cluster",
            "shop/dual:http (tcp [fd00:10:96::12]:80)",
        ]
    );
    for target in targets {
        let asks = !target.question().is_empty();
        assert_eq!(asks, target.to_string().contains("udp"), "{target}");
    }
}

/// Cluster IPs from a pod of the node, of each family, and NodePorts from outside.
#[test]
fn services_are_probed_from_a_pod_and_from_outside() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let mut evidence = load(&bundle, ITEMS).unwrap();
    let pod = |node: &str, host: bool, phase: &str, ips: &[&str]| {
        let all: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({
            "spec": {"nodeName": node, "hostNetwork": host},
            "status": {"phase": phase, "podIP": ips[0], "podIPs": all},
        })
    };
    let pods = [
        pod("node1", true, "Running", &["10.0.2.15"]),
        pod("node2", false, "Running", &["10.244.2.4"]),
        pod("node1", false, "Succeeded", &["10.244.1.4"]),
        pod("node1", false, "Running", &["10.244.1.5"]),
        pod(
            "node1",
            false,
            "Running",
            &["10.244.1.6", "fd00:10:244:1::6"],
        ),
    ];
    evidence.insert(Item::Pods, Ok(json!({"items": pods}).to_string()));
    let node = NodeSnapshot::new(&evidence);
    let desired = node.desired(Mode::Iptables).unwrap();
    let pods = clients(&node, "node1").unwrap();
    let shown: Vec<String> = pods.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.244.1.5", "fd00:10:244:1::6"]);
    let shown: Vec<String> = targets(desired, &pods)
        .iter()
        .map(ToString::to_string)
        .collect();
    for wanted in [
        format!(
            "kube-system/kube-dns:dns (udp 10.96.0.10:53) from pod {}",
            pods[0]
        ),
        format!(
            "shop/dual:http (tcp [fd00:10:96::12]:80) from pod {}",
            pods[1]
        ),
        "edge/np-local:http by NodePort (tcp 10.0.2.15:30084) from outside the cluster".to_owned(),
    ] {
        assert!(shown.contains(&wanted), "{wanted}: {shown:#?}");
    }
    assert_eq!(
        clients(&node, "node7").unwrap(),
        Vec::<std::net::IpAddr>::new()
    );
}

/// Of a connection that conntrack has, and of one through IPVS.
#[test]
fn who_answers_is_an_endpoint_of_the_service_or_not() {
    let bundle = root().join("testdata/nodes/seed-iptables");
    let objects = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&objects);
    let desired = node.desired(Mode::Iptables).unwrap();
    let web = "10.97.54.248";
    let mut all = targets(desired, &[]).into_iter();
    let target = all
        .find(|target| target.at.ip().to_string() == web)
        .unwrap();
    let client = "10.244.1.5:40000".parse().unwrap();
    let of = |conntrack: &str, ipvs: &str| {
        let mut tables = Evidence::default();
        tables.insert(Item::Conntrack, Ok(conntrack.to_owned()));
        tables.insert(Item::IpvsConnections, Ok(ipvs.to_owned()));
        answerer(&NodeSnapshot::new(&tables), desired, &target, client)
    };
    let tracked = |by: &str| {
        format!(
            "tcp 6 119 TIME_WAIT src=10.244.1.5 dst={web} sport=40000 dport=80 \
             src={by} dst=10.244.1.5 sport=80 dport=40000 [ASSURED] mark=0 use=1\n"
        )
    };
    let other = Answerer::Other("10.244.1.99:80".parse().unwrap());
    assert_eq!(of(&tracked("10.244.1.16"), ""), Answerer::Endpoint);
    assert_eq!(of(&tracked("10.244.1.99"), ""), other);
    // The Service's own address: nothing translated it.
    let untranslated = Answerer::Other("10.97.54.248:80".parse().unwrap());
    assert_eq!(of(&tracked(web), ""), untranslated);
    let elsewhere = tracked("10.244.1.16").replace("sport=40000", "sport=40001");
    assert!(matches!(of(&elsewhere, ""), Answerer::Unknown(_)));
    let by_ipvs = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires\n\
                   TCP 0AF40105 9C40 0A6136F8 0050 0AF40110 0050 ESTABLISHED     800\n";
    assert_eq!(of(&tracked(web), by_ipvs), Answerer::Endpoint);
}

#[test]
fn a_service_that_cannot_answer_is_not_probed() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let mut desired = node.desired(Mode::Iptables).unwrap().clone();
    for state in &mut desired.families {
        // One without an endpoint, and one whose questions are unknown.
        let idle = state.ports.iter().find(|port| !port.has_internal());
        let mut unknown = state.ports.iter().find(|port| port.has_internal()).cloned();
        if let Some(port) = &mut unknown {
            port.proto = Proto::Udp;
        }
        state.ports = idle.cloned().into_iter().chain(unknown).collect();
    }
    let ports = desired.families.iter().map(|state| state.ports.len());
    assert!(ports.sum::<usize>() >= 2);
    assert_eq!(targets(&desired, &[]), []);
}

#[test]
fn a_node_without_an_address_has_no_node_ports_to_probe() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let mut desired = node.desired(Mode::Iptables).unwrap().clone();
    desired.families[0].node_ip = "127.0.0.1".parse().unwrap();
    let targets = targets(&desired, &[]);
    let names: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
    assert!(names.contains(&"default/kubernetes:https"), "{names:?}");
    assert!(
        !names.iter().any(|name| name.contains("NodePort")),
        "{names:?}"
    );
}
