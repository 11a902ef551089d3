//! Tables of `kubectl get`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use super::super::command::Command;
use super::super::rules::is_cut;
use super::{Object, Objects};
use crate::evidence::Item;

/// The beginning of the mark of a namespace that is not shown.
const UNPLACED: char = '?';

/// Types of Services.
const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];

/// The parts of long lists that tables omit.
const FIRST_ONES: &str = "a table shows the first three endpoints";

impl Objects {
    /// Reads a table.
    pub(in crate::foreign) fn table(&mut self, lines: &[String], command: Option<&Command>) {
        let Some((title, rows)) = lines.split_first() else {
            return;
        };
        let titles: Vec<&str> = title.split_whitespace().collect();
        let unnamed = self.namespace_of(command);
        let namespace = unnamed.as_str();
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
            // The output of another command follows.
            if !is_name(name) {
                break;
            }
            if titles.contains(&"CLUSTER-IP") || titles.contains(&"CLUSTER_IP") {
                let selector = titles.last() == Some(&"SELECTOR");
                self.service_row(namespace, name, &words[1..], selector);
            } else if titles.contains(&"ADDRESSTYPE") {
                self.slice_row(namespace, name, &words[1..]);
            } else if titles.contains(&"ENDPOINTS") {
                self.endpoints_row(namespace, name, &words[1..]);
            } else if titles.contains(&"READY") && titles.contains(&"RESTARTS") {
                self.pod_row(namespace, name, &words[1..]);
            } else if titles.contains(&"DESIRED") && titles.contains(&"IMAGES") {
                self.daemon_set_row(namespace, name, &words[1..]);
            } else if titles.contains(&"ROLES") && titles.contains(&"VERSION") {
                self.node_row(name, &words[1..]);
            }
        }
    }

    /// Reads rows of Services without their titles.
    pub(in crate::foreign) fn service_rows(&mut self, rows: &[String], command: Option<&Command>) {
        let unnamed = self.namespace_of(command);
        for row in rows {
            let words: Vec<&str> = row.split_whitespace().collect();
            let Some(at) = before_address(&words) else {
                continue;
            };
            let name = words[at - 1].rsplit('/').next().unwrap_or_default();
            let namespace = if at == 2 { words[0] } else { &unnamed };
            let has_selector = words.last().is_some_and(|word| word.contains('='));
            self.service_row(namespace, name, &words[at..], has_selector);
        }
    }

    /// Returns the namespace of rows that do not show it: the namespace of the command, or a mark until [`Self::place`]
    /// finds it.
    fn namespace_of(&mut self, command: Option<&Command>) -> String {
        let named = command.and_then(|command| command.option("-n", "--namespace"));
        named.map_or_else(
            || {
                // One command prints the tables of one namespace.
                let is_same = command.is_some_and(|command| self.last.as_ref() == Some(command));
                self.marks += usize::from(!is_same);
                self.last = command.cloned();
                format!("{UNPLACED}{}", self.marks)
            },
            str::to_owned,
        )
    }

    /// Finds the namespaces that tables do not show: the namespaces of Services with the same cluster IP (`named` has the Services of
    /// rules with namespace and name), or of the only objects of the same names. An unknown namespace counts as `default`.
    pub(in crate::foreign) fn place(&mut self, named: &BTreeSet<(IpAddr, String, String)>) {
        let text = |value: &Value, pointer: &str| {
            let text = value.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let address = |value: &Value| text(value, "/spec/clusterIP").parse::<IpAddr>().ok();
        let service_of = |item: Item, name: &str, value: &Value| match item {
            Item::EndpointSlices => text(value, "/metadata/labels/kubernetes.io~1service-name"),
            _ => name.to_owned(),
        };
        let mut by_address: BTreeMap<(IpAddr, String), String> = BTreeMap::new();
        let mut by_name: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (addr, namespace, name) in named {
            by_address.insert((*addr, name.clone()), namespace.clone());
            by_name
                .entry(name.clone())
                .or_default()
                .insert(namespace.clone());
        }
        let of_services = [Item::Services, Item::EndpointSlices];
        let mut marks: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for item in of_services {
            let all = self.all.get(&item).into_iter().flatten();
            for ((namespace, name), Object { value, .. }) in all {
                if namespace.starts_with(UNPLACED) {
                    marks.entry(namespace.clone()).or_default();
                    continue;
                }
                let service = service_of(item, name, value);
                if let Some(addr) = address(value) {
                    by_address.insert((addr, service.clone()), namespace.clone());
                }
                by_name
                    .entry(service)
                    .or_default()
                    .insert(namespace.clone());
            }
        }
        // A cluster IP belongs to one Service, so it is better evidence than a name; names are better evidence once
        // other tables are placed.
        for by_names in [false, true] {
            for item in of_services {
                let all = self.all.get(&item).into_iter().flatten();
                for ((mark, name), Object { value, .. }) in all {
                    let Some(found) = marks.get_mut(mark) else {
                        continue;
                    };
                    let service = service_of(item, name, value);
                    let of_address = address(value).map(|addr| (addr, service.clone()));
                    let at = of_address.and_then(|key| by_address.get(&key).cloned());
                    if let Some(namespace) = at {
                        found.insert(namespace);
                    } else if service == "kubernetes" && item == Item::Services {
                        found.insert("default".to_owned());
                    } else if by_names
                        && found.is_empty()
                        && let Some(namespaces) = by_name.get(&service)
                        && let (1, Some(namespace)) = (namespaces.len(), namespaces.first())
                    {
                        found.insert(namespace.clone());
                    }
                }
            }
            for ((mark, name), _) in self.all.get(&Item::Services).into_iter().flatten() {
                if let Some(namespace) = marks.get(mark).and_then(BTreeSet::first) {
                    by_name
                        .entry(name.clone())
                        .or_default()
                        .insert(namespace.clone());
                }
            }
        }
        for (item, all) in std::mem::take(&mut self.all) {
            let entry = self.all.entry(item).or_default();
            let (unplaced, placed): (BTreeMap<_, _>, BTreeMap<_, _>) = all
                .into_iter()
                .partition(|((namespace, _), _)| namespace.starts_with(UNPLACED));
            entry.extend(placed);
            for (
                (mark, name),
                Object {
                    mut value,
                    is_whole,
                },
            ) in unplaced
            {
                let found = marks.get(&mark).filter(|found| found.len() == 1);
                let namespace = found
                    .and_then(BTreeSet::first)
                    .map_or("default", |namespace| namespace);
                if found.is_none() {
                    self.lose(
                        item,
                        "a table does not show its namespace, taken to be default",
                    );
                }
                value["metadata"]["namespace"] = json!(namespace);
                self.add_as(item, (namespace.to_owned(), name), value, is_whole);
            }
        }
    }

    /// Reads a row; `has_selector` says that the last column is the selector.
    fn service_row(&mut self, namespace: &str, name: &str, words: &[&str], has_selector: bool) {
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
        let pairs = words.last().filter(|_| has_selector);
        let pairs = pairs.into_iter().flat_map(|word| word.split(','));
        let labels: Map<String, Value> = pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect();
        if !labels.is_empty() {
            spec.insert("selector".into(), Value::Object(labels));
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
            self.lose(Item::EndpointSlices, FIRST_ONES);
        } else {
            self.lose(
                Item::EndpointSlices,
                "a table does not show the state of endpoints",
            );
        }
        if all.is_empty() {
            self.no_endpoints(namespace, name);
        }
        self.slices(namespace, name, None, &all, more);
    }

    fn slice_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let [kind, ports, rest @ ..] = words else {
            return;
        };
        let is_cut = words.contains(&"more...");
        if is_cut {
            self.lose(Item::EndpointSlices, FIRST_ONES);
        }
        if !["IPv4", "IPv6", "FQDN"].contains(kind) {
            return;
        }
        let ports: Vec<Value> = ports
            .split(',')
            .filter_map(|port| port.parse::<u16>().ok())
            .map(|port| json!({"port": port}))
            .collect();
        let addresses = rest.iter().flat_map(|word| word.split(','));
        let endpoints = addresses.filter(|word| word.parse::<IpAddr>().is_ok());
        let endpoints: Vec<Value> = endpoints.map(|addr| json!({"addresses": [addr]})).collect();
        // The name of the slice is the Service's name and five letters.
        let service = name.rsplit_once('-').map_or(name, |(service, _)| service);
        self.lose(
            Item::EndpointSlices,
            "a table does not show the state of endpoints and names of ports",
        );
        let value = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            // A slice without a port serves none, whatever its endpoints are.
            "inPart": is_cut || !ports.is_empty(),
            "addressType": kind,
            "ports": ports,
            "endpoints": endpoints,
        });
        self.add(Item::EndpointSlices, value, false);
    }

    fn pod_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let [ready, status, rest @ ..] = words else {
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
                "phase": phase(status),
                "conditions": [{"type": "Ready", "status": if is == of { "True" } else { "False" }}],
            },
        });
        if let Some(reason) = waits(status) {
            let restarts = rest.first().and_then(|word| word.parse::<u32>().ok());
            pod["status"]["containerStatuses"] = json!([{
                "restartCount": restarts.unwrap_or_default(),
                "state": {"waiting": {"reason": reason}},
            }]);
        }
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
        let states = ["Ready", "NotReady", "Unknown"];
        let state = words.first().and_then(|word| word.split(',').next());
        if !state.is_some_and(|state| states.contains(&state)) {
            return;
        }
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
        let why = "a table does not show pod CIDRs and labels";
        self.node(name, version.unwrap_or(&""), &addresses, why);
    }

    /// Adds a DaemonSet with the images of its containers, the last columns but one.
    fn daemon_set_row(&mut self, namespace: &str, name: &str, words: &[&str]) {
        let [.., names, images, _] = words else {
            return;
        };
        let pairs = names.split(',').zip(images.split(','));
        let containers: Vec<Value> = pairs
            .map(|(name, image)| json!({"name": name, "image": image}))
            .collect();
        let set = json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"template": {"spec": {"containers": containers}}},
        });
        self.lose(
            Item::DaemonSets,
            "a table shows names and images of containers alone",
        );
        self.add(Item::DaemonSets, set, false);
    }

    /// Adds a Node with few known fields; `why` names the missing ones.
    pub(in crate::foreign) fn node(
        &mut self,
        name: &str,
        version: &str,
        addresses: &[Value],
        why: &str,
    ) {
        let node = json!({
            "metadata": {"name": name},
            "spec": {},
            "status": {"addresses": addresses, "nodeInfo": {"kubeletVersion": version, "kubeProxyVersion": ""}},
        });
        self.lose(Item::Nodes, why);
        self.add(Item::Nodes, node, false);
    }
}

