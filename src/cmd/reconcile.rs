//! `kpx reconcile`

use color_eyre::eyre::eyre;

use super::Io;
use super::shared::change::carry_out;
use super::shared::changes::{self, Planned};
use super::shared::failure::{Failure, Hint as _};
use super::shared::session::{Readable as _, Session};
use crate::backend::Mode;
use crate::cli::{Part, ReconcileArgs};
use crate::diff::{self, Layer, Unknown};
use crate::evidence::Item;
use crate::node::NodeSnapshot;
use crate::plan::{self, Drain, FORGET_NEEDS, Plan};
use crate::report::plan::CONNECTIONS;

pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<u8, Failure> {
    if args.nodes.are_several() {
        let all = args.clone();
        let make = async move |session: &Session| -> Result<Planned, Failure> {
            let mode = session.mode(all.mode).await?;
            Ok((goal(mode), plan(session, &all, mode).await?))
        };
        return changes::carry_out(session, io, &args.nodes, args.change, make).await;
    }
    let mode = session.mode(args.mode).await?;
    let make = async || plan(session, args, mode).await;
    let mut report = carry_out(session, io, &args.change, &goal(mode), make).await?;
    if report.done > 0 && report.stopped.is_none() && !args.part.contains(&Part::Conntrack) {
        report.notes.push(CONNECTIONS.to_owned());
    }
    session.finish(io, &report)
}

fn goal(mode: Mode) -> String {
    format!("bring this node to the desired state of mode {mode}")
}

/// Plans the repair of the node of `session`.
async fn plan(session: &Session, args: &ReconcileArgs, mode: Mode) -> Result<Plan, Failure> {
    let layers: Vec<Layer> = match args.part.as_slice() {
        [] => Layer::ALL.to_vec(),
        parts => parts.iter().filter_map(|part| part.layer()).collect(),
    };
    let mut items = vec![Item::Processes, Item::ProxyMode];
    if !layers.is_empty() {
        items.extend(diff::needs(mode));
    }
    let forgets = args.part.contains(&Part::Conntrack);
    if forgets {
        items.extend(FORGET_NEEDS);
    }
    items.sort();
    items.dedup();
    let drain = if args.no_drain {
        Drain::No
    } else {
        Drain::First
    };
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    if !args.force {
        plan::refuse_other(&node).hint("pass --force to continue anyway")?;
    }
    let mut plan = if layers.is_empty() {
        Plan::default()
    } else {
        repair(session, &node, mode, &layers, drain)?
    };
    if forgets {
        let Plan { steps, notes } = plan::forget(&node, mode).readable()?;
        plan.steps.extend(steps);
        plan.notes.extend(notes);
    }
    plan.notes.push(plan::running(&node, mode));
    Ok(plan)
}

/// Plans the repair of what kube-proxy programs.
fn repair(
    session: &Session,
    node: &NodeSnapshot<'_>,
    mode: Mode,
    layers: &[Layer],
    drain: Drain,
) -> Result<Plan, Failure> {
    let found = diff::compare(node, mode, session.families()).readable()?;
    if let Some(Unknown { what, gap, .. }) = found.unknown.first() {
        return Err(Failure::from(
            eyre!("{gap}").wrap_err(format!("cannot compare {what} with the desired state")),
        )
        .with_hint(
            "`kpx diff` prints the details; --family restricts the repair to the other family",
        ));
    }
    Ok(plan::repair(
        node,
        mode,
        session.families(),
        &found,
        layers,
        drain,
    )?)
}
