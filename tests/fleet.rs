//! The move of a cluster's nodes, through a fake API server: the kubelets play what kpx does on the nodes.

mod terminal;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::fake_api::{Api, Cluster, Fate, Fault, Key, Kubelet, Pod, What};
use crate::support::{Ran, kpx, root};

const NODES: &[&str] = &["control1", "worker1", "worker2"];

/// What happened on the nodes, in order: `worker1 prepare`, `worker1 kube-proxy iptables`.
type Story = Arc<Mutex<Vec<String>>>;

/// Nodes on which kpx does what it is told, and kube-proxy runs in the mode of its configuration.
#[derive(Clone, Default)]
struct Nodes {
    story: Story,
    /// The mode of each node's kube-proxy.
    modes: Arc<Mutex<BTreeMap<String, String>>>,
    /// Nodes and jobs that fail, with why.
    failing: Arc<Mutex<BTreeMap<String, String>>>,
    /// What pods printed.
    logs: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Nodes {
    fn tell(&self, what: String) {
        self.story.lock().unwrap().push(what);
    }

    fn story(&self) -> Vec<String> {
        self.story.lock().unwrap().clone()
    }

    fn fail(&self, what: &str, why: &str) {
        let mut failing = self.failing.lock().unwrap();
        failing.insert(what.to_owned(), why.to_owned());
    }

    fn mode(&self, node: &str) -> String {
        self.modes.lock().unwrap()[node].clone()
    }
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn mode_of(config: &str) -> String {
    let line = config.lines().find_map(|line| line.strip_prefix("mode:"));
    line.unwrap().trim().trim_matches('"').to_owned()
}

impl Kubelet for Nodes {
    fn start(&self, pod: &Pod) -> Fate {
        if let Some(config) = &pod.config {
            let mode = mode_of(config);
            let doing = format!("{} kube-proxy {mode}", pod.node);
            self.tell(doing.clone());
            if self.failing.lock().unwrap().contains_key(&doing) {
                return Fate::NotReady;
            }
            self.modes.lock().unwrap().insert(pod.node.clone(), mode);
            return Fate::Ready;
        }
        let command = pod.object["spec"]["containers"][0]["command"]
            .as_array()
            .unwrap();
        let words: Vec<&str> = command.iter().map(|word| word.as_str().unwrap()).collect();
        if words[..3] == ["kpx", "bridge", "guard"] {
            self.tell(format!("{} guard", pod.node));
            return Fate::Ready;
        }
        assert_eq!(words[..2], ["kpx", "migrate"]);
        let doing = format!("{} {}", pod.node, words[2]);
        self.tell(doing.clone());
        let why = self.failing.lock().unwrap().get(&doing).cloned();
        let outcome = match (words[2], &why) {
            (_, Some(_)) => "stopped",
            ("prepare", _) => "prepared",
            ("finish", _) => "migrated",
            _ => "rolled-back",
        };
        let log = format!(
            "{}\n{}\n",
            json!({"kind": "MigrateEvent", "event": "begins", "leg": "back", "stage": "verify", "title": "wait for it"}),
            json!({"kind": "MigrateReport", "outcome": outcome, "why": why}),
        );
        self.logs.lock().unwrap().insert(pod.key.name.clone(), log);
        Fate::Ended(if why.is_some() { 4 } else { 0 })
    }

    fn stop(&self, _: &Pod) {}

    fn log(&self, pod: &Pod) -> String {
        match &pod.config {
            // A kube-proxy says what it was started with, whatever its ConfigMap says by now.
            Some(config) => {
                let modes = self.modes.lock().unwrap();
                let mode = modes
                    .get(&pod.node)
                    .cloned()
                    .unwrap_or_else(|| mode_of(config));
                format!("I1120 \"Using {mode} Proxier\"\n")
            }
            None => self
                .logs
                .lock()
                .unwrap()
                .get(&pod.key.name)
                .cloned()
                .unwrap_or_default(),
        }
    }
}

/// A cluster in mode ipvs, and kpx on a machine outside.
struct World {
    api: Api,
    nodes: Nodes,
    dir: TempDir,
    names: &'static [&'static str],
}

impl World {
    fn new() -> Self {
        Self::of(NODES)
    }

