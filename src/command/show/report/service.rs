//! A Service's page.

use std::net::SocketAddr;

use super::{affinity, assessed, conntrack, form, nodeports};
use crate::render::Page;
use crate::view::maps::InMap;
use crate::view::service::{self, Endpoint, Spec};
use crate::view::services::Row;
use kpx_node::owner::EndpointState;

/// Adds where the map of a service proxy of eBPF leads an address or NodePort.
fn in_map(of: &InMap, page: &mut Page) {
    let at = match of.address {
        Some(address) => SocketAddr::new(address, of.port).to_string(),
        None => format!("NodePort {} ({})", of.port, of.family),
    };
    let to = match of.backends.as_deref() {
        Some(_) if of.l7_proxy => "an L7 proxy on the node".to_owned(),
        Some(_) if of.drops => "dropped".to_owned(),
        None => "no front end".to_owned(),
        Some([]) => "no backend".to_owned(),
        Some(all) => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            all.join(", ")
        }
    };
    page.hang("  ", "    ", &format!("{}: {at} → {to}", of.proxy));
}

/// Adds the page of the Service of `rows`, below their table.
pub(super) fn page(of: &service::Page, rows: &[Row], page: &mut Page) {
    page.line("");
    if let Some(spec) = &of.spec {
        settings(spec, page);
        page.line("");
    }
    match &of.endpoints {
        None => page.line("endpoints unknown"),
        Some(all) if all.is_empty() => page.line("no endpoints"),
        Some(all) => endpoints(all, page),
    }
    page.line("");
    form::page(of.form.as_deref(), page);
    if rows.iter().any(|row| !row.in_maps.is_empty()) {
        page.line("");
        page.line("maps of service proxies");
        rows.iter()
            .flat_map(|row| &row.in_maps)
            .for_each(|entry| in_map(entry, page));
    }
    if !of.node_ports.is_empty() {
        page.line("");
        nodeports::page(&of.node_ports, page);
    }
    if !of.affinity.is_empty() {
        page.line("");
        affinity::page(&of.affinity, page);
    }
    let connections = of.connections.as_deref().unwrap_or_default();
    if connections
        .iter()
        .any(|connection| connection.connections > 0)
    {
        page.line("");
        conntrack::counts(connections, page);
    }
    if let Some(assessed) = &of.assessed {
        page.line("");
        assessed::page(assessed, page);
    }
    if let Some(next) = &of.next {
        page.line("");
        page.next(next);
    }
}

fn settings(spec: &Spec, page: &mut Page) {
    let mut policies = vec![format!(
        "inside the cluster {}",
        spec.internal_traffic_policy
    )];
    let external = spec.external_traffic_policy.as_ref();
    policies.extend(external.map(|policy| format!("from outside {policy}")));
    page.hang("policies  ", "          ", &policies.join(", "));
    if let Some(seconds) = spec.affinity_seconds {
        let text = format!("a client keeps its backend for {seconds}s");
        page.hang("affinity  ", "          ", &text);
    }
    if let Some(way) = &spec.traffic_distribution {
        page.hang("prefers   ", "          ", way);
    }
    if !spec.source_ranges.is_empty() {
        let text = format!(
            "the load balancer lets in {}",
            spec.source_ranges.join(", ")
        );
        page.hang("sources   ", "          ", &text);
    }
    let selector = match &spec.selector {
        Some(labels) => {
            let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
            labels.collect::<Vec<_>>().join(",")
        }
        None if spec.in_part => "not shown".to_owned(),
        None => "none: its endpoints are managed by hand".to_owned(),
    };
    page.hang("selector  ", "          ", &selector);
}

fn endpoints(all: &[Endpoint], page: &mut Page) {
    let cells = all.iter().map(|endpoint| {
        let state = match endpoint.state {
            None => "?".to_owned(),
            Some(EndpointState::Ready) => "ready".to_owned(),
            Some(state) => state.to_string(),
        };
        let node = endpoint.node.as_deref().unwrap_or("-");
        let here = if endpoint.local == Some(true) {
            " (this)"
        } else {
            ""
        };
        vec![
            endpoint.address.to_string(),
            endpoint.service.port.to_string(),
            state,
            format!("{node}{here}"),
            endpoint.zone.clone().unwrap_or_default(),
            endpoint.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("ENDPOINT", 0),
            ("PORT", 1),
            ("STATE", 0),
            ("NODE", 0),
            ("ZONE", 2),
            ("POD", 0),
        ],
        &cells,
    );
}
