//! The first section: the node, its mode, and what was found.

use super::{NodePage, Section, said, word};
use crate::render::Tone;
use crate::render::markup::Markup;
use kpx_node::words::number_of;

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
        worst(page, markup);
        markup.element("p", &[], |markup| {
            markup.text("Next: ");
            markup.leaf("code", &[], &page.doctor.next);
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

/// Adds the worst finding.
fn worst(page: &NodePage, markup: &mut Markup) {
    let Some(worst) = page.doctor.findings.first() else {
        return match page.doctor.summary.unknown {
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
        markup.text("Worst finding: ");
        word(
            markup,
            worst.tone(),
            &format!("{} {}", worst.severity.name().to_uppercase(), worst.id),
        );
        markup.text(&format!(" {}: {}", worst.subject, worst.message));
    });
}
