//! Chains with their owners.

use serde::Serialize;

use super::{Gaps, Joined};
use kpx_node::backend::nftables::model::{self as nft, Statement};
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::{Maker, maker_of_chain};
use kpx_node::owner::{Owner, PortName};

/// A chain.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) family: Family,
    pub(crate) table: String,
    pub(crate) chain: String,
    pub(crate) maker: Maker,
    pub(crate) service: Option<PortName>,
    pub(crate) endpoint: Option<std::net::SocketAddr>,
    pub(crate) pod: Option<String>,
    /// Whether its Service or endpoint no longer exists.
    pub(crate) gone: bool,
    pub(crate) rules: usize,
    pub(crate) packets: Option<u64>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let mut rows = Vec::new();
    for family in joined.query.families() {
        if let Some(rules) = joined.relevant.iptables(joined.node, family, gaps) {
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
                        joined.owners.chain(&chain.name),
                        (count, packets),
                    )
                });
                rows.extend(chains);
            }
        }
        let Some(nft) = joined.relevant.nft(joined.node, gaps) else {
            continue;
        };
        let of = family.nft_name();
        for chain in nft.table(of, "kube-proxy").map_or(&[][..], |t| &t.chains) {
            let names = ("nft kube-proxy", chain.name.as_str());
            let owner = joined.owners.nft_chain(&chain.name);
            let counts = (chain.rules.len(), counted(chain));
            rows.push(row(family, names, Maker::KubeProxy, owner, counts));
        }
    }
    rows.retain(|row| {
        let service = row.service.as_ref();
        service.is_some_and(|name| joined.query.is_of(name))
            || joined.query.wants(None, &[&row.chain])
    });
    rows.sort_by(|a, b| (a.family, &a.table, &a.chain).cmp(&(b.family, &b.table, &b.chain)));
    rows
}

/// Returns the largest packet count of a chain's rules; `None` without counters, which kube-proxy does not write.
fn counted(chain: &nft::Chain) -> Option<u64> {
    let statements = chain.rules.iter().flat_map(|rule| &rule.statements);
    let counts = statements.filter_map(|statement| match statement {
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