    fn of(names: &'static [&'static str]) -> Self {
        let api = Api::new();
        let nodes = Nodes::default();
        api.kubelet(nodes.clone());
        api.seed(&root().join("testdata/nodes/dual-ipvs"), names);
        api.with(|cluster| {
            // Nobody looks at them here, and they would be written again and again.
            for resource in ["services", "endpointslices"] {
                let keys: Vec<Key> = cluster.list(resource).map(Key::of).collect();
                for key in keys {
                    cluster.remove(&key);
                }
            }
            for node in names {
                cluster.edit(&Key::new("nodes", "", node), |node| {
                    let labels = node["metadata"]["labels"].as_object_mut().unwrap();
                    labels.retain(|name, _| name.starts_with("kubernetes.io/"));
                });
            }
            cluster.edit(&Key::new("nodes", "", "control1"), |node| {
                node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = json!("");
            });
        });
        nodes.story.lock().unwrap().clear();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self {
            api,
            nodes,
            dir,
            names,
        }
    }

    /// Runs kpx; what it prints comes without its line breaks for people.
    async fn kpx(&self, args: &[&str]) -> Ran {
        let config = self.dir.path().join("kubeconfig");
        let mut all = vec!["--kubeconfig", config.to_str().unwrap(), "--timeout", "5s"];
        all.extend_from_slice(args);
        let mut ran = kpx(&all).await;
        if !args.contains(&"json") {
            ran.out = flat(&ran.out);
            ran.err = flat(&ran.err);
        }
        ran
    }

    async fn migrate(&self, more: &[&str]) -> Ran {
        let mut args = vec![
            "migrate",
            "--to",
            "iptables",
            "--soak",
            "0s",
            "--ready-timeout",
            "5s",
            "--yes",
        ];
        args.extend_from_slice(more);
        self.kpx(&args).await
    }

    async fn all(&self, more: &[&str]) -> Ran {
        let mut args = vec!["--all-nodes", "--image", "kpx:1"];
        args.extend_from_slice(more);
        self.migrate(&args).await
    }

    fn object(&self, resource: &str, name: &str) -> Option<Value> {
        self.api
            .with(|cluster| cluster.get(resource, "kube-system", name).cloned())
    }

    /// Names of objects that kpx made, without its state and its Lease.
    fn leftovers(&self) -> Vec<String> {
        self.api.with(|cluster| {
            let all = ["pods", "daemonsets", "configmaps"].into_iter();
            let all = all.flat_map(|resource| cluster.list(resource).cloned().collect::<Vec<_>>());
            all.filter(|object| {
                object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kpx"
            })
            .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
            .filter(|name| name != "kpx-migrate")
            .collect()
        })
    }

    /// The DaemonSet without what the server writes.
    fn set(&self) -> Value {
        let mut set = self.object("daemonsets", "kube-proxy").unwrap();
        set.as_object_mut().unwrap().remove("status");
        let metadata = set["metadata"].as_object_mut().unwrap();
        for key in ["resourceVersion", "generation"] {
            metadata.remove(key);
        }
        metadata.retain(|_, value| *value != json!({}));
        set
    }

    fn modes(&self) -> Vec<String> {
        self.names
            .iter()
            .map(|node| self.nodes.mode(node))
            .collect()
    }

    fn expire(&self) {
        self.api.with(|cluster| {
            let key = Key::new("leases", "kube-system", "kpx-migrate");
            if cluster
                .get("leases", "kube-system", "kpx-migrate")
                .is_some()
            {
                cluster.edit(&key, |lease| {
                    lease["spec"]["renewTime"] = json!("2020-01-01T00:00:00.000000Z");
                });
            }
        });
    }
}

