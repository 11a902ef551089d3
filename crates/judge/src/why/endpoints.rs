//! Endpoints of a Service port: their states, and why there are none.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use serde_json::Value;

use crate::check::{Fix, Writer, unlabelled};
pub(super) use crate::trace::mismatch::usable;
use kpx_node::cluster::{
    Endpoint, EndpointPort, EndpointSlice, Labels, Matching, Metadata, Node, Pod, Service, Unready,
    hosts_without, makes_none, outdated, silent_nodes,
};
use kpx_node::evidence::Time;
use kpx_node::net::Family;
use kpx_node::owner::{EndpointState, Port};

/// Why a Service port has no usable endpoint.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(
    tag = "lack",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase"
)]
pub enum Lack {
    /// The selector matches no pod that has an address.
    NoPods {
        /// The selector, as `kubectl -l` takes it.
        selector: String,
        /// The value that was compared with it.
        compared: Compared,
        /// What keeps the selector from a ready pod of this node.
        #[serde(skip_serializing_if = "Option::is_none")]
        but_for: Option<ButFor>,
    },
    /// The pods that match the selector have not started, or have ended.
    NotStarted {
        /// The pods, and why each has no address.
        pods: Vec<Waits>,
    },
    /// Pods match the selector, or are endpoints, but none has an address of the family.
    OtherFamily {
        /// The pods.
        pods: Vec<String>,
        /// The family.
        #[serde(rename = "lacking")]
        family: Family,
        /// The Nodes without an address of the family, if all of the pods use the network of their Nodes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<String>,
    },
    /// The Service has no selector, and its slices list no address of the family.
    SliceFamily {
        /// The slices.
        slices: Vec<String>,
        /// Their addresses.
        addresses: Vec<String>,
        /// The family.
        #[serde(rename = "lacking")]
        family: Family,
    },
    /// The slices of the Service list host names, which kube-proxy does not read.
    HostNames {
        /// The slices.
        slices: Vec<String>,
        /// The host names.
        names: Vec<String>,
    },
    /// Pods match the selector, but no EndpointSlice of the Service exists.
    NoSlice {
        /// The pods: the ready ones, if any are.
        pods: Vec<String>,
        /// Whether they are ready.
        ready: bool,
        /// Whether no Service with a selector has a slice.
        all: bool,
    },
    /// Ready pods match the selector, but the slices of the Service do not list them.
    Unlisted {
        /// The pods.
        pods: Vec<String>,
        /// The slices, as far as their names are shown.
        slices: Vec<String>,
    },
    /// Every slice has a label that makes kube-proxy ignore it.
    Labelled {
        /// The slices.
        slices: Vec<String>,
        /// The label's key.
        label: &'static str,
    },
    /// The Service has no selector, and nothing else created endpoints.
    NoSelector {
        /// An EndpointSlice is named like those of the Service, but lacks the label with the Service's name.
        #[serde(skip_serializing_if = "Option::is_none")]
        unlabelled: Option<String>,
    },
    /// There are no endpoints, and the selector is not shown, as in a table of kubectl.
    SelectorUnread {
        /// Pods of the namespace that take no connections.
        unready: Vec<Waits>,
    },
    /// No endpoint is shown, in a form that does not show those that are not ready.
    StatesUnread {
        /// The selector, as `kubectl -l` takes it.
        selector: String,
        /// Pods of the namespace that take no connections.
        unready: Vec<Waits>,
    },
    /// The endpoints exist, but none is ready.
    NotReady {
        /// Pods or addresses.
        endpoints: Vec<String>,
        /// Their Nodes whose kubelet no longer reports.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        silent: Vec<String>,
        /// Why their pods are not, as far as they were read.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pods: Vec<Waits>,
    },
    /// No endpoint is ready by the slices, although pods of them are: the slices are behind.
    Outdated {
        /// The pods that are ready, as `NAMESPACE/NAME`.
        pods: Vec<String>,
        /// The slices, as far as their names are shown.
        slices: Vec<String>,
        /// The writer of the first one.
        writer: Writer,
    },
    /// All endpoints are terminating.
    Terminating {
        /// Pods or addresses.
        endpoints: Vec<String>,
    },
    /// The endpoints are ready, but lack this port: `targetPort` is a name that no container port has.
    TargetPort {
        /// The `targetPort`.
        target: String,
    },
    /// The endpoints are ready, but no port of their slices has the name of the Service's port.
    PortName {
        /// The name that is wanted; empty if the Service's port has none.
        wanted: String,
        /// The names of the slices' ports.
        names: Vec<String>,
        /// The slices, as far as their names are shown.
        slices: Vec<String>,
        /// The writer of the first one.
        writer: Writer,
    },
}

