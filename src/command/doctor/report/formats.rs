//! The doctor's formats for other programs.

use std::collections::BTreeMap;

use super::{DoctorReport, Status};
use crate::render::markup::escaped as xml;
use crate::render::prometheus::Exposition;
use crate::report::metrics;
use kpx_judge::check::{self, Severity};
use kpx_judge::verdict::{Failing, client_names};

impl DoctorReport {
    /// Returns a line per finding, and per unknown check.
    pub(crate) fn short(&self) -> String {
        short(self, "")
    }

    /// Returns the same with the node in front of each line.
    pub(crate) fn short_of(&self, node: &str) -> String {
        short(self, &format!("{node}: "))
    }

    /// Returns `JUnit` XML with a test case per check.
    pub(crate) fn junit(&self) -> String {
        let counts = counts(self);
        format!(
            "{XML}<testsuites {counts}>\n{}{JUNIT_TAIL}",
            suite(self, "kpx doctor")
        )
    }

    /// Returns the test suite of one of several nodes, between [`JUNIT_HEAD`] and [`JUNIT_TAIL`].
    pub(crate) fn junit_of(&self, node: &str) -> String {
        suite(self, &format!("kpx doctor on {node}"))
    }

    /// Returns one line of at most 80 characters, for a custom plugin of node-problem-detector: the worst error.
    pub(crate) fn npd(&self) -> String {
        npd(self)
    }

    /// Returns the text format of Prometheus, for the textfile collector of `node_exporter`.
    pub(crate) fn prom(&self) -> String {
        prom(self)
    }
}

/// Returns the fate of the connections of a Service that no finding names.
fn of_service(failing: &Failing) -> String {
    let clients = client_names(&failing.clients);
    format!("{}: does not work{clients}", failing.service)
}

/// Returns a line per finding, per Service that fails without one, and per unknown check.
fn short(report: &DoctorReport, lead: &str) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let severity = finding.severity.name();
        let stated = check::stated(&finding.subject, &finding.message);
        let line = format!("{lead}{severity} {} {stated}\n", finding.id);
        text.push_str(&line);
    }
    for failing in report.unnamed() {
        let line = format!("{lead}error services {}\n", of_service(failing));
        text.push_str(&line);
    }
    for check in report.with(Status::Unknown) {
        let reason = check.reason.as_deref().unwrap_or("");
        let line = format!("{lead}unknown {} {}: {reason}\n", check.id, check.name);
        text.push_str(&line);
    }
    text
}

/// The length at which node-problem-detector cuts a message, by default.
const NPD: usize = 80;

fn npd(report: &DoctorReport) -> String {
    let errors = report.findings.iter();
    let mut errors = errors.filter(|error| error.severity == Severity::Error);
    let unknown = report.with(Status::Unknown).count();
    let line = match (errors.next(), errors.count()) {
        (Some(of), more) => {
            let stated = check::stated(&of.subject, &of.message);
            let more = match more {
                0 => String::new(),
                more => format!(" (+{more})"),
            };
            format!("{}{more} {stated}", of.id)
        }
        (None, _) if report.unnamed().next().is_some() => {
            report.unnamed().take(1).map(of_service).collect()
        }
        (None, _) if unknown > 0 => format!("no error found, {unknown} checks unknown"),
        (None, _) => "no error found".to_owned(),
    };
    let short: String = line.chars().take(NPD - 1).collect();
    short + "\n"
}

const XML: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// The start of `JUnit` XML with a test suite per node.
pub(crate) const JUNIT_HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";

/// The end of `JUnit` XML.
pub(crate) const JUNIT_TAIL: &str = "</testsuites>\n";

/// Returns the test suite of a node that was not read.
pub(crate) fn junit_unread(node: &str, error: &str) -> String {
    let counts = "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\"";
    format!(
        "  <testsuite name=\"kpx doctor on {}\" {counts}>\n    <testcase classname=\"kpx\" name=\"read the node\">\n      \
         <error type=\"unread\" message=\"{}\"/>\n    </testcase>\n  </testsuite>\n",
        xml(node),
        xml(error)
    )
}

