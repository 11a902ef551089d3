//! Keeping the bridge up to date with the cluster.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use color_eyre::eyre::{Report, WrapErr as _, eyre};
use futures_util::future::{Either, select};

use super::keep::{Keeper, Order};
use super::{UNKNOWN, needs};
use crate::action::Action;
use crate::apply::Apply as _;
use crate::backend::Mode;
use crate::backend::nftables::model::Table;
use crate::bridge::{self, Lease, Marks, TABLE, Unbuildable};
use crate::cli::{BridgeArgs, Global};
use crate::cmd::change::open_after_guard;
use crate::cmd::failure::{Failure, Hint as _};
use crate::cmd::{Io, families, options, read};
use crate::evidence::{Gap, Item};
use crate::host::{self, Live, Watch, clock};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::node::desired::Basis;
use crate::plan::{self, Plan, Served};
use crate::render::Progress;
use crate::report::{CLEAN, FAILED};

/// Between two looks at the addresses that kube-ipvs0 holds.
const LOOK: Duration = Duration::from_secs(1);

/// Follows until it is asked to end, or the bridge is removed.
pub(in crate::cmd) async fn run(
    global: &Global,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    if global.from.is_some() || global.cluster_from.is_some() {
        let why =
            "a bundle does not change: `bridge follow` takes neither --from nor --cluster-from";
        return Err(Failure::usage(why));
    }
    let mode = crate::cmd::diff::mode_of(global, io, args.mode).await?;
    let node = open_after_guard(global).await?;
    if !stands(global).await? {
        let failure = Failure::from(eyre!("there is no bridge to follow the cluster with"));
        return Err(failure.with_hint("`kpx bridge up --apply` loads one"));
    }
    let keeper = Keeper::start(global, args.lease, "kpx bridge follow", Order::Keep)?;
    let mut follower = Follower::start(node, global, mode, keeper).await?;
    let quiet = global.quiet;
    let mut tell = |text: String| {
        if !quiet {
            // Nobody may be reading any more; the bridge goes on.
            writeln!(io.err, "kpx: {text}").ok();
        }
    };
    let lease = args.lease.as_secs();
    tell(format!(
        "following the cluster; Ctrl-C ends that, and the bridge stops serving new connections {lease} s later"
    ));
    let never = Cell::new(false);
    let until_removed = pin!(follower.follow(&never, &mut tell));
    match select(until_removed, pin!(clock::interrupted())).await {
        Either::Left(((), _)) => Ok(FAILED),
        Either::Right(((), _)) => Ok(CLEAN),
    }
}

/// Returns whether the bridge stands, for every family that is asked for.
pub(super) async fn stands(global: &Global) -> Result<bool, Gap> {
    let tables = host::nft_tables(&options(global)).await?;
    Ok(tables.iter().any(|(_, name)| name == TABLE))
}

/// Brings kpx's routes in step with the addresses that kube-ipvs0 holds, while the bridge stands; returns what was done,
/// in words.
pub(super) async fn keep_routes(
    global: &Global,
    node: &mut Live,
    served: &Served,
) -> Result<Vec<String>, Report> {
    let evidence = host::collect(plan::ROUTE_NEEDS, &options(global)).await;
    let plan = plan::routes_up(&NodeSnapshot::new(&evidence), served, &families(global))?;
    if plan.steps.is_empty() || !stands(global).await? {
        return Ok(Vec::new());
    }
    carry_out(&plan, node).await
}

/// Removes kpx's routes; returns what was done, in words.
pub(super) async fn remove_routes(global: &Global, node: &mut Live) -> Result<Vec<String>, Report> {
    let evidence = host::collect(plan::ROUTE_NEEDS, &options(global)).await;
    let plan = plan::routes_down(&NodeSnapshot::new(&evidence), &families(global))?;
    carry_out(&plan, node).await
}

async fn carry_out(plan: &Plan, node: &mut Live) -> Result<Vec<String>, Report> {
    for step in &plan.steps {
        node.apply(&step.action).await?;
    }
    Ok(plan.steps.iter().map(|step| step.title.clone()).collect())
}

/// What the bridge is built from: the node as it was read once, and the cluster as it is now.
pub(super) struct Picture {
    watch: Watch,
    basis: Basis,
    families: Vec<Family>,
    marks: Marks,
}

impl Picture {
    /// Reads the node, and begins to watch the cluster.
    pub(super) async fn take(global: &Global, mode: Mode) -> Result<Self, Failure> {
        let mut items = needs();
        items.retain(|item| !matches!(item, Item::Services | Item::EndpointSlices));
        let evidence = read(global, &items, &Progress::silent()).await?;
        let node = NodeSnapshot::new(&evidence).called(global.node.as_deref());
        let known = || -> Result<_, Unbuildable> {
            node.nodes()?;
            let basis = node.basis(mode)?;
            let marks = bridge::marks(&node, &basis.desired(&[], &[]))?;
            Ok((basis, marks))
        };
        let (basis, marks) = known().hint(UNKNOWN)?;
        let watch = Watch::start(&options(global)).await;
        Ok(Self {
            watch: watch.hint("deploy/rbac.yaml lists what must be allowed")?,
            basis,
            families: families(global),
            marks,
        })
    }

