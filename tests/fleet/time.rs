//! How long the engine of a fleet waits, in a cluster whose time only passes while the engine pauses.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kpx_migrate::fleet::engine::{Cluster, Ended, Engine, Event};
use kpx_migrate::fleet::pod::{self, Job};
use kpx_migrate::fleet::state::{self, Configured, Fleet, NodeState};
use kpx_migrate::fleet::task::Task;
use kpx_migrate::migration::Strategy;
use kpx_migrate::node::Clock;
use kpx_migrate::preview::PreviewResult;
use kpx_node::action::{Action, KubeCommand, Object, Resource};
use kpx_node::apply::{Apply, StepError};
use kpx_node::evidence::{Evidence, Item, Time};
use serde_json::{Value, json};

use super::{Outcome, report, verifies};

/// An event of the cluster at a time.
type Happens = fn(&mut Still);

/// A cluster with the time in milliseconds.
#[derive(Clone)]
struct Still {
    now: u64,
    objects: BTreeMap<String, Value>,
    /// Each new pod of kpx, and each new guard.
    pod: Value,
    guard: Value,
    /// The logs of pods.
    log: Result<String, StepError>,
    /// Whether a deleted pod stays.
    stuck: bool,
    /// kube-proxy's pods; from the time in the second field, in milliseconds, those in the third.
    proxies: (Value, u64, Value),
    created: usize,
    /// How many of them were created before the job was done.
    early: usize,
    /// Whether kube-proxy was restarted: a rollback waits for it.
    restarted: Rc<Cell<bool>>,
    /// Whether a stop is requested, and when it will be, in milliseconds.
    stop: Rc<Cell<bool>>,
    stops: u64,
    /// Times in milliseconds, and what happens then.
    then: Vec<(u64, Happens)>,
    deleted: Vec<String>,
    /// The events of the engine, and the conditions for which it waited.
    reports: Vec<String>,
    waits: Vec<String>,
}

impl Still {
    fn new(pod: Value) -> Self {
        Self {
            now: 0,
            objects: BTreeMap::new(),
            pod,
            guard: status(&json!({"phase": "Running"})),
            log: Ok(String::new()),
            stuck: false,
            proxies: (json!([]), u64::MAX, json!([])),
            created: 0,
            early: 0,
            restarted: Rc::default(),
            stop: Rc::default(),
            stops: u64::MAX,
            then: Vec::new(),
            deleted: Vec::new(),
            reports: Vec::new(),
            waits: Vec::new(),
        }
    }

    fn put(&mut self, object: &Object, value: Value) {
        self.objects.insert(object.to_string(), value);
    }

    /// Changes each pod whose name contains `part`.
    fn change(&mut self, part: &str, change: fn(&mut Value)) {
        let pods = self.objects.iter_mut();
        let pods = pods.filter(|(name, _)| name.contains(part));
        pods.for_each(|(_, pod)| change(pod));
    }
}

impl Apply for Still {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        let Action::Kube { command } = action else {
            panic!("{action}");
        };
        match command {
            // One that exists already is no error.
            KubeCommand::Create { object, .. } if object.resource == Resource::Pod => {
                let is_guard = object.name.starts_with("kpx-guard-");
                let pod = if is_guard { &self.guard } else { &self.pod };
                let pod = pod.clone();
                self.objects.entry(object.to_string()).or_insert_with(|| {
                    self.created += 1;
                    pod
                });
            }
            KubeCommand::AwaitProxy { .. } => self.restarted.set(true),
            KubeCommand::Delete { object, .. } if !self.stuck => {
                self.objects.remove(&object.to_string());
                self.deleted.push(object.name.clone());
            }
            _ => {}
        }
        Ok(())
    }
}

impl Clock for Still {
    fn now(&self) -> Time {
        let seconds = i64::try_from(self.now / 1000).unwrap();
        Time { seconds }
    }

    async fn pause(&mut self, duration: Duration) {
        self.now += u64::try_from(duration.as_millis()).unwrap();
        assert!(self.now < 3_600_000, "it waits for ever");
        self.stop.set(self.now >= self.stops);
        let all = std::mem::take(&mut self.then).into_iter();
        let (due, later): (Vec<_>, Vec<_>) = all.partition(|(at, _)| *at <= self.now);
        self.then = later;
        for (_, happens) in due {
            happens(self);
        }
    }
}

impl Cluster for Still {
    type Beside = Self;

