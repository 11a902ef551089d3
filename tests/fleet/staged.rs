//! Nodes that are moved by a label, to copies of the ConfigMap and the DaemonSet.

use super::World;

#[tokio::test]
async fn copies_serve_the_nodes_that_are_moved_and_go_at_the_end() {
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
    // No node was in the new mode before it was prepared, and the original came last.
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
async fn a_staged_move_of_some_nodes_leaves_the_others_alone() {
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
