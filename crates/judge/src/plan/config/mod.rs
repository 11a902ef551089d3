//! The source of kube-proxy's configuration on a node, and how to change it.
//!
//! The configuration is written in one place and read by kube-proxy when it starts, so there are two plans: one writes
//! it, the other restarts kube-proxy. If another tool manages the configuration, kpx prints the command to use instead.

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

use kpx_node::action::{Action, Field, KubeCommand, Object, Only, Plan, Resource, Undo};
use kpx_node::cluster::edit::{self, EditError, Fields};
use kpx_node::cluster::{ConfigMap, Labels, Pod};
use kpx_node::evidence::Item;
use kpx_node::words::span;

pub use put_back::Written;

/// Items that [`ConfigSource::find`] uses.
pub const CONFIG_NEEDS: &[Item] = &[
    Item::Processes,
    Item::ProxyFiles,
    Item::ConfigMaps,
    Item::DaemonSets,
    Item::Pods,
    Item::Nodes,
];

/// Maximum total size of an object's annotations, in bytes of names and values: `TotalAnnotationSizeLimitB` in
/// `k8s.io/apimachinery/pkg/api/validation`.
const ANNOTATIONS: usize = 256 << 10;

/// Maximum length of an annotation's name after its prefix.
const NAME: usize = 63;

/// Default time limit for a new pod to become ready.
const READY: Duration = Duration::from_secs(180);

/// The source of kube-proxy's configuration.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    place: Place,
    /// Current text.
    text: String,
    restart: Restart,
    /// kube-proxy's pods, on all known nodes.
    pods: Vec<Pod>,
    notes: Vec<String>,
    ready: Duration,
}

/// The place where kube-proxy's configuration is kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// A ConfigMap in kube-system, shared by all nodes.
    ConfigMap {
        /// Name of the ConfigMap.
        name: String,
        /// Key that contains the configuration.
        key: String,
        /// Annotations of the ConfigMap.
        annotations: Labels,
    },
    /// A configuration file of this node.
    File(PathBuf),
    /// Flags in a file of this node: a manifest or an arguments file.
    Arguments(PathBuf),
    /// A file of this node that adds flags to a distribution's configuration.
    Addition {
        /// Path of the file.
        path: PathBuf,
        /// Whether the file exists.
        there: bool,
    },
    /// A place that kpx does not write to.
    Elsewhere {
        /// Name of the place.
        what: String,
        /// Reason why kpx does not write to it.
        why: String,
        /// Command to use instead, with `MODE` for the mode.
        command: String,
    },
}

/// How to make kube-proxy read its configuration again.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Restart {
    /// Delete its pod; its DaemonSet creates another.
    Pod,
    /// Restart its systemd unit.
    Unit(String),
    /// The kubelet restarts it when the manifest changes.
    Kubelet,
}

/// Why kpx does not write the configuration.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unwritable {
    /// Another tool manages it.
    #[error("kpx does not change this configuration: {what} {why}")]
    ReadOnly {
        /// Name of the place.
        what: String,
        /// Reason why kpx does not write to it.
        why: String,
        /// Command to use instead.
        command: String,
    },
    /// The text cannot be edited.
    #[error("{place}: {error}")]
    Text {
        /// Name of the place.
        place: String,
        /// Reason.
        error: EditError,
    },
    /// There is no kube-proxy to restart.
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

impl ConfigSource {
    /// Returns the place of the configuration.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the current text: a configuration, or a text that contains flags.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether all nodes share it: nodes that are not restarted yet switch to it whenever kube-proxy restarts.
    pub fn is_shared(&self) -> bool {
        matches!(self.place, Place::ConfigMap { .. })
    }

    /// Sets the time limit for a new pod to become ready.
    #[must_use]
    pub fn ready_within(mut self, ready: Duration) -> Self {
        self.ready = ready;
        self
    }

    /// Returns the plan that sets `fields`; without steps if they are set already.
    pub fn configure(&self, fields: &Fields) -> Result<Plan, Unwritable> {
        let new = self.text_with(fields)?;
        let mut plan = Plan {
            notes: self.notes.clone(),
            ..Plan::default()
        };
        if new == self.text {
            plan.notes
                .push(format!("{} already has the requested values", self.place));
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

    /// Returns the annotation that stores the current text, or why it is not stored.
    fn kept(&self, key: &str, annotations: &Labels) -> Result<Field, String> {
        let short = format!("previous-{key}");
        let name = format!("kpx.dev/{short}");
        let before = annotations.get(&name);
        let others = annotations.iter().filter(|(other, _)| **other != name);
        let others: usize = others.map(|(name, text)| name.len() + text.len()).sum();
        let size = others + name.len() + self.text.len();
        if short.len() > NAME || size > ANNOTATIONS {
            return Err(format!(
                "{} is too large for a backup annotation: only kpx's journal keeps the current text",
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
                let undo = Undo::never("a later restart reads the configuration in force then");
                plan.push(format!("restart {unit}"), action, undo);
            }
            Restart::Kubelet => plan.notes.push(
                "the kubelet restarts kube-proxy automatically when the manifest changes"
                    .to_owned(),
            ),
            Restart::Pod => self.replace_pods(node, &mut plan)?,
        }
        Ok(plan)
    }

    /// Adds the steps that replace the pods of `node`.
    fn replace_pods(&self, node: &str, plan: &mut Plan) -> Result<(), Unwritable> {
        let of_node = self
            .pods
            .iter()
            .filter(|pod| pod.spec.node_name.as_deref() == Some(node));
        let old: Vec<&Pod> = of_node.collect();
        if old.is_empty() {
            return Err(Unwritable::NoProxy(format!(
                "node {node} has no kube-proxy pod to restart"
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
                Undo::never("its DaemonSet recreates it"),
            );
        }
        let command = KubeCommand::AwaitProxy {
            node: node.to_owned(),
            after: old.iter().map(|pod| pod.metadata.uid.clone()).collect(),
            limit: self.ready,
            unpulled: old.iter().any(|pod| pod.is_unpulled()),
        };
        plan.push(
            format!(
                "wait for the new kube-proxy of node {node}, at most {}",
                span(self.ready.as_secs())
            ),
            Action::Kube { command },
            Undo::never("it changes nothing"),
        );
        Ok(())
    }

    /// Returns the change by `fields` in the format of `diff -u`; empty if nothing changes or the fields cannot be set.
    pub fn diff(&self, fields: &Fields) -> String {
        match self.text_with(fields) {
            Ok(new) => lines::diff(&self.place.to_string(), &self.text, &new),
            Err(_) => String::new(),
        }
    }

    /// Returns the current text with `fields` set.
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

/// Returns the ConfigMap `name`.
fn named<'a>(maps: &'a [ConfigMap], name: &str) -> Option<&'a ConfigMap> {
    maps.iter().find(|map| map.metadata.name == name)
}
