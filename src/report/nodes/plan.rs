//! The plans of several nodes, and their outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::names::Nodes;
use super::{Together, cell};
use crate::render::{Page, Tone};
use crate::report::plan::{PlanReport, still_needed};
use kpx_node::words::number_of;

/// Groups of nodes with the same steps.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PlanOfNodes {
    /// The groups: failed ones first, then by the number of nodes, fewest first.
    pub groups: Vec<Group>,
    /// The command that applies the plans.
    #[serde(skip)]
    next: Option<String>,
    #[serde(skip)]
    found: BTreeMap<Part, Nodes>,
}

/// Nodes with the same steps, in the same state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Group {
    /// The nodes.
    pub nodes: Nodes,
    /// The state and the steps.
    #[serde(flatten)]
    pub part: Part,
}

/// The part of a node's report that is kept.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Part {
    /// The state.
    pub state: State,
    /// The titles of the steps, in order.
    pub steps: Vec<String>,
    /// The titles of the steps that are needed after the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needed: Vec<String>,
    /// Why the plan stopped, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip)]
    next: Option<String>,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// A step failed.
    Stopped,
    /// The plan was applied, and steps are needed still.
    Incomplete,
    /// The plan is not applied.
    Planned,
    /// The plan was applied.
    Changed,
    /// No changes are needed.
    Clean,
}

impl State {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Stopped, "stopped"),
        (Self::Incomplete, "changed in part"),
        (Self::Planned, "to change"),
        (Self::Changed, "changed"),
        (Self::Clean, "without changes"),
    ];
}

impl PlanOfNodes {
    /// Returns the number of steps that are planned on all nodes.
    pub(crate) fn planned_steps(&self) -> usize {
        let planned = self.groups.iter();
        let planned = planned.filter(|group| group.part.state == State::Planned);
        planned
            .map(|group| group.nodes.len() * group.part.steps.len())
            .sum()
    }
}

impl Together for PlanOfNodes {
    type Of = PlanReport;
    type Part = Part;

    fn part(report: PlanReport) -> Part {
        let state = match (&report.stopped, report.applied) {
            (Some(_), _) => State::Stopped,
            _ if report.steps.is_empty() => State::Clean,
            (None, true) if !report.needed.is_empty() => State::Incomplete,
            (None, true) => State::Changed,
            (None, false) => State::Planned,
        };
        Part {
            state,
            steps: report.steps.into_iter().map(|step| step.title).collect(),
            needed: report.needed,
            next: report.next.filter(|_| state == State::Planned),
            error: report
                .stopped
                .map(|stopped| format!("step {}: {}", stopped.step, stopped.error)),
        }
    }

    fn add(&mut self, node: &Arc<str>, mut part: Part) {
        self.next = self.next.take().or(part.next.take());
        self.found.entry(part).or_default().add(node);
    }

    fn settle(&mut self) {
        let found = std::mem::take(&mut self.found).into_iter();
        self.groups = found.map(|(part, nodes)| Group { nodes, part }).collect();
        self.groups
            .sort_by_key(|group| (group.part.state, group.nodes.len()));
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        let counted = State::ALL.map(|(state, name)| {
            let groups = self.groups.iter().filter(|group| group.part.state == state);
            (groups.map(|group| group.nodes.len()).sum(), name)
        });
        counted.into()
    }

    fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    fn page(&self, read: usize, page: &mut Page) {
        for Group { nodes, part } in &self.groups {
            if part.state == State::Clean {
                continue;
            }
            page.line("");
            let tone = match part.state {
                State::Stopped | State::Incomplete => Tone::Bad,
                State::Planned => Tone::Strong,
                State::Changed | State::Clean => Tone::Good,
            };
            let steps = number_of(part.steps.len(), "step");
            let head = match part.state {
                State::Stopped => "stopped".to_owned(),
                State::Planned => steps,
                State::Incomplete => {
                    let needed = number_of(part.needed.len(), "step");
                    format!("done: {steps}; still needed: {needed}")
                }
                State::Changed | State::Clean => format!("done: {steps}"),
            };
            let nodes = cell(nodes, read, page);
            page.line(&format!("{}: {nodes}", page.paint(tone, &head)));
            for (number, title) in (1..).zip(&part.steps) {
                page.line(&format!("{number:>3}. {title}"));
            }
            still_needed(&part.needed, page);
            if let Some(error) = &part.error {
                page.para("  because ", error);
            }
        }
        if self
            .groups
            .iter()
            .any(|group| group.part.state == State::Planned)
        {
            page.line("");
            page.para(
                "note: ",
                "the same command with --node NAME prints the commands of one node",
            );
        }
    }
}
