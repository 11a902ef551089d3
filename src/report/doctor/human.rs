//! The doctor's report for people: the verdict, the node, then the findings by severity.

use std::collections::BTreeMap;

use super::{DoctorReport, EntryStatus, Problem, Status};
use crate::backend::Mode;
use crate::check::Severity;
use crate::net::Family;
use crate::render::{Page, Tone};
use crate::view::head::{Head, ModeHead, Sync};
use crate::words::number_of;

/// Maximum of equal lines without -v.
const FEW: usize = 3;

pub(super) fn page(report: &DoctorReport, page: &mut Page) {
    let name = report.head.node.name.as_deref().unwrap_or("this node");
    let (tone, answer) = answer(report);
    page.line(&format!("{name}: {}", page.paint(tone, &answer)));
    page.line("");
    head(report, page);
    problems(report, page);
    page.line("");
    if page.style().verbose > 0 {
        every(report, page);
    }
    tail(report, page);
    next(report, page);
}

/// Adds the parts that another report quotes: the findings and the status of the checks.
pub(super) fn rest(report: &DoctorReport, page: &mut Page) {
    problems(report, page);
    page.line("");
    tail(report, page);
}

/// Adds every finding, after an empty line.
fn problems(report: &DoctorReport, page: &mut Page) {
    for group in groups(&report.findings) {
        page.line("");
        problem(&group, page);
    }
}

fn answer(report: &DoctorReport) -> (Tone, String) {
    let summary = &report.summary;
    let (error, warning) = match report.target {
        Some(_) => ("blocker", "risk"),
        None => ("error", "warning"),
    };
    let counted = [
        (summary.errors, error),
        (summary.warnings, warning),
        (summary.infos, "note"),
    ];
    let parts: Vec<_> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, what)| number_of(count, what))
        .collect();
    let tone = match (summary.errors, summary.warnings, summary.unknown) {
        (1.., _, _) => Tone::Bad,
        (_, 1.., _) => Tone::Doubtful,
        (_, _, 1..) => Tone::Unclear,
        _ => Tone::Good,
    };
    let blind = match summary.unknown {
        0 => String::new(),
        count => format!("; {} unknown", number_of(count, "check")),
    };
    let found = match (parts.is_empty(), summary.unknown, report.target) {
        (false, _, None) => parts.join(", "),
        (false, _, Some(target)) => format!("{} for a switch to {target}", parts.join(", ")),
        (true, 0, None) => "healthy".to_owned(),
        (true, _, None) => "inconclusive: data is missing".to_owned(),
        (true, 0, Some(target)) => format!("nothing blocks a switch to {target}"),
        (true, _, Some(target)) => {
            format!("inconclusive for a switch to {target}: data is missing")
        }
    };
    let hidden = match summary.ignored {
        0 => String::new(),
        count => format!("; {count} ignored"),
    };
    (tone, format!("{found}{hidden}{blind}"))
}

fn head(report: &DoctorReport, page: &mut Page) {
    let Head {
        node,
        mode,
        cluster,
        sync,
        added,
    } = &report.head;
    let mut machine = Vec::new();
    if let Some(kernel) = &node.kernel {
        machine.push(format!("kernel {kernel}"));
    }
    if let Some(version) = &node.kube_proxy_version {
        machine.push(format!("kube-proxy {version}"));
    }
    if machine.is_empty() {
        machine.push("kernel and kube-proxy version unknown".to_owned());
    }
    page.para("  node       ", &machine.join(", "));
    page.para("  mode       ", &modes(mode));
    if !mode.leftovers.is_empty() {
        let names: Vec<_> = mode.leftovers.iter().map(|mode| mode.name()).collect();
        let text = format!("of the {} mode", names.join(" and the "));
        page.para("  leftovers  ", &text);
    }
    if let Some(cluster) = cluster {
        let mut text = number_of(cluster.services, "Service");
        if let Some(endpoints) = cluster.endpoints {
            text.push_str(", ");
            text.push_str(&number_of(endpoints, "endpoint"));
        }
        page.para("  cluster    ", &text);
    }
    if !sync.is_empty() {
        let parts: Vec<_> = sync.iter().map(synced).collect();
        page.para("  last sync  ", &parts.join(", "));
    }
    if let Some(time) = report.taken {
        page.para("  collected  ", &time.to_string());
    }
    if !added.is_empty() {
        let names: Vec<&str> = added.iter().map(|item| item.file()).collect();
        let text = format!("from the API server, later: {}", names.join(", "));
        page.para("  added      ", &text);
    }
}

