//! Changes to objects of the cluster, as data.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::yaml::yaml;

/// The label, with its value, of objects that kpx created and may delete.
pub const OURS: (&str, &str) = ("app.kubernetes.io/managed-by", "kpx");

/// The label of the Job and the pod through which kpx reads a node; its value is the name of the Job.
pub const READER: &str = "kpx.dev/reader";

/// kpx in a container into which it copied itself.
pub const COPY: &str = "/kpx/kpx";

/// The file in a container of kpx that starts its main process.
pub const START: &str = "/kpx/start";

/// The file in a container of kpx that shows that kpx has held its standard input.
pub const HELD: &str = "/kpx/held";

/// The file with the plan that the main process carries out.
pub const PLAN: &str = "/kpx/plan";

/// Returns the start of the command of a container that waits for a copy of kpx and then runs it.
///
/// kpx holds the container's standard input until the copy is complete. If kpx dies before, the container ends with `status`.
/// A container that is restarted has its copy.
pub fn waits_for_copy(status: u8) -> Vec<String> {
    let script = format!(
        "until [ -e {START} ]; do read -r line || [ -e {START} ] || exit {status}; : > {HELD}; done; exec \"$@\" </dev/null"
    );
    ["sh", "-c", &script, "kpx", COPY]
        .map(str::to_owned)
        .to_vec()
}

/// The label, with its value, of kube-proxy's pods.
pub const PROXY_LABEL: (&str, &str) = ("k8s-app", "kube-proxy");

/// The label of a Node that has the second kube-proxy in a migration; its value is the name of the copies of kube-proxy's
/// ConfigMap and DaemonSet.
pub const COPY_LABEL: &str = "kpx.dev/kube-proxy";

/// One change to the cluster.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KubeCommand {
    /// Sets fields of an object; fails if they changed since they were read.
    Set {
        /// The object.
        object: Object,
        /// The fields, written at once, at the resource version at which they were compared.
        fields: Vec<Field>,
    },
    /// Creates an object.
    Create {
        /// The object.
        object: Object,
        /// The whole object.
        body: Value,
    },
    /// Deletes an object.
    Delete {
        /// The object.
        object: Object,
        /// A condition on the object.
        only: Only,
    },
    /// Evicts a pod, unless a disruption budget refuses it.
    Evict {
        /// The pod.
        pod: Object,
        /// Its unique id.
        uid: String,
    },
    /// Waits until a new kube-proxy pod on a node is ready.
    AwaitProxy {
        /// The node.
        node: String,
        /// The unique ids of the old pods.
        after: Vec<String>,
        /// How long to wait.
        limit: Duration,
        /// Whether its image could not be pulled before: if it still cannot, the wait ends at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unpulled: bool,
    },
}

/// A kind of object.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// A `ConfigMap`.
    ConfigMap,
    /// A `DaemonSet`.
    DaemonSet,
    /// A `Node`.
    Node,
    /// A `Pod`.
    Pod,
    /// A `Lease`.
    Lease,
    /// A `Job`.
    Job,
}

/// An object by its name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Object {
    /// The kind.
    pub resource: Resource,
    /// The namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

/// One field of an object: its old value and its new one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Field {
    /// The path of keys to it.
    pub path: Vec<String>,
    /// The value that was read; `None` if there was none.
    pub from: Option<Value>,
    /// The value to write; `None` removes the field.
    pub to: Option<Value>,
}

/// A condition on an object, in addition to its name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Only {
    /// It has this unique id.
    Uid(String),
    /// kpx created it: it has the label [`OURS`].
    Ours,
}

impl Resource {
    /// Returns the API group with its version, as in `apiVersion`.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::ConfigMap | Self::Node | Self::Pod => "v1",
            Self::DaemonSet => "apps/v1",
            Self::Lease => "coordination.k8s.io/v1",
            Self::Job => "batch/v1",
        }
    }

    /// Returns the kind, as in `kind`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::DaemonSet => "DaemonSet",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Lease => "Lease",
            Self::Job => "Job",
        }
    }

    /// Returns the plural, as in a path or a role.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::DaemonSet => "daemonsets",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Lease => "leases",
            Self::Job => "jobs",
        }
    }

    /// Returns the plural with the API group, as errors of the API server have it.
    pub fn grouped(self) -> String {
        match self.api_version().rsplit_once('/') {
            Some((group, _)) => format!("{}.{group}", self.plural()),
            None => self.plural().to_owned(),
        }
    }
}