/// A pod that takes no connections.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Waits {
    /// The pod, as `NAMESPACE/NAME`.
    pub pod: String,
    /// Why it takes none.
    pub reason: String,
    /// The container that ended, whose log says more.
    #[serde(skip)]
    pub crashed: Option<String>,
    /// Its Node, if the container runtime there has no network configuration.
    #[serde(skip)]
    pub offline: Option<String>,
    /// Whether its containers are ready.
    #[serde(skip)]
    pub stale: bool,
    /// The fix of the obstacle that stops the connections of its readiness probe.
    #[serde(skip)]
    pub fix: Option<Fix>,
}

/// Why nothing answers the readiness probe of a pod.
pub(super) enum Unprobed {
    /// No program in the pod listens on the port.
    Silent,
    /// The connections of the kubelet fail: the reason, and its fix.
    Stopped(String, Option<Fix>),
}

/// Finds why nothing answers at a port of a pod's address, as far as it is known.
pub(super) type Probes<'p> = dyn Fn(&Pod, Option<(IpAddr, u16)>) -> Option<Unprobed> + 'p;

impl Waits {
    /// Returns why `pod`, one of `pods`, takes no connections; `None` if it does.
    pub(super) fn of(pod: &Pod, pods: &[Pod], nodes: &[Node], probes: &Probes<'_>) -> Option<Self> {
        let why = pod.unready()?;
        let holder = pod.port_holder_note(pods);
        let unnetworked = pod.unnetworked(nodes);
        let network = unnetworked.map_or_else(String::new, |(node, why)| {
            format!("; no pod starts on node {node}: {why}")
        });
        let address = pod
            .status
            .pod_ip
            .as_deref()
            .and_then(|pod_ip| pod_ip.parse().ok());
        let unprobed = match why {
            Unready::Probe {
                port: Some(port), ..
            } => address.and_then(|address| probes(pod, Some((address, port)))),
            Unready::Container { .. } => probes(pod, None),
            _ => None,
        };
        let (unprobed, fix) = match unprobed {
            Some(Unprobed::Silent) => (", and nothing in the pod listens there".to_owned(), None),
            Some(Unprobed::Stopped(reason, fix)) => (format!("; {reason}"), fix),
            None => (String::new(), None),
        };
        Some(Self {
            pod: format!("{}/{}", pod.metadata.namespace, pod.metadata.name),
            reason: format!("{why}{unprobed}{network}{holder}"),
            fix,
            offline: unnetworked.map(|(node, _)| node.to_owned()),
            stale: why == Unready::Stale,
            crashed: match why {
                Unready::Container { name, restarts, .. } if restarts > 0 => Some(name),
                _ => None,
            },
        })
    }
}

/// What keeps a selector from a ready pod.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ButFor {
    /// One label of several.
    Label {
        /// The label, as `KEY=VALUE`.
        label: String,
        /// A pod that matches otherwise, as `NAMESPACE/NAME`.
        pod: String,
        /// Its value of that key.
        #[serde(skip_serializing_if = "Option::is_none")]
        has: Option<String>,
    },
    /// The namespace: a Service selects pods of its own alone.
    Namespace {
        /// A pod of another namespace with all labels, as `NAMESPACE/NAME`.
        pod: String,
        /// Its namespace.
        namespace: String,
    },
}

