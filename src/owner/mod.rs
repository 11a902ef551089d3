//! Who owns what: from an address, a NodePort, a chain or an endpoint to the Service and the pod behind it.
//!
//! Built from the cluster's objects, or, lacking those, from the names kube-proxy leaves in its rules.

mod api;
mod rules;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

use crate::backend::iptables::names;
pub use crate::backend::software;
use crate::evidence::Gap;
use crate::net::Proto;
use crate::node::NodeSnapshot;

/// What a port of a Service is called.
#[derive(Clone, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortName {
    /// The namespace.
    pub namespace: Box<str>,
    /// The Service.
    pub name: Box<str>,
    /// The port; empty for an unnamed one.
    pub port: Box<str>,
}

impl PortName {
    /// Reads `NS/NAME` or `NS/NAME:PORT`.
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

    /// Returns whether `asked`, written `NS/NAME` or `NS/NAME:PORT`, means this port.
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

/// What an address is to a Service.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// An address of a load balancer.
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

/// One port of a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Port {
    /// What it is called.
    pub name: PortName,
    /// The protocol.
    pub proto: Proto,
    /// The port; `None` if no rule tells.
    pub port: Option<u16>,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`; `None` if only rules tell of the Service.
    pub kind: Option<Box<str>>,
    /// The other proxy that the Service is left to, by its label; kube-proxy passes it over.
    pub left_to: Option<Box<str>>,
    /// The addresses, sorted.
    pub addresses: BTreeSet<(Role, IpAddr)>,
    /// The NodePort.
    pub node_port: Option<u16>,
    /// The port of the health-check server.
    pub health_check_port: Option<u16>,
    /// The endpoints, sorted by address.
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint of a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// Where it listens.
    pub addr: SocketAddr,
    /// The pod, `NS/NAME`; `None` if not known, or if it is not a pod.
    pub pod: Option<Box<str>>,
    /// The node it runs on.
    pub node: Option<Box<str>>,
    /// Its conditions; `None` if only rules tell of it.
    pub state: Option<State>,
    /// Whether it runs on this node; `None` if not known.
    pub local: Option<bool>,
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Takes traffic.
    Ready,
    /// Ends, but still answers: takes traffic if nothing else is ready.
    ServingTerminating,
    /// Ends.
    Terminating,
    /// Not ready.
    NotReady,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::ServingTerminating => "terminating, serving",
            Self::Terminating => "terminating",
            Self::NotReady => "not ready",
        })
    }
}

/// Where names come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The cluster's objects.
    Api,
    /// What kube-proxy wrote beside its rules.
    Rules,
}

/// Whose a chain is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Owner<'o> {
    /// A Service's: the name's prefix, without dashes at the end, and the port.
    Service(&'static str, &'o Port),
    /// An endpoint's.
    Endpoint(&'o Port, &'o Endpoint),
    /// kube-proxy's, of a Service or endpoint that is no more, or not known: the prefix.
    Gone(&'static str),
    /// Nobody's in particular.
    General,
}

impl<'o> Owner<'o> {
    /// Returns the port it belongs to.
    pub fn port(self) -> Option<&'o Port> {
        match self {
            Self::Service(_, port) | Self::Endpoint(port, _) => Some(port),
            Self::Gone(_) | Self::General => None,
        }
    }
}

type Hash = [u8; 16];

/// The index.
#[derive(Debug)]
pub struct Owners {
    ports: Vec<Port>,
    by_address: HashMap<(IpAddr, u16, Proto), (u32, Role)>,
    by_node_port: HashMap<(u16, Proto), u32>,
    by_hash: HashMap<Hash, u32>,
    by_endpoint_hash: HashMap<Hash, (u32, u32)>,
    by_endpoint: HashMap<(SocketAddr, Proto), (u32, u32)>,
    by_name: HashMap<(PortName, Proto), u32>,
    /// Where names come from.
    pub source: Source,
    /// What could not be read of the cluster's objects.
    pub gaps: Vec<Gap>,
}

impl Owners {
    /// Returns the index of what `node` tells.
    pub fn new(node: &NodeSnapshot<'_>) -> Self {
        match node.services() {
            Ok(services) => {
                let (ports, gaps) = api::ports(node, services);
                Self::index(ports, Source::Api, gaps)
            }
            Err(gap) => Self::index(rules::ports(node), Source::Rules, vec![gap]),
        }
    }

    /// Returns the index of the Services alone that are at `addr`, or have `port` as a NodePort: all that a packet sent
    /// there has to do with, as a rule.
    pub fn at_address(node: &NodeSnapshot<'_>, addr: IpAddr, port: u16) -> Self {
        let Ok(services) = node.services() else {
            return Self::new(node);
        };
        let near = services.iter().filter(|service| {
            let mut ports = service.spec.ports.iter();
            ports.any(|of| of.node_port == Some(port))
                || api::addresses(service).iter().any(|(_, at)| *at == addr)
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
            by_hash: HashMap::with_capacity(ports.len()),
            by_endpoint_hash: HashMap::with_capacity(count),
            by_endpoint: HashMap::with_capacity(count),
            by_name: HashMap::with_capacity(ports.len()),
            ports: Vec::new(),
            source,
            gaps,
        };
        for (at, port) in (0u32..).zip(&mut ports) {
            port.endpoints.sort_by_key(|endpoint| endpoint.addr);
            let (spn, proto) = (port.name.to_string(), port.proto);
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
            owners
                .by_hash
                .extend(key(&names::service_hash(&spn, proto)).map(|hash| (hash, at)));
            for (of, endpoint) in (0u32..).zip(&port.endpoints) {
                let hash = names::endpoint_hash(&spn, proto, endpoint.addr);
                owners
                    .by_endpoint_hash
                    .extend(key(&hash).map(|hash| (hash, (at, of))));
                owners
                    .by_endpoint
                    .entry((endpoint.addr, proto))
                    .or_insert((at, of));
            }
        }
        owners.ports = ports;
        owners
    }

    /// Returns every port, sorted by name and protocol.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the port that `addr` and `port` stand for, and what the address is to it.
    pub fn at(&self, addr: IpAddr, port: u16, proto: Proto) -> Option<(&Port, Role)> {
        let (at, role) = self.by_address.get(&(addr, port, proto))?;
        Some((&self.ports[*at as usize], *role))
    }

    /// Iterates over the ports that have the address `addr`.
    pub fn with_address(&self, addr: IpAddr) -> impl Iterator<Item = (&Port, Role)> {
        self.ports.iter().filter_map(move |port| {
            let found = port.addresses.iter().find(|(_, at)| *at == addr);
            found.map(|(role, _)| (port, *role))
        })
    }

    /// Returns the port with NodePort `number`.
    pub fn node_port(&self, number: u16, proto: Proto) -> Option<&Port> {
        let at = self.by_node_port.get(&(number, proto))?;
        Some(&self.ports[*at as usize])
    }

    /// Returns the port called `name`.
    pub fn named(&self, name: &PortName, proto: Proto) -> Option<&Port> {
        let at = self.by_name.get(&(name.clone(), proto))?;
        Some(&self.ports[*at as usize])
    }

    /// Returns the endpoint at `addr`, with the first of the ports it serves.
    pub fn endpoint(&self, addr: SocketAddr, proto: Proto) -> Option<(&Port, &Endpoint)> {
        let (at, of) = self.by_endpoint.get(&(addr, proto))?;
        let port = &self.ports[*at as usize];
        Some((port, &port.endpoints[*of as usize]))
    }

    /// Returns whose the iptables chain `name` is.
    pub fn chain(&self, name: &str) -> Owner<'_> {
        let Some((prefix, hash)) = software::hashed(name) else {
            return Owner::General;
        };
        let found = key(hash).and_then(|hash| {
            if prefix == names::SEP {
                let (at, of) = self.by_endpoint_hash.get(&hash)?;
                let port = &self.ports[*at as usize];
                return Some(Owner::Endpoint(port, &port.endpoints[*of as usize]));
            }
            let at = self.by_hash.get(&hash)?;
            Some(Owner::Service(prefix, &self.ports[*at as usize]))
        });
        found.unwrap_or(Owner::Gone(prefix))
    }

    /// Returns whose the nftables chain or set `name` is.
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

/// What the name of a chain or set in the nftables table `kube-proxy` says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NftName {
    /// `service-`, `local-`, `external-`, `firewall-`, `endpoint-` or `affinity-`.
    pub prefix: &'static str,
    /// The port it belongs to.
    pub name: PortName,
    /// The port's protocol.
    pub proto: Proto,
    /// The endpoint it belongs to.
    pub endpoint: Option<SocketAddr>,
}

impl NftName {
    /// Reads `PREFIX-HASH-NS/NAME/PROTO/PORT` with `__ADDR/PORT` behind it for an endpoint; `None` for other names and
    /// such as were cut off for their length.
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

/// Reads `10.0.0.1/80`, or `fd00..1/80` with dots for colons.
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
    fn a_chains_name_tells_its_port_and_endpoint() {
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
    fn a_name_answers_with_and_without_its_port() {
        let name = PortName::parse("default/web:http").unwrap();
        assert!(name.answers("default/web"));
        assert!(name.answers("default/web:http"));
        assert!(!name.answers("default/web:https"));
        assert_eq!(PortName::parse("no service"), None);
    }
}
