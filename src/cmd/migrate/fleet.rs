//! `kpx migrate` for the nodes of a cluster.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::attend::{agree, refuse_unattended, unless_asked};
use super::cluster::Far;
use super::lock::Lock;
use super::tell::{self, FarTeller};
use super::{prospect, sight};
use crate::cli::{Global, GoOnArgs, MigrateArgs};
use crate::cluster::Node;
use crate::cluster::config::ProxyConfig;
use crate::cmd::failure::{Failure, Hint as _};
use crate::cmd::{Io, output};
use crate::evidence::{Item, Time};
use crate::host::clock::{self, Interrupts};
use crate::migrate::fleet::engine::{Cluster as _, Ended, Engine, Event};
use crate::migrate::fleet::order;
use crate::migrate::fleet::pod::{self, Job};
use crate::migrate::fleet::state::{self, Fleet, FleetPlan, Leg, NodeState};
use crate::migrate::fleet::task::Task;
use crate::node::NodeSnapshot;
use crate::plan::{ConfigSource, Unwritable};
use crate::render::{self, Board, Format, Report as _};
use crate::report::migrate::{FleetProspect, FleetReport, Outcome};

/// What is added to the time that a node's part may take, for what it looks at before and after, in seconds.
const SPARE: u64 = 600;

/// What `--lease` is where it is not given.
const LEASE: std::time::Duration = std::time::Duration::from_secs(60);

const GO_ON: &str = "kpx migrate resume --all-nodes";
const GO_BACK: &str = "kpx migrate rollback --all-nodes";

/// Returns whether other nodes than this one are asked for.
pub(super) fn is_asked(global: &Global, args: &MigrateArgs) -> bool {
    args.fleet.all_nodes || global.node.is_some() && !args.journey.go_on.this_node
}

/// What is about to be done.
struct Outlook {
    plan: FleetPlan,
    report: FleetReport,
}

/// Begins the move of nodes.
pub(super) async fn begin(
    global: &Global,
    io: &mut Io<'_>,
    args: &MigrateArgs,
) -> Result<u8, Failure> {
    if global.from.is_some() || global.no_api {
        let what = "nodes of a cluster are moved through its API server: --from and --no-api leave that out";
        return Err(Failure::usage(what));
    }
    if !args.journey.dry_run {
        refuse_unattended(io, args.fleet.image.as_deref())?;
    }
    let shared = RefCell::new(io);
    let mut far = Far::new(global, &shared);
    let mut interrupts = Interrupts::listen_to_hangup();
    let mut outlook = unless_asked(&mut interrupts, look(global, &mut far, args)).await?;
    if let Some(prospect) = &mut outlook.report.plan {
        let looks = sight::look(global, &shared, &mut far, &outlook.plan);
        match unless_asked(&mut interrupts, looks).await {
            Ok(looks) => prospect.looks = looks,
            Err(failure) => {
                sight::look_away(&mut far, &outlook.plan).await;
                return Err(failure);
            }
        }
        prospect.accepts_loss = args.journey.go_on.accept_loss;
    }
    let report = outlook.report;
    if args.journey.dry_run || report.outcome == Outcome::Already {
        return print(global, &mut shared.borrow_mut(), &report);
    }
    if let (Some(unfinished), _) = kept(&mut far).await?
        && !unfinished.ended
    {
        return Err(Failure::from(eyre!(
            "the migration of this cluster to mode {} that began {} is not over",
            unfinished.plan.there.mode,
            unfinished.plan.began
        ))
        .with_hint(format!("`{GO_ON}` or `{GO_BACK}` ends it")));
    }
    let agreed = args.journey.go_on.yes;
    let blocked = sight::blocked(&report, args);
    {
        let io = &mut **shared.borrow_mut();
        // Where no node could be looked at, the failure says all there is to know.
        let seen = report.plan.as_ref().is_none_or(FleetProspect::is_seen);
        if (!(global.quiet && agreed) || blocked.is_some()) && (seen || blocked.is_none()) {
            render::write(&report, Format::Human, output::style(global, io), io.err)?;
            writeln!(io.err)?;
        }
        if let Some(failure) = blocked {
            return Err(failure);
        }
    }
    if !agreed {
        let what = format!("the migration of {}", nodes(outlook.plan.nodes.len()));
        agree(&shared, &mut interrupts, &what).await?;
    }
    let mut fleet = Fleet::new(outlook.plan);
    let began = clock::now();
    let ended = travel(
        global,
        &shared,
        &mut far,
        &mut fleet,
        Way::Begin,
        &mut interrupts,
    )
    .await?;
    let report = outcome(&fleet, ended, began);
    print(global, &mut shared.borrow_mut(), &report)
}

