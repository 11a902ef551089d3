//! Copies of kube-proxy's ConfigMap and DaemonSet, for the nodes that migrate.
//!
//! A label of the Node selects the first or the second DaemonSet, so only that label changes a node's mode; a restart does
//! not. While there are two, the first DaemonSet has the update strategy `OnDelete`: otherwise its new affinity would restart
//! kube-proxy on all nodes.

use serde_json::{Value, json};

use super::digest;
use kpx_node::action::{COPY_LABEL, Field, KubeCommand, OURS, Object, Resource};

/// The annotation in which the first DaemonSet keeps its original fields while there are two.
const KEPT: &str = "kpx.dev/before-copy";

/// The copies.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Copies {
    /// The name of both, and the value of the label.
    pub name: String,
    map: Value,
    set: Value,
}

impl Copies {
    /// Returns copies of `map` and `set`, with `text` under `key`.
    pub fn of(map: &Value, set: &Value, key: &str, text: &str) -> Self {
        let name = format!("kube-proxy-kpx-{}", digest(text));
        Self {
            map: map_copy(map, &name, key, text),
            set: set_copy(set, &name, word(&map["metadata"]["name"])),
            name,
        }
    }

    /// Returns the command that makes the ConfigMap.
    pub fn create_map(&self) -> KubeCommand {
        KubeCommand::Create {
            object: Object::of_system(Resource::ConfigMap, &self.name),
            body: self.map.clone(),
        }
    }

    /// Returns the command that makes the DaemonSet.
    pub fn create_set(&self) -> KubeCommand {
        KubeCommand::Create {
            object: Object::of_system(Resource::DaemonSet, &self.name),
            body: self.set.clone(),
        }
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn labels(of: &Value, more: &[(&str, &str)]) -> Value {
    let mut labels = of["metadata"]["labels"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    for (name, value) in more {
        labels.insert((*name).to_owned(), Value::from(*value));
    }
    Value::Object(labels)
}

fn map_copy(map: &Value, name: &str, key: &str, text: &str) -> Value {
    let mut data = map["data"].as_object().cloned().unwrap_or_default();
    data.insert(key.to_owned(), Value::from(text));
    let mut copy = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels(map, &[OURS])},
        "data": data,
    });
    if let Some(binary) = map.get("binaryData") {
        copy["binaryData"] = binary.clone();
    }
    copy
}

fn set_copy(set: &Value, name: &str, map: &str) -> Value {
    let mut spec = set["spec"].clone();
    spec["selector"] = json!({"matchLabels": {(COPY_LABEL): name}});
    let template = &mut spec["template"];
    let own = labels(template, &[(COPY_LABEL, name)]);
    template["metadata"]["labels"] = own;
    for volume in template["spec"]["volumes"]
        .as_array_mut()
        .into_iter()
        .flatten()
    {
        if volume["configMap"]["name"] == map {
            volume["configMap"]["name"] = Value::from(name);
        }
    }
    let rule = ruled(&template["spec"], "In", name);
    write(&mut template["spec"], &rule);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels(set, &[OURS])},
        "spec": spec,
    })
}

/// The keys that lead from the specification of a pod to the rules for its node.
const RULES: [&str; 4] = [
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];

/// Returns the field of a template's specification to which a node affinity is added, with its new value: the deepest one,
/// so that nothing else is written.
fn ruled(spec: &Value, operator: &str, name: &str) -> Field {
    let rule = json!({"key": COPY_LABEL, "operator": operator, "values": [name]});
    let mut place = spec;
    let mut depth = 0;
    while let Some(inner) = RULES
        .get(depth)
        .and_then(|key| place.get(key))
        .filter(|v| !v.is_null())
    {
        place = inner;
        depth += 1;
    }
    if depth < RULES.len() {
        let inside = RULES[depth + 1..].iter().rev();
        let terms = json!([{"matchExpressions": [rule]}]);
        let value = inside.fold(terms, |value, key| json!({(*key): value}));
        return Field::new(&RULES[..=depth], None, Some(value));
    }
    let mut terms = place.clone();
    // The terms are alternatives, so each gets the rule.
    for term in terms.as_array_mut().into_iter().flatten() {
        match term["matchExpressions"].as_array_mut() {
            Some(rules) => rules.push(rule.clone()),
            None => term["matchExpressions"] = json!([rule]),
        }
    }
    Field::new(&RULES, Some(place.clone()), Some(terms))
}

