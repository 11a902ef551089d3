//! The sources of packets, each with a typical address.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::packet::Entry;
use super::region::{self, Ranges};
use super::target;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::{EndpointSlice, Node, Pod};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::Connection;

/// A source to trace from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// The place where it enters.
    pub entry: Entry,
    /// Its address; `None` lets the node choose.
    pub addr: Option<IpAddr>,
    /// The source's name.
    pub name: SourceName,
}

/// The name of a source for people: `a pod (10.244.1.5, default/web-0)`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SourceName {
    /// What sends: `a pod`.
    pub sender: String,
    /// Which one it is, if that is known.
    pub which: Option<String>,
}

impl SourceName {
    /// Returns the name of the `sender` that `which` identifies.
    pub fn new(sender: impl Into<String>, which: impl fmt::Display) -> Self {
        Self {
            sender: sender.into(),
            which: Some(which.to_string()),
        }
    }

    /// Returns the name of a `sender` of which nothing else is known.
    pub fn any(sender: &str) -> Self {
        Self {
            sender: sender.to_owned(),
            which: None,
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Some(which) => write!(f, "{} ({which})", self.sender),
            None => f.write_str(&self.sender),
        }
    }
}

/// An invalid source.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum SourceError {
    /// Not one of the forms, and no such pod.
    #[error(
        "{0:?} is not a source: an address, host, outside, or a pod of this node as NAME or NAMESPACE/NAME"
    )]
    Form(String),
    /// The address is of the other family.
    #[error("source {0} and target {1} are of different IP families")]
    Family(IpAddr, IpAddr),
    /// More than one pod has that name.
    #[error("pod name {0} is ambiguous: {1}")]
    Several(String, String),
    /// The pod runs elsewhere.
    #[error(
        "pod {0} runs on {1}: trace it there, or give its address to trace it as an outside client"
    )]
    Elsewhere(String, String),
}

/// The known pods and prefixes.
#[derive(Clone, Copy, Debug)]
pub struct Pods<'a> {
    /// The name of the examined node, if it is known.
    pub name: Option<&'a str>,
    /// Its object, if the API has it.
    pub node: Option<&'a Node>,
    /// Pods, as far as they were read.
    pub all: &'a [Pod],
    /// `EndpointSlices`, which name pods too.
    pub slices: &'a [EndpointSlice],
    /// The networks of links of the node.
    connected: &'a [Connection],
    /// kube-proxy's configuration.
    config: Option<&'a ProxyConfig>,
}

/// One pod with an address of its own.
#[derive(Clone, Debug, Eq, PartialEq)]
struct PodAddress {
    namespace: String,
    name: String,
    addr: IpAddr,
    node: Option<String>,
}

impl<'a> Pods<'a> {
    /// Returns the known pods and prefixes of `node`; `slices` are EndpointSlices, which name pods too.
    pub fn of(node: &'a NodeSnapshot<'_>, slices: &'a [EndpointSlice]) -> Self {
        let all = node.pods().map_or(&[][..], Vec::as_slice);
        let object = own_object(node);
        // Without its object, pods and endpoints may name the node.
        let name = node.name().ok();
        let of_pods = all.iter().filter_map(|pod| pod.spec.node_name.as_deref());
        let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
        let of_endpoints = endpoints.filter_map(|endpoint| endpoint.node_name.as_deref());
        let is_it = |text: &&str| Some(*text) == name.as_deref();
        let named = || of_pods.chain(of_endpoints).find(is_it);
        Self {
            name: object
                .map(|object| object.metadata.name.as_str())
                .or_else(named),
            node: object,
            all,
            slices,
            connected: node.connected().map_or(&[][..], Vec::as_slice),
            config: node.proxy_config().ok(),
        }
    }
}

/// Returns the Node object of `node`, if the API has it.
fn own_object<'a>(node: &'a NodeSnapshot<'_>) -> Option<&'a Node> {
    let name = node.name().ok()?;
    let mut nodes = node.nodes().ok()?.iter();
    nodes.find(|node| node.metadata.name == name)
}

/// Returns the node's own address of `family`: the first internal one of its Node object that a link has, else the first of that object,
/// or else the one on the link of its default route.
pub fn own_address(node: &NodeSnapshot<'_>, family: Family) -> Option<IpAddr> {
    let of_object = own_object(node).and_then(|own_object| {
        let internal = own_object
            .status
            .addresses
            .iter()
            .filter(|address| address.kind == "InternalIP");
        let mut internal = internal.filter_map(|address| address.address.parse::<IpAddr>().ok());
        let here = node.addresses().map_or(&[][..], |all| all.all.as_slice());
        let is_used = |ip: &IpAddr| {
            here.iter()
                .any(|at| at.addr.addr == *ip && !at.is_duplicate())
        };
        let held = internal.find(|ip| Family::of(*ip) == family && is_used(ip));
        held.or_else(|| target::node_address(own_object, family))
    });
    of_object.or_else(|| uplink(node, family))
}