/// Says where the newest one stands.
pub(super) async fn status(global: &Global, io: &mut Io<'_>) -> Result<u8, Failure> {
    let shared = RefCell::new(io);
    let mut far = Far::new(global, &shared);
    let (Some(fleet), _) = kept(&mut far).await? else {
        return Err(none());
    };
    let mut report = FleetReport::new(&fleet, Outcome::Stopped);
    if fleet.ended {
        report.outcome = match fleet.leg {
            Leg::There => Outcome::Migrated,
            Leg::Back => Outcome::RolledBack,
        };
    } else {
        report.next = Some(GO_ON.to_owned());
    }
    print(global, &mut shared.borrow_mut(), &report)
}

/// Goes on with one that stopped, or takes it back.
pub(super) async fn go_on(
    global: &Global,
    io: &mut Io<'_>,
    args: &GoOnArgs,
    back: bool,
) -> Result<u8, Failure> {
    let shared = RefCell::new(io);
    let mut far = Far::new(global, &shared);
    let (Some(mut fleet), _) = kept(&mut far).await? else {
        return Err(none());
    };
    if fleet.ended && !back {
        return Err(Failure::from(eyre!(
            "the newest migration of this cluster is over"
        )));
    }
    if fleet.ended && fleet.leg == Leg::Back {
        return Err(Failure::from(eyre!(
            "the newest migration of this cluster was rolled back already"
        )));
    }
    refuse_unattended(&shared.borrow(), fleet.plan.image.as_deref())?;
    let mut interrupts = Interrupts::listen_to_hangup();
    if !args.yes {
        let what = if back { "rollback" } else { "rest" };
        let count = nodes(fleet.plan.nodes.len());
        let what = format!("the {what} of the migration of {count}");
        agree(&shared, &mut interrupts, &what).await?;
    }
    let way = if back { Way::Back } else { Way::On };
    let began = clock::now();
    let ended = travel(global, &shared, &mut far, &mut fleet, way, &mut interrupts).await?;
    let report = outcome(&fleet, ended, began);
    print(global, &mut shared.borrow_mut(), &report)
}

pub(super) fn nodes(count: usize) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} node{s}")
}

fn none() -> Failure {
    Failure::from(eyre!("no migration of this cluster's nodes was begun")).with_hint(
        "`kpx migrate --to MODE --all-nodes` begins one; without --all-nodes it is about this node",
    )
}

/// How to go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Begin,
    On,
    Back,
}

/// Returns what the cluster keeps of the newest migration, and its text.
async fn kept(far: &mut Far<'_, '_, '_>) -> Result<(Option<Fleet>, Option<String>), Failure> {
    let Some(map) = far.object(&state::object()).await? else {
        return Ok((None, None));
    };
    let Some(text) = state::kept(&map) else {
        let what = eyre!(
            "ConfigMap kube-system/{} holds no state of a migration",
            state::NAME
        );
        return Err(Failure::from(what)
            .with_hint("something else made or changed it; delete it if nobody needs it"));
    };
    let fleet = Fleet::parse(text)
        .map_err(|why| eyre!("the state in ConfigMap kube-system/{}: {why}", state::NAME))?;
    Ok((Some(fleet), Some(text.to_owned())))
}

/// Goes through all that is left, while the Lease is held.
async fn travel<'io>(
    global: &Global,
    io: &RefCell<&mut Io<'io>>,
    far: &mut Far<'_, '_, 'io>,
    fleet: &mut Fleet,
    way: Way,
    interrupts: &mut Interrupts,
) -> Result<Ended, Failure> {
    let waits = |holder: &str| {
        let text = format!("kpx: {holder} holds the Lease; waiting for it to expire");
        writeln!(io.borrow_mut().err, "{text}").ok();
    };
    let mut lock = unless_asked(interrupts, Lock::take(&far.live, waits)).await?;
    let ran = locked(global, io, far, fleet, way, &mut lock, interrupts).await;
    lock.release().await;
    // What is drawn ends before the report is printed.
    *far.board.borrow_mut() = Board::default();
    ran
}

