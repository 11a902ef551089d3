//! Which nodes are moved, in which order, and what is told of it.

use serde_json::{Value, json};

use super::World;

#[tokio::test]
async fn workers_go_first_one_after_the_other() {
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
            .contains("migrated: 3 nodes from mode ipvs to mode iptables in ")
            && ran.out.ends_with(" s"),
        "{ran}"
    );
    let lease = world.object("leases", "kpx-migrate").unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
    let status = world.kpx(&["migrate", "status", "--all-nodes"]).await;
    assert!(
        status.out.contains("3. control1 in the new mode"),
        "{status}"
    );
    // Done is done; and it can be taken back, the last node first.
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
        back.out.contains("rolled back: 3 nodes to mode ipvs in ") && back.out.ends_with(" s"),
        "{back}"
    );
    assert_eq!(world.modes(), ["ipvs"; 3]);
    let again = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert!(again.err.contains("rolled back already"), "{again}");
}

#[tokio::test]
async fn chosen_nodes_alone_are_moved() {
    let world = World::new();
    let ran = world
        .migrate(&["--node", "control1,worker2", "--image", "kpx:1"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables", "ipvs", "iptables"]);
    assert!(
        ran.err
            .contains("the 1 node that is not moved goes to the new mode whenever"),
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
            "give all on one side",
        ),
        (&["doctor", "--node", "a", "--node", "b"], "about one node"),
        (&["doctor", "--node", "a,b"], "about one node"),
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
            .contains("there is no node worker9; there are: control1, worker1, worker2"),
        "{unknown}"
    );
}

#[tokio::test]
async fn without_an_image_and_a_terminal_nothing_is_moved() {
    let world = World::new();
    let before = world.api.asked().len();
    let ran = world.migrate(&["--all-nodes"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "without --image an operator prepares each node by hand",
        "nothing was changed",
        "`--image IMAGE` runs kpx in a pod on each node",
        "by hand, on one node after the other: `kpx migrate prepare --to MODE`",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    assert_eq!(world.api.asked().len(), before, "nobody is asked");
    assert_eq!(world.nodes.story(), [""; 0]);
    // Nor is one that was begun in a terminal.
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
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "arguments": [], "limit": 60,
        },
        "leg": "there", "done": 0, "reached": 0, "ended": false,
    })
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_tells_all() {
    let world = World::new();
    let before = world.api.asked().len();
    let ran = world.all(&["--dry-run"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    for tells in [
        "3 nodes from mode ipvs to mode iptables",
        "1. worker1",
        "3. control1",
        "-mode: \"ipvs\"",
        "+mode: \"iptables\"",
        "undo: kubectl -n kube-system patch configmap kube-proxy",
        "worker1: start kube-proxy with the new configuration",
        "expected loss: worker1: no connections of worker1 worker2: no connections of worker2 control1: no connections",
        "--staged closes that window",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
    // Nothing but pods that look at the nodes, which are gone with it.
    let asked = world.api.asked();
    let writes = asked[before..].iter().filter(|of| of.method != "GET");
    let writes: Vec<String> = writes
        .map(|of| format!("{} {} {}", of.method, of.path, of.body["metadata"]["name"]))
        .collect();
    assert_eq!(writes.len(), 6, "{writes:?}");
    assert!(
        writes.iter().all(|of| of.contains("kpx-look-")),
        "{writes:?}"
    );
    assert_eq!(world.leftovers(), [""; 0]);
    let json = world.all(&["--dry-run", "-o", "json"]).await;
    assert_eq!(json.out.lines().count(), 1, "{json}");
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["kind"], "FleetReport");
    assert_eq!(report["plan"]["looks"][2]["node"], "control1");
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
    assert!(events.iter().any(|event| event["event"] == "says"
        && event["node"] == "worker1"
        && event["text"] == "wait for it"));
}

#[tokio::test]
async fn what_goes_with_another_mode_or_strategy_is_refused() {
    let world = World::new();
    for (more, tells) in [
        (&["--scheduler", "rr"][..], "settings of mode ipvs"),
        (&["--strict-arp"], "settings of mode ipvs"),
        (&["--delete-bare-pods"], "go with --strategy drain-node"),
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
    // No bridge stands, so none is followed.
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
async fn the_api_is_reached_once_for_all_that_is_read() {
    let world = World::new();
    let before = world.api.asked().len();
    world.all(&[]).await;
    let asked = world.api.asked();
    let versions = asked[before..].iter().filter(|of| of.path == "/version");
    assert_eq!(versions.count(), 1);
}

#[tokio::test]
async fn a_node_in_whose_way_something_stands_keeps_all_from_being_moved() {
    let world = World::new();
    let text = world.api.config();
    world.nodes.fail("control1 look", "KM01: there is no ip_vs");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "control1: in the way: KM01: there is no ip_vs",
        "1 of 3 nodes cannot be moved: control1: KM01: there is no ip_vs; nothing was changed",
        "--skip ID goes on all the same",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    let look = world.all(&["--dry-run"]).await;
    assert_eq!(look.code, 1, "{look}");
    assert!(look.out.contains("control1: in the way: KM01"), "{look}");
    assert_eq!(world.nodes.story(), [""; 0]);
    assert_eq!(world.api.config(), text);
    assert!(world.object("configmaps", "kpx-migrate").is_none());
    // It is only that node, or it is not that bad.
    let ran = world
        .migrate(&["--node", "worker1", "--staged", "--image", "kpx:1"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    let world = World::new();
    world.nodes.fail("control1 look", "KM01: there is no ip_vs");
    let ran = world.all(&["--skip", "KM01"]).await;
    assert_eq!(ran.code, 0, "{ran}");
}

#[tokio::test]
async fn without_an_image_it_is_said_what_was_not_looked_at() {
    let world = World::new();
    let ran = world.migrate(&["--all-nodes", "--dry-run"]).await;
    // Nothing is known of the nodes.
    assert_eq!(ran.code, 3, "{ran}");
    for tells in [
        "without --image nobody looks at the nodes themselves",
        "expected loss: told by each node before anything is done there",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
}
