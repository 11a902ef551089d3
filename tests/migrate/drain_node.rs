//! Strategy drain-node, with a fake API server: the node is cordoned and drained, and uncordoned at the end.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use kpx_host::{self as host, Environment, LiveCluster, Options, Selection};
use kpx_judge::plan::Consent;
use kpx_migrate::engine::{Ended, Engine, Event, MigrationNode};
use kpx_migrate::journal::{self, Entry};
use kpx_migrate::migration::{Migration, Strategy};
use kpx_migrate::node::{Clock, Node};
use kpx_migrate::probes::{Target, Unanswered};
use kpx_node::access;
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item, Time};
use kpx_node::net::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;

use super::machine::Machine;
use super::{Place, SMALL, directions, is_back, migration};
use crate::fake_api::{Api, Fate, Fault, Key, Kubelet, Pod, What};
use crate::support::root;

/// A cluster whose pods run until they are deleted.
struct World {
    api: Api,
    _dir: TempDir,
    options: Options,
}

struct Runs {
    /// How long a deleted pod exists.
    lingers: Duration,
}

impl Kubelet for Runs {
    fn start(&self, _: &Pod) -> Fate {
        Fate::Ready
    }

    fn stop(&self, _: &Pod) {}

    fn lingers(&self) -> Duration {
        self.lingers
    }

    fn log(&self, _: &Pod) -> String {
        String::new()
    }
}

fn owned(name: &str, kind: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"app": "web"},
            "ownerReferences": [{"kind": kind, "name": "o", "uid": "o", "controller": true}],
        },
        "spec": {"nodeName": "node1", "containers": [{"name": "c"}]},
    })
}

/// Returns the recorded evidence of node1, from which the desired state is computed.
fn recorded_node() -> Value {
    let path = root()
        .join("testdata/nodes")
        .join(SMALL)
        .join("cluster/nodes.json");
    let nodes: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut node = nodes["items"][0].clone();
    assert_eq!(node["metadata"]["name"], "node1");
    node["kind"] = json!("Node");
    node
}

/// Pods of every kind: evicted ones, and ones that stay.
const LEAVES: &[&str] = &["db-0", "web-1", "web-2"];
const STAYS: &[&str] = &["far", "static"];

