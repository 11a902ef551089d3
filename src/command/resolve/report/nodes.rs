//! The answers to one name on several nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::ResolveReport;
use crate::render::{Page, Report as _};
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell};

/// The answers to one name, each with the nodes that get it.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ResolveOfNodes {
    /// The answers, those of the fewest nodes first.
    pub answers: Vec<Answer>,
    #[serde(skip)]
    found: BTreeMap<String, (ResolveReport, Nodes)>,
}

/// An answer, and the nodes that get it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Answer {
    /// The nodes.
    pub nodes: Nodes,
    /// The answer.
    pub report: ResolveReport,
}

impl Together for ResolveOfNodes {
    type Of = ResolveReport;
    type Part = ResolveReport;

    fn part(report: ResolveReport) -> ResolveReport {
        report
    }

    fn add(&mut self, node: &Arc<str>, part: ResolveReport) {
        let key = format!("{part:?}");
        let (_, nodes) = self.found.entry(key).or_insert((part, Nodes::default()));
        nodes.add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_values();
        self.answers = found
            .map(|(report, nodes)| Answer { nodes, report })
            .collect();
        self.answers.sort_by(|a, b| {
            (a.nodes.len(), a.nodes.first()).cmp(&(b.nodes.len(), b.nodes.first()))
        });
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        match self.answers.as_slice() {
            [only] => vec![(only.nodes.len(), "with the same answer")],
            _ => Vec::new(),
        }
    }

    fn page(&self, read: usize, page: &mut Page) {
        for answer in &self.answers {
            page.line("");
            if self.answers.len() > 1 {
                let nodes = cell(&answer.nodes, read, page);
                page.para("on ", &nodes);
            }
            answer.report.page(page);
        }
    }
}
