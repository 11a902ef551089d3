//! NodePorts with what listens there, and tracked connections of Services.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Asked, Gaps};
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::{Owners, PortName};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodePortRow {
    node_port: u16,
    protocol: Proto,
    service: PortName,
    health_check: bool,
    /// Who listens on the port itself; `None` if sockets could not be read.
    listeners: Option<Vec<Listener>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listener {
    address: SocketAddr,
    processes: Vec<String>,
}

pub(super) fn node_ports(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<NodePortRow> {
    let sockets = gaps.take(node.sockets());
    let mut rows = Vec::new();
    for port in owners.ports() {
        let both = [(port.node_port, false), (port.health_check_port, true)];
        for (number, health_check) in both {
            let Some(number) = number else { continue };
            if !asked.wants(Some(port), &[&number.to_string()]) {
                continue;
            }
            let proto = if health_check { Proto::Tcp } else { port.proto };
            let listeners = sockets.map(|sockets| {
                let on = sockets.listening.iter().filter(|socket| {
                    socket.proto == proto
                        && socket.local.port() == number
                        && asked.takes(Family::of(socket.local.ip()))
                });
                on.map(|socket| Listener {
                    address: socket.local,
                    processes: socket
                        .processes
                        .iter()
                        .map(|of| format!("{} ({})", of.name, of.pid))
                        .collect(),
                })
                .collect()
            });
            rows.push(NodePortRow {
                node_port: number,
                protocol: proto,
                service: port.name.clone(),
                health_check,
                listeners,
            });
        }
    }
    rows.sort_by_key(|row| (row.node_port, row.protocol));
    rows
}

pub(super) fn page_node_ports(rows: &[NodePortRow], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let listens = match &row.listeners {
            None => "?".to_owned(),
            Some(all) if all.is_empty() => "nobody".to_owned(),
            Some(all) => {
                let all = all.iter().map(|of| match of.processes.as_slice() {
                    [] => of.address.to_string(),
                    processes => processes.join(", "),
                });
                all.collect::<Vec<_>>().join(", ")
            }
        };
        vec![
            format!("{}/{}", row.node_port, row.protocol),
            if row.health_check {
                "health check"
            } else {
                "traffic"
            }
            .to_owned(),
            row.service.to_string(),
            listens,
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("NODEPORT", 0),
            ("FOR", 2),
            ("SERVICE", 0),
            ("LISTENING", 1),
        ],
        &cells,
    );
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connection {
    service: PortName,
    protocol: Proto,
    source: SocketAddr,
    destination: SocketAddr,
    backend: SocketAddr,
    pod: Option<String>,
    state: Option<String>,
    timeout: Option<u32>,
    /// Whether the backend is no endpoint of the Service.
    stale: bool,
}

pub(super) fn connections(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Connection> {
    let Some(tracked) = gaps.take(node.conntrack()) else {
        return Vec::new();
    };
    let rows = tracked.entries.iter().filter_map(|entry| {
        let to = entry.original.destination;
        let port = match owners.at(to.ip(), to.port(), entry.proto) {
            Some((port, _)) => port,
            // A NodePort's connection goes to an address of the node and was translated.
            None if entry.reply.source != to => owners.node_port(to.port(), entry.proto)?,
            None => return None,
        };
        let text = to.ip().to_string();
        if !asked.takes(Family::of(to.ip())) || !asked.wants(Some(port), &[&text]) {
            return None;
        }
        let backend = entry.reply.source;
        let endpoint = port.endpoints.iter().find(|of| of.addr == backend);
        Some(Connection {
            service: port.name.clone(),
            protocol: entry.proto,
            source: entry.original.source,
            destination: to,
            backend,
            pod: endpoint.and_then(|of| of.pod.as_deref().map(str::to_owned)),
            state: entry.state.clone(),
            timeout: entry.timeout,
            stale: endpoint.is_none(),
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| {
        (&a.service, a.protocol, a.source, a.destination).cmp(&(
            &b.service,
            b.protocol,
            b.source,
            b.destination,
        ))
    });
    rows
}

pub(super) fn page_connections(rows: &[Connection], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let mut backend = row.backend.to_string();
        if row.stale {
            backend.push_str(" (no endpoint)");
        }
        vec![
            row.service.to_string(),
            row.source.to_string(),
            row.destination.to_string(),
            backend,
            row.state.clone().unwrap_or_else(|| "-".to_owned()),
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("FROM", 0),
            ("TO", 4),
            ("BACKEND", 0),
            ("STATE", 3),
            ("POD", 5),
        ],
        &cells,
    );
}
