//! Changes to objects of the API server.
//!
//! Each looks before it acts, and looks again when an answer is lost: so what was done already is not done twice, and
//! what somebody else changed meanwhile is not overwritten.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::session::{Session, quote};
use super::{Trouble, proxy};
use crate::action::{Field, KubeCommand, OURS, Object, Only, Resource, eviction, merge_patch};
use crate::apply::StepError;

/// The roles that allow what is done here.
pub(super) const ROLES: &str = "deploy/rbac-migrate.yaml";

/// How many times longer than one request a change may take: a restart of the API server fits in.
const PATIENCE: u32 = 6;

/// The first pause before a request is made again; each is twice the one before, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often a field is written again because the object changed elsewhere in between.
const CONFLICTS: u32 = 10;

/// Carries `command` out.
pub(super) async fn carry_out(session: &Session, command: &KubeCommand) -> Result<(), StepError> {
    match command {
        KubeCommand::Set { object, fields } => set(session, object, fields).await,
        KubeCommand::Create { object, body } => create(session, object, body).await,
        KubeCommand::Delete { object, only } => delete(session, object, only).await,
        KubeCommand::Evict { pod, uid } => evict(session, pod, uid).await,
        KubeCommand::AwaitProxy { node, after, limit } => {
            proxy::wait(session, node, after, *limit).await
        }
    }
}

/// How long one change may go on.
pub(super) struct Patience {
    end: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn of(session: &Session) -> Self {
        Self::until(session.limit * PATIENCE)
    }

    pub(super) fn until(limit: Duration) -> Self {
        Self {
            end: Instant::now() + limit,
            pause: PAUSE,
        }
    }

