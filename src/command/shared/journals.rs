//! The migrations of this node, by their journals.

use color_eyre::eyre::{WrapErr as _, eyre};

use crate::command::shared::failure::Failure;
use crate::command::shared::session::Session;
use kpx_host::Journals;
use kpx_migrate::journal::{self, JournalError, MigrationState};
use kpx_node::words::number_of;

/// Returns the journals of the node that `session` describes.
pub(in crate::command) fn of(session: &Session) -> Journals {
    Journals::below(session.root())
}

const CANNOT_LIST: &str = "cannot list earlier migrations";

/// Returns the newest migration; `None` if there was none.
pub(in crate::command) fn newest(journals: &Journals) -> Result<Option<MigrationState>, Failure> {
    let all = journals.all().wrap_err(CANNOT_LIST)?;
    for id in all.iter().rev() {
        let text = journals
            .read(id)
            .wrap_err_with(|| format!("cannot read the journal of {id}"))?;
        match journal::read(&text) {
            Ok(state) => return Ok(Some(state)),
            // kpx was killed before anything began.
            Err(JournalError::Empty) => {}
            Err(error) => {
                let folder = journals.folder(id);
                return Err(
                    Failure::from(eyre!(error).wrap_err(format!("cannot continue {id}")))
                        .with_hint(format!(
                            "the backup is in {}; restore the node by hand, then move that folder away",
                            folder.display()
                        )),
                );
            }
        }
    }
    Ok(None)
}

/// The number of journals of ended migrations that are kept.
const KEPT: usize = 10;

/// Removes the journals and backups of ended migrations, except the newest ten. Returns a note on the removed ones, and one
/// for each migration that could not be removed.
///
/// A migration that has not ended stays, and so does a folder whose journal cannot be read.
pub(in crate::command) fn prune(journals: &Journals) -> Vec<String> {
    let all = match journals.all() {
        Ok(all) => all,
        Err(error) => return vec![format!("{CANNOT_LIST}: {error}")],
    };
    let ended = |id: &&String| {
        let text = journals.read(id);
        text.is_ok_and(|text| journal::read(&text).is_ok_and(|state| state.ended))
    };
    let old = all.iter().rev().filter(ended).skip(KEPT);
    let (mut removed, mut notes) = (0, Vec::new());
    for id in old {
        match journals.remove(id) {
            Ok(()) => removed += 1,
            Err(error) => notes.push(format!("cannot remove the old journal {id}: {error}")),
        }
    }
    if removed > 0 {
        notes.push(format!(
            "removed the journals and backups of {}; the newest {KEPT} are kept",
            number_of(removed, "old migration")
        ));
    }
    notes
}