impl ButFor {
    /// Returns what keeps the selector `labels` of `service` from a ready pod of `pods`.
    fn of(service: &Service, labels: &Labels, pods: &[Pod]) -> Option<Self> {
        let own = &service.metadata.namespace;
        let has = |pod: &Pod, (key, value): (&String, &String)| {
            pod.metadata.labels.get(key) == Some(value)
        };
        let name = |pod: &Pod| format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        let (here, elsewhere): (Vec<&Pod>, Vec<&Pod>) = pods
            .iter()
            .filter(|pod| pod.is_ready())
            .partition(|pod| pod.metadata.namespace == *own);
        let all_but = labels
            .iter()
            .filter(|_| labels.len() > 1)
            .find_map(|label| {
                let mut matching = here.iter().filter(|pod| {
                    let mut others = labels.iter().filter(|other| *other != label);
                    others.all(|other| has(pod, other))
                });
                let pod = matching.next()?;
                Some(Self::Label {
                    label: format!("{}={}", label.0, label.1),
                    pod: name(pod),
                    has: pod.metadata.labels.get(label.0).cloned(),
                })
            });
        all_but.or_else(|| {
            let mut matching = elsewhere
                .iter()
                .filter(|pod| labels.iter().all(|label| has(pod, label)));
            let pod = matching.next()?;
            Some(Self::Namespace {
                pod: name(pod),
                namespace: pod.metadata.namespace.clone(),
            })
        })
    }
}

/// The objects that a selector was compared with.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Compared {
    /// All pods, by the control plane, which has written a slice without endpoints, or as the pods of all nodes were read.
    All,
    /// The pods of this node: no slice exists.
    Here,
    /// Nothing: no slice exists, and the pods were not read.
    Nothing,
}

/// The objects that show why a Service has no endpoints.
#[derive(Clone, Copy)]
pub(super) struct Objects<'s> {
    /// All Services.
    pub(super) services: &'s [Service],
    /// All slices.
    pub(super) slices: &'s [EndpointSlice],
    /// The pods of the nodes that were read; `None` if none were.
    pub(super) pods: Option<&'s [Pod]>,
    /// Whether these are the pods of all nodes.
    pub(super) all_read: bool,
    /// The Nodes, as far as they were read.
    pub(super) nodes: &'s [Node],
    /// Why nothing answers a readiness probe.
    pub(super) probes: &'s Probes<'s>,
}

/// An endpoint of a Service port.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow {
    /// Service port, as `NAMESPACE/NAME:PORT`.
    pub service: String,
    /// Address and port.
    pub address: SocketAddr,
    /// Pod, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Node it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Conditions.
    pub state: Option<EndpointState>,
}

impl EndpointRow {
    /// Returns the endpoints of `port`.
    pub fn all(port: &Port) -> impl Iterator<Item = Self> {
        port.endpoints.iter().map(|endpoint| Self {
            service: port.name.to_string(),
            address: endpoint.addr,
            pod: endpoint.pod.as_deref().map(str::to_owned),
            node: endpoint.node.as_deref().map(str::to_owned),
            state: endpoint.state,
        })
    }
}

/// Returns the slices of `service`.
pub(super) fn slices_of<'s>(
    service: &Service,
    slices: &'s [EndpointSlice],
) -> impl Iterator<Item = &'s EndpointSlice> {
    let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
    slices
        .iter()
        .filter(move |slice| slice.service() == Some((namespace, name)))
}

/// Returns whether kube-proxy would read `slice` of `service`, if it served that: a label keeps it from others.
pub(super) fn is_read(service: &Service, slice: &EndpointSlice) -> bool {
    service.spec.cluster_ip == "None" || slice.unread_for().is_none()
}

/// The port of an endpoint that is only assumed.
pub(super) const NEW_PORT: u16 = 8080;

/// Returns a slice with a ready endpoint of `port` at `addr` on the node called `here`.
pub(super) fn slice(
    service: &Service,
    port: &Port,
    addr: IpAddr,
    here: Option<&str>,
) -> EndpointSlice {
    let meta = &service.metadata;
    let label = "kubernetes.io/service-name".to_owned();
    EndpointSlice {
        metadata: Metadata {
            name: format!("{}-assumed", meta.name),
            namespace: meta.namespace.clone(),
            labels: [(label, meta.name.clone())].into_iter().collect(),
            ..Metadata::default()
        },
        in_part: false,
        address_type: Family::of(addr).to_string(),
        endpoints: vec![Endpoint {
            addresses: vec![addr.to_string()],
            node_name: here.map(str::to_owned),
            ..Endpoint::default()
        }],
        ports: vec![EndpointPort {
            name: Some(port.name.port.to_string()),
            protocol: Some(port.proto.to_string().to_ascii_uppercase()),
            port: Some(NEW_PORT),
        }],
    }
}

