//! `kpx preflight`

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use color_eyre::eyre::{WrapErr as _, eyre};

use super::change::{carry_out_on, open};
use super::doctor::{LONGER, taken};
use super::examine::{Case, Examined, examine};
use super::failure::{Failure, Hint as _};
use super::prove::prove;
use super::{Io, gather, mode};
use crate::action::Action;
use crate::apply::{self, StepError};
use crate::backend::Mode;
use crate::check::{self, Check, Facts, Severity};
use crate::cli::{Global, PreflightArgs};
use crate::evidence::{Gap, Item};
use crate::host::{Live, clock};
use crate::node::NodeSnapshot;
use crate::plan::{self, Plan, Undo};
use crate::report::doctor::{DoctorReport, HEAD, HEAD_WHOLE};
use crate::report::plan::PlanReport;
use crate::report::preflight::{PreflightReport, Proof};
use crate::requirements::{self, Area, NEEDS, Status};

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &PreflightArgs,
) -> Result<PreflightReport, Failure> {
    let to = mode(args.to);
    let checks = check::asked(Some(to));
    if !(args.load || args.persist) {
        return look(global, io, to, &checks).await;
    }
    if global.from.is_some() {
        let what =
            "--load and --persist change this node, and --from reads another: take one of them";
        return Err(Failure::usage(what));
    }
    let goal = match (args.load, args.persist) {
        (true, true) => format!("load what mode {to} needs, now and at every boot"),
        (true, false) => format!("load what mode {to} needs"),
        _ => format!("have what mode {to} needs loaded at every boot"),
    };
    let mut node = open(global)?;
    let before = loaded(global, io).await?;
    let make = async |io: &Io<'_>| -> Result<Plan, Failure> {
        let report = look(global, io, to, &[]).await?;
        plan_for(global, io, args, &report).await
    };
    let done = carry_out_on(&mut node, global, io, args.yes, &goal, make).await?;
    let (mut done, mut proofs) = (done, Vec::new());
    if args.load && done.stopped.is_none() {
        let needs = look(global, io, to, &[]).await?;
        proofs = prove(&node, global, to, &schedulers(&needs)).await;
        if let Some(failed) = proofs.iter().find(|proof| proof.error.is_some()) {
            done = take_back(&mut node, done, failed).await;
        }
    }
    let mut report = look(global, io, to, &checks).await?;
    if done.stopped.is_none() {
        let after = loaded(global, io).await?;
        let new = after
            .into_iter()
            .filter(|(name, _)| !before.contains_key(name));
        report.undo = undo(&done, &node, new.collect());
    }
    report.plan = Some(done);
    report.proofs = proofs;
    Ok(report)
}

