//! Module configuration in modprobe.d and on the kernel's command line.

use std::fs;

use super::super::super::context::Context;
use super::super::super::modules;
use kpx_node::evidence::Item;

/// Returns the name in the kernel's spelling.
pub(super) fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Module configuration lines, in order.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// File of the line, for errors.
    place: String,
    what: What,
    /// Module name, or the pattern of an alias.
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

/// Effect of an `install` line.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Install {
    /// Loading is forbidden by this file.
    Blocked(String),
    /// This file has a command to run instead.
    Command(String),
}

/// Soft dependencies of a module.
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
        // A recorded /proc may lack the file.
        let line = fs::read_to_string(context.path("proc/cmdline")).unwrap_or_default();
        rules.add_command_line(&line);
        Ok(rules)
    }

    /// Parses a line of modprobe.d, or of another file with the same syntax.
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
            // `remove` does not affect loading; `config` and `include` are obsolete.
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

    /// Parses `modprobe.blacklist=NAME,…` and `MODULE.OPTION=VALUE`, as modprobe does.
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

    /// Returns the modules of the alias `name`, except blacklisted ones.
    pub(super) fn aliased(&self, name: &str) -> Vec<String> {
        let rules = self.0.iter();
        let rules = rules.filter(|rule| rule.what == What::Alias && matches(&rule.name, name));
        let names = rules.map(|rule| plain(&rule.rest));
        names.filter(|name| !self.is_blacklisted(name)).collect()
    }

    /// Returns whether the module is not loaded by alias.
    pub(super) fn is_blacklisted(&self, name: &str) -> bool {
        self.about(What::Blacklist, name).next().is_some()
    }

    /// Returns the `install` line of the module.
    pub(super) fn install(&self, name: &str) -> Option<Install> {
        let rule = self.about(What::Install, name).next()?;
        let command = rule.rest.split_ascii_whitespace().next().unwrap_or("");
        let place = rule.place.clone();
        // Whether the command fails or succeeds, it does not load the module.
        Some(match command.rsplit('/').next() {
            Some("false" | "true") => Install::Blocked(place),
            _ => Install::Command(place),
        })
    }

    /// Returns the options of the module in the kernel's format.
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

/// Returns whether `name` matches `pattern`; `*` matches any text, `?` one character.
///
/// Character classes, which only device aliases use, match nothing.
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
