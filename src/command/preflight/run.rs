//! `kpx preflight`

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use color_eyre::eyre::{WrapErr as _, eyre};

use super::args::PreflightArgs;
use super::prove::prove;
use super::report::nodes::PreflightOfNodes;
use super::report::{PreflightReport, Proof};
use crate::command::doctor::report::{DoctorReport, Frame, HEAD, HEAD_WHOLE};
use crate::command::shared::change::{carry_out_on, open};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity::{next_line, reach};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::run_checks::{Examined, examine};
use crate::command::shared::session::Session;
use crate::report::plan::PlanReport;
use crate::view::head;
use kpx_host::Live;
use kpx_judge::check::{self, Check, Facts, Question, Severity};
use kpx_judge::diff;
use kpx_judge::plan::{self, Plan, Undo};
use kpx_judge::requirements::{self, Area, NEEDS, Status};
use kpx_judge::verdict::LossClass;
use kpx_migrate::accept;
use kpx_node::action::Action;
use kpx_node::apply::{self, StepError};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &PreflightArgs,
) -> Result<u8, Failure> {
    let to = args.to;
    if args.nodes.are_several() {
        let checks = check::asked(Some(to));
        let work = async move |session: Session| look(&session, to, &checks, &[]).await;
        return nodes::report::<PreflightOfNodes>(session, io, &args.nodes, &[], work).await;
    }
    let mut report = prepare(session, io, args).await?;
    let next = report.following();
    report.next = next.map(|next| next_line(session, &next));
    session.finish(io, &report)
}

async fn prepare(
    session: &Session,
    io: &mut Io<'_>,
    args: &PreflightArgs,
) -> Result<PreflightReport, Failure> {
    let to = args.to;
    let checks = check::asked(Some(to));
    if !(args.load || args.persist) {
        return look(session, to, &checks, &[]).await;
    }
    session.refuse_bundle("--load and --persist change")?;
    let goal = match (args.load, args.persist) {
        (true, true) => format!("load the modules of mode {to}, now and at every boot"),
        (true, false) => format!("load the modules of mode {to}"),
        _ => format!("load the modules of mode {to} at every boot"),
    };
    let mut node = open(session)?;
    let before = loaded(session).await?;
    let make = async || -> Result<Plan, Failure> {
        let report = look(session, to, &[], &[]).await?;
        plan_for(session, args, &report).await
    };
    let done = carry_out_on(&mut node, session, io, args.yes, &goal, make).await?;
    let (mut done, mut proofs) = (done, Vec::new());
    if args.load && done.stopped.is_none() {
        let needs = look(session, to, &[], &[]).await?;
        proofs = prove(&node, session, to, &schedulers(&needs)).await;
        if let Some(failed) = proofs.iter().find(|proof| proof.error.is_some()) {
            done = roll_back(&mut node, done, failed).await;
        }
    }
    let mut report = look(session, to, &checks, &[]).await?;
    if done.stopped.is_none() {
        let after = loaded(session).await?;
        let new = after
            .into_iter()
            .filter(|(name, _)| !before.contains_key(name));
        report.undo = undo(&done, &node, new.collect());
    }
    report.plan = Some(done);
    report.proofs = proofs;
    Ok(report)
}