impl World {
    fn new() -> Self {
        let api = Api::new();
        let lingers = Duration::ZERO;
        api.kubelet(Runs { lingers });
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        let options = Options {
            netns: None,
            root: dir.path().to_owned(),
            node: Some("node1".to_owned()),
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_secs(5),
            kubeconfig: Some(dir.path().join("kubeconfig")),
            context: None,
            selection: Selection::default(),
            no_api: false,
            environment: Environment::default(),
        };
        let world = Self {
            api,
            _dir: dir,
            options,
        };
        world.api.with(|cluster| {
            cluster.put(recorded_node());
            cluster.put(json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node2"}, "spec": {}}));
            let labels = json!({"app": "agent"});
            cluster.put(json!({
                "kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": {"name": "agent", "namespace": "default"},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}},
                },
            }));
            for (name, kind) in [
                ("web-1", "ReplicaSet"),
                ("web-2", "ReplicaSet"),
                ("db-0", "StatefulSet"),
                ("static", "Node"),
                ("far", "ReplicaSet"),
            ] {
                let mut pod = owned(name, kind);
                if name == "far" {
                    pod["spec"]["nodeName"] = json!("node2");
                }
                cluster.put(pod);
            }
        });
        world.api.settle();
        let command = Some("migrate");
        let needed = access::Selection {
            command,
            nodes: false,
        };
        world
            .api
            .bind(&access::manifest(needed, &access::Subject::default()));
        world
    }

    /// Allows `allowed` disruptions of the pods with the label `app: web`.
    fn budget(&self, allowed: u64) {
        self.api.with(|cluster| {
            cluster.put(json!({
                "kind": "PodDisruptionBudget", "apiVersion": "policy/v1",
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "web"}}},
                "status": {"disruptionsAllowed": allowed},
            }));
        });
    }

    /// Returns the names of all pods except those of the DaemonSet.
    fn pods(&self) -> Vec<String> {
        self.api.with(|cluster| {
            let pods = cluster.list("pods");
            let names = pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned());
            let (agents, others): (Vec<_>, Vec<_>) =
                names.partition(|name| name.starts_with("agent-"));
            assert_eq!(agents.len(), 2);
            others
        })
    }

    fn is_cordoned(&self) -> bool {
        self.api.with(|cluster| {
            let node = cluster.get("nodes", "", "node1").unwrap();
            node["spec"]["unschedulable"] == true
        })
    }

    fn cordon(&self) {
        self.api.with(|cluster| {
            cluster.edit(&Key::new("nodes", "", "node1"), |node| {
                node["spec"]["unschedulable"] = json!(true);
            });
        });
    }

    /// Returns the requests that change an object, as `METHOD NAME`.
    fn writes(&self) -> Vec<String> {
        let asked = self.api.asked().into_iter();
        let writes = asked.filter(|request| request.method != "GET");
        let words = writes.map(|request| {
            let what = request.path.rsplit('/').next().unwrap().to_owned();
            format!("{} {what}", request.method)
        });
        words.collect()
    }

    fn uid(&self, pod: &str) -> String {
        self.api.with(|cluster| {
            let pod = cluster.get("pods", "default", pod).unwrap();
            pod["metadata"]["uid"].as_str().unwrap().to_owned()
        })
    }

    fn here(&self, from: Mode, migration: &Migration) -> LocalNode<'_> {
        LocalNode {
            world: self,
            place: Place::new(Machine::new(SMALL, from), migration),
            live: LiveCluster::new(&self.options),
            own: Vec::new(),
            life: None,
            dead: Arc::default(),
            then: None,
            told: Arc::default(),
        }
    }
}

type Then = Arc<dyn Fn(&World) + Send + Sync>;

/// A node of that cluster; kpx may be killed there.
#[derive(Clone)]
struct LocalNode<'w> {
    world: &'w World,
    place: Place,
    live: LiveCluster,
    own: Vec<String>,
    /// The number of changes and entries after which kpx is killed.
    life: Option<usize>,
    dead: Arc<Notify>,
    /// The time of an event, and the event.
    then: Option<(i64, Then)>,
    told: Arc<Mutex<Vec<String>>>,
}

impl LocalNode<'_> {
    async fn live(&mut self) {
        match &mut self.life {
            None => {}
            Some(0) => {
                self.dead.notify_one();
                std::future::pending::<()>().await;
            }
            Some(left) => *left -= 1,
        }
    }

    /// Continues from the journal; `None` if kpx was killed.
    async fn go_on(&mut self, rollback: bool) -> Option<Ended> {
        let mut state = journal::read(&self.place.journal).unwrap();
        let (dead, told) = (Arc::clone(&self.dead), Arc::clone(&self.told));
        let mut on_event = |event: Event<'_>| {
            if let Event::Evict(leaving) = event {
                told.lock().unwrap().push(leaving.in_words());
            }
        };
        let limits = self.place.limits;
        let mut engine = Engine {
            node: self,
            limits,
            on_event: &mut on_event,
        };
        let run = Box::pin(async {
            if rollback {
                engine.roll_back(&mut state, false).await.unwrap();
            }
            Box::pin(engine.run(&mut state)).await
        });
        tokio::select! {
            ended = run => Some(ended),
            () = dead.notified() => None,
        }
    }

    async fn recover(mut self, rollback: bool) -> (Self, Ended) {
        self.life = None;
        let ended = self.go_on(rollback).await;
        (self, ended.expect("kpx is not killed"))
    }
}

impl Apply for LocalNode<'_> {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        self.live().await;
        match action {
            Action::Kube { .. } => self.live.apply(action).await,
            action => self.place.apply(action).await,
        }
    }
}