/// Reads `80:30080/TCP,443/TCP`.
pub(super) fn ports(word: &str) -> Option<Vec<Value>> {
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

/// Returns the phase of a pod of which a table shows `status`.
fn phase(status: &str) -> &str {
    match status {
        "Completed" => "Succeeded",
        "Evicted" => "Failed",
        _ if waits(status).is_none() => status,
        "CrashLoopBackOff" => "Running",
        _ => "Pending",
    }
}

/// Returns why a container of a pod does not run, of which a table shows `status`: what the pod waits for, in the kubelet's words.
fn waits(status: &str) -> Option<&str> {
    let ends = [
        "BackOff",
        "ContainerCreating",
        "PodInitializing",
        "ErrImagePull",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ConfigError",
        "ContainerError",
    ];
    let is_known = ends.iter().any(|end| status.ends_with(end));
    is_known.then(|| status.strip_prefix("Init:").unwrap_or(status))
}

/// Returns whether `line` is the title of a table.
pub(in crate::foreign) fn is_title(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let titles = words.iter().all(|word| {
        word.chars()
            .all(|c| c.is_ascii_uppercase() || "-_()%".contains(c))
    });
    words.len() > 2
        && titles
        && (words[0] == "NAME" || words[0] == "NAMESPACE" && words.contains(&"NAME"))
}

/// Returns whether `line` is a row of a Service: names, a type or a cluster IP, and ports.
pub(in crate::foreign) fn is_service_row(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let Some(at) = before_address(&words) else {
        return false;
    };
    let is_named = words[..at]
        .iter()
        .all(|word| is_name(word.strip_prefix("service/").unwrap_or(word)));
    is_named
        && (words[at] == "ExternalName" || words[at..].iter().any(|word| ports(word).is_some()))
}

/// Returns the number of names before the type or the cluster IP of a row: one, or two with a namespace.
fn before_address(words: &[&str]) -> Option<usize> {
    let is_next =
        |word: &&str| TYPES.contains(word) || *word == "None" || word.parse::<IpAddr>().is_ok();
    let at = words.iter().position(is_next)?;
    (1..=2).contains(&at).then_some(at)
}

/// Returns whether an object may be called `name`.
fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty() && name.chars().all(is_part) && !name.starts_with('-')
}
