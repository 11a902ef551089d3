//! Processes of service proxies and the files that start them.

use crate::cluster::flags::Flags;
pub use crate::evidence::processes::{Process, Processes, ProxyFiles};
use crate::evidence::{Gap, Item};

/// Parses the processes, as recorded by kpx.
pub(crate) fn parse(text: &str) -> Result<Processes, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::of_json(Item::Processes, text, &e))
}

/// Parses the files, as recorded by kpx.
pub(crate) fn files(text: &str) -> Result<ProxyFiles, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::of_json(Item::ProxyFiles, text, &e))
}

/// Programs that are kube-proxy, or contain it. Those of k0s and RKE2 do not: there it is a pod.
const KUBE_PROXY: [&str; 6] = [
    "hyperkube",
    "k3s",
    "k3s-agent",
    "k3s-server",
    "kube-proxy",
    "kubelite",
];

/// Returns whether `process` shares the network namespace of the snapshot, as far as is known.
pub fn is_here(process: &Process) -> bool {
    process.same_network != Some(false)
}

/// Iterates over the processes that are kube-proxy, or contain it, in the network namespace of the snapshot.
pub fn kube_proxies(all: &Processes) -> impl Iterator<Item = &Process> {
    let here = all.processes.iter().filter(|process| is_here(process));
    here.filter(|process| is_kube_proxy(process))
}

/// Returns whether `process` is kube-proxy, or contains it.
pub(crate) fn is_kube_proxy(process: &Process) -> bool {
    is_proxy_name(&process.name) && !Flags::parse(&process.args).is_on("disable-kube-proxy")
}

/// Returns the systemd unit that `process` belongs to.
pub fn unit(process: &Process) -> Option<&str> {
    let cgroup = process.cgroup.as_deref()?;
    let unit = cgroup.rsplit('/').find(|part| part.ends_with(".service"));
    // In a container, the nearest unit is the container runtime's own.
    let is_inside = ["docker", "libpod", "kubepods"]
        .iter()
        .any(|runtime| cgroup.contains(runtime));
    unit.filter(|_| !is_inside)
}

/// Returns whether a process called `name` is kube-proxy, or contains it.
pub fn is_proxy_name(name: &str) -> bool {
    KUBE_PROXY.contains(&name)
}
