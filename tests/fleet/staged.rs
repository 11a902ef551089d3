//! Nodes that migrate to copies of ConfigMap and DaemonSet, by a label.

use serde_json::Value;

use super::World;

#[tokio::test]
async fn copies_serve_the_nodes_that_migrate_and_are_deleted_at_the_end() {
    let world = World::new();
    let (set, text) = (world.set(), world.api.config());
    let ran = world.all(&["--staged"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
    assert_eq!(world.set(), set);
    assert_eq!(
        world.api.config(),
        text.replace("mode: \"ipvs\"", "mode: \"iptables\"")
    );
    let story = world.nodes.story();
    // No node already in mode it was prepared, and the original came last.
    for node in ["worker1", "worker2", "control1"] {
        let at = |what: String| story.iter().position(|told| *told == what).unwrap();
        assert!(
            at(format!("{node} prepare")) < at(format!("{node} kube-proxy iptables")),
            "{story:?}"
        );
        assert!(
            !story.contains(&format!("{node} kube-proxy ipvs")),
            "{story:?}"
        );
    }
    let back = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(
        (world.modes(), world.api.config(), world.set()),
        (vec!["ipvs".to_owned(); 3], text, set)
    );
}

#[tokio::test]
async fn a_staged_migration_of_some_nodes_does_not_change_the_others() {
    let world = World::new();
    let text = world.api.config();
    let ran = world
        .migrate(&["--node", "worker1", "--image", "kpx:1", "--staged"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["ipvs", "iptables", "ipvs"]);
    assert_eq!(world.api.config(), text);
    assert_eq!(world.leftovers().len(), 2);
    let back = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(world.modes(), ["ipvs"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_later_node_that_fails_is_rolled_back_alone() {
    for what in ["prepare", "kube-proxy iptables", "finish"] {
        let world = World::new();
        let text = world.api.config();
        world.nodes.fail(&format!("worker2 {what}"), "no room");
        let ran = world.all(&["--staged"]).await;
        assert_eq!(ran.code, 4, "{what}: {ran}");
        assert!(ran.out.contains("on node worker2: "), "{what}: {ran}");
        for tells in [
            "1. worker1 migrated to mode iptables in ",
            "2. worker2 rolled back to mode ipvs in ",
            "3. control1 not migrated",
            ": 1 of 3 nodes in mode iptables",
        ] {
            assert!(ran.out.contains(tells), "{what}: {tells}: {ran}");
        }
        assert_eq!(world.modes(), ["ipvs", "iptables", "ipvs"], "{what}");
        assert_eq!(world.api.config(), text);
        let story = world.nodes.story();
        assert!(story.contains(&"worker2 rollback".to_owned()), "{story:?}");
        assert_eq!(world.label("worker2"), Value::Null, "{what}");
        assert!(world.label("worker1").is_string(), "{what}");
        // After the fault is gone, it migrates like the others.
        world.nodes.failing.lock().unwrap().clear();
        let ran = world
            .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
            .await;
        assert_eq!(ran.code, 0, "{what}: {ran}");
        assert_eq!(world.modes(), ["iptables"; 3], "{what}");
        assert_eq!(world.leftovers(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn a_node_that_cannot_be_rolled_back_is_rolled_back_by_the_next_run() {
    for back in [false, true] {
        let world = World::new();
        world.nodes.fail("worker2 finish", "no room");
        world.nodes.fail("worker2 rollback", "no room there either");
        let ran = world.all(&["--staged"]).await;
        assert_eq!(ran.code, 4, "{ran}");
        assert!(
            ran.out
                .contains("cannot roll back node worker2 alone: no room there either"),
            "{ran}"
        );
        world.nodes.failing.lock().unwrap().clear();
        let way = if back { "rollback" } else { "resume" };
        let ran = world.kpx(&["migrate", way, "--all-nodes", "--yes"]).await;
        assert_eq!(ran.code, 0, "{ran}");
        let mode = if back { "ipvs" } else { "iptables" };
        assert_eq!(world.modes(), [mode; 3]);
        assert_eq!(world.leftovers(), [""; 0]);
    }
}
