//! kpx is killed before each of its writes; another kpx resumes or rolls back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::World;
use crate::fake_api::{Cluster, Fault, What};

/// Runs kpx until it is about to make its write number `last`, and kills it there. Returns whether it ended before.
async fn killed(world: &World, more: &[&str], last: usize) -> bool {
    let writes = ["create", "patch", "delete"].map(|verb| (verb, "*"));
    killed_before(world, more, &writes, last).await
}

/// Kills kpx before its request number `last` of those in `writes`, each a verb and a resource.
async fn killed_before(
    world: &World,
    more: &[&str],
    writes: &[(&'static str, &'static str)],
    last: usize,
) -> bool {
    let (kill, dead) = oneshot::channel();
    let kill = Mutex::new(Some(kill));
    let count = Arc::new(AtomicUsize::new(0));
    let counts: Arc<dyn Fn(&mut Cluster) + Send + Sync> = Arc::new(move |_| {
        if count.fetch_add(1, Ordering::SeqCst) == last
            && let Some(kill) = kill.lock().unwrap().take()
        {
            kill.send(()).ok();
        }
    });
    for (verb, resource) in writes {
        world.api.fault(Fault::of(
            verb,
            resource,
            What::Meanwhile(Arc::clone(&counts)),
        ));
        // So that it is dead before an answer comes.
        let slow = What::Slow(Duration::from_millis(5));
        world.api.fault(Fault::of(verb, resource, slow));
    }
    let ended = tokio::select! {
        _ = dead => false,
        ran = world.all(more) => {
            assert_eq!(ran.code, 0, "{ran}");
            true
        }
    };
    // Requests that the server has received are carried out.
    tokio::time::sleep(Duration::from_millis(30)).await;
    world.api.heal();
    world.expire();
    ended
}

#[tokio::test]
async fn copies_of_an_older_configuration_are_replaced() {
    // The first ConfigMap that it creates has its state, the second one is a copy. Where the DaemonSet of the copies is not
    // created, the first DaemonSet excludes their nodes already.
    for (created, last) in [("configmaps", 1), ("daemonsets", 0)] {
        let world = World::of(&["control1", "worker1"]);
        assert!(!killed_before(&world, &["--staged"], &[("create", created)], last).await);
        assert_ne!(world.leftovers(), [""; 0], "{created}");
        let old = "mode: \"ipvs\"";
        world.api.reconfigure(old, &format!("{old}\n# theirs"));
        let ran = world
            .kpx(&["migrate", "resume", "--all-nodes", "--yes"])
            .await;
        assert_eq!(ran.code, 0, "{ran}");
        assert_eq!(world.modes(), ["iptables"; 2], "{created}");
        assert!(world.api.config().contains("# theirs"), "{created}");
        assert_eq!(world.leftovers(), [""; 0], "{created}");
    }
}

/// Kills kpx before each of its writes; then rolls back if `back` is true, and resumes otherwise.
async fn killed_everywhere(more: &[&str], back: bool) {
    let mut last = 0;
    loop {
        let world = World::of(&["control1", "worker1"]);
        let (set, text) = (world.set(), world.api.config());
        if killed(&world, more, last).await {
            break;
        }
        let kept = world.object("configmaps", "kpx-migrate");
        let kept = kept.map(|map| map["data"]["state"].as_str().unwrap().to_owned());
        let begun = kept.is_some();
        let over = kept.is_some_and(|state| state.contains("\"ended\":true"));
        let way = if back { "rollback" } else { "resume" };
        let ran = world.kpx(&["migrate", way, "--all-nodes", "--yes"]).await;
        if begun && (back || !over) {
            assert_eq!(ran.code, 0, "killed before write {last}: {ran}");
        }
        let end = if back || !begun { "ipvs" } else { "iptables" };
        assert_eq!(world.modes(), [end; 2], "killed before write {last}: {ran}");
        let text = text.replace("mode: \"ipvs\"", &format!("mode: \"{end}\""));
        assert_eq!(world.api.config(), text, "killed before write {last}");
        assert_eq!(world.set(), set, "killed before write {last}");
        let mut left = world.leftovers();
        // Pods of previews end on their own; the next migration deletes them.
        left.retain(|name| begun || !name.starts_with("kpx-preview-"));
        assert_eq!(left, [""; 0], "killed before write {last}");
        last += 1;
    }
    assert!(last > 15, "{last} writes");
}

#[ignore = "takes minutes: make test-loops"]
#[tokio::test]
async fn killed_before_any_write_it_can_be_resumed() {
    killed_everywhere(&[], false).await;
}

#[ignore = "takes minutes: make test-loops"]
#[tokio::test]
async fn killed_before_any_write_it_can_be_rolled_back() {
    killed_everywhere(&[], true).await;
}

#[ignore = "takes minutes: make test-loops"]
#[tokio::test]
async fn killed_before_any_write_with_copies_it_can_be_resumed() {
    killed_everywhere(&["--staged"], false).await;
}

#[ignore = "takes minutes: make test-loops"]
#[tokio::test]
async fn killed_before_any_write_with_copies_it_can_be_rolled_back() {
    killed_everywhere(&["--staged"], true).await;
}
