//! What others do meanwhile: a second kpx, GitOps, and policies of the cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::World;
use crate::fake_api::{Fate, Fault, Key, What};

/// Changes the mode in the configuration.
fn set_mode(from: &str, to: &str) -> What {
    let (from, to) = (format!("mode: \"{from}\""), format!("mode: \"{to}\""));
    let key = Key::new("configmaps", "kube-system", "kube-proxy");
    What::Meanwhile(Arc::new(move |cluster| {
        cluster.edit(&key, |map| {
            let text = map["data"]["config.conf"].as_str().unwrap();
            map["data"]["config.conf"] = json!(text.replace(&from, &to));
        });
    }))
}

/// Creations of kpx's pods whose names begin with `start`.
fn creates(start: &'static str, what: What) -> Fault {
    Fault::of("create", "pods", what).starting(start)
}

fn now() -> String {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = kpx_node::evidence::Time {
        seconds: i64::try_from(now.as_secs()).unwrap(),
    };
    now.to_string().replace('Z', ".000000Z")
}

#[tokio::test]
async fn a_kpx_on_a_node_does_not_begin_beside_one_that_migrates_the_cluster() {
    let world = World::new();
    world.api.with(|cluster| {
        cluster.put(json!({
            "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "kpx-migrate", "namespace": "kube-system"},
            "spec": {"holderIdentity": "laptop-7", "renewTime": now()},
        }));
    });
    let ran = world.kpx(&["migrate", "--to", "iptables", "--yes"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    let tells = "another kpx is migrating this cluster: laptop-7 holds the Lease";
    assert!(ran.err.contains(tells), "{ran}");
}

#[tokio::test]
async fn a_configuration_that_another_program_set_first_is_rolled_back() {
    let world = World::new();
    let text = world.api.config();
    world
        .api
        .fault(creates("kpx-prepare", set_mode("ipvs", "iptables")).times(1));
    world.nodes.fail("worker1 finish", "no ip_vs");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.out.contains("rolled back 3 nodes to mode ipvs"),
        "{ran}"
    );
    assert_eq!(world.api.config(), text);
    assert_eq!(world.modes(), ["ipvs"; 3]);
}

#[tokio::test]
async fn a_kube_proxy_that_started_with_the_wrong_mode_is_restarted_when_that_is_mended() {
    let world = World::new();
    assert_eq!(world.all(&[]).await.code, 0);
    // Another program sets the new mode again, right before the first restart of the rollback.
    world
        .api
        .fault(creates("kpx-rollback", set_mode("ipvs", "iptables")).times(1));
    let why = "mode: kube-proxy reports mode iptables";
    world.nodes.fail("control1 rollback", why);
    let rollback = ["migrate", "rollback", "--all-nodes", "--yes"];
    let ran = world.kpx(&rollback).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert_eq!(world.nodes.mode("control1"), "iptables");
    world
        .api
        .reconfigure("mode: \"iptables\"", "mode: \"ipvs\"");
    world.nodes.failing.lock().unwrap().clear();
    let ran = world
        .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["ipvs"; 3]);
    // It is rolled back: a script may ask again.
    let ran = world.kpx(&rollback).await;
    assert_eq!(ran.code, 4, "{ran}");
    let ran = world.kpx(&[&rollback[..], &["--again"]].concat()).await;
    assert_eq!(ran.code, 0, "{ran}");
}

