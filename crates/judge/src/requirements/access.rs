//! The rights at the API server that kpx uses.

use serde::Deserialize;

use super::{Area, Need, Status};
use crate::check::Facts;
use kpx_node::evidence::{Gap, Item};

#[derive(Deserialize)]
struct Reviews {
    items: Vec<Review>,
}

#[derive(Deserialize)]
struct Review {
    spec: ReviewSpec,
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewSpec {
    resource_attributes: Attributes,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Attributes {
    verb: String,
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    allowed: bool,
    reason: String,
}

pub(super) fn needs(facts: &Facts<'_>) -> Vec<Need> {
    let unknown = |note: String| vec![Need::unknown(Area::Access, "all rights", note)];
    let text = match facts.node.evidence().text(Item::Access) {
        Ok(text) => text,
        // Without a cluster there are no rights, and few bundles have them.
        Err(Gap::NotApplicable(_) | Gap::NotCollected(_)) => return Vec::new(),
        Err(gap) => return unknown(gap.to_string()),
    };
    let reviews: Reviews = match serde_json::from_str(text) {
        Ok(reviews) => reviews,
        Err(e) => return unknown(format!("{} cannot be parsed: {e}", Item::Access)),
    };
    let rows = reviews.items.into_iter().map(|review| {
        let of = review.spec.resource_attributes;
        let mut name = format!("{} {}", of.verb, of.resource);
        if !of.group.is_empty() {
            name = format!("{name}.{}", of.group);
        }
        if !of.name.is_empty() {
            name = format!("{name} {}", of.name);
        }
        if !of.namespace.is_empty() {
            name = format!("{name} in {}", of.namespace);
        }
        let reads = matches!(of.verb.as_str(), "get" | "list");
        let purpose = if reads {
            "reads the cluster"
        } else {
            "changes the mode"
        };
        let (status, state) = if review.status.allowed {
            (Status::Ready, "allowed")
        } else {
            (Status::Risk, "denied")
        };
        Need::new(Area::Access, name, status, state, review.status.reason).purpose(purpose)
    });
    rows.collect()
}
