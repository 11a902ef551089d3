//! Prints why a Service does not work.

pub(crate) mod nodes;

use std::net::SocketAddr;

use serde::Serialize;

use crate::render::{Page, Report, Style};
use crate::report::fate::{self, headline};
use crate::report::picture::{self, Caption, Foot};
use crate::report::probe::ProbeRow;
use crate::report::{CLEAN, UNKNOWN};
use crate::view::did_you_mean::meant;
use crate::view::matrix::End;
use crate::view::picture::Picture;
use kpx_judge::check::{self, Fix, on};
use kpx_judge::verdict::{Client, Fate};
use kpx_judge::why::{Answer, Degree, EndpointRow, Path};
use kpx_node::net::Proto;

/// Endpoints listed before the rest is counted.
const MOST_SHOWN: usize = 10;

/// The outcome of `kpx why`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyReport {
    /// Whether connections fail only because the Service's own settings keep their clients out, and no client was asked for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_design: bool,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
    /// Results of real connections.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<Probed>,
    /// Services with similar names, if the Service does not exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub similar: Vec<String>,
    /// The command that decides what is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The machine to run it on, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_machine: Option<String>,
    /// The connections, as they are drawn.
    #[serde(skip)]
    pub picture: Picture,
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
        let lead = format!("{}: ", headline(page, self.end()));
        page.hang(&lead, "  ", &answer.sentence);
        if let Some(meant) = meant(&self.similar) {
            page.hang("", "  ", &meant);
        }
        for fix in fixes(answer) {
            let label = self.label(fix);
            match fix.line() {
                Some(command) => {
                    page.line(&format!("{label}: {command}"));
                    page.para("  ", &fix.text());
                }
                None => page.para(&format!("{label}: "), &fix.text()),
            }
        }
        if !answer.paths.is_empty() {
            page.line("");
            paths(page, &answer.paths);
        }
        endpoints(page, &answer.endpoints);
        let mut lines: Vec<(&str, String)> = Vec::new();
        for broken in answer.further() {
            lines.push(("also:  ", broken.sentence.clone()));
        }
        for note in &answer.notes {
            lines.push(("note:  ", note.clone()));
        }
        for finding in &answer.findings {
            let severity = finding.severity.name();
            let because = finding
                .because
                .map_or_else(String::new, |id| format!(" (because of {id})"));
            let stated = check::stated(&finding.subject, &finding.message);
            let text = format!("{severity} {} {stated}{because}", finding.id);
            lines.push(("check: ", text));
        }
        for text in &answer.unknown {
            lines.push(("unknown: ", text.clone()));
        }
        for probe in &self.probes {
            lines.push(("probe: ", probe.row.message.clone()));
        }
        page.line("");
        for (lead, text) in lines {
            page.hang(lead, "  ", &text);
        }
        page.hang(
            "",
            "  ",
            &format!("not checked: {}", answer.unseen.join(", ")),
        );
        if let Some(next) = &self.next {
            page.next(&on(self.next_machine.as_deref(), next));
        }
    }

    fn exit(&self) -> u8 {
        match self.by_design {
            true if self
                .answer
                .paths
                .iter()
                .any(|path| path.fate == Fate::Unknown) =>
            {
                UNKNOWN
            }
            true => CLEAN,
            false => fate::exit(self.answer.fate),
        }
    }
}

impl WhyReport {
    /// Returns the answer in a word.
    fn end(&self) -> End {
        if self.by_design {
            End::ByDesign
        } else {
            End::Fate(self.answer.fate)
        }
    }

    /// Returns the word before a fix: nothing has to be repaired that is by design.
    fn label(&self, fix: &Fix) -> &'static str {
        if self.by_design {
            "option"
        } else {
            fix.label()
        }
    }
}

