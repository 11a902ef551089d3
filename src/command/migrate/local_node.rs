//! This node, for the engine of a migration.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};

use crate::command::shared::local_bridge::{LocalBridge, LocalKeeper, read_all, start_guard};
use crate::command::shared::session::Session;
use kpx_host::{self as host, Journal, Live, Probe, ProbeOutcome, ProbeResult, clock};
use kpx_judge::bridge::{self, TABLE};
use kpx_migrate::controller::follow::Follower;
use kpx_migrate::controller::keep::Order;
use kpx_migrate::engine::MigrationNode;
use kpx_migrate::journal::Entry;
use kpx_migrate::migration::Migration;
use kpx_migrate::node::{Clock, Node};
use kpx_migrate::probes::{Target, Unanswered};
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::backend::Mode;
use kpx_node::cluster::Pod;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item, Manifest, Time};

/// The backup in the migration's folder: a bundle.
const BACKUP: &str = "before.tar.gz";

/// kube-proxy's old configuration, beside it.
const CONFIG: &str = "before.conf";

/// How long a Service may take to answer a probe.
const SILENCE: Duration = Duration::from_secs(3);

/// This node.
pub(super) struct LocalNode<'g> {
    session: &'g Session,
    live: Live,
    journal: Journal,
    folder: PathBuf,
    migration: Migration,
    follower: Option<Follows>,
    /// The bridge's lease.
    lease: Duration,
    keeper: Option<LocalKeeper>,
    /// Requests the end of the follower.
    ends: Rc<Cell<bool>>,
    /// Notices of the follower that were not reported yet.
    notices: Rc<RefCell<Vec<String>>>,
    /// Times that another program deleted the bridge, which were not recorded yet.
    gaps: Rc<Cell<usize>>,
    /// Whether a stop is requested.
    stop: Rc<Cell<bool>>,
}

/// A follower at work. An update in progress continues whenever the future is polled again.
type Follows = Pin<Box<dyn Future<Output = ()>>>;

impl<'g> LocalNode<'g> {
    pub(super) fn new(
        session: &'g Session,
        live: Live,
        journal: Journal,
        folder: PathBuf,
        migration: Migration,
        lease: Duration,
    ) -> Self {
        Self {
            session,
            live,
            journal,
            folder,
            migration,
            follower: None,
            lease,
            keeper: None,
            ends: Rc::default(),
            notices: Rc::default(),
            gaps: Rc::default(),
            stop: Rc::default(),
        }
    }

    /// Returns the keeper of the bridge's lease; starts it with `order` if there is none.
    fn keeper(&mut self, order: Order) -> Result<LocalKeeper, String> {
        if let Some(keeper) = &self.keeper {
            return Ok(keeper.clone());
        }
        let started = LocalKeeper::start(self.session, self.lease, "kpx migrate", order);
        let keeper =
            started.map_err(|e| format!("cannot start the keeper of the bridge's lease: {e}"))?;
        self.keeper = Some(keeper.clone());
        Ok(keeper)
    }

    /// Returns the cell that requests a stop.
    pub(super) fn stop(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.stop)
    }
}

/// Does `work` while the bridge follows the cluster.
async fn beside<T>(follower: &mut Option<Follows>, work: impl Future<Output = T>) -> T {
    let Some(follows) = follower else {
        return work.await;
    };
    match select(pin!(work), follows).await {
        Either::Left((done, _)) => done,
        Either::Right(((), work)) => {
            *follower = None;
            work.await
        }
    }
}

impl Apply for LocalNode<'_> {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        beside(&mut self.follower, self.live.apply(action)).await
    }
}

impl Clock for LocalNode<'_> {
    fn now(&self) -> Time {
        clock::steady()
    }

    async fn pause(&mut self, duration: Duration) {
        beside(&mut self.follower, clock::pause(duration)).await;
    }
}

impl Node for LocalNode<'_> {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        beside(&mut self.follower, read_all(self.session, items)).await
    }
}

