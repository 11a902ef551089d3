//! The paths of one packet on several nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::onward::Over;
use super::{SourceTrace, TraceReport, all};
use crate::render::Page;
use crate::report::fate::tone;
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell};
use kpx_judge::verdict::Fate;

/// Groups of nodes on which the packets end alike.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TraceOfNodes {
    /// The groups, the smallest first.
    pub groups: Vec<Group>,
    #[serde(skip)]
    found: BTreeMap<Vec<PathRow>, (Vec<String>, Nodes)>,
}

/// Nodes on which the packets end alike.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Group {
    /// The nodes.
    pub nodes: Nodes,
    /// The end of the packets, by their source.
    pub paths: Vec<PathRow>,
    /// One path from the first of these nodes over another one, a line for each step; empty if no packet goes to another node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<String>,
}

/// The end of the packets of some sources.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PathRow {
    /// The sources: `pod`, `host`, `outside`, or an address.
    pub from: Vec<String>,
    /// The fate of the connections.
    pub fate: Fate,
    /// The service port, if the target has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Why they fail, or the backends.
    pub outcomes: Vec<String>,
}

impl Together for TraceOfNodes {
    type Of = TraceReport;
    type Part = (Vec<PathRow>, Option<Over>);

    fn part(report: TraceReport) -> Self::Part {
        let has_several = !report.ports.is_empty();
        let mut paths: Vec<PathRow> = Vec::new();
        for report in std::iter::once(&report).chain(&report.ports) {
            let service = report.service.as_ref().filter(|_| has_several);
            let port = service.map(|service| service.port.clone());
            for source in all(report) {
                // The address behind the kind of source is the node's.
                let from = source.sender.clone();
                let (fate, outcomes) = (source.fate, outcomes(source));
                let same = |row: &&mut PathRow| {
                    (row.fate, &row.port, &row.outcomes) == (fate, &port, &outcomes)
                };
                match paths.iter_mut().find(same) {
                    Some(path) => path.from.push(from),
                    None => paths.push(PathRow {
                        from: vec![from],
                        fate,
                        port: port.clone(),
                        outcomes,
                    }),
                }
            }
        }
        let reports = std::iter::once(&report).chain(&report.ports);
        let over = reports.flat_map(all).find_map(Over::of);
        (paths, over)
    }

    fn add(&mut self, node: &Arc<str>, (paths, over): Self::Part) {
        let (lines, nodes) = self.found.entry(paths).or_default();
        if let Some(over) = over.filter(|_| lines.is_empty()) {
            *lines = over.lines(node);
        }
        nodes.add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let groups = found.map(|(paths, (over, nodes))| Group { nodes, paths, over });
        self.groups = groups.collect();
        self.groups
            .sort_by(|a, b| (a.nodes.len(), &a.paths).cmp(&(b.nodes.len(), &b.paths)));
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        Vec::new()
    }

    fn page(&self, read: usize, page: &mut Page) {
        for group in &self.groups {
            page.line("");
            let nodes = cell(&group.nodes, read, page);
            let worst = Fate::of_all(group.paths.iter().map(|path| path.fate));
            page.para("", &page.paint(tone(worst), &nodes));
            for path in &group.paths {
                let from = path.from.join(", ");
                let port = path.port.as_ref();
                let port = port.map_or_else(String::new, |port| format!("{port} "));
                page.para("  ", &format!("{port}from {from}: {}", path.fate));
                for outcome in &path.outcomes {
                    page.para("    ", outcome);
                }
            }
            for (at, line) in group.over.iter().enumerate() {
                page.para(if at == 0 { "  " } else { "    " }, line);
            }
        }
    }
}

/// Returns the ends of a packet, without their probabilities, sorted.
fn outcomes(source: &SourceTrace) -> Vec<String> {
    let mut texts: Vec<String> = source
        .outcomes
        .iter()
        .map(|outcome| {
            let backend = outcome.backend.as_ref().map(|backend| {
                let at = std::net::SocketAddr::new(backend.address, backend.port);
                match &backend.pod {
                    Some(pod) => format!("{pod} ({at})"),
                    None => at.to_string(),
                }
            });
            let masquerade = if outcome.masquerade {
                ", masqueraded"
            } else {
                ""
            };
            match backend {
                Some(backend) => match &outcome.fault {
                    Some(fault) => format!("{backend}{masquerade}: {fault}"),
                    None => format!("{backend}{masquerade}"),
                },
                None => outcome
                    .fault
                    .clone()
                    .unwrap_or_else(|| outcome.reason.clone()),
            }
        })
        .collect();
    texts.sort();
    texts.dedup();
    texts
}