    async fn read(&mut self, _: &[Item], _: &str) -> Evidence {
        let (first, until, then) = &self.proxies;
        let pods = if self.now < *until { first } else { then };
        let mut evidence = Evidence::default();
        evidence.insert(Item::Pods, Ok(json!({ "items": pods }).to_string()));
        evidence
    }

    async fn object(&mut self, object: &Object) -> Result<Option<Value>, StepError> {
        let found = self.objects.get(&object.to_string()).cloned();
        Ok(found.map(|found| {
            if self.restarted.get() {
                over(0, "")
            } else {
                found
            }
        }))
    }

    async fn log(&mut self, _: &str) -> Result<String, StepError> {
        if self.restarted.get() {
            return Ok(report(Outcome::RolledBack, |_| {}));
        }
        self.log.clone()
    }

    async fn copy_kpx(&mut self, _: &str, _: &Value) -> Result<(), StepError> {
        Ok(())
    }

    fn beside(&self) -> Self {
        self.clone()
    }

    async fn by_hand(&mut self, _: &str, command: &str) -> Result<(), String> {
        Err(format!("nobody runs {command}"))
    }
}

/// A migration of two nodes, in which each pod has five seconds to start and 100 seconds to end.
fn fleet(staged: bool) -> Fleet {
    let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
    let state = json!({
        "plan": {
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "ipvs", "there": fields("iptables"),
            "back": fields("ipvs"), "nodes": ["a", "b"], "whole": true, "staged": staged, "strategy": "in-place",
            "image": "kpx:1", "serviceAccount": "kpx", "soak": 20, "ready": 5,
            "timeouts": {"confirm": 1, "drain": 1}, "limit": 100,
        },
        "leg": "there", "done": 0, "reached": 0, "ended": false,
    });
    Fleet::parse(&state.to_string()).unwrap()
}

/// Returns the result of `act` for an engine on `cluster`, and the reports.
fn with_engine<T>(
    cluster: &mut Still,
    act: impl FnOnce(&mut Engine<'_, Still>) -> T,
) -> (T, Vec<String>) {
    let (stop, mut reports) = (Rc::clone(&cluster.stop), Vec::new());
    let mut waits = Vec::new();
    let mut on_event = |event: Event<'_>| match event {
        Event::Reports(_, text) => reports.push(text.to_owned()),
        Event::Waits(_, text) => waits.push(text.to_owned()),
        _ => {}
    };
    let done = act(&mut Engine {
        cluster,
        saved: None,
        on_event: &mut on_event,
        stop: &stop,
    });
    cluster.waits = waits;
    (done, reports)
}

/// Returns the end of the preview of node `a`, how many seconds it took, and what was reported.
fn previewed(cluster: &mut Still) -> (PreviewResult, i64, Vec<String>) {
    let mut plan = fleet(false).plan;
    plan.nodes.truncate(1);
    let previews = |engine: &mut Engine<'_, Still>| engine.previews(&plan).now_or_never().unwrap();
    let (mut all, reports) = with_engine(cluster, previews);
    (all.remove(0).result, cluster.now().seconds, reports)
}

