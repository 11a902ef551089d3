//! Descriptions of `kubectl describe`.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value, json};

use super::Objects;
use crate::evidence::Item;

impl Objects {
    /// Reads the description of one object: of a Service, an Endpoints, an EndpointSlice or a Node. Returns whether it is one of these.
    pub(in crate::foreign) fn describe(&mut self, lines: &[String]) -> bool {
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
        let (name, namespace) = match (get("Name"), get("Namespace")) {
            (Some(name), Some(namespace)) => (name, namespace),
            (Some(name), None) => return self.described_node(name, &get, lines),
            _ => return false,
        };
        if get("AddressType").is_some() {
            self.described_slice(namespace, name, &get, lines);
        } else if get("Type").is_some()
            && (get("IP").is_some() || get("Port").is_some() || get("External Name").is_some())
        {
            self.described_service(namespace, name, &get, &pairs);
        } else if lines.iter().any(|line| line.starts_with("Subsets:")) {
            self.described_endpoints(namespace, name, lines);
        } else {
            return false;
        }
        true
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
        let mut list: Vec<Map<String, Value>> = Vec::new();
        // Of each port, and whether there are more.
        let mut endpoints: Vec<(Vec<SocketAddr>, bool)> = Vec::new();
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
                    endpoints.push((Vec::new(), false));
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
                    let is_cut = rest.is_some_and(|rest| rest > 0);
                    if is_cut {
                        self.lose(
                            Item::EndpointSlices,
                            "a description shows the first three endpoints",
                        );
                    }
                    if let Some(last) = endpoints.last_mut() {
                        last.0.extend(shown);
                        last.1 |= is_cut;
                    }
                }
                _ => {}
            }
        }
        // Up to 1.30 kubectl wrote `<none>`, and nothing since.
        let says_none = pairs
            .iter()
            .any(|(key, value)| *key == "Endpoints" && (value.is_empty() || *value == "<none>"));
        if says_none && endpoints.iter().all(|(shown, _)| shown.is_empty()) {
            self.no_endpoints(namespace, name);
        }
        for (of, (endpoints, is_cut)) in list.iter().zip(&endpoints) {
            let text = |key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default();
            let port = Some((text("name"), text("protocol")));
            self.slices(namespace, name, port, endpoints, *is_cut);
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

    /// Adds a Node with its version, addresses and pod CIDRs.
    fn described_node<'l>(
        &mut self,
        name: &str,
        get: &dyn Fn(&str) -> Option<&'l str>,
        lines: &[String],
    ) -> bool {
        // Addresses and versions are indented below a title.
        let inside = |key: &str| {
            let values = lines
                .iter()
                .filter(|line| line.starts_with(char::is_whitespace));
            let mut values = values.filter_map(|line| line.trim().split_once(':'));
            values.find_map(|(of, value)| (of == key).then(|| value.trim().to_owned()))
        };
        let Some(version) = inside("Kubelet Version") else {
            return false;
        };
        let addresses = inside("InternalIP").map(|ip| json!({"type": "InternalIP", "address": ip}));
        let ranges: Vec<&str> =
            get("PodCIDRs").map_or_else(Vec::new, |list| list.split(',').collect());
        let mut spec = Map::new();
        if let Some(first) = ranges.first() {
            spec.insert("podCIDR".into(), json!(first));
            spec.insert("podCIDRs".into(), json!(ranges));
        }
        let node = json!({
            "metadata": {"name": name},
            "spec": spec,
            "status": {
                "addresses": addresses.into_iter().collect::<Vec<_>>(),
                "nodeInfo": {
                    "kubeletVersion": version,
                    "kubeProxyVersion": inside("Kube-Proxy Version").unwrap_or_default(),
                },
            },
        });
        self.lose(
            Item::Nodes,
            "labels and taints of a description are not read",
        );
        self.add(Item::Nodes, node, false);
        true
    }
}

/// Returns whether `line`, before `next`, begins a description.
pub(in crate::foreign) fn is_description(line: &str, next: &[String]) -> bool {
    line.starts_with("Name:")
        && next
            .iter()
            .take(2)
            .any(|line| line.starts_with("Namespace:") || line.starts_with("Roles:"))
}
