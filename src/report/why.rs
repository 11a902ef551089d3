//! Prints why a Service does not work.

use std::net::SocketAddr;

use serde::Serialize;

use super::trace::ProbeRow;
use super::{CLEAN, FOUND, UNKNOWN};
use crate::net::Proto;
use crate::render::{Page, Report, Tone};
use crate::trace;
use crate::why::{Answer, Broken, Client, EndpointRow, Path, Verdict};

/// Endpoints listed before the rest is counted.
const MOST_SHOWN: usize = 10;

/// The outcome of `kpx why`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyReport {
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
    /// Results of real connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probed>,
}

/// The result of a real connection.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Probed {
    /// Address and port.
    pub to: SocketAddr,
    /// Transport protocol.
    pub protocol: Proto,
    /// The result.
    #[serde(flatten)]
    pub row: ProbeRow,
}

impl Report for WhyReport {
    const KIND: &'static str = "WhyReport";

    fn page(&self, page: &mut Page) {
        let answer = &self.answer;
        let (word, tone) = word(answer.verdict);
        let lead = format!("{}: ", page.paint(tone, word));
        page.hang(&lead, "  ", &answer.sentence);
        fix(page, answer.causes.first());
        if !answer.paths.is_empty() {
            page.line("");
            paths(page, &answer.paths);
        }
        endpoints(page, &answer.endpoints);
        let mut lines: Vec<(&str, String)> = Vec::new();
        for broken in answer.causes.iter().skip(1) {
            lines.push(("also:  ", broken.sentence.clone()));
        }
        for broken in &answer.limits {
            lines.push(("limit: ", broken.sentence.clone()));
        }
        for finding in &answer.findings {
            let severity = finding.severity.name();
            let text = format!(
                "{severity} {} {}: {}",
                finding.id, finding.subject, finding.message
            );
            lines.push(("check: ", text));
        }
        for text in &answer.unknown {
            lines.push(("unknown: ", text.clone()));
        }
        for probe in &self.probes {
            lines.push(("probe: ", probe.row.message.clone()));
        }
        if answer.verdict != Verdict::Works {
            lines.push(("not seen: ", answer.unseen.join(", ")));
        }
        page.line("");
        for (lead, text) in lines {
            page.hang(lead, "  ", &text);
        }
    }

    fn exit(&self) -> u8 {
        match self.answer.verdict {
            Verdict::Works => CLEAN,
            Verdict::Broken | Verdict::Suspect => FOUND,
            Verdict::NotServed | Verdict::Unknown => UNKNOWN,
        }
    }
}

pub(super) const fn word(verdict: Verdict) -> (&'static str, Tone) {
    match verdict {
        Verdict::Works => ("WORKS", Tone::Good),
        Verdict::NotServed => ("NOT SERVED", Tone::Unclear),
        Verdict::Unknown => ("UNKNOWN", Tone::Unclear),
        Verdict::Suspect => ("SUSPECT", Tone::Doubtful),
        Verdict::Broken => ("BROKEN", Tone::Bad),
    }
}

fn fix(page: &mut Page, first: Option<&Broken>) {
    let Some(fix) = first.and_then(|of| of.fix.as_ref()) else {
        return;
    };
    match fix.command() {
        Some(command) => {
            page.line(&format!("fix: {command}"));
            page.para("  ", &fix.text());
        }
        None => page.para("fix: ", &fix.text()),
    }
}

/// Adds a row for each address, with a column for each kind of client.
fn paths(page: &mut Page, paths: &[Path]) {
    let mut targets: Vec<&Path> = Vec::new();
    for path in paths {
        let is_known = |of: &&Path| of.to == path.to && of.protocol == path.protocol;
        if !targets.iter().any(is_known) {
            targets.push(path);
        }
    }
    let clients = Client::ALL;
    let rows: Vec<Vec<String>> = targets
        .iter()
        .map(|target| {
            let mut row = vec![target.target(), target.kind.name().to_owned()];
            row.extend(clients.map(|client| {
                let mut of = paths.iter();
                let of = of.find(|of| {
                    of.client == client && of.to == target.to && of.protocol == target.protocol
                });
                of.map_or_else(String::new, |path| end(path.works, path.verdict).to_owned())
            }));
            row
        })
        .collect();
    page.grid(
        &[
            ("ADDRESS", 0),
            ("KIND", 1),
            ("PODS", 0),
            ("ITS OWN PODS", 0),
            ("HOST", 0),
            ("OUTSIDE", 0),
        ],
        &rows,
    );
}

/// Returns how packets end, of which `works` says whether all reach an endpoint.
pub(super) const fn end(works: Option<bool>, verdict: trace::Verdict) -> &'static str {
    match (works, verdict) {
        (Some(true), _) => "ok",
        (None, _) => "unknown",
        (Some(false), trace::Verdict::Drop) => "dropped",
        (Some(false), trace::Verdict::Reject) => "rejected",
        (Some(false), trace::Verdict::Local) => "to the host",
        (Some(false), trace::Verdict::Unmatched) => "no rule",
        (Some(false), trace::Verdict::Deliver) => "lost",
        (Some(false), trace::Verdict::Mixed | trace::Verdict::Unknown) => "partly",
    }
}

fn endpoints(page: &mut Page, endpoints: &[EndpointRow]) {
    if endpoints.is_empty() {
        return;
    }
    page.line("");
    let row = |of: &EndpointRow| {
        let state = of.state.map_or_else(String::new, |state| state.to_string());
        vec![
            of.address.to_string(),
            state,
            of.node.clone().unwrap_or_default(),
            of.pod.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = endpoints.iter().take(MOST_SHOWN).map(row).collect();
    page.grid(
        &[("ENDPOINT", 0), ("STATE", 0), ("NODE", 0), ("POD", 1)],
        &rows,
    );
    if let more @ 1.. = endpoints.len().saturating_sub(MOST_SHOWN) {
        page.line(&format!("and {more} more"));
    }
}
