//! The fields of a configuration, and why one cannot be edited.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::cluster::config::Mode;

/// The fields to set.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fields {
    /// `mode`.
    pub mode: Mode,
    /// `ipvs.scheduler`; `None` leaves it unchanged.
    pub scheduler: Option<String>,
    /// `ipvs.strictARP`; `None` leaves it unchanged.
    pub strict_arp: Option<bool>,
}

/// Why a configuration was not edited.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum EditError {
    /// The text is not valid YAML.
    #[error("the configuration is not valid YAML: {0}")]
    Unreadable(String),
    /// The text is not a `KubeProxyConfiguration`.
    #[error("the configuration is not a KubeProxyConfiguration: {0}")]
    Foreign(String),
    /// Setting a field would change another part of the text.
    #[error("cannot set {0} without changing other parts of the text; set it by hand")]
    Unsafe(&'static str),
}

impl Fields {
    /// Returns the path and value of each field.
    pub(super) fn all(&self) -> Vec<(&'static str, Value)> {
        let scheduler = self.scheduler.as_deref().map(Value::from);
        let fields = [
            ("mode", Some(Value::from(self.mode.name()))),
            ("ipvs.scheduler", scheduler),
            ("ipvs.strictARP", self.strict_arp.map(Value::from)),
        ];
        let fields = fields.into_iter();
        fields
            .filter_map(|(path, value)| Some((path, value?)))
            .collect()
    }
}

pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
