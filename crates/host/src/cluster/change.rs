//! Changes objects through the API server.
//!
//! Each change reads the object first, and again if an answer is lost, so that no change is made twice and changes by
//! others are not overwritten.

use serde_json::{Value, json};

use super::proxy;
use super::refusal::RequestError;
use super::retry::{Patience, Requester};
use super::session::{Session, quote};
use kpx_node::action::{Field, KubeCommand, OURS, Object, Only, Resource, eviction, merge_patch};
use kpx_node::apply::StepError;

/// Manifest of the roles that allow these changes.
pub(super) const ROLES: &str = "deploy/rbac-migrate.yaml";

/// Manifest of the roles that allow pods for reading nodes.
pub(super) const NODE_ROLES: &str = "deploy/rbac-nodes.yaml";

/// Number of retries after a conflict.
const CONFLICTS: u32 = 10;

/// Runs `command`.
pub(super) async fn carry_out(way: Requester<'_>, command: &KubeCommand) -> Result<(), StepError> {
    match command {
        KubeCommand::Set { object, fields } => set(way, object, fields).await,
        KubeCommand::Create { object, body } => create(way, object, body).await,
        KubeCommand::Delete { object, only } => delete(way, object, only).await,
        KubeCommand::Evict { pod, uid } => evict(way, pod, uid).await,
        KubeCommand::AwaitProxy {
            node,
            after,
            limit,
            unpulled,
        } => proxy::wait(way, node, after, *limit, *unpulled).await,
    }
}

/// Returns the API path of `object`.
pub(super) fn path(object: &Object) -> String {
    format!("{}/{}", collection(object), quote(&object.name))
}

fn collection(object: &Object) -> String {
    let version = object.resource.api_version();
    let root = if version == "v1" { "/api" } else { "/apis" };
    let namespace = object.namespace.as_ref();
    let namespace = namespace.map_or(String::new(), |name| format!("/namespaces/{}", quote(name)));
    format!("{root}/{version}{namespace}/{}", object.resource.plural())
}

/// Returns the error of `verb`ing `object`.
pub(super) fn failed(
    session: &Session,
    verb: &str,
    object: &Object,
    trouble: RequestError,
) -> StepError {
    let what = match &object.namespace {
        Some(namespace) => format!(
            "{} {} in namespace {namespace}",
            object.resource.grouped(),
            object.name
        ),
        None => format!("{} {}", object.resource.grouped(), object.name),
    };
    let roles = match object.resource {
        Resource::Job => NODE_ROLES,
        _ => ROLES,
    };
    trouble.refusal(session, verb, &what, roles).step()
}

/// Returns `object`; `None` if it does not exist.
pub(super) async fn get(way: Requester<'_>, object: &Object) -> Result<Option<Value>, StepError> {
    look(way, object, &mut way.patience()).await
}

/// Returns the objects of kube-system with `label`.
pub(super) async fn labelled(
    way: Requester<'_>,
    resource: Resource,
    label: (&str, &str),
) -> Result<Vec<Value>, StepError> {
    let all = Object::of_system(resource, "");
    let query = format!(
        "labelSelector={}",
        quote(&format!("{}={}", label.0, label.1))
    );
    let found = async {
        let found = way.list(&collection(&all), &query).await?;
        let objects = found.items.iter();
        let objects: Result<_, _> = objects.map(|raw| serde_json::from_str(raw.get())).collect();
        objects.map_err(|e| RequestError::Answer(e.to_string()))
    };
    let of_kpx = Object::of_system(resource, "of kpx");
    let found = found.await;
    found.map_err(|trouble| failed(way.session, "list", &of_kpx, trouble))
}

