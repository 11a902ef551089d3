//! The guard: keeps the bridge when the kpx that relied on it does not any more, and removes it once the mode behind it is
//! complete.

use std::env;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use color_eyre::eyre::{Report, eyre};
use futures_util::future::select;

use super::follow::{Picture, keep_routes, stands};
use super::keep::{Keeper, Order, held};
use crate::action::Action;
use crate::apply::{self, Apply as _};
use crate::backend::Mode;
use crate::bridge::{self, Held};
use crate::cli::{BridgeArgs, Global};
use crate::cmd::failure::{Failure, Hint as _};
use crate::cmd::{Io, families, gather, migrate, options};
use crate::diff::{self, Layer};
use crate::evidence::{Gap, Item};
use crate::host::{self, Guard, Live, Locked, clock};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::plan;
use crate::report::CLEAN;

/// How long to wait between two looks at the node.
const PAUSE: Duration = Duration::from_secs(2);

/// How long to wait between two tries to have the lock, while another kpx has it: when that ends, nobody keeps the bridge up
/// to date.
const STEP: Duration = Duration::from_millis(200);

/// How many of these there are between two looks at the lease.
const LOOKS: u32 = 10;

/// How often the lock of the guard is tried before somebody is taken to have it.
const TRIES: u32 = 5;

/// How long a guard waits for the bridge of the kpx that starts it.
const AWAIT: &str = "--await=60s";

/// What tells, at little cost, whether it is worth while to compare everything.
const SIGNS: &[Item] = &[Item::ProxyConfig, Item::ProxyMode, Item::Metrics];

/// Starts a guard that goes on when this process does not, by systemd where it runs; returns once there is one.
/// It keeps the bridge with a lease of `time` when this process does not.
pub(in crate::cmd) async fn start(
    global: &Global,
    mode: Mode,
    time: Duration,
) -> Result<(), Failure> {
    let program = env::current_exe()?.display().to_string();
    let mut command = vec![program];
    command.extend(arguments(global));
    command.extend(["bridge", "guard", AWAIT, "--mode", mode.name()].map(str::to_owned));
    command.push(format!("--lease={}s", time.as_secs()));
    let started = host::start_guard(&options(global), &command).await;
    started.hint("without a guard, the bridge would stay if kpx was killed")
}

/// Returns the arguments that say the same of the node and its cluster as `global`.
fn arguments(global: &Global) -> Vec<String> {
    let path = |path: &PathBuf| path.display().to_string();
    let mut args = vec![format!("--timeout={}ms", global.timeout.as_millis())];
    for (name, value) in [
        ("cluster-from", global.cluster_from.as_ref().map(path)),
        ("kubeconfig", global.kubeconfig.as_ref().map(path)),
        ("root", global.root.as_ref().map(path)),
        ("context", global.context.clone()),
        ("node", global.node.clone()),
        ("netns", global.netns.clone()),
    ] {
        args.extend(value.map(|value| format!("--{name}={value}")));
    }
    if global.no_api {
        args.push("--no-api".to_owned());
    }
    if let [one] = families(global)[..] {
        let bits = if one == Family::V4 { 4 } else { 6 };
        args.push(format!("--family={bits}"));
    }
    args
}

/// Guards until the bridge is gone. While it waits, and nobody else changes the node, it follows the cluster, and renews the
/// lease.
pub(in crate::cmd) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    if global.from.is_some() {
        return Err(Failure::usage("a bundle needs no guard: leave --from out"));
    }
    let mut only = Some(only(global, io, args).await?);
    let mut guard = Watcher {
        mode: crate::cmd::diff::mode_of(global, io, args.mode).await?,
        keeper: Keeper::start(global, args.lease, "kpx bridge guard", Order::Rest)?,
        picture: None,
        blind: false,
        stale: true,
        said: String::new(),
    };
    let (mut seen, mut waited) = (false, Duration::ZERO);
    let mut turns = 0;
    loop {
        let pause = match Live::new(&options(global)) {
            Err(Locked::Held(_)) => {
                guard.stale = true;
                if turns % LOOKS == 0 {
                    seen |= guard.stand_by(global, io).await;
                }
                turns += 1;
                STEP
            }
            Err(failed) => return Err(failed.into()),
            Ok(mut node) => {
                turns = 0;
                // Looked at while nobody else can change it.
                match is_there(global).await {
                    Ok(true) => {
                        seen = true;
                        if guard.tend(global, io, &mut node).await {
                            // Whoever changes the node next finds no guard that is about to end.
                            drop(only.take());
                            return Ok(CLEAN);
                        }
                    }
                    Ok(false) if seen || waited >= args.awaits => {
                        drop(only.take());
                        writeln!(io.err, "kpx: no bridge stands: there is nothing to guard")?;
                        return Ok(CLEAN);
                    }
                    Ok(false) => {
                        waited += PAUSE;
                        guard.say(io, "waiting for a bridge to guard");
                    }
                    Err(gap) => {
                        guard.say(io, &format!("whether a bridge stands is not known: {gap}"));
                    }
                }
                PAUSE
            }
        };
        if guard.picture.is_none() && !is_fixed(global) {
            guard.picture = Picture::take(global, guard.mode).await.ok();
        }
        guard.wait(pause).await;
    }
}

