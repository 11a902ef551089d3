//! Portals of the userspace mode.

use std::net::SocketAddr;

use super::nodeports::listener;
use crate::render::Page;
use crate::view::portals::Row;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let service = row.service.as_ref().map(ToString::to_string);
        vec![
            service.unwrap_or_else(|| "?".to_owned()),
            address(row),
            row.proxy_port.to_string(),
            listener(row.listeners.as_deref(), row.listening),
            row.chains.join(", "),
        ]
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("SERVICE", 0),
        ("ADDRESS", 0),
        ("PORT OF KUBE-PROXY", 0),
        ("LISTENER", 0),
        ("CHAINS", 0),
    ];
    page.grid(&columns, &cells);
}

/// Returns the address and port of a portal: `10.96.0.1:443/tcp`, or `NodePort 30080/tcp`.
pub(super) fn address(row: &Row) -> String {
    match row.address {
        Some(addr) => format!("{}/{}", SocketAddr::new(addr, row.port), row.protocol),
        None => format!("NodePort {}/{}", row.port, row.protocol),
    }
}
