//! Objects of the cluster, from what kubectl prints: YAML, JSON, tables and descriptions.

mod describe;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::command::Command;
use super::config;
use crate::cluster;
use crate::cluster::config::ORIGIN;
use crate::evidence::{Evidence, Gap, Item};
use crate::node::links::{self, Address};
use crate::words::listed;

pub(super) use describe::is_description;
pub(super) use table::{is_service_row, is_title};

/// Objects by kind, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(in crate::foreign) struct Objects {
    all: BTreeMap<Item, BTreeMap<(String, String), Object>>,
    /// Kinds of which all objects are shown.
    whole: BTreeSet<Item>,
    lost: BTreeMap<Item, BTreeSet<String>>,
    /// Kinds that a command could not list, with its message.
    failed: BTreeMap<Item, String>,
    /// Endpoints of the older kind, which slices replace.
    endpoints: Vec<Value>,
    /// The number of tables and commands whose namespace is not shown, and the last of the commands.
    marks: usize,
    last: Option<Command>,
    /// The namespaces that are shown, where a list is made of files of namespaces.
    pub(in crate::foreign) in_part: Option<String>,
}

#[derive(Clone, Debug)]
struct Object {
    value: Value,
    /// Whether the object is complete, as in the API: tables and descriptions omit fields.
    is_whole: bool,
}

impl Object {
    /// Returns the ports of a slice to which the ports of the Service may lead, if endpoints have port `number` and, where shown,
    /// this protocol.
    fn ports_to(&self, number: u64, shown: Option<&str>) -> Vec<Value> {
        let spec = self.value.get("spec");
        let of_spec = |key: &str| spec.and_then(|spec| spec.get(key));
        let selector = of_spec("selector").and_then(Value::as_object);
        let is_selected = selector.is_some_and(|labels| !labels.is_empty());
        let may_lead = |port: &&Value| match port.get("targetPort") {
            // The writer of the endpoints of a Service without a selector chooses their port.
            _ if !is_selected => true,
            Some(Value::Number(target)) => target.as_u64() == Some(number),
            Some(_) => true,
            None => !self.is_whole || self::number(port) == Some(number),
        };
        let ports = of_spec("ports").and_then(Value::as_array);
        let ports = ports.into_iter().flatten().filter(may_lead);
        let ports = ports.filter(|port| shown.is_none_or(|shown| protocol(port) == shown));
        let text = |port: &Value, key: &str| port.get(key)?.as_str().map(str::to_owned);
        let named = ports.map(|port| {
            json!({"name": text(port, "name").unwrap_or_default(), "port": number, "protocol": protocol(port)})
        });
        named.collect()
    }

    /// Names the ports of a Service of which a table shows none, as `slices` name them; returns whether the names of all are known.
    fn take_names(&mut self, slices: &[&mut Value]) -> bool {
        let shown = slices
            .iter()
            .filter_map(|slice| slice.get("ports")?.as_array())
            .flatten()
            .filter_map(|port| Some((protocol(port), number(port)?, port.get("name")?.as_str()?)));
        let shown: BTreeSet<(&str, u64, &str)> = shown.collect();
        let ports = self.value.pointer_mut("/spec/ports");
        let Some(ports) = ports.and_then(Value::as_array_mut) else {
            return true;
        };
        if self.is_whole || shown.iter().all(|(_, _, name)| name.is_empty()) {
            return true;
        }
        let all: Vec<(String, Option<u64>)> = ports
            .iter()
            .map(|port| (protocol(port).to_owned(), number(port)))
            .collect();
        // Ports that all lead to their own number have the names of those.
        let mut all_shown = shown.iter();
        let is_same = all_shown.all(|pair| all.contains(&(pair.0.to_owned(), Some(pair.1))));
        let mut is_known = true;
        for (port, (own, at)) in ports.iter_mut().zip(&all) {
            if port.get("name").is_some() {
                continue;
            }
            let of_own = || shown.iter().filter(|(of, _, _)| of == own);
            let names: BTreeSet<&str> = of_own().map(|(_, _, name)| *name).collect();
            let is_only = names.len() == 1 && all.iter().filter(|(of, _)| of == own).count() == 1;
            match of_own().find(|candidate| is_only || is_same && Some(candidate.1) == *at) {
                Some((_, _, name)) => port["name"] = json!(name),
                None => is_known &= names.is_empty(),
            }
        }
        is_known
    }
}

