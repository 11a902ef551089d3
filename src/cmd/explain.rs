//! `kpx explain`

use super::shared::failure::Failure;
use crate::check;
use crate::provider::{self, Provider};
use crate::report::explain::{CheckList, Explanation, ProviderPage};

/// Lists every check.
pub(super) fn list() -> CheckList {
    CheckList::new(check::all())
}

/// Returns the page about a provider that `word` names, or their list.
pub(super) fn provider(word: &str) -> Option<ProviderPage> {
    if word == "providers" {
        return Some(ProviderPage {
            id: "providers",
            page: "docs/migrate/README.md".to_owned(),
            text: provider::INDEX,
        });
    }
    let found = Provider::named(word)?;
    Some(ProviderPage {
        id: found.id,
        page: found.page(),
        text: found.text,
    })
}

/// Explains the check that `word` names.
pub(super) fn one(word: &str) -> Result<Explanation, Failure> {
    let named = check::named(word);
    match named.as_slice() {
        [check] => Ok(Explanation::new(check)),
        [] => Err(super::doctor::unknown_check(word).with_hint(
            "`kpx doctor --list` lists checks, `kpx explain providers` the pages about providers",
        )),
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