/// Becomes the only guard of the node; another one is waited for where that is asked for.
async fn only(global: &Global, io: &mut Io<'_>, args: &BridgeArgs) -> Result<Guard, Failure> {
    let mut told = false;
    let mut tries = 0;
    loop {
        let held = match Guard::new(&options(global)) {
            Ok(guard) => return Ok(guard),
            Err(held @ Locked::Held(_)) => held,
            Err(failed) => return Err(failed.into()),
        };
        tries += 1;
        if args.awaits.is_zero() && tries > TRIES {
            return Err(held).hint("one guard is enough: it is there");
        }
        // Whoever only asks whether there is a guard holds the lock for a moment.
        if !told && tries > TRIES {
            writeln!(io.err, "kpx: another guard runs: waiting for its end")?;
            told = true;
        }
        clock::pause(STEP).await;
    }
}

/// Returns whether the cluster is one that does not change.
fn is_fixed(global: &Global) -> bool {
    global.no_api || global.cluster_from.is_some()
}

/// Returns whether there is a bridge, or something of it.
async fn is_there(global: &Global) -> Result<bool, Gap> {
    Ok(stands(global).await? || has_routes(global).await?)
}

/// What a guard knows.
struct Watcher {
    /// The mode as which the bridge serves.
    mode: Mode,
    keeper: Keeper,
    picture: Option<Picture>,
    /// Whether the cluster cannot be watched just now.
    blind: bool,
    /// Whether the bridge is to be loaded anew.
    stale: bool,
    said: String,
}

impl Watcher {
    /// Tells why the bridge stays, unless that was told last.
    fn say(&mut self, io: &mut Io<'_>, what: &str) {
        if self.said != what {
            // Nobody may be reading any more; the guard goes on.
            writeln!(io.err, "kpx: {what}").ok();
            what.clone_into(&mut self.said);
        }
    }

    /// Leaves the bridge to the kpx that changes the node; returns whether there is one. Where that kpx does not renew the
    /// lease, the bridge is kept only while nothing else serves: it may be out of date.
    async fn stand_by(&mut self, global: &Global, io: &mut Io<'_>) -> bool {
        let held = held(global).await.ok().flatten();
        let is_left = matches!(held, Some(Held::Left { .. }));
        let is_kept = held.as_ref().is_some_and(Held::is_kept);
        let needed = is_left && !is_kept && !serves(global, io).await;
        let order = if needed { Order::Keep } else { Order::Rest };
        self.keeper.order(order);
        self.say(io, "the bridge stays: another kpx is at work on this node");
        held.is_some()
    }

    /// Removes the bridge if the mode behind it is complete, and else keeps it; returns whether it was removed.
    async fn tend(&mut self, global: &Global, io: &mut Io<'_>, node: &mut Live) -> bool {
        // First of all: whoever kept it up to date may be gone for a while.
        self.refresh(global, io, node).await;
        let why = match complete(global, io).await {
            Ok(Ok(())) => match remove(global, io, node).await {
                Ok(()) => {
                    self.say(io, "the bridge is removed: what is behind it is complete");
                    return true;
                }
                Err(failure) => format!("it cannot be removed: {failure}"),
            },
            Ok(Err(why)) => why.to_string(),
            Err(failure) => failure.to_string(),
        };
        let order = if is_fixed(global) {
            Order::Revive
        } else if self.follows() {
            Order::Keep
        } else if serves(global, io).await {
            Order::Rest
        } else {
            Order::Revive
        };
        self.keeper.order(order);
        let why = if order == Order::Rest {
            format!("{why}; its lease ends, as the cluster cannot be watched and kube-proxy serves")
        } else {
            why
        };
        self.say(io, &format!("the bridge stays: {why}"));
        false
    }

    fn follows(&self) -> bool {
        self.picture.is_some() && !self.blind
    }

