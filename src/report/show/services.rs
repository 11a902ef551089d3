//! Services.

use std::net::IpAddr;

use super::programmed::in_words;
use crate::render::Page;
use crate::view::programmed::Programmed;
use crate::view::services::Row;

/// The columns of the table, each with its rank.
pub(super) const COLUMNS: [(&str, u8); 9] = [
    ("SERVICE", 0),
    ("ADDRESS", 0),
    ("NODEPORT", 0),
    ("READY", 0),
    ("TRAFFIC", 0),
    ("LEFTOVERS", 1),
    ("LOCAL", 5),
    ("TYPE", 6),
    ("OBJECTS", 7),
];

/// Returns the cells of the table; `wide` has every address and object.
pub(super) fn cells(rows: &[Row], wide: bool) -> Vec<Vec<String>> {
    let cells = rows.iter().map(|row| {
        let known = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
        let in_force: Vec<_> = row.programmed.iter().filter(|of| !of.leftover).collect();
        let several = in_force.len() > 1;
        let traffic = in_force.iter().map(|of| {
            if several {
                format!("{}: {}", of.mode, in_words(of))
            } else {
                in_words(of)
            }
        });
        let left_to = row.left_to.as_ref().map(|who| format!("served by {who}"));
        let traffic: Vec<String> = traffic.chain(left_to).collect();
        let left = row.programmed.iter().filter(|of| of.leftover);
        let left: Vec<&str> = left.map(|of| of.mode.name()).collect();
        let objects = row.programmed.iter().flat_map(Programmed::objects);
        let objects: Vec<&str> = if wide { objects.collect() } else { Vec::new() };
        let node_port = row.node_port.map(|port| port.to_string());
        let (ready, total) = (known(row.endpoints.ready), known(row.endpoints.total));
        vec![
            row.service.to_string(),
            address(row, wide),
            node_port.unwrap_or_else(|| "-".to_owned()),
            format!("{ready}/{total}"),
            traffic.join("; "),
            left.join(","),
            known(row.endpoints.local),
            row.r#type.as_deref().unwrap_or("?").to_owned(),
            objects.join(" "),
        ]
    });
    cells.collect()
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = cells(rows, page.style().wide);
    page.grid(&COLUMNS, &cells);
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
