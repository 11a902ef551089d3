//! Permissions of kpx in the cluster, queried with access reviews, which store nothing.

use futures_util::future::join_all;
use serde_json::json;

use super::patience::{REVIEWS, Requester};
use super::session::Objects;
use crate::evidence::{Gap, Item};

/// Requests that kpx makes: verb, group, resource, and the object name in kube-system if there is one.
///
/// The first ones are for reading, the others for changing kube-proxy's mode.
const WISHES: &[(&str, &str, &str, Option<&str>)] = &[
    ("list", "", "services", None),
    ("list", "discovery.k8s.io", "endpointslices", None),
    ("get", "", "nodes", None),
    ("get", "", "configmaps", Some("kube-proxy")),
    ("get", "apps", "daemonsets", Some("kube-proxy")),
    ("patch", "", "configmaps", Some("kube-proxy")),
    ("create", "", "configmaps", Some("")),
    ("patch", "apps", "daemonsets", Some("kube-proxy")),
    ("create", "apps", "daemonsets", Some("")),
    ("create", "", "pods", Some("")),
    ("delete", "", "pods", Some("")),
    ("create", "coordination.k8s.io", "leases", Some("")),
    ("patch", "", "nodes", None),
];

/// Queries each permission; returns the answers as one List.
pub(super) async fn read(way: Requester<'_>, item: Item, node: &str) -> Result<String, Gap> {
    let session = way.session;
    let reviews = WISHES.iter().map(async |&(verb, group, resource, object)| {
        let attributes = match (resource, object) {
            ("nodes", _) => json!({"verb": verb, "resource": resource, "name": node}),
            (_, Some("")) => json!({
                "verb": verb,
                "group": group,
                "resource": resource,
                "namespace": "kube-system",
            }),
            (_, Some(name)) => json!({
                "verb": verb,
                "group": group,
                "resource": resource,
                "namespace": "kube-system",
                "name": name,
            }),
            (_, None) => json!({"verb": verb, "group": group, "resource": resource}),
        };
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let review = review.to_string();
        let post = async || session.post(REVIEWS, review.clone()).await;
        // A client that may not create reviews cannot query its permissions.
        let mut patience = way.patience().unless_denied();
        session
            .persist(&mut patience, "create", REVIEWS, post)
            .await
    });
    let mut items = Vec::new();
    for answer in join_all(reviews).await {
        let what = "selfsubjectaccessreviews.authorization.k8s.io";
        items.push(answer.map_err(|trouble| trouble.gap(item, session, "create", what))?);
    }
    let objects = Objects {
        items,
        version: String::new(),
    };
    Ok(super::read::document(&objects, &[]))
}
