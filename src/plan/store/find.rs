//! Finding the store: from the process that runs, else from what the API server has of the node.

use std::path::{Path, PathBuf};

use super::managed::{elsewhere, keeper, provider, sources};
use super::pod::{Source, source};
use super::{Place, READY, Restart, Store, named};
use crate::action::PROXY_LABEL;
use crate::cluster::flags::Flags;
use crate::cluster::{DaemonSet, Pod};
use crate::evidence::{Gap, Item};
use crate::node::NodeSnapshot;
use crate::node::processes::Process;

/// What the kubelet marks the pod of a manifest with.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Distributions whose own process passes flags on to kube-proxy, with the file that adds to them.
const PASSING: &[(&str, &str)] = &[
    ("k3s", "/etc/rancher/k3s/config.yaml.d/99-kpx.yaml"),
    ("rke2", "/etc/rancher/rke2/config.yaml.d/99-kpx.yaml"),
];

/// Where microk8s has the arguments of its kube-proxy.
const MICROK8S: &str = "/var/snap/microk8s/current/args/kube-proxy";

impl Store {
    /// Returns the store of the kube-proxy on the node called `name`. What runs there is looked at where `node` is that
    /// node; without its processes, the API server alone is asked.
    pub fn find(node: &NodeSnapshot<'_>, name: &str) -> Result<Self, Gap> {
        if let Ok(nodes) = node.nodes()
            && let Some(place) = nodes
                .iter()
                .find(|of| of.metadata.name == name)
                .and_then(provider)
        {
            return Ok(Self::at(place, Restart::Pod));
        }
        match node.processes() {
            Ok(all) => {
                let here = all.processes.iter();
                let here: Vec<_> = here.filter(|p| p.same_network != Some(false)).collect();
                match of_processes(node, &here)? {
                    Some(store) => Ok(store),
                    None => of_cluster(node, name),
                }
            }
            Err(_) => of_cluster(node, name),
        }
    }

    fn at(place: Place, restart: Restart) -> Self {
        Self {
            place,
            text: String::new(),
            restart,
            pods: Vec::new(),
            notes: Vec::new(),
            ready: READY,
        }
    }

    fn with_text(mut self, text: &str) -> Self {
        text.clone_into(&mut self.text);
        self
    }

