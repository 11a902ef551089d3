//! Prints a plan and its outcome.

use serde::Serialize;

use super::{CLEAN, FAILED, FOUND};
use crate::render::{Page, Report, Tone};
use kpx_judge::plan::{Plan, Step};
use kpx_node::apply;
use kpx_node::words::number_of;

/// Notes on what remains after a time with incomplete or outdated rules.
pub(crate) const CONNECTIONS: &str = "connections that began while the rules were wrong may wait for an endpoint that is gone: `kpx reconcile --part conntrack` lists them";

/// The outcome of a command that changes a node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlanReport {
    /// The goal, as the end of "to …".
    pub goal: String,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Whether the plan was applied.
    pub applied: bool,
    /// The number of steps that were done and not rolled back.
    pub done: usize,
    /// The failure; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// The titles of the steps that are needed after the change: a step had no effect, or something changed meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub needed: Vec<String>,
    /// Notes on the steps, and on the limits of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The command that applies the plan, for the page.
    #[serde(skip)]
    pub next: Option<String>,
}

/// A plan that stopped.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Stopped {
    /// The step that failed, from 1.
    pub step: usize,
    /// The error.
    pub error: String,
    /// Steps that were done and could not be rolled back, newest first.
    pub left: Vec<Left>,
}

/// A step that could not be rolled back.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Left {
    /// The number of the step, from 1.
    pub step: usize,
    /// The error.
    pub error: String,
}

impl PlanReport {
    /// Reports `plan`, which is not applied yet.
    pub(crate) fn new(goal: impl Into<String>, plan: Plan) -> Self {
        Self {
            goal: goal.into(),
            steps: plan.steps,
            applied: false,
            done: 0,
            stopped: None,
            needed: Vec::new(),
            notes: plan.notes,
            next: None,
        }
    }

    /// Returns whether the plan was applied to its end and changed something.
    pub(crate) const fn is_done(&self) -> bool {
        self.done > 0 && self.stopped.is_none()
    }

    /// Returns whether the plan has steps and was not applied.
    const fn is_open(&self) -> bool {
        !self.applied && !self.steps.is_empty()
    }

    /// Adds the outcome of applying the plan.
    #[must_use]
    pub(crate) fn carried_out(mut self, outcome: Result<(), apply::Stopped>) -> Self {
        self.applied = true;
        match outcome {
            Ok(()) => self.done = self.steps.len(),
            Err(stopped) => {
                let left = stopped.left.into_iter().map(|(step, error)| Left {
                    step: step + 1,
                    error,
                });
                let left: Vec<_> = left.collect();
                self.done = left.len();
                if stopped.step > 0 && !self.notes.iter().any(|note| note == CONNECTIONS) {
                    self.notes.push(CONNECTIONS.to_owned());
                }
                self.stopped = Some(Stopped {
                    step: stopped.step + 1,
                    error: stopped.error.to_string(),
                    left,
                });
            }
        }
        self
    }

    /// Returns the outcome in a few words, and its tone.
    pub(crate) fn head(&self) -> (Tone, String) {
        let goal = &self.goal;
        let count = self.steps.len();
        let steps = number_of(count, "step");
        match (&self.stopped, self.applied) {
            (Some(stopped), _) => {
                let after = match stopped.left.len() {
                    0 => "all changes were rolled back".to_owned(),
                    left => format!(
                        "{} could not be rolled back",
                        number_of(left, "earlier step")
                    ),
                };
                let step = stopped.step;
                (
                    Tone::Bad,
                    format!("stopped at step {step} of {count}: {after}"),
                )
            }
            (None, _) if count == 0 => (Tone::Good, format!("no changes needed to {goal}")),
            (None, true) if !self.needed.is_empty() => {
                let needed = number_of(self.needed.len(), "step");
                (
                    Tone::Bad,
                    format!("done: {steps}; still needed to {goal}: {needed}"),
                )
            }
            (None, true) => (Tone::Good, format!("done: {steps} to {goal}")),
            (None, false) => (Tone::Strong, format!("{steps} to {goal}")),
        }
    }
}

/// The number of lines shown of a step.
const LINES: usize = 8;

impl Report for PlanReport {
    const KIND: &'static str = "PlanReport";

    fn page(&self, page: &mut Page) {
        let (tone, head) = self.head();
        page.line(&page.paint(tone, &head));
        if let Some(stopped) = &self.stopped {
            page.para("  because ", &stopped.error);
            for left in &stopped.left {
                page.para(&format!("  step {} remains: ", left.step), &left.error);
            }
        }
        // After success the steps are known from the plan.
        let brief = self.applied && self.stopped.is_none() && page.style().verbose == 0;
        for (number, step) in (1..).zip(&self.steps) {
            if !brief {
                page.line("");
            }
            let title = page.paint(Tone::Strong, &step.title);
            page.line(&format!("{number:>3}. {title}"));
            if !brief {
                block(page, "     ", "", &step.action.to_string());
                block(page, "     ", "undo: ", &step.undo.to_string());
            }
        }
        still_needed(&self.needed, page);
        for note in &self.notes {
            page.line("");
            page.para("note: ", note);
        }
        if let Some(next) = self.next.as_ref().filter(|_| self.is_open()) {
            page.line("");
            page.next(next);
        }
    }

    fn exit(&self) -> u8 {
        match (&self.stopped, self.applied, self.steps.is_empty()) {
            (Some(_), _, _) => FAILED,
            (None, false, false) => FOUND,
            _ if !self.needed.is_empty() => FOUND,
            (None, _, _) => CLEAN,
        }
    }
}

/// Adds the steps that are needed after a change.
pub(super) fn still_needed(titles: &[String], page: &mut Page) {
    if titles.is_empty() {
        return;
    }
    page.line("");
    page.para(
        "still needed: ",
        "a step had no effect, or the node or its cluster changed meanwhile",
    );
    for title in titles {
        page.para("  - ", title);
    }
}

/// Adds a command of several lines, shortened unless the style is wide or verbose.
pub(crate) fn block(page: &mut Page, indent: &str, label: &str, text: &str) {
    let all = page.style().wide || page.style().verbose > 0;
    let count = text.lines().count();
    let shown = if all || count <= LINES + 1 {
        count
    } else {
        LINES
    };
    for (number, line) in text.lines().take(shown).enumerate() {
        let label = if number == 0 { label } else { "" };
        let line = format!("{indent}{label}{line}");
        if all {
            page.line(&line);
        } else {
            page.cut(&line);
        }
    }
    if count > shown {
        page.line(&format!(
            "{indent}… {}; -o wide shows them",
            number_of(count - shown, "more line")
        ));
    }
}
