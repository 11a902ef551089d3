//! Virtual servers and their real servers.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::backend::ipvs::model::{Connections, Forwarding, Key, RealServer, Table};
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::{Owners, Port, PortName, Source, State};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) server: String,
    /// `null` if no Service has it, or Services are not known.
    pub(super) service: Option<PortName>,
    node_port: bool,
    /// Whether no Service has it; `null` if Services are not known.
    extra: Option<bool>,
    scheduler: String,
    /// Seconds; 0 without persistence.
    persistence: u32,
    real_servers: Vec<Real>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Real {
    address: SocketAddr,
    weight: u32,
    forwarding: Forwarding,
    pod: Option<String>,
    /// `null` if endpoints are not known, or none of the Service has the address.
    state: Option<State>,
    standing: Standing,
    /// Open now; `null` if not known.
    connections: Option<Connections>,
    /// Ever scheduled; `null` if not known.
    scheduled: Option<u64>,
}

/// Whether the real server is an endpoint of the Service.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Standing {
    Endpoint,
    /// No endpoint of the Service has the address.
    Stale,
    Unknown,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let table = match node.ipvs() {
        Ok(table) => table,
        Err(Gap::NotApplicable(why)) => {
            gaps.note(format!("there is no IPVS on this node: {why}"));
            return Vec::new();
        }
        Err(gap) => {
            gaps.add(gap);
            return Vec::new();
        }
    };
    if table.servers.is_empty() {
        let mode = relevant.current();
        gaps.note(match mode {
            Some(Mode::Ipvs) => "IPVS has no virtual server, although the mode is ipvs".to_owned(),
            _ => "IPVS has no virtual server".to_owned(),
        });
    }
    let known = Known {
        services: owners.source == Source::Api,
        slices: node.slices().is_ok(),
    };
    let mut rows = servers(table, owners, asked, &known);
    rows.sort_by_key(|(key, _)| *key);
    rows.into_iter().map(|(_, row)| row).collect()
}

struct Known {
    services: bool,
    slices: bool,
}

fn servers(table: &Table, owners: &Owners, asked: Asked<'_>, known: &Known) -> Vec<(Key, Row)> {
    let rows = table.servers.iter().filter_map(|server| {
        let (text, addr, family, port, node_port) = match server.key {
            Key::Address { proto, addr, port } => {
                let of = owners.at(addr, port, proto).map(|(port, _)| port);
                let by_node_port = owners.node_port(port, proto).filter(|_| of.is_none());
                let text = format!("{}/{proto}", SocketAddr::new(addr, port));
                let found = of.or(by_node_port);
                (
                    text,
                    addr.to_string(),
                    Family::of(addr),
                    found,
                    by_node_port.is_some(),
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
        if !asked.takes(family) || !asked.wants(port, &[&text, &addr]) {
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
            real_servers: reals.into_iter().map(|of| real(of, port, known)).collect(),
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
        pod: endpoint.and_then(|of| of.pod.as_deref().map(str::to_owned)),
        state: endpoint.and_then(|of| of.state),
        standing: match (endpoint, port) {
            (Some(_), _) => Standing::Endpoint,
            (None, Some(_)) if known.slices => Standing::Stale,
            _ => Standing::Unknown,
        },
        connections: real.connections,
        scheduled: real.stats.map(|stats| stats.conns),
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let reals = || rows.iter().flat_map(|row| &row.real_servers);
    let open_known = reals().any(|real| real.connections.is_some());
    let mut cells = Vec::new();
    for row in rows {
        let service = match (&row.service, row.extra) {
            (Some(name), _) if row.node_port => format!("{name} (NodePort)"),
            (Some(name), _) => name.to_string(),
            (None, Some(true)) => "EXTRA: no Service has it".to_owned(),
            (None, _) => "?".to_owned(),
        };
        let how = match row.persistence {
            0 => row.scheduler.clone(),
            seconds => format!("{} {seconds}s", row.scheduler),
        };
        let state = if row.real_servers.is_empty() {
            "refuses: no real server"
        } else {
            ""
        };
        cells.push(vec![
            row.server.clone(),
            how,
            String::new(),
            String::new(),
            String::new(),
            service,
            state.to_owned(),
        ]);
        cells.extend(
            row.real_servers
                .iter()
                .map(|real| cells_of(real, open_known)),
        );
    }
    page.grid(
        &[
            ("SERVER", 0),
            ("SCHED", 3),
            ("ACTIVE", 1),
            ("INACT", 2),
            ("EVER", 4),
            ("SERVICE, POD", 0),
            ("STATE", 0),
        ],
        &cells,
    );
    notes(rows, open_known, page);
}

fn cells_of(real: &Real, open_known: bool) -> Vec<String> {
    let open = |of: fn(Connections) -> u32| match real.connections {
        Some(connections) => of(connections).to_string(),
        None if open_known => "?".to_owned(),
        None => String::new(),
    };
    let state = match (real.standing, real.state) {
        (Standing::Stale, _) => "STALE: no endpoint".to_owned(),
        (_, Some(state)) => state.to_string(),
        _ => "?".to_owned(),
    };
    let weight = if real.weight == 0 {
        ", no new ones"
    } else {
        ""
    };
    vec![
        format!("  {}", real.address),
        format!("weight {}", real.weight),
        open(|of| of.active),
        open(|of| of.inactive),
        real.scheduled
            .map_or_else(String::new, |count| count.to_string()),
        real.pod.clone().unwrap_or_else(|| match real.standing {
            Standing::Endpoint => "(no pod)".to_owned(),
            Standing::Stale | Standing::Unknown => String::new(),
        }),
        format!("{state}{weight}"),
    ]
}

fn notes(rows: &[Row], open_known: bool, page: &mut Page) {
    let mut reals = rows.iter().flat_map(|row| &row.real_servers);
    let any = rows.iter().any(|row| !row.real_servers.is_empty());
    if any && !open_known {
        page.para(
            "",
            "Open connections are not shown: `ipvsadm -Sn` does not list them. kpx reads them, live or with \
             `kpx snapshot`.",
        );
    }
    let named = rows.iter().all(|row| row.extra.is_some());
    if named && reals.any(|real| real.standing == Standing::Unknown) {
        page.para("", "STATE ?: the endpoints are not known.");
    }
}
