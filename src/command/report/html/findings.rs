//! The findings of the doctor: what one fix clears is one block.

use super::{Section, para, prose, said, table, typed, word};
use crate::command::doctor::report::{Block, DoctorReport, Problem, Status, commands, texts};
use crate::command::explain::report::Explanation;
use crate::render::Tone;
use crate::render::markup::Markup;
use kpx_judge::check::{self, Reach};
use kpx_node::words::number_of;

/// Findings and facts that are listed of a group; the rest is counted.
const MOST: usize = 50;

pub(super) fn section(report: &DoctorReport) -> Section<'_> {
    let count = report.findings.len();
    Section::new("findings", "Findings", Some(count), move |markup| {
        if count == 0 {
            markup.leaf("p", &[], "No findings.");
        }
        for block in report.in_blocks() {
            add(markup, &block);
        }
        unknown(markup, report);
        ignored(markup, report);
    })
}

/// Adds a block of findings.
fn add(markup: &mut Markup, block: &Block<'_>) {
    let groups = block.groups();
    let tone = groups.first().map_or(Tone::Strong, |group| group[0].tone());
    let class = format!("block at-{}", tone.class());
    markup.fixed("\n");
    markup.element("div", &[("class", &class)], |markup| {
        let Some(command) = block.shared_fix() else {
            for group in groups {
                problem(markup, "h3", group);
                fixes(markup, group);
                explained(markup, group[0]);
            }
            return;
        };
        markup.leaf("h3", &[], &block.clears());
        typed(markup, "Command of the fix", &command);
        for text in texts(&groups.concat()) {
            para(markup, &text);
        }
        for group in groups {
            problem(markup, "h4", group);
            explained(markup, group[0]);
        }
    });
}

/// Adds what is wrong, the facts that show it, and what it explains.
fn problem(markup: &mut Markup, level: &'static str, group: &[&Problem]) {
    let first = group[0];
    markup.element(level, &[], |markup| {
        word(markup, first.tone(), &first.severity.name().to_uppercase());
        let mut title = format!(" {} {}", first.id, first.name);
        if group.len() > 1 {
            title.extend([", ", &number_of(group.len(), "finding")]);
        }
        markup.text(&title);
    });
    let mut subjects: Vec<&str> = group.iter().map(|group| group.subject.as_str()).collect();
    let more = subjects.len().saturating_sub(MOST);
    subjects.truncate(MOST);
    let rest = match more {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let text = format!("{}{rest}: {}", subjects.join(", "), first.message);
    para(markup, &text);
    let facts: Vec<String> = group
        .iter()
        .flat_map(|group| &group.evidence)
        .map(ToString::to_string)
        .collect();
    list(markup, "Seen:", &facts, true);
    let consequences = group.iter().flat_map(|group| &group.consequences);
    let consequences: Vec<String> = consequences
        .map(|consequence| {
            format!(
                "{} {}: {}",
                consequence.id, consequence.subject, consequence.message
            )
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

/// Adds each fix once, with the commands of all.
fn fixes(markup: &mut Markup, group: &[&Problem]) {
    for text in texts(group) {
        markup.element("p", &[], |markup| {
            markup.leaf("span", &[("class", "word")], "Fix: ");
            prose(markup, &text);
        });
    }
    let commands = commands(group);
    if !commands.is_empty() {
        let looks = group.iter().all(|group| group.fix.only_looks());
        let title = if looks {
            "Commands that look closer"
        } else {
            "Commands of the fix"
        };
        typed(markup, title, &commands.join("\n"));
    }
}

/// Adds the explanation of the check that has `finding`.
fn explained(markup: &mut Markup, finding: &Problem) {
    let Some(check) = check::all().find(|check| check.id == finding.id) else {
        return;
    };
    let of = Explanation::new(check, &Reach::default());
    markup.element("details", &[], |markup| {
        markup.leaf("summary", &[], &format!("What {} means", of.id));
        markup.element("dl", &[("class", "facts")], |markup| {
            for (name, text) in [
                ("healthy", format!("{}.", of.title)),
                ("symptom", of.symptom.to_owned()),
                ("mechanism", of.why.to_owned()),
                ("verify", of.verify.to_owned()),
                ("fix", of.fix.clone()),
            ] {
                markup.leaf("dt", &[], name);
                markup.element("dd", &[], |markup| prose(markup, &text));
            }
        });
        if !of.commands.is_empty() {
            typed(markup, "Commands that show it", &of.commands.join("\n"));
        }
    });
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
                format!("{} (until {})", ignored.reason, ignored.expires),
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