fn failed(result: PreviewResult) -> String {
    match result {
        PreviewResult::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

fn status(status: &Value) -> Value {
    json!({"metadata": {"uid": "u"}, "status": status})
}

fn waits(reason: &str) -> Value {
    status(&json!({
        "phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}],
    }))
}

fn over(code: i64, reason: &str) -> Value {
    status(&json!({
        "phase": "Failed", "reason": reason, "containerStatuses": [{"state": {"terminated": {"exitCode": code}}}],
    }))
}

#[test]
fn a_pod_has_its_time_to_start_and_to_end() {
    let mut cluster = Still::new(status(&json!({"phase": "Running"})));
    let (result, seconds, reports) = previewed(&mut cluster);
    let why = failed(result);
    assert!(
        why.starts_with("Pod kube-system/kpx-preview-")
            && why.ends_with(" timed out after 160 s; node a was deleted"),
        "{why}"
    );
    assert_eq!((seconds, reports.len()), (160, 0));
    assert!(cluster.objects.is_empty());
    let mut cluster = Still::new(waits("ContainerCreating"));
    for (condition, end) in [
        (json!({"type": "Ready", "status": "True"}), ""),
        (json!({"type": "DiskPressure", "status": "True"}), ""),
        (
            json!({"type": "Ready", "status": "Unknown", "message": "no word from it"}),
            "; node a is not ready: no word from it",
        ),
    ] {
        cluster.now = 0;
        cluster.put(
            &Object::node("a"),
            json!({"status": {"conditions": [condition]}}),
        );
        let (result, seconds, _) = previewed(&mut cluster);
        let why = failed(result);
        let expected = format!("kpx's pod does not start: ContainerCreating{end}");
        assert_eq!((why, seconds), (expected, 5));
    }
}

#[test]
fn what_the_kubelet_does_not_try_again_is_not_waited_for() {
    for (reason, took, reported) in [
        ("InvalidImageName", 0, &[""; 0][..]),
        (
            "ErrImagePull",
            5,
            &["cannot pull image kpx:1 (ErrImagePull); waiting at most 5 s"],
        ),
    ] {
        let mut cluster = Still::new(waits(reason));
        let (result, seconds, reports) = previewed(&mut cluster);
        let why = failed(result);
        let expected = format!("kpx's pod does not start: {reason}; node a was deleted");
        assert_eq!((why, seconds), (expected, took));
        assert_eq!(reports, reported);
    }
}

#[test]
fn a_pod_that_is_not_deleted_in_a_minute_is_named() {
    let mut cluster = Still::new(over(0, ""));
    cluster.log = Ok(report(Outcome::Already, |_| {}));
    assert_eq!(previewed(&mut cluster).0, PreviewResult::Already);
    assert_eq!(cluster.now().seconds, 0);
    cluster.stuck = true;
    let (result, seconds, _) = previewed(&mut cluster);
    let why = failed(result);
    assert!(
        why.starts_with("cannot delete Pod kube-system/kpx-preview-")
            && why.ends_with(": the kubelet of node a does not end it"),
        "{why}"
    );
    assert_eq!(seconds, 60);
}

#[test]
fn a_lost_pod_is_created_three_more_times() {
    let mut cluster = Still::new(over(1, "Evicted"));
    let (result, _, reports) = previewed(&mut cluster);
    let why = failed(result);
    assert!(
        why.ends_with("was lost 4 times; the last reason: Evicted; exit status 1"),
        "{why}"
    );
    assert_eq!((cluster.created, reports.len()), (4, 3));
}

#[test]
fn the_log_of_a_pod_is_needed_at_its_end_and_its_permission_always() {
    let running = || status(&json!({"phase": "Running"}));
    for (pod, error, took) in [
        (running(), StepError::Denied("get pods/log".to_owned()), 0),
        (running(), StepError::Refused("not yet".to_owned()), 160),
        // Four pods, each for the time of its start.
        (over(0, ""), StepError::Refused("no log".to_owned()), 20),
    ] {
        let mut cluster = Still::new(pod);
        cluster.log = Err(error.clone());
        let (result, seconds, _) = previewed(&mut cluster);
        let why = failed(result);
        let is_denied = matches!(error, StepError::Denied(_));
        assert_eq!(
            (why == error.to_string(), seconds),
            (is_denied, took),
            "{why}"
        );
        let is_lost = why.ends_with("its log cannot be read: no log");
        assert_eq!(is_lost, took == 20, "{why}");
    }
}

/// A node that reboots: its kubelet is away, and then has neither the logs of older pods nor new pods at once.
#[test]
fn a_node_that_reboots_is_waited_for_and_its_log_is_read_later() {
    let not_ready = json!({"type": "Ready", "status": "Unknown", "message": "no word from it"});
    let mut cluster = Still::new(waits("ContainerCreating"));
    let node = json!({"status": {"conditions": [not_ready]}});
    cluster.put(&Object::node("a"), node);
    cluster.log = Err(StepError::Refused("answered 404: not found".to_owned()));
    cluster.then = vec![
        (300_000, |cluster| {
            cluster.put(&Object::node("a"), json!({}));
            cluster.change("kpx-prepare-", |pod| *pod = over(0, ""));
        }),
        (303_000, |cluster| {
            cluster.log = Ok(report(Outcome::Prepared, |_| {}));
        }),
    ];
    let task = Task::Prepare("a".to_owned());
    let long = || {
        let mut fleet = fleet(false);
        fleet.plan.limit = 1_000;
        fleet
    };
    let (ended, _) = run(&mut cluster, long(), &task);
    let Ended::Stopped(why) = ended else {
        panic!("{ended:?}");
    };
    assert!(why.starts_with("cannot change the configuration"), "{why}");
    assert_eq!(cluster.created, 1);
    let words = "node a is not ready: no word from it; waiting at most 600 s";
    assert_eq!(cluster.reports, [words]);
    let first = cluster.waits.first().unwrap();
    assert!(
        first.ends_with(" (ContainerCreating): at most 9 min 55 s more"),
        "{first}"
    );

    // It does not return.
    let mut cluster = Still::new(waits("ContainerCreating"));
    let node = json!({"status": {"conditions": [not_ready]}});
    cluster.put(&Object::node("a"), node);
    let (ended, seconds) = run(&mut cluster, long(), &task);
    let Ended::Stopped(why) = ended else {
        panic!("{ended:?}");
    };
    let end = "ContainerCreating; node a is not ready: no word from it";
    assert!(why.ends_with(end), "{why}");
    assert!((600..700).contains(&seconds), "{seconds}");
}

#[test]
fn a_wait_of_more_than_five_seconds_names_what_is_awaited_and_its_end() {
    let mut cluster = Still::new(waits("ContainerCreating"));
    let mut fleet = fleet(false);
    fleet.plan.ready = 40;
    let (_, seconds) = run(&mut cluster, fleet, &Task::Prepare("a".to_owned()));
    assert_eq!(seconds, 40);
    let ends = |text: &str, left: &str| {
        let begins = text.starts_with("waiting for the start of Pod kube-system/kpx-prepare-");
        begins && text.ends_with(&format!(" (ContainerCreating): at most {left} more"))
    };
    let (first, last) = (&cluster.waits[0], &cluster.waits[cluster.waits.len() - 1]);
    assert!(ends(first, "35 s") && ends(last, "1 s"), "{first} {last}");
}

#[test]
fn interrupted_previews_are_deleted() {
    let mut cluster = Still::new(Value::Null);
    let plan = fleet(false).plan;
    for node in &plan.nodes {
        let object = pod::object(&plan, node, Job::Preview);
        cluster.put(&object, over(0, ""));
    }
    let cancel = |engine: &mut Engine<'_, Still>| engine.cancel_previews(&plan).now_or_never();
    let (cancelled, _) = with_engine(&mut cluster, cancel);
    assert_eq!(cancelled, Some(Ok(())));
    assert!(cluster.objects.is_empty());
}

#[test]
fn a_pod_that_failed_before_or_is_being_deleted_is_replaced() {
    let node = "a".to_owned();
    let deleted = json!({
        "metadata": {"uid": "v", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"},
    });
    for (old, created) in [
        (over(4, ""), 1),
        (deleted, 1),
        // The job was done in an earlier run of kpx.
        (over(0, ""), 0),
    ] {
        let mut cluster = Still::new(over(0, ""));
        cluster.log = Ok(report(Outcome::Prepared, |_| {}));
        let object = pod::object(&fleet(false).plan, &node, Job::Prepare);
        cluster.put(&object, old.clone());
        let (ended, _) = run(&mut cluster, fleet(false), &Task::Prepare(node.clone()));
        let Ended::Stopped(why) = ended else {
            panic!("{ended:?}");
        };
        assert!(
            why.starts_with("cannot change the configuration"),
            "{old}: {why}"
        );
        assert_eq!(cluster.created, created, "{old}");
    }
}

/// Runs `fleet` from `task`; returns its end and how many seconds that took.
fn run(cluster: &mut Still, mut fleet: Fleet, task: &Task) -> (Ended, i64) {
    fleet.done = fleet
        .tasks()
        .iter()
        .position(|fleet_task| fleet_task == task)
        .unwrap();
    fleet.reached = fleet.done;
    // Without a node in the new mode, an error would roll back.
    fleet.nodes.insert("c".to_owned(), NodeState::Migrated);
    go_on(cluster, fleet)
}

fn go_on(cluster: &mut Still, mut fleet: Fleet) -> (Ended, i64) {
    let run = |engine: &mut Engine<'_, Still>| engine.run(&mut fleet).now_or_never().unwrap();
    let (ended, reports) = with_engine(cluster, run);
    cluster.reports = reports;
    (ended, cluster.now().seconds)
}

#[test]
fn a_rollback_on_a_node_goes_on_when_its_kube_proxy_was_restarted() {
    let mut cluster = Still::new(status(&json!({"phase": "Running"})));
    cluster.log = Ok(verifies());
    let mut fleet = fleet(false);
    fleet.reached = 3;
    fleet.configured = Some(Configured {
        set: state::write("", "new"),
        back: state::write("new", ""),
    });
    fleet.turn("no ip_vs");
    let (ended, seconds) = go_on(&mut cluster, fleet);
    let back = Ended::RolledBack("no ip_vs".to_owned());
    assert_eq!((ended, seconds), (back, 0));
}

#[test]
fn the_first_daemon_set_has_the_time_of_all_nodes_to_replace_its_pods() {
    let set = |ready: u64| {
        json!({
            "metadata": {"name": "kube-proxy", "generation": 1},
            "status": {
                "observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
                "numberReady": ready,
            },
        })
    };
    let object = Object::of_system(Resource::DaemonSet, "kube-proxy");
    let mut cluster = Still::new(Value::Null);
    cluster.put(&object, set(2));
    assert_eq!(
        run(&mut cluster, fleet(true), &Task::Merge),
        (Ended::Migrated, 0)
    );
    cluster.put(&object, set(1));
    let (ended, seconds) = run(&mut cluster, fleet(true), &Task::Merge);
    let Ended::Stopped(why) = ended else {
        panic!("{ended:?}");
    };
    assert!(
        why.ends_with(": the rollout of DaemonSet kube-system/kube-proxy timed out after 10 s"),
        "{why}"
    );
    assert_eq!(seconds, 10);
    cluster.objects.clear();
    let (ended, _) = run(&mut cluster, fleet(true), &Task::Merge);
    let why = "cannot restore the first DaemonSet and delete the copies: DaemonSet kube-system/kube-proxy not found";
    assert_eq!(ended, Ended::Stopped(why.to_owned()));
}

fn soak() -> Task {
    Task::Soak("b".to_owned())
}

/// A pod of kube-proxy on node `b`.
fn proxy(uid: &str, restarts: u32, ready: &str) -> Value {
    json!({
        "metadata": {
            "name": "kube-proxy-x", "namespace": "kube-system", "uid": uid, "labels": {"k8s-app": "kube-proxy"},
        },
        "spec": {"nodeName": "b"},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"name": "kube-proxy", "restartCount": restarts}],
        },
    })
}