/// Returns a test suite with a test case per check.
fn suite(report: &DoctorReport, name: &str) -> String {
    let mut cases = String::new();
    for check in &report.checks {
        let reason = xml(check.reason.as_deref().unwrap_or(""));
        let body = match check.status {
            Status::Pass => String::new(),
            Status::Skip => format!("      <skipped message=\"{reason}\"/>\n"),
            Status::Unknown => format!("      <error type=\"unknown\" message=\"{reason}\"/>\n"),
            Status::Fail => {
                let mut body = String::new();
                let ours = report.findings.iter().filter(|f| f.id == check.id);
                for finding in ours {
                    let evidence: Vec<_> =
                        finding.evidence.iter().map(ToString::to_string).collect();
                    let failure = format!(
                        "      <failure type=\"{}\" message=\"{}\">{}</failure>\n",
                        finding.severity.name(),
                        xml(&check::stated(&finding.subject, &finding.message)),
                        xml(&evidence.join("\n")),
                    );
                    body.push_str(&failure);
                }
                if body.is_empty() {
                    body = format!("      <skipped message=\"{reason}\"/>\n");
                }
                body
            }
        };
        let head = format!(
            "    <testcase classname=\"kpx.{}\" name=\"{} {}\"",
            check.group, check.id, check.name
        );
        let case = if body.is_empty() {
            format!("{head}/>\n")
        } else {
            format!("{head}>\n{body}    </testcase>\n")
        };
        cases.push_str(&case);
    }
    for failing in report.unnamed() {
        let case = format!(
            "    <testcase classname=\"kpx.services\" name=\"{0}\">\n      <failure type=\"error\" message=\"{1}\"/>\n    </testcase>\n",
            xml(&failing.service),
            xml(&of_service(failing)),
        );
        cases.push_str(&case);
    }
    let counts = counts(report);
    let stamp = report
        .taken
        .map_or_else(String::new, |time| format!(" timestamp=\"{time}\""));
    let name = xml(name);
    format!("  <testsuite name=\"{name}\" {counts}{stamp}>\n{cases}  </testsuite>\n")
}

fn counts(report: &DoctorReport) -> String {
    let folded = report
        .with(Status::Fail)
        .filter(|check| check.reason.is_some())
        .count();
    let summary = &report.summary;
    let unnamed = report.unnamed().count();
    format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
        report.checks.len() + unnamed,
        summary.failed - folded + unnamed,
        summary.unknown,
        summary.skipped + folded,
    )
}

/// Returns the text format of Prometheus, for the textfile collector of `node_exporter`.
///
/// This collector refuses timestamps on samples, so the time is a metric of its own.
fn prom(report: &DoctorReport) -> String {
    let mut text = Exposition::default();
    let known = report.checks.iter();
    let known = known.filter(|check| matches!(check.status, Status::Pass | Status::Fail));
    let findings = known.flat_map(|check| {
        // A check that passes still has a sample, so that an alert can resolve.
        let mut counts = BTreeMap::from([(check.severity, 0.0)]);
        for finding in report.findings.iter().filter(|f| f.id == check.id) {
            *counts.entry(finding.severity).or_insert(0.0) += 1.0;
        }
        let counts = counts.into_iter();
        counts.map(|(severity, count)| (vec![check.id, check.name, severity.name()], count))
    });
    text.add(&metrics::FINDINGS, findings);
    let unknown = report.checks.iter().map(|check| {
        let is_unknown = check.status == Status::Unknown;
        (vec![check.id, check.name], f64::from(u8::from(is_unknown)))
    });
    text.add(&metrics::CHECK_UNKNOWN, unknown);
    text.one(&metrics::IGNORED, Some(number(report.ignored.len())));
    let summary = &report.summary;
    let statuses = [
        ("fail", summary.failed),
        ("pass", summary.passed),
        ("skip", summary.skipped),
        ("unknown", summary.unknown),
    ];
    let statuses = statuses.map(|(status, count)| (vec![status], number(count)));
    text.add(&metrics::CHECKS, statuses);
    let services = report.head.services.iter().flat_map(|tally| {
        [
            ("failing", tally.failing.len()),
            ("restricted", tally.restricted.len()),
            ("unknown", tally.unknown.len()),
            ("without-endpoints", tally.without_endpoints.len()),
            ("works", tally.works),
        ]
    });
    text.add(
        &metrics::SERVICES,
        services.map(|(verdict, count)| (vec![verdict], number(count))),
    );
    #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52")]
    let taken = report.taken.map(|time| time.seconds as f64);
    text.one(&metrics::TAKEN, taken);
    text.0
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
const fn number(count: usize) -> f64 {
    count as f64
}
