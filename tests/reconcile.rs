//! The plans of `kpx reconcile` on recorded nodes. Kernel tests apply such plans.

use serde_json::Value;

use crate::support::{broken, kpx, kpx_on};

#[tokio::test]
async fn a_healthy_node_needs_no_steps() {
    for name in [
        "seed-iptables",
        "full-nftables",
        "dual-iptables",
        "dual-ipvs",
        "full-ipvs-lc-strictarp",
    ] {
        let ran = kpx_on(name, &["reconcile"]).await;
        assert_eq!(ran.code, 0, "{name}\n{ran}");
        assert!(ran.out.starts_with("no changes needed "), "{name}\n{ran}");
    }
}

#[tokio::test]
async fn a_plan_is_the_commands_with_their_undo() {
    insta::assert_snapshot!(
        "faults_iptables",
        kpx_on("faults-iptables", &["reconcile"]).await
    );
    insta::assert_snapshot!("faults_ipvs", kpx_on("faults-ipvs", &["reconcile"]).await);
    let ran = kpx_on("faults-nftables", &["reconcile", "-o", "wide"]).await;
    insta::assert_snapshot!("faults_nftables_wide", ran);
}

#[tokio::test]
async fn programs_get_the_plan_in_full() {
    let ran = kpx_on("faults-iptables", &["reconcile", "-o", "json"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["kind"], "PlanReport");
    assert_eq!(report["applied"], false);
    let steps = report["steps"].as_array().unwrap();
    assert!(!steps.is_empty(), "{ran}");
    for step in steps {
        for key in ["title", "action", "undo"] {
            assert!(step[key].as_str().is_some_and(|s| !s.is_empty()), "{step}");
        }
        let action = step["action"].as_str().unwrap();
        assert!(action.ends_with("COMMIT\nEOF"), "{action}");
    }
}

#[tokio::test]
async fn only_the_layers_asked_for_are_changed() {
    let ran = kpx_on("faults-iptables", &["reconcile", "--part", "sysctl"]).await;
    assert!(ran.out.starts_with("no changes needed "), "{ran}");
}

#[tokio::test]
async fn a_bundle_cannot_be_changed() {
    let ran = kpx_on("faults-iptables", &["reconcile", "--apply", "--yes"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("--from reads a bundle"), "{ran}");
}

#[tokio::test]
async fn parts_that_were_not_compared_are_not_changed() {
    let ran = kpx_on("leftover-iptables-to-ipvs", &["reconcile"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("cannot compare IPv6 with the desired state"),
        "{ran}"
    );
}

#[tokio::test]
async fn a_node_without_ip_vs_has_no_virtual_servers() {
    let args = ["reconcile", "--mode", "ipvs", "--part", "ipvs"];
    let ran = kpx_on("seed-iptables", &args).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(
        ran.out.contains("ipvsadm -A -t 10.96.0.1:443 -s rr"),
        "{ran}"
    );
}

#[tokio::test]
async fn connections_in_zones_of_other_software_are_left_alone() {
    let zone = |text: &str| text.replacen(" mark=0", " mark=0 zone=3", 1);
    for (changes, left, steps) in [
        (&[][..], false, "3 steps"),
        (&[("node/conntrack.txt", &zone as _)], true, "2 steps"),
    ] {
        let copied = broken("faults-traffic", changes);
        let from = copied.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "reconcile", "--part", "conntrack"]).await;
        let note = "left alone: 1 stale connection in conntrack zones of other software";
        assert_eq!(ran.out.contains(note), left, "{ran}");
        assert!(ran.out.starts_with(steps), "{ran}");
    }
}
