//! The userspace mode of kube-proxy up to 1.25: portals, rules that lead to ports on which the process itself listens.
//!
//! Source: `pkg/proxy/userspace/proxier.go` of Kubernetes 1.25. The process listens on one port for each port of a Service,
//! takes each connection there, and opens another one to an endpoint. It runs for one family only.

use std::net::IpAddr;

use super::model::{Rule, Ruleset, Target};
use crate::evidence::Gap;
use crate::net::Proto;

/// Portals of Service addresses, for packets that come in by a link.
const CONTAINER: &str = "KUBE-PORTALS-CONTAINER";
/// Portals of Service addresses, for packets of the node itself.
const HOST: &str = "KUBE-PORTALS-HOST";
/// Portals of NodePorts, for packets that come in by a link.
const NODE_PORT_CONTAINER: &str = "KUBE-NODEPORT-CONTAINER";
/// Portals of NodePorts, for packets of the node itself.
const NODE_PORT_HOST: &str = "KUBE-NODEPORT-HOST";
/// Accepts packets to the ports of the process behind NodePorts.
const NON_LOCAL: &str = "KUBE-NODEPORT-NON-LOCAL";

/// The chains of table nat with portals.
pub const PORTALS: [&str; 4] = [CONTAINER, HOST, NODE_PORT_CONTAINER, NODE_PORT_HOST];

/// The chains: table, name.
pub const CHAINS: [(&str, &str); 5] = [
    ("filter", NON_LOCAL),
    ("nat", CONTAINER),
    ("nat", HOST),
    ("nat", NODE_PORT_CONTAINER),
    ("nat", NODE_PORT_HOST),
];

const CLUSTER_IPS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";

/// The jumps from built-in chains: table, from, to, comment. Those to NodePorts match destinations of type LOCAL only.
pub const JUMPS: &[(&str, &str, &str, &str)] = &[
    ("nat", "PREROUTING", CONTAINER, CLUSTER_IPS),
    ("nat", "OUTPUT", HOST, CLUSTER_IPS),
    ("nat", "PREROUTING", NODE_PORT_CONTAINER, NODE_PORTS),
    ("nat", "OUTPUT", NODE_PORT_HOST, NODE_PORTS),
    (
        "filter",
        "INPUT",
        NON_LOCAL,
        "Ensure that non-local NodePort traffic can flow",
    ),
];

/// Returns why the rules of mode userspace cannot be computed.
pub fn unknown_ports() -> Gap {
    let why = "kube-proxy in mode userspace chooses the ports of its portals at random: kpx cannot compute its rules; \
               kube-proxy writes them again when it restarts";
    Gap::NotApplicable(why.to_owned())
}

/// A portal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Portal<'r> {
    /// Chain of table nat.
    pub chain: &'r str,
    /// Service port as `NS/NAME` or `NS/NAME:PORT`; empty if the rule does not name it.
    pub service: &'r str,
    /// Transport protocol.
    pub proto: Proto,
    /// Address of the Service; `None` for a NodePort.
    pub addr: Option<IpAddr>,
    /// Port of the Service, or NodePort.
    pub port: u16,
    /// Port of the process.
    pub proxy_port: u16,
}

impl<'r> Portal<'r> {
    /// Reads `rule` of `chain`; `None` if it is no portal.
    pub fn read(chain: &'r str, rule: &'r Rule<'_>) -> Option<Self> {
        let ports = match rule.target.as_ref()? {
            Target::Dnat(nat) => nat.ports,
            Target::Redirect { ports, .. } => *ports,
            _ => None,
        };
        let to = rule.destination();
        Some(Self {
            chain,
            service: rule.comment().unwrap_or_default(),
            proto: to.proto?,
            addr: to.addr,
            port: to.port?,
            proxy_port: ports?.first,
        })
    }
}

/// Returns the portals in `rules`, by chain.
pub fn portals<'r>(rules: &'r Ruleset<'_>) -> impl Iterator<Item = Portal<'r>> {
    let chains = PORTALS
        .into_iter()
        .filter_map(|name| rules.chain("nat", name));
    chains.flat_map(|chain| {
        let rules = chain.rules.iter();
        rules.filter_map(|rule| Portal::read(&chain.name, rule))
    })
}
