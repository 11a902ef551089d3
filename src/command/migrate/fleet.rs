//! `kpx migrate` for a cluster's nodes.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};
use serde_json::Value;

use super::args::{ContinueArgs, LEASE, MigrateArgs};
use super::lock::Lock;
use super::progress::{self, FleetProgress};
use super::prompt::{agree, refuse_unattended, unless_asked};
use super::remote_cluster::RemoteCluster;
use super::run::at_its_source;
use super::{fleet_draft, preview};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;

use super::report::{
    FleetReport, FleetSummary, GuardState, GuardStatus, LeaseStatus, PlannedFleet,
};
use crate::render::{self, Board, Format, Report as _};
use crate::report::CLEAN;
use crate::report::plan::CONNECTIONS;
use kpx_host::LiveCluster;
use kpx_host::clock::{self, Interrupts};
use kpx_migrate::controller::guard::NO_BRIDGE;
use kpx_migrate::fleet::engine::{Cluster as _, Ended, Engine, Event};
use kpx_migrate::fleet::lease::{self, Claim};
use kpx_migrate::fleet::pod::{self, Job, MIGRATION, Phase};
use kpx_migrate::fleet::state::{self, Fleet, NodeState};
use kpx_migrate::fleet::task::Task;
use kpx_migrate::migration::Leg;
use kpx_migrate::wire::Outcome;
use kpx_node::action::{Action, COPY_LABEL};
use kpx_node::apply::Apply as _;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::words::number_of;

/// Returns the command that resumes the migration of `fleet`.
pub(super) fn go_on_command(session: &Session, fleet: &Fleet) -> String {
    identity::fleet_command(&with_image(session, fleet), "resume")
}

/// Returns the command that rolls the migration of `fleet` back.
fn go_back_command(session: &Session, fleet: &Fleet) -> String {
    identity::fleet_command(&with_image(session, fleet), "rollback")
}

/// Returns `session` with the image of the migration's pods, unless that is kube-proxy's. A migration by hand has none.
fn with_image(session: &Session, fleet: &Fleet) -> Session {
    let mut session = session.clone();
    session.pods.image = match &fleet.plan.image {
        None => None,
        Some(_) if fleet.plan.copies => session.pods.image,
        image => image.clone(),
    };
    session
}

/// Returns whether the command line selects other nodes than this one.
pub(super) fn is_asked(session: &Session, args: &MigrateArgs) -> bool {
    args.fleet.all_nodes || !session.nodes.is_empty() && !args.journey.go_on.this_node
}

/// Refuses a session that has no API server.
fn refuse_offline(session: &Session) -> Result<(), Failure> {
    if session.source.is_bundle() || session.host.no_api {
        let what = "a cluster's nodes are migrated through its API server: it takes neither --from nor --no-api";
        return Err(Failure::usage(what));
    }
    Ok(())
}

