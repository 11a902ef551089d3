//! The desired state that a cluster's objects and kube-proxy's configuration ask for, before it becomes rules.

use std::net::IpAddr;

use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::desired::{
    DesiredState, Detector, FamilyState, Hint, ServicePort, localhost_node_ports,
};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::random::{DUAL, evidence};

const NEWEST: &str = "v1.36.2";

/// A node `node1` in zone `zone-a` whose kube-proxy `version` has `config`.
fn cluster(version: &str, config: &str) -> Evidence {
    let mut evidence = evidence(0, DUAL, "iptables", version);
    let config = format!("hostnameOverride: node1\n{config}\n");
    evidence.insert(Item::ProxyConfig, Ok(config));
    evidence
}

fn desired(evidence: &Evidence, mode: Mode) -> DesiredState {
    NodeSnapshot::new(evidence).desired(mode).unwrap().clone()
}

fn of_v4(evidence: &Evidence) -> FamilyState {
    let desired = desired(evidence, Mode::Iptables);
    desired.family(Family::V4).unwrap().clone()
}

/// Adds a Service `default/web` with port 80 and `spec`, with `status`, and its `endpoints`.
fn serve(evidence: &mut Evidence, spec: &Value, status: &Value, endpoints: &Value) {
    let mut all = json!({
        "type": "ClusterIP",
        "clusterIP": "10.96.0.9",
        "clusterIPs": ["10.96.0.9"],
        "ipFamilies": ["IPv4"],
        "ports": [{ "port": 80 }],
    });
    let own = spec.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(own);
    let metadata = json!({ "namespace": "default", "name": "web" });
    let service = json!({ "metadata": metadata, "spec": all, "status": status });
    let services = json!({ "items": [service] }).to_string();
    evidence.insert(Item::Services, Ok(services));
    let labels = json!({ "kubernetes.io/service-name": "web" });
    let slice = json!({
        "metadata": { "namespace": "default", "name": "web-1", "labels": labels },
        "addressType": "IPv4",
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    });
    let slices = json!({ "items": [slice] }).to_string();
    evidence.insert(Item::EndpointSlices, Ok(slices));
}

/// The port of Service `default/web` that [`serve`] adds to a cluster of `version`; `None` if kube-proxy skips it.
fn port(version: &str, config: &str, spec: &Value, status: &Value) -> Option<ServicePort> {
    let mut evidence = cluster(version, config);
    serve(&mut evidence, spec, status, &json!([]));
    of_v4(&evidence).ports.pop()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn an_endpoint_whose_hints_name_no_zone_turns_hints_off() {
    let mut evidence = cluster(NEWEST, "");
    let endpoint =
        |addr: &str, zones: Value| json!({ "addresses": [addr], "hints": { "forZones": zones } });
    let with = |zones: Value| {
        json!([
            endpoint("10.244.1.1", json!([{ "name": "zone-a" }])),
            endpoint("10.244.1.2", zones),
        ])
    };
    for (zones, hint, used) in [
        (json!([]), Hint::None, &[0, 1][..]),
        (json!([{ "name": "zone-b" }]), Hint::Others, &[0]),
    ] {
        serve(&mut evidence, &json!({}), &json!({}), &with(zones));
        let port = of_v4(&evidence).ports.remove(0);
        assert_eq!(port.endpoints[1].zone, hint);
        assert_eq!(port.cluster_at(), used, "{hint:?}");
    }
}

#[test]
fn a_local_policy_falls_back_to_the_terminating_endpoints_of_this_node() {
    let mut evidence = cluster(NEWEST, "");
    let endpoint = |addr: &str, node: &str, serving: bool| {
        json!({
            "addresses": [addr],
            "nodeName": node,
            "conditions": { "ready": false, "serving": serving, "terminating": true },
        })
    };
    let endpoints = json!([
        endpoint("10.244.1.1", "node1", false),
        endpoint("10.244.1.2", "node1", true),
        endpoint("10.244.1.3", "node2", true),
    ]);
    let local = json!({ "internalTrafficPolicy": "Local" });
    serve(&mut evidence, &local, &json!({}), &endpoints);
    assert_eq!(of_v4(&evidence).ports[0].local_at(), [1]);
}

#[test]
fn a_cluster_is_large_with_more_than_1000_endpoints() {
    let mut evidence = cluster(NEWEST, "");
    for (count, large) in [(1000, false), (1001, true), (1002, true)] {
        let endpoints: Vec<_> = (0..count)
            .map(|at| json!({ "addresses": [format!("10.244.{}.{}", at / 250, at % 250 + 1)] }))
            .collect();
        serve(&mut evidence, &json!({}), &json!({}), &json!(endpoints));
        assert_eq!(of_v4(&evidence).large, large, "{count} endpoints");
    }
}

#[test]
fn a_service_of_type_external_name_is_skipped_whatever_its_cluster_ip() {
    for (kind, served) in [("ClusterIP", true), ("ExternalName", false)] {
        let port = port(NEWEST, "", &json!({ "type": kind }), &json!({}));
        assert_eq!(port.is_some(), served, "{kind}");
    }
}

#[test]
fn the_ip_mode_of_a_load_balancer_counts_from_the_release_that_has_it() {
    let ingress = json!([{ "ip": "203.0.113.9", "ipMode": "Proxy" }]);
    let status = json!({ "loadBalancer": { "ingress": ingress } });
    let gate = "featureGates: {LoadBalancerIPMode: true}";
    let all = addresses(&["203.0.113.9"]);
    for (version, config, on_node) in [
        ("v1.28.0", "", &all[..]),
        ("v1.29.0", "", &all),
        ("v1.29.0", gate, &[]),
        ("v1.30.0", "", &[]),
    ] {
        let port = port(version, config, &json!({ "type": "LoadBalancer" }), &status).unwrap();
        assert_eq!(port.lb_ips, on_node, "{version} {config}");
    }
}

#[test]
fn a_traffic_policy_for_external_clients_needs_something_that_they_reach() {
    let of = |kind: &str, ips: &[&str], policy: &str| {
        let spec = json!({
            "type": kind,
            "externalIPs": ips,
            "externalTrafficPolicy": policy,
            "healthCheckNodePort": 32000,
        });
        let port = port(NEWEST, "", &spec, &json!({})).unwrap();
        (port.external_local, port.health_check)
    };
    assert_eq!(of("ClusterIP", &[], "Local"), (false, None));
    assert_eq!(of("ClusterIP", &["192.0.2.8"], "Local"), (true, None));
    assert_eq!(of("NodePort", &[], "Local"), (true, None));
    assert_eq!(of("LoadBalancer", &[], "Local"), (true, Some(32000)));
    assert_eq!(of("LoadBalancer", &[], "Cluster"), (false, None));
}

#[test]
fn an_address_that_go_cannot_parse_is_skipped() {
    let spec = json!({ "externalIPs": ["192.0.2.+7", "192.0.2.", "192.0.2.08"] });
    let port = port(NEWEST, "", &spec, &json!({})).unwrap();
    assert_eq!(port.external_ips, addresses(&["192.0.2.8"]));
}

#[test]
fn the_node_ip_is_the_first_internal_ip_or_else_an_external_one() {
    let with = |addresses: &[(&str, &str)]| {
        let all = addresses.iter();
        let all = all.map(|(kind, addr)| json!({ "type": kind, "address": addr }));
        let status = json!({ "addresses": all.collect::<Vec<_>>() });
        let node = json!({ "metadata": { "name": "node1" }, "status": status });
        let mut evidence = cluster(NEWEST, "");
        evidence.insert(Item::Nodes, Ok(json!({ "items": [node] }).to_string()));
        serve(&mut evidence, &json!({}), &json!({}), &json!([]));
        of_v4(&evidence).node_ip.to_string()
    };
    let external = ("ExternalIP", "203.0.113.5");
    let internal = ("InternalIP", "10.0.2.15");
    let second = ("InternalIP", "10.0.2.16");
    assert_eq!(with(&[external, internal, second]), "10.0.2.15");
    assert_eq!(with(&[("Hostname", "10.0.2.17"), external]), "203.0.113.5");
    assert_eq!(with(&[("Hostname", "10.0.2.17")]), "127.0.0.1");
}

#[test]
fn each_mode_of_detecting_local_pods_reads_its_own_setting() {
    let cidr = |text: &str| Detector::Cidr(text.parse().unwrap());
    for (config, expected) in [
        ("clusterCIDR: 10.244.0.0/16", Some(cidr("10.244.0.0/16"))),
        (
            "detectLocalMode: NodeCIDR\nclusterCIDR: 10.244.0.0/16",
            Some(cidr("10.244.1.0/24")),
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            Some(Detector::Interface("cni0".to_owned())),
        ),
        ("detectLocalMode: BridgeInterface", None),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}",
            Some(Detector::Prefix("cali".to_owned())),
        ),
        ("detectLocalMode: InterfaceNamePrefix", None),
    ] {
        let mut evidence = cluster(NEWEST, config);
        serve(&mut evidence, &json!({}), &json!({}), &json!([]));
        assert_eq!(of_v4(&evidence).detector, expected, "{config}");
    }
}