#[test]
fn a_node_is_watched_for_the_soak_time() {
    let healthy = || proxy("u", 1, "True");
    let elsewhere = || {
        let mut pod = healthy();
        pod["spec"]["nodeName"] = json!("a");
        pod
    };
    for (then, why) in [
        (json!([healthy()]), ""),
        // Fewer restarts are none.
        (json!([proxy("u", 0, "True")]), ""),
        (
            json!([proxy("u", 2, "True")]),
            "pod kube-proxy-x was restarted",
        ),
        (
            json!([proxy("u", 1, "False")]),
            "pod kube-proxy-x is no longer ready",
        ),
        (json!([proxy("v", 1, "True")]), "pod kube-proxy-x is gone"),
        (json!([elsewhere()]), "pod kube-proxy-x is gone"),
    ] {
        let mut cluster = Still::new(Value::Null);
        cluster.proxies = (json!([healthy()]), 7_000, then);
        let (ended, seconds) = run(&mut cluster, fleet(false), &soak());
        let stopped = Ended::Stopped(format!("cannot watch the node on node b: {why}"));
        let expected = if why.is_empty() {
            Ended::Migrated
        } else {
            stopped
        };
        assert_eq!(ended, expected);
        assert_eq!(seconds, if why.is_empty() { 20 } else { 7 }, "{why}");
    }
    let mut cluster = Still::new(Value::Null);
    let (ended, _) = run(&mut cluster, fleet(false), &soak());
    let why = "cannot watch the node on node b: it has no kube-proxy pod";
    assert_eq!(ended, Ended::Stopped(why.to_owned()));
}

