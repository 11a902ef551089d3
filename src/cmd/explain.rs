//! `kpx explain`

use super::shared::failure::Failure;
use crate::check;
use crate::report::explain::{CheckList, Explanation};

/// Lists every check.
pub(super) fn list() -> CheckList {
    CheckList::new(check::all())
}

/// Explains the check that `word` names.
pub(super) fn one(word: &str) -> Result<Explanation, Failure> {
    let named = check::named(word);
    match named.as_slice() {
        [check] => Ok(Explanation::new(check)),
        [] => Err(super::doctor::unknown_check(word)),
        [first, ..] => {
            let checks = named.iter().map(|check| check.id).collect::<Vec<_>>();
            Err(Failure::usage(format!(
                "{word} is a group, {}: {}",
                first.group(),
                checks.join(", ")
            ))
            .with_hint("choose one of its checks"))
        }
    }
}
