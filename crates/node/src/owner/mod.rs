//! Maps an address, NodePort, chain or endpoint to its Service and pod.
//!
//! Built from the cluster's objects or, without those, from the names in kube-proxy's rules.

mod api;
mod rules;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use foldhash::{HashMap, HashMapExt as _};
use serde::{Serialize, Serializer};

pub use crate::backend::chain_owner;
use crate::backend::iptables::names;
use crate::evidence::Gap;
use crate::net::Proto;
use crate::node::NodeSnapshot;
pub use api::{addresses, ports_of};

/// Name of a service port.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortName {
    /// Namespace of the Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub name: Box<str>,
    /// Name of the port; empty for an unnamed one.
    pub port: Box<str>,
}

impl PortName {
    /// Parses `NS/NAME` or `NS/NAME:PORT`.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
        let word = |text: &str| !text.is_empty() && !text.contains([' ', '/']);
        (word(namespace) && word(name)).then(|| Self {
            namespace: namespace.into(),
            name: name.into(),
            port: port.into(),
        })
    }

    /// Returns whether `asked`, `NS/NAME` or `NS/NAME:PORT`, selects this port.
    pub fn answers(&self, asked: &str) -> bool {
        let (service, port) = match asked.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (asked, None),
        };
        service
            .split_once('/')
            .is_some_and(|(ns, name)| *ns == *self.namespace && *name == *self.name)
            && port.is_none_or(|port| *port == *self.port)
    }
}

impl fmt::Display for PortName {
    /// Writes `NS/NAME` or `NS/NAME:PORT`, as kube-proxy does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)?;
        if self.port.is_empty() {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

impl Serialize for PortName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Role of a Service address.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// An IP of a load balancer.
    LoadBalancerIp,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancerIp => "load-balancer IP",
        })
    }
}

