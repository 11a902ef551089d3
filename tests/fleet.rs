//! The migration of a cluster's nodes, through a fake API server whose kubelets stand in for kpx on the nodes.

mod copied;
mod faults;
mod killed;
mod moves;
mod others;
mod parts;
mod signals;
mod staged;
mod survive;
mod terminal;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kpx_migrate::loss::ObservedLoss;
use kpx_migrate::migration::{Leg, Stage};
use kpx_migrate::preview::{MigrationBlocker, Preview};
use kpx_migrate::wire::{Event, EventLine, Line, NodeReport, Outcome};
use kpx_node::backend::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake_api::{Api, Copies, Exec, Fate, Key, Kubelet, Pod};
use crate::support::{Ran, kpx, profile, root};

const NODES: &[&str] = &["control1", "worker1", "worker2"];

/// The events on the nodes, in order: `worker1 prepare`, `worker1 kube-proxy iptables`.
type Story = Arc<Mutex<Vec<String>>>;

/// Nodes that stand in for kpx, and on which kube-proxy runs in the mode of its configuration.
#[derive(Clone, Default)]
struct Nodes {
    story: Story,
    /// The mode of each node's kube-proxy.
    modes: Arc<Mutex<BTreeMap<String, String>>>,
    /// Nodes and jobs that fail, with the reason.
    failing: Arc<Mutex<BTreeMap<String, String>>>,
    /// The fates of the next pods for a job; the pod after them does its work.
    fates: Arc<Mutex<BTreeMap<String, Vec<Fate>>>>,
    /// How long the object of an ended pod exists.
    lingers: Arc<Mutex<Duration>>,
    /// How long the pod for a job takes.
    slow: Arc<Mutex<BTreeMap<String, Duration>>>,
    /// Nodes with a guard.
    guarded: Arc<Mutex<BTreeSet<String>>>,
    /// Pods into which kpx was copied.
    copies: Copies,
    /// The logs of pods.
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

    /// Sets the fates of the next pods for `what`.
    fn fates(&self, what: &str, fates: &[Fate]) {
        let mut all = self.fates.lock().unwrap();
        all.insert(what.to_owned(), fates.iter().rev().copied().collect());
    }

    fn next_fate(&self, what: &str) -> Option<Fate> {
        self.fates.lock().unwrap().get_mut(what)?.pop()
    }

    fn mode(&self, node: &str) -> String {
        self.modes.lock().unwrap()[node].clone()
    }
}

impl Nodes {
    /// Returns what a preview of the node finds: a job that is to fail blocks it, unless that is skipped.
    fn preview(&self, pod: &Pod, words: &[&str]) -> Fate {
        let doing = format!("{} preview", pod.node);
        if let Some(fate) = self.next_fate(&doing) {
            return fate;
        }
        let found = self.failing.lock().unwrap().get(&doing).cloned();
        let found = found.filter(|_| !words.contains(&"--skip"));
        let preview = Preview {
            blockers: found
                .iter()
                .filter_map(|blocker| blocker.split_once(": "))
                .map(|(id, message)| MigrationBlocker {
                    id: id.to_owned(),
                    message: message.to_owned(),
                })
                .collect(),
            loss: format!("no connections of {}", pod.node),
            ..Preview::default()
        };
        let report = report(Outcome::Planned, |report| report.preview = Some(preview));
        let mut logs = self.logs.lock().unwrap();
        logs.insert(pod.key.name.clone(), report);
        Fate::Ended(u8::from(found.is_some()))
    }
}

/// Returns the line of a report with this outcome, as kpx on a node prints it.
fn report(outcome: Outcome, change: impl FnOnce(&mut NodeReport)) -> String {
    let mut report = NodeReport::already(Mode::Iptables);
    report.outcome = outcome;
    change(&mut report);
    Line::MigrateReport(Box::new(report)).to_text() + "\n"
}

