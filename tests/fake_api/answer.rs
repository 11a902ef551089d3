//! Carries out requests.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::Cluster;
use super::objects::Key;
use super::rest::Call;
use super::selector;
use super::server::Request;

/// A status and a body.
pub(crate) type Answered = (u16, Value);

/// An error in the format of the API server.
pub(crate) fn status(code: u16, message: &str) -> Answered {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, body)
}

/// A list in the format of the API server.
pub(crate) fn list(version: u64, items: &[Value]) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}, "items": items})
}

impl Cluster {
    /// Answers everything but a watch.
    pub(super) fn answer(&mut self, call: &Call, request: &Request) -> Answered {
        let resource = call.full_resource();
        match (call.verb, resource.as_str()) {
            ("create", "selfsubjectaccessreviews") => self.review(&request.body),
            ("get", "pods/log") => self.log(&call.key()),
            ("create", "pods/eviction") => self.evict(&call.key(), &request.body),
            (_, _) if call.subresource.is_some() => status(404, "the server knows no such part"),
            ("list", _) => self.read_list(call, &request.query),
            ("get", _) => self.read(&call.key()),
            ("create", _) => self.create(call, request.body.clone()),
            ("update", _) => self.update(&call.key(), request.body.clone()),
            ("patch", _) => self.patch(call, request),
            ("delete", "jobs") => self.delete_job(&call.key(), &request.body),
            ("delete", _) => self.delete(&call.key(), &request.body),
            _ => status(405, "the fake server does not do that"),
        }
    }

    fn read(&self, key: &Key) -> Answered {
        match self.objects.get(key) {
            Some(object) => (200, object.clone()),
            None => missing(key),
        }
    }

    fn read_list(&self, call: &Call, query: &HashMap<String, String>) -> Answered {
        let all = self
            .objects
            .list(&call.resource, call.namespace.as_deref())
            .filter(|object| selected(object, query));
        let all: Vec<_> = all.cloned().collect();
        (200, list(self.objects.version, &all))
    }

    fn create(&mut self, call: &Call, mut object: Value) -> Answered {
        let meta = &object["metadata"];
        let word = |key: &str| meta[key].as_str().map(str::to_owned);
        let name = match (word("name"), word("generateName")) {
            (Some(name), _) => name,
            (None, Some(start)) => start + &self.objects.ending(),
            (None, None) => return status(422, "name or generateName is required"),
        };
        let key = Key::new(
            &call.resource,
            call.namespace.as_deref().unwrap_or_default(),
            &name,
        );
        if self.objects.get(&key).is_some() {
            let (code, mut body) =
                status(409, &format!("{} \"{name}\" already exists", call.resource));
            body["reason"] = json!("AlreadyExists");
            return (code, body);
        }
        object["apiVersion"] = json!(call.version);
        let object = self.objects.put(key.clone(), object);
        (201, object)
    }

    fn update(&mut self, key: &Key, object: Value) -> Answered {
        if let Some(refusal) = self.refuse(key, &object["metadata"]) {
            return refusal;
        }
        let object = self.objects.put(key.clone(), object);
        (200, object)
    }

    fn patch(&mut self, call: &Call, request: &Request) -> Answered {
        let (key, patch) = (call.key(), &request.body);
        let apply = match request.content_type.as_str() {
            "application/merge-patch+json" => false,
            // Without lists, which it merges by their keys, the two are one.
            "application/strategic-merge-patch+json" if !has_list(patch) => false,
            "application/apply-patch+yaml" => true,
            other => return status(415, &format!("the fake server knows no {other} like this")),
        };
        if !patch.is_object() {
            return status(400, "the patch is no object");
        }
        if apply && self.objects.get(&key).is_none() {
            return self.create(call, patch.clone());
        }
        if let Some(refusal) = self.refuse(&key, &patch["metadata"]) {
            return refusal;
        }
        let mut object = self.objects.get(&key).unwrap().clone();
        merge(&mut object, patch);
        let object = self.objects.put(key.clone(), object);
        (200, object)
    }

