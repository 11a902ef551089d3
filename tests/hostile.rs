//! Text from outside, in every place of a bundle: no command obeys it, or lets a terminal obey it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::docs::schema::COMMANDS;
use crate::support::{Ran, broken, kpx, root};

/// Clears the screen, colours, moves the cursor with a C1 character, and turns the direction of what follows.
const HOSTILE: &str = "\u{1b}[2J\u{1b}[31mx\u{9b}5A\u{202e}\u{7}\r";

/// Nodes of each mode, with leftovers and faults.
pub(crate) const NODES: &[&str] = &[
    "full-iptables",
    "full-ipvs",
    "full-nftables",
    "faults-rules",
    "leftover-ipvs-to-iptables",
    "userspace-1.25",
];

/// Nodes of which each file is refused in turn.
pub(crate) const REFUSED: &[&str] = &["full-iptables", "full-ipvs", "userspace-1.25"];

/// Formats in addition to those of every command.
const EXTRA: &[(&str, &[&str])] = &[
    ("doctor", &["short", "junit", "prom", "npd"]),
    ("trace", &["picture", "svg", "mermaid", "dot"]),
    ("why", &["picture", "svg"]),
];

/// Files of a bundle.
fn files(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in ["node", "cluster", "kube-proxy"] {
        let all = fs::read_dir(below.join(part)).unwrap();
        found.extend(all.map(|file| file.unwrap().path()));
    }
    found.sort();
    found
}

/// Appends [`HOSTILE`] to the texts of `value` whose field `is_hostile` chooses.
fn spoil(value: &mut Value, field: &str, is_hostile: &dyn Fn(&str) -> bool) {
    match value {
        Value::String(text) if is_hostile(field) => text.push_str(HOSTILE),
        Value::Array(all) => all.iter_mut().for_each(|one| spoil(one, field, is_hostile)),
        Value::Object(all) => all
            .iter_mut()
            .for_each(|(field, one)| spoil(one, field, is_hostile)),
        _ => {}
    }
}

/// Returns the text of a file with hostile names and comments, which most readers accept.
fn named(text: &str) -> String {
    let is_name = |field: &str| {
        matches!(
            field,
            "comment"
                | "hostname"
                | "image"
                | "kernelVersion"
                | "message"
                | "name"
                | "nodeName"
                | "zone"
        )
    };
    match serde_json::from_str::<Value>(text) {
        Ok(mut all) => {
            spoil(&mut all, "", &is_name);
            all.to_string()
        }
        Err(_) => text
            .replace("--comment \"", &format!("--comment \"{HOSTILE}"))
            .replace("-hint", &format!("-hint{HOSTILE}")),
    }
}

/// Returns the text of a file with every text or line spoiled, which readers refuse.
fn refused(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(mut all) => {
            spoil(&mut all, "", &|_| true);
            all.to_string()
        }
        Err(_) => text
            .split('\n')
            .flat_map(|line| [line, HOSTILE, "\n"])
            .collect(),
    }
}

/// Fails if a terminal would obey anything that a command printed.
fn hold(args: &[&str], ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let obeyed = |c: char| {
            c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{202a}'..='\u{202e}')
        };
        let raw = text.lines().find(|line| line.contains(obeyed));
        assert_eq!(raw, None, "{args:?}");
    }
    assert!(ran.code <= 4, "{args:?}: {ran}");
}

/// Runs every command, with every format if `formats`; returns how many outputs had something hostile to show.
async fn run_all(bundle: &Path, formats: bool) -> usize {
    let mut shown = 0;
    for (_, command) in COMMANDS {
        let words: Vec<&str> = command.split(' ').collect();
        let extra = EXTRA.iter().find(|(name, _)| *name == words[0]);
        let own = extra.map_or(&[][..], |(_, formats)| formats);
        let more = [&["wide", "json", "yaml"], own].concat();
        let formats = if formats { more.as_slice() } else { &["json"] };
        for format in [&["human"], formats].concat() {
            let args = [
                &["--from", bundle.to_str().unwrap()],
                &words[..],
                &["-o", format],
            ]
            .concat();
            let ran = kpx(&args).await;
            hold(&args, &ran);
            shown += usize::from(format!("{}{}", ran.out, ran.err).contains("\\u001b"));
        }
    }
    shown
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn no_command_prints_what_a_terminal_would_obey() {
    commands_print_nothing_hostile(&["faults-rules", "userspace-1.25"]).await;
}

/// Runs every command on these nodes with hostile names; on the first with every format.
pub(crate) async fn commands_print_nothing_hostile(names: &[&str]) {
    for (at, name) in names.iter().enumerate() {
        let bundle = broken(name, &[]);
        for file in files(bundle.path()) {
            if let Ok(text) = fs::read_to_string(&file) {
                fs::write(&file, named(&text)).unwrap();
            }
        }
        let shown = run_all(bundle.path(), at == 0).await;
        assert!(shown > 5, "{name}: only {shown} outputs");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn no_error_about_a_file_prints_what_a_terminal_would_obey() {
    errors_print_nothing_hostile(&["userspace-1.25"]).await;
}

/// Refuses each file of these nodes in turn.
pub(crate) async fn errors_print_nothing_hostile(names: &[&str]) {
    let mut shown = 0;
    for name in names {
        let from = root().join("testdata/nodes").join(name);
        for file in files(&from) {
            let file = file.strip_prefix(&from).unwrap().to_str().unwrap();
            if fs::read_to_string(from.join(file)).is_err() {
                continue;
            }
            let bundle = broken(name, &[(file, &refused)]);
            for command in ["doctor -v", "diff", "preflight --to ipvs"] {
                let words: Vec<&str> = command.split(' ').collect();
                let args = [&["--from", bundle.path().to_str().unwrap()], &words[..]].concat();
                let ran = kpx(&args).await;
                hold(&args, &ran);
                shown += usize::from(format!("{}{}", ran.out, ran.err).contains("\\u001b"));
            }
        }
    }
    assert!(shown > 10 * names.len(), "only {shown} outputs");
}

#[tokio::test]
async fn a_hostile_command_line_is_shown() {
    let hostile = format!("x{HOSTILE}");
    for args in [
        vec![hostile.as_str()],
        vec!["--from", "testdata", "doctor", hostile.as_str()],
        vec!["--from", &hostile, "doctor"],
        vec!["explain", &hostile],
        vec!["trace", &hostile],
        vec!["doctor", "-o", &hostile],
    ] {
        let ran = kpx(&args).await;
        hold(&args, &ran);
        let printed = format!("{}{}", ran.out, ran.err);
        assert!(printed.contains("\\u"), "{args:?}: {ran}");
    }
}