/// Returns the line of the event that a rollback waits for kube-proxy.
fn verifies() -> String {
    let event = Event::Begins {
        leg: Leg::Back,
        stage: Stage::Verify,
        title: "wait for it".to_owned(),
        steps: 0,
        number: 1,
        of: 1,
    };
    Line::MigrateEvent(EventLine::from(event)).to_text() + "\n"
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
            if let Some(fate) = self.next_fate(&doing) {
                return fate;
            }
            let slow = self.slow.lock().unwrap().get(&doing).copied();
            thread::sleep(slow.unwrap_or_default());
            if self.failing.lock().unwrap().contains_key(&doing) {
                return Fate::NotReady;
            }
            self.modes.lock().unwrap().insert(pod.node.clone(), mode);
            return Fate::Ready;
        }
        if pod.reads() {
            // It waits for a copy of kpx.
            return Fate::Ready;
        }
        let command = pod.object["spec"]["containers"][0]["command"]
            .as_array()
            .unwrap();
        let words: Vec<&str> = command.iter().map(|word| word.as_str().unwrap()).collect();
        if words[..3] == ["kpx", "bridge", "guard"] {
            self.tell(format!("{} guard", pod.node));
            self.guarded.lock().unwrap().insert(pod.node.clone());
            return Fate::Ready;
        }
        assert_eq!(words[..2], ["kpx", "migrate"]);
        if words.contains(&"--dry-run") {
            return self.preview(pod, &words);
        }
        let doing = format!("{} {}", pod.node, words[2]);
        self.tell(doing.clone());
        if let Some(fate) = self.next_fate(&doing) {
            return fate;
        }
        let slow = self.slow.lock().unwrap().get(&doing).copied();
        thread::sleep(slow.unwrap_or_default());
        // Without a guard, nothing keeps the bridge of a pod that is killed.
        let bridges = !words.contains(&"--strategy") || words.contains(&"bridge");
        if words[2] == "prepare" && bridges && !self.guarded.lock().unwrap().contains(&pod.node) {
            self.tell(format!("{} has no guard", pod.node));
        }
        let why = self.failing.lock().unwrap().get(&doing).cloned();
        let mode = self.modes.lock().unwrap().get(&pod.node).cloned();
        let there = |flag: &str| {
            let at = words.iter().position(|word| *word == flag);
            at.and_then(|at| words.get(at + 1).map(|mode| (*mode).to_owned()))
        };
        let outcome = match (words[2], &why) {
            (_, Some(_)) => Outcome::Stopped,
            // Like kpx: only leftovers of the old mode would remain to be removed.
            ("prepare", _)
                if there("--to") == mode
                    && there("--old-mode").is_none_or(|left| Some(left) == mode) =>
            {
                Outcome::Already
            }
            ("prepare", _) => Outcome::Prepared,
            ("finish", _) => Outcome::Migrated,
            _ => Outcome::RolledBack,
        };
        let log = verifies()
            + &report(outcome, |report| {
                report.why.clone_from(&why);
                report.observed_loss = Some(ObservedLoss {
                    connections: 0,
                    failed_probes: usize::from(pod.node == "worker2"),
                    ..ObservedLoss::default()
                });
            });
        self.logs.lock().unwrap().insert(pod.key.name.clone(), log);
        Fate::Ended(if why.is_some() { 4 } else { 0 })
    }

    fn stop(&self, pod: &Pod) {
        if pod.key.name.starts_with("kpx-guard-") {
            self.guarded.lock().unwrap().remove(&pod.node);
        }
    }

    fn exec(&self, pod: &Pod, command: &[String], input: &[u8]) -> Exec {
        let done = self.copies.exec(pod, command, input);
        done.unwrap_or_else(|| Exec::NotStarted(Exec::absent(command)))
    }

    fn at_end_of_input(&self, pod: &Pod) -> Option<u8> {
        self.copies.at_end_of_input(pod)
    }

    fn lingers(&self) -> Duration {
        *self.lingers.lock().unwrap()
    }

    fn log(&self, pod: &Pod) -> String {
        match &pod.config {
            // kube-proxy logs the mode that it started in, not that of its ConfigMap now.
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
pub(crate) struct World {
    pub(crate) api: Api,
    nodes: Nodes,
    dir: TempDir,
    names: &'static [&'static str],
    /// How long a request may take.
    timeout: &'static str,
    /// How long a pod may take to be ready.
    ready: &'static str,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(NODES)
    }

    fn of(names: &'static [&'static str]) -> Self {
        Self::seeded(&root().join("testdata/nodes/dual-ipvs"), names)
    }

    /// Returns the cluster of the bundle at `folder`, with three nodes.
    pub(crate) fn recorded(folder: &Path) -> Self {
        Self::seeded(folder, NODES)
    }

    fn seeded(folder: &Path, names: &'static [&'static str]) -> Self {
        let api = Api::new();
        let nodes = Nodes::default();
        api.kubelet(nodes.clone());
        api.seed(folder, names);
        api.with(|cluster| {
            // These tests do not read them, and they are slow to write.
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
            timeout: "5s",
            ready: "5s",
        }
    }

    /// Runs kpx; returns its output without the line breaks of pages.
    pub(crate) async fn kpx(&self, args: &[&str]) -> Ran {
        let config = self.dir.path().join("kubeconfig");
        let mut all = vec![
            "--kubeconfig",
            config.to_str().unwrap(),
            "--timeout",
            self.timeout,
        ];
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
            self.ready,
            "--yes",
        ];
        args.extend_from_slice(more);
        self.kpx(&args).await
    }

    pub(crate) async fn all(&self, more: &[&str]) -> Ran {
        let mut args = vec!["--all-nodes", "--image", "kpx:1"];
        args.extend_from_slice(more);
        self.migrate(&args).await
    }

    /// Starts kpx as a process of its own, for all nodes, with `more`.
    #[expect(
        clippy::disallowed_methods,
        reason = "signals are those of a whole process"
    )]
    fn process(&self, more: &[&str]) -> Child {
        let config = self.dir.path().join("kubeconfig");
        Command::new(env!("CARGO_BIN_EXE_kpx"))
            .args(["--kubeconfig", config.to_str().unwrap()])
            .args(["--timeout", "5s", "migrate", "--to", "iptables", "--yes"])
            .args(["--all-nodes", "--image", "kpx:1", "--ready-timeout", "5s"])
            .args(more)
            .env_clear()
            .envs(profile())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn object(&self, resource: &str, name: &str) -> Option<Value> {
        self.api
            .with(|cluster| cluster.get(resource, "kube-system", name).cloned())
    }

    /// The label that moves `node`.
    fn label(&self, node: &str) -> Value {
        self.api.with(|cluster| {
            let node = cluster.get("nodes", "", node).unwrap();
            node["metadata"]["labels"]["kpx.dev/kube-proxy"].clone()
        })
    }

    /// Returns the names of objects that kpx created, without its state and its Lease.
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

    /// Returns the DaemonSet without the fields that the server writes.
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

    pub(crate) fn modes(&self) -> Vec<String> {
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
