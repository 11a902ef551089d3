//! Redaction of JSON: API objects keep only listed fields, other documents lose addresses and known names.

use serde_json::{Map, Value};

use super::Redactor;
use super::names::Kind;
use crate::net::Cidr;

/// Fields whose values are Kubernetes keywords, numbers or times.
const PLAIN: &[&str] = &[
    "addressType",
    "apiVersion",
    "appProtocol",
    "architecture",
    "containerRuntimeVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "dnsPolicy",
    "effect",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "ipMode",
    "kernelVersion",
    "kind",
    "kubeProxyVersion",
    "kubeletVersion",
    "lastHeartbeatTime",
    "lastTransitionTime",
    "lastUpdateTime",
    "maxSurge",
    "maxUnavailable",
    "operatingSystem",
    "operator",
    "osImage",
    "phase",
    "protocol",
    "qosClass",
    "reason",
    "resourceVersion",
    "restartPolicy",
    "sessionAffinity",
    "startedAt",
    "status",
    "trafficDistribution",
    "type",
];

/// Fields that no check needs and that may contain anything.
const DROPPED: &[&str] = &[
    "bootID",
    "containerID",
    "env",
    "envFrom",
    "generateName",
    "imageID",
    "imagePullSecrets",
    "images",
    "lifecycle",
    "livenessProbe",
    "machineID",
    "managedFields",
    "message",
    "ownerReferences",
    "providerID",
    "readinessProbe",
    "securityContext",
    "selfLink",
    "startupProbe",
    "systemUUID",
    "uid",
    "volumesAttached",
    "volumesInUse",
];

/// Flags of service proxies whose values are not secret: numbers, modes, addresses or standard paths.
const FLAGS: &[&str] = &[
    "bind-address",
    "cluster-cidr",
    "config",
    "conntrack-max-per-core",
    "conntrack-min",
    "detect-local-mode",
    "healthz-bind-address",
    "ipvs-exclude-cidrs",
    "ipvs-scheduler",
    "ipvs-strict-arp",
    "kubeconfig",
    "masquerade-all",
    "metrics-bind-address",
    "nodeport-addresses",
    "proxy-mode",
    "run-router",
    "run-service-proxy",
    "run-firewall",
    "v",
];

impl Redactor {
    /// Redacts a list of API objects.
    pub(super) fn api(&mut self, value: Value) -> Value {
        self.object(value, "", "")
    }

    /// Redacts the value of `key` in an object of kind `of`.
    fn object(&mut self, value: Value, key: &str, of: &str) -> Value {
        match value {
            Value::Object(map) => self.map(map, key, of),
            Value::Array(list) if matches!(key, "command" | "args") => self.command_line(&list),
            Value::Array(list) => list
                .into_iter()
                .map(|value| self.object(value, key, of))
                .collect(),
            Value::String(text) => Value::String(self.string(&text, key, of)),
            other => other,
        }
    }

    /// Redacts the words of a command line.
    fn command_line(&mut self, list: &[Value]) -> Value {
        let words = list.iter().filter_map(Value::as_str).map(str::to_owned);
        let words = self.arguments(words.collect());
        words.into_iter().map(Value::String).collect()
    }

    fn map(&mut self, map: Map<String, Value>, key: &str, of: &str) -> Value {
        let own = map.get("kind").and_then(Value::as_str).map(str::to_owned);
        // Items of a list from the API server have no kind of their own.
        let of = own
            .as_deref()
            .map_or(of, |kind| kind.strip_suffix("List").unwrap_or(kind));
        let mut new = Map::new();
        for (name, value) in map {
            let value = match (name.as_str(), value) {
                (name, _) if DROPPED.contains(&name) => continue,
                ("annotations", Value::Object(all)) => annotations(all),
                ("labels" | "matchLabels" | "selector" | "nodeSelector", Value::Object(all))
                    if !all.contains_key("matchLabels") =>
                {
                    self.labels(all)
                }
                ("data", Value::Object(all)) => self.data(all),
                ("binaryData" | "stringData", _) => continue,
                ("name", Value::String(text)) => Value::String(self.name(&text, key, of)),
                (name, value) => self.object(value, name, of),
            };
            new.insert(name, value);
        }
        Value::Object(new)
    }

    /// Redacts a `name` field below `key`.
    fn name(&mut self, text: &str, key: &str, of: &str) -> String {
        let kind = match (key, of) {
            ("metadata", "Service") => Kind::Service,
            ("metadata", "EndpointSlice") => Kind::Slice,
            ("metadata" | "targetRef", "Pod") => Kind::Pod,
            ("metadata" | "targetRef", "Node") | ("forNodes", _) => Kind::Node,
            ("ports", _) => Kind::Port,
            ("forZones", _) => Kind::Zone,
            _ => Kind::Other,
        };
        // The prefix identifies the proxy; the rest of the pod's name is replaced.
        match (kind, text.strip_prefix("kube-proxy-")) {
            (Kind::Pod, Some(own)) => format!("kube-proxy-{}", self.names.map(Kind::Pod, own)),
            _ => self.names.map(kind, text),
        }
    }

