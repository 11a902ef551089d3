//! Checks on nodes with missing, empty or unreadable items, and on complete ones.

use kpx_judge::check::{self, Facts, Finding, Outcome, Question};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::written;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;
use serde_json::json;

use super::case::{append, edit, finding, findings, load, replace, run, set_version};

/// Removes `item`.
fn without(evidence: &mut Evidence, item: Item) {
    evidence.insert(item, Err(Gap::NotCollected(item)));
}

/// Removes kube-proxy's rules from the rules of `item`.
fn flush(evidence: &mut Evidence, item: Item) {
    let rules = evidence.text(item).unwrap();
    let left = rules.lines().filter(|line| !line.contains("KUBE-"));
    let left: Vec<_> = left.collect();
    evidence.insert(item, Ok(left.join("\n") + "\n"));
}

/// Adds a kube-proxy without a flag for the node's name.
fn process(evidence: &mut Evidence) {
    let args = ["kube-proxy", "--config=/var/lib/kube-proxy/config.conf"];
    let process = json!({"pid": 141, "name": "kube-proxy", "sameNetwork": true, "started": 1_795_178_630, "args": args});
    let processes = json!({ "processes": [process] });
    evidence.insert(Item::Processes, Ok(processes.to_string()));
}

fn is_unknown(evidence: &Evidence, id: &str) -> bool {
    matches!(run(evidence, id, None), Outcome::Unknown(_))
}

fn is_pass(evidence: &Evidence, id: &str) -> bool {
    run(evidence, id, None) == Outcome::Pass
}

fn texts(finding: &Finding) -> Vec<String> {
    finding.evidence.iter().map(ToString::to_string).collect()
}

/// Returns whether the finding notes what was not read.
fn notes(finding: &Finding, item: Item) -> bool {
    let note = format!("not checked: {item} was not collected");
    texts(finding).contains(&note)
}

/// Adds the items that the recording `name` lacks, as they are on a healthy node.
fn complete(name: &str) -> Evidence {
    let mut evidence = load(name);
    let tools = load("healthy-tools");
    for item in [
        Item::ConntrackStat,
        Item::Firewalls,
        Item::IpsetVersion,
        Item::KernelLog,
        Item::LinkManagers,
        Item::Migration,
        Item::Neighbours4,
        Item::Neighbours6,
        Item::NftVersion,
        Item::ProxyTools,
    ] {
        evidence.insert(item, tools.text(item).map(str::to_owned));
    }
    let other = load("seed-leftover-iptables-to-ipvs");
    for item in [Item::IpvsConnections, Item::Pods, Item::Rules] {
        evidence.insert(item, other.text(item).map(str::to_owned));
    }
    process(&mut evidence);
    let mode = evidence.text(Item::ProxyMode).unwrap().trim().to_owned();
    let mut running = written(evidence.text(Item::ProxyConfig).unwrap()).unwrap();
    running["mode"] = mode.into();
    let configz = json!({"kubeproxy.config.k8s.io": running});
    evidence.insert(Item::Configz, Ok(configz.to_string()));
    append(
        &mut evidence,
        Item::Sysctl,
        "net.ipv4.ip_local_port_range = 32768\t60999\nnet.ipv4.ip_local_reserved_ports = \nnet.ipv4.tcp_keepalive_time = 600",
    );
    evidence
}

#[test]
fn a_node_with_all_of_its_evidence_leaves_no_check_unknown() {
    for (name, expected) in [
        ("seed-iptables", &[][..]),
        ("seed-ipvs", &["DP01"]),
        ("seed-nftables", &[]),
    ] {
        let evidence = complete(name);
        let node = NodeSnapshot::new(&evidence);
        let facts = Facts::new(&node, None);
        let mut failed = Vec::new();
        for check in check::asked(Question::Now) {
            match check::run(check, &facts) {
                Outcome::Pass | Outcome::Skip(_) => {}
                Outcome::Fail(_) => failed.push(check.id),
                Outcome::Unknown(why) => panic!("{name}: {}: {why:?}", check.id),
            }
        }
        assert_eq!(failed, expected, "{name}");
    }
}

/// The rules of a family that kube-proxy has not written cannot be right.
#[test]
fn rules_of_a_family_without_any_do_not_pass() {
    let judges = [
        "IR01", "IR03", "IR04", "IR05", "IR07", "IR08", "IR09", "IR11",
    ];
    for (item, family) in [(Item::Iptables4, "IPv4"), (Item::Iptables6, "IPv6")] {
        let mut evidence = load("dual-iptables");
        for id in judges {
            assert!(is_pass(&evidence, id), "{id}");
        }
        flush(&mut evidence, item);
        for _ in 0..2 {
            for id in judges {
                assert!(is_unknown(&evidence, id), "{id} without {family}");
            }
            let found = findings(run(&evidence, "KP01", None));
            let found: Vec<_> = found
                .iter()
                .map(|finding| finding.subject.as_str())
                .collect();
            assert_eq!(found, [family]);
            // The mode that the rules show is not in doubt: iptables writes no table of nftables.
            without(&mut evidence, Item::Nft);
            without(&mut evidence, Item::NftText);
        }
    }
}

