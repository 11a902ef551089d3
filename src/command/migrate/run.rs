//! `kpx migrate`

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::pin::pin;

use color_eyre::eyre::{WrapErr as _, eyre};
use futures_util::future::{Either, select};

use super::args::{ContinueArgs, MigrateArgs, MigratePart};
use super::local_node::LocalNode;
use super::progress::NodeProgress;
use super::report::{BridgeStatus, MigrateReport, MigrationStatus, StatusReport};
use super::{begin, draft, fleet, progress};
use crate::command::shared::change::open_after_guard;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::command::shared::{journals, local_bridge};
use crate::report::plan::CONNECTIONS;
use kpx_host::clock::{self, Interrupts};
use kpx_host::{Journal, Journals, LiveCluster};
use kpx_judge::plan::ConfigSource;
use kpx_migrate::engine::{Ended, Engine, Event, Limits};
use kpx_migrate::fleet::state::Fleet;
use kpx_migrate::journal::{self, Entry, MigrationState};
use kpx_migrate::loss::ObservedLoss;
use kpx_migrate::migration::{Leg, Migration, Stage};
use kpx_migrate::wire::Outcome;
use kpx_migrate::{gates, known};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &MigrateArgs,
) -> Result<u8, Failure> {
    let report = match &args.part {
        None if fleet::is_asked(session, args) => {
            return Box::pin(fleet::begin(session, io, args)).await;
        }
        Some(MigratePart::Status(args)) if args.all_nodes => {
            return Box::pin(fleet::status(session, io)).await;
        }
        Some(MigratePart::Resume(args)) if args.all_nodes => {
            return Box::pin(fleet::go_on(session, io, &args.go_on, false)).await;
        }
        Some(MigratePart::Rollback(args)) if args.all_nodes => {
            return Box::pin(fleet::go_on(session, io, &args.go_on, true)).await;
        }
        None => Box::pin(begin::run(session, io, &args.journey, false)).await?,
        Some(MigratePart::Prepare(args)) => Box::pin(begin::run(session, io, args, true)).await?,
        Some(MigratePart::Status(_)) => return session.finish(io, &status(session).await?),
        Some(MigratePart::Finish(args)) => {
            Box::pin(go_on(session, io, args, Continue::Finish)).await?
        }
        Some(MigratePart::Resume(args)) => {
            Box::pin(go_on(session, io, &args.go_on, Continue::Resume)).await?
        }
        Some(MigratePart::Rollback(args)) => {
            let how = Continue::Rollback {
                external: args.until_restart,
            };
            Box::pin(go_on(session, io, &args.go_on, how)).await?
        }
    };
    progress::report(session, io, &report)
}

/// A command that continues a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Continue {
    Finish,
    Resume,
    Rollback {
        /// Whether the configuration is restored, and kube-proxy restarted, externally.
        external: bool,
    },
}

impl Continue {
    const fn is_back(self) -> bool {
        matches!(self, Self::Rollback { .. })
    }
}

async fn status(session: &Session) -> Result<StatusReport, Failure> {
    if session.source.is_bundle() {
        return status_of_bundle(session).await;
    }
    let state = journals::newest(&journals::of(session))?;
    let bridged =
        |state: &MigrationState| !state.ended && state.stages().contains(&Stage::BridgeDown);
    let bridge = match &state {
        Some(state) if bridged(state) => {
            Some(BridgeStatus::from(local_bridge::lease(session).await))
        }
        _ => None,
    };
    let fleet = match &state {
        None => fleet_of(session).await,
        Some(_) => None,
    };
    Ok(StatusReport {
        bridge,
        next: match (&state, &fleet) {
            (Some(state), _) => next(session, state),
            (None, Some(fleet)) => Some(fleet::go_on_command(session, fleet)),
            (None, None) => None,
        },
        next_machine: None,
        cluster_to: fleet.map(|fleet| fleet.plan.there.mode),
        migration: state.as_ref().map(MigrationStatus::from),
    })
}

/// Returns the unfinished migration of the cluster to which this node belongs; `None` also if that is unknown.
async fn fleet_of(session: &Session) -> Option<Fleet> {
    if session.host.no_api {
        return None;
    }
    let fleet = kept_by_cluster(session).await.ok()??;
    let named = identity::named(session).await.ok()?;
    let is_open = !fleet.ended && fleet.plan.nodes.contains(&named.name);
    is_open.then_some(fleet)
}

