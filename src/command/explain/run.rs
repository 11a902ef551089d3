//! `kpx explain`

use super::args::ExplainArgs;
use super::report::{CheckList, Document, Explanation};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity::reach;
use crate::command::shared::io::Io;
use crate::command::shared::named_checks::unknown_check;
use crate::command::shared::session::Session;
use crate::pages;
use crate::report::CLEAN;
use crate::view::did_you_mean::{meant, nearest};
use kpx_judge::check::{self, Question};
use kpx_node::backend::Mode;

pub(in crate::command) fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ExplainArgs,
) -> Result<u8, Failure> {
    if args.checks.is_empty() {
        let list = match (args.to, args.release) {
            (None, None) => CheckList::new(check::all()),
            (to, None) => CheckList::new(check::asked(to)),
            (_, Some(goal)) => CheckList::new(check::asked(Question::Upgrade(goal))),
        };
        return session.finish(io, &list);
    }
    for (at, word) in args.checks.iter().enumerate() {
        if at > 0 {
            session.separate(io)?;
        }
        explain(session, io, word)?;
    }
    Ok(CLEAN)
}

/// Prints what `word` names.
fn explain(session: &Session, io: &mut Io<'_>, word: &str) -> Result<u8, Failure> {
    if let Some(page) = page(word) {
        return session.finish(io, &page);
    }
    match each(session, word).as_slice() {
        [] => Err(unknown(word)),
        [explanation] => session.finish(io, explanation),
        _ => session.finish(io, &CheckList::new(check::named(word))),
    }
}

/// Explains each check that `word` names.
pub(in crate::command) fn each(session: &Session, word: &str) -> Vec<Explanation> {
    let reach = reach(session);
    let named = check::named(word).into_iter();
    named.map(|check| Explanation::new(check, &reach)).collect()
}

/// Returns the page that `word` names.
fn page(word: &str) -> Option<Document> {
    let page = pages::named(word)?;
    Some(Document {
        id: page.word,
        page: page.path,
        text: page.text,
    })
}

/// Returns the error for a word that names neither a check nor a page.
fn unknown(word: &str) -> Failure {
    let checks = check::all().flat_map(|check| [check.id, check.name, check.group()]);
    let pages = pages::all().map(|page| page.word);
    let known = checks.chain(pages).map(str::to_owned);
    let similar = if Mode::ALL.iter().any(|mode| mode.name() == word) {
        vec!["modes".to_owned()]
    } else {
        nearest(word, known)
    };
    let similar = meant(&similar).map_or_else(String::new, |meant| format!("{meant} "));
    unknown_check(word).with_hint(format!(
        "{similar}`kpx explain` lists checks; modes, schedulers, affinity, chains and providers are pages, and \
         `kpx explain providers` names the others"
    ))
}
