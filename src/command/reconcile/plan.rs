//! The plan of a repair.

use color_eyre::eyre::eyre;

use super::args::ReconcileArgs;
use crate::cli::change::Part;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity;
use crate::command::shared::session::{Readable as _, Session};
use crate::report::plan::PlanReport;
use kpx_judge::diff::{self, Layer, Unknown};
use kpx_judge::plan::{self, Drain, FORGET_NEEDS, Plan};
use kpx_node::backend::Mode;
use kpx_node::evidence::Item;
use kpx_node::node::NodeSnapshot;

/// Returns what the plan is for.
pub(super) fn goal(mode: Mode) -> String {
    format!("bring this node to the desired state of mode {mode}")
}

/// Items that a plan reads, in addition to those of a difference of rules.
pub(in crate::command) const NEEDS: [Item; 2] = [Item::Processes, Item::ProxyMode];

/// Plans what `kpx reconcile` without options plans.
pub(in crate::command) async fn proposed(session: &Session) -> Result<PlanReport, Failure> {
    let mode = session.mode(None).await?;
    let whole = Scope {
        layers: Layer::ALL.to_vec(),
        forgets: false,
        drain: Drain::First,
        force: false,
    };
    Ok(PlanReport::new(
        goal(mode),
        plan(session, &whole, mode).await?,
    ))
}

/// The scope of a plan.
pub(super) struct Scope {
    /// The parts of the kernel's state.
    layers: Vec<Layer>,
    /// Whether stale connections are deleted.
    forgets: bool,
    drain: Drain,
    /// Whether another service proxy may own the node.
    force: bool,
}

impl Scope {
    /// Returns the scope that `args` select.
    pub(super) fn of(args: &ReconcileArgs) -> Self {
        Self {
            layers: match args.part.as_slice() {
                [] => Layer::ALL.to_vec(),
                parts => parts.iter().filter_map(|part| part.layer()).collect(),
            },
            forgets: args.part.contains(&Part::Conntrack),
            drain: if args.no_drain {
                Drain::No
            } else {
                Drain::First
            },
            force: args.force,
        }
    }
}

/// Plans the repair of the node of `session`.
pub(super) async fn plan(session: &Session, scope: &Scope, mode: Mode) -> Result<Plan, Failure> {
    let layers = scope.layers.as_slice();
    let mut items = NEEDS.to_vec();
    if !layers.is_empty() {
        items.extend(diff::needs(mode));
    }
    if scope.forgets {
        items.extend(FORGET_NEEDS);
    }
    items.sort();
    items.dedup();
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    if !scope.force {
        plan::refuse_other(&node).hint("pass --force to continue anyway")?;
    }
    let mut plan = if layers.is_empty() {
        Plan::default()
    } else {
        repair(session, &node, mode, layers, scope.drain)?
    };
    if scope.forgets {
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

/// Returns the command that applies the plan.
pub(super) fn applying(session: &Session, args: &ReconcileArgs) -> String {
    identity::next_command(session, args.applying())
}
