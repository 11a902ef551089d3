//! What the ipvs mode made: virtual servers, sets, addresses.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::{Asked, Gaps, who};
use crate::backend::ipvs::model::{Connections, DUMMY, Key};
use crate::backend::software::set_purpose;
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::software::{Maker, maker_of_set};
use crate::owner::{Owners, PortName, Role};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Server {
    key: String,
    service: Option<PortName>,
    node_port: bool,
    scheduler: String,
    persistence: u32,
    real_servers: Vec<Real>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Real {
    address: SocketAddr,
    weight: u32,
    pod: Option<String>,
    /// Whether no endpoint of the Service has the address.
    unknown: bool,
    connections: Option<Connections>,
}

pub(super) fn servers(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Server> {
    let Some(table) = gaps.take(node.ipvs()) else {
        return Vec::new();
    };
    let mut servers: Vec<_> = table.servers.iter().collect();
    servers.sort_by_key(|server| server.key);
    let rows = servers.into_iter().filter_map(|server| {
        let (text, family, port, node_port) = match server.key {
            Key::Address { proto, addr, port } => {
                let of = owners.at(addr, port, proto).map(|(port, _)| port);
                let by_node_port = owners.node_port(port, proto);
                let text = format!("{}/{proto}", SocketAddr::new(addr, port));
                let found = of.or(by_node_port);
                (
                    text,
                    Family::of(addr),
                    found,
                    of.is_none() && found.is_some(),
                )
            }
            Key::Fwmark { mark, family } => (format!("mark {mark:#x}"), family, None, false),
        };
        let addr = text.rsplit_once(':').map_or("", |(addr, _)| addr);
        if !asked.takes(family) || !asked.wants(port, &[&text, addr]) {
            return None;
        }
        let mut reals: Vec<_> = server.reals.iter().collect();
        reals.sort_by_key(|real| (real.addr, real.port));
        let reals = reals.into_iter().map(|real| {
            let address = SocketAddr::new(real.addr, real.port);
            let endpoint = port.and_then(|p| p.endpoints.iter().find(|e| e.addr == address));
            Real {
                address,
                weight: real.weight,
                pod: endpoint.map(who).filter(|who| !who.is_empty()),
                unknown: port.is_some() && endpoint.is_none(),
                connections: real.connections,
            }
        });
        Some(Server {
            key: text,
            service: port.map(|port| port.name.clone()),
            node_port,
            scheduler: server.scheduler.clone(),
            persistence: server.timeout,
            real_servers: reals.collect(),
        })
    });
    rows.collect()
}

pub(super) fn page_servers(rows: &[Server], page: &mut Page) {
    let mut cells = Vec::new();
    for row in rows {
        let service = row
            .service
            .as_ref()
            .map_or_else(|| "?".to_owned(), ToString::to_string);
        let service = if row.node_port {
            format!("{service} (NodePort)")
        } else {
            service
        };
        cells.push(vec![
            row.key.clone(),
            row.scheduler.clone(),
            String::new(),
            service,
        ]);
        for real in &row.real_servers {
            let count = real.connections.map_or_else(
                || "?".to_owned(),
                |of| format!("{}+{}", of.active, of.inactive),
            );
            let pod = match (&real.pod, real.unknown) {
                (Some(pod), _) => pod.clone(),
                (None, true) => "no endpoint of the Service".to_owned(),
                (None, false) => String::new(),
            };
            let weight = format!("w{}", real.weight);
            cells.push(vec![format!("  {}", real.address), weight, count, pod]);
        }
    }
    page.grid(
        &[
            ("SERVER", 0),
            ("SCHED", 2),
            ("CONNS", 1),
            ("SERVICE, POD", 0),
        ],
        &cells,
    );
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SetRow {
    set: String,
    r#type: String,
    maker: Maker,
    purpose: Option<&'static str>,
    members: Vec<MemberRow>,
}

#[derive(Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberRow {
    member: String,
    service: Option<PortName>,
}

pub(super) fn sets(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<SetRow> {
    let Some(sets) = gaps.take(node.ipset()) else {
        return Vec::new();
    };
    let v6 = |set: &crate::backend::ipset::Set<'_>| set.is_v6() || set.name.starts_with("KUBE-6-");
    let family = |v6| if v6 { Family::V6 } else { Family::V4 };
    let kept = sets.sets.iter().filter(|set| asked.takes(family(v6(set))));
    let rows = kept.filter_map(|set| {
        let whole = asked.wants(None, &[&set.name]);
        let members = set.members.iter().filter_map(|member| {
            let port = owner_of(owners, &set.name, &member.element);
            (whole || asked.wants(port, &[])).then(|| MemberRow {
                member: member.element.to_string(),
                service: port.map(|port| port.name.clone()),
            })
        });
        let mut members: Vec<_> = members.collect();
        members.sort();
        (whole || !members.is_empty()).then(|| SetRow {
            set: set.name.to_string(),
            r#type: set.kind.to_string(),
            maker: maker_of_set(&set.name),
            purpose: set_purpose(&set.name),
            members,
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| a.set.cmp(&b.set));
    rows
}

/// Finds the Service of `10.0.0.1,tcp:80`, of the same with a third part, or of a NodePort.
fn owner_of<'o>(owners: &'o Owners, set: &str, element: &str) -> Option<&'o crate::owner::Port> {
    if let Ok(number) = element.parse() {
        let proto = if set.contains("UDP") {
            Proto::Udp
        } else {
            Proto::Tcp
        };
        if set.ends_with("HEALTH-CHECK-NODE-PORT") {
            let mut ports = owners.ports().iter();
            return ports.find(|port| port.health_check_port == Some(number));
        }
        return owners.node_port(number, proto);
    }
    let mut parts = element.split(',');
    let addr: IpAddr = parts.next()?.parse().ok()?;
    let (proto, port) = parts.next()?.split_once(':')?;
    let (proto, port) = (proto.parse().ok()?, port.parse().ok()?);
    owners
        .at(addr, port, proto)
        .map(|(port, _)| port)
        .or_else(|| Some(owners.endpoint(SocketAddr::new(addr, port), proto)?.0))
        .or_else(|| owners.node_port(port, proto))
}

pub(super) fn page_sets(rows: &[SetRow], page: &mut Page) {
    // One set alone was asked for, or all of them: members, or an overview.
    let members = rows.len() == 1 || page.style().wide;
    for row in rows {
        let what = match (row.purpose, row.maker) {
            (Some(purpose), _) => purpose,
            (None, Maker::Other(who)) => who,
            (None, _) => "not kube-proxy's",
        };
        page.line(&format!(
            "{} ({}, {} members)",
            row.set,
            row.r#type,
            row.members.len()
        ));
        page.para("  ", what);
        if members {
            for member in &row.members {
                let name = member
                    .service
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string);
                page.line(format!("    {}  {name}", member.member).trim_end());
            }
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressRow {
    address: IpAddr,
    /// Why it is there; empty if no Service has it.
    because: Vec<Because>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Because {
    service: PortName,
    role: Role,
}

pub(super) fn addresses(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<AddressRow> {
    let Some(addresses) = gaps.take(node.addresses()) else {
        return Vec::new();
    };
    let on = addresses
        .all
        .iter()
        .filter(|at| at.link == DUMMY && at.scope != "link" && asked.takes(at.addr.family()));
    let rows = on.filter_map(|at| {
        let address = at.addr.addr;
        let found: Vec<_> = owners.with_address(address).collect();
        let text = address.to_string();
        let named = found.iter().any(|(port, _)| asked.wants(Some(port), &[]));
        (named || asked.wants(None, &[&text])).then(|| AddressRow {
            address,
            because: found
                .into_iter()
                .map(|(port, role)| Because {
                    service: port.name.clone(),
                    role,
                })
                .collect(),
        })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|row| row.address);
    rows
}

pub(super) fn page_addresses(rows: &[AddressRow], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let why = match row.because.as_slice() {
            [] => "no Service has it".to_owned(),
            [one] => format!("{} of {}", one.role, one.service),
            [one, rest @ ..] => format!("{} of {} +{}", one.role, one.service, rest.len()),
        };
        vec![row.address.to_string(), why]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("ADDRESS", 0), ("WHY", 0)], &cells);
}
