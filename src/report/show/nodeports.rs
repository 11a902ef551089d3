//! NodePorts: what is there for each, and who listens on the port itself.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Serialize;

use super::there::{Dest, Programmed, There, node_port_dests};
use super::{Asked, Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::node::sockets::{Holder, Socket, Sockets};
use crate::owner::{Owners, PortName};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) node_port: u16,
    protocol: Proto,
    /// `null` if no Service has the port.
    pub(super) service: Option<PortName>,
    health_check: bool,
    /// By mode: chains, map elements, virtual servers. Nothing for a health check, which the port's own socket answers.
    programmed: Vec<Programmed>,
    /// Who listens on the port itself; `null` if sockets could not be read.
    listeners: Option<Vec<Listener>>,
    standing: Standing,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listener {
    address: SocketAddr,
    /// `null` if the processes could not be seen.
    processes: Option<Vec<String>>,
}

/// Whether the right one listens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Standing {
    /// As it should be.
    Fine,
    /// Nobody listens where kube-proxy should.
    Nobody,
    /// Another program listens.
    Foreign,
    /// Not known.
    Unknown,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let there = There::new(node, owners, asked, relevant, gaps);
    let sockets = gaps.take(node.sockets());
    for gap in sockets.iter().flat_map(|sockets| &sockets.gaps) {
        gaps.add(gap.clone());
    }
    let look = Look {
        sockets,
        proxies: proxies(node),
        asked,
    };
    let mut rows = Vec::new();
    let mut orphans: BTreeSet<Dest> = there.node_ports().collect();
    for port in owners.ports() {
        let mut dests = node_port_dests(port);
        dests.retain(|dest| asked.takes(dest.family));
        for dest in &dests {
            orphans.remove(dest);
        }
        let both = [(port.node_port, false), (port.health_check_port, true)];
        for (number, health_check) in both {
            let Some(number) = number else { continue };
            if !asked.wants(Some(port), &[&number.to_string()]) {
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
                standing: look.standing(listeners.as_deref(), health_check, port.left_to.is_some()),
                listeners: listeners.map(|all| all.into_iter().map(listener).collect()),
            };
            if !health_check {
                row.programmed = there.programmed(&dests);
                if port.left_to.is_some() {
                    row.programmed.retain(Programmed::is_there);
                }
            }
            rows.push(row);
        }
    }
    for dest in orphans {
        if !asked.takes(dest.family) || !asked.wants(None, &[&dest.port.to_string()]) {
            continue;
        }
        let listeners = look.listeners(dest.port, dest.proto);
        rows.push(Row {
            node_port: dest.port,
            protocol: dest.proto,
            service: None,
            health_check: false,
            programmed: there.programmed(&[dest]),
            standing: look.standing(listeners.as_deref(), false, false),
            listeners: listeners.map(|all| all.into_iter().map(listener).collect()),
        });
    }
    rows.sort_by_key(|row| (row.node_port, row.protocol));
    rows
}

struct Look<'n> {
    sockets: Option<&'n Sockets>,
    proxies: BTreeSet<u32>,
    asked: Asked<'n>,
}

impl<'n> Look<'n> {
    fn listeners(&self, port: u16, proto: Proto) -> Option<Vec<&'n Socket>> {
        let on = self.sockets?.listening.iter().filter(|socket| {
            socket.proto == proto
                && socket.local.port() == port
                && self.asked.takes(Family::of(socket.local.ip()))
        });
        Some(on.collect())
    }

    fn standing(&self, all: Option<&[&Socket]>, health_check: bool, left: bool) -> Standing {
        let Some(all) = all else {
            return Standing::Unknown;
        };
        if left {
            return Standing::Fine;
        }
        let holders = || all.iter().flat_map(|socket| &socket.processes);
        if holders().any(|holder| !self.is_proxy(holder)) {
            Standing::Foreign
        } else if all.iter().any(|socket| socket.processes.is_empty()) {
            Standing::Unknown
        } else if all.is_empty() && health_check {
            Standing::Nobody
        } else {
            Standing::Fine
        }
    }

    /// Releases before 1.27 hold every NodePort open themselves, and all of them the health checks'.
    fn is_proxy(&self, holder: &Holder) -> bool {
        self.proxies.contains(&holder.pid) || holder.name.starts_with("kube-proxy")
    }
}

fn proxies(node: &NodeSnapshot<'_>) -> BTreeSet<u32> {
    // Without the list, the name has to do.
    node.processes().map_or_else(
        |_| BTreeSet::new(),
        |all| all.processes.iter().map(|process| process.pid).collect(),
    )
}

fn listener(socket: &Socket) -> Listener {
    let names = socket.processes.iter();
    let mut names: Vec<String> = names
        .map(|of| format!("{} ({})", of.name, of.pid))
        .collect();
    names.sort();
    Listener {
        address: socket.local,
        processes: (!names.is_empty()).then_some(names),
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let service = row.service.as_ref().map(ToString::to_string);
        let service = service.unwrap_or_else(|| "EXTRA: no Service has it".to_owned());
        let programmed = row.programmed.iter().map(|of| {
            let left = if of.leftover { " (left over)" } else { "" };
            let objects = of.objects().into_iter().map(|name| short(of.mode, name));
            let objects: Vec<&str> = objects.collect();
            let words = of.words();
            if objects.is_empty() {
                format!("{words}{left}")
            } else {
                format!("{words}{left}: {}", objects.join(", "))
            }
        });
        let mut programmed: Vec<String> = programmed.collect();
        if row.health_check {
            programmed.push("health check".to_owned());
        }
        vec![
            format!("{}/{}", row.node_port, row.protocol),
            service,
            programmed.join("; "),
            listens(row),
        ]
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("NODEPORT", 0),
        ("SERVICE", 0),
        ("THE NODE", 0),
        ("LISTENING", 0),
    ];
    page.grid(&columns, &cells);
    if rows.iter().any(|row| row.standing == Standing::Foreign) {
        page.para(
            "",
            "FOREIGN: a program that is not kube-proxy holds the port; the rules take its traffic",
        );
    }
}

/// The names of nftables chains say the Service again behind their hash.
fn short(mode: Mode, name: &str) -> &str {
    match (mode, name.match_indices('-').nth(1)) {
        (Mode::Nftables, Some((at, _))) if name.contains('/') => &name[..at],
        _ => name,
    }
}

fn listens(row: &Row) -> String {
    let Some(all) = &row.listeners else {
        return "?".to_owned();
    };
    let who = all.iter().map(|of| match &of.processes {
        Some(processes) => processes.join(", "),
        None => format!("? at {}", of.address.ip()),
    });
    let who: BTreeSet<String> = who.collect();
    let who: Vec<String> = who.into_iter().collect();
    match row.standing {
        Standing::Nobody => "NOBODY: kube-proxy should".to_owned(),
        Standing::Foreign => format!("FOREIGN: {}", who.join(", ")),
        _ if who.is_empty() => "nobody".to_owned(),
        _ => who.join(", "),
    }
}
