//! `kpx cleanup`

use super::args::CleanupArgs;
use crate::command::shared::READABLE;
use crate::command::shared::change::{carry_out, verified};
use crate::command::shared::changes;
use crate::command::shared::changes::Planned;
use crate::command::shared::failure::Failure;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use kpx_judge::plan::{self, Refusal};

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &CleanupArgs,
) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        let all = args.clone();
        let make = async move |session: &Session| plan(session, &all).await;
        return changes::carry_out(session, io, &args.nodes, args.change, make).await;
    }
    let make = async || Ok(plan(session, args).await?.1);
    let report = carry_out(session, io, &args.change, &goal(args), &make).await?;
    session.finish(io, &verified(report, make).await)
}

fn goal(args: &CleanupArgs) -> String {
    format!("remove the leftovers of mode {}", args.mode)
}

/// Plans the removal on the node of `session`.
async fn plan(session: &Session, args: &CleanupArgs) -> Result<Planned, Failure> {
    let mode = args.mode;
    let evidence = session.gather(plan::CLEANUP_NEEDS).await?;
    let node = session.node(&evidence);
    let plan = plan::cleanup(&node, mode, session.families(), args.force).map_err(|refusal| {
        let hint = match refusal {
            Refusal::Serves { .. } => {
                "name a mode that does not serve the node, or pass --force to remove this one anyway"
            }
            Refusal::Unknown(_) => READABLE,
        };
        Failure::from(refusal).with_hint(hint)
    })?;
    Ok((goal(args), plan))
}
