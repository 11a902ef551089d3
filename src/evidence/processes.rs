//! Processes of service proxies, as kpx itself writes them down.

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
    /// When it started, in seconds since the epoch.
    pub started: Option<u64>,
    /// Whether it shares the network namespace that was looked at; `None` if that could not be seen.
    pub same_network: Option<bool>,
}