    pub(super) fn delete(&mut self, key: &Key, options: &Value) -> Answered {
        if let Some(refusal) = self.refuse(key, &options["preconditions"]) {
            return refusal;
        }
        // The kubelet ends a pod that is on a node before the object goes.
        let on_node = |pod: &Value| pod["spec"]["nodeName"].is_string();
        if key.resource == "pods" && self.objects.get(key).is_some_and(on_node) {
            self.objects.edit(key, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T13:00:00Z");
            });
            return (200, self.objects.get(key).unwrap().clone());
        }
        let object = self.objects.remove(key).unwrap();
        (200, object)
    }

    /// Evicts a pod, if the disruption budgets that select it allow one more disruption.
    fn evict(&mut self, key: &Key, eviction: &Value) -> Answered {
        if eviction["kind"] != "Eviction" || eviction["apiVersion"] != "policy/v1" {
            return status(400, "this is no Eviction of policy/v1");
        }
        let options = &eviction["deleteOptions"];
        let Some(pod) = self.objects.get(key) else {
            return missing(key);
        };
        let budget = self.budget_of(pod);
        if let Some((name, 0)) = &budget {
            let (code, mut body) = status(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
            );
            let message =
                format!("The disruption budget {name} needs 1 healthy pods and has 1 currently");
            body["details"]["causes"] = json!([{"reason": "DisruptionBudget", "message": message}]);
            return (code, body);
        }
        let (code, _) = self.delete(key, options);
        if code != 200 {
            return status(code, "the pod is another one, or gone");
        }
        if let Some((name, allowed)) = budget {
            let budget = Key::new("poddisruptionbudgets", &key.namespace, &name);
            self.edit(&budget, |budget| {
                budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            });
        }
        let (code, mut done) = (201, json!({"kind": "Status", "apiVersion": "v1"}));
        done["status"] = json!("Success");
        (code, done)
    }

    /// Returns the budget that selects `pod`, and the number of further disruptions that it allows.
    fn budget_of(&self, pod: &Value) -> Option<(String, u64)> {
        let namespace = pod["metadata"]["namespace"].as_str();
        let mut budgets = self.objects.list("poddisruptionbudgets", namespace);
        let budget = budgets.find(|budget| {
            let labels = budget["spec"]["selector"]["matchLabels"]
                .as_object()
                .unwrap();
            labels
                .iter()
                .all(|(key, value)| pod["metadata"]["labels"][key] == *value)
        })?;
        let name = budget["metadata"]["name"].as_str().unwrap().to_owned();
        Some((
            name,
            budget["status"]["disruptionsAllowed"].as_u64().unwrap(),
        ))
    }

    /// Refuses a write to a missing object, or to an object with another uid or version.
    fn refuse(&self, key: &Key, meant: &Value) -> Option<Answered> {
        let Some(object) = self.objects.get(key) else {
            return Some(missing(key));
        };
        let differs = |field: &str| {
            let meant = &meant[field];
            meant.is_string() && meant != "" && *meant != object["metadata"][field]
        };
        (differs("resourceVersion") || differs("uid")).then(|| {
            let what = format!(
                "Operation cannot be fulfilled on {} \"{}\": the object has been modified; please apply your changes to the latest version and try again",
                key.resource, key.name
            );
            status(409, &what)
        })
    }

    fn review(&self, review: &Value) -> Answered {
        let asked = &review["spec"]["resourceAttributes"];
        let word = |key: &str| asked[key].as_str().unwrap_or_default();
        let resource = match word("subresource") {
            "" => word("resource").to_owned(),
            sub => format!("{}/{sub}", word("resource")),
        };
        let mut review = review.clone();
        review["status"] =
            json!({"allowed": !self.forbids(word("verb"), &resource) && self.roles.reviews(asked)});
        (201, review)
    }

    fn log(&self, key: &Key) -> Answered {
        match self.objects.get(key) {
            Some(_) => (200, Value::String(self.log_of(key))),
            None => missing(key),
        }
    }
}

impl Call {
    /// The key of the requested object.
    pub(super) fn key(&self) -> Key {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        Key {
            resource: self.resource.clone(),
            namespace: part(&self.namespace),
            name: part(&self.name),
        }
    }
}

/// Returns whether `query` of a list or watch selects `object`.
pub(crate) fn selected(object: &Value, query: &HashMap<String, String>) -> bool {
    let by = |key: &str, fits: fn(&Value, &str) -> bool| {
        query.get(key).is_none_or(|selector| fits(object, selector))
    };
    by("labelSelector", selector::labels) && by("fieldSelector", selector::fields)
}

pub(super) fn missing(key: &Key) -> Answered {
    status(404, &format!("{} \"{}\" not found", key.resource, key.name))
}

fn has_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Object(all) => all.values().any(has_list),
        _ => false,
    }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
