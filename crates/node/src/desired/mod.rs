//! The desired state of a node's service proxy, independent of the mode.
//!
//! The cluster's objects and kube-proxy's configuration become service ports with the endpoints that kube-proxy would
//! choose; the `expect` module of each backend turns them into rules. Sources: `pkg/proxy/serviceport.go`,
//! `endpointslicecache.go`, `topology.go` and `util/nodeport_addresses.go` of kube-proxy.

mod endpoints;
mod ports;
mod settings;

use std::net::IpAddr;

use crate::cluster::config::{Mode, ProxyConfig};
use crate::cluster::release::{Change, NEWEST, OLDEST, RECORDED};
use crate::cluster::version::Version;
use crate::cluster::{ByService, EndpointSlice, Node, Service};
use crate::evidence::{Gap, Kernel};
use crate::net::{Cidr, Family, Proto};

pub use endpoints::matching;
pub use endpoints::{Endpoint, Hint};
pub use ports::ServicePort;
pub use settings::serves_localhost;
pub use settings::{Detector, LOCALHOST_GATE, NodePorts, localhost_node_ports};

/// The desired state of a node's service proxy.
#[derive(Clone, Debug)]
pub struct DesiredState {
    /// Mode that the state is built for.
    pub mode: Mode,
    /// kube-proxy version whose rules are expected.
    pub version: Version,
    /// Name of the node.
    pub node: String,
    /// Masquerade mark: the value of its bit.
    pub mark: u32,
    /// Whether all Service traffic is masqueraded.
    pub masquerade_all: bool,
    /// kube-proxy's configuration.
    pub config: ProxyConfig,
    /// State of each supported family.
    pub families: Vec<FamilyState>,
    /// Properties of the node.
    pub facts: Facts,
    /// Limits of the comparison, as sentences for the user.
    pub notes: Vec<String>,
}

/// The desired state of one family.
#[derive(Clone, Debug)]
pub struct FamilyState {
    /// IP family.
    pub family: Family,
    /// Address of the node in this family; loopback if it has none.
    pub node_ip: IpAddr,
    /// Detection of traffic from local pods; `None` if kube-proxy has no way to detect it.
    pub detector: Option<Detector>,
    /// Addresses that accept NodePort traffic.
    pub node_ports: NodePorts,
    /// Protocols whose packets to NodePorts on loopback addresses kube-proxy rejects; only in nftables mode.
    pub rejected_on_loopback: &'static [Proto],
    /// Service ports, sorted by namespace, name, port name and protocol.
    pub ports: Vec<ServicePort>,
    /// Whether the cluster is so large that kube-proxy omits comments and delays clean-up.
    pub large: bool,
}

/// Properties of the node that kube-proxy detects and adapts to.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// Families that kube-proxy serves.
    pub families: Vec<Family>,
    /// Addresses of every link.
    pub addresses: Result<Vec<LinkAddress>, Gap>,
    /// Whether iptables supports `--random-fully`.
    pub random_fully: bool,
    /// Whether conntrack accepts out-of-window packets.
    pub tcp_liberal: bool,
    /// Whether the nfacct counter `ct_state_invalid_dropped_pkts` exists.
    pub count_invalid: bool,
    /// Whether the nfacct counter `localhost_nps_accepted_pkts` exists.
    pub count_localhost: bool,
    /// The kernel's release, if known.
    pub kernel: Option<Kernel>,
}

/// An address and its link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkAddress {
    /// Name of the link.
    pub link: String,
    /// IP address.
    pub addr: IpAddr,
}

/// API objects that a desired state is built from.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a> {
    /// Services of all namespaces.
    pub services: &'a [Service],
    /// EndpointSlices of all namespaces.
    pub slices: &'a [EndpointSlice],
    /// This node's Node object, if it exists.
    pub node: Option<&'a Node>,
}

