//! A node with a running pod.

use std::fs;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use tokio::time::{Instant, sleep};

use super::{COPY, PAUSE, Program, ROOT, Remote, Unreached};
use crate::action::Object;
use crate::apply::StepError;
use crate::evidence::{self, Evidence, Gap, Item};
use crate::host::cluster::{Ended, Held};
use crate::net::Family;

/// Time limit of a read on the node, as a multiple of one item's: rules may take six times as long.
const READ: u32 = 8;

/// A node with a running pod.
#[derive(Debug)]
pub struct RemoteNode {
    pub(super) remote: Remote,
    /// Name of the Node.
    pub name: String,
    pub(super) job: Object,
    pub(super) pod: String,
    pub(super) image: String,
    /// kpx in the pod.
    pub(super) program: &'static str,
    pub(super) _held: Held,
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
    pub(super) async fn copy(&self, program: &Program) -> Result<(), Unreached> {
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
