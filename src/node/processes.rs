//! Processes of service proxies on the node.

use serde::{Deserialize, Serialize};

use crate::evidence::{Gap, Item};

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
    /// Whether it shares kpx's network namespace; `None` if that could not be seen.
    pub same_network: Option<bool>,
}

/// Reads the JSON that kpx itself writes.
pub fn parse(text: &str) -> Result<Processes, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::Failed(Item::Processes, e.to_string()))
}