#[tokio::test]
async fn workers_go_first_one_after_the_other() {
    let world = World::new();
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let mut expected = Vec::new();
    for node in ["worker1", "worker2", "control1"] {
        expected.extend(
            ["prepare", "guard", "kube-proxy iptables", "finish"]
                .map(|what| format!("{node} {what}")),
        );
    }
    assert_eq!(world.nodes.story(), expected, "{ran}");
    assert!(world.api.config().contains("mode: \"iptables\""));
    assert_eq!(world.leftovers(), [""; 0]);
    assert!(
        ran.out
            .ends_with("migrated: 3 nodes from mode ipvs to mode iptables"),
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
                format!("{node} rollback"),
                format!("{node} kube-proxy ipvs")
            ])
            .concat(),
    );
    assert!(
        back.out.ends_with("rolled back: 3 nodes to mode ipvs"),
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
            .contains("the 1 that are not moved go to the new mode whenever"),
        "{ran}"
    );
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
async fn without_an_image_the_commands_are_told() {
    let world = World::new();
    let ran = world.migrate(&["--all-nodes"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.err
            .contains("on node worker1, run: kpx migrate prepare --to iptables "),
        "{ran}"
    );
    assert!(
        ran.err
            .contains("on node control1, run: kpx migrate finish "),
        "{ran}"
    );
    let expected =
        ["worker1", "worker2", "control1"].map(|node| format!("{node} kube-proxy iptables"));
    assert_eq!(world.nodes.story(), expected);
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_tells_all() {
    let world = World::new();
    let before = world.api.asked().len();
    let ran = world.all(&["--dry-run"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    for tells in [
        "3 nodes from mode ipvs to mode iptables",
        "1. worker1",
        "3. control1",
        "-mode: \"ipvs\"",
        "+mode: \"iptables\"",
        "undo: kubectl -n kube-system patch configmap kube-proxy",
        "worker1: start kube-proxy with the new configuration",
        "expected loss:",
        "--staged closes that window",
    ] {
        assert!(ran.out.contains(tells), "{tells}: {ran}");
    }
    let asked = world.api.asked();
    assert!(
        asked[before..]
            .iter()
            .all(|request| request.method == "GET"),
        "{asked:?}"
    );
    let json = world.all(&["--dry-run", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["kind"], "FleetReport");
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
async fn a_canary_that_fails_takes_all_back() {
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
            ran.out.ends_with(
                "rolled back: 3 nodes to mode ipvs, for the first did not get to mode iptables"
            ),
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
async fn a_later_node_that_fails_stops_it_and_it_goes_on() {
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
    assert!(
        ran.out
            .contains("stopped: 1 of 3 nodes run in mode iptables"),
        "{ran}"
    );
    assert!(
        ran.out
            .ends_with("next: kpx migrate resume --all-nodes, or kpx migrate rollback --all-nodes"),
        "{ran}"
    );
    assert!(ran.out.contains("armed: "), "{ran}");
    assert!(
        !world
            .nodes
            .story()
            .iter()
            .any(|told| told.starts_with("control1"))
    );
    // Another one cannot be begun meanwhile.
    let other = world.all(&[]).await;
    assert!(
        other.out.contains("configured for mode iptables already")
            || other.err.contains("is not over"),
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

#[tokio::test]
async fn a_configuration_that_changes_under_way_is_planned_anew() {
    let world = World::new();
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
            .times(1),
    );
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let text = world.api.config();
    assert!(
        text.contains("mode: \"iptables\"") && text.ends_with("# theirs\n"),
        "{text}"
    );
    // What they write later is kept on the way back, too.
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
async fn a_right_that_is_missing_stops_before_harm_or_is_taken_back() {
    for (verb, resource) in [
        ("create", "leases"),
        ("create", "configmaps"),
        ("create", "pods"),
        ("patch", "configmaps"),
        ("delete", "pods"),
        ("get", "pods/log"),
    ] {
        let world = World::new();
        let text = world.api.config();
        world.api.fault(Fault::forbidden(verb, resource));
        let ran = world.all(&[]).await;
        assert_eq!(ran.code, 4, "{verb} {resource}: {ran}");
        let all = format!("{}{}", ran.out, ran.err);
        assert!(
            all.contains("deploy/rbac-migrate.yaml allows it"),
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
async fn restarts_of_the_server_are_lived_through() {
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
            // What is looked at before anything begins is not tried again.
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
async fn a_lease_that_is_renewed_is_somebody_elses() {
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
    // One whose holder is long gone is taken.
    world.api.heal();
    world.expire();
    assert_eq!(world.all(&[]).await.code, 0);
}

#[tokio::test]
async fn a_node_that_vanishes_stops_it() {
    let world = World::new();
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
    let ran = world.all(&[]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.out
            .contains("cannot start kube-proxy with the new configuration on node worker2"),
        "{ran}"
    );
    assert!(ran.out.contains("the node is not ready"), "{ran}");
    assert!(ran.out.contains("stopped: 1 of 3 nodes"), "{ran}");
}

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

/// Runs kpx until it is about to make its write number `last`, and kills it there. Returns whether it ended before.
async fn killed(world: &World, more: &[&str], last: usize) -> bool {
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
    for verb in ["create", "patch", "delete"] {
        world
            .api
            .fault(Fault::of(verb, "*", What::Meanwhile(Arc::clone(&counts))));
        // So that it is dead before an answer comes.
        world
            .api
            .fault(Fault::of(verb, "*", What::Slow(Duration::from_millis(5))));
    }
    let ended = tokio::select! {
        _ = dead => false,
        ran = world.all(more) => {
            assert_eq!(ran.code, 0, "{ran}");
            true
        }
    };
    // What the server does already is done.
    tokio::time::sleep(Duration::from_millis(30)).await;
    world.api.heal();
    world.expire();
    ended
}

/// Kills kpx before each of its writes; `back` tells whether all is taken back then, or gone on with.
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
        assert_eq!(world.leftovers(), [""; 0], "killed before write {last}");
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
