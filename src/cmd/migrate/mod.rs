//! `kpx migrate`

mod attend;
mod begin;
mod cluster;
mod fleet;
mod lock;
mod prospect;
mod sight;
mod site;
mod tell;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::path::PathBuf;
use std::pin::pin;

use color_eyre::eyre::{WrapErr as _, eyre};
use futures_util::future::{Either, select};

use super::change::open_after_guard;
use super::failure::Failure;
use super::{Io, finish, identity};
use crate::backend::Mode;
use crate::cli::{Global, GoOnArgs, MigrateArgs, MigratePart};
use crate::host::Journals;
use crate::host::clock::Interrupts;
use crate::migrate::engine::{Ended, Engine, Event, Limits};
use crate::migrate::journal::{self, JournalError, State};
use crate::migrate::journey::{Leg, Stage};
use crate::report::migrate::{JourneyStatus, MigrateReport, Outcome, StatusReport};
use site::Here;
use tell::Teller;

pub(super) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &MigrateArgs,
) -> Result<u8, Failure> {
    let report = match &args.part {
        None if fleet::is_asked(global, args) => {
            return Box::pin(fleet::begin(global, io, args)).await;
        }
        Some(MigratePart::Status(args)) if args.all_nodes => {
            return Box::pin(fleet::status(global, io)).await;
        }
        Some(MigratePart::Resume(args)) if args.all_nodes => {
            return Box::pin(fleet::go_on(global, io, &args.go_on, false)).await;
        }
        Some(MigratePart::Rollback(args)) if args.all_nodes => {
            return Box::pin(fleet::go_on(global, io, &args.go_on, true)).await;
        }
        None => Box::pin(begin::run(global, io, &args.journey, false)).await?,
        Some(MigratePart::Prepare(args)) => Box::pin(begin::run(global, io, args, true)).await?,
        Some(MigratePart::Status(_)) => return finish(global, io, &status(global)?),
        Some(MigratePart::Finish(args)) => Box::pin(go_on(global, io, args, Way::Finish)).await?,
        Some(MigratePart::Resume(args)) => {
            Box::pin(go_on(global, io, &args.go_on, Way::Resume)).await?
        }
        Some(MigratePart::Rollback(args)) => {
            let way = Way::Rollback {
                elsewhere: args.until_restart,
            };
            Box::pin(go_on(global, io, &args.go_on, way)).await?
        }
    };
    tell::report(global, io, &report)
}

/// Why it turned back, where that was asked for.
const ASKED: &str = "it was asked for";

/// How to go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Finish,
    Resume,
    Rollback {
        /// Whether somebody else puts the configuration back, and restarts kube-proxy.
        elsewhere: bool,
    },
}

impl Way {
    const fn is_back(self) -> bool {
        matches!(self, Self::Rollback { .. })
    }
}

fn journals(global: &Global) -> Journals {
    let root = global.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    Journals::below(&root)
}

