//! Random clusters: Services and endpoints of every kind, from a seed.

use std::fmt::Write as _;

use kpx_node::evidence::{Evidence, Item};
use serde_json::{Value, json};

/// Numbers that follow from a seed (Steele, Lea and Flood's `SplitMix64`).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Returns true in one of `out_of` cases.
    fn one_in(&mut self, out_of: u64) -> bool {
        self.below(out_of) == 0
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

/// The families of a cluster with both.
pub(crate) const DUAL: &[&str] = &["IPv4", "IPv6"];
/// The same of a cluster without IPv4.
pub(crate) const ONLY_V6: &[&str] = &["IPv6"];

/// A node of a cluster that has `families`, with up to 20 Services, in `mode` of kube-proxy `version`; nothing is
/// programmed.
pub(crate) fn evidence(seed: u64, families: &[&str], mode: &str, version: &str) -> Evidence {
    let mut dice = Dice::new(seed);
    let mut evidence = Evidence::default();
    let mut put = |item, text: String| evidence.insert(item, Ok(text));
    put(Item::ProxyConfig, config(&mut dice, mode));
    put(
        Item::Metrics,
        format!("kubernetes_build_info{{git_version=\"{version}\"}} 1\n"),
    );
    put(
        Item::IptablesVersion,
        "iptables v1.8.9 (nf_tables)\n".to_owned(),
    );
    put(Item::KernelRelease, "6.1.0-13-amd64\n".to_owned());
    put(Item::Sysctl, String::new());
    put(Item::Nodes, nodes(families).to_string());
    put(Item::Addresses, addresses(families).to_string());
    let (mut all, mut slices) = (Vec::new(), Vec::new());
    for number in 0..=dice.below(20) {
        let (service, mut of) = service(&mut dice, number, families);
        all.push(service);
        slices.append(&mut of);
    }
    put(Item::Services, json!({ "items": all }).to_string());
    put(Item::EndpointSlices, json!({ "items": slices }).to_string());
    evidence
}

fn config(dice: &mut Dice, mode: &str) -> String {
    let mut text = format!("mode: {mode}\nhostnameOverride: node1\n");
    let mut put = |line: &str| writeln!(text, "{line}").unwrap();
    put(dice.pick(&[
        "clusterCIDR: 10.244.0.0/16",
        "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48",
        "detectLocalMode: NodeCIDR",
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}",
        "clusterCIDR: ''",
    ]));
    put(dice.pick(&[
        "nodePortAddresses: []",
        "nodePortAddresses: [10.0.2.0/24]",
        "nodePortAddresses: [10.0.2.0/24, 127.0.0.0/8, 'fd00:10:0:2::/64']",
        "nodePortAddresses: [primary]",
    ]));
    let (all, bit) = (dice.one_in(4), dice.below(32));
    let localhost = !dice.one_in(3);
    put(&format!(
        "nftables: {{masqueradeAll: {all}, masqueradeBit: {bit}}}"
    ));
    put(&format!(
        "iptables: {{masqueradeAll: {all}, masqueradeBit: {bit}, localhostNodePorts: {localhost}}}"
    ));
    let scheduler = dice.pick(&["", "rr", "lc", "sh", "mh"]);
    put(&format!(
        "ipvs: {{scheduler: '{scheduler}', strictARP: {all}}}"
    ));
    text
}

fn nodes(families: &[&str]) -> Value {
    let of = |v4: &str, v6: &str| -> Vec<String> {
        let pick = |family: &&str| if *family == "IPv6" { v6 } else { v4 };
        families.iter().map(pick).map(str::to_owned).collect()
    };
    let addresses = of("10.0.2.15", "fd00:10:0:2::15").into_iter();
    let addresses = addresses.map(|addr| json!({ "type": "InternalIP", "address": addr }));
    json!({ "items": [{
        "metadata": { "name": "node1", "labels": { "topology.kubernetes.io/zone": "zone-a" } },
        "spec": { "podCIDRs": of("10.244.1.0/24", "fd00:10:244:1::/64") },
        "status": { "addresses": addresses.collect::<Vec<_>>() },
    }] })
}

/// `ip -j addr` of a node where nothing is programmed.
fn addresses(families: &[&str]) -> Value {
    let of = |addr: &str, length: u8| {
        let family = if addr.contains(':') { "inet6" } else { "inet" };
        json!({ "family": family, "local": addr, "prefixlen": length, "scope": "global" })
    };
    let mut eth0 = vec![of("fd00:10:0:2::15", 64)];
    if families.contains(&"IPv4") {
        eth0.extend([of("10.0.2.15", 24), of("192.0.2.200", 24)]);
    }
    json!([
        { "ifname": "lo", "addr_info": [of("127.0.0.1", 8), of("::1", 128)] },
        { "ifname": "eth0", "addr_info": eth0 },
    ])
}

/// An address in the documentation's or the cluster's prefixes.
fn address(v6: bool, kind: &str, number: u64) -> String {
    let (high, low) = (number / 250, number % 250 + 1);
    match (kind, v6) {
        ("cluster", false) => format!("10.96.{high}.{low}"),
        ("cluster", true) => format!("fd00:10:96::{high:x}:{low:x}"),
        ("external", false) => format!("192.0.2.{low}"),
        ("external", true) => format!("2001:db8:5::{high:x}:{low:x}"),
        ("balancer", false) => format!("203.0.113.{low}"),
        (_, false) => format!("10.244.{}.{low}", high % 250 + 1),
        ("balancer", true) => format!("2001:db8:99::{high:x}:{low:x}"),
        (_, true) => format!("fd00:10:244:1::{high:x}:{low:x}"),
    }
}