/// A service port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    /// Name of the service port.
    pub name: PortName,
    /// Transport protocol.
    pub proto: Proto,
    /// Port number; `None` if no rule contains it.
    pub port: Option<u16>,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`; `None` if only rules are available.
    pub kind: Option<Box<str>>,
    /// Label value naming another proxy that handles the Service; kube-proxy ignores it.
    pub left_to: Option<Box<str>>,
    /// IP addresses with their roles, sorted.
    pub addresses: BTreeSet<(Role, IpAddr)>,
    /// NodePort, if it has one.
    pub node_port: Option<u16>,
    /// Port of the health-check server.
    pub health_check_port: Option<u16>,
    /// Endpoints, sorted by address.
    pub endpoints: Vec<Endpoint>,
}

impl Port {
    /// Returns the port `number` of an address that no Service has.
    pub fn nobody(number: u16, proto: Proto) -> Self {
        Self {
            port: Some(number),
            ..Self::new(PortName::default(), proto)
        }
    }

    /// Returns whether it is a port of the Service `namespace/name`: the one with the name or number `port`, if one is given.
    pub fn is_of(&self, namespace: &str, name: &str, port: Option<&str>) -> bool {
        let is_number = |word: &str| self.port.is_some_and(|number| word.parse() == Ok(number));
        let fits = |word: &str| *word == *self.name.port || is_number(word);
        *namespace == *self.name.namespace && *name == *self.name.name && port.is_none_or(fits)
    }

    /// Returns a port of which only the name is known.
    fn new(name: PortName, proto: Proto) -> Self {
        Self {
            name,
            proto,
            port: None,
            kind: None,
            left_to: None,
            addresses: BTreeSet::new(),
            node_port: None,
            health_check_port: None,
            endpoints: Vec::new(),
        }
    }
}

/// An endpoint of a service port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// Address and port.
    pub addr: SocketAddr,
    /// Pod as `NS/NAME`; `None` if unknown or not a pod.
    pub pod: Option<Box<str>>,
    /// Name of the node it runs on.
    pub node: Option<Box<str>>,
    /// Conditions; `None` if only rules are available.
    pub state: Option<EndpointState>,
    /// Whether it runs on this node; `None` if unknown.
    pub local: Option<bool>,
}

/// Conditions of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EndpointState {
    /// Receives traffic.
    Ready,
    /// Terminating but still serving: receives traffic if no endpoint is ready.
    ServingTerminating,
    /// Terminating.
    Terminating,
    /// Not ready.
    NotReady,
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::ServingTerminating => "terminating, serving",
            Self::Terminating => "terminating",
            Self::NotReady => "not ready",
        })
    }
}

/// Source of the index.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The cluster's objects.
    Api,
    /// Names and comments in kube-proxy's rules.
    Rules,
}

/// Owner of a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner<'o> {
    /// A service port; the prefix of the chain's name, without dashes at the end.
    Service(&'static str, &'o Port),
    /// An endpoint of a service port.
    Endpoint(&'o Port, &'o Endpoint),
    /// A Service or endpoint that is deleted or unknown; the prefix of the chain's name.
    Gone(&'static str),
    /// No Service in particular.
    General,
}

impl<'o> Owner<'o> {
    /// Returns the service port of the chain.
    pub fn port(self) -> Option<&'o Port> {
        match self {
            Self::Service(_, port) | Self::Endpoint(port, _) => Some(port),
            Self::Gone(_) | Self::General => None,
        }
    }
}

type Hash = [u8; 16];

/// Service ports and endpoints by the hashes in the names of their chains.
#[derive(Debug)]
struct ByHash {
    ports: HashMap<Hash, u32>,
    endpoints: HashMap<Hash, (u32, u32)>,
}

impl ByHash {
    fn new(ports: &[Port]) -> Self {
        let count = ports.iter().map(|port| port.endpoints.len()).sum();
        let mut this = Self {
            ports: HashMap::with_capacity(ports.len()),
            endpoints: HashMap::with_capacity(count),
        };
        for (at, port) in (0u32..).zip(ports) {
            let spn = port.name.to_string();
            let hash = key(&names::service_hash(&spn, port.proto));
            this.ports.extend(hash.map(|hash| (hash, at)));
            for (of, endpoint) in (0u32..).zip(&port.endpoints) {
                let hash = key(&names::endpoint_hash(&spn, port.proto, endpoint.addr));
                this.endpoints.extend(hash.map(|hash| (hash, (at, of))));
            }
        }
        this
    }
}

/// Index from addresses, ports and chains to service ports.
#[derive(Debug)]
pub struct Owners {
    ports: Vec<Port>,
    by_address: HashMap<(IpAddr, u16, Proto), (u32, Role)>,
    by_node_port: HashMap<(u16, Proto), u32>,
    by_hash: OnceLock<ByHash>,
    by_endpoint: HashMap<(SocketAddr, Proto), (u32, u32)>,
    by_name: HashMap<(PortName, Proto), u32>,
    /// Source of the index.
    pub source: Source,
    /// Gaps in the cluster's objects.
    pub gaps: Vec<Gap>,
}

impl Owners {
    /// Returns the index of all service ports of `node`.
    pub fn new(node: &NodeSnapshot<'_>) -> Self {
        match node.services() {
            Ok(services) => {
                let (ports, gaps) = api::ports(node, services);
                Self::index(ports, Source::Api, gaps)
            }
            Err(gap) => Self::index(rules::ports(node), Source::Rules, vec![gap]),
        }
    }

    /// Returns an index of only the Services that have the address `addr` or the NodePort `port`: usually all that a
    /// packet to this destination needs.
    pub fn at_address(node: &NodeSnapshot<'_>, addr: IpAddr, port: u16) -> Self {
        let Ok(services) = node.services() else {
            return Self::new(node);
        };
        let near = services.iter().filter(|service| {
            let mut ports = service.spec.ports.iter();
            ports.any(|service_port| service_port.node_port == Some(port))
                || addresses(service).iter().any(|(_, at)| *at == addr)
        });
        let (ports, gaps) = api::some_ports(node, &near.collect::<Vec<_>>());
        Self::index(ports, Source::Api, gaps)
    }

    fn index(mut ports: Vec<Port>, source: Source, gaps: Vec<Gap>) -> Self {
        ports.sort_by(|a, b| (&a.name, a.proto).cmp(&(&b.name, b.proto)));
        let count = ports.iter().map(|port| port.endpoints.len()).sum();
        let mut owners = Self {
            by_address: HashMap::with_capacity(ports.len()),
            by_node_port: HashMap::new(),
            by_hash: OnceLock::new(),
            by_endpoint: HashMap::with_capacity(count),
            by_name: HashMap::with_capacity(ports.len()),
            ports: Vec::new(),
            source,
            gaps,
        };
        for (at, port) in (0u32..).zip(&mut ports) {
            port.endpoints.sort_by_key(|endpoint| endpoint.addr);
            let proto = port.proto;
            if let Some(number) = port.port {
                for &(role, addr) in &port.addresses {
                    owners
                        .by_address
                        .entry((addr, number, proto))
                        .or_insert((at, role));
                }
            }
            if let Some(number) = port.node_port {
                owners.by_node_port.entry((number, proto)).or_insert(at);
            }
            owners.by_name.insert((port.name.clone(), proto), at);
            for (of, endpoint) in (0u32..).zip(&port.endpoints) {
                owners
                    .by_endpoint
                    .entry((endpoint.addr, proto))
                    .or_insert((at, of));
            }
        }
        owners.ports = ports;
        owners
    }

    /// Returns every service port, sorted by name and protocol.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the service port at `addr` and `port`, and the role of the address.
    pub fn at(&self, addr: IpAddr, port: u16, proto: Proto) -> Option<(&Port, Role)> {
        let (at, role) = self.by_address.get(&(addr, port, proto))?;
        Some((&self.ports[*at as usize], *role))
    }

    /// Iterates over the service ports with the address `addr`.
    pub fn with_address(&self, addr: IpAddr) -> impl Iterator<Item = (&Port, Role)> {
        self.ports.iter().filter_map(move |port| {
            let found = port.addresses.iter().find(|(_, at)| *at == addr);
            found.map(|(role, _)| (port, *role))
        })
    }

    /// Returns the service port with NodePort `number`.
    pub fn node_port(&self, number: u16, proto: Proto) -> Option<&Port> {
        let at = self.by_node_port.get(&(number, proto))?;
        Some(&self.ports[*at as usize])
    }

    /// Returns the service port that serves `dest`, and whether as its NodePort.
    pub fn served_at(&self, dest: SocketAddr, proto: Proto) -> Option<(&Port, bool)> {
        let by_address = self.at(dest.ip(), dest.port(), proto);
        by_address.map(|(port, _)| (port, false)).or_else(|| {
            let port = self.node_port(dest.port(), proto)?;
            Some((port, true))
        })
    }

    /// Returns the service port `name`.
    pub fn named(&self, name: &PortName, proto: Proto) -> Option<&Port> {
        let at = self.by_name.get(&(name.clone(), proto))?;
        Some(&self.ports[*at as usize])
    }

    /// Returns the endpoint at `addr`, with the first service port that it belongs to.
    pub fn endpoint(&self, addr: SocketAddr, proto: Proto) -> Option<(&Port, &Endpoint)> {
        let (at, of) = self.by_endpoint.get(&(addr, proto))?;
        let port = &self.ports[*at as usize];
        Some((port, &port.endpoints[*of as usize]))
    }

    /// Returns the owner of the iptables chain `name`.
    pub fn chain(&self, name: &str) -> Owner<'_> {
        let Some((prefix, hash)) = chain_owner::hashed(name) else {
            return Owner::General;
        };
        let found = key(hash).and_then(|hash| {
            let by_hash = self.by_hash.get_or_init(|| ByHash::new(&self.ports));
            if prefix == names::SEP {
                let (at, of) = by_hash.endpoints.get(&hash)?;
                let port = &self.ports[*at as usize];
                return Some(Owner::Endpoint(port, &port.endpoints[*of as usize]));
            }
            let at = by_hash.ports.get(&hash)?;
            Some(Owner::Service(prefix, &self.ports[*at as usize]))
        });
        found.unwrap_or(Owner::Gone(prefix))
    }

    /// Returns the owner of the nftables chain or set `name`.
    pub fn nft_chain(&self, name: &str) -> Owner<'_> {
        let Some(parts) = NftName::parse(name) else {
            return Owner::General;
        };
        let Some(port) = self.named(&parts.name, parts.proto) else {
            return Owner::Gone(parts.prefix);
        };
        match parts.endpoint {
            None => Owner::Service(parts.prefix, port),
            Some(addr) => port
                .endpoints
                .iter()
                .find(|endpoint| endpoint.addr == addr)
                .map_or(Owner::Gone(parts.prefix), |endpoint| {
                    Owner::Endpoint(port, endpoint)
                }),
        }
    }
}

fn key(hash: &str) -> Option<Hash> {
    hash.as_bytes().try_into().ok()
}

/// Parsed name of a chain or set in the nftables table `kube-proxy`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NftName {
    /// `service-`, `local-`, `external-`, `firewall-`, `endpoint-` or `affinity-`.
    pub prefix: &'static str,
    /// Name of the service port.
    pub name: PortName,
    /// Transport protocol of the service port.
    pub proto: Proto,
    /// Address and port of the endpoint.
    pub endpoint: Option<SocketAddr>,
}

impl NftName {
    /// Parses `PREFIX-HASH-NS/NAME/PROTO/PORT`, followed by `__ADDR/PORT` for an endpoint; `None` for other and for
    /// truncated names.
    pub fn parse(name: &str) -> Option<Self> {
        let prefixes = [
            "service-",
            "local-",
            "external-",
            "firewall-",
            "endpoint-",
            "affinity-",
        ];
        let prefix = prefixes.into_iter().find(|p| name.starts_with(p))?;
        let (hash, rest) = name[prefix.len()..].split_once('-')?;
        if hash.len() != 8 {
            return None;
        }
        let (service, endpoint) = match rest.rsplit_once("__") {
            Some((service, endpoint)) => (service, Some(endpoint)),
            None => (rest, None),
        };
        let mut parts = service.splitn(4, '/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let proto = parts.next()?.parse().ok()?;
        let port = parts.next()?;
        Some(Self {
            prefix,
            name: PortName {
                namespace: namespace.into(),
                name: name.into(),
                port: port.into(),
            },
            proto,
            endpoint: match endpoint {
                None => None,
                Some(text) => Some(endpoint_of(text)?),
            },
        })
    }
}

/// Parses `10.0.0.1/80`, or `fd00..1/80` with dots instead of colons.
fn endpoint_of(text: &str) -> Option<SocketAddr> {
    let (addr, port) = text.rsplit_once('/')?;
    let addr: IpAddr = addr
        .parse()
        .or_else(|_| addr.replace('.', ":").parse())
        .ok()?;
    Some(SocketAddr::new(addr, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_name_is_parsed_into_port_and_endpoint() {
        let name =
            NftName::parse("endpoint-A5QXRN6X-default/kubernetes/tcp/https__fd00.10.244..1/8080");
        let name = name.unwrap();
        assert_eq!(name.name.to_string(), "default/kubernetes:https");
        assert_eq!(
            name.endpoint,
            Some("[fd00:10:244::1]:8080".parse().unwrap())
        );
        let plain = NftName::parse("service-PFISGYVC-default/web/tcp/").unwrap();
        assert_eq!(plain.name.to_string(), "default/web");
        assert_eq!(NftName::parse("service-endpoints-check"), None);
    }

    #[test]
    fn a_name_is_selected_with_and_without_its_port() {
        let name = PortName::parse("default/web:http").unwrap();
        assert!(name.answers("default/web"));
        assert!(name.answers("default/web:http"));
        assert!(!name.answers("default/web:https"));
        assert_eq!(PortName::parse("no service"), None);
    }
}
