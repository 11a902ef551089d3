//! Faults of nodes and of the API server during a migration.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join;
use serde_json::json;
use tokio::time::sleep;

use super::World;
use crate::fake_api::{Fault, Key, What};

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_canary_that_fails_rolls_all_back() {
    for (what, tells) in [
        ("worker1 prepare", "no ip_vs"),
        ("worker1 finish", "no ip_vs"),
        ("worker1 kube-proxy iptables", "is not ready after 5s"),
    ] {
        let world = World::new();
        let text = world.api.config();
        world.nodes.fail(what, "no ip_vs");
        let ran = world.all(&[]).await;
        assert_eq!(ran.code, 4, "{what}: {ran}");
        assert!(ran.out.contains(tells), "{what}: {ran}");
        assert!(
            ran.out.contains("rolled back 3 nodes to mode ipvs in ")
                && ran
                    .out
                    .ends_with(" s: the migration of the first node failed"),
            "{ran}"
        );
        assert_eq!(world.api.config(), text);
        assert!(world.nodes.story().contains(&"worker1 rollback".to_owned()));
        assert!(
            !world
                .nodes
                .story()
                .iter()
                .any(|told| told.starts_with("worker2"))
        );
        assert_eq!(world.modes(), ["ipvs"; 3], "{what}");
        assert_eq!(world.leftovers(), [""; 0], "{what}");
    }
}

#[tokio::test]
async fn a_later_node_that_fails_stops_the_migration_which_can_be_resumed() {
    let world = World::new();
    world
        .nodes
        .fail("worker2 finish", "a Service does not answer");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.out
            .contains("on node worker2: a Service does not answer"),
        "{ran}"
    );
    assert!(ran.out.contains(": 1 of 3 nodes in mode iptables"), "{ran}");
    assert!(
        ran.out
            .contains("next: kpx migrate resume --all-nodes --kubeconfig ")
            && ran
                .out
                .contains(", or kpx migrate rollback --all-nodes --kubeconfig ")
            && ran.out.ends_with(" --image kpx:1"),
        "{ran}"
    );
    assert!(
        ran.out
            .contains("warning: the configuration has mode iptables"),
        "{ran}"
    );
    assert!(
        !world
            .nodes
            .story()
            .iter()
            .any(|told| told.starts_with("control1"))
    );
    // A second migration cannot begin before the first has ended.
    let other = world.all(&[]).await;
    assert!(
        other.out.contains("already configured for mode iptables")
            || other.err.contains("is unfinished"),
        "{other}"
    );
    world.nodes.failing.lock().unwrap().clear();
    let ran = world
        .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

/// Changes the configuration before each of the next `times` writes of kpx.
fn edited_meanwhile(world: &World, times: usize) {
    let edit = What::Meanwhile(Arc::new(|cluster| {
        cluster.edit(
            &Key::new("configmaps", "kube-system", "kube-proxy"),
            |map| {
                let text = map["data"]["config.conf"].as_str().unwrap().to_owned();
                map["data"]["config.conf"] = json!(text + "# theirs\n");
            },
        );
    }));
    world.api.fault(
        Fault::of("patch", "configmaps", edit)
            .named("kube-proxy")
            .times(times),
    );
}

#[tokio::test]
async fn a_configuration_that_changes_meanwhile_is_planned_again() {
    let world = World::new();
    edited_meanwhile(&world, 1);
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let text = world.api.config();
    assert!(
        text.contains("mode: \"iptables\"") && text.ends_with("# theirs\n"),
        "{text}"
    );
    // A rollback keeps later changes, too.
    world.api.reconfigure("# theirs\n", "# theirs again\n");
    let back = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(back.code, 0, "{back}");
    let text = world.api.config();
    assert!(
        text.contains("mode: \"ipvs\"") && text.ends_with("# theirs again\n"),
        "{text}"
    );
}

