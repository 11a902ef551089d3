//! A view of several nodes: the rows that differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::ShowReport;
use crate::render::{Page, Tone};
use crate::report::nodes::failing::{self, FailingService, Failures};
use crate::report::nodes::names::Nodes;
use crate::report::nodes::rows::{Differing, Rows};
use crate::report::nodes::{Together, cell};
use crate::report::{CLEAN, FOUND};
use kpx_judge::verdict::Failing;
use kpx_node::evidence::Gap;
use kpx_node::words::number_of;

/// The rows of a view that differ between nodes, and the number of the others.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ShowOfNodes {
    /// The number of rows that are equal on all nodes.
    pub equal: usize,
    /// The rows that differ: those of the fewest nodes first.
    pub differing: Vec<Differing>,
    /// Whether a name was asked for that matches nothing on any node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_found: bool,
    /// The Services whose connections fail; none in a view of anything else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<FailingService>,
    /// Why parts of the view are unknown, with the nodes.
    pub unknown: BTreeMap<String, Nodes>,
    #[serde(skip)]
    failing: Failures,
    #[serde(skip)]
    rows: Rows,
    #[serde(skip)]
    found: bool,
}

/// The part of a node's report that is kept.
#[derive(Debug)]
pub(crate) struct Part {
    failing: Vec<Failing>,
    rows: BTreeMap<String, String>,
    gaps: Vec<String>,
    found: bool,
}

impl Together for ShowOfNodes {
    type Of = ShowReport;
    type Part = Part;

    fn part(report: ShowReport) -> Part {
        Part {
            gaps: report.gaps().iter().map(Gap::to_string).collect(),
            found: report.not_found().is_none(),
            failing: report.tally().map_or_else(Vec::new, |tally| tally.failing),
            rows: report.lines(),
        }
    }

    fn add(&mut self, node: &Arc<str>, part: Part) {
        self.found |= part.found;
        self.failing.add(node, part.failing);
        let partial = !part.gaps.is_empty();
        for gap in part.gaps {
            self.unknown.entry(gap).or_default().add(node);
        }
        // A node of which only the mode is known is not compared.
        if !partial || part.rows.len() > 1 {
            self.rows.add(node, part.rows, partial);
        }
    }

    fn settle(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        self.equal = rows.equal();
        self.differing = rows.differing();
        self.services = std::mem::take(&mut self.failing).into_services();
        self.not_found = !self.found;
    }

    fn exit(&self) -> u8 {
        if self.not_found { FOUND } else { CLEAN }
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        Vec::new()
    }

    fn page(&self, read: usize, page: &mut Page) {
        /// The number of rows shown without `-v`.
        const SHOWN: usize = 40;
        if self.not_found {
            page.line("no node has a row of this name");
        }
        page.line(&format!(
            "{} equal on all nodes, {} different",
            number_of(self.equal, "row"),
            self.differing.len()
        ));
        for (gap, nodes) in &self.unknown {
            let nodes = cell(nodes, read, page);
            let unknown = page.paint(Tone::Unclear, "unknown");
            page.para("", &format!("{unknown} on {nodes}: {gap}"));
        }
        failing::page(&self.services, read, page);
        if self.differing.is_empty() {
            return;
        }
        page.line("");
        let all = page.style().verbose > 0 || page.style().wide;
        let shown = if all { self.differing.len() } else { SHOWN };
        let rows = self.differing.iter().take(shown).flat_map(|differing| {
            let values = differing.values.iter().enumerate();
            values.map(|(at, value)| {
                let name = if at == 0 { differing.row.as_str() } else { "" };
                let nodes = cell(&value.nodes, read, page);
                let text = value.value.as_deref().unwrap_or("no such row");
                vec![name.to_owned(), nodes, text.to_owned()]
            })
        });
        let rows: Vec<_> = rows.collect();
        page.grid(&[("ROW", 0), ("NODES", 0), ("VALUE", 0)], &rows);
        if self.differing.len() > shown {
            let rest = self.differing.len() - shown;
            page.line(&format!(
                "and {} (-v shows all)",
                number_of(rest, "more row")
            ));
        }
    }
}
