//! The Job of a node pod, from its creation to its end.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::change::KEPT;
use super::{OWN, PAUSE, ROOT, Remote, Unreached};
use crate::cluster::{CONTAINER, is_by_admission};
use kpx_node::action::{
    Action, HELD, KubeCommand, OURS, Object, Only, READER, Resource, waits_for_copy,
};
use kpx_node::apply::{Apply as _, StepError};

/// Capabilities for reading: rules and sets; legacy tables; processes of others; files of others; the kernel log; the
/// node's own tools; the networks of pods.
const READING: &[&str] = &[
    "NET_ADMIN",
    "NET_RAW",
    "SYS_PTRACE",
    "DAC_READ_SEARCH",
    "SYSLOG",
    "SYS_CHROOT",
    "SYS_ADMIN",
];

/// Exit status of a container whose standard input ended before kpx was copied into it.
const NOT_COPIED: u8 = 1;

/// Time limit of the pod, in seconds, should its standard input stay open without kpx.
const DEADLINE: u32 = 1800;

/// Time in which kpx has to hold the standard input of a container that has started, in seconds. A container whose kpx ended before
/// has a standard input that never ends.
pub(super) const UNHELD: u32 = 10;

/// The same for a second container, after the first one ended before kpx knew that it ran.
pub(super) const UNHELD_LATER: u32 = 60;

/// Time after which a failure to create the pod is final; the controller may succeed before, except against a policy.
const NO_POD: Duration = Duration::from_secs(3);

/// Time in which the controller of Jobs begins with one, as a multiple of the time limit of one request: it notes when it did.
const BEGUN: u32 = 2;

/// Time limit until the pod runs, as a multiple of one request's.
pub(super) const STARTS: u32 = 6;

/// Reasons of a container whose image the node does not have.
pub(super) const NO_IMAGE: &[&str] = &[
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
];

/// Reasons of a container that does not start although its image is there.
const STUCK: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// The purpose of a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    /// To read the node.
    Read,
    /// To change the node.
    Change,
    /// To open connections as a pod, without access to the node.
    Client,
}

impl Purpose {
    const fn word(self) -> &'static str {
        match self {
            Self::Read => "reader",
            Self::Change => "change",
            Self::Client => "client",
        }
    }
}

impl Remote {
    /// Deletes Jobs of earlier runs that have ended, in a cluster that does not.
    pub(super) async fn sweep(&self) {
        let (cluster, options) = (&self.api.cluster, &self.api.options);
        let jobs = cluster.labelled(Resource::Job, OURS, options).await;
        // Leftovers that cannot be listed or deleted do no harm: their pods have ended.
        for job in jobs.unwrap_or_default() {
            let conditions = job["status"]["conditions"].as_array();
            let ended = |value: &Value| {
                value["status"] == "True"
                    && (value["type"] == "Complete" || value["type"] == "Failed")
            };
            // The log of a change is kept for its reader.
            if job["spec"]["ttlSecondsAfterFinished"] == 0
                && conditions.into_iter().flatten().any(ended)
                && let Some(name) = job["metadata"]["name"].as_str()
            {
                self.delete(&Object::of_system(Resource::Job, name))
                    .await
                    .ok();
            }
        }
    }

    pub(super) async fn create(
        &self,
        name: &str,
        image: &str,
        copies: bool,
        purpose: Purpose,
        unheld: u32,
    ) -> Result<Object, Unreached> {
        // The standard library has no other source of randomness.
        let unique = RandomState::new().build_hasher().finish();
        let job = Object::of_system(
            Resource::Job,
            format!("kpx-{}-{unique:016x}", purpose.word()),
        );
        let body = self.manifest(&job.name, name, image, copies, purpose, unheld);
        let command = KubeCommand::Create {
            object: job.clone(),
            body,
        };
        self.live.clone().apply(&Action::Kube { command }).await?;
        Ok(job)
    }

    pub(super) async fn delete(&self, job: &Object) -> Result<(), StepError> {
        let command = KubeCommand::Delete {
            object: job.clone(),
            only: Only::Ours,
        };
        self.live.clone().apply(&Action::Kube { command }).await
    }

