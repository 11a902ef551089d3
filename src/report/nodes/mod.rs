//! The results of several nodes, put together. Only a small part of each node's report is kept.

pub(crate) mod failing;
pub(crate) mod names;
pub(crate) mod plan;
pub(crate) mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{CLEAN, FOUND, UNKNOWN};
use crate::render::{Origin, Page, Report, Tone, line_of_several};
use kpx_node::words::number_of;
use names::Nodes;

/// The common part of the reports of several nodes, and the differences.
pub(crate) trait Together: Serialize {
    /// The report of one node.
    type Of: Report;
    /// The part of it that is kept.
    type Part: Send + 'static;

    /// Returns what is kept of `report`.
    fn part(report: Self::Of) -> Self::Part;

    /// Adds the part of a node.
    fn add(&mut self, node: &Arc<str>, part: Self::Part);

    /// Completes the value after the last node.
    fn settle(&mut self) {}

    /// Returns the number of nodes in each state, with its words, in the order of the title: `(3, "healthy")`.
    fn states(&self) -> Vec<(usize, &'static str)>;

    /// Returns the exit status of the comparison, in addition to the nodes' own.
    fn exit(&self) -> u8 {
        CLEAN
    }

    /// Returns the command to run next.
    fn next(&self) -> Option<&str> {
        None
    }

    /// Writes everything but the title, the nodes that were not read and the next command; `read` is the number of the others.
    fn page(&self, read: usize, page: &mut Page);
}

/// The report of several nodes.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodesReport<T> {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of nodes that were read.
    pub read: usize,
    /// The nodes that were not read, by name.
    pub unread: Vec<UnreadNode>,
    /// Why more nodes are missing, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// The part that the nodes have in common, and the differences.
    #[serde(flatten)]
    pub together: T,
    /// The origins of the states.
    #[serde(skip)]
    pub origins: Vec<Origin>,
    #[serde(skip)]
    worst: u8,
}

/// A node that was not read.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct UnreadNode {
    /// Name of the node.
    pub node: String,
    /// Why it was not read.
    pub error: String,
}

impl<T: Together> NodesReport<T> {
    /// Starts a report of no nodes.
    pub(crate) const fn new(together: T) -> Self {
        Self {
            nodes: 0,
            read: 0,
            unread: Vec::new(),
            incomplete: None,
            together,
            origins: Vec::new(),
            worst: CLEAN,
        }
    }

    /// Adds a node: the part of its report, with its exit status.
    pub(crate) fn add(&mut self, node: &str, part: T::Part, exit: u8) {
        self.nodes += 1;
        self.read += 1;
        self.worst = worse(self.worst, exit);
        self.together.add(&Arc::from(node), part);
    }

    /// Adds a node that was not read.
    pub(crate) fn add_unread(&mut self, node: &str, error: String) {
        self.nodes += 1;
        self.unread.push(UnreadNode {
            node: node.to_owned(),
            error,
        });
    }

    /// Completes the report after the last node; `incomplete` is the reason why more nodes are missing.
    pub(crate) fn finish(&mut self, incomplete: Option<String>) {
        self.unread.sort_by(|a, b| a.node.cmp(&b.node));
        self.incomplete = incomplete;
        self.together.settle();
    }
}

/// Returns the worse of two exit statuses: failed, findings, inconclusive, clean.
fn worse(a: u8, b: u8) -> u8 {
    let rank = |exit: u8| match exit {
        CLEAN => 0,
        UNKNOWN => 1,
        FOUND => 2,
        _ => 3,
    };
    if rank(b) > rank(a) { b } else { a }
}

impl<T: Together> Report for NodesReport<T> {
    const KIND: &'static str = "NodesReport";

    fn page(&self, page: &mut Page) {
        if let Some(line) = line_of_several(&self.origins) {
            page.hang("", "  ", &line);
        }
        let unread = (self.unread.len(), "not read");
        let states = self.together.states().into_iter().chain([unread]);
        let states = states.filter(|(count, _)| *count > 0);
        let states: Vec<_> = states.map(|(n, what)| format!("{n} {what}")).collect();
        let tone = match self.exit() {
            CLEAN => Tone::Good,
            UNKNOWN => Tone::Unclear,
            _ => Tone::Bad,
        };
        let title = match states.as_slice() {
            [] => number_of(self.nodes, "node"),
            states => format!("{}: {}", number_of(self.nodes, "node"), states.join(", ")),
        };
        page.line(&page.paint(tone, &title));
        let mut by_error: BTreeMap<&str, Nodes> = BTreeMap::new();
        for unread in &self.unread {
            let nodes = by_error.entry(&unread.error).or_default();
            nodes.add(&Arc::from(unread.node.as_str()));
        }
        if self.read > 0 {
            self.together.page(self.read, page);
        }
        if !by_error.is_empty() || self.incomplete.is_some() {
            page.line("");
            page.line(&page.paint(Tone::Unclear, "not read"));
        }
        for (error, nodes) in by_error {
            // Every node that was not read is named.
            page.para("  ", &format!("{}: {error}", nodes.all()));
        }
        if let Some(why) = &self.incomplete {
            page.para("  ", &format!("nodes are missing: {why}"));
        }
        if let Some(next) = self.together.next() {
            page.line("");
            page.next(next);
        }
    }

    fn exit(&self) -> u8 {
        let worst = worse(self.worst, self.together.exit());
        if self.unread.is_empty() && self.incomplete.is_none() {
            worst
        } else {
            worse(worst, UNKNOWN)
        }
    }
}

/// Adds a title after an empty line.
pub(crate) fn title(page: &mut Page, text: &str) {
    page.line("");
    page.line(&page.paint(Tone::Strong, text));
}

/// Returns the nodes of a row: their number, and their names unless these are all.
pub(crate) fn cell(nodes: &Nodes, read: usize, page: &Page) -> String {
    match nodes.len() {
        1 => nodes.all(),
        len if len == read => format!("all {read}"),
        len => format!("{len}: {}", nodes.in_short(page.style())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FAILED;

    #[test]
    fn the_worst_node_decides() {
        assert_eq!(worse(CLEAN, UNKNOWN), UNKNOWN);
        assert_eq!(worse(UNKNOWN, FOUND), FOUND);
        assert_eq!(worse(FOUND, UNKNOWN), FOUND);
        assert_eq!(worse(FOUND, FAILED), FAILED);
        assert_eq!(worse(FAILED, FOUND), FAILED);
    }
}
