//! How a mode handles the packets to a Service, in a few words.

use std::collections::BTreeMap;

use crate::view::programmed::{Handling, Programmed};

/// Returns how the mode handles packets to all destinations of a port: `forwards`, `1 of 3 missing`.
pub(super) fn in_words(programmed: &Programmed) -> String {
    let mut counts: BTreeMap<(bool, Option<Handling>), usize> = BTreeMap::new();
    for target in &programmed.targets {
        // Unknown ones come last.
        let key = (target.state.is_none(), target.state);
        *counts.entry(key).or_default() += 1;
    }
    if counts.len() == 1 {
        let only = counts.keys().next();
        return only.map_or("", |(_, state)| verb(*state, true)).to_owned();
    }
    let all = programmed.targets.len();
    let parts = counts.iter();
    let parts = parts.filter(|((_, state), _)| *state != Some(Handling::Translates));
    let parts =
        parts.map(|((_, state), &count)| format!("{count} of {all} {}", verb(*state, count == 1)));
    parts.collect::<Vec<_>>().join("; ")
}

/// Returns the verb for one destination or for several.
const fn verb(state: Option<Handling>, one: bool) -> &'static str {
    match (state, one) {
        (Some(Handling::Translates), true) => "translates",
        (Some(Handling::Translates), false) => "translate",
        (Some(Handling::RejectsOutside), true) => "rejects from outside",
        (Some(Handling::RejectsOutside), false) => "reject from outside",
        (Some(Handling::DropsOutside), true) => "drops from outside",
        (Some(Handling::DropsOutside), false) => "drop from outside",
        (Some(Handling::Rejects), true) => "rejects",
        (Some(Handling::Rejects), false) => "reject",
        (Some(Handling::Drops), true) => "drops",
        (Some(Handling::Drops), false) => "drop",
        (Some(Handling::Unmatched), _) => "unmatched",
        (Some(Handling::Missing), _) => "missing",
        (None, _) => "?",
    }
}
