//! The page of several nodes: the worst finding of each, and the Services that fail there.

use super::findings::{check_link, severity};
use super::{Section, Top, checks, document, linked, prose, said, scrolls, table, titles, word};
use crate::command::doctor::report::DoctorReport;
use crate::command::doctor::report::nodes::DoctorOfNodes;
use crate::render::Tone;
use crate::render::markup::Markup;
use crate::report::nodes::names::Nodes;
use kpx_judge::check::{self, Severity};
use kpx_judge::verdict::client_names;
use kpx_node::words::number_of;

/// A node in the table of nodes.
#[derive(Debug)]
pub(crate) struct NodeRow {
    /// The verdict in a few words.
    answer: (Tone, String),
    /// The mode.
    mode: String,
    /// The worst finding: severity, id of the check, and message.
    worst: Option<(Severity, &'static str, String)>,
    /// The failing Services and the number of all, if known.
    failing: Option<(Vec<String>, usize)>,
}

impl NodeRow {
    /// Returns the row of the node of `report`.
    pub(crate) fn of(report: &DoctorReport) -> Self {
        let worst = report.findings.first();
        let mut facts = report.facts().into_iter();
        let mode = facts.find_map(|(name, text)| (name == "mode").then_some(text));
        let services = report.head.services.as_ref();
        Self {
            answer: report.answer(),
            mode: mode.unwrap_or_default(),
            worst: worst.map(|worst| {
                let text = check::stated(&worst.subject, &worst.message);
                (worst.severity, worst.id, text)
            }),
            failing: services.map(|tally| {
                let names = tally.failing.iter().map(|failing| failing.service.clone());
                (names.collect(), tally.total)
            }),
        }
    }
}

impl NodeRow {
    /// Returns the sort key of nodes: the worst has the highest.
    pub(crate) fn rank(&self) -> (Option<Severity>, usize) {
        let failing = self.failing.as_ref().map_or(0, |(names, _)| names.len());
        (self.worst.as_ref().map(|(severity, ..)| *severity), failing)
    }
}

/// Several nodes, for a ticket.
#[derive(Debug)]
pub(crate) struct NodesPage {
    /// The times and the mode, as the first line of other pages.
    pub origin: String,
    /// The source: `bundle cluster.tar.gz`, `all nodes of the cluster`.
    pub source: String,
    /// Whether names and addresses were replaced in the bundle.
    pub redacted: bool,
    /// The nodes, the worst first, or why one was not read.
    pub nodes: Vec<(String, Result<NodeRow, String>)>,
    /// Why more nodes are missing, if so.
    pub incomplete: Option<String>,
    /// The findings of all nodes, without duplicates.
    pub doctor: DoctorOfNodes,
}

impl NodesPage {
    /// Returns the page.
    pub(crate) fn html(&self) -> String {
        let answer = self.answer();
        let tone = match &self.doctor {
            doctor if doctor.errors > 0 => Tone::Bad,
            doctor if doctor.warnings > 0 => Tone::Doubtful,
            doctor if doctor.inconclusive > 0 || self.unread() > 0 => Tone::Unclear,
            _ => Tone::Good,
        };
        let name = number_of(self.nodes.len(), "node");
        let top = Top {
            name: &name,
            tone,
            answer: &answer,
            redacted: self.redacted,
        };
        let text = if self.doctor.services.is_empty() {
            "No Service is known to fail on any node.".to_owned()
        } else {
            let mut names: Vec<&str> = self
                .doctor
                .services
                .iter()
                .map(|failing| failing.service.as_str())
                .collect();
            names.dedup();
            let verb = if names.len() == 1 { "fails" } else { "fail" };
            format!(
                "{} {verb} on some node: {}",
                number_of(names.len(), "Service"),
                names.join(", ")
            )
        };
        document(
            &top,
            |markup| {
                markup.leaf("p", &[("class", "note")], &self.origin);
                markup.leaf("p", &[("class", "verdict")], &text);
            },
            [
                self.nodes(),
                self.services(),
                self.findings(),
                checks::section(self.doctor.findings.iter().map(|finding| finding.id)),
            ],
        )
    }

    /// Returns the verdict in a few words.
    pub(crate) fn answer(&self) -> String {
        let doctor = &self.doctor;
        let states = [
            (doctor.errors, "with errors"),
            (doctor.warnings, "with warnings"),
            (doctor.inconclusive, "inconclusive"),
            (doctor.healthy, "healthy"),
            (self.unread(), "not read"),
        ];
        let states = states.into_iter().filter(|(count, _)| *count > 0);
        let states: Vec<String> = states
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        states.join(", ")
    }

    fn unread(&self) -> usize {
        self.nodes.iter().filter(|(_, read)| read.is_err()).count()
    }

