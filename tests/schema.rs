//! JSON that kpx prints, compared with the schemas in `docs/schema/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Deserializer, Value, json};

/// The validators, by `kind`.
static VALIDATORS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let named = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    files
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let mut schema = serde_json::from_str(&text).unwrap();
            close(&mut schema, true);
            let validator = jsonschema::draft202012::new(&schema);
            let validator = validator.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            (named(&path), validator)
        })
        .collect()
});

/// The number of documents of each kind that [`hold`] has seen.
static SEEN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Refuses fields that `schema` does not describe, in every object but a part of one (`whole` is false): programs must
/// ignore them, but kpx must describe what it prints.
fn close(schema: &mut Value, whole: bool) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    let mut open = !whole || object.contains_key("additionalProperties");
    for (key, value) in object.iter_mut() {
        match (key.as_str(), value) {
            ("anyOf" | "oneOf" | "allOf", Value::Array(parts)) => {
                for part in parts {
                    close(part, false);
                }
            }
            ("properties" | "$defs" | "patternProperties", Value::Object(fields)) => {
                let is_definition = key == "$defs";
                for value in fields.values_mut() {
                    close(value, !is_definition);
                }
            }
            ("items" | "additionalProperties", value) => close(value, true),
            ("prefixItems", Value::Array(items)) => {
                for item in items {
                    close(item, true);
                }
            }
            _ => {}
        }
    }
    let describes = ["properties", "anyOf", "oneOf", "allOf", "$ref"];
    open |= !describes.iter().any(|key| object.contains_key(*key));
    if !open {
        object.insert("unevaluatedProperties".to_owned(), json!(false));
    }
}

/// Returns why `document` does not fit the schema of its `kind`.
pub(crate) fn misfit(document: &Value) -> Option<String> {
    let kind = document["kind"].as_str().unwrap_or_default();
    let Some(validator) = VALIDATORS.get(kind) else {
        return Some(format!("kind {kind:?} has no schema"));
    };
    let mut seen = SEEN.lock().unwrap();
    *seen.entry(kind.to_owned()).or_default() += 1;
    drop(seen);
    let mut errors = validator.iter_errors(document).peekable();
    errors.peek()?;
    let lines = errors.take(5).map(|error| {
        let text: String = error.to_string().chars().take(400).collect();
        format!("{}: {text}", error.instance_path())
    });
    Some(format!("{kind}: {}", lines.collect::<Vec<_>>().join("\n")))
}

/// Compares what kpx printed with the schemas, if it is JSON.
pub(crate) fn hold(out: &str) {
    if !out.starts_with('{') || !out.contains("\"kpx/v1\"") {
        return;
    }
    for document in Deserializer::from_str(out).into_iter::<Value>() {
        // Output for people follows the events of some commands.
        let Ok(document) = document else { return };
        if document["apiVersion"] != "kpx/v1" {
            continue;
        }
        let reports = document["nodes"].as_array().into_iter().flatten();
        let reports = reports.filter_map(|entry| entry.get("report"));
        let reports = reports.filter(|report| report["apiVersion"] == "kpx/v1");
        for document in reports.chain([&document]) {
            if let Some(why) = misfit(document) {
                panic!("output does not fit its schema: {why}");
            }
        }
    }
}

/// Returns the kinds that have a schema.
pub(crate) fn kinds() -> Vec<&'static str> {
    VALIDATORS.keys().map(String::as_str).collect()
}
