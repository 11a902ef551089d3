//! Drift, findings and traces of a Service.

use std::net::SocketAddr;

use crate::command::diff::report as diff;
use crate::render::Page;
use crate::view::service::assessed::{Assessed, Drift, End, Findings, Traced};
use kpx_judge::check;
use kpx_judge::verdict::{Client, Fate};
use kpx_node::words::number_of;

/// Differences listed before the rest is counted.
const MOST_CHANGES: usize = 6;

/// Checks, endpoints and addresses named in one line.
const MOST_NAMES: usize = 4;

/// The width of the labels.
const INDENT: &str = "               ";

pub(super) fn page(of: &Assessed, page: &mut Page) {
    drift(&of.drift, page);
    findings(&of.findings, page);
    for traced in &of.traces {
        let label = match traced.client {
            Client::Pod | Client::Single | Client::Itself => "from a pod",
            Client::Host => "from the node",
            Client::Elsewhere => "other nodes",
            Client::Outside => "from outside",
        };
        line(label, &end(traced), page);
    }
}

fn line(label: &str, text: &str, page: &mut Page) {
    let width = INDENT.len();
    page.hang(&format!("{label:<width$}"), INDENT, text);
}

fn drift(of: &Drift, page: &mut Page) {
    let changes = of.changes.as_deref();
    let mut text = match changes {
        None => "unknown".to_owned(),
        Some([]) if of.unknown.is_empty() => "none".to_owned(),
        Some([]) => "none in the parts that were compared".to_owned(),
        Some(all) => number_of(all.len(), "difference"),
    };
    if let more @ 1.. = of.elsewhere {
        let more = number_of(more, "difference");
        text = format!("{text}; {more} of no specific Service");
    }
    if changes.is_some_and(|all| !all.is_empty()) || of.elsewhere > 0 {
        text.push_str("; `kpx diff` lists all");
    }
    line("drift", &text, page);
    let changes = changes.unwrap_or_default();
    for change in changes.iter().take(MOST_CHANGES) {
        diff::object(page, change);
    }
    if let more @ 1.. = changes.len().saturating_sub(MOST_CHANGES) {
        page.line(&format!("  and {more} more"));
    }
    for text in &of.unknown {
        page.hang("  unknown: ", "    ", text);
    }
}

fn findings(of: &Findings, page: &mut Page) {
    let mut text = match of.found.as_deref() {
        None => "unknown".to_owned(),
        Some([]) => "none".to_owned(),
        Some(all) => all.len().to_string(),
    };
    if !of.unknown.is_empty() {
        let ids: Vec<_> = of
            .unknown
            .iter()
            .map(|unknown| unknown.id.to_owned())
            .collect();
        let checks = number_of(ids.len(), "check");
        let ids = names(&ids);
        text = format!("{text}; {checks} unknown: {ids}; `kpx doctor` says why");
    }
    line("findings", &text, page);
    for finding in of.found.iter().flatten() {
        let severity = finding.severity.name().to_uppercase();
        let whole = if finding.by_name {
            ""
        } else {
            " (the whole node)"
        };
        let text = check::stated(&finding.subject, &finding.message) + whole;
        page.hang(&format!("  {severity} {} ", finding.id), "    ", &text);
    }
}

/// Returns where the packets of a client end, in one line.
fn end(of: &Traced) -> String {
    if let Some(why) = &of.untraced {
        return if of.is_unknown {
            format!("unknown: {why}")
        } else {
            why.clone()
        };
    }
    let ends: Vec<_> = of.ends.iter().map(one_end).collect();
    ends.join("; ")
}

fn one_end(end: &End) -> String {
    let backends: Vec<_> = end.backends.iter().map(SocketAddr::to_string).collect();
    let backends = names(&backends);
    let to = names(&end.to);
    let lead = match (end.fate, end.backends.as_slice()) {
        (fate, []) => format!("{to}: {fate}"),
        (Fate::Works, _) => format!("{to} → {backends}: works"),
        (fate, _) => format!("{to} → {backends}: {fate}"),
    };
    let reason = end.reason.as_ref();
    reason.map_or(lead.clone(), |why| format!("{lead} ({why})"))
}

/// Returns the first names, and how many more there are.
fn names(all: &[String]) -> String {
    let shown = all.len().min(MOST_NAMES);
    let text = all[..shown].join(", ");
    match all.len() - shown {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}
