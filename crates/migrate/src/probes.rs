//! Probes: Services that answer before a migration must answer after it.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use kpx_node::desired::{DesiredState, FamilyState, ServicePort};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto, Vantage};
use kpx_node::node::NodeSnapshot;

/// The items that show who answered.
pub const NEEDS: &[Item] = &[Item::Conntrack, Item::IpvsConnections];

/// A Service to connect to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Target {
    /// Its name, as text.
    pub name: String,
    /// The address and port.
    pub at: SocketAddr,
    /// TCP or UDP.
    pub proto: Proto,
    /// The network to connect from.
    #[serde(default, skip_serializing_if = "is_node")]
    pub from: Vantage,
    /// Whether an endpoint of the Service answered before the migration: only an endpoint may answer after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_endpoint: bool,
}

fn is_node(from: &Vantage) -> bool {
    *from == Vantage::Node
}

/// Why there is no answer to a probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unanswered {
    /// The probe was sent, or should have been; the text is the reason.
    Silent(String),
    /// The pod to connect from has ended.
    NoPod,
}

/// The program or machine that answered a probe.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answerer {
    /// An endpoint of the Service.
    Endpoint,
    /// Something else.
    Other(SocketAddr),
    /// Unknown; the text is the reason.
    Unknown(String),
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.proto, self.at)?;
        match self.from {
            Vantage::Node => Ok(()),
            Vantage::Pod(addr) => write!(f, " from pod {addr}"),
            Vantage::Outside => f.write_str(" from outside the cluster"),
        }
    }
}

/// The number of Services without the API server's and DNS, in each family, and the number of NodePorts.
const OTHERS: usize = 3;

/// A DNS query for the address of `kubernetes.default.svc.cluster.local`; any answer is enough.
const QUESTION: &[u8] = b"\x6b\x70\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";

impl Target {
    /// Returns the datagram to send; empty for TCP.
    pub fn question(&self) -> &'static [u8] {
        if self.proto == Proto::Udp {
            QUESTION
        } else {
            &[]
        }
    }
}

/// Returns who answered the probe of `target` that came from `client`, by the tables of `node`.
pub fn answerer(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    target: &Target,
    client: SocketAddr,
) -> Answerer {
    let Some((by, _)) = node.answerer(client, target.at, target.proto) else {
        return Answerer::Unknown(match node.conntrack() {
            Ok(_) => "conntrack has no entry of the connection".to_owned(),
            Err(gap) => gap.to_string(),
        });
    };
    let family = Family::of(target.at.ip());
    let states = desired
        .families
        .iter()
        .filter(|state| state.family == family);
    let mut endpoints = states.flat_map(|state| {
        let ports = state.ports.iter();
        let ports = ports.filter(|port| is_at(state, port, target));
        ports.flat_map(|port| &port.endpoints)
    });
    if endpoints.any(|endpoint| endpoint.addr == by) {
        Answerer::Endpoint
    } else {
        Answerer::Other(by)
    }
}

/// Returns whether `target` is the cluster IP or a NodePort of `port`.
fn is_at(state: &FamilyState, port: &ServicePort, target: &Target) -> bool {
    let (ip, number) = (target.at.ip(), target.at.port());
    let is_cluster_ip = (port.cluster_ip, port.port) == (ip, number);
    let is_node_port = state.node_ip == ip && port.node_port == Some(number);
    port.proto == target.proto && (is_cluster_ip || is_node_port)
}

/// Returns the addresses of the pods to connect from: of each family, one of the first pod of Node `name` that has a network of its
/// own.
pub fn clients(node: &NodeSnapshot<'_>, name: &str) -> Result<Vec<IpAddr>, Gap> {
    let pods = node.pods()?.iter().filter(|pod| {
        pod.spec.node_name.as_deref() == Some(name)
            && !pod.spec.host_network
            && pod.status.phase == "Running"
            && pod.metadata.deletion_timestamp.is_none()
    });
    let all = pods.flat_map(|pod| {
        let first = pod.status.pod_ip.iter();
        first.chain(pod.status.pod_ips.iter().map(|pod_ip| &pod_ip.ip))
    });
    let all: Vec<IpAddr> = all.filter_map(|ip| ip.parse().ok()).collect();
    let first = |family| all.iter().copied().find(|ip| Family::of(*ip) == family);
    Ok(Family::BOTH.into_iter().filter_map(first).collect())
}

/// Returns the probes: the API server's Service, cluster DNS, and some cluster IPs with endpoints, from the node and from `pods`
/// that are no endpoints of them; and some NodePorts with endpoints, from the node and from outside the cluster.
pub fn targets(desired: &DesiredState, pods: &[IpAddr]) -> Vec<Target> {
    let of_family = |state| of_family(state, pods);
    desired.families.iter().flat_map(of_family).collect()
}

fn of_family(state: &FamilyState, pods: &[IpAddr]) -> Vec<Target> {
    let (mut first, mut others, mut node_ports) = (Vec::new(), Vec::new(), Vec::new());
    for port in &state.ports {
        // DNS is the only UDP Service that is probed: it has to answer a question.
        let speaks = port.proto == Proto::Tcp || port.is_cluster_dns() && port.proto == Proto::Udp;
        if !speaks || !port.has_internal() {
            continue;
        }
        let target = |name, at| Target {
            name,
            at,
            proto: port.proto,
            from: Vantage::Node,
            by_endpoint: false,
        };
        let at = SocketAddr::new(port.cluster_ip, port.port);
        let cluster = target(port.spn.clone(), at);
        if is_api(port) || port.is_cluster_dns() {
            first.push(cluster);
        } else if others.len() < OTHERS {
            others.push(cluster);
        }
        if let Some(number) = port.node_port
            && port.proto == Proto::Tcp
            && port.has_external()
            && node_ports.len() < OTHERS
            && !state.node_ip.is_loopback()
        {
            let name = format!("{} by NodePort", port.spn);
            node_ports.push(target(name, SocketAddr::new(state.node_ip, number)));
        }
    }
    first.append(&mut others);
    let from = |targets: &[Target], from| {
        let targets = targets.iter().cloned();
        targets
            .map(|target| Target { from, ..target })
            .collect::<Vec<_>>()
    };
    let outside = from(&node_ports, Vantage::Outside);
    let pod = pods.iter().find(|pod| Family::of(**pod) == state.family);
    let pod = pod.map(|pod| {
        // A pod reaches itself only where its port of the bridge sends packets back.
        let is_own = |target: &&Target| {
            let mut ports = state.ports.iter().filter(|port| is_at(state, port, target));
            ports.any(|port| {
                port.endpoints
                    .iter()
                    .any(|endpoint| endpoint.addr.ip() == *pod)
            })
        };
        let others = first.iter().filter(|target| !is_own(target)).cloned();
        from(&others.collect::<Vec<_>>(), Vantage::Pod(*pod))
    });
    [first, node_ports, pod.unwrap_or_default(), outside].concat()
}

fn is_api(port: &ServicePort) -> bool {
    port.namespace == "default" && port.service == "kubernetes"
}
