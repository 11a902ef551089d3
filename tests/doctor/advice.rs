//! Advice: commands that reach what was read, under the name by which users run kpx.

use serde_json::Value;

use super::ends::HEALTHY;
use super::incidents::copy;
use crate::support::{broken, kpx, kpx_as, kpx_on, without};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn a_plugin_of_kubectl_advises_commands_of_the_plugin() {
    let bundle = "testdata/nodes/leftover-iptables-to-ipvs";
    let args = ["--from", bundle, "doctor", "-v"];
    let ran = kpx_as("/usr/local/bin/kubectl-kpx", &args).await;
    let page = ran.out;
    // The text of the fix is wrapped.
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let plan = "kubectl kpx reconcile --cleanup iptables --apply";
    assert!(
        words.contains(&format!("Run `{plan}`: it shows the plan")),
        "{page}"
    );
    assert!(
        page.contains("\nnext: on node1: kpx reconcile --cleanup iptables --apply\n"),
        "{page}"
    );
    assert!(
        page.contains("\n  more  kubectl kpx explain MX01\n"),
        "{page}"
    );
    // A node rarely has the plugin.
    let others = words
        .replace("kubectl kpx ", "")
        .replace("on node1: kpx ", "");
    assert!(
        !others.contains("kpx reconcile") && !others.contains("kpx explain"),
        "{page}"
    );

    let explained = kpx_as("kubectl-kpx", &["explain", "CT01"]).await.out;
    assert!(!explained.contains("$ kpx "), "{explained}");
    let explained = kpx_as("kubectl-kpx", &["explain", "AP12"]).await.out;
    let line = "$ kubectl kpx trace default/kubernetes --source host\n";
    assert!(explained.contains(line), "{explained}");

    let ran = kpx_as("kubectl-kpx", &["--from", bundle, "doctor", "-o", "json"]).await;
    let next = "kpx reconcile --cleanup iptables --apply";
    assert_eq!(json(&ran.out)["next"], next, "{ran}");
}

#[tokio::test]
async fn commands_that_read_name_the_bundle_and_those_that_change_a_node_do_not() {
    let lost = |text: &str| without(text, "-A KUBE-SVC-");
    let dir = broken("full-iptables", &[("node/iptables-save.txt", &lost)]);
    let from = dir.path().to_str().unwrap();
    let report = json(&kpx(&["--from", from, "doctor", "-o", "json"]).await.out);
    let findings = report["findings"].as_array().unwrap();
    let commands = findings.iter().map(|finding| &finding["fix"]["command"]);
    let repairs = commands.filter(|command| *command == "kpx reconcile --apply");
    assert!(repairs.count() > 0, "{report:#}");

    let moved = tempfile::tempdir().unwrap();
    let spaced = moved.path().join("a bundle");
    std::fs::rename(dir.path(), &spaced).unwrap();
    let from = spaced.to_str().unwrap();
    let ran = kpx(&["--from", from, "doctor", "--only", "AP04"]).await;
    let shown = format!("next: kpx --from '{from}' ");
    assert!(ran.out.contains(&shown), "{ran}");

    let ran = kpx_on("full-iptables", &["doctor", "-o", "json"]).await;
    let next = "kpx --from testdata/nodes/full-iptables why shop/empty";
    assert_eq!(json(&ran.out)["next"], next, "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_command_that_only_looks_is_no_fix() {
    let dir = copy(HEALTHY);
    let neighbours = dir.path().join("node/ip-neigh.json");
    let text = std::fs::read_to_string(&neighbours).unwrap();
    let failed = r#"[{"dst": "10.210.0.17", "dev": "eth0", "state": ["FAILED"]},"#;
    std::fs::write(&neighbours, text.replacen('[', failed, 1)).unwrap();
    let from = dir.path().to_str().unwrap();
    let look = "on w1: ping -c 1 -I eth0 10.210.0.17\n";
    let page = kpx(&["--from", from, "doctor"]).await.out;
    assert!(page.contains(&format!("  look  {look}")), "{page}");
    assert!(!page.contains(&format!("next: {look}")), "{page}");
    let page = kpx(&["--from", from, "why", "demo/web"]).await.out;
    assert!(page.contains(&format!("look: {look}")), "{page}");
    let answer = json(
        &kpx(&["--from", from, "why", "demo/web", "-o", "json"])
            .await
            .out,
    );
    assert_eq!(answer["fix"]["kind"], "look", "{answer:#}");

    let lost = |text: &str| without(text, "-A KUBE-SVC-");
    let dir = broken("full-iptables", &[("node/iptables-save.txt", &lost)]);
    let from = dir.path().to_str().unwrap();
    let answer = json(
        &kpx(&["--from", from, "why", "edge/web", "-o", "json"])
            .await
            .out,
    );
    assert_eq!(answer["fix"]["kind"], "fix", "{answer:#}");
}
