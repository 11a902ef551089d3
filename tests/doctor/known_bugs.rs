//! KB01: the known bugs of kube-proxy's releases. Each shows only with a version that has it, and with what it leaves behind.

use std::collections::BTreeSet;

use kpx_judge::check::Finding;
use kpx_judge::redact::Redactor;
use kpx_node::evidence::{Evidence, Item};
use serde_json::json;

use super::case::{
    append, edit, empty_map, findings, load, replace, reuse_address, run, set_version,
};
use crate::support::root;

/// A bug, in a bundle that shows it.
struct Case {
    key: &'static str,
    /// The recording that the bundle begins with.
    node: &'static str,
    /// A version that has the bug.
    version: &'static str,
    /// The first later version of this release, or of the next one, that does not.
    fixed: &'static str,
    /// Adds what the bug leaves behind.
    show: fn(&mut Evidence),
}

const METRIC: &str = "kubeproxy_sync_full_proxy_rules_duration_seconds";

/// Sets the average of a histogram of metrics.
fn slow(evidence: &mut Evidence, name: &str, seconds: u32) {
    let metrics = evidence.text(Item::Metrics).unwrap();
    let others = metrics.lines().filter(|line| !line.starts_with(name));
    let mut metrics: Vec<_> = others.map(str::to_owned).collect();
    metrics.push(format!("{name}_sum{{ip_family=\"IPv4\"}} {}", 2 * seconds));
    metrics.push(format!("{name}_count{{ip_family=\"IPv4\"}} 2"));
    evidence.insert(Item::Metrics, Ok(metrics.join("\n")));
}

/// Removes the lines of the IPv4 rules that contain `word`.
fn without_rules(evidence: &mut Evidence, word: &str) {
    let rules = evidence.text(Item::Iptables4).unwrap();
    let left = rules.lines().filter(|line| !line.contains(word));
    let left: Vec<_> = left.collect();
    assert!(left.len() < rules.lines().count());
    evidence.insert(Item::Iptables4, Ok(left.join("\n") + "\n"));
}

fn many_endpoints(evidence: &mut Evidence) {
    let wide = load("mx10-many-endpoints");
    let slices = wide.text(Item::EndpointSlices).unwrap().to_owned();
    evidence.insert(Item::EndpointSlices, Ok(slices));
}

/// Returns a recording with a kernel's log, in which no bug shows.
fn recording(name: &str) -> Evidence {
    let mut evidence = load(name);
    let log = "[    0.000000] Linux version 6.1.0-56-amd64\n";
    evidence.insert(Item::KernelLog, Ok(log.to_owned()));
    evidence
}

