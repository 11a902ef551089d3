//! Probes: Services that answer before a migration must answer after it.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use kpx_node::desired::{DesiredState, FamilyState, ServicePort};
use kpx_node::net::Proto;

/// A Service to connect to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Target {
    /// Its name, for people.
    pub name: String,
    /// The address and port.
    pub at: SocketAddr,
    /// TCP or UDP.
    pub proto: Proto,
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.proto, self.at)
    }
}

/// The number of Services beside the API server's and DNS, in each family, and the number of NodePorts.
const OTHERS: usize = 3;

/// The port of DNS, the only UDP Service that is probed: it has to answer a question.
const DNS: u16 = 53;

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

/// Returns the probes: the API server's Service, cluster DNS, and some cluster IPs and NodePorts with endpoints.
pub fn targets(desired: &DesiredState) -> Vec<Target> {
    desired.families.iter().flat_map(of_family).collect()
}

fn of_family(state: &FamilyState) -> Vec<Target> {
    let (mut first, mut others, mut node_ports) = (Vec::new(), Vec::new(), Vec::new());
    for port in &state.ports {
        let speaks = port.proto == Proto::Tcp || is_dns(port) && port.proto == Proto::Udp;
        if !speaks || !port.has_internal() {
            continue;
        }
        let cluster = Target {
            name: port.spn.clone(),
            at: SocketAddr::new(port.cluster_ip, port.port),
            proto: port.proto,
        };
        if is_api(port) || is_dns(port) {
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
            node_ports.push(Target {
                name: format!("{} by NodePort", port.spn),
                at: SocketAddr::new(state.node_ip, number),
                proto: port.proto,
            });
        }
    }
    first.append(&mut others);
    first.append(&mut node_ports);
    first
}

fn is_api(port: &ServicePort) -> bool {
    port.namespace == "default" && port.service == "kubernetes"
}

fn is_dns(port: &ServicePort) -> bool {
    port.namespace == "kube-system" && port.port == DNS
}