    fn noting(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

/// Returns the store of what runs on this node; `None` where it runs in a pod, or not at all.
fn of_processes(node: &NodeSnapshot<'_>, here: &[&Process]) -> Result<Option<Store>, Gap> {
    let program = |names: &[&str]| {
        let is = |p: &&&Process| names.contains(&p.name.as_str()) || names.contains(&base(p));
        here.iter().find(is).copied()
    };
    for (distribution, path) in PASSING {
        let names = [
            *distribution,
            &format!("{distribution}-server"),
            &format!("{distribution}-agent"),
        ];
        if let Some(process) = program(&names) {
            return passing(node, process, distribution, path).map(Some);
        }
    }
    if let Some(process) = program(&["kubelite"]) {
        let path = PathBuf::from(MICROK8S);
        let text = file(node, &path)?;
        let restart = Restart::Unit(unit(process)?);
        return Ok(Some(
            Store::at(Place::Arguments(path), restart).with_text(&text),
        ));
    }
    match program(&["kube-proxy", "hyperkube"]) {
        Some(process) => of_service(node, process),
        None => Ok(None),
    }
}

fn base(process: &Process) -> &str {
    let first = process.args.first().map_or("", String::as_str);
    let first = first.split(' ').next().unwrap_or_default();
    first.rsplit('/').next().unwrap_or_default()
}

/// Returns the store of a distribution that passes flags on.
fn passing(
    node: &NodeSnapshot<'_>,
    process: &Process,
    distribution: &str,
    path: &str,
) -> Result<Store, Gap> {
    if !Flags::passed_on(&process.args).is_empty() {
        let place = elsewhere(
            &format!("the command line of {distribution}"),
            "passes flags on to kube-proxy, and those win over every file",
            &format!(
                "put --kube-proxy-arg=proxy-mode=MODE in the place of the one that the unit of {distribution} has, \
                 then `systemctl daemon-reload` and restart it"
            ),
        );
        return Ok(Store::at(place, Restart::Pod));
    }
    let files = node.proxy_files()?;
    let path = PathBuf::from(path);
    let there = files.files.iter().find(|file| file.path == path);
    let place = Place::Addition {
        path,
        there: there.is_some(),
    };
    let text = there.map_or("", |file| file.text.as_str());
    Ok(Store::at(place, Restart::Unit(unit(process)?))
        .with_text(text)
        .noting(format!(
            "{distribution} is restarted as a whole: its kubelet goes with it, and the pods stay"
        )))
}

/// Returns the store of a kube-proxy that runs as a service of the host; `None` for one in a pod.
fn of_service(node: &NodeSnapshot<'_>, process: &Process) -> Result<Option<Store>, Gap> {
    let Some(cgroup) = &process.cgroup else {
        return Ok(None);
    };
    if cgroup.contains("kubepods") {
        return Ok(None);
    }
    let Ok(unit) = unit(process) else {
        let place = elsewhere(
            "kube-proxy's command line",
            "is that of a container which no kubelet and no service started",
            "start that container again with --proxy-mode=MODE; with RKE1: services.kubeproxy.extra_args in cluster.yml, \
             then `rke up`",
        );
        return Ok(Some(Store::at(place, Restart::Pod)));
    };
    let flags = Flags::parse(process.args.get(1..).unwrap_or_default());
    let Some(path) = flags.value("config") else {
        let place = elsewhere(
            &format!("the command line of {unit}"),
            "sets the mode, and a unit is edited by hand",
            &format!("systemctl edit --full {unit} # --proxy-mode=MODE, then restart it"),
        );
        return Ok(Some(Store::at(place, Restart::Unit(unit))));
    };
    let path = PathBuf::from(path);
    let text = file(node, &path)?;
    let hint = "kube-proxy watches this file, and ends as soon as it is written: its service must start it again";
    Ok(Some(
        Store::at(Place::File(path), Restart::Unit(unit))
            .with_text(&text)
            .noting(hint),
    ))
}

/// Returns the service of the host that `process` belongs to.
fn unit(process: &Process) -> Result<String, Gap> {
    let cgroup = process.cgroup.as_deref().unwrap_or_default();
    let mut parts = cgroup.rsplit('/');
    let unit = parts.find(|part| part.ends_with(".service"));
    // Of what a container runtime runs, its own service is the nearest.
    let unit = unit.filter(|_| !cgroup.contains("docker") && !cgroup.contains("libpod"));
    unit.map(str::to_owned).ok_or_else(|| {
        let why = format!(
            "{} (pid {}) belongs to no service",
            process.name, process.pid
        );
        Gap::Failed(Item::Processes, why)
    })
}

/// Returns the text of the node's file at `path`.
fn file(node: &NodeSnapshot<'_>, path: &Path) -> Result<String, Gap> {
    let files = &node.proxy_files()?.files;
    let file = files.iter().find(|file| file.path == path);
    file.map(|file| file.text.clone()).ok_or_else(|| {
        let why = format!("kube-proxy's file {} was not found", path.display());
        Gap::Absent(Item::ProxyFiles, why)
    })
}

/// Returns the store by what the API server has of the node.
fn of_cluster(node: &NodeSnapshot<'_>, name: &str) -> Result<Store, Gap> {
    let pods: Vec<Pod> = node
        .pods()?
        .iter()
        .filter(|pod| is_proxy(pod))
        .cloned()
        .collect();
    let here = pods
        .iter()
        .find(|pod| pod.spec.node_name.as_deref() == Some(name));
    if here.is_some_and(|pod| pod.metadata.annotations.contains_key(MIRROR)) {
        return of_manifest(node);
    }
    let sets = node.daemon_sets()?;
    let Some(set) = sets.iter().find(|set| set.metadata.name == "kube-proxy") else {
        let why = format!(
            "no kube-proxy was found for node {name}: no process, no manifest, and no DaemonSet kube-system/kube-proxy"
        );
        return Err(Gap::Absent(Item::DaemonSets, why));
    };
    let mut store = of_daemon_set(node, set)?;
    store.pods = pods;
    Ok(store)
}

fn is_proxy(pod: &Pod) -> bool {
    let labels = &pod.metadata.labels;
    let has = |name, value| {
        labels
            .get(name)
            .is_some_and(|label: &String| label == value)
    };
    pod.metadata.namespace == "kube-system"
        && (has(PROXY_LABEL.0, PROXY_LABEL.1) || has("component", "kube-proxy"))
}

/// Returns the store of a static pod.
fn of_manifest(node: &NodeSnapshot<'_>) -> Result<Store, Gap> {
    let files = node.proxy_files()?;
    let manifest = files
        .files
        .iter()
        .find(|file| file.path.starts_with("/etc/kubernetes/manifests"));
    let Some(manifest) = manifest else {
        let why = "kube-proxy is a static pod, and its manifest is none that kpx knows";
        return Err(Gap::Absent(Item::ProxyFiles, why.to_owned()));
    };
    if manifest.text.contains("--config") {
        let place = elsewhere(
            &format!(
                "the file that {} names with --config",
                manifest.path.display()
            ),
            "is not followed from a manifest",
            "set mode: MODE in that file, then move the manifest out of its folder and back",
        );
        return Ok(Store::at(place, Restart::Kubelet));
    }
    Ok(Store::at(Place::Arguments(manifest.path.clone()), Restart::Kubelet)
        .with_text(&manifest.text)
        .noting("what made this node writes the manifest again when it makes the node again (with kops: spec.kubeProxy.proxyMode)"))
}

/// Returns the store of a DaemonSet.
fn of_daemon_set(node: &NodeSnapshot<'_>, set: &DaemonSet) -> Result<Store, Gap> {
    let what = "DaemonSet kube-system/kube-proxy";
    if let Some(place) = keeper(&set.metadata, what) {
        return Ok(Store::at(place, Restart::Pod));
    }
    let found = source(&set.spec.template.spec);
    let (name, key) = match found {
        Some(Source::Key { map, key }) => (map, key),
        Some(Source::Flags) => {
            let place = elsewhere(
                what,
                "sets the mode by a flag, so a change would restart kube-proxy on all nodes at once",
                "kubectl -n kube-system edit daemonset kube-proxy # updateStrategy OnDelete first, then --proxy-mode=MODE",
            );
            return Ok(Store::at(place, Restart::Pod));
        }
        Some(Source::HostFile(path)) => {
            let why = "is a file of each node, read by a DaemonSet";
            let command =
                "set mode: MODE in it on each node, then delete the node's kube-proxy pod";
            return Ok(Store::at(elsewhere(&path, why, command), Restart::Pod));
        }
        Some(Source::Other(what)) => {
            let why = "is no ConfigMap";
            let command = "set mode: MODE where it comes from";
            return Ok(Store::at(elsewhere(&what, why, command), Restart::Pod));
        }
        None => {
            let why = format!("{what} has no container that runs kube-proxy");
            return Err(Gap::Absent(Item::DaemonSets, why));
        }
    };
    let Some(map) = named(node.config_maps()?, &name) else {
        let why = format!(
            "{what} reads ConfigMap {name}, which was not found, or is none that kpx reads"
        );
        return Err(Gap::Absent(Item::ConfigMaps, why));
    };
    let called = format!("ConfigMap kube-system/{name}");
    if let Some(place) = keeper(&map.metadata, &called) {
        return Ok(Store::at(place, Restart::Pod));
    }
    if map.immutable {
        let why = "is immutable";
        let command = "make another ConfigMap with mode: MODE, and let the DaemonSet read that one";
        return Ok(Store::at(elsewhere(&called, why, command), Restart::Pod));
    }
    let Some(text) = map.data.get(&key) else {
        let why = format!("{called} has no key {key}, which {what} reads");
        return Err(Gap::Absent(Item::ConfigMaps, why));
    };
    let mut store = Store::at(
        Place::ConfigMap {
            name,
            key,
            annotations: map.metadata.annotations.clone(),
        },
        Restart::Pod,
    )
    .with_text(text);
    store.notes = sources(&map.metadata, &called);
    Ok(store)
}