const CASES: &[Case] = &[
    Case {
        key: "udp-stale-endpoint",
        node: "full-iptables",
        version: "v1.31.4",
        fixed: "v1.32.0",
        show: |evidence| {
            append(
                evidence,
                Item::Conntrack,
                "udp 17 28 src=10.244.1.30 dst=10.96.0.10 sport=41000 dport=53 [UNREPLIED] src=10.244.1.99 dst=10.244.1.30 sport=53 dport=41000 mark=0 use=1",
            );
        },
    },
    Case {
        key: "conntrack-memory",
        node: "full-iptables",
        version: "v1.32.2",
        fixed: "v1.32.3",
        show: |evidence| {
            append(
                evidence,
                Item::Metrics,
                "process_resident_memory_bytes 1.2884901888e+10",
            );
        },
    },
    Case {
        key: "conntrack-slow",
        node: "full-iptables",
        version: "v1.35.4",
        fixed: "v1.36.0",
        show: |evidence| {
            slow(
                evidence,
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                9,
            );
        },
    },
    Case {
        key: "udp-last-endpoint",
        node: "full-iptables",
        version: "v1.36.2",
        fixed: "v1.37.0",
        show: |evidence| {
            append(
                evidence,
                Item::Conntrack,
                "udp 17 28 src=10.244.1.31 dst=10.100.2.8 sport=514 dport=514 [UNREPLIED] src=10.244.1.98 dst=10.244.1.31 sport=514 dport=514 mark=0 use=1",
            );
            edit(evidence, Item::EndpointSlices, |slices| {
                let all = slices["items"].as_array_mut().unwrap();
                all.retain(|slice| {
                    slice["metadata"]["labels"]["kubernetes.io/service-name"] != "syslog"
                });
            });
        },
    },
    Case {
        key: "udp-deleted-service",
        node: "full-iptables",
        version: "v1.37.1",
        fixed: "v1.38.0",
        show: |evidence| {
            append(
                evidence,
                Item::Conntrack,
                "udp 17 28 src=10.244.1.31 dst=10.96.77.7 sport=4125 dport=8125 [UNREPLIED] src=10.244.1.98 dst=10.244.1.31 sport=8125 dport=4125 mark=0 use=1",
            );
            let ranges = json!({"items": [{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}]});
            evidence.insert(Item::ServiceCidrs, Ok(ranges.to_string()));
        },
    },
    Case {
        key: "pod-address-reused",
        node: "full-iptables",
        version: "v1.35.3",
        fixed: "v1.36.0",
        show: reuse_address,
    },
    Case {
        key: "iptables-lost-update",
        node: "full-iptables-v1.30",
        version: "v1.29.1",
        fixed: "v1.29.2",
        show: |evidence| without_rules(evidence, "-j KUBE-SEP-"),
    },
    Case {
        key: "iptables-hourly-sync",
        node: "full-iptables",
        version: "v1.35.4",
        fixed: "v1.35.5",
        show: |evidence| {
            slow(evidence, METRIC, 40);
            many_endpoints(evidence);
        },
    },
    Case {
        key: "ipvs-sctp-source",
        node: "full-ipvs",
        version: "v1.22.4",
        fixed: "v1.23.0",
        show: |evidence| {
            let rules = evidence.text(Item::Iptables4).unwrap();
            let of_sctp = [
                "SCTP-HASH dst,dst -j KUBE-MARK-MASQ",
                "LOCAL-SCTP-HASH dst,dst -j RETURN",
            ]
            .map(|rule| {
                format!(
                    "[0:0] -A KUBE-NODE-PORT -p sctp -m set --match-set KUBE-NODE-PORT-{rule}\n"
                )
            });
            let first = rules.find("[0:0] -A KUBE-NODE-PORT -p tcp").unwrap();
            let (before, after) = rules.split_at(first);
            let rules = format!("{before}{}{after}", of_sctp.concat());
            evidence.insert(Item::Iptables4, Ok(rules));
            edit(evidence, Item::Services, |services| {
                let all = services["items"].as_array_mut().unwrap().iter_mut();
                let local = all.into_iter().find(|service| {
                    let spec = &service["spec"];
                    spec["type"] == "NodePort" && spec["externalTrafficPolicy"] == "Local"
                });
                local.unwrap()["spec"]["ports"][0]["protocol"] = json!("SCTP");
            });
        },
    },
    Case {
        key: "ipvs-node-port-address",
        node: "full-ipvs",
        version: "v1.26.4",
        fixed: "v1.27.2",
        show: |evidence| {
            edit(evidence, Item::Addresses, |links| {
                let all = links.as_array_mut().unwrap().iter_mut();
                let dummy = all.into_iter().find(|link| link["ifname"] == "kube-ipvs0");
                let held = dummy.unwrap()["addr_info"].as_array_mut().unwrap();
                held.push(json!({"family": "inet", "local": "10.0.2.15", "prefixlen": 32, "scope": "global"}));
            });
            let servers = evidence.text(Item::IpvsSave).unwrap();
            let others = servers
                .lines()
                .filter(|line| !line.contains("10.0.2.15:30080"));
            let others: Vec<_> = others.collect();
            let others = others.join("\n") + "\n";
            evidence.insert(Item::IpvsSave, Ok(others));
        },
    },
    Case {
        key: "ipvs-host-services",
        node: "full-ipvs",
        version: "v1.27.1",
        fixed: "v1.27.2",
        show: |evidence| append(evidence, Item::Ipset, "add KUBE-IPVS-IPS 10.0.2.15"),
    },
    Case {
        key: "ipvs-health-check-port",
        node: "full-ipvs",
        version: "v1.26.4",
        fixed: "v1.26.5",
        show: |evidence| without_rules(evidence, "--match-set KUBE-HEALTH-CHECK-NODE-PORT"),
    },
    Case {
        key: "ipvs-local-external-ip",
        node: "full-ipvs",
        version: "v1.29.0",
        fixed: "v1.30.0",
        show: |evidence| {
            without_rules(evidence, "--match-set KUBE-EXTERNAL-IP-LOCAL");
            edit(evidence, Item::Services, |services| {
                let all = services["items"].as_array_mut().unwrap().iter_mut();
                let ext = all
                    .into_iter()
                    .find(|service| service["metadata"]["name"] == "ext");
                ext.unwrap()["spec"]["externalTrafficPolicy"] = json!("Local");
            });
        },
    },
    Case {
        key: "nftables-newer-sets",
        node: "full-nftables",
        version: "v1.36.2",
        fixed: "v1.37.0",
        show: |evidence| {
            let hit = load("kb01-newer-nft");
            for item in [Item::NftVersion, Item::Nft] {
                evidence.insert(item, Ok(hit.text(item).unwrap().to_owned()));
            }
            append(
                evidence,
                Item::Metrics,
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 12",
            );
        },
    },
    Case {
        key: "nftables-soft-lockup",
        node: "full-nftables",
        version: "v1.34.3",
        fixed: "v1.36.0",
        show: |evidence| {
            let log = "[ 1753.75] watchdog: BUG: soft lockup - CPU#3 stuck for 134s! [nft:51234]\n";
            evidence.insert(Item::KernelLog, Ok(log.to_owned()));
        },
    },
    Case {
        key: "nftables-local-load-balancer",
        node: "full-nftables",
        version: "v1.33.5",
        fixed: "v1.33.6",
        // The recording has the element that drops the address of Service web-remote-only.
        show: |_| {},
    },
    Case {
        key: "nftables-interface-name",
        node: "full-nftables",
        version: "v1.34.1",
        fixed: "v1.34.2",
        show: |evidence| {
            append(
                evidence,
                Item::ProxyConfig,
                "detectLocalMode: BridgeInterface\ndetectLocal:\n  bridgeInterface: cni0",
            );
        },
    },
    Case {
        key: "nftables-full-sync",
        node: "full-nftables",
        version: "v1.36.2",
        fixed: "v1.37.0",
        show: |evidence| slow(evidence, METRIC, 300),
    },
    Case {
        key: "nftables-protocol-names",
        node: "full-nftables",
        version: "v1.36.2",
        fixed: "v1.37.0",
        show: empty_map,
    },
    Case {
        key: "nftables-localhost-restart",
        node: "full-nftables",
        version: "v1.37.0",
        fixed: "",
        show: |evidence| {
            append(
                evidence,
                Item::ProxyConfig,
                "nodePortAddresses: [primary, localhost]\nfeatureGates:\n  KubeProxyNFTablesLocalhostNodePorts: true",
            );
            append(evidence, Item::Metrics, &listeners(0, 0));
        },
    },
];