impl Pods<'_> {
    /// Returns the pods of the node that can be a source, as `NAMESPACE/NAME`.
    pub fn sources(&self) -> BTreeSet<String> {
        let all = Family::BOTH.into_iter();
        let all = all.flat_map(|family| self.pod_addresses(family));
        let is_here = |pod: &PodAddress| {
            let node = pod.node.as_deref();
            node.is_none_or(|node| self.name().is_empty() || node == self.name())
        };
        all.filter(is_here)
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect()
    }

    fn name(&self) -> &str {
        self.name.unwrap_or_default()
    }

    /// Pods of the cluster's network with an address of `family`, from pods and from endpoints.
    fn pod_addresses(&self, family: Family) -> Vec<PodAddress> {
        let mut addresses = Vec::new();
        for pod in self.all.iter().filter(|pod| !pod.spec.host_network) {
            let addr = pod.addresses().find(|ip| Family::of(*ip) == family);
            addresses.extend(addr.map(|addr| PodAddress {
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                addr,
                node: pod.spec.node_name.clone(),
            }));
        }
        for endpoint in self.slices.iter().flat_map(|slice| &slice.endpoints) {
            let addr = endpoint.addresses.first().and_then(|ip| ip.parse().ok());
            let Some(addr) = addr.filter(|ip: &IpAddr| Family::of(*ip) == family) else {
                continue;
            };
            let Some(target) = endpoint
                .target_ref
                .as_ref()
                .filter(|target| target.kind == "Pod")
            else {
                continue;
            };
            if self.is_node(addr) {
                continue;
            }
            addresses.push(PodAddress {
                namespace: target.namespace.clone(),
                name: target.name.clone(),
                addr,
                node: endpoint.node_name.clone(),
            });
        }
        addresses
            .sort_by(|a, b| (&a.namespace, &a.name, a.addr).cmp(&(&b.namespace, &b.name, b.addr)));
        addresses
            .dedup_by(|a, b| (&a.namespace, &a.name, a.addr) == (&b.namespace, &b.name, b.addr));
        addresses
    }

    /// Returns the addresses of this node's pods: its prefixes, or else the addresses of known pods.
    pub(crate) fn here(&self, family: Family) -> Ranges {
        let prefixes = self.prefixes(family);
        if !prefixes.is_empty() {
            let ends = prefixes.into_iter().map(region::ends);
            return Ranges::of(ends.collect());
        }
        let all = self.pod_addresses(family);
        let here = all
            .iter()
            .filter(|pod| pod.node.as_deref() == Some(self.name()));
        let ends = here.map(|pod| region::ends(Cidr::host(pod.addr)));
        Ranges::of(ends.collect())
    }

    /// Returns the pods of this node with an address of their own, by name.
    pub(crate) fn running_here(&self) -> Vec<Source> {
        let all = Family::BOTH.map(|family| self.pod_addresses(family));
        let here = |pod: &&PodAddress| pod.node.as_deref() == Some(self.name());
        all.iter().flatten().filter(here).map(from_pod).collect()
    }

    fn is_node(&self, addr: IpAddr) -> bool {
        let addresses = self.node.iter().flat_map(|node| &node.status.addresses);
        addresses
            .filter_map(|a| a.address.parse().ok())
            .any(|ip: IpAddr| ip == addr)
    }

    /// Pod prefixes of this node: those of its object; without one, the network of the pods' link in the range of all pods, or that
    /// range where no link is shown.
    fn prefixes(&self, family: Family) -> Vec<Cidr> {
        let of = |node: &Node| {
            let all = node.spec.pod_cidrs.iter().chain(&node.spec.pod_cidr);
            all.filter_map(|text| text.parse().ok())
                .collect::<Vec<Cidr>>()
        };
        let mut prefixes = self.node.map(of).unwrap_or_default();
        if prefixes.is_empty() {
            let of_cluster = self
                .config
                .iter()
                .flat_map(|config| config.cluster_cidr.split(','));
            let of_cluster = of_cluster.filter_map(|text| text.trim().parse().ok());
            let of_cluster: Vec<Cidr> = of_cluster.collect();
            let is_pods = |connection: &&Connection| {
                let mut ranges = of_cluster.iter();
                ranges.any(|range| range.contains(connection.network.addr))
            };
            let networks = self.connected.iter().filter(is_pods);
            prefixes.extend(networks.map(|network| network.network));
            if self.connected.is_empty() {
                prefixes = of_cluster;
            }
        }
        prefixes.retain(|prefix| prefix.family() == family);
        prefixes
    }
}

