//! Changing a node through a pod on it.

use std::fs;
use std::sync::Arc;

use kpx_node::action::Action;
use serde_json::{Value, json};

use super::{NODE, RECORDING, World, is_error};
use crate::fake_api::{Cluster, Fault, Key, Trouble, What};
use crate::support::{Ran, kpx, root};

impl World {
    /// A cluster in which Services were deleted after `NODE` was recorded.
    pub(crate) fn drifted() -> Self {
        let world = Self::new();
        world.api.with(|cluster| {
            for resource in ["services", "endpointslices"] {
                let of_shop = cluster.list(resource).map(Key::of);
                let of_shop: Vec<Key> = of_shop.filter(|key| key.namespace == "shop").collect();
                assert!(!of_shop.is_empty(), "{resource}");
                for key in &of_shop {
                    cluster.remove(key);
                }
            }
        });
        world
    }

    /// Applies the plan of `kpx reconcile`, with `more`.
    async fn reconcile(&self, more: &[&str]) -> Ran {
        self.on(NODE, &[&["reconcile"], more].concat()).await
    }

    /// The titles of the plan's steps; there are two or more.
    async fn titles(&self) -> Vec<String> {
        let ran = self.reconcile(&["-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let steps = report["steps"].as_array().unwrap().iter();
        let titles = steps.map(|step| step["title"].as_str().unwrap().to_owned());
        let titles: Vec<String> = titles.collect();
        assert!(titles.len() > 1, "{titles:?}");
        titles
    }

    /// The Jobs that were created, without those that read.
    fn changes(&self) -> Vec<Value> {
        let asked = self.api.asked().into_iter();
        let created =
            asked.filter(|request| request.method == "POST" && request.path.ends_with("/jobs"));
        let jobs = created.map(|created| created.body);
        let name = |job: &Value| job["metadata"]["name"].as_str().unwrap().to_owned();
        jobs.filter(|job| name(job).starts_with("kpx-change-"))
            .collect()
    }
}

const APPLY: &[&str] = &["--apply", "--yes"];

/// The exit status of a plan that was carried out: the node of this test stays as it was recorded, and kpx says so.
const DONE_IN_VAIN: u8 = 1;

#[tokio::test]
async fn the_plan_that_was_shown_is_carried_out_on_the_node() {
    let world = World::drifted();
    let titles = world.titles().await;
    let ran = world.reconcile(APPLY).await;
    assert_eq!(ran.code, DONE_IN_VAIN, "{ran}");
    assert!(ran.out.contains("; still needed to bring"), "{ran}");
    let plans = world.nodes.plans();
    let [(node, plan)] = plans.as_slice() else {
        panic!("{plans:?}");
    };
    assert_eq!(node, NODE);
    let carried_out: Vec<&str> = plan.steps.iter().map(|step| step.title.as_str()).collect();
    assert_eq!(carried_out, titles);
    for (number, title) in titles.iter().enumerate() {
        let told = format!("kpx: step {}: {title}", number + 1);
        assert!(ran.err.contains(&told), "{told}: {ran}");
    }
    let jobs = world.changes();
    let [job] = jobs.as_slice() else {
        panic!("{jobs:?}");
    };
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    // The log outlives the pod until kpx has read it.
    assert!(job["spec"]["ttlSecondsAfterFinished"].as_u64().unwrap() > 0);
    world.is_clean().await;
}

#[tokio::test]
async fn connections_that_no_endpoint_answers_are_forgotten_on_the_node() {
    let world = World::new();
    let folder = world.path("with-connections");
    let from = root().join("testdata/nodes").join(RECORDING);
    for part in ["node", "kube-proxy"] {
        fs::create_dir_all(folder.join(part)).unwrap();
        for file in fs::read_dir(from.join(part)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.join(part).join(file.file_name())).unwrap();
        }
    }
    let entry = |client: &str, backend: &str| {
        format!(
            "tcp 6 100 SYN_SENT src={client} dst=10.100.1.1 sport=4000 dport=8080 src={backend} dst={client} sport=8080 \
             dport=4000 mark=0 use=1\n"
        )
    };
    // The second one has an endpoint of shop/cart.
    let text = entry("10.244.1.9", "10.244.1.99") + &entry("10.244.1.10", "10.244.1.30");
    fs::write(folder.join("node/conntrack.txt"), text).unwrap();
    world.nodes.deal(NODE, &folder);
    for option in ["--part", "--only"] {
        let ran = world.reconcile(&[option, "conntrack", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let [step] = report["steps"].as_array().unwrap().as_slice() else {
            panic!("{option}: {ran}");
        };
        assert_eq!(
            step["title"], "shop/cart:http: forget 1 tcp connection whose endpoint is gone",
            "{option}: {ran}"
        );
    }
    assert_eq!(world.nodes.plans().len(), 0);
    let ran = world
        .reconcile(&[&["--part", "conntrack"], APPLY].concat())
        .await;
    assert_eq!(ran.code, DONE_IN_VAIN, "{ran}");
    let plans = world.nodes.plans();
    let [(node, plan)] = plans.as_slice() else {
        panic!("{plans:?}");
    };
    assert_eq!(node, NODE);
    let [step] = plan.steps.as_slice() else {
        panic!("{plan:?}");
    };
    let Action::Conntrack { flows } = &step.action else {
        panic!("{step:?}");
    };
    let [flow] = flows.as_slice() else {
        panic!("{flows:?}");
    };
    assert_eq!(flow.source.to_string(), "10.244.1.9:4000");
    assert_eq!(flow.destination.to_string(), "10.100.1.1:8080");
    world.is_clean().await;
}

#[tokio::test]
async fn nothing_is_started_without_consent() {
    let world = World::drifted();
    for args in [&[][..], &["--apply"]] {
        world.reconcile(args).await;
        assert_eq!(world.changes(), Vec::<Value>::new(), "{args:?}");
    }
    let ran = world.reconcile(&["--apply"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("cannot ask for confirmation"), "{ran}");
    world.is_clean().await;
}

#[tokio::test]
async fn a_plan_that_stops_on_the_node_is_reported() {
    let world = World::drifted();
    let titles = world.titles().await;
    world.nodes.trouble(NODE, Trouble::Stops);
    let ran = world.reconcile(APPLY).await;
    assert_eq!(ran.code, 4, "{ran}");
    for tells in [
        format!("kpx: undoing step 1: {}", titles[0]),
        "the kernel refuses".to_owned(),
        format!(
            "stopped at step 2 of {}: all changes were rolled back",
            titles.len()
        ),
    ] {
        assert!(
            ran.err.contains(&tells) || ran.out.contains(&tells),
            "{tells}: {ran}"
        );
    }
    world.is_clean().await;
}

#[tokio::test]
async fn a_pod_that_is_killed_is_an_error() {
    let world = World::drifted();
    world.titles().await;
    world.nodes.trouble(NODE, Trouble::Dies);
    let ran = world.reconcile(APPLY).await;
    assert_eq!(ran.code, 4, "{ran}");
    let tells = [
        "kpx on node node1 was killed in step 2",
        "`kpx --node node1 diff`",
    ];
    for tells in tells {
        assert!(ran.err.contains(tells), "{tells}: {ran}");
    }
    world.is_clean().await;
}

#[tokio::test]
async fn a_node_that_changes_after_the_consent_is_not_changed() {
    let world = World::drifted();
    world.titles().await;
    // Its second reading finds that there are no endpoints any more.
    let act = What::Meanwhile(Arc::new(|cluster| {
        let all: Vec<Key> = cluster.list("endpointslices").map(Key::of).collect();
        for key in &all {
            cluster.remove(key);
        }
    }));
    world
        .api
        .fault(Fault::of("create", "jobs", act).after(1).times(1));
    let ran = world.reconcile(APPLY).await;
    is_error(
        &Ran {
            err: last_lines(&ran.err),
            ..ran
        },
        &["changed after the plan was made"],
    );
    assert_eq!(world.nodes.plans().len(), 0);
    assert_eq!(world.changes().len(), 1);
    world.is_clean().await;
}

/// The error at the end of a text, without the plan above it.
fn last_lines(text: &str) -> String {
    let at = text.rfind("\nkpx: ").unwrap();
    text[at + 1..].to_owned()
}

#[tokio::test]
async fn an_old_server_and_an_image_of_kpx_carry_plans_out_too() {
    let world = World::drifted();
    world.titles().await;
    let ran = world
        .reconcile(&[APPLY, &["--image", "kpx:1"]].concat())
        .await;
    assert_eq!(ran.code, DONE_IN_VAIN, "{ran}");
    world.api.with(Cluster::grow_old);
    let ran = world.reconcile(APPLY).await;
    assert_eq!(ran.code, DONE_IN_VAIN, "{ran}");
    assert_eq!(world.nodes.plans().len(), 2);
    let commands = world.changes();
    let main = |job: &Value| job["spec"]["template"]["spec"]["containers"][0]["command"].clone();
    assert_eq!(main(&commands[0])[0], json!("kpx"));
    assert_eq!(main(&commands[1])[0], json!("sh"));
    world.is_clean().await;
}

impl World {
    /// Drifted nodes, all with the same recording, and their names.
    fn several() -> (Self, Vec<String>) {
        let world = Self::drifted();
        let folder = root().join("testdata/nodes").join(RECORDING);
        let names = world.api.with(|cluster| {
            let names = cluster.list("nodes").map(|node| &node["metadata"]["name"]);
            let names = names.map(|name| name.as_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        });
        assert!(names.len() > 1, "{names:?}");
        for name in &names {
            world.nodes.deal(name, &folder);
        }
        (world, names)
    }

    /// Runs `kpx reconcile` for all nodes.
    async fn reconcile_all(&self, more: &[&str]) -> Ran {
        let options = self.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        kpx(&[&options[..], &["reconcile", "--all-nodes"], more].concat()).await
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn all_nodes_are_changed_after_one_confirmation() {
    let (world, names) = World::several();
    let ran = world.reconcile_all(&[]).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert_eq!(world.nodes.plans().len(), 0);
    let ran = world.reconcile_all(&["--apply"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("cannot ask for confirmation"), "{ran}");
    let ran = world.reconcile_all(APPLY).await;
    assert_eq!(ran.code, DONE_IN_VAIN, "{ran}");
    let changed: Vec<String> = world
        .nodes
        .plans()
        .into_iter()
        .map(|(node, _)| node)
        .collect();
    assert_eq!(changed, names);
    assert!(ran.out.contains("; still needed: "), "{ran}");
    world.is_clean().await;
}

#[tokio::test]
async fn after_a_plan_that_stops_no_other_node_is_changed() {
    let (world, names) = World::several();
    world.nodes.trouble(&names[0], Trouble::Stops);
    let ran = world.reconcile_all(APPLY).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert_eq!(world.nodes.plans().len(), 1);
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for tells in [
        "the kernel refuses".to_owned(),
        format!("not changed, because the plan of node {} stopped", names[0]),
    ] {
        assert!(text.contains(&tells), "{tells}: {ran}");
    }
    world.is_clean().await;
}
