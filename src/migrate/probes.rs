//! Which Services to try, before and after: those that answer before have to answer afterwards.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::desired::{DesiredState, FamilyState, ServicePort};
use crate::net::Proto;

/// Somewhere to connect to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Target {
    /// What it is, for people.
    pub name: String,
    /// Where.
    pub at: SocketAddr,
    /// TCP or UDP.
    pub proto: Proto,
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.proto, self.at)
    }
}

/// How many Services beside the API server's and DNS are tried in each family, and how many NodePorts.
const OTHERS: usize = 3;

/// The port of DNS, which is asked a question: what else speaks UDP need not answer.
const DNS: u16 = 53;

/// What DNS is asked: the address of `kubernetes.default.svc.cluster.local`, which may well not exist; any answer will do.
const QUESTION: &[u8] = b"\x6b\x70\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";

impl Target {
    /// Returns what to send, where it is a datagram.
    pub fn question(&self) -> &'static [u8] {
        if self.proto == Proto::Udp {
            QUESTION
        } else {
            &[]
        }
    }
}

/// Returns what to try: the API server's Service, cluster DNS, and some cluster IPs and NodePorts that have endpoints.
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