/// Returns the configured, reported and observed mode; equal ones are joined.
fn modes(mode: &ModeHead) -> String {
    // `None` is unknown; `Some(None)` means no rules.
    let mut sources = vec![
        ("configured".to_owned(), mode.configured.map(Some)),
        ("reported".to_owned(), mode.reported.map(Some)),
    ];
    let held = |family: Family| mode.observed_by_family.get(&family.to_string()).copied();
    let (four, six) = (held(Family::V4), held(Family::V6));
    if four == six {
        sources.push(("observed".to_owned(), four));
    } else {
        for (family, held) in [(Family::V4, four), (Family::V6, six)] {
            let source = match held {
                Some(None) => family.to_string(),
                _ => format!("observed for {family}"),
            };
            sources.push((source, held));
        }
    }
    let mut by_mode: BTreeMap<Option<Option<Mode>>, Vec<&str>> = BTreeMap::new();
    for (source, mode) in &sources {
        by_mode.entry(*mode).or_default().push(source);
    }
    let parts: Vec<_> = by_mode
        .iter()
        .rev()
        .map(|(mode, sources)| match mode {
            Some(Some(mode)) => format!("{mode} ({})", sources.join(", ")),
            Some(None) if four == six => "no rules".to_owned(),
            Some(None) => format!("no rules for {}", sources.join(", ")),
            None => format!("unknown ({})", sources.join(", ")),
        })
        .collect();
    parts.join("; ")
}

