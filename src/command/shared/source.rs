//! The source of the evidence of a node and of its cluster.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cli::global::GlobalArgs;
use kpx_host::{Connection, RemoteNode};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::foreign::Foreign;

/// The source of the evidence of a node and of its cluster.
#[derive(Clone, Debug)]
pub(in crate::command) struct Source {
    pub(super) node: NodeSource,
    /// The paths that `--from` joins.
    pub(super) joined: Vec<PathBuf>,
    /// Their content, if they are no bundle of kpx.
    foreign: Option<Arc<Foreign>>,
    /// The bundle that the cluster is read from.
    cluster: Option<PathBuf>,
    /// Objects of the cluster that were read for several nodes.
    shared: Evidence,
    /// Whether the command line names the bundle; otherwise the environment does, for the next command as well.
    names_bundle: bool,
    /// Whether the command line selects a cluster, whose objects complete the bundle.
    completes: bool,
    /// Evidence that was read before the command.
    ahead: Arc<Mutex<Option<Ahead>>>,
}

/// The source of the evidence of a node.
#[derive(Clone, Debug)]
pub(super) enum NodeSource {
    /// This machine.
    Machine,
    /// The bundle at this path.
    Bundle(PathBuf),
    /// Another machine, through a pod on it.
    Pod(Arc<RemoteNode>),
    /// Memory: what was read of `origin` in advance.
    Memory {
        evidence: Box<Evidence>,
        origin: Box<Self>,
    },
}

/// Returns the option or variable that names the bundle, and how to read the machine instead; `is_typed` if the command line names it.
pub(super) const fn option_of_bundle(is_typed: bool) -> (&'static str, &'static str) {
    if is_typed {
        ("--from", "omit one of them")
    } else {
        ("KPX_FROM", "set KPX_FROM= to use the machine")
    }
}

/// Nodes that were read before the command, and the connection that they were read with.
type Ahead = (Connection, Result<String, Gap>);

impl Source {
    /// Returns the source that `global` names, the options of the command line `words`.
    pub(super) fn new(global: &GlobalArgs, words: &[OsString]) -> Self {
        Self {
            node: match global.from.first() {
                Some(path) => NodeSource::Bundle(path.clone()),
                None => NodeSource::Machine,
            },
            joined: global.from.clone(),
            foreign: None,
            cluster: global.cluster_from.clone(),
            shared: Evidence::default(),
            names_bundle: has_option(words, &["--from"]),
            completes: !global.no_api && selects_cluster(words),
            ahead: Arc::default(),
        }
    }

    /// Returns the same source, but for the node.
    fn with(&self, node: NodeSource) -> Self {
        Self {
            node,
            ..self.clone()
        }
    }

    /// Returns the source that reads the bundle at `path`.
    pub(super) fn in_bundle(&self, path: &Path) -> Self {
        self.with(NodeSource::Bundle(path.to_owned()))
    }

    /// Returns the source that has read `foreign`, and uses its node `node`.
    pub(super) fn of_foreign(&self, foreign: Arc<Foreign>, node: Evidence) -> Self {
        Self {
            foreign: Some(foreign),
            ..self.in_memory(node)
        }
    }

    /// Returns the paths that `--from` joins.
    pub(in crate::command) fn paths(&self) -> &[PathBuf] {
        &self.joined
    }

    /// Returns the paths from which the node is read.
    pub(super) fn paths_to_read(&self) -> Vec<&Path> {
        match (self.bundle(), self.joined.as_slice()) {
            (Some(_), several @ [_, _, ..]) => several.iter().map(PathBuf::as_path).collect(),
            (bundle, _) => bundle.into_iter().collect(),
        }
    }

    /// Returns the nodes of input that is no bundle of kpx.
    pub(super) fn foreign(&self) -> Option<&Arc<Foreign>> {
        self.foreign.as_ref()
    }

    /// Returns whether pasted texts are read.
    pub(in crate::command) fn is_text(&self) -> bool {
        self.foreign
            .as_ref()
            .is_some_and(|foreign| foreign.is_text())
    }

    /// Returns the source that reads another machine through `pod`.
    pub(super) fn through(&self, pod: RemoteNode) -> Self {
        self.with(NodeSource::Pod(Arc::new(pod)))
    }

