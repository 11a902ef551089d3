//! `kpx man`: man pages from the definition of the command line and the catalogue of checks.

use std::fmt::{self, Write as _};

use clap_mangen::Man;

use crate::cli;
use crate::command::shared::failure::Failure;
use crate::render::prometheus::Metric;
use crate::report::metrics::METRICS;
use kpx_judge::check::{self, Check, GROUPS};

const SOURCE: &str = concat!("kpx ", env!("CARGO_PKG_VERSION"));

/// Returns the page `name`: a command, `checks`, `metrics`, or kpx itself; the prefix `kpx-` is optional.
pub(in crate::command) fn page(name: Option<&str>) -> Result<String, Failure> {
    let name = name.unwrap_or("kpx");
    let short = name.strip_prefix("kpx-").unwrap_or(name);
    if short == "checks" {
        return Ok(checks());
    }
    if short == "metrics" {
        return Ok(metrics());
    }
    let mut root = cli::command();
    root.build();
    let (full, command) = find(&root, short).ok_or_else(|| {
        Failure::usage(format!("kpx has no man page {name:?}"))
            .with_hint("`kpx help` lists the commands, each with a page; `kpx man checks` and `kpx man metrics` are lists")
    })?;
    let mut text = Vec::new();
    let command = command.display_name(full);
    Man::new(command)
        .source(SOURCE)
        .manual("kpx manual")
        .render(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Returns the command with the page `kpx-NAME`, and the page's name.
fn find(root: &clap::Command, name: &str) -> Option<(String, clap::Command)> {
    if name == "kpx" {
        return Some(("kpx".to_owned(), root.clone()));
    }
    below(root, "", name)
}

fn below(command: &clap::Command, path: &str, name: &str) -> Option<(String, clap::Command)> {
    let mut shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown.find_map(|sub| {
        let full = format!("{path}{}", sub.get_name());
        if full == name {
            Some((format!("kpx-{full}"), sub.clone()))
        } else {
            below(sub, &format!("{full}-"), name)
        }
    })
}

/// Returns the catalogue of checks as a page of section 7.
fn checks() -> String {
    let mut page = format!(".TH kpx-checks 7 \"\" \"{SOURCE}\" \"kpx manual\"\n");
    page += ".SH NAME\nkpx\\-checks \\- the checks of kpx doctor\n.SH DESCRIPTION\n";
    page += &prose(
        "kpx doctor runs these checks on a node and its cluster. Each check has a name and an id that is never reused; \
         kpx explain ID prints the same text as this page. An error means that traffic is lost, now or later; a warning \
         is a risk; info is good to know. A check without data is unknown and never counts as passed; a check that does \
         not apply is skipped.",
    );
    for group in GROUPS {
        let mut ours: Vec<_> = group.checks().collect();
        if ours.is_empty() {
            continue;
        }
        ours.sort_by_key(|check| check.id);
        put(
            &mut page,
            format_args!(".SH {}\n", roff(&group.name.to_uppercase())),
        );
        page += &prose(&format!("Checks {}: {}.", group.code, group.about));
        for check in ours {
            page += &entry(check);
        }
    }
    page += ".SH NOT CHECKED\n";
    page += &prose("These ids are reserved for problems that cannot be seen on one node.");
    for (id, what, why) in check::NOT_CHECKED {
        put(
            &mut page,
            format_args!(".TP\n.B {id}\n{}", prose(&format!("{what}: {why}."))),
        );
    }
    page += ".SH SEE ALSO\n.BR kpx\\-doctor (1),\n.BR kpx\\-explain (1)\n";
    page
}

/// Returns the list of metrics as a page of section 7.
fn metrics() -> String {
    let mut page = format!(".TH kpx-metrics 7 \"\" \"{SOURCE}\" \"kpx manual\"\n");
    page += ".SH NAME\nkpx\\-metrics \\- the metrics of kpx serve\n.SH DESCRIPTION\n";
    page += &prose(
        "kpx serve answers at /metrics in Prometheus' text format. kpx doctor -o prom and --textfile have those that begin with \
         kpx_doctor. A part that is not known has no sample, and kpx_unknown names it; a missing value is never 0.",
    );
    page += ".SH METRICS\n";
    for metric in METRICS {
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(", ")),
        };
        let Metric {
            name, kind, help, ..
        } = metric;
        put(
            &mut page,
            format_args!(
                ".TP\n.B {}\n{}",
                line(&format!("{name}{labels}")),
                prose(&format!("({kind}) {help}"))
            ),
        );
    }
    page += ".SH SEE ALSO\n.BR kpx\\-serve (1),\n.BR kpx\\-doctor (1),\n.BR kpx\\-checks (7)\n";
    page
}

fn entry(check: &Check) -> String {
    let mut text = format!(".SS {} {}\n", check.id, roff(check.name));
    text += &prose(&format!(
        "{}. Severity: {} at most. Runs: {}.",
        check.title,
        check.severity.name(),
        check.asked_in_words()
    ));
    for (label, body) in [
        ("Symptom", check.symptom),
        ("Mechanism", check.why),
        ("Verify", check.verify),
    ] {
        put(&mut text, format_args!(".TP\n.B {label}\n{}", prose(body)));
    }
    if !check.commands.is_empty() {
        text += ".RS\n.nf\n";
        for command in check.commands {
            put(&mut text, format_args!("{}\n", line(&command.to_string())));
        }
        text += ".fi\n.RE\n";
    }
    put(
        &mut text,
        format_args!(".TP\n.B Fix\n{}", prose(&check.fix.to_string())),
    );
    for (at, incident) in check.incidents.iter().enumerate() {
        let lead = if at == 0 {
            ".TP\n.B Incidents\n"
        } else {
            ".br\n"
        };
        put(&mut text, format_args!("{lead}{}", prose(incident)));
    }
    let needs: Vec<_> = check.items().map(kpx_node::evidence::Item::file).collect();
    put(
        &mut text,
        format_args!(".TP\n.B Reads\n{}", prose(&needs.join(", "))),
    );
    text
}

fn put(page: &mut String, text: fmt::Arguments<'_>) {
    page.write_fmt(text)
        .expect("writing to a String does not fail");
}

/// Returns `text` as one line of running text.
fn prose(text: &str) -> String {
    format!("{}\n", line(text))
}

/// Escapes a line: backslashes, hyphens, and a first character that would start a request.
fn line(text: &str) -> String {
    let safe = roff(text);
    if safe.starts_with(['.', '\'']) {
        format!("\\&{safe}")
    } else {
        safe
    }
}

fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