/// Returns the migration that the cluster keeps; fails without an answer in time.
async fn kept_by_cluster(session: &Session) -> Result<Option<Fleet>, Failure> {
    let cluster = LiveCluster::new(&session.host);
    let asked = pin!(fleet::kept_by(&cluster));
    match select(asked, pin!(clock::pause(session.host.timeout))).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Failure::from(eyre!(
            "no answer from the API server in {} s",
            session.host.timeout.as_secs()
        ))),
    }
}

/// Returns the migration in the bundle of `--from`.
async fn status_of_bundle(session: &Session) -> Result<StatusReport, Failure> {
    let evidence = session.gather(&[Item::Migration]).await?;
    let state = match evidence.text(Item::Migration) {
        Ok(text) => {
            let state = journal::read(text);
            let state = state.wrap_err("cannot read the journal in the bundle");
            Some(state.hint(
                "`kpx migrate status` on the node reads its own journal; record the node again",
            )?)
        }
        Err(Gap::Absent(..)) => None,
        Err(gap) => {
            let failure = Failure::from(eyre!("the bundle's migration is unknown: {gap}"));
            return Err(failure.with_hint("record the node again with `kpx snapshot`, as root"));
        }
    };
    let next = state.as_ref().and_then(|state| next(session, state));
    Ok(StatusReport {
        bridge: None,
        cluster_to: None,
        next_machine: next.is_some().then(|| session.origin()?.node).flatten(),
        next,
        migration: state.as_ref().map(MigrationStatus::from),
    })
}

/// Returns the command that continues `state`, with the options of this command line that it takes.
fn next(session: &Session, state: &MigrationState) -> Option<String> {
    if state.ended {
        return None;
    }
    let part = if state.is_prepared() {
        "finish"
    } else {
        "resume"
    };
    Some(identity::migrate_command(session, part))
}

/// Returns the session with the name of the Node in the journal; refuses the name of another Node.
fn as_journal(session: &Session, state: &MigrationState) -> Result<Session, Failure> {
    let kept = &state.migration.node;
    if let (Some(given), Some(kept)) = (session.name(), kept)
        && given != kept
    {
        return Err(Failure::from(eyre!(
            "the journal of {} belongs to node {kept}, not to node {given}",
            state.migration.id
        ))
        .with_hint("omit --node: the journal has the name"));
    }
    Ok(session.named(kept.as_deref().or_else(|| session.name())))
}

pub(super) async fn go_on(
    session: &Session,
    io: &mut Io<'_>,
    args: &ContinueArgs,
    how: Continue,
) -> Result<MigrateReport, Failure> {
    session.refuse_bundle("`migrate` changes")?;
    // Locked first: another kpx may be writing the journal.
    let live = open_after_guard(session).await?;
    let journals = journals::of(session);
    let state = known_state(session, &journals).await?;
    if args.again
        && let Some(report) = done(session, state.as_ref(), how).await?
    {
        return Ok(report);
    }
    let Some(mut state) = state.filter(|state| !state.ended || how.is_back()) else {
        return Err(Failure::from(eyre!("no unfinished migration on this node"))
            .with_hint("`kpx migrate --to MODE` begins one"));
    };
    if state.ended && state.leg == Leg::Back {
        return Err(Failure::from(eyre!(
            "the newest migration is already rolled back"
        )));
    }
    let given = session;
    let session = &as_journal(given, &state)?;
    if let Some(name) = session.name() {
        // The journal of an older kpx may not have it.
        state.migration.node = Some(name.to_owned());
    }
    let journal = journals
        .open(&state.migration.id)
        .wrap_err("cannot open the journal")?;
    let folder = journals.folder(&state.migration.id);
    let node = LocalNode::new(
        session,
        live,
        journal,
        folder,
        state.migration.clone(),
        args.lease(),
    );
    if how == (Continue::Rollback { external: false }) && state.leg == Leg::There {
        refuse_configured(session, &state).await?;
    }
    let limits = Limits {
        configured: matches!(
            how,
            Continue::Finish | Continue::Rollback { external: false }
        ),
        ..limits(args)
    };
    Box::pin(run_engine(given, io, node, limits, &mut state, how)).await
}

