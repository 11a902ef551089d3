//! Why a DaemonSet has no pod on a node.
//!
//! Source: <https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#how-daemon-pods-are-scheduled>

use serde_json::Value;

use super::node::Taint;
use super::{DaemonSet, Labels, Node, Pod};

/// Why no pod of a DaemonSet may run on a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Misplaced {
    /// Its pods do not tolerate this taint, as `KEY=VALUE:EFFECT`.
    Taint(String),
    /// Its `nodeSelector` asks for this label, as `KEY=VALUE`.
    Selector(String),
    /// Its node affinity does not match the labels of the node.
    Affinity,
}

/// Taints that the DaemonSet controller lets every pod of its own tolerate.
const TOLERATED: [&str; 6] = [
    "not-ready",
    "unreachable",
    "disk-pressure",
    "memory-pressure",
    "pid-pressure",
    "unschedulable",
];

impl DaemonSet {
    /// Returns why none of its pods may run on `node`; `None` if one may, or if a field is not understood.
    pub fn misplaced(&self, node: &Node) -> Option<Misplaced> {
        let spec = &self.spec.template.spec;
        let labels = &node.metadata.labels;
        let lacks = |(key, value): &(&String, &String)| labels.get(*key) != Some(value);
        if let Some((key, value)) = spec.node_selector.iter().find(lacks) {
            return Some(Misplaced::Selector(format!("{key}={value}")));
        }
        let terms = spec.affinity.pointer(
            "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
        );
        let terms = terms.and_then(Value::as_array);
        // A term with fields is about the name of a node.
        if terms.is_some_and(|all| all.iter().all(|term| matches(term, labels) == Some(false))) {
            return Some(Misplaced::Affinity);
        }
        let is_kept = |taint: &&Taint| {
            let name = taint.key.strip_prefix("node.kubernetes.io/");
            let is_own = name.is_some_and(|name| {
                TOLERATED.contains(&name) || name == "network-unavailable" && spec.host_network
            });
            matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
                && !is_own
                && !spec.tolerations.iter().any(|one| tolerates(one, taint))
        };
        let taint = node.spec.taints.iter().find(is_kept)?;
        let value = match taint.value.as_str() {
            "" => String::new(),
            value => format!("={value}"),
        };
        Some(Misplaced::Taint(format!(
            "{}{value}:{}",
            taint.key, taint.effect
        )))
    }
}

impl Pod {
    /// Returns whether it is on the node called `node`, or is to be: the DaemonSet controller names the node in the affinity of a pod
    /// that is not scheduled yet.
    pub fn belongs_to(&self, node: &str) -> bool {
        let terms = || {
            let all = self.spec.affinity.pointer(
                "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
            )?;
            all.as_array()
        };
        let names = |term: &Value| {
            let fields = term.get("matchFields").and_then(Value::as_array);
            let mut fields = fields.into_iter().flatten();
            fields.any(|field| {
                let values = field.get("values").and_then(Value::as_array);
                field.get("key").and_then(Value::as_str) == Some("metadata.name")
                    && values.is_some_and(|all| all.iter().any(|field| field == node))
            })
        };
        match &self.spec.node_name {
            Some(on) => on == node,
            None => terms().is_some_and(|all| all.iter().any(names)),
        }
    }
}

/// Returns whether a toleration is one of `taint`.
fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let text = |name: &str| {
        toleration
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (key, effect) = (text("key"), text("effect"));
    let has_effect = effect.is_empty() || effect == taint.effect;
    let has_value = text("operator") == "Exists" || text("value") == taint.value;
    has_effect && (key.is_empty() && text("operator") == "Exists" || key == taint.key && has_value)
}

/// Returns whether a term of a node affinity matches `labels`; `None` if it asks for more than these.
fn matches(term: &Value, labels: &Labels) -> Option<bool> {
    if term.get("matchFields").is_some() {
        return None;
    }
    let asked = term.get("matchExpressions")?.as_array()?;
    let holds = |expression: &Value| {
        let has = labels.get(expression.get("key")?.as_str()?);
        let values = expression.get("values").and_then(Value::as_array);
        let is_in = || {
            has.is_some_and(|has| {
                values
                    .into_iter()
                    .flatten()
                    .any(|value| value == has.as_str())
            })
        };
        Some(match expression.get("operator")?.as_str()? {
            "In" => is_in(),
            "NotIn" => !is_in(),
            "Exists" => has.is_some(),
            "DoesNotExist" => has.is_none(),
            _ => return None,
        })
    };
    let all: Option<Vec<bool>> = asked.iter().map(holds).collect();
    Some(all?.into_iter().all(|holds| holds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn why(spec: &Value, node: &Value) -> Option<Misplaced> {
        let set = json!({"spec": {"template": {"spec": spec}}});
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        set.misplaced(&serde_json::from_value(node.clone()).unwrap())
    }

    #[test]
    fn taints_labels_and_affinity_keep_pods_off() {
        let gpu = json!({"metadata": {"labels": {"os": "linux"}}, "spec": {"taints": [
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
            {"key": "soft", "effect": "PreferNoSchedule"},
            {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
        ]}});
        let taint = Some(Misplaced::Taint("dedicated=gpu:NoSchedule".to_owned()));
        let none = json!({});
        assert_eq!(why(&none, &gpu), taint);
        for (toleration, is_kept) in [
            (json!({"operator": "Exists"}), false),
            (json!({"key": "dedicated", "operator": "Exists"}), false),
            (
                json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}),
                false,
            ),
            (json!({"key": "dedicated", "value": "cpu"}), true),
            (
                json!({"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}),
                true,
            ),
            (json!({"key": "other", "operator": "Exists"}), true),
        ] {
            let spec = json!({"tolerations": [toleration]});
            assert_eq!(why(&spec, &gpu).is_some(), is_kept, "{spec}");
        }
        let plain = json!({"metadata": {"labels": {"os": "linux"}}});
        let selects = json!({"nodeSelector": {"os": "linux", "role": "edge"}});
        let label = Some(Misplaced::Selector("role=edge".to_owned()));
        assert_eq!(why(&selects, &plain), label);
        let asks = |expression: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
        };
        for (expression, is_kept) in [
            (
                json!({"key": "os", "operator": "In", "values": ["linux"]}),
                false,
            ),
            (
                json!({"key": "os", "operator": "NotIn", "values": ["linux"]}),
                true,
            ),
            (
                json!({"key": "proxyless", "operator": "DoesNotExist"}),
                false,
            ),
            (json!({"key": "role", "operator": "Exists"}), true),
            (
                json!({"key": "cores", "operator": "Gt", "values": ["4"]}),
                false,
            ),
        ] {
            let found = why(&asks(expression.clone()), &plain);
            assert_eq!(
                found,
                is_kept.then_some(Misplaced::Affinity),
                "{expression}"
            );
        }
    }
}