/// Writes `field` of `object`.
fn write(object: &mut Value, field: &Field) {
    let Some((last, above)) = field.path.split_last() else {
        return;
    };
    let mut place = object;
    for key in above {
        place = &mut place[key.as_str()];
    }
    match &field.to {
        Some(value) => place[last.as_str()] = value.clone(),
        None => {
            place.as_object_mut().and_then(|map| map.remove(last));
        }
    }
}

/// Returns the first DaemonSet as it was before [`narrow`].
pub fn original(set: &Value) -> Value {
    let mut original = set.clone();
    if let Some(KubeCommand::Set { fields, .. }) = widen(set) {
        for field in &fields {
            write(&mut original, field);
        }
    }
    original
}

/// Returns the command that excludes nodes with the label `name` from the first DaemonSet, `set`; `None` if they are
/// excluded.
pub fn narrow(set: &Value, name: &str) -> Option<KubeCommand> {
    if !set["metadata"]["annotations"][KEPT].is_null() {
        return None;
    }
    let mut rule = ruled(&set["spec"]["template"]["spec"], "NotIn", name);
    let above = ["spec", "template", "spec"].map(str::to_owned);
    rule.path.splice(0..0, above);
    let strategy = &set["spec"]["updateStrategy"];
    let part = |key: &str| strategy.get(key).filter(|value| !value.is_null()).cloned();
    let path = |key| ["spec", "updateStrategy", key];
    let mut fields = vec![
        rule,
        Field::new(&path("type"), part("type"), Some(json!("OnDelete"))),
        Field::new(&path("rollingUpdate"), part("rollingUpdate"), None),
    ];
    let kept = serde_json::to_string(&fields).ok()?;
    fields.push(Field::new(
        &["metadata", "annotations", KEPT],
        None,
        Some(Value::from(kept)),
    ));
    Some(KubeCommand::Set {
        object: Object::of_system(Resource::DaemonSet, word(&set["metadata"]["name"])),
        fields,
    })
}

/// Returns the command that restores the first DaemonSet, `set`; `None` if it has its original fields.
pub fn widen(set: &Value) -> Option<KubeCommand> {
    let kept = &set["metadata"]["annotations"][KEPT];
    let fields: Vec<Field> = serde_json::from_str(kept.as_str()?).ok()?;
    let mut fields: Vec<Field> = fields.iter().map(Field::back).collect();
    fields.push(Field::new(
        &["metadata", "annotations", KEPT],
        Some(kept.clone()),
        None,
    ));
    Some(KubeCommand::Set {
        object: Object::of_system(Resource::DaemonSet, word(&set["metadata"]["name"])),
        fields,
    })
}

/// Returns whether every node that `set` selects has a ready pod of its current template.
pub fn is_rolled_out(set: &Value) -> bool {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let status = &set["status"];
    let wanted = number(&status["desiredNumberScheduled"]);
    // With OnDelete, pods of an older revision stay until they are deleted: revisions of a migration differ in their nodes alone.
    let replaces = set["spec"]["updateStrategy"]["type"] != "OnDelete";
    number(&status["observedGeneration"]) >= number(&set["metadata"]["generation"])
        && (!replaces || number(&status["updatedNumberScheduled"]) == wanted)
        && number(&status["numberReady"]) == wanted
}

