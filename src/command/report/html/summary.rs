//! The summary, and the facts about the node.

use super::findings::check_link;
use super::{NodePage, Section, said, typed, word};
use crate::command::doctor::report::DoctorReport;
use crate::render::Tone;
use crate::render::markup::Markup;
use kpx_judge::check;
use kpx_node::words::number_of;

/// Adds the origin, the verdict on the Services, the worst finding, and the next command.
pub(super) fn lead(markup: &mut Markup, page: &NodePage) {
    let doctor = &page.doctor;
    markup.leaf("p", &[("class", "note")], &page.origin);
    if let Some(services) = doctor.services() {
        markup.leaf("p", &[("class", "verdict")], &services);
    }
    worst(markup, doctor);
    let machine = doctor.next_machine.as_deref();
    let machine = machine.map_or_else(String::new, |machine| format!(" on {machine}"));
    markup.leaf("p", &[], &format!("Next{machine}:"));
    typed(markup, "Next command", &doctor.next);
}

/// Adds the worst finding.
fn worst(markup: &mut Markup, doctor: &DoctorReport) {
    let first = doctor.in_blocks().next();
    let first = first.and_then(|block| block.groups().first()?.first().copied());
    let Some(worst) = first else {
        return match doctor.summary.unknown {
            0 => markup.leaf("p", &[], "No check found a problem."),
            unknown => said(
                markup,
                Tone::Unclear,
                "Unknown:",
                &format!(
                    "{} could not run; no other check found a problem.",
                    number_of(unknown, "check")
                ),
            ),
        };
    };
    markup.element("p", &[], |markup| {
        word(markup, worst.tone(), &worst.severity.name().to_uppercase());
        markup.text(" ");
        check_link(markup, worst.id);
        let stated = check::stated(&worst.subject, &worst.message);
        markup.text(&format!(" {stated}"));
    });
}

pub(super) fn section(page: &NodePage) -> Section<'_> {
    Section::new("summary", "Summary", None, |markup| {
        markup.element("dl", &[("class", "facts")], |markup| {
            let mut fact = |name: &str, text: &str| {
                markup.leaf("dt", &[], name);
                markup.leaf("dd", &[], text);
            };
            for (name, text) in page.doctor.facts() {
                fact(name, &text);
            }
            fact("read from", &page.source);
            fact("checks", &page.doctor.checked());
            fact("drift", &page.drift.head());
            let plan = page.plan.as_ref();
            fact(
                "repair",
                &plan.map_or_else(|why| format!("no plan: {why}"), |plan| plan.head().1),
            );
        });
        if page.redacted {
            said(
                markup,
                Tone::Unclear,
                "Redacted:",
                "the names and addresses on this page are replacements, the same ones everywhere.",
            );
        }
    })
}