impl Clock for LocalNode<'_> {
    fn now(&self) -> Time {
        self.place.now()
    }

    async fn pause(&mut self, duration: Duration) {
        self.place.pause(duration).await;
        // Pods end during the pause.
        tokio::time::sleep(Duration::from_millis(2)).await;
        if let Some((at, then)) = &self.then
            && self.place.clock >= *at
        {
            then(self.world);
        }
    }
}

impl Node for LocalNode<'_> {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        let mut evidence = self.place.read(items).await;
        let far = [Item::Nodes, Item::Pods].into_iter();
        let far: Vec<Item> = far.filter(|item| items.contains(item)).collect();
        let cluster = host::collect(&far, &self.world.options).await;
        for item in far {
            evidence.insert(item, cluster.text(item).map(str::to_owned));
        }
        evidence
    }
}

impl MigrationNode for LocalNode<'_> {
    fn own_pods(&self) -> Result<Vec<String>, String> {
        Ok(self.own.clone())
    }

    async fn probe(&mut self, targets: &[Target]) -> Vec<Result<SocketAddr, Unanswered>> {
        self.place.probe(targets).await
    }

    async fn proxy_pods(&mut self, node: &str) -> Result<Vec<kpx_node::cluster::Pod>, Gap> {
        self.place.proxy_pods(node).await
    }

    async fn last_line(&mut self, pod: &str, container: &str) -> Option<String> {
        self.place.last_line(pod, container).await
    }

    async fn record(&mut self, entry: &Entry) -> Result<(), String> {
        self.live().await;
        self.place.record(entry).await
    }

    async fn backup(&mut self) -> Result<(), String> {
        self.place.backup().await
    }

    async fn guard(&mut self, mode: Mode) -> Result<(), String> {
        self.place.guard(mode).await
    }

    async fn follow(&mut self, mode: Mode) -> Result<(), String> {
        self.place.follow(mode).await
    }

    async fn unfollow(&mut self) {
        self.place.unfollow().await;
    }

    fn bridge_notices(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn is_to_stop(&self) -> bool {
        self.place.is_to_stop()
    }
}

fn drained(from: Mode, to: Mode) -> Migration {
    migration(from, to, Strategy::DrainNode)
}

const THERE: (Mode, Mode) = (Mode::Iptables, Mode::Nftables);

#[tokio::test]
async fn pods_are_evicted_first_and_the_node_is_uncordoned_at_the_end() {
    for (from, to) in directions() {
        let world = World::new();
        let mut here = world.here(from, &drained(from, to));
        let ended = here.go_on(false).await;
        assert_eq!(ended, Some(Ended::Migrated), "{from} to {to}");
        assert_eq!(here.place.machine.faults(to), Vec::<String>::new());
        assert_eq!(world.pods(), STAYS);
        assert!(!world.is_cordoned());
        let evictions = ["POST eviction"; LEAVES.len()];
        let expected = [&["PATCH node1"][..], &evictions, &["PATCH node1"]].concat();
        assert_eq!(world.writes(), expected, "{from} to {to}");
        let told = here.told.lock().unwrap().clone();
        assert_eq!(
            told.last().map(String::as_str),
            Some("all evicted pods have left")
        );
    }
}

#[tokio::test]
async fn an_eviction_that_a_budget_refuses_is_retried_and_named() {
    let world = World::new();
    world.budget(1);
    let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
    here.then = Some((20, Arc::new(|world| world.budget(2))));
    assert_eq!(here.go_on(false).await, Some(Ended::Migrated));
    assert_eq!(world.pods(), STAYS);
    assert!(here.place.clock >= 20, "{}", here.place.clock);
    let told = here.told.lock().unwrap().join("\n");
    for tells in [
        "to leave; evictions refused: default/web-",
        "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 1 healthy",
    ] {
        assert!(told.contains(tells), "{told}");
    }
}

