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

/// A set as it is read.
#[derive(Default)]
struct Set<'a> {
    name: &'a str,
    /// Its kind and options.
    head: String,
    members: Option<Vec<&'a str>>,
    /// The number of members, if the listing has it.
    count: Option<usize>,
    is_cut: bool,
}

impl<'a> Set<'a> {
    fn new(name: &'a str) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }
}

/// Returns whether `line`, before `next`, begins a listing.
pub(super) fn begins(line: &str, next: Option<&str>) -> bool {
    let is_kind = |next: &str| {
        let kind = next.trim().strip_prefix("Type: ");
        kind.is_some_and(|kind| kind.contains(':'))
    };
    line.trim().starts_with("Name: ") && next.is_some_and(is_kind) || is_saved(line)
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
        let mut is_cut_off = command.is_some_and(|command| command.fragment.is_some());
        let mut found: Vec<Set<'_>> = Vec::new();
        for line in lines {
            let text = line.trim();
            let words: Vec<&str> = text.split_whitespace().collect();
            if is_cut(text) {
                is_cut_off = true;
                if let Some(set) = found.last_mut() {
                    set.is_cut = true;
                }
            } else if let Some(name) = text.strip_prefix("Name:") {
                found.push(Set::new(name.trim()));
            } else if text == "Members:" {
                if let Some(set) = found.last_mut() {
                    set.members = Some(Vec::new());
                }
            } else if let ["create", name, rest @ ..] = words.as_slice()
                && is_saved(text)
            {
                found.push(Set {
                    head: rest.join(" "),
                    members: Some(Vec::new()),
                    ..Set::new(name)
                });
            } else if let ["add", name, ..] = words.as_slice()
                && is_saved(text)
            {
                let member = text.splitn(3, char::is_whitespace).nth(2);
                let of = found.iter().position(|set| set.name == *name);
                let of = of.unwrap_or_else(|| {
                    // The line that creates it is not shown.
                    found.push(Set {
                        is_cut: true,
                        ..Set::new(name)
                    });
                    found.len() - 1
                });
                found[of].members.get_or_insert_default().extend(member);
            } else if let Some(set) = found.last_mut() {
                if let Some(kind) = text.strip_prefix("Type:") {
                    kind.trim().clone_into(&mut set.head);
                } else if let Some(header) = text.strip_prefix("Header:") {
                    let _ = write!(set.head, " {}", header.trim());
                } else if let Some(count) = text.strip_prefix("Number of entries:") {
                    set.count = count.trim().parse().ok();
                } else if let Some(members) = set.members.as_mut().filter(|_| is_member(text)) {
                    members.push(text);
                }
            }
        }
        for set in found {
            self.add(&set);
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

    /// Adds a set that is not known yet.
    fn add(&mut self, set: &Set<'_>) {
        let name = set.name;
        if self.names.iter().any(|known| known == name) {
            return;
        }
        let Some(members) = &set.members else {
            // A set without its members is not shown: it is not empty.
            self.lost
                .push(format!("members of set {name} are not shown"));
            return;
        };
        if set.is_cut || set.count.is_some_and(|count| count != members.len()) {
            self.lost.push(format!("set {name} is cut"));
            return;
        }
        let _ = writeln!(self.text, "create {name} {}", set.head);
        for member in members {
            let _ = writeln!(self.text, "add {name} {member}");
        }
        self.names.push(name.to_owned());
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
