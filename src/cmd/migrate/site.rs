//! This node, as a journey sees it.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::action::Action;
use crate::apply::{Apply, StepError};
use crate::backend::Mode;
use crate::cli::Global;
use crate::cluster::Pod;
use crate::cmd::bridge::follow::Follower;
use crate::cmd::bridge::guard;
use crate::cmd::bridge::keep::{Keeper, Order};
use crate::cmd::{options, read};
use crate::evidence::{self, Evidence, Gap, ITEMS, Item, Manifest, Time};
use crate::host::{self, Journal, Live, ProbeOutcome, clock};
use crate::migrate::engine::Site;
use crate::migrate::journal::Entry;
use crate::migrate::journey::Journey;
use crate::migrate::probes::Target;
use crate::render::Progress;

/// The backup, in the folder of the journey.
const BACKUP: &str = "before.tar.gz";

/// kube-proxy's configuration as it was, beside it.
const CONFIG: &str = "before.conf";

/// How long a Service may take to answer: what is silent for longer is not there for its clients.
const SILENCE: Duration = Duration::from_secs(3);

/// This node.
pub(super) struct Here<'g> {
    global: &'g Global,
    live: Live,
    journal: Journal,
    folder: PathBuf,
    journey: Journey,
    follower: Option<Follows>,
    /// How long the bridge serves when nobody keeps it, and who does.
    lease: Duration,
    keeper: Option<Keeper>,
    /// Asks the follower to end.
    ends: Rc<Cell<bool>>,
    /// What the follower had to say that nobody was told yet.
    said: Rc<RefCell<Vec<String>>>,
    /// Whether somebody asked to stop.
    stop: Rc<Cell<bool>>,
}

/// A follower at work: what it has begun goes on whenever it is waited for again.
type Follows = Pin<Box<dyn Future<Output = ()>>>;

impl<'g> Here<'g> {
    pub(super) fn new(
        global: &'g Global,
        live: Live,
        journal: Journal,
        folder: PathBuf,
        journey: Journey,
        lease: Duration,
    ) -> Self {
        Self {
            global,
            live,
            journal,
            folder,
            journey,
            follower: None,
            lease,
            keeper: None,
            ends: Rc::default(),
            said: Rc::default(),
            stop: Rc::default(),
        }
    }

    /// Returns who keeps the bridge's lease, from now on if nobody did.
    fn keeper(&mut self, order: Order) -> Result<Keeper, String> {
        if let Some(keeper) = &self.keeper {
            return Ok(keeper.clone());
        }
        let started = Keeper::start(self.global, self.lease, "kpx migrate", order);
        let keeper = started.map_err(|e| format!("cannot keep the bridge's lease: {e}"))?;
        self.keeper = Some(keeper.clone());
        Ok(keeper)
    }

    /// Returns what is set when somebody asks to stop.
    pub(super) fn stop(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.stop)
    }
}

/// Does `work`; what the bridge has to follow meanwhile, it follows.
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

impl Apply for Here<'_> {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        beside(&mut self.follower, self.live.apply(action)).await
    }
}

impl Site for Here<'_> {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        let progress = Progress::silent();
        let evidence = read(self.global, items, &progress);
        beside(&mut self.follower, evidence)
            .await
            .unwrap_or_else(|why| {
                let mut nothing = Evidence::default();
                for &item in items {
                    nothing.insert(item, Err(Gap::Failed(item, why.to_string())));
                }
                nothing
            })
    }

    fn own_pods(&self) -> Result<Vec<String>, String> {
        host::own_pods()
    }

    async fn probe(&mut self, target: &Target) -> Result<(), String> {
        probe(self.global, target).await
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
        let manifest = Manifest::of(&evidence, time, self.journey.node.clone());
        if let Ok(text) = evidence.text(Item::ProxyConfig) {
            let path = self.folder.join(CONFIG);
            host::replace(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        evidence::save(&evidence, &manifest, &path).map_err(|e| chain(&e))
    }

    async fn guard(&mut self, mode: Mode) -> Result<(), String> {
        self.keeper(Order::Keep)?;
        let started = guard::start(self.global, mode, self.lease).await;
        started.map_err(|e| e.to_string())
    }

    async fn follow(&mut self, mode: Mode) -> Result<(), String> {
        self.guard(mode).await?;
        if self.global.no_api || self.global.cluster_from.is_some() {
            // What is not watched does not change, so a bridge whose lease is over is as good as new.
            self.keeper = None;
            return self.keeper(Order::Revive).map(|_| ());
        }
        let keeper = self.keeper(Order::Keep)?;
        let follower = Follower::start(self.live.beside(), self.global, mode, keeper).await;
        let mut follower = follower.map_err(|e| e.to_string())?;
        let said = Rc::clone(&self.said);
        self.ends = Rc::default();
        let ends = Rc::clone(&self.ends);
        self.follower = Some(Box::pin(async move {
            let mut tell = |text| said.borrow_mut().push(text);
            follower.follow(&ends, &mut tell).await;
        }));
        Ok(())
    }

    async fn unfollow(&mut self) {
        self.ends.set(true);
        if let Some(follows) = self.follower.take() {
            follows.await;
        }
    }

    fn heard(&mut self) -> Vec<String> {
        self.said.take()
    }

    fn is_to_stop(&self) -> bool {
        self.stop.get()
    }

    fn now(&self) -> Time {
        clock::now()
    }

    async fn pause(&mut self, duration: Duration) {
        beside(&mut self.follower, clock::pause(duration)).await;
    }
}

/// Connects to `target` from this node; returns what it met instead of an answer.
pub(super) async fn probe(global: &Global, target: &Target) -> Result<(), String> {
    let mut options = options(global);
    options.timeout = options.timeout.min(SILENCE);
    let probed = host::probe(&options, target.at, target.proto, target.question()).await;
    match probed.map_err(|gap| gap.to_string())?.met {
        ProbeOutcome::Answered => Ok(()),
        ProbeOutcome::Refused => Err("refused".to_owned()),
        ProbeOutcome::Silence => Err("no answer".to_owned()),
        ProbeOutcome::Unreachable(why) => Err(why),
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