#[test]
fn only_the_iptables_mode_serves_node_ports_on_loopback_and_only_for_ipv4() {
    let mut evidence = cluster(NEWEST, "nodePortAddresses: [127.0.0.0/8, '::1/128']");
    serve(&mut evidence, &json!({}), &json!({}), &json!([]));
    for (mode, family, localhost) in [
        (Mode::Iptables, Family::V4, true),
        (Mode::Iptables, Family::V6, false),
        (Mode::Ipvs, Family::V4, false),
        (Mode::Nftables, Family::V4, false),
    ] {
        let desired = desired(&evidence, mode);
        let state = desired.family(family).unwrap();
        assert_eq!(state.node_ports.localhost, localhost, "{mode} {family}");
    }
    for (config, localhost) in [
        ("{}", true),
        ("nodePortAddresses: [127.0.0.0/8]", true),
        ("nodePortAddresses: [10.0.2.0/24]", false),
        ("nodePortAddresses: [primary]", false),
        ("iptables: {localhostNodePorts: false}", false),
    ] {
        let config = ProxyConfig::parse(config).unwrap();
        assert_eq!(localhost_node_ports(&config), localhost, "{config:?}");
    }
}

#[test]
fn without_the_nodes_addresses_only_single_ones_are_known_to_accept_node_ports() {
    let listed = |words: &str| {
        let mut evidence = cluster(NEWEST, &format!("nodePortAddresses: {words}"));
        serve(&mut evidence, &json!({}), &json!({}), &json!([]));
        evidence.insert(Item::Addresses, Err(Gap::NotCollected(Item::Addresses)));
        let desired = desired(&evidence, Mode::Nftables);
        let state = desired.family(Family::V4).unwrap();
        state.node_port_addresses(&desired.facts, false).ok()
    };
    assert_eq!(listed("[primary]"), Some(addresses(&["10.0.2.15"])));
    let two = addresses(&["10.0.2.15", "192.0.2.200"]);
    assert_eq!(listed("[192.0.2.200/32, 10.0.2.15/32]"), Some(two));
    assert_eq!(listed("[10.0.2.15/32, 192.0.2.0/24]"), None);
    let without_loopback = Some(addresses(&["10.0.2.15"]));
    assert_eq!(listed("[10.0.2.15/32, 127.0.0.1/32]"), without_loopback);
}