fn service(dice: &mut Dice, number: u64, of_cluster: &[&str]) -> (Value, Vec<Value>) {
    let families: &[&str] = match dice.below(4) {
        _ if of_cluster == ONLY_V6 => ONLY_V6,
        0 => &["IPv6"],
        1 => &["IPv6", "IPv4"],
        2 => DUAL,
        _ => &["IPv4"],
    };
    let ip = |family: &str, kind: &str| address(family == "IPv6", kind, number);
    let name = format!("s{number}");
    let namespace = dice.pick(&["default", "shop", "a-rather-long-namespace-name"]);
    let kind = dice.pick(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer"]);
    let ports = ports(dice, number, kind);
    let mut spec = json!({
        "type": kind,
        "clusterIP": ip(families[0], "cluster"),
        "clusterIPs": families.iter().map(|f| ip(f, "cluster")).collect::<Vec<_>>(),
        "ipFamilies": families,
        "internalTrafficPolicy": if dice.one_in(5) { "Local" } else { "Cluster" },
        "ports": ports,
    });
    if dice.one_in(12) {
        spec["clusterIP"] = json!("None");
    }
    if dice.one_in(4) {
        spec["externalIPs"] = families.iter().map(|f| ip(f, "external")).collect();
    }
    if kind != "ClusterIP" || dice.one_in(8) {
        let policy = if dice.one_in(3) { "Local" } else { "Cluster" };
        spec["externalTrafficPolicy"] = json!(policy);
        if policy == "Local" && kind == "LoadBalancer" {
            spec["healthCheckNodePort"] = json!(20000 + number);
        }
    }
    if dice.one_in(4) {
        spec["sessionAffinity"] = json!("ClientIP");
        spec["sessionAffinityConfig"] =
            json!({ "clientIP": { "timeoutSeconds": dice.below(20000) + 1 } });
    }
    let mut status = json!({});
    if kind == "LoadBalancer" {
        let mode = if dice.one_in(5) { "Proxy" } else { "VIP" };
        let ingress = families
            .iter()
            .map(|f| json!({ "ip": ip(f, "balancer"), "ipMode": mode }));
        status = json!({ "loadBalancer": { "ingress": ingress.collect::<Vec<_>>() } });
        if dice.one_in(2) {
            spec["loadBalancerSourceRanges"] = match dice.below(4) {
                0 => json!(["198.51.100.0/24", " 198.51.101.77/24"]),
                1 => json!(["10.0.0.0/8", "2001:db8:1::/48"]),
                2 => json!(["0.0.0.0/0"]),
                _ => json!(["198.51.100.7/32", "198.51.100.8/31", "2001:db8:2::1/128"]),
            };
        }
    }
    let mut labels = json!({});
    if dice.one_in(15) {
        labels = json!({ "service.kubernetes.io/service-proxy-name": "other" });
    }
    let slices = families
        .iter()
        .flat_map(|family| slices(dice, namespace, &name, number, family, &ports))
        .collect();
    let metadata = json!({ "name": name, "namespace": namespace, "labels": labels });
    (
        json!({ "metadata": metadata, "spec": spec, "status": status }),
        slices,
    )
}

fn ports(dice: &mut Dice, number: u64, kind: &str) -> Vec<Value> {
    let count = dice.below(3) + 1;
    (0..count)
        .map(|at| {
            let mut port = json!({
                "name": if count == 1 && dice.one_in(2) { String::new() } else { format!("p{at}") },
                "protocol": dice.pick(&["TCP", "TCP", "UDP", "SCTP"]),
                "port": 80 + at,
            });
            if kind != "ClusterIP" && !dice.one_in(6) {
                port["nodePort"] = json!(30000 + number * 4 + at);
            }
            port
        })
        .collect()
}

fn slices(
    dice: &mut Dice,
    namespace: &str,
    service: &str,
    number: u64,
    family: &str,
    ports: &[Value],
) -> Vec<Value> {
    let hinted = dice.one_in(4);
    let hinted_nodes = dice.one_in(8);
    (0..dice.below(3))
        .map(|slice| {
            let endpoints: Vec<_> = (0..dice.below(5))
                .map(|at| {
                    let node = dice.pick(&["node1", "node2", "node3"]);
                    let zone = dice.pick(&["zone-a", "zone-b"]);
                    let number = number * 12 + slice * 4 + at;
                    let mut endpoint = json!({
                        "addresses": [address(family == "IPv6", "pod", number)],
                        "nodeName": node,
                        "conditions": match dice.below(6) {
                            0 => json!({ "ready": false, "serving": true, "terminating": true }),
                            1 => json!({ "ready": false, "serving": false, "terminating": false }),
                            2 => json!({}),
                            _ => json!({ "ready": true, "serving": true, "terminating": false }),
                        },
                    });
                    if hinted {
                        endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
                    }
                    if hinted_nodes {
                        endpoint["hints"]["forNodes"] = json!([{ "name": node }]);
                    }
                    endpoint
                })
                .collect();
            let ports: Vec<_> = ports
                .iter()
                .map(|port| {
                    json!({
                        "name": port["name"],
                        "protocol": port["protocol"],
                        "port": port["port"].as_u64().unwrap() + 8000,
                    })
                })
                .collect();
            json!({
                "metadata": {
                    "name": format!("{service}-{family}-{slice}"),
                    "namespace": namespace,
                    "labels": { "kubernetes.io/service-name": service },
                },
                "addressType": family,
                "endpoints": endpoints,
                "ports": ports,
            })
        })
        .collect()
}
