//! The findings of several nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::{DoctorReport, Status};
use crate::render::{Page, Tone};
use crate::report::nodes::failing::{self, FailingService, Failures};
use crate::report::nodes::names::Nodes;
use crate::report::nodes::{Together, cell, title};
use kpx_judge::check::{self, Severity, on};
use kpx_judge::verdict::Failing;
use kpx_node::words::number_of;

/// The findings of several nodes, without duplicates.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct DoctorOfNodes {
    /// The number of nodes with errors.
    pub errors: usize,
    /// The number of nodes with warnings, but no errors.
    pub warnings: usize,
    /// The number of nodes without errors and warnings, on which some checks are unknown.
    pub inconclusive: usize,
    /// The number of nodes without errors and warnings, and without unknown checks.
    pub healthy: usize,
    /// The Services whose connections fail.
    pub services: Vec<FailingService>,
    /// The Services of which something is unknown, by reason.
    pub unknown_services: Vec<UnknownServices>,
    /// The findings: first findings of at most half of the nodes, then the others, each by severity and by the number of
    /// nodes.
    pub findings: Vec<Finding>,
    /// The checks whose data is missing.
    pub unknown: Vec<Unknown>,
    /// The command to run next: that of the worst node.
    #[serde(skip)]
    next: Option<String>,
    /// Those of all nodes.
    #[serde(skip)]
    nexts: Vec<(Rank, String)>,
    #[serde(skip)]
    failing: Failures,
    #[serde(skip)]
    open: BTreeMap<String, (BTreeSet<String>, Nodes)>,
    #[serde(skip)]
    found: BTreeMap<Key, (BTreeSet<Box<str>>, Nodes)>,
    #[serde(skip)]
    missing: BTreeMap<Box<str>, (BTreeSet<&'static str>, Nodes)>,
}

/// How bad a node is: its worst severity, the number of Services that fail, and its name, of which the first counts. Of several such
/// nodes, the one with a finding of that severity that most others do not have knows more.
type Rank = (Option<Severity>, usize, Reverse<Arc<str>>);

/// A finding: severity, id and name of the check, message.
type Key = (Severity, &'static str, &'static str, Box<str>);

/// A finding, with the nodes that have it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Finding {
    /// The id of its check.
    pub id: &'static str,
    /// The name of its check.
    pub name: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The problem.
    pub message: Box<str>,
    /// The objects that it is about.
    pub subjects: BTreeSet<Box<str>>,
    /// The nodes that have it.
    pub nodes: Nodes,
    /// Whether more than half of the nodes have it.
    pub common: bool,
}

/// Services of which something is unknown for one reason.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct UnknownServices {
    /// The reason, or the first of several.
    pub reason: String,
    /// The Services, as `NAMESPACE/NAME`.
    pub services: BTreeSet<String>,
    /// The nodes.
    pub nodes: Nodes,
}

/// Checks whose data is missing for one reason.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Unknown {
    /// The reason.
    pub reason: Box<str>,
    /// The ids of the checks.
    pub checks: BTreeSet<&'static str>,
    /// The nodes.
    pub nodes: Nodes,
}

/// The part of a node's report that is kept.
#[derive(Debug)]
pub(crate) struct Part {
    failing: Vec<Failing>,
    doubts: Vec<(String, String)>,
    lacks_data: bool,
    findings: Vec<(Key, Box<str>)>,
    unknown: Vec<(Box<str>, &'static str)>,
    next: String,
}

impl Together for DoctorOfNodes {
    type Of = DoctorReport;
    type Part = Part;

    fn part(report: DoctorReport) -> Part {
        let unknown = report.with(Status::Unknown).map(|check| {
            let reason = check.reason.as_deref().unwrap_or_default();
            (Box::from(reason), check.id)
        });
        let services = report.head.services.as_ref();
        Part {
            failing: services.map_or_else(Vec::new, |tally| tally.failing.clone()),
            doubts: services.map_or_else(Vec::new, |tally| tally.doubts.clone()),
            lacks_data: report.lacks_data(),
            unknown: unknown.collect(),
            next: on(report.next_machine.as_deref(), &report.next),
            findings: report
                .findings
                .into_iter()
                .map(|finding| {
                    let key = (
                        finding.severity,
                        finding.id,
                        finding.name,
                        finding.message.into_boxed_str(),
                    );
                    (key, finding.subject.into_boxed_str())
                })
                .collect(),
        }
    }

