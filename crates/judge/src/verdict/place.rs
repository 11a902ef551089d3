//! Who has an address: this node, another one, a pod, a Service, or none of them.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::iter;
use std::net::IpAddr;

use foldhash::HashMap;

use crate::trace::sources::near_the_end;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{DeclaredPort, Node, NodeAddress, Pod};
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::routes::Route;
use kpx_node::owner;
use kpx_node::words::listed;

/// The owner of an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Holder {
    /// A pod, as `NAMESPACE/NAME`.
    Pod(String),
    /// The Node with this name.
    Node(String),
    /// An endpoint of a Service: its namespace and name.
    EndpointOf(String, String),
    /// A machine outside the cluster.
    Outside(Family),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "pod {name}"),
            Self::Node(name) => write!(f, "node {name}"),
            Self::EndpointOf(namespace, name) => write!(f, "an endpoint of {namespace}/{name}"),
            Self::Outside(family) => write!(f, "an {family} address outside the cluster"),
        }
    }
}

/// The Node in whose range of pods an address lies, although a pod of this node has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Home {
    /// The other Node.
    pub node: String,
    /// Its range of pods.
    pub range: Cidr,
    /// The ranges of this node's pods.
    pub own: Vec<Cidr>,
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own: Vec<_> = self.own.iter().map(ToString::to_string).collect();
        write!(
            f,
            "its address is in the podCIDR {} of node {} and not in that of this node ({}), so packets to it leave the node: \
             another network configuration than the network plugin's made the pod",
            self.range,
            self.node,
            listed(&own)
        )
    }
}

/// Whether the kubelet of a Node reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reports<'n> {
    Does,
    /// Not since this time, RFC 3339; empty if that is not known.
    Not(&'n str),
    /// The cluster has no such Node.
    Gone,
}

/// The addresses of the cluster, as seen from one node.
#[derive(Debug)]
pub(super) struct Places<'n> {
    node: &'n NodeSnapshot<'n>,
    /// The Node object of this node.
    object: Option<&'n Node>,
    /// The links of the node's own addresses, without kube-ipvs0.
    own: HashMap<IpAddr, &'n str>,
    /// The Services by their addresses.
    services: HashMap<IpAddr, String>,
    /// The ranges of cluster IPs.
    service_ranges: Vec<Cidr>,
    /// The ranges of this node's pods: the ranges of its Node, or else the ranges that routes and the pods' addresses
    /// show.
    pub(super) pods_here: Vec<Cidr>,
    /// Parts of these ranges that routes lead to other machines: a bridge may have the network of all pods.
    led_away: Vec<Cidr>,
    /// Whether that are all of them.
    is_whole: bool,
    /// The ranges of all pods.
    pods_anywhere: Vec<Cidr>,
    /// The networks of nodes in the ranges of pods, in which no pod has an address.
    machines: OnceCell<Vec<Cidr>>,
    /// The pods and endpoints by their addresses.
    holders: OnceCell<HashMap<IpAddr, Holder>>,
    /// The ports that pods declare, by their names.
    declared: OnceCell<HashMap<String, BTreeSet<DeclaredPort>>>,
    /// The names of the Nodes of endpoints with addresses of their own.
    endpoint_nodes: OnceCell<HashMap<IpAddr, &'n str>>,
    /// The ranges of each Node's pods.
    node_ranges: OnceCell<Vec<(Cidr, &'n Node)>>,
    /// The answers of [`Self::node_of_pod`].
    nodes_of_pods: RefCell<HashMap<IpAddr, Option<&'n Node>>>,
    /// The links with an address of this node's Node object.
    links_of_node: OnceCell<BTreeSet<&'n str>>,
    knows_pods: OnceCell<bool>,
    /// Whether pods of this node with a network of their own are listed.
    lists_own: OnceCell<bool>,
    /// The pods that are not ready.
    unready: OnceCell<BTreeSet<String>>,
    /// The phases of the pods that have ended.
    ended: OnceCell<HashMap<String, &'n str>>,
    /// The pods of addresses that several have, as `NAMESPACE/NAME`.
    shared: OnceCell<HashMap<IpAddr, Vec<String>>>,
    /// Every Node, and whether its kubelet reports.
    reports: OnceCell<HashMap<&'n str, Reports<'n>>>,
}