/// Begins a migration of nodes.
pub(super) async fn begin(
    session: &Session,
    io: &mut Io<'_>,
    args: &MigrateArgs,
) -> Result<u8, Failure> {
    refuse_offline(session)?;
    if !args.journey.dry_run {
        refuse_unattended(io, args.fleet.by_hand)?;
    }
    let shared = RefCell::new(io);
    let mut cluster = RemoteCluster::new(session, &shared);
    let mut interrupts = Interrupts::listen_to_hangup();
    let mut draft = unless_asked(
        &mut interrupts,
        Box::pin(fleet_draft::plan(session, &mut cluster, args)),
    )
    .await?;
    if let Some(planned) = &mut draft.report.plan {
        let previews = preview::all(session, &shared, &mut cluster, &draft.plan);
        match unless_asked(&mut interrupts, previews).await {
            Ok(previews) => planned.previews = previews,
            Err(failure) => {
                preview::cancel(&mut cluster, &draft.plan).await;
                return Err(failure);
            }
        }
        planned.accepts_loss = args.journey.go_on.drops_connections();
    }
    let mut report = draft.report;
    if args.journey.dry_run && report.outcome == Outcome::Planned {
        report.next = Some(after_plan(session, args, report.exit()));
    }
    if args.journey.dry_run || report.outcome == Outcome::Already {
        return print(session, &mut shared.borrow_mut(), &report);
    }
    if let (Some(unfinished), _) = kept(&mut cluster).await?
        && !unfinished.ended
    {
        return Err(Failure::from(eyre!(
            "the migration of this cluster to mode {} that began {} is unfinished",
            unfinished.plan.there.mode,
            unfinished.plan.began
        ))
        .with_hint(format!(
            "`{}` or `{}` ends it",
            go_on_command(session, &unfinished),
            go_back_command(session, &unfinished)
        )));
    }
    let agreed = args.journey.go_on.yes;
    let blocked = preview::blocked(&report, args);
    {
        let io = &mut **shared.borrow_mut();
        // If no preview succeeded, the failure has all reasons.
        let previewed = report.plan.as_ref().is_none_or(PlannedFleet::is_previewed);
        if (!(session.quiet && agreed) || blocked.is_some()) && (previewed || blocked.is_none()) {
            if agreed && blocked.is_none() && session.style.verbose == 0 {
                session.write(&FleetSummary(&report), Format::Human, io.err)?;
            } else {
                session.write(&report, Format::Human, io.err)?;
            }
            writeln!(io.err)?;
        }
        if let Some(failure) = blocked {
            return Err(failure);
        }
    }
    if !agreed {
        let what = format!(
            "the migration of {}",
            number_of(draft.plan.nodes.len(), "node")
        );
        agree(&shared, &mut interrupts, &what).await?;
    }
    let mut fleet = Fleet::new(draft.plan);
    let began = clock::now();
    let ended = run(
        session,
        &shared,
        &mut cluster,
        &mut fleet,
        FleetRun::Begin,
        &mut interrupts,
    )
    .await?;
    let report = outcome(session, &mut cluster, &fleet, ended, began).await;
    print(session, &mut shared.borrow_mut(), &report)
}

/// Returns the command after a dry run with this exit status: the migration, or what shows its obstacles.
fn after_plan(session: &Session, args: &MigrateArgs, exit: u8) -> String {
    let journey = args.journey.words();
    if exit == CLEAN || args.fleet.by_hand {
        let part = format!("{journey}{}", args.fleet.words());
        return identity::migrate_of_nodes(session, &part);
    }
    let to = args.journey.to.map_or("", Mode::name);
    identity::next_command(session, ["doctor", "--to", to, "--all-nodes"])
}

/// Reports the state of the newest migration.
pub(super) async fn status(session: &Session, io: &mut Io<'_>) -> Result<u8, Failure> {
    refuse_offline(session)?;
    let shared = RefCell::new(io);
    let mut cluster = RemoteCluster::new(session, &shared);
    let (Some(fleet), _) = kept(&mut cluster).await? else {
        return Err(none());
    };
    let mut report = FleetReport::new(&fleet, Outcome::Stopped);
    if fleet.ended {
        report.outcome = match fleet.leg {
            Leg::There => Outcome::Migrated,
            Leg::Back => Outcome::RolledBack,
        };
    } else {
        report.next = Some(go_on_command(session, &fleet));
        report.left = left(&mut cluster, &fleet).await;
    }
    report.lease = Some(lease_status(&mut cluster).await);
    report.guards = guards(&mut cluster, &fleet).await;
    print(session, &mut shared.borrow_mut(), &report)
}

/// Resumes a migration that stopped, or rolls one back.
pub(super) async fn go_on(
    session: &Session,
    io: &mut Io<'_>,
    args: &ContinueArgs,
    back: bool,
) -> Result<u8, Failure> {
    refuse_offline(session)?;
    let shared = RefCell::new(io);
    let mut cluster = RemoteCluster::new(session, &shared);
    let (Some(mut fleet), _) = kept(&mut cluster).await? else {
        return Err(none());
    };
    let is_back = fleet.leg == Leg::Back;
    if fleet.ended && is_back == back && args.again {
        let outcome = if is_back {
            Outcome::RolledBack
        } else {
            Outcome::Migrated
        };
        let report = FleetReport::new(&fleet, outcome);
        return print(session, &mut shared.borrow_mut(), &report);
    }
    if fleet.ended && !back {
        return Err(Failure::from(eyre!(
            "the newest migration of this cluster has ended"
        )));
    }
    if fleet.ended && is_back {
        return Err(Failure::from(eyre!(
            "the newest migration of this cluster is already rolled back"
        )));
    }
    fleet_draft::go_on_with(&mut fleet.plan, args);
    refuse_unattended(&shared.borrow(), fleet.plan.image.is_none())?;
    let mut interrupts = Interrupts::listen_to_hangup();
    if !args.yes {
        let count = number_of(fleet.plan.nodes.len(), "node");
        let question = if back {
            format!("the rollback of {count}")
        } else {
            format!("the rest of the migration of {count}")
        };
        agree(&shared, &mut interrupts, &question).await?;
    }
    let what = if back {
        FleetRun::Rollback
    } else {
        FleetRun::Resume
    };
    let began = clock::now();
    let ended = run(
        session,
        &shared,
        &mut cluster,
        &mut fleet,
        what,
        &mut interrupts,
    )
    .await?;
    let report = outcome(session, &mut cluster, &fleet, ended, began).await;
    print(session, &mut shared.borrow_mut(), &report)
}

