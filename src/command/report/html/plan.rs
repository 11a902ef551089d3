//! The plan of a repair.

use super::{Section, notes, para, said, typed};
use crate::render::Tone;
use crate::report::plan::PlanReport;

pub(super) fn section(plan: &Result<PlanReport, String>) -> Section<'_> {
    let count = plan.as_ref().ok().map(|plan| plan.steps.len());
    Section::new("repair", "Plan of a repair", count, move |markup| {
        let plan = match plan {
            Ok(plan) => plan,
            Err(why) => return said(markup, Tone::Unclear, "No plan:", why),
        };
        markup.leaf("p", &[], &format!("{}.", plan.head().1));
        if !plan.steps.is_empty() {
            let text = "Nothing was changed. `kpx reconcile --apply` applies the plan after confirmation, and rolls it back if a step fails.";
            para(markup, text);
            markup.element("ol", &[], |markup| {
                for step in &plan.steps {
                    markup.element("li", &[], |markup| {
                        markup.leaf("span", &[("class", "word")], &step.title);
                        typed(markup, "Command of the step", &step.action.to_string());
                        markup.element("details", &[], |markup| {
                            markup.leaf("summary", &[], "Undo of the step");
                            typed(markup, "Undo of the step", &step.undo.to_string());
                        });
                    });
                }
            });
        }
        notes(markup, &plan.notes);
    })
}
