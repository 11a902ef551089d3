//! From a plan to a changed node: print the plan, ask, read the node again, apply.

use std::time::Duration;

use super::failure::{Failure, Hint as _};
use super::session::{Session, unreached};
use crate::cli::change::ApplyArgs;
use crate::command::shared::io::Io;
use crate::render::Format;
use crate::report::plan::PlanReport;
use kpx_host::{Live, Locked, clock, is_guarded};
use kpx_judge::plan::Plan;
use kpx_node::apply::{self, Event, Line, SentPlan, Stopped};
use kpx_node::words::number_of;

/// Returns the report of the plan that `make` makes. With `--apply`, it is applied first.
///
/// `make` is called again after the confirmation, and must return the same plan.
pub(in crate::command) async fn carry_out(
    session: &Session,
    io: &mut Io<'_>,
    args: &ApplyArgs,
    goal: &str,
    make: impl AsyncFn() -> Result<Plan, Failure>,
) -> Result<PlanReport, Failure> {
    if args.apply {
        session.refuse_bundle("--apply changes")?;
    }
    if !args.apply {
        return Ok(PlanReport::new(goal, make().await?));
    }
    if session.source.is_pod() {
        return carry_out_there(session, io, args.yes, goal, make).await;
    }
    let mut node = open_after_guard(session).await?;
    carry_out_on(&mut node, session, io, args.yes, goal, make).await
}

/// Returns this node, locked for this process.
pub(in crate::command) fn open(session: &Session) -> Result<Live, Failure> {
    // A change in progress is finished even if the terminal goes away.
    clock::outlive_terminal();
    Live::new(&session.host)
        .hint("run kpx as root, one at a time on a node: `ps -C kpx` lists the others")
}

/// The longest time to wait for a guard of the bridge, which may be reading the whole node.
const GUARD: Duration = Duration::from_secs(30);

/// Returns this node like [`open`], after a guard of the bridge has released it.
pub(in crate::command) async fn open_after_guard(session: &Session) -> Result<Live, Failure> {
    const PAUSE: Duration = Duration::from_millis(200);
    let mut waited = Duration::ZERO;
    let options = &session.host;
    let is_guarded = || is_guarded(options).unwrap_or(true);
    while waited < GUARD && matches!(Live::new(options), Err(Locked::Held(_))) && is_guarded() {
        clock::pause(PAUSE).await;
        waited += PAUSE;
    }
    open(session)
}

/// Applies the plan that `make` makes to `node`, and returns the report; `yes` skips the confirmation.
pub(in crate::command) async fn carry_out_on(
    node: &mut Live,
    session: &Session,
    io: &mut Io<'_>,
    yes: bool,
    goal: &str,
    make: impl AsyncFn() -> Result<Plan, Failure>,
) -> Result<PlanReport, Failure> {
    let (plan, report) = consented(session, io, yes, goal, &make).await?;
    if plan.steps.is_empty() {
        return Ok(report.carried_out(Ok(())));
    }
    unchanged(&plan, &make).await?;
    let outcome = apply::run(&plan, node, |event| tell(session, io, &event)).await;
    Ok(report.carried_out(outcome))
}

/// Applies the plan that `make` makes to the other machine of `session`, in a pod on it.
async fn carry_out_there(
    session: &Session,
    io: &mut Io<'_>,
    yes: bool,
    goal: &str,
    make: impl AsyncFn() -> Result<Plan, Failure>,
) -> Result<PlanReport, Failure> {
    let (plan, report) = consented(session, io, yes, goal, &make).await?;
    if plan.steps.is_empty() {
        return Ok(report.carried_out(Ok(())));
    }
    let outcome = apply_there(session, &plan, make, |event| tell(session, io, event)).await?;
    Ok(report.carried_out(outcome))
}

