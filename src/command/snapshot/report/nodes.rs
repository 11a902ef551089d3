//! The bundle of all nodes that `kpx snapshot` wrote.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use super::SnapshotReport;
use crate::render::Page;
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell, title};
use kpx_node::evidence::Item;

/// A bundle of all nodes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SnapshotOfNodes {
    /// The path of the bundle.
    pub path: PathBuf,
    /// Whether names and addresses are replaced.
    pub redacted: bool,
    /// The items that could not be read, with the nodes.
    pub gaps: Vec<GapOfNodes>,
    #[serde(skip)]
    found: BTreeMap<(Item, String), Nodes>,
}

/// An item that could not be read.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct GapOfNodes {
    /// The item.
    pub item: Item,
    /// The reason.
    pub reason: String,
    /// The nodes.
    pub nodes: Nodes,
}

impl SnapshotOfNodes {
    /// Returns a report of no nodes.
    pub(crate) const fn new(path: PathBuf, redacted: bool) -> Self {
        Self {
            path,
            redacted,
            gaps: Vec::new(),
            found: BTreeMap::new(),
        }
    }
}

impl Together for SnapshotOfNodes {
    type Of = SnapshotReport;
    type Part = Vec<(Item, String)>;

    fn part(report: SnapshotReport) -> Self::Part {
        let unknown = report.unknown().into_iter();
        unknown
            .map(|unknown| (unknown.item, unknown.reason.clone()))
            .collect()
    }

    fn add(&mut self, node: &Arc<str>, part: Self::Part) {
        for gap in part {
            self.found.entry(gap).or_default().add(node);
        }
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let gaps = found.map(|((item, reason), nodes)| GapOfNodes {
            item,
            reason,
            nodes,
        });
        self.gaps = gaps.collect();
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        Vec::new()
    }

    fn page(&self, read: usize, page: &mut Page) {
        let redacted = if self.redacted { ", redacted" } else { "" };
        page.line(&format!("Wrote {}{redacted}.", self.path.display()));
        if !self.gaps.is_empty() {
            title(page, "Unknown:");
            let rows = self.gaps.iter().map(|gap| {
                let nodes = cell(&gap.nodes, read, page);
                vec![gap.item.file().to_owned(), nodes, gap.reason.clone()]
            });
            let rows: Vec<_> = rows.collect();
            page.grid(&[("FILE", 0), ("NODES", 0), ("REASON", 0)], &rows);
        }
        if !self.redacted {
            page.line("");
            page.line(
                "The bundle contains addresses and names of this cluster; --redact replaces them.",
            );
        }
    }
}
