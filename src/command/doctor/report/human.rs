//! The doctor's report for people, with everything about each finding: the verdict, the node, then the findings by severity.
//! `brief` has the page of one screen.

use std::collections::BTreeMap;

use super::ignored::IgnoredBy;
use super::{DoctorReport, Status};
use crate::render::{Page, Tone};
use crate::view::head::{Head, ModeHead, Sync};
use kpx_judge::check::{EntryStatus, on};
use kpx_node::backend::Mode;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::words::number_of;

/// The rows of a screen.
const SCREEN: usize = 24;

/// Maximum of findings that are repeated at the end.
const MOST_AGAIN: usize = 12;

/// Maximum of reasons, and of ids of a reason, without -v.
const FEW: usize = 3;

pub(super) fn page(report: &DoctorReport, page: &mut Page) {
    verdict(report, page);
    page.line("");
    head(report, page);
    worse(report, MOST_WORSE, page);
    problems(report, page);
    page.line("");
    if page.style().verbose > 0 {
        every(report, page);
    }
    tail(report, page);
    if page.rows() > SCREEN {
        again(report, page);
    }
    unseen(report, page);
    next(report, page);
}

/// Adds the verdict on the Services, and the number of findings.
pub(super) fn verdict(report: &DoctorReport, page: &mut Page) {
    let (tone, answer) = answer(report);
    if let Some(services) = report.services() {
        page.hang("", "  ", &services);
    }
    page.line(&page.paint(tone, &answer));
}

/// Adds the topics that were not checked for lack of evidence: all with -v, else as many as fit on a line.
pub(super) fn unseen(report: &DoctorReport, page: &mut Page) {
    let unseen = &report.head.unseen;
    let Some(first) = unseen.first() else {
        return;
    };
    let style = page.style();
    let all = format!("not checked: {}", unseen.join(", "));
    let fits = style.verbose > 0 || all.len() <= usize::from(style.width);
    if fits {
        page.hang("", "  ", &all);
    } else {
        let more = unseen.len() - 1;
        page.line(&format!(
            "not checked: {first} and {more} more (-v lists them)"
        ));
    }
}

/// Adds the command to run next.
pub(super) fn next(report: &DoctorReport, page: &mut Page) {
    page.next(&on(report.next_machine.as_deref(), &report.next));
}

/// Connections that are worse in the planned mode and listed before the rest is counted.
const MOST_WORSE: usize = 6;

/// Adds the connections that are worse in the mode of a planned switch: the first `most` of them, and the number of the rest.
pub(super) fn worse(report: &DoctorReport, most: usize, page: &mut Page) {
    let Some(outlook) = report
        .head
        .outlook
        .as_ref()
        .filter(|outlook| !outlook.worse.is_empty())
    else {
        return;
    };
    page.line("");
    page.line(&format!("worse in mode {}:", outlook.mode));
    for of in outlook.worse.iter().take(most) {
        let reason = of
            .reason
            .as_ref()
            .map_or_else(String::new, |why| format!(" ({why})"));
        let text = format!(
            "{} {} from {}: {} instead of {}{reason}",
            of.service,
            of.to,
            of.client.name(),
            of.then,
            of.now
        );
        page.hang("  ", "    ", &text);
    }
    if let more @ 1.. = outlook.worse.len().saturating_sub(most) {
        page.line(&format!("  and {more} more"));
    }
}

/// Repeats the verdict and the findings, one a line: the start of the page has left the screen.
fn again(report: &DoctorReport, page: &mut Page) {
    let blocks: Vec<_> = report.in_blocks().collect();
    if blocks.is_empty() {
        return;
    }
    let (tone, answer) = answer(report);
    page.line(&page.paint(tone, &answer));
    for block in blocks.iter().take(MOST_AGAIN) {
        block.cause("  ", 1, page);
    }
    if let more @ 1.. = blocks.len().saturating_sub(MOST_AGAIN) {
        page.line(&format!("  and {more} more above"));
    }
}

/// Adds the parts that another report quotes: the findings and the status of the checks.
pub(super) fn rest(report: &DoctorReport, page: &mut Page) {
    if let Some(services) = report.services() {
        page.line("");
        page.hang("", "  ", &services);
    }
    worse(report, MOST_WORSE, page);
    problems(report, page);
    page.line("");
    tail(report, page);
}

/// Adds every finding, after an empty line.
fn problems(report: &DoctorReport, page: &mut Page) {
    for block in report.in_blocks() {
        page.line("");
        block.page(page);
    }
}

