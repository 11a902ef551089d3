//! The objects of a cluster, each with its version, and their history.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The key of an object.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Key {
    /// Its plural name, such as `pods`.
    pub(crate) resource: String,
    /// Empty for a cluster-scoped object.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key of `object`, of a `kind` whose plural is regular.
    pub(crate) fn of(object: &Value) -> Self {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        Self {
            resource: word(&object["kind"]).to_lowercase() + "s",
            namespace: word(&meta["namespace"]),
            name: word(&meta["name"]),
        }
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) version: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(crate) kind: &'static str,
    pub(crate) key: Key,
    pub(crate) object: Value,
}

/// The objects.
#[derive(Default)]
pub(crate) struct Objects {
    all: BTreeMap<Key, Value>,
    history: Vec<Event>,
    /// The version of the last write.
    pub(crate) version: u64,
    /// The version before which the history is discarded.
    pub(crate) horizon: u64,
    made: u64,
}

impl Objects {
    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.all.get(key)
    }

    /// Iterates over the objects of `resource`, in every namespace if it is `None`.
    pub(crate) fn list<'a>(
        &'a self,
        resource: &'a str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Value> {
        let first = Key::new(resource, "", "");
        let all = self.all.range(first..);
        let all = all.take_while(move |(key, _)| key.resource == resource);
        all.filter(move |(key, _)| namespace.is_none_or(|ns| ns == key.namespace))
            .map(|(_, object)| object)
    }

    /// Creates or replaces an object; returns it with its new version.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
        let before = self.all.get(&key);
        if before.is_some_and(|before| same(before, &object)) {
            // As on a real server, a write without a change creates no new version.
            return before.unwrap().clone();
        }
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        let uid = before.map(|before| before["metadata"]["uid"].clone());
        let generation = before.map_or(json!(1), |before| {
            let old = &before["metadata"]["generation"];
            if before["spec"] == object["spec"] {
                old.clone()
            } else {
                json!(old.as_u64().unwrap_or(1) + 1)
            }
        });
        self.version += 1;
        let meta = &mut object["metadata"];
        meta["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            meta["namespace"] = json!(key.namespace);
        }
        meta["resourceVersion"] = json!(self.version.to_string());
        if object["spec"].is_object() {
            object["metadata"]["generation"] = generation;
        }
        let meta = &mut object["metadata"];
        if let Some(uid) = uid {
            meta["uid"] = uid;
        } else {
            meta["uid"] = json!(format!("00000000-0000-0000-0000-{:012}", self.version));
            meta["creationTimestamp"] = json!("2026-11-20T13:00:00Z");
        }
        self.all.insert(key.clone(), object.clone());
        self.note(kind, key, object.clone());
        object
    }

    /// Applies `change` to an object, if it exists.
    pub(crate) fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        if let Some(mut object) = self.all.get(key).cloned() {
            change(&mut object);
            self.put(key.clone(), object);
        }
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Value> {
        let object = self.all.remove(key)?;
        self.version += 1;
        self.note("DELETED", key.clone(), object.clone());
        Some(object)
    }

    /// Returns the changes after `version`.
    pub(crate) fn since(&self, version: u64) -> &[Event] {
        let seen = self
            .history
            .partition_point(|event| event.version <= version);
        &self.history[seen..]
    }

    /// Returns a unique ending for a name.
    pub(crate) fn ending(&mut self) -> String {
        self.made += 1;
        format!("x{:04}", self.made)
    }

    fn note(&mut self, kind: &'static str, key: Key, object: Value) {
        self.history.push(Event {
            version: self.version,
            kind,
            key,
            object,
        });
    }
}

/// Returns whether two objects are equal, apart from the fields that the server writes.
fn same(a: &Value, b: &Value) -> bool {
    let [a, b] = [a, b].map(|object| {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for key in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
                meta.remove(key);
            }
        }
        object
    });
    a == b
}
