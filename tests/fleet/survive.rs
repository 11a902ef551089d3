//! Disturbances during a migration: API servers restart; pods are evicted, killed, and slow to end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::World;
use crate::fake_api::{Fate, Fault, Key, What};

/// Runs `change` before the third pod is created, and `back` a moment later.
fn for_a_while(world: &Arc<World>, change: fn(&World), back: fn(&World)) {
    let weak = Arc::downgrade(world);
    let act = What::Meanwhile(Arc::new(move |_| {
        let weak = weak.clone();
        thread::spawn(move || {
            let Some(world) = weak.upgrade() else { return };
            change(&world);
            thread::sleep(Duration::from_millis(500));
            back(&world);
        });
    }));
    let fault = Fault::of("create", "pods", act).after(4).times(1);
    world.api.fault(fault);
}

#[tokio::test]
async fn an_api_server_that_restarts_is_waited_for() {
    for (change, back) in [
        // The API server does not answer.
        (
            (|world| world.api.with(|cluster| cluster.set_away(true))) as fn(&World),
            (|world| world.api.with(|cluster| cluster.set_away(false))) as fn(&World),
        ),
        // It is there, and knows no roles yet.
        (
            |world| world.api.with(|cluster| cluster.set_starting(true)),
            |world| world.api.with(|cluster| cluster.set_starting(false)),
        ),
    ] {
        let world = Arc::new(World::new());
        for_a_while(&world, change, back);
        let ran = world.all(&[]).await;
        assert_eq!(ran.code, 0, "{ran}");
        assert_eq!(world.modes(), ["iptables"; 3]);
        assert_eq!(world.leftovers(), [""; 0]);
    }
}

#[tokio::test]
async fn an_api_server_that_is_away_at_first_is_waited_for() {
    let world = Arc::new(World::new());
    world.api.with(|cluster| cluster.set_away(true));
    let there = Arc::clone(&world);
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(400));
        there.api.with(|cluster| cluster.set_away(false));
    });
    let ran = world.all(&[]).await;
    later.join().unwrap();
    assert_eq!(ran.code, 0, "{ran}");
}

