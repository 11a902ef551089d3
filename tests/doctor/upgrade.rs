//! `kpx doctor --release`: what an upgrade of kube-proxy changes.

use kpx_judge::check::{Outcome, Question, Severity};
use kpx_node::evidence::Item;

use super::case::{append, finding, findings, load, run, set_version};
use crate::support::{kpx, kpx_on};

fn to(goal: &str) -> Question {
    Question::Upgrade(goal.parse().unwrap())
}

#[tokio::test]
async fn an_upgrade_is_examined_like_a_switch() {
    let ran = kpx_on("dp09-no-mode", &["doctor", "--release", "1.40"]).await;
    insta::assert_snapshot!("to_1_40", ran);
    let ran = kpx_on("full-iptables", &["doctor", "--release", "1.36"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let ran = kpx_on("seed-ipvs", &["doctor", "--release", "1.40", "-o", "json"]).await;
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["release"], ran.code), (&"1.40".into(), 1));
    assert!(report["for"].is_null());
}

#[tokio::test]
async fn other_checks_are_refused_before_an_upgrade() {
    for args in [
        ["doctor", "--release", "1.40", "--only", "SY01"].as_slice(),
        &["doctor", "--release", "1.40", "--to", "ipvs"],
        &["doctor", "--release", "soon"],
    ] {
        assert_eq!(kpx_on("seed-ipvs", args).await.code, 2, "{args:?}");
    }
    let list = kpx(&["explain", "--release", "1.40"]).await.out;
    assert!(list.contains("UP02") && !list.contains("SY01"), "{list}");
    let ran = kpx_on("seed-ipvs", &["doctor", "--only", "UP02", "-o", "json"]).await;
    assert!(ran.out.contains("--release RELEASE"), "{ran}");
}

#[test]
fn an_unset_mode_becomes_nftables() {
    let mut evidence = load("dp09-no-mode");
    assert_eq!(run(&evidence, "UP02", to("1.39")), Outcome::Pass);
    let found = finding(run(&evidence, "UP02", to("1.40")));
    assert_eq!(found.severity, Severity::Error);
    assert!(found.message.contains("does not start"), "{found:?}");
    evidence.insert(Item::KernelRelease, Ok("6.12.1\n".to_owned()));
    let found = finding(run(&evidence, "UP02", to("1.40")));
    assert_eq!(found.severity, Severity::Warning);
    append(&mut evidence, Item::ProxyConfig, "mode: iptables");
    assert_eq!(run(&evidence, "UP02", to("1.40")), Outcome::Pass);
}

#[test]
fn the_ipvs_mode_is_off_before_it_is_removed() {
    let mut evidence = load("full-ipvs");
    let severity = |evidence: &_, goal| finding(run(evidence, "UP03", to(goal))).severity;
    assert_eq!(run(&evidence, "UP03", to("1.36")), Outcome::Pass);
    assert_eq!(severity(&evidence, "1.37"), Severity::Info);
    assert_eq!(severity(&evidence, "1.40"), Severity::Error);
    append(
        &mut evidence,
        Item::ProxyConfig,
        "featureGates:\n  KubeProxyIPVS: true",
    );
    assert_eq!(severity(&evidence, "1.42"), Severity::Warning);
    assert_eq!(severity(&evidence, "1.43"), Severity::Error);
    assert!(matches!(
        run(&load("full-nftables"), "UP03", to("1.43")),
        Outcome::Skip(_)
    ));
}

#[test]
fn external_ips_need_their_gate() {
    let mut evidence = load("full-iptables");
    assert_eq!(run(&evidence, "UP04", to("1.39")), Outcome::Pass);
    let found = finding(run(&evidence, "UP04", to("1.40")));
    assert_eq!(found.severity, Severity::Error);
    append(
        &mut evidence,
        Item::ProxyConfig,
        "featureGates:\n  AllowServiceExternalIPs: true",
    );
    assert_eq!(
        finding(run(&evidence, "UP04", to("1.40"))).severity,
        Severity::Warning
    );
    assert_eq!(
        finding(run(&evidence, "UP04", to("1.43"))).severity,
        Severity::Error
    );
}

#[test]
fn node_ports_on_other_addresses_are_lost_with_the_mode() {
    let mut evidence = load("dp09-no-mode");
    let found = findings(run(&evidence, "UP05", to("1.40")));
    let subjects: Vec<_> = found
        .iter()
        .map(|finding| finding.subject.as_str())
        .collect();
    assert_eq!(subjects, ["127.0.0.1", "nodePortAddresses"]);
    assert!(matches!(
        run(&evidence, "UP05", to("1.39")),
        Outcome::Skip(_)
    ));
    append(&mut evidence, Item::ProxyConfig, "mode: iptables");
    assert!(matches!(
        run(&evidence, "UP05", to("1.40")),
        Outcome::Skip(_)
    ));
}

