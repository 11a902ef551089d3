//! Virtual servers and their real servers.

use crate::render::Page;
use crate::view::ipvs::{Real, Row};
use kpx_node::backend::ipvs::model::Connections;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let mut reals = rows.iter().flat_map(|row| &row.real_servers);
    let open_known = reals.any(|real| real.connections.is_some());
    let mut cells = Vec::new();
    for row in rows {
        let service = match (&row.service, row.extra) {
            (Some(name), _) if row.node_port => format!("{name} (NodePort)"),
            (Some(name), _) => name.to_string(),
            (None, Some(true)) => "EXTRA: no Service has it".to_owned(),
            (None, _) => "?".to_owned(),
        };
        let scheduler = match row.persistence {
            0 => row.scheduler.clone(),
            seconds => format!("{} {seconds}s", row.scheduler),
        };
        let state = if row.real_servers.is_empty() {
            "rejects: no real server"
        } else {
            ""
        };
        cells.push(vec![
            row.server.clone(),
            scheduler,
            String::new(),
            String::new(),
            String::new(),
            service,
            state.to_owned(),
        ]);
        let reals = row.real_servers.iter();
        cells.extend(reals.map(|real| cells_of(real, open_known)));
    }
    page.grid(
        &[
            ("SERVER", 0),
            ("SCHED", 3),
            ("ACTIVE", 1),
            ("INACT", 2),
            ("TOTAL", 4),
            ("SERVICE, POD", 0),
            ("STATE", 0),
        ],
        &cells,
    );
    notes(rows, open_known, page);
}

fn cells_of(real: &Real, open_known: bool) -> Vec<String> {
    let open = |count: fn(Connections) -> u32| match real.connections {
        Some(connections) => count(connections).to_string(),
        None if open_known => "?".to_owned(),
        None => String::new(),
    };
    let state = match (real.stale, real.state) {
        (Some(true), _) => "STALE: no endpoint".to_owned(),
        (_, Some(state)) => state.to_string(),
        _ => "?".to_owned(),
    };
    let weight = if real.weight == 0 {
        ", no new connections"
    } else {
        ""
    };
    let total = real.scheduled.map(|count| count.to_string());
    let pod = real.pod.clone();
    vec![
        format!("  {}", real.address),
        format!("weight {}", real.weight),
        open(|connections| connections.active),
        open(|connections| connections.inactive),
        total.unwrap_or_default(),
        pod.unwrap_or_else(|| match real.stale {
            Some(false) => "(no pod)".to_owned(),
            _ => String::new(),
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
            "Open connections are not shown: `ipvsadm -Sn` does not list them. kpx reads them on the live node or from \
             a bundle of `kpx snapshot`.",
        );
    }
    let named = rows.iter().all(|row| row.extra.is_some());
    if named && reals.any(|real| real.stale.is_none()) {
        page.para("", "STATE ?: the endpoints are unknown.");
    }
}