/// Returns why a port of `service` with this `targetPort` has no usable endpoint of `family`, and since when.
pub(super) fn lack(
    service: &Service,
    port: &str,
    target: Option<&Value>,
    family: Family,
    objects: Objects<'_>,
) -> (Lack, Option<Time>) {
    let slices = objects.slices;
    let pods = objects.pods.unwrap_or_default();
    let edited = last_change(service, family, slices);
    let ours: Vec<&EndpointSlice> = of_family(service, family, slices).collect();
    let label = ours.first().and_then(|slice| slice.unread_for());
    if let Some(label) = label.filter(|_| !ours.iter().any(|slice| is_read(service, slice))) {
        let slices = ours.iter().map(|slice| slice.metadata.name.clone());
        let slices = slices.collect();
        return (Lack::Labelled { slices, label }, edited);
    }
    let all: Vec<&Endpoint> = ours.iter().flat_map(|slice| &slice.endpoints).collect();
    if all.is_empty() {
        let listed = listed(service, slices);
        let lack = match service.selector() {
            None if slices_of(service, slices).all(is_of_names) && !listed.is_empty() => {
                let own: Vec<&EndpointSlice> = slices_of(service, slices).collect();
                Lack::HostNames {
                    slices: names_of(&own),
                    names: listed,
                }
            }
            None if !listed.is_empty() => {
                let own: Vec<&EndpointSlice> = slices_of(service, slices).collect();
                Lack::SliceFamily {
                    slices: names_of(&own),
                    addresses: listed,
                    family,
                }
            }
            None => Lack::NoSelector {
                unlabelled: unlabelled(service, slices).map(str::to_owned),
            },
            Some(labels) => none_listed(service, labels, family, objects),
        };
        return (lack, edited);
    }
    if all
        .iter()
        .any(|endpoint| endpoint.conditions.ready.unwrap_or(true))
    {
        let lack = match target {
            // The number of the port does not depend on the containers.
            Some(Value::String(name)) if name.parse::<u16>().is_err() => Lack::TargetPort {
                target: name.clone(),
            },
            _ => port_name(service, port, family, slices),
        };
        return (lack, edited);
    }
    let names: BTreeSet<String> = all.iter().filter_map(|endpoint| name(endpoint)).collect();
    // The last one that was ready decides.
    let unready: Option<Vec<Time>> = all
        .iter()
        .map(|endpoint| unready_since(endpoint, pods))
        .collect();
    let since = unready.and_then(|times| times.into_iter().max());
    let endpoints = names.into_iter().collect();
    let is_ending = |endpoint: &&Endpoint| endpoint.conditions.terminating.unwrap_or(false);
    let behind = outdated(&all, pods, objects.nodes);
    let lack = if all.iter().all(is_ending) {
        Lack::Terminating { endpoints }
    } else if let Some(first) = ours.first().filter(|_| !behind.is_empty()) {
        Lack::Outdated {
            pods: behind,
            slices: names_of(&ours),
            writer: Writer::of(first, Some(service)),
        }
    } else {
        let silent = silent_nodes(&all, objects.nodes);
        let is_on_silent = |pod: &Pod| {
            let node = pod.spec.node_name.as_ref();
            node.is_some_and(|node| silent.contains(node))
        };
        let shown = all.iter().filter_map(|endpoint| pod_of(endpoint, pods));
        let pods = shown
            .filter(|pod| !(is_on_silent(pod) && pod.unready() == Some(Unready::Stale)))
            .filter_map(|pod| Waits::of(pod, pods, objects.nodes, objects.probes))
            .collect();
        Lack::NotReady {
            endpoints,
            silent,
            pods,
        }
    };
    (lack, since.or(edited))
}