#[test]
fn gates_that_the_release_does_not_know_stop_kube_proxy() {
    let mut evidence = load("full-iptables");
    assert_eq!(run(&evidence, "UP06", to("1.40")), Outcome::Pass);
    let gate = "featureGates:\n  TopologyAwareHints: true";
    append(&mut evidence, Item::ProxyConfig, gate);
    assert_eq!(run(&evidence, "UP06", to("1.35")), Outcome::Pass);
    let found = finding(run(&evidence, "UP06", to("1.36")));
    assert_eq!(found.subject, "TopologyAwareHints");
    // Without pods and DaemonSets the flags are unknown; without a finding, so is the answer.
    let node = load("dp09-no-mode");
    assert!(matches!(run(&node, "UP06", to("1.36")), Outcome::Fail(_)));
    assert!(matches!(
        run(&node, "UP06", to("1.35")),
        Outcome::Unknown(_)
    ));
}

#[test]
fn known_bugs_that_the_release_fixes_and_brings_are_listed() {
    let mut evidence = load("full-iptables");
    set_version(&mut evidence, "v1.35.2");
    let keys = |goal| {
        let found = findings(run(&evidence, "UP07", to(goal)));
        let keys = found
            .iter()
            .map(|finding| (finding.severity.name(), finding.subject.clone()));
        keys.collect::<Vec<_>>()
    };
    // Without a patch, the latest one counts.
    assert!(keys("1.35").contains(&("info", "iptables-hourly-sync".to_owned())));
    assert!(!keys("1.35.4").contains(&("info", "iptables-hourly-sync".to_owned())));
    assert!(keys("1.36").contains(&("info", "pod-address-reused".to_owned())));
    set_version(&mut evidence, "v1.31.4");
    let found = findings(run(&evidence, "UP07", to("1.32.2")));
    let brought = found
        .iter()
        .filter(|finding| finding.severity == Severity::Warning);
    let brought: Vec<_> = brought.map(|brought| brought.subject.as_str()).collect();
    assert!(brought.contains(&"conntrack-memory"), "{brought:?}");
}

#[test]
fn a_release_that_is_not_known_is_said_to_be_so() {
    let mut evidence = load("full-iptables");
    for (goal, severity, word) in [
        ("1.30", Severity::Info, "no upgrade"),
        ("1.37", Severity::Info, "expected from source, not recorded"),
        ("1.40", Severity::Info, "announcements only"),
        ("1.50", Severity::Warning, "nothing is known of 1.50"),
    ] {
        let found = finding(run(&evidence, "UP01", to(goal)));
        assert_eq!(found.severity, severity, "{goal}");
        assert!(found.message.contains(word), "{found:?}");
    }
    set_version(&mut evidence, "v1.34.0");
    assert_eq!(run(&evidence, "UP01", to("1.36")), Outcome::Pass);
}

#[test]
fn addresses_that_strict_validation_refuses_are_listed() {
    let evidence = load("up08-lenient-addresses");
    assert_eq!(run(&evidence, "UP08", to("1.35")), Outcome::Pass);
    let found = findings(run(&evidence, "UP08", to("1.36")));
    let told: Vec<_> = found
        .iter()
        .map(|finding| {
            let fix = finding.fix.as_ref().unwrap().text();
            let (write, _) = fix.split_once(" where the value comes from").unwrap();
            let write = write.strip_prefix("Before the upgrade, write ").unwrap();
            (
                finding.severity,
                finding.subject.as_str(),
                finding.message.as_str(),
                write.to_owned(),
            )
        })
        .collect();
    let new = "the API server refuses new objects with this value and changes of the field: ";
    let expected = [
        (
            Severity::Error,
            "shop/legacy-1",
            "the API server refuses every change of the endpoints: endpoints.addresses has an IPv4 address in IPv6 form"
                .to_owned(),
            "::ffff:10.0.9.4 as 10.0.9.4",
        ),
        (
            Severity::Error,
            "shop/web-0",
            "the API server refuses new pods with this value: hostAliases has leading zeros".to_owned(),
            "10.0.0.07 as 10.0.0.7",
        ),
        (
            Severity::Warning,
            "node1",
            format!("{new}podCIDRs has bits beyond the prefix length"),
            "10.244.1.1/24 as 10.244.1.0/24",
        ),
        (
            Severity::Warning,
            "shop/web",
            format!("{new}externalIPs has leading zeros, loadBalancerSourceRanges has bits beyond the prefix length"),
            "010.0.2.200 as 10.0.2.200, 192.168.1.5/24 as 192.168.1.0/24",
        ),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(severity, subject, message, write)| {
            (*severity, *subject, message.as_str(), (*write).to_owned())
        })
        .collect();
    assert_eq!(told, expected);
    // The gate is on for good from 1.38 on.
    let offers = |goal| {
        let found = findings(run(&evidence, "UP08", to(goal)));
        found[0]
            .fix
            .as_ref()
            .unwrap()
            .text()
            .contains("StrictIPCIDRValidation")
    };
    assert!(offers("1.37") && !offers("1.38"));
    for name in ["full-iptables", "dual-nftables", "full-ipvs"] {
        assert_eq!(
            run(&load(name), "UP08", to("1.38")),
            Outcome::Pass,
            "{name}"
        );
    }
}