impl<'n> Places<'n> {
    pub(super) fn new(node: &'n NodeSnapshot<'n>) -> Self {
        let name = node.name().ok();
        let nodes = node.nodes().map_or(&[][..], Vec::as_slice);
        let object = nodes
            .iter()
            .find(|node| Some(&node.metadata.name) == name.as_ref());
        let addresses = node.addresses().map_or(&[][..], |all| all.all.as_slice());
        let own = addresses.iter().filter(|at| at.link != DUMMY);
        let mut services = HashMap::default();
        for service in node.services().into_iter().flatten() {
            let meta = &service.metadata;
            for (_, addr) in owner::addresses(service) {
                let name = || format!("{}/{}", meta.namespace, meta.name);
                services.entry(addr).or_insert_with(name);
            }
        }
        let pods_anywhere = ranges_of_all_pods(node);
        let mut pods_here = object.map_or_else(Vec::new, pod_ranges);
        let is_whole = !pods_here.is_empty();
        if !is_whole {
            pods_here = seen_here(node, name.as_deref(), &pods_anywhere);
        }
        let led_away = if is_whole {
            Vec::new()
        } else {
            led_away(node, &pods_here)
        };
        Self {
            node,
            object,
            own: own.map(|at| (at.addr.addr, at.link.as_str())).collect(),
            services,
            service_ranges: crate::diff::service_cidrs(node),
            pods_here,
            led_away,
            is_whole,
            pods_anywhere,
            machines: OnceCell::new(),
            holders: OnceCell::new(),
            declared: OnceCell::new(),
            endpoint_nodes: OnceCell::new(),
            node_ranges: OnceCell::new(),
            nodes_of_pods: RefCell::default(),
            links_of_node: OnceCell::new(),
            knows_pods: OnceCell::new(),
            lists_own: OnceCell::new(),
            unready: OnceCell::new(),
            ended: OnceCell::new(),
            shared: OnceCell::new(),
            reports: OnceCell::new(),
        }
    }

