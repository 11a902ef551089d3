//! The controllers of the cluster: `DaemonSets` and `Jobs` get their pods, and nodes run them.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Cluster;
use super::objects::{Event, Key};
use super::selector;

/// The least time that a second of a startup probe takes.
const LEAST: Duration = Duration::from_millis(200);

/// A pod on its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Pod {
    pub(crate) key: Key,
    pub(crate) node: String,
    pub(crate) object: Value,
    /// For kube-proxy, the current text in the ConfigMap of the file that `--config` names.
    pub(crate) config: Option<String>,
}

impl Pod {
    /// Whether its container runs until its standard input ends.
    pub(crate) fn reads(&self) -> bool {
        self.object["spec"]["containers"][0]["stdin"] == true
    }
}

/// The fate of a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    Ready,
    /// It runs, and is not ready.
    NotReady,
    /// Its container ended, with this status.
    Ended(u8),
    /// Its container waits: a reason, and a message.
    Waits(&'static str, &'static str),
    /// Its container crash-loops with status 1, and waits for the next start.
    CrashLoops,
    /// The kubelet evicted it: the node is short of a resource.
    Evicted,
    /// The kernel killed its container, which used too much memory.
    OutOfMemory,
    /// It ran, and was deleted at once.
    Deleted,
}

/// Runs the pods of all nodes. Each call has its own thread and may block.
pub(crate) trait Kubelet: Send + Sync {
    /// Starts a pod; returns its fate as soon as that is decided.
    fn start(&self, pod: &Pod) -> Fate;

    /// Ends a pod; its object is deleted afterwards.
    fn stop(&self, pod: &Pod);

    /// Returns how long the object of an ended pod exists.
    fn lingers(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the log of the pod. It must not send requests to the API server.
    fn log(&self, pod: &Pod) -> String;

    /// Whether the pod's container has the program of `command`.
    fn finds(&self, _: &Pod, _: &[String]) -> bool {
        true
    }

    /// Runs `command` in the pod's container, with all of its standard input.
    fn exec(&self, _: &Pod, command: &[String], _: &[u8]) -> Exec {
        Exec::NotStarted(Exec::absent(command))
    }

    /// Returns with which status the container ends when its standard input does; `None` if it runs on.
    fn at_end_of_input(&self, _: &Pod) -> Option<u8> {
        Some(0)
    }
}

/// How a command in a container ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Exec {
    /// With this exit status, standard output and standard error.
    Ended(u8, Vec<u8>, String),
    /// The runtime could not start it: the reason.
    NotStarted(String),
    /// Successfully; the main process goes on as that of this pod.
    Starts(Box<Pod>),
    /// The pod was killed while it ran.
    Killed,
}

impl Exec {
    /// The message of the runtime for a command that the container does not have.
    pub(crate) fn absent(command: &[String]) -> String {
        let name = command.first().map_or("", String::as_str);
        format!(
            "error executing command in container: failed to exec in container: failed to start exec: OCI runtime exec \
             failed: exec failed: unable to start container process: exec: {name:?}: executable file not found in $PATH"
        )
    }
}

/// A kubelet that runs nothing: kube-proxy is ready at once, and other pods succeed at once.
pub(crate) struct Pretend;

impl Kubelet for Pretend {
    fn start(&self, pod: &Pod) -> Fate {
        if pod.config.is_some() || pod.reads() {
            Fate::Ready
        } else {
            Fate::Ended(0)
        }
    }

    fn stop(&self, _: &Pod) {}

    fn log(&self, pod: &Pod) -> String {
        let modes = pod.config.iter().flat_map(|config| config.lines());
        let mut modes = modes.filter_map(|line| line.strip_prefix("mode:"));
        let mode = modes.next().map(|mode| mode.trim().trim_matches('"'));
        match mode {
            Some("") => {
                "I1120 13:10:00.000000       1 server_linux.go:54] \"Using iptables Proxier\"\n"
                    .to_owned()
            }
            Some(mode) => format!(
                "I1120 13:10:00.000000       1 server_linux.go:54] \"Using {mode} Proxier\"\n"
            ),
            None => String::new(),
        }
    }
}

