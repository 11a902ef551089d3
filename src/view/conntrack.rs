//! Tracked connections of Services, with the state of their backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::Route;
use kpx_node::owner::{EndpointState, Port, PortName};

/// A tracked connection.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    pub(crate) node_port: bool,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// `null` if the destination was not translated.
    pub(crate) backend: Option<SocketAddr>,
    pub(crate) pod: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) timeout: Option<u32>,
    /// `null` if the Service's endpoints are unknown.
    pub(crate) backend_status: Option<BackendStatus>,
    /// Whether it only passes through this node: its client is no pod of the node and not the node itself. `null` if its
    /// addresses or routes are unknown.
    pub(crate) transit: Option<bool>,
    /// Whether it waits for the first answer.
    pub(crate) waits: bool,
}

/// The tracked connections of a Service to one backend.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Count {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    /// `null` for those whose destination was not translated.
    pub(crate) backend: Option<SocketAddr>,
    pub(crate) pod: Option<String>,
    /// `null` if the Service's endpoints are unknown.
    pub(crate) backend_status: Option<BackendStatus>,
    pub(crate) connections: usize,
    /// The connections that wait for the first answer.
    pub(crate) waiting: usize,
    /// The connections that only pass through this node; `null` if unknown of any.
    pub(crate) transit: Option<usize>,
}

/// The status of a connection's backend in the Service.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BackendStatus {
    /// A ready endpoint.
    Endpoint,
    /// A terminating endpoint.
    Terminating,
    /// An endpoint that is not ready.
    NotReady,
    /// A port of kube-proxy's process, which has a connection of its own to an endpoint.
    Process,
    /// No longer an endpoint: packets are lost until the entry ends.
    Stale,
    /// No rule translated the first packet, so the whole connection bypasses the Service.
    NotTranslated,
}

/// A backend of a connection: its pod, and its state in the Service; `None` where unknown.
pub(crate) struct Backend {
    pub(crate) pod: Option<String>,
    pub(crate) status: Option<BackendStatus>,
}

impl Backend {
    /// Returns the backend of `port` at `addr`.
    pub(crate) fn at(addr: SocketAddr, port: &Port, node: &NodeSnapshot<'_>) -> Self {
        let endpoint = port.endpoints.iter().find(|endpoint| endpoint.addr == addr);
        let status = match endpoint.map(|endpoint| endpoint.state) {
            Some(None | Some(EndpointState::Ready)) => Some(BackendStatus::Endpoint),
            Some(Some(EndpointState::NotReady)) => Some(BackendStatus::NotReady),
            Some(Some(EndpointState::ServingTerminating | EndpointState::Terminating)) => {
                Some(BackendStatus::Terminating)
            }
            None if node.is_proxy_port(addr, port.proto) => Some(BackendStatus::Process),
            // Without EndpointSlices no backend is known to be gone.
            None => {
                (node.services().is_err() || node.has_all_slices()).then_some(BackendStatus::Stale)
            }
        };
        Self {
            pod: endpoint.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
            status,
        }
    }
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let Some(tracked) = gaps.take(joined.node.conntrack()) else {
        return Vec::new();
    };
    let clients = Clients::of(joined.node);
    let mut others = 0;
    let mut rows = Vec::new();
    for entry in &tracked.entries {
        let to = entry.original.destination;
        let answers = entry.reply.source;
        // A NodePort's connection goes to an address of the node and was translated.
        let served = joined.owners.served_at(to, entry.proto);
        let served = served.filter(|&(_, node_port)| !node_port || answers != to);
        let Some((port, node_port)) = served else {
            others += 1;
            continue;
        };
        let text = to.ip().to_string();
        if !joined.query.takes(Family::of(to.ip())) || !joined.query.wants(Some(port), &[&text]) {
            continue;
        }
        let backend = Backend::at(answers, port, joined.node);
        let status = if answers == to {
            Some(BackendStatus::NotTranslated)
        } else {
            backend.status
        };
        rows.push(Row {
            service: port.name.clone(),
            protocol: entry.proto,
            node_port,
            source: entry.original.source,
            destination: to,
            backend: (answers != to).then_some(answers),
            pod: backend.pod,
            state: entry.state.clone(),
            timeout: entry.timeout,
            backend_status: status,
            transit: clients.transit(entry.original.source.ip()),
            waits: entry.unreplied || entry.state.as_deref() == Some("SYN_SENT"),
        });
    }
    if rows.is_empty() && joined.query.name.is_none() {
        gaps.note(format!(
            "no tracked connection goes to a Service; {others} go elsewhere"
        ));
    }
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.protocol, row.source, row.destination, row.backend);
        (&a.service, key(a)).cmp(&(&b.service, key(b)))
    });
    rows
}

