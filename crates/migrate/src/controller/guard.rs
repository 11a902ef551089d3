//! The guard: keeps the bridge when the kpx that loaded it no longer does, and removes it once kube-proxy serves alone.

use std::time::Duration;

use thiserror::Error;

use super::keep::{Order, held};
use super::{ControllerError, GuardedNode, Picture, has_bridge, keep_routes};
use kpx_judge::bridge::{self, Held};
use kpx_judge::diff::{self, Layer, Unknown};
use kpx_judge::plan;
use kpx_node::action::Action;
use kpx_node::apply;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::words::number_of;

/// How long a guard waits between two checks of the node.
const PAUSE: Duration = Duration::from_secs(2);

/// How long a guard waits before it tries the lock again: while another kpx that has ended still counts as the holder,
/// nothing keeps the bridge up to date.
const STEP: Duration = Duration::from_millis(200);

/// The number of these steps between two checks of the lease.
const STEPS: u32 = 10;

/// How often a guard tries to become the only one before it reports another guard.
const TRIES: u32 = 5;

/// What a guard reports while there is no bridge.
pub const NO_BRIDGE: &str = "waiting for a bridge to guard";

/// What a guard reports after it has loaded a bridge again.
const DELETED: &str =
    "another program deleted the bridge, so new connections may have failed; it is loaded again";

/// Cheap items that show whether a full comparison is needed.
const SIGNS: &[Item] = &[Item::ProxyConfig, Item::ProxyMode, Item::Metrics];

/// Why a guard ended early.
#[derive(Debug, Error)]
pub enum GuardError {
    /// Another guard runs.
    #[error("another guard of the bridge runs on this node")]
    Another,
    /// It failed.
    #[error(transparent)]
    Failed(#[from] ControllerError),
}

/// A guard at work.
struct Guard<'g, N> {
    node: N,
    /// The mode that the bridge serves as.
    mode: Mode,
    picture: Option<Picture>,
    /// Whether the cluster cannot be watched at the moment.
    blind: bool,
    /// Whether the bridge has to be loaded again.
    stale: bool,
    /// The last line that was reported.
    last: String,
    notify: &'g mut dyn FnMut(&str),
}

/// Guards the bridge of `node`, which serves as `mode`, until it is removed. Waits at least for `awaits` for the bridge to be
/// loaded.
///
/// While no other kpx holds the lock of the node, the guard follows the cluster and renews the lease. `notify` takes a line
/// to print.
pub async fn run<N: GuardedNode>(
    mut node: N,
    mode: Mode,
    awaits: Duration,
    notify: &mut dyn FnMut(&str),
) -> Result<(), GuardError> {
    be_the_only_one(&mut node, awaits, notify).await?;
    let mut guard = Guard {
        node,
        mode,
        picture: None,
        blind: false,
        stale: true,
        last: String::new(),
        notify,
    };
    let (mut seen, mut waited) = (false, Duration::ZERO);
    let mut steps = 0;
    loop {
        let pause = if guard.node.lock()? {
            steps = 0;
            // Checked under the lock: nothing else can remove it meanwhile.
            match is_there(&mut guard.node).await {
                Ok(true) => {
                    seen = true;
                    if guard.tend().await {
                        return Ok(());
                    }
                }
                // Another program deleted it.
                Ok(false) if guard.is_needed() => {
                    seen = true;
                    if guard.tend().await {
                        return Ok(());
                    }
                }
                Ok(false) if seen || waited >= awaits => {
                    guard.disclaim();
                    (guard.notify)("no bridge to guard");
                    return Ok(());
                }
                Ok(false) => {
                    waited += PAUSE;
                    guard.report(NO_BRIDGE);
                }
                Err(gap) => {
                    guard.report(&format!("cannot check whether the bridge exists: {gap}"));
                }
            }
            guard.node.unlock();
            PAUSE
        } else {
            guard.stale = true;
            if steps % STEPS == 0 {
                seen |= guard.stand_by().await;
            }
            steps += 1;
            STEP
        };
        if guard.picture.is_none() && !guard.node.is_fixed() {
            guard.picture = Picture::take(&mut guard.node, guard.mode).await.ok();
        }
        guard.wait(pause).await;
    }
}

