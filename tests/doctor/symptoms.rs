//! Symptoms from public threads, and the doctor's answers: a table of each symptom with the first line of the finding, from a
//! bundle of a node that has it.

use std::fmt::Write as _;

use kpx_judge::check::{Outcome, Question, Severity};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use serde_json::json;

use super::case::{
    append, edit, empty_map, finding, findings, load, replace, reuse_address, run, set_version,
};

/// The symptoms: number, check, question, evidence, and a word of the finding that is meant.
#[expect(clippy::too_many_lines, reason = "a table")]
fn symptoms() -> Vec<(u8, &'static str, Question, Evidence, &'static str)> {
    let now = Question::Now;
    let nftables = Question::Switch(Mode::Nftables);
    let to_1_40 = Question::Upgrade("1.40".parse().unwrap());
    let with = |name: &str, version: &str, change: fn(&mut Evidence)| {
        let mut evidence = load(name);
        set_version(&mut evidence, version);
        change(&mut evidence);
        evidence
    };
    let lookup = |name: &str| load(name);
    let slow: fn(&mut Evidence) = |evidence| {
        replace(
            evidence,
            Item::Metrics,
            "kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"} ",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"} 9",
        );
    };
    let conntrack: fn(&mut Evidence) = |evidence| {
        replace(
            evidence,
            Item::Metrics,
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family=\"IPv4\"} ",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_sum{ip_family=\"IPv4\"} 7",
        );
    };
    let memory: fn(&mut Evidence) = |evidence| {
        append(
            evidence,
            Item::Metrics,
            "process_resident_memory_bytes 1.2884901888e+10",
        );
    };
    vec![
        (1, "KB01", now, lookup("kb01-newer-nft"), "nft"),
        (1, "KP16", now, lookup("kp16-newer-nft"), "nft"),
        (
            2,
            "MX10",
            nftables,
            lookup("mx10-many-endpoints"),
            "minutes",
        ),
        (
            3,
            "KB01",
            now,
            with("full-nftables", "v1.36.1", slow),
            "hourly",
        ),
        (
            4,
            "CN09",
            nftables,
            lookup("cn09-aws-vpc-cni"),
            "wrong link",
        ),
        (5, "CN09", now, lookup("cn09-aws-vpc-cni"), "policies"),
        (
            6,
            "KB01",
            now,
            with("full-nftables", "v1.33.5", |_| {}),
            "load balancer",
        ),
        (
            7,
            "KB01",
            now,
            with("full-iptables", "v1.32.1", memory),
            "memory",
        ),
        (
            8,
            "KB01",
            now,
            with("full-iptables", "v1.34.2", conntrack),
            "conntrack",
        ),
        (9, "CT03", now, lookup("faults-traffic"), "UDP"),
        (9, "KB01", now, lookup("faults-traffic"), "UDP"),
        (
            10,
            "KB01",
            now,
            with("full-iptables", "v1.35.2", reuse_address),
            "endpoint",
        ),
        (11, "NP05", nftables, lookup("faults-moves"), "127.0.0.1"),
        (12, "NP08", now, lookup("np08-leaving-node"), "connections"),
        (13, "KP05", now, lookup("np08-leaving-node"), "503"),
        (14, "CN11", now, lookup("cn11-vxlan"), "VXLAN"),
        (15, "CN10", nftables, lookup("cn10-local-dns"), "NodeLocal"),
        (16, "CN04", now, lookup("cn04-cilium"), "left over"),
        (17, "DP09", now, lookup("dp09-no-mode"), "mode"),
        (17, "UP02", to_1_40, lookup("dp09-no-mode"), "nftables"),
        (18, "DP08", now, lookup("full-iptables"), "externalIPs"),
        (18, "UP04", to_1_40, lookup("dp09-no-mode"), "externalIPs"),
        (
            19,
            "KB01",
            now,
            with("full-nftables", "v1.36.2", empty_map),
            "/etc/protocols",
        ),
    ]
}

#[test]
fn what_users_report_is_found() {
    let mut table = String::new();
    for (row, id, question, evidence, word) in symptoms() {
        let found = findings(run(&evidence, id, question));
        let found = found.iter().find(|finding| finding.message.contains(word));
        let found = found.unwrap_or_else(|| panic!("row {row}: {id} has no finding with {word:?}"));
        let note = if found.severity == Severity::Info {
            " (a note)"
        } else {
            ""
        };
        writeln!(
            table,
            "{row} | {id} | {}: {}{note}",
            found.subject, found.message
        )
        .unwrap();
    }
    insta::assert_snapshot!(table);
}

