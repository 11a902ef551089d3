//! The plan of a node's migration in short: its obstacles and its costs.

use std::fmt;

use serde::{Deserialize, Serialize};

use kpx_judge::verdict::LossClass;
use kpx_node::words::number_of;

/// The preview of a node's migration.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Preview {
    /// Findings that block the migration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<MigrationBlocker>,
    /// The number of established connections that will break.
    pub breaks: usize,
    /// The number of pods that will be evicted.
    pub evicts: usize,
    /// The expected loss, in words.
    pub loss: String,
    /// The classes of packets that the new mode loses, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LossClass>,
    /// Stages that cannot be planned, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// A finding that blocks a migration.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct MigrationBlocker {
    /// The check's ID.
    pub id: String,
    /// The finding's message.
    pub message: String,
}

impl fmt::Display for MigrationBlocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.message)
    }
}

/// Returns the blockers in a line.
pub fn blocked_by(blockers: &[MigrationBlocker]) -> String {
    let all: Vec<_> = blockers.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// The result of a preview on one of many nodes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PreviewResult {
    /// The preview.
    Known(Preview),
    /// Nothing to do: the node already runs in the new mode.
    Already,
    /// The preview failed, or the node cannot be migrated; and why.
    Failed(String),
}

/// A node with the result of its preview.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct NodePreview {
    /// The node.
    pub node: String,
    /// The result.
    #[serde(flatten)]
    pub result: PreviewResult,
}

impl Preview {
    /// Returns why the node is not migrated; `accept_loss` lets connections break.
    pub fn objection(&self, accept_loss: bool) -> Option<String> {
        if !self.blockers.is_empty() {
            return Some(blocked_by(&self.blockers));
        }
        if !self.unknown.is_empty() {
            return Some(format!("unknown: {}", self.unknown.join("; ")));
        }
        (self.breaks > 0 && !accept_loss).then(|| {
            format!(
                "{} would break (--accept-loss drops them)",
                number_of(self.breaks, "established connection")
            )
        })
    }
}

impl NodePreview {
    /// Returns why the node is not migrated; `accept_loss` lets connections break.
    pub fn objection(&self, accept_loss: bool) -> Option<String> {
        match &self.result {
            PreviewResult::Known(preview) => preview.objection(accept_loss),
            PreviewResult::Already => None,
            PreviewResult::Failed(why) => Some(why.clone()),
        }
    }

    /// Returns the result in words.
    pub fn in_words(&self) -> String {
        match &self.result {
            PreviewResult::Known(preview) => {
                let blockers = preview.blockers.iter();
                let blockers = blockers.map(|blocker| format!("blocked: {blocker}"));
                let unknown = preview.unknown.iter();
                let unknown = unknown.map(|why| format!("unknown: {why}"));
                let mut parts: Vec<String> = blockers.chain(unknown).collect();
                parts.push(preview.loss.clone());
                parts.join("; ")
            }
            PreviewResult::Already => "nothing to do".to_owned(),
            PreviewResult::Failed(why) => format!("unknown: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blockers_unknowns_and_connections_that_break_keep_a_node_from_migrating() {
        let mut preview = Preview {
            loss: "all 3".to_owned(),
            ..Preview::default()
        };
        assert_eq!(preview.objection(false), None);
        preview.breaks = 3;
        assert!(preview.objection(false).is_some());
        assert_eq!(preview.objection(true), None);
        preview.unknown.push("how".to_owned());
        let unknown = Some("unknown: how".to_owned());
        assert_eq!(preview.objection(true), unknown);
        preview.unknown.clear();
        preview.blockers.push(MigrationBlocker {
            id: "KM01".to_owned(),
            message: "no ip_vs".to_owned(),
        });
        let blocked = Some("KM01: no ip_vs".to_owned());
        assert_eq!(preview.objection(true), blocked);
        let of = |result| NodePreview {
            node: "n1".to_owned(),
            result,
        };
        assert_eq!(
            of(PreviewResult::Known(preview)).in_words(),
            "blocked: KM01: no ip_vs; all 3"
        );
        assert!(
            of(PreviewResult::Failed("x".to_owned()))
                .objection(true)
                .is_some()
        );
        assert_eq!(of(PreviewResult::Already).objection(false), None);
    }
}
