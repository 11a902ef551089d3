//! Redaction of the JSON that tools print.

use serde_json::{Map, Value};

use super::Redactor;
use super::names::Kind;
use super::words;
use kpx_node::evidence::processes::pods_of;
use kpx_node::net::Cidr;

/// Fields with the name of a link.
const LINKS: &[&str] = &[
    "altnames", "dev", "ifname", "iif", "iifname", "label", "link", "master", "oif", "oifname",
    "to_dev",
];

/// Keys of nft's meta expressions whose values are names of links.
const META: &[&str] = &["ibrname", "iif", "iifname", "obrname", "oif", "oifname"];

/// Fields of the answers on permissions.
const ACCESS: &[&str] = &[
    "allowed",
    "apiVersion",
    "denied",
    "group",
    "items",
    "kind",
    "name",
    "namespace",
    "resource",
    "resourceAttributes",
    "spec",
    "status",
    "subresource",
    "verb",
    "version",
];

/// Removes the fields called `names` from `value` and what is in it.
pub(super) fn without(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !names.contains(&key.as_str()));
            map.values_mut().for_each(|value| without(value, names));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| without(value, names)),
        _ => {}
    }
}

impl Redactor {
    /// Redacts the output of a tool: addresses, links, and names in known fields.
    pub(super) fn document(&mut self, value: Value, key: &str) -> Value {
        match value {
            Value::Object(map) => {
                if let Some(prefix) = self.prefix(&map) {
                    return prefix;
                }
                let kept = map
                    .into_iter()
                    .filter(|(key, _)| key != "ifalias" && key != "alias");
                let new = kept.map(|(key, value)| {
                    let value = self.document(value, &key);
                    // The keys of counters per address contain the address.
                    (self.addresses(&key), value)
                });
                Value::Object(new.collect())
            }
            Value::Array(list) if key == "args" => self.command_line(&list),
            Value::Array(list) => list
                .into_iter()
                .map(|value| self.document(value, key))
                .collect(),
            Value::String(text) => Value::String(match key {
                _ if LINKS.contains(&key) => self.link_label(&text),
                "table" => self.object(&text),
                "cgroup" => self.cgroup(&text),
                _ => self.code_word(&text),
            }),
            other => other,
        }
    }

    /// Redacts the JSON of nft.
    pub(super) fn nft(&mut self, value: Value, key: &str) -> Value {
        match value {
            Value::Object(map) => {
                if let Some(prefix) = self.prefix(&map) {
                    return prefix;
                }
                let is_link = map
                    .get("left")
                    .and_then(|left| left["meta"]["key"].as_str())
                    .is_some_and(|meta| META.contains(&meta));
                let is_declared = map.contains_key("family");
                let new = map.into_iter().map(|(name, value)| {
                    let within = match name.as_str() {
                        _ if key == "dev" => "dev",
                        "right" if is_link => "dev",
                        // Options of protocols have names, too.
                        "name" if !is_declared => "",
                        name => name,
                    };
                    let value = self.nft(value, within);
                    (name, value)
                });
                Value::Object(new.collect())
            }
            Value::Array(list) => {
                let key = if key == "dev" { key } else { "" };
                list.into_iter().map(|value| self.nft(value, key)).collect()
            }
            Value::String(text) => Value::String(match key {
                "comment" | "prefix" => self.comment(&text),
                "dev" => self.link_word(&text),
                "name" | "table" | "chain" | "target" | "newname" => match text.strip_prefix('@') {
                    Some(name) => format!("@{}", self.object(name)),
                    None => self.object(&text),
                },
                _ => self.code_word(&text),
            }),
            other => other,
        }
    }

    /// Redacts the answers on permissions: keeps the requests and whether they are allowed.
    pub(super) fn access(&mut self, value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let of = map.get("resource").and_then(Value::as_str);
                let is_node = of.is_some_and(|resource| resource == "nodes");
                let kept = map
                    .into_iter()
                    .filter(|(key, _)| ACCESS.contains(&key.as_str()));
                let new = kept.map(|(key, value)| {
                    let value = match (key.as_str(), value) {
                        ("name", Value::String(name)) if is_node => self.node(&name).into(),
                        ("name", Value::String(name)) => self.names.map(Kind::Other, &name).into(),
                        ("namespace", Value::String(name)) => {
                            self.names.map(Kind::Namespace, &name).into()
                        }
                        (_, value) => self.access(value),
                    };
                    (key, value)
                });
                Value::Object(new.collect())
            }
            Value::Array(list) => list.into_iter().map(|value| self.access(value)).collect(),
            other => other,
        }
    }

    /// Redacts the label of an address: the name of its link, and often a number behind a colon.
    fn link_label(&mut self, text: &str) -> String {
        match text.split_once(':') {
            Some((link, number)) => format!("{}:{number}", self.names.link(link)),
            None => self.names.link(text),
        }
    }

    /// Redacts a control group, which contains the IDs of pods and containers.
    pub(super) fn cgroup(&mut self, path: &str) -> String {
        let parts = path.split('/').map(|part| {
            let stem = part.rsplit_once('.').map_or(part, |(stem, _)| stem);
            let start = ["docker-", "libpod-", "crio-", "cri-containerd-"]
                .into_iter()
                .find(|start| stem.starts_with(start))
                .unwrap_or_default();
            let name = &stem[start.len()..];
            if pods_of(part).next().is_some()
                && let Some((before, uid)) = stem.rsplit_once("pod")
            {
                let uid = self.names.id(&uid.replace('_', "-"));
                return format!("{before}pod{uid}{}", &part[stem.len()..]);
            }
            let mut pieces = name.split('-');
            if pieces.all(words::in_names) || Kind::Program.is_known(name) {
                part.to_owned()
            } else {
                let new = self.names.map(Kind::Other, name);
                format!("{start}{new}{}", &part[stem.len()..])
            }
        });
        parts.collect::<Vec<_>>().join("/")
    }

    /// Redacts `{"addr": …, "len": …}` and `{"local": …, "prefixlen": …}`.
    fn prefix(&mut self, map: &Map<String, Value>) -> Option<Value> {
        let addr = map.get("addr")?.as_str()?;
        let length = map.get("len")?.as_u64()?;
        let cidr: Cidr = format!("{addr}/{length}").parse().ok()?;
        let cidr = self.addresses.map_prefix(cidr);
        let mut new = map.clone();
        new.insert("addr".to_owned(), Value::String(cidr.addr.to_string()));
        Some(Value::Object(new))
    }
}
