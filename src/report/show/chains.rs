//! Chains with whose they are.

use serde::Serialize;

use super::{Asked, Gaps, modes::Relevant};
use crate::backend::nftables::model::{self as nft, Statement};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::software::{Maker, maker_of_chain};
use crate::owner::{Owner, Owners, PortName};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    family: Family,
    table: String,
    pub(super) chain: String,
    maker: Maker,
    pub(super) service: Option<PortName>,
    endpoint: Option<std::net::SocketAddr>,
    pod: Option<String>,
    /// Whether it belongs to a Service or endpoint that is not there.
    gone: bool,
    rules: usize,
    packets: Option<u64>,
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    relevant: &Relevant,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for family in asked.families() {
        if let Some(rules) = relevant.iptables(node, family, gaps) {
            for table in &rules.tables {
                let chains = table.chains.iter().map(|chain| {
                    let counted = chain.rules.iter().filter_map(|rule| rule.counters);
                    let packets = counted.map(|counters| counters.packets).reduce(u64::max);
                    let maker = maker_of_chain(&table.name, &chain.name);
                    let count = chain.rules.len();
                    let names = (table.name.as_ref(), chain.name.as_ref());
                    row(
                        family,
                        names,
                        maker,
                        owners.chain(&chain.name),
                        (count, packets),
                    )
                });
                rows.extend(chains);
            }
        }
        let Some(nft) = relevant.nft(node, gaps) else {
            continue;
        };
        let of = if family == Family::V4 { "ip" } else { "ip6" };
        for chain in nft.table(of, "kube-proxy").map_or(&[][..], |t| &t.chains) {
            let names = ("nft kube-proxy", chain.name.as_str());
            let owner = owners.nft_chain(&chain.name);
            let counts = (chain.rules.len(), counted(chain));
            rows.push(row(family, names, Maker::KubeProxy, owner, counts));
        }
    }
    rows.retain(|row| {
        let port = row.service.as_ref().map(|name| (name, asked.name));
        match port {
            Some((name, Some(asked))) if name.answers(asked) => true,
            _ => asked.wants(None, &[&row.chain]),
        }
    });
    rows.sort_by(|a, b| (a.family, &a.table, &a.chain).cmp(&(b.family, &b.table, &b.chain)));
    rows
}

/// Returns the largest count of a chain's rules; kube-proxy's count nothing unless somebody adds a counter.
fn counted(chain: &nft::Chain) -> Option<u64> {
    let statements = chain.rules.iter().flat_map(|rule| &rule.statements);
    let counts = statements.filter_map(|of| match of {
        Statement::Counter { packets, .. } => Some(*packets),
        _ => None,
    });
    counts.reduce(u64::max)
}

fn row(
    family: Family,
    (table, chain): (&str, &str),
    maker: Maker,
    owner: Owner<'_>,
    (rules, packets): (usize, Option<u64>),
) -> Row {
    let endpoint = match owner {
        Owner::Endpoint(_, endpoint) => Some(endpoint),
        _ => None,
    };
    Row {
        family,
        table: table.to_owned(),
        chain: chain.to_owned(),
        maker,
        service: owner.port().map(|port| port.name.clone()),
        endpoint: endpoint.map(|endpoint| endpoint.addr),
        pod: endpoint.and_then(|endpoint| endpoint.pod.as_deref().map(str::to_owned)),
        gone: matches!(owner, Owner::Gone(_)),
        rules,
        packets,
    }
}

/// The names of nftables chains say their Service and endpoint again behind the hash.
fn short(chain: &str, owned: bool, wide: bool) -> &str {
    match chain.match_indices('-').nth(1) {
        Some((at, _)) if owned && !wide && chain.contains('/') => &chain[..at],
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
        let whose = match (&row.service, row.endpoint, row.maker) {
            (Some(name), Some(endpoint), _) => format!("{name} {endpoint}"),
            (Some(name), None, _) => name.to_string(),
            (None, ..) if row.gone => "a Service or endpoint that is gone".to_owned(),
            (.., Maker::KubeProxy) => "kube-proxy".to_owned(),
            (.., Maker::Both) => "kube-proxy, kubelet".to_owned(),
            (.., Maker::Kubelet) => "kubelet".to_owned(),
            (.., Maker::Kernel) => "built in".to_owned(),
            (.., Maker::Other(who)) => who.to_owned(),
            (.., Maker::Unknown) => "?".to_owned(),
        };
        vec![
            row.table.clone(),
            short(&row.chain, row.service.is_some(), page.style().wide).to_owned(),
            row.rules.to_string(),
            row.packets
                .map_or_else(|| "-".to_owned(), |n| n.to_string()),
            whose,
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
            ("OF", 0),
            ("POD", 6),
        ],
        &cells,
    );
}
