//! Objects of the cluster, from what kubectl prints: YAML, JSON, tables and descriptions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use super::command::Command;
use super::rules::is_cut;
use crate::cluster;
use crate::evidence::{Evidence, Item};

/// Objects by kind, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    all: BTreeMap<Item, BTreeMap<(String, String), Object>>,
    /// Kinds of which all objects are shown.
    whole: BTreeSet<Item>,
    lost: BTreeMap<Item, BTreeSet<String>>,
    /// Endpoints of the older kind, which slices replace.
    endpoints: Vec<Value>,
    /// The namespaces that are shown, where a list is made of files of namespaces.
    pub(super) in_part: Option<String>,
}

#[derive(Clone, Debug)]
struct Object {
    value: Value,
    /// Whether the object is as the API has it: tables and descriptions leave fields out.
    is_whole: bool,
}

/// Kinds with their items.
const KINDS: [(&str, Item); 7] = [
    ("Service", Item::Services),
    ("EndpointSlice", Item::EndpointSlices),
    ("Node", Item::Nodes),
    ("ConfigMap", Item::ConfigMaps),
    ("DaemonSet", Item::DaemonSets),
    ("Pod", Item::Pods),
    ("ServiceCIDR", Item::ServiceCidrs),
];

fn item_of(kind: &str) -> Option<Item> {
    KINDS
        .iter()
        .find(|(name, _)| *name == kind)
        .map(|(_, item)| *item)
}

/// Returns the items that this module makes.
pub(super) fn items() -> impl Iterator<Item = Item> {
    KINDS.into_iter().map(|(_, item)| item)
}

impl Objects {
    /// Returns the number of objects in `item`.
    pub(super) fn len(&self, item: Item) -> usize {
        self.all.get(&item).map_or(0, BTreeMap::len)
    }

