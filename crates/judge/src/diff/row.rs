//! A difference as text.

use serde::Serialize;

use super::{Change, ChangeKind, Layer};
use kpx_node::net::Family;

/// A difference, as text.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Row {
    /// The kind.
    pub action: ChangeKind,
    /// The part of the kernel's state.
    pub layer: Layer,
    /// The family, if the object has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// The object's name: `nat chain KUBE-SERVICES rule 3`.
    pub object: String,
    /// The service port or the Service that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The live object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub have: Option<String>,
    /// The desired object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub want: Option<String>,
}

impl Row {
    /// Describes `change`.
    pub fn new(change: &Change) -> Self {
        Self {
            action: change.kind(),
            layer: change.layer(),
            family: change.family,
            object: change.object.to_string(),
            service: change.service.clone(),
            have: change.have(),
            want: change.want(),
        }
    }
}