fn synced(sync: &Sync) -> String {
    let family = sync
        .family
        .map_or_else(String::new, |family| format!("{family} "));
    match (sync.last, sync.age_seconds) {
        (None, _) => format!("{family}never"),
        (Some(_), Some(age)) => format!("{family}{} ago", span(age)),
        (Some(last), None) => format!("{family}{last}"),
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Groups findings that have the same message; they are sorted by severity and check already.
fn groups(findings: &[Problem]) -> Vec<Vec<&Problem>> {
    let mut groups: Vec<Vec<&Problem>> = Vec::new();
    for finding in findings {
        let same = |group: &&mut Vec<&Problem>| {
            let first = group[0];
            (first.id, first.severity, &first.message)
                == (finding.id, finding.severity, &finding.message)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

fn problem(group: &[&Problem], page: &mut Page) {
    let first = group[0];
    let all = page.style().verbose > 0;
    let tone = match first.severity {
        Severity::Error => Tone::Bad,
        Severity::Warning => Tone::Doubtful,
        Severity::Info => Tone::Strong,
    };
    let severity = first.severity.name().to_uppercase();
    let title = format!("{} {}  {}", severity, first.id, first.name);
    page.line(&page.paint(tone, &title));
    let few = if all { group.len() } else { FEW };
    let mut subjects: Vec<&str> = group.iter().take(few).map(|f| f.subject.as_str()).collect();
    let more = format!("and {} more", group.len().saturating_sub(few));
    if group.len() > few {
        subjects.push(&more);
    }
    let text = format!("{}: {}", subjects.join(", "), first.message);
    page.para("  ", &text);

    let evidence: Vec<String> = group
        .iter()
        .flat_map(|f| f.evidence.iter().map(ToString::to_string))
        .collect();
    let few = if all || evidence.len() == FEW + 1 {
        evidence.len()
    } else {
        FEW
    };
    for (at, line) in evidence.iter().take(few).enumerate() {
        page.cut(&format!("{}{line}", lead(at, "seen")));
    }
    if evidence.len() > few {
        let rest = evidence.len() - few;
        page.line(&format!("        and {rest} more (-v shows all)"));
    }
    for (at, consequence) in group.iter().flat_map(|f| &f.consequences).enumerate() {
        let text = format!(
            "{} {}: {}",
            consequence.id, consequence.subject, consequence.message
        );
        page.para(lead(at, "so"), &text);
    }
    fixes(group, page);
    page.line(&format!("  more  kpx explain {}", first.id));
}

/// Returns the margin: `label` on the first line, blanks on the others.
fn lead(at: usize, label: &str) -> &'static str {
    match (at, label) {
        (0, "seen") => "  seen  ",
        (0, "so") => "  so    ",
        (0, "fix") => "  fix   ",
        _ => "        ",
    }
}

/// Prints each fix once, with the commands of all.
fn fixes(group: &[&Problem], page: &mut Page) {
    let mut texts: Vec<&str> = Vec::new();
    for finding in group {
        if !texts.contains(&finding.fix.text.as_str()) {
            texts.push(&finding.fix.text);
        }
    }
    for (at, text) in texts.iter().take(FEW).enumerate() {
        page.para(lead(at, "fix"), text);
    }
    let mut commands: Vec<&str> = Vec::new();
    for finding in group {
        if let Some(command) = finding.fix.command.as_deref()
            && !commands.contains(&command)
        {
            commands.push(command);
        }
    }
    for command in commands {
        // A command that is cut or wrapped cannot be copied.
        page.line(&format!("        $ {command}"));
    }
}

/// Prints a line for every check.
fn every(report: &DoctorReport, page: &mut Page) {
    for check in &report.checks {
        let (tone, status) = match check.status {
            Status::Pass => (Tone::Good, "pass   "),
            Status::Fail => (Tone::Bad, "FAIL   "),
            Status::Skip => (Tone::Strong, "skip   "),
            Status::Unknown => (Tone::Unclear, "unknown"),
        };
        let status = page.paint(tone, status);
        page.line(&format!("{status} {}  {}", check.id, check.title));
    }
    page.line("");
    for note in &report.by_tool {
        page.para("note  ", note);
    }
    if !report.by_tool.is_empty() {
        page.line("");
    }
}

fn tail(report: &DoctorReport, page: &mut Page) {
    let summary = &report.summary;
    page.line(&format!(
        "{}: {} passed, {} failed, {} skipped, {} unknown",
        number_of(report.checks.len(), "check"),
        summary.passed,
        summary.failed,
        summary.skipped,
        summary.unknown
    ));
    for (status, lead) in [
        (Status::Skip, "  skipped  "),
        (Status::Unknown, "  unknown  "),
    ] {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for check in report.with(status) {
            let reason = check.reason.as_deref().unwrap_or("");
            by_reason.entry(reason).or_default().push(check.id);
        }
        for (reason, ids) in by_reason {
            page.para(lead, &format!("{}: {reason}", ids.join(", ")));
        }
    }
    if let Some(hint) = &report.credentials {
        page.para("  credentials  ", hint);
    }
    ignored(report, page);
}

fn next(report: &DoctorReport, page: &mut Page) {
    let summary = &report.summary;
    let next = match (report.findings.first(), summary.unknown) {
        (Some(worst), _) => format!("kpx explain {}", worst.id),
        (None, 1..) => "kpx doctor --kubeconfig FILE, as root".to_owned(),
        (None, 0) if report.target.is_some() => "kpx doctor".to_owned(),
        (None, 0) => "kpx show services".to_owned(),
    };
    page.line(&format!("next: {next}"));
}

/// Prints the findings that the ignore file hides, and its useless entries.
fn ignored(report: &DoctorReport, page: &mut Page) {
    const LEAD: &str = "  ignored  ";
    let Some(file) = &report.ignore_file else {
        return;
    };
    if page.style().verbose > 0 {
        for hidden in &report.ignored {
            let text = format!(
                "{} {} {}: {}; {} (until {})",
                hidden.severity.name(),
                hidden.id,
                hidden.subject,
                hidden.message,
                hidden.reason,
                hidden.expires
            );
            page.para(LEAD, &text);
        }
    } else if !report.ignored.is_empty() {
        let count = number_of(report.ignored.len(), "finding");
        page.para(LEAD, &format!("{count} by {file} (-v shows them)"));
    }
    for entry in &report.ignore_entries {
        let subject = entry.subject.as_deref();
        let subject = subject.map_or_else(String::new, |subject| format!(" {subject}"));
        let what = match entry.status {
            EntryStatus::Used | EntryStatus::Unknown => continue,
            EntryStatus::Unused => "matches no finding: remove the entry".to_owned(),
            EntryStatus::Expired => format!(
                "expired on {}, {}: fix the finding, or extend the entry",
                entry.expires,
                match entry.findings {
                    0 => "no finding matches".to_owned(),
                    1 => "1 finding is reported again".to_owned(),
                    count => format!("{count} findings are reported again"),
                }
            ),
        };
        let text = format!(
            "{file}, line {}: {}{subject} {what}",
            entry.line, entry.check
        );
        page.para(LEAD, &text);
    }
}
