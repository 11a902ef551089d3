//! NodePorts: the objects for each, and the processes that listen on it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Serialize;

use super::programmed::{Dest, Installed, Programmed, node_port_dests};
use super::services::Connection;
use super::{Gaps, Joined, Query};
use kpx_judge::verdict::{Kind, Surveyed, survey};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::sockets::{Holder, Socket, Sockets};
use kpx_node::owner::{Port, PortName, Source};

/// A NodePort or health check port.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) node_port: u16,
    pub(crate) protocol: Proto,
    /// `null` if no Service has the port.
    pub(crate) service: Option<PortName>,
    pub(crate) health_check: bool,
    /// Objects by mode; empty for a health check port, on which kube-proxy itself listens.
    pub(crate) programmed: Vec<Programmed>,
    /// Listening sockets; `null` if unknown.
    pub(crate) listeners: Option<Vec<Listener>>,
    /// `null` if unknown.
    pub(crate) listening: Option<Listening>,
    /// Connections to the port, at the node's own address, that fail.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failing: Vec<Connection>,
}

/// A listening socket.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    /// `NAME (PID)`, sorted; `null` if unknown.
    pub(crate) processes: Option<Vec<String>>,
}

/// Whether the expected process listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Listening {
    /// It does, or no process has to.
    Expected,
    /// kube-proxy should listen, and no process does.
    Missing,
    /// A process other than kube-proxy listens.
    Foreign,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let installed = Installed::new(joined, gaps);
    let look = Look::new(joined, gaps);
    let failing = failing(joined);
    let mut rows = Vec::new();
    let mut orphans: BTreeSet<Dest> = installed.node_ports().collect();
    for port in joined.owners.ports() {
        let mut dests = node_port_dests(port);
        dests.retain(|dest| joined.query.takes(dest.family));
        for dest in &dests {
            orphans.remove(dest);
        }
        let both = [(port.node_port, false), (port.health_check_port, true)];
        for (number, health_check) in both {
            let Some(number) = number else { continue };
            if !joined.query.wants(Some(port), &[&number.to_string()]) {
                continue;
            }
            let protocol = if health_check { Proto::Tcp } else { port.proto };
            let listeners = look.listeners(number, protocol);
            let mut row = Row {
                node_port: number,
                protocol,
                service: Some(port.name.clone()),
                health_check,
                programmed: Vec::new(),
                listening: look.listening(
                    listeners.as_deref(),
                    health_check,
                    port.left_to.is_some(),
                ),
                listeners: listeners.map(|all| all.into_iter().map(Listener::of).collect()),
                failing: Vec::new(),
            };
            if !health_check {
                let ours = failing
                    .iter()
                    .filter(|surveyed| surveyed.name == port.name && surveyed.proto == port.proto);
                let cells = ours.flat_map(|surveyed| &surveyed.cells);
                let cells = cells.filter(|cell| {
                    cell.kind == Kind::NodePort && cell.fate.fails() && !cell.by_design
                });
                row.failing = cells.map(Connection::of).collect();
                row.programmed = installed.programmed(&dests);
                if port.left_to.is_some() {
                    row.programmed.retain(Programmed::is_installed);
                }
            }
            rows.push(row);
        }
    }
    for dest in orphans {
        if !joined.query.takes(dest.family) || !joined.query.wants(None, &[&dest.port.to_string()])
        {
            continue;
        }
        let listeners = look.listeners(dest.port, dest.proto);
        rows.push(Row {
            node_port: dest.port,
            protocol: dest.proto,
            service: None,
            health_check: false,
            programmed: installed.programmed(&[dest]),
            listening: look.listening(listeners.as_deref(), false, false),
            listeners: listeners.map(|all| all.into_iter().map(Listener::of).collect()),
            failing: Vec::new(),
        });
    }
    rows.sort_by_key(|row| (row.node_port, row.protocol));
    rows
}

/// Returns the verdicts on the Service ports with a NodePort that are asked for; none if the cluster's objects are not known.
fn failing(joined: Joined<'_, '_>) -> Vec<Surveyed> {
    if joined.owners.source != Source::Api {
        return Vec::new();
    }
    let wanted = joined.owners.ports().iter().filter(|port| {
        let number = port.node_port.map(|number| number.to_string());
        port.left_to.is_none()
            && number.is_some_and(|number| joined.query.wants(Some(port), &[&number]))
    });
    let wanted: Vec<Port> = wanted.cloned().collect();
    let families: Vec<Family> = joined.query.families().collect();
    survey(joined.node, &wanted, &families, joined.query.across)
}

/// The listening sockets of the node.
pub(super) struct Look<'q, 'n> {
    sockets: Option<&'n Sockets>,
    proxies: BTreeSet<u32>,
    query: Query<'q>,
}

impl<'q, 'n> Look<'q, 'n> {
    pub(super) fn new(joined: Joined<'q, 'n>, gaps: &mut Gaps) -> Self {
        let sockets = gaps.take(joined.node.sockets());
        for gap in sockets.iter().flat_map(|sockets| &sockets.gaps) {
            gaps.add(gap.clone());
        }
        Self {
            sockets,
            proxies: proxies(joined.node),
            query: joined.query,
        }
    }

    pub(super) fn listeners(&self, port: u16, proto: Proto) -> Option<Vec<&'n Socket>> {
        let on = self.sockets?.listening.iter().filter(|socket| {
            socket.proto == proto
                && socket.local.port() == port
                && self.query.takes(Family::of(socket.local.ip()))
        });
        Some(on.collect())
    }

    /// Returns whether the expected process listens; `must` is set if kube-proxy has to.
    pub(super) fn listening(
        &self,
        all: Option<&[&Socket]>,
        must: bool,
        left: bool,
    ) -> Option<Listening> {
        let all = all?;
        if left {
            return Some(Listening::Expected);
        }
        let holders = || all.iter().flat_map(|socket| &socket.processes);
        if holders().any(|holder| !self.is_proxy(holder)) {
            Some(Listening::Foreign)
        } else if all.iter().any(|socket| socket.processes.is_empty()) {
            None
        } else if all.is_empty() && must {
            Some(Listening::Missing)
        } else {
            Some(Listening::Expected)
        }
    }

    /// Releases before 1.27 listen on every NodePort, and every release on health check ports.
    fn is_proxy(&self, holder: &Holder) -> bool {
        self.proxies.contains(&holder.pid) || holder.name.starts_with("kube-proxy")
    }
}

fn proxies(node: &NodeSnapshot<'_>) -> BTreeSet<u32> {
    // Without the list of processes, the name decides.
    node.processes().map_or_else(
        |_| BTreeSet::new(),
        |all| all.processes.iter().map(|process| process.pid).collect(),
    )
}

impl Listener {
    pub(super) fn of(socket: &Socket) -> Self {
        let names = socket.processes.iter();
        let mut names: Vec<String> = names
            .map(|name| format!("{} ({})", name.name, name.pid))
            .collect();
        names.sort();
        Self {
            address: socket.local,
            processes: (!names.is_empty()).then_some(names),
        }
    }
}