#[test]
fn a_stop_that_is_requested_names_the_task() {
    let healthy = || json!([proxy("u", 1, "True")]);
    for (stops, gone, why) in [
        (
            0,
            u64::MAX,
            "stopped on request; next step: watch the node on node b",
        ),
        (
            7_000,
            u64::MAX,
            "stopped on request; not finished: watch the node on node b",
        ),
        (
            7_000,
            7_000,
            "stopped on request; cannot watch the node on node b: pod kube-proxy-x is gone",
        ),
    ] {
        let mut cluster = Still::new(Value::Null);
        cluster.proxies = (healthy(), gone, json!([]));
        cluster.stops = stops;
        cluster.stop.set(stops == 0);
        let (ended, seconds) = run(&mut cluster, fleet(false), &soak());
        assert_eq!(ended, Ended::Stopped(why.to_owned()));
        assert_eq!(u64::try_from(seconds).unwrap() * 1000, stops);
    }
}

#[test]
fn the_log_of_the_new_kube_proxy_decides() {
    let says = |mode: &str| format!("I1 \"Using {mode} Proxier\"\n");
    let deleted = || {
        let mut pod = proxy("u", 0, "True");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    };
    let gone = "its kube-proxy pod is gone";
    for (pod, old, mode, why) in [
        (proxy("u", 0, "True"), "t", "iptables", ""),
        (
            proxy("u", 0, "True"),
            "t",
            "ipvs",
            "pod kube-proxy-x: kube-proxy logged mode ipvs, not iptables",
        ),
        (proxy("u", 0, "True"), "u", "iptables", gone),
        (deleted(), "t", "iptables", gone),
    ] {
        let mut cluster = Still::new(over(0, ""));
        cluster.log = Ok(says(mode) + &report(Outcome::Migrated, |_| {}));
        cluster.proxies = (json!([pod]), u64::MAX, json!([]));
        let mut fleet = fleet(false);
        fleet.old = vec![old.to_owned()];
        let check = Task::Check("b".to_owned());
        let (ended, _) = run(&mut cluster, fleet, &check);
        let expected = if why.is_empty() {
            Ended::Migrated
        } else {
            Ended::Stopped(format!(
                "cannot check the log of kube-proxy on node b: {why}"
            ))
        };
        assert_eq!(ended, expected);
        // Without a bridge, there is no guard.
        let guards = cluster
            .deleted
            .iter()
            .filter(|deleted| deleted.contains("guard"));
        assert_eq!(guards.count(), 0);
    }
}

