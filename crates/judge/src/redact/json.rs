//! Redaction of JSON: API objects keep only listed fields, other documents lose addresses and known names.

use serde_json::{Map, Value, json};

use super::logs::{CONFIGURATION, is_number};
use super::names::Kind;
use super::{Redactor, words};
use kpx_node::cluster::flags::field_of;
use kpx_node::net::Cidr;

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
    "scheme",
    "sessionAffinity",
    "startedAt",
    "status",
    "trafficDistribution",
    "type",
];

/// Fields that no check needs and that may contain anything.
const DROPPED: &[&str] = &[
    "containerID",
    "envFrom",
    "generateName",
    "imageID",
    "imagePullSecrets",
    "httpHeaders",
    "images",
    "lifecycle",
    "livenessProbe",
    "message",
    "securityContext",
    "selfLink",
    "startupProbe",
    "volumesAttached",
    "volumesInUse",
];

/// Names of variables for the name of the pod's node, from which kube-proxy takes its own.
const NODE_NAMES: &[&str] = &[
    "HOSTNAME",
    "K8S_NODE_NAME",
    "KUBERNETES_NODE_NAME",
    "MY_NODE_NAME",
    "NODENAME",
    "NODE_NAME",
];

/// Domains of labels, annotations and taints of Kubernetes and of public software, with their subdomains.
const DOMAINS: &[&str] = &[
    "amazonaws.com",
    "argoproj.io",
    "azure.com",
    "cilium.io",
    "coreos.com",
    "digitalocean.com",
    "fluxcd.io",
    "gardener.cloud",
    "google.com",
    "helm.sh",
    "hetzner.cloud",
    "k0sproject.io",
    "k3s.io",
    "k8s.io",
    "kpx.dev",
    "kubeone.io",
    "kubernetes.io",
    "metallb.io",
    "metallb.universe.tf",
    "microk8s.io",
    "openshift.io",
    "openstack.org",
    "oraclecloud.com",
    "projectcalico.org",
    "rke2.io",
    "scw.cloud",
];

/// Keys of labels and taints of Kubernetes and of public software that have no domain.
const KEYS: &[&str] = &[
    "ToBeDeletedByClusterAutoscaler",
    "app",
    "component",
    "k8s-app",
    "tier",
];

/// Schemes of provider IDs, which name the cloud or the distribution.
const CLOUDS: &[&str] = &[
    "aws",
    "azure",
    "digitalocean",
    "eks-hybrid",
    "gce",
    "hcloud",
    "k3s",
    "kind",
    "linode",
    "oci",
    "openstack",
    "rke2",
    "scaleway",
    "vsphere",
];

/// Beginnings of the names of pods that kpx looks for; the rest is replaced.
const PODS: &[&str] = &["kube-proxy-", "nginx-proxy-", "haproxy-"];

/// Flags of service proxies whose values are not secret: numbers, modes, addresses or standard paths. Those that set a
/// field of kube-proxy's configuration are in its table.
const FLAGS: &[&str] = &[
    "config",
    "feature-gates",
    "kube-api-burst",
    "kube-api-qps",
    "kube-proxy-args-file",
    "kube-proxy-replacement",
    "log-flush-frequency",
    "logging-format",
    "oom-score-adj",
    "proxy-port-range",
    "run-firewall",
    "run-router",
    "run-service-proxy",
    "service-cluster-ip-range",
    "service-node-port-range",
    "v",
];

impl Redactor {
    /// Redacts a list of API objects of `kind`.
    pub(super) fn api(&mut self, value: Value, kind: &str) -> Value {
        self.api_value(value, "", kind)
    }

    /// Redacts the value of `key` in an object of kind `of`.
    fn api_value(&mut self, value: Value, key: &str, of: &str) -> Value {
        match value {
            Value::Object(map) => self.map(map, key, of),
            Value::Array(list) if matches!(key, "command" | "args") => self.command_line(&list),
            Value::Array(list) => list
                .into_iter()
                .map(|value| self.api_value(value, key, of))
                .collect(),
            Value::String(text) => Value::String(self.string(&text, key, of)),
            other => other,
        }
    }

    /// Redacts the words of a command line.
    pub(super) fn command_line(&mut self, list: &[Value]) -> Value {
        let words = list.iter().filter_map(Value::as_str).map(str::to_owned);
        let words = self.arguments(words.collect());
        words.into_iter().map(Value::String).collect()
    }