#[test]
fn a_node_that_leaves_is_not_unhealthy() {
    let mut evidence = load("np08-leaving-node");
    let found = finding(run(&evidence, "KP05", None));
    assert_eq!(found.severity, Severity::Info);
    assert!(found.fix.unwrap().text().contains("/livez"));
    // Without the taint, kube-proxy does not see its Node.
    replace(
        &mut evidence,
        Item::Nodes,
        "ToBeDeletedByClusterAutoscaler",
        "other",
    );
    let found = finding(run(&evidence, "KP05", None));
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(run(&evidence, "NP08", None), Outcome::Pass);
    // A sync that failed is the error.
    replace(
        &mut evidence,
        Item::Healthz,
        "\"healthy\":true",
        "\"healthy\":false",
    );
    let found = finding(run(&evidence, "KP05", None));
    assert_eq!(found.severity, Severity::Error);
}

#[test]
fn connections_to_the_nodes_own_pods_do_not_count() {
    let mut evidence = load("np08-leaving-node");
    let found = finding(run(&evidence, "NP08", None));
    let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
    assert!(
        seen.iter().any(|proof| proof == "2 connections"),
        "{seen:?}"
    );
    replace(&mut evidence, Item::Conntrack, "10.244.2.7", "10.244.1.7");
    assert_eq!(run(&evidence, "NP08", None), Outcome::Pass);
}

#[test]
fn a_newer_nft_matters_only_if_other_software_has_sets() {
    let mut evidence = load("kp16-newer-nft");
    assert_eq!(
        finding(run(&evidence, "KP16", None)).severity,
        Severity::Warning
    );
    // Once syncs fail, the known bug is reported instead.
    assert_eq!(run(&load("kb01-newer-nft"), "KP16", None), Outcome::Pass);
    for (item, from, to) in [
        (Item::NftVersion, "v1.1.3", "v1.1.1"),
        (
            Item::Nft,
            "\"table\": \"filter\"",
            "\"table\": \"kube-proxy\"",
        ),
        (Item::Metrics, "v1.36.2", "v1.37.0"),
    ] {
        let mut changed = load("kp16-newer-nft");
        if item == Item::Nft {
            edit(&mut changed, item, |rules| {
                rules["nftables"]
                    .as_array_mut()
                    .unwrap()
                    .retain(|item| item.get("set").is_none());
            });
        } else {
            replace(&mut changed, item, from, to);
        }
        assert_eq!(run(&changed, "KP16", None), Outcome::Pass, "{item}");
    }
    replace(&mut evidence, Item::NftVersion, "v1.1.3", "v0.9.8");
    let found = finding(run(&evidence, "KP16", None));
    assert!(found.message.contains("too old"), "{found:?}");
}

/// Chains of the kubelet, or of other software, in the other backend are harmless.
#[test]
fn both_backends_are_a_fault_only_with_chains_of_kube_proxy_in_both() {
    let mut evidence = load("ib01-both-backends");
    assert_eq!(
        finding(run(&evidence, "IB01", None)).severity,
        Severity::Error
    );
    let others = "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-HOSTPORT-MASQ - [0:0]\n-A POSTROUTING -j CNI-HOSTPORT-MASQ\n\
                  -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\nCOMMIT\n";
    for item in [Item::IptablesLegacy4, Item::IptablesLegacy6] {
        evidence.insert(item, Ok(others.to_owned()));
    }
    assert_eq!(run(&evidence, "IB01", None), Outcome::Pass);
}

#[test]
fn node_ports_on_localhost_depend_on_the_release_and_its_settings() {
    let target = Some(Mode::Nftables);
    let at = |version: &str, lines: &str| {
        let mut evidence = load("faults-moves");
        append(
            &mut evidence,
            Item::Metrics,
            &format!("kubernetes_build_info{{git_version=\"{version}\"}} 1"),
        );
        append(&mut evidence, Item::ProxyConfig, lines);
        finding(run(&evidence, "NP05", target))
    };
    let gate = "featureGates:\n  KubeProxyNFTablesLocalhostNodePorts: true";
    let words = "nodePortAddresses: [primary, localhost]";
    assert_eq!(at("v1.36.2", words).severity, Severity::Error);
    let unset = at("v1.37.0", words);
    assert_eq!(unset.severity, Severity::Error);
    assert!(unset.fix.unwrap().text().contains("[primary, localhost]"));
    let both = format!("{words}\n{gate}");
    assert_eq!(at("v1.37.0", &both).severity, Severity::Info);
    // The gate is on by default since 1.38.
    assert_eq!(at("v1.38.0", words).severity, Severity::Info);
}