/// Becomes the only guard of the node; with `awaits`, waits until another one has ended.
async fn be_the_only_one<N: GuardedNode>(
    node: &mut N,
    awaits: Duration,
    notify: &mut dyn FnMut(&str),
) -> Result<(), GuardError> {
    let mut told = false;
    let mut tries = 0;
    while !node.claim()? {
        tries += 1;
        if awaits.is_zero() && tries > TRIES {
            return Err(GuardError::Another);
        }
        // A process that only checks whether there is a guard holds the claim for a moment.
        if !told && tries > TRIES {
            notify("another guard runs: waiting for it to end");
            told = true;
        }
        node.pause(STEP).await;
    }
    Ok(())
}

/// Returns whether there is a bridge, or a part of one: routes stay if kpx is killed while it removes the bridge.
async fn is_there<N: GuardedNode>(node: &mut N) -> Result<bool, Gap> {
    if has_bridge(node).await? {
        return Ok(true);
    }
    let evidence = node.read(plan::ROUTE_NEEDS).await;
    plan::has_routes(&NodeSnapshot::new(&evidence))
}

impl<N: GuardedNode> Guard<'_, N> {
    /// Reports `line`, unless it was the last one.
    fn report(&mut self, line: &str) {
        if self.last != line {
            (self.notify)(line);
            line.clone_into(&mut self.last);
        }
    }

    /// Stops being the guard, then releases the lock: the next process that locks the node must not find a guard that is
    /// about to end.
    fn disclaim(&mut self) {
        self.node.disclaim();
        self.node.unlock();
    }

    /// Leaves the bridge to the kpx that holds the lock; returns whether there is a bridge. If that kpx does not renew the
    /// lease, the guard keeps it only while kube-proxy does not serve: the bridge may be out of date.
    async fn stand_by(&mut self) -> bool {
        let held = held(&mut self.node).await.ok().flatten();
        let is_left = matches!(held, Some(Held::Left { .. }));
        let is_kept = held.as_ref().is_some_and(Held::is_kept);
        let needed = is_left && !is_kept && !self.proxy_serves().await;
        let order = if needed { Order::Keep } else { Order::Rest };
        self.node.keeper().order(order);
        self.report(match held {
            Some(_) => "the bridge stays: another kpx is changing this node",
            None => NO_BRIDGE,
        });
        held.is_some()
    }

    /// Removes the bridge if kube-proxy serves alone, and keeps it otherwise; returns whether it was removed.
    async fn tend(&mut self) -> bool {
        // The bridge may be out of date: update it first.
        self.refresh().await;
        if self.is_needed() && has_bridge(&mut self.node).await == Ok(false) {
            let why = if self.follows() {
                "retrying"
            } else {
                "kpx cannot watch the cluster"
            };
            self.report(&format!(
                "another program deleted the bridge, and it is not loaded again yet: {why}"
            ));
            return false;
        }
        let why = match self.incomplete().await {
            Ok(None) => match self.remove().await {
                Ok(()) => {
                    self.disclaim();
                    self.report("the bridge is removed: kube-proxy's rules are complete");
                    return true;
                }
                Err(error) => format!("cannot remove it: {}", error.in_full()),
            },
            Ok(Some(why)) => why,
            Err(error) => error.in_full(),
        };
        let order = if self.node.is_fixed() {
            Order::Revive
        } else if self.follows() {
            Order::Keep
        } else if self.proxy_serves().await {
            Order::Rest
        } else {
            Order::Revive
        };
        self.node.keeper().order(order);
        let why = if order == Order::Rest {
            format!(
                "{why}; its lease is not renewed, because kpx cannot watch the cluster and kube-proxy serves"
            )
        } else {
            why
        };
        self.report(&format!("the bridge stays: {why}"));
        false
    }

    /// Returns whether a migration needs the bridge: it has loaded it, and kube-proxy does not serve alone yet.
    fn is_needed(&mut self) -> bool {
        let migration = self.node.migration().ok().flatten();
        migration.is_some_and(|migration| migration.is_bridged())
    }

    fn follows(&self) -> bool {
        self.picture.is_some() && !self.blind
    }

    /// Updates the routes, and loads the bridge again if it is out of date or its lease has expired.
    async fn refresh(&mut self) {
        self.stale |= self.node.keeper().has_lost();
        if let Some(why) = self.node.keeper().error() {
            (self.notify)(&format!(
                "cannot renew the lease of the bridge: {why}; retrying"
            ));
        }
        let migration = self.node.migration().ok().flatten();
        let migration = migration.filter(|migration| !migration.ended);
        let mode = migration.map_or(self.mode, |migration| migration.served());
        if mode != self.mode {
            // The migration began, or was rolled back, after the picture was taken.
            self.mode = mode;
            self.picture = Picture::take(&mut self.node, mode).await.ok();
            self.stale = true;
        }
        if self.follows() {
            self.stale = self.update().await.is_err();
        }
    }

    async fn update(&mut self) -> Result<(), ControllerError> {
        let Some(picture) = &self.picture else {
            return Ok(());
        };
        let lease = self.node.keeper().lease().clone();
        let (tables, served) = picture.tables(&mut self.node, &lease)?;
        let is_gone = !has_bridge(&mut self.node).await?;
        if self.stale && !is_gone || is_gone && self.is_needed() {
            let input = bridge::text(&tables);
            self.node.apply(&Action::Nft { input }).await?;
            if is_gone {
                self.report(DELETED);
                if let Err(error) = self.node.record_gap() {
                    self.report(&error.in_full());
                }
            }
        }
        keep_routes(&mut self.node, &served).await?;
        Ok(())
    }

    /// Waits for `pause`, or until the cluster changes.
    async fn wait(&mut self, pause: Duration) {
        if self.picture.is_none() {
            self.node.pause(pause).await;
            return;
        }
        if let Some(changed) = self.node.change(pause).await {
            self.stale |= changed.is_ok();
            self.blind = changed.is_err();
        }
    }

    /// Returns whether kube-proxy answers and has written rules since it started.
    async fn proxy_serves(&mut self) -> bool {
        let signs = self.node.read(SIGNS).await;
        let node = NodeSnapshot::new(&signs);
        let synced = |family| {
            let metrics = node.metrics();
            metrics.is_ok_and(|metric| metric.has_synced(&[family]) == Some(true))
        };
        node.reported_mode().is_ok() && Family::BOTH.into_iter().any(synced)
    }

    /// Returns why kube-proxy's mode is not complete without the bridge; `None` if it is.
    async fn incomplete(&mut self) -> Result<Option<String>, ControllerError> {
        let migration = self.node.migration()?;
        if migration.is_some_and(|migration| migration.is_prepared()) {
            let why = "a migration is prepared, and kube-proxy is not restarted yet";
            return Ok(Some(why.to_owned()));
        }
        let signs = self.node.read(SIGNS).await;
        let mode = match settled(&NodeSnapshot::new(&signs))? {
            Ok(mode) => mode,
            Err(why) => return Ok(Some(why)),
        };
        let evidence = self.node.read(&diff::needs(mode)).await;
        let node = NodeSnapshot::new(&evidence).called(self.node.name());
        Ok(unwritten(&node, mode, self.node.families())?)
    }

    async fn remove(&mut self) -> Result<(), ControllerError> {
        let evidence = self.node.read(plan::BRIDGE_DOWN).await;
        let plan = plan::bridge_down(&NodeSnapshot::new(&evidence), self.node.families())?;
        let ended = apply::run(&plan, &mut self.node, |_| {}).await;
        ended.map_err(|stopped| ControllerError::Step(stopped.error))
    }
}

