//! A plan, and what became of it.

use serde::Serialize;

use super::{CLEAN, FAILED, FOUND};
use crate::apply;
use crate::plan::{Plan, Step};
use crate::render::{Page, Report, Tone};

/// The outcome of a command that changes a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// What the plan is for, as the end of "to …".
    pub goal: String,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Whether the plan was to be carried out.
    pub applied: bool,
    /// How many steps were done, and stayed so.
    pub done: usize,
    /// Where and why it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// What is not done, and what to know about the rest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A plan that stopped.
#[derive(Clone, Debug, Serialize)]
pub struct Stopped {
    /// The step that failed, from 1.
    pub step: usize,
    /// Why.
    pub error: String,
    /// Steps that were done and could not be taken back, newest first.
    pub left: Vec<Left>,
}

/// A step that could not be taken back.
#[derive(Clone, Debug, Serialize)]
pub struct Left {
    /// Which, from 1.
    pub step: usize,
    /// Why not.
    pub error: String,
}

impl PlanReport {
    /// Reports `plan`, which was not carried out yet.
    pub fn new(goal: impl Into<String>, plan: Plan) -> Self {
        Self {
            goal: goal.into(),
            steps: plan.steps,
            applied: false,
            done: 0,
            stopped: None,
            notes: plan.notes,
        }
    }

    /// Adds what came of carrying it out.
    #[must_use]
    pub fn carried_out(mut self, outcome: Result<(), apply::Stopped>) -> Self {
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
                self.stopped = Some(Stopped {
                    step: stopped.step + 1,
                    error: stopped.error.to_string(),
                    left,
                });
            }
        }
        self
    }

    fn head(&self) -> (Tone, String) {
        let goal = &self.goal;
        let count = self.steps.len();
        let s = if count == 1 { "" } else { "s" };
        match (&self.stopped, self.applied) {
            (Some(stopped), _) => {
                let after = match stopped.left.len() {
                    0 => "the node is as it was".to_owned(),
                    left => format!("{left} done before could not be taken back"),
                };
                let step = stopped.step;
                (
                    Tone::Bad,
                    format!("stopped at step {step} of {count}: {after}"),
                )
            }
            (None, true) if count == 0 => (Tone::Good, format!("nothing was to be done to {goal}")),
            (None, true) => (Tone::Good, format!("done: {count} step{s} to {goal}")),
            (None, false) if count == 0 => (Tone::Good, format!("nothing to do to {goal}")),
            (None, false) => (Tone::Strong, format!("{count} step{s} to {goal}")),
        }
    }
}

/// How many lines of a step people read before they want a summary.
const LINES: usize = 8;

impl Report for PlanReport {
    const KIND: &'static str = "PlanReport";

    fn page(&self, page: &mut Page) {
        let (tone, head) = self.head();
        page.line(&page.paint(tone, &head));
        if let Some(stopped) = &self.stopped {
            page.para("  because ", &stopped.error);
            for left in &stopped.left {
                page.para(&format!("  step {} stays: ", left.step), &left.error);
            }
        }
        // Done without a hitch, the steps were shown before.
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
        for note in &self.notes {
            page.line("");
            page.para("note: ", note);
        }
    }

    fn exit(&self) -> u8 {
        match (&self.stopped, self.applied, self.steps.is_empty()) {
            (Some(_), _, _) => FAILED,
            (None, false, false) => FOUND,
            (None, _, _) => CLEAN,
        }
    }
}

/// Adds a command of many lines, cut short unless more is asked for.
pub(super) fn block(page: &mut Page, indent: &str, label: &str, text: &str) {
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
            "{indent}… {} more lines; -o wide shows them",
            count - shown
        ));
    }
}