fn none() -> Failure {
    Failure::from(eyre!("this cluster has no migration")).with_hint(
        "`kpx migrate --to MODE --all-nodes` begins one; without --all-nodes, the command is about this node: if the state of a migration \
         was deleted from the cluster, `kpx migrate status` on each node says how to end it there",
    )
}

/// The command that runs the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FleetRun {
    Begin,
    Resume,
    Rollback,
}

/// Returns who holds the Lease.
async fn lease_status(cluster: &mut RemoteCluster<'_, '_, '_>) -> LeaseStatus {
    let found = match cluster.object(&lease::object()).await {
        Ok(found) => found,
        Err(error) => return LeaseStatus::Unknown(error.to_string()),
    };
    // No holder has an empty identity.
    match lease::claim(found.as_ref(), "", clock::now()) {
        Claim::Theirs { holder, renewed } => LeaseStatus::Held { holder, renewed },
        Claim::Missing | Claim::Free | Claim::Ours => LeaseStatus::Free,
    }
}

/// Returns the guards of the bridges that serve.
async fn guards(cluster: &mut RemoteCluster<'_, '_, '_>, fleet: &Fleet) -> Vec<GuardStatus> {
    let mut all = Vec::new();
    if fleet.ended || fleet.plan.image.is_none() || !fleet.plan.bridges() {
        return all;
    }
    for node in &fleet.plan.nodes {
        let begun = fleet.began(&Task::Prepare(node.clone()));
        let needed = matches!(fleet.nodes.get(node), None | Some(NodeState::Prepared));
        if !begun || !needed {
            continue;
        }
        let object = pod::object(&fleet.plan, node, Job::Guard);
        let state = match cluster.object(&object).await {
            Err(error) => GuardState::Unknown(error.to_string()),
            Ok(None) => GuardState::Gone,
            Ok(Some(found)) if found["metadata"]["deletionTimestamp"].is_string() => {
                GuardState::Gone
            }
            Ok(Some(found)) => match pod::phase(&found) {
                // Its last line says what it sees.
                Phase::Runs => match cluster.log(&object.name).await {
                    Ok(log) if log.trim_end().ends_with(NO_BRIDGE) => GuardState::Unbridged,
                    Ok(_) => GuardState::Runs,
                    Err(error) => GuardState::Unknown(error.to_string()),
                },
                Phase::Waits(why) => GuardState::Waits(why),
                Phase::Over(..) => GuardState::Gone,
            },
        };
        let lease = fleet.plan.timeouts.lease;
        all.push(GuardStatus {
            node: node.clone(),
            pod: format!("kube-system/{}", object.name),
            state,
            lease_seconds: lease.unwrap_or(LEASE.as_secs()),
        });
    }
    all
}

/// Returns the state that the cluster keeps of the newest migration, and its text.
async fn kept(
    cluster: &mut RemoteCluster<'_, '_, '_>,
) -> Result<(Option<Fleet>, Option<String>), Failure> {
    read_kept(cluster.object(&state::object()).await?)
}

/// Returns the state that `cluster` keeps of the newest migration.
pub(super) async fn kept_by(cluster: &LiveCluster) -> Result<Option<Fleet>, Failure> {
    Ok(read_kept(cluster.object(&state::object()).await?)?.0)
}