    /// Returns the link that has `addr`, if it is an address of this node and not one of kube-ipvs0.
    pub(super) fn own(&self, addr: IpAddr) -> Option<&'n str> {
        if addr.is_loopback() {
            return Some("lo");
        }
        self.own.get(&addr).copied()
    }

    /// Returns the Service with `addr`, as `NAMESPACE/NAME`.
    pub(super) fn service(&self, addr: IpAddr) -> Option<&str> {
        self.services.get(&addr).map(String::as_str)
    }

    /// Returns the lowest address of a Service in `family`.
    pub(super) fn any_service(&self, family: Family) -> Option<IpAddr> {
        let all = self.services.keys().copied();
        all.filter(|addr| Family::of(*addr) == family).min()
    }

    /// Returns whether `addr` is in a range of cluster IPs.
    pub(super) fn is_cluster_ip(&self, addr: IpAddr) -> bool {
        self.service_ranges.iter().any(|range| range.contains(addr))
    }

    /// Returns whether `addr` is in a range of this node's pods; `None` if it may be in one that is not known.
    pub(super) fn is_pod_here(&self, addr: IpAddr) -> Option<bool> {
        let mut ranges = self
            .pods_here
            .iter()
            .filter(|range| range.family() == Family::of(addr))
            .peekable();
        ranges.peek()?;
        let is_away = || self.led_away.iter().any(|range| range.contains(addr));
        let is_here = ranges.any(|range| range.contains(addr) && (range.is_host() || !is_away()));
        (is_here || self.is_whole).then_some(is_here)
    }

    /// Returns whether `addr` is in the range of any node's pods.
    pub(super) fn is_pod(&self, addr: IpAddr) -> bool {
        let mut ranges = self.pods_anywhere.iter();
        ranges.any(|range| range.contains(addr)) && !self.is_of_machines(addr)
    }

    /// Returns whether `addr` is in a network of nodes that kube-proxy's clusterCIDR contains by mistake: neither is it in the range of a
    /// Node's pods, nor has a pod an address there.
    fn is_of_machines(&self, addr: IpAddr) -> bool {
        let machines = self.machines.get_or_init(|| {
            let addresses = self.node.addresses().map_or(&[][..], |all| &all.all);
            let links = self.links_of_node();
            let of_nodes = addresses.iter().filter(|at| links.contains(&*at.link));
            let networks = of_nodes.filter(|at| !at.addr.is_host());
            let networks = networks.map(|at| at.addr.normal());
            let nodes = self.node.nodes().into_iter().flatten();
            let of_pods: Vec<Cidr> = nodes.flat_map(pod_ranges).collect();
            let holders = self.holders.get_or_init(|| self.all_holders());
            let is_pods = |network: &Cidr| {
                let mut all = holders.iter();
                of_pods
                    .iter()
                    .any(|range| range.contains(network.addr) || network.contains(range.addr))
                    || all.any(|(addr, holder)| {
                        matches!(holder, Holder::Pod(_)) && network.contains(*addr)
                    })
            };
            networks.filter(|network| !is_pods(network)).collect()
        });
        machines.iter().any(|network| network.contains(addr)) && self.knows_pods()
    }

    /// Returns the Node called `name`.
    pub(super) fn node_called(&self, name: &str) -> Option<&'n Node> {
        let mut nodes = self.node.nodes().ok()?.iter();
        nodes.find(|node| node.metadata.name == name)
    }

    /// Returns the Node in whose range of pods `addr` is; where it is in none, as without podCIDRs, the one that EndpointSlices name for
    /// it.
    pub(super) fn node_of_pod(&self, addr: IpAddr) -> Option<&'n Node> {
        if let Some(known) = self.nodes_of_pods.borrow().get(&addr) {
            return *known;
        }
        let ranges = self.node_ranges.get_or_init(|| {
            let nodes = self.node.nodes().into_iter().flatten();
            let ranges =
                nodes.flat_map(|node| pod_ranges(node).into_iter().zip(iter::repeat(node)));
            ranges.collect()
        });
        let with_range = ranges.iter().filter(|(range, _)| range.contains(addr));
        let with_range: Vec<&Node> = with_range.map(|(_, node)| *node).collect();
        let named = self.endpoint_nodes().get(&addr);
        let by_slice = named.and_then(|name| self.node_called(name));
        // Two Nodes may have the same range.
        let found = by_slice
            .filter(|node| with_range.iter().any(|other| std::ptr::eq(*other, *node)))
            .or_else(|| with_range.first().copied())
            .or(by_slice);
        self.nodes_of_pods.borrow_mut().insert(addr, found);
        found
    }

    /// Returns the names of the Nodes of endpoints with addresses of their own.
    fn endpoint_nodes(&self) -> &HashMap<IpAddr, &'n str> {
        self.endpoint_nodes.get_or_init(|| {
            let nodes = self.node.nodes().into_iter().flatten();
            let of_nodes = nodes.flat_map(|node| &node.status.addresses);
            let of_nodes: BTreeSet<&str> = of_nodes.map(|at| at.address.as_str()).collect();
            let slices = self.node.slices().into_iter().flatten();
            let mut found = HashMap::default();
            for endpoint in slices.flat_map(|slice| &slice.endpoints) {
                let Some(name) = endpoint.node_name.as_deref() else {
                    continue;
                };
                let own = endpoint.addresses.iter();
                let own = own.filter(|text| !of_nodes.contains(text.as_str()));
                found.extend(own.filter_map(|text| Some((text.parse().ok()?, name))));
            }
            found
        })
    }

    /// Returns the home of a pod of this node whose address is in the range of another Node's pods, if this node has a route to that
    /// range by a gateway: the route is needed to reach the pods there.
    pub(super) fn home_elsewhere(&self, addr: IpAddr) -> Option<Home> {
        let own: Vec<Cidr> = self.object.map(pod_ranges)?;
        let of_family = |range: &Cidr| range.family() == Family::of(addr);
        let own: Vec<Cidr> = own.into_iter().filter(of_family).collect();
        if own.is_empty() || own.iter().any(|range| range.contains(addr)) {
            return None;
        }
        let node = self.node_of_pod(addr)?;
        let mut ranges = pod_ranges(node).into_iter();
        let range = ranges.find(|range| range.contains(addr))?;
        let mut routes = self.node.routes().ok()?.all.iter();
        let leads_there = |route: &Route| {
            route.kind == "unicast" && route.destination == range && route.gateway.is_some()
        };
        routes.any(leads_there).then(|| Home {
            node: node.metadata.name.clone(),
            range,
            own,
        })
    }

    /// Returns the Node object of this node.
    pub(super) const fn object(&self) -> Option<&'n Node> {
        self.object
    }

    /// Returns the name of another node, and the address of a pod there, or of the node itself unless `is_pod`.
    pub(super) fn client_elsewhere(&self, family: Family, is_pod: bool) -> Option<(&str, IpAddr)> {
        let own = &self.object?.metadata.name;
        let nodes = self.node.nodes().ok()?;
        let mut others = nodes.iter().filter(|node| node.metadata.name != *own);
        others.find_map(|other| {
            let addr = if is_pod {
                let mut ranges = pod_ranges(other).into_iter();
                let range = ranges.find(|range| range.family() == family)?;
                near_the_end(range, 1)
            } else {
                let mut all = other.status.addresses.iter();
                let internal = |address: &&NodeAddress| address.kind == "InternalIP";
                let all = all
                    .by_ref()
                    .filter(internal)
                    .filter_map(|address| address.address.parse().ok());
                all.into_iter().find(|addr| Family::of(*addr) == family)
            };
            Some((other.metadata.name.as_str(), addr?))
        })
    }

    /// Returns whether `addr` is an address of this node's Node object.
    ///
    /// # Errors
    ///
    /// The Node object is not known.
    pub(super) fn is_of_node_object(&self, addr: IpAddr) -> Result<bool, Gap> {
        let Some(object) = self.object else {
            self.node.nodes()?;
            return Err(Gap::Absent(
                kpx_node::evidence::Item::Nodes,
                "no Node object for this node".to_owned(),
            ));
        };
        let mut all = object.status.addresses.iter();
        Ok(all.any(|at| at.address.parse() == Ok(addr)))
    }

    /// Returns the links with an address of this node's Node object, which lead to other nodes.
    pub(super) fn links_of_node(&self) -> &BTreeSet<&'n str> {
        self.links_of_node.get_or_init(|| {
            let all = self
                .object
                .iter()
                .flat_map(|object| &object.status.addresses);
            let all = all.filter_map(|at| self.own(at.address.parse().ok()?));
            all.collect()
        })
    }

    /// Returns the ports that the containers of `pod`, as `NAMESPACE/NAME`, declare; `None` if the pod is not known.
    pub(super) fn declared_ports(&self, pod: &str) -> Option<BTreeSet<DeclaredPort>> {
        let declared = self.declared.get_or_init(|| {
            let pods = self.node.pods().into_iter().flatten();
            let of = |pod: &Pod| {
                let meta = &pod.metadata;
                (
                    format!("{}/{}", meta.namespace, meta.name),
                    pod.declared_ports(),
                )
            };
            pods.map(of).collect()
        });
        declared.get(pod).cloned()
    }

    /// Returns whether the pods of the node are known: it has one with an address of its own.
    pub(super) fn knows_pods(&self) -> bool {
        let holders = self.holders.get_or_init(|| self.all_holders());
        *self.knows_pods.get_or_init(|| {
            holders
                .values()
                .any(|holder| matches!(holder, Holder::Pod(_)))
        })
    }

    /// Returns whether `pod`, as `NAMESPACE/NAME`, is not among the pods of this node, of which those with a network of their own are
    /// listed, or is there with other addresses than `addr`.
    pub(super) fn is_unlisted(&self, pod: &str, addr: IpAddr) -> bool {
        let lists_own = self.lists_own.get_or_init(|| {
            let here = self.node.name().ok();
            let mut pods = self.node.pods().into_iter().flatten();
            here.is_some() && pods.any(|pod| pod.spec.node_name == here && has_own_address(pod))
        });
        let mut pods = self.node.pods().into_iter().flatten();
        *lists_own
            && pods
                .find(|listed| pod_name(listed) == pod)
                .is_none_or(|listed| {
                    let mut addresses = listed.addresses().peekable();
                    addresses.peek().is_some() && addresses.all(|own| own != addr)
                })
    }

    /// Returns whether `pod`, as `NAMESPACE/NAME`, is certainly not ready.
    pub(super) fn is_unready(&self, pod: &str) -> bool {
        let unready = self.unready.get_or_init(|| {
            let pods = self.node.pods().into_iter().flatten();
            let unready = pods.filter(|pod| {
                let mut conditions = pod.status.conditions.iter();
                conditions.any(|condition| condition.kind == "Ready" && condition.status == "False")
            });
            let name = |pod: &Pod| format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
            unready.map(name).collect()
        });
        unready.contains(pod)
    }

    /// Returns the phase of `pod`, as `NAMESPACE/NAME`, if it has ended.
    pub(super) fn ended(&self, pod: &str) -> Option<&'n str> {
        let ended = self.ended.get_or_init(|| {
            let pods = self.node.pods().map_or(&[][..], Vec::as_slice).iter();
            let ended = pods.filter(|pod| pod.has_ended());
            let of = |pod: &'n Pod| {
                let meta = &pod.metadata;
                let name = format!("{}/{}", meta.namespace, meta.name);
                (name, pod.status.phase.as_str())
            };
            ended.map(of).collect()
        });
        ended.get(pod).copied()
    }

    /// Returns whether the kubelet of the Node called `name` reports; `None` if that is not known.
    pub(super) fn reports(&self, name: &str) -> Option<Reports<'n>> {
        let reports = self.reports.get_or_init(|| {
            let nodes = self.node.nodes().map_or(&[][..], Vec::as_slice).iter();
            let of = |node: &'n Node| {
                let reports = node.silent_since().map_or(Reports::Does, Reports::Not);
                (node.metadata.name.as_str(), reports)
            };
            nodes.map(of).collect()
        });
        // Without another Node, the list may not show the whole cluster.
        let is_whole = reports.len() > 1;
        let known = reports.get(name).copied();
        known.or(is_whole.then_some(Reports::Gone))
    }

    /// Returns who has `addr`: a pod, an endpoint of a Service, or a node.
    pub(super) fn holder(&self, addr: IpAddr) -> Option<&Holder> {
        self.holders.get_or_init(|| self.all_holders()).get(&addr)
    }

    /// Returns the running pods that have `addr` if there are several, as `NAMESPACE/NAME`. Pods on Nodes that do not report do not
    /// count, nor pods that are being deleted.
    pub(super) fn sharing(&self, addr: IpAddr) -> &[String] {
        let shared = self.shared.get_or_init(|| {
            let mut all = HashMap::<_, Vec<_>>::default();
            for pod in self.node.pods().into_iter().flatten() {
                let node = pod.spec.node_name.as_deref();
                let reports = node.and_then(|name| self.reports(name));
                let is_there = pod.status.phase == "Running"
                    && pod.metadata.deletion_timestamp.is_none()
                    && !matches!(reports, Some(Reports::Not(_) | Reports::Gone));
                if is_there && has_own_address(pod) {
                    for addr in addresses_of(pod) {
                        all.entry(addr).or_default().push(pod_name(pod));
                    }
                }
            }
            all.retain(|_, pods| pods.len() > 1);
            all
        });
        shared.get(&addr).map_or(&[], Vec::as_slice)
    }

    fn all_holders(&self) -> HashMap<IpAddr, Holder> {
        let mut holders = HashMap::default();
        for pod in self.node.pods().into_iter().flatten() {
            if !has_own_address(pod) {
                continue;
            }
            for addr in addresses_of(pod) {
                let pod = || Holder::Pod(pod_name(pod));
                holders.entry(addr).or_insert_with(pod);
            }
        }
        for node in self.node.nodes().into_iter().flatten() {
            let addresses = node
                .status
                .addresses
                .iter()
                .filter_map(|at| at.address.parse().ok());
            for addr in addresses {
                let name = || Holder::Node(node.metadata.name.clone());
                holders.entry(addr).or_insert_with(name);
            }
        }
        for slice in self.node.slices().into_iter().flatten() {
            let Some((namespace, name)) = slice.service() else {
                continue;
            };
            let all = slice
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses);
            for addr in all.filter_map(|text| text.parse().ok()) {
                let endpoint = || Holder::EndpointOf(namespace.to_owned(), name.to_owned());
                holders.entry(addr).or_insert_with(endpoint);
            }
        }
        holders
    }
}

