//! The beginning of a migration: plan, show, ask, run.

use color_eyre::eyre::{WrapErr as _, eyre};

use super::args::{ContinueArgs, JourneyArgs};
use super::draft::{self, Draft};
use super::local_node::LocalNode;
use super::lock;
use super::report::{LOST, MigrateReport, Summary};
use super::run::{Continue, go_on, limits, run_engine};
use crate::command::shared::change::{confirm, open_after_guard};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::journals;
use crate::command::shared::session::Session;
use crate::render::{Format, Report as _};
use crate::report::{FOUND, UNKNOWN};
use kpx_host::Journals;
use kpx_judge::check::{Advice, Next, on};
use kpx_migrate::engine::MigrationNode as _;
use kpx_migrate::journal::{Entry, MigrationState};
use kpx_migrate::loss::Established;
use kpx_migrate::migration::{Leg, Migration};
use kpx_migrate::wire::Outcome;
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &JourneyArgs,
    external: bool,
) -> Result<MigrateReport, Failure> {
    let to = draft::to(args)?;
    if external && args.go_on.again && !args.dry_run && is_begun(&journals::of(session), to)? {
        return go_on(session, io, &args.go_on, Continue::Resume).await;
    }
    // The steps before and after an external change are also those that a coordinator runs on its nodes.
    let asks = !external && !args.dry_run && !session.source.is_bundle();
    let unasked = if asks {
        lock::refuse_beside_another(session).await?
    } else {
        None
    };
    // The name is determined once: every stage and every later command uses it.
    let named = identity::named(session).await?;
    let given = session;
    let session = &named.session;
    let name = named.name.as_str();
    let present = match draft::present(session).await {
        Err(failure) => Err(draft::silent(session, args, failure).await),
        present => present,
    };
    let present = draft::explained(session, name, present).await?;
    let from = match args.old_mode {
        Some(left) if present == to => left,
        _ => present,
    };
    if from == to {
        let mut report = MigrateReport::already(to);
        report.result.node = Some(name.to_owned());
        return Ok(report);
    }
    if args.dry_run {
        if !session.source.is_bundle() {
            refuse_unfinished(given, &args.go_on, &journals::of(session))?;
        }
        let draft = draft::plan(session, &named, args, from, external).await;
        let draft = draft::explained(session, name, draft).await?;
        let mut report = planned(draft).0;
        if args.brief {
            report.shorten();
        } else {
            report.result.next = Some(after_plan(given, args, &report, external));
        }
        return Ok(report);
    }
    session.refuse_bundle("`migrate` changes")?;
    // The lock is held from here on: no other kpx changes the node after it was read.
    let live = open_after_guard(session).await?;
    let journals = journals::of(session);
    refuse_unfinished(given, &args.go_on, &journals)?;
    let draft = draft::plan(session, &named, args, from, external).await;
    let mut draft = draft::explained(session, name, draft).await?;
    draft.notes.extend(unasked);
    if present == to {
        draft.notes.push(format!(
            "kube-proxy ran in mode {to} before kpx came to this node: what that change lost was not watched"
        ));
    }
    let (report, migration) = planned(draft);
    let quiet = session.quiet && args.go_on.yes;
    if !quiet {
        if args.go_on.yes && report.is_free() {
            session.write(&Summary(&report), Format::Human, io.err)?;
        } else {
            session.write(&report, Format::Human, io.err)?;
        }
        writeln!(io.err)?;
    }
    refuse_blocked(&report, args)?;
    if !args.go_on.yes {
        confirm(io, &format!("the migration to mode {to}"))?;
    }
    let folder = journals.folder(&migration.id);
    let journal = journals.create(&migration.id);
    let journal = journal.wrap_err_with(|| format!("cannot create {}", folder.display()))?;
    let mut node = LocalNode::new(
        session,
        live,
        journal,
        folder,
        migration.clone(),
        args.go_on.lease(),
    );
    let began = Entry::Began {
        kpx: env!("CARGO_PKG_VERSION").to_owned(),
        migration: Box::new(migration.clone()),
    };
    let recorded = node.record(&began).await;
    recorded.map_err(|why| eyre!(why).wrap_err("cannot write the journal"))?;
    let mut state = MigrationState::new(migration);
    let limits = limits(&args.go_on);
    let pruned = journals::prune(&journals);
    let run = run_engine(given, io, node, limits, &mut state, Continue::Resume);
    let mut done = Box::pin(run).await?;
    done.result.notes.extend(report.result.notes);
    done.result.notes.extend(pruned);
    Ok(done)
}