    /// Keeps the routes, and replaces a bridge that is out of date, or whose lease is over, by that of the cluster as it is
    /// now.
    async fn refresh(&mut self, global: &Global, io: &mut Io<'_>, node: &mut Live) {
        self.stale |= self.keeper.has_lost();
        if let Some(why) = self.keeper.trouble() {
            // Nobody may be reading any more; the guard goes on.
            writeln!(
                io.err,
                "kpx: cannot renew the lease of the bridge: {why}; trying again"
            )
            .ok();
        }
        let mode = migrate::served(global).unwrap_or(self.mode);
        if mode != self.mode {
            // It was begun, or turned back, since the picture was taken.
            self.mode = mode;
            self.picture = Picture::take(global, mode).await.ok();
            self.stale = true;
        }
        if !self.follows() {
            return;
        }
        let Some(picture) = &self.picture else {
            return;
        };
        let done = async {
            let (tables, served) = picture.tables(self.keeper.lease())?;
            if self.stale && stands(global).await? {
                let input = bridge::text(&tables);
                node.apply(&Action::Nft { input }).await?;
            }
            keep_routes(global, node, &served).await?;
            Ok::<(), Report>(())
        };
        self.stale = done.await.is_err();
    }

    /// Waits; not as long where the cluster changes.
    async fn wait(&mut self, pause: Duration) {
        let Some(picture) = &mut self.picture else {
            clock::pause(pause).await;
            return;
        };
        let mut changed = None;
        {
            let change = pin!(async { changed = Some(picture.change().await.is_ok()) });
            select(change, pin!(clock::pause(pause))).await;
        }
        if let Some(seen) = changed {
            self.stale |= seen;
            self.blind = !seen;
        }
    }
}

/// Returns whether kube-proxy answers, and has written rules since it started.
async fn serves(global: &Global, io: &Io<'_>) -> bool {
    let Ok(signs) = gather(global, io, SIGNS).await else {
        return false;
    };
    let node = NodeSnapshot::new(&signs);
    let synced = |family| {
        let metrics = node.metrics();
        metrics.is_ok_and(|of| of.has_synced(&[family]) == Some(true))
    };
    node.reported_mode().is_ok() && Family::BOTH.into_iter().any(synced)
}

/// Says why the mode behind the bridge is not complete, if it is not.
async fn complete(global: &Global, io: &Io<'_>) -> Result<Result<(), Report>, Failure> {
    if migrate::is_prepared(global)? {
        let why = "a migration is prepared, and kube-proxy is yet to be restarted by somebody else";
        return Ok(Err(eyre!(why)));
    }
    let signs = gather(global, io, SIGNS).await?;
    let mode = match settled(&NodeSnapshot::new(&signs)) {
        Ok(mode) => mode,
        Err(why) => return Ok(Err(why)),
    };
    let evidence = gather(global, io, &diff::needs(mode)).await?;
    let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
    Ok(written(&node, mode, &families(global)))
}

/// Returns the mode that kube-proxy is configured for, and runs in.
fn settled(node: &NodeSnapshot<'_>) -> Result<Mode, Report> {
    let (mode, configured) = (node.reported_mode()?, node.configured_mode()?);
    if mode == configured {
        Ok(mode)
    } else {
        Err(eyre!(
            "kube-proxy runs in mode {mode}, and is configured for mode {configured}"
        ))
    }
}

/// Says whether kube-proxy has synced since it started, and all that its Services ask for is there.
fn written(node: &NodeSnapshot<'_>, mode: Mode, families: &[Family]) -> Result<(), Report> {
    let desired = node.desired(mode)?;
    let served: Vec<_> = desired.families.iter().map(|of| of.family).collect();
    match node.metrics()?.has_synced(&served) {
        Some(true) => {}
        Some(false) => return Err(eyre!("kube-proxy has not synced since it started")),
        None => return Err(eyre!("kube-proxy does not say when it started")),
    }
    let found = diff::compare(node, mode, families)?;
    if let Some((what, gap)) = found.unknown.first() {
        return Err(eyre!("{what} cannot be compared: {gap}"));
    }
    let missing = found
        .changes
        .iter()
        .filter(|change| change.layer() != Layer::Sysctl)
        .count();
    if missing > 0 {
        return Err(eyre!("mode {mode} is not complete: {missing} differences"));
    }
    Ok(())
}

/// Returns whether routes of kpx's are there: where it was killed while it took the bridge down by hand.
async fn has_routes(global: &Global) -> Result<bool, Gap> {
    let evidence = host::collect(plan::ROUTE_NEEDS, &options(global)).await;
    plan::has_routes(&NodeSnapshot::new(&evidence))
}

async fn remove(global: &Global, io: &Io<'_>, node: &mut Live) -> Result<(), Failure> {
    let evidence = gather(global, io, plan::BRIDGE_DOWN).await?;
    let plan = plan::bridge_down(&NodeSnapshot::new(&evidence), &families(global))?;
    let ended = apply::run(&plan, node, |_| {}).await;
    ended.map_err(|stopped| Failure::from(eyre!(stopped.error)))
}
