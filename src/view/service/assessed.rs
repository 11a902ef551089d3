//! The problems of a Service: its drift, the doctor's findings, and where packets to it end.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Serialize;

use super::Page;
use crate::view::services::Row;
use kpx_judge::check::{Check, Outcome};
use kpx_judge::diff;
use kpx_judge::verdict::{Client, Fate};
use kpx_judge::why::{Answer, Asked, Look, Path, Related};
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::PortName;

/// The clients whose packets are traced.
const CLIENTS: [Client; 3] = [Client::Pod, Client::Host, Client::Outside];

/// The problems of a Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Assessed {
    pub(crate) drift: Drift,
    pub(crate) findings: Findings,
    /// Where packets of each kind of client end: from a pod, from the node, from outside.
    pub(crate) traces: Vec<Traced>,
}

/// How the live state of a Service differs from the desired one.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drift {
    /// `null` if nothing was compared.
    pub(crate) changes: Option<Vec<diff::Row>>,
    /// The number of differences that concern no Service in particular, such as a missing jump.
    pub(crate) elsewhere: usize,
    /// Parts that were not compared, and why.
    pub(crate) unknown: Vec<String>,
}

/// The doctor's findings that concern a Service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Findings {
    /// `null` if the cluster's Services are unknown.
    pub(crate) found: Option<Vec<Related>>,
    /// Checks without a result, and why.
    pub(crate) unknown: Vec<Undecided>,
}

/// A check without a result.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Undecided {
    pub(crate) id: &'static str,
    pub(crate) reason: String,
}

/// The end of packets from one kind of client.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Traced {
    pub(crate) client: Client,
    /// The client's name and address; `null` if nothing was traced.
    pub(crate) from: Option<String>,
    /// The ends: of packets that reach no endpoint first.
    pub(crate) ends: Vec<End>,
    /// Why nothing was traced; `null` if something was.
    pub(crate) untraced: Option<String>,
    /// Whether that is unknown, rather than that no such client has a way to the Service.
    #[serde(skip)]
    pub(crate) is_unknown: bool,
}

/// The same end of packets to some addresses of a Service.
#[derive(Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    /// `ADDRESS:PORT/PROTOCOL`
    pub(crate) to: Vec<String>,
    /// The fate of the connections.
    pub(crate) fate: Fate,
    /// The endpoints that packets are sent to.
    pub(crate) backends: Vec<SocketAddr>,
    /// Why they fail, or why that is unknown.
    pub(crate) reason: Option<String>,
}

impl Page {
    /// Adds the problems of the Service of `rows`; `outcomes` are those of the doctor's checks on `node`.
    pub(crate) fn assess<'n>(
        &mut self,
        node: &'n NodeSnapshot<'n>,
        rows: &[Row],
        families: &[Family],
        outcomes: &'n [(&'static Check, Outcome)],
    ) {
        let Some(first) = rows.first() else {
            return;
        };
        let ports: BTreeSet<String> = rows.iter().map(|row| row.service.to_string()).collect();
        let asked = Asked::Service {
            namespace: first.service.namespace.to_string(),
            name: first.service.name.to_string(),
            port: None,
        };
        let look = Look::new(node, families, outcomes).map_err(|why| why.to_string());
        let answer = look.as_ref().map_err(Clone::clone).and_then(|look| {
            let answer = look.why(&asked, None);
            answer.map_err(|why| why.to_string())
        });
        let drift = match &look {
            Ok(look) => drift(look.diff(), &first.service, &ports),
            Err(why) => Drift {
                changes: None,
                elsewhere: 0,
                unknown: vec![why.clone()],
            },
        };
        self.assessed = Some(Assessed {
            drift,
            traces: CLIENTS
                .map(|client| traced(client, answer.as_ref(), &ports))
                .into(),
            findings: Findings {
                found: answer.ok().map(|answer| answer.findings),
                unknown: undecided(outcomes),
            },
        });
    }
}

impl Assessed {
    /// Returns whether a part is unknown because data is missing.
    pub(crate) fn is_unknown(&self) -> bool {
        let mut traces = self.traces.iter();
        !self.drift.unknown.is_empty()
            || self.findings.found.is_none()
            || traces.any(|trace| {
                trace.is_unknown || trace.ends.iter().any(|end| end.fate == Fate::Unknown)
            })
    }
}

fn drift(diff: Result<&diff::Diff, &Gap>, of: &PortName, ports: &BTreeSet<String>) -> Drift {
    let diff = match diff {
        Ok(diff) => diff,
        Err(gap) => {
            return Drift {
                changes: None,
                elsewhere: 0,
                unknown: vec![gap.to_string()],
            };
        }
    };
    let whole = format!("{}/{}", of.namespace, of.name);
    let is_ours = |service: &String| *service == whole || ports.contains(service);
    let ours = diff
        .changes
        .iter()
        .filter(|change| change.service.as_ref().is_some_and(is_ours));
    let no_service = diff
        .changes
        .iter()
        .filter(|change| change.service.is_none());
    let unknown = diff.unknown.iter();
    Drift {
        changes: Some(ours.map(diff::Row::new).collect()),
        elsewhere: no_service.count(),
        unknown: unknown
            .map(|part| format!("{}: {}", part.what, part.gap))
            .collect(),
    }
}

fn undecided(outcomes: &[(&'static Check, Outcome)]) -> Vec<Undecided> {
    let all = outcomes.iter().filter_map(|(check, outcome)| {
        let Outcome::Unknown(why) = outcome else {
            return None;
        };
        Some(Undecided {
            id: check.id,
            reason: why.to_string(),
        })
    });
    all.collect()
}

/// Returns where packets from `client` to `ports` end.
fn traced(client: Client, answer: Result<&Answer, &String>, ports: &BTreeSet<String>) -> Traced {
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return Traced::nothing(client, why.clone(), true),
    };
    let ours = || {
        let paths = answer.paths.iter();
        paths.filter(|path| ports.contains(&path.service))
    };
    let mut ends: Vec<End> = Vec::new();
    let mut from = None;
    for path in ours().filter(|path| path.client == client) {
        from.get_or_insert_with(|| path.from.clone());
        let end = End::of(path);
        let is_same = |other: &&mut End| {
            (other.fate, &other.backends, &other.reason) == (end.fate, &end.backends, &end.reason)
        };
        match ends.iter_mut().find(is_same) {
            Some(same) => same.to.extend(end.to),
            None => ends.push(end),
        }
    }
    if ends.is_empty() {
        let any = ours().next().is_some();
        let (why, is_unknown) = match client {
            Client::Outside if any => (
                "no address of the Service is for clients outside the cluster".to_owned(),
                false,
            ),
            Client::Pod if any => ("no pod of this node is known".to_owned(), true),
            _ => (answer.sentence.clone(), false),
        };
        return Traced::nothing(client, why, is_unknown);
    }
    // Ends of connections that work come last.
    ends.sort_by_key(|end| std::cmp::Reverse(end.fate));
    Traced {
        client,
        from,
        ends,
        untraced: None,
        is_unknown: false,
    }
}

impl Traced {
    const fn nothing(client: Client, why: String, is_unknown: bool) -> Self {
        Self {
            client,
            from: None,
            ends: Vec::new(),
            untraced: Some(why),
            is_unknown,
        }
    }
}

impl End {
    fn of(path: &Path) -> Self {
        Self {
            to: vec![path.target().to_string()],
            fate: path.fate,
            backends: path.backends.clone(),
            reason: path.reason.clone(),
        }
    }
}
