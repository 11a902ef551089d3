//! The findings of the doctor, a row each: findings that one fix clears are beside each other.

use super::{Section, checks, para, prose, said, scrolls, table, titles, typed, word};
use crate::command::doctor::report::{Block, DoctorReport, Problem, Status, texts};
use crate::render::Tone;
use crate::render::markup::Markup;
use kpx_judge::check::{self, Severity};
use kpx_node::words::number_of;

/// Findings and facts that are listed of a group; the rest is counted.
const MOST: usize = 50;

pub(super) fn section(report: &DoctorReport) -> Section<'_> {
    let count = report.findings.len();
    Section::new("findings", "Findings", Some(count), move |markup| {
        if count == 0 {
            markup.leaf("p", &[], "No findings.");
        } else {
            rows(markup, report);
        }
        unknown(markup, report);
        ignored(markup, report);
    })
}

/// The columns of findings.
pub(super) const COLUMNS: [&str; 4] = ["SEVERITY", "CHECK", "SUBJECT", "PROBLEM"];

/// Adds a row for equal findings; the rest of them unfolds.
fn rows(markup: &mut Markup, report: &DoctorReport) {
    let caption = "Findings, each with its facts and its fix";
    scrolls(markup, caption, |markup| {
        markup.element("table", &[("class", "sorts findings")], |markup| {
            markup.leaf("caption", &[], caption);
            markup.element("thead", &[], |markup| titles(markup, &COLUMNS));
            markup.element("tbody", &[], |markup| {
                let mut is_first = true;
                for block in report.in_blocks() {
                    for (at, group) in block.groups().iter().enumerate() {
                        row(markup, &block, at, group, std::mem::take(&mut is_first));
                    }
                }
            });
        });
    });
}

