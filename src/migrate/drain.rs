//! Connections that IPVS forwards: what is lost when its virtual servers go.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::desired::DesiredState;
use crate::evidence::{Gap, Item};
use crate::net::Proto;
use crate::node::NodeSnapshot;
use crate::node::ipvs_connections::IpvsConnection;

/// What [`Gauge::read`] looks at, beside what tells the Services.
pub const NEEDS: &[Item] = &[Item::IpvsConnections];

/// Connections that are open, by Service.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Gauge {
    /// How many there are.
    pub count: usize,
    /// How many each Service has, the most first; an address stands for a Service that is not known.
    pub top: Vec<Holder>,
}

/// A Service with open connections.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Holder {
    /// `NAMESPACE/NAME:PORT`, or the address.
    pub service: String,
    /// How many.
    pub count: usize,
}

/// How many Services are named.
const NAMED: usize = 5;

impl Gauge {
    /// Counts the connections of `node` that TCP and SCTP have open. The next datagram of UDP takes the new way, but for
    /// sockets of the host that are bound to an address of kube-ipvs0.
    pub fn read(node: &NodeSnapshot<'_>, desired: Option<&DesiredState>) -> Result<Self, Gap> {
        Self::read_without(node, desired, &[])
    }

    /// Counts like [`Gauge::read`], without what these clients opened.
    pub fn read_without(
        node: &NodeSnapshot<'_>,
        desired: Option<&DesiredState>,
        clients: &[IpAddr],
    ) -> Result<Self, Gap> {
        let connections = match node.ipvs_connections() {
            Ok(connections) => &connections.all[..],
            Err(Gap::NotApplicable(_)) => &[],
            Err(gap) => return Err(gap),
        };
        let names = names(desired);
        let mut by: BTreeMap<String, usize> = BTreeMap::new();
        let counts = |of: &&IpvsConnection| is_open(of) && !clients.contains(&of.client.ip());
        for connection in connections.iter().filter(counts) {
            let key = (connection.server, connection.proto);
            let name = names
                .get(&key)
                .copied()
                .map_or_else(|| connection.server.to_string(), str::to_owned);
            *by.entry(name).or_default() += 1;
        }
        let count = by.values().sum();
        let holders = by
            .into_iter()
            .map(|(service, count)| Holder { service, count });
        let mut top: Vec<_> = holders.collect();
        top.sort_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then_with(|| a.service.cmp(&b.service))
        });
        top.truncate(NAMED);
        Ok(Self { count, top })
    }

    /// Returns the Services that have most, in words.
    pub fn holders(&self) -> String {
        let words = self
            .top
            .iter()
            .map(|of| format!("{} ({})", of.service, of.count));
        let mut words: Vec<_> = words.collect();
        let named: usize = self.top.iter().map(|of| of.count).sum();
        if named < self.count {
            words.push(format!("others ({})", self.count - named));
        }
        words.join(", ")
    }
}

/// Whether both sides may still send: `ip_vs_proto_tcp.c` and `ip_vs_proto_sctp.c` name the states.
fn is_open(connection: &IpvsConnection) -> bool {
    let template = connection.client.port() == 0;
    let closing = [
        "FIN_WAIT",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "CLOSED",
        "SHUTDOWN_ACK_SENT",
    ];
    matches!(connection.proto, Proto::Tcp | Proto::Sctp)
        && !template
        && !closing.contains(&connection.state.as_str())
}

fn names(desired: Option<&DesiredState>) -> HashMap<(SocketAddr, Proto), &str> {
    let mut names = HashMap::new();
    let families = desired.into_iter().flat_map(|desired| &desired.families);
    for state in families {
        for port in &state.ports {
            let addresses = [port.cluster_ip].into_iter();
            let addresses = addresses.chain(port.external_ips.iter().copied());
            for addr in addresses.chain(port.lb_ips.iter().copied()) {
                names.insert(
                    (SocketAddr::new(addr, port.port), port.proto),
                    port.spn.as_str(),
                );
            }
            if let Some(number) = port.node_port {
                names.insert(
                    (SocketAddr::new(state.node_ip, number), port.proto),
                    port.spn.as_str(),
                );
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;

    #[test]
    fn what_closes_and_what_only_remembers_does_not_count() {
        let text = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0A600001 1000 0A600001 0050 0AF40101 1F90 ESTABLISHED     900
TCP 0A600001 1001 0A600001 0050 0AF40101 1F90 FIN_WAIT         60
TCP 0A600001 0000 0A600001 0050 0AF40101 1F90 NONE             60
UDP 0A600001 1002 0A60000A 0035 0AF40101 0035 UDP             300
TCP 0A600001 1003 0A600002 0050 0AF40101 1F90 SYN_RECV        900
TCP 0A600001 1004 0A600001 0050 0AF40101 1F90 ESTABLISHED     900
";
        let mut evidence = Evidence::default();
        evidence.insert(Item::IpvsConnections, Ok(text.to_owned()));
        let gauge = Gauge::read(&NodeSnapshot::new(&evidence), None).unwrap();
        assert_eq!(gauge.count, 3);
        assert_eq!(gauge.holders(), "10.96.0.1:80 (2), 10.96.0.2:80 (1)");
        let client = "10.96.0.1".parse().unwrap();
        let rest = Gauge::read_without(&NodeSnapshot::new(&evidence), None, &[client]).unwrap();
        assert_eq!(rest.count, 0);
    }
}