    fn add(&mut self, node: &Arc<str>, part: Part) {
        let worst = part
            .findings
            .iter()
            .map(|((severity, ..), _)| *severity)
            .chain(part.failing.first().map(|_| Severity::Error))
            .max();
        let state = match worst {
            Some(Severity::Error) => &mut self.errors,
            Some(Severity::Warning) => &mut self.warnings,
            _ if part.lacks_data => &mut self.inconclusive,
            _ => &mut self.healthy,
        };
        *state += 1;
        let rank = (worst, part.failing.len(), Reverse(Arc::clone(node)));
        self.nexts.push((rank, part.next));
        self.failing.add(node, part.failing);
        for (service, reason) in part.doubts {
            let (services, nodes) = self.open.entry(reason).or_default();
            services.insert(service);
            nodes.add(node);
        }
        for (key, subject) in part.findings {
            let (subjects, nodes) = self.found.entry(key).or_default();
            subjects.insert(subject);
            nodes.add(node);
        }
        for (reason, id) in part.unknown {
            let (ids, nodes) = self.missing.entry(reason).or_default();
            ids.insert(id);
            nodes.add(node);
        }
    }

    fn settle(&mut self) {
        let read = self.errors + self.warnings + self.inconclusive + self.healthy;
        self.services = std::mem::take(&mut self.failing).into_services();
        let open = std::mem::take(&mut self.open).into_iter();
        let open = open.map(|(reason, (services, nodes))| UnknownServices {
            reason,
            services,
            nodes,
        });
        self.unknown_services = open.collect();
        let found = std::mem::take(&mut self.found).into_iter();
        let findings = found.map(
            |((severity, id, name, message), (subjects, nodes))| Finding {
                id,
                name,
                severity,
                message,
                subjects,
                common: nodes.len() * 2 > read,
                nodes,
            },
        );
        self.findings = findings.collect();
        self.findings.sort_by(|a, b| {
            let order = |finding: &Finding| {
                (
                    finding.common,
                    Reverse(finding.severity),
                    finding.nodes.len(),
                )
            };
            (order(a), a.id, &a.message).cmp(&(order(b), b.id, &b.message))
        });
        let worst = std::mem::take(&mut self.nexts).into_iter().max_by_key(
            |((worst, failing, Reverse(node)), _)| {
                let mut odd = self.findings.iter().filter(|finding| !finding.common);
                let is_odd = odd.any(|finding| {
                    Some(finding.severity) == *worst && finding.nodes.contains(node)
                });
                (*worst, *failing, is_odd, Reverse(Arc::clone(node)))
            },
        );
        self.next = worst.map(|(_, next)| next);
        let missing = std::mem::take(&mut self.missing).into_iter();
        let unknown = missing.map(|(reason, (checks, nodes))| Unknown {
            reason,
            checks,
            nodes,
        });
        self.unknown = unknown.collect();
        self.unknown.sort_by(|a, b| {
            let order = |unknown: &Unknown| Reverse((unknown.nodes.len(), unknown.checks.len()));
            (order(a), &a.reason).cmp(&(order(b), &b.reason))
        });
    }

    fn states(&self) -> Vec<(usize, &'static str)> {
        vec![
            (self.healthy, "healthy"),
            (self.errors, "with errors"),
            (self.warnings, "with warnings"),
            (self.inconclusive, "inconclusive"),
        ]
    }

    fn next(&self) -> Option<&str> {
        let has_any = !self.findings.is_empty() || !self.services.is_empty();
        self.next.as_deref().filter(|_| has_any)
    }

