//! The bridge of this node, for its controllers: live tables, the watched cluster, and the thread that keeps the lease.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io, process};

use futures_util::future::{Either, select};

use super::journals;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::session::Session;
use crate::render::Progress;
use kpx_host::{self as host, Aside, Guard, Live, Locked, Options, Watch, clock};
use kpx_judge::bridge::{Held, LEASE, Lease, TABLE};
use kpx_migrate::controller::keep::{self, Keeper, Order};
use kpx_migrate::controller::{BridgeNode, ControllerError, GuardedNode, LeaseNode};
use kpx_migrate::journal::MigrationState;
use kpx_migrate::node::{Clock, Node};
use kpx_migrate::wire::NodeCommand;
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::backend::Mode;
use kpx_node::cluster::{EndpointSlice, Service};
use kpx_node::evidence::{Evidence, Gap, Item, Time};
use kpx_node::net::Family;

/// How long a guard waits for the bridge of the kpx that starts it, in seconds.
const AWAITS: u64 = 60;

/// Starts a guard that outlives this process, by systemd where that runs; returns once it runs.
///
/// It keeps the bridge, which serves as `mode`, with a lease of `time`.
pub(in crate::command) async fn start_guard(
    session: &Session,
    mode: Mode,
    time: Duration,
) -> Result<(), Failure> {
    let mut command = vec![env::current_exe()?.display().to_string()];
    command.extend(guard_arguments(session, mode, time));
    let started = host::start_guard(&session.host, &command).await;
    started.hint("without a guard, nothing would remove the bridge if kpx was killed")
}

/// Returns the arguments of a guard for the same node and cluster as `session`.
pub(in crate::command) fn guard_arguments(
    session: &Session,
    mode: Mode,
    time: Duration,
) -> Vec<String> {
    let mut args = session.arguments();
    let guard = NodeCommand::Guard {
        mode,
        awaits: AWAITS,
        lease: Some(time.as_secs()),
    };
    args.extend(guard.arguments());
    args
}

/// A keeper of the bridge's lease and the thread it runs on, which ends with the last clone.
#[derive(Clone, Debug)]
pub(in crate::command) struct LocalKeeper {
    keeper: Keeper,
    _thread: Arc<Aside>,
}

impl LocalKeeper {
    /// Starts a keeper of a lease of `time`, in the name of the command `who`.
    pub(in crate::command) fn start(
        session: &Session,
        time: Duration,
        who: &str,
        order: Order,
    ) -> io::Result<Self> {
        let lease = Lease::of(time).kept_by(&format!("{who}, pid {}", process::id()));
        let keeper = Keeper::new(lease, order);
        let (worker, mut node) = (keeper.clone(), LocalLease(session.host.clone()));
        let work = async move || worker.run(&mut node).await;
        let thread = Aside::start("bridge lease", work)?;
        Ok(Self {
            keeper,
            _thread: Arc::new(thread),
        })
    }
}

/// The lease of this node's bridge.
struct LocalLease(Options);

/// Returns the remaining lease of this node's bridge; `None` if no bridge is loaded.
pub(in crate::command) async fn lease(session: &Session) -> Result<Option<Held>, Gap> {
    keep::held(&mut LocalLease(session.host.clone())).await
}

impl Clock for LocalLease {
    fn now(&self) -> Time {
        clock::steady()
    }

    async fn pause(&mut self, duration: Duration) {
        clock::pause(duration).await;
    }
}

impl LeaseNode for LocalLease {
    async fn tables(&mut self) -> Result<Vec<(&'static str, String)>, Gap> {
        host::nft_tables(&self.0).await
    }

    async fn lease_set(&mut self, family: &'static str) -> Result<String, Gap> {
        host::nft_set(&self.0, family, TABLE, LEASE).await
    }

    async fn renew(&mut self, input: &str) -> Result<(), StepError> {
        host::renew(&self.0, input).await
    }
}

/// A wait for a change of the cluster.
type Wait = Pin<Box<dyn Future<Output = Result<(), Gap>>>>;

/// This node with its bridge.
pub(in crate::command) struct LocalBridge {
    session: Session,
    families: Vec<Family>,
    lease: LocalLease,
    keeper: LocalKeeper,
    /// The node for changes; set while this process holds the lock.
    live: Option<Live>,
    /// Set while this process is the node's guard.
    claim: Option<Guard>,
    watch: Option<Rc<RefCell<Watch>>>,
    /// A wait for the next change: the end of a pause does not interrupt a long list.
    wait: Option<Wait>,
}

impl LocalBridge {
    /// Returns this node, which `live` changes: `None` until it is locked.
    pub(in crate::command) fn new(
        session: &Session,
        live: Option<Live>,
        keeper: LocalKeeper,
    ) -> Self {
        Self {
            session: session.clone(),
            families: session.families().to_vec(),
            lease: LocalLease(session.host.clone()),
            keeper,
            live,
            claim: None,
            watch: None,
            wait: None,
        }
    }
}

