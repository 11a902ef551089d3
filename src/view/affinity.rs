//! Clients that session affinity binds to a backend.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::conntrack::{Backend, BackendStatus};
use super::{Gaps, Joined};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Match, RecentAction};
use kpx_node::backend::nftables::model::{Element, Expr};
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::{NftName, Owner, Owners, Port, PortName};

/// A client and the backend of a Service to which its new connections go.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    pub(crate) client: IpAddr,
    pub(crate) backend: SocketAddr,
    pub(crate) pod: Option<String>,
    /// Seconds until the client is forgotten if it opens no connection; `null` if unknown.
    pub(crate) seconds_left: Option<u64>,
    /// `null` if the Service's endpoints are unknown.
    pub(crate) backend_status: Option<BackendStatus>,
}

/// The clients that a mode remembers.
struct Bound<'o> {
    port: &'o Port,
    client: IpAddr,
    backend: SocketAddr,
    left: Option<u64>,
}

pub(crate) fn rows(joined: Joined<'_, '_>, gaps: &mut Gaps) -> Vec<Row> {
    let bound = match joined.relevant.current() {
        Some(Mode::Iptables) => recent(joined.node, joined.owners, gaps),
        Some(Mode::Ipvs) => templates(joined.node, joined.owners, gaps),
        Some(Mode::Nftables) => sets(joined.node, joined.owners, gaps),
        Some(Mode::Userspace) => {
            gaps.note(
                "in mode userspace, only kube-proxy's process knows which clients are bound"
                    .to_owned(),
            );
            None
        }
        None => {
            gaps.note("the mode is unknown, and with it where clients are remembered".to_owned());
            None
        }
    };
    let Some(bound) = bound else {
        return Vec::new();
    };
    let wanted = bound.into_iter().filter(|bound| {
        let client = bound.client.to_string();
        joined.query.takes(Family::of(bound.client))
            && joined.query.wants(Some(bound.port), &[&client])
    });
    let rows = wanted.map(|bound| {
        let backend = Backend::at(bound.backend, bound.port, joined.node);
        Row {
            service: bound.port.name.clone(),
            protocol: bound.port.proto,
            client: bound.client,
            backend: bound.backend,
            pod: backend.pod,
            seconds_left: bound.left,
            backend_status: backend.status,
        }
    });
    let mut rows: Vec<_> = rows.collect();
    if rows.is_empty() && joined.query.name.is_none() {
        gaps.note("session affinity binds no client now".to_owned());
    }
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.protocol, row.client, row.backend);
        (&a.service, key(a)).cmp(&(&b.service, key(b)))
    });
    rows
}

/// Returns the entries of lists of `xt_recent`, as long as the rules that check them use them.
fn recent<'o>(
    node: &NodeSnapshot<'_>,
    owners: &'o Owners,
    gaps: &mut Gaps,
) -> Option<Vec<Bound<'o>>> {
    let recent = gaps.take(node.recent())?;
    let mut seconds = HashMap::new();
    for family in Family::BOTH {
        let Ok(rules) = node.iptables(IptablesBackend::InUse, family) else {
            continue;
        };
        let chains = rules.tables.iter().flat_map(|table| &table.chains);
        for of in chains
            .flat_map(|chain| &chain.rules)
            .flat_map(|rule| &rule.matches)
        {
            if let Match::Recent(of) = of
                && of.action.value == RecentAction::Check
                && let Some(limit) = of.seconds
            {
                seconds.insert(of.name.to_string(), limit);
            }
        }
    }
    let bound = recent.clients.iter().filter_map(|client| {
        let Owner::Endpoint(port, endpoint) = owners.chain(&client.list) else {
            return None;
        };
        let limit = seconds.get(&client.list).copied().map(f64::from);
        let left = limit.zip(client.age).map(|(limit, age)| limit - age);
        // It stays in the list until the next packet.
        if left.is_some_and(|left| left <= 0.0) {
            return None;
        }
        Some(Bound {
            port,
            client: client.addr,
            backend: endpoint.addr,
            left: left.map(whole),
        })
    });
    Some(bound.collect())
}

/// Returns whole seconds; times of kube-proxy fit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and at most a day"
)]
fn whole(seconds: f64) -> u64 {
    seconds.round() as u64
}

/// Returns the persistence templates of IPVS: connections from port 0.
fn templates<'o>(
    node: &NodeSnapshot<'_>,
    owners: &'o Owners,
    gaps: &mut Gaps,
) -> Option<Vec<Bound<'o>>> {
    let connections = gaps.take(node.ipvs_connections())?;
    let templates = connections
        .all
        .iter()
        .filter(|connection| connection.client.port() == 0);
    let bound = templates.filter_map(|template| {
        let (port, _) = owners.served_at(template.server, template.proto)?;
        Some(Bound {
            port,
            client: template.client.ip(),
            backend: template.real,
            left: Some(template.expires.into()),
        })
    });
    Some(bound.collect())
}

/// Returns the entries of the affinity sets in kube-proxy's nftables table.
fn sets<'o>(
    node: &NodeSnapshot<'_>,
    owners: &'o Owners,
    gaps: &mut Gaps,
) -> Option<Vec<Bound<'o>>> {
    let rules = gaps.take(node.nft())?;
    let tables = rules
        .tables
        .iter()
        .filter(|table| table.name == "kube-proxy");
    let bound = tables.flat_map(|table| &table.sets).filter_map(|set| {
        let name = NftName::parse(&set.name).filter(|name| name.prefix == "affinity-")?;
        let port = owners.named(&name.name, name.proto)?;
        let backend = name.endpoint?;
        let of = move |element: &Element| {
            let Expr::Word(client) = &element.key else {
                return None;
            };
            Some(Bound {
                port,
                client: client.parse().ok()?,
                backend,
                left: element.expires,
            })
        };
        Some(set.elements.iter().filter_map(of))
    });
    Some(bound.flatten().collect())
}