/// Returns the parts of `pods`, ranges of the pods of this node, that routes by a gateway lead to.
fn led_away(node: &NodeSnapshot<'_>, pods: &[Cidr]) -> Vec<Cidr> {
    let routes = node.routes().map_or(&[][..], |all| all.all.as_slice());
    let is_part = |of: &Cidr| {
        let mut wider = pods.iter().filter(|range| range.prefix < of.prefix);
        !of.is_host() && wider.any(|range| range.contains(of.addr))
    };
    let by_gateway = routes
        .iter()
        .filter(|route| route.kind == "unicast" && route.gateway.is_some());
    by_gateway
        .map(|route| route.destination)
        .filter(is_part)
        .collect()
}

/// Returns the addresses of pods on `node`, called `name`, and the ranges in `pods` to which a link of pods leads directly.
fn seen_here(node: &NodeSnapshot<'_>, name: Option<&str>, pods: &[Cidr]) -> Vec<Cidr> {
    let links = node.links().map_or(&[][..], |all| all.all.as_slice());
    let is_of_pods = |device: &str| {
        let link = links.iter().find(|link| link.name == device);
        link.is_some_and(Link::carries_pods)
    };
    let routes = node.routes().map_or(&[][..], |all| all.all.as_slice());
    let direct = routes.iter().filter(|route| {
        route.kind == "unicast"
            && route.gateway.is_none()
            && route.device.as_deref().is_some_and(is_of_pods)
            && pods
                .iter()
                .any(|range| range.contains(route.destination.addr))
    });
    let here = node.pods().into_iter().flatten().filter(|pod| {
        let is_here = name.is_some() && pod.spec.node_name.as_deref() == name;
        is_here && has_own_address(pod)
    });
    let addresses = here.flat_map(|pod| {
        let all = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str());
        all.chain(pod.status.pod_ip.as_deref())
    });
    let addresses = addresses.filter_map(|text| text.parse().ok());
    let mut all: Vec<Cidr> = direct.map(|route| route.destination).collect();
    if node.links().is_err() {
        let networks = node
            .connected()
            .into_iter()
            .flatten()
            .map(|connected| connected.network);
        let is_pods = |network: &Cidr| pods.iter().any(|range| range.contains(network.addr));
        all.extend(networks.filter(is_pods));
    }
    all.extend(addresses.map(Cidr::host));
    all.dedup();
    all
}

fn pod_name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

/// Returns the addresses of `pod`, without duplicates.
fn addresses_of(pod: &Pod) -> BTreeSet<IpAddr> {
    pod.addresses().collect()
}

pub(super) fn has_own_address(pod: &Pod) -> bool {
    !pod.spec.host_network && !pod.has_ended()
}

/// Returns the ranges of pods that the Nodes and kube-proxy's configuration have.
pub fn ranges_of_all_pods(node: &NodeSnapshot<'_>) -> Vec<Cidr> {
    let config = node.proxy_config().ok();
    let of_cluster = config
        .iter()
        .flat_map(|config| config.cluster_cidr.split(','));
    let of_cluster = of_cluster.filter_map(|text| text.trim().parse().ok());
    let nodes = node.nodes().into_iter().flatten();
    nodes.flat_map(pod_ranges).chain(of_cluster).collect()
}

pub(super) fn pod_ranges(node: &Node) -> Vec<Cidr> {
    let spec = &node.spec;
    let all = spec.pod_cidrs.iter().chain(&spec.pod_cidr);
    let mut ranges: Vec<Cidr> = all.filter_map(|text| text.parse().ok()).collect();
    ranges.dedup();
    ranges
}
