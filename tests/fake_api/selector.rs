//! Selectors: of labels and fields in a list, and of nodes in a pod's template.

use serde_json::Value;

/// Whether `object` fits a list's `labelSelector`.
pub(crate) fn labels(object: &Value, selector: &str) -> bool {
    terms(selector).all(|term| {
        let label = |key: &str| object["metadata"]["labels"][key.trim()].as_str();
        if let Some((key, values)) = term.split_once(" notin ") {
            return !among(label(key), values);
        }
        if let Some((key, values)) = term.split_once(" in ") {
            return among(label(key), values);
        }
        if let Some((key, value)) = term.split_once("!=") {
            return label(key) != Some(value);
        }
        if let Some((key, value)) = term.split_once('=') {
            return label(key) == Some(value.trim_start_matches('='));
        }
        match term.strip_prefix('!') {
            Some(key) => label(key).is_none(),
            None => label(term).is_some(),
        }
    })
}

/// Whether `object` fits a list's `fieldSelector`.
pub(crate) fn fields(object: &Value, selector: &str) -> bool {
    terms(selector).all(|term| {
        let (path, value) = term.split_once('=').unwrap();
        let (path, equal) = match path.strip_suffix('!') {
            Some(path) => (path, false),
            None => (path, true),
        };
        let value = value.trim_start_matches('=');
        let pointer = format!("/{}", path.replace('.', "/"));
        let found = object.pointer(&pointer).and_then(Value::as_str);
        (found.unwrap_or_default() == value) == equal
    })
}

/// Whether a pod of `template` may run on `node`: by its node selector, and its required node affinity.
pub(crate) fn node(node: &Value, template: &Value) -> bool {
    let label = |key: &str| node["metadata"]["labels"][key].as_str();
    let chosen = template["spec"]["nodeSelector"].as_object();
    let affinity = &template["spec"]["affinity"]["nodeAffinity"];
    let terms =
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array();
    chosen.is_none_or(|all| all.iter().all(|(key, v)| label(key) == v.as_str()))
        && terms.is_none_or(|terms| {
            terms.iter().any(|term| {
                let rules = term["matchExpressions"].as_array().unwrap();
                rules
                    .iter()
                    .all(|rule| expression(label(rule["key"].as_str().unwrap()), rule))
            })
        })
}

fn expression(label: Option<&str>, rule: &Value) -> bool {
    let values = rule["values"].as_array();
    let listed = values.is_some_and(|all| all.iter().any(|v| v.as_str() == label));
    match rule["operator"].as_str().unwrap() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        other => panic!("no operator {other} here"),
    }
}

/// Splits a selector at its commas that are in no parentheses.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    selector
        .split(move |c| {
            inside = c == '(' || inside && c != ')';
            c == ',' && !inside
        })
        .map(str::trim)
        .filter(|term| !term.is_empty())
}

fn among(label: Option<&str>, values: &str) -> bool {
    let values = values.trim().trim_start_matches('(').trim_end_matches(')');
    label.is_some_and(|label| values.split(',').any(|value| value.trim() == label))
}