/// Refuses the rollback of a migration whose configuration another program changes, if that still has the new mode: kube-proxy would come
/// back in it.
async fn refuse_configured(session: &Session, state: &MigrationState) -> Result<(), Failure> {
    let Migration {
        external: true,
        node: Some(name),
        ..
    } = &state.migration
    else {
        return Ok(());
    };
    if session.host.no_api || !state.was_configured() {
        return Ok(());
    }
    let items = [Item::ConfigMaps, Item::DaemonSets, Item::Pods];
    let evidence = session.gather(&items).await?;
    let (from, to) = (state.migration.from, state.migration.to());
    let Ok(store) = ConfigSource::find(&NodeSnapshot::new(&evidence), name) else {
        return Ok(());
    };
    if gates::mode_in(store.text()) != Some(to) {
        return Ok(());
    }
    let until = identity::migrate_command(session, "rollback --until-restart");
    let rest = identity::migrate_command(session, "finish");
    Err(Failure::from(eyre!(
        "{} still has mode {to}, and this migration leaves it to another program, or to the coordinator of the cluster's migration, to \
         change it; nothing was changed",
        store.place()
    ))
    .with_hint(format!(
        "run `{until}`, set mode {from} there, restart kube-proxy on this node, then run `{rest}`"
    )))
}

/// Returns the newest migration of this node: by its journal, and where that lost it, by the state that the coordinator of the
/// cluster's migration keeps.
///
/// Fails before anything is touched if the journal is missing or broken, and the cluster cannot be asked.
async fn known_state(
    session: &Session,
    journals: &Journals,
) -> Result<Option<MigrationState>, Failure> {
    let kept = journals::newest(journals);
    if session.host.no_api {
        return kept;
    }
    let fleet = match kept_by_cluster(session).await {
        Ok(fleet) => fleet,
        // A complete journal needs no other source.
        Err(_) if kept.as_ref().is_ok_and(Option::is_some) => return kept,
        Err(failure) => {
            return Err(failure.and_hint(
                "the node has no journal of its migration, and the state that the cluster keeps cannot be read; nothing was \
                 changed",
            ));
        }
    };
    let named = match &kept {
        Ok(Some(state)) => state.migration.node.clone(),
        _ => None,
    };
    let name = named.map_or_else(|| session.name().map(str::to_owned), Some);
    let (Some(fleet), Some(name)) = (fleet, name) else {
        return kept;
    };
    if !known::has_begun(&fleet, &name) {
        return kept;
    }
    let (mut state, mut journal) = match kept {
        Ok(Some(state)) if state.migration.began >= fleet.plan.began => {
            if known::missing(&fleet, &name, &state, clock::now()).is_empty() {
                return Ok(Some(state));
            }
            let journal = journals.open(&state.migration.id);
            let journal = journal.wrap_err("cannot open the journal")?;
            (state, journal)
        }
        Ok(_) | Err(_) => {
            let id = draft::id(clock::now(), fleet.plan.from, fleet.plan.there.mode);
            let journal = journals.create(&id);
            let mut journal = journal.wrap_err("cannot create a journal")?;
            let migration = known::migration(&fleet, &name, id);
            let began = Entry::Began {
                kpx: env!("CARGO_PKG_VERSION").to_owned(),
                migration: Box::new(migration.clone()),
            };
            write_entry(&mut journal, &began)?;
            (MigrationState::new(migration), journal)
        }
    };
    for entry in known::missing(&fleet, &name, &state, clock::now()) {
        write_entry(&mut journal, &entry)?;
        state.follow(entry);
    }
    Ok(Some(state))
}

fn write_entry(journal: &mut Journal, entry: &Entry) -> Result<(), Failure> {
    let line = serde_json::to_string(entry).wrap_err("cannot write the journal")?;
    Ok(journal.add(&line).wrap_err("cannot write the journal")?)
}