#[tokio::test]
async fn resume_has_limits_of_its_own() {
    let world = World::new();
    world
        .nodes
        .fail("worker2 finish", "a Service does not answer");
    let ran = world.all(&["--confirm-timeout", "70s"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    world.nodes.failing.lock().unwrap().clear();
    let resume = ["migrate", "resume", "--all-nodes", "--yes"];
    let ran = world
        .kpx(&[&resume[..], &["--confirm-timeout", "20s"]].concat())
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    let commands = world.api.asked().into_iter().filter_map(|request| {
        let name = request.body["metadata"]["name"].as_str()?;
        let finishes = request.method == "POST" && name.starts_with("kpx-finish");
        finishes.then(|| request.body["spec"]["containers"][0]["command"].to_string())
    });
    let commands: Vec<String> = commands.collect();
    let with = |limit: &str| {
        let words = format!("\"--confirm-timeout\",\"{limit}\"");
        commands.iter().filter(|of| of.contains(&words)).count()
    };
    assert_eq!((with("70s"), with("20s")), (2, 2), "{commands:#?}");
}

#[tokio::test]
async fn a_configuration_that_is_set_back_ends_the_wait_at_once() {
    for starts_before in [true, false] {
        let world = World::new();
        let text = world.api.config();
        let back = set_mode("iptables", "ipvs");
        if starts_before {
            world.nodes.fates("worker1 finish", &[Fate::Ready]);
            world.api.fault(creates("kpx-finish", back).times(1));
        } else {
            // kube-proxy starts with it.
            world.api.fault(
                Fault::of("delete", "pods", back)
                    .starting("kube-proxy")
                    .times(1),
            );
        }
        let began = Instant::now();
        let ran = world.all(&[]).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{ran}");
        assert_eq!(ran.code, 4, "{ran}");
        for tells in [
            "has mode ipvs, not iptables, again: another program, such as GitOps, set it back",
            "rolled back 3 nodes to mode ipvs",
            "then commit the mode there",
            "next: kpx migrate prepare --to iptables",
        ] {
            assert!(ran.out.contains(tells), "{tells}: {ran}");
        }
        assert_eq!(world.api.config(), text);
        assert_eq!(world.modes(), ["ipvs"; 3]);
    }
}

#[tokio::test]
async fn nodes_that_do_not_run_in_the_configured_mode_yet_are_moved() {
    let world = World::new();
    // kpx on worker1 has moved it, and changed the configuration for all.
    world
        .api
        .reconfigure("mode: \"ipvs\"", "mode: \"iptables\"");
    let mode = ("worker1".to_owned(), "iptables".to_owned());
    world.nodes.modes.lock().unwrap().extend([mode]);
    let ran = world.all(&["--dry-run"]).await;
    let tells = "only those nodes migrate whose kube-proxy still runs in mode ipvs";
    assert!(ran.out.contains(tells), "{ran}");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.out.contains("migrated 2 nodes from mode ipvs"), "{ran}");
    assert_eq!(world.modes(), ["iptables"; 3]);
    let story = world.nodes.story();
    assert!(!story.contains(&"worker1 prepare".to_owned()), "{story:?}");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.out.contains("already configured for mode iptables"),
        "{ran}"
    );
}

#[tokio::test]
async fn a_guard_that_runs_is_not_created_again() {
    let world = World::new();
    let forbidden = What::Status(403, "pods is forbidden: a policy denies it");
    world.api.fault(creates("kpx-guard", forbidden).after(1));
    world.nodes.fail("worker1 finish", "no ip_vs");
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.out.contains("rolled back 3 nodes to mode ipvs"),
        "{ran}"
    );
    assert!(!ran.to_string().contains("forbidden"), "{ran}");
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn nothing_is_rolled_back_on_a_node_that_was_not_touched() {
    let world = World::new();
    let forbidden = What::Status(403, "pods is forbidden: a policy denies it");
    world.api.fault(creates("kpx-guard", forbidden));
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.out.contains("a policy denies it"), "{ran}");
    for tells in ["bridge: ", "connections that began", "unknown"] {
        assert!(!ran.out.contains(tells), "{tells}: {ran}");
    }
    assert_eq!(world.nodes.story(), [""; 0]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn status_says_that_there_is_no_bridge_and_names_the_image() {
    let world = World::new();
    world
        .nodes
        .fail("worker2 finish", "a Service does not answer");
    assert_eq!(world.all(&[]).await.code, 4);
    let mut guards = world.leftovers().into_iter();
    let guard = guards.find(|name| name.starts_with("kpx-guard-")).unwrap();
    let log = "kpx: waiting for a bridge to guard\n".to_owned();
    world.nodes.logs.lock().unwrap().insert(guard.clone(), log);
    let status = ["migrate", "status", "--all-nodes"];
    let ran = world.kpx(&status).await;
    let tells = format!("bridge: worker2: not loaded; pod kube-system/{guard} waits for it");
    assert!(ran.out.contains(&tells), "{tells}: {ran}");
    assert!(ran.out.ends_with(" --image kpx:1"), "{ran}");
    let ran = world.kpx(&[&status[..], &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["guards"][0]["state"], "unbridged", "{ran}");
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_not_waited_for_twice() {
    let mut world = World::new();
    world.ready = "8s";
    let unpulled = [Fate::Waits("ErrImagePull", "no such host")];
    for mode in ["iptables", "ipvs"] {
        world
            .nodes
            .fates(&format!("worker1 kube-proxy {mode}"), &unpulled);
    }
    let began = Instant::now();
    let ran = world.all(&[]).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{ran}");
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.out.contains("ErrImagePull"), "{ran}");
    // The image is there again.
    let ran = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["ipvs"; 3]);
}

/// As `kubectl delete configmaps,leases -l app.kubernetes.io/managed-by=kpx` does.
#[tokio::test]
async fn a_state_that_another_program_deleted_is_written_again() {
    let world = World::new();
    let text = world.api.config();
    let deletes = What::Meanwhile(Arc::new(|cluster| {
        for kind in ["configmaps", "leases"] {
            cluster.remove(&Key::new(kind, "kube-system", "kpx-migrate"));
        }
    }));
    world.api.fault(creates("kpx-finish", deletes).times(1));
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    let said = ran.out.replace("\n  ", " ");
    assert!(
        said.contains("deleted the state of this migration"),
        "{ran}"
    );
    assert!(said.contains("kpx wrote it again"), "{ran}");
    let ran = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.api.config(), text);
    assert_eq!(world.modes(), ["ipvs"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}