pub(super) fn answer(report: &DoctorReport) -> (Tone, String) {
    let summary = &report.summary;
    let planned = report.planned();
    let (error, warning) = match planned {
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
    let lacks_data = report.lacks_data();
    let tone = match (summary.errors, summary.warnings) {
        (1.., _) => Tone::Bad,
        _ if report.has_failing() => Tone::Bad,
        (_, 1..) => Tone::Doubtful,
        _ if lacks_data => Tone::Unclear,
        _ => Tone::Good,
    };
    let blind = match summary.unknown {
        0 => String::new(),
        count => format!("; {} unknown", number_of(count, "check")),
    };
    let found = match (parts.is_empty(), lacks_data, planned) {
        (false, _, None) => parts.join(", "),
        (false, _, Some(planned)) => format!("{} for {planned}", parts.join(", ")),
        (true, false, None) if report.has_failing() && summary.ignored > 0 => {
            "a Service fails, and its finding is ignored".to_owned()
        }
        (true, false, None) if report.has_failing() => {
            "a Service fails, and no finding explains it".to_owned()
        }
        (true, false, None) => "healthy".to_owned(),
        (true, true, None) => "inconclusive: data is missing".to_owned(),
        (true, false, Some(planned)) => format!("nothing blocks {planned}"),
        (true, true, Some(planned)) => format!("inconclusive for {planned}: data is missing"),
    };
    let hidden = match summary.ignored {
        0 => String::new(),
        count => format!("; {count} ignored"),
    };
    (tone, format!("{found}{hidden}{blind}"))
}

fn head(report: &DoctorReport, page: &mut Page) {
    for (name, text) in facts(report) {
        page.para(&format!("  {name:<9}  "), &text);
    }
}

/// Returns facts about the node, each with its name.
pub(super) fn facts(report: &DoctorReport) -> Vec<(&'static str, String)> {
    let Head {
        node,
        mode,
        cluster,
        services: _,
        outlook: _,
        unseen: _,
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
    let mut facts = vec![
        ("node", machine.join(", ")),
        ("mode", modes(mode, report.is_chosen)),
    ];
    if !mode.leftovers.is_empty() {
        let names: Vec<_> = mode.leftovers.iter().map(|mode| mode.name()).collect();
        let text = format!("of the {} mode", names.join(" and the "));
        facts.push(("leftovers", text));
    }
    if let Some(cluster) = cluster {
        let mut text = number_of(cluster.services, "Service");
        if let Some(endpoints) = cluster.endpoints {
            text.push_str(", ");
            text.push_str(&number_of(endpoints, "endpoint"));
        }
        facts.push(("cluster", text));
    }
    if !sync.is_empty() {
        let parts: Vec<_> = sync.iter().map(synced).collect();
        facts.push(("last sync", parts.join(", ")));
    }
    if let Some(time) = report.taken {
        facts.push(("collected", time.to_string()));
    }
    facts.extend(later(added).map(|text| ("added", text)));
    facts
}

/// Returns which items are not of the time of the bundle, in words; `None` if all are.
pub(super) fn later(added: &[Item]) -> Option<String> {
    let names: Vec<&str> = added.iter().map(|item| item.file()).collect();
    (!names.is_empty()).then(|| format!("from the API server, later: {}", names.join(", ")))
}

/// Returns the configured, reported and observed mode; equal ones are joined. Chosen checks do not read all of them.
fn modes(mode: &ModeHead, is_chosen: bool) -> String {
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
    if is_chosen && sources.iter().any(|(_, mode)| mode.is_some()) {
        sources.retain(|(_, mode)| mode.is_some());
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
        page.para("note  ", &note.to_string());
    }
    if !report.by_tool.is_empty() {
        page.line("");
    }
}

/// Returns the number of checks by status, in words; `skipped` follows the number of skipped ones.
pub(super) fn checked(report: &DoctorReport, skipped: &str) -> String {
    let summary = &report.summary;
    let mut failed = Vec::new();
    if summary.explained > 0 {
        failed.push(format!("{} caused by others", summary.explained));
    }
    let hidden = report.with(Status::Fail).count() - report.failing() - summary.explained;
    if hidden > 0 {
        failed.push(format!("{hidden} ignored"));
    }
    let failed = if failed.is_empty() {
        String::new()
    } else {
        format!(" ({})", failed.join(", "))
    };
    format!(
        "{}: {} passed, {} failed{failed}, {} skipped{skipped}, {} unknown",
        number_of(report.checks.len(), "check"),
        summary.passed,
        summary.failed,
        summary.skipped,
        summary.unknown
    )
}

fn tail(report: &DoctorReport, page: &mut Page) {
    let verbose = page.style().verbose > 0;
    let skipped = if report.summary.skipped > 0 && !verbose {
        " (-v lists them)"
    } else {
        ""
    };
    let text = checked(report, skipped);
    page.hang("", "  ", &text);
    if verbose {
        for (reason, ids) in by_reason(report, Status::Skip) {
            page.para("  skipped  ", &format!("{}: {reason}", ids.join(", ")));
        }
        for (reason, ids) in by_reason(report, Status::Unknown) {
            page.para("  unknown  ", &format!("{}: {reason}", ids.join(", ")));
        }
    } else {
        unknown(report, FEW, page);
    }
    notes(report, page);
}

/// Adds hints about denied permissions, and about the entries of the ignore file.
pub(super) fn notes(report: &DoctorReport, page: &mut Page) {
    if let Some(hint) = &report.credentials {
        page.para("  credentials  ", hint);
    }
    ignored(report, page);
}

/// Returns the ids of the checks with `status` by reason; the reason of most checks is first.
pub(super) fn by_reason(report: &DoctorReport, status: Status) -> Vec<(&str, Vec<&'static str>)> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for check in report.with(status) {
        let reason = check.reason.as_deref().unwrap_or("");
        by_reason.entry(reason).or_default().push(check.id);
    }
    let mut all: Vec<_> = by_reason.into_iter().collect();
    all.sort_by_key(|(_, ids)| std::cmp::Reverse(ids.len()));
    all
}

/// Adds the missing data of unknown checks, in one paragraph: the first `few` reasons, and the number of the others.
pub(super) fn unknown(report: &DoctorReport, few: usize, page: &mut Page) {
    let reasons = by_reason(report, Status::Unknown);
    if reasons.is_empty() {
        return;
    }
    let few = if reasons.len() == few + 1 {
        few + 1
    } else {
        few
    };
    let mut parts: Vec<String> = Vec::new();
    for (reason, ids) in reasons.iter().take(few) {
        let more = match ids.len().saturating_sub(FEW) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let shown: Vec<&str> = ids.iter().take(FEW).copied().collect();
        parts.push(format!("{reason} ({}{more})", shown.join(", ")));
    }
    if let more @ 1.. = reasons.len().saturating_sub(few) {
        parts.push(format!(
            "{} (-v lists them)",
            number_of(more, "more reason")
        ));
    }
    let count = number_of(report.summary.unknown, "check");
    let text = format!("{count}: {}", parts.join("; "));
    page.para("  unknown  ", &text);
}

/// Prints the findings that the ignore file and the configuration file hide, and useless entries.
fn ignored(report: &DoctorReport, page: &mut Page) {
    const LEAD: &str = "  ignored  ";
    let file = report.ignore_file.as_deref().unwrap_or_default();
    if page.style().verbose > 0 {
        for hidden in &report.ignored {
            let text = format!(
                "{} {} {}: {}{}",
                hidden.severity.name(),
                hidden.id,
                hidden.subject,
                hidden.message,
                hidden.why()
            );
            page.para(LEAD, &text);
        }
    } else if !report.ignored.is_empty() {
        let of = |by| {
            report
                .ignored
                .iter()
                .filter(|ignored| ignored.by == by)
                .count()
        };
        let counted = [
            (of(IgnoredBy::IgnoreFile), file),
            (of(IgnoredBy::Config), "the configuration file"),
        ];
        let parts = counted.iter().filter(|(count, _)| *count > 0);
        let parts = parts.map(|(count, by)| format!("{} by {by}", number_of(*count, "finding")));
        let parts = parts.collect::<Vec<_>>().join(", ");
        page.para(LEAD, &format!("{parts} (-v shows them)"));
    }
    for entry in &report.ignore_entries {
        let subject = entry.subject.as_deref();
        let subject = subject.map_or_else(String::new, |subject| format!(" {subject}"));
        let what = match entry.status {
            EntryStatus::Used | EntryStatus::Unknown => continue,
            // The configuration file is for many nodes.
            EntryStatus::Unused if entry.line.is_none() => continue,
            EntryStatus::Unused => "matches no finding: remove the entry".to_owned(),
            EntryStatus::Expired => format!(
                "expired on {}, {}: fix the finding, or extend the entry",
                entry.expires.as_deref().unwrap_or_default(),
                match entry.findings {
                    0 => "no finding matches".to_owned(),
                    1 => "1 finding is reported again".to_owned(),
                    count => format!("{count} findings are reported again"),
                }
            ),
        };
        let place = entry.line.map_or_else(
            || "the configuration file".to_owned(),
            |line| format!("{file}, line {line}"),
        );
        let text = format!("{place}: {}{subject} {what}", entry.check);
        page.para(LEAD, &text);
    }
}
