//! Which nodes are moved, and in which order.

use thiserror::Error;

use crate::cluster::{Node, Pod};

/// Labels of nodes that carry the control plane.
const CONTROL_PLANE: &[&str] = &[
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// The label of nodes that load balancers leave out.
const UNBALANCED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

const ZONE: &str = "topology.kubernetes.io/zone";

/// Why nodes cannot be moved.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unfit {
    /// There is none of that name.
    #[error("there is no node {0}; there are: {1}")]
    Unknown(String, String),
    /// It could not be seen whether it does well.
    #[error("node {0} is not ready: {1}")]
    NotReady(String, String),
    /// Nothing is there to be moved.
    #[error("node {0} has no pod of kube-proxy")]
    NoProxy(String),
    /// Nobody is left.
    #[error("there is no node to move")]
    None,
}

/// Returns the names of the nodes to move: those called `wanted`, or all, in order.
///
/// The canary, which is a worker that no load balancer sends to if there is one, comes first; the other workers follow,
/// one of each zone in turn; nodes of the control plane come last.
pub fn choose(
    nodes: &[Node],
    pods: &[Pod],
    wanted: Option<&[String]>,
) -> Result<Vec<String>, Unfit> {
    let linux = |node: &&Node| {
        let system = node.metadata.labels.get("kubernetes.io/os");
        system.is_none_or(|system| system == "linux")
    };
    let mut chosen: Vec<&Node> = match wanted {
        None => nodes.iter().filter(linux).collect(),
        Some(names) => names
            .iter()
            .map(|name| {
                let node = nodes.iter().find(|node| node.metadata.name == *name);
                node.ok_or_else(|| Unfit::Unknown(name.clone(), all(nodes)))
            })
            .collect::<Result<_, _>>()?,
    };
    if chosen.is_empty() {
        return Err(Unfit::None);
    }
    for node in &chosen {
        fit(node, pods)?;
    }
    chosen.sort_by_key(|node| key(node, nodes));
    let mut names: Vec<String> = Vec::new();
    for node in chosen {
        if !names.contains(&node.metadata.name) {
            names.push(node.metadata.name.clone());
        }
    }
    Ok(names)
}

fn all(nodes: &[Node]) -> String {
    let mut names: Vec<&str> = nodes
        .iter()
        .map(|node| node.metadata.name.as_str())
        .collect();
    names.sort_unstable();
    names.join(", ")
}

fn fit(node: &Node, pods: &[Pod]) -> Result<(), Unfit> {
    let name = &node.metadata.name;
    let ready = node.status.conditions.iter().find(|c| c.kind == "Ready");
    if let Some(condition) = ready.filter(|condition| condition.status != "True") {
        let why = match condition.message.as_str() {
            "" => format!("its condition Ready is {}", condition.status),
            message => message.to_owned(),
        };
        return Err(Unfit::NotReady(name.clone(), why));
    }
    let here = |pod: &Pod| pod.spec.node_name.as_deref() == Some(name);
    if pods.iter().any(here) {
        Ok(())
    } else {
        Err(Unfit::NoProxy(name.clone()))
    }
}

/// What a node is sorted by: its role, whether it gets traffic from outside, its turn in its zone, zone and name.
fn key(node: &Node, nodes: &[Node]) -> (bool, bool, usize, String, String) {
    let labels =
        |node: &Node, name: &str| node.metadata.labels.get(name).cloned().unwrap_or_default();
    let has = |name: &str| node.metadata.labels.contains_key(name);
    let zone = labels(node, ZONE);
    let name = node.metadata.name.clone();
    let before = |other: &&Node| labels(other, ZONE) == zone && other.metadata.name < name;
    let turn = nodes.iter().filter(before).count();
    let control = CONTROL_PLANE.iter().any(|label| has(label));
    (control, !has(UNBALANCED), turn, zone, name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, labels: &serde_json::Value, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn pods(names: &[&str]) -> Vec<Pod> {
        let pods = names.iter().map(|name| json!({"spec": {"nodeName": name}}));
        pods.map(|pod| serde_json::from_value(pod).unwrap())
            .collect()
    }

    #[test]
    fn a_worker_is_first_and_the_control_plane_last() {
        let zone = |zone: &str| json!({"topology.kubernetes.io/zone": zone});
        let nodes = [
            node(
                "a",
                &json!({"node-role.kubernetes.io/control-plane": ""}),
                "True",
            ),
            node("b", &zone("1"), "True"),
            node("c", &zone("1"), "True"),
            node("d", &zone("2"), "True"),
            node(
                "e",
                &json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""}),
                "True",
            ),
            node("w", &json!({"kubernetes.io/os": "windows"}), "True"),
        ];
        let pods = pods(&["a", "b", "c", "d", "e"]);
        assert_eq!(
            choose(&nodes, &pods, None).unwrap(),
            ["e", "b", "d", "c", "a"]
        );
        let wanted = ["a".to_owned(), "c".to_owned(), "a".to_owned()];
        assert_eq!(choose(&nodes, &pods, Some(&wanted)).unwrap(), ["c", "a"]);
    }

    #[test]
    fn who_is_not_fit_is_named() {
        let nodes = [
            node("a", &json!({}), "True"),
            node("b", &json!({}), "Unknown"),
        ];
        let pods = pods(&["b"]);
        let of = |name: &str| choose(&nodes, &pods, Some(&[name.to_owned()])).unwrap_err();
        assert_eq!(of("a"), Unfit::NoProxy("a".to_owned()));
        assert_eq!(
            of("b").to_string(),
            "node b is not ready: its condition Ready is Unknown"
        );
        assert_eq!(of("x").to_string(), "there is no node x; there are: a, b");
        assert_eq!(choose(&[], &pods, None), Err(Unfit::None));
    }
}