fn read_kept(map: Option<Value>) -> Result<(Option<Fleet>, Option<String>), Failure> {
    let Some(map) = map else {
        return Ok((None, None));
    };
    let Some(text) = state::kept(&map) else {
        let what = eyre!(
            "ConfigMap kube-system/{} does not hold the state of a migration",
            state::NAME
        );
        return Err(Failure::from(what)
            .with_hint("kpx did not write it: delete the ConfigMap if it is not needed"));
    };
    let fleet = Fleet::parse(text).map_err(|why| {
        eyre!(
            "cannot parse the state in ConfigMap kube-system/{}: {why}",
            state::NAME
        )
    })?;
    Ok((Some(fleet), Some(text.to_owned())))
}

/// Runs the remaining tasks while it holds the Lease.
async fn run<'io>(
    session: &Session,
    io: &RefCell<&mut Io<'io>>,
    cluster: &mut RemoteCluster<'_, '_, 'io>,
    fleet: &mut Fleet,
    what: FleetRun,
    interrupts: &mut Interrupts,
) -> Result<Ended, Failure> {
    let waits = |holder: &str| {
        let mut io = io.borrow_mut();
        let time = progress::time(&io);
        let text = format!("kpx: {time}{holder} holds the Lease; waiting for it to expire");
        writeln!(io.err, "{text}").ok();
    };
    let mut lock = unless_asked(interrupts, Lock::take(&cluster.live, waits)).await?;
    let ran = locked(session, io, cluster, fleet, what, &mut lock, interrupts).await;
    lock.release().await;
    // The display ends before the report is printed.
    *cluster.board.borrow_mut() = Board::default();
    ran
}

async fn locked<'io>(
    session: &Session,
    io: &RefCell<&mut Io<'io>>,
    cluster: &mut RemoteCluster<'_, '_, 'io>,
    fleet: &mut Fleet,
    what: FleetRun,
    lock: &mut Lock,
    interrupts: &mut Interrupts,
) -> Result<Ended, Failure> {
    // The state may have changed before the Lease was taken.
    let (now, saved) = kept(cluster).await?;
    match (what, now) {
        (FleetRun::Begin, Some(other)) if !other.ended => {
            return Err(Failure::from(eyre!(
                "another kpx has just begun a migration of this cluster"
            ))
            .with_hint("`kpx migrate status --all-nodes` shows it"));
        }
        (FleetRun::Begin, _) | (_, None) => {}
        (_, Some(now)) => {
            let given = std::mem::replace(fleet, now).plan;
            fleet.plan.accepts = given.accepts;
            fleet.plan.timeouts = given.timeouts;
            fleet.plan.limit = given.limit;
        }
    }
    cluster.sweep(&fleet.plan.id).await?;
    if what == FleetRun::Rollback && fleet.leg == Leg::There {
        fleet.turn("requested");
    }
    fleet.requested |= what == FleetRun::Rollback;
    *cluster.board.borrow_mut() = progress::board(session, &io.borrow());
    let mut progress = FleetProgress::new(session, io, Rc::clone(&cluster.board), fleet);
    let mut on_event = |event: Event<'_>| progress.show(event);
    let (stop, board) = (Rc::clone(&cluster.stop), Rc::clone(&cluster.board));
    let second_signal = async {
        interrupts.next().await;
        stop.set(true);
        if !session.quiet {
            let board = board.borrow();
            let line = format!(
                "kpx: {}stopping after the step in progress; a second signal stops at once",
                progress::stamp(&board)
            );
            board.say(&line, io.borrow_mut().err);
        }
        interrupts.next().await;
    };
    let mut engine = Engine {
        cluster,
        saved,
        on_event: &mut on_event,
        stop: &stop,
    };
    let run = Box::pin(engine.run(fleet));
    let keep = Box::pin(lock.keep());
    let ended = match select(pin!(second_signal), select(run, keep)).await {
        Either::Left(_) => None,
        Either::Right((Either::Left((ended, _)), _)) => Some(ended),
        Either::Right((Either::Right((why, _)), _)) => Some(Ended::Stopped(why)),
    };
    Ok(ended.unwrap_or_else(|| {
        let task = fleet.next();
        let node = task.as_ref().and_then(Task::node);
        let node = node.map_or(String::new(), |node| format!(" on node {node}"));
        let task = task.as_ref().map_or(String::new(), Task::to_string);
        Ended::Stopped(format!(
            "stopped at once on a second signal; not finished: {task}{node}"
        ))
    }))
}