/// Returns the endpoints that slices of `service` list, of whatever family: pods, or addresses.
fn listed(service: &Service, slices: &[EndpointSlice]) -> Vec<String> {
    let endpoints = slices_of(service, slices).flat_map(|slice| &slice.endpoints);
    let names: BTreeSet<String> = endpoints.filter_map(name).collect();
    names.into_iter().collect()
}

fn is_of_names(slice: &EndpointSlice) -> bool {
    slice.address_type == "FQDN"
}

/// Returns why the slices of `service` list no endpoint, by the pods that its selector `labels` matches.
fn none_listed(service: &Service, labels: &Labels, family: Family, objects: Objects<'_>) -> Lack {
    let matching = Matching::of(service, Some(family), objects.pods.unwrap_or_default());
    let ours = of_family(service, family, objects.slices);
    let slices: Vec<&EndpointSlice> = ours.collect();
    let ready = !matching.ready.is_empty();
    if slices.is_empty() && !matching.is_empty() {
        return Lack::NoSlice {
            pods: matching.shown(),
            ready,
            all: makes_none(objects.services, objects.slices),
        };
    }
    if ready {
        let pods = matching.ready;
        let slices = names_of(&slices);
        return Lack::Unlisted { pods, slices };
    }
    if matching.is_empty() {
        let other = Matching::of(service, None, objects.pods.unwrap_or_default());
        // The slices list the pods of other nodes, too.
        let pods = match other.shown() {
            none if none.is_empty() => listed(service, objects.slices),
            shown => shown,
        };
        if !pods.is_empty() {
            let all = objects.pods.unwrap_or_default().iter();
            let hosts = hosts_without(
                family,
                all.filter(|pod| service.selects(pod)),
                objects.nodes,
            );
            return Lack::OtherFamily {
                pods,
                family,
                hosts,
            };
        }
    }
    let all = objects.pods.unwrap_or_default();
    let selected = all.iter().filter(|pod| service.selects(pod));
    let pods: Vec<Waits> = selected
        .filter_map(|selected| Waits::of(selected, all, objects.nodes, objects.probes))
        .collect();
    if !pods.is_empty() {
        return Lack::NotStarted { pods };
    }
    let words: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    Lack::NoPods {
        selector: words.join(","),
        compared: match (slices.as_slice(), objects.pods) {
            ([_, ..], _) => Compared::All,
            ([], Some(_)) if objects.all_read => Compared::All,
            ([], Some(_)) => Compared::Here,
            ([], None) => Compared::Nothing,
        },
        but_for: ButFor::of(service, labels, all),
    }
}

/// Returns the pods of `namespace` that take no connections: which of them a selector matches is not known.
pub(super) fn unready(namespace: &str, pods: &[Pod]) -> Vec<Waits> {
    let here = pods
        .iter()
        .filter(|pod| pod.metadata.namespace == namespace);
    here.filter_map(|pod| Waits::of(pod, pods, &[], &|_, _| None))
        .collect()
}

/// Returns the names of `slices` that are shown.
fn names_of(slices: &[&EndpointSlice]) -> Vec<String> {
    let names = slices.iter().map(|slice| slice.metadata.name.clone());
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns that no slice of `service` has a port called `port`; protocols are named where the names are the same.
fn port_name(service: &Service, port: &str, family: Family, slices: &[EndpointSlice]) -> Lack {
    let ours: Vec<&EndpointSlice> = of_family(service, family, slices).collect();
    let with = |name: &str, protocol: Option<&str>| {
        let protocol = protocol.filter(|text| !text.is_empty()).unwrap_or("TCP");
        format!("{name} ({protocol})")
    };
    let all = || ours.iter().flat_map(|slice| &slice.ports);
    let is_same = all().any(|slice_port| slice_port.name.as_deref().unwrap_or_default() == port);
    let mut ports = service.spec.ports.iter();
    let own = ports.find(|service_port| service_port.name == port);
    let names: BTreeSet<String> = all()
        .map(|slice_port| {
            let name = slice_port.name.as_deref().unwrap_or_default();
            if name == port {
                with(name, slice_port.protocol.as_deref())
            } else {
                name.to_owned()
            }
        })
        .collect();
    Lack::PortName {
        wanted: if is_same {
            with(port, own.map(|service_port| service_port.protocol.as_str()))
        } else {
            port.to_owned()
        },
        names: names.into_iter().collect(),
        slices: names_of(&ours),
        writer: ours
            .first()
            .map_or(Writer::Other, |slice| Writer::of(slice, Some(service))),
    }
}

/// Returns the slices of `service` with addresses of `family`.
fn of_family<'s>(
    service: &Service,
    family: Family,
    slices: &'s [EndpointSlice],
) -> impl Iterator<Item = &'s EndpointSlice> {
    let kind = family.to_string();
    slices_of(service, slices).filter(move |slice| slice.address_type == kind)
}

