//! The paths of packets, as pictures with their text.

use super::{Section, TEXT, notes, para, said, scrolls};
use crate::command::trace::report::{TraceReport, drawing, heads};
use crate::render::markup::Markup;
use crate::render::{Page, Report as _, Tone};
use crate::report::fate::tone;

/// A target, and its trace or why there is none.
type Traced = (String, Result<TraceReport, String>);

pub(super) fn section(traces: &[Traced]) -> Section<'_> {
    Section::new("traces", "Traces", Some(traces.len()), move |markup| {
        if traces.is_empty() {
            let text = "No Service has findings or drift. `kpx report --trace TARGET` adds the trace of a Service.";
            para(markup, text);
        }
        for (target, traced) in traces {
            markup.leaf("h3", &[], target);
            match traced {
                Ok(report) => trace(markup, target, report),
                Err(why) => said(markup, Tone::Unclear, "Unknown:", why),
            }
        }
    })
}

fn trace(markup: &mut Markup, target: &str, report: &TraceReport) {
    for (fate, text) in heads(report) {
        said(markup, tone(fate), &fate.name().to_ascii_uppercase(), &text);
    }
    scrolls(
        markup,
        &format!("Picture of the trace to {target}"),
        |markup| {
            drawing(report).add_svg(markup, None);
        },
    );
    notes(markup, &report.notes());
    let mut page = Page::new(TEXT);
    report.page(&mut page);
    markup.element("details", &[], |markup| {
        markup.leaf("summary", &[], &format!("Trace to {target} as text"));
        scrolls(
            markup,
            &format!("Text of the trace to {target}"),
            |markup| {
                markup.leaf("pre", &[("class", "text")], &page.into_text());
            },
        );
    });
}
