//! The manifest of a bundle: when and by which kpx it was recorded, and why items are missing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{Evidence, Gap, Item, bpf};

/// File name of the manifest in a bundle.
pub const MANIFEST: &str = "manifest.json";

/// Time of a recording whose time is not known.
pub const UNKNOWN_TIME: &str = "unknown";

/// The only version of the manifest format so far.
const FORMAT: u64 = 1;

/// The manifest of a bundle.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of the manifest format.
    format: u64,
    /// Version of kpx that wrote the bundle.
    pub kpx: String,
    /// Time of the recording, RFC 3339 in UTC.
    pub time: String,
    /// Kernel release of the node.
    pub kernel: Option<String>,
    /// Name of the node.
    pub node: Option<String>,
    /// Whether names and addresses are replaced.
    #[serde(default)]
    pub redacted: bool,
    /// Items that were added from the API server after the recording.
    #[serde(
        default,
        deserialize_with = "known_items",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub added: Vec<Item>,
    /// Missing items and the reasons, in the order of the items.
    #[serde(default, deserialize_with = "known")]
    pub gaps: Vec<Recorded>,
}

/// An item that is missing from a bundle.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Recorded {
    /// The missing item.
    pub item: Item,
    /// Reason as text for users.
    pub reason: String,
    /// Reason as a value.
    pub gap: Gap,
}

impl Manifest {
    /// Returns the manifest of `evidence`, recorded at `time` by this kpx.
    pub fn of(evidence: &Evidence, time: String, node: Option<String>) -> Self {
        let kernel = evidence.text(Item::KernelRelease).ok();
        let gaps = evidence.iter().filter_map(|(item, read)| {
            // Items that were not collected are simply absent.
            let gap = match (read, evidence.missing_part(item)) {
                (Ok(_), Some(part)) => Gap::Partial(item, part.to_owned()),
                (Ok(text), None) if item == Item::Bpf => Gap::Partial(item, bpf::unread(text)?),
                (Ok(_), None) | (Err(Gap::NotCollected(_)), _) => return None,
                (Err(gap), _) => gap.clone(),
            };
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
            added: evidence.added(),
            gaps: gaps.collect(),
        }
    }

    /// Returns the manifest of `evidence` without a time.
    pub fn untimed(evidence: &Evidence, node: Option<String>) -> Self {
        Self::of(evidence, UNKNOWN_TIME.to_owned(), node)
    }

    /// Parses a manifest; the error is the reason why it cannot be used.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(FORMAT) => {}
            Some(other) => {
                return Err(format!(
                    "its format is {other}, but this kpx ({}) supports only {FORMAT}: a newer kpx wrote the bundle",
                    env!("CARGO_PKG_VERSION")
                ));
            }
            None => return Err("it has no format version".to_owned()),
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// Returns the recorded reason why `item` is missing.
    pub fn gap(&self, item: Item) -> Option<&Gap> {
        let recorded = self.gaps.iter().find(|recorded| recorded.item == item);
        recorded.map(|recorded| &recorded.gap)
    }
}

/// Reads the items that this kpx knows.
fn known_items<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Item>, D::Error> {
    let all: Vec<String> = Vec::deserialize(deserializer)?;
    Ok(all.iter().filter_map(|file| Item::of_file(file)).collect())
}

/// Reads the gaps of items that this kpx knows; a newer kpx may have recorded others.
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
