//! The copy of kube-proxy's ConfigMap, on a node that a migration moves by a label.

use serde_json::Value;

use super::retry::Requester;
use super::session::quote;
use kpx_node::action::COPY_LABEL;

/// Returns the name of the copy that kube-proxy on `node` reads; `None` if it reads the original, or if the Node cannot be
/// read. The volumes of its pod name it, too, so a missing copy is noticed.
pub(super) async fn map(way: Requester<'_>, node: &str) -> Option<String> {
    if node.is_empty() {
        return None;
    }
    // Without retries: only the copy depends on it.
    let found = way
        .session
        .object(&format!("/api/v1/nodes/{}", quote(node)))
        .await;
    let found: Value = serde_json::from_str(found.ok()??.get()).ok()?;
    let name = &found["metadata"]["labels"][COPY_LABEL];
    name.as_str().map(str::to_owned)
}
