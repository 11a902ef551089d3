//! The removal of the leftovers of a mode.

use super::args::ReconcileArgs;
use super::plan::applying;
use crate::command::shared::READABLE;
use crate::command::shared::apply_on_nodes;
use crate::command::shared::apply_on_nodes::Planned;
use crate::command::shared::change::{carry_out, verified};
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use kpx_judge::plan::{self, Refusal};
use kpx_node::backend::Mode;

/// Plans the removal of the leftovers of `mode`, and carries it out with `--apply`.
pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
    mode: Mode,
) -> Result<u8, Failure> {
    let force = args.force;
    if args.nodes.are_several() {
        let make = async move |session: &Session| plan(session, mode, force).await;
        let next = applying(session, args);
        let done = apply_on_nodes::carry_out(session, io, &args.nodes, args.change, next, make);
        return done.await;
    }
    let make = async || Ok(plan(session, mode, force).await?.1);
    let report = carry_out(session, io, &args.change, &goal(mode), &make).await?;
    let mut report = verified(report, make).await;
    report.next = Some(applying(session, args));
    session.finish(io, &report)
}

fn goal(mode: Mode) -> String {
    format!("remove the leftovers of mode {mode}")
}

/// Plans the removal on the node of `session`.
async fn plan(session: &Session, mode: Mode, force: bool) -> Result<Planned, Failure> {
    let evidence = session.gather(plan::CLEANUP_NEEDS).await?;
    let node = session.node(&evidence);
    let plan = plan::cleanup(&node, mode, session.families(), force).map_err(|refusal| {
        let hint = match refusal {
            Refusal::Serves { .. } => {
                "name a mode that does not serve the node, or pass --force to remove this one anyway"
            }
            Refusal::Unknown(_) => READABLE,
        };
        Failure::from(refusal).with_hint(hint)
    })?;
    Ok((goal(mode), plan))
}
