//! DP08, KP01, KP04, KP11, MX05, VS03, KM03: kube-proxy's configuration, its sources, and the values to set.

use kpx_judge::check::{Outcome, Severity};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item};
use serde_json::{Value, json};

use crate::support::{Change, broken, kpx};

use super::case::{edit, finding, load, replace, run, set_version};

/// A node whose /configz has mode iptables, and whose ConfigMap was set to nftables at `time`.
fn edited(time: &str) -> Evidence {
    let mut evidence = load("full-iptables");
    evidence.insert(
        Item::Configz,
        Ok(json!({"kubeproxy.config.k8s.io": {"mode": "iptables"}}).to_string()),
    );
    edit(&mut evidence, Item::ConfigMaps, |maps| {
        let map = &mut maps["items"][0];
        let text = map["data"]["config.conf"].as_str().unwrap();
        let text = text.replace("mode: \"iptables\"", "mode: \"nftables\"");
        assert!(text.contains("nftables\""));
        map["data"]["config.conf"] = Value::from(text);
        map["metadata"]["managedFields"] =
            json!([{"manager": "kubectl-edit", "operation": "Update", "time": time}]);
    });
    evidence
}

#[test]
fn an_edit_that_the_kubelet_has_not_written_yet_is_a_note() {
    let found = finding(run(&edited("2026-11-22T08:59:30Z"), "KP04", None));
    assert_eq!(found.severity, Severity::Info);
    assert!(found.message.contains("edited 30 s ago"), "{found:?}");
    let found = finding(run(&edited("2026-11-21T00:00:00Z"), "KP04", None));
    assert_eq!(found.severity, Severity::Warning);
}

#[test]
fn a_reverted_edit_is_a_note_while_the_file_is_old() {
    let back = |time: &str| {
        let mut evidence = edited(time);
        // The ConfigMap has the running mode; the file on the node is older.
        evidence.insert(Item::ProxyMode, Ok("nftables".to_owned()));
        evidence
    };
    let found = finding(run(&back("2026-11-22T08:59:30Z"), "KP01", None));
    assert_eq!(found.severity, Severity::Info);
    assert!(found.message.contains("still has iptables"), "{found:?}");
    let found = finding(run(&back("2026-11-21T00:00:00Z"), "KP01", None));
    assert_eq!(found.severity, Severity::Error);
}

#[test]
fn a_staged_node_is_compared_with_its_own_copy() {
    // The ConfigMap of all other nodes says nftables; this node's pod runs from a copy that was not read.
    let mut evidence = edited("2026-11-21T00:00:00Z");
    edit(&mut evidence, Item::Pods, |pods| {
        for pod in pods["items"].as_array_mut().unwrap() {
            for volume in pod["spec"]["volumes"].as_array_mut().unwrap() {
                if volume["configMap"]["name"] == "kube-proxy" {
                    volume["configMap"]["name"] = json!("kube-proxy-kpx-0123abcd");
                }
            }
        }
    });
    assert_eq!(run(&evidence, "KP04", None), Outcome::Pass);
    assert!(matches!(run(&evidence, "MX05", None), Outcome::Skip(_)));
    // The copy's file on the node was edited: the finding names the copy, with a fix for it.
    let file = evidence.text(Item::ProxyConfig).unwrap();
    let file = file.replace("mode: iptables", "mode: \"iptables\"");
    let file = file.replace("mode: \"iptables\"", "mode: \"ipvs\"");
    evidence.insert(Item::ProxyConfig, Ok(file));
    let found = finding(run(&evidence, "KP04", None));
    assert!(found.fix.unwrap().text().contains("kpx migrate resume"));
    let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
    assert!(seen[0].contains("kube-proxy-kpx-0123abcd"), "{seen:?}");
}

/// A node whose kube-proxy is started with `args`.
fn started(args: &[&str]) -> Evidence {
    let mut evidence = load("full-iptables");
    let process = json!({"pid": 7, "name": "kube-proxy", "args": args, "sameNetwork": true});
    let processes = json!({"processes": [process]});
    evidence.insert(Item::Processes, Ok(processes.to_string()));
    evidence
}

