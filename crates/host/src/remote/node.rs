//! A node with a running pod.

use std::fs;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use super::{NodePod, ROOT, Unreached};
use crate::cluster::Held;
use kpx_node::action::Object;
use kpx_node::apply::StepError;
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::net::Family;

/// A node with a running pod.
#[derive(Debug)]
pub struct RemoteNode {
    /// Name of the Node.
    pub name: String,
    pub(super) job: Object,
    pub(super) pod: NodePod,
    /// kpx in the pod.
    pub(super) program: &'static str,
    pub(super) held: Option<Held>,
}

impl RemoteNode {
    /// Reads `items` of the node's own; items that only the API has are gaps.
    pub async fn read(&self, items: &[Item], families: &[Family]) -> Result<Evidence, Unreached> {
        if items.is_empty() {
            return Ok(Evidence::default());
        }
        let limit = self.pod.remote.api.options.timeout;
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
        words.extend(["snapshot".to_owned(), "--file=-".to_owned()]);
        words.push(format!("--items={}", names.join(",")));
        let done = self.pod.run(&words, None).await?;
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
        let api = &self.pod.remote.api;
        match item {
            Item::ProxyConfig => {
                let config = api.cluster.proxy_config(&self.name, &api.options);
                config.await
            }
            Item::ProxyLog => {
                let log = api.cluster.proxy_log(&self.name, &api.options);
                log.await
            }
            other => Err(Gap::NotCollected(other)),
        }
    }

    /// Starts another pod on the node, like [`super::Remote::open_client`].
    pub async fn client(&self) -> Result<Self, Unreached> {
        self.pod.remote.open_client(&self.name).await
    }

    /// Deletes the pod and its Job.
    pub async fn close(&self) -> Result<(), StepError> {
        self.pod.remote.delete(&self.job).await
    }
}
