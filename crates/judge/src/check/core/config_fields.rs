//! Fields of kube-proxy's configuration, by name.

/// Calls `each` with the dotted name and value of every field that is set. Zero values mean the default.
pub(in crate::check) fn leaves(
    value: &serde_json::Value,
    name: &str,
    each: &mut impl FnMut(&str, &serde_json::Value),
) {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                leaves(value, &format!("{name}{dot}{key}"), each);
            }
        }
        Value::Null | Value::Bool(false) => {}
        Value::String(text) if matches!(text.as_str(), "" | "0" | "0s") => {}
        Value::Array(all) if all.is_empty() => {}
        Value::Number(number) if number.as_f64() == Some(0.0) => {}
        set => each(name, set),
    }
}

/// Returns `value` as in a configuration file.
pub(in crate::check) fn plain(value: &serde_json::Value) -> String {
    match value.as_str() {
        // 60s and 1m0s are equal.
        Some(text) => kpx_node::cluster::config::go_duration(text).map_or_else(
            || text.to_owned(),
            |time| format!("{}s", time.as_secs_f64()),
        ),
        None => value.to_string(),
    }
}
