//! The readiness of several nodes for a mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::PreflightReport;
use crate::command::doctor::report::Status as CheckStatus;
use crate::render::{Page, Report as _, Tone};
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell, title};
use crate::report::{CLEAN, FOUND};
use kpx_judge::check::{self, Severity};
use kpx_judge::requirements::Status;

/// The nodes that are ready for a mode, and the obstacles on the others.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PreflightOfNodes {
    /// The nodes that are ready.
    pub ready: Nodes,
    /// The nodes that are not ready.
    pub blocked: Nodes,
    /// The nodes on which nothing blocks the switch, but data is missing.
    pub inconclusive: Nodes,
    /// The obstacles to the switch, each with its nodes: that of the fewest nodes first.
    pub blockers: Vec<Blocker>,
    /// The modules that are not loaded but can be, each with the nodes.
    pub loadable: BTreeMap<String, Nodes>,
    /// The requirements and checks without data.
    pub unknown: Vec<Unknown>,
    #[serde(skip)]
    found: BTreeMap<(String, String), Nodes>,
    #[serde(skip)]
    missing: BTreeMap<String, Nodes>,
}

/// Requirements and checks whose data is missing on the same nodes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Unknown {
    /// Names of requirements, and ids of checks.
    pub what: Vec<String>,
    /// The nodes.
    pub nodes: Nodes,
}

/// An unmet requirement, or a finding that blocks the switch.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Blocker {
    /// The requirement's name, or the id of the check.
    pub what: String,
    /// The state of the requirement, or the message of the finding.
    pub state: String,
    /// The nodes.
    pub nodes: Nodes,
}

/// The part of a node's report that is kept.
#[derive(Debug)]
pub(crate) struct Part {
    exit: u8,
    blockers: Vec<(String, String)>,
    loadable: Vec<String>,
    unknown: Vec<String>,
}

impl Together for PreflightOfNodes {
    type Of = PreflightReport;
    type Part = Part;

    fn part(report: PreflightReport) -> Part {
        let exit = report.exit();
        let (mut blockers, mut unknown) = (Vec::new(), Vec::new());
        for need in &report.needs {
            match need.status {
                Status::Fails => {
                    let state = [need.state.as_str(), &need.note];
                    let state: Vec<_> = state
                        .into_iter()
                        .filter(|state| !state.is_empty())
                        .collect();
                    blockers.push((need.name.clone(), state.join(": ")));
                }
                Status::Unknown => unknown.push(need.name.clone()),
                _ => {}
            }
        }
        let findings = report.assessment.findings.iter();
        for of in findings.filter(|finding| finding.severity == Severity::Error) {
            blockers.push((of.id.to_owned(), check::stated(&of.subject, &of.message)));
        }
        let checks = report.assessment.with(CheckStatus::Unknown);
        unknown.extend(checks.map(|check| check.id.to_owned()));
        Part {
            exit,
            loadable: report.modules(Status::Loadable),
            blockers,
            unknown,
        }
    }

    fn add(&mut self, node: &Arc<str>, part: Part) {
        let state = match part.exit {
            CLEAN => &mut self.ready,
            FOUND => &mut self.blocked,
            _ => &mut self.inconclusive,
        };
        state.add(node);
        for key in part.blockers {
            self.found.entry(key).or_default().add(node);
        }
        for module in part.loadable {
            self.loadable.entry(module).or_default().add(node);
        }
        for what in part.unknown {
            self.missing.entry(what).or_default().add(node);
        }
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        let blockers = found.map(|((what, state), nodes)| Blocker { what, state, nodes });
        self.blockers = blockers.collect();
        self.blockers.sort_by(|a, b| {
            let order = |blocker: &Blocker| {
                (
                    blocker.nodes.len(),
                    blocker.what.clone(),
                    blocker.state.clone(),
                )
            };
            order(a).cmp(&order(b))
        });
        for (what, nodes) in std::mem::take(&mut self.missing) {
            match self
                .unknown
                .iter_mut()
                .find(|unknown| unknown.nodes == nodes)
            {
                Some(of) => of.what.push(what),
                None => self.unknown.push(Unknown {
                    what: vec![what],
                    nodes,
                }),
            }
        }
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        vec![
            (self.ready.len(), "ready"),
            (self.blocked.len(), "not ready"),
            (self.inconclusive.len(), "inconclusive"),
        ]
    }

    fn page(&self, read: usize, page: &mut Page) {
        if !self.blockers.is_empty() {
            title(page, "blockers");
            let rows = self.blockers.iter().map(|blocker| {
                let nodes = cell(&blocker.nodes, read, page);
                vec![blocker.what.clone(), nodes, blocker.state.clone()]
            });
            let rows: Vec<_> = rows.collect();
            page.grid(&[("BLOCKER", 0), ("NODES", 0), ("STATE", 0)], &rows);
        }
        if !self.loadable.is_empty() {
            title(page, "modules that are not loaded, but can be");
            for (module, nodes) in &self.loadable {
                let nodes = cell(nodes, read, page);
                page.para("  ", &format!("{module}: {nodes}"));
            }
        }
        if !self.unknown.is_empty() {
            page.line("");
            page.line(&page.paint(Tone::Unclear, "unknown"));
        }
        for of in &self.unknown {
            let nodes = cell(&of.nodes, read, page);
            page.para("  ", &format!("{nodes}: {}", of.what.join(", ")));
        }
    }
}
