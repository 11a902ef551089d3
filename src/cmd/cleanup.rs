//! `kpx cleanup`

use super::change::carry_out;
use super::failure::Failure;
use super::{Io, families, gather, mode};
use crate::cli::{CleanupArgs, Global};
use crate::node::NodeSnapshot;
use crate::plan::{self, Plan, Refusal};
use crate::report::plan::PlanReport;

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &CleanupArgs,
) -> Result<PlanReport, Failure> {
    let mode = mode(args.mode);
    let goal = format!("remove what mode {mode} left behind");
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let evidence = gather(global, io, plan::CLEANUP_NEEDS).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        plan::cleanup(&node, mode, &families(global), args.force).map_err(|refusal| {
            let hint = match refusal {
                Refusal::Serves { .. } => {
                    "clean up the modes that do not serve it; --force removes this one all the same"
                }
                Refusal::Unknown(_) => "`kpx snapshot -v` says what of the node can be read",
            };
            Failure::from(refusal).with_hint(hint)
        })
    };
    carry_out(global, io, &args.change, &goal, make).await
}