impl Object {
    /// Returns the object `name` of the namespace kube-system.
    pub fn of_system(resource: Resource, name: impl Into<String>) -> Self {
        Self {
            resource,
            namespace: Some("kube-system".to_owned()),
            name: name.into(),
        }
    }

    /// Returns the Pod `name` of `namespace`.
    pub fn pod(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            resource: Resource::Pod,
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Returns the Node called `name`.
    pub fn node(name: impl Into<String>) -> Self {
        Self {
            resource: Resource::Node,
            namespace: None,
            name: name.into(),
        }
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.kind())?;
        match &self.namespace {
            Some(namespace) => write!(f, " {namespace}/{}", self.name),
            None => write!(f, " {}", self.name),
        }
    }
}

impl Field {
    /// Returns the field at `path` with its old value `from` and its new value `to`.
    pub fn new(path: &[&str], from: Option<Value>, to: Option<Value>) -> Self {
        Self {
            path: path.iter().map(|&key| key.to_owned()).collect(),
            from,
            to,
        }
    }

    /// Returns its undo.
    #[must_use]
    pub fn back(&self) -> Self {
        Self {
            path: self.path.clone(),
            from: self.to.clone(),
            to: self.from.clone(),
        }
    }

    /// Returns its value in `object`.
    pub fn of<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        let mut place = object;
        for key in &self.path {
            place = place.get(key)?;
        }
        (!place.is_null()).then_some(place)
    }
}

impl KubeCommand {
    /// Returns the command that restores `fields`.
    pub fn set_back(object: &Object, fields: &[Field]) -> Self {
        Self::Set {
            object: object.clone(),
            fields: fields.iter().map(Field::back).collect(),
        }
    }
}

/// Returns `fields` as a JSON merge patch.
pub fn merge_patch(fields: &[Field]) -> Value {
    let mut patch = Value::Object(Map::new());
    for field in fields {
        let mut place = &mut patch;
        for key in &field.path {
            // Indexing creates the entry; null becomes an object.
            place = &mut place[key.as_str()];
        }
        *place = field.to.clone().unwrap_or_default();
    }
    patch
}

impl Display for KubeCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { object, fields } => {
                if let Some(command) = node_command(object, fields) {
                    return f.write_str(&command);
                }
                let command = kubectl(object, "patch");
                let command = format!("{command} --type merge --patch-file /dev/stdin");
                super::change::fed(f, &command, &yaml(&merge_patch(fields)))
            }
            Self::Create { object, body } => {
                let command = match &object.namespace {
                    Some(namespace) => format!("kubectl -n {namespace} create -f -"),
                    None => "kubectl create -f -".to_owned(),
                };
                super::change::fed(f, &command, &yaml(body))
            }
            Self::Delete { object, only } => {
                f.write_str(&kubectl(object, "delete"))?;
                match only {
                    Only::Uid(uid) => write!(f, " --wait=false # uid {uid}"),
                    Only::Ours => write!(f, " --wait=false # if {}={}", OURS.0, OURS.1),
                }
            }
            // `kubectl` has no command that evicts one pod.
            Self::Evict { pod, uid } => {
                let namespace = pod.namespace.as_deref().unwrap_or_default();
                let path = format!("/api/v1/namespaces/{namespace}/pods/{}/eviction", pod.name);
                let command = format!("kubectl create --raw {path} -f -");
                super::change::fed(f, &command, &eviction(pod, uid).to_string())
            }
            Self::AwaitProxy { node, limit, .. } => write!(
                f,
                "kubectl -n kube-system wait pod -l {}={} --field-selector spec.nodeName={node} \
                 --for condition=Ready --timeout {}s",
                PROXY_LABEL.0,
                PROXY_LABEL.1,
                limit.as_secs()
            ),
        }
    }
}

