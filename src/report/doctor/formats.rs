//! The doctor's formats for other programs.

use super::{DoctorReport, Status};

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

    /// Returns the text format of Prometheus, for the textfile collector of `node_exporter`.
    pub(crate) fn prom(&self) -> String {
        prom(self)
    }
}

/// Returns a line per finding, and per unknown check.
fn short(report: &DoctorReport, lead: &str) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let severity = finding.severity.name();
        let line = format!(
            "{lead}{severity} {} {}: {}\n",
            finding.id, finding.subject, finding.message
        );
        text.push_str(&line);
    }
    for check in report.with(Status::Unknown) {
        let reason = check.reason.as_deref().unwrap_or("");
        let line = format!("{lead}unknown {} {}: {reason}\n", check.id, check.name);
        text.push_str(&line);
    }
    text
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
                        xml(&format!("{}: {}", finding.subject, finding.message)),
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
    format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
        report.checks.len(),
        summary.failed - folded,
        summary.unknown,
        summary.skipped + folded,
    )
}

/// Escapes reserved characters of XML, and drops invalid ones.
fn xml(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(c),
            c if c.is_control() => {}
            c => safe.push(c),
        }
    }
    safe
}

/// Returns the text format of Prometheus, for the textfile collector of `node_exporter`.
///
/// That collector refuses timestamps on samples, so the time is a metric of its own.
fn prom(report: &DoctorReport) -> String {
    let mut text = String::new();
    metric(
        &mut text,
        "kpx_doctor_findings",
        "Findings of a check; 0 when it passes.",
    );
    for check in &report.checks {
        if !matches!(check.status, Status::Pass | Status::Fail) {
            continue;
        }
        let mut counts = std::collections::BTreeMap::new();
        // A check that passes still has a sample, so that an alert can resolve.
        counts.insert(check.severity, 0);
        for finding in report.findings.iter().filter(|f| f.id == check.id) {
            *counts.entry(finding.severity).or_insert(0) += 1;
        }
        for (severity, count) in counts {
            sample(
                &mut text,
                "kpx_doctor_findings",
                &[
                    ("id", check.id),
                    ("name", check.name),
                    ("severity", severity.name()),
                ],
                &format!("{count}"),
            );
        }
    }
    metric(
        &mut text,
        "kpx_doctor_check_unknown",
        "1 for a check whose data is missing.",
    );
    for check in &report.checks {
        let value = if check.status == Status::Unknown {
            "1"
        } else {
            "0"
        };
        let labels = [("id", check.id), ("name", check.name)];
        sample(&mut text, "kpx_doctor_check_unknown", &labels, value);
    }
    metric(
        &mut text,
        "kpx_doctor_ignored_findings",
        "Findings that the ignore file hides.",
    );
    let count = report.ignored.len().to_string();
    sample(&mut text, "kpx_doctor_ignored_findings", &[], &count);
    metric(&mut text, "kpx_doctor_checks", "Checks by status.");
    let summary = &report.summary;
    for (status, count) in [
        ("fail", summary.failed),
        ("pass", summary.passed),
        ("skip", summary.skipped),
        ("unknown", summary.unknown),
    ] {
        let labels = [("status", status)];
        sample(&mut text, "kpx_doctor_checks", &labels, &count.to_string());
    }
    if let Some(time) = report.taken {
        metric(
            &mut text,
            "kpx_doctor_timestamp_seconds",
            "When the evidence was collected.",
        );
        let value = time.seconds.to_string();
        sample(&mut text, "kpx_doctor_timestamp_seconds", &[], &value);
    }
    text
}

fn metric(text: &mut String, name: &str, help: &str) {
    let head = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
    text.push_str(&head);
}

/// Adds one sample; ids, slugs and severities need no escaping.
fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: &str) {
    let labels: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}=\"{value}\""))
        .collect();
    let braces = if labels.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", labels.join(","))
    };
    let line = format!("{name}{braces} {value}\n");
    text.push_str(&line);
}