/// Applies `plan`, if `make` still makes it, to the other machine of `session`, in a pod on it. Returns why the plan stopped,
/// if it did.
pub(in crate::command) async fn apply_there(
    session: &Session,
    plan: &Plan,
    make: impl AsyncFn() -> Result<Plan, Failure>,
    mut on_event: impl FnMut(&Event<'_>),
) -> Result<Result<(), Stopped>, Failure> {
    let pod = session.changer().await?;
    if let Err(failure) = unchanged(plan, &make).await {
        // The first error matters; the pod ends with kpx.
        pod.close().await.ok();
        return Err(failure);
    }
    let title = |number: usize| plan.steps.get(number).map_or("", |step| &step.title);
    let sent = SentPlan::from(plan);
    let outcome = pod.carry_out(&sent, |line| match *line {
        Line::Begins(number) => on_event(&Event::Begins(number, title(number))),
        Line::Undoes(number) => on_event(&Event::Undoes(number, title(number))),
        Line::Ended(_) => {}
    });
    outcome.await.map_err(unreached)
}

/// Reads the node again after a change: the steps that `make` plans now are still needed.
pub(in crate::command) async fn verified(
    mut report: PlanReport,
    make: impl AsyncFn() -> Result<Plan, Failure>,
) -> PlanReport {
    if report.is_done() {
        match make().await {
            Ok(plan) => report.needed = plan.steps.into_iter().map(|step| step.title).collect(),
            Err(why) => {
                let note = format!("the node could not be read again after the change: {why}");
                report.notes.push(note);
            }
        }
    }
    report
}

/// Prints the plan that `make` makes, and asks for consent unless `yes` or the plan has no steps.
pub(in crate::command) async fn consented(
    session: &Session,
    io: &mut Io<'_>,
    yes: bool,
    goal: &str,
    make: &impl AsyncFn() -> Result<Plan, Failure>,
) -> Result<(Plan, PlanReport), Failure> {
    let plan = make().await?;
    let report = PlanReport::new(goal, plan.clone());
    if plan.steps.is_empty() {
        return Ok((plan, report));
    }
    if !session.quiet || !yes {
        session.write(&report, Format::Human, io.err)?;
        writeln!(io.err)?;
    }
    if !yes {
        confirm(io, &number_of(plan.steps.len(), "step"))?;
    }
    Ok((plan, report))
}

/// Fails if `make` does not make `plan` again.
async fn unchanged(
    plan: &Plan,
    make: &impl AsyncFn() -> Result<Plan, Failure>,
) -> Result<(), Failure> {
    let again = make().await?;
    if again.fingerprint() != plan.fingerprint() {
        return Err(Failure::from(color_eyre::eyre::eyre!(
            "the node or its cluster changed after the plan was made; nothing was changed"
        ))
        .with_hint("run the command again to make a new plan"));
    }
    Ok(())
}

/// Prints an event of a change.
fn tell(session: &Session, io: &mut Io<'_>, event: &Event<'_>) {
    let text = match event {
        Event::Begins(number, title) => format!("step {}: {title}", number + 1),
        Event::Undoes(number, title) => format!("undoing step {}: {title}", number + 1),
    };
    if !session.quiet {
        // The change continues even if stderr is closed.
        writeln!(io.err, "kpx: {text}").ok();
    }
}

/// Asks for confirmation of `what` on the terminal.
pub(in crate::command) fn confirm(io: &mut Io<'_>, what: &str) -> Result<(), Failure> {
    ask(io, what)?;
    answer(io)
}

/// Asks for confirmation of `what` on the terminal; [`answer`] reads the reply.
pub(in crate::command) fn ask(io: &mut Io<'_>, what: &str) -> Result<(), Failure> {
    if !io.interactive {
        return Err(Failure::from(color_eyre::eyre::eyre!(
            "cannot ask for confirmation: standard input is not a terminal"
        ))
        .with_hint("pass --yes to skip the confirmation"));
    }
    write!(io.err, "Apply {what}? [y/N] ")?;
    io.err.flush()?;
    Ok(())
}

/// Reads the answer to [`ask`].
pub(in crate::command) fn answer(io: &mut Io<'_>) -> Result<(), Failure> {
    let mut answer = String::new();
    io.input.read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::from(color_eyre::eyre::eyre!(
            "not confirmed; nothing was changed"
        ))),
    }
}
