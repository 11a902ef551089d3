//! What kpx writes next to the evidence: when and by what it was taken, and why some of it is missing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{Evidence, Gap, Item};

/// The manifest's file in a bundle.
pub const MANIFEST: &str = "manifest.json";

/// The only format of the manifest there is so far.
const FORMAT: u64 = 1;

/// A bundle's own account of itself.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of this format.
    format: u64,
    /// The version of kpx that wrote the bundle.
    pub kpx: String,
    /// When it was taken, as RFC 3339 in UTC.
    pub time: String,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The node's name.
    pub node: Option<String>,
    /// Whether names and addresses are replaced.
    #[serde(default)]
    pub redacted: bool,
    /// What is missing, each with its reason, in the order of the items.
    #[serde(default, deserialize_with = "known")]
    pub gaps: Vec<Recorded>,
}

/// One thing that is missing from a bundle.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// What is missing.
    pub item: Item,
    /// The reason, for people.
    pub reason: String,
    /// The reason.
    pub gap: Gap,
}

impl Manifest {
    /// Returns the manifest of `evidence`, taken at `time` by this kpx.
    pub fn of(evidence: &Evidence, time: String, node: Option<String>) -> Self {
        let kernel = evidence.text(Item::KernelRelease).ok();
        let gaps = evidence.iter().filter_map(|(item, read)| {
            // That something was not collected is seen by its absence.
            let gap = read
                .err()
                .filter(|gap| !matches!(gap, Gap::NotCollected(_)))?;
            let gap = gap.clone();
            Some(Recorded {
                item,
                reason: gap.to_string(),
                gap,
            })
        });
        Self {
            format: FORMAT,
            kpx: env!("CARGO_PKG_VERSION").to_owned(),
            time,
            kernel: kernel.map(|release| release.trim().to_owned()),
            node,
            redacted: false,
            gaps: gaps.collect(),
        }
    }

    /// Reads a manifest, or says in words why it cannot be used.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(other) => {
                return Err(format!(
                    "its format is {other}, and this kpx ({}) knows {FORMAT}; a newer kpx wrote the bundle",
                    env!("CARGO_PKG_VERSION")
                ));
            }
            None => return Err("it does not say which format it has".to_owned()),
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// Returns why `item` is missing, as recorded.
    pub fn gap(&self, item: Item) -> Option<&Gap> {
        let recorded = self.gaps.iter().find(|recorded| recorded.item == item);
        recorded.map(|recorded| &recorded.gap)
    }
}

/// Reads the gaps of items that this kpx knows; a later kpx may have recorded more.
fn known<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Recorded>, D::Error> {
    let all: Vec<Value> = Vec::deserialize(deserializer)?;
    let known = all.into_iter().filter_map(|value| {
        let item = Item::of_file(value.get("item")?.as_str()?)?;
        let reason = value.get("reason").and_then(Value::as_str);
        let reason = reason.unwrap_or("no reason is recorded").to_owned();
        let gap = value
            .get("gap")
            .and_then(|gap| Gap::deserialize(gap).ok())
            .unwrap_or_else(|| Gap::Failed(item, reason.clone()));
        Some(Recorded { item, reason, gap })
    });
    Ok(known.collect())
}