/// Returns the report if the command was done before, or has nothing to do: with `--again`.
async fn done(
    session: &Session,
    state: Option<&MigrationState>,
    how: Continue,
) -> Result<Option<MigrateReport>, Failure> {
    Ok(match (state, how) {
        (None, Continue::Rollback { .. }) => {
            let mode = draft::present(session).await?;
            Some(MigrateReport::already(mode))
        }
        (Some(state), Continue::Rollback { .. }) if state.ended && state.leg == Leg::Back => {
            Some(MigrateReport::new(&state.migration, Outcome::RolledBack))
        }
        (Some(state), Continue::Finish) if state.ended && state.leg == Leg::There => {
            Some(MigrateReport::new(&state.migration, Outcome::Migrated))
        }
        _ => None,
    })
}

/// Runs the rest of a migration and reports how it ended.
pub(super) async fn run_engine(
    session: &Session,
    io: &mut Io<'_>,
    mut node: LocalNode<'_>,
    limits: Limits,
    state: &mut MigrationState,
    how: Continue,
) -> Result<MigrateReport, Failure> {
    let progress = NodeProgress::new(session, io, state.migration.node.as_deref());
    let progress = RefCell::new(progress);
    let stop = node.stop();
    let mut interrupts = Interrupts::listen();
    let second_signal = async {
        interrupts.next().await;
        stop.set(true);
        progress.borrow_mut().show(Event::StopRequested);
        interrupts.next().await;
    };
    let mut on_event = |event: Event<'_>| progress.borrow_mut().show(event);
    let mut engine = Engine {
        node: &mut node,
        limits,
        on_event: &mut on_event,
    };
    if let Continue::Rollback { external } = how {
        let turned = engine.roll_back(state, external).await;
        turned.map_err(|why| eyre!(why))?;
    }
    // The signal is polled first: an engine that is never idle must not starve it.
    let ended = match select(pin!(second_signal), Box::pin(engine.run(state))).await {
        Either::Left(((), run)) => {
            drop(run);
            Ended::Stopped("stopped at once on a second signal".to_owned())
        }
        Either::Right((ended, _)) => ended,
    };
    let requested = how.is_back() || state.requested;
    Ok(outcome(session, state, ended, requested))
}

/// Returns how to migrate where another program writes the configuration.
pub(super) fn at_its_source(to: Mode) -> String {
    format!(
        "the mode has to be changed at its source: `kpx migrate prepare --to {to}` on each node, then commit the mode there, then restart \
         kube-proxy and run `kpx migrate finish`, node by node"
    )
}

pub(super) fn limits(args: &ContinueArgs) -> Limits {
    Limits {
        confirm: args.confirm(),
        drain: args.drain(),
        accept_loss: args.drops_connections(),
        configured: false,
        lease: args.lease(),
    }
}

/// Reports how a migration ended; `requested` is true if an operator requested a rollback.
fn outcome(
    session: &Session,
    state: &MigrationState,
    ended: Ended,
    requested: bool,
) -> MigrateReport {
    let (outcome, why) = match ended {
        Ended::Migrated => (Outcome::Migrated, None),
        Ended::RolledBack(_) if requested => (Outcome::RolledBack, None),
        Ended::RolledBack(why) => (Outcome::Reverted, Some(why)),
        Ended::Prepared => (Outcome::Prepared, None),
        Ended::Stopped(why) => (Outcome::Stopped, Some(why)),
    };
    let mut report = MigrateReport::new(&state.migration, outcome);
    report.reached = state.reached;
    report.back = state.leg == Leg::Back;
    let result = &mut report.result;
    result.why = why;
    result.took.clone_from(&state.took);
    result.observed_loss = (!state.took.is_empty()).then_some(ObservedLoss {
        unmeasured: state.migration.probes.is_empty(),
        ..state.observed
    });
    result.next = next(session, state);
    if outcome == Outcome::Stopped && state.leg == Leg::There {
        let back = identity::migrate_command(session, "rollback");
        result.next = result.next.take().map(|next| format!("{next}, or {back}"));
    }
    if outcome == Outcome::Reverted && state.set_back {
        let to = state.migration.to();
        let part = format!("prepare --to {to}");
        result.next = Some(identity::migrate_command(session, &part));
        result.notes.push(at_its_source(to));
    }
    result.notes.extend(state.notes.iter().cloned());
    if matches!(outcome, Outcome::Reverted | Outcome::Stopped) && state.was_configured() {
        result.notes.push(CONNECTIONS.to_owned());
    }
    report
}
