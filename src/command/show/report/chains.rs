//! Chains with their owners.

use crate::render::Page;
use crate::view::chains::Row;
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::Maker;

/// Returns the name of an nftables chain without the Service and endpoint behind its hash.
pub(super) fn short(chain: &str) -> &str {
    match chain.match_indices('-').nth(1) {
        Some((at, _)) if chain.contains('/') => &chain[..at],
        _ => chain,
    }
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    for family in Family::BOTH {
        let of: Vec<&Row> = rows.iter().filter(|row| row.family == family).collect();
        if !of.is_empty() {
            page.line(&family.to_string());
            table(&of, page);
        }
    }
}

fn table(rows: &[&Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let owner = match (&row.service, row.endpoint, row.maker) {
            (Some(name), Some(endpoint), _) => format!("{name} {endpoint}"),
            (Some(name), None, _) => name.to_string(),
            (None, ..) if row.gone => {
                "a Service or endpoint that is deleted, or not shown".to_owned()
            }
            (.., Maker::KubeProxy) => "kube-proxy".to_owned(),
            (.., Maker::Both) => "kube-proxy, kubelet".to_owned(),
            (.., Maker::Kubelet) => "kubelet".to_owned(),
            (.., Maker::Kernel) => "built in".to_owned(),
            (.., Maker::Other(who)) => who.to_owned(),
            (.., Maker::Unknown) => "?".to_owned(),
        };
        let chain = if row.service.is_some() && !page.style().wide {
            short(&row.chain)
        } else {
            &row.chain
        };
        vec![
            row.table.clone(),
            chain.to_owned(),
            row.rules.to_string(),
            row.packets
                .map_or_else(|| "-".to_owned(), |n| n.to_string()),
            owner,
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("TABLE", 0),
            ("CHAIN", 0),
            ("RULES", 2),
            ("PACKETS", 4),
            ("OWNER", 0),
            ("POD", 6),
        ],
        &cells,
    );
}
