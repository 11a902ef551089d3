//! Reaches a node through a pod on it.
//!
//! The pod belongs to a Job. Its main process reads standard input, which kpx holds open: when kpx ends, however it ends,
//! the pod ends, and the controllers of the cluster delete the Job and the pod.

mod change;
mod job;
mod node;
mod pod;
mod query;
mod unreached;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OnceCell};

use super::Options;
use super::cluster::Api;
use crate::LiveCluster;
pub use change::NodeChange;
use job::Purpose;
use kpx_node::action::{COPY, Object};
use kpx_node::cluster::{Pod, version};
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;
pub use node::RemoteNode;
use pod::NodePod;
pub use query::Query;
pub use unreached::Unreached;

/// Mount point of the node's file system in the pod.
const ROOT: &str = "/host";

/// kpx in an image that contains it.
const OWN: &str = "kpx";

/// Pause between two looks at the pod.
const PAUSE: Duration = Duration::from_millis(200);

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
    api: Arc<Api>,
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

impl Remote {
    /// Returns the nodes of the cluster that `options` select.
    pub fn new(options: &Options, pods: PodOptions) -> Self {
        let api = Api::new(options);
        Self {
            live: LiveCluster::of(&api),
            api,
            pods,
            programs: Arc::default(),
            swept: Arc::default(),
        }
    }

    /// Starts a pod on the Node `name` for reading it, with kpx in it.
    pub async fn open(&self, name: &str) -> Result<RemoteNode, Unreached> {
        self.start_pod(name, Purpose::Read).await
    }

    /// Starts a pod on the Node `name` that opens connections like any other pod there, with kpx in it.
    pub async fn open_client(&self, name: &str) -> Result<RemoteNode, Unreached> {
        self.start_pod(name, Purpose::Client).await
    }

    async fn start_pod(&self, name: &str, purpose: Purpose) -> Result<RemoteNode, Unreached> {
        let node = self.live.object(&Object::node(name)).await?;
        let node = node.ok_or_else(|| Unreached::NoNode(name.to_owned()))?;
        ready(name, &node)?;
        let (image, program) = match &self.pods.image {
            Some(image) => (image.clone(), None),
            None => (
                self.image(name, &node).await?,
                Some(self.program(name, &node).await?),
            ),
        };
        self.swept.get_or_init(|| self.sweep()).await;
        let mut limit = job::UNHELD;
        loop {
            let copies = program.is_some();
            let job = self.create(name, &image, copies, purpose, limit).await?;
            let started = self.start(name, &image, &job, program.as_deref()).await;
            let why = match started {
                Ok(node) => return Ok(node),
                Err(why) => why,
            };
            // The first error matters; the Job ends at its deadline.
            self.delete(&job).await.ok();
            // The kubelet of a busy node reports late that a container runs.
            if !matches!(why, Unreached::Unheld(..)) || limit > job::UNHELD {
                return Err(why);
            }
            limit = job::UNHELD_LATER;
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
        let held = match self.hold(&pod).await {
            Ok(held) => held,
            Err(why) if self.runs_on(&pod).await? => return Err(why.into()),
            Err(why) => return Err(Unreached::Unheld(name.to_owned(), why.to_string())),
        };
        let pod = NodePod {
            remote: self.clone(),
            node: name.to_owned(),
            name: pod,
            image: image.to_owned(),
        };
        if let Some(program) = program {
            pod.copy(program).await?;
        }
        Ok(RemoteNode {
            name: name.to_owned(),
            job: job.clone(),
            pod,
            program: if program.is_some() { COPY } else { OWN },
            held: Some(held),
        })
    }

    /// Returns the image of kube-proxy on the Node `name`, whose object is `node`: the image of its pod, of the DaemonSet, or one
    /// that the node has pulled. If its pod waits for an image, it is a pulled one, too.
    async fn image(&self, name: &str, node: &Value) -> Result<String, Unreached> {
        let pods = self.api.cluster.proxy_pods(name, &self.api.options);
        let pods = pods.await?;
        let has_started = |pod: &&Pod| {
            let states = pod.status.container_statuses.iter();
            let mut waits =
                states.filter_map(|status| status.state.waiting.as_ref()?.reason.as_deref());
            !waits.any(|reason| job::NO_IMAGE.contains(&reason))
        };
        let image_of = |pod: &Pod| Some(pod.spec.containers.first()?.image.clone());
        let waiting = pods.iter().find(|pod| !has_started(pod));
        let known = pods.iter().filter(has_started).find_map(image_of);
        let known =
            known.or_else(|| waiting.and_then(|pod| pulled(node).or_else(|| image_of(pod))));
        if let Some(image) = known {
            return Ok(image);
        }
        let evidence = self.live.read(&[Item::DaemonSets], name).await;
        let snapshot = NodeSnapshot::new(&evidence);
        let sets = snapshot.daemon_sets();
        let of_set = sets.ok().and_then(|sets| version::proxy_image(sets));
        of_set
            .map(str::to_owned)
            .or_else(|| pulled(node))
            .ok_or_else(|| Unreached::NoImage(name.to_owned()))
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

/// Refuses a Node on which no pod can run.
fn ready(name: &str, node: &Value) -> Result<(), Unreached> {
    let conditions = node["status"]["conditions"].as_array();
    let mut ready = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition["type"] == "Ready");
    match ready.next() {
        Some(ready) if ready["status"] != "True" => {
            let why = ready["message"].as_str().unwrap_or_default();
            Err(Unreached::NotReady(name.to_owned(), why.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Returns an image of kube-proxy that the Node `node` has pulled.
fn pulled(node: &Value) -> Option<String> {
    let images = node["status"]["images"].as_array()?;
    let names = images.iter().filter_map(|image| image["names"].as_array());
    let names = names.flatten().filter_map(Value::as_str);
    let is_proxy = |name: &&str| {
        let path = name.split(['@', ':']).next().unwrap_or_default();
        path.rsplit('/').next() == Some("kube-proxy") || name.contains("/kube-proxy:")
    };
    let all: Vec<&str> = names.filter(is_proxy).collect();
    // A name with a tag can be pulled again.
    let tagged = all.iter().find(|name| !name.contains('@'));
    tagged.or(all.first()).map(|name| (*name).to_owned())
}