#[tokio::test]
async fn a_busy_server_is_retried_after_the_time_that_it_requests() {
    let world = World::new();
    let busy = Fault::of("patch", "configmaps", What::Busy(1)).named("kube-proxy");
    world.api.fault(busy.times(1));
    for verb in ["create", "delete", "get", "list"] {
        let fault = Fault::of(verb, "pods", What::Status(504, "etcd is slow"));
        world.api.fault(fault.after(1).times(2));
    }
    let began = Instant::now();
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_lost_pod_is_created_again() {
    for (job, fates) in [
        (
            "prepare",
            &[Fate::Evicted, Fate::OutOfMemory, Fate::Deleted][..],
        ),
        ("finish", &[Fate::Deleted]),
        ("preview", &[Fate::Evicted]),
    ] {
        let world = World::new();
        world.nodes.fates(&format!("worker1 {job}"), fates);
        let ran = world.all(&[]).await;
        assert_eq!(ran.code, 0, "{job}: {ran}");
        assert_eq!(world.modes(), ["iptables"; 3], "{job}");
        assert_eq!(world.leftovers(), [""; 0], "{job}");
        if job == "prepare" {
            for tells in [
                "was lost (Evicted: The node was low on resource: memory.; exit status 137); a new pod resumes",
                "was lost (OOMKilled; exit status 137)",
                "was lost (it was deleted)",
            ] {
                assert!(ran.err.contains(tells), "{tells}: {ran}");
            }
        }
    }
    let world = World::new();
    assert_eq!(world.all(&[]).await.code, 0);
    world.nodes.fates("worker1 rollback", &[Fate::OutOfMemory]);
    let back = world
        .kpx(&["migrate", "rollback", "--all-nodes", "--yes"])
        .await;
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(world.modes(), ["ipvs"; 3]);
}

#[tokio::test]
async fn a_pod_that_is_lost_repeatedly_fails() {
    let world = World::new();
    world.nodes.fates("worker1 prepare", &[Fate::Evicted; 4]);
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.out.contains(
            "was lost 4 times; the last reason: Evicted: The node was low on resource: memory."
        ),
        "{ran}"
    );
    let made = world.nodes.story().into_iter();
    assert_eq!(made.filter(|what| what == "worker1 prepare").count(), 4);
    assert_eq!(world.modes(), ["ipvs"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_kube_proxy_that_ends_slowly_does_not_count_as_the_new_one() {
    let world = World::new();
    *world.nodes.lingers.lock().unwrap() = Duration::from_millis(600);
    let ran = world
        .kpx(&[
            "migrate",
            "--to",
            "iptables",
            "--node",
            "worker1",
            "--image",
            "kpx:1",
            "--soak",
            "1s",
            "--ready-timeout",
            "5s",
            "--yes",
        ])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["ipvs", "iptables", "ipvs"]);
}

#[tokio::test]
async fn a_crash_loop_is_named_and_rolled_back() {
    let mut world = World::new();
    world.ready = "60s";
    world
        .nodes
        .fates("worker1 kube-proxy iptables", &[Fate::CrashLoops]);
    let began = Instant::now();
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "kube-proxy on node worker1 does not start",
        "CrashLoopBackOff",
        "its log ends: I1120 \"Using ipvs Proxier\"",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(world.modes(), ["ipvs"; 3]);
}

#[tokio::test]
async fn a_missing_image_is_reported_once() {
    for reason in ["ErrImagePull", "InvalidImageName"] {
        let mut world = World::new();
        // Steps that the kubelet does not try again are not waited for.
        world.ready = match reason {
            "ErrImagePull" => "1s",
            _ => "60s",
        };
        let fate = Fate::Waits(reason, "kpx:1: not found");
        for node in world.names {
            world.nodes.fates(&format!("{node} preview"), &[fate]);
        }
        let began = Instant::now();
        let ran = world.all(&[]).await;
        let took = began.elapsed();
        assert_eq!(ran.code, 4, "{ran}");
        // The nodes are waited for in parallel.
        assert!(took < Duration::from_secs(3), "{took:?}");
        let said = ran.err.matches("kpx:1: not found").count();
        assert_eq!(said, 1, "{ran}");
        // Steps that the kubelet tries again are reported before kpx gives up.
        let early = "worker1: cannot pull image kpx:1 (ErrImagePull); waiting at most 1 s";
        let said = ran.err.matches(early).count();
        assert_eq!(said, usize::from(reason == "ErrImagePull"), "{ran}");
        assert!(
            ran.err.contains(&format!(
                "3 of 3 nodes cannot be migrated: worker1, worker2, control1: kpx's pod does not start: {reason}: "
            )),
            "{ran}"
        );
        assert_eq!(world.nodes.story(), [""; 0]);
        assert_eq!(world.leftovers(), [""; 0]);
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn pods_of_previews_are_deleted_even_without_their_logs() {
    let mut world = World::new();
    world.ready = "1s";
    let fault = Fault::of("get", "pods/log", What::Status(400, "no log here"));
    world.api.fault(fault);
    let ran = world.all(&["--dry-run"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(ran.out.contains("no log here"), "{ran}");
    assert_eq!(world.leftovers(), [""; 0]);
}

#[tokio::test]
async fn a_requested_rollback_that_stopped_ends_as_one() {
    let world = World::new();
    assert_eq!(world.all(&[]).await.code, 0);
    world.nodes.fail("worker2 rollback", "no room");
    let way = |way| ["migrate", way, "--all-nodes", "--yes"];
    let ran = world.kpx(&way("rollback")).await;
    assert_eq!(ran.code, 4, "{ran}");
    world.nodes.failing.lock().unwrap().clear();
    let ran = world.kpx(&way("resume")).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.out.contains("rolled back 3 nodes to mode ipvs in "),
        "{ran}"
    );
    assert!(!ran.out.contains("of the first node failed"), "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_guard_that_is_evicted_or_deleted_is_created_again() {
    for (job, evicted) in [
        ("worker1 prepare", true),
        ("worker1 prepare", false),
        // Whatever runs on the node, the bridge is needed until kube-proxy serves.
        ("worker1 kube-proxy iptables", true),
        ("worker1 kube-proxy iptables", false),
    ] {
        let world = Arc::new(World::new());
        let slow = Duration::from_secs(3);
        world
            .nodes
            .slow
            .lock()
            .unwrap()
            .insert(job.to_owned(), slow);
        let there = Arc::clone(&world);
        let eviction = thread::spawn(move || {
            let named = |part: &str| {
                let left = there.leftovers().into_iter();
                let mut left = left.filter(|name| name.starts_with(part));
                left.next()
            };
            while !there.nodes.story().iter().any(|told| told == job) {
                thread::sleep(Duration::from_millis(10));
            }
            let key = Key::new("pods", "kube-system", &named("kpx-guard-").unwrap());
            there.api.with(|cluster| {
                if evicted {
                    cluster.edit(&key, |pod| {
                        pod["status"]["phase"] = "Failed".into();
                        pod["status"]["reason"] = "Evicted".into();
                    });
                } else {
                    cluster.remove(&key);
                }
            });
        });
        let ran = world.all(&[]).await;
        eviction.join().unwrap();
        assert_eq!(ran.code, 0, "{ran}");
        let why = if evicted { "Evicted" } else { "it was deleted" };
        let tells = format!("was lost ({why}); creating it again");
        assert!(ran.err.contains(&tells), "{job}: {tells}: {ran}");
        let story = world.nodes.story().into_iter();
        let guards = story.filter(|what| what == "worker1 guard").count();
        assert_eq!(guards, 2, "{ran}");
        assert_eq!(world.leftovers(), [""; 0]);
    }
}
