//! Draining a node: cordon it and evict its pods.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use kpx_node::action::{Action, Field, KubeCommand, OURS, Object, Plan, UNSCHEDULABLE, Undo};
use kpx_node::cluster::{Owner, Pod};
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;

/// Items that [`cordon`] and [`evict`] use.
pub const EVICT_NEEDS: &[Item] = &[Item::Nodes, Item::Pods];

/// Kinds of pods that may be evicted although the eviction loses something.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Consent {
    /// Pods without a controller, which nothing recreates.
    pub bare: bool,
    /// Pods with an emptyDir, whose data is lost.
    pub empty_dir: bool,
}

impl Consent {
    /// Returns whether no such pod may be evicted.
    pub const fn is_none(&self) -> bool {
        !self.bare && !self.empty_dir
    }
}

/// Why pods cannot be evicted.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unevictable {
    /// The pods are unknown.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// kpx runs in one of the pods.
    #[error(
        "kpx runs in pod {0} on this node and would evict itself: run it on the host, on another node or outside the cluster"
    )]
    Own(String),
    /// Some pods need consent, because something would be lost.
    #[error("{0}")]
    Lossy(Lossy),
}

/// Pods that need consent to be evicted, by namespace and name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lossy {
    /// Name of the node.
    pub node: String,
    /// Pods without a controller.
    pub bare: Vec<String>,
    /// Pods with an emptyDir.
    pub empty_dir: Vec<String>,
}

impl Display for Lossy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.bare.is_empty() {
            let pods = self.bare.join(", ");
            parts.push(format!(
                "pods without a controller would be lost: {pods}; pass --delete-bare-pods to evict them"
            ));
        }
        if !self.empty_dir.is_empty() {
            let pods = self.empty_dir.join(", ");
            parts.push(format!(
                "pods with an emptyDir would lose its data: {pods}; pass --delete-emptydir-data to evict \
                 them"
            ));
        }
        f.write_str(&parts.join("; "))
    }
}

impl Lossy {
    /// Returns the kubectl command that evicts these pods as well.
    pub fn command(&self) -> String {
        let mut command = format!("kubectl drain {} --ignore-daemonsets", self.node);
        if !self.bare.is_empty() {
            command.push_str(" --force");
        }
        if !self.empty_dir.is_empty() {
            command.push_str(" --delete-emptydir-data");
        }
        command
    }
}

/// Returns the plan that cordons the node. A node that is already cordoned is left cordoned afterwards.
pub fn cordon(node: &NodeSnapshot<'_>) -> Result<Plan, Gap> {
    let name = node.name()?;
    let object = node.nodes()?.iter().find(|node| node.metadata.name == name);
    let Some(object) = object else {
        let why = format!("Node {name} not found");
        return Err(Gap::Absent(Item::Nodes, why));
    };
    let mut plan = Plan::default();
    if object.spec.unschedulable == Some(true) {
        plan.notes.push(format!(
            "node {name} is already cordoned and remains so afterwards"
        ));
        return Ok(plan);
    }
    let from = object.spec.unschedulable.map(Value::Bool);
    let fields = vec![Field::new(&UNSCHEDULABLE, from, Some(Value::Bool(true)))];
    let node = Object::node(&name);
    let command = KubeCommand::set_back(&node, &fields);
    let undo = Undo::Do(Action::Kube { command });
    let command = KubeCommand::Set {
        object: node,
        fields,
    };
    plan.push(
        format!("cordon node {name}"),
        Action::Kube { command },
        undo,
    );
    Ok(plan)
}