/// Returns the number of listeners on loopback addresses as kube-proxy 1.37.0 serves it (`pkg/proxy/metrics/metrics.go`, KEP-6032).
fn listeners(v4: u8, v6: u8) -> String {
    let name = "kubeproxy_nftables_localhost_nodeport_listeners";
    format!(
        "# HELP {name} [ALPHA] Listeners\n# TYPE {name} gauge\n{name}{{ip_family=\"IPv4\"}} {v4}\n\
         {name}{{ip_family=\"IPv6\"}} {v6}"
    )
}

#[test]
fn closed_node_ports_on_loopback_show_only_by_the_metric_of_the_release() {
    let at = |config: &str, metrics: &str| {
        let mut evidence = recording("full-nftables");
        set_version(&mut evidence, "v1.38.0");
        append(&mut evidence, Item::ProxyConfig, config);
        append(&mut evidence, Item::Metrics, metrics);
        known(&evidence, "nftables-localhost-restart")
    };
    let words = "nodePortAddresses: [primary, localhost]";
    assert!(at(words, &listeners(0, 0)).is_some());
    // Services with NodePorts of TCP have listeners, or none is asked for.
    assert!(at(words, &listeners(8, 0)).is_none());
    assert!(at("nodePortAddresses: [primary]", &listeners(0, 0)).is_none());
    assert!(at("nodePortAddresses: ['::1/128']", &listeners(0, 0)).is_none());
    // Neither an early draft's name nor the counter of packets of the iptables mode says so.
    let draft = "kubeproxy_localhost_nodeport_listeners{ip_family=\"IPv4\"} 0";
    assert!(at(words, draft).is_none());
}

