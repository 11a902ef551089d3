//! A model of a provider's cluster: the place of the mode, what reads it, and a bundle of a node for kpx.

use std::fs;
use std::path::{Path, PathBuf};

use kpx_node::action::{Action, KubeCommand};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::objects::{
    MANIFEST, another_set, flags, has_set, manifest, marks, merge, node, processes, static_pods,
};
use crate::support::root;

/// kube-proxy's manifest of kOps.
const KOPS: &str = "/etc/kubernetes/manifests/kube-proxy.manifest";

/// kube-proxy's arguments file of the snap.
const MICROK8S: &str = "/var/snap/microk8s/current/args/kube-proxy";

/// The variables of a cluster in an inventory of kubespray.
pub(super) const INVENTORY: &str = "inventory/mycluster/group_vars/k8s_cluster/k8s-cluster.yml";

/// A provider's cluster.
pub(super) struct Model {
    dir: TempDir,
    pub(super) id: String,
    /// The mode in which kube-proxy runs.
    pub(super) live: String,
    /// kube-proxy's configuration in the ConfigMap.
    pub(super) config: String,
    /// Annotations of the ConfigMap.
    annotations: Value,
    /// The mode in the provider's own configuration: a spec, a profile, a machine config or an add-on.
    pub(super) spec: String,
    /// The mode in the flags of the DaemonSet.
    pub(super) flag: String,
}

impl Model {
    /// Returns a cluster of provider `id` in mode iptables.
    pub(super) fn new(id: &str) -> Self {
        let config = fs::read_to_string(recording("iptables").join("kube-proxy/config.conf"));
        let mut model = Self {
            dir: tempfile::tempdir().unwrap(),
            id: id.to_owned(),
            live: "iptables".to_owned(),
            config: config.unwrap(),
            annotations: json!({}),
            spec: "iptables".to_owned(),
            flag: "iptables".to_owned(),
        };
        for (path, text) in match id {
            "kops" => vec![(KOPS, MANIFEST)],
            "microk8s" => vec![(
                MICROK8S,
                "--kubeconfig=${SNAP_DATA}/credentials/proxy.config\n",
            )],
            "k3s" => vec![("/etc/rancher/k3s/config.yaml.d/10-a.yaml", "debug: false\n")],
            "rke2" => vec![("/etc/rancher/rke2/config.yaml.d/10-a.yaml", "cni: canal\n")],
            _ => Vec::new(),
        } {
            model.write(Path::new(path), text);
        }
        let inventory = model.work().join(INVENTORY);
        fs::create_dir_all(inventory.parent().unwrap()).unwrap();
        fs::write(
            inventory,
            "kube_network_plugin: calico\nkube_proxy_mode: iptables\n",
        )
        .unwrap();
        model.rebuild();
        model
    }

