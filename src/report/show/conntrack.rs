//! Tracked connections of Services, and those whose backend is gone.

use std::net::SocketAddr;

use serde::Serialize;

use super::{Asked, Gaps};
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;
use crate::owner::{Owners, PortName, State};
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) service: PortName,
    protocol: Proto,
    node_port: bool,
    source: SocketAddr,
    destination: SocketAddr,
    /// `null` where the destination was not translated.
    backend: Option<SocketAddr>,
    pod: Option<String>,
    state: Option<String>,
    timeout: Option<u32>,
    standing: Standing,
}

/// What became of the backend.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Standing {
    /// It is an endpoint of the Service.
    Endpoint,
    /// It is an endpoint that ends.
    Terminating,
    /// It is an endpoint that is not ready.
    NotReady,
    /// It is none any more: packets go nowhere until the entry ends.
    Stale,
    /// No rule took the first packet: all others of the connection pass the Service by as well.
    NotTranslated,
    /// Endpoints are not known.
    Unknown,
}

impl Standing {
    fn words(self) -> &'static str {
        match self {
            Self::Endpoint => "",
            Self::Terminating => "terminating",
            Self::NotReady => "not ready",
            Self::Stale => "STALE",
            Self::NotTranslated => "NOT TRANSLATED",
            Self::Unknown => "?",
        }
    }
}

pub(super) fn rows(
    node: &NodeSnapshot<'_>,
    owners: &Owners,
    asked: Asked<'_>,
    gaps: &mut Gaps,
) -> Vec<Row> {
    let Some(tracked) = gaps.take(node.conntrack()) else {
        return Vec::new();
    };
    // Without slices no backend can be told to be gone.
    let endpoints_known = node.services().is_err() || node.slices().is_ok();
    let mut others = 0;
    let mut rows = Vec::new();
    for entry in &tracked.entries {
        let to = entry.original.destination;
        let answers = entry.reply.source;
        let by_address = owners.at(to.ip(), to.port(), entry.proto);
        // A NodePort's connection goes to an address of the node and was translated.
        let by_node_port = || {
            owners
                .node_port(to.port(), entry.proto)
                .filter(|_| answers != to)
        };
        let Some(port) = by_address.map(|(port, _)| port).or_else(by_node_port) else {
            others += 1;
            continue;
        };
        let text = to.ip().to_string();
        if !asked.takes(Family::of(to.ip())) || !asked.wants(Some(port), &[&text]) {
            continue;
        }
        let endpoint = port.endpoints.iter().find(|of| of.addr == answers);
        let standing = match endpoint {
            _ if answers == to => Standing::NotTranslated,
            Some(of) => match of.state {
                None | Some(State::Ready) => Standing::Endpoint,
                Some(State::NotReady) => Standing::NotReady,
                Some(State::ServingTerminating | State::Terminating) => Standing::Terminating,
            },
            None if endpoints_known => Standing::Stale,
            None => Standing::Unknown,
        };
        rows.push(Row {
            service: port.name.clone(),
            protocol: entry.proto,
            node_port: by_address.is_none(),
            source: entry.original.source,
            destination: to,
            backend: (answers != to).then_some(answers),
            pod: endpoint.and_then(|of| of.pod.as_deref().map(str::to_owned)),
            state: entry.state.clone(),
            timeout: entry.timeout,
            standing,
        });
    }
    if rows.is_empty() && asked.name.is_none() {
        gaps.note(format!(
            "no tracked connection goes to a Service ({others} go elsewhere)"
        ));
    }
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.protocol, row.source, row.destination, row.backend);
        (&a.service, key(a)).cmp(&(&b.service, key(b)))
    });
    rows
}

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        vec![
            row.service.to_string(),
            row.source.to_string(),
            format!("{}/{}", row.destination, row.protocol),
            row.backend.map_or("-".to_owned(), |at| at.to_string()),
            row.standing.words().to_owned(),
            row.state.clone().unwrap_or_else(|| "-".to_owned()),
            row.timeout
                .map_or("?".to_owned(), |left| format!("{left}s")),
            row.pod.clone().unwrap_or_default(),
        ]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(
        &[
            ("SERVICE", 0),
            ("FROM", 0),
            ("TO", 3),
            ("BACKEND", 0),
            ("", 0),
            ("STATE", 4),
            ("LEFT", 5),
            ("POD", 6),
        ],
        &cells,
    );
    let has = |of| rows.iter().any(|row| row.standing == of);
    if has(Standing::Stale) {
        page.para(
            "",
            "STALE: the backend is no endpoint of the Service any more; packets of the connection go there until its \
             entry ends (`conntrack -D` ends it)",
        );
    }
    if has(Standing::NotTranslated) {
        page.para(
            "",
            "NOT TRANSLATED: the connection began before the Service's rules were there; it stays so until its entry \
             ends",
        );
    }
}
