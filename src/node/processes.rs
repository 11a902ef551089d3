//! Processes of service proxies on the node, and the files they are started from.

pub use crate::evidence::processes::{Process, Processes, ProxyFile, ProxyFiles};
use crate::evidence::{Gap, Item};

/// Reads the JSON that kpx itself writes.
pub fn parse(text: &str) -> Result<Processes, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::Failed(Item::Processes, e.to_string()))
}

/// Reads the files, as kpx itself writes them.
pub fn files(text: &str) -> Result<ProxyFiles, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::Failed(Item::ProxyFiles, e.to_string()))
}