/// Returns the message of the newest warning about `object`; `None` if there is none.
///
/// Without retries: the caller polls.
pub(super) async fn warning(
    session: &Session,
    object: &Object,
) -> Result<Option<String>, StepError> {
    let about = format!(
        "type=Warning,involvedObject.kind={},involvedObject.name={}",
        object.resource.kind(),
        object.name
    );
    let path = "/api/v1/namespaces/kube-system/events";
    let found = async {
        let query = format!("fieldSelector={}", quote(&about));
        let newest = session.list(path, &query).await?.items.pop();
        let event: Option<Value> = newest
            .map(|raw| serde_json::from_str(raw.get()))
            .transpose()
            .map_err(|e| RequestError::Answer(e.to_string()))?;
        Ok(event.and_then(|event| event["message"].as_str().map(str::to_owned)))
    };
    let found: Result<_, RequestError> = found.await;
    found.map_err(|trouble| {
        let what = format!("events of {object}");
        trouble.refusal(session, "list", &what, NODE_ROLES).step()
    })
}

/// Returns the whole log of the pod `name` of kube-system.
pub(super) async fn log(way: Requester<'_>, name: &str) -> Result<String, StepError> {
    let pod = Object::of_system(Resource::Pod, name);
    let log = way.get(&format!("{}/log", path(&pod))).await;
    log.map_err(|trouble| {
        let what = format!("pods/log {name} in namespace kube-system");
        trouble.refusal(way.session, "get", &what, ROLES).step()
    })
}

/// Reads `object`, and retries while the server is not available.
async fn look(
    way: Requester<'_>,
    object: &Object,
    patience: &mut Patience,
) -> Result<Option<Value>, StepError> {
    let (session, at) = (way.session, path(object));
    let get = async || session.object(&at).await;
    let found = session.persist(patience, "get", &at, get).await;
    let found = found.and_then(|raw| {
        let value = raw.map(|raw| serde_json::from_str(raw.get()));
        value
            .transpose()
            .map_err(|e| RequestError::Answer(e.to_string()))
    });
    found.map_err(|trouble| failed(session, "get", object, trouble))
}

async fn set(way: Requester<'_>, object: &Object, fields: &[Field]) -> Result<(), StepError> {
    let (session, at) = (way.session, path(object));
    let mut patience = way.patience();
    let mut conflicts = 0;
    loop {
        let Some(now) = look(way, object, &mut patience).await? else {
            let why = format!("{object} no longer exists");
            return Err(StepError::Moved(why));
        };
        let is = |field: &Field, value: &Option<Value>| field.of(&now) == value.as_ref();
        if fields.iter().all(|field| is(field, &field.to)) {
            return Ok(());
        }
        let moved = |field: &&Field| !is(field, &field.from) && !is(field, &field.to);
        if let Some(field) = fields.iter().find(moved) {
            return Err(StepError::Moved(format!(
                "{} of {object} was changed by another writer since it was read",
                field.path.join(".")
            )));
        }
        let mut patch = merge_patch(fields);
        patch["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
        let patched = session.patch(&at, patch.to_string()).await;
        match patched {
            Ok(_) => return Ok(()),
            // The object changed since it was read, possibly in other fields.
            Err(RequestError::Status(409, _)) if conflicts < CONFLICTS => conflicts += 1,
            Err(RequestError::Status(409, why)) => {
                return Err(StepError::Moved(format!("{object} keeps changing: {why}")));
            }
            // The change may have succeeded: the object is read before the next attempt.
            Err(trouble) if patience.again(session, "patch", &at, &trouble).await => {}
            Err(trouble) => return Err(failed(session, "patch", object, trouble)),
        }
    }
}

async fn create(way: Requester<'_>, object: &Object, body: &Value) -> Result<(), StepError> {
    let (session, at, text) = (way.session, collection(object), body.to_string());
    let mut patience = way.patience();
    let post = async || session.post(&at, text.clone()).await;
    match session.persist(&mut patience, "create", &at, post).await {
        Ok(_) => Ok(()),
        Err(RequestError::Status(409, _)) => match look(way, object, &mut patience).await? {
            Some(there) if within(body, &there) => Ok(()),
            Some(_) => Err(StepError::Moved(format!("another {object} already exists"))),
            None => Err(StepError::Moved(format!(
                "{object} is repeatedly created and deleted"
            ))),
        },
        Err(trouble) => Err(failed(session, "create", object, trouble)),
    }
}

/// Returns whether `whole` contains `part`; the server and others may have added more.
fn within(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part
            .iter()
            .all(|(key, value)| within(value, whole.get(key).unwrap_or(&Value::Null))),
        (Value::Array(part), Value::Array(whole)) => part
            .iter()
            .all(|value| whole.iter().any(|there| within(value, there))),
        (part, whole) => part == whole,
    }
}

