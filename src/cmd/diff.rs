//! `kpx diff`

use std::mem::ManuallyDrop;

use super::shared::READABLE;
use super::shared::failure::Failure;
use super::shared::session::Session;
use crate::cli::DiffArgs;
use crate::diff;
use crate::report::diff::DiffReport;

pub(super) async fn run(session: &Session, args: &DiffArgs) -> Result<DiffReport, Failure> {
    let mode = match session.configured(args.mode).await? {
        Ok(mode) => mode,
        Err(gap) => return Ok(DiffReport::nothing(None, gap, "pass `--mode MODE`")),
    };
    let evidence = session.gather(&diff::needs(mode)).await?;
    // Not dropped: freeing a large cluster takes a tenth of the run time, and the process ends here anyway.
    let evidence = ManuallyDrop::new(evidence);
    let node = ManuallyDrop::new(session.node(&evidence));
    Ok(match diff::compare(&node, mode, session.families()) {
        Ok(found) => DiffReport::new(mode, found),
        Err(gap) => DiffReport::nothing(Some(mode), gap, READABLE),
    })
}
