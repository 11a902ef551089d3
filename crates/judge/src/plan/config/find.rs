//! Finds kube-proxy's configuration: from its process, or else from the cluster's objects.

use std::path::{Path, PathBuf};

use super::managed::{elsewhere, keeper, provider, sources};
use super::pod::{Source, source};
use super::{ConfigSource, Place, READY, Restart, named};
use kpx_node::action::PROXY_LABEL;
use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::{DaemonSet, Pod};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::processes::{self, Process};

/// Distributions whose own process passes flags to kube-proxy, with the file where kpx adds flags.
const PASSING: &[(&str, &str)] = &[
    ("k3s", "/etc/rancher/k3s/config.yaml.d/99-kpx.yaml"),
    ("rke2", "/etc/rancher/rke2/config.yaml.d/99-kpx.yaml"),
];

/// kube-proxy's arguments file on microk8s.
const MICROK8S: &str = "/var/snap/microk8s/current/args/kube-proxy";

impl ConfigSource {
    /// Returns the configuration source of kube-proxy on node `name`. Processes are used if `node` is that node;
    /// without them, only the cluster's objects are used.
    pub fn find(node: &NodeSnapshot<'_>, name: &str) -> Result<Self, Gap> {
        if let Ok(nodes) = node.nodes()
            && let Some(place) = nodes
                .iter()
                .find(|node| node.metadata.name == name)
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

/// Returns the source according to the node's processes; `None` if kube-proxy runs in a pod or not at all.
fn of_processes(node: &NodeSnapshot<'_>, here: &[&Process]) -> Result<Option<ConfigSource>, Gap> {
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
            ConfigSource::at(Place::Arguments(path), restart).with_text(&text),
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

/// Returns the source of a distribution that passes flags on.
fn passing(
    node: &NodeSnapshot<'_>,
    process: &Process,
    distribution: &str,
    path: &str,
) -> Result<ConfigSource, Gap> {
    if !Flags::passed_on(&process.args).is_empty() {
        let place = elsewhere(
            &format!("the command line of {distribution}"),
            "passes flags to kube-proxy, which override every file",
            &format!(
                "set --kube-proxy-arg=proxy-mode=MODE in the systemd unit of {distribution}, \
                 then run `systemctl daemon-reload` and restart it"
            ),
        );
        return Ok(ConfigSource::at(place, Restart::Pod));
    }
    let files = node.proxy_files()?;
    let path = PathBuf::from(path);
    let there = files.files.iter().find(|file| file.path == path);
    let place = Place::Addition {
        path,
        there: there.is_some(),
    };
    let text = there.map_or("", |file| file.text.as_str());
    Ok(ConfigSource::at(place, Restart::Unit(unit(process)?))
        .with_text(text)
        .noting(format!(
            "{distribution} restarts as a whole, including its kubelet; pods keep running"
        )))
}

/// Returns the source of a kube-proxy that runs as a systemd service; `None` for one in a pod.
fn of_service(node: &NodeSnapshot<'_>, process: &Process) -> Result<Option<ConfigSource>, Gap> {
    let Some(cgroup) = &process.cgroup else {
        return Ok(None);
    };
    if cgroup.contains("kubepods") {
        return Ok(None);
    }
    let Ok(unit) = unit(process) else {
        let place = elsewhere(
            "kube-proxy's command line",
            "belongs to a container that neither a kubelet nor systemd started",
            "recreate the container with --proxy-mode=MODE; with RKE1, set services.kubeproxy.extra_args in cluster.yml \
             and run `rke up`",
        );
        return Ok(Some(ConfigSource::at(place, Restart::Pod)));
    };
    let flags = Flags::parse(process.args.get(1..).unwrap_or_default());
    let Some(path) = flags.value("config") else {
        let place = elsewhere(
            &format!("the command line of {unit}"),
            "sets the mode, and kpx does not edit systemd units",
            &format!("systemctl edit --full {unit} # --proxy-mode=MODE, then restart it"),
        );
        return Ok(Some(ConfigSource::at(place, Restart::Unit(unit))));
    };
    let path = PathBuf::from(path);
    let text = file(node, &path)?;
    let hint =
        "kube-proxy watches this file and exits when it changes: its service must restart it";
    Ok(Some(
        ConfigSource::at(Place::File(path), Restart::Unit(unit))
            .with_text(&text)
            .noting(hint),
    ))
}

/// Returns the systemd unit that `process` belongs to.
fn unit(process: &Process) -> Result<String, Gap> {
    processes::unit(process).map(str::to_owned).ok_or_else(|| {
        let why = format!(
            "{} (pid {}) does not belong to a systemd service",
            process.name, process.pid
        );
        Gap::Failed(Item::Processes, why)
    })
}

/// Returns the text of the node's file `path`.
fn file(node: &NodeSnapshot<'_>, path: &Path) -> Result<String, Gap> {
    let files = &node.proxy_files()?.files;
    let file = files.iter().find(|file| file.path == path);
    file.map(|file| file.text.clone()).ok_or_else(|| {
        let why = format!("kube-proxy's file {} not found", path.display());
        Gap::Absent(Item::ProxyFiles, why)
    })
}

/// Returns the source according to the cluster's objects.
fn of_cluster(node: &NodeSnapshot<'_>, name: &str) -> Result<ConfigSource, Gap> {
    let pods: Vec<Pod> = node
        .pods()?
        .iter()
        .filter(|pod| is_proxy(pod))
        .cloned()
        .collect();
    let here = pods
        .iter()
        .find(|pod| pod.spec.node_name.as_deref() == Some(name));
    if here.is_some_and(Pod::is_static) {
        return of_manifest(node);
    }
    let sets = node.daemon_sets()?;
    let Some(set) = sets.iter().find(|set| set.metadata.name == "kube-proxy") else {
        let why = format!(
            "kube-proxy not found on node {name}: no process, no manifest, and no DaemonSet kube-system/kube-proxy"
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

/// Returns the source of a static pod.
fn of_manifest(node: &NodeSnapshot<'_>) -> Result<ConfigSource, Gap> {
    let files = node.proxy_files()?;
    let manifest = files
        .files
        .iter()
        .find(|file| file.path.starts_with("/etc/kubernetes/manifests"));
    let Some(manifest) = manifest else {
        let why = "kube-proxy is a static pod, but its manifest was not found in /etc/kubernetes/manifests";
        return Err(Gap::Absent(Item::ProxyFiles, why.to_owned()));
    };
    if manifest.text.contains("--config") {
        let place = elsewhere(
            &format!("the --config file in {}", manifest.path.display()),
            "is not supported for static pods",
            "set mode: MODE in that file, then move the manifest out of its folder and back again",
        );
        return Ok(ConfigSource::at(place, Restart::Kubelet));
    }
    Ok(ConfigSource::at(Place::Arguments(manifest.path.clone()), Restart::Kubelet)
        .with_text(&manifest.text)
        .noting("the node's provisioning tool may overwrite the manifest (with kops, also set spec.kubeProxy.proxyMode)"))
}

/// Returns the source of a DaemonSet.
fn of_daemon_set(node: &NodeSnapshot<'_>, set: &DaemonSet) -> Result<ConfigSource, Gap> {
    let what = "DaemonSet kube-system/kube-proxy";
    if let Some(place) = keeper(&set.metadata, what) {
        return Ok(ConfigSource::at(place, Restart::Pod));
    }
    let found = source(&set.spec.template.spec);
    let (name, key) = match found {
        Some(Source::Key { map, key }) => (map, key),
        Some(Source::Flags) => {
            let place = elsewhere(
                what,
                "sets the mode with a flag, so a change would restart kube-proxy on all nodes at once",
                "kubectl -n kube-system edit daemonset kube-proxy # updateStrategy OnDelete first, then --proxy-mode=MODE",
            );
            return Ok(ConfigSource::at(place, Restart::Pod));
        }
        Some(Source::HostFile(path)) => {
            let why = "is a file on each node, read by a DaemonSet";
            let command =
                "set mode: MODE in it on each node, then delete the node's kube-proxy pod";
            return Ok(ConfigSource::at(
                elsewhere(&path, why, command),
                Restart::Pod,
            ));
        }
        Some(Source::Other(what)) => {
            let why = "is not a ConfigMap";
            let command = "set mode: MODE in its source";
            return Ok(ConfigSource::at(
                elsewhere(&what, why, command),
                Restart::Pod,
            ));
        }
        None => {
            let why = format!("{what} has no container that runs kube-proxy");
            return Err(Gap::Absent(Item::DaemonSets, why));
        }
    };
    let Some(map) = named(node.config_maps()?, &name) else {
        let why = format!("{what} reads ConfigMap {name}, which was not found");
        return Err(Gap::Absent(Item::ConfigMaps, why));
    };
    let called = format!("ConfigMap kube-system/{name}");
    if let Some(place) = keeper(&map.metadata, &called) {
        return Ok(ConfigSource::at(place, Restart::Pod));
    }
    if map.immutable {
        let why = "is immutable";
        let command = "create another ConfigMap with mode: MODE and use it in the DaemonSet";
        return Ok(ConfigSource::at(
            elsewhere(&called, why, command),
            Restart::Pod,
        ));
    }
    let Some(text) = map.data.get(&key) else {
        let why = format!("{called} has no key {key}, which {what} reads");
        return Err(Gap::Absent(Item::ConfigMaps, why));
    };
    let mut store = ConfigSource::at(
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
