//! Reads the files of the node that configure kube-proxy.
//!
//! Files of distributions that also contain credentials are not read; `plan::config` describes how these are changed.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::context::Context;
use super::super::{files, root_path};
use super::{Running, process};
use kpx_node::evidence::processes::{ProxyFile, ProxyFiles};
use kpx_node::evidence::{Gap, Item};

/// Possible paths of static pods, arguments files, and kpx's additions to a distribution's configuration.
const FILES: &[&str] = &[
    "/etc/kubernetes/manifests/kube-proxy.json",
    "/etc/kubernetes/manifests/kube-proxy.manifest",
    "/etc/kubernetes/manifests/kube-proxy.yaml",
    "/etc/kubernetes/manifests/kube-proxy.yml",
    "/etc/rancher/k3s/config.yaml.d/99-kpx.yaml",
    "/etc/rancher/rke2/config.yaml.d/99-kpx.yaml",
    "/var/snap/microk8s/current/args/kube-proxy",
];

/// Reads all of them; missing files are skipped.
pub(super) fn read(context: &Context, running: &Running) -> Result<String, Gap> {
    let item = Item::ProxyFiles;
    let root = &context.options.root;
    let own = running.table.here.as_ref().and_then(own_file);
    let mut paths: Vec<PathBuf> = FILES.iter().map(PathBuf::from).chain(own).collect();
    paths.sort();
    paths.dedup();
    let mut all = ProxyFiles::default();
    for path in paths {
        let found = root_path::resolve(root, &path).unwrap_or_else(|_| root.join(&path));
        match files::text(item, &found) {
            Ok(text) => all.files.push(ProxyFile { path, text }),
            Err(Gap::Absent(..)) => {}
            Err(gap) => return Err(gap),
        }
    }
    serde_json::to_string_pretty(&all)
        .map(|text| text + "\n")
        .map_err(|e| Gap::Failed(item, e.to_string()))
}

/// Returns the `--config` file of a kube-proxy whose root is the host's.
fn own_file(process: &process::Process) -> Option<PathBuf> {
    let path = Path::new(process.flags.value("config")?);
    let same = fs::read_link(process.folder.join("ns/mnt")).ok()?
        == fs::read_link(process.folder.with_file_name("1").join("ns/mnt")).ok()?;
    (path.is_absolute() && same).then(|| path.to_owned())
}
