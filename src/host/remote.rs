//! Reads a node through a pod on it.
//!
//! The pod belongs to a Job. Its main process reads standard input, which kpx holds open: when kpx ends, however it ends,
//! the pod ends, and the controllers of the cluster delete the Job and the pod.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::{Instant, sleep};

use super::Options;
use super::cluster::{CONTAINER, Ended, Held};
use super::context::Context;
use crate::action::{Action, KubeCommand, OURS, Object, Only, READER, Resource};
use crate::apply::{Apply as _, StepError};
use crate::evidence::{self, BundleError, Evidence, Gap, Item};
use crate::host::LiveCluster;
use crate::net::Family;

/// Mount point of the node's file system in the pod.
const ROOT: &str = "/host";

/// kpx in a pod into which it copied itself.
const COPY: &str = "/kpx/kpx";

/// kpx in an image that contains it.
const OWN: &str = "kpx";

/// Capabilities for reading: rules and sets; legacy tables; processes of others; files of others; the kernel log; the
/// node's own tools.
const READING: &[&str] = &[
    "NET_ADMIN",
    "NET_RAW",
    "SYS_PTRACE",
    "DAC_READ_SEARCH",
    "SYSLOG",
    "SYS_CHROOT",
];

/// Time limit of the pod, in seconds, should its standard input stay open without kpx.
const DEADLINE: u32 = 1800;

/// Pause between two looks at the pod.
const PAUSE: Duration = Duration::from_millis(200);

/// Time limit until the pod runs, as a multiple of one request's.
const START: u32 = 6;

/// Time after which the events of a Job without a pod are read.
const NO_POD: Duration = Duration::from_secs(3);

/// Time limit of a read on the node, as a multiple of one item's: rules may take six times as long.
const READ: u32 = 8;

/// Reasons of a container that does not start.
const STUCK: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

/// Why a node cannot be read.
#[derive(Debug, Error)]
pub enum Unreached {
    /// A request failed.
    #[error("{0}")]
    Request(#[from] StepError),
    /// There is no such Node.
    #[error("the cluster has no Node {0}")]
    NoNode(String),
    /// The node's kubelet does not report.
    #[error("node {0} is not ready: {1}")]
    NotReady(String, String),
    /// The image of kube-proxy is unknown.
    #[error(
        "cannot choose an image for the pod: node {0} has no pod with the label k8s-app=kube-proxy"
    )]
    NoImage(String),
    /// The pod does not start.
    #[error("the pod on node {0} does not start: {1}")]
    Stuck(String, String),
    /// The API server does not accept the pod.
    #[error("the pod on node {0} is refused: {1}")]
    Refused(String, String),
    /// kpx cannot run in the pod.
    #[error("kpx does not run in a pod of {0}: {1}")]
    Program(String, String),
    /// No kpx for the node's processor.
    #[error("node {0} has a processor of type {1}, and this kpx is for {2}")]
    Processor(String, String, &'static str),
    /// The kpx in the pod failed.
    #[error("kpx on node {0} failed: {1}")]
    Failed(String, String),
    /// Its answer is not a bundle.
    #[error("the answer of node {0} is damaged")]
    Damaged(String, #[source] BundleError),
    /// A file of this machine.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] io::Error),
}

impl Unreached {
    /// Returns what to do about it, if anything special.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoNode(_) => Some("`kubectl get nodes` lists the Nodes".to_owned()),
            Self::NoImage(_) => Some(
                "pass --image IMAGE with an image that contains kpx".to_owned(),
            ),
            Self::Program(..) => Some(
                "`make static` builds a kpx that needs no libraries; or pass --image IMAGE with an image that contains kpx"
                    .to_owned(),
            ),
            Self::Processor(..) => Some(
                "pass --programs DIR: a folder with kpx for that processor, named kpx-linux-amd64 or kpx-linux-arm64".to_owned(),
            ),
            Self::NotReady(name, _) => Some(format!("`kubectl describe node {name}` shows its conditions")),
            Self::Refused(..) => Some(
                "the pod uses the node's network, processes and files: if Pod Security admission refuses it, run `kubectl label \
                 namespace kube-system pod-security.kubernetes.io/enforce=privileged`"
                    .to_owned(),
            ),
            Self::Stuck(_, why) if why.contains("Image") => {
                Some("pass --image IMAGE with an image that the node has or can pull".to_owned())
            }
            _ => None,
        }
    }
}