/// Returns whether `text` asks for a client outside, whichever one stands for them; `external` is the former word.
pub fn is_any_outside(text: &str) -> bool {
    matches!(text, "outside" | "external")
}

/// Reads `--source`.
pub fn named(
    text: &str,
    target: IpAddr,
    node: &NodeSnapshot<'_>,
    pods: Pods<'_>,
) -> Result<Source, SourceError> {
    let family = Family::of(target);
    match text {
        "host" => return Ok(host()),
        text if is_any_outside(text) => return Ok(outside(family, node)),
        _ => {}
    }
    if let Ok(addr) = text.parse::<IpAddr>() {
        if Family::of(addr) != family {
            return Err(SourceError::Family(addr, target));
        }
        return Ok(from(addr, node, pods));
    }
    let is_it = |namespace: &str, name: &str| match text.split_once('/') {
        Some(asked) => asked == (namespace, name),
        None => name == text,
    };
    let found: Vec<_> = pods
        .pod_addresses(family)
        .into_iter()
        .filter(|pod| is_it(&pod.namespace, &pod.name))
        .collect();
    match found.as_slice() {
        [] => {
            // A pod in the network of the node sends as the node.
            let mut all = pods.all.iter().filter(|pod| pod.spec.host_network);
            let pod = all.find(|pod| is_it(&pod.metadata.namespace, &pod.metadata.name));
            match pod.map(|pod| pod.spec.node_name.as_deref()) {
                Some(Some(elsewhere)) if !pods.name().is_empty() && elsewhere != pods.name() => {
                    let elsewhere = elsewhere.to_owned();
                    Err(SourceError::Elsewhere(text.to_owned(), elsewhere))
                }
                Some(_) => Ok(host()),
                None => Err(SourceError::Form(text.to_owned())),
            }
        }
        [pod] => match &pod.node {
            Some(elsewhere) if !pods.name().is_empty() && elsewhere != pods.name() => {
                Err(SourceError::Elsewhere(text.to_owned(), elsewhere.clone()))
            }
            _ => Ok(from_pod(pod)),
        },
        several => {
            let names: Vec<_> = several
                .iter()
                .map(|p| format!("{}/{} ({})", p.namespace, p.name, p.addr))
                .collect();
            Err(SourceError::Several(text.to_owned(), names.join(", ")))
        }
    }
}

/// The three usual sources: a pod of this node that is not a backend of the target, the host, and a client outside.
pub(crate) fn usual(
    target: IpAddr,
    backends: &[IpAddr],
    node: &NodeSnapshot<'_>,
    pods: Pods<'_>,
) -> Vec<Source> {
    Likely::new(Family::of(target), node, pods).sources(target, backends)
}

/// The candidates for the usual sources of packets of one family.
#[derive(Debug)]
pub(crate) struct Likely {
    /// The pods of this node.
    local: Vec<PodAddress>,
    prefix: Option<Cidr>,
    outside: Source,
}

impl Likely {
    pub(crate) fn new(family: Family, node: &NodeSnapshot<'_>, pods: Pods<'_>) -> Self {
        let is_local =
            |pod: &PodAddress| pod.node.as_deref().is_some_and(|name| name == pods.name());
        let mut local = pods.pod_addresses(family);
        local.retain(is_local);
        Self {
            local,
            prefix: pods.prefixes(family).first().copied(),
            outside: outside(family, node),
        }
    }

    /// Returns the usual sources, as [`usual`] does.
    pub(crate) fn sources(&self, target: IpAddr, backends: &[IpAddr]) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut local = self.local.iter();
        let real = local.find(|pod| !backends.contains(&pod.addr) && pod.addr != target);
        match real {
            Some(pod) => sources.push(from_pod(pod)),
            None => sources.extend(self.prefix.and_then(|prefix| some_pod(prefix, backends))),
        }
        sources.push(host());
        sources.push(self.outside.clone());
        sources
    }
}

