//! `kpx diff` on recorded nodes: a healthy node has no difference, and every change of it is found and named.

mod mutate;
mod random;
mod tables;

use std::fs;

use kpx_judge::diff::Layer;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::random::{DUAL, evidence};
use crate::support::{HEALTHY, Ran, broken, kpx, kpx_on, recorded, root, without};

/// Returns the JSON of `kpx diff` on a copied recording.
async fn report_of(node: &tempfile::TempDir) -> Value {
    let from = node.path().to_str().unwrap();
    let ran = kpx(&["--from", from, "diff", "-o", "json"]).await;
    serde_json::from_str(&ran.out).unwrap()
}

/// Returns `field` of each change in the JSON of `kpx diff`.
fn each<'a>(report: &'a Value, field: &str) -> Vec<&'a str> {
    let changes = report["changes"].as_array().unwrap();
    let fields = changes.iter().map(|change| change[field].as_str());
    fields.map(Option::unwrap_or_default).collect()
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_healthy_node_has_no_difference() {
    for name in HEALTHY {
        let ran = kpx_on(name, &["diff"]).await;
        assert_eq!(ran.code, 0, "{name}\n{ran}");
        assert!(ran.out.contains("\nno difference: "), "{name}\n{ran}");
    }
}

#[tokio::test]
async fn rules_of_a_release_without_recordings_are_expected_from_source() {
    let diff = async |version: &str, config: &str| {
        let newer = |text: &str| text.replace("v1.36.2", version);
        let more = |text: &str| format!("{text}\n# changed\n{config}\n");
        let changes: &[(&str, crate::support::Change<'_>)] = &[
            ("kube-proxy/metrics.txt", &newer),
            ("kube-proxy/config.conf", &more),
        ];
        let node = broken("full-nftables", changes);
        let report = report_of(&node).await;
        assert_eq!(report["changes"], json!([]), "{report}");
        report["notes"].to_string()
    };
    let notes = diff("v1.37.0", "").await;
    assert!(
        notes.contains("expected from source, not recorded"),
        "{notes}"
    );
    let gate = "featureGates: {KubeProxyNFTablesLocalhostNodePorts: false}";
    let notes = diff("v1.39.0", gate).await;
    assert!(notes.contains("newer than 1.38"), "{notes}");
}

/// Returns the live tables `text` with the objects by which kube-proxy 1.37 rejects NodePorts on loopback addresses, for the
/// protocols `v4` and `v6`.
fn rejects_on_loopback(text: &str, v4: &[&str], v6: &[&str]) -> String {
    const MAP: &str = "localhost-nodeport-reject-ports";
    let mut tables: Value = serde_json::from_str(text).unwrap();
    let all = tables["nftables"].as_array_mut().unwrap();
    // One Service has no endpoints: its port is rejected here all the same.
    let tcp = [
        31082, 30080, 30081, 30082, 30083, 30084, 30443, 30444, 30555,
    ]
    .map(|port| ("tcp", port));
    let node_ports = tcp.into_iter().chain([("udp", 30514)]);
    let node_ports: Vec<_> = node_ports.collect();
    for (family, loopback, icmp, protocols) in [
        (
            "ip",
            json!({"prefix": {"addr": "127.0.0.0", "len": 8}}),
            "icmp",
            v4,
        ),
        ("ip6", json!("::1"), "icmpv6", v6),
    ] {
        let with = |mut object: Value| {
            object["family"] = json!(family);
            object["table"] = json!("kube-proxy");
            object
        };
        let chain_of = |proto: &str| format!("localhost-nodeport-reject-{proto}");
        for proto in protocols {
            let counter = format!("localhost-nodeport-rejected-{proto}");
            all.push(
                json!({"counter": with(json!({"name": counter, "packets": 3, "bytes": 180}))}),
            );
            all.push(json!({"chain": with(json!({"name": chain_of(proto)}))}));
            let expr = json!([{"counter": counter}, {"reject": {"type": icmp, "expr": "port-unreachable"}}]);
            all.push(json!({"rule": with(json!({"chain": chain_of(proto), "expr": expr}))}));
        }
        // No Service of the recording has IPv6.
        let here = node_ports
            .iter()
            .filter(|(proto, _)| family == "ip" && protocols.contains(proto));
        let elements: Vec<_> = here
            .map(|(proto, port)| json!([{"concat": [proto, port]}, {"goto": {"target": chain_of(proto)}}]))
            .collect();
        let comment = "localhost NodePorts rejected by kube-proxy";
        let kind = json!(["inet_proto", "inet_service"]);
        let map = json!({"name": MAP, "type": kind, "map": "verdict", "comment": comment, "elem": elements});
        all.push(json!({"map": with(map)}));
        let daddr = json!({"payload": {"protocol": family, "field": "daddr"}});
        let key = json!({"concat": [{"meta": {"key": "l4proto"}}, {"payload": {"protocol": "th", "field": "dport"}}]});
        let expr = json!([
            {"match": {"op": "==", "left": daddr, "right": loopback}},
            {"vmap": {"key": key, "data": format!("@{MAP}")}},
        ]);
        all.push(json!({"rule": with(json!({"chain": "nodeport-endpoints-check", "expr": expr}))}));
    }
    tables.to_string()
}

/// Settings of kube-proxy, and the protocols of IPv4 and IPv6 that it rejects on loopback addresses with them.
type OnLoopback = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

#[tokio::test]
async fn node_ports_that_are_rejected_on_loopback_addresses_are_desired() {
    const ALL: &[&str] = &["tcp", "udp", "sctp"];
    const GATE: &str = "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}";
    let cases: [OnLoopback; 3] = [
        ("v1.37.0", GATE, ALL, ALL),
        ("v1.38.0", "", ALL, ALL),
        (
            "v1.38.0",
            "nodePortAddresses: [primary, 127.0.0.1/32]",
            &["udp", "sctp"],
            ALL,
        ),
    ];
    for (version, config, v4, v6) in cases {
        let newer = |text: &str| text.replace("v1.36.2", version);
        let more = |text: &str| format!("{text}\n# changed\n{config}\n");
        let rules = |text: &str| rejects_on_loopback(text, v4, v6);
        let changes: &[(&str, crate::support::Change<'_>)] = &[
            ("kube-proxy/metrics.txt", &newer),
            ("kube-proxy/config.conf", &more),
            ("node/nft.json", &rules),
        ];
        let report = report_of(&broken("full-nftables", changes)).await;
        assert_eq!(report["changes"], json!([]), "{version} {config}: {report}");
        assert!(
            report["notes"].to_string().contains("expected from source"),
            "{report}"
        );
        // Without these rules there are differences, which are repaired with the counters that the rules use.
        let node = broken("full-nftables", &changes[..2]);
        let report = report_of(&node).await;
        let object = "chain localhost-nodeport-reject-udp";
        assert!(
            report["changes"]
                .to_string()
                .contains("localhost-nodeport-reject-ports"),
            "{report}"
        );
        let from = node.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "reconcile", "-o", "json"]).await;
        let counter = "add counter ip kube-proxy localhost-nodeport-rejected-udp\\n";
        assert!(
            ran.out.contains(object) && ran.out.contains(counter),
            "{ran}"
        );
        let tcp = ran
            .out
            .contains("add counter ip kube-proxy localhost-nodeport-rejected-tcp");
        assert_eq!(tcp, v4.contains(&"tcp"), "{ran}");
    }
}