fn known(evidence: &Evidence, key: &str) -> Option<Finding> {
    let found = findings(run(evidence, "KB01", None));
    found.into_iter().find(|finding| finding.subject == key)
}

#[test]
fn a_known_bug_shows_with_its_version_and_its_evidence_only() {
    known_bugs_show(false);
}

/// With `redacted`, each shows in the redacted evidence, too.
pub(crate) fn known_bugs_show(redacted: bool) {
    for case in CASES {
        let mut evidence = recording(case.node);
        set_version(&mut evidence, case.version);
        let always = case.key == "nftables-local-load-balancer";
        let before = known(&evidence, case.key);
        assert!(always || before.is_none(), "{}: {before:?}", case.key);
        (case.show)(&mut evidence);
        let found = known(&evidence, case.key);
        let found = found.unwrap_or_else(|| panic!("{} does not show", case.key));
        assert!(found.message.contains(case.version), "{}", case.key);
        if redacted {
            let redacted = Redactor::new([7; 32], &evidence).evidence(&evidence);
            let same = known(&redacted, case.key);
            let same = same.unwrap_or_else(|| panic!("{} does not show redacted", case.key));
            assert_eq!(
                (&same.message, same.evidence.len()),
                (&found.message, found.evidence.len())
            );
        }
        let fix = found.fix.as_ref().unwrap().text();
        if case.fixed.is_empty() {
            assert!(fix.starts_with("No known version fixes it."), "{fix}");
            set_version(&mut evidence, "v1.36.2");
        } else {
            set_version(&mut evidence, case.fixed);
        }
        assert!(known(&evidence, case.key).is_none(), "{}", case.key);
    }
}

#[test]
fn a_service_without_drops_does_not_show_the_dropped_load_balancer() {
    let mut evidence = recording("full-nftables");
    set_version(&mut evidence, "v1.33.5");
    let key = "nftables-local-load-balancer";
    assert!(known(&evidence, key).is_some());
    replace(&mut evidence, Item::Nft, "203.0.113.13", "203.0.113.213");
    assert!(known(&evidence, key).is_none());
}

#[test]
fn the_fix_names_the_version_and_the_thread() {
    let mut evidence = load("full-iptables");
    set_version(&mut evidence, "v1.32.1");
    append(
        &mut evidence,
        Item::Metrics,
        "process_resident_memory_bytes 1.2884901888e+10",
    );
    let found = known(&evidence, "conntrack-memory").unwrap();
    let fix = found.fix.unwrap().text();
    assert!(
        fix.starts_with("Upgrade kube-proxy to v1.32.3 or newer."),
        "{fix}"
    );
    let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
    let thread = "https://github.com/kubernetes/kubernetes/issues/129982";
    assert!(seen.iter().any(|proof| proof == thread), "{seen:?}");
}

#[test]
fn every_known_bug_has_a_case() {
    let table =
        std::fs::read_to_string(root().join("crates/judge/src/check/bugs/known.rs")).unwrap();
    let keys = table.split("key: \"").skip(1);
    let keys: BTreeSet<_> = keys.map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(keys, CASES.iter().map(|case| case.key).collect());
}
