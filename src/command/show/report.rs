//! Prints a view of the live state.

mod addresses;
mod affinity;
mod assessed;
mod chains;
mod config;
mod conntrack;
mod form;
mod ipvs;
mod lines;
mod modules;
mod nodeports;
pub(crate) mod nodes;
mod portals;
mod programmed;
mod service;
mod services;
mod sets;
mod sysctls;
mod tree;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::render::{Page, Report};
use crate::report::{CLEAN, UNKNOWN};
use crate::view::mode::{InForce, ModeSource};
use crate::view::{Rows, Shown, View};
use kpx_judge::verdict::Tally;
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;

/// The outcome of `kpx show`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub(crate) struct ShowReport(Shown);

impl ShowReport {
    /// Returns the report of a view.
    pub(crate) const fn new(shown: Shown) -> Self {
        Self(shown)
    }

    /// Returns similar names if the name that was asked for matches nothing; `None` if it matches.
    pub(crate) fn not_found(&self) -> Option<&[String]> {
        self.0.not_found()
    }

    /// Returns the rows as named lines, to compare nodes: without counters and connections.
    pub(crate) fn lines(&self) -> BTreeMap<String, String> {
        lines::lines(&self.0)
    }

    /// Returns the rows of the view of Services.
    pub(crate) fn services(&self) -> &[crate::view::services::Row] {
        match &self.0.rows {
            Rows::Services(rows) => rows,
            _ => &[],
        }
    }

    /// Returns how the Services stand, if the cluster's objects show them.
    pub(crate) fn tally(&self) -> Option<Tally> {
        let rows = self.services().iter().map(|row| &row.surveyed);
        self.0.has_objects().then(|| Tally::of(rows))
    }

    /// Returns the titles and the rows of the table of Services, without empty columns.
    pub(crate) fn service_table(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let cells = services::cells(self.services(), true);
        let is_used = |at: &usize| cells.iter().any(|row| !row[*at].is_empty());
        let used: Vec<usize> = (0..services::COLUMNS.len()).filter(is_used).collect();
        let pick = |row: &Vec<String>| used.iter().map(|&at| row[at].clone()).collect();
        let titles = used.iter().map(|&at| services::COLUMNS[at].0).collect();
        (titles, cells.iter().map(pick).collect())
    }

    /// Returns why the view has fewer rows or columns than expected.
    pub(crate) fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Returns why parts of the view are unknown.
    pub(crate) fn gaps(&self) -> &[Gap] {
        &self.0.gaps
    }
}

impl Report for ShowReport {
    const KIND: &'static str = "ShowReport";

    fn page(&self, page: &mut Page) {
        let shown = &self.0;
        let current = shown.mode.mode;
        let named = shown.named;
        if shown.view != View::Config {
            page.para("mode: ", &in_words(&shown.mode));
        }
        for gap in &shown.gaps {
            page.para("unknown: ", &gap.to_string());
        }
        for note in &shown.notes {
            page.para("note: ", note);
        }
        match &shown.rows {
            rows if rows.is_empty() => {
                if shown.gaps.is_empty() && shown.notes.is_empty() {
                    page.line("no rows");
                }
            }
            Rows::Services(rows) => {
                services::page(rows, page);
                if let Some(of) = &shown.service {
                    service::page(of, rows, page);
                }
                if let Some(next) = &shown.next {
                    page.line("");
                    page.next(next);
                }
            }
            Rows::Chains(rows) => chains::page(rows, page),
            Rows::Tree(roots) => tree::page(roots, page),
            Rows::Servers(rows) => ipvs::page(rows, page),
            Rows::Sets(rows) => sets::page(rows, named, page),
            Rows::Addresses(rows) => addresses::page(rows, page),
            Rows::NodePorts(rows) => nodeports::page(rows, page),
            Rows::Portals(rows) => portals::page(rows, page),
            Rows::Connections(rows) => conntrack::page(rows, &shown.by_backend, page),
            Rows::Affinity(rows) => affinity::page(rows, page),
            Rows::Modules(rows) => modules::page(rows, current, named, page),
            Rows::Sysctls(rows) => sysctls::page(rows, current, named, page),
            Rows::Config(config) => config::page(config, page),
        }
    }

    fn exit(&self) -> u8 {
        if self.0.is_unknown() { UNKNOWN } else { CLEAN }
    }
}

/// Returns the mode in force in a line.
fn in_words(mode: &InForce) -> String {
    let from = match mode.mode_from {
        Some(ModeSource::KubeProxy) => " (reported by kube-proxy)",
        Some(ModeSource::KernelState) => " (seen in the kernel)",
        Some(ModeSource::Configuration) => " (configured)",
        None => "",
    };
    let name = mode.mode.map_or("unknown", Mode::name);
    let left: Vec<&str> = mode.leftovers.iter().map(|mode| mode.name()).collect();
    let left = if left.is_empty() {
        String::new()
    } else {
        format!("; leftovers of {}", left.join(" and "))
    };
    format!("{name}{from}{left}")
}
