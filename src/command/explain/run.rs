//! `kpx explain`

use super::report::{CheckList, Document, Explanation};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity::reach;
use crate::command::shared::named_checks::unknown_check;
use crate::command::shared::session::Session;
use crate::pages;
use crate::view::near::{meant, nearest};
use kpx_judge::check;
use kpx_node::backend::Mode;

/// Lists every check.
pub(in crate::command) fn list() -> CheckList {
    CheckList::new(check::all())
}

/// Returns the page that `word` names.
pub(in crate::command) fn page(word: &str) -> Option<Document> {
    let page = pages::named(word)?;
    Some(Document {
        id: page.word,
        page: page.path,
        text: page.text,
    })
}

/// Explains the check that `word` names.
pub(in crate::command) fn one(session: &Session, word: &str) -> Result<Explanation, Failure> {
    let named = check::named(word);
    match named.as_slice() {
        [check] => Ok(Explanation::new(check, &reach(session))),
        [] => {
            let checks = check::all().flat_map(|check| [check.id, check.name, check.group()]);
            let pages = pages::all().map(|page| page.word);
            let known = checks.chain(pages).map(str::to_owned);
            let similar = if Mode::ALL.iter().any(|mode| mode.name() == word) {
                vec!["modes".to_owned()]
            } else {
                nearest(word, known)
            };
            let similar = meant(&similar).map_or_else(String::new, |meant| format!("{meant} "));
            Err(unknown_check(word).with_hint(format!(
                "{similar}`kpx doctor --list` lists checks; modes, schedulers, affinity, chains and providers are pages, \
                 and `kpx explain providers` names the others"
            )))
        }
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