/// Options of the pods on nodes.
#[derive(Clone, Debug, Default)]
pub struct PodOptions {
    /// The image; `None` for that of kube-proxy.
    pub image: Option<String>,
    /// Folder with kpx for each processor: `kpx-linux-amd64`, `kpx-linux-arm64`; `None` for this program.
    pub programs: Option<PathBuf>,
}

/// The nodes of a cluster, each read through a pod of its own.
#[derive(Clone, Debug)]
pub struct Remote {
    live: LiveCluster,
    context: Arc<Context>,
    pods: PodOptions,
    /// kpx as it is copied into pods, by processor.
    programs: Arc<Mutex<BTreeMap<String, Arc<Program>>>>,
    /// Set after leftovers are deleted.
    swept: Arc<OnceCell<()>>,
}

#[derive(Debug)]
struct Program {
    bytes: Vec<u8>,
    digest: String,
}

/// A node with a running pod.
#[derive(Debug)]
pub struct RemoteNode {
    remote: Remote,
    /// Name of the Node.
    pub name: String,
    job: Object,
    pod: String,
    image: String,
    /// kpx in the pod.
    program: &'static str,
    _held: Held,
}

impl Remote {
    /// Returns the nodes of the cluster that `options` select.
    pub fn new(options: &Options, pods: PodOptions) -> Self {
        let context = Context::new(options);
        Self {
            live: LiveCluster::of(&context),
            context,
            pods,
            programs: Arc::default(),
            swept: Arc::default(),
        }
    }

    /// Starts a pod on the Node `name`, with kpx in it.
    pub async fn open(&self, name: &str) -> Result<RemoteNode, Unreached> {
        let node = self.live.object(&Object::node(name)).await?;
        let node = node.ok_or_else(|| Unreached::NoNode(name.to_owned()))?;
        ready(name, &node)?;
        let (image, program) = match &self.pods.image {
            Some(image) => (image.clone(), None),
            None => (
                self.image(name).await?,
                Some(self.program(name, &node).await?),
            ),
        };
        self.swept.get_or_init(|| self.sweep()).await;
        let job = self.create(name, &image, program.is_some()).await?;
        let started = self.start(name, &image, &job, program.as_deref()).await;
        match started {
            Ok(node) => Ok(node),
            Err(why) => {
                // The first error matters; the Job ends at its deadline.
                self.delete(&job).await.ok();
                Err(why)
            }
        }
    }

    async fn start(
        &self,
        name: &str,
        image: &str,
        job: &Object,
        program: Option<&Program>,
    ) -> Result<RemoteNode, Unreached> {
        let pod = self.running(name, job).await?;
        let held = self
            .context
            .cluster
            .hold(&pod, &self.context.options)
            .await?;
        let node = RemoteNode {
            remote: self.clone(),
            name: name.to_owned(),
            job: job.clone(),
            pod,
            image: image.to_owned(),
            program: if program.is_some() { COPY } else { OWN },
            _held: held,
        };
        if let Some(program) = program {
            node.copy(program).await?;
        }
        Ok(node)
    }

    /// Returns the image of kube-proxy on the Node `name`.
    async fn image(&self, name: &str) -> Result<String, Unreached> {
        let pods = self.context.cluster.proxy_pods(name, &self.context.options);
        let pods = pods.await?;
        let containers = pods.iter().flat_map(|pod| &pod.spec.containers);
        let mut images = containers.map(|of| of.image.clone());
        images
            .next()
            .ok_or_else(|| Unreached::NoImage(name.to_owned()))
    }

    /// Deletes Jobs of earlier runs that have ended, in a cluster that does not.
    async fn sweep(&self) {
        let (cluster, options) = (&self.context.cluster, &self.context.options);
        let jobs = cluster.labelled(Resource::Job, OURS, options).await;
        // Leftovers that cannot be listed or deleted do no harm: their pods have ended.
        for job in jobs.unwrap_or_default() {
            let conditions = job["status"]["conditions"].as_array();
            let ended = |of: &Value| {
                of["status"] == "True" && (of["type"] == "Complete" || of["type"] == "Failed")
            };
            if conditions.into_iter().flatten().any(ended)
                && let Some(name) = job["metadata"]["name"].as_str()
            {
                self.delete(&Object::of_system(Resource::Job, name))
                    .await
                    .ok();
            }
        }
    }

