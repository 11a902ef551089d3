//! From a plan to a changed node: show it, ask, look again, carry it out.

use std::time::Duration;

use super::failure::{Failure, Hint as _};
use super::{Io, options, output};
use crate::apply::{self, Event};
use crate::cli::{ApplyArgs, Global};
use crate::host::{Live, Locked, clock, is_guarded};
use crate::plan::Plan;
use crate::render::{self, Format};
use crate::report::plan::PlanReport;

/// Returns the report on the plan that `make` makes; with `--apply`, after it was carried out.
///
/// `make` is called again once the plan was agreed to: what it finds and wants must be the same then.
pub(super) async fn carry_out(
    global: &Global,
    io: &mut Io<'_>,
    args: &ApplyArgs,
    goal: &str,
    make: impl AsyncFn(&Io<'_>) -> Result<Plan, Failure>,
) -> Result<PlanReport, Failure> {
    if args.apply && global.from.is_some() {
        return Err(Failure::usage(
            "--apply changes this node, and --from reads another: take one of them",
        ));
    }
    if !args.apply {
        return Ok(PlanReport::new(goal, make(io).await?));
    }
    let mut node = open_after_guard(global).await?;
    carry_out_on(&mut node, global, io, args.yes, goal, make).await
}

/// Returns this node, for this process alone.
pub(super) fn open(global: &Global) -> Result<Live, Failure> {
    // What has begun is ended, though nobody sees it any more.
    clock::outlive_terminal();
    Live::new(&options(global))
        .hint("only one kpx changes a node at a time, as root; `ps -C kpx` shows it")
}

/// How long a guard of the bridge may be at work on the node: it looks at all of it.
const GUARD: Duration = Duration::from_secs(30);

/// Returns this node like [`open`]; a guard of the bridge that is at work on it is waited for.
pub(super) async fn open_after_guard(global: &Global) -> Result<Live, Failure> {
    const PAUSE: Duration = Duration::from_millis(200);
    let mut waited = Duration::ZERO;
    let options = options(global);
    let is_guarded = || is_guarded(&options).unwrap_or(true);
    while waited < GUARD && matches!(Live::new(&options), Err(Locked::Held(_))) && is_guarded() {
        clock::pause(PAUSE).await;
        waited += PAUSE;
    }
    open(global)
}

/// Carries out on `node` the plan that `make` makes, and returns the report on it; `yes` agrees to it beforehand.
pub(super) async fn carry_out_on(
    node: &mut Live,
    global: &Global,
    io: &mut Io<'_>,
    yes: bool,
    goal: &str,
    make: impl AsyncFn(&Io<'_>) -> Result<Plan, Failure>,
) -> Result<PlanReport, Failure> {
    let plan = make(io).await?;
    let report = PlanReport::new(goal, plan.clone());
    if plan.steps.is_empty() {
        return Ok(report.carried_out(Ok(())));
    }
    if !global.quiet || !yes {
        render::write(&report, Format::Human, output::style(global, io), io.err)?;
        writeln!(io.err)?;
    }
    if !yes {
        let count = plan.steps.len();
        let s = if count == 1 { "" } else { "s" };
        confirm(io, &format!("{count} step{s}"))?;
    }
    let again = make(io).await?;
    if again.fingerprint() != plan.fingerprint() {
        return Err(Failure::from(color_eyre::eyre::eyre!(
            "the node or its cluster changed since the plan was made, so it was not carried out"
        ))
        .with_hint("run the same command again: it makes a new plan"));
    }
    let quiet = global.quiet;
    let outcome = apply::run(&plan, node, |event| {
        let text = match event {
            Event::Begins(number, title) => format!("step {}: {title}", number + 1),
            Event::Undoes(number, title) => format!("taking back step {}: {title}", number + 1),
        };
        if !quiet {
            // Nobody may be reading any more; the change goes on.
            writeln!(io.err, "kpx: {text}").ok();
        }
    });
    let outcome = outcome.await;
    Ok(report.carried_out(outcome))
}

/// Asks on the terminal whether `what` is to be carried out.
pub(super) fn confirm(io: &mut Io<'_>, what: &str) -> Result<(), Failure> {
    ask(io, what)?;
    answer(io)
}

/// Asks on the terminal whether `what` is to be carried out; [`answer`] reads the answer.
pub(super) fn ask(io: &mut Io<'_>, what: &str) -> Result<(), Failure> {
    if !io.interactive {
        return Err(Failure::from(color_eyre::eyre::eyre!(
            "nobody is there to agree to the plan: standard input is no terminal"
        ))
        .with_hint("--yes agrees beforehand"));
    }
    write!(io.err, "Carry out {what}? [y/N] ")?;
    io.err.flush()?;
    Ok(())
}

/// Reads the answer to [`ask`].
pub(super) fn answer(io: &mut Io<'_>) -> Result<(), Failure> {
    let mut answer = String::new();
    io.input.read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::from(color_eyre::eyre::eyre!(
            "the plan was not agreed to, and nothing was changed"
        ))),
    }
}