    fn nodes(&self) -> Section<'_> {
        Section::new("nodes", "Nodes", Some(self.nodes.len()), |markup| {
            markup.leaf("p", &[], &format!("Read from {}.", self.source));
            if let Some(why) = &self.incomplete {
                said(
                    markup,
                    Tone::Unclear,
                    "Incomplete:",
                    &format!("nodes are missing: {why}"),
                );
            }
            let columns = [
                "NODE",
                "VERDICT",
                "WORST FINDING",
                "SERVICES THAT FAIL",
                "MODE",
            ];
            rows(
                markup,
                "Nodes, each with its worst finding and the Services that fail",
                &columns,
                &self.nodes,
                |markup, (name, read)| {
                    markup.leaf("th", &[("scope", "row")], name);
                    match read {
                        Ok(row) => node(markup, row),
                        Err(why) => {
                            markup.element("td", &[], |markup| {
                                word(markup, Tone::Unclear, "not read");
                            });
                            markup.leaf("td", &[], why);
                            markup.leaf("td", &[("class", "none")], "?");
                            markup.leaf("td", &[("class", "none")], "?");
                        }
                    }
                },
            );
        })
    }

    fn services(&self) -> Section<'_> {
        let failing = &self.doctor.services;
        Section::new(
            "services",
            "Services that fail",
            Some(failing.len()),
            |markup| {
                if failing.is_empty() {
                    return markup.leaf("p", &[], "None.");
                }
                let rows = failing.iter().map(|row| {
                    vec![
                        row.service.clone(),
                        self.cell(&row.nodes),
                        format!("{}{}", row.fate, client_names(&row.clients)),
                    ]
                });
                let rows: Vec<_> = rows.collect();
                table(
                    markup,
                    "Services that fail, with the nodes where they do",
                    &["SERVICE", "NODES", "VERDICT"],
                    &rows,
                );
            },
        )
    }

    fn findings(&self) -> Section<'_> {
        let findings = &self.doctor.findings;
        Section::new("findings", "Findings", Some(findings.len()), |markup| {
            if findings.is_empty() {
                markup.leaf("p", &[], "No findings.");
            } else {
                let columns = ["SEVERITY", "CHECK", "NODES", "PROBLEM"];
                rows(
                    markup,
                    "Findings, with the nodes that have them",
                    &columns,
                    findings,
                    |markup, finding| {
                        severity(markup, finding.severity);
                        markup.element("td", &[], |markup| check_link(markup, finding.id));
                        markup.leaf("th", &[("scope", "row")], &self.cell(&finding.nodes));
                        markup.element("td", &[], |markup| {
                            let subjects: Vec<&str> =
                                finding.subjects.iter().map(|subject| &**subject).collect();
                            prose(
                                markup,
                                &check::stated(&subjects.join(", "), &finding.message),
                            );
                        });
                    },
                );
            }
            if !self.doctor.unknown.is_empty() {
                markup.leaf("h3", &[], "Checks without a result");
                let unknown = self.doctor.unknown.iter().map(|group| {
                    let ids: Vec<&str> = group.checks.iter().copied().collect();
                    vec![
                        ids.join(", "),
                        self.cell(&group.nodes),
                        group.reason.to_string(),
                    ]
                });
                let unknown: Vec<_> = unknown.collect();
                table(
                    markup,
                    "Checks whose data is missing",
                    &["Checks", "Nodes", "Reason"],
                    &unknown,
                );
            }
        })
    }

    /// Returns the names of nodes, or `all`.
    fn cell(&self, nodes: &Nodes) -> String {
        let read = self.nodes.len() - self.unread();
        if nodes.len() == read && read > 1 {
            return format!("all {read}");
        }
        nodes.all()
    }
}

/// Adds a table whose columns sort: `fill` adds the cells of each row.
fn rows<R>(
    markup: &mut Markup,
    caption: &str,
    columns: &[&str],
    all: &[R],
    fill: impl Fn(&mut Markup, &R),
) {
    scrolls(markup, caption, |markup| {
        markup.element("table", &[("class", "sorts findings")], |markup| {
            markup.leaf("caption", &[], caption);
            markup.element("thead", &[], |markup| titles(markup, columns));
            markup.element("tbody", &[], |markup| {
                for row in all {
                    markup.element("tr", &[], |markup| fill(markup, row));
                    markup.fixed("\n");
                }
            });
        });
    });
}

/// Adds the cells of a node that was read, behind its name.
fn node(markup: &mut Markup, row: &NodeRow) {
    let (tone, answer) = &row.answer;
    markup.element("td", &[], |markup| word(markup, *tone, answer));
    match &row.worst {
        None => markup.leaf("td", &[("class", "none")], "-"),
        Some((severity, id, text)) => markup.element("td", &[], |markup| {
            markup.text(&format!("{} ", severity.name().to_uppercase()));
            check_link(markup, id);
            markup.text(" ");
            linked(markup, text);
        }),
    }
    match &row.failing {
        None => markup.leaf("td", &[("class", "unclear")], "unknown"),
        Some((names, total)) if names.is_empty() => {
            markup.leaf("td", &[], &format!("none of {total}"));
        }
        Some((names, total)) => {
            let text = format!("{} of {total}: {}", names.len(), names.join(", "));
            markup.leaf("td", &[("class", "bad")], &text);
        }
    }
    markup.leaf("td", &[], &row.mode);
}
