//! The migration without an image of kpx: it copies itself into pods of kube-proxy's image.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::World;
use crate::fake_api::{Fault, What};
use crate::support::Ran;

impl World {
    /// Migrates all nodes with a small program to copy.
    pub(crate) async fn all_copied(&self, more: &[&str]) -> Ran {
        let programs = self.dir.path().to_str().unwrap();
        for processor in ["amd64", "arm64"] {
            let program = self.dir.path().join(format!("kpx-linux-{processor}"));
            fs::write(program, "a program".repeat(10_000)).unwrap();
        }
        let mut args = vec!["--all-nodes", "--programs", programs];
        args.extend_from_slice(more);
        self.migrate(&args).await
    }

    /// Rolls back what [`World::all_copied`] did.
    pub(crate) async fn roll_back_copied(&self) -> Ran {
        let programs = self.dir.path().to_str().unwrap();
        let back = ["migrate", "rollback", "--all-nodes", "--yes"];
        self.kpx(&[&["--programs", programs], &back[..]].concat())
            .await
    }

    /// The image of kube-proxy.
    fn proxy_image(&self) -> Value {
        let set = self.object("daemonsets", "kube-proxy").unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    }
}

#[tokio::test]
async fn without_an_image_kpx_copies_itself_into_pods_of_kube_proxys_image() {
    let world = World::new();
    let ran = world.all_copied(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(world.modes(), ["iptables"; 3]);
    assert_eq!(world.leftovers(), [""; 0]);
    let with_image = World::new();
    assert_eq!(with_image.all(&[]).await.code, 0);
    // Pods start in threads of their own.
    let sorted = |world: &World| {
        let mut story = world.nodes.story();
        story.sort();
        story
    };
    assert_eq!(sorted(&world), sorted(&with_image), "{ran}");
    let kept = world.object("configmaps", "kpx-migrate").unwrap();
    let kept: Value = serde_json::from_str(kept["data"]["state"].as_str().unwrap()).unwrap();
    assert_eq!(kept["plan"]["image"], world.proxy_image());
    assert_eq!(kept["plan"]["copies"], json!(true));
    let back = world.roll_back_copied().await;
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(world.modes(), ["ipvs"; 3]);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_copy_that_breaks_off_is_made_again_in_a_new_pod() {
    // A copy takes five requests.
    for (pod, after) in [
        ("kpx-preview-", 1),
        ("kpx-guard-", 0),
        ("kpx-guard-", 4),
        ("kpx-prepare-", 2),
        ("kpx-prepare-", 3),
    ] {
        let world = World::new();
        let what = What::Status(500, "the connection to the kubelet broke");
        let fault = Fault::of("get", "pods/exec", what).starting(pod);
        let fault = fault.after(after).times(1);
        world.api.fault(fault);
        let ran = world.all_copied(&[]).await;
        assert_eq!(ran.code, 0, "{pod} after {after}: {ran}");
        assert_eq!(world.modes(), ["iptables"; 3]);
        assert_eq!(world.leftovers(), [""; 0]);
        assert!(
            ran.err.contains("was lost (cannot copy kpx into it: "),
            "{pod} after {after}: {ran}"
        );
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_container_that_is_killed_while_kpx_is_copied_is_replaced() {
    for after in 0..5 {
        let world = World::new();
        let act = What::Meanwhile(Arc::new(|cluster| cluster.kill("kpx-prepare-")));
        let fault = Fault::of("get", "pods/exec", act).starting("kpx-prepare-");
        let fault = fault.after(after).times(1);
        world.api.fault(fault);
        let ran = world.all_copied(&[]).await;
        assert_eq!(ran.code, 0, "after {after}: {ran}");
        assert_eq!(world.modes(), ["iptables"; 3]);
        assert_eq!(world.leftovers(), [""; 0]);
        assert!(ran.err.contains("was lost ("), "after {after}: {ran}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_image_in_which_kpx_does_not_run_stops_the_migration_before_anything_is_changed() {
    let world = World::new();
    let before = world.api.config();
    world
        .nodes
        .copies
        .never_run("exec /kpx/kpx: no such file or directory");
    let ran = world.all_copied(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        "kpx does not run in a pod of",
        "no such file or directory",
        "`make static` builds a kpx that needs no libraries",
        "nothing was changed",
    ] {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    assert_eq!(world.api.config(), before);
    assert_eq!(world.leftovers(), [""; 0]);
}
