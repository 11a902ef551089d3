//! The migrations of this node, by their journals.

use color_eyre::eyre::{WrapErr as _, eyre};

use crate::cmd::shared::failure::Failure;
use crate::cmd::shared::session::Session;
use crate::host::Journals;
use crate::migrate::journal::{self, JournalError, MigrationState};

/// Returns the journals of the node that `session` describes.
pub(super) fn of(session: &Session) -> Journals {
    Journals::below(session.root())
}

const CANNOT_LIST: &str = "cannot list earlier migrations";

/// Returns the newest migration; `None` if there was none.
pub(super) fn newest(journals: &Journals) -> Result<Option<MigrationState>, Failure> {
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

/// Removes the journals of ended migrations, except the newest ten.
pub(super) fn prune(journals: &Journals) -> Result<(), Failure> {
    let mut over = 0;
    for id in journals.all().wrap_err(CANNOT_LIST)?.iter().rev() {
        let text = journals.read(id).wrap_err(CANNOT_LIST)?;
        // An unreadable journal stays for an operator.
        let ended = match journal::read(&text) {
            Ok(state) => state.ended,
            Err(error) => error == JournalError::Empty,
        };
        over += usize::from(ended);
        if ended && over > KEPT {
            journals
                .remove(id)
                .wrap_err_with(|| format!("cannot remove the journal of {id}"))?;
        }
    }
    Ok(())
}
