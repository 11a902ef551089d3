//! Why a node cannot be reached.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cluster::refused_pod;
use kpx_node::apply::StepError;
use kpx_node::evidence::BundleError;

/// Why a node cannot be reached.
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
        "cannot choose an image for the pod: node {0} has no pod with the label k8s-app=kube-proxy, no DaemonSet runs kube-proxy, and \
         the node has no image of it"
    )]
    NoImage(String),
    /// The pod does not start.
    #[error("the pod on node {0} does not start: {1}")]
    Stuck(String, String),
    /// The pod ended before kpx could hold its standard input.
    #[error("the pod on node {0} ended before kpx could use it: {1}")]
    Unheld(String, String),
    /// No controller makes the pod.
    #[error("node {0} cannot be read through a pod: {1}")]
    NoPod(String, String),
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
    /// The kpx in the pod was killed in a step, from 1, of a change.
    #[error("kpx on node {0} was killed in step {1}")]
    Killed(String, usize),
    /// The outcome of a change is unknown.
    #[error("the outcome of the change of node {0} is unknown: {1}")]
    Outcome(String, String),
    /// Its answer is not a bundle.
    #[error("the answer of node {0} is damaged")]
    Damaged(String, #[source] BundleError),
    /// A file of this machine.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] io::Error),
}

impl Unreached {
    /// Returns the advice for it, if there is a special one.
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
            Self::Refused(_, why) => Some(refused_pod(why).to_owned()),
            Self::Killed(name, _) => Some(format!(
                "run the command again to complete the change; `kpx --node {name} diff` shows what is left"
            )),
            Self::Outcome(name, _) => Some(format!(
                "the change continues on the node; `kpx --node {name} diff` shows its result"
            )),
            Self::NoPod(..) => Some(
                "kube-controller-manager makes the pods of Jobs: `kubectl -n kube-system get lease kube-controller-manager -o yaml` shows \
                 whether it runs; or run kpx on the node itself"
                    .to_owned(),
            ),
            Self::Stuck(_, why) if why.contains("Image") => {
                Some("pass --image IMAGE with an image that the node has or can pull".to_owned())
            }
            Self::Stuck(name, _) => Some(format!(
                "if other new pods on {name} do not start either, the node's own connections may fail, those of its kubelet: run kpx on the \
                 node itself"
            )),
            _ => None,
        }
    }
}
