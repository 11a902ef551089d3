//! Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::render::Page;
use crate::view::matrix::End;
use crate::view::programmed::Programmed;
use crate::view::services::Row;
use kpx_judge::verdict::{Client, Fate, Kind, Standing, client_names};
use kpx_node::owner::Role;

/// The columns of the table, each with its rank.
pub(super) const COLUMNS: [(&str, u8); 10] = [
    ("SERVICE", 0),
    ("ADDRESS", 0),
    ("NODEPORT", 0),
    ("READY", 0),
    ("VERDICT", 0),
    ("MAP", 0),
    ("LEFTOVERS", 1),
    ("LOCAL", 5),
    ("TYPE", 6),
    ("OBJECTS", 7),
];

/// Returns the cells of the table; `wide` has every address and object.
pub(super) fn cells(rows: &[Row], wide: bool) -> Vec<Vec<String>> {
    let cells = rows.iter().map(|row| {
        let known = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
        let left_to = row.left_to.as_ref().map(|who| format!("served by {who}"));
        let left = row
            .programmed
            .iter()
            .filter(|programmed| programmed.leftover);
        let left: Vec<&str> = left.map(|programmed| programmed.mode.name()).collect();
        let objects = row.programmed.iter().flat_map(Programmed::objects);
        let objects: Vec<&str> = if wide { objects.collect() } else { Vec::new() };
        let node_port = row.node_port.map(|port| port.to_string());
        let (ready, total) = (known(row.endpoints.ready), known(row.endpoints.total));
        vec![
            row.service.to_string(),
            address(row, wide),
            node_port.unwrap_or_else(|| "-".to_owned()),
            format!("{ready}/{total}"),
            left_to.unwrap_or_else(|| {
                let (fate, rest) = verdict(row);
                format!("{fate}{rest}")
            }),
            in_maps(row),
            left.join(","),
            known(row.endpoints.local),
            row.r#type.as_deref().unwrap_or("?").to_owned(),
            objects.join(" "),
        ]
    });
    cells.collect()
}

/// Returns the entries of the port in maps of service proxies of eBPF: numbers of backends, `1 of 2 missing`.
fn in_maps(row: &Row) -> String {
    let all = &row.in_maps;
    let missing = all
        .iter()
        .filter(|frontend| frontend.backends.is_none())
        .count();
    match missing {
        _ if all.is_empty() => String::new(),
        0 => {
            let counts = all.iter().filter_map(|frontend| frontend.backends.as_ref());
            let counts: BTreeSet<usize> = counts.map(Vec::len).collect();
            let texts: Vec<String> = counts.iter().map(ToString::to_string).collect();
            texts.join(" or ")
        }
        _ if missing == all.len() => "missing".to_owned(),
        _ => format!("{missing} of {} missing", all.len()),
    }
}

/// The position of the verdict among the columns.
const VERDICT: usize = 4;

/// Returns the fate of connections, and the clients and addresses that fail: `lost`, ` from pods`.
fn verdict(row: &Row) -> (String, String) {
    let Some(fate) = row.fate else {
        return ("unknown".to_owned(), String::new());
    };
    let failing: Vec<_> = row
        .connections
        .iter()
        .filter(|connection| connection.fate.fails())
        .collect();
    let is_all = failing.len() == row.connections.len();
    if failing.is_empty() || is_all {
        return (fate.to_string(), String::new());
    }
    let worst = Fate::of_all(failing.iter().map(|connection| connection.fate));
    let is_restricted = row.surveyed.standing() == Standing::Restricted;
    let word = if is_restricted {
        End::ByDesign
    } else {
        End::Fate(worst)
    };
    let clients: Vec<Client> = failing.iter().map(|connection| connection.client).collect();
    let addresses: BTreeSet<_> = failing
        .iter()
        .map(|connection| in_words(connection.kind))
        .collect();
    let all: BTreeSet<_> = row
        .connections
        .iter()
        .map(|connection| in_words(connection.kind))
        .collect();
    let at = if addresses.len() < all.len() {
        let names: Vec<&str> = addresses.into_iter().collect();
        format!(" at {}", names.join(" and "))
    } else {
        String::new()
    };
    (
        word.name().to_owned(),
        format!("{}{at}", client_names(&clients)),
    )
}

/// Returns the name of an address in words, which break where lines end.
const fn in_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Address(Role::ClusterIp) => "the cluster IP",
        Kind::Address(Role::ExternalIp) => "the external IP",
        Kind::Address(Role::LoadBalancerIp) => "the load balancer IP",
        Kind::NodePort => "the NodePort",
        Kind::Endpoint => "endpoints",
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let mut cells = cells(rows, page.style().wide);
    let mut below = Vec::new();
    if !page.fits(&COLUMNS, &cells) {
        // The clients have their own line.
        for (row, cells) in rows.iter().zip(&mut cells) {
            let (fate, rest) = match &row.left_to {
                Some(who) => ("-".to_owned(), format!("served by {who}")),
                None => verdict(row),
            };
            cells[VERDICT] = fate;
            below.push(rest.trim_start().to_owned());
        }
    }
    page.grid_with(&COLUMNS, &cells, &below);
    let by_rules = |row: &Row| row.endpoints.ready.is_none() && row.endpoints.total.is_some();
    if rows.iter().any(by_rules) {
        page.para(
            "",
            "READY ?: the rules do not show which endpoints are ready",
        );
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
        // The object of a Service shows its addresses.
        let known = row.r#type.is_some();
        return if known { "-" } else { "?" }.to_owned();
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