async fn outcome(
    session: &Session,
    cluster: &mut RemoteCluster<'_, '_, '_>,
    fleet: &Fleet,
    ended: Ended,
    began: Time,
) -> FleetReport {
    let (outcome, why) = match ended {
        Ended::Migrated => (Outcome::Migrated, None),
        Ended::RolledBack(_) if fleet.requested => (Outcome::RolledBack, None),
        Ended::RolledBack(why) => (Outcome::Reverted, Some(why)),
        Ended::Stopped(why) => (Outcome::Stopped, Some(why)),
    };
    let mut report = FleetReport::new(fleet, outcome);
    report.why = why;
    report.seconds = Some(clock::now().since(began).as_secs());
    if matches!(outcome, Outcome::Reverted | Outcome::Stopped) && fleet.has_moved() {
        report.notes.push(CONNECTIONS.to_owned());
    }
    if fleet.set_back && outcome == Outcome::Reverted {
        report.notes.push(at_its_source(fleet.plan.there.mode));
        report.next = Some(format!(
            "kpx migrate prepare --to {}",
            fleet.plan.there.mode
        ));
    }
    if outcome == Outcome::Stopped {
        report.notes.extend(restored(cluster, fleet).await);
        report.guards = guards(cluster, fleet).await;
        report.left = left(cluster, fleet).await;
        report.next = Some(match fleet.leg {
            Leg::There => format!(
                "{}, or {}",
                go_on_command(session, fleet),
                go_back_command(session, fleet)
            ),
            Leg::Back => go_on_command(session, fleet),
        });
    }
    report
}

/// Writes the state of the unfinished migration again if another program deleted it: resume and rollback begin from it. Returns a note of
/// that.
async fn restored(cluster: &mut RemoteCluster<'_, '_, '_>, fleet: &Fleet) -> Option<String> {
    let Ok((None, _)) = kept(cluster).await else {
        return None;
    };
    let command = state::create(&fleet.to_text());
    let name = state::NAME;
    Some(match cluster.apply(&Action::Kube { command }).await {
        Ok(()) => format!(
            "another program deleted the state of this migration, ConfigMap kube-system/{name}: kpx wrote it again"
        ),
        Err(error) => format!(
            "another program deleted the state of this migration, ConfigMap kube-system/{name}, which kpx cannot write again: {error}; \
             `kpx migrate status` on each node says how to end it there"
        ),
    })
}

/// Returns the objects, except guards, that an unfinished migration has left in the cluster, and their effect.
async fn left(cluster: &mut RemoteCluster<'_, '_, '_>, fleet: &Fleet) -> Vec<String> {
    let mut all = Vec::new();
    match cluster.live.own_pods().await {
        Err(error) => all.push(format!("pods of kpx: unknown: {error}")),
        Ok(pods) => {
            let guards = fleet.plan.nodes.iter();
            let guards = guards.map(|node| pod::object(&fleet.plan, node, Job::Guard).name);
            let guards: Vec<String> = guards.collect();
            for pod in pods {
                let metadata = &pod["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                if metadata["labels"][MIGRATION] != fleet.plan.id.as_str()
                    || guards.iter().any(|guard| guard == name)
                {
                    continue;
                }
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                let does = match pod::phase(&pod) {
                    Phase::Runs => "runs its stage to the end".to_owned(),
                    Phase::Waits(why) => format!("has not started: {why}"),
                    Phase::Over(..) => "has ended".to_owned(),
                };
                all.push(format!("pod kube-system/{name} on node {node} {does}"));
            }
        }
    }
    if let Some(copies) = &fleet.copies {
        all.push(format!(
            "DaemonSet and ConfigMap kube-system/{copies}: the kube-proxy of nodes with the label {COPY_LABEL}"
        ));
    }
    all
}

fn print(session: &Session, io: &mut Io<'_>, report: &FleetReport) -> Result<u8, Failure> {
    if progress::is_lines(session) {
        render::write_line(FleetReport::KIND, report, io.out)?;
        return Ok(report.exit());
    }
    session.finish(io, report)
}