    /// Returns whether nothing is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.all.values().all(BTreeMap::is_empty)
            && self.endpoints.is_empty()
            && self.whole.is_empty()
    }

    fn lose(&mut self, item: Item, why: &str) {
        self.lost.entry(item).or_default().insert(why.to_owned());
    }

    fn add(&mut self, item: Item, mut value: Value, is_whole: bool) {
        let metadata = value.get("metadata");
        let text = |key: &str| {
            let of = metadata
                .and_then(|metadata| metadata.get(key))
                .and_then(Value::as_str);
            of.unwrap_or_default().to_owned()
        };
        let key = (text("namespace"), text("name"));
        if key.1.is_empty() {
            return;
        }
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let all = self.all.entry(item).or_default();
        match all.get_mut(&key) {
            Some(old) if old.is_whole && !is_whole => {}
            // A table after a description has less; another port set means another moment.
            Some(old)
                if !old.is_whole
                    && !is_whole
                    && richness(&old.value) > richness(&value)
                    && same_ports(&old.value, &value) => {}
            Some(old) => *old = Object { value, is_whole },
            None => drop(all.insert(key, Object { value, is_whole })),
        }
    }

    /// Reads a document of the API: an object, or a list of objects. Returns whether it is one.
    pub(super) fn document(&mut self, value: Value, command: Option<&Command>) -> bool {
        let kind = value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let is_all = command.map(|command| {
            command.fragment.is_none()
                && (command.has("-A")
                    || command.has("--all-namespaces")
                    || command.has("--all-namespaces=true"))
        });
        let Some(of) = kind.strip_suffix("List") else {
            return match item_of(&kind) {
                Some(item) => {
                    self.add(item, value, true);
                    true
                }
                None if kind == "Endpoints" => {
                    self.endpoints.push(value);
                    true
                }
                None => !kind.is_empty() && value.get("apiVersion").is_some(),
            };
        };
        let Value::Object(mut list) = value else {
            return false;
        };
        let Some(Value::Array(items)) = list.remove("items") else {
            return list.get("items").is_none_or(Value::is_null);
        };
        let mut seen: BTreeMap<Item, BTreeSet<(String, String)>> = BTreeMap::new();
        for object in items {
            let own = object
                .get("kind")
                .and_then(Value::as_str)
                .unwrap_or(of)
                .to_owned();
            if let Some(item) = item_of(&own) {
                let of = |key: &str| {
                    object
                        .pointer(&format!("/metadata/{key}"))
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .to_owned()
                };
                seen.entry(item)
                    .or_default()
                    .insert((of("namespace"), of("name")));
                self.add(item, object, true);
            } else if own == "Endpoints" {
                self.endpoints.push(object);
            }
        }
        for (item, names) in seen {
            let is_whole = match is_all {
                Some(is_all) => is_all || item == Item::Nodes,
                // Every cluster has these; a list of one namespace does not have both.
                None => {
                    item == Item::Nodes
                        || item == Item::Services
                            && names.contains(&("default".to_owned(), "kubernetes".to_owned()))
                            && names
                                .iter()
                                .any(|(namespace, _)| namespace == "kube-system")
                        || item == Item::EndpointSlices
                            && names
                                .iter()
                                .any(|(namespace, _)| namespace == "kube-system")
                            && names.iter().any(|(namespace, name)| {
                                namespace == "default" && name == "kubernetes"
                            })
                }
            };
            if is_whole {
                self.whole.insert(item);
            }
        }
        true
    }

    /// Ends the reading of a bundle: `in_part` if it has the objects of some namespaces, `is_all` if it has all objects of the
    /// kinds that it has.
    pub(super) fn finish(&mut self, in_part: bool, is_all: bool) {
        let has_endpoints = !self.endpoints.is_empty();
        if in_part {
            let namespaces: BTreeSet<&str> = self
                .all
                .values()
                .flat_map(BTreeMap::keys)
                .map(|(namespace, _)| namespace.as_str())
                .collect();
            let count = namespaces.iter().filter(|name| !name.is_empty()).count();
            self.in_part = Some(format!(
                "the bundle has {count} namespaces of the cluster; it may have others"
            ));
        } else if is_all {
            self.whole.extend(self.all.keys().copied());
            if has_endpoints {
                self.whole.insert(Item::EndpointSlices);
            }
        }
    }

    /// Reads YAML, of one document or several.
    pub(super) fn yaml(&mut self, text: &str, command: Option<&Command>) -> bool {
        let mut any = false;
        for document in text.split("\n---") {
            if let Some(value) = cluster::yaml(document) {
                any |= value.is_object() && self.document(value, command);
            }
        }
        any
    }

    /// Reads JSON documents; returns the bytes that they take, and other documents that are no objects of the API.
    pub(super) fn json(&mut self, text: &str, command: Option<&Command>) -> (usize, Vec<Value>) {
        let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let mut others = Vec::new();
        let mut end = 0;
        while let Some(Ok(value)) = stream.next() {
            end = stream.byte_offset();
            if !self.document(value.clone(), command) {
                others.push(value);
            }
        }
        (end, others)
    }

    /// Reads a table.
    pub(super) fn table(&mut self, lines: &[String], command: Option<&Command>) {
        let Some((title, rows)) = lines.split_first() else {
            return;
        };
        let titles: Vec<&str> = title.split_whitespace().collect();
        let namespace = command
            .and_then(|command| command.option("-n", "--namespace"))
            .unwrap_or("default");
        for row in rows {
            if is_cut(row) || row.trim().is_empty() {
                continue;
            }
            let mut words: Vec<&str> = row.split_whitespace().collect();
            let namespace = if titles.first() == Some(&"NAMESPACE") && words.len() > 2 {
                words.remove(0)
            } else {
                namespace
            };
            let titles = titles.strip_prefix(&["NAMESPACE"]).unwrap_or(&titles);
            let Some(name) = words
                .first()
                .map(|name| name.rsplit('/').next().unwrap_or(name))
            else {
                continue;
            };
            if titles.contains(&"CLUSTER-IP") || titles.contains(&"CLUSTER_IP") {
                self.service_row(namespace, name, &words[1..]);
            } else if titles.contains(&"ADDRESSTYPE") {
                self.slice_row(namespace, name, &words[1..]);
            } else if titles.contains(&"ENDPOINTS") {
                self.endpoints_row(namespace, name, &words[1..]);
            } else if titles.contains(&"READY") && titles.contains(&"RESTARTS") {
                self.pod_row(namespace, name, &words[1..]);
            } else if titles.contains(&"ROLES") && titles.contains(&"VERSION") {
                self.node_row(name, &words[1..]);
            }
        }
    }

    fn service_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
        let kind = words.iter().find(|word| TYPES.contains(word)).copied();
        // The first address is the cluster IP; columns may be missing.
        let address = words
            .iter()
            .find(|word| word.parse::<IpAddr>().is_ok() || **word == "None")
            .copied();
        let ports = words.iter().find_map(|word| ports(word));
        let external = words
            .iter()
            .skip_while(|word| Some(**word) != address)
            .nth(1)
            .copied();
        let kind = kind.unwrap_or(match &ports {
            Some(ports) if ports.iter().any(|port| port.get("nodePort").is_some()) => "NodePort",
            _ => "ClusterIP",
        });
        let mut spec = Map::new();
        spec.insert("type".into(), json!(kind));
        if kind == "ExternalName" {
            let target = words
                .iter()
                .find(|word| word.contains('.') && word.parse::<IpAddr>().is_err());
            spec.insert("externalName".into(), json!(target));
        } else {
            let Some(address) = address else {
                self.lose(Item::Services, "a row without a cluster IP is not used");
                return;
            };
            spec.insert("clusterIP".into(), json!(address));
            spec.insert("clusterIPs".into(), json!([address]));
            let Some(ports) = ports else {
                self.lose(Item::Services, "a row without ports is not used");
                return;
            };
            spec.insert("ports".into(), json!(ports));
        }
        let mut object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        let addresses = external
            .into_iter()
            .flat_map(|list| list.split(','))
            .filter(|word| word.parse::<IpAddr>().is_ok());
        let addresses: Vec<&str> = addresses.collect();
        if kind == "LoadBalancer" && !addresses.is_empty() {
            // The table joins them with the external IPs of the Service.
            let ingress: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            object["status"] = json!({"loadBalancer": {"ingress": ingress}});
        } else if !addresses.is_empty() {
            object["spec"]["externalIPs"] = json!(addresses);
        }
        self.lose(
            Item::Services,
            "a table does not show target ports, names of ports, session affinity and traffic policies",
        );
        self.add(Item::Services, object, false);
    }

    fn endpoints_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let more = words.contains(&"more...");
        let all: Vec<SocketAddr> = words.first().map_or_else(Vec::new, |list| {
            list.split(',').filter_map(|at| at.parse().ok()).collect()
        });
        if more {
            self.lose(
                Item::EndpointSlices,
                "a table shows the first three endpoints",
            );
        } else {
            self.lose(
                Item::EndpointSlices,
                "a table does not show the state of endpoints",
            );
        }
        self.slices(namespace, name, "", &all, None, "table");
    }

    fn slice_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let [kind, ports, addresses, ..] = words else {
            return;
        };
        let ports: Vec<Value> = ports
            .split(',')
            .filter_map(|port| port.parse::<u16>().ok())
            .map(|port| json!({"port": port, "protocol": "TCP"}))
            .collect();
        let endpoints = addresses
            .split(',')
            .filter(|word| word.parse::<IpAddr>().is_ok());
        let endpoints: Vec<Value> = endpoints.map(|addr| json!({"addresses": [addr]})).collect();
        // The name of the slice is that of the Service and five letters.
        let service = name.rsplit_once('-').map_or(name, |(service, _)| service);
        self.lose(
            Item::EndpointSlices,
            "a table does not show the state of endpoints and names of ports",
        );
        let value = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "addressType": kind,
            "ports": ports,
            "endpoints": endpoints,
        });
        self.add(Item::EndpointSlices, value, false);
    }

    /// Adds slices of the Service with one port called `port`.
    fn slices(
        &mut self,
        namespace: &str,
        service: &str,
        port: &str,
        all: &[SocketAddr],
        proto: Option<&str>,
        from: &str,
    ) {
        let mut by_port: BTreeMap<(u16, bool), Vec<IpAddr>> = BTreeMap::new();
        for at in all {
            by_port
                .entry((at.port(), at.is_ipv6()))
                .or_default()
                .push(at.ip());
        }
        for ((number, six), addresses) in by_port {
            let endpoints: Vec<Value> = addresses
                .iter()
                .map(|addr| json!({"addresses": [addr.to_string()], "conditions": {"ready": true}}))
                .collect();
            let value = json!({
                "metadata": {
                    "name": format!("{service}-{from}-{number}{}", if six { "-6" } else { "" }),
                    "namespace": namespace,
                    "labels": {"kubernetes.io/service-name": service},
                },
                "addressType": if six { "IPv6" } else { "IPv4" },
                "ports": [{"name": port, "port": number, "protocol": proto.unwrap_or("TCP")}],
                "endpoints": endpoints,
            });
            self.add(Item::EndpointSlices, value, false);
        }
    }

    fn pod_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let [ready, status, ..] = words else {
            return;
        };
        let Some((is, of)) = ready.split_once('/') else {
            return;
        };
        let addr = words.iter().position(|word| word.parse::<IpAddr>().is_ok());
        let mut pod = json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": []},
            "status": {
                "phase": status,
                "conditions": [{"type": "Ready", "status": if is == of { "True" } else { "False" }}],
            },
        });
        if let Some(at) = addr {
            pod["status"]["podIP"] = json!(words[at]);
            pod["status"]["podIPs"] = json!([{"ip": words[at]}]);
            if let Some(node) = words.get(at + 1).filter(|node| **node != "<none>") {
                pod["spec"]["nodeName"] = json!(node);
            }
        }
        self.lose(Item::Pods, "a table does not show labels and ports");
        self.add(Item::Pods, pod, false);
    }

    fn node_row(&mut self, name: &str, words: &[&str]) {
        let version = words.iter().find(|word| {
            word.starts_with('v') && word[1..].starts_with(|c: char| c.is_ascii_digit())
        });
        let addresses = words
            .iter()
            .filter(|word| word.parse::<IpAddr>().is_ok())
            .take(1);
        let addresses: Vec<Value> = addresses
            .map(|addr| json!({"type": "InternalIP", "address": addr}))
            .collect();
        let node = json!({
            "metadata": {"name": name},
            "spec": {},
            "status": {"addresses": addresses, "nodeInfo": {"kubeletVersion": version.unwrap_or(&""), "kubeProxyVersion": ""}},
        });
        self.lose(Item::Nodes, "a table does not show pod CIDRs and labels");
        self.add(Item::Nodes, node, false);
    }

    /// Reads the description of one object: of a Service, an Endpoints or an EndpointSlice.
    pub(super) fn describe(&mut self, lines: &[String]) {
        let pairs: Vec<(&str, &str)> = lines
            .iter()
            .filter(|line| !line.starts_with(char::is_whitespace))
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.trim(), value.trim()))
            .collect();
        let get = |key: &str| {
            pairs
                .iter()
                .find(|(of, _)| *of == key)
                .map(|(_, value)| *value)
        };
        let (Some(name), Some(namespace)) = (get("Name"), get("Namespace")) else {
            return;
        };
        if get("AddressType").is_some() {
            self.described_slice(namespace, name, &get, lines);
        } else if get("Type").is_some()
            && (get("IP").is_some() || get("Port").is_some() || get("External Name").is_some())
        {
            self.described_service(namespace, name, &get, &pairs);
        } else if lines.iter().any(|line| line.starts_with("Subsets:")) {
            self.described_endpoints(namespace, name, lines);
        }
    }

    fn described_service<'l>(
        &mut self,
        namespace: &str,
        name: &str,
        get: &dyn Fn(&str) -> Option<&'l str>,
        pairs: &[(&str, &str)],
    ) {
        let some = |value: Option<&'l str>| {
            value.filter(|value| !value.is_empty() && !value.starts_with('<'))
        };
        let mut spec = Map::new();
        spec.insert("type".into(), json!(get("Type")));
        if let Some(addr) = some(get("IP")) {
            spec.insert("clusterIP".into(), json!(addr));
            let all: Vec<&str> = some(get("IPs")).unwrap_or(addr).split(',').collect();
            spec.insert("clusterIPs".into(), json!(all));
        }
        if let Some(families) = some(get("IP Families")) {
            spec.insert(
                "ipFamilies".into(),
                json!(families.split(',').collect::<Vec<_>>()),
            );
        }
        if let Some(policy) = some(get("IP Family Policy")) {
            spec.insert("ipFamilyPolicy".into(), json!(policy));
        }
        if let Some(addresses) = some(get("External IPs")) {
            spec.insert(
                "externalIPs".into(),
                json!(addresses.split(',').collect::<Vec<_>>()),
            );
        }
        if let Some(target) = some(get("External Name")) {
            spec.insert("externalName".into(), json!(target));
        }
        if let Some(ranges) = some(get("LoadBalancer Source Ranges")) {
            spec.insert(
                "loadBalancerSourceRanges".into(),
                json!(ranges.split(',').collect::<Vec<_>>()),
            );
        }
        if let Some(affinity) = some(get("Session Affinity")) {
            spec.insert("sessionAffinity".into(), json!(affinity));
        }
        for (key, field) in [
            ("External Traffic Policy", "externalTrafficPolicy"),
            ("Internal Traffic Policy", "internalTrafficPolicy"),
        ] {
            if let Some(policy) = some(get(key)) {
                spec.insert(field.into(), json!(policy));
            }
        }
        if let Some(port) =
            some(get("HealthCheck NodePort")).and_then(|port| port.parse::<u16>().ok())
        {
            spec.insert("healthCheckNodePort".into(), json!(port));
        }
        if let Some(selector) = some(get("Selector")) {
            let labels: Map<String, Value> = selector
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect();
            spec.insert("selector".into(), Value::Object(labels));
        }
        let (mut list, mut endpoints): (Vec<Map<String, Value>>, Vec<Vec<SocketAddr>>) =
            (Vec::new(), Vec::new());
        for (key, value) in pairs {
            let words: Vec<&str> = value.split_whitespace().collect();
            let number = words.last().map_or(("", ""), |word| {
                word.split_once('/').unwrap_or((word, "TCP"))
            });
            match (*key, list.last_mut()) {
                ("Port", _) => {
                    let Ok(port) = number.0.parse::<u16>() else {
                        continue;
                    };
                    let mut of = Map::new();
                    if let Some(name) = words
                        .first()
                        .filter(|name| words.len() > 1 && !name.starts_with('<'))
                    {
                        of.insert("name".into(), json!(name));
                    }
                    of.insert("port".into(), json!(port));
                    of.insert("protocol".into(), json!(number.1));
                    list.push(of);
                    endpoints.push(Vec::new());
                }
                ("TargetPort", Some(of)) => {
                    let target = number
                        .0
                        .parse::<u16>()
                        .map_or_else(|_| json!(number.0), |port| json!(port));
                    of.insert("targetPort".into(), target);
                }
                ("NodePort", Some(of)) => {
                    if let Ok(port) = number.0.parse::<u16>() {
                        of.insert("nodePort".into(), json!(port));
                    }
                }
                ("Endpoints", Some(_)) => {
                    let shown: Vec<SocketAddr> = words.first().map_or_else(Vec::new, |all| {
                        all.split(',').filter_map(|at| at.parse().ok()).collect()
                    });
                    let rest = words
                        .iter()
                        .position(|word| *word == "+")
                        .and_then(|at| words.get(at + 1))
                        .and_then(|count| count.parse::<u32>().ok());
                    if rest.is_some_and(|rest| rest > 0) {
                        self.lose(
                            Item::EndpointSlices,
                            "a description shows the first three endpoints",
                        );
                    }
                    if let Some(last) = endpoints.last_mut() {
                        last.extend(shown);
                    }
                }
                _ => {}
            }
        }
        for (of, endpoints) in list.iter().zip(&endpoints) {
            let port = of
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let proto = of
                .get("protocol")
                .and_then(Value::as_str)
                .map(str::to_owned);
            self.slices(
                namespace,
                name,
                &port,
                endpoints,
                proto.as_deref(),
                "described",
            );
        }
        spec.insert("ports".into(), json!(list));
        let mut object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        if let Some(ingress) = some(get("LoadBalancer Ingress")) {
            let all: Vec<Value> = ingress
                .split(',')
                .filter_map(|word| word.split_whitespace().next())
                .map(|word| {
                    if word.parse::<IpAddr>().is_ok() {
                        json!({"ip": word})
                    } else {
                        json!({"hostname": word})
                    }
                })
                .collect();
            object["status"] = json!({"loadBalancer": {"ingress": all}});
        }
        self.lose(Item::Services, "a description does not show all fields");
        self.lose(
            Item::EndpointSlices,
            "a description does not show endpoints that are not ready",
        );
        self.add(Item::Services, object, false);
    }

    fn described_endpoints(&mut self, namespace: &str, name: &str, lines: &[String]) {
        let (mut ready, mut not_ready, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        let mut subsets = Vec::new();
        let list = |text: &str| -> Vec<Value> {
            let all = text
                .split(',')
                .map(str::trim)
                .filter(|word| word.parse::<IpAddr>().is_ok());
            all.map(|ip| json!({"ip": ip})).collect()
        };
        for line in lines {
            let text = line.trim();
            if let Some(all) = text.strip_prefix("Addresses:") {
                if !ports.is_empty() {
                    subsets.push(json!({"addresses": ready, "notReadyAddresses": not_ready, "ports": std::mem::take(&mut ports)}));
                }
                ready = list(all);
                not_ready = Vec::new();
            } else if let Some(all) = text.strip_prefix("NotReadyAddresses:") {
                not_ready = list(all);
            } else if let [name, port, protocol] =
                text.split_whitespace().collect::<Vec<_>>().as_slice()
                && let Ok(port) = port.parse::<u16>()
            {
                let name = if name.starts_with('<') { "" } else { name };
                ports.push(json!({"name": name, "port": port, "protocol": protocol}));
            }
        }
        subsets.push(json!({"addresses": ready, "notReadyAddresses": not_ready, "ports": ports}));
        self.endpoints
            .push(json!({"metadata": {"name": name, "namespace": namespace}, "subsets": subsets}));
        self.lose(Item::EndpointSlices, "only some Services are described");
    }

    fn described_slice<'l>(
        &mut self,
        namespace: &str,
        name: &str,
        get: &dyn Fn(&str) -> Option<&'l str>,
        lines: &[String],
    ) {
        let (mut ports, mut endpoints): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        let mut service = None;
        for line in lines {
            let text = line.trim();
            if let Some(label) = text
                .split_whitespace()
                .find_map(|word| word.strip_prefix("kubernetes.io/service-name="))
            {
                service = Some(label.to_owned());
            }
            if let Some(addresses) = text.strip_prefix("- Addresses:") {
                let all: Vec<&str> = addresses
                    .split(',')
                    .map(str::trim)
                    .filter(|word| word.parse::<IpAddr>().is_ok())
                    .collect();
                endpoints.push(json!({"addresses": all, "conditions": {}}));
                continue;
            }
            if let Some(endpoint) = endpoints.last_mut() {
                let value = |key: &str| {
                    text.strip_prefix(key)
                        .map(str::trim)
                        .filter(|value| !value.starts_with('<'))
                };
                for (key, field) in [
                    ("Ready:", "ready"),
                    ("Serving:", "serving"),
                    ("Terminating:", "terminating"),
                ] {
                    if let Some(state) = value(key) {
                        endpoint["conditions"][field] = json!(state == "true");
                    }
                }
                if let Some(node) = value("NodeName:") {
                    endpoint["nodeName"] = json!(node);
                }
                if let Some(zone) = value("Zone:") {
                    endpoint["zone"] = json!(zone);
                }
                if let Some(pod) =
                    value("TargetRef:").and_then(|target| target.strip_prefix("Pod/"))
                {
                    endpoint["targetRef"] =
                        json!({"kind": "Pod", "name": pod, "namespace": namespace});
                }
            } else if let [name, port, protocol] =
                text.split_whitespace().collect::<Vec<_>>().as_slice()
                && let Ok(port) = port.parse::<u16>()
            {
                let name = if name.starts_with('<') { "" } else { name };
                ports.push(json!({"name": name, "port": port, "protocol": protocol}));
            }
        }
        let service = service.unwrap_or_else(|| {
            name.rsplit_once('-')
                .map_or(name, |(service, _)| service)
                .to_owned()
        });
        let value = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "addressType": get("AddressType"),
            "ports": ports,
            "endpoints": endpoints,
        });
        self.lose(Item::EndpointSlices, "only some slices are described");
        self.add(Item::EndpointSlices, value, true);
    }

    /// Returns the addresses of pods, and the ports that Services lead to: what endpoints may be.
    pub(super) fn endpoints(&self) -> BTreeSet<SocketAddr> {
        let values = |item: Item| {
            self.all
                .get(&item)
                .into_iter()
                .flat_map(|all| all.values())
                .map(|object| &object.value)
        };
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        let mut ports: BTreeSet<u16> = BTreeSet::new();
        let mut exact = BTreeSet::new();
        for pod in values(Item::Pods) {
            addresses.extend(
                pod.pointer("/status/podIP")
                    .and_then(Value::as_str)
                    .and_then(|ip| ip.parse::<IpAddr>().ok()),
            );
        }
        for slice in values(Item::EndpointSlices) {
            let list = |key: &str| {
                slice
                    .get(key)
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default()
            };
            let own: Vec<u16> = list("ports")
                .iter()
                .filter_map(|port| port.get("port")?.as_u64()?.try_into().ok())
                .collect();
            for endpoint in list("endpoints") {
                let of = endpoint
                    .get("addresses")
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default();
                for addr in of
                    .iter()
                    .filter_map(|addr| addr.as_str()?.parse::<IpAddr>().ok())
                {
                    addresses.insert(addr);
                    exact.extend(own.iter().map(|port| SocketAddr::new(addr, *port)));
                }
            }
            ports.extend(own);
        }
        for service in values(Item::Services) {
            let list = service
                .pointer("/spec/ports")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            for port in list {
                let number = |key: &str| {
                    port.get(key)
                        .and_then(Value::as_u64)
                        .and_then(|port| u16::try_from(port).ok())
                };
                ports.extend(number("targetPort").or_else(|| number("port")));
            }
        }
        exact.extend(
            addresses
                .iter()
                .flat_map(|addr| ports.iter().map(|port| SocketAddr::new(*addr, *port))),
        );
        exact
    }

    /// Puts the objects into `evidence`.
    pub(super) fn put(&self, evidence: &mut Evidence) {
        let mut objects = self.clone();
        let sliced: BTreeSet<(String, String)> = objects
            .all
            .get(&Item::EndpointSlices)
            .into_iter()
            .flat_map(|all| all.values())
            .filter_map(|object| {
                let of = |pointer: &str| {
                    object
                        .value
                        .pointer(pointer)
                        .and_then(Value::as_str)
                        .map(str::to_owned)
                };
                Some((
                    of("/metadata/namespace")?,
                    of("/metadata/labels/kubernetes.io~1service-name")?,
                ))
            })
            .collect();
        for endpoints in std::mem::take(&mut objects.endpoints) {
            for slice in slices_of(&endpoints, &sliced) {
                objects.add(Item::EndpointSlices, slice, true);
            }
        }
        for (_, item) in KINDS {
            let Some(all) = objects.all.get(&item) else {
                continue;
            };
            let values: Vec<&Value> = all.values().map(|object| &object.value).collect();
            let kind = KINDS
                .iter()
                .find(|(_, of)| *of == item)
                .map_or("", |(kind, _)| *kind);
            let text = json!({"kind": format!("{kind}List"), "items": values}).to_string();
            let mut missing: Vec<String> = Vec::new();
            // Nodes are of no namespace.
            let in_part = objects.in_part.clone().filter(|_| item != Item::Nodes);
            let of_all = objects.in_part.is_some() && item == Item::Nodes;
            if let Some(why) = in_part {
                missing.push(why);
            } else if !objects.whole.contains(&item) && !of_all {
                missing.push("other objects may exist".to_owned());
            }
            if all.values().any(|object| !object.is_whole) {
                missing.extend(objects.lost.get(&item).into_iter().flatten().cloned());
            }
            if missing.is_empty() {
                evidence.insert(item, Ok(text));
            } else {
                evidence.insert_part(item, text, missing.join("; "));
            }
        }
    }
}

