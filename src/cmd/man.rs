//! `kpx man`: manual pages from the command line's definition and the catalogue of checks.

use std::fmt::{self, Write as _};

use clap::CommandFactory as _;
use clap_mangen::Man;

use super::failure::Failure;
use crate::check::{self, Check, GROUPS};
use crate::cli::Cli;

const SOURCE: &str = concat!("kpx ", env!("CARGO_PKG_VERSION"));

/// Returns the page called `name`: a subcommand, `checks`, or kpx itself; `kpx-` before it may be left out.
pub(super) fn page(name: Option<&str>) -> Result<String, Failure> {
    let name = name.unwrap_or("kpx");
    let short = name.strip_prefix("kpx-").unwrap_or(name);
    if short == "checks" {
        return Ok(checks());
    }
    let mut root = Cli::command();
    root.build();
    let (full, command) = find(&root, short).ok_or_else(|| {
        Failure::usage(format!("there is no manual page named {name}"))
            .with_hint("`kpx --help` names the commands; `checks` is a page, too")
    })?;
    let mut text = Vec::new();
    let command = command.display_name(full);
    Man::new(command)
        .source(SOURCE)
        .manual("kpx manual")
        .render(&mut text)?;
    Ok(String::from_utf8(text)?)
}

/// Returns the command whose page is called `kpx-NAME`, with the page's name.
fn find(root: &clap::Command, name: &str) -> Option<(String, clap::Command)> {
    if name == "kpx" {
        return Some(("kpx".to_owned(), root.clone()));
    }
    below(root, "", name)
}

fn below(command: &clap::Command, path: &str, name: &str) -> Option<(String, clap::Command)> {
    command.get_subcommands().find_map(|sub| {
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
    page += ".SH NAME\nkpx\\-checks \\- what kpx doctor looks for\n.SH DESCRIPTION\n";
    page += &prose(
        "kpx doctor runs these checks over what it read of a node and its cluster. Each has an id that is never used \
         again for another, and a name; kpx explain ID prints what stands here. Error means that traffic is, or will \
         be, lost; warning means a risk; info is good to know. A check that could not look is unknown and never counts \
         as passed; one whose question does not arise is skipped.",
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
    page += ".SH NOT ASKED\n";
    page += &prose("These ids are kept for what a look at one node cannot tell.");
    for (id, what, why) in check::NOT_CHECKED {
        put(
            &mut page,
            format_args!(".TP\n.B {id}\n{}", prose(&format!("{what}: {why}."))),
        );
    }
    page += ".SH SEE ALSO\n.BR kpx\\-doctor (1),\n.BR kpx\\-explain (1)\n";
    page
}

fn entry(check: &Check) -> String {
    let mut text = format!(".SS {} {}\n", check.id, roff(check.name));
    text += &prose(&format!(
        "{}. At worst: {}. Asked: {}.",
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
            put(&mut text, format_args!("{}\n", line(command)));
        }
        text += ".fi\n.RE\n";
    }
    put(&mut text, format_args!(".TP\n.B Fix\n{}", prose(check.fix)));
    for (at, incident) in check.incidents.iter().enumerate() {
        let lead = if at == 0 { ".TP\n.B Met in\n" } else { ".br\n" };
        put(&mut text, format_args!("{lead}{}", prose(incident)));
    }
    let needs: Vec<_> = check.items().map(crate::evidence::Item::file).collect();
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

/// Escapes a line: backslashes, hyphens that must stay hyphens, and what would be a request at its start.
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
