//! Processes of service proxies, and the files they are started from, as kpx itself writes them down.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Processes that are, or may be, a service proxy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Processes {
    /// The processes, sorted by id.
    pub processes: Vec<Process>,
}

/// One process.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The command name.
    pub name: String,
    /// The command line.
    pub args: Vec<String>,
    /// The letter of its state: `T` for a process that was stopped. `proc_pid_stat(5)` has the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// When it started, in seconds since the epoch.
    pub started: Option<u64>,
    /// Whether it shares the network namespace that was looked at; `None` if that could not be seen.
    pub same_network: Option<bool>,
    /// Its control group, which tells the container or the service that it belongs to; `None` if that could not be seen.
    pub cgroup: Option<String>,
}

/// Files of the node that say how kube-proxy is to run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ProxyFiles {
    /// The files, sorted by path.
    pub files: Vec<ProxyFile>,
}

/// One such file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProxyFile {
    /// Where it is, below the host's root.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}