/// The facts that show which clients are on this node.
struct Clients<'n> {
    own: Option<BTreeSet<IpAddr>>,
    /// Routes to other addresses than its own; `None` if unknown.
    routes: Option<Vec<&'n Route>>,
    /// The links of default routes.
    uplinks: BTreeSet<&'n str>,
}

impl<'n> Clients<'n> {
    fn of(node: &'n NodeSnapshot<'_>) -> Self {
        let own = node.addresses().ok();
        let routes = node.routes().ok().map(|routes| {
            let unicast = routes.all.iter().filter(|route| route.kind == "unicast");
            unicast.collect::<Vec<_>>()
        });
        let all = routes.iter().flatten();
        let uplinks = all.filter(|route| route.destination.prefix == 0);
        Self {
            own: own.map(|addresses| addresses.all.iter().map(|at| at.addr.addr).collect()),
            uplinks: uplinks
                .filter_map(|route| route.device.as_deref())
                .collect(),
            routes,
        }
    }

    /// Returns whether the client is neither this node nor one of its pods, which are directly behind a link of their own.
    fn transit(&self, client: IpAddr) -> Option<bool> {
        let own = self.own.as_ref()?;
        if client.is_loopback() || own.contains(&client) {
            return Some(false);
        }
        let routes = self.routes.as_ref()?.iter();
        let route = routes
            .filter(|route| route.destination.contains(client))
            .max_by_key(|route| route.destination.prefix);
        let is_pod = route.is_some_and(|route| {
            let is_uplink = |device: &str| self.uplinks.contains(device);
            route.gateway.is_none_or(|gateway| own.contains(&gateway))
                && route
                    .device
                    .as_deref()
                    .is_some_and(|device| !is_uplink(device))
        });
        Some(!is_pod)
    }
}

/// Counts the connections `rows` of the Service in the query by backend, of which each endpoint is one.
pub(crate) fn counts(joined: Joined<'_, '_>, rows: &[Row]) -> Vec<Count> {
    let mut counts = BTreeMap::new();
    let ports = joined.owners.ports().iter();
    for port in ports.filter(|port| joined.query.wants(Some(port), &[])) {
        let endpoints = port.endpoints.iter().map(|endpoint| endpoint.addr);
        for addr in endpoints.filter(|addr| joined.query.takes(Family::of(addr.ip()))) {
            let Backend { pod, status } = Backend::at(addr, port, joined.node);
            let key = (port.name.clone(), port.proto, Some(addr));
            counts.insert(key, (pod, status, Vec::new()));
        }
    }
    for row in rows {
        let key = (row.service.clone(), row.protocol, row.backend);
        let new = || (row.pod.clone(), row.backend_status, Vec::new());
        counts.entry(key).or_insert_with(new).2.push(row);
    }
    let count = |((service, protocol, backend), (pod, backend_status, rows))| {
        let rows: Vec<&Row> = rows;
        let transit: Option<Vec<bool>> = rows.iter().map(|row| row.transit).collect();
        Count {
            service,
            protocol,
            backend,
            pod,
            backend_status,
            connections: rows.len(),
            waiting: rows.iter().filter(|row| row.waits).count(),
            transit: transit.map(|all| all.into_iter().filter(|holds| *holds).count()),
        }
    };
    counts.into_iter().map(count).collect()
}
