//! What flows through each Service, by backend.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::view::conntrack::{Backend, BackendStatus};
use kpx_judge::meter::{Flow, Meter};
use kpx_node::backend::Mode;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, Port, PortName};

/// How the screen was left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::command) enum Left {
    /// For good.
    End,
    /// For the page before it.
    Back,
}

/// The Services of a node, for one reading after the other.
pub(crate) struct Names<'n> {
    node: &'n NodeSnapshot<'n>,
    owners: Owners,
    mode: Option<Mode>,
    /// The endpoints that share new connections equally, by service port and family.
    equal: HashMap<(String, Proto, Family), Vec<SocketAddr>>,
}

/// The sort key of rows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SortKey {
    /// New connections, most first.
    New,
    /// Open connections, most first.
    Open,
    /// Packets, most first.
    Packets,
    /// Bytes, most first.
    Bytes,
    /// Refused packets, most first.
    Refused,
    /// The name of the Service.
    Name,
}

impl SortKey {
    /// Sorts `rows`; equal ones by name.
    pub(crate) fn sort(self, rows: &mut [Row]) {
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let key = |row: &Row| match self {
            Self::New => row.rates.new_per_second,
            Self::Open => row.rates.open as f64,
            Self::Packets => row.rates.packets_per_second.unwrap_or(0.0),
            Self::Bytes => row.rates.bytes_per_second.unwrap_or(0.0),
            Self::Refused => row.refused_per_second.unwrap_or(0.0),
            Self::Name => 0.0,
        };
        rows.sort_by(|a, b| {
            let by_name = (&a.service, a.protocol).cmp(&(&b.service, b.protocol));
            key(b).total_cmp(&key(a)).then(by_name)
        });
    }
}

/// The traffic of a service port.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    #[serde(flatten)]
    pub(crate) rates: Rates,
    /// First packets per second that were rejected or dropped; `null` where nothing counts them.
    pub(crate) refused_per_second: Option<f64>,
    pub(crate) backends: Vec<BackendRow>,
}

/// The traffic to a backend.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendRow {
    pub(crate) backend: SocketAddr,
    pub(crate) pod: Option<String>,
    /// `null` if the Service's endpoints are unknown.
    pub(crate) backend_status: Option<BackendStatus>,
    #[serde(flatten)]
    pub(crate) rates: Rates,
    /// New connections since the first reading.
    pub(crate) new_connections: u64,
    /// Its part of the Service's new connections since the first reading; `null` if there was none.
    pub(crate) share: Option<f64>,
    /// The part that the mode promises it in the long run; `null` where that depends on the client or on the load.
    pub(crate) promised: Option<f64>,
}

/// Numbers of one interval.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rates {
    pub(crate) new_per_second: f64,
    pub(crate) open: u64,
    /// Connections that wait for the first answer; `null` if unknown.
    pub(crate) waiting: Option<u64>,
    /// Of both directions; `null` where the kernel does not count them.
    pub(crate) packets_per_second: Option<f64>,
    /// Of both directions; `null` where the kernel does not count them.
    pub(crate) bytes_per_second: Option<f64>,
}

impl<'n> Names<'n> {
    /// Returns the Services of `node`, whose kube-proxy runs in `mode`.
    pub(crate) fn new(node: &'n NodeSnapshot<'n>, mode: Option<Mode>) -> Self {
        let desired = mode.and_then(|mode| node.desired(mode).ok());
        let mut equal = HashMap::new();
        // Other schedulers go by load, and those with hashes by client.
        let is_equal = desired.is_some_and(|desired| {
            mode != Some(Mode::Ipvs)
                || matches!(desired.config.ipvs.scheduler.as_str(), "" | "rr" | "wrr")
        });
        let families = desired.iter().flat_map(|desired| &desired.families);
        for family in families.filter(|_| is_equal) {
            let ports = family.ports.iter();
            for port in ports.filter(|port| port.affinity.is_none() && !port.uses_local()) {
                let at = port.cluster_at().iter();
                let used = at.filter_map(|&at| port.endpoints.get(at as usize));
                let used = used.map(|endpoint| endpoint.addr).collect();
                equal.insert((port.spn.clone(), port.proto, family.family), used);
            }
        }
        Self {
            node,
            owners: Owners::new(node),
            mode,
            equal,
        }
    }

    /// Returns the numbers of service ports.
    pub(crate) fn count(&self) -> usize {
        self.owners.ports().len()
    }

    /// Returns the service ports with traffic, and the number of other open connections.
    ///
    /// `after` is the time since the reading before; `only` names a Service.
    pub(crate) fn rows(
        &self,
        meter: &Meter,
        after: Duration,
        only: Option<&str>,
    ) -> (Vec<Row>, u64) {
        let mut elsewhere = 0;
        let mut by_port: BTreeMap<(&PortName, Proto), BTreeMap<SocketAddr, Flow>> = BTreeMap::new();
        for (way, flow) in meter.flows() {
            let Some((port, _)) = self.owners.served_at(way.destination, way.proto) else {
                elsewhere += flow.open;
                continue;
            };
            if only.is_some_and(|only| !port.name.answers(only)) {
                continue;
            }
            let backends = by_port.entry((&port.name, port.proto)).or_default();
            backends.entry(way.backend).or_default().add(flow);
        }
        for (name, proto, _) in meter.refused() {
            if let Some(port) = self.owners.named(name, *proto)
                && only.is_none_or(|only| name.answers(only))
            {
                by_port.entry((&port.name, port.proto)).or_default();
            }
        }
        if let Some(only) = only {
            let named = self.owners.ports().iter();
            for port in named.filter(|port| port.name.answers(only)) {
                by_port.entry((&port.name, port.proto)).or_default();
            }
        }
        let by_port = by_port.into_iter();
        let rows = by_port.filter_map(|((name, proto), mut flows)| {
            let port = self.owners.named(name, proto)?;
            for endpoint in &port.endpoints {
                flows.entry(endpoint.addr).or_default();
            }
            Some(self.row(port, &flows, meter, after))
        });
        (rows.collect(), elsewhere)
    }