    /// Waits until the pod of `job` runs; returns its name.
    pub(super) async fn running(&self, name: &str, job: &Object) -> Result<String, Unreached> {
        let (cluster, options) = (&self.api.cluster, &self.api.options);
        let stuck = |why: String| Unreached::Stuck(name.to_owned(), why);
        let began = Instant::now();
        let limit = options.timeout * STARTS;
        loop {
            let pods = cluster.labelled(Resource::Pod, (READER, &job.name), options);
            let pods = pods.await?;
            let state = pods.first().map(state);
            let why = match state {
                Some(State::Runs(pod)) => return Ok(pod),
                Some(State::Lost(why)) => return Err(stuck(why)),
                Some(State::Waits(why)) => why,
                // The API server refuses the pod, not the Job.
                None => match cluster.warning(job, options).await {
                    Ok(Some(why)) if is_by_admission(&why) || began.elapsed() >= NO_POD => {
                        return Err(Unreached::Refused(name.to_owned(), why));
                    }
                    Ok(Some(why)) => why,
                    Ok(None) => format!("{job} has no pod"),
                    Err(why) => format!("{job} has no pod, and its events are unknown: {why}"),
                },
            };
            if pods.is_empty()
                && began.elapsed() >= options.timeout * BEGUN
                && self.is_left_alone(job).await
            {
                let why = format!(
                    "{why}, and the controller of Jobs has not begun with it in {}s: check that kube-controller-manager runs and leads \
                     (`kubectl -n kube-system get lease kube-controller-manager -o yaml`)",
                    (options.timeout * BEGUN).as_secs()
                );
                return Err(Unreached::NoPod(name.to_owned(), why));
            }
            if began.elapsed() >= limit {
                let why = format!("{why}, after {}s", limit.as_secs());
                let is_made = !pods.is_empty();
                return Err(if is_made {
                    stuck(why)
                } else {
                    Unreached::NoPod(name.to_owned(), why)
                });
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns whether no controller has begun with `job`.
    async fn is_left_alone(&self, job: &Object) -> bool {
        let read = self.api.cluster.object(job, &self.api.options).await;
        matches!(read, Ok(Some(job)) if job["status"]["startTime"].is_null())
    }
}

/// The state of a node pod.
enum State {
    /// It runs: its name.
    Runs(String),
    /// It has not started, and why.
    Waits(String),
    /// It does not start, and why.
    Lost(String),
}

fn state(pod: &Value) -> State {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &pod["status"];
    let container = &status["containerStatuses"][0]["state"];
    let waiting = &container["waiting"];
    let reason = word(&waiting["reason"]);
    let message = word(&waiting["message"]);
    let joined = |reason: String, message: String| match message.as_str() {
        "" => reason,
        message => format!("{reason}: {message}"),
    };
    if !container["running"].is_null() {
        return State::Runs(word(&pod["metadata"]["name"]));
    }
    if STUCK.contains(&reason.as_str()) || NO_IMAGE.contains(&reason.as_str()) {
        return State::Lost(joined(reason, message));
    }
    match status["phase"].as_str() {
        Some(phase @ ("Failed" | "Succeeded")) => {
            let ended = &container["terminated"];
            let why = [
                &status["reason"],
                &status["message"],
                &ended["reason"],
                &ended["message"],
            ];
            let why: Vec<String> = why
                .map(word)
                .into_iter()
                .filter(|s| !s.is_empty())
                .collect();
            State::Lost(joined(
                format!("it ended at once ({phase})"),
                why.join(": "),
            ))
        }
        _ if !reason.is_empty() => State::Waits(joined(reason, message)),
        phase => State::Waits(format!("its phase is {}", phase.unwrap_or("unknown"))),
    }
}

impl Remote {
    /// Returns the Job `job` with a pod of `image` on the Node `node`; `copies` if kpx copies itself into it, for which it has `unheld`
    /// seconds.
    fn manifest(
        &self,
        job: &str,
        node: &str,
        image: &str,
        copies: bool,
        purpose: Purpose,
        unheld: u32,
    ) -> Value {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        // Each ends with its standard input, unless it has a plan by then.
        let main: Vec<String> = match (purpose, copies) {
            (Purpose::Read | Purpose::Client, true) => {
                let script = format!("read -r line && : > {HELD} && exec cat");
                words(&["sh", "-c", &script])
            }
            (Purpose::Read | Purpose::Client, false) => words(&[OWN, "pod"]),
            (Purpose::Change, _) => {
                let limit = format!("--timeout={}ms", self.api.options.timeout.as_millis());
                let root = format!("--root={ROOT}");
                let mut main = if copies {
                    waits_for_copy(NOT_COPIED)
                } else {
                    words(&[OWN])
                };
                main.extend([root, limit, "pod".to_owned(), "--apply".to_owned()]);
                main
            }
        };
        let confined = |added: &[&str]| {
            json!({
                "runAsUser": 0,
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"], "add": added},
            })
        };
        let security = match purpose {
            Purpose::Read => confined(READING),
            Purpose::Change => json!({"runAsUser": 0, "privileged": true}),
            Purpose::Client => confined(&[]),
        };
        // In an image of kpx, kpx itself keeps the time.
        let startup = copies.then(|| {
            json!({
                "exec": {"command": ["sh", "-c", format!("[ -e {HELD} ]")]},
                "periodSeconds": 1,
                "failureThreshold": unheld,
                "timeoutSeconds": unheld,
            })
        });
        let kept = if purpose == Purpose::Change { KEPT } else { 0 };
        let is_on_node = purpose != Purpose::Client;
        let (mut mounts, mut volumes) = (Vec::new(), Vec::new());
        // An image of kpx has the program where the copy would be.
        if copies {
            mounts.push(json!({"name": "kpx", "mountPath": "/kpx"}));
            volumes.push(json!({"name": "kpx", "emptyDir": {"medium": "Memory"}}));
        }
        if is_on_node {
            mounts.push(json!({
                "name": "host", "mountPath": ROOT, "mountPropagation": "HostToContainer",
                "readOnly": purpose == Purpose::Read,
            }));
            volumes.push(json!({"name": "host", "hostPath": {"path": "/"}}));
        }
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": job,
                "namespace": "kube-system",
                "labels": {(OURS.0): OURS.1},
            },
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": DEADLINE,
                "ttlSecondsAfterFinished": kept,
                "template": {
                    "metadata": {"labels": {(OURS.0): OURS.1, (READER): job}},
                    "spec": {
                        "nodeName": node,
                        "hostNetwork": is_on_node,
                        "hostPID": is_on_node,
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 0,
                        "automountServiceAccountToken": false,
                        "enableServiceLinks": false,
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{
                            "name": CONTAINER,
                            "image": image,
                            "imagePullPolicy": "IfNotPresent",
                            "command": main,
                            "stdin": true,
                            "stdinOnce": true,
                            "startupProbe": startup,
                            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                            "securityContext": security,
                            "volumeMounts": mounts,
                        }],
                        "volumes": volumes,
                    },
                },
            },
        })
    }
}