    /// Returns the source that has read the node already.
    pub(super) fn in_memory(&self, evidence: Evidence) -> Self {
        self.with(NodeSource::Memory {
            evidence: Box::new(evidence),
            origin: Box::new(self.origin().clone()),
        })
    }

    /// Returns the source that has the objects of `cluster` already.
    pub(super) fn sharing(&self, cluster: Evidence) -> Self {
        Self {
            shared: cluster,
            ..self.clone()
        }
    }

    /// Returns where the node is read, or was.
    const fn origin(&self) -> &NodeSource {
        match &self.node {
            NodeSource::Memory { origin, .. } => origin,
            node => node,
        }
    }

    /// Returns the path of the bundle that is read, if one is.
    pub(in crate::command) fn bundle(&self) -> Option<&Path> {
        match self.origin() {
            NodeSource::Bundle(path) => Some(path),
            _ => None,
        }
    }

    /// Returns whether a bundle is read, and no machine.
    pub(in crate::command) const fn is_bundle(&self) -> bool {
        matches!(self.origin(), NodeSource::Bundle(_))
    }

    /// Returns whether this machine is read: neither a bundle nor another machine.
    pub(in crate::command) const fn is_this_machine(&self) -> bool {
        matches!(self.origin(), NodeSource::Machine)
    }

    /// Returns whether the node is another machine, read through a pod.
    pub(in crate::command) const fn is_pod(&self) -> bool {
        matches!(self.origin(), NodeSource::Pod(_))
    }

    /// Returns what was read of the node in advance, if it was.
    pub(in crate::command) const fn evidence(&self) -> Option<&Evidence> {
        match &self.node {
            NodeSource::Memory { evidence, .. } => Some(evidence),
            _ => None,
        }
    }

    /// Returns whether the node was read in advance.
    pub(in crate::command) const fn is_in_memory(&self) -> bool {
        matches!(self.node, NodeSource::Memory { .. })
    }

    /// Returns the other machine that is read through a pod, if one is.
    pub(super) fn pod(&self) -> Option<&RemoteNode> {
        match self.origin() {
            NodeSource::Pod(node) => Some(node),
            _ => None,
        }
    }

    /// Returns the path of the bundle that the cluster is read from in place of the API, if there is one.
    pub(in crate::command) fn cluster_bundle(&self) -> Option<&Path> {
        self.cluster.as_deref()
    }

    /// Returns whether the next command needs the option that names the bundle.
    pub(super) const fn names_bundle(&self) -> bool {
        self.names_bundle
    }

    /// Returns the option or variable that names the bundle, and how to read the machine instead.
    pub(super) const fn option_of_bundle(&self) -> (&'static str, &'static str) {
        option_of_bundle(self.names_bundle)
    }

    /// Returns whether objects of the cluster that the bundle lacks come from the API.
    pub(super) const fn is_completed(&self) -> bool {
        self.is_bundle() && self.completes
    }

    /// Returns those of `items` that were read for several nodes.
    pub(super) fn shared(&self, items: &[Item]) -> Evidence {
        self.shared.only(items)
    }

    /// Keeps `nodes`, which were read over `api`, for the command.
    pub(super) fn keep_ahead(&self, api: Connection, nodes: Result<String, Gap>) {
        *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some((api, nodes));
    }

    /// Returns the connection that was opened before the command, and the Nodes if `items` has them.
    pub(super) fn take_ahead(&self, items: &[Item]) -> (Connection, Option<Result<String, Gap>>) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if items.contains(&Item::Nodes) {
            let (api, nodes) = ahead.take().unzip();
            return (api.unwrap_or_default(), nodes);
        }
        let api = ahead.as_ref().map(|(api, _)| api.clone());
        (api.unwrap_or_default(), None)
    }
}

/// Returns whether the command line `words` selects a cluster. Variables of the environment do not count: a bundle alone is
/// read without the API server.
fn selects_cluster(words: &[OsString]) -> bool {
    has_option(words, &["--kubeconfig", "--context", "--cluster", "--user"])
}

/// Returns whether `words` have one of `options`.
pub(super) fn has_option(words: &[OsString], options: &[&str]) -> bool {
    words.iter().any(|word| {
        let word = word.to_string_lossy();
        let name = word.split('=').next().unwrap_or_default();
        options.contains(&name)
    })
}
