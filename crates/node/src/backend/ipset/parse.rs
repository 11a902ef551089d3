//! `ipset save` output to [`Sets`].

use super::model::{Member, Set, Sets};
use crate::evidence::{Gap, Item};

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
        if verb == "Name:" {
            let why = "it is the output of `ipset list`: write that of `ipset save`";
            return Err(Gap::Failed(Item::Ipset, why.to_owned()));
        }
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

/// Takes the first word, without its quotes; the rest has no space before it.
fn word(text: &str) -> (&str, &str) {
    let (word, rest) = match text.strip_prefix('"').and_then(|t| t.split_once('"')) {
        Some(quoted) => quoted,
        None => text.split_once(' ').unwrap_or((text, "")),
    };
    (word, rest.trim_start())
}