    fn map(&mut self, map: Map<String, Value>, key: &str, of: &str) -> Value {
        let own = map.get("kind").and_then(Value::as_str).map(str::to_owned);
        // A list and its items may have no kind of their own.
        let own = own.as_deref().filter(|kind| !kind.ends_with("List"));
        let of = own.unwrap_or(of);
        let mut new = Map::new();
        for (name, value) in map {
            let value = match (name.as_str(), value) {
                (name, _) if DROPPED.contains(&name) => continue,
                ("annotations", Value::Object(all)) => self.annotations(all),
                ("managedFields", Value::Array(all)) => edits(all),
                ("env", Value::Array(all)) => node_names(all),
                ("uid" | "bootID" | "machineID" | "systemUUID", Value::String(id)) => {
                    self.names.id(&id).into()
                }
                ("providerID", Value::String(id)) => {
                    let (cloud, _) = id.split_once("://").unwrap_or_default();
                    let last = self.names.id(id.rsplit('/').next().unwrap_or_default());
                    if CLOUDS.contains(&cloud) {
                        format!("{cloud}://{last}").into()
                    } else {
                        last.into()
                    }
                }
                ("labels" | "matchLabels" | "selector" | "nodeSelector", Value::Object(all))
                    if !all.contains_key("matchLabels") =>
                {
                    self.labels(all)
                }
                ("data", Value::Object(all)) => self.data(all),
                ("binaryData" | "stringData" | "env", _) => continue,
                ("name", Value::String(text)) => Value::String(self.name(&text, key, of)),
                (name, value) => self.api_value(value, name, of),
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
            ("metadata" | "targetRef" | "ownerReferences", "Node") | ("forNodes", _) => Kind::Node,
            ("ports", _) => Kind::Port,
            ("forZones", _) => Kind::Zone,
            _ => Kind::Other,
        };
        let start = PODS.iter().find(|start| text.starts_with(**start));
        match start.filter(|_| kind == Kind::Pod) {
            Some(start) => format!("{start}{}", self.names.map(kind, &text[start.len()..])),
            None => self.names.map(kind, text),
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
            "path" | "mountPath" | "subPath" => self.path(text),
            "key" => self.key(text),
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

    /// Keeps annotations that kpx looks for: those of Kubernetes' own controllers, of the software that manages an
    /// object, of the PROXY protocol, and of agents that note an address of their node.
    fn annotations(&mut self, all: Map<String, Value>) -> Value {
        let kept = all.into_iter().filter_map(|(key, value)| {
            let value = value.as_str()?;
            let of_proxy = key.to_lowercase().contains("proxy-protocol");
            let is_word = value.len() < 16 && value.bytes().all(|b| b.is_ascii_alphanumeric());
            let public = is_public_key(&key);
            let is_kept = match value {
                "EnsureExists" => public,
                "" | "*" | "true" | "false" | "none" | "v1" | "v2" => of_proxy,
                _ => key.starts_with("service.kubernetes.io/") && is_word,
            };
            let new = if is_kept {
                value.to_owned()
            } else if value.parse::<Cidr>().is_ok() {
                self.addresses(value)
            } else if of_proxy || public && !key.starts_with("kubectl.kubernetes.io/") {
                self.names.map(Kind::Other, value)
            } else {
                return None;
            };
            let key = if public {
                key
            } else if of_proxy {
                format!("{}/proxy-protocol", self.names.map(Kind::Other, &key))
            } else {
                self.names.map(Kind::Other, &key)
            };
            Some((key, Value::String(new)))
        });
        Value::Object(kept.collect())
    }

    fn labels(&mut self, all: Map<String, Value>) -> Value {
        let labels = all.into_iter().filter_map(|(key, value)| {
            let value = value.as_str()?.to_owned();
            let new = match key.as_str() {
                "kubernetes.io/service-name" => self.names.map(Kind::Service, &value),
                "kubernetes.io/hostname" => self.names.map(Kind::Node, &value),
                "kubernetes.io/os"
                | "kubernetes.io/arch"
                | "service.kubernetes.io/headless"
                | "addonmanager.kubernetes.io/mode"
                | "endpointslice.kubernetes.io/managed-by" => value,
                key if key.ends_with("/zone") || key.ends_with("/region") => {
                    self.names.map(Kind::Zone, &value)
                }
                _ => self.names.map(Kind::Other, &value),
            };
            Some((self.key(&key), Value::String(new)))
        });
        Value::Object(labels.collect())
    }

    /// Redacts the key of a label, of a taint or in a `ConfigMap`.
    fn key(&mut self, key: &str) -> String {
        if is_public_key(key) {
            key.to_owned()
        } else {
            self.path(key)
        }
    }

    /// Keeps kube-proxy's configuration; other data of a `ConfigMap` may be secret.
    fn data(&mut self, all: Map<String, Value>) -> Value {
        let kept = all.into_iter().filter_map(|(key, value)| {
            let text = value.as_str()?;
            let is_own = key == "config.conf" || text.contains(CONFIGURATION);
            is_own.then(|| (self.key(&key), Value::String(self.config(text))))
        });
        Value::Object(kept.collect())
    }

    /// Keeps the program and its version; the registry is replaced.
    pub(super) fn image(&mut self, text: &str) -> String {
        if text.starts_with("registry.k8s.io/") && !text.contains('@') {
            return text.to_owned();
        }
        let (registry, last) = match text.rsplit_once('/') {
            Some((registry, last)) => (Some(registry), last),
            None => (None, text),
        };
        let (name, version) = last.split_at(last.find([':', '@']).unwrap_or(last.len()));
        // A digest identifies the image, and words in a tag may be private.
        let version = version.split('@').next().unwrap_or_default();
        let version = version
            .split_inclusive([':', '.', '-', '_', '+'])
            .map(|piece| {
                let word = piece.trim_end_matches([':', '.', '-', '_', '+']);
                let new = if is_number(word) || words::in_names(word) {
                    word.to_owned()
                } else {
                    self.names.map(Kind::Other, word)
                };
                new + &piece[word.len()..]
            });
        let version: String = version.collect();
        let name = self.names.map(Kind::Program, name);
        match registry {
            Some(registry) => format!("{}/{name}{version}", self.names.map(Kind::Host, registry)),
            None => name + &version,
        }
    }

    /// Redacts the command line of a service proxy.
    fn arguments(&mut self, args: Vec<String>) -> Vec<String> {
        let mut flag = String::new();
        let mut new = Vec::with_capacity(args.len());
        for (i, arg) in args.into_iter().enumerate() {
            if arg.contains([' ', '\n']) {
                // The argument of a shell.
                let words = arg.split_whitespace().map(str::to_owned).collect();
                new.push(self.arguments(words).join(" "));
            } else if let Some(rest) = arg.strip_prefix("--") {
                // The value of a flag may be the next word.
                flag.clear();
                if !rest.contains('=') {
                    flag.push_str(rest);
                }
                new.push(self.flag(&arg));
            } else if i == 0
                || words::in_names(&arg)
                || Kind::Program.is_known(&arg)
                || flag.is_empty() && arg.ends_with("/kube-proxy")
            {
                new.push(self.path(&arg));
            } else {
                new.push(self.argument(&flag, &arg));
                flag.clear();
            }
        }
        new
    }

    /// Redacts `--NAME=VALUE` or `NAME=VALUE`.
    pub(super) fn flag(&mut self, word: &str) -> String {
        match word.split_once('=') {
            Some((name, value)) => {
                let bare = name.trim_start_matches('-');
                format!("{name}={}", self.argument(bare, value))
            }
            None => word.to_owned(),
        }
    }

    fn argument(&mut self, flag: &str, value: &str) -> String {
        let is_plain = matches!(value, "true" | "false" | "strict" | "");
        if let Some(field) = field_of(flag)
            && !value.starts_with("$(")
        {
            return self.setting(field, value);
        }
        match flag {
            _ if is_plain || value.starts_with("$(") => value.to_owned(),
            // Flags of a kube-proxy in another program.
            "kube-proxy-arg" => self.flag(value),
            "feature-gates" if value.split(',').all(is_gate) => value.to_owned(),
            _ if FLAGS.contains(&flag) && value.starts_with('/') => self.path(value),
            _ if FLAGS.contains(&flag) => {
                let new = self.addresses(value);
                let mut parts = value.split([',', '-', '.', ':', '/']);
                let is_plain = is_number(value)
                    || words::IN_MESSAGES.contains(value)
                    || parts.all(|part| words::in_names(part) || is_number(part));
                if new != value || is_plain {
                    new
                } else {
                    self.names.map(Kind::Other, value)
                }
            }
            _ => "redacted".to_owned(),
        }
    }
}

/// Returns whether a label, annotation or taint with this key is defined by Kubernetes or by public software.
fn is_public_key(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return KEYS.contains(&key);
    };
    DOMAINS.iter().any(|public| {
        domain
            .strip_suffix(public)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Returns whether `text` turns a feature gate on or off.
fn is_gate(text: &str) -> bool {
    text.split_once('=').is_some_and(|(gate, state)| {
        gate.bytes().all(|b| b.is_ascii_alphanumeric()) && matches!(state, "true" | "false")
    })
}

/// Keeps the variables that have the name of the pod's node; others may be secret.
fn node_names(all: Vec<Value>) -> Value {
    let is_node_name = |value: &Value| {
        let field = value.pointer("/valueFrom/fieldRef/fieldPath");
        let name = value["name"].as_str();
        field.is_some_and(|path| path == "spec.nodeName")
            && name.is_some_and(|name| NODE_NAMES.contains(&name))
    };
    let kept = all.into_iter().filter(is_node_name);
    let kept = kept.map(|variable| {
        let field = json!({ "fieldRef": { "fieldPath": "spec.nodeName" } });
        json!({ "name": variable["name"], "valueFrom": field })
    });
    kept.collect()
}

/// Keeps when an object was written, and whether only its status was.
fn edits(all: Vec<Value>) -> Value {
    let kept = |value: Value| {
        let parts =
            ["time", "subresource"].map(|key| Some((key.to_owned(), value.get(key)?.clone())));
        Value::Object(parts.into_iter().flatten().collect())
    };
    all.into_iter().map(kept).collect()
}