/// Reads the node, and runs `checks` over it.
pub(super) async fn look(
    global: &Global,
    io: &Io<'_>,
    to: Mode,
    checks: &[&'static Check],
) -> Result<PreflightReport, Failure> {
    let mut items = check::needs(checks);
    items.extend(NEEDS);
    if !checks.is_empty() {
        items.extend(HEAD);
        items.extend(HEAD_WHOLE);
    }
    let items: Vec<_> = items.into_iter().collect();
    let evidence = gather(global, io, &items).await?;
    let named = global.node.as_deref();
    let named = named.or_else(|| evidence.manifest()?.node.as_deref());
    let now = match &global.from {
        Some(_) => taken(&evidence, &NodeSnapshot::new(&evidence)),
        None => Some(clock::now()),
    };
    let case = Arc::new(Case {
        name: named.map(str::to_owned),
        evidence,
        now,
        target: Some(to),
    });
    let Examined { outcomes, head } = examine(&case, checks, global.timeout * LONGER)
        .wrap_err("cannot start a thread for the checks")?;
    let assessment = DoctorReport::new(outcomes, head, now, None, Some(Severity::Error));
    let node = NodeSnapshot::new(&case.evidence).called(case.name.as_deref());
    let facts = Facts::new(&node, now).before(Some(to));
    let requirements = requirements::of(&facts, to);
    Ok(PreflightReport::new(
        requirements,
        assessment.before(Some(to)),
    ))
}

async fn plan_for(
    global: &Global,
    io: &Io<'_>,
    args: &PreflightArgs,
    report: &PreflightReport,
) -> Result<Plan, Failure> {
    let to = report.to;
    refuse_without(report)?;
    let evidence = gather(global, io, NEEDS).await?;
    let node = NodeSnapshot::new(&evidence);
    let mut plan = match (args.load, node.modules()) {
        (true, Ok(modules)) => plan::load_modules(modules, to, &report.modules(Status::Loadable)),
        // Where nothing says which modules there are, the proof says what works.
        (true, Err(_)) | (false, _) => Plan::default(),
    };
    if args.persist {
        let before = at_boot(global)?;
        let names = report.modules_at_boot();
        if names.is_empty() {
            let why =
                "no module is to be named: all that is needed is part of the kernel, or not known";
            plan.notes.push(why.to_owned());
        } else {
            plan::name_at_boot(&mut plan, to, &names, before.as_deref())
                .hint("move the file to another name, and run the same command again")?;
        }
    }
    Ok(plan)
}

/// Refuses a node that lacks a module and cannot load it.
pub(super) fn refuse_without(report: &PreflightReport) -> Result<(), Failure> {
    let to = report.to;
    let modules = report.needs.iter().filter(|need| need.area == Area::Module);
    let missing = modules.filter(|need| need.status == Status::Fails);
    let missing: Vec<_> = missing
        .map(|need| format!("{} is {} ({})", need.name, need.state, need.note))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let all = missing.join(", ");
    let hint = format!("`kpx preflight --to {to}` says more; nothing was changed");
    Err(Failure::from(eyre!("mode {to} cannot have what it needs: {all}")).with_hint(hint))
}

/// Returns what the file of `--persist` holds, if there is one.
fn at_boot(global: &Global) -> Result<Option<String>, Failure> {
    let root = global.root.as_deref().unwrap_or(Path::new("/"));
    let path = root.join(plan::AT_BOOT.trim_start_matches('/'));
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e)
            .wrap_err_with(|| format!("cannot read {}", path.display()))
            .map_err(Failure::from),
    }
}

/// Returns the schedulers that virtual servers are to have.
fn schedulers(report: &PreflightReport) -> Vec<String> {
    let modules = report.needs.iter().filter(|need| need.area == Area::Module);
    let names = modules.filter_map(|need| need.name.strip_prefix("ip_vs_"));
    names.map(str::to_owned).collect()
}

/// Takes back what was done for something that does not work.
async fn take_back(node: &mut Live, done: PlanReport, failed: &Proof) -> PlanReport {
    if done.steps.is_empty() {
        return done;
    }
    let plan = Plan {
        steps: done.steps.clone(),
        notes: Vec::new(),
    };
    let left = apply::undo(&plan, plan.steps.len(), node, |_| {}).await;
    let error = StepError::Refused(format!("the kernel still refuses {}", failed.what));
    done.carried_out(Err(apply::Stopped {
        step: plan.steps.len() - 1,
        error,
        left,
    }))
}

/// Returns the modules that are loaded, each with its place in the list of the kernel, where the newest are first.
async fn loaded(global: &Global, io: &Io<'_>) -> Result<BTreeMap<String, usize>, Failure> {
    let evidence = gather(global, io, &[Item::Modules]).await?;
    let text = match evidence.text(Item::Modules) {
        Ok(text) => text,
        // A kernel without modules has loaded none.
        Err(Gap::NotApplicable(_)) => "",
        // Taken for none, what was loaded before would be unloaded with what is loaded now.
        Err(gap) => return Err(gap.into()),
    };
    let names = text.lines().filter_map(|line| line.split(' ').next());
    Ok((0..)
        .zip(names)
        .map(|(at, name)| (name.to_owned(), at))
        .collect())
}

/// Returns the commands that take back what was done, the newest change first; `new` is what is loaded since.
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
