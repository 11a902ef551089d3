//! What every object of the API has.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::evidence::Time;

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// `metadata` of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object; empty for a cluster-wide object.
    pub namespace: String,
    /// Unique ID of the object.
    pub uid: String,
    /// Resource version, required to update the object.
    pub resource_version: String,
    /// Creation time, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Deletion time, RFC 3339; set while the object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Labels of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// Annotations of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Labels,
    /// Owner references.
    #[serde(rename = "ownerReferences", deserialize_with = "null_is_default")]
    pub owners: Vec<Owner>,
    /// Writers of the object's fields.
    #[serde(deserialize_with = "null_is_default")]
    pub managed_fields: Vec<ManagedFields>,
}

impl Metadata {
    /// Returns the time of the last recorded write.
    pub fn last_edit(&self) -> Option<Time> {
        let edits = self
            .managed_fields
            .iter()
            .map(|managed_field| managed_field.time.as_deref());
        let times = edits.chain([self.creation_timestamp.as_deref()]);
        times.filter_map(|time| time?.parse().ok()).max()
    }

    /// Returns the time of the last write, or of the change of a pod or Service that made the controller write it.
    pub fn last_change(&self) -> Option<Time> {
        let trigger = self
            .annotations
            .get("endpoints.kubernetes.io/last-change-trigger-time");
        let trigger = trigger.and_then(|time| time.parse().ok());
        self.last_edit().max(trigger)
    }

    /// Returns the time of creation, if it is known that nothing but the status was written later.
    pub fn unedited_since(&self) -> Option<Time> {
        let created: Time = self.creation_timestamp.as_deref()?.parse().ok()?;
        (self.last_write()? <= created).then_some(created)
    }

    /// Returns the time of the last write of anything but the status, if the writers are known: kubectl omits them.
    pub fn last_write(&self) -> Option<Time> {
        let of_object = |fields: &&ManagedFields| fields.subresource.is_empty();
        let edits = self.managed_fields.iter().filter(of_object);
        let times: Option<Vec<Time>> = edits
            .map(|edit| edit.time.as_deref()?.parse().ok())
            .collect();
        times?.into_iter().max()
    }
}

/// An entry of `managedFields`: one writer of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    /// Time of the writer's last change, RFC 3339.
    pub time: Option<String>,
    /// The subresource that it writes: `status`; empty for the object itself.
    pub subresource: String,
}

/// An owner reference.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Kind of the owner: `ReplicaSet`, `DaemonSet`, …
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Whether the owner is the controller, which recreates the object.
    pub controller: bool,
}

/// A condition of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `Ready`, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, as one word.
    pub reason: String,
    /// Details of the condition.
    pub message: String,
    /// Time of the last change of `status`, RFC 3339.
    #[serde(rename = "lastTransitionTime")]
    pub since: Option<String>,
}

/// Deserializes `null` as the default, as the API server's Go types do.
pub(super) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