fn bridged() -> Fleet {
    let mut fleet = fleet(false);
    fleet.plan.strategy = Some(Strategy::Bridge);
    fleet
}

#[test]
fn a_guard_is_created_again_while_the_job_of_its_node_runs() {
    let done: fn(&mut Still) = |cluster| {
        cluster.early = cluster.created;
        cluster.change("kpx-prepare-", |pod| *pod = over(0, ""));
    };
    let lost = |why: &str| format!("was lost ({why}); creating it again");
    for (of, then, report_of, created) in [
        (bridged(), (|_| {}) as fn(&mut Still), String::new(), 2),
        (
            bridged(),
            |cluster| {
                cluster
                    .objects
                    .retain(|name, _| !name.contains("kpx-guard-"));
            },
            lost("it was deleted"),
            3,
        ),
        (
            bridged(),
            |cluster| cluster.change("kpx-guard-", |pod| *pod = over(1, "Evicted")),
            lost("Evicted; exit status 1"),
            3,
        ),
        (
            bridged(),
            |cluster| {
                // It ends, and is not deleted yet.
                cluster.change("kpx-guard-", |pod| {
                    *pod = over(1, "Evicted");
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                });
            },
            String::new(),
            2,
        ),
        (fleet(false), |_| {}, String::new(), 1),
    ] {
        let mut cluster = Still::new(status(&json!({"phase": "Running"})));
        cluster.log = Ok(report(Outcome::Prepared, |_| {}));
        cluster.then = vec![(5_000, then), (20_000, done)];
        run(&mut cluster, of, &Task::Prepare("a".to_owned()));
        let found = (cluster.early, cluster.created);
        assert_eq!(found, (created, created), "{:?}", cluster.reports);
        let reports = cluster.reports.join("; ");
        assert!(reports.ends_with(&report_of), "{reports}");
        assert_eq!(reports.is_empty(), report_of.is_empty(), "{reports}");
    }
}

#[test]
fn a_guard_that_does_not_start_stops_the_migration() {
    for (reason, took) in [("InvalidImageName", 0), ("ContainerCreating", 5)] {
        let mut cluster = Still::new(over(0, ""));
        cluster.guard = waits(reason);
        let (ended, seconds) = run(&mut cluster, bridged(), &Task::Prepare("a".to_owned()));
        let Ended::Stopped(why) = ended else {
            panic!("{ended:?}");
        };
        assert!(
            why.ends_with(&format!(" does not start: {reason}")),
            "{why}"
        );
        assert_eq!(seconds, took, "{why}");
    }
}
