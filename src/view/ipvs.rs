//! Virtual servers and their real servers.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Gaps, Joined, Query};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::{Connections, Forwarding, Key, RealServer, Table};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::owner::{EndpointState, Owners, Port, PortName, Source};

/// A virtual server.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// `ADDRESS:PORT/PROTOCOL`, or `mark MARK`.
    pub(crate) server: String,
    /// `null` if no Service has it, or if Services are unknown.
    pub(crate) service: Option<PortName>,
    pub(crate) node_port: bool,
    /// Whether no Service has it; `null` if unknown.
    pub(crate) extra: Option<bool>,
    pub(crate) scheduler: String,
    /// Seconds; 0 without persistence.
    pub(crate) persistence: u32,
    pub(crate) real_servers: Vec<Real>,
}

/// A real server.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Real {
    pub(crate) address: SocketAddr,
    pub(crate) weight: u32,
    pub(crate) forwarding: Forwarding,
    pub(crate) pod: Option<String>,
    /// The endpoint's state; `null` if unknown, or if the real server is stale.
    pub(crate) state: Option<EndpointState>,
    /// Whether no endpoint of the Service has the address; `null` if unknown.
    pub(crate) stale: Option<bool>,
    /// Open connections; `null` if unknown.
    pub(crate) connections: Option<Connections>,
    /// Connections since the real server was added; `null` if unknown.
    pub(crate) scheduled: Option<u64>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let table = match joined.node.ipvs() {
        Ok(table) => table,
        Err(Gap::NotApplicable(why)) => {
            gaps.note(format!("this node has no IPVS: {why}"));
            return Vec::new();
        }
        Err(gap) => {
            gaps.add(gap);
            return Vec::new();
        }
    };
    if table.servers.is_empty() {
        let mode = joined.relevant.current();
        gaps.note(match mode {
            Some(Mode::Ipvs) => "IPVS has no virtual servers, although the mode is ipvs".to_owned(),
            _ => "IPVS has no virtual servers".to_owned(),
        });
    }
    let known = Known {
        services: joined.owners.source == Source::Api
            && joined.node.evidence().part(Item::Services).is_none(),
        slices: joined.node.has_all_slices(),
    };
    let mut rows = servers(table, joined.owners, joined.query, &known);
    rows.sort_by_key(|(key, _)| *key);
    rows.into_iter().map(|(_, row)| row).collect()
}

struct Known {
    services: bool,
    slices: bool,
}

fn servers(table: &Table, owners: &Owners, query: Query<'_>, known: &Known) -> Vec<(Key, Row)> {
    let rows = table.servers.iter().filter_map(|server| {
        let (text, addr, family, port, node_port) = match server.key {
            Key::Address { proto, addr, port } => {
                let dest = SocketAddr::new(addr, port);
                let served = owners.served_at(dest, proto);
                (
                    format!("{dest}/{proto}"),
                    addr.to_string(),
                    Family::of(addr),
                    served.map(|(port, _)| port),
                    served.is_some_and(|(_, node_port)| node_port),
                )
            }
            Key::Fwmark { mark, family } => (
                format!("mark {mark:#x}"),
                String::new(),
                family,
                None,
                false,
            ),
        };
        if !query.takes(family) || !query.wants(port, &[&text, &addr]) {
            return None;
        }
        let mut reals: Vec<_> = server.reals.iter().collect();
        reals.sort_by_key(|real| (real.addr, real.port));
        let row = Row {
            server: text,
            service: port.map(|port| port.name.clone()),
            node_port,
            extra: (known.services || port.is_some()).then_some(port.is_none()),
            scheduler: server.scheduler.clone(),
            persistence: server.timeout,
            real_servers: reals
                .into_iter()
                .map(|server| real(server, port, known))
                .collect(),
        };
        Some((server.key, row))
    });
    rows.collect()
}

fn real(real: &RealServer, port: Option<&Port>, known: &Known) -> Real {
    let address = SocketAddr::new(real.addr, real.port);
    let endpoint = port.and_then(|p| p.endpoints.iter().find(|e| e.addr == address));
    Real {
        address,
        weight: real.weight,
        forwarding: real.forwarding,
        pod: endpoint.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
        state: endpoint.and_then(|endpoint| endpoint.state),
        stale: match (endpoint, port) {
            (Some(_), _) => Some(false),
            (None, Some(_)) if known.slices => Some(true),
            _ => None,
        },
        connections: real.connections,
        scheduled: real.stats.map(|stats| stats.conns),
    }
}