/// A task of a node.
#[derive(Debug)]
pub(super) enum Task {
    Start(Pod),
    Stop(Pod),
    /// Ends a Job after this time.
    Deadline(Value, Duration),
    /// Kills the container of a pod whose startup probe has not succeeded after this time.
    Startup(Pod, Duration),
}

impl Cluster {
    /// Creates and deletes pods as their `DaemonSets` and `Jobs` require, and records the tasks of the nodes.
    pub(super) fn sync(&mut self) {
        let before = self.objects.version;
        if self.settled == before {
            return;
        }
        let touched = self.touched();
        let sets: Vec<Value> = self.objects.list("daemonsets", None).cloned().collect();
        for set in &sets {
            self.sync_set(set);
        }
        self.collect_garbage(&sets, touched.as_deref());
        for set in &sets {
            self.tell_status(set);
        }
        self.sync_jobs();
        let touched = self.touched();
        self.find_tasks(touched.as_deref());
        if self.objects.version == before {
            self.settled = before;
        }
    }

    /// Returns the keys of the pods that changed since the controllers had nothing to do; `None` if something else changed
    /// that concerns all pods.
    fn touched(&self) -> Option<Vec<Key>> {
        let events = self.objects.since(self.settled);
        let concerns_all = |event: &&Event| ["nodes", "daemonsets"].contains(&&*event.key.resource);
        if events.iter().any(|event| concerns_all(&event)) {
            return None;
        }
        let pods = events.iter().filter(|event| event.key.resource == "pods");
        let keys: BTreeSet<Key> = pods.map(|event| event.key.clone()).collect();
        Some(keys.into_iter().collect())
    }

    /// Iterates over the pods with these keys, or over all.
    fn pods<'a>(&'a self, keys: Option<&'a [Key]>) -> impl Iterator<Item = &'a Value> {
        let some = keys.into_iter().flatten();
        let some = some.filter_map(|key| self.objects.get(key));
        let all = keys.is_none().then(|| self.objects.list("pods", None));
        some.chain(all.into_iter().flatten())
    }

    fn sync_set(&mut self, set: &Value) {
        let template = &set["spec"]["template"];
        let nodes: Vec<Value> = self.objects.list("nodes", None).cloned().collect();
        let mut pods = self.pods_of(set);
        pods.retain(|pod| !(is_ending(pod) && pod["status"]["phase"] == "Failed"));
        // Pods are replaced one at a time: the next only when the new one is ready.
        let mut replace = set["spec"]["updateStrategy"]["type"] != "OnDelete"
            && pods.iter().all(|pod| is_ready(pod) && !is_ending(pod));
        for node in &nodes {
            let name = &node["metadata"]["name"];
            let here = pods.iter().filter(|pod| pod["spec"]["nodeName"] == *name);
            let here: Vec<&Value> = here.collect();
            if !selector::node(node, template) {
                for pod in here {
                    self.end(pod);
                }
            } else if here.is_empty() {
                self.create_pod(set, name);
            } else if let Some(old) = here.iter().find(|pod| revision(pod) != wanted(set))
                && replace
            {
                replace = false;
                self.end(old);
            }
        }
    }

