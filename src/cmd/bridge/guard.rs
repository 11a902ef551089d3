//! The guard: removes the bridge once the mode behind it is complete, whatever became of the kpx that relied on it.

use std::env;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use color_eyre::eyre::{Report, eyre};
use futures_util::future::select;

use super::follow::{Picture, keep_routes, stands};
use crate::action::Action;
use crate::apply::{self, Apply as _};
use crate::backend::Mode;
use crate::bridge;
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

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// What tells, at little cost, whether it is worth while to compare everything.
const SIGNS: &[Item] = &[Item::ProxyConfig, Item::ProxyMode, Item::Metrics];

/// Starts a guard that goes on when this process does not, by systemd where it runs; returns once there is one.
pub(in crate::cmd) async fn start(global: &Global, mode: Mode) -> Result<(), Failure> {
    let program = env::current_exe()?.display().to_string();
    let mut command = vec![program];
    command.extend(arguments(global));
    command.extend(["bridge", "guard", "--mode", mode.name()].map(str::to_owned));
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

/// Guards until the bridge is gone. While it waits, and nobody else changes the node, it follows the cluster.
pub(in crate::cmd) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    if global.from.is_some() {
        return Err(Failure::usage("a bundle needs no guard: leave --from out"));
    }
    let _guard = Guard::new(&options(global)).hint("one guard is enough: it is there")?;
    let mode = crate::cmd::diff::mode_of(global, io, args.mode).await?;
    let mut picture = None;
    let mut stale = true;
    let mut said = String::new();
    loop {
        if !stands(global).await? && !has_routes(global).await? {
            writeln!(io.err, "kpx: no bridge stands: there is nothing to guard")?;
            return Ok(CLEAN);
        }
        let waits = match Live::new(&options(global)) {
            Err(Locked::Held(_)) => {
                stale = true;
                "another kpx is at work on this node".to_owned()
            }
            Err(failed) => return Err(failed.into()),
            Ok(mut node) => match complete(global, io).await? {
                Ok(()) => {
                    remove(global, io, &mut node).await?;
                    writeln!(
                        io.err,
                        "kpx: the bridge is removed: what is behind it is complete"
                    )?;
                    return Ok(CLEAN);
                }
                Err(why) => {
                    if let Some(picture) = &picture {
                        stale = refresh(global, picture, &mut node, stale).await.is_err();
                    }
                    why.to_string()
                }
            },
        };
        if waits != said {
            writeln!(io.err, "kpx: the bridge stays: {waits}")?;
            said = waits;
        }
        if picture.is_none() && !global.no_api && global.cluster_from.is_none() {
            picture = Picture::take(global, mode).await.ok();
        }
        stale |= pause(picture.as_mut()).await;
    }
}

/// Waits; not as long where the cluster changes, which is told.
async fn pause(picture: Option<&mut Picture>) -> bool {
    let Some(picture) = picture else {
        clock::pause(PAUSE).await;
        return false;
    };
    let mut changed = false;
    {
        let change = pin!(async {
            changed = picture.change().await.is_ok();
        });
        select(change, pin!(clock::pause(PAUSE))).await;
    }
    changed
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
        .filter(|change| change.layer != Layer::Sysctl)
        .count();
    if missing > 0 {
        return Err(eyre!("mode {mode} is not complete: {missing} differences"));
    }
    Ok(())
}

/// Keeps the routes, and where it is `stale` replaces the bridge by the one of the cluster as it is now.
async fn refresh(
    global: &Global,
    picture: &Picture,
    node: &mut Live,
    stale: bool,
) -> Result<(), Report> {
    let (tables, served) = picture.tables()?;
    if stale {
        let input = bridge::text(&tables);
        node.apply(&Action::Nft { input }).await?;
    }
    keep_routes(global, node, &served).await?;
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
