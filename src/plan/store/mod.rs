//! Where a node's kube-proxy has its configuration from, and how that is changed.
//!
//! The configuration is changed in one place and read by kube-proxy when it starts: so there are two plans, one to
//! write it and one to restart what reads it. Of a store that somebody else keeps, the command is told instead.

mod find;
mod lines;
mod managed;
mod pod;
mod put_back;

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

pub use put_back::Written;

use super::{Plan, Undo};
use crate::action::{Action, Field, KubeCommand, Object, Only, Resource};
use crate::cluster::edit::{self, EditError, Fields};
use crate::cluster::{ConfigMap, Labels, Pod};
use crate::evidence::Item;

/// What [`Store::find`] looks at.
pub const STORE_NEEDS: &[Item] = &[
    Item::Processes,
    Item::ProxyFiles,
    Item::ConfigMaps,
    Item::DaemonSets,
    Item::Pods,
    Item::Nodes,
];

/// What the annotations of an object may have in all, in bytes of their names and texts: `TotalAnnotationSizeLimitB`
/// in `k8s.io/apimachinery/pkg/api/validation`.
const ANNOTATIONS: usize = 256 << 10;

/// How long the name of an annotation may be behind its prefix.
const NAME: usize = 63;

/// How long a new pod may take to be ready, unless something else is asked for.
const READY: Duration = Duration::from_secs(180);

/// Where kube-proxy's configuration is kept, and all that is known of it.
#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
    /// What is there now.
    text: String,
    restart: Restart,
    /// kube-proxy's pods, on all nodes that were seen.
    pods: Vec<Pod>,
    notes: Vec<String>,
    ready: Duration,
}

/// Where kube-proxy's configuration is kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// A ConfigMap of kube-system, for all nodes at once.
    ConfigMap {
        /// Its name.
        name: String,
        /// The key whose text is the configuration.
        key: String,
        /// Its annotations.
        annotations: Labels,
    },
    /// A configuration file of this node.
    File(PathBuf),
    /// Flags in a file of this node: a manifest, or a file of arguments.
    Arguments(PathBuf),
    /// A file of this node that adds to what a distribution's configuration passes on to kube-proxy.
    Addition {
        /// The file.
        path: PathBuf,
        /// Whether it is there.
        there: bool,
    },
    /// Where kpx does not write.
    Elsewhere {
        /// What it is.
        what: String,
        /// Why kpx leaves it alone.
        why: String,
        /// What does it instead, with `MODE` for the mode.
        command: String,
    },
}

/// How kube-proxy comes to read its configuration again.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Restart {
    /// Its pod is deleted, and its DaemonSet makes another.
    Pod,
    /// Its service is restarted.
    Unit(String),
    /// The kubelet does it as soon as the manifest is written.
    Kubelet,
}

/// Why kpx does not write the configuration.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unwritable {
    /// It is somebody else's to write.
    #[error("read-only here: {what} {why}")]
    ReadOnly {
        /// Where the configuration is.
        what: String,
        /// Why kpx leaves it alone.
        why: String,
        /// The command for it.
        command: String,
    },
    /// Its text cannot be changed.
    #[error("{place}: {error}")]
    Text {
        /// Where it is.
        place: String,
        /// Why not.
        error: EditError,
    },
    /// Nothing is there to be restarted.
    #[error("{0}")]
    NoProxy(String),
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConfigMap { name, key, .. } => {
                write!(f, "ConfigMap kube-system/{name}, key {key}")
            }
            Self::File(path) | Self::Arguments(path) | Self::Addition { path, .. } => {
                write!(f, "{}", path.display())
            }
            Self::Elsewhere { what, .. } => f.write_str(what),
        }
    }
}

impl Store {
    /// Returns where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns what is there now: a configuration, or a text with flags in it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether writing it arms every node: those that are not restarted yet follow it whenever they restart.
    pub fn is_shared(&self) -> bool {
        matches!(self.place, Place::ConfigMap { .. })
    }

    /// Sets how long a new pod may take to be ready.
    #[must_use]
    pub fn ready_within(mut self, ready: Duration) -> Self {
        self.ready = ready;
        self
    }

    /// Returns the plan that sets `fields`; without steps where they are.
    pub fn configure(&self, fields: &Fields) -> Result<Plan, Unwritable> {
        let new = self.text_with(fields)?;
        let mut plan = Plan {
            notes: self.notes.clone(),
            ..Plan::default()
        };
        if new == self.text {
            plan.notes.push(format!("{} says so already", self.place));
            return Ok(plan);
        }
        let title = format!("set mode {} in {}", fields.mode, self.place);
        match &self.place {
            Place::ConfigMap {
                name,
                key,
                annotations,
            } => {
                let object = Object::of_system(Resource::ConfigMap, name);
                let text = |text: &str| Some(Value::from(text));
                let mut changes = vec![Field::new(&["data", key], text(&self.text), text(&new))];
                match self.kept(key, annotations) {
                    Ok(kept) => changes.push(kept),
                    Err(why) => plan.notes.push(why),
                }
                let undo = KubeCommand::set_back(&object, &changes);
                let command = KubeCommand::Set {
                    object,
                    fields: changes,
                };
                plan.push(
                    title,
                    Action::Kube { command },
                    Undo::Do(Action::Kube { command: undo }),
                );
            }
            Place::File(path) | Place::Arguments(path) | Place::Addition { path, .. } => {
                let write = |text: &str| Action::WriteFile {
                    path: path.clone(),
                    text: text.to_owned(),
                };
                let undo = match &self.place {
                    Place::Addition { there: false, .. } => {
                        Action::RemoveFile { path: path.clone() }
                    }
                    _ => write(&self.text),
                };
                plan.push(title, write(&new), Undo::Do(undo));
            }
            Place::Elsewhere { .. } => {}
        }
        Ok(plan)
    }