/// A family whose rules are wrong is a finding, whatever is known of the other one.
#[test]
fn a_wrong_rule_of_one_family_stays_a_finding_without_the_other() {
    let mut evidence = load("dual-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let left = rules
        .lines()
        .filter(|line| !line.contains("-A KUBE-POSTROUTING "));
    let left: Vec<_> = left.collect();
    assert!(left.len() < rules.lines().count());
    evidence.insert(Item::Iptables4, Ok(left.join("\n") + "\n"));
    without(&mut evidence, Item::Iptables6);
    let found = finding(run(&evidence, "IR09", None));
    assert!(notes(&found, Item::Iptables6), "{:?}", texts(&found));
    assert!(is_unknown(&evidence, "IR03"));
}

#[test]
fn a_drop_in_iptables_stays_an_error_without_nftables() {
    let mut evidence = load("ir16-foreign-drops");
    let all = findings(run(&evidence, "IR16", None)).len();
    without(&mut evidence, Item::Nft);
    without(&mut evidence, Item::NftText);
    let found = findings(run(&evidence, "IR16", None));
    assert!(found.len() > 1 && found.len() <= all, "{}", found.len());
    assert!(
        found.iter().any(|finding| notes(finding, Item::Nft)),
        "{found:?}"
    );
    // Without a drop, it may be in nftables.
    let mut healthy = load("healthy-firewall");
    assert!(is_pass(&healthy, "IR16"));
    without(&mut healthy, Item::Nft);
    without(&mut healthy, Item::NftText);
    assert!(is_unknown(&healthy, "IR16"));
}

/// kube-proxy does not start with an empty file, so its defaults are not the node's settings.
#[test]
fn an_empty_configuration_file_is_a_gap_and_not_the_defaults() {
    for text in ["", "\n", "# nothing yet\n", "---\n"] {
        let mut evidence = load("full-nftables");
        evidence.insert(Item::ProxyConfig, Ok(text.to_owned()));
        for id in ["DP09", "KP13", "NP04", "KP09"] {
            assert!(is_unknown(&evidence, id), "{id} with {text:?}");
        }
        without(&mut evidence, Item::ProxyMode);
        for id in ["KP01", "NF01", "DP01"] {
            assert!(is_unknown(&evidence, id), "{id} with {text:?}");
        }
    }
}

#[test]
fn health_checks_must_reach_the_listener() {
    let mut evidence = load("full-iptables");
    let is_clean = |outcome: Outcome| !matches!(outcome, Outcome::Fail(_));
    assert!(is_clean(run(&evidence, "NP06", None)));
    // The API server gave the number to another Service, too: its rules come before the listener.
    replace(
        &mut evidence,
        Item::Services,
        "\"healthCheckNodePort\": 32000",
        "\"healthCheckNodePort\": 30080",
    );
    replace(
        &mut evidence,
        Item::Sockets,
        "0.0.0.0:32000",
        "0.0.0.0:30080",
    );
    let found = finding(run(&evidence, "NP06", None));
    let message = "health checks reach another Service, whose NodePort is the healthCheckNodePort";
    assert_eq!(found.message, message);
    let seen = texts(&found);
    assert!(
        seen.iter()
            .any(|proof| proof.contains("30080 is the NodePort of")),
        "{seen:?}"
    );
    assert!(seen.iter().any(|proof| proof.contains("DNAT")), "{seen:?}");
    // Packets of which rules are not known may go astray.
    let mut evidence = load("full-iptables");
    without(&mut evidence, Item::Iptables4);
    assert!(is_unknown(&evidence, "NP06"));
}

#[test]
fn a_module_counts_as_loadable_only_if_modprobes_rules_were_read() {
    let mut evidence = load("km01-ip-vs-forbidden");
    assert!(!findings(run(&evidence, "KM01", None)).is_empty());
    without(&mut evidence, Item::Modprobe);
    assert!(is_unknown(&evidence, "KM01"));
}

/// Before 1.33, /healthz says with two times whether the rules are up to date.
#[test]
fn an_old_healthz_shows_rules_that_are_not_up_to_date() {
    let mut evidence = load("full-iptables");
    let health = |last: &str| {
        let now = "2026-11-22 08:59:00.5 +0000 UTC m=+64.5";
        Ok(json!({"lastUpdated": last, "currentTime": now}).to_string())
    };
    evidence.insert(
        Item::Healthz,
        health("2026-11-22 08:59:00.5 +0000 UTC m=+64.5"),
    );
    assert!(is_pass(&evidence, "KP05"));
    evidence.insert(
        Item::Healthz,
        health("2026-11-22 08:12:00.5 +0000 UTC m=+4.5"),
    );
    let found = finding(run(&evidence, "KP05", None));
    assert!(found.message.contains("not up to date"), "{found:?}");
    evidence.insert(Item::Healthz, Ok("{}".to_owned()));
    assert!(is_unknown(&evidence, "KP05"));
}

/// Without a flag and a setting, kube-proxy uses the name of the machine.
#[test]
fn the_machines_name_must_be_that_of_a_node() {
    let mut evidence = load("full-iptables");
    replace(
        &mut evidence,
        Item::ProxyConfig,
        "hostnameOverride: node1",
        "hostnameOverride: \"\"",
    );
    process(&mut evidence);
    assert!(is_unknown(&evidence, "KP11"));
    evidence.insert(Item::Host, Ok("host-name = NODE1\n".to_owned()));
    assert!(is_pass(&evidence, "KP11"));
    evidence.insert(Item::Host, Ok("host-name = node1.example.org\n".to_owned()));
    assert_eq!(
        finding(run(&evidence, "KP11", None)).subject,
        "node1.example.org"
    );
}

/// The kubelet may be three releases newer than kube-proxy.
#[test]
fn the_kubelets_version_is_not_kube_proxys() {
    let mut evidence = load("full-ipvs");
    for item in [Item::Metrics, Item::Pods, Item::DaemonSets] {
        without(&mut evidence, item);
    }
    for id in ["DP01", "DP08", "KB01", "KP14"] {
        assert!(is_unknown(&evidence, id), "{id}");
    }
}

#[test]
fn sets_that_were_not_read_may_be_leftovers() {
    let mut evidence = load("full-nftables");
    assert!(is_pass(&evidence, "MX02"));
    without(&mut evidence, Item::Ipset);
    assert!(is_unknown(&evidence, "MX02"));
    // A finding stays a finding.
    let mut evidence = load("leftover-ipvs-to-iptables");
    without(&mut evidence, Item::Ipset);
    assert!(!findings(run(&evidence, "MX02", None)).is_empty());
}

#[test]
fn a_port_of_a_service_without_endpoints_is_a_finding() {
    let mut evidence = load("seed-iptables");
    assert!(is_pass(&evidence, "AP01"));
    edit(&mut evidence, Item::Services, |services| {
        for service in services["items"].as_array_mut().unwrap() {
            if service["metadata"]["name"] == "nginx-svc" {
                let ports = service["spec"]["ports"].as_array_mut().unwrap();
                ports.push(json!({"name": "metrics", "port": 9090, "targetPort": "metrics", "protocol": "TCP"}));
            }
        }
    });
    let found = finding(run(&evidence, "AP01", None));
    assert!(found.message.contains("a port of the Service"), "{found:?}");
    assert!(texts(&found)[0].contains("\"metrics\""), "{found:?}");
}

#[test]
fn a_gate_that_is_off_keeps_ipvs_from_starting_in_every_release() {
    let mut evidence = load("full-ipvs");
    let upgrade = Question::Upgrade("1.40".parse().unwrap());
    let gate = "featureGates:\n  KubeProxyIPVS: false\n";
    append(&mut evidence, Item::ProxyConfig, gate);
    let found = finding(run(&evidence, "UP03", upgrade));
    assert!(found.message.contains("is off"), "{found:?}");
}

/// Several processes may hold NodePorts of old releases; one whose process is unknown may be kube-proxy.
#[test]
fn a_socket_of_an_unknown_process_may_be_kube_proxys() {
    let mut evidence = load("full-iptables");
    let socket =
        |process: &str| format!("tcp LISTEN 0      4096     0.0.0.0:30080 0.0.0.0:* {process}");
    append(&mut evidence, Item::Sockets, &socket(""));
    set_version(&mut evidence, "v1.22.3");
    assert!(is_unknown(&evidence, "NP01"));
    append(
        &mut evidence,
        Item::Sockets,
        &socket("users:((\"nginx\",pid=9,fd=3))"),
    );
    assert!(!findings(run(&evidence, "NP01", None)).is_empty());
}

#[test]
fn both_modes_of_a_question_find_the_same_gap() {
    // Of the rules, only the other mode's are known.
    let mut evidence = load("full-iptables");
    without(&mut evidence, Item::Nft);
    without(&mut evidence, Item::NftText);
    let outcome = run(&evidence, "IR18", Some(Mode::Nftables));
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
}

/// A text that is not what its tool prints shows nothing.
#[test]
fn what_cannot_be_read_does_not_pass() {
    let denied = "Error: cannot open: Permission denied\n";
    for (recording, item, text, id) in [
        ("full-iptables", Item::Sockets, "\n", "NP06"),
        ("full-iptables", Item::ProxyLog, denied, "KP21"),
        ("full-iptables", Item::ProxyConfig, "xx{{", "DP05"),
        ("full-iptables", Item::ProxyConfig, "xx", "DP05"),
        ("full-ipvs", Item::Ipset, denied, "IS01"),
        ("full-iptables", Item::IptablesVersion, "zzz", "IB03"),
    ] {
        let mut evidence = load(recording);
        evidence.insert(item, Ok(text.to_owned()));
        assert!(
            is_unknown(&evidence, id),
            "{id}: {:?}",
            run(&evidence, id, None)
        );
    }
}
