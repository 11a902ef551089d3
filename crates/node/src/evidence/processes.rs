//! Processes of service proxies and the files that start them, as recorded by kpx.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Processes that are or may be a service proxy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Processes {
    /// Processes, sorted by PID.
    pub processes: Vec<Process>,
}

impl Processes {
    /// Iterates over the processes whose names begin with that of kube-proxy.
    pub fn kube_proxies(&self) -> impl Iterator<Item = &Process> {
        let all = self.processes.iter();
        all.filter(|process| process.name.starts_with("kube-proxy"))
    }
}

/// One process.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Process {
    /// Process ID.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Command line.
    pub args: Vec<String>,
    /// State letter of `proc_pid_stat(5)`, such as `T` for a stopped process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Start time, in seconds since the epoch.
    pub started: Option<u64>,
    /// Whether it shares the inspected network namespace; `None` if unknown.
    pub same_network: Option<bool>,
    /// Control group, which identifies the container or service; `None` if unknown.
    pub cgroup: Option<String>,
}

/// Files of the node that configure kube-proxy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ProxyFiles {
    /// Files, sorted by path.
    pub files: Vec<ProxyFile>,
}

/// A file that configures kube-proxy.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProxyFile {
    /// Path relative to the host's root.
    pub path: PathBuf,
    /// Text of the file.
    pub text: String,
}

/// Returns the UIDs of the pods in the path of a control group: the folder of a pod is `podUID`, or `…-podUID.slice` with
/// underscores.
pub fn pods_of(cgroup: &str) -> impl Iterator<Item = String> {
    cgroup.split('/').filter_map(|part| {
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.trim_end_matches(".slice").replace('_', "-");
        is_uid(&uid).then_some(uid)
    })
}

/// Returns whether `text` is the UID of a pod.
pub fn is_uid(text: &str) -> bool {
    // A static pod's UID is a digest without dashes.
    let digits = text.chars().filter(|c| *c != '-');
    text.len() >= 32
        && digits.clone().count() == 32
        && digits.clone().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f4b9c1e-6a0d-4d43-9c83-2a9d7b8f6e11";

    #[test]
    fn a_pod_is_identified_by_its_control_group() {
        let systemd = UID.replace('-', "_");
        for text in [
            format!("/kubepods/burstable/pod{UID}/abc"),
            format!("/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-abc.scope"),
        ] {
            assert_eq!(pods_of(&text).collect::<Vec<_>>(), [UID], "{text}");
        }
        assert_eq!(pods_of("/user.slice/podman-1.scope").next(), None);
    }
}