    /// Waits for a change of the cluster.
    pub(super) async fn change(&mut self) -> Result<(), Gap> {
        self.watch.next().await
    }

    /// Returns the tables that should stand now, with `lease`, and what routes depend on.
    pub(super) fn tables(&self, lease: &Lease) -> Result<(Vec<Table>, Served), Gap> {
        let (services, slices) = (self.watch.services(), self.watch.slices());
        let state = self.basis.desired(&services, &slices);
        let tables = bridge::tables(&state, &self.families, self.marks, lease)?;
        Ok((tables, Served::of(&state)))
    }
}

/// Follows the cluster with the bridge: beside other work, by `select(work, follower.follow(…))`.
///
/// A change that has begun is carried out wholly, whenever that is dropped. When the follower is, what stands is the
/// bridge of the last change that was told.
pub(in crate::cmd) struct Follower {
    global: Global,
    node: Live,
    picture: Picture,
    keeper: Keeper,
    standing: Vec<Table>,
    served: Served,
    /// Whether the tables are known to be `standing`.
    sure: bool,
}

impl Follower {
    /// Loads the bridge that `node` should have in `mode` now, in the place of the one that stands; `keeper` keeps it.
    pub(in crate::cmd) async fn start(
        node: Live,
        global: &Global,
        mode: Mode,
        keeper: Keeper,
    ) -> Result<Self, Failure> {
        let picture = Picture::take(global, mode).await?;
        let mut follower = Self {
            global: global.clone(),
            node,
            picture,
            keeper,
            standing: Vec::new(),
            served: Served::default(),
            sure: false,
        };
        follower.load().await?;
        keep_routes(global, &mut follower.node, &follower.served).await?;
        Ok(follower)
    }

    /// Follows, and tells of it, until the bridge is removed by somebody else, or `ends` is set and seen.
    pub(in crate::cmd) async fn follow(&mut self, ends: &Cell<bool>, tell: &mut dyn FnMut(String)) {
        loop {
            let changed = {
                let mut change = pin!(self.picture.change());
                loop {
                    match select(change, pin!(clock::pause(LOOK))).await {
                        Either::Left((changed, _)) => break changed,
                        Either::Right(((), still)) => change = still,
                    }
                    if ends.get() {
                        return;
                    }
                    if let Some(why) = self.keeper.trouble() {
                        tell(format!(
                            "cannot renew the lease of the bridge: {why}; trying again"
                        ));
                    }
                    if self.keeper.has_lost() {
                        // This process was stopped for a while, or could not run nft.
                        tell("the lease of the bridge was over: loading it anew".to_owned());
                        self.sure = false;
                        break Ok(());
                    }
                    match keep_routes(&self.global, &mut self.node, &self.served).await {
                        Ok(done) => done.into_iter().for_each(&mut *tell),
                        Err(error) => tell(format!("kpx's routes stay as they are: {error:#}")),
                    }
                }
            };
            if ends.get() {
                return;
            }
            match changed {
                Ok(()) => {
                    if !self.change(tell).await {
                        return;
                    }
                }
                Err(gap) => tell(format!("{gap}; trying again")),
            }
        }
    }

    /// Does what a change of the cluster asks for; returns whether the bridge stands still.
    async fn change(&mut self, tell: &mut dyn FnMut(String)) -> bool {
        match stands(&self.global).await {
            Ok(true) => {}
            Ok(false) => {
                tell("the bridge was removed; the cluster is not followed any more".to_owned());
                if let Err(error) = remove_routes(&self.global, &mut self.node).await {
                    tell(format!("kpx's routes stay: {error:#}"));
                }
                return false;
            }
            Err(gap) => tell(format!("whether the bridge stands is not known: {gap}")),
        }
        match self.load().await {
            Ok(0) => {}
            Ok(lines) => tell(format!("the cluster changed: {lines} lines for nft")),
            Err(error) => tell(format!("{error:#}; trying again with the next change")),
        }
        true
    }

    /// Brings the tables to what they should be; returns how many lines that took.
    async fn load(&mut self) -> Result<usize, Report> {
        let (want, served) = self.picture.tables(self.keeper.lease())?;
        self.served = served;
        let text = if self.sure {
            let pairs = self.standing.iter().zip(&want);
            pairs
                .map(|(have, want)| bridge::change(have, want))
                .collect()
        } else {
            bridge::text(&want)
        };
        let lines = text.lines().count();
        if lines > 0 {
            // Until it is known to have been done: whoever waits for this may stop to.
            let incremental = std::mem::replace(&mut self.sure, false);
            let mut done = self.node.apply(&Action::Nft { input: text }).await;
            if done.is_err() && incremental {
                let input = bridge::text(&want);
                done = self.node.apply(&Action::Nft { input }).await;
            }
            done.wrap_err("the bridge stands as it was")?;
        }
        self.standing = want;
        self.sure = true;
        Ok(lines)
    }
}
