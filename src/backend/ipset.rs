//! IP sets, as `ipset save` names them. Shared by the ipvs mode and by rules of other software.

pub mod change;

use std::borrow::Cow;

use crate::evidence::{Gap, Item};

/// Every set, in the order saved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sets<'a> {
    /// The sets.
    pub sets: Vec<Set<'a>>,
}

impl<'a> Sets<'a> {
    /// Returns the set called `name`.
    pub fn set(&self, name: &str) -> Option<&Set<'a>> {
        self.sets.iter().find(|set| set.name == name)
    }
}

/// One set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Set<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// The type, such as `hash:ip,port`.
    pub kind: Cow<'a, str>,
    /// The options of `create` behind the type, word for word (`family inet hashsize 1024 …`).
    pub options: Cow<'a, str>,
    /// The members, in the order saved.
    pub members: Vec<Member<'a>>,
}

impl Set<'_> {
    /// Returns the value behind the word `name` in the options of `create`.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut words = self.options.split_ascii_whitespace();
        words.find(|&word| word == name)?;
        words.next()
    }

    /// Returns whether the set holds IPv6 addresses.
    pub fn is_v6(&self) -> bool {
        self.option("family") == Some("inet6")
    }
}

/// One member of a set.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Member<'a> {
    /// The element as printed: `10.0.0.1,tcp:80,10.0.0.2`.
    pub element: Cow<'a, str>,
    /// What follows it, word for word (`timeout 30 nomatch`); may be empty.
    pub options: Cow<'a, str>,
}

/// Reads `ipset save`.
pub fn parse(text: &str) -> Result<Sets<'_>, Gap> {
    let mut sets: Vec<Set<'_>> = Vec::new();
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let fail = |why: String| Gap::Failed(Item::Ipset, format!("line {number}: {why}"));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (verb, rest) = word(line);
        let (name, rest) = word(rest);
        let (first, options) = word(rest);
        if first.is_empty() {
            return Err(fail(format!("{verb} takes a set and what to do with it")));
        }
        match verb {
            "create" | "-N" => {
                last = sets.len();
                sets.push(Set {
                    name: name.into(),
                    kind: first.into(),
                    options: options.into(),
                    members: Vec::new(),
                });
            }
            "add" | "-A" => {
                if sets.get(last).is_none_or(|set| set.name != name) {
                    let found = sets.iter().position(|set| set.name == name);
                    last = found.ok_or_else(|| fail(format!("no set {name} was created")))?;
                }
                sets[last].members.push(Member {
                    element: first.into(),
                    options: options.into(),
                });
            }
            _ => return Err(fail(format!("expected create or add, found {verb:?}"))),
        }
    }
    Ok(Sets { sets })
}

/// Takes the first word, without its quotes; what follows has no space before it.
fn word(text: &str) -> (&str, &str) {
    let (word, rest) = match text.strip_prefix('"').and_then(|t| t.split_once('"')) {
        Some(quoted) => quoted,
        None => text.split_once(' ').unwrap_or((text, "")),
    };
    (word, rest.trim_start())
}