/// Returns the mode that kube-proxy is configured for and runs in, or why these differ.
fn settled(node: &NodeSnapshot<'_>) -> Result<Result<Mode, String>, Gap> {
    let (mode, configured) = (node.reported_mode()?, node.configured_mode()?);
    Ok(if mode == configured {
        Ok(mode)
    } else {
        Err(format!(
            "kube-proxy runs in mode {mode} and is configured for mode {configured}"
        ))
    })
}

/// Returns why the rules that kube-proxy writes in `mode` are not complete; `None` if they are.
fn unwritten(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
) -> Result<Option<String>, Gap> {
    let desired = node.desired(mode)?;
    let served: Vec<_> = desired
        .families
        .iter()
        .map(|family| family.family)
        .collect();
    match node.metrics()?.has_synced(&served) {
        Some(true) => {}
        Some(false) => {
            return Ok(Some(
                "kube-proxy has not synced since it started".to_owned(),
            ));
        }
        None => {
            return Ok(Some(
                "kube-proxy does not report when it started".to_owned(),
            ));
        }
    }
    let found = diff::compare(node, mode, families)?;
    if let Some(Unknown { what, gap, .. }) = found.unknown.first() {
        return Ok(Some(format!("cannot compare {what}: {gap}")));
    }
    let changes = found.changes.iter();
    let missing = changes.filter(|change| change.layer() != Layer::Sysctl);
    Ok(match missing.count() {
        0 => None,
        count => Some(format!(
            "mode {mode} is not complete: {}",
            number_of(count, "difference")
        )),
    })
}