#[tokio::test]
async fn a_configuration_that_changes_before_each_of_three_writes_is_not_written() {
    let world = World::new();
    edited_meanwhile(&world, 3);
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    let tells = "cannot change the configuration of all nodes: ";
    assert!(ran.out.contains(tells), "{ran}");
    let text = world.api.config();
    assert!(
        text.contains("mode: \"ipvs\"") && text.ends_with("# theirs\n# theirs\n# theirs\n"),
        "{text}"
    );
    assert_eq!(world.modes(), ["ipvs"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_missing_permission_stops_first_or_is_rolled_back() {
    for (verb, resource) in [
        ("create", "leases"),
        ("create", "configmaps"),
        ("create", "pods"),
        ("patch", "configmaps"),
        ("delete", "pods"),
        ("get", "pods/log"),
    ] {
        let mut world = World::new();
        // How long it is made sure depends on it.
        world.timeout = "1s";
        let text = world.api.config();
        world.api.fault(Fault::forbidden(verb, resource));
        let ran = world.all(&[]).await;
        assert_eq!(ran.code, 4, "{verb} {resource}: {ran}");
        let all = format!("{}{}", ran.out, ran.err);
        assert!(
            all.contains("apply deploy/rbac-migrate.yaml, which has the roles and their bindings"),
            "{verb} {resource}: {ran}"
        );
        assert_eq!(world.modes(), ["ipvs"; 3], "{verb} {resource}");
        world.api.heal();
        world.expire();
        if world.object("configmaps", "kpx-migrate").is_some() {
            world
                .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
                .await;
        }
        assert_eq!(world.api.config(), text, "{verb} {resource}: {ran}");
        assert_eq!(world.modes(), ["ipvs"; 3], "{verb} {resource}");
    }
}

#[tokio::test]
async fn restarts_of_the_server_are_survived() {
    let world = World::new();
    for (verb, resource) in [
        ("patch", "configmaps"),
        ("create", "pods"),
        ("delete", "pods"),
        ("list", "pods"),
        ("get", "pods"),
        ("create", "leases"),
    ] {
        for what in [
            What::Status(503, "starting"),
            What::Broken,
            What::AnswerLost,
        ] {
            // Reads before the beginning are not retried.
            let fault = Fault::of(verb, resource, what).after(2).times(1);
            world.api.fault(fault);
        }
    }
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn a_lease_that_is_renewed_is_not_taken() {
    let world = World::new();
    let lease = |renewed: &str| {
        json!({
            "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "kpx-migrate", "namespace": "kube-system"},
            "spec": {"holderIdentity": "other-1", "renewTime": renewed},
        })
    };
    let count = Arc::new(AtomicUsize::new(0));
    world
        .api
        .with(|cluster| cluster.put(lease("2099-01-01T00:00:00.000000Z")));
    let renew = What::Meanwhile(Arc::new(move |cluster| {
        let beat = count.fetch_add(1, Ordering::Relaxed);
        cluster.put(lease(&format!("2099-01-01T00:00:{:02}.000000Z", beat % 60)));
    }));
    world.api.fault(Fault::of("get", "leases", renew));
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err
            .contains("other-1 holds the Lease kube-system/kpx-migrate"),
        "{ran}"
    );
    assert_eq!(world.nodes.story(), [""; 0]);
    // An expired Lease is taken.
    world.api.heal();
    world.expire();
    assert_eq!(world.all(&[]).await.code, 0);
}

/// It is waited for longer than for a new pod.
#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_node_that_reboots_is_waited_for() {
    let mut world = World::new();
    world.ready = "1s";
    let gone = What::Meanwhile(Arc::new(|cluster| cluster.vanish("worker2")));
    let name = world
        .api
        .proxies()
        .into_iter()
        .find(|(node, _)| node == "worker2")
        .unwrap()
        .1;
    world
        .api
        .fault(Fault::of("delete", "pods", gone).named(&name).times(1));
    let is_gone = || {
        world.api.with(|cluster| {
            let node = cluster.get("nodes", "", "worker2").unwrap();
            node["status"]["conditions"][0]["status"] == "Unknown"
        })
    };
    let returns = async {
        while !is_gone() {
            sleep(Duration::from_millis(20)).await;
        }
        sleep(Duration::from_secs(3)).await;
        world.api.with(|cluster| cluster.reappear("worker2"));
    };
    let (ran, ()) = join(world.all(&["-v"]), returns).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.err.contains("worker2: node worker2 is not ready: ")
            && ran.err.contains("waiting at most 600 s"),
        "{ran}"
    );
    assert_eq!(world.modes(), ["iptables"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn a_node_already_in_the_new_mode_is_cleaned_up_like_the_others() {
    let world = World::new();
    world.nodes.fail("worker2 prepare", "no room for modules");
    let ran = world.all(&[]).await;
    assert!(ran.out.contains(": 1 of 3 nodes in mode"), "{ran}");
    // The configuration has the new mode: a kube-proxy that restarts changes to it.
    let proxies = world.api.proxies().into_iter();
    for (_, name) in proxies.filter(|(node, _)| node == "control1") {
        let pod = Key::new("pods", "kube-system", &name);
        world.api.with(|cluster| cluster.remove(&pod));
    }
    world.api.settle();
    assert_eq!(world.modes(), ["iptables", "iptables", "ipvs"]);
    world.nodes.failing.lock().unwrap().clear();
    world.nodes.story.lock().unwrap().clear();
    let ran = world
        .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    let story = world.nodes.story();
    let of = |what: &str| story.contains(&format!("control1 {what}"));
    assert!(of("prepare") && of("finish"), "{story:?}");
    assert!(!ran.out.contains("already in mode"), "{ran}");
}

#[tokio::test]
async fn a_guard_that_is_gone_or_has_ended_is_created_again() {
    for over in [false, true] {
        let world = World::new();
        world
            .nodes
            .fail("worker2 finish", "a Service does not answer");
        let ran = world.all(&["--lease", "90s"]).await;
        assert_eq!(ran.code, 4, "{ran}");
        let guards = || -> Vec<_> {
            let left = world.leftovers().into_iter();
            left.filter(|name| name.starts_with("kpx-guard-")).collect()
        };
        let [guard] = guards().try_into().unwrap();
        let pod = world.object("pods", &guard).unwrap();
        let command = &pod["spec"]["containers"][0]["command"];
        let words: Vec<_> = command.as_array().unwrap().iter().collect();
        let has = |flag: &str, value: &str| words.windows(2).any(|window| window == [flag, value]);
        assert!(has("--lease", "90s") && has("--mode", "ipvs"), "{command}");
        assert!(words.contains(&&json!("--await")), "{command}");
        // Evicted, or ended with its node.
        let key = Key::new("pods", "kube-system", &guard);
        world.api.with(|cluster| {
            if over {
                cluster.edit(&key, |pod| pod["status"]["phase"] = "Failed".into());
            } else {
                cluster.remove(&key);
            }
        });
        world.nodes.failing.lock().unwrap().clear();
        world.nodes.story.lock().unwrap().clear();
        let ran = world
            .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
            .await;
        assert_eq!(ran.code, 0, "{ran}");
        // Both run at once.
        let mut began = world.nodes.story()[..2].to_vec();
        began.sort();
        assert_eq!(began, ["worker2 finish", "worker2 guard"], "{over}");
        assert_eq!(world.leftovers(), [""; 0]);
    }
}
