//! `kpx diff`

use std::mem::ManuallyDrop;

use super::Io;
use super::shared::READABLE;
use super::shared::failure::Failure;
use super::shared::nodes;
use super::shared::session::Session;
use crate::cli::DiffArgs;
use crate::diff;
use crate::report::diff::DiffReport;
use crate::report::nodes::DiffOfNodes;

pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &DiffArgs,
) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let work = async move |session: Session| compare(&session, &args).await;
        return nodes::report::<DiffOfNodes>(session, io, &nodes, &[], work).await;
    }
    session.finish(io, &compare(session, args).await?)
}

async fn compare(session: &Session, args: &DiffArgs) -> Result<DiffReport, Failure> {
    let mode = match session.configured(args.mode).await? {
        Ok(mode) => mode,
        Err(gap) => return Ok(DiffReport::nothing(None, gap, "pass `--mode MODE`")),
    };
    let evidence = session.gather(&diff::needs(mode)).await?;
    // Freeing a large cluster object by object takes a tenth of the time, and after one node the process ends.
    let evidence = ManuallyDrop::new(evidence);
    let node = ManuallyDrop::new(session.node(&evidence));
    let report = match diff::compare(&node, mode, session.families()) {
        Ok(mut found) => {
            found.notes.extend(node.evidence().note_added());
            DiffReport::new(mode, found)
        }
        Err(gap) => DiffReport::nothing(Some(mode), gap, READABLE),
    };
    if session.one_of_several {
        drop(ManuallyDrop::into_inner(node));
        drop(ManuallyDrop::into_inner(evidence));
    }
    Ok(report)
}