impl Apply for LocalBridge {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        match &mut self.live {
            Some(live) => live.apply(action).await,
            None => Err(StepError::Refused("the node is not locked".to_owned())),
        }
    }
}

impl Clock for LocalBridge {
    fn now(&self) -> Time {
        clock::steady()
    }

    async fn pause(&mut self, duration: Duration) {
        clock::pause(duration).await;
    }
}

impl Node for LocalBridge {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        read_all(&self.session, items).await
    }
}

/// Reads `items`. If nothing can be read, every item is a gap with the reason.
pub(in crate::command) async fn read_all(session: &Session, items: &[Item]) -> Evidence {
    let failed = |why: Failure| {
        let mut gaps = Evidence::default();
        for &item in items {
            gaps.insert(item, Err(Gap::Failed(item, why.to_string())));
        }
        gaps
    };
    let evidence = session.read(items, &Progress::silent()).await;
    evidence.unwrap_or_else(failed)
}

impl LeaseNode for LocalBridge {
    async fn tables(&mut self) -> Result<Vec<(&'static str, String)>, Gap> {
        self.lease.tables().await
    }

    async fn lease_set(&mut self, family: &'static str) -> Result<String, Gap> {
        self.lease.lease_set(family).await
    }

    async fn renew(&mut self, input: &str) -> Result<(), StepError> {
        self.lease.renew(input).await
    }
}

impl BridgeNode for LocalBridge {
    fn name(&self) -> Option<&str> {
        self.session.name()
    }

    fn families(&self) -> &[Family] {
        &self.families
    }

    fn keeper(&self) -> &Keeper {
        &self.keeper.keeper
    }

    async fn watch(&mut self) -> Result<(), Gap> {
        let watch = Watch::start(&self.session.host).await?;
        self.wait = None;
        self.watch = Some(Rc::new(RefCell::new(watch)));
        Ok(())
    }

    fn objects(&mut self) -> (Vec<Service>, Vec<EndpointSlice>) {
        self.wait = None;
        let Some(watch) = &self.watch else {
            return (Vec::new(), Vec::new());
        };
        let watch = watch.borrow();
        (watch.services(), watch.slices())
    }

    async fn change(&mut self, limit: Duration) -> Option<Result<(), Gap>> {
        let Some(watch) = &self.watch else {
            clock::pause(limit).await;
            return None;
        };
        let watch = Rc::clone(watch);
        let wait = self.wait.take();
        let wait: Wait = wait.unwrap_or_else(|| Box::pin(next(watch)));
        match select(wait, pin!(clock::pause(limit))).await {
            Either::Left((changed, _)) => Some(changed),
            Either::Right(((), wait)) => {
                self.wait = Some(wait);
                None
            }
        }
    }
}

#[expect(
    clippy::await_holding_refcell_ref,
    reason = "the future is dropped before the watch is borrowed again"
)]
async fn next(watch: Rc<RefCell<Watch>>) -> Result<(), Gap> {
    watch.borrow_mut().next().await
}

impl GuardedNode for LocalBridge {
    fn claim(&mut self) -> Result<bool, ControllerError> {
        self.claim = held(Guard::new(&self.session.host))?;
        Ok(self.claim.is_some())
    }

    fn disclaim(&mut self) {
        self.claim = None;
    }

    fn lock(&mut self) -> Result<bool, ControllerError> {
        self.live = held(Live::new(&self.session.host))?;
        Ok(self.live.is_some())
    }

    fn unlock(&mut self) {
        self.live = None;
    }

    fn migration(&mut self) -> Result<Option<MigrationState>, ControllerError> {
        let newest = journals::newest(&journals::of(&self.session));
        newest.map_err(|failure| ControllerError::Local(failure.to_string()))
    }

    fn record_gap(&mut self) -> Result<(), ControllerError> {
        let Some(newest) = self.migration()? else {
            return Ok(());
        };
        let counted = journals::of(&self.session).add_gap(&newest.migration.id);
        counted.map_err(|e| {
            ControllerError::Local(format!("cannot count that the bridge was deleted: {e}"))
        })
    }

    fn is_fixed(&self) -> bool {
        self.session.host.no_api || self.session.source.cluster_bundle().is_some()
    }
}

/// Returns the lock; `None` if another process holds it.
fn held<T>(locked: Result<T, Locked>) -> Result<Option<T>, ControllerError> {
    match locked {
        Ok(lock) => Ok(Some(lock)),
        Err(Locked::Held(_)) => Ok(None),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            let cause = error.source().map(|cause| format!(": {cause}"));
            Err(ControllerError::Local(format!(
                "{error}{}",
                cause.unwrap_or_default()
            )))
        }
    }
}