fn protocol(port: &Value) -> &str {
    let text = port.get("protocol").and_then(Value::as_str);
    text.unwrap_or("TCP")
}

fn number(port: &Value) -> Option<u64> {
    port.get("port").and_then(Value::as_u64)
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

/// Returns the item of the objects that kubectl's argument `word` names.
fn item_called(word: &str) -> Option<Item> {
    let word = word.split('/').next().unwrap_or(word).to_ascii_lowercase();
    Some(match word.as_str() {
        "svc" | "service" | "services" => Item::Services,
        "ep" | "endpoints" | "endpointslice" | "endpointslices" => Item::EndpointSlices,
        "no" | "node" | "nodes" => Item::Nodes,
        "po" | "pod" | "pods" => Item::Pods,
        _ => return None,
    })
}

/// Returns the items that this module makes.
pub(in crate::foreign) fn items() -> impl Iterator<Item = Item> {
    KINDS.into_iter().map(|(_, item)| item)
}

impl Objects {
    /// Returns the number of objects in `item`.
    pub(in crate::foreign) fn len(&self, item: Item) -> usize {
        self.all.get(&item).map_or(0, BTreeMap::len)
    }

    /// Returns whether nothing is shown.
    pub(in crate::foreign) fn is_empty(&self) -> bool {
        self.all.values().all(BTreeMap::is_empty)
            && self.endpoints.is_empty()
            && self.whole.is_empty()
            && self.failed.is_empty()
    }

    fn lose(&mut self, item: Item, why: &str) {
        self.lost.entry(item).or_default().insert(why.to_owned());
    }

    fn add(&mut self, item: Item, value: Value, is_whole: bool) {
        let metadata = value.get("metadata");
        let text = |key: &str| {
            let of = metadata
                .and_then(|metadata| metadata.get(key))
                .and_then(Value::as_str);
            of.unwrap_or_default().to_owned()
        };
        let key = (text("namespace"), text("name"));
        if !key.1.is_empty() {
            self.add_as(item, key, value, is_whole);
        }
    }

    /// Adds an object with its namespace and name, or with another distinguishing text if its name is not shown.
    fn add_as(&mut self, item: Item, key: (String, String), mut value: Value, is_whole: bool) {
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
    pub(in crate::foreign) fn document(&mut self, value: Value, command: Option<&Command>) -> bool {
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

    /// Ends the reading of a bundle: `in_part` if it has the objects of some namespaces, `is_all` if it has all objects of its
    /// kinds.
    pub(in crate::foreign) fn finish(&mut self, in_part: bool, is_all: bool) {
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

    /// Returns the node of the pod whose name is in `path`: a path of a file, or the name itself.
    pub(in crate::foreign) fn node_of(&self, path: &str) -> Option<String> {
        let pods = self.all.get(&Item::Pods)?;
        let pod = pods
            .iter()
            .find(|((_, name), _)| path.contains(name.as_str()));
        let node = pod?.1.value.pointer("/spec/nodeName")?;
        node.as_str().map(str::to_owned)
    }

    /// Returns the only Node with one of the addresses of `links`, which are as `ip -j addr` writes them.
    pub(in crate::foreign) fn node_at<'l>(
        &self,
        links: impl Iterator<Item = &'l Value>,
    ) -> Option<String> {
        let list = |value: &'l Value| value.get("addr_info").and_then(Value::as_array);
        let own: BTreeSet<&str> = links
            .filter_map(list)
            .flatten()
            .filter_map(|info| info.get("local")?.as_str())
            .collect();
        let nodes = self.all.get(&Item::Nodes)?.iter();
        let mut found = nodes.filter(|(_, node)| {
            let all = node
                .value
                .pointer("/status/addresses")
                .and_then(Value::as_array);
            let mut addresses = all
                .into_iter()
                .flatten()
                .filter_map(|address| address.get("address")?.as_str());
            addresses.any(|address| own.contains(address))
        });
        let ((_, name), _) = found.next()?;
        found.next().is_none().then(|| name.clone())
    }

    /// Returns kube-proxy's configuration on `node`: of a ConfigMap, or of the arguments of its pod.
    pub(in crate::foreign) fn proxy_config(&self, node: &str) -> Option<String> {
        let values = |item: Item| {
            let all = self.all.get(&item).into_iter().flat_map(BTreeMap::iter);
            all.map(|(key, object)| (key, &object.value))
        };
        for ((namespace, name), map) in values(Item::ConfigMaps) {
            let data = map.get("data").and_then(Value::as_object);
            for (key, value) in data.into_iter().flatten() {
                let value = value.as_str().unwrap_or_default();
                if value.contains("KubeProxyConfiguration") {
                    return Some(format!(
                        "{ORIGIN}ConfigMap {namespace}/{name}, key {key}\n{value}\n"
                    ));
                }
            }
        }
        let list = |value: Option<&Value>| -> Vec<String> {
            let all = value.and_then(Value::as_array).into_iter().flatten();
            all.filter_map(|word| word.as_str().map(str::to_owned))
                .collect()
        };
        values(Item::Pods).find_map(|((_, name), pod)| {
            let at = pod.pointer("/spec/nodeName").and_then(Value::as_str);
            let containers = pod.pointer("/spec/containers")?.as_array()?;
            let is_its =
                |value: &&Value| value.get("name").and_then(Value::as_str) == Some("kube-proxy");
            let container = containers
                .iter()
                .find(is_its)
                .filter(|_| at == Some(node))?;
            let args = [list(container.get("command")), list(container.get("args"))].concat();
            let config = config::of_flags(&args)?;
            Some(format!("{ORIGIN}the arguments of pod {name}\n{config}"))
        })
    }

    /// Reads YAML, of one document or several; the error is why none of it, or which of it, is not used.
    pub(in crate::foreign) fn yaml(
        &mut self,
        text: &str,
        command: Option<&Command>,
    ) -> Result<(), String> {
        let mut any = false;
        for document in text.split("\n---") {
            if document.trim().is_empty() {
                continue;
            }
            let value = cluster::config::yaml::<Value>(document)?;
            any |= value.is_object() && self.document(value, command);
        }
        any.then_some(())
            .ok_or_else(|| "no objects of the API".to_owned())
    }

    /// Notes that `command` printed `first`, a message instead of an object.
    pub(in crate::foreign) fn unknown(&mut self, command: &Command, first: &str) {
        let is_all = command.has("-A") || command.has("--all-namespaces");
        let kinds = command.args.iter().flat_map(|arg| arg.split(','));
        for item in kinds.filter_map(item_called) {
            if first.starts_with("No resources found") {
                if is_all && command.fragment.is_none() {
                    self.all.entry(item).or_default();
                    self.whole.insert(item);
                }
            } else {
                self.failed.insert(item, first.to_owned());
            }
        }
    }

    /// Reads JSON documents; returns the bytes that they take, and other documents that are no objects of the API.
    pub(in crate::foreign) fn json(
        &mut self,
        text: &str,
        command: Option<&Command>,
    ) -> (usize, Vec<Value>) {
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

    /// Adds a slice that says that the Service has no endpoints that are ready.
    fn no_endpoints(&mut self, namespace: &str, service: &str) {
        let key = (namespace.to_owned(), format!("{service} none"));
        let mut slice = empty_slice(namespace, service);
        slice["inPart"] = json!(true);
        self.add_as(Item::EndpointSlices, key, slice, false);
    }

    /// Adds slices of the Service with the endpoints at `all`, of the port with this name and protocol; `None` if they are not shown.
    /// `is_cut` says that there are more.
    fn slices(
        &mut self,
        namespace: &str,
        service: &str,
        port: Option<(&str, &str)>,
        all: &[SocketAddr],
        is_cut: bool,
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
            let mut of = json!({"port": number});
            if let Some((name, protocol)) = port {
                of["name"] = json!(name);
                of["protocol"] = json!(protocol);
            }
            let kind = if six { "IPv6" } else { "IPv4" };
            let key = format!("{service} {kind} {of}");
            let value = json!({
                "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
                "inPart": is_cut || port.is_none(),
                "addressType": kind,
                "ports": [of],
                "endpoints": endpoints,
            });
            self.add_as(
                Item::EndpointSlices,
                (namespace.to_owned(), key),
                value,
                false,
            );
        }
    }

    /// Returns the addresses of pods, and the ports that Services lead to: the possible endpoints.
    pub(in crate::foreign) fn endpoints(&self) -> BTreeSet<SocketAddr> {
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

    /// Marks the pods of tables that are in their node's network: they have an address of a Node, one of the node's `own`, or the same
    /// address as others.
    fn tell_host_network(&mut self, own: &[Address]) {
        let nodes = self
            .all
            .get(&Item::Nodes)
            .into_iter()
            .flat_map(BTreeMap::values);
        let listed = nodes.filter_map(|node| node.value.pointer("/status/addresses")?.as_array());
        let addresses = listed
            .flatten()
            .filter_map(|address| address.get("address")?.as_str());
        let own = own.iter().map(|address| address.addr.addr.to_string());
        let of_nodes: BTreeSet<String> = addresses.map(str::to_owned).chain(own).collect();
        let Some(pods) = self.all.get_mut(&Item::Pods) else {
            return;
        };
        let address = |object: &Object| {
            object
                .value
                .pointer("/status/podIP")?
                .as_str()
                .map(str::to_owned)
        };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for address in pods.values().filter_map(address) {
            *counts.entry(address).or_default() += 1;
        }
        for pod in pods.values_mut().filter(|pod| !pod.is_whole) {
            let of_host = address(pod).is_some_and(|address| {
                of_nodes.contains(&address) || counts.get(&address).is_some_and(|count| *count > 1)
            });
            if of_host {
                pod.value["spec"]["hostNetwork"] = json!(true);
            }
        }
    }

    /// Gives unnamed ports of a Service the names of the ports of its slices, where only one fits. Where several fit, or where
    /// slices do not show names and protocols, each port of the slices belongs to each port of the Service that may lead to it.
    fn name_ports(&mut self) {
        let mut services = self.all.remove(&Item::Services).unwrap_or_default();
        let slices = self.all.get_mut(&Item::EndpointSlices);
        let mut by_service: BTreeMap<(String, String), Vec<&mut Value>> = BTreeMap::new();
        for slice in slices.into_iter().flat_map(BTreeMap::values_mut) {
            let of = |pointer: &str| {
                let text = slice.value.pointer(pointer).and_then(Value::as_str);
                text.unwrap_or_default().to_owned()
            };
            let service = of("/metadata/labels/kubernetes.io~1service-name");
            let key = (of("/metadata/namespace"), service);
            by_service.entry(key).or_default().push(&mut slice.value);
        }
        for (key, slices) in by_service {
            let Some(service) = services.get_mut(&key) else {
                continue;
            };
            let is_named = service.take_names(&slices);
            for slice in slices {
                let Some(ports) = slice.get_mut("ports").and_then(Value::as_array_mut) else {
                    continue;
                };
                let mut is_open = false;
                for port in std::mem::take(ports) {
                    let number = port.get("port").and_then(Value::as_u64);
                    let shown = port.get("protocol").and_then(Value::as_str);
                    match number.filter(|_| shown.is_none() || !is_named) {
                        Some(number) => {
                            is_open |= shown.is_some();
                            ports.extend(service.ports_to(number, shown));
                        }
                        None => ports.push(port),
                    }
                }
                if is_open {
                    slice["inPart"] = json!(true);
                }
            }
        }
        if !services.is_empty() {
            self.all.insert(Item::Services, services);
        }
    }

    /// Returns the ready addresses in the slices of each Service that has some, by its namespace and name.
    fn sliced(&self) -> BTreeMap<(String, String), BTreeSet<String>> {
        let mut by_address = BTreeMap::<_, BTreeSet<String>>::new();
        let slices = self.all.get(&Item::EndpointSlices).into_iter();
        for Object { value, .. } in slices.flat_map(BTreeMap::values) {
            let of = |pointer: &str| Some(value.pointer(pointer)?.as_str()?.to_owned());
            let key =
                of("/metadata/namespace").zip(of("/metadata/labels/kubernetes.io~1service-name"));
            let Some(key) = key else {
                continue;
            };
            let endpoints = value.get("endpoints").and_then(Value::as_array);
            let is_ready =
                |value: &&Value| value.pointer("/conditions/ready") != Some(&Value::Bool(false));
            let ready = endpoints.into_iter().flatten().filter(is_ready);
            let addresses = ready.filter_map(|endpoint| endpoint.get("addresses")?.as_array());
            let addresses = addresses.flatten().filter_map(Value::as_str);
            by_address
                .entry(key)
                .or_default()
                .extend(addresses.map(str::to_owned));
        }
        by_address
    }

    /// Returns the Endpoints objects whose ready addresses differ from the slices, in words.
    pub(in crate::foreign) fn contradicted(&self) -> Vec<String> {
        let sliced = self.sliced();
        let differing = self.endpoints.iter().filter_map(|endpoints| {
            let of = |pointer: &str| Some(endpoints.pointer(pointer)?.as_str()?.to_owned());
            let key = of("/metadata/namespace").zip(of("/metadata/name"))?;
            let in_slices = sliced.get(&key)?;
            let subsets = endpoints.get("subsets").and_then(Value::as_array);
            let addresses = subsets.into_iter().flatten().filter_map(|subset| subset.get("addresses")?.as_array());
            let own = addresses.flatten().filter_map(|address| address.get("ip")?.as_str());
            let own: BTreeSet<String> = own.map(str::to_owned).collect();
            let shown = |all: &BTreeSet<String>| match all.len() {
                0 => "none".to_owned(),
                _ => listed(&all.iter().collect::<Vec<_>>()),
            };
            (own != *in_slices).then(|| {
                format!(
                    "the Endpoints object of {}/{}, whose ready addresses ({}) are not those of its EndpointSlices ({}): kube-proxy reads \
                     these, since 1.22 alone, and kube-controller-manager writes both",
                    key.0,
                    key.1,
                    shown(&own),
                    shown(in_slices)
                )
            })
        });
        differing.collect()
    }

    /// Puts the objects into `evidence`.
    pub(in crate::foreign) fn put(&self, evidence: &mut Evidence) {
        let mut objects = self.clone();
        let sliced: BTreeSet<(String, String)> = self.sliced().keys().cloned().collect();
        for endpoints in std::mem::take(&mut objects.endpoints) {
            for (at, slice) in slices_of(&endpoints, &sliced).into_iter().enumerate() {
                let of = |pointer: &str| {
                    let text = slice.pointer(pointer).and_then(Value::as_str);
                    text.unwrap_or_default().to_owned()
                };
                let service = of("/metadata/labels/kubernetes.io~1service-name");
                let key = (of("/metadata/namespace"), format!("{service} subset {at}"));
                objects.add_as(Item::EndpointSlices, key, slice, true);
            }
        }
        objects.name_ports();
        let own = evidence.text(Item::Addresses).and_then(links::addresses);
        objects.tell_host_network(&own.unwrap_or_default().all);
        for (_, item) in KINDS {
            let Some(all) = objects.all.get(&item) else {
                if let Some(why) = objects.failed.get(&item) {
                    evidence.insert(item, Err(Gap::Failed(item, why.clone())));
                }
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

/// Returns a slice without endpoints.
fn empty_slice(namespace: &str, service: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [],
        "endpoints": [],
    })
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
    for subset in &list(endpoints, "subsets") {
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
                    "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
                    "addressType": if six { "IPv6" } else { "IPv4" },
                    "ports": list(subset, "ports"),
                    "endpoints": all,
                }));
            }
        }
    }
    if made.is_empty() {
        made.push(empty_slice(&namespace, &name));
    }
    made
}

/// Returns whether `line` begins YAML of the API.
pub(in crate::foreign) fn is_yaml(line: &str) -> bool {
    ["apiVersion:", "- apiVersion:", "kind:"]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Returns whether `line` may be in YAML.
pub(in crate::foreign) fn is_of_yaml(line: &str) -> bool {
    let text = line.trim_end();
    let key = text.split(':').next().unwrap_or_default();
    text.is_empty()
        || text == "---"
        || text.starts_with([' ', '\t', '-', '#'])
        || text.contains(':') && key.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Returns the kind of the object whose YAML `lines` were, before a page or a chat took the indentation off.
pub(in crate::foreign) fn without_indentation(lines: &[String]) -> Option<&str> {
    let mut filled = lines.iter().filter(|line| !line.trim().is_empty());
    filled.find(|line| line.trim_end() == "metadata:")?;
    let next = filled.next()?;
    if next.starts_with([' ', '-']) {
        return None;
    }
    let kinds = lines.iter().filter_map(|line| line.strip_prefix("kind:"));
    let mut kinds = kinds.map(str::trim).filter(|kind| *kind != "List");
    Some(kinds.next_back().unwrap_or("object"))
}