/// Returns how much an object says.
fn richness(value: &Value) -> usize {
    value.to_string().len()
}

fn same_ports(one: &Value, other: &Value) -> bool {
    let of = |value: &Value| -> Vec<(Option<u64>, Option<u64>)> {
        let list = value
            .pointer("/spec/ports")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        list.iter()
            .map(|port| {
                (
                    port.get("port").and_then(Value::as_u64),
                    port.get("nodePort").and_then(Value::as_u64),
                )
            })
            .collect()
    };
    of(one) == of(other)
}

/// Reads `80:30080/TCP,443/TCP`.
fn ports(word: &str) -> Option<Vec<Value>> {
    let of = |text: &str| {
        let (numbers, proto) = text.split_once('/')?;
        ["TCP", "UDP", "SCTP"].contains(&proto).then_some(())?;
        let (port, node) = match numbers.split_once(':') {
            Some((port, node)) => (port, Some(node.parse::<u16>().ok()?)),
            None => (numbers, None),
        };
        let mut value = json!({"port": port.parse::<u16>().ok()?, "protocol": proto});
        if let Some(node) = node {
            value["nodePort"] = json!(node);
        }
        Some(value)
    };
    word.split(',').map(of).collect()
}

/// Returns the slices of an Endpoints object, unless its Service has slices.
fn slices_of(endpoints: &Value, sliced: &BTreeSet<(String, String)>) -> Vec<Value> {
    let of = |pointer: &str| {
        endpoints
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (namespace, name) = (of("/metadata/namespace"), of("/metadata/name"));
    if sliced.contains(&(namespace.clone(), name.clone())) {
        return Vec::new();
    }
    let list = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let mut made = Vec::new();
    for (at, subset) in list(endpoints, "subsets").iter().enumerate() {
        for six in [false, true] {
            let mut all = Vec::new();
            for (key, ready) in [("addresses", true), ("notReadyAddresses", false)] {
                for address in list(subset, key) {
                    let ip = address
                        .get("ip")
                        .and_then(Value::as_str)
                        .unwrap_or_default();
                    if ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == six) {
                        let mut endpoint =
                            json!({"addresses": [ip], "conditions": {"ready": ready}});
                        for field in ["nodeName", "targetRef"] {
                            if let Some(value) = address.get(field) {
                                endpoint[field] = value.clone();
                            }
                        }
                        all.push(endpoint);
                    }
                }
            }
            if !all.is_empty() {
                made.push(json!({
                    "metadata": {
                        "name": format!("{name}-{at}{}", if six { "-6" } else { "" }),
                        "namespace": namespace,
                        "labels": {"kubernetes.io/service-name": name},
                    },
                    "addressType": if six { "IPv6" } else { "IPv4" },
                    "ports": list(subset, "ports"),
                    "endpoints": all,
                }));
            }
        }
    }
    made
}

/// Returns whether `line` is the title of a table.
pub(super) fn is_title(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let titles = words.iter().all(|word| {
        word.chars()
            .all(|c| c.is_ascii_uppercase() || "-_()%".contains(c))
    });
    words.len() > 2
        && titles
        && (words[0] == "NAME" || words[0] == "NAMESPACE" && words.contains(&"NAME"))
}

/// Returns whether `line`, before `next`, begins a description.
pub(super) fn is_description(line: &str, next: &[String]) -> bool {
    line.starts_with("Name:")
        && next
            .iter()
            .take(2)
            .any(|line| line.starts_with("Namespace:"))
}

/// Returns whether `line` begins YAML of the API.
pub(super) fn is_yaml(line: &str) -> bool {
    ["apiVersion:", "- apiVersion:", "kind:"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Returns whether `line` may be in YAML.
pub(super) fn is_of_yaml(line: &str) -> bool {
    let text = line.trim_end();
    let key = text.split(':').next().unwrap_or_default();
    text.is_empty()
        || text == "---"
        || text.starts_with([' ', '-', '#'])
        || text.contains(':') && key.chars().all(|c| c.is_ascii_alphanumeric())
}