impl DesiredState {
    /// Builds the state that kube-proxy `version` with `config` would program in `mode` on node `name`.
    pub fn build(
        objects: Objects<'_>,
        config: &ProxyConfig,
        mode: Mode,
        name: &str,
        version: Version,
        facts: Facts,
    ) -> Self {
        let mut notes = Vec::new();
        if mode == Mode::Userspace {
            // Its portals were the same in every release.
        } else if !version.is_at_least(OLDEST) {
            notes.push(format!(
                "kube-proxy {version} is older than {OLDEST}, the oldest release whose rules kpx knows"
            ));
        } else if version.is_newer_than(NEWEST) {
            notes.push(format!(
                "kube-proxy {version} is newer than {NEWEST}, the newest release whose rules kpx knows; \
                 its rules are compared with that release's"
            ));
        } else if version.is_newer_than(RECORDED) {
            notes.push(format!(
                "the rules of kube-proxy {version} are expected from source, not recorded: \
                 {RECORDED} is the newest release with recorded rules"
            ));
        }
        let node_ips = settings::node_ips(objects.node, config, version);
        let context = endpoints::Context::new(objects.node, config, name, version);
        let slices = index(objects.slices);
        let families = facts.families.iter().map(|&family| {
            let node_ip = node_ips.of(family);
            let ports = ports::ports(objects.services, &slices, &context, config, family);
            let count: usize = ports.iter().map(|port| port.endpoints.len()).sum();
            FamilyState {
                family,
                node_ip,
                detector: settings::detector(config, objects.node, family),
                node_ports: settings::node_ports(config, mode, family, &node_ips),
                rejected_on_loopback: settings::rejected_on_loopback(config, mode, family, version),
                ports,
                large: count > 1000,
            }
        });
        Self {
            mode,
            version,
            node: name.to_owned(),
            mark: 1u32
                .checked_shl(u32::from(config.masquerade_bit(mode)))
                .unwrap_or(0),
            masquerade_all: config.masquerade_all(mode),
            config: config.clone(),
            families: families.collect(),
            facts,
            notes,
        }
    }

    /// Returns the state of `family`; `None` if kube-proxy does not serve it.
    pub fn family(&self, family: Family) -> Option<&FamilyState> {
        self.families.iter().find(|state| state.family == family)
    }

    /// Returns whether kube-proxy is older than every release whose rules kpx knows.
    pub fn is_older(&self) -> bool {
        self.mode != Mode::Userspace && !self.version.is_at_least(OLDEST)
    }

    /// Returns whether kpx computes all rules of this release and mode, so that it can write missing ones.
    pub fn is_whole(&self) -> bool {
        self.mode != Mode::Userspace && !self.is_older()
    }

    /// Returns whether kube-proxy itself takes TCP connections to NodePorts on the loopback address of `family`.
    pub fn listens_on_loopback(&self, family: Family) -> bool {
        self.mode == Mode::Nftables
            && serves_localhost(&self.config, self.version)
            && self.config.names_loopback(self.mode, family)
    }

    /// Returns whether its rules of mode iptables drop forwarded packets that conntrack calls invalid.
    pub fn drops_invalid(&self) -> bool {
        !(self.has(Change::LiberalConntrack) && self.facts.tcp_liberal)
    }

    /// Returns whether the kube-proxy version has `change`.
    pub fn has(&self, change: Change) -> bool {
        self.version.has(change)
    }
}

impl FamilyState {
    /// Returns whether any endpoint has a hint for this node's zone.
    pub fn has_zone_hints(&self) -> bool {
        let mut endpoints = self.ports.iter().flat_map(|port| &port.endpoints);
        endpoints.any(|endpoint| endpoint.zone == Hint::Us)
    }

    /// Returns the node addresses that accept NodePort traffic, if they must be listed one by one.
    ///
    /// Loopback addresses are included only if `localhost` is set.
    pub fn node_port_addresses(&self, facts: &Facts, localhost: bool) -> Result<Vec<IpAddr>, Gap> {
        let all = match &facts.addresses {
            Ok(all) => all,
            // Single addresses belong to the node, usually because of `primary`.
            Err(_) if self.node_ports.cidrs.iter().all(Cidr::is_host) => {
                let named = self.node_ports.cidrs.iter().map(|c| c.addr);
                let mut named: Vec<_> = named.filter(|a| localhost || !a.is_loopback()).collect();
                named.sort_unstable();
                return Ok(named);
            }
            Err(gap) => return Err(gap.clone()),
        };
        let wanted = all.iter().map(|at| at.addr).filter(|&addr| {
            self.node_ports.cidrs.iter().any(|cidr| cidr.contains(addr))
                && (localhost || !addr.is_loopback())
        });
        let mut found: Vec<_> = wanted.collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// Returns the slices that kube-proxy watches, by their Service.
fn index(slices: &[EndpointSlice]) -> ByService<'_> {
    EndpointSlice::by_service(slices.iter().filter(|slice| slice.unread_for().is_none()))
}