/// Returns the command that sets the label of `node` from `from` to `to`.
pub fn label(node: &str, from: Option<&str>, to: Option<&str>) -> KubeCommand {
    KubeCommand::Set {
        object: Object::node(node),
        fields: vec![Field::new(
            &["metadata", "labels", COPY_LABEL],
            from.map(Value::from),
            to.map(Value::from),
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spec: &Value) -> Value {
        json!({
            "metadata": {"name": "kube-proxy", "labels": {"a": "b"}},
            "spec": {
                "selector": {"matchLabels": {"k8s-app": "kube-proxy"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
                "template": {"metadata": {"labels": {"k8s-app": "kube-proxy"}}, "spec": spec},
            },
        })
    }

    /// Applies a command as the API server does.
    fn apply(set: &Value, command: KubeCommand) -> Value {
        let KubeCommand::Set { fields, .. } = command else {
            panic!("{command:?}")
        };
        let mut set = set.clone();
        for field in fields {
            assert_eq!(field.of(&set), field.from.as_ref(), "{:?}", field.path);
            let (last, above) = field.path.split_last().unwrap();
            let place = above
                .iter()
                .fold(&mut set, |place, key| &mut place[key.as_str()]);
            match field.to {
                Some(value) => place[last.as_str()] = value,
                None => drop(place.as_object_mut().unwrap().remove(last)),
            }
        }
        set
    }

    #[test]
    fn the_first_daemon_set_is_narrowed_and_restored() {
        let term = json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]});
        let fields =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]});
        for spec in [
            json!({"containers": []}),
            json!({"affinity": {"podAffinity": {"a": 1}}}),
            json!({"affinity": {"nodeAffinity": {"preferred": 1}}}),
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, fields]}}}}),
        ] {
            let before = set(&spec);
            let narrowed = apply(&before, narrow(&before, "n").unwrap());
            assert_eq!(narrow(&narrowed, "n"), None);
            let terms = narrowed.pointer("/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
            for term in terms.unwrap().as_array().unwrap() {
                let rule = json!({"key": COPY_LABEL, "operator": "NotIn", "values": ["n"]});
                assert_eq!(
                    term["matchExpressions"].as_array().unwrap().last(),
                    Some(&rule)
                );
            }
            assert_eq!(
                narrowed["spec"]["updateStrategy"],
                json!({"type": "OnDelete"})
            );
            assert_eq!(original(&narrowed)["spec"], before["spec"]);
            let mut after = apply(&narrowed, widen(&narrowed).unwrap());
            after["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
            assert_eq!(after, before);
            assert_eq!(widen(&before), None);
        }
    }

    #[test]
    fn a_daemon_set_is_rolled_out_when_all_its_pods_are_current_and_ready() {
        let set = |observed: u64, updated: u64, ready: u64| {
            json!({
                "metadata": {"generation": 4},
                "status": {
                    "observedGeneration": observed, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated, "numberReady": ready,
                },
            })
        };
        assert!(is_rolled_out(&set(4, 3, 3)));
        assert!(is_rolled_out(&set(5, 3, 3)));
        assert!(!is_rolled_out(&set(3, 3, 3)));
        assert!(!is_rolled_out(&set(4, 2, 3)));
        assert!(!is_rolled_out(&set(4, 3, 2)));
        let mut by_hand = set(4, 0, 3);
        by_hand["spec"] = json!({"updateStrategy": {"type": "OnDelete"}});
        assert!(is_rolled_out(&by_hand));
    }

    #[test]
    fn the_copies_differ_in_the_reference_and_the_nodes() {
        let spec =
            json!({"volumes": [{"name": "v", "configMap": {"name": "kube-proxy"}}, {"name": "l"}]});
        let set = set(&spec);
        let map = json!({"metadata": {"name": "kube-proxy"}, "data": {"config.conf": "mode: a", "k": "v"}});
        let copies = Copies::of(&map, &set, "config.conf", "mode: b");
        let name = copies.name.as_str();
        assert_eq!(
            copies.map["data"],
            json!({"config.conf": "mode: b", "k": "v"})
        );
        let template = &copies.set["spec"]["template"];
        assert_eq!(template["spec"]["volumes"][0]["configMap"]["name"], name);
        assert_eq!(
            template["metadata"]["labels"],
            json!({"k8s-app": "kube-proxy", (COPY_LABEL): name})
        );
        assert_eq!(
            copies.set["spec"]["selector"]["matchLabels"],
            json!({(COPY_LABEL): name})
        );
        assert_eq!(
            copies.set["metadata"]["labels"],
            json!({"a": "b", (OURS.0): OURS.1})
        );
        assert_ne!(Copies::of(&map, &set, "config.conf", "mode: c").name, name);
    }
}
