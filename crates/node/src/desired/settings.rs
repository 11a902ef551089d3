//! Node addresses and the settings derived from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::Node;
use crate::cluster::config::{self, Mode, NodePortsAt, ProxyConfig};
use crate::cluster::release::Change;
use crate::cluster::version::Version;
use crate::net::{Cidr, Family, Proto};

/// The gate for NodePorts on loopback addresses in nftables mode.
pub const LOCALHOST_GATE: &str = "KubeProxyNFTablesLocalhostNodePorts";

/// Detection of traffic from local pods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Detector {
    /// Source address in this prefix.
    Cidr(Cidr),
    /// Incoming interface with this name.
    Interface(String),
    /// Incoming interface whose name begins with this prefix.
    Prefix(String),
}

/// Addresses that accept NodePort traffic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodePorts {
    /// Whether every local address accepts it.
    pub all: bool,
    /// Prefixes of the addresses that accept it.
    pub cidrs: Vec<Cidr>,
    /// Whether loopback addresses accept it (only IPv4 in iptables mode).
    pub localhost: bool,
}

/// Addresses of the node, one per family.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeIps {
    v4: IpAddr,
    v6: IpAddr,
}

impl NodeIps {
    /// The loopback addresses, which kube-proxy falls back to.
    const UNKNOWN: Self = Self {
        v4: IpAddr::V4(Ipv4Addr::LOCALHOST),
        v6: IpAddr::V6(Ipv6Addr::LOCALHOST),
    };

    pub(super) fn of(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    fn set(&mut self, addr: IpAddr) {
        match Family::of(addr) {
            Family::V4 => self.v4 = addr,
            Family::V6 => self.v6 = addr,
        }
    }
}

/// Returns the addresses that kube-proxy uses as the node's own.
pub(super) fn node_ips(node: Option<&Node>, config: &ProxyConfig, version: Version) -> NodeIps {
    let mut ips = NodeIps::UNKNOWN;
    if version.has(Change::NodeAddresses) {
        let addresses = node.map_or(&[][..], |node| &node.status.addresses);
        let of_kind = |kind: &'static str| addresses.iter().filter(move |a| a.kind == kind);
        let mut seen = Vec::new();
        for address in of_kind("InternalIP").chain(of_kind("ExternalIP")) {
            if let Some(addr) = lenient_ip(&address.address)
                && !seen.contains(&Family::of(addr))
            {
                seen.push(Family::of(addr));
                ips.set(addr);
            }
        }
    }
    if let Some(addr) = config.bind_address() {
        ips.set(addr);
    }
    ips
}

/// Returns how kube-proxy detects traffic from local pods in `family`.
pub(super) fn detector(
    config: &ProxyConfig,
    node: Option<&Node>,
    family: Family,
) -> Option<Detector> {
    match config.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => config.cluster_cidr(family).map(Detector::Cidr),
        "NodeCIDR" => {
            let cidrs = node?.spec.pod_cidrs.iter().map(String::as_str);
            config::first_of(family, cidrs).map(Detector::Cidr)
        }
        "BridgeInterface" => {
            let name = &config.detect_local.bridge_interface;
            (!name.is_empty()).then(|| Detector::Interface(name.clone()))
        }
        "InterfaceNamePrefix" => {
            let prefix = &config.detect_local.interface_name_prefix;
            (!prefix.is_empty()).then(|| Detector::Prefix(prefix.clone()))
        }
        _ => None,
    }
}

/// Returns the addresses of `family` that accept NodePort traffic.
pub(super) fn node_ports(
    config: &ProxyConfig,
    mode: Mode,
    family: Family,
    ips: &NodeIps,
) -> NodePorts {
    let everything = Cidr {
        addr: match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        },
        prefix: 0,
    };
    let own = Some(ips.of(family)).filter(|addr| !addr.is_loopback());
    let prefix = |at: &NodePortsAt| match at {
        NodePortsAt::Primary => own.map(Cidr::host),
        NodePortsAt::Localhost => Some(NodePortsAt::loopback(family)),
        NodePortsAt::All => Some(everything),
        NodePortsAt::Prefix(cidr) => Some(*cidr).filter(|cidr| cidr.family() == family),
    };
    let words = config.node_ports_at(mode);
    let mut cidrs: Vec<_> = words.iter().filter_map(prefix).collect();
    if cidrs.is_empty() {
        cidrs.push(everything);
    }
    let all = cidrs.iter().any(|cidr| cidr.prefix == 0);
    if all {
        cidrs = vec![everything];
    }
    let loopback = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
    let on_loopback = cidrs
        .iter()
        .any(|cidr| cidr.normal().addr.is_loopback() || cidr.contains(loopback));
    NodePorts {
        all,
        cidrs,
        localhost: mode == Mode::Iptables
            && family == Family::V4
            && on_loopback
            && config.iptables.localhost_node_ports.unwrap_or(true),
    }
}

