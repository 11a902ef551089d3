//! A ConfigMap.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::metadata::{Metadata, null_is_default};

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Name and version.
    pub metadata: Metadata,
    /// File contents by name.
    #[serde(deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, String>,
    /// Whether the ConfigMap can no longer be changed.
    #[serde(deserialize_with = "null_is_default")]
    pub immutable: bool,
}
