//! Portals of the userspace mode.

use std::net::SocketAddr;

use super::nodeports::listener;
use crate::render::Page;
use crate::view::nodeports::Listening;
use crate::view::portals::Row;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let service = row.service.as_ref().map(ToString::to_string);
        vec![
            service.unwrap_or_else(|| "?".to_owned()),
            address(row),
            row.proxy_port.to_string(),
            row.chains.join(", "),
            listener(row.listeners.as_deref(), row.listening),
        ]
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("SERVICE", 0),
        ("ADDRESS", 0),
        ("LEADS TO", 0),
        ("CHAINS", 0),
        ("LISTENER", 1),
    ];
    page.grid(&columns, &cells);
    for row in rows {
        let what = match row.listening {
            Some(Listening::Missing) => "kube-proxy does not listen",
            Some(Listening::Foreign) => "a program other than kube-proxy listens",
            Some(Listening::Expected) | None => continue,
        };
        let (at, port) = (address(row), row.proxy_port);
        page.para("! ", &format!("{at} leads to port {port}, where {what}"));
    }
}

/// Returns the address and port of a portal: `10.96.0.1:443/tcp`, or `NodePort 30080/tcp`.
pub(super) fn address(row: &Row) -> String {
    match row.address {
        Some(addr) => format!("{}/{}", SocketAddr::new(addr, row.port), row.protocol),
        None => format!("NodePort {}/{}", row.port, row.protocol),
    }
}