async fn locked<'io>(
    global: &Global,
    io: &RefCell<&mut Io<'io>>,
    far: &mut Far<'_, '_, 'io>,
    fleet: &mut Fleet,
    way: Way,
    lock: &mut Lock,
    interrupts: &mut Interrupts,
) -> Result<Ended, Failure> {
    // What was there before the Lease was held may be of yesterday.
    let (now, saved) = kept(far).await?;
    match (way, now) {
        (Way::Begin, Some(other)) if !other.ended => {
            return Err(
                Failure::from(eyre!("somebody else has begun a migration meanwhile"))
                    .with_hint("`kpx migrate status --all-nodes` says which"),
            );
        }
        (Way::Begin, _) | (_, None) => {}
        (_, Some(now)) => *fleet = now,
    }
    far.sweep(&fleet.plan.id).await?;
    if way == Way::Back && fleet.leg == Leg::There {
        fleet.turn("it was asked for");
    }
    fleet.asked |= way == Way::Back;
    *far.board.borrow_mut() = tell::board(global, &io.borrow());
    let mut told = FarTeller::new(global, io, Rc::clone(&far.board), fleet);
    let mut teller = |event: Event<'_>| told.tell(event);
    let (stop, board) = (Rc::clone(&far.stop), Rc::clone(&far.board));
    let asked_twice = async {
        interrupts.next().await;
        stop.set(true);
        if !global.quiet {
            let line = "kpx: stopping after the step in progress; a second signal stops at once";
            board.borrow().say(line, io.borrow_mut().err);
        }
        interrupts.next().await;
    };
    let mut engine = Engine {
        cluster: far,
        saved,
        tell: &mut teller,
        stop: &stop,
    };
    let run = Box::pin(engine.run(fleet));
    let keep = Box::pin(lock.keep());
    let ended = match select(pin!(asked_twice), select(run, keep)).await {
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

fn outcome(fleet: &Fleet, ended: Ended, began: Time) -> FleetReport {
    let (outcome, why) = match ended {
        Ended::Migrated => (Outcome::Migrated, None),
        Ended::RolledBack(_) if fleet.asked => (Outcome::RolledBack, None),
        Ended::RolledBack(why) => (Outcome::Reverted, Some(why)),
        Ended::Stopped(why) => (Outcome::Stopped, Some(why)),
    };
    let mut report = FleetReport::new(fleet, outcome);
    report.why = why;
    report.seconds = Some(clock::now().since(began).as_secs());
    if outcome == Outcome::Stopped {
        report.notes.extend(guarded(fleet));
        report.next = Some(match fleet.leg {
            Leg::There => format!("{GO_ON}, or {GO_BACK}"),
            Leg::Back => GO_ON.to_owned(),
        });
    }
    report
}

/// Says which bridges stand, and who keeps them up to date.
fn guarded(fleet: &Fleet) -> Option<String> {
    let prepared = fleet.nodes.iter();
    let prepared = prepared.filter(|(_, state)| **state == NodeState::Prepared);
    let prepared: Vec<&str> = prepared.map(|(node, _)| node.as_str()).collect();
    (fleet.plan.image.is_some() && fleet.plan.bridges() && !prepared.is_empty()).then(|| {
        format!(
            "a bridge serves {}; its guard, a pod of kpx, stays there and keeps it up to date",
            prepared.join(", ")
        )
    })
}

fn print(global: &Global, io: &mut Io<'_>, report: &FleetReport) -> Result<u8, Failure> {
    if tell::is_lines(global) {
        render::write_line(FleetReport::KIND, report, io.out)?;
        return Ok(report.exit());
    }
    output::finish(global, io, report)
}

/// Looks at the cluster, and plans the move.
async fn look(
    global: &Global,
    far: &mut Far<'_, '_, '_>,
    args: &MigrateArgs,
) -> Result<Outlook, Failure> {
    let to = prospect::to(&args.journey)?;
    prospect::refuse_strays(global, &args.journey)?;
    let items = [Item::Nodes, Item::Pods, Item::DaemonSets, Item::ConfigMaps];
    let evidence = far.read(&items, "").await;
    let node = NodeSnapshot::new(&evidence);
    let wanted: Option<Vec<String>> = match &global.node {
        Some(names) if !args.fleet.all_nodes => Some(
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
        ),
        _ => None,
    };
    let nodes = order::choose(node.nodes()?, node.all_pods()?, wanted.as_deref())
        .hint("--node NAME,NAME chooses nodes")?;
    let store = ConfigSource::find(&node, &nodes[0])?.ready_within(args.fleet.ready_timeout);
    let config = ProxyConfig::parse(store.text())?;
    let from = config.mode_asked().ok_or_else(|| {
        eyre!(
            "{} has mode {:?}, which is none",
            store.place(),
            config.mode
        )
    })?;
    let (there, back) = prospect::fields(&args.journey, &config, from, to);
    let change = store.configure(&there).map_err(unwritable)?;
    if !store.is_shared() {
        let what = eyre!("the configuration is {}, on each node", store.place());
        return Err(
            Failure::from(what).with_hint("`kpx migrate --to MODE` on each node changes it there")
        );
    }
    let began = clock::now();
    let linux = node.nodes()?.iter().filter(|node| is_linux(node));
    let all: BTreeSet<&str> = linux.map(|node| node.metadata.name.as_str()).collect();
    let go_on = &args.journey.go_on;
    let plan = FleetPlan {
        id: prospect::id(began, from, to).to_lowercase(),
        began,
        from,
        back,
        there,
        whole: all.iter().all(|name| nodes.iter().any(|node| node == name)),
        nodes,
        strategy: args.journey.strategy.map(prospect::strategy),
        evict: prospect::consent(&args.journey),
        staged: args.fleet.staged,
        image: args.fleet.image.clone(),
        service_account: args.fleet.service_account.clone(),
        soak: args.fleet.soak.as_secs(),
        ready: args.fleet.ready_timeout.as_secs().max(1),
        skip: args.journey.skip.clone(),
        arguments: arguments(go_on),
        limit: (go_on.confirm_timeout + go_on.drain_timeout).as_secs() + SPARE,
    };
    let fleet = Fleet::new(plan);
    let already = change.steps.is_empty();
    let mut report = FleetReport::new(
        &fleet,
        if already {
            Outcome::Already
        } else {
            Outcome::Planned
        },
    );
    report.id = None;
    report.notes = notes(&fleet.plan, all.len(), &change.notes);
    if !already {
        report.plan = Some(FleetProspect {
            store: store.place().to_string(),
            diff: store.diff(&fleet.plan.there),
            steps: change.steps,
            staged: fleet.plan.staged,
            tasks: fleet.tasks(),
            commands: [Job::Prepare, Job::Finish].map(|job| pod::command(&fleet.plan, job)).to_vec(),
            looks: Vec::new(),
            accepts_loss: false,
            loss: "told by each node before anything is done there, which stops where connections would break; \
                   `kpx migrate --to MODE --dry-run` on a node tells it now"
                .to_owned(),
        });
    }
    Ok(Outlook {
        plan: fleet.plan,
        report,
    })
}

fn is_linux(node: &Node) -> bool {
    let system = node.metadata.labels.get("kubernetes.io/os");
    system.is_none_or(|system| system == "linux")
}

fn unwritable(error: Unwritable) -> Failure {
    match &error {
        Unwritable::ReadOnly { command, .. } => {
            let hint = format!("this is the command for you: {command}");
            Failure::from(error).with_hint(hint)
        }
        _ => error.into(),
    }
}

fn arguments(args: &GoOnArgs) -> Vec<String> {
    let seconds =
        |name: &str, time: std::time::Duration| [name.to_owned(), format!("{}s", time.as_secs())];
    let mut all = Vec::new();
    all.extend(seconds("--confirm-timeout", args.confirm_timeout));
    all.extend(seconds("--drain-timeout", args.drain_timeout));
    if args.lease != LEASE {
        all.extend(seconds("--lease", args.lease));
    }
    all.extend(args.accept_loss.then(|| "--accept-loss".to_owned()));
    all
}

fn notes(plan: &FleetPlan, all: usize, more: &[String]) -> Vec<String> {
    let mut notes = prospect::notes(plan.from, plan.there.mode);
    let (count, others) = (plan.nodes.len(), all - plan.nodes.len().min(all));
    let minutes = (u64::try_from(count)
        .unwrap_or(u64::MAX)
        .saturating_mul(plan.soak + 60))
    .div_ceil(60);
    match (plan.staged, others) {
        (false, 0) => notes.push(format!(
            "the configuration is that of all nodes, and changed before the first is moved: from then on, for about \
             {minutes} minutes, a node that is not moved yet goes to the new mode whenever its kube-proxy happens to \
             restart; --staged closes that window"
        )),
        (false, 1) => notes.push(
            "the configuration is that of all nodes: from its change on, and after the end, the 1 node that is not moved \
             goes to the new mode whenever its kube-proxy happens to restart; --staged keeps it where it is"
                .to_owned(),
        ),
        (false, others) => notes.push(format!(
            "the configuration is that of all nodes: from its change on, and after the end, the {others} nodes that are not \
             moved go to the new mode whenever their kube-proxy happens to restart; --staged keeps them where they are"
        )),
        (true, 0) => notes.push(
            "at the end each node goes back to the first DaemonSet, which then replaces its pods once more, all in the new \
             mode"
                .to_owned(),
        ),
        (true, 1) => notes.push(
            "1 node is not moved, so the copies of ConfigMap and DaemonSet stay".to_owned(),
        ),
        (true, others) => notes.push(format!(
            "{others} nodes are not moved, so the copies of ConfigMap and DaemonSet stay"
        )),
    }
    if plan.image.is_none() {
        notes.push(
            "without --image nobody looks at the nodes themselves: the commands are told when their time has come, and \
             what the API server tells of kube-proxy's pods is all that is seen of them"
                .to_owned(),
        );
    }
    notes.extend(more.iter().cloned());
    notes
}