/// Returns the protocols whose packets to NodePorts on loopback addresses of `family` kube-proxy rejects: those for which it does
/// not listen there itself.
pub(super) fn rejected_on_loopback(
    config: &ProxyConfig,
    mode: Mode,
    family: Family,
    version: Version,
) -> &'static [Proto] {
    if mode != Mode::Nftables || !serves_localhost(config, version) {
        &[]
    } else if config.names_loopback(mode, family) {
        &[Proto::Udp, Proto::Sctp]
    } else {
        &[Proto::Tcp, Proto::Udp, Proto::Sctp]
    }
}

/// Returns whether NodePorts of IPv4 answer on 127.0.0.1 in iptables mode.
pub fn localhost_node_ports(config: &ProxyConfig) -> bool {
    let ips = NodeIps::UNKNOWN;
    config.node_ports_at(Mode::Iptables) != [NodePortsAt::Primary]
        && node_ports(config, Mode::Iptables, Family::V4, &ips).localhost
}

/// Parses an address as Go's `ParseIPSloppy` does: leading zeros are decimal, IPv4-mapped addresses are IPv4.
pub(super) fn lenient_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        let addr: Ipv6Addr = text.parse().ok()?;
        return Some(match addr.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(addr),
        });
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts
        .next()
        .is_none()
        .then(|| IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Returns whether kube-proxy `version` with `config` can serve NodePorts on loopback addresses in nftables mode: it does so in
/// the families of which [`ProxyConfig::names_loopback`].
pub fn serves_localhost(config: &ProxyConfig, version: Version) -> bool {
    version.has(Change::LocalhostNodePorts)
        && config.gate(
            LOCALHOST_GATE,
            version.has(Change::LocalhostNodePortsDefault),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(words: &str, family: Family) -> NodePorts {
        let config = ProxyConfig::parse(&format!("nodePortAddresses: {words}")).unwrap();
        let ips = NodeIps {
            v4: "10.0.2.15".parse().unwrap(),
            v6: IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        node_ports(&config, Mode::Iptables, family, &ips)
    }

    #[test]
    fn node_port_addresses_decide_on_loopback_too() {
        let unset = ports("[]", Family::V4);
        assert!(unset.all && unset.localhost);
        let some = ports("[10.0.2.0/24]", Family::V4);
        assert!(!some.all && !some.localhost);
        assert!(ports("[10.0.2.0/24, 127.0.0.1/32]", Family::V4).localhost);
        // A family without its own prefix uses all its addresses.
        let other = ports("[10.0.2.0/24]", Family::V6);
        assert!(other.all && !other.localhost);
        let primary = ports("[primary]", Family::V4);
        assert_eq!(primary.cidrs, ["10.0.2.15/32".parse().unwrap()]);
        assert!(ports("[primary]", Family::V6).all);
        let both = ports("[primary, localhost]", Family::V4);
        assert!(both.localhost && !both.all, "{both:?}");
        assert_eq!(both.cidrs.len(), 2);
        let loopback = ports("[localhost]", Family::V6);
        assert_eq!(loopback.cidrs, ["::1/128".parse().unwrap()]);
        assert!(ports("[primary, all]", Family::V4).all);
    }

    #[test]
    fn loopback_addresses_reject_what_kube_proxy_does_not_listen_for() {
        let gate = "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}";
        let rejected = |words: &str, more: &str, minor, family| {
            let text = format!("nodePortAddresses: {words}\n{more}");
            let config = ProxyConfig::parse(&text).unwrap();
            let version = Version::new(1, minor, 0);
            rejected_on_loopback(&config, Mode::Nftables, family, version).len()
        };
        let (v4, v6) = (Family::V4, Family::V6);
        // Before 1.37 there is no such gate; in 1.37 it is off by default, in 1.38 on.
        assert_eq!(rejected("[primary, localhost]", gate, 36, v4), 0);
        assert_eq!(rejected("[primary, localhost]", "", 37, v4), 0);
        assert_eq!(rejected("[primary, localhost]", gate, 37, v4), 2);
        assert_eq!(rejected("[primary, localhost]", "", 38, v6), 2);
        // Without loopback addresses by name, TCP is rejected as well.
        for words in ["[]", "[primary]", "[all]", "['0.0.0.0/0']", "[10.0.0.0/8]"] {
            assert_eq!(rejected(words, "", 38, v4), 3, "{words}");
        }
        let one = "['0.0.0.0/0', 127.0.0.1/32]";
        assert_eq!([v4, v6].map(|family| rejected(one, "", 38, family)), [2, 3]);
        let six = "['::1/128']";
        assert_eq!([v4, v6].map(|family| rejected(six, "", 38, family)), [3, 2]);
    }

    #[test]
    fn addresses_are_parsed_leniently() {
        let ip = |text: &str| lenient_ip(text).map(|ip| ip.to_string());
        assert_eq!(ip("010.0.02.1").as_deref(), Some("10.0.2.1"));
        assert_eq!(ip("::ffff:1.2.3.4").as_deref(), Some("1.2.3.4"));
        assert_eq!(ip("FD00::1").as_deref(), Some("fd00::1"));
        assert_eq!(ip("1.2.3"), None);
        assert_eq!(ip("1.2.3.4.5"), None);
        assert_eq!(ip("1.2.3.256"), None);
    }
}