    async fn create(&self, name: &str, image: &str, copies: bool) -> Result<Object, Unreached> {
        // The standard library has no other source of randomness.
        let unique = RandomState::new().build_hasher().finish();
        let job = Object::of_system(Resource::Job, format!("kpx-reader-{unique:016x}"));
        let body = manifest(&job.name, name, image, copies);
        let command = KubeCommand::Create {
            object: job.clone(),
            body,
        };
        self.live.clone().apply(&Action::Kube { command }).await?;
        Ok(job)
    }

    async fn delete(&self, job: &Object) -> Result<(), StepError> {
        let command = KubeCommand::Delete {
            object: job.clone(),
            only: Only::Ours,
        };
        self.live.clone().apply(&Action::Kube { command }).await
    }

    /// Waits until the pod of `job` runs; returns its name.
    async fn running(&self, name: &str, job: &Object) -> Result<String, Unreached> {
        let (cluster, options) = (&self.context.cluster, &self.context.options);
        let stuck = |why: String| Unreached::Stuck(name.to_owned(), why);
        let began = Instant::now();
        let limit = options.timeout * START;
        loop {
            let pods = cluster.labelled(Resource::Pod, (READER, &job.name), options);
            let pods = pods.await?;
            let state = pods.first().map(state);
            let why = match state {
                Some(State::Runs(pod)) => return Ok(pod),
                Some(State::Lost(why)) => return Err(stuck(why)),
                Some(State::Waits(why)) => why,
                None if began.elapsed() < NO_POD => "its Job has no pod yet".to_owned(),
                // The API server refuses the pod, not the Job.
                None => match cluster.warning(job, options).await {
                    Some(why) => return Err(Unreached::Refused(name.to_owned(), why)),
                    None => format!("{job} has no pod"),
                },
            };
            if began.elapsed() >= limit {
                let seconds = limit.as_secs();
                return Err(stuck(format!("{why}, after {seconds}s")));
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns kpx for the processor of the Node `name`.
    async fn program(&self, name: &str, node: &Value) -> Result<Arc<Program>, Unreached> {
        let own = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let reported = node["status"]["nodeInfo"]["architecture"].as_str();
        let there = reported.filter(|word| !word.is_empty()).unwrap_or(own);
        let file = |folder: &PathBuf| folder.join(format!("kpx-linux-{there}"));
        let here = there == own && cfg!(target_os = "linux");
        let path = match self.pods.programs.as_ref().map(file) {
            Some(path) if !here || path.exists() => path,
            _ if here => PathBuf::from("/proc/self/exe"),
            _ => return Err(Unreached::Processor(name.to_owned(), there.to_owned(), own)),
        };
        let mut programs = self.programs.lock().await;
        if let Some(program) = programs.get(there) {
            return Ok(Arc::clone(program));
        }
        let bytes = fs::read(&path).map_err(|e| Unreached::File(path, e))?;
        let digest = sha256(&bytes);
        let program = Arc::new(Program { bytes, digest });
        programs.insert(there.to_owned(), Arc::clone(&program));
        Ok(program)
    }
}

/// Returns the SHA-256 digest of `bytes` in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

impl RemoteNode {
    /// Reads `items` of the node's own; those that only the API has are gaps.
    pub async fn read(&self, items: &[Item], families: &[Family]) -> Result<Evidence, Unreached> {
        let limit = self.remote.context.options.timeout;
        let names: Vec<&str> = items.iter().map(|item| item.file()).collect();
        let mut words = vec![
            self.program.to_owned(),
            format!("--root={ROOT}"),
            "--no-api".to_owned(),
            format!("--node={}", self.name),
            format!("--timeout={}ms", limit.as_millis()),
            "--quiet".to_owned(),
        ];
        if let [only] = families {
            words.push(format!("--family={only}"));
        }
        words.extend(["snapshot".to_owned(), "--output=-".to_owned()]);
        words.push(format!("--items={}", names.join(",")));
        let done = self.run(&words, None).await?;
        let failed = |why| Unreached::Failed(self.name.clone(), why);
        if done.code != Some(0) {
            let why = done.stderr.strip_prefix("kpx: ").unwrap_or(&done.stderr);
            return Err(failed(why.trim().to_owned()));
        }
        let kept = || -> io::Result<fs::File> {
            let mut file = tempfile::tempfile()?;
            file.write_all(&done.stdout)?;
            file.rewind()?;
            Ok(file)
        };
        let file = kept().map_err(|e| failed(format!("cannot keep its answer: {e}")))?;
        let name = Path::new(&self.name);
        evidence::load_file(name, file, items).map_err(|e| Unreached::Damaged(self.name.clone(), e))
    }

    /// Reads kube-proxy's log and configuration through the API, for a node on which they are not found.
    pub async fn from_api(&self, item: Item) -> Result<String, Gap> {
        let context = &self.remote.context;
        match item {
            Item::ProxyConfig => {
                let config = context.cluster.proxy_config(&self.name, &context.options);
                config.await
            }
            Item::ProxyLog => {
                let log = context.cluster.proxy_log(&self.name, &context.options);
                log.await
            }
            other => Err(Gap::NotCollected(other)),
        }
    }

    /// Deletes the pod and its Job.
    pub async fn close(&self) -> Result<(), StepError> {
        self.remote.delete(&self.job).await
    }

    /// Copies `program` into the pod and compares its digest.
    async fn copy(&self, program: &Program) -> Result<(), Unreached> {
        let failed = |why: String| Unreached::Program(self.image.clone(), why);
        // A server that refuses a command may reset the connection on which it still receives input, and the reason is lost.
        let shell = ["sh", "-c", "chmod 755 /kpx"].map(str::to_owned);
        let shell = self.run(&shell, None).await?;
        if shell.code != Some(0) {
            return Err(failed(shell.stderr));
        }
        let copy = format!("cat > {COPY} && chmod 755 {COPY}");
        let copy = ["sh", "-c", &copy].map(str::to_owned);
        let copied = self.run(&copy, Some(&program.bytes)).await?;
        if copied.code.is_some_and(|code| code != 0) {
            return Err(failed(copied.stderr));
        }
        let end = Instant::now() + self.remote.context.options.timeout;
        loop {
            let digest = [COPY, "version", "--digest"].map(str::to_owned);
            let done = self.run(&digest, None).await?;
            let there = String::from_utf8_lossy(&done.stdout);
            if done.code == Some(0) && there.trim() == program.digest {
                return Ok(());
            }
            // Without an exit status, the copy may not be complete.
            if copied.code.is_some() || Instant::now() > end {
                return Err(failed(match done.code {
                    Some(0) => "its copy is damaged".to_owned(),
                    _ => done.stderr,
                }));
            }
            sleep(PAUSE).await;
        }
    }

    async fn run(&self, words: &[String], input: Option<&[u8]>) -> Result<Ended, Unreached> {
        let context = &self.remote.context;
        let quiet = context.options.timeout * READ;
        let done = context
            .cluster
            .exec(&self.pod, words, input, quiet, &context.options);
        done.await.map_err(|why| match why {
            StepError::Denied(_) => Unreached::Request(why),
            why => Unreached::Failed(self.name.clone(), why.to_string()),
        })
    }
}

/// Refuses a Node on which no pod can run.
fn ready(name: &str, node: &Value) -> Result<(), Unreached> {
    let conditions = node["status"]["conditions"].as_array();
    let mut ready = conditions
        .into_iter()
        .flatten()
        .filter(|of| of["type"] == "Ready");
    match ready.next() {
        Some(ready) if ready["status"] != "True" => {
            let why = ready["message"].as_str().unwrap_or_default();
            Err(Unreached::NotReady(name.to_owned(), why.to_owned()))
        }
        _ => Ok(()),
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
    if STUCK.contains(&reason.as_str()) {
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

/// Returns the Job `job` with a pod of `image` on the Node `node`; `copies` if kpx copies itself into it.
fn manifest(job: &str, node: &str, image: &str, copies: bool) -> Value {
    // Either ends with its standard input.
    let main: &[&str] = if copies { &["cat"] } else { &[OWN, "pod"] };
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
            "ttlSecondsAfterFinished": 0,
            "template": {
                "metadata": {"labels": {(OURS.0): OURS.1, (READER): job}},
                "spec": {
                    "nodeName": node,
                    "hostNetwork": true,
                    "hostPID": true,
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
                        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                        "securityContext": {
                            "runAsUser": 0,
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"], "add": READING},
                        },
                        "volumeMounts": [
                            {"name": "host", "mountPath": ROOT, "mountPropagation": "HostToContainer", "readOnly": true},
                            {"name": "kpx", "mountPath": "/kpx"},
                        ],
                    }],
                    "volumes": [
                        {"name": "host", "hostPath": {"path": "/"}},
                        {"name": "kpx", "emptyDir": {"medium": "Memory"}},
                    ],
                },
            },
        },
    })
}