    fn create_pod(&mut self, set: &Value, node: &Value) {
        let name = format!(
            "{}-{}",
            set["metadata"]["name"].as_str().unwrap(),
            self.objects.ending()
        );
        let namespace = set["metadata"]["namespace"].as_str().unwrap();
        let mut pod = set["spec"]["template"].clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["spec"]["nodeName"] = node.clone();
        pod["metadata"]["labels"]["controller-revision-hash"] = json!(wanted(set));
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "controller": true,
            "name": set["metadata"]["name"], "uid": set["metadata"]["uid"],
        }]);
        self.objects.put(Key::new("pods", namespace, &name), pod);
    }

    fn pods_of(&self, set: &Value) -> Vec<Value> {
        let ours = |pod: &&Value| owner(pod) == Some(&set["metadata"]["uid"]);
        self.objects
            .list("pods", None)
            .filter(ours)
            .cloned()
            .collect()
    }

    /// Ends the pods whose DaemonSet or node is gone.
    fn collect_garbage(&mut self, sets: &[Value], touched: Option<&[Key]>) {
        let is_lost = |pod: &Value| {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            self.objects.get(&Key::new("nodes", "", node)).is_none()
        };
        let is_owned = |pod: &Value| {
            owner(pod).is_none_or(|uid| {
                let mut known = sets.iter().map(|set| &set["metadata"]["uid"]);
                known.any(|known| known == uid)
            })
        };
        let pods = self.pods(touched).map(|pod| (pod, is_lost(pod)));
        let pods = pods.filter(|(pod, lost)| *lost || !is_owned(pod));
        let pods: Vec<_> = pods.map(|(pod, lost)| (pod.clone(), lost)).collect();
        for (pod, lost) in &pods {
            if *lost {
                self.objects.remove(&key(pod));
            } else {
                self.end(pod);
            }
        }
    }

    pub(super) fn end(&mut self, pod: &Value) {
        self.objects.edit(&key(pod), |pod| {
            let meta = &mut pod["metadata"];
            if meta["deletionTimestamp"].is_null() {
                meta["deletionTimestamp"] = json!("2026-11-20T13:00:00Z");
            }
        });
    }

    fn tell_status(&mut self, set: &Value) {
        let pods = self.pods_of(set);
        let count = |fits: &dyn Fn(&Value) -> bool| pods.iter().filter(|pod| fits(pod)).count();
        let nodes = self.objects.list("nodes", None);
        let desired = nodes.filter(|node| selector::node(node, &set["spec"]["template"]));
        let (desired, ready) = (desired.count(), count(&is_ready));
        let status = json!({
            "desiredNumberScheduled": desired,
            "currentNumberScheduled": pods.len(),
            "numberMisscheduled": 0,
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": desired.saturating_sub(ready),
            "updatedNumberScheduled": count(&|pod| revision(pod) == wanted(set)),
            "observedGeneration": set["metadata"]["generation"],
        });
        self.objects
            .edit(&Key::of(set), |set| set["status"] = status);
    }

    fn find_tasks(&mut self, touched: Option<&[Key]>) {
        let pods = self.pods(touched);
        let pods = pods.filter(|pod| is_ending(pod) || pod["status"].is_null());
        let pods: Vec<Value> = pods.cloned().collect();
        for object in pods {
            let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
            let known = self.objects.get(&Key::new("nodes", "", node)).is_some();
            if !known || self.vanished.contains(node) {
                continue;
            }
            let pod = self.pod(&object);
            let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
            if is_ending(&object) {
                if self.ending.insert(uid) {
                    // A terminating pod exists and is not ready.
                    self.objects.edit(&pod.key, |pod| {
                        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                    });
                    self.tasks.push(Task::Stop(pod));
                }
            } else if object["status"].is_null() {
                let conditions = json!([{"type": "Ready", "status": "False"}]);
                self.objects.edit(&pod.key, |pod| {
                    pod["status"] = json!({"phase": "Pending", "conditions": conditions});
                });
                self.tasks.push(Task::Start(pod));
            }
        }
    }

    pub(super) fn pod(&self, object: &Value) -> Pod {
        Pod {
            key: key(object),
            node: object["spec"]["nodeName"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            config: self.config_of(object),
            object: object.clone(),
        }
    }

    /// Returns the text of the file that `--config` names, from the ConfigMap mounted there.
    fn config_of(&self, pod: &Value) -> Option<String> {
        let container = &pod["spec"]["containers"][0];
        let words = ["command", "args"].into_iter();
        let mut words = words.flat_map(|part| container[part].as_array().into_iter().flatten());
        let path = words.find_map(|word| word.as_str()?.strip_prefix("--config="))?;
        let path = Path::new(path);
        let mounts = container["volumeMounts"].as_array()?;
        let mount = mounts
            .iter()
            .find(|mount| mount["mountPath"].as_str().map(Path::new) == path.parent())?;
        let volumes = pod["spec"]["volumes"].as_array()?;
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"])?;
        let map = volume["configMap"]["name"].as_str()?;
        let namespace = pod["metadata"]["namespace"].as_str()?;
        let map = self.objects.get(&Key::new("configmaps", namespace, map))?;
        let file = path.file_name()?.to_str()?;
        map["data"][file].as_str().map(str::to_owned)
    }

    /// Records the fate of a pod that was started.
    pub(super) fn started(&mut self, pod: &Pod, fate: Fate) {
        if fate == Fate::Deleted {
            self.objects.remove(&pod.key);
            return;
        }
        let (phase, ready) = match fate {
            Fate::Ready => ("Running", "True"),
            Fate::NotReady | Fate::CrashLoops => ("Running", "False"),
            Fate::Waits(..) => ("Pending", "False"),
            Fate::Ended(0) => ("Succeeded", "False"),
            _ => ("Failed", "False"),
        };
        let state = match fate {
            Fate::Ended(code) => json!({"terminated": {"exitCode": code}}),
            Fate::Evicted => json!({"terminated": {"exitCode": 137, "reason": "Error"}}),
            Fate::OutOfMemory => json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            Fate::Waits(reason, message) => {
                json!({"waiting": {"reason": reason, "message": message}})
            }
            Fate::CrashLoops => json!({"waiting": {
                "reason": "CrashLoopBackOff",
                "message": "back-off 20s restarting failed container",
            }}),
            _ => json!({"running": {}}),
        };
        let (restarts, last) = match fate {
            Fate::CrashLoops => (2, json!({"terminated": {"exitCode": 1, "reason": "Error"}})),
            _ => (0, json!({})),
        };
        let name = &pod.object["spec"]["containers"][0]["name"];
        let uid = &pod.object["metadata"]["uid"];
        self.objects.edit(&pod.key, |object| {
            if object["metadata"]["uid"] == *uid {
                object["status"] = json!({
                    "phase": phase,
                    "conditions": [{"type": "Ready", "status": ready}],
                    "containerStatuses": [{
                        "name": name, "ready": ready == "True", "restartCount": restarts, "state": state, "lastState": last,
                    }],
                });
                if fate == Fate::Evicted {
                    object["status"]["reason"] = json!("Evicted");
                    object["status"]["message"] = json!("The node was low on resource: memory.");
                }
            }
        });
    }

    /// Begins the startup probe of a container, if it has one and time passes.
    pub(super) fn probes_startup(&mut self, pod: &Pod, fate: Fate) {
        let probe = &pod.object["spec"]["containers"][0]["startupProbe"];
        let number = |key: &str| u32::try_from(probe[key].as_u64()?).ok();
        if let (Fate::Ready, Some(period), Some(failures), Some(second)) = (
            fate,
            number("periodSeconds"),
            number("failureThreshold"),
            self.second,
        ) {
            // kpx itself needs some time to hold it.
            let after = second.max(LEAST) * period * failures;
            self.tasks.push(Task::Startup(pod.clone(), after));
        }
    }

    /// Kills the container of a pod to whose standard input no client has attached.
    pub(super) fn unheld(&mut self, pod: &Pod) {
        let uid = pod.object["metadata"]["uid"].as_str().unwrap();
        if !self.held.contains(uid) {
            self.exited(&pod.object, 137);
        }
    }

    /// Records that the containers of a deleted pod have ended: its DaemonSet creates another pod, and the object stays.
    pub(super) fn ended(&mut self, pod: &Pod) {
        self.objects
            .edit(&pod.key, |pod| pod["status"]["phase"] = json!("Failed"));
    }

    /// Removes a pod that was ended.
    pub(super) fn stopped(&mut self, pod: &Pod) {
        self.objects.remove(&pod.key);
    }
}

pub(super) fn key(pod: &Value) -> Key {
    let word = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    Key::new("pods", word("namespace"), word("name"))
}

fn owner(pod: &Value) -> Option<&Value> {
    let owner = &pod["metadata"]["ownerReferences"][0];
    (owner["kind"] == "DaemonSet").then(|| &owner["uid"])
}

fn is_ending(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
}

/// Returns the template of a pod, by its label.
fn revision(pod: &Value) -> &str {
    let label = &pod["metadata"]["labels"]["controller-revision-hash"];
    label.as_str().unwrap_or_default()
}

/// Returns the label value of the current template.
fn wanted(set: &Value) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    set["spec"]["template"].to_string().hash(&mut hasher);
    format!("{:x}", hasher.finish())
}