impl MigrationNode for LocalNode<'_> {
    fn own_pods(&self) -> Result<Vec<String>, String> {
        host::own_pods()
    }

    async fn probe(&mut self, targets: &[Target]) -> Vec<Result<SocketAddr, Unanswered>> {
        beside(&mut self.follower, probe(self.session, targets)).await
    }

    async fn proxy_pods(&mut self, node: &str) -> Result<Vec<Pod>, Gap> {
        let pods = beside(&mut self.follower, self.live.proxy_pods(node)).await;
        pods.map_err(|why| Gap::Failed(Item::Pods, why.to_string()))
    }

    async fn last_line(&mut self, pod: &str, container: &str) -> Option<String> {
        beside(&mut self.follower, self.live.last_line(pod, container)).await
    }

    async fn record(&mut self, entry: &Entry) -> Result<(), String> {
        let line = serde_json::to_string(entry).map_err(|e| e.to_string())?;
        self.journal.add(&line).map_err(|e| e.to_string())
    }

    async fn backup(&mut self) -> Result<(), String> {
        let path = self.folder.join(BACKUP);
        if path.exists() {
            return Ok(());
        }
        let evidence = self.read(ITEMS).await;
        let time = clock::now().to_string();
        let manifest = Manifest::of(&evidence, time, self.migration.node.clone());
        if let Ok(text) = evidence.text(Item::ProxyConfig) {
            let path = self.folder.join(CONFIG);
            host::replace(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        evidence::save(&evidence, &manifest, &path).map_err(|e| chain(&e))
    }

    async fn guard(&mut self, mode: Mode) -> Result<(), String> {
        self.keeper(Order::Keep)?;
        let started = start_guard(self.session, mode, self.lease).await;
        started.map_err(|e| e.to_string())
    }

    async fn follow(&mut self, mode: Mode) -> Result<(), String> {
        self.guard(mode).await?;
        if self.session.host.no_api || self.session.source.cluster_bundle().is_some() {
            // The cluster's objects cannot change, so a bridge whose lease has expired is still correct.
            self.keeper = None;
            return self.keeper(Order::Revive).map(|_| ());
        }
        let keeper = self.keeper(Order::Keep)?;
        let node = LocalBridge::new(self.session, Some(self.live.beside()), keeper);
        let follower = Follower::start(node, mode).await;
        let mut follower = follower
            .map_err(|e| e.to_string())?
            .that_stays(Rc::clone(&self.gaps));
        let notices = Rc::clone(&self.notices);
        self.ends = Rc::default();
        let ends = Rc::clone(&self.ends);
        self.follower = Some(Box::pin(async move {
            let mut notify = |text| notices.borrow_mut().push(text);
            follower.follow(&ends, &mut notify).await;
        }));
        Ok(())
    }

    async fn unfollow(&mut self) {
        self.ends.set(true);
        if let Some(follows) = self.follower.take() {
            follows.await;
        }
    }

    fn bridge_notices(&mut self) -> Vec<String> {
        self.notices.take()
    }

    fn bridge_gaps(&mut self) -> usize {
        // What cannot be read is counted once: the bridge may have been gone.
        self.gaps.take() + self.journal.take_gaps().unwrap_or(1)
    }

    fn is_to_stop(&self) -> bool {
        self.stop.get()
    }
}

/// Connects to all of `targets` on this node, past the bridge if it is loaded; returns the address and port of each client.
pub(super) async fn probe(
    session: &Session,
    targets: &[Target],
) -> Vec<Result<SocketAddr, Unanswered>> {
    let tables = host::nft_tables(&session.host).await.unwrap_or_default();
    let past_bridge = tables.iter().any(|(_, name)| name == TABLE);
    let probing = targets
        .iter()
        .map(|target| probe_one(session, target, past_bridge));
    join_all(probing).await
}

async fn probe_one(
    session: &Session,
    target: &Target,
    past_bridge: bool,
) -> Result<SocketAddr, Unanswered> {
    let mut options = session.host.clone();
    options.timeout = options.timeout.min(SILENCE);
    let probe = Probe {
        question: target.question(),
        from: target.from,
        before: past_bridge.then_some(bridge::pass),
        ..Probe::new(target.at, target.proto)
    };
    let silent = |why: &str| Err(Unanswered::Silent(why.to_owned()));
    match host::probe(&options, probe).await {
        Ok(ProbeResult {
            from: Some(client),
            met: ProbeOutcome::Answered,
        }) => Ok(client),
        Ok(probed) => match probed.met {
            ProbeOutcome::Answered => silent("the client's address is unknown"),
            ProbeOutcome::Refused => silent("connection refused"),
            ProbeOutcome::Silence => silent("no answer"),
            ProbeOutcome::Unreachable(why) => silent(&why),
        },
        Err(Gap::Absent(Item::PodNetworks, _)) => Err(Unanswered::NoPod),
        Err(gap) => silent(&gap.to_string()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