/// A packet from `addr`: from the node itself, from a pod of it, or from outside.
fn from(addr: IpAddr, node: &NodeSnapshot<'_>, pods: Pods<'_>) -> Source {
    let own = node
        .addresses()
        .is_ok_and(|all| all.all.iter().any(|a| a.addr.addr == addr))
        || addr.is_loopback();
    if own {
        return Source {
            entry: Entry::Host,
            addr: Some(addr),
            name: SourceName::new("the host", addr),
        };
    }
    let family = Family::of(addr);
    let pod = pods
        .pod_addresses(family)
        .into_iter()
        .find(|pod| pod.addr == addr);
    let node_of_pod = pod.as_ref().and_then(|pod| pod.node.as_deref());
    let in_prefix = || {
        let prefixes = pods.prefixes(family);
        prefixes.iter().any(|prefix| prefix.contains(addr))
    };
    let here = node_of_pod.map_or_else(in_prefix, |node_of_pod| node_of_pod == pods.name());
    match (here, pod) {
        (true, Some(pod)) => from_pod(&pod),
        (true, None) => Source {
            entry: Entry::Pod,
            addr: Some(addr),
            name: SourceName::new("a pod", addr),
        },
        (false, _) => Source {
            entry: Entry::Outside,
            addr: Some(addr),
            name: SourceName::new("outside", addr),
        },
    }
}

/// Returns the node's address of `family` on the link of its default route.
pub(crate) fn uplink(node: &NodeSnapshot<'_>, family: Family) -> Option<IpAddr> {
    let routes = node.routes().ok()?;
    let default = routes
        .all
        .iter()
        .find(|route| route.family == family && route.destination.prefix == 0)?;
    let addresses = node.addresses().ok()?;
    let mut on_it = addresses
        .all
        .iter()
        .filter(|at| Some(&at.link) == default.device.as_ref());
    on_it
        .find(|at| at.addr.family() == family && at.scope == "global")
        .map(|at| at.addr.addr)
}

fn from_pod(pod: &PodAddress) -> Source {
    Source {
        entry: Entry::Pod,
        addr: Some(pod.addr),
        name: SourceName::new(
            "a pod",
            format!("{}, {}/{}", pod.addr, pod.namespace, pod.name),
        ),
    }
}

fn host() -> Source {
    Source {
        entry: Entry::Host,
        addr: None,
        name: SourceName::any("the host"),
    }
}

/// Returns the address of `prefix` that is `before` its last one.
pub(crate) fn near_the_end(prefix: Cidr, before: u8) -> Option<IpAddr> {
    Some(match prefix.normal().addr {
        IpAddr::V4(a) => IpAddr::V4(
            (a.to_bits() | u32::MAX.checked_shr(u32::from(prefix.prefix)).unwrap_or(0))
                .checked_sub(before.into())?
                .into(),
        ),
        IpAddr::V6(a) => IpAddr::V6(
            (a.to_bits() | u128::MAX.checked_shr(u32::from(prefix.prefix)).unwrap_or(0))
                .checked_sub(before.into())?
                .into(),
        ),
    })
}

/// A free address of a pod prefix: near its end, where addresses are assigned last.
fn some_pod(prefix: Cidr, backends: &[IpAddr]) -> Option<Source> {
    let mut near = (1..=u8::MAX).filter_map(|before| near_the_end(prefix, before));
    let free = near.find(|addr| !backends.contains(addr))?;
    Some(Source {
        entry: Entry::Pod,
        addr: Some(free),
        name: SourceName::new("a pod", free),
    })
}

/// Addresses that stand for a client outside, of both families: for benchmarks (RFC 2544, RFC 5180), so they belong to no node.
pub(crate) const OUTSIDE: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0xffff, 0, 0, 0, 1)),
];

/// Returns whether `addr` stands for clients outside, none of which was asked about.
pub(crate) fn is_assumed(addr: IpAddr) -> bool {
    OUTSIDE.contains(&addr)
}

/// A client outside: an address for benchmarks (RFC 2544, RFC 5180) that no ordinary rule names.
fn outside(family: Family, node: &NodeSnapshot<'_>) -> Source {
    let candidates = OUTSIDE.into_iter().filter(|at| Family::of(*at) == family);
    let taken = |addr: &IpAddr| {
        node.addresses()
            .is_ok_and(|all| all.all.iter().any(|a| a.addr.contains(*addr)))
    };
    let free = candidates.clone().find(|addr| !taken(addr));
    let addr = free.or_else(|| candidates.clone().next());
    Source {
        entry: Entry::Outside,
        addr,
        name: addr.map_or_else(
            || SourceName::any("outside"),
            |addr| SourceName::new("outside", addr),
        ),
    }
}
