//! The differences of several nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::DiffReport;
use crate::render::{Page, Tone};
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell, title};
use kpx_judge::diff::{ChangeKind, Layer};
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

/// The differences of several nodes, by part of the live state and Service.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiffOfNodes {
    /// The number of nodes without differences.
    pub equal: usize,
    /// The number of nodes with differences.
    pub different: usize,
    /// The number of nodes without differences, on which parts could not be compared.
    pub inconclusive: usize,
    /// The nodes of each mode.
    pub modes: BTreeMap<&'static str, Nodes>,
    /// The parts that differ: those of the fewest nodes first.
    pub parts: Vec<PartOfNodes>,
    /// The nodes with leftovers of each mode.
    pub leftovers: BTreeMap<&'static str, Nodes>,
    /// Parts that could not be compared, each with the nodes.
    pub unknown: BTreeMap<String, Nodes>,
    /// The command that repairs the differences, or reads what could not be compared.
    #[serde(skip)]
    next: Option<String>,
    #[serde(skip)]
    found: BTreeMap<Key, (usize, Nodes)>,
}

/// A part of the live state that differs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartOfNodes {
    /// Whether it is missing, extra or different.
    pub action: ChangeKind,
    /// The part.
    pub layer: Layer,
    /// The Service that it serves; unset for parts that serve none or many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<str>>,
    /// The largest number of objects on one node.
    pub objects: usize,
    /// The nodes.
    pub nodes: Nodes,
}

/// The order of the kind and of the part, and the Service.
type Key = (usize, usize, Option<Box<str>>);

/// The kinds, in the order of the report.
const KINDS: [ChangeKind; 3] = [ChangeKind::Missing, ChangeKind::Extra, ChangeKind::Differs];

/// The most Services kept for one part of a node; further ones are only counted.
const MOST: usize = 100;

/// The part of a node's report that is kept.
#[derive(Debug)]
pub(crate) struct Part {
    mode: Option<Mode>,
    found: BTreeMap<Key, usize>,
    leftovers: BTreeSet<&'static str>,
    unknown: BTreeSet<String>,
    next: Option<String>,
}

impl Together for DiffOfNodes {
    type Of = DiffReport;
    type Part = Part;

    fn part(report: DiffReport) -> Part {
        let mut found: BTreeMap<Key, usize> = BTreeMap::new();
        for row in report.changes {
            let kind = KINDS.iter().position(|kind| *kind == row.action);
            let layer = Layer::ALL.iter().position(|layer| *layer == row.layer);
            let service = row.service.map(String::into_boxed_str);
            let key = (kind.unwrap_or(0), layer.unwrap_or(0), service);
            *found.entry(key).or_default() += 1;
        }
        let mut services: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (kind, layer, _) in found.keys() {
            *services.entry((*kind, *layer)).or_default() += 1;
        }
        let mut kept: BTreeMap<Key, usize> = BTreeMap::new();
        for ((kind, layer, service), count) in found {
            let many = services
                .get(&(kind, layer))
                .is_some_and(|service| *service > MOST);
            let service = service.filter(|_| !many);
            *kept.entry((kind, layer, service)).or_default() += count;
        }
        Part {
            mode: report.mode,
            next: report.next,
            found: kept,
            leftovers: report
                .leftovers
                .iter()
                .map(|leftover| leftover.mode.name())
                .collect(),
            unknown: report
                .unknown
                .iter()
                .map(|unknown| format!("{}: {}", unknown.what, unknown.gap))
                .collect(),
        }
    }

    fn add(&mut self, node: &Arc<str>, part: Part) {
        let state = match (part.found.is_empty(), part.unknown.is_empty()) {
            (false, _) => &mut self.different,
            (true, false) => &mut self.inconclusive,
            (true, true) => &mut self.equal,
        };
        *state += 1;
        if self.next.is_none() || !part.found.is_empty() {
            self.next = part.next.or(self.next.take());
        }
        let mode = part.mode.map_or("unknown", Mode::name);
        self.modes.entry(mode).or_default().add(node);
        for (key, count) in part.found {
            let (objects, nodes) = self.found.entry(key).or_default();
            *objects = (*objects).max(count);
            nodes.add(node);
        }
        for mode in part.leftovers {
            self.leftovers.entry(mode).or_default().add(node);
        }
        for what in part.unknown {
            self.unknown.entry(what).or_default().add(node);
        }
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let mut parts: Vec<_> = found.collect();
        parts.sort_by(|(a, (_, few)), (b, (_, many))| (few.len(), a).cmp(&(many.len(), b)));
        let parts = parts
            .into_iter()
            .map(|((kind, layer, service), (objects, nodes))| PartOfNodes {
                action: KINDS[kind],
                layer: Layer::ALL[layer],
                service,
                objects,
                nodes,
            });
        self.parts = parts.collect();
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        vec![
            (self.equal, "without differences"),
            (self.different, "with differences"),
            (self.inconclusive, "inconclusive"),
        ]
    }

    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    fn page(&self, read: usize, page: &mut Page) {
        /// The number of rows shown without `-v`.
        const SHOWN: usize = 60;
        if self.modes.len() > 1 {
            by(page, "modes", &self.modes, read);
        }
        if !self.parts.is_empty() {
            title(page, "differences");
            let all = page.style().verbose > 0 || page.style().wide;
            let shown = if all { self.parts.len() } else { SHOWN };
            let rows: Vec<_> = self
                .parts
                .iter()
                .take(shown)
                .map(|part| part.cells(read, page))
                .collect();
            let columns = [("NODES", 0), ("SERVICE", 0), ("DIFFERENCE", 0)];
            page.grid(&columns, &rows);
            if self.parts.len() > shown {
                let rest = self.parts.len() - shown;
                page.line(&format!(
                    "and {} (-v shows all)",
                    number_of(rest, "more part")
                ));
            }
        }
        by(page, "leftovers of other modes", &self.leftovers, read);
        if !self.unknown.is_empty() {
            page.line("");
            page.line(&page.paint(Tone::Unclear, "not compared"));
        }
        for (what, nodes) in &self.unknown {
            let nodes = cell(nodes, read, page);
            page.para("  ", &format!("{nodes}: {what}"));
        }
    }
}

impl PartOfNodes {
    fn cells(&self, read: usize, page: &Page) -> Vec<String> {
        let action = match self.action {
            ChangeKind::Missing => "missing",
            ChangeKind::Extra => "extra",
            ChangeKind::Differs => "different",
        };
        let what = match self.layer {
            Layer::Iptables => "iptables",
            Layer::Ipset => "IP sets",
            Layer::Ipvs => "IPVS",
            Layer::Link => "kube-ipvs0",
            Layer::Nftables => "nftables",
            Layer::Sysctl => "sysctls",
        };
        vec![
            cell(&self.nodes, read, page),
            self.service.as_deref().unwrap_or("-").to_owned(),
            format!("{what}: {} {action}", number_of(self.objects, "object")),
        ]
    }
}

/// Adds the nodes of each mode.
fn by(page: &mut Page, heading: &str, modes: &BTreeMap<&'static str, Nodes>, read: usize) {
    if modes.is_empty() {
        return;
    }
    title(page, heading);
    for (mode, nodes) in modes {
        let nodes = cell(nodes, read, page);
        page.para("  ", &format!("{mode}: {nodes}"));
    }
}