/// Returns the plan that evicts the node's pods, except pods of DaemonSets, mirror pods, kpx's own helper pods and
/// completed pods. `own` contains the UIDs of the pods that kpx runs in; evicting one of them is an error.
pub fn evict(
    node: &NodeSnapshot<'_>,
    consent: Consent,
    own: &[String],
) -> Result<Plan, Unevictable> {
    let name = node.name()?;
    let here = |pod: &&Pod| pod.spec.node_name.as_deref() == Some(&name);
    let mut pods: Vec<&Pod> = node.pods()?.iter().filter(here).collect();
    pods.retain(|pod| leaves(pod));
    pods.sort_by_key(|pod| (&pod.metadata.namespace, &pod.metadata.name));
    if let Some(pod) = pods.iter().find(|pod| own.contains(&pod.metadata.uid)) {
        return Err(Unevictable::Own(pod_name(pod)));
    }
    if let Some(lossy) = lossy(&name, &pods, consent) {
        return Err(Unevictable::Lossy(lossy));
    }
    let mut plan = Plan::default();
    for pod in pods {
        let of = controller(pod).map_or_else(
            || "without a controller".to_owned(),
            |owner| format!("of {} {}", owner.kind, owner.name),
        );
        let command = KubeCommand::Evict {
            pod: Object::pod(&pod.metadata.namespace, &pod.metadata.name),
            uid: pod.metadata.uid.clone(),
        };
        plan.push(
            format!("evict pod {} {of}", pod_name(pod)),
            Action::Kube { command },
            Undo::never("its controller recreates it on a node with room"),
        );
    }
    Ok(plan)
}

/// Returns how many pods [`evict`] evicts if it has consent.
pub fn evicted_count(node: &NodeSnapshot<'_>) -> Result<usize, Gap> {
    let name = node.name()?;
    let pods = node.pods()?.iter();
    let here = pods.filter(|pod| pod.spec.node_name.as_deref() == Some(&name));
    Ok(here.filter(|pod| leaves(pod)).count())
}

/// Returns the pod IPs of the pods that [`evict`] evicts.
pub fn evicted_addresses(node: &NodeSnapshot<'_>) -> Result<Vec<IpAddr>, Gap> {
    let name = node.name()?;
    let pods = node.pods()?.iter();
    let pods = pods.filter(|pod| pod.spec.node_name.as_deref() == Some(&name) && leaves(pod));
    let own = pods.filter(|pod| !pod.spec.host_network);
    let addresses = own.flat_map(|pod| &pod.status.pod_ips);
    Ok(addresses
        .filter_map(|address| address.ip.parse().ok())
        .collect())
}

fn pod_name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

fn controller(pod: &Pod) -> Option<&Owner> {
    pod.metadata.owners.iter().find(|owner| owner.controller)
}

/// Returns whether `pod` is to be evicted.
fn leaves(pod: &Pod) -> bool {
    let metadata = &pod.metadata;
    let ended = pod.has_ended();
    let stays = controller(pod)
        .is_some_and(|controller| matches!(controller.kind.as_str(), "DaemonSet" | "Node"));
    let ours = metadata.namespace == "kube-system"
        && metadata
            .labels
            .get(OURS.0)
            .is_some_and(|value| value == OURS.1);
    !(ended || pod.is_static() || stays || ours)
}