/// Returns the texts around the picture.
fn caption(report: &WhyReport) -> Caption {
    let answer = &report.answer;
    let fixes = fixes(answer).into_iter().flat_map(|fix| {
        let command = fix.line();
        let label = report.label(fix);
        let lead = if command.is_some() { "" } else { label };
        let command = command.map(|command| Foot::Command(label, command));
        command.into_iter().chain([Foot::Text(lead, fix.text())])
    });
    let also = answer.further().iter();
    let also = also.map(|cause| Foot::Text("also", cause.sentence.clone()));
    let unknown = answer.unknown.iter();
    let unknown = unknown.map(|text| Foot::Text("unknown", text.clone()));
    let service = answer.service.as_deref().unwrap_or("an address");
    Caption {
        title: format!("Connections to {service}"),
        heads: vec![(report.end(), answer.sentence.clone())],
        feet: fixes.chain(also).chain(unknown).collect(),
    }
}

/// Returns the picture as text.
pub(crate) fn picture(report: &WhyReport, style: Style) -> String {
    picture::text(&report.picture, &caption(report), style)
}

/// Returns the picture as a document of SVG.
pub(crate) fn svg(report: &WhyReport, _: Style) -> String {
    picture::scene(&report.picture, &caption(report)).svg()
}

/// Returns the fixes of the causes that surely break the connections, without duplicates.
fn fixes(answer: &Answer) -> Vec<&Fix> {
    let mut told: Vec<String> = Vec::new();
    let mut fixes = Vec::new();
    let first = answer.fix.iter();
    let others = answer
        .causes
        .iter()
        .filter(|cause| cause.degree == Degree::Breaks && answer.fix.is_some());
    let others = others.flat_map(|cause| cause.fix.iter().chain(&cause.meanwhile));
    for fix in first.chain(others) {
        let key = fix.line().unwrap_or_else(|| fix.text());
        if told.contains(&key) {
            continue;
        }
        told.push(key);
        fixes.push(fix);
    }
    fixes
}

/// Adds a row for each address, with a column for each kind of client.
fn paths(page: &mut Page, paths: &[Path]) {
    let mut targets: Vec<&Path> = Vec::new();
    for path in paths {
        let is_known = |known: &&Path| known.to == path.to && known.protocol == path.protocol;
        if !targets.iter().any(is_known) {
            targets.push(path);
        }
    }
    let columns = [
        (Client::Pod, "PODS"),
        (Client::Single, "SINGLE PODS"),
        (Client::Itself, "ITS OWN PODS"),
        (Client::Host, "HOST"),
        (Client::Elsewhere, "OTHER NODES"),
        (Client::Outside, "OUTSIDE"),
    ];
    let is_usual = |client| !matches!(client, Client::Single | Client::Elsewhere);
    let has = |client| is_usual(client) || paths.iter().any(|path| path.client == client);
    let columns = columns.into_iter().filter(|(client, _)| has(*client));
    let rows: Vec<Vec<String>> = targets
        .iter()
        .map(|target| {
            let mut row = vec![target.target().to_string(), target.kind.name().to_owned()];
            row.extend(columns.clone().map(|(client, _)| {
                let of = paths.iter().filter(|path| {
                    path.client == client
                        && path.to == target.to
                        && path.protocol == target.protocol
                });
                let worst = of.max_by_key(|path| path.fate);
                worst.map_or_else(String::new, end)
            }));
            row
        })
        .collect();
    let mut head = vec![("ADDRESS", 0), ("KIND", 1)];
    head.extend(columns.map(|(_, name)| (name, 0)));
    page.grid(&head, &rows);
}

/// Returns the fate of connections in one word, with the share that fails.
fn end(path: &Path) -> String {
    match path.share().filter(|_| path.failing > 0.0) {
        Some(share) => format!("{share} fail"),
        None => path.fate.name().to_owned(),
    }
}

fn endpoints(page: &mut Page, endpoints: &[EndpointRow]) {
    if endpoints.is_empty() {
        return;
    }
    page.line("");
    let row = |row: &EndpointRow| {
        let state = row
            .state
            .map_or_else(String::new, |state| state.to_string());
        vec![
            row.address.to_string(),
            state,
            row.node.clone().unwrap_or_default(),
            row.pod.clone().unwrap_or_default(),
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