    fn row(
        &self,
        port: &Port,
        flows: &BTreeMap<SocketAddr, Flow>,
        meter: &Meter,
        after: Duration,
    ) -> Row {
        let rates = |flow: &Flow| self.rates(flow, meter, after);
        let mut whole = Flow::default();
        for flow in flows.values() {
            whole.add(flow);
        }
        let mut backends = Vec::with_capacity(flows.len());
        for family in Family::BOTH {
            let flows = flows.iter();
            let flows = flows.filter(|(at, _)| Family::of(at.ip()) == family);
            let all: u64 = flows.clone().map(|(_, flow)| flow.new_in_all).sum();
            let key = (port.name.to_string(), port.proto, family);
            let used = self.equal.get(&key);
            backends.extend(flows.map(|(&addr, flow)| {
                let Backend { pod, status } = Backend::at(addr, port, self.node);
                BackendRow {
                    backend: addr,
                    pod,
                    backend_status: status,
                    rates: rates(flow),
                    new_connections: flow.new_in_all,
                    share: (all > 0).then(|| ratio(flow.new_in_all, all)),
                    promised: used.map(|used| {
                        let is_used = used.contains(&addr);
                        if is_used {
                            ratio(1, used.len() as u64)
                        } else {
                            0.0
                        }
                    }),
                }
            }));
        }
        let refused = meter
            .refused()
            .filter(|(name, proto, _)| **name == port.name && **proto == port.proto);
        let refused = refused.map(|(_, _, count)| count).sum();
        Row {
            service: port.name.clone(),
            protocol: port.proto,
            rates: rates(&whole),
            refused_per_second: meter.refused_over().map(|over| per_second(refused, over)),
            backends,
        }
    }

    fn rates(&self, flow: &Flow, meter: &Meter, after: Duration) -> Rates {
        let counted = |count| meter.is_counted().then(|| per_second(count, after));
        Rates {
            new_per_second: per_second(flow.new, after),
            open: flow.open,
            waiting: (self.mode != Some(Mode::Ipvs)).then_some(flow.waiting),
            packets_per_second: counted(flow.packets),
            bytes_per_second: counted(flow.bytes),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}

fn per_second(count: u64, after: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let count = count as f64;
    let seconds = after.as_secs_f64();
    if seconds > 0.0 { count / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use kpx_node::evidence::ITEMS;

    /// A virtual server of a recorded Service, of whose real servers the first has taken `conns` connections.
    fn table(conns: u64) -> kpx_node::evidence::ipvs::Dump {
        let real = |address: &str, conns: u64| {
            serde_json::json!({
                "address": address, "port": 80, "weight": 1, "forwarding": "masq", "active": 3,
                "stats": {"conns": conns, "packetsIn": conns * 10, "packetsOut": conns * 9, "bytesIn": 0, "bytesOut": 0},
            })
        };
        let dump = serde_json::json!({"services": [{
            "family": "IPv4", "protocol": "tcp", "address": "10.97.54.248", "port": 80, "scheduler": "rr", "prefix": 32,
            "destinations": [real("10.244.1.14", conns), real("10.244.1.16", 7), real("10.244.1.17", 7)],
        }]});
        serde_json::from_value(dump).unwrap()
    }

    #[test]
    fn in_ipvs_mode_what_no_counter_tells_is_null() {
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes/seed-ipvs");
        let evidence = kpx_node::evidence::load(&recording, ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let names = Names::new(&node, Some(Mode::Ipvs));
        let mut meter = Meter::default();
        meter.ipvs(&table(100));
        meter.ipvs(&table(106));
        let (rows, elsewhere) = names.rows(&meter, Duration::from_secs(2), None);
        assert_eq!((rows.len(), elsewhere), (1, 0));
        let row = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(row["service"], "default/nginx-svc", "{row}");
        assert_eq!(row["newPerSecond"], 3.0, "{row}");
        assert_eq!(row["open"], 9, "{row}");
        assert_eq!(row["packetsPerSecond"], 57.0, "{row}");
        for unknown in ["waiting", "refusedPerSecond"] {
            assert_eq!(row[unknown], serde_json::Value::Null, "{row}");
        }
        let first = &row["backends"][0];
        assert_eq!(first["newConnections"], 6, "{row}");
        assert_eq!(first["share"], 1.0, "{row}");
        let promised = first["promised"].as_f64().unwrap();
        assert!((promised - 1.0 / 3.0).abs() < 1e-9, "{row}");
    }
}
