//! The Services, and the fate of connections from each kind of client.

use super::{Section, notes, said, scrolls, table, titles};
use crate::command::show::report::ShowReport;
use crate::render::Tone;
use crate::render::markup::Markup;
use crate::report::fate::tone;
use crate::view::matrix::{self, CLIENTS, End, Line};

pub(super) fn section(report: &ShowReport) -> Section<'_> {
    let lines = matrix::lines(report.services());
    let count = report.gaps().is_empty().then_some(lines.len());
    Section::new("services", "Services", count, move |markup| {
        for gap in report.gaps() {
            said(markup, Tone::Unclear, "Unknown:", &gap.to_string());
        }
        notes(markup, report.notes());
        if lines.is_empty() {
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
        matrix(markup, &lines);
        markup.element("details", &[], |markup| {
            markup.leaf("summary", &[], "Addresses, NodePorts and live rules");
            let (columns, rows) = report.service_table();
            let caption = "Service ports, and what the live rules do with their packets";
            table(markup, caption, &columns, &rows);
        });
    })
}

/// Adds the Services with the fate of connections from each kind of client.
fn matrix(markup: &mut Markup, lines: &[Line]) {
    let caption = "What happens to connections from pods, from the Service's own pods, from the node, from pods of other nodes, \
                   and from outside";
    scrolls(markup, caption, |markup| {
        markup.element("table", &[("class", "sorts matrix")], |markup| {
            markup.leaf("caption", &[], caption);
            let clients = CLIENTS.map(|(title, _)| title);
            let columns = [&["SERVICE"], &clients[..], &["READY", "WHY"]].concat();
            markup.element("thead", &[], |markup| titles(markup, &columns));
            markup.element("tbody", &[], |markup| {
                for line in lines {
                    markup.element("tr", &[], |markup| row(markup, line));
                    markup.fixed("\n");
                }
            });
        });
    });
}

fn row(markup: &mut Markup, line: &Line) {
    markup.leaf("th", &[("scope", "row")], &line.name());
    for end in line.clients {
        match end {
            None => markup.leaf("td", &[("class", "none")], "-"),
            Some(end @ End::ByDesign) => markup.leaf("td", &[], end.name()),
            Some(end @ End::Fate(fate)) => {
                markup.leaf("td", &[("class", tone(fate).class())], end.name());
            }
        }
    }
    let known = |count: Option<usize>| count.map_or("?".to_owned(), |number| number.to_string());
    let (ready, total) = line.ready;
    let ready = format!("{}/{}", known(ready), known(total));
    markup.leaf("td", &[], &ready);
    let class = if line.reason.is_empty() {
        "none"
    } else {
        "why"
    };
    markup.leaf("td", &[("class", class)], &line.reason);
}
