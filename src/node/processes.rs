//! Processes of service proxies on the node.

pub use crate::evidence::processes::{Process, Processes};
use crate::evidence::{Gap, Item};

/// Reads the JSON that kpx itself writes.
pub fn parse(text: &str) -> Result<Processes, Gap> {
    serde_json::from_str(text).map_err(|e| Gap::Failed(Item::Processes, e.to_string()))
}
