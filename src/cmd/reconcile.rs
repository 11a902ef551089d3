//! `kpx reconcile`

use color_eyre::eyre::eyre;

use super::Io;
use super::shared::change::carry_out;
use super::shared::failure::{Failure, Hint as _};
use super::shared::session::{Readable as _, Session};
use crate::cli::ReconcileArgs;
use crate::diff::{self, Layer, Unknown};
use crate::evidence::Item;
use crate::plan::{self, Drain, Plan};
use crate::report::plan::PlanReport;

pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<PlanReport, Failure> {
    let mode = session.mode(args.mode).await?;
    let goal = format!("bring this node to the desired state of mode {mode}");
    let mut items = diff::needs(mode);
    items.push(Item::Processes);
    let layers = match args.part.as_slice() {
        [] => &Layer::ALL[..],
        parts => parts,
    };
    let drain = if args.no_drain {
        Drain::No
    } else {
        Drain::First
    };
    let make = async || -> Result<Plan, Failure> {
        let evidence = session.gather(&items).await?;
        let node = session.node(&evidence);
        let found = diff::compare(&node, mode, session.families()).readable()?;
        if let Some(Unknown { what, gap, .. }) = found.unknown.first() {
            return Err(Failure::from(
                eyre!("{gap}").wrap_err(format!("cannot compare {what} with the desired state")),
            )
            .with_hint(
                "`kpx diff` prints the details; --family restricts the repair to the other family",
            ));
        }
        if !args.force {
            plan::refuse_other(&node).hint("pass --force to continue anyway")?;
        }
        let mut plan = plan::repair(&node, mode, session.families(), &found, layers, drain)?;
        plan.notes.push(plan::running(&node, mode));
        Ok(plan)
    };
    carry_out(session, io, &args.change, &goal, make).await
}