    fn string(&mut self, text: &str, key: &str, of: &str) -> String {
        if text.is_empty() || PLAIN.contains(&key) {
            return text.to_owned();
        }
        match key {
            "namespace" => self.names.map(Kind::Namespace, text),
            "nodeName" => self.names.map(Kind::Node, text),
            "zone" => self.names.map(Kind::Zone, text),
            "targetPort" => self.names.map(Kind::Port, text),
            "externalName" => self.host(text),
            "image" => self.image(text),
            "path" | "mountPath"
                if ["/lib/", "/run/", "/var/lib/kube-proxy", "/etc/cni"]
                    .iter()
                    .any(|own| text.starts_with(own)) =>
            {
                text.to_owned()
            }
            _ => {
                let new = self.addresses(text);
                if new != text || text.parse::<Cidr>().is_ok() || text == "None" {
                    return new;
                }
                let kind = match (key, of) {
                    ("address", _) => Kind::Node,
                    ("hostname", "Service") => Kind::Host,
                    ("hostname", _) => Kind::Pod,
                    _ => Kind::Other,
                };
                self.names.map(kind, text)
            }
        }
    }

    fn labels(&mut self, all: Map<String, Value>) -> Value {
        let labels = all.into_iter().filter_map(|(key, value)| {
            let value = value.as_str()?.to_owned();
            let domain = key.split_once('/').map(|(domain, _)| domain);
            let system = domain.is_some_and(|domain| {
                domain.ends_with("kubernetes.io") || domain.ends_with("k8s.io")
            });
            let new = match key.as_str() {
                "kubernetes.io/service-name" => self.names.map(Kind::Service, &value),
                "kubernetes.io/hostname" => self.names.map(Kind::Node, &value),
                "kubernetes.io/os"
                | "kubernetes.io/arch"
                | "service.kubernetes.io/headless"
                | "endpointslice.kubernetes.io/managed-by" => value,
                key if key.ends_with("/zone") || key.ends_with("/region") => {
                    self.names.map(Kind::Zone, &value)
                }
                _ => self.names.map(Kind::Other, &value),
            };
            let plain = ["app", "component", "k8s-app", "tier"];
            let key = if system || plain.contains(&key.as_str()) {
                key
            } else {
                self.names.map(Kind::Other, &key)
            };
            Some((key, Value::String(new)))
        });
        Value::Object(labels.collect())
    }

    /// Keeps kube-proxy's configuration; other data of a `ConfigMap` may be secret.
    fn data(&mut self, all: Map<String, Value>) -> Value {
        let kept = all.into_iter().filter_map(|(key, value)| {
            let text = value.as_str()?;
            (key == "config.conf").then(|| (key.clone(), Value::String(self.config(text))))
        });
        Value::Object(kept.collect())
    }

    /// Keeps the program and its version; the registry is replaced.
    fn image(&mut self, text: &str) -> String {
        if text.starts_with("registry.k8s.io/") {
            return text.to_owned();
        }
        let last = text.rsplit('/').next().unwrap_or(text);
        let (name, version) = last.split_at(last.find([':', '@']).unwrap_or(last.len()));
        let name = self.names.map(Kind::Program, name);
        format!(
            "{}/{name}{version}",
            self.names.map(Kind::Host, text.trim_end_matches(last))
        )
    }

    /// Redacts the command line of a service proxy.
    fn arguments(&mut self, args: Vec<String>) -> Vec<String> {
        let mut flag = String::new();
        let mut new = Vec::with_capacity(args.len());
        for (i, arg) in args.into_iter().enumerate() {
            if let Some(rest) = arg.strip_prefix("--") {
                let (name, value) = rest.split_once('=').unwrap_or((rest, ""));
                name.clone_into(&mut flag);
                new.push(if value.is_empty() {
                    arg
                } else {
                    format!("--{name}={}", self.argument(name, value))
                });
            } else if i == 0 {
                new.push(arg);
            } else {
                new.push(self.argument(&flag, &arg));
                flag.clear();
            }
        }
        new
    }

    fn argument(&mut self, flag: &str, value: &str) -> String {
        if value.starts_with("$(") {
            value.to_owned()
        } else if flag == "hostname-override" {
            self.node(value)
        } else if FLAGS.contains(&flag) {
            self.addresses(value)
        } else {
            "redacted".to_owned()
        }
    }

    /// Redacts the output of a tool: addresses, chains, comments, and names in known fields.
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
                "comment" => self.comment(&text),
                "hostnameOverride" if !text.is_empty() => self.node(&text),
                _ => self.code_word(&text),
            }),
            other => other,
        }
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

/// Keeps annotations that Kubernetes' own controllers read from a Service.
fn annotations(all: Map<String, Value>) -> Value {
    let kept = all.into_iter().filter(|(key, value)| {
        key.starts_with("service.kubernetes.io/") && value.as_str().is_some_and(|v| v.len() < 16)
    });
    Value::Object(kept.collect())
}
