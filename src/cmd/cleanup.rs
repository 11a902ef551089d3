//! `kpx cleanup`

use super::Io;
use super::shared::READABLE;
use super::shared::change::carry_out;
use super::shared::failure::Failure;
use super::shared::session::Session;
use crate::cli::CleanupArgs;
use crate::plan::{self, Plan, Refusal};
use crate::report::plan::PlanReport;

pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &CleanupArgs,
) -> Result<PlanReport, Failure> {
    let mode = args.mode;
    let goal = format!("remove the leftovers of mode {mode}");
    let make = async || -> Result<Plan, Failure> {
        let evidence = session.gather(plan::CLEANUP_NEEDS).await?;
        let node = session.node(&evidence);
        plan::cleanup(&node, mode, session.families(), args.force).map_err(|refusal| {
            let hint = match refusal {
                Refusal::Serves { .. } => {
                    "name a mode that does not serve the node, or pass --force to remove this one anyway"
                }
                Refusal::Unknown(_) => READABLE,
            };
            Failure::from(refusal).with_hint(hint)
        })
    };
    carry_out(session, io, &args.change, &goal, make).await
}