/// Returns when the endpoints of `service` last changed.
pub(super) fn last_change(
    service: &Service,
    family: Family,
    slices: &[EndpointSlice],
) -> Option<Time> {
    let ours = of_family(service, family, slices);
    let times: Option<Vec<Time>> = ours.map(|slice| slice.metadata.last_write()).collect();
    times?.into_iter().max()
}

fn name(endpoint: &Endpoint) -> Option<String> {
    let pod = endpoint
        .target_ref
        .as_ref()
        .filter(|target_ref| target_ref.kind == "Pod");
    pod.map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .or_else(|| endpoint.addresses.first().cloned())
}

fn pod_of<'p>(endpoint: &Endpoint, pods: &'p [Pod]) -> Option<&'p Pod> {
    let target = endpoint.target_ref.as_ref()?;
    let is_it =
        |pod: &&Pod| pod.metadata.name == target.name && pod.metadata.namespace == target.namespace;
    pods.iter().find(is_it)
}

/// Returns since when the pod of `endpoint` is not ready.
fn unready_since(endpoint: &Endpoint, pods: &[Pod]) -> Option<Time> {
    let pod = pod_of(endpoint, pods)?;
    let mut conditions = pod.status.conditions.iter();
    let ready =
        conditions.find(|condition| condition.kind == "Ready" && condition.status != "True")?;
    ready.since.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const fn objects(slices: &[EndpointSlice]) -> Objects<'_> {
        Objects {
            services: &[],
            slices,
            pods: Some(&[]),
            all_read: false,
            nodes: &[],
            probes: &|_, _| None,
        }
    }

    /// The name of a slice's port counts where targetPort is a number; only a name is looked up in containers.
    #[test]
    fn a_port_without_endpoints_lacks_a_name_of_its_slices_or_of_its_containers() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "demo"},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }))
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {
                "name": "web-1",
                "namespace": "demo",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.1.5"], "conditions": {"ready": true}}],
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
        }))
        .unwrap();
        let slices = [slice];
        let of = |target: Option<Value>| {
            let target = target.as_ref();
            lack(&service, "http", target, Family::V4, objects(&slices)).0
        };
        let by_name = Lack::PortName {
            wanted: "http".to_owned(),
            names: vec!["web".to_owned()],
            slices: vec!["web-1".to_owned()],
            writer: Writer::Other,
        };
        for number in [None, Some(json!(8080)), Some(json!("8080"))] {
            assert_eq!(of(number), by_name);
        }
        let udp = |slice: &EndpointSlice| {
            let mut slice = slice.clone();
            slice.ports[0].name = Some("http".to_owned());
            slice.ports[0].protocol = Some("UDP".to_owned());
            slice
        };
        let other = [udp(&slices[0])];
        let by_protocol = Lack::PortName {
            wanted: "http (TCP)".to_owned(),
            names: vec!["http (UDP)".to_owned()],
            slices: vec!["web-1".to_owned()],
            writer: Writer::Other,
        };
        let found = lack(&service, "http", None, Family::V4, objects(&other)).0;
        assert_eq!(found, by_protocol);
        let by_container = Lack::TargetPort {
            target: "web".to_owned(),
        };
        assert_eq!(of(Some(json!("web"))), by_container);
    }
}