    /// Returns the annotation that keeps the text as it is now, or why it is not kept.
    fn kept(&self, key: &str, annotations: &Labels) -> Result<Field, String> {
        let short = format!("previous-{key}");
        let name = format!("kpx.dev/{short}");
        let before = annotations.get(&name);
        let others = annotations.iter().filter(|(other, _)| **other != name);
        let others: usize = others.map(|(name, text)| name.len() + text.len()).sum();
        let size = others + name.len() + self.text.len();
        if short.len() > NAME || size > ANNOTATIONS {
            return Err(format!(
                "{} does not fit into an annotation beside it, so the text as it is now is kept by kpx alone",
                self.place
            ));
        }
        Ok(Field::new(
            &["metadata", "annotations", &name],
            before.map(|text| Value::from(text.as_str())),
            Some(Value::from(self.text.as_str())),
        ))
    }

    /// Returns the plan that makes kube-proxy on `node` read its configuration again.
    pub fn restart(&self, node: &str) -> Result<Plan, Unwritable> {
        let mut plan = Plan::default();
        if let Place::Elsewhere { .. } = self.place {
            return Err(self.read_only("MODE"));
        }
        match &self.restart {
            Restart::Unit(unit) => {
                let action = Action::RestartUnit { unit: unit.clone() };
                let undo = Undo::Never("it reads what is written then when it is restarted again");
                plan.push(format!("restart {unit}"), action, undo);
            }
            Restart::Kubelet => plan.notes.push(
                "the kubelet restarts kube-proxy by itself as soon as it sees the manifest changed"
                    .to_owned(),
            ),
            Restart::Pod => self.replace_pods(node, &mut plan)?,
        }
        Ok(plan)
    }

    /// Adds the steps that put a new pod in the place of `node`'s.
    fn replace_pods(&self, node: &str, plan: &mut Plan) -> Result<(), Unwritable> {
        let of_node = self
            .pods
            .iter()
            .filter(|pod| pod.spec.node_name.as_deref() == Some(node));
        let old: Vec<&Pod> = of_node.collect();
        if old.is_empty() {
            return Err(Unwritable::NoProxy(format!(
                "no pod of kube-proxy is on node {node}: there is nothing to restart"
            )));
        }
        for pod in &old {
            let command = KubeCommand::Delete {
                object: Object::of_system(Resource::Pod, &pod.metadata.name),
                only: Only::Uid(pod.metadata.uid.clone()),
            };
            plan.push(
                format!("delete pod {} of node {node}", pod.metadata.name),
                Action::Kube { command },
                Undo::Never("its DaemonSet makes another one"),
            );
        }
        let command = KubeCommand::AwaitProxy {
            node: node.to_owned(),
            after: old.iter().map(|pod| pod.metadata.uid.clone()).collect(),
            limit: self.ready,
        };
        plan.push(
            format!("wait for the new kube-proxy of node {node}"),
            Action::Kube { command },
            Undo::Never("it changes nothing"),
        );
        Ok(())
    }

    /// Returns what `fields` change, as `diff -u` shows it; nothing where they change nothing or cannot be set.
    pub fn diff(&self, fields: &Fields) -> String {
        match self.text_with(fields) {
            Ok(new) => lines::diff(&self.place.to_string(), &self.text, &new),
            Err(_) => String::new(),
        }
    }

    /// Returns the text as it is with `fields` set.
    pub fn text_with(&self, fields: &Fields) -> Result<String, Unwritable> {
        let done = match &self.place {
            Place::ConfigMap { .. } | Place::File(_) => edit::set(&self.text, fields),
            Place::Arguments(_) => edit::set_arguments(&self.text, fields),
            Place::Addition { .. } => Ok(managed::addition(fields)),
            Place::Elsewhere { .. } => return Err(self.read_only(fields.mode.name())),
        };
        done.map_err(|error| Unwritable::Text {
            place: self.place.to_string(),
            error,
        })
    }

    fn read_only(&self, mode: &str) -> Unwritable {
        match &self.place {
            Place::Elsewhere { what, why, command } => Unwritable::ReadOnly {
                what: what.clone(),
                why: why.clone(),
                command: command.replace("MODE", mode),
            },
            place => Unwritable::NoProxy(format!("{place} is not read-only")),
        }
    }
}

/// Returns the ConfigMap called `name`.
fn named<'a>(maps: &'a [ConfigMap], name: &str) -> Option<&'a ConfigMap> {
    maps.iter().find(|map| map.metadata.name == name)
}
