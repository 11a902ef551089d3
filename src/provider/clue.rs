//! Evidence of a provider.

use std::path::Path;

use kpx_node::cluster::{Metadata, Node};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::processes::is_here;

/// One piece of evidence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clue {
    /// A label of the Node, with any value.
    Label(&'static str),
    /// An annotation of the Node, with any value.
    Annotation(&'static str),
    /// A part of the kubelet's version.
    Version(&'static str),
    /// The beginning of the Node's osImage.
    OsImage(&'static str),
    /// A label or annotation of a ConfigMap or DaemonSet of kube-system that kpx reads.
    Object(&'static str),
    /// The beginning of the name of a static pod of kube-system on the node.
    StaticPod(&'static str),
    /// A process of the node, by its command name.
    Process(&'static str),
    /// A file of the node that configures kube-proxy.
    File(&'static str),
}

impl Clue {
    /// Returns the evidence on node `name` in words, if it is there; `object` is the Node.
    pub(super) fn seen(
        self,
        node: &NodeSnapshot<'_>,
        object: Option<&Node>,
        name: &str,
    ) -> Option<String> {
        let labels = object.map(|object| &object.metadata.labels);
        let annotations = object.map(|object| &object.metadata.annotations);
        let info = object.map(|object| &object.status.node_info);
        match self {
            Self::Label(key) => labels?
                .contains_key(key)
                .then(|| format!("the Node's label {key}")),
            Self::Annotation(key) => annotations?
                .contains_key(key)
                .then(|| format!("the Node's annotation {key}")),
            Self::Version(part) => {
                let version = &info?.kubelet_version;
                version.contains(part).then(|| format!("kubelet {version}"))
            }
            Self::OsImage(start) => {
                let image = &info?.os_image;
                image.starts_with(start).then(|| format!("osImage {image}"))
            }
            Self::Object(key) => marked(node, key),
            Self::StaticPod(start) => static_pod(node, start, name),
            Self::Process(command) => {
                let processes = &node.processes().ok()?.processes;
                let found = processes
                    .iter()
                    .find(|process| is_here(process) && process.name == command)?;
                Some(format!("process {} (pid {})", found.name, found.pid))
            }
            Self::File(path) => {
                let files = &node.proxy_files().ok()?.files;
                let has = files.iter().any(|file| file.path == Path::new(path));
                has.then(|| format!("file {path}"))
            }
        }
    }
}

/// Returns the object of kube-system with the label or annotation `key`.
fn marked(node: &NodeSnapshot<'_>, key: &str) -> Option<String> {
    let has = |metadata: &Metadata| {
        metadata.labels.contains_key(key) || metadata.annotations.contains_key(key)
    };
    let mut maps = node.config_maps().into_iter().flatten();
    let mut sets = node.daemon_sets().into_iter().flatten();
    let map = maps
        .find(|map| has(&map.metadata))
        .map(|map| format!("ConfigMap {}", map.metadata.name));
    let object = map.or_else(|| {
        sets.find(|set| has(&set.metadata))
            .map(|set| format!("DaemonSet {}", set.metadata.name))
    })?;
    Some(format!("{key} of {object}"))
}

/// Returns the static pod of node `name` whose name begins with `start`.
fn static_pod(node: &NodeSnapshot<'_>, start: &str, name: &str) -> Option<String> {
    let mut pods = node.pods().ok()?.iter();
    let pod = pods.find(|pod| {
        pod.metadata.namespace == "kube-system"
            && pod.spec.node_name.as_deref() == Some(name)
            && pod.metadata.name.starts_with(start)
            && pod.is_static()
    })?;
    Some(format!("static pod {}", pod.metadata.name))
}