fn here(global: &Global) -> Result<(), Failure> {
    if global.from.is_some() {
        let what =
            "this changes the node that kpx runs on, and --from reads another: take one of them";
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// Returns the newest journey that was begun.
fn newest(journals: &Journals) -> Result<Option<State>, Failure> {
    let all = journals
        .all()
        .wrap_err("cannot look for migrations that were begun before")?;
    for id in all.iter().rev() {
        let text = journals
            .read(id)
            .wrap_err_with(|| format!("cannot read the journal of {id}"))?;
        match journal::read(&text) {
            Ok(state) => return Ok(Some(state)),
            // It was killed before anything was begun.
            Err(JournalError::Empty) => {}
            Err(error) => {
                let folder = journals.folder(id);
                return Err(Failure::from(eyre!(error).wrap_err(format!("cannot go on with {id}")))
                    .with_hint(format!(
                        "what there was before is in {}; once the node is as it should be, move that folder away",
                        folder.display()
                    )));
            }
        }
    }
    Ok(None)
}

/// Returns whether a journey waits until somebody else has changed the configuration and restarted kube-proxy.
pub(super) fn is_prepared(global: &Global) -> Result<bool, Failure> {
    let state = newest(&journals(global))?;
    Ok(state.is_some_and(|state| waits(&state)))
}

/// Returns the mode as which the bridge of a migration that is under way serves.
pub(super) fn served(global: &Global) -> Option<Mode> {
    let state = newest(&journals(global)).ok()??;
    (!state.ended).then(|| state.served())
}

fn waits(state: &State) -> bool {
    let next = state.next();
    !state.ended && state.journey.elsewhere && next.is_some_and(Stage::is_configuration)
}

fn status(global: &Global) -> Result<StatusReport, Failure> {
    let state = newest(&journals(global))?;
    Ok(StatusReport {
        next: state.as_ref().and_then(|state| next(global, state)),
        journey: state.as_ref().map(JourneyStatus::from),
    })
}

/// Returns the command that goes on with `state`, with what it takes of this command line.
fn next(global: &Global, state: &State) -> Option<String> {
    if state.ended {
        return None;
    }
    let part = if waits(state) { "finish" } else { "resume" };
    Some(identity::migrate_command(global, part))
}

/// Returns the command line with the Node that the journal names: this machine is no other one.
fn as_journal(global: &Global, state: &State) -> Result<Global, Failure> {
    let kept = &state.journey.node;
    if let (Some(given), Some(kept)) = (&global.node, kept)
        && given != kept
    {
        return Err(Failure::from(eyre!(
            "the journal of {} is that of node {kept}, not of node {given}",
            state.journey.id
        ))
        .with_hint("leave --node out: the journal has the name"));
    }
    Ok(Global {
        node: kept.clone().or_else(|| global.node.clone()),
        ..global.clone()
    })
}

/// How many journals of migrations that are over are kept.
const KEPT: usize = 10;

/// Removes the journals of migrations that are over, but for the newest ones.
fn prune(journals: &Journals) -> Result<(), Failure> {
    let cannot = "cannot look for migrations that were begun before";
    let mut over = 0;
    for id in journals.all().wrap_err(cannot)?.iter().rev() {
        let text = journals.read(id).wrap_err(cannot)?;
        // What cannot be read is for somebody to look at.
        let ended = match journal::read(&text) {
            Ok(state) => state.ended,
            Err(error) => error == JournalError::Empty,
        };
        over += usize::from(ended);
        if ended && over > KEPT {
            journals
                .remove(id)
                .wrap_err_with(|| format!("cannot remove the journal of {id}"))?;
        }
    }
    Ok(())
}

async fn go_on(
    global: &Global,
    io: &mut Io<'_>,
    args: &GoOnArgs,
    way: Way,
) -> Result<MigrateReport, Failure> {
    here(global)?;
    // Held first, so that whoever has it is not disturbed while it is written.
    let live = open_after_guard(global).await?;
    let journals = journals(global);
    let state = newest(&journals)?;
    if args.again
        && let Some(report) = done(global, io, state.as_ref(), way).await?
    {
        return Ok(report);
    }
    let none = "no migration was begun on this node";
    let Some(mut state) = state.filter(|state| !state.ended || way.is_back()) else {
        return Err(Failure::from(eyre!("{none} that is not over"))
            .with_hint("`kpx migrate --to MODE` begins one"));
    };
    if state.ended && state.leg == Leg::Back {
        return Err(Failure::from(eyre!(
            "the newest migration was rolled back already"
        )));
    }
    let given = global;
    let global = &as_journal(given, &state)?;
    if let Some(name) = &global.node {
        // A journal of an older kpx may be without it.
        state.journey.node = Some(name.clone());
    }
    let journal = journals
        .open(&state.journey.id)
        .wrap_err("cannot open the journal")?;
    let folder = journals.folder(&state.journey.id);
    let site = Here::new(
        global,
        live,
        journal,
        folder,
        state.journey.clone(),
        args.lease,
    );
    let limits = Limits {
        configured: matches!(way, Way::Finish | Way::Rollback { elsewhere: false }),
        ..limits(args)
    };
    Box::pin(travel(given, io, site, limits, &mut state, way)).await
}

/// Returns the report on what is done already, or was never begun, for whoever repeats a command.
async fn done(
    global: &Global,
    io: &mut Io<'_>,
    state: Option<&State>,
    way: Way,
) -> Result<Option<MigrateReport>, Failure> {
    Ok(match (state, way) {
        (None, Way::Rollback { .. }) => {
            let mode = prospect::present(global, io).await?;
            Some(MigrateReport::already(mode))
        }
        (Some(state), Way::Rollback { .. }) if state.ended && state.leg == Leg::Back => {
            Some(MigrateReport::new(&state.journey, Outcome::RolledBack))
        }
        (Some(state), Way::Finish) if state.ended && state.leg == Leg::There => {
            Some(MigrateReport::new(&state.journey, Outcome::Migrated))
        }
        _ => None,
    })
}

/// Goes through the rest of a journey, and reports how it ended.
async fn travel(
    global: &Global,
    io: &mut Io<'_>,
    mut site: Here<'_>,
    limits: Limits,
    state: &mut State,
    way: Way,
) -> Result<MigrateReport, Failure> {
    let teller = Teller::new(global, io, state.journey.node.as_deref());
    let teller = RefCell::new(teller);
    let stop = site.stop();
    let mut interrupts = Interrupts::listen();
    let asked_twice = async {
        interrupts.next().await;
        stop.set(true);
        teller.borrow_mut().tell(Event::Asked);
        interrupts.next().await;
    };
    let mut tell = |event: Event<'_>| teller.borrow_mut().tell(event);
    let mut engine = Engine {
        site: &mut site,
        limits,
        tell: &mut tell,
    };
    if let Way::Rollback { elsewhere } = way {
        let turned = engine.turn_to(state, ASKED, elsewhere).await;
        turned.map_err(|why| eyre!(why))?;
    }
    let asked = way.is_back() || state.why.as_deref() == Some(ASKED);
    // In this order, or what goes on would not be left for as long as it has something to do.
    let ended = match select(pin!(asked_twice), Box::pin(engine.run(state))).await {
        Either::Left(((), run)) => {
            drop(run);
            Ended::Stopped("it was asked to stop twice, so what was under way was left".to_owned())
        }
        Either::Right((ended, _)) => ended,
    };
    Ok(outcome(global, state, ended, asked))
}

fn limits(args: &GoOnArgs) -> Limits {
    Limits {
        confirm: args.confirm_timeout,
        drain: args.drain_timeout,
        accept_loss: args.accept_loss,
        configured: false,
        lease: args.lease,
    }
}

/// Reports how a journey ended; `asked` tells whether it was to be taken back.
fn outcome(global: &Global, state: &State, ended: Ended, asked: bool) -> MigrateReport {
    let (outcome, why) = match ended {
        Ended::Migrated => (Outcome::Migrated, None),
        Ended::RolledBack(_) if asked => (Outcome::RolledBack, None),
        Ended::RolledBack(why) => (Outcome::Reverted, Some(why)),
        Ended::Prepared => (Outcome::Prepared, None),
        Ended::Stopped(why) => (Outcome::Stopped, Some(why)),
    };
    let mut report = MigrateReport::new(&state.journey, outcome);
    report.why = why;
    report.reached = state.reached;
    report.back = state.leg == Leg::Back;
    report.took.clone_from(&state.took);
    report.next = next(global, state);
    if outcome == Outcome::Stopped && state.leg == Leg::There {
        let back = identity::migrate_command(global, "rollback");
        report.next = report.next.map(|next| format!("{next}, or {back}"));
    }
    report.notes.clone_from(&state.notes);
    report
}
