//! Processes of service proxies and the files that start them, as recorded by kpx.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Processes that are or may be a service proxy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Processes {
    /// Processes, sorted by PID.
    pub processes: Vec<Process>,
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
