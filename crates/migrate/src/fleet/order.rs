//! Which nodes migrate, and in which order.

use thiserror::Error;

use kpx_node::cluster::{Node, Pod};

/// Labels of nodes that carry the control plane.
const CONTROL_PLANE: &[&str] = &[
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// The label of nodes that external load balancers exclude.
const UNBALANCED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

const ZONE: &str = "topology.kubernetes.io/zone";

/// Why nodes cannot migrate.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Unfit {
    /// No node has that name; the names that exist.
    #[error("node {0} not found; nodes of the cluster: {1}")]
    Unknown(String, String),
    /// The node is not ready, and why.
    #[error("node {0} is not ready: {1}")]
    NotReady(String, String),
    /// The node runs no kube-proxy.
    #[error("node {0} has no kube-proxy pod")]
    NoProxy(String),
    /// No node is left.
    #[error("no node to migrate")]
    None,
}

/// Returns the names of the nodes to migrate, in order: the `wanted` ones, or all.
///
/// The canary comes first: a worker without traffic from external load balancers, if there is one. The other workers
/// follow, one of each zone in turn. Nodes of the control plane come last.
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
    let unsorted = chosen.clone();
    chosen.sort_by_cached_key(|node| key(node, &unsorted));
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
        let why = if condition.message.is_empty() {
            format!("its condition Ready is {}", condition.status)
        } else {
            condition.message.clone()
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

/// Returns the sort key of a node: its role, whether load balancers send to it, its position among the `chosen` ones with its
/// role in its zone, zone and name.
fn key(node: &Node, chosen: &[&Node]) -> (bool, bool, usize, String, String) {
    let labels =
        |node: &Node, name: &str| node.metadata.labels.get(name).cloned().unwrap_or_default();
    let has = |name: &str| node.metadata.labels.contains_key(name);
    let zone = labels(node, ZONE);
    let name = node.metadata.name.clone();
    let is_control = |node: &Node| {
        let labels = &node.metadata.labels;
        CONTROL_PLANE
            .iter()
            .any(|label| labels.contains_key(*label))
    };
    let control = is_control(node);
    let before = |other: &&&Node| {
        labels(other, ZONE) == zone && is_control(other) == control && other.metadata.name < name
    };
    let turn = chosen.iter().filter(before).count();
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
                &json!({
                    "node-role.kubernetes.io/control-plane": "",
                    "topology.kubernetes.io/zone": "1",
                }),
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
    fn an_unfit_node_is_named() {
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
        assert_eq!(
            of("x").to_string(),
            "node x not found; nodes of the cluster: a, b"
        );
        assert_eq!(choose(&[], &pods, None), Err(Unfit::None));
    }
}
