//! The Services and pods behind addresses, ports and chains.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use foldhash::{HashMap, HashMapExt as _};
use serde::Serialize;

use super::api::addresses;
use super::nft_name::NftName;
use super::port::{Endpoint, Port, PortName, Role};
use super::{api, rules};
use crate::backend::chain_owner;
use crate::backend::iptables::names;
use crate::evidence::Gap;
use crate::net::Proto;
use crate::node::NodeSnapshot;

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

pub(super) type Hash = [u8; 16];

/// Service ports and endpoints by the hashes in the names of their chains.
#[derive(Debug)]
pub(super) struct ByHash {
    pub(super) ports: HashMap<Hash, u32>,
    pub(super) endpoints: HashMap<Hash, (u32, u32)>,
}

impl ByHash {
    pub(super) fn new(ports: &[Port]) -> Self {
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
    pub(super) ports: Vec<Port>,
    pub(super) by_address: HashMap<(IpAddr, u16, Proto), (u32, Role)>,
    pub(super) by_node_port: HashMap<(u16, Proto), u32>,
    pub(super) by_hash: OnceLock<ByHash>,
    pub(super) by_endpoint: HashMap<(SocketAddr, Proto), (u32, u32)>,
    pub(super) by_name: HashMap<(PortName, Proto), u32>,
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

    pub(super) fn index(mut ports: Vec<Port>, source: Source, gaps: Vec<Gap>) -> Self {
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

pub(super) fn key(hash: &str) -> Option<Hash> {
    hash.as_bytes().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_selected_with_and_without_its_port() {
        let name = PortName::parse("default/web:http").unwrap();
        assert!(name.answers("default/web"));
        assert!(name.answers("default/web:http"));
        assert!(!name.answers("default/web:https"));
        assert_eq!(PortName::parse("no service"), None);
    }
}