    /// Returns the bundle of the node.
    pub(super) fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle")
    }

    /// Returns the root of the node's file system.
    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Returns the folder in which an operator types the commands.
    pub(super) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Returns the name and the key of the ConfigMap.
    pub(super) fn map(&self) -> (&'static str, &'static str) {
        match self.id.as_str() {
            "eks" => ("kube-proxy-config", "config"),
            _ => ("kube-proxy", "config.conf"),
        }
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root().join(path.strip_prefix("/").unwrap())
    }

    pub(super) fn write(&self, path: &Path, text: &str) {
        let path = self.inside(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.inside(Path::new(path))).ok()
    }

    /// Returns the mode in which kube-proxy would start now.
    pub(super) fn configured(&self) -> String {
        let last = |text: &str| {
            let flag = text.rsplit_once("proxy-mode=")?.1;
            let end = flag.find(|letter: char| !letter.is_ascii_alphanumeric());
            Some(flag[..end.unwrap_or(flag.len())].to_owned())
        };
        let of_file = |path: &str| self.read(path).as_deref().and_then(last);
        let found = match self.id.as_str() {
            "kops" => of_file(KOPS),
            "microk8s" => of_file(MICROK8S),
            "k3s" | "rke2" => self
                .drop_ins()
                .iter()
                .filter_map(|text| last(text))
                .next_back(),
            "talos" => Some(self.flag.clone()),
            "aks" | "gke" | "openshift" => Some(self.spec.clone()),
            _ => {
                let line = self
                    .config
                    .lines()
                    .find_map(|line| line.strip_prefix("mode:"));
                line.map(|mode| mode.trim().trim_matches('"').to_owned())
            }
        };
        found.unwrap_or_else(|| "iptables".to_owned())
    }

    /// Returns the texts of k3s's or RKE2's files, in the order in which they are read.
    fn drop_ins(&self) -> Vec<String> {
        let folder = self.inside(Path::new(&format!(
            "/etc/rancher/{}/config.yaml.d",
            self.id
        )));
        let mut paths: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        paths
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    }

    /// Returns the mode in the source from which the provider writes the configuration again, if it has one.
    pub(super) fn source(&self) -> Option<String> {
        match self.id.as_str() {
            "kops" | "talos" | "aks" => Some(self.spec.clone()),
            "kubespray" => {
                let text = fs::read_to_string(self.work().join(INVENTORY)).unwrap();
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("kube_proxy_mode: "));
                line.map(str::to_owned)
            }
            _ => None,
        }
    }

    /// Sets the mode in the ConfigMap.
    pub(super) fn set_map(&mut self, mode: &str) {
        let old = format!("mode: \"{}\"", self.configured());
        assert!(self.config.contains(&old), "{}", self.config);
        self.config = self.config.replace(&old, &format!("mode: \"{mode}\""));
        self.rebuild();
    }

    /// Restarts kube-proxy.
    pub(super) fn restart(&mut self) {
        self.live = self.configured();
        self.rebuild();
    }

    /// Replaces the node by a new one.
    pub(super) fn replace(&mut self) {
        self.write(Path::new(KOPS), &manifest(&self.spec));
        self.restart();
    }

    /// Carries out a step of a plan.
    pub(super) fn carry_out(&mut self, action: &Action) {
        match action {
            Action::WriteFile { path, text } => {
                self.write(path, text);
                // The kubelet restarts a static pod.
                if self.id == "kops" {
                    self.restart();
                }
            }
            Action::RemoveFile { path } => fs::remove_file(self.inside(path)).unwrap(),
            Action::RestartUnit { .. }
            | Action::Kube {
                command: KubeCommand::Delete { .. },
            } => self.restart(),
            Action::Kube {
                command: KubeCommand::Set { fields, .. },
            } => {
                let (_, key) = self.map();
                let mut map = json!({"data": {(key): self.config}, "metadata": {"annotations": self.annotations}});
                for field in fields {
                    assert_eq!(field.of(&map), field.from.as_ref());
                    let patch = field.path.iter().rev().fold(
                        field.to.clone().unwrap_or_default(),
                        |value, name| json!({(name.as_str()): value}),
                    );
                    merge(&mut map, &patch);
                }
                map["data"][key]
                    .as_str()
                    .unwrap()
                    .clone_into(&mut self.config);
                self.annotations = map["metadata"]["annotations"].clone();
            }
            Action::Kube {
                command: KubeCommand::AwaitProxy { .. },
            } => {}
            other => panic!("{other}"),
        }
        self.rebuild();
    }

    /// Changes the Nodes in the bundle.
    pub(super) fn edit_nodes(&mut self, change: impl Fn(&mut Value)) {
        self.edit("nodes.json", |items| items.iter_mut().for_each(&change));
    }

    fn edit(&self, file: &str, change: impl FnOnce(&mut Vec<Value>)) {
        let path = self.bundle().join("cluster").join(file);
        let mut list: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(list["items"].as_array_mut().unwrap());
        fs::write(path, list.to_string()).unwrap();
    }

    /// Writes the bundle: the recorded node in the live mode, with the evidence of the provider.
    fn rebuild(&mut self) {
        let (bundle, id) = (self.bundle(), self.id.clone());
        if bundle.exists() {
            fs::remove_dir_all(&bundle).unwrap();
        }
        for part in ["node", "cluster", "kube-proxy"] {
            fs::create_dir_all(bundle.join(part)).unwrap();
            for file in fs::read_dir(recording(&self.live).join(part)).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), bundle.join(part).join(file.file_name())).unwrap();
            }
        }
        self.edit_nodes(|object| merge(object, &node(&id)));
        let (name, key) = self.map();
        self.edit("configmaps.json", |items| {
            items.truncate(usize::from(has_set(&id) && id != "talos"));
            for map in items {
                let others = &map["data"]["kubeconfig.conf"];
                map["data"] = json!({(key): self.config, "kubeconfig.conf": others});
                map["metadata"]["name"] = json!(name);
                map["metadata"]["annotations"] = self.annotations.clone();
                merge(map, &marks(&id));
            }
        });
        self.edit("daemonsets.json", |items| {
            items.truncate(usize::from(has_set(&id)));
            for set in &mut *items {
                merge(set, &marks(&id));
                let spec = &mut set["spec"]["template"]["spec"];
                match id.as_str() {
                    "talos" => spec["containers"][0]["command"] = flags(&self.flag),
                    "eks" => {
                        let container = &mut spec["containers"][0];
                        container["command"] = json!([
                            "kube-proxy",
                            "--v=2",
                            "--config=/var/lib/kube-proxy-config/config"
                        ]);
                        container["volumeMounts"] =
                            json!([{"name": "config", "mountPath": "/var/lib/kube-proxy-config/"}]);
                        spec["volumes"] = json!([{"name": "config", "configMap": {"name": name}}]);
                    }
                    _ => {}
                }
            }
            items.extend(another_set(&id));
        });
        self.edit("pods.json", |items| {
            if !has_set(&id) {
                items.clear();
            }
            items.extend(static_pods(&id));
        });
        self.write_node_files();
    }

    /// Writes the files of the bundle about processes and files of the node.
    fn write_node_files(&self) {
        let bundle = self.bundle();
        if let Some(processes) = processes(&self.id) {
            fs::write(bundle.join("node/processes.json"), processes.to_string()).unwrap();
        }
        let paths = [
            KOPS.to_owned(),
            MICROK8S.to_owned(),
            "/etc/rancher/k3s/config.yaml.d/99-kpx.yaml".to_owned(),
            "/etc/rancher/rke2/config.yaml.d/99-kpx.yaml".to_owned(),
        ];
        let files = paths.iter().filter_map(|path| {
            let text = self.read(path)?;
            Some(json!({"path": path, "text": text}))
        });
        let files = json!({"files": files.collect::<Vec<_>>()});
        fs::write(bundle.join("node/proxy-files.json"), files.to_string()).unwrap();
        if self.id == "openshift" {
            fs::remove_dir_all(bundle.join("kube-proxy")).unwrap();
        }
    }
}

/// Returns the recorded node in `mode`.
fn recording(mode: &str) -> PathBuf {
    root().join(format!("testdata/nodes/seed-{mode}"))
}