    /// Waits before another try; returns whether there is time for one.
    pub(super) async fn wait(&mut self) -> bool {
        if Instant::now() + self.pause >= self.end {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Returns where the API server has `object`.
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

/// Returns what went wrong with `verb`ing `object`.
pub(super) fn failed(
    session: &Session,
    verb: &str,
    object: &Object,
    trouble: Trouble,
) -> StepError {
    let what = match &object.namespace {
        Some(namespace) => format!(
            "{} {} in namespace {namespace}",
            object.resource.grouped(),
            object.name
        ),
        None => format!("{} {}", object.resource.grouped(), object.name),
    };
    trouble.refusal(session, verb, &what, ROLES).step()
}

/// Returns `object`, or `None` where there is none.
pub(super) async fn get(session: &Session, object: &Object) -> Result<Option<Value>, StepError> {
    look(session, object, &mut Patience::of(session)).await
}

/// Returns the pods of kube-system that kpx made.
pub(super) async fn own_pods(session: &Session) -> Result<Vec<Value>, StepError> {
    let pods = Object::of_system(Resource::Pod, "");
    let label = quote(&format!("{}={}", OURS.0, OURS.1));
    let query = format!("labelSelector={label}");
    let mut patience = Patience::of(session);
    loop {
        match session.list(&collection(&pods), &query).await {
            Ok(found) => {
                let pods = found
                    .items
                    .iter()
                    .map(|raw| serde_json::from_str(raw.get()));
                let pods: Result<_, _> = pods.collect();
                let pods = pods.map_err(|e| Trouble::Answer(e.to_string()));
                return pods.map_err(|e| failed(session, "list", &pods_of_kpx(), e));
            }
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => return Err(failed(session, "list", &pods_of_kpx(), trouble)),
        }
    }
}

fn pods_of_kpx() -> Object {
    Object::of_system(Resource::Pod, "of kpx")
}

/// Returns the whole log of the pod `name` of kube-system.
pub(super) async fn log(session: &Session, name: &str) -> Result<String, StepError> {
    let pod = Object::of_system(Resource::Pod, name);
    let path = format!("{}/log", path(&pod));
    let mut patience = Patience::of(session);
    loop {
        match session.get(&path).await {
            Ok(text) => return Ok(text),
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => {
                let what = format!("pods/log {name} in namespace kube-system");
                return Err(trouble.refusal(session, "get", &what, ROLES).step());
            }
        }
    }
}

/// Reads `object`, again and again while the server is away.
async fn look(
    session: &Session,
    object: &Object,
    patience: &mut Patience,
) -> Result<Option<Value>, StepError> {
    loop {
        match session.object(&path(object)).await {
            Ok(None) => return Ok(None),
            Ok(Some(raw)) => {
                let value = serde_json::from_str(raw.get());
                let value = value.map_err(|e| Trouble::Answer(e.to_string()));
                return value
                    .map(Some)
                    .map_err(|e| failed(session, "get", object, e));
            }
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => return Err(failed(session, "get", object, trouble)),
        }
    }
}

async fn set(session: &Session, object: &Object, fields: &[Field]) -> Result<(), StepError> {
    let mut patience = Patience::of(session);
    let mut conflicts = 0;
    loop {
        let Some(now) = look(session, object, &mut patience).await? else {
            let why = format!("there is no {object} any more");
            return Err(StepError::Moved(why));
        };
        let is = |field: &Field, value: &Option<Value>| field.of(&now) == value.as_ref();
        if fields.iter().all(|field| is(field, &field.to)) {
            return Ok(());
        }
        let moved = |field: &&Field| !is(field, &field.from) && !is(field, &field.to);
        if let Some(field) = fields.iter().find(moved) {
            return Err(StepError::Moved(format!(
                "{} of {object} was changed by somebody else since it was read",
                field.path.join(".")
            )));
        }
        let mut patch = merge_patch(fields);
        patch["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
        match session.patch(&path(object), patch.to_string()).await {
            Ok(_) => return Ok(()),
            // The object changed since it was read, perhaps elsewhere than in these fields.
            Err(Trouble::Status(409, _)) if conflicts < CONFLICTS => conflicts += 1,
            Err(Trouble::Status(409, why)) => {
                return Err(StepError::Moved(format!(
                    "{object} is changed by somebody else all the time: {why}"
                )));
            }
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => return Err(failed(session, "patch", object, trouble)),
        }
    }
}

async fn create(session: &Session, object: &Object, body: &Value) -> Result<(), StepError> {
    let mut patience = Patience::of(session);
    loop {
        let text = body.to_string();
        match session.post(&collection(object), text).await {
            Ok(_) => return Ok(()),
            Err(Trouble::Status(409, _)) => {
                return match look(session, object, &mut patience).await? {
                    Some(there) if within(body, &there) => Ok(()),
                    Some(_) => Err(StepError::Moved(format!(
                        "there is a {object} already, and it is another"
                    ))),
                    None => Err(StepError::Moved(format!("{object} comes and goes"))),
                };
            }
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => return Err(failed(session, "create", object, trouble)),
        }
    }
}

/// Returns whether all of `part` is in `whole`, which may have more: what the server and others fill in.
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

async fn delete(session: &Session, object: &Object, only: &Only) -> Result<(), StepError> {
    let mut patience = Patience::of(session);
    let uid = match only {
        Only::Uid(uid) => uid.clone(),
        Only::Ours => {
            let Some(there) = look(session, object, &mut patience).await? else {
                return Ok(());
            };
            let metadata = &there["metadata"];
            if metadata["labels"][OURS.0] != OURS.1 {
                return Err(StepError::Refused(format!(
                    "{object} has no label {}={}: kpx did not make it, and leaves it alone",
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
    });
    loop {
        match session.delete(&path(object), options.to_string()).await {
            // One of another unique id has come after it.
            Ok(_) | Err(Trouble::Status(404 | 409, _)) => return Ok(()),
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => return Err(failed(session, "delete", object, trouble)),
        }
    }
}

/// Asks once for the eviction of `pod`. Whether a budget lets it go is for the server to say, and may be another in a while.
async fn evict(session: &Session, pod: &Object, uid: &str) -> Result<(), StepError> {
    let at = format!("{}/eviction", path(pod));
    let body = eviction(pod, uid).to_string();
    let mut patience = Patience::of(session);
    loop {
        match session.post(&at, body.clone()).await {
            // One of another unique id has come after it.
            Ok(_) | Err(Trouble::Status(404 | 409, _)) => return Ok(()),
            Err(Trouble::Status(429, why)) => return Err(StepError::Held(why)),
            Err(trouble) if trouble.is_passing() && patience.wait().await => {}
            Err(trouble) => {
                let namespace = pod.namespace.as_deref().unwrap_or_default();
                let what = format!("pods/eviction {} in namespace {namespace}", pod.name);
                return Err(trouble.refusal(session, "create", &what, ROLES).step());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_fills_in_makes_no_other_object() {
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
