//! What the node does with each Service.

use std::net::IpAddr;

use serde::Serialize;

use super::there::{Programmed, There, dests};
use super::{Asked, Gaps, modes::Relevant};
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::{Owners, PortName, Role, Source, State};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) service: PortName,
    protocol: Proto,
    r#type: Option<Box<str>>,
    port: Option<u16>,
    addresses: Vec<Address>,
    node_port: Option<u16>,
    endpoints: Counts,
    /// The other proxy that the Service is left to.
    left_to: Option<Box<str>>,
    /// By mode: that in force, and those that left something for the Service.
    programmed: Vec<Programmed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Address {
    address: IpAddr,
    role: Role,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    /// `null` if EndpointSlices are not known.
    total: Option<usize>,
    /// `null` if only rules tell of the endpoints.
    ready: Option<usize>,
    /// `null` if that is not known.
    local: Option<usize>,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let there = There::new(node, owners, asked, relevant, gaps);
    let by_api = owners.source == Source::Api;
    let counted = !by_api || node.slices().is_ok();
    let wanted = owners.ports().iter().filter(|port| {
        let addresses: Vec<String> = match asked.name {
            Some(_) => port.addresses.iter().map(|a| a.1.to_string()).collect(),
            None => Vec::new(),
        };
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        asked.wants(Some(port), &names)
    });
    let rows = wanted.map(|port| {
        let addresses = port.addresses.iter();
        let addresses: Vec<_> = addresses
            .filter(|(_, addr)| asked.takes(Family::of(*addr)))
            .map(|&(role, address)| Address { address, role })
            .collect();
        let of_family = |addr: IpAddr| asked.takes(Family::of(addr));
        let endpoints = port.endpoints.iter().filter(|e| of_family(e.addr.ip()));
        let endpoints: Vec<_> = endpoints.collect();
        let count = |of: fn(&crate::owner::Endpoint) -> bool| {
            (by_api && counted).then(|| endpoints.iter().filter(|e| of(e)).count())
        };
        let mut programmed = there.programmed(&dests(port, asked));
        if port.left_to.is_some() {
            programmed.retain(Programmed::is_there);
        }
        let local_known = endpoints.iter().all(|e| e.local.is_some());
        Row {
            service: port.name.clone(),
            protocol: port.proto,
            r#type: port.kind.clone(),
            port: port.port,
            addresses,
            node_port: port.node_port,
            endpoints: Counts {
                total: counted.then_some(endpoints.len()),
                ready: count(|e| e.state == Some(State::Ready)),
                local: count(|e| e.local == Some(true)).filter(|_| local_known),
            },
            left_to: port.left_to.clone(),
            programmed,
        }
    });
    // A Service without an address of the family asked for is not of that family.
    let kept = rows.filter(|row| asked.family.is_none() || !row.addresses.is_empty());
    kept.collect()
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let wide = page.style().wide;
    let cells = rows.iter().map(|row| {
        let known = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
        let mut words: Vec<String> = Vec::new();
        let in_force: Vec<_> = row.programmed.iter().filter(|of| !of.leftover).collect();
        let several = in_force.len() > 1;
        words.extend(in_force.iter().map(|of| {
            if several {
                format!("{}: {}", of.mode, of.words())
            } else {
                of.words()
            }
        }));
        words.extend(row.left_to.as_ref().map(|who| format!("left to {who}")));
        let left = row.programmed.iter().filter(|of| of.leftover);
        let left: Vec<&str> = left.map(|of| of.mode.name()).collect();
        let objects = row.programmed.iter().flat_map(Programmed::objects);
        let objects: Vec<&str> = if wide { objects.collect() } else { Vec::new() };
        vec![
            row.service.to_string(),
            address(row, wide),
            row.node_port
                .map_or("-".to_owned(), |port| port.to_string()),
            format!(
                "{}/{}",
                known(row.endpoints.ready),
                known(row.endpoints.total)
            ),
            words.join("; "),
            left.join(","),
            known(row.endpoints.local),
            row.r#type.as_deref().unwrap_or("?").to_owned(),
            objects.join(" "),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("ADDRESS", 0),
            ("NODEPORT", 0),
            ("READY", 0),
            ("THE NODE", 0),
            ("LEFT OVER", 1),
            ("LOCAL", 5),
            ("TYPE", 6),
            ("BY", 7),
        ],
        &cells,
    );
    let by_rules = |row: &Row| row.endpoints.ready.is_none() && row.endpoints.total.is_some();
    if rows.iter().any(by_rules) {
        page.para("", "READY ?: rules do not tell which endpoints are ready");
    }
}

fn address(row: &Row, wide: bool) -> String {
    let port = row.port.map_or(String::new(), |port| format!(":{port}"));
    let addresses = row.addresses.iter();
    let mut addresses = addresses.map(|at| {
        let ip = match at.address {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) if port.is_empty() => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        format!("{ip}{port}/{}", row.protocol)
    });
    let Some(first) = addresses.next() else {
        return "?".to_owned();
    };
    let rest: Vec<String> = addresses.collect();
    if rest.is_empty() {
        first
    } else if wide {
        format!("{first},{}", rest.join(","))
    } else {
        format!("{first} +{}", rest.len())
    }
}