/// Runs a migration that fails without a change, and returns the reason.
async fn in_vain(world: &World, prepare: impl FnOnce(&mut LocalNode<'_>)) -> String {
    let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
    prepare(&mut here);
    let before = here.place.machine.clone();
    let ended = here.go_on(false).await;
    let Some(Ended::RolledBack(why)) = ended else {
        panic!("{ended:?}");
    };
    is_back(&here.place, &before, THERE.0);
    assert!(!world.is_cordoned());
    why
}

#[tokio::test]
async fn pods_that_do_not_leave_in_time_stay_and_nothing_changes() {
    let world = World::new();
    world.budget(0);
    let why = in_vain(&world, |_| ()).await;
    assert!(
        why.starts_with(
            "timed out after 60 s: pods have not left the node: default/db-0 (Cannot evict pod"
        ),
        "{why}"
    );
    assert!(why.contains("The disruption budget web needs 1"), "{why}");
    // As `kubectl drain`, it asks every five seconds.
    let evictions = world.writes().into_iter();
    let evictions = evictions.filter(|did| did == "POST eviction");
    assert_eq!(evictions.count(), LEAVES.len() * 13);
    assert_eq!(world.pods(), ["db-0", "far", "static", "web-1", "web-2"]);
}

#[tokio::test]
async fn pods_that_are_still_there_are_named_with_the_reason() {
    let end = |why: String| why.split_once("the node: ").unwrap().1.to_owned();
    let world = World::new();
    let lingers = Duration::from_secs(60);
    world.api.kubelet(Runs { lingers });
    world.budget(1);
    let left = end(in_vain(&world, |_| ()).await);
    assert!(left.starts_with("default/db-0 (terminating), "), "{left}");
    let kept = "default/web-1 (Cannot evict pod as it would violate the pod's disruption budget.";
    assert!(left.contains(kept), "{left}");
    // Their eviction was accepted, and nothing happens.
    let world = World::new();
    let accepted = What::Status(201, "accepted");
    let fault = Fault::of("create", "pods/eviction", accepted);
    world.api.fault(fault);
    let left = end(in_vain(&world, |_| ()).await);
    assert_eq!(left, "default/db-0, default/web-1, default/web-2");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_missing_permission_is_named_and_the_node_is_rolled_back() {
    let each = [
        ("patch", "nodes", false),
        ("create", "pods/eviction", true),
        ("list", "pods", false),
    ];
    join_all(each.map(async |(verb, resource, cordons)| {
        let world = World::new();
        world.api.fault(Fault::forbidden(verb, resource));
        let why = in_vain(&world, |_| ()).await;
        assert!(why.contains(&format!("{verb} {resource}")), "{why}");
        assert!(why.contains("deploy/rbac"), "{why}");
        let writes = world.writes().into_iter();
        // Forbidden requests are retried, and never carried out.
        let cordoned = resource != "nodes" && writes.filter(|did| did == "PATCH node1").count() > 1;
        assert_eq!(cordoned, cordons, "{verb} {resource}: {:?}", world.writes());
    }))
    .await;
}

#[tokio::test]
async fn bare_pods_are_evicted_only_on_request() {
    let world = World::new();
    world.api.with(|cluster| {
        let mut bare = owned("bare", "x");
        bare["metadata"]["ownerReferences"] = json!([]);
        bare["metadata"]["labels"] = json!({});
        bare["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        cluster.put(bare);
    });
    let why = in_vain(&world, |_| ()).await;
    assert_eq!(
        why,
        "cannot cordon the node: pods without a controller would be lost: default/bare; pass --delete-bare-pods to evict them; \
         pods with an emptyDir would lose its data: default/bare; pass --delete-emptydir-data to evict them"
    );
    assert_eq!(world.writes(), [""; 0]);
    let mut asked = drained(THERE.0, THERE.1);
    asked.evict = Consent {
        bare: true,
        empty_dir: true,
    };
    let mut here = world.here(THERE.0, &asked);
    assert_eq!(here.go_on(false).await, Some(Ended::Migrated));
    assert_eq!(world.pods(), STAYS);
}

#[tokio::test]
async fn kpx_does_not_evict_itself() {
    let world = World::new();
    let own = world.uid("web-2");
    let why = in_vain(&world, |here| here.own = vec![own]).await;
    assert!(
        why.starts_with("cannot cordon the node: kpx runs in pod default/web-2 on this node"),
        "{why}"
    );
    assert_eq!(world.writes(), [""; 0]);
}

#[tokio::test]
async fn a_node_that_was_cordoned_before_stays_so() {
    for rollback in [false, true] {
        let world = World::new();
        world.cordon();
        let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
        if rollback {
            here.place.machine.proxy.broken = vec![THERE.1];
        }
        let ended = here.go_on(false).await.unwrap();
        assert_eq!(ended != Ended::Migrated, rollback, "{ended:?}");
        assert_eq!(world.pods(), STAYS);
        assert!(world.is_cordoned());
    }
}

#[tokio::test]
async fn a_node_that_is_rolled_back_is_uncordoned() {
    let world = World::new();
    let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
    let before = here.place.machine.clone();
    here.place.machine.proxy.broken = vec![THERE.1];
    let ended = here.go_on(false).await;
    assert!(matches!(ended, Some(Ended::RolledBack(_))), "{ended:?}");
    here.place.machine.proxy.broken.clear();
    is_back(&here.place, &before, THERE.0);
    assert!(!world.is_cordoned());
    assert_eq!(
        world.writes().last().map(String::as_str),
        Some("PATCH node1")
    );
}

#[tokio::test]
async fn a_rollback_keeps_the_cordon_of_an_operator() {
    let world = World::new();
    let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
    assert_eq!(here.go_on(false).await, Some(Ended::Migrated));
    world.cordon();
    let ended = here.go_on(true).await;
    assert!(matches!(ended, Some(Ended::RolledBack(_))), "{ended:?}");
    assert!(world.is_cordoned());
}

#[tokio::test]
async fn a_lost_answer_is_retried() {
    let world = World::new();
    for what in [
        What::Broken,
        What::AnswerLost,
        What::Status(503, "starting"),
    ] {
        world
            .api
            .fault(Fault::of("create", "pods/eviction", what.clone()).times(1));
        world.api.fault(Fault::of("patch", "nodes", what).times(1));
    }
    let mut here = world.here(THERE.0, &drained(THERE.0, THERE.1));
    assert_eq!(here.go_on(false).await, Some(Ended::Migrated));
    assert_eq!(world.pods(), STAYS);
    assert!(!world.is_cordoned());
}

/// Kills kpx at every point of the migration from `from` to `to`, and resumes or rolls back.
async fn killed_everywhere(from: Mode, to: Mode, rollback: bool) {
    for life in 0.. {
        let world = World::new();
        let mut here = world.here(from, &drained(from, to));
        let before = here.place.machine.clone();
        here.life = Some(life);
        let killed = here.go_on(false).await.is_none();
        let (here, ended) = here.recover(rollback).await;
        let at = format!("{from} to {to}, killed at {life}: {ended:?}");
        if rollback {
            assert!(matches!(ended, Ended::RolledBack(_)), "{at}");
            is_back(&here.place, &before, from);
        } else {
            assert_eq!(ended, Ended::Migrated, "{at}");
            assert_eq!(here.place.machine.faults(to), Vec::<String>::new(), "{at}");
            assert_eq!(world.pods(), STAYS, "{at}");
        }
        assert!(!world.is_cordoned(), "{at}");
        if !killed {
            assert!(life > 20, "killed at {life} points only");
            break;
        }
    }
}

#[ignore = "takes minutes: make test-loops"]
#[tokio::test]
async fn killed_anywhere_the_node_is_complete_and_uncordoned() {
    for (from, to) in directions() {
        for rollback in [false, true] {
            killed_everywhere(from, to, rollback).await;
        }
    }
}
