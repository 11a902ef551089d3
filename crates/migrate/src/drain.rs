//! Connections that IPVS forwards, and sockets with addresses of kube-ipvs0: they break when mode ipvs is removed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::migration::Strategy;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::ipvs_connections::IpvsConnection;
use kpx_node::words::number_of;

/// The items of [`Gauge::read`], in addition to those of the Services.
pub const NEEDS: &[Item] = &[Item::IpvsConnections, Item::HeldSockets];

/// Returns the items that a drain waits for. Without the bridge's routes, every connection of a host process to a Service
/// has an address of kube-ipvs0 as its source, so their number may never fall: the plan reports them, and the drain does
/// not wait.
pub const fn awaited(strategy: Strategy) -> &'static [Item] {
    match strategy {
        Strategy::Bridge => NEEDS,
        Strategy::InPlace | Strategy::DrainNode => &[Item::IpvsConnections],
    }
}

/// Open connections by Service.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Gauge {
    /// Their number.
    pub count: usize,
    /// The Services and host processes with the most connections, in falling order.
    pub top: Vec<Holder>,
}

/// A Service with open connections, or a host process with sockets.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Holder {
    /// `NAMESPACE/NAME:PORT`, the address of an unknown Service, or `process NAME, pid PID`.
    pub service: String,
    /// The number of connections.
    pub count: usize,
}

/// The number of Services that are named.
const NAMED: usize = 5;

impl Gauge {
    /// Counts open TCP and SCTP connections through virtual servers, and connected TCP and UDP sockets of host processes
    /// whose source is an address of kube-ipvs0: nothing can send from such an address after it is removed. UDP from other
    /// addresses takes the new rules with its next datagram.
    ///
    /// In a bundle without sockets, none are counted.
    pub fn read(node: &NodeSnapshot<'_>, desired: Option<&DesiredState>) -> Result<Self, Gap> {
        Self::read_without(node, desired, &[])
    }

    /// Counts like [`Gauge::read`], without the connections of these clients.
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
        let sockets = match node.held_sockets() {
            Ok(sockets) => &sockets[..],
            Err(Gap::NotCollected(_)) => &[],
            Err(gap) => return Err(gap),
        };
        let names = names(desired);
        let mut forwarded = HashSet::new();
        let mut by: BTreeMap<String, usize> = BTreeMap::new();
        for connection in connections.iter().filter(|connection| is_open(connection)) {
            forwarded.insert((connection.client, connection.proto));
            if clients.contains(&connection.client.ip()) {
                continue;
            }
            let key = (connection.server, connection.proto);
            let name = names
                .get(&key)
                .copied()
                .map_or_else(|| connection.server.to_string(), str::to_owned);
            *by.entry(name).or_default() += 1;
        }
        let others = sockets.iter();
        for socket in others.filter(|socket| !forwarded.contains(&(socket.local, socket.proto))) {
            let name = socket.processes.first().map_or_else(
                || format!("a process with a socket at {}", socket.local),
                |holder| format!("process {}, pid {}", holder.name, holder.pid),
            );
            *by.entry(name).or_default() += 1;
        }
        Ok(Self::of(by))
    }

    /// Returns the gauge of these holders.
    fn of(by: BTreeMap<String, usize>) -> Self {
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
        Self { count, top }
    }

    /// Counts the tracked TCP and SCTP connections to Services that are open: in mode userspace, kube-proxy's process carries
    /// all of them.
    pub fn carried(
        node: &NodeSnapshot<'_>,
        desired: &DesiredState,
        clients: &[IpAddr],
    ) -> Result<Self, Gap> {
        let names = names(Some(desired));
        let mut by: BTreeMap<String, usize> = BTreeMap::new();
        for entry in &node.conntrack()?.entries {
            let open = entry.state.as_deref() == Some("ESTABLISHED");
            let key = (entry.original.destination, entry.proto);
            if let Some(name) = names.get(&key).filter(|_| open)
                && !clients.contains(&entry.original.source.ip())
            {
                *by.entry((*name).to_owned()).or_default() += 1;
            }
        }
        Ok(Self::of(by))
    }

    /// Returns their number in words.
    pub fn connections(&self) -> String {
        number_of(self.count, "connection")
    }

    /// Returns the Services with the most connections, in words.
    pub fn holders(&self) -> String {
        let words = self
            .top
            .iter()
            .map(|top| format!("{} ({})", top.service, top.count));
        let mut words: Vec<_> = words.collect();
        let named: usize = self.top.iter().map(|top| top.count).sum();
        if named < self.count {
            words.push(format!("others ({})", self.count - named));
        }
        words.join(", ")
    }
}

/// Returns whether both sides may still send; `ip_vs_proto_tcp.c` and `ip_vs_proto_sctp.c` name the states.
///
/// `SYN_SENT` is no state of an open connection: the answer of an endpoint to a connection that does not go through IPVS puts
/// an ended one into it if the client used the same port for both.
fn is_open(connection: &IpvsConnection) -> bool {
    let template = connection.client.port() == 0;
    let closing = [
        "SYN_SENT",
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
    use kpx_node::evidence::Evidence;

    #[test]
    fn closing_connections_and_templates_do_not_count() {
        let text = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0A600001 1000 0A600001 0050 0AF40101 1F90 ESTABLISHED     900
TCP 0A600001 1001 0A600001 0050 0AF40101 1F90 FIN_WAIT         60
TCP 0A600001 1005 0A600001 0050 0AF40101 1F90 SYN_SENT        120
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
        // Of the sockets of host processes, one belongs to a connection that is counted already.
        let sockets = "\
tcp ESTAB 0 0 10.96.0.1:4096 10.96.0.1:80 users:((\"curl\",pid=7,fd=3))
udp ESTAB 0 0 10.96.0.10:4242 10.96.0.10:53 users:((\"agent\",pid=12,fd=5))
tcp ESTAB 0 0 [::ffff:10.96.0.1]:4999 [::ffff:10.96.0.1]:80 users:((\"agent\",pid=12,fd=9))
udp ESTAB 0 0 [fd00::a]:4242 [fd00::a]:53
";
        evidence.insert(Item::HeldSockets, Ok(sockets.to_owned()));
        let gauge = Gauge::read(&NodeSnapshot::new(&evidence), None).unwrap();
        assert_eq!(gauge.count, 6);
        let expected = "10.96.0.1:80 (2), process agent, pid 12 (2), 10.96.0.2:80 (1), a process with a socket at \
                        [fd00::a]:4242 (1)";
        assert_eq!(gauge.holders(), expected);
    }
}
