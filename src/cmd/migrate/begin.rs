//! The beginning of a migration: look, show, ask, go.

use color_eyre::eyre::{WrapErr as _, eyre};

use super::prospect::{self, Outlook};
use super::site::Here;
use super::{Way, go_on, here, journals, limits, newest, prune, travel};
use crate::backend::Mode;
use crate::cli::{Global, JourneyArgs};
use crate::cmd::change::{confirm, open_after_guard};
use crate::cmd::failure::Failure;
use crate::cmd::{Io, identity, mode, output};
use crate::host::Journals;
use crate::migrate::engine::Site as _;
use crate::migrate::journal::{Entry, State};
use crate::migrate::journey::Leg;
use crate::migrate::loss::Established;
use crate::render::{self, Format};
use crate::report::migrate::{MigrateReport, Outcome, Summary};

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &JourneyArgs,
    elsewhere: bool,
) -> Result<MigrateReport, Failure> {
    let to = prospect::to(args)?;
    if elsewhere && args.go_on.again && !args.dry_run && is_begun(&journals(global), to)? {
        return go_on(global, io, &args.go_on, Way::Resume).await;
    }
    // Found once: every stage, and every later command, goes by this name.
    let named = identity::named(global, io).await?;
    let given = global;
    let global = &named.global;
    let present = prospect::present(global, io).await?;
    let from = match args.left.map(mode) {
        Some(left) if present == to => left,
        _ => present,
    };
    if from == to {
        return Ok(MigrateReport::already(to));
    }
    if args.dry_run {
        let outlook = prospect::look(global, &named, io, args, from, elsewhere).await?;
        let mut report = planned(outlook).0;
        if args.brief {
            report.shorten();
        }
        return Ok(report);
    }
    here(global)?;
    // Held from here on, so that what is found stays as it is as far as kpx is concerned.
    let live = open_after_guard(global).await?;
    let journals = journals(global);
    refuse_unfinished(given, &journals)?;
    let outlook = prospect::look(global, &named, io, args, from, elsewhere).await?;
    let (report, journey) = planned(outlook);
    let quiet = global.quiet && args.go_on.yes;
    if !quiet {
        let style = output::style(global, io);
        if args.go_on.yes && report.is_free() {
            render::write(&Summary(&report), Format::Human, style, io.err)?;
        } else {
            render::write(&report, Format::Human, style, io.err)?;
        }
        writeln!(io.err)?;
    }
    refuse_blocked(&report, args)?;
    if !args.go_on.yes {
        confirm(io, &format!("the migration to mode {to}"))?;
    }
    let folder = journals.folder(&journey.id);
    let journal = journals.create(&journey.id);
    let journal = journal.wrap_err_with(|| format!("cannot make {}", folder.display()))?;
    let mut site = Here::new(
        global,
        live,
        journal,
        folder,
        journey.clone(),
        args.go_on.lease,
    );
    let began = Entry::Began {
        kpx: env!("CARGO_PKG_VERSION").to_owned(),
        journey: Box::new(journey.clone()),
    };
    let recorded = site.record(&began).await;
    recorded.map_err(|why| eyre!(why).wrap_err("cannot begin the journal"))?;
    let mut state = State::new(journey);
    let limits = limits(&args.go_on);
    prune(&journals)?;
    let mut done = Box::pin(travel(given, io, site, limits, &mut state, Way::Resume)).await?;
    done.notes.extend(report.notes);
    Ok(done)
}

fn planned(outlook: Outlook) -> (MigrateReport, crate::migrate::journey::Journey) {
    let mut report = MigrateReport::new(&outlook.journey, Outcome::Planned);
    report.id = None;
    report.plan = Some(outlook.prospect);
    report.notes = outlook.notes;
    (report, outlook.journey)
}

/// Returns whether the same was begun, and is not over.
fn is_begun(journals: &Journals, to: Mode) -> Result<bool, Failure> {
    Ok(newest(journals)?.is_some_and(|state| {
        let same = state.journey.elsewhere && state.journey.to() == to;
        same && state.leg == Leg::There && !state.ended
    }))
}

fn refuse_unfinished(global: &Global, journals: &Journals) -> Result<(), Failure> {
    match newest(journals)? {
        Some(state) if !state.ended => Err(Failure::from(eyre!(
            "the migration from mode {} to mode {} that began {} is not over",
            state.journey.from,
            state.journey.to(),
            state.journey.began
        ))
        .with_hint(format!(
            "`kpx migrate status` says where it stands; `{}` or `{}` ends it",
            identity::migrate_command(global, "resume"),
            identity::migrate_command(global, "rollback")
        ))),
        _ => Ok(()),
    }
}

fn refuse_blocked(report: &MigrateReport, args: &JourneyArgs) -> Result<(), Failure> {
    let Some(plan) = &report.plan else {
        return Ok(());
    };
    let blockers = plan.blockers();
    if !blockers.is_empty() {
        let all = blockers.join(", ");
        return Err(
            Failure::from(eyre!("something is in the way: {all}; nothing was changed")).with_hint(
                format!(
                    "`kpx explain ID` says what to do about it; --skip {} goes on all the same",
                    blockers.join(",")
                ),
            ),
        );
    }
    if let Established::All(gauge) = &plan.loss.established
        && !args.go_on.accept_loss
    {
        return Err(Failure::from(eyre!(
            "{} established connections would break: {}",
            gauge.count,
            gauge.holders()
        ))
        .with_hint("--accept-loss goes on all the same"));
    }
    Ok(())
}
