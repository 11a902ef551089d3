//! Redaction of kube-proxy's configuration.

use serde_json::Value;

use super::Redactor;
use super::logs::is_number;
use super::names::Kind;
use kpx_node::cluster::config::ORIGIN;

/// Fields with words of kube-proxy or Kubernetes.
const WORDS: &[&str] = &[
    "acceptContentTypes",
    "apiVersion",
    "contentType",
    "detectLocalMode",
    "format",
    "kind",
    "mode",
    "nodePortAddresses",
    "scheduler",
];

impl Redactor {
    /// Redacts a kube-proxy configuration, YAML or JSON.
    pub(super) fn config(&mut self, text: &str) -> String {
        let (origin, text) = match text.strip_prefix(ORIGIN) {
            Some(rest) => rest.split_once('\n').unwrap_or((rest, "")),
            None => ("", text),
        };
        let mut new = String::with_capacity(text.len());
        if !origin.is_empty() {
            new.extend([ORIGIN, &self.origin(origin), "\n"]);
        }
        if let Ok(value @ Value::Object(_)) = serde_json::from_str(text) {
            return new + &self.settings(value, "").to_string() + "\n";
        }
        // The items of a list belong to the key above them.
        let mut above = String::new();
        for line in text.lines() {
            let line = line.split(" #").next().unwrap_or(line);
            let bare = line.trim_start_matches([' ', '-']);
            if bare.starts_with('#') {
                continue;
            }
            let indent = &line[..line.len() - bare.len()];
            let (key, value) = match bare.split_once(':') {
                Some((key, value)) if value.is_empty() || value.starts_with(' ') => {
                    key.clone_into(&mut above);
                    (Some(key), value)
                }
                _ => (None, bare),
            };
            new.push_str(indent);
            if let Some(key) = key {
                new.extend([key, ":"]);
            }
            let word = value.trim().trim_matches(['"', '\'']);
            match self.setting(&above, word) {
                same if same == word => new.push_str(value),
                other => new.push_str(&value.replacen(word, &other, 1)),
            }
            new.push('\n');
        }
        new
    }

    /// Redacts the line that names the source of a configuration.
    fn origin(&mut self, text: &str) -> String {
        let map = text
            .strip_prefix("ConfigMap ")
            .and_then(|rest| rest.split_once('/'))
            .and_then(|(namespace, rest)| Some((namespace, rest.split_once(", key ")?)));
        match map {
            Some((namespace, (name, rest))) => format!(
                "ConfigMap {}/{}, key {rest}",
                self.names.map(Kind::Namespace, namespace),
                self.names.map(Kind::Other, name)
            ),
            None => self.addresses(text),
        }
    }

    /// Redacts the JSON of a configuration.
    pub(super) fn settings(&mut self, value: Value, key: &str) -> Value {
        match value {
            Value::Object(map) => map
                .into_iter()
                .map(|(key, value)| {
                    let value = self.settings(value, &key);
                    (key, value)
                })
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Array(list) => list
                .into_iter()
                .map(|value| self.settings(value, key))
                .collect(),
            Value::String(text) => self.setting(key, &text).into(),
            other => other,
        }
    }

    /// Redacts the value of `key`.
    pub(super) fn setting(&mut self, key: &str, value: &str) -> String {
        match key {
            "hostnameOverride" => self.node(value),
            "bridgeInterface" | "interfaceNamePrefix" => self.names.link(value),
            _ if WORDS.contains(&key) => self.addresses(value),
            _ if value.starts_with('/') => self.path(value),
            _ => {
                let new = self.addresses(value);
                let is_plain = matches!(value, "" | "true" | "false" | "null" | "~" | "[]" | "{}");
                if new != value || is_plain || is_number(value) || value.starts_with(['{', '[']) {
                    return new;
                }
                let is_address = value
                    .split(',')
                    .all(|part| part.trim().parse::<kpx_node::net::Cidr>().is_ok());
                if is_address {
                    new
                } else {
                    self.names.map(Kind::Other, value)
                }
            }
        }
    }
}
