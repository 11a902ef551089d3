//! The Services, and what the node does with their packets.

use super::{Section, notes, said, table};
use crate::command::show::report::ShowReport;
use crate::render::Tone;

pub(super) fn section(report: &ShowReport) -> Section<'_> {
    let rows = report.service_table();
    let count = report.gaps().is_empty().then_some(rows.1.len());
    Section::new("services", "Services", count, move |markup| {
        for gap in report.gaps() {
            said(markup, Tone::Unclear, "Unknown:", &gap.to_string());
        }
        notes(markup, report.notes());
        let (columns, rows) = rows;
        if rows.is_empty() {
            if report.gaps().is_empty() {
                markup.leaf("p", &[], "No Services.");
            }
            return;
        }
        // Only the script can filter.
        markup.element(
            "p",
            &[("class", "filter"), ("hidden", "hidden")],
            |markup| {
                markup.element("label", &[], |markup| {
                    markup.text("Show rows with");
                    let input = [
                        ("id", "filter"),
                        ("type", "search"),
                        ("autocomplete", "off"),
                    ];
                    markup.empty("input", &input);
                });
                markup.leaf("span", &[("id", "shown"), ("role", "status")], "");
            },
        );
        table(
            markup,
            "Service ports, and what the live rules do with their packets",
            &columns,
            &rows,
        );
    })
}