async fn delete(way: Requester<'_>, object: &Object, only: &Only) -> Result<(), StepError> {
    let (session, at) = (way.session, path(object));
    let mut patience = way.patience();
    let uid = match only {
        Only::Uid(uid) => uid.clone(),
        Only::Ours => {
            let Some(there) = look(way, object, &mut patience).await? else {
                return Ok(());
            };
            let metadata = &there["metadata"];
            if metadata["labels"][OURS.0] != OURS.1 {
                return Err(StepError::Refused(format!(
                    "{object} has no label {}={}: kpx did not create it and does not delete it",
                    OURS.0, OURS.1
                )));
            }
            metadata["uid"].as_str().unwrap_or_default().to_owned()
        }
    };
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": uid},
        // Otherwise the pods of a Job stay.
        "propagationPolicy": "Background",
    });
    let delete = async || session.delete(&at, options.to_string()).await;
    match session.persist(&mut patience, "delete", &at, delete).await {
        // An object with another UID has replaced it.
        Ok(_) | Err(RequestError::Status(404 | 409, _)) => Ok(()),
        Err(trouble) => Err(failed(session, "delete", object, trouble)),
    }
}

/// Requests the eviction of `pod` once. The server decides by disruption budgets, and may decide differently later.
async fn evict(way: Requester<'_>, pod: &Object, uid: &str) -> Result<(), StepError> {
    let at = format!("{}/eviction", path(pod));
    let body = eviction(pod, uid).to_string();
    let session = way.session;
    let post = async || match session.post(&at, body.clone()).await {
        // A refusal by a disruption budget is a final answer, not an overloaded server.
        Err(RequestError::Status(429, why) | RequestError::Busy(429, why, _)) => Ok(Some(why)),
        answer => answer.map(|_| None),
    };
    let patience = &mut way.patience();
    match session.persist(patience, "create", &at, post).await {
        // An object with another UID has replaced it.
        Ok(None) | Err(RequestError::Status(404 | 409, _)) => Ok(()),
        Ok(Some(why)) => Err(StepError::Held(why)),
        Err(trouble) => {
            let namespace = pod.namespace.as_deref().unwrap_or_default();
            let what = format!("pods/eviction {} in namespace {namespace}", pod.name);
            Err(trouble.refusal(session, "create", &what, ROLES).step())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_added_by_the_server_are_ignored() {
        let body =
            json!({"metadata": {"name": "a"}, "spec": {"tolerations": [{"operator": "Exists"}]}});
        let there = json!({
            "metadata": {"name": "a", "uid": "1"},
            "spec": {"tolerations": [{"key": "x"}, {"operator": "Exists"}], "dnsPolicy": "ClusterFirst"},
        });
        assert!(within(&body, &there));
        assert!(!within(&there, &body));
    }

    #[test]
    fn objects_have_their_paths() {
        for (object, at) in [
            (
                Object::of_system(Resource::ConfigMap, "kube-proxy"),
                "/api/v1/namespaces/kube-system/configmaps/kube-proxy",
            ),
            (
                Object::of_system(Resource::Lease, "kpx"),
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kpx",
            ),
            (Object::node("n/1"), "/api/v1/nodes/n%2F1"),
        ] {
            assert_eq!(path(&object), at);
        }
    }
}