/// Nodes that changed their mode, with the modes of their leftovers.
const CHANGED: &[(&str, &[&str])] = &[
    ("leftover-iptables-to-ipvs", &["iptables"]),
    ("leftover-iptables-to-nftables", &[]),
    ("leftover-ipvs-to-iptables", &["ipvs"]),
    ("leftover-ipvs-to-nftables", &["ipvs"]),
    ("leftover-nftables-to-ipvs", &[]),
    ("seed-leftover-iptables-to-ipvs", &["iptables"]),
];

#[tokio::test]
async fn leftovers_of_other_modes_are_not_differences() {
    for &(name, modes) in CHANGED {
        let ran = kpx_on(name, &["diff", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["kind"], "DiffReport");
        assert_eq!(report["changes"], json!([]), "{name}\n{ran}");
        let left = report["leftovers"].as_array().unwrap();
        let mut left: Vec<_> = left.iter().map(|l| l["mode"].as_str().unwrap()).collect();
        left.dedup();
        assert_eq!(left, modes, "{name}");
        // This node was recorded during kube-proxy's first sync of IPv6.
        let first = name == "leftover-iptables-to-ipvs";
        assert_eq!(ran.code, if first { 3 } else { 0 }, "{name}\n{ran}");
        assert_eq!(
            ran.out.contains("first sync of IPv6"),
            first,
            "{name}\n{ran}"
        );
        // The kube-proxy of this node had not seen the label of its zone.
        let zone = name == "leftover-ipvs-to-nftables";
        assert_eq!(
            ran.out.contains(
                "does not know this node's zone for IPv4: it spreads shop/zonal:http over all zones"
            ),
            zone,
            "{name}\n{ran}"
        );
    }
}

#[tokio::test]
async fn a_difference_that_no_zone_explains_is_not_blamed_on_the_zone() {
    // Hints for this node's zone at all endpoints leave the choice as it is.
    let hinted = |text: &str| {
        let mut all: Value = serde_json::from_str(text).unwrap();
        let slices = all["items"].as_array_mut().unwrap().iter_mut();
        for endpoint in slices.flat_map(|slice| slice["endpoints"].as_array_mut().unwrap()) {
            endpoint["hints"] = json!({ "forZones": [{ "name": "zone-a" }] });
        }
        all.to_string()
    };
    let fewer = |text: &str| without(text, "\"shop/sticky:http cluster IP\"");
    let node = broken(
        "dual-iptables",
        &[
            ("cluster/endpointslices.json", &hinted),
            ("node/iptables-save.txt", &fewer),
        ],
    );
    let report = report_of(&node).await;
    assert_eq!(
        each(&report, "service"),
        ["shop/sticky:http", "shop/sticky:http"]
    );
    assert_eq!(report.get("notes"), None);
}

#[tokio::test]
async fn without_a_cluster_or_a_mode_it_is_inconclusive() {
    let node = tempfile::tempdir().unwrap();
    let from = node.path().to_str().unwrap();
    let files = ["node/iptables-save.txt", "kube-proxy/config.conf"];
    let copy = |file: &str| {
        let to = node.path().join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, recorded("seed-iptables", file).unwrap()).unwrap();
    };
    copy(files[0]);
    let ran = kpx(&["--from", from, "diff"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(ran.out.contains("\ninconclusive: "), "{ran}");
    assert!(
        ran.out.contains("the mode: kube-proxy/config.conf"),
        "{ran}"
    );
    assert!(ran.out.contains("`--mode MODE`"), "{ran}");

    copy(files[1]);
    let ran = kpx(&["--from", from, "diff"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    let why = "the desired state of mode iptables: cluster/services.json was not collected";
    assert!(ran.out.contains(why), "{ran}");
    let ran = kpx(&["--from", from, "diff", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["unknown"][0]["gap"]["kind"], "not-collected");
    // `render` needs nothing but the desired state.
    let ran = kpx(&["--from", from, "render"]).await;
    assert_eq!(ran.code, 4, "{ran}");
}

fn evidence_of(name: &str, mode: Mode) -> Evidence {
    let path = root().join("testdata/nodes").join(name);
    kpx_node::evidence::load(&path, &kpx_judge::diff::needs(mode)).unwrap()
}

/// Runs `kpx diff` on a recorded node, as if its kube-proxy were of another version.
async fn diff_as(name: &str, mode: Mode, version: &str) -> Ran {
    diff_of(evidence_of(name, mode), version).await
}

async fn diff_of(mut evidence: Evidence, version: &str) -> Ran {
    let build = format!("kubernetes_build_info{{git_version=\"{version}\"}} 1\n");
    evidence.insert(Item::Metrics, Ok(build));
    let dir = tempfile::tempdir().unwrap();
    for (item, read) in evidence.iter() {
        if let Ok(text) = read {
            let file = dir.path().join(item.file());
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }
    kpx(&["--from", dir.path().to_str().unwrap(), "diff"]).await
}

#[tokio::test]
async fn for_an_older_kube_proxy_only_common_rules_are_compared() {
    for (name, mode) in [("seed-iptables", Mode::Iptables), ("seed-ipvs", Mode::Ipvs)] {
        let ran = diff_as(name, mode, "v1.24.17").await;
        assert_eq!(ran.code, 3, "{name}\n{ran}");
        assert!(ran.out.contains("\nno difference from mode"), "{ran}");
        assert!(ran.out.contains("rules other than KUBE-SEP-*"), "{ran}");
        assert!(ran.out.contains("kube-proxy v1.24.17"), "{ran}");
    }
    let mut evidence = evidence_of("seed-ipvs", Mode::Ipvs);
    let sets = evidence.text(Item::Ipset).unwrap();
    let line = "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443\n";
    let fewer = sets.replacen(line, "", 1);
    assert_ne!(fewer, sets);
    evidence.insert(Item::Ipset, Ok(fewer));
    let ran = diff_of(evidence, "v1.24.17").await;
    assert!(ran.out.contains("\n1 difference"), "{ran}");
    assert!(ran.out.contains("10.96.0.1,tcp:443"), "{ran}");
    // These two sets came with later releases.
    let mut evidence = evidence_of("seed-ipvs", Mode::Ipvs);
    let sets = without(evidence.text(Item::Ipset).unwrap(), "IPVS-IPS");
    let sets = without(&sets, "HEALTH-CHECK-NODE-PORT");
    evidence.insert(Item::Ipset, Ok(sets));
    let ran = diff_of(evidence, "v1.24.17").await;
    assert!(ran.out.contains("\nno difference from mode"), "{ran}");
    // Of the chains, only these two are compared.
    let mut evidence = evidence_of("seed-iptables", Mode::Iptables);
    let rules = evidence.text(Item::Iptables4).unwrap();
    let rules: String = rules
        .lines()
        .filter(|line| !line.contains("-A KUBE-") || line.ends_with("-j KUBE-MARK-MASQ"))
        .flat_map(|line| [line, "\n"])
        .collect();
    evidence.insert(Item::Iptables4, Ok(rules));
    let ran = diff_of(evidence, "v1.24.17").await;
    assert!(ran.out.contains("nat chain KUBE-MARK-MASQ rule 1"), "{ran}");
    assert!(ran.out.contains("nat chain KUBE-SEP-"), "{ran}");
    assert!(!ran.out.contains("nat chain KUBE-SERVICES"), "{ran}");
    // The tables of the mode's alpha had another layout.
    let ran = diff_as("full-nftables", Mode::Nftables, "v1.29.3").await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(
        ran.out.contains("kube-proxy v1.29.3 has another table"),
        "{ran}"
    );
}

#[tokio::test]
async fn rules_of_another_version_are_a_difference() {
    let ran = diff_as("full-nftables", Mode::Nftables, "v1.35.2").await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("mark-for-masquerade"), "{ran}");
    // Kubernetes has ipMode of load balancers since 1.29, and the last rule of a chain for source ranges since 1.27.
    let ran = diff_as("full-iptables-v1.30", Mode::Iptables, "v1.27.9").await;
    assert!(ran.out.contains("\n1 difference"), "{ran}");
    assert!(ran.out.contains("edge/lb-proxy:http"), "{ran}");
    let ran = diff_as("full-iptables-v1.30", Mode::Iptables, "v1.26.1").await;
    assert!(
        ran.out.contains("extra    IPv4 nat chain KUBE-FW-"),
        "{ran}"
    );
    let ran = diff_as("seed-iptables", Mode::Iptables, "v1.27.9").await;
    assert_eq!(ran.code, 0, "{ran}");
}

#[tokio::test]
async fn a_set_of_another_type_is_shown_with_both_types() {
    let other = |text: &str| {
        let others = text
            .lines()
            .filter(|line| !line.starts_with("add KUBE-CLUSTER-IP "));
        let text = others.collect::<Vec<_>>().join("\n") + "\n";
        text.replace(
            "create KUBE-CLUSTER-IP hash:ip,port",
            "create KUBE-CLUSTER-IP hash:ip",
        )
    };
    let node = broken("seed-ipvs", &[("node/ipset-save.txt", &other)]);
    let report = report_of(&node).await;
    let changes = report["changes"].as_array().unwrap();
    let kinds = changes
        .iter()
        .map(|change| (change["have"].as_str(), change["want"].as_str()));
    let found = kinds.clone().any(|(have, want)| {
        have.is_some_and(|have| have.starts_with("hash:ip family inet"))
            && want.is_some_and(|want| want.starts_with("hash:ip,port family inet"))
    });
    assert!(found, "{:?}", kinds.collect::<Vec<_>>());
    // The kernel keeps a set that rules match.
    let ran = kpx(&["--from", node.path().to_str().unwrap(), "reconcile"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("so its type cannot change"), "{ran}");
}

#[tokio::test]
async fn a_member_or_rule_that_the_ipvs_mode_lacks_is_that_of_its_service() {
    const SETS: &str = "node/ipset-save.txt";
    const RULES: &str = "node/iptables-save.txt";
    for (file, line, service) in [
        (
            SETS,
            "add KUBE-HEALTH-CHECK-NODE-PORT 32000",
            "edge/web-local",
        ),
        (SETS, "add KUBE-LOOP-BACK 10.244.1.58,", "edge/sigtran:m3ua"),
        (
            RULES,
            "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.11/32",
            "edge/web-restricted",
        ),
    ] {
        let lacking = |text: &str| without(text, line);
        let node = broken("full-ipvs", &[(file, &lacking)]);
        let report = report_of(&node).await;
        assert_eq!(each(&report, "service"), [service], "{report:#}");
    }
}

#[tokio::test]
async fn a_missing_set_is_shown_with_its_members() {
    let lacking = |text: &str| without(text, " KUBE-LOAD-BALANCER-FW ");
    let node = broken("full-ipvs", &[("node/ipset-save.txt", &lacking)]);
    let report = report_of(&node).await;
    assert_eq!(each(&report, "object"), ["set KUBE-LOAD-BALANCER-FW"]);
    let want = report["changes"][0]["want"].as_str().unwrap();
    let (shape, members) = want.split_once('\n').unwrap();
    assert!(shape.starts_with("hash:ip,port family inet"), "{shape}");
    assert_eq!(members, "203.0.113.11,tcp:443");
}

#[tokio::test]
async fn a_member_that_the_set_excludes_is_a_difference() {
    let member = "203.0.113.11,tcp:443,192.0.2.0/25";
    let excluded = |text: &str| text.replace(member, &format!("{member} nomatch"));
    let node = broken("full-ipvs", &[("node/ipset-save.txt", &excluded)]);
    let report = report_of(&node).await;
    assert_eq!(each(&report, "have"), [format!("{member} nomatch")]);
    assert_eq!(each(&report, "want"), [member]);
}

#[tokio::test]
async fn the_order_of_services_in_the_filter_of_the_ipvs_mode_is_no_difference() {
    let ingress = |addr: &str| format!("\"ip\": \"{addr}\",");
    let two = |text: &str| {
        let more = format!(
            "{} \"ipMode\": \"VIP\" }}, {{ {}",
            ingress("203.0.113.11"),
            ingress("203.0.113.21")
        );
        text.replace(&ingress("203.0.113.11"), &more)
    };
    let later_first = |text: &str| {
        let line = "[0:0] -A KUBE-IPVS-OUT-FILTER -s 203.0.113.11/32";
        let mut lines = Vec::new();
        for other in text.lines() {
            if other.starts_with(line) {
                lines.push(other.replace("203.0.113.11", "203.0.113.21"));
            }
            lines.push(other.to_owned());
        }
        lines.join("\n") + "\n"
    };
    let node = broken(
        "full-ipvs",
        &[
            ("cluster/services.json", &two),
            ("node/iptables-save.txt", &later_first),
        ],
    );
    let report = report_of(&node).await;
    let layers = each(&report, "layer");
    assert!(layers.contains(&"ipvs"), "{report:#}");
    assert!(!layers.contains(&"iptables"), "{report:#}");
}

#[test]
fn flags_of_the_scheduler_that_could_not_be_read_are_no_difference() {
    let service = json!({
        "metadata": { "namespace": "default", "name": "web" },
        "spec": { "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] },
    });
    let server = json!({
        "family": "IPv4",
        "protocol": "tcp",
        "address": "10.96.0.9",
        "port": 80,
        "scheduler": "mh",
        "prefix": 32,
    });
    let mut evidence = evidence(0, DUAL, "ipvs", "v1.36.2");
    let mut put = |item, text: String| evidence.insert(item, Ok(text));
    let config = "hostnameOverride: node1\nipvs: {scheduler: mh}\n";
    put(Item::ProxyConfig, config.to_owned());
    put(Item::Services, json!({ "items": [service] }).to_string());
    put(Item::EndpointSlices, json!({ "items": [] }).to_string());
    for (partial, count) in [(true, 0), (false, 1)] {
        let table = json!({ "partial": partial, "services": [server] });
        evidence.insert(Item::Ipvs, Ok(table.to_string()));
        let node = NodeSnapshot::new(&evidence);
        let found = kpx_judge::diff::compare(&node, Mode::Ipvs, &[Family::V4]).unwrap();
        let servers = found.changes.iter();
        let servers: Vec<_> = servers
            .filter(|server| server.layer() == Layer::Ipvs)
            .collect();
        assert_eq!(servers.len(), count, "{servers:#?}");
    }
}

#[tokio::test]
async fn the_differences_of_a_service_are_in_order() {
    let fewer = |text: &str| {
        let text = without(text, "KUBE-SVC-I5LIAMPLWKMBJ54B ! -s 10.244.0.0/16");
        let text = without(&text, "\"shop/cart:http cluster IP\"");
        without(
            &without(&text, ":KUBE-SEP-GKODGQF56WMZEVGY"),
            "-A KUBE-SEP-GKODGQF56WMZEVGY",
        )
    };
    let node = broken("full-iptables", &[("node/iptables-save.txt", &fewer)]);
    let report = report_of(&node).await;
    let objects = each(&report, "object");
    assert_eq!(objects.len(), 3, "{report:#}");
    assert_eq!(objects[0], "nat chain KUBE-SEP-GKODGQF56WMZEVGY");
    assert!(objects[1].starts_with("nat chain KUBE-SERVICES rule "));
    assert_eq!(objects[2], "nat chain KUBE-SVC-I5LIAMPLWKMBJ54B rule 1");
}

#[tokio::test]
async fn a_first_sync_that_has_written_everything_is_no_difference() {
    let first = |text: &str| {
        without(
            text,
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
        )
    };
    let metrics = "kube-proxy/metrics.txt";
    let node = broken("full-iptables", &[(metrics, &first)]);
    let ran = kpx(&["--from", node.path().to_str().unwrap(), "diff"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(!ran.out.contains("first sync"), "{ran}");
    let fewer = |text: &str| without(text, "\"shop/cart:http cluster IP\"");
    let rules = "node/iptables-save.txt";
    let node = broken("full-iptables", &[(metrics, &first), (rules, &fewer)]);
    let ran = kpx(&["--from", node.path().to_str().unwrap(), "diff"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(ran.out.contains("2 differences ignored"), "{ran}");
}

#[tokio::test]
async fn settings_that_could_not_be_read_are_noted_if_kube_proxy_writes_some() {
    for (name, noted) in [("full-iptables", true), ("full-nftables", false)] {
        let node = broken(name, &[]);
        fs::remove_file(node.path().join("node/sysctl.txt")).unwrap();
        let report = report_of(&node).await;
        assert_eq!(report["changes"], json!([]), "{report:#}");
        let why = "sysctls are not compared: node/sysctl.txt was not collected";
        let expected = noted.then(|| json!([why]));
        assert_eq!(report.get("notes"), expected.as_ref(), "{name}");
    }
}

/// Turns the entries of each map in `value` around, and returns how many there were.
fn turned(value: &mut Value) -> usize {
    let inner: usize = match value {
        Value::Object(fields) => fields.values_mut().map(turned).sum(),
        Value::Array(items) => items.iter_mut().map(turned).sum(),
        _ => 0,
    };
    match value
        .pointer_mut("/map/data/set")
        .and_then(Value::as_array_mut)
    {
        Some(entries) => {
            entries.reverse();
            inner + 1
        }
        None => inner,
    }
}

#[tokio::test]
async fn the_order_of_a_map_is_no_difference() {
    let around = |text: &str| {
        let mut rules: Value = serde_json::from_str(text).unwrap();
        assert!(turned(&mut rules) > 5);
        rules.to_string()
    };
    let node = broken("full-nftables", &[("node/nft.json", &around)]);
    let ran = kpx(&["--from", node.path().to_str().unwrap(), "diff"]).await;
    assert_eq!(ran.code, 0, "{ran}");
}