/// Returns the start of the `kubectl` command `verb` on `object`.
fn kubectl(object: &Object, verb: &str) -> String {
    let namespace = object.namespace.as_ref();
    let namespace = namespace.map_or(String::new(), |name| format!(" -n {name}"));
    let kind = object.resource.kind().to_lowercase();
    format!("kubectl{namespace} {verb} {kind} {}", object.name)
}

/// Returns the body of the request that evicts the `pod` with the unique id `uid`.
pub fn eviction(pod: &Object, uid: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    })
}

/// The field of a cordoned Node.
pub const UNSCHEDULABLE: [&str; 2] = ["spec", "unschedulable"];

/// Returns the short `kubectl` command for `fields`, if they are one label of a Node, or cordon or uncordon it.
fn node_command(object: &Object, fields: &[Field]) -> Option<String> {
    let [field] = fields else { return None };
    if object.resource != Resource::Node {
        return None;
    }
    let name = &object.name;
    if field.path == UNSCHEDULABLE {
        let cordons = field.to == Some(Value::Bool(true));
        let verb = if cordons { "cordon" } else { "uncordon" };
        return Some(format!("kubectl {verb} {name}"));
    }
    let [metadata, labels, key] = field.path.as_slice() else {
        return None;
    };
    if metadata != "metadata" || labels != "labels" {
        return None;
    }
    let label = match &field.to {
        None => format!("{key}-"),
        Some(value) => format!("{key}={}", value.as_str()?),
    };
    Some(format!("kubectl label node {name} {label} --overwrite"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_is_printed_as_it_is_written() {
        let set = KubeCommand::Set {
            object: Object::of_system(Resource::ConfigMap, "kube-proxy"),
            fields: vec![
                Field::new(
                    &["data", "config.conf"],
                    Some(json!("mode: \"\"\n")),
                    Some(json!("a: 1\n\nmode: ipvs\n")),
                ),
                Field::new(&["metadata", "annotations", "a/b"], Some(json!("x")), None),
            ],
        };
        assert_eq!(
            set.to_string(),
            "kubectl -n kube-system patch configmap kube-proxy --type merge --patch-file /dev/stdin <<'EOF'\n\
             data:\n  config.conf: |\n    a: 1\n\n    mode: ipvs\nmetadata:\n  annotations:\n    a/b: null\nEOF"
        );
    }

    #[test]
    fn a_label_is_set_and_removed() {
        let path = ["metadata", "labels", "kpx.dev/mode"];
        let field = Field::new(&path, None, Some(json!("ipvs")));
        let node = Object::node("n1");
        let back = KubeCommand::set_back(&node, std::slice::from_ref(&field));
        let set = KubeCommand::Set {
            object: node,
            fields: vec![field],
        };
        assert_eq!(
            set.to_string(),
            "kubectl label node n1 kpx.dev/mode=ipvs --overwrite"
        );
        assert_eq!(
            back.to_string(),
            "kubectl label node n1 kpx.dev/mode- --overwrite"
        );
    }

    #[test]
    fn a_node_is_cordoned_and_a_pod_is_evicted() {
        let field = Field::new(&UNSCHEDULABLE, None, Some(json!(true)));
        let node = Object::node("n1");
        let back = KubeCommand::set_back(&node, std::slice::from_ref(&field));
        let set = KubeCommand::Set {
            object: node,
            fields: vec![field],
        };
        assert_eq!(set.to_string(), "kubectl cordon n1");
        assert_eq!(back.to_string(), "kubectl uncordon n1");
        let evict = KubeCommand::Evict {
            pod: Object::pod("default", "web-1"),
            uid: "u".to_owned(),
        };
        assert_eq!(
            evict.to_string(),
            "kubectl create --raw /api/v1/namespaces/default/pods/web-1/eviction -f - <<'EOF'\n\
             {\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"web-1\",\"namespace\":\"default\"},\
             \"deleteOptions\":{\"preconditions\":{\"uid\":\"u\"}}}\nEOF"
        );
    }
}