fn lossy(node: &str, pods: &[&Pod], consent: Consent) -> Option<Lossy> {
    let staying = |fits: &dyn Fn(&Pod) -> bool| {
        // Terminating pods need no consent.
        let of = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && fits(pod));
        of.map(|pod| pod_name(pod)).collect::<Vec<_>>()
    };
    let bare = |pod: &Pod| !consent.bare && controller(pod).is_none();
    let empty_dir = |pod: &Pod| {
        let mut volumes = pod.spec.volumes.iter();
        !consent.empty_dir && volumes.any(|volume| volume.get("emptyDir").is_some())
    };
    let lossy = Lossy {
        node: node.to_owned(),
        bare: staying(&bare),
        empty_dir: staying(&empty_dir),
    };
    (!lossy.bare.is_empty() || !lossy.empty_dir.is_empty()).then_some(lossy)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kpx_node::evidence::Evidence;

    fn owner(kind: &str) -> Value {
        json!([{"kind": kind, "name": "o", "controller": true}])
    }

    fn pod(name: &str, metadata: &Value, spec: &Value, phase: &str) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": {"nodeName": "n1"},
            "status": {"phase": phase},
        });
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            let more = more.as_object().unwrap().clone();
            pod[part].as_object_mut().unwrap().extend(more);
        }
        pod
    }

    fn node(unschedulable: &Value, pods: &[Value]) -> Evidence {
        let mut evidence = Evidence::default();
        let nodes = json!({"items": [{"metadata": {"name": "n1"}, "spec": {"unschedulable": unschedulable}}]});
        evidence.insert(Item::Nodes, Ok(nodes.to_string()));
        evidence.insert(Item::Pods, Ok(json!({"items": pods}).to_string()));
        evidence
    }

    fn titles(plan: &Plan) -> Vec<&str> {
        plan.steps.iter().map(|step| step.title.as_str()).collect()
    }

    #[test]
    fn pods_with_a_controller_are_evicted() {
        let none = json!({});
        let of = |kind| json!({"ownerReferences": owner(kind)});
        let pods = [
            pod("web", &of("ReplicaSet"), &none, "Running"),
            pod("agent", &of("DaemonSet"), &none, "Running"),
            pod("static", &of("Node"), &none, "Running"),
            pod(
                "mirror",
                &json!({"annotations": {"kubernetes.io/config.mirror": "x"}}),
                &none,
                "Running",
            ),
            pod("done", &of("Job"), &none, "Succeeded"),
            pod(
                "kpx",
                &json!({"namespace": "kube-system", "labels": {(OURS.0): OURS.1}}),
                &none,
                "Running",
            ),
            pod("far", &none, &json!({"nodeName": "n2"}), "Running"),
            pod("db", &of("StatefulSet"), &none, "Pending"),
        ];
        let evidence = node(&Value::Null, &pods);
        let evidence = NodeSnapshot::new(&evidence);
        let plan = evict(&evidence, Consent::default(), &[]).unwrap();
        assert_eq!(
            titles(&plan),
            [
                "evict pod default/db of StatefulSet o",
                "evict pod default/web of ReplicaSet o"
            ]
        );
        let own = ["uid-web".to_owned()];
        let refused = evict(&evidence, Consent::default(), &own).unwrap_err();
        assert_eq!(refused, Unevictable::Own("default/web".to_owned()));
    }

    #[test]
    fn pods_that_would_be_lost_need_consent() {
        let volume = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        let pods = [
            pod("bare", &json!({}), &json!({}), "Running"),
            pod(
                "cache",
                &json!({"ownerReferences": owner("ReplicaSet")}),
                &volume,
                "Running",
            ),
            pod(
                "gone",
                &json!({"deletionTimestamp": "2026-11-20T13:00:00Z"}),
                &volume,
                "Running",
            ),
        ];
        let evidence = node(&Value::Null, &pods);
        let evidence = NodeSnapshot::new(&evidence);
        let Err(Unevictable::Lossy(lossy)) = evict(&evidence, Consent::default(), &[]) else {
            panic!();
        };
        assert_eq!(
            (&lossy.bare[..], &lossy.empty_dir[..]),
            (
                &["default/bare".to_owned()][..],
                &["default/cache".to_owned()][..]
            )
        );
        assert_eq!(
            lossy.command(),
            "kubectl drain n1 --ignore-daemonsets --force --delete-emptydir-data"
        );
        let bare = Consent {
            bare: true,
            empty_dir: false,
        };
        let Err(Unevictable::Lossy(lossy)) = evict(&evidence, bare, &[]) else {
            panic!();
        };
        assert_eq!(lossy.bare, Vec::<String>::new());
        let all = Consent {
            bare: true,
            empty_dir: true,
        };
        assert_eq!(evict(&evidence, all, &[]).unwrap().steps.len(), 3);
    }

    #[test]
    fn a_cordoned_node_stays_cordoned() {
        let back = |unschedulable: &Value| {
            let evidence = node(unschedulable, &[]);
            let plan = cordon(&NodeSnapshot::new(&evidence)).unwrap();
            let steps = plan.steps.iter();
            steps
                .map(|step| format!("{} / {}", step.action, step.undo))
                .collect::<Vec<_>>()
        };
        let cordons = ["kubectl cordon n1 / kubectl uncordon n1"];
        assert_eq!(back(&Value::Null), cordons);
        assert_eq!(back(&json!(false)), cordons);
        assert_eq!(back(&json!(true)), [""; 0]);
    }
}
