//! What modprobe.d and the kernel's command line say about modules.

use std::fs;

use super::super::super::context::Context;
use super::super::super::modules;
use super::tree::plain;
use crate::evidence::Item;

/// What is said about modules, in the order it is said.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// The file, to be named in errors.
    place: String,
    what: What,
    /// The module; for an alias its pattern.
    name: String,
    rest: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    Alias,
    Blacklist,
    Install,
    Options,
    Softdep,
}

/// What stands in for loading a module.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Install {
    /// Nothing: the file forbids it.
    Blocked(String),
    /// A command in this file.
    Command(String),
}

/// What is loaded around a module where it is there.
#[derive(Debug, Default)]
pub(super) struct Soft {
    pub(super) before: Vec<String>,
    pub(super) after: Vec<String>,
}

impl Rules {
    /// Reads modprobe.d below the host's root, and the kernel's command line.
    pub(super) fn read(context: &Context) -> Result<Self, String> {
        let text = modules::modprobe(Item::Modprobe, context).map_err(|gap| gap.to_string())?;
        let mut rules = Self::default();
        for line in text.lines() {
            if let Some((place, line)) = line.split_once(": ") {
                rules.add(place, line);
            }
        }
        // A recording of /proc may lack it; then it says nothing.
        let line = fs::read_to_string(context.path("proc/cmdline")).unwrap_or_default();
        rules.add_command_line(&line);
        Ok(rules)
    }

    /// Adds a line of modprobe.d, or of a file of the module tree that is written alike.
    pub(super) fn add(&mut self, place: &str, line: &str) {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let what = match word {
            "alias" => What::Alias,
            "blacklist" => What::Blacklist,
            "install" => What::Install,
            "options" => What::Options,
            "softdep" => What::Softdep,
            // `remove` is not for loading, `config` and `include` are of the past.
            _ => return,
        };
        if !name.is_empty() {
            self.0.push(Rule {
                place: place.to_owned(),
                what,
                name: plain(name),
                rest: rest.trim().to_owned(),
            });
        }
    }

    /// Adds `modprobe.blacklist=NAME,…` and `MODULE.OPTION=VALUE`, as modprobe does.
    fn add_command_line(&mut self, line: &str) {
        for word in line.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if key == "modprobe.blacklist" {
                for name in value.split(',') {
                    self.add("/proc/cmdline", &format!("blacklist {name}"));
                }
            } else if let Some((name, option)) = key.split_once('.') {
                let option = word.get(key.len() - option.len()..).unwrap_or(option);
                self.add("/proc/cmdline", &format!("options {name} {option}"));
            }
        }
    }

    fn about<'r>(&'r self, what: What, name: &'r str) -> impl Iterator<Item = &'r Rule> {
        self.0
            .iter()
            .filter(move |rule| rule.what == what && rule.name == name)
    }

    /// Returns the modules that the alias `name` stands for, but for blacklisted ones.
    pub(super) fn aliased(&self, name: &str) -> Vec<String> {
        let rules = self.0.iter();
        let rules = rules.filter(|rule| rule.what == What::Alias && matches(&rule.name, name));
        let names = rules.map(|rule| plain(&rule.rest));
        names.filter(|name| !self.is_blacklisted(name)).collect()
    }

    /// Tells whether the module is not loaded by its aliases.
    pub(super) fn is_blacklisted(&self, name: &str) -> bool {
        self.about(What::Blacklist, name).next().is_some()
    }

    /// Returns what is done instead of loading the module.
    pub(super) fn install(&self, name: &str) -> Option<Install> {
        let rule = self.about(What::Install, name).next()?;
        let command = rule.rest.split_ascii_whitespace().next().unwrap_or("");
        let place = rule.place.clone();
        // Whether such a command fails or succeeds, it loads nothing.
        Some(match command.rsplit('/').next() {
            Some("false" | "true") => Install::Blocked(place),
            _ => Install::Command(place),
        })
    }

    /// Returns the options of the module, as the kernel takes them.
    pub(super) fn options(&self, name: &str) -> String {
        let options: Vec<_> = self
            .about(What::Options, name)
            .map(|rule| rule.rest.as_str())
            .collect();
        options.join(" ")
    }

    /// Returns the soft dependencies of the module.
    pub(super) fn soft(&self, name: &str) -> Soft {
        let mut soft = Soft::default();
        for rule in self.about(What::Softdep, name) {
            let mut list = None;
            for word in rule.rest.split_ascii_whitespace() {
                match word {
                    "pre:" => list = Some(&mut soft.before),
                    "post:" => list = Some(&mut soft.after),
                    name => {
                        if let Some(list) = &mut list {
                            list.push(plain(name));
                        }
                    }
                }
            }
        }
        soft
    }
}

/// Tells whether `name` is what `pattern` describes; `*` stands for anything, `?` for one character.
///
/// Sets of characters, which only the aliases of devices have, match nothing.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    fn from(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], name) => (0..=name.len()).any(|at| from(rest, &name[at..])),
            ([b'?', rest @ ..], [_, name @ ..]) => from(rest, name),
            ([a, rest @ ..], [b, name @ ..]) if a == b => from(rest, name),
            _ => false,
        }
    }
    from(pattern.as_bytes(), name.as_bytes())
}
