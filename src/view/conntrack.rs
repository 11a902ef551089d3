//! Tracked connections of Services, with the state of their backends.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Gaps, Query};
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::{Endpoint, EndpointState, Owners, PortName};

/// A tracked connection.
#[derive(Debug, Serialize)]
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
}

/// What a connection's backend is to the Service.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BackendStatus {
    /// A ready endpoint.
    Endpoint,
    /// A terminating endpoint.
    Terminating,
    /// An endpoint that is not ready.
    NotReady,
    /// No longer an endpoint: packets are lost until the entry ends.
    Stale,
    /// No rule translated the first packet, so the whole connection bypasses the Service.
    NotTranslated,
}

impl BackendStatus {
    /// Returns what a backend is that is `endpoint` of its Service; `None` if the endpoints are not known.
    pub(super) fn of(endpoint: Option<&Endpoint>, known: bool) -> Option<Self> {
        match endpoint.map(|of| of.state) {
            Some(None | Some(EndpointState::Ready)) => Some(Self::Endpoint),
            Some(Some(EndpointState::NotReady)) => Some(Self::NotReady),
            Some(Some(EndpointState::ServingTerminating | EndpointState::Terminating)) => {
                Some(Self::Terminating)
            }
            None => known.then_some(Self::Stale),
        }
    }
}

pub(crate) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    query: Query<'_>,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(tracked) = gaps.take(node.conntrack()) else {
        return Vec::new();
    };
    // Without EndpointSlices no backend is known to be gone.
    let endpoints_known = node.services().is_err() || node.slices().is_ok();
    let mut others = 0;
    let mut rows = Vec::new();
    for entry in &tracked.entries {
        let to = entry.original.destination;
        let answers = entry.reply.source;
        let by_address = owners.at(to.ip(), to.port(), entry.proto);
        // A NodePort's connection goes to an address of the node and was translated.
        let by_node_port = || {
            owners
                .node_port(to.port(), entry.proto)
                .filter(|_| answers != to)
        };
        let Some(port) = by_address.map(|(port, _)| port).or_else(by_node_port) else {
            others += 1;
            continue;
        };
        let text = to.ip().to_string();
        if !query.takes(Family::of(to.ip())) || !query.wants(Some(port), &[&text]) {
            continue;
        }
        let endpoint = port.endpoints.iter().find(|of| of.addr == answers);
        let status = if answers == to {
            Some(BackendStatus::NotTranslated)
        } else {
            BackendStatus::of(endpoint, endpoints_known)
        };
        rows.push(Row {
            service: port.name.clone(),
            protocol: entry.proto,
            node_port: by_address.is_none(),
            source: entry.original.source,
            destination: to,
            backend: (answers != to).then_some(answers),
            pod: endpoint.and_then(|of| of.pod.as_deref().map(str::to_owned)),
            state: entry.state.clone(),
            timeout: entry.timeout,
            backend_status: status,
        });
    }
    if rows.is_empty() && query.name.is_none() {
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
