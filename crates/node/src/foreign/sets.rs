//! IP sets, from `ipset list` or `ipset save`, as `ipset save` writes them.

use std::fmt::Write as _;

use super::command::Command;
use super::rules::is_cut;

/// IP sets, as far as they are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    text: String,
    names: Vec<String>,
    is_whole: bool,
    lost: Vec<String>,
}

/// Returns whether `line`, before `next`, begins a listing.
pub(super) fn begins(line: &str, next: Option<&str>) -> bool {
    line.trim().starts_with("Name: ") && next.is_some_and(|next| next.trim().starts_with("Type: "))
        || is_saved(line)
}

/// Returns whether `line` is of `ipset save`.
fn is_saved(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words.as_slice(), ["create", _, kind, ..] if kind.contains(':'))
        || matches!(words.as_slice(), ["add", _, _, ..])
}

/// Returns whether `line` may be in a listing that began.
pub(super) fn goes_on(line: &str) -> bool {
    const KEYS: [&str; 7] = [
        "Name:",
        "Type:",
        "Revision:",
        "Header:",
        "Size in memory:",
        "References:",
        "Number of entries:",
    ];
    let line = line.trim();
    line.is_empty()
        || line == "Members:"
        || KEYS.iter().any(|key| line.starts_with(key))
        || is_saved(line)
        || is_member(line)
}

/// Returns whether `line` looks like a member: an address, a port, a network, a MAC or a list's set.
fn is_member(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    first.starts_with(|c: char| c.is_ascii_hexdigit()) && first.contains(['.', ':', ','])
        || first.parse::<u16>().is_ok()
}

impl Sets {
    /// Returns whether nothing is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.lost.is_empty()
    }

    /// Returns the number of sets.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Reads the lines of a listing.
    pub(super) fn read(&mut self, lines: &[String], command: Option<&Command>) {
        let (mut name, mut kind, mut header) = (String::new(), String::new(), String::new());
        let mut counted: Option<usize> = None;
        let mut members: Option<Vec<&str>> = None;
        let mut saved = String::new();
        let mut is_cut_off = command.is_some_and(|command| command.fragment.is_some());
        let close = |sets: &mut Self,
                     name: &str,
                     kind: &str,
                     header: &str,
                     members: Option<Vec<&str>>,
                     counted: Option<usize>| {
            if name.is_empty() {
                return;
            }
            match members {
                // A set without its members is not shown: it is not empty.
                None => sets
                    .lost
                    .push(format!("members of set {name} are not shown")),
                Some(members) if counted.is_some_and(|count| count != members.len()) => {
                    sets.lost.push(format!("set {name} is cut"));
                }
                Some(_) if sets.names.iter().any(|known_name| known_name == name) => {}
                Some(members) => {
                    let _ = writeln!(sets.text, "create {name} {kind} {header}");
                    for member in members {
                        let _ = writeln!(sets.text, "add {name} {member}");
                    }
                    sets.names.push(name.to_owned());
                }
            }
        };
        for line in lines {
            let text = line.trim();
            if is_cut(text) {
                is_cut_off = true;
            } else if let Some(rest) = text.strip_prefix("Name:") {
                close(self, &name, &kind, &header, members.take(), counted.take());
                (name, kind, header) = (rest.trim().to_owned(), String::new(), String::new());
            } else if let Some(rest) = text.strip_prefix("Type:") {
                rest.trim().clone_into(&mut kind);
            } else if let Some(rest) = text.strip_prefix("Header:") {
                rest.trim().clone_into(&mut header);
            } else if let Some(rest) = text.strip_prefix("Number of entries:") {
                counted = rest.trim().parse().ok();
            } else if text == "Members:" {
                members = Some(Vec::new());
            } else if is_saved(text) {
                let words: Vec<&str> = text.split_whitespace().collect();
                if words[0] == "create" && !self.names.iter().any(|name| name == words[1]) {
                    self.names.push(words[1].to_owned());
                }
                saved.push_str(text);
                saved.push('\n');
            } else if let Some(members) = members
                .as_mut()
                .filter(|_| !text.is_empty() && is_member(text))
            {
                members.push(text);
            }
        }
        close(self, &name, &kind, &header, members.take(), counted);
        if !saved.is_empty() {
            // Both forms of the same sets may be in one file.
            self.text = saved;
        }
        let is_one = command.is_some_and(|command| {
            command.args.iter().any(|arg| {
                !arg.starts_with('-') && !["list", "save", "L", "S"].contains(&arg.as_str())
            })
        });
        if is_cut_off {
            self.lost.push("the listing is cut".to_owned());
        }
        self.is_whole |= !is_cut_off && !is_one && command.is_some();
    }

    /// Returns the text of `ipset save`, and its missing part.
    pub(super) fn text(&self) -> (String, Option<String>) {
        let mut lost = self.lost.clone();
        if !self.is_whole {
            lost.push("other sets may exist".to_owned());
        }
        (
            self.text.clone(),
            (!lost.is_empty()).then(|| lost.join("; ")),
        )
    }
}
