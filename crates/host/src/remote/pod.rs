//! A running pod of kpx, and the copy of kpx in it.

use tokio::time::{Instant, sleep};

use super::{PAUSE, Program, Remote, Unreached};
use crate::cluster::{Ended, Held};
use kpx_node::action::{COPY, Object, Resource, START};
use kpx_node::apply::StepError;

/// Time limit of a read on the node, as a multiple of one item's: rules may take six times as long.
const READ: u32 = 8;

/// The number of reads of a pod, with a pause before each, until its kubelet has reported that its container has ended.
const LOOKS: u32 = 15;

/// A running pod of kpx.
#[derive(Debug)]
pub(super) struct NodePod {
    pub(super) remote: Remote,
    /// Name of the Node.
    pub(super) node: String,
    /// Name of the pod.
    pub(super) name: String,
    pub(super) image: String,
}

impl Remote {
    /// Copies kpx into the pod `pod` of `image` on the Node `name`, whose main process waits for it, and starts it there.
    pub async fn start_copy(&self, name: &str, pod: &str, image: &str) -> Result<(), Unreached> {
        let node = self.live.object(&Object::node(name)).await?;
        let node = node.ok_or_else(|| Unreached::NoNode(name.to_owned()))?;
        let program = self.program(name, &node).await?;
        let pod = NodePod {
            remote: self.clone(),
            node: name.to_owned(),
            name: pod.to_owned(),
            image: image.to_owned(),
        };
        if pod.is_started().await? {
            return Ok(());
        }
        let held = self.hold(&pod.name).await?;
        if let Err(why) = pod.copy(&program).await {
            // Nothing runs in a container that was killed.
            return Err(match why {
                Unreached::Program(_, why) if !self.runs_on(&pod.name).await? => {
                    Unreached::Failed(name.to_owned(), why)
                }
                why => why,
            });
        }
        let started = pod.shell(&format!(": > {START}")).await;
        let started = match started {
            Ok(done) if done.code == Some(0) => Ok(()),
            Ok(done) => Err(Unreached::Failed(name.to_owned(), done.stderr)),
            // The main process may have ended before the answer arrived.
            Err(why @ Unreached::Failed(..)) => match pod.is_started().await {
                Ok(false) => Err(why),
                Ok(true) | Err(_) => Ok(()),
            },
            Err(why) => Err(why),
        };
        drop(held);
        started
    }

    /// Returns whether the pod `name` runs and goes on running.
    pub(super) async fn runs_on(&self, name: &str) -> Result<bool, StepError> {
        let object = Object::of_system(Resource::Pod, name);
        for _ in 0..LOOKS {
            let pod = self.live.object(&object).await?;
            let runs = pod.is_some_and(|pod| {
                pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            if !runs {
                return Ok(false);
            }
            sleep(PAUSE).await;
        }
        Ok(true)
    }

    /// Keeps the standard input of `pod` open.
    pub(super) async fn hold(&self, pod: &str) -> Result<Held, StepError> {
        self.api.cluster.hold(pod, &self.api.options).await
    }
}

impl NodePod {
    /// Copies `program` into the pod and compares its digest.
    pub(super) async fn copy(&self, program: &Program) -> Result<(), Unreached> {
        let failed = |why: String| Unreached::Program(self.image.clone(), why);
        // A server that refuses a command may reset the connection on which it still receives input, and the reason is lost.
        let shell = self.shell("chmod 755 /kpx").await?;
        if shell.code != Some(0) {
            return Err(failed(shell.stderr));
        }
        let copy = format!("cat > {COPY} && chmod 755 {COPY}");
        let copy = ["sh", "-c", &copy].map(str::to_owned);
        let copied = self.run(&copy, Some(&program.bytes)).await?;
        if copied.code.is_some_and(|code| code != 0) {
            return Err(failed(copied.stderr));
        }
        let end = Instant::now() + self.remote.api.options.timeout;
        loop {
            let digest = [COPY, "version", "--digest"].map(str::to_owned);
            let done = self.run(&digest, None).await?;
            let there = String::from_utf8_lossy(&done.stdout);
            if done.code == Some(0) && there.trim() == program.digest {
                return Ok(());
            }
            // Without an exit status, the copy may not be complete; and the kernel may still be closing the file that was written.
            let is_open =
                copied.code.is_none() || done.stderr.to_lowercase().contains("text file busy");
            if !is_open || Instant::now() > end {
                return Err(failed(match done.code {
                    Some(0) => "its copy is damaged".to_owned(),
                    _ => done.stderr,
                }));
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns whether the main process of the pod is started. Fails if the container has ended.
    pub(super) async fn is_started(&self) -> Result<bool, Unreached> {
        let found = self.shell(&format!("[ -e {START} ]")).await?;
        match found.code {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(Unreached::Failed(self.node.clone(), found.stderr)),
        }
    }

    pub(super) async fn shell(&self, script: &str) -> Result<Ended, Unreached> {
        let words = ["sh", "-c", script].map(str::to_owned);
        self.run(&words, None).await
    }

    pub(super) async fn run(
        &self,
        words: &[String],
        input: Option<&[u8]>,
    ) -> Result<Ended, Unreached> {
        let api = &self.remote.api;
        let quiet = api.options.timeout * READ;
        let done = api
            .cluster
            .exec(&self.name, words, input, quiet, &api.options);
        done.await.map_err(|why| match why {
            StepError::Denied(_) => Unreached::Request(why),
            why => Unreached::Failed(self.node.clone(), why.to_string()),
        })
    }
}
