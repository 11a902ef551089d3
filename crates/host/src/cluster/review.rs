//! Access reviews: what the API server allows this user.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Path of access reviews.
pub(super) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Returns the access review of `attributes`.
pub(super) fn review(attributes: &Value) -> String {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    review.to_string()
}

/// Returns whether the access review `answer` allows its request; `None` if it is not one.
pub(super) fn is_allowed(answer: &RawValue) -> Option<bool> {
    #[derive(Deserialize)]
    struct Answer {
        status: Status,
    }
    #[derive(Deserialize)]
    struct Status {
        allowed: bool,
    }
    let answer: Answer = serde_json::from_str(answer.get()).ok()?;
    Some(answer.status.allowed)
}
