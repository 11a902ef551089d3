//! The differences between the live state and the desired state, by Service.

use super::{Section, notes, para, said, scrolls, titles};
use crate::command::diff::report::{DiffReport, leftover, verb};
use crate::render::Tone;
use crate::render::markup::Markup;
use kpx_judge::diff::Row;
use kpx_node::words::number_of;

/// Differences that are listed; the rest is counted.
const MOST: usize = 300;

pub(super) fn section(report: &DiffReport) -> Section<'_> {
    let count = report.mode.is_some().then_some(report.changes.len());
    Section::new("drift", "Drift", count, |markup| {
        markup.leaf("p", &[], &format!("{}.", report.head()));
        if !report.changes.is_empty() {
            changes(markup, &report.changes);
        }
        if !report.unknown.is_empty() {
            markup.leaf("h3", &[], "Not compared");
            for unknown in &report.unknown {
                let text = format!("{}: {}", unknown.what, unknown.gap);
                said(markup, Tone::Unclear, "Unknown:", &text);
            }
        }
        if !report.leftovers.is_empty() {
            markup.leaf("h3", &[], "Leftovers of other modes");
            markup.element("ul", &[], |markup| {
                for left in &report.leftovers {
                    let text = format!("mode {}: {}", left.mode, leftover(left));
                    markup.leaf("li", &[], &text);
                }
            });
        }
        notes(markup, &report.notes);
    })
}

fn changes(markup: &mut Markup, changes: &[Row]) {
    let shown = &changes[..changes.len().min(MOST)];
    let caption = "Objects that differ from the desired state, by Service";
    scrolls(markup, caption, |markup| {
        markup.element("table", &[("class", "drift")], |markup| {
            markup.leaf("caption", &[], caption);
            let columns = ["Object", "Difference", "Have", "Want"];
            markup.element("thead", &[], |markup| titles(markup, &columns));
            for group in shown.chunk_by(|a, b| a.service == b.service) {
                markup.element("tbody", &[], |markup| {
                    let service = group[0].service.as_deref();
                    markup.element("tr", &[], |markup| {
                        let whole = [("colspan", "4"), ("scope", "rowgroup")];
                        markup.leaf("th", &whole, service.unwrap_or("no specific Service"));
                    });
                    for change in group {
                        row(markup, change);
                    }
                });
                markup.fixed("\n");
            }
        });
    });
    if let more @ 1.. = changes.len() - shown.len() {
        let text = format!(
            "And {}: `kpx diff -v` lists them.",
            number_of(more, "more difference")
        );
        para(markup, &text);
    }
}

fn row(markup: &mut Markup, change: &Row) {
    markup.element("tr", &[], |markup| {
        let family = change.family.map(|f| format!("{f} ")).unwrap_or_default();
        let object = format!("{family}{}", change.object);
        markup.leaf("th", &[("scope", "row")], &object);
        markup.leaf("td", &[], verb(change.action));
        for text in [&change.have, &change.want] {
            let text = text.as_deref().unwrap_or("none");
            markup.leaf("td", &[("class", "rule")], text);
        }
    });
}
