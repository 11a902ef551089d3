//! Changes of several nodes: print all plans, ask once, and apply them one node after the other.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use color_eyre::eyre::eyre;

use super::change::{apply_there, confirm, verified};
use super::failure::Failure;
use super::nodes;
use super::session::Session;
use crate::cli::change::ApplyArgs;
use crate::cli::nodes::NodesArgs;
use crate::command::shared::io::Io;
use crate::report::nodes::plan::PlanOfNodes;
use crate::report::plan::PlanReport;
use kpx_judge::plan::{Fingerprint, Plan};
use kpx_node::words::number_of;

/// The plan of a node, and its goal as the end of "to …".
pub(in crate::command) type Planned = (String, Plan);

/// Prints the plans that `make` makes for the nodes that `nodes` selects, with the command `next` that applies them. With `--apply`,
/// applies them after one confirmation.
///
/// A node whose plan changed after the confirmation is not changed, nor is any node after one on which a plan stopped.
pub(in crate::command) async fn carry_out(
    session: &Session,
    io: &mut Io<'_>,
    nodes: &NodesArgs,
    args: ApplyArgs,
    next: String,
    make: impl AsyncFn(&Session) -> Result<Planned, Failure> + Clone + Send + Sync + 'static,
) -> Result<u8, Failure> {
    let plan = make.clone();
    let plan = async move |session: Session| -> Result<_, Failure> {
        let (goal, plan) = plan(&session).await?;
        let fingerprint = plan.fingerprint();
        Ok((PlanReport::new(goal, plan), fingerprint))
    };
    if !args.apply {
        let work = async move |session: Session| {
            let mut report = plan(session).await?.0;
            report.next = Some(next.clone());
            Ok(report)
        };
        return nodes::report::<PlanOfNodes>(session, io, nodes, &[], work).await;
    }
    session.refuse_bundle("--apply changes")?;
    let mut confirmed = BTreeMap::new();
    let steps = {
        let mut human = session.clone();
        human.output = None;
        let mut shown = Io {
            out: &mut *io.err,
            err: &mut io::sink(),
            input: &mut *io.input,
            ..*io
        };
        let keep = |node: &str, plan: Result<Fingerprint, &str>| {
            if let Ok(fingerprint) = plan {
                confirmed.insert(node.to_owned(), fingerprint);
            }
            Ok(())
        };
        let together = PlanOfNodes::default();
        let collected = nodes::collect(&human, &mut shown, nodes, together, &[], plan, keep);
        let collected = Box::pin(collected).await?;
        let steps = collected.together().planned_steps();
        if !session.quiet || !args.yes {
            collected.print(&human, &mut shown)?;
            writeln!(shown.out)?;
        }
        steps
    };
    if steps > 0 && !args.yes {
        let plans = number_of(steps, "step");
        confirm(io, &format!("{plans} on these nodes"))?;
    }
    let stopped: Arc<Mutex<Option<String>>> = Arc::default();
    let work = async move |session: Session| -> Result<PlanReport, Failure> {
        let name = session.name().unwrap_or_default().to_owned();
        let lock = || stopped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = lock().as_ref() {
            return Err(eyre!("not changed, because the plan of node {node} stopped").into());
        }
        let (goal, plan) = make(&session).await?;
        if confirmed.get(&name) != Some(&plan.fingerprint()) {
            return Err(
                eyre!("its plan is not the one that was printed; nothing was changed").into(),
            );
        }
        let report = PlanReport::new(goal, plan.clone());
        if plan.steps.is_empty() {
            return Ok(report.carried_out(Ok(())));
        }
        let again = async || Ok(make(&session).await?.1);
        // Events of one node would mix with those of others.
        let outcome = apply_there(&session, &plan, &again, |_| {}).await;
        if !matches!(outcome, Ok(Ok(()))) {
            lock().get_or_insert(name);
        }
        Ok(verified(report.carried_out(outcome?), again).await)
    };
    let nodes = NodesArgs {
        parallel: 1,
        ..nodes.clone()
    };
    nodes::report::<PlanOfNodes>(session, io, &nodes, &[], work).await
}
