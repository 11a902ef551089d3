//! Checks that a user names.

use super::failure::Failure;
use crate::view::did_you_mean::{meant, nearest};
use kpx_judge::check::{self, Check};

/// Returns the checks that `words` name, in the doctor's order.
pub(in crate::command) fn named(words: &[String]) -> Result<Vec<&'static Check>, Failure> {
    let mut ids = Vec::new();
    for word in words {
        let found = check::named(word.trim());
        if found.is_empty() {
            return Err(unknown_check(word));
        }
        ids.extend(found.iter().map(|check| check.id));
    }
    Ok(check::all()
        .filter(|check| ids.contains(&check.id))
        .collect())
}

/// Returns the checks in `only`, or all if it is empty, without the checks in `skip`.
pub(in crate::command) fn selected(
    only: &[String],
    skip: &[String],
    all: Vec<&'static Check>,
) -> Result<Vec<&'static Check>, Failure> {
    let mut chosen = if only.is_empty() { all } else { named(only)? };
    let skipped = named(skip)?;
    chosen.retain(|check| skipped.iter().all(|skipped| skipped.id != check.id));
    if chosen.is_empty() {
        return Err(Failure::usage(
            "no check to run: --only and --skip exclude all",
        ));
    }
    Ok(chosen)
}

/// Returns the error for a check that does not exist.
pub(in crate::command) fn unknown_check(word: &str) -> Failure {
    let names = check::all().flat_map(|check| [check.id, check.name, check.group()]);
    let near = nearest(word, names.map(str::to_owned));
    let meant = meant(&near).map_or_else(String::new, |meant| format!("{meant} "));
    Failure::usage(format!("no check or group named {word}"))
        .with_hint(format!("{meant}`kpx explain` lists them"))
}
