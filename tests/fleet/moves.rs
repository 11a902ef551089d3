//! The selected nodes, their order, and the output of kpx.

use std::time::Duration;

use serde_json::{Value, json};

use super::World;
use crate::fake_api::Key;

#[tokio::test]
async fn workers_migrate_first_one_after_the_other() {
    let world = World::new();
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let mut expected = Vec::new();
    for node in ["worker1", "worker2", "control1"] {
        expected.extend(
            ["guard", "prepare", "kube-proxy iptables", "finish"]
                .map(|what| format!("{node} {what}")),
        );
    }
    assert_eq!(world.nodes.story(), expected, "{ran}");
    assert!(world.api.config().contains("mode: \"iptables\""));
    assert_eq!(world.leftovers(), [""; 0]);
    assert!(
        ran.out
            .contains("migrated 3 nodes from mode ipvs to mode iptables in ")
            && ran.out.ends_with(" s"),
        "{ran}"
    );
    // --yes prints a line for each node before, and one after.
    for tells in [
        "1. worker1: expected loss: no connections of worker1",
        "16 steps: --dry-run or -v shows them",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    assert!(!ran.err.contains("undo: "), "{ran}");
    for node in ["1. worker1", "2. worker2", "3. control1"] {
        let tells = format!("{node} migrated to mode iptables in ");
        assert!(ran.out.contains(&tells), "{tells}: {ran}");
    }
    assert!(
        ran.out
            .contains(" observed loss: 1 failed probe migrated 3"),
        "{ran}"
    );
    let lease = world.object("leases", "kpx-migrate").unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
    let status = world.kpx(&["migrate", "status", "--all-nodes"]).await;
    assert!(status.out.contains("lease: free"), "{status}");
    assert!(
        status
            .out
            .contains("3. control1 migrated to mode iptables in "),
        "{status}"
    );
    // It has ended, and can be rolled back, the last node first.
    let again = world
        .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
        .await;
    assert_eq!(again.code, 4, "{again}");
    world.nodes.story.lock().unwrap().clear();
    let back = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(
        world.nodes.story(),
        ["control1", "worker2", "worker1"]
            .map(|node| [
                format!("{node} guard"),
                format!("{node} rollback"),
                format!("{node} kube-proxy ipvs")
            ])
            .concat(),
    );
    assert!(
        back.out.contains("rolled back 3 nodes to mode ipvs in ") && back.out.ends_with(" s"),
        "{back}"
    );
    assert_eq!(world.modes(), ["ipvs"; 3]);
    let again = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert!(again.err.contains("already rolled back"), "{again}");
}

#[tokio::test]
async fn only_selected_nodes_migrate() {
    let world = World::new();
    let ran = world
        .migrate(&["--node", "control1,worker2", "--image", "kpx:1"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables", "ipvs", "iptables"]);
    assert!(
        ran.err
            .contains("the 1 node that does not migrate changes to the new mode if"),
        "{ran}"
    );
    let world = World::new();
    let ran = world
        .migrate(&[
            "--node", "control1", "--node", "worker2", "--image", "kpx:1",
        ])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables", "ipvs", "iptables"]);
    for (args, tells) in [
        (
            &["--node", "a", "migrate", "--to", "ipvs", "--node", "b"][..],
            "give all names on one side",
        ),
        (
            &["doctor", "--node", "a", "--node", "b"],
            "only `kpx migrate --to MODE` takes several",
        ),
        (
            &["doctor", "--node", "a,b"],
            "only `kpx migrate --to MODE` takes several",
        ),
        (&["doctor", "a", "--node", "b"], "the node is given twice"),
        (&["--node=b", "doctor", "a"], "the node is given twice"),
    ] {
        let ran = world.kpx(args).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains(tells), "{ran}");
    }
    let world = World::new();
    let unknown = world
        .migrate(&["--node", "worker9", "--image", "kpx:1"])
        .await;
    assert!(
        unknown
            .err
            .contains("node worker9 not found; nodes of the cluster: control1, worker1, worker2"),
        "{unknown}"
    );
}

#[tokio::test]
async fn by_hand_without_a_terminal_nothing_migrates() {
    let world = World::new();
    let before = world.api.asked().len();
    let ran = world.migrate(&["--all-nodes", "--by-hand"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "with --by-hand, an operator must prepare each node",
        "nothing was changed",
        "without --by-hand, kpx runs in a pod on each node",
        "migrate each node by hand: run `kpx migrate prepare --to MODE`",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    assert_eq!(world.api.asked().len(), before, "no request");
    assert_eq!(world.nodes.story(), [""; 0]);
    // Nor does one that began in a terminal.
    world.api.with(|cluster| {
        let mut state = serde_json::to_value(kept()).unwrap();
        state["plan"].as_object_mut().unwrap().remove("image");
        cluster.put(json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "kpx-migrate", "namespace": "kube-system"},
            "data": {"state": state.to_string()},
        }));
    });
    for way in ["resume", "rollback"] {
        let ran = world.kpx(&["migrate", way, "--all-nodes", "--yes"]).await;
        assert_eq!(ran.code, 4, "{ran}");
        assert!(
            ran.err.contains("standard input is not a terminal"),
            "{ran}"
        );
    }
    assert_eq!(world.nodes.story(), [""; 0]);
}

/// A migration that stopped before its first task.
fn kept() -> Value {
    let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
    json!({
        "plan": {
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "ipvs", "there": fields("iptables"),
            "back": fields("ipvs"), "nodes": ["worker1"], "whole": false, "staged": false,
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "timeouts": {"confirm": 1, "drain": 1}, "limit": 60,
        },
        "leg": "there", "done": 0, "reached": 0, "ended": false,
    })
}

#[tokio::test]
async fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let world = World::new();
    let before = world.api.asked().len();
    let ran = world.all(&["--dry-run"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    for tells in [
        "migrate 3 nodes from mode ipvs to mode iptables",
        "1. worker1",
        "3. control1",
        "-mode: \"ipvs\"",
        "+mode: \"iptables\"",
        "undo: kubectl -n kube-system patch configmap kube-proxy",
        "worker1: restart kube-proxy with the new configuration",
        "expected loss: worker1: no connections of worker1 worker2: no connections of worker2 control1: no connections",
        "--staged avoids that",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
    // Only pods for previews, which are deleted.
    let asked = world.api.asked();
    let writes = asked[before..]
        .iter()
        .filter(|request| request.method != "GET");
    let writes: Vec<String> = writes
        .map(|write| {
            format!(
                "{} {} {}",
                write.method, write.path, write.body["metadata"]["name"]
            )
        })
        .collect();
    assert_eq!(writes.len(), 6, "{writes:?}");
    assert!(
        writes.iter().all(|write| write.contains("kpx-preview-")),
        "{writes:?}"
    );
    assert_eq!(world.leftovers(), [""; 0]);
    let json = world.all(&["--dry-run", "-o", "json"]).await;
    assert_eq!(json.out.lines().count(), 1, "{json}");
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["kind"], "FleetReport");
    assert_eq!(report["plan"]["previews"][2]["node"], "control1");
    assert_eq!(
        report["plan"]["tasks"][0],
        json!({"task": "prepare", "node": "worker1"})
    );
}

#[tokio::test]
async fn events_are_lines_and_the_report_is_the_last() {
    let world = World::new();
    let ran = world.all(&["-o", "json", "-q"]).await;
    let lines: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(
        (&last["kind"], &last["outcome"]),
        (&json!("FleetReport"), &json!("migrated")),
        "{ran}"
    );
    assert!(events.iter().all(|event| event["kind"] == "FleetEvent"));
    assert!(events.iter().any(|event| event["event"] == "reports"
        && event["node"] == "worker1"
        && event["text"] == "wait for it"));
}

#[tokio::test]
async fn options_of_another_mode_or_strategy_are_refused() {
    let world = World::new();
    for (more, tells) in [
        (&["--scheduler", "rr"][..], "require --to ipvs"),
        (&["--strict-arp"], "require --to ipvs"),
        (&["--delete-bare-pods"], "require --strategy drain-node"),
    ] {
        for dry_run in [&[][..], &["--dry-run"]] {
            let ran = world.all(&[more, dry_run].concat()).await;
            assert_eq!(ran.code, 2, "{ran}");
            assert!(ran.err.contains(tells), "{ran}");
        }
    }
    assert_eq!(world.nodes.story(), [""; 0]);
}

#[tokio::test]
async fn the_strategy_is_that_of_each_node() {
    let args = ["--strategy", "drain-node", "--delete-bare-pods"];
    // There is no bridge, so there is no guard.
    let world = World::new();
    let ran = world.all(&args).await;
    assert_eq!(ran.code, 0, "{ran}");
    let story = world.nodes.story();
    assert!(
        !story.iter().any(|told| told.ends_with(" guard")),
        "{story:?}"
    );
}

#[tokio::test]
async fn the_api_server_is_contacted_once_for_all_reads() {
    let world = World::new();
    let before = world.api.asked().len();
    world.all(&[]).await;
    let asked = world.api.asked();
    let versions = asked[before..]
        .iter()
        .filter(|request| request.path == "/version");
    assert_eq!(versions.count(), 1);
}

#[tokio::test]
async fn a_node_that_is_blocked_keeps_all_from_migrating() {
    let world = World::new();
    let text = world.api.config();
    world
        .nodes
        .fail("control1 preview", "KM01: there is no ip_vs");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "control1: blocked: KM01: there is no ip_vs",
        "1 of 3 nodes cannot be migrated: control1: KM01: there is no ip_vs; nothing was changed",
        "`--skip ID` migrates anyway",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    let look = world.all(&["--dry-run"]).await;
    assert_eq!(look.code, 1, "{look}");
    assert!(look.out.contains("control1: blocked: KM01"), "{look}");
    assert_eq!(world.nodes.story(), [""; 0]);
    assert_eq!(world.api.config(), text);
    assert!(world.object("configmaps", "kpx-migrate").is_none());
    // Other nodes migrate, and so does this one with --skip.
    let ran = world
        .migrate(&["--node", "worker1", "--staged", "--image", "kpx:1"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    let world = World::new();
    world
        .nodes
        .fail("control1 preview", "KM01: there is no ip_vs");
    let ran = world.all(&["--skip", "KM01"]).await;
    assert_eq!(ran.code, 0, "{ran}");
}

#[tokio::test]
async fn by_hand_a_note_says_that_there_is_no_preview() {
    let world = World::new();
    let ran = world
        .migrate(&["--all-nodes", "--by-hand", "--dry-run"])
        .await;
    // The nodes are unknown.
    assert_eq!(ran.code, 3, "{ran}");
    for tells in [
        "with --by-hand, kpx runs nothing on the nodes",
        "expected loss: each node reports it before anything is changed there",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
}

#[tokio::test]
async fn with_verbose_the_whole_plan_is_printed() {
    let world = World::new();
    let ran = world.all(&["-v"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.err.contains("undo: "), "{ran}");
    assert!(!ran.err.contains("shows them"), "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_summary_has_the_parts_of_each_node() {
    let world = World::new();
    for (job, seconds) in [("worker1 prepare", 2), ("worker1 kube-proxy iptables", 3)] {
        let slow = Duration::from_secs(seconds);
        world
            .nodes
            .slow
            .lock()
            .unwrap()
            .insert(job.to_owned(), slow);
    }
    let ran = world.all(&["-o", "json"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let report: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let node = &report["nodes"][0];
    assert!(node["took"]["prepare"].as_u64() >= Some(2), "{node}");
    assert!(node["took"]["restart"].as_u64() >= Some(3), "{node}");
    let parts = node["took"].as_object().unwrap().values();
    let sum: u64 = parts.map(|seconds| seconds.as_u64().unwrap()).sum();
    assert_eq!(node["seconds"], sum, "{node}");
    assert_eq!(
        node["observedLoss"],
        json!({"connections": 0, "failedProbes": 0})
    );
    assert_eq!(
        report["nodes"][1]["observedLoss"]["failedProbes"], 1,
        "{ran}"
    );
    let status = world.kpx(&["migrate", "status", "--all-nodes"]).await;
    assert!(status.out.contains(" s (prepare "), "{status}");
}

#[tokio::test]
async fn status_shows_the_guards_of_the_bridges() {
    let world = World::new();
    world
        .nodes
        .fail("worker2 finish", "a Service does not answer");
    assert_eq!(world.all(&["--lease", "90s"]).await.code, 4);
    let left = world.leftovers().into_iter();
    let guards: Vec<_> = left.filter(|name| name.starts_with("kpx-guard-")).collect();
    let [guard] = guards.try_into().unwrap();
    let status = ["migrate", "status", "--all-nodes"];
    let ran = world.kpx(&status).await;
    let tells = format!("bridge: worker2: lease of 90 s, renewed by pod kube-system/{guard}");
    assert!(ran.out.contains(&tells), "{tells}: {ran}");
    assert!(!ran.out.contains("bridge: worker1"), "{ran}");
    let key = Key::new("pods", "kube-system", &guard);
    world.api.with(|cluster| cluster.remove(&key));
    let ran = world.kpx(&[&status[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let expected = json!([{
        "node": "worker2", "pod": format!("kube-system/{guard}"), "state": "gone", "leaseSeconds": 90,
    }]);
    assert_eq!(report["guards"], expected, "{ran}");
}

#[tokio::test]
async fn status_shows_who_holds_the_lease() {
    let world = World::new();
    assert_eq!(world.all(&[]).await.code, 0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = kpx_node::evidence::Time {
        seconds: i64::try_from(now.as_secs()).unwrap(),
    };
    let renewed = now.to_string().replace('Z', ".000000Z");
    let lease = Key::new("leases", "kube-system", "kpx-migrate");
    world.api.with(|cluster| {
        cluster.edit(&lease, |lease| {
            lease["spec"]["holderIdentity"] = json!("laptop-7");
            lease["spec"]["renewTime"] = json!(renewed);
        });
    });
    let status = ["migrate", "status", "--all-nodes"];
    let ran = world.kpx(&status).await;
    let tells = format!("lease: held by laptop-7, renewed at {renewed}");
    assert!(ran.out.contains(&tells), "{ran}");
    let ran = world.kpx(&[&status[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["lease"]["held"]["holder"], "laptop-7", "{ran}");
    // Every node has migrated: none changes when its kube-proxy restarts.
    assert_eq!(report["armed"], Value::Null, "{ran}");
}