/// Reads the node, and runs `checks` over it; lost packets of the `accepted` classes do not block the switch.
pub(in crate::command) async fn look(
    session: &Session,
    to: Mode,
    checks: &[&'static Check],
    accepted: &[LossClass],
) -> Result<PreflightReport, Failure> {
    let mut items = check::needs(checks);
    items.extend(NEEDS);
    if !checks.is_empty() {
        items.extend(HEAD);
        items.extend(HEAD_WHOLE);
        items.extend(head::judged());
        items.extend(diff::needs(to));
    }
    let (case, Examined { mut outcomes, head }) =
        examine(session, items, checks, Some(to), !checks.is_empty()).await?;
    accept::accept(outcomes.iter_mut().map(|(_, outcome)| outcome), accepted);
    let now = case.now;
    let question = Question::Switch(to);
    let frame = Frame {
        head,
        taken: now,
        question,
        fail_on: Some(Severity::Error),
        ..Frame::default()
    };
    let diagnosis = check::diagnose(outcomes, None, question, None, &[]);
    let assessment = DoctorReport::new(diagnosis, &reach(session), frame);
    let node = NodeSnapshot::new(&case.evidence).called(case.name.as_deref());
    let facts = Facts::new(&node, now).before(Some(to));
    let requirements = requirements::of(&facts, to);
    Ok(PreflightReport::new(requirements, assessment))
}

async fn plan_for(
    session: &Session,
    args: &PreflightArgs,
    report: &PreflightReport,
) -> Result<Plan, Failure> {
    let to = report.to;
    refuse_without(report)?;
    let evidence = session.gather(NEEDS).await?;
    let node = NodeSnapshot::new(&evidence);
    let mut plan = match (args.load, node.modules()) {
        (true, Ok(modules)) => plan::load_modules(modules, to, &report.modules(Status::Loadable)),
        // If the list of modules is unknown, the tests of the kernel decide.
        (true, Err(_)) | (false, _) => Plan::default(),
    };
    if args.persist {
        let before = at_boot(session)?;
        let names = report.modules_at_boot();
        if names.is_empty() {
            let why = "no module is added to the file: all are built into the kernel, or unknown";
            plan.notes.push(why.to_owned());
        } else {
            plan::name_at_boot(&mut plan, to, &names, before.as_deref())
                .hint("rename the file, and run the command again")?;
        }
    }
    Ok(plan)
}

/// Refuses a node that lacks a module and cannot load it.
pub(in crate::command) fn refuse_without(report: &PreflightReport) -> Result<(), Failure> {
    let to = report.to;
    let modules = report.needs.iter().filter(|need| need.area == Area::Module);
    let missing = modules.filter(|need| need.status == Status::Fails);
    let missing: Vec<_> = missing
        .map(|need| lack(&need.name, &need.state, &need.note))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let all = missing.join(", ");
    let hint = format!("`kpx preflight --to {to}` prints the details; nothing was changed");
    Err(Failure::from(eyre!("mode {to} cannot run on this node: {all}")).with_hint(hint))
}

/// Returns the problem of a module, with the note if there is one.
fn lack(name: &str, state: &str, note: &str) -> String {
    match note {
        "" => format!("{name} is {state}"),
        note => format!("{name} is {state} ({note})"),
    }
}

/// Returns the contents of the file of `--persist`, if it exists.
fn at_boot(session: &Session) -> Result<Option<String>, Failure> {
    let path = session.root().join(plan::AT_BOOT.trim_start_matches('/'));
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e)
            .wrap_err_with(|| format!("cannot read {}", path.display()))
            .map_err(Failure::from),
    }
}

/// Returns the schedulers that virtual servers need.
fn schedulers(report: &PreflightReport) -> Vec<String> {
    let modules = report.needs.iter().filter(|need| need.area == Area::Module);
    let names = modules.filter_map(|need| need.name.strip_prefix("ip_vs_"));
    names.map(str::to_owned).collect()
}

/// Rolls back the plan after a failed test.
async fn roll_back(node: &mut Live, done: PlanReport, failed: &Proof) -> PlanReport {
    if done.steps.is_empty() {
        return done;
    }
    let plan = Plan {
        steps: done.steps.clone(),
        notes: Vec::new(),
    };
    let left = apply::undo(&plan, plan.steps.len(), node, |_| {}).await;
    let error = StepError::Refused(format!("the kernel refuses {}", failed.what));
    done.carried_out(Err(apply::Stopped {
        step: plan.steps.len() - 1,
        error,
        left,
    }))
}

/// Returns the loaded modules, each with its position in the kernel's list, newest first.
async fn loaded(session: &Session) -> Result<BTreeMap<String, usize>, Failure> {
    let evidence = session.gather(&[Item::Modules]).await?;
    let text = match evidence.text(Item::Modules) {
        Ok(text) => text,
        // A kernel without module support has loaded none.
        Err(Gap::NotApplicable(_)) => "",
        // With an empty list, the undo would unload modules that were loaded before.
        Err(gap) => return Err(gap.into()),
    };
    let names = text.lines().filter_map(|line| line.split(' ').next());
    Ok((0..)
        .zip(names)
        .map(|(at, name)| (name.to_owned(), at))
        .collect())
}

/// Returns the commands that undo the plan, newest change first; `new` are the modules loaded since.
fn undo(done: &PlanReport, node: &Live, new: BTreeMap<String, usize>) -> Vec<String> {
    let mut commands = Vec::new();
    let ours = node.loaded();
    let mut names: Vec<_> = new
        .into_iter()
        .filter(|(name, _)| ours.contains(&name.as_str()) && !plan::stays(name))
        .collect();
    names.sort_by_key(|(_, at)| *at);
    let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
    for step in done.steps.iter().rev() {
        match (&step.action, &step.undo) {
            (Action::LoadModules { .. }, Undo::Do(_)) if !names.is_empty() => {
                let names = names.clone();
                commands.push(Action::UnloadModules { names }.to_string());
            }
            (Action::LoadModules { .. }, _) | (_, Undo::Never(_)) => {}
            (_, undo @ Undo::Do(_)) => commands.push(undo.to_string()),
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::lack;

    #[test]
    fn a_module_without_a_note_has_no_parentheses() {
        assert_eq!(lack("nft_ct", "missing", ""), "nft_ct is missing");
        assert_eq!(
            lack("ip_vs", "blocked", "by a.conf"),
            "ip_vs is blocked (by a.conf)"
        );
    }
}