    fn page(&self, read: usize, page: &mut Page) {
        failing::page(&self.services, read, page);
        open(&self.unknown_services, read, page);
        let (common, odd): (Vec<_>, Vec<_>) =
            self.findings.iter().partition(|finding| finding.common);
        for (heading, findings) in [("on some nodes", odd), ("on most nodes", common)] {
            if !findings.is_empty() {
                title(page, heading);
                table(&findings, read, page);
            }
        }
        unknown(&self.unknown, read, page);
    }
}

/// Returns how many reasons are shown.
fn shown(page: &Page) -> usize {
    const FEW: usize = 5;
    if page.style().verbose > 0 {
        usize::MAX
    } else {
        FEW
    }
}

fn open(unknown: &[UnknownServices], read: usize, page: &mut Page) {
    if unknown.is_empty() {
        return;
    }
    title(page, "Services that are unknown");
    let shown = shown(page);
    let rows = unknown.iter().take(shown).map(|of| {
        let services = of.services.iter().map(String::as_str);
        vec![
            named(&services.collect::<Vec<_>>(), 1, page),
            cell(&of.nodes, read, page),
            of.reason.clone(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    page.grid(&[("SERVICES", 0), ("NODES", 0), ("REASON", 0)], &rows);
    if unknown.len() > rows.len() {
        let rest = number_of(unknown.len() - rows.len(), "more reason");
        page.line(&format!("{rest} (-v lists them)"));
    }
}

fn table(findings: &[&Finding], read: usize, page: &mut Page) {
    let rows = findings.iter().map(|finding| {
        vec![
            finding.severity.name().to_uppercase(),
            finding.id.to_owned(),
            cell(&finding.nodes, read, page),
            what(finding, page),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let columns = [("SEVERITY", 0), ("CHECK", 0), ("NODES", 0), ("PROBLEM", 0)];
    page.grid(&columns, &rows);
}

/// Returns the objects and their problem.
fn what(finding: &Finding, page: &Page) -> String {
    let subjects = finding.subjects.iter().map(|subject| &**subject);
    let subjects = named(&subjects.collect::<Vec<_>>(), 2, page);
    check::stated(&subjects, &finding.message)
}

/// Returns the first `few` of `names` and the number of the others; all of them on a long page.
fn named(names: &[&str], few: usize, page: &Page) -> String {
    let count = if page.style().verbose > 0 {
        names.len()
    } else {
        few
    };
    let (shown, others) = names.split_at(count.min(names.len()));
    let rest = match others.len() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    format!("{}{rest}", shown.join(", "))
}

fn unknown(unknown: &[Unknown], read: usize, page: &mut Page) {
    if unknown.is_empty() {
        return;
    }
    page.line("");
    page.line(&page.paint(Tone::Unclear, "unknown"));
    let shown = shown(page);
    for of in unknown.iter().take(shown) {
        let checks: Vec<&str> = of.checks.iter().copied().collect();
        let checks = match checks.as_slice() {
            all if all.len() > 3 && page.style().verbose == 0 => number_of(all.len(), "check"),
            all => all.join(", "),
        };
        let nodes = cell(&of.nodes, read, page);
        page.para("  ", &format!("{checks} on {nodes}: {}", of.reason));
    }
    if unknown.len() > shown {
        let rest = number_of(unknown.len() - shown, "more reason");
        page.line(&format!("  and {rest} (-v shows all)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of nodes with findings of the same severity, the one with the finding that others do not have is followed.
    #[test]
    fn the_next_command_is_that_of_the_node_that_knows_more() {
        let part = |messages: &[&str], failing: usize, next: &str| Part {
            failing: (0..failing)
                .map(|at| Failing {
                    service: format!("demo/{at}"),
                    fate: kpx_judge::verdict::Fate::Lost,
                    clients: Vec::new(),
                })
                .collect(),
            doubts: Vec::new(),
            lacks_data: false,
            findings: messages
                .iter()
                .map(|message| {
                    let key = (
                        Severity::Warning,
                        "AP01",
                        "no-endpoints",
                        Box::from(*message),
                    );
                    (key, Box::from("demo/web"))
                })
                .collect(),
            unknown: Vec::new(),
            next: next.to_owned(),
        };
        let next = |parts: [Part; 3]| {
            let mut all = DoctorOfNodes::default();
            for (name, part) in ["cp1", "w1", "w2"].into_iter().zip(parts) {
                all.add(&Arc::from(name), part);
            }
            all.settle();
            all.next().unwrap().to_owned()
        };
        let common = || part(&["empty"], 0, "common");
        assert_eq!(next([common(), common(), common()]), "common");
        let odd = part(&["empty", "its probe fails"], 0, "odd");
        assert_eq!(next([common(), odd, common()]), "odd");
        let failing = part(&["empty"], 1, "failing");
        let odd = part(&["empty", "its probe fails"], 0, "odd");
        assert_eq!(next([common(), odd, failing]), "failing");
    }
}
