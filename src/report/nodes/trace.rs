//! The paths of one packet on several nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{Nodes, Together, cell};
use crate::render::{Page, Tone};
use crate::report::trace::{SourceTrace, TraceReport};
use crate::trace::Verdict;

/// Groups of nodes on which the packets end alike.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TraceOfNodes {
    /// The groups, the smallest first.
    pub groups: Vec<Group>,
    #[serde(skip)]
    found: BTreeMap<Vec<PathRow>, (bool, Nodes)>,
}

/// Nodes on which the packets end alike.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Group {
    /// The nodes.
    pub nodes: Nodes,
    /// The end of the packets, by their source.
    pub paths: Vec<PathRow>,
    /// Whether a verdict is unknown.
    #[serde(skip)]
    unknown: bool,
}

/// The end of the packets of some sources.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PathRow {
    /// The sources: `pod`, `host`, `outside`, or an address.
    pub from: Vec<String>,
    /// The verdict: `deliver`, `reject`, …
    pub verdict: &'static str,
    /// The reasons, and the backends of delivered packets.
    pub outcomes: Vec<String>,
}

/// What is kept of a node's report.
#[derive(Debug)]
pub(crate) struct Part {
    paths: Vec<PathRow>,
    unknown: bool,
}

impl Together for TraceOfNodes {
    type Of = TraceReport;
    type Part = Part;

    fn part(report: TraceReport) -> Part {
        let TraceReport { first, sources, .. } = report;
        let sources = if sources.is_empty() {
            vec![first]
        } else {
            sources
        };
        let unknown = sources.iter().any(|of| of.verdict == Verdict::Unknown);
        let mut paths: Vec<PathRow> = Vec::new();
        for source in sources {
            // The address behind the kind of source is that of the node.
            let from = source
                .from
                .split(" (")
                .next()
                .unwrap_or_default()
                .to_owned();
            let (verdict, outcomes) = (name(source.verdict), outcomes(&source));
            let same = |of: &&mut PathRow| of.verdict == verdict && of.outcomes == outcomes;
            match paths.iter_mut().find(same) {
                Some(path) => path.from.push(from),
                None => paths.push(PathRow {
                    from: vec![from],
                    verdict,
                    outcomes,
                }),
            }
        }
        Part { paths, unknown }
    }

    fn add(&mut self, node: &Arc<str>, part: Part) {
        let (unknown, nodes) = self.found.entry(part.paths).or_default();
        *unknown |= part.unknown;
        nodes.add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let groups = found.map(|(paths, (unknown, nodes))| Group {
            nodes,
            paths,
            unknown,
        });
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
            let tone = if group.unknown {
                Tone::Unclear
            } else {
                Tone::Strong
            };
            page.para("", &page.paint(tone, &nodes));
            for path in &group.paths {
                let from = path.from.join(", ");
                page.para("  ", &format!("from {from}: {}", path.verdict));
                for outcome in &path.outcomes {
                    page.para("    ", outcome);
                }
            }
        }
    }
}

/// Returns the ends of a packet, without their probabilities, sorted.
fn outcomes(source: &SourceTrace) -> Vec<String> {
    let mut texts: Vec<String> = source
        .outcomes
        .iter()
        .map(|of| {
            let backend = of.backend.as_ref().map(|backend| {
                let at = std::net::SocketAddr::new(backend.address, backend.port);
                match &backend.pod {
                    Some(pod) => format!("{pod} ({at})"),
                    None => at.to_string(),
                }
            });
            let masquerade = if of.masquerade { ", masqueraded" } else { "" };
            match backend {
                Some(backend) => format!("{backend}{masquerade}"),
                None => format!("{}: {}", name(of.verdict), of.reason),
            }
        })
        .collect();
    texts.sort();
    texts.dedup();
    texts
}

/// Returns the name of a verdict, as in JSON.
const fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Deliver => "deliver",
        Verdict::Reject => "reject",
        Verdict::Drop => "drop",
        Verdict::Local => "local",
        Verdict::Unmatched => "unmatched",
        Verdict::Unknown => "unknown",
        Verdict::Mixed => "mixed",
    }
}