/// Adds the row of `group`, which is at `at` in its block.
fn row(markup: &mut Markup, block: &Block<'_>, at: usize, group: &[&Problem], is_open: bool) {
    let first = group[0];
    let mut subjects: Vec<&str> = group
        .iter()
        .map(|problem| problem.subject.as_str())
        .collect();
    subjects.dedup();
    let more = subjects.len().saturating_sub(MOST);
    subjects.truncate(MOST);
    let rest = match more {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    markup.element("tr", &[], |markup| {
        severity(markup, first.severity);
        markup.element("td", &[], |markup| check_link(markup, first.id));
        let subjects = format!("{}{rest}", subjects.join(", "));
        markup.leaf("th", &[("scope", "row")], &subjects);
        markup.element("td", &[], |markup| {
            let open = [("open", "open")];
            let open = if is_open { &open[..] } else { &[] };
            markup.element("details", open, |markup| {
                markup.element("summary", &[], |markup| prose(markup, &first.message));
                facts(markup, group);
                match (block.shared_fix(), at) {
                    (None, _) => fixes(markup, group),
                    (Some(_), 0) => {
                        let title = format!("{}:", block.clears());
                        markup.leaf("p", &[("class", "word")], &title);
                        fixes(markup, &block.groups().concat());
                    }
                    (Some(_), _) => {
                        let text = format!(
                            "The fix of {} above clears this one, too.",
                            block.groups()[0][0].id
                        );
                        para(markup, &text);
                    }
                }
            });
        });
    });
    markup.fixed("\n");
}

/// Adds the cell of a severity, which sorts by its weight.
pub(super) fn severity(markup: &mut Markup, severity: Severity) {
    let (tone, order) = match severity {
        Severity::Error => (Tone::Bad, "0"),
        Severity::Warning => (Tone::Doubtful, "1"),
        Severity::Info => (Tone::Strong, "2"),
    };
    markup.element("td", &[("data-sort", order)], |markup| {
        word(markup, tone, &severity.name().to_uppercase());
    });
}

/// Adds the link to the explanation of a check.
pub(super) fn check_link(markup: &mut Markup, id: &str) {
    markup.leaf("a", &[("href", &checks::address(id))], id);
}

/// Adds the evidence of the findings, and their consequences.
fn facts(markup: &mut Markup, group: &[&Problem]) {
    let facts: Vec<String> = group
        .iter()
        .flat_map(|group| &group.evidence)
        .map(ToString::to_string)
        .collect();
    list(markup, "Seen:", &facts, true);
    let consequences = group.iter().flat_map(|group| &group.consequences);
    let consequences: Vec<String> = consequences
        .map(|consequence| {
            let stated = check::stated(&consequence.subject, &consequence.message);
            format!("{} {stated}", consequence.id)
        })
        .collect();
    list(markup, "This explains:", &consequences, false);
}

/// Adds a list below `title`, as code where `is_code`; nothing for an empty one.
fn list(markup: &mut Markup, title: &str, lines: &[String], is_code: bool) {
    if lines.is_empty() {
        return;
    }
    markup.leaf("p", &[], title);
    markup.element("ul", &[], |markup| {
        for line in lines.iter().take(MOST) {
            markup.element("li", &[], |markup| {
                if is_code {
                    markup.leaf("code", &[], line);
                } else {
                    prose(markup, line);
                }
            });
        }
        if let more @ 1.. = lines.len().saturating_sub(MOST) {
            let text = format!("and {more} more: `kpx doctor -v` lists them");
            markup.element("li", &[], |markup| prose(markup, &text));
        }
    });
}

/// Adds each fix once, with the commands of all, so that the commands for one machine can be copied together.
fn fixes(markup: &mut Markup, group: &[&Problem]) {
    for text in texts(group) {
        markup.element("p", &[], |markup| {
            markup.leaf("span", &[("class", "word")], "Fix: ");
            prose(markup, &text);
        });
    }
    let mut machines: Vec<(Option<String>, Vec<String>)> = Vec::new();
    for fix in group.iter().map(|problem| &problem.fix) {
        let Some(command) = fix.command() else {
            continue;
        };
        let machine = fix.machine();
        let known = machines.iter().position(|(known, _)| *known == machine);
        let at = known.unwrap_or_else(|| {
            machines.push((machine, Vec::new()));
            machines.len() - 1
        });
        if !machines[at].1.contains(&command) {
            machines[at].1.push(command);
        }
    }
    let looks = group.iter().all(|group| group.fix.only_looks());
    let title = if looks {
        "Commands that look closer"
    } else {
        "Commands of the fix"
    };
    for (machine, commands) in machines {
        if let Some(machine) = machine {
            markup.leaf("p", &[], &format!("On {machine}:"));
        }
        typed(markup, title, &commands.join("\n"));
    }
}

/// Adds the checks without a result, by reason.
fn unknown(markup: &mut Markup, report: &DoctorReport) {
    let reasons = report.by_reason(Status::Unknown);
    if reasons.is_empty() {
        return;
    }
    markup.element("h3", &[], |markup| {
        word(markup, Tone::Unclear, "UNKNOWN");
        let count = number_of(report.summary.unknown, "check");
        markup.text(&format!(" {count} without a result"));
    });
    let rows: Vec<Vec<String>> = reasons
        .into_iter()
        .map(|(reason, ids)| vec![ids.join(", "), reason.to_owned()])
        .collect();
    table(
        markup,
        "Checks whose data is missing",
        &["Checks", "Reason"],
        &rows,
    );
    if let Some(hint) = &report.credentials {
        said(markup, Tone::Unclear, "Credentials:", hint);
    }
}

/// Adds the findings that the ignore file hides.
fn ignored(markup: &mut Markup, report: &DoctorReport) {
    if report.ignored.is_empty() {
        return;
    }
    markup.leaf(
        "h3",
        &[],
        &format!("Ignored: {}", number_of(report.ignored.len(), "finding")),
    );
    let rows: Vec<Vec<String>> = report
        .ignored
        .iter()
        .map(|ignored| {
            vec![
                format!("{} {}", ignored.id, ignored.subject),
                ignored.severity.name().to_owned(),
                ignored.message.clone(),
                ignored.why().trim_start_matches("; ").to_owned(),
            ]
        })
        .collect();
    let columns = ["Finding", "Severity", "Problem", "Reason"];
    table(
        markup,
        "Findings that the ignore file hides",
        &columns,
        &rows,
    );
}