#[test]
fn words_in_node_port_addresses_need_their_release() {
    let at = |version: &str, words: &str| {
        let mut evidence = load("full-iptables");
        set_version(&mut evidence, version);
        append(
            &mut evidence,
            Item::ProxyConfig,
            &format!("nodePortAddresses: {words}"),
        );
        findings(run(&evidence, "NP04", None))
    };
    let found = at("v1.36.2", "[primary, localhost]");
    assert_eq!(found[0].severity, Severity::Error, "{found:?}");
    assert!(at("v1.37.0", "[primary, localhost]").is_empty());
    assert!(at("v1.36.2", "[primary]").is_empty());
    assert!(at("v1.37.0", "[localhost]").is_empty());
}

#[test]
fn calico_with_ebpf_leaves_the_rules_of_kube_proxy_too() {
    let mut evidence = load("cn04-cilium");
    replace(&mut evidence, Item::Links, "cilium_host", "bpfin.cali");
    replace(
        &mut evidence,
        Item::Processes,
        "cilium-agent",
        "calico-node",
    );
    let found = finding(run(&evidence, "CN04", None));
    assert!(found.message.starts_with("Calico serves"), "{found:?}");
}

#[test]
fn calico_that_follows_kube_proxy_does_not_block_the_switch() {
    let to_nftables = Some(Mode::Nftables);
    let mut evidence = load("healthy-calico");
    let found = finding(run(&evidence, "CN01", to_nftables));
    assert_eq!(found.severity, Severity::Error, "{found:?}");
    let with = |value: &str| {
        let env = json!([{"name": "FELIX_NFTABLESMODE", "value": value}]);
        let containers =
            json!([{"name": "calico-node", "image": "calico/node:v3.32.0", "env": env}]);
        let template = json!({"spec": {"containers": containers}});
        let set = json!({"metadata": {"name": "calico-node", "namespace": "kube-system"}, "spec": {"template": template}});
        json!({"items": [set]}).to_string()
    };
    evidence.insert(Item::DaemonSets, Ok(with("Disabled")));
    assert_eq!(
        finding(run(&evidence, "CN01", to_nftables)).severity,
        Severity::Error
    );
    evidence.insert(Item::DaemonSets, Ok(with("Auto")));
    let found = finding(run(&evidence, "CN01", to_nftables));
    assert_eq!(found.severity, Severity::Info, "{found:?}");
    assert!(
        found
            .message
            .contains("follows kube-proxy to the nftables mode"),
        "{found:?}"
    );
}

#[test]
fn chains_of_calico_count_in_the_other_back_end_and_in_ipv6_too() {
    let to_nftables = Some(Mode::Nftables);
    let mut evidence = load("healthy-calico");
    let (v4, v6) = (Item::Iptables4, Item::Iptables6);
    let without = "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n".to_owned();
    let calicos = evidence.text(v4).unwrap().to_owned();
    evidence.insert(v4, Ok(without.clone()));
    evidence.insert(v6, Ok(without.clone()));
    assert!(matches!(
        run(&evidence, "CN01", to_nftables),
        Outcome::Skip(_)
    ));
    evidence.insert(v6, Ok(calicos.clone()));
    assert_eq!(
        finding(run(&evidence, "CN01", to_nftables)).severity,
        Severity::Error
    );
    evidence.insert(v6, Ok(without));
    evidence.insert(Item::IptablesLegacy4, Ok(calicos));
    assert_eq!(
        finding(run(&evidence, "CN01", to_nftables)).severity,
        Severity::Error
    );
}

#[test]
fn masquerading_with_random_ports_counts_in_the_back_end_that_is_not_in_use_too() {
    let mut evidence = load("cn11-vxlan");
    let found = finding(run(&evidence, "CN11", Question::Now));
    let rules = evidence.text(Item::Iptables4).unwrap().to_owned();
    evidence.insert(
        Item::Iptables4,
        Ok("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n".to_owned()),
    );
    assert!(!matches!(
        run(&evidence, "CN11", Question::Now),
        Outcome::Fail(_)
    ));
    evidence.insert(Item::IptablesLegacy4, Ok(rules));
    assert_eq!(
        finding(run(&evidence, "CN11", Question::Now)).message,
        found.message
    );
}