/// Returns the command after a dry run: the migration, or what repairs or explains its worst obstacle.
fn after_plan(
    session: &Session,
    args: &JourneyArgs,
    report: &MigrateReport,
    external: bool,
) -> String {
    let assessment = report.plan.as_ref().map(|plan| &plan.assessment);
    match (report.exit(), assessment) {
        (FOUND, Some(assessment)) => match assessment.findings.first() {
            Some(worst) if assessment.leads_to_dry_run => {
                identity::next_command(session, ["explain", worst.id])
            }
            _ => on(assessment.next_machine.as_deref(), &assessment.next),
        },
        // A recording that lacks data does not decide.
        (UNKNOWN, _) if session.source.is_bundle() => {
            let line = format!("kpx migrate {} --dry-run", args.words());
            identity::next_line(session, &Next::Run(Advice::OnNode(line.into()), None))
        }
        (UNKNOWN, _) => identity::next_line(session, &Next::Read),
        _ => {
            let part = if external { "prepare " } else { "" };
            let part = format!("{part}{}", args.words());
            if session.source.is_bundle() {
                let words = format!("migrate {part}");
                return identity::next_command(session, words.split(' ').map(str::to_owned));
            }
            identity::migrate_command(session, &part)
        }
    }
}

fn planned(draft: Draft) -> (MigrateReport, Migration) {
    let mut report = MigrateReport::new(&draft.migration, Outcome::Planned);
    report.result.id = None;
    report.result.notes = draft.notes;
    report.inconclusive = draft.plan.assessment.is_unknown();
    report.plan = Some(draft.plan);
    (report, draft.migration)
}

/// Returns whether the same migration began and has not ended.
fn is_begun(journals: &Journals, to: Mode) -> Result<bool, Failure> {
    Ok(journals::newest(journals)?.is_some_and(|state| {
        let same = state.migration.external && state.migration.to() == to;
        same && state.leg == Leg::There && !state.ended
    }))
}

fn refuse_unfinished(
    session: &Session,
    args: &ContinueArgs,
    journals: &Journals,
) -> Result<(), Failure> {
    match journals::newest(journals)? {
        Some(state) if !state.ended => Err(Failure::from(eyre!(
            "the migration from mode {} to mode {} that began {} is unfinished",
            state.migration.from,
            state.migration.to(),
            state.migration.began
        ))
        .with_hint(if args.again {
            // In a pod that the coordinator of the cluster's migration has started.
            "on the node, `kpx migrate resume` or `kpx migrate rollback` ends it".to_owned()
        } else {
            format!(
                "`kpx migrate status` shows its state; `{}` or `{}` ends it",
                identity::migrate_command(session, "resume"),
                identity::migrate_command(session, "rollback")
            )
        })),
        _ => Ok(()),
    }
}

fn refuse_blocked(report: &MigrateReport, args: &JourneyArgs) -> Result<(), Failure> {
    let Some(plan) = &report.plan else {
        return Ok(());
    };
    let blockers = plan.blockers();
    if !blockers.is_empty() {
        let all = report.blocked().unwrap_or_default();
        let classes = plan.unaccepted();
        // In the table of another program, kube-proxy cannot write whatever is skipped.
        let others = blockers.iter().filter(|id| ![LOST, "MX13"].contains(*id));
        let others: Vec<&str> = others.copied().collect();
        let mut options = Vec::new();
        if !classes.is_empty() {
            let classes: Vec<String> = classes.iter().map(ToString::to_string).collect();
            options.push(format!("--accept-loss {}", classes.join(",")));
        }
        if !others.is_empty() {
            options.push(format!("--skip {}", others.join(",")));
        }
        return Err(
            Failure::from(eyre!("blocked by {all}; nothing was changed"))
                .with_hint(if options.is_empty() {
                    "`kpx explain ID` describes each fix".to_owned()
                } else {
                    format!(
                        "`kpx explain ID` describes each fix; `{}` migrates anyway",
                        options.join(" ")
                    )
                })
                .blocked(),
        );
    }
    if let Established::All(gauge) = &plan.loss.established
        && !args.go_on.drops_connections()
    {
        return Err(Failure::from(eyre!(
            "{} would break: {}",
            number_of(gauge.count, "established connection"),
            gauge.holders()
        ))
        .with_hint("--accept-loss drops them")
        .blocked());
    }
    Ok(())
}
