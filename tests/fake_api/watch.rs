//! Watches: the changes from now on, or since a version, as lines of JSON.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use super::World;
use super::answer::{selected, status};
use super::objects::Objects;
use super::rest::Call;

/// One watch.
struct Watch {
    world: Arc<World>,
    call: Call,
    query: HashMap<String, String>,
    /// The version up to which everything was sent.
    seen: u64,
    cuts: u64,
    lines: VecDeque<String>,
    changes: Receiver<()>,
    over: bool,
}

impl World {
    pub(super) fn watch(self: Arc<Self>, call: Call, query: HashMap<String, String>) -> Response {
        let changes = self.changes.subscribe();
        let from = query.get("resourceVersion").map_or("", String::as_str);
        let from: u64 = from.parse().unwrap_or(0);
        let cluster = self.cluster.lock().unwrap();
        let objects = &cluster.objects;
        let mut lines = VecDeque::new();
        let forgotten = from != 0 && from < objects.horizon;
        if forgotten {
            let (_, gone) = status(410, "too old resource version");
            lines.push_back(line("ERROR", &gone));
        } else if from == 0 {
            let all = objects.list(&call.resource, call.namespace.as_deref());
            let here = all.filter(|object| selected(object, &query));
            lines.extend(here.map(|object| line("ADDED", object)));
            if query
                .get("sendInitialEvents")
                .is_some_and(|is| is == "true")
            {
                lines.extend(listed(objects, &call));
            }
        }
        let (seen, cuts) = (if from == 0 { objects.version } else { from }, cluster.cuts);
        drop(cluster);
        let watch = Watch {
            world: self,
            call,
            query,
            seen,
            cuts,
            lines,
            changes,
            over: forgotten,
        };
        let lines = stream::unfold(watch, |mut watch| async {
            let line = watch.next().await?;
            Some((Ok::<_, Infallible>(line), watch))
        });
        Response::new(Body::from_stream(lines))
    }
}

impl Watch {
    /// Returns the next line; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            // Later changes wake the watch.
            self.changes.borrow_and_update();
            self.look();
            if self.lines.is_empty() && !self.over && self.changes.changed().await.is_err() {
                return None;
            }
        }
    }

    fn look(&mut self) {
        let cluster = self.world.cluster.lock().unwrap();
        self.over = cluster.cuts != self.cuts;
        for event in cluster.objects.since(self.seen) {
            self.seen = event.version;
            let namespace = self.call.namespace.as_ref();
            if event.key.resource != self.call.resource
                || namespace.is_some_and(|ns| *ns != event.key.namespace)
            {
                continue;
            }
            let kind = if selected(&event.object, &self.query) {
                event.kind
            } else {
                // For a watch with a selector, an object that no longer matches is deleted.
                "DELETED"
            };
            self.lines.push_back(line(kind, &event.object));
        }
    }
}

/// Returns the bookmark behind the objects that a watch begins with; `None` if there is no object whose kind it could have.
fn listed(objects: &Objects, call: &Call) -> Option<String> {
    let of = objects.list(&call.resource, None).next()?;
    let metadata = json!({
        "resourceVersion": objects.version.to_string(),
        "annotations": {"k8s.io/initial-events-end": "true"},
    });
    let end = json!({"kind": of["kind"], "apiVersion": of["apiVersion"], "metadata": metadata});
    Some(line("BOOKMARK", &end))
}

fn line(kind: &str, object: &Value) -> String {
    json!({"type": kind, "object": object}).to_string() + "\n"
}