#[test]
fn the_flag_that_overrides_the_name_is_read() {
    let with = |name: &str| {
        started(&[
            "kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            &format!("--hostname-override={name}"),
        ])
    };
    assert_eq!(run(&with("node1"), "KP11", None), Outcome::Pass);
    let found = finding(run(&with("old-name"), "KP11", None));
    assert_eq!(found.subject, "old-name");
    let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
    assert!(
        seen.iter()
            .any(|proof| proof.contains("--hostname-override")),
        "{seen:?}"
    );
    assert!(found.fix.unwrap().text().contains("--hostname-override"));
}

#[test]
fn a_name_from_the_pods_environment_is_not_taken_for_a_name() {
    let mut evidence = load("full-iptables");
    edit(&mut evidence, Item::Pods, |pods| {
        for pod in pods["items"].as_array_mut().unwrap() {
            let container = &mut pod["spec"]["containers"][0];
            container["command"] = json!(["kube-proxy", "--hostname-override=$(NODE_NAME)"]);
        }
    });
    // The kubelet fills in the name of the pod's node.
    replace(
        &mut evidence,
        Item::ProxyConfig,
        "hostnameOverride: node1",
        "hostnameOverride: \"\"",
    );
    assert_eq!(run(&evidence, "KP11", None), Outcome::Pass);
    // Values that it fills in otherwise are only known of the process.
    replace(&mut evidence, Item::Pods, "spec.nodeName", "metadata.name");
    let outcome = run(&evidence, "KP11", None);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[test]
fn virtual_servers_of_other_software_are_named_before_a_switch_to_ipvs() {
    let mut evidence = load("full-iptables");
    evidence.insert(
        Item::IpvsSave,
        Ok("-A -t 192.0.2.10:80 -s rr\n-a -t 192.0.2.10:80 -r 192.0.2.20:80 -m -w 1\n".to_owned()),
    );
    evidence.insert(
        Item::Modules,
        Ok("ip_vs 180224 2 ip_vs_rr, Live 0x0\n".to_owned()),
    );
    let found = finding(run(&evidence, "VS03", Some(Mode::Ipvs)));
    assert_eq!(found.severity, Severity::Warning);
    let command = found.fix.unwrap().command().unwrap();
    assert_eq!(
        command,
        "kubectl -n kube-system get configmap kube-proxy -o yaml | sed 's|excludeCIDRs: null|excludeCIDRs: \
         [192.0.2.10/32]|' | kubectl replace -f -"
    );
    // Virtual servers that are excluded are safe.
    let file = evidence.text(Item::ProxyConfig).unwrap().to_owned();
    let file = format!("{file}\nipvs:\n  excludeCIDRs: [192.0.2.0/24]\n");
    evidence.insert(Item::ProxyConfig, Ok(file));
    assert_eq!(run(&evidence, "VS03", Some(Mode::Ipvs)), Outcome::Pass);
}

#[test]
fn exclude_cidrs_of_the_service_range_leave_virtual_servers_of_deleted_services() {
    let mut evidence = load("full-ipvs");
    let servers = evidence.text(Item::IpvsSave).unwrap().to_owned();
    let servers = format!("-A -t 10.100.200.200:80 -s rr\n{servers}");
    evidence.insert(Item::IpvsSave, Ok(servers));
    let file = evidence.text(Item::ProxyConfig).unwrap().to_owned();
    for (excluded, is_left) in [("10.96.0.0/12", true), ("10.100.200.200/32", false)] {
        let file = format!("{file}\nipvs:\n  excludeCIDRs: [192.0.2.77/32, {excluded}]\n");
        evidence.insert(Item::ProxyConfig, Ok(file));
        let outcome = run(&evidence, "VS03", None);
        if !is_left {
            assert_eq!(outcome, Outcome::Pass, "{excluded}");
            continue;
        }
        let found = finding(outcome);
        let fix = serde_json::to_string(&found.fix).unwrap();
        assert!(fix.contains("out of ipvs.excludeCIDRs"), "{fix}");
    }
}

#[test]
fn virtual_servers_are_unknown_without_the_nodes_addresses() {
    let mut evidence = load("full-ipvs");
    let servers = |evidence: &Evidence, target| run(evidence, "VS03", Some(target));
    assert_eq!(servers(&evidence, Mode::Nftables), Outcome::Pass);
    evidence.insert(Item::Addresses, Err(Gap::NotCollected(Item::Addresses)));
    for target in [Mode::Ipvs, Mode::Nftables] {
        // Without them, NodePorts look like virtual servers of other software.
        let outcome = servers(&evidence, target);
        assert!(
            matches!(outcome, Outcome::Unknown(_)),
            "{target}: {outcome:?}"
        );
    }
}

#[test]
fn a_service_may_have_an_address_of_the_node_if_those_are_unknown() {
    let mut evidence = load("full-iptables");
    assert_eq!(run(&evidence, "AP03", Some(Mode::Ipvs)), Outcome::Pass);
    evidence.insert(Item::Addresses, Err(Gap::NotCollected(Item::Addresses)));
    let outcome = run(&evidence, "AP03", Some(Mode::Ipvs));
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[test]
fn strict_arp_may_be_needed_if_pods_are_unknown() {
    let mut evidence = load("full-ipvs");
    assert!(matches!(run(&evidence, "SY06", None), Outcome::Skip(_)));
    evidence.insert(Item::Pods, Err(Gap::NotCollected(Item::Pods)));
    let outcome = run(&evidence, "SY06", None);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[test]
fn the_file_of_modules_lists_all_of_them() {
    let mut evidence = load("full-ipvs");
    evidence.insert(
        Item::Modules,
        Ok("ip_vs_rr 16384 1 - Live 0x0\nip_vs 180224 2 ip_vs_rr, Live 0x0\nnf_conntrack 180224 1 ip_vs, Live 0x0\n".to_owned()),
    );
    evidence.insert(Item::ModulesBuiltin, Ok(String::new()));
    evidence.insert(
        Item::ModulesLoad,
        Ok("/etc/modules-load.d/kube-proxy.conf: ip_vs\n".to_owned()),
    );
    let found = finding(run(&evidence, "KM03", Some(Mode::Ipvs)));
    assert_eq!(
        found.fix.unwrap().command().as_deref(),
        Some("printf '%s\\n' ip_vs ip_vs_rr nf_conntrack > /etc/modules-load.d/kube-proxy.conf")
    );
}

#[test]
fn flushed_rules_can_be_written_back() {
    let mut evidence = load("seed-iptables");
    for item in [Item::Iptables4, Item::Iptables6] {
        evidence.insert(item, Ok("# flushed\n".to_owned()));
    }
    let found = finding(run(&evidence, "KP01", None));
    let fix = found.fix.unwrap();
    assert_eq!(fix.command().as_deref(), Some("kpx reconcile --apply"));
}

#[test]
fn external_ips_are_deprecated_by_release_and_ignored_without_their_gate() {
    let mut evidence = load("dp08-external-ips-off");
    let found = finding(run(&evidence, "DP08", None));
    assert_eq!(found.subject, "edge/ext");
    assert!(
        found.message.ends_with("AllowServiceExternalIPs is off"),
        "{found:?}"
    );
    assert!(found.fix.unwrap().text().contains("remove the gate"));

    let config = evidence.text(Item::ProxyConfig).unwrap();
    let config = config.replace("IPs: false", "IPs: true");
    evidence.insert(Item::ProxyConfig, Ok(config));
    let found = finding(run(&evidence, "DP08", None));
    assert!(found.message.contains("deprecated since 1.36"), "{found:?}");

    let mut headless = evidence.clone();
    edit(&mut headless, Item::Services, |services| {
        for service in services["items"].as_array_mut().unwrap() {
            service["spec"]["clusterIP"] = json!("None");
        }
    });
    assert_eq!(run(&headless, "DP08", None), Outcome::Pass);

    set_version(&mut evidence, "v1.35.4");
    assert_eq!(run(&evidence, "DP08", None), Outcome::Pass);
    // The Node has the kubelet's version only.
    evidence.insert(Item::Metrics, Err(Gap::NotCollected(Item::Metrics)));
    let outcome = run(&evidence, "DP08", None);
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

#[test]
fn a_config_map_without_a_mode_is_seen_beside_a_process_in_nftables() {
    let mut evidence = load("full-nftables");
    edit(&mut evidence, Item::ConfigMaps, |maps| {
        let map = &mut maps["items"][0];
        let text = map["data"]["config.conf"].as_str().unwrap();
        let unset = text.replace("mode: \"nftables\"", "mode: \"\"");
        let unset = unset.replace("mode: nftables", "mode: \"\"");
        assert_ne!(text, unset);
        map["data"]["config.conf"] = Value::from(unset);
    });
    // With all settings of the process, and with its mode alone.
    let mut told = vec![evidence.clone(), evidence];
    told[0].insert(
        Item::Configz,
        Ok(json!({"kubeproxy.config.k8s.io": {"mode": "nftables"}}).to_string()),
    );
    for evidence in &mut told {
        let found = finding(run(evidence, "KP04", None));
        let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
        assert!(
            seen.iter()
                .any(|proof| proof.contains("but nftables is in use")),
            "{seen:?}"
        );
        // A pod on another node reads the same ConfigMap.
        edit(evidence, Item::Pods, |pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let is_proxy = |pod: &&Value| pod["spec"]["containers"][0]["name"] == "kube-proxy";
            let mut other = all.iter().find(is_proxy).unwrap().clone();
            other["metadata"]["name"] = json!("kube-proxy-other");
            other["spec"]["nodeName"] = json!("node2");
            all.push(other);
        });
        let found = finding(run(evidence, "MX05", None));
        let seen: Vec<_> = found.evidence.iter().map(ToString::to_string).collect();
        assert!(
            seen.iter().any(|proof| proof.contains("nftables"))
                && seen.iter().any(|proof| proof.contains("iptables: node2")),
            "{seen:?}"
        );
    }
}

#[test]
fn kp01_does_not_apply_where_cilium_replaces_kube_proxy() {
    let mut evidence = load("healthy-cilium");
    evidence.insert(Item::Iptables4, Ok("# none\n".to_owned()));
    evidence.insert(Item::Iptables6, Ok("# none\n".to_owned()));
    evidence.insert(Item::Nft, Ok(r#"{"nftables": []}"#.to_owned()));
    evidence.insert(Item::Services, Ok(r#"{"items": []}"#.to_owned()));
    let of = |processes: &str| {
        let mut evidence = evidence.clone();
        evidence.insert(Item::Processes, Ok(processes.to_owned()));
        run(&evidence, "KP01", None)
    };
    let agent = r#"{"pid":3,"name":"cilium-agent","args":["cilium-agent","--kube-proxy-replacement=true"],"sameNetwork":true}"#;
    let proxy = r#"{"pid":4,"name":"kube-proxy","args":[],"sameNetwork":true}"#;
    let alone = of(&format!(r#"{{"processes":[{agent}]}}"#));
    assert!(
        matches!(&alone, Outcome::Skip(why) if why.contains("instead of kube-proxy")),
        "{alone:?}"
    );
    let both = of(&format!(r#"{{"processes":[{agent},{proxy}]}}"#));
    assert!(matches!(both, Outcome::Fail(_)), "{both:?}");
}

/// kube-proxy with `hostnameOverride: node2` in the configuration that all nodes share, on node1.
const SHARED: &[(&str, Change<'_>)] = &[
    ("kube-proxy/config.conf", &|text| {
        text.replace("hostnameOverride: node1", "hostnameOverride: node2")
    }),
    ("cluster/daemonsets.json", &own_name_removed),
    ("cluster/pods.json", &own_name_removed),
];

/// Removes the flag by which a kube-proxy has the name of its own node.
fn own_name_removed(text: &str) -> String {
    text.replace("--hostname-override=$(NODE_NAME)", "--v=2")
}

#[tokio::test]
async fn the_name_of_another_node_in_a_shared_configuration_is_found() {
    let bundle = broken("seed-ipvs", SHARED);
    let from = ["--from", bundle.path().to_str().unwrap()];
    let ran = kpx(&[&from[..], &["doctor", "--only", "KP11", "-v"]].concat()).await;
    assert_eq!(ran.code, 1, "{ran}");
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "KP11",
        "kube-proxy uses the name of another Node, node2",
        "those on node1 do not",
        "hostnameOverride: node2",
        "no interface has 10.0.2.16 of node2, but an interface has 10.0.2.15 of",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{ran}");
    }
    // All else is about the node that it is.
    let ran = kpx(&[&from[..], &["diff"]].concat()).await;
    assert_eq!(ran.code, 0, "{ran}");
}
