//! `kpx reconcile --apply --watch`: programs the node in place of a kube-proxy that is missing or hangs.
//!
//! The first sync reads the live rules, compares them with the desired state of the watched objects, and applies the
//! difference. A change of the cluster is then one small transaction, from the rules of the last desired state to the
//! rules of the next. The node and its rules are read again every [`FULL`], during a series of changes, and after a
//! failure; in mode ipvs the rules are read at each change.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::args::ReconcileArgs;
use super::health::Health;
use super::plan::{Scope, goal, plan};
use crate::command::shared::change::{consented, open_after_guard};
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::render::Progress;
use crate::report::{CLEAN, FAILED};
use kpx_host::{Live, Watch, clock};
use kpx_judge::diff::{self, Layer, Unknown};
use kpx_judge::plan::{self, Drain, Plan, Programmed};
use kpx_node::action::Action;
use kpx_node::apply::{self, Apply as _};
use kpx_node::backend::Mode;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::desired::Basis;

/// How often to look for a kube-proxy.
const LOOK: Duration = Duration::from_secs(1);
/// How often to read the whole node again: kube-proxy's default `syncPeriod`.
const FULL: Duration = Duration::from_secs(30);
/// The most consecutive readings of the node that may be discarded because the rules changed meanwhile.
const MISSED: u32 = 3;
/// Pause after a failed sync; it doubles, up to [`FULL`], until one succeeds.
const RETRY: Duration = Duration::from_secs(1);

/// Follows the cluster until a signal arrives or a kube-proxy starts.
pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<u8, Failure> {
    let host = &session.host;
    if session.source.is_pod() || args.nodes.are_several() {
        return Err(Failure::usage(
            "`reconcile --watch` works on this node only",
        ));
    }
    if session.source.is_bundle() || session.source.cluster_bundle().is_some() || host.no_api {
        return Err(Failure::usage(
            "`reconcile --watch` watches a live cluster: it takes neither --from nor --cluster-from nor --no-api",
        ));
    }
    if session.output.is_some() {
        return Err(Failure::usage(
            "`reconcile --watch` prints one line per sync: it does not take --output",
        ));
    }
    let mode = session.mode(args.mode).await?;
    // Signals are taken from here on; a sync in progress is finished first.
    let mut interrupts = clock::Interrupts::listen();
    let live = open_after_guard(session).await?;
    let evidence = session.gather(&[Item::Processes, Item::Healthz]).await?;
    let node = session.node(&evidence);
    plan::refuse_other(&node)?;
    let mut accepted = None;
    if let Some(process) = plan::kube_proxy(&node)? {
        let who = format!("{} (pid {})", process.name, process.pid);
        let Some(why) = plan::hangs(&node, process) else {
            return Err(Failure::from(eyre!(
                "{who} runs and is not known to hang: two programs would write the same rules"
            ))
            .with_hint("stop kube-proxy first, or run `kpx reconcile --apply` once"));
        };
        writeln!(io.err, "kpx: {who} hangs: {why}; serving in its place")?;
        accepted = Some(Known::of(process));
    }
    let make = async || plan(session, &Scope::of(args), mode).await;
    consented(session, io, args.change.yes, &goal(mode), &make).await?;
    let drain = if args.no_drain {
        Drain::No
    } else {
        Drain::First
    };
    let mut items = basis_items(mode);
    if accepted.is_some() {
        items.retain(|item| !ITS_ANSWERS.contains(item));
    }
    let evidence = session.read(&items, &Progress::silent()).await?;
    let basis = Read::new(session, evidence, mode)?;
    let watch = Watch::start(host)
        .await
        .hint("`kpx access reconcile` lists the permissions")?;
    let mut follower = Follower {
        session,
        mode,
        drain,
        live,
        watch,
        basis,
        accepted,
        programmed: None,
        flows: None,
        flows_changed: false,
        full: None,
        disturbed: false,
        missed: 0,
        health: Health::new(),
    };
    follower.follow(io, &mut interrupts).await
}

/// A kube-proxy that was accepted at the start.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Known {
    pid: u32,
    started: Option<u64>,
    state: bool,
}

impl Known {
    fn of(process: &kpx_node::node::processes::Process) -> Self {
        Self {
            pid: process.pid,
            started: process.started,
            state: matches!(process.state.as_deref(), Some("T" | "t")),
        }
    }
}

/// The inputs of the desired state other than Services and endpoints, with the evidence that they are from.
struct Read {
    basis: Basis,
    evidence: Evidence,
}

/// Returns the items that a basis is made from.
fn basis_items(mode: Mode) -> Vec<Item> {
    let mut items = diff::needs(mode);
    items.retain(|item| !matches!(item, Item::Services | Item::EndpointSlices));
    items.push(Item::Processes);
    items.sort();
    items.dedup();
    items
}

impl Read {
    fn new(session: &Session, evidence: Evidence, mode: Mode) -> Result<Self, Failure> {
        let basis = {
            let node = session.node(&evidence);
            // Without its Node object, every zone and local endpoint would be wrong.
            node.nodes()?;
            node.basis(mode)?
        };
        Ok(Self { basis, evidence })
    }
}

/// Returns the live state that a sync of `mode` compares.
fn live_items(mode: Mode) -> Vec<Item> {
    let mut items = vec![Item::Processes, Item::Sysctl];
    items.extend(match mode {
        Mode::Iptables | Mode::Userspace => &[Item::Iptables4, Item::Iptables6][..],
        Mode::Nftables => &[Item::Nft, Item::NftText],
        Mode::Ipvs => &[
            Item::Iptables4,
            Item::Iptables6,
            Item::Ipset,
            Item::Ipvs,
            Item::IpvsSave,
            Item::IpvsTimeout,
            Item::Links,
            Item::Addresses,
            Item::Modules,
        ],
    });
    items
}

/// kube-proxy's answer; none, after some time, if it hangs.
const ITS_ANSWERS: &[Item] = &[Item::Metrics, Item::ProxyMode, Item::Healthz];

/// Why a wait ended.
enum Woke {
    Changed,
    Lost(String),
    Due,
    /// The connection table was read.
    Flows(Result<Evidence, Failure>),
    /// The node was read.
    Full(Result<Evidence, Failure>),
    Proxy(String),
    Signal,
}

/// How a sync ended.
enum Synced {
    Done {
        /// The titles of the steps.
        titles: Vec<String>,
        /// Health checks that are not served, and why.
        unserved: Option<String>,
    },
    Proxy(String),
}

struct Follower<'s> {
    session: &'s Session,
    mode: Mode,
    drain: Drain,
    live: Live,
    watch: Watch,
    basis: Read,
    accepted: Option<Known>,
    /// The state of the last sync; `None` if the live rules may be others.
    programmed: Option<Programmed>,
    /// A reading of the connection table in progress.
    flows: Option<Reading<'s>>,
    /// Whether UDP endpoints changed since that began.
    flows_changed: bool,
    /// A reading of the node in progress.
    full: Option<Reading<'s>>,
    /// Whether the rules were changed since the last reading of the node began.
    disturbed: bool,
    /// How many readings in a row were disturbed.
    missed: u32,
    health: Health,
}

/// Items that are being read.
type Reading<'s> = Pin<Box<dyn Future<Output = Result<Evidence, Failure>> + 's>>;

/// Messages of one kind; one that repeats is printed once.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    fn tell(&mut self, io: &mut Io<'_>, text: Option<String>) -> Result<(), Failure> {
        if let Some(text) = text.as_ref().filter(|text| self.0.as_ref() != Some(text)) {
            writeln!(io.err, "kpx: {text}")?;
        }
        self.0 = text;
        Ok(())
    }
}

impl Follower<'_> {
    async fn follow(
        &mut self,
        io: &mut Io<'_>,
        interrupts: &mut clock::Interrupts,
    ) -> Result<u8, Failure> {
        let mut cause = "start";
        let mut found = None;
        let mut full = Instant::now() + FULL;
        let mut retry = RETRY;
        let mut is_lost = false;
        let (mut failed, mut unread) = <(Told, Told)>::default();
        let (mut noted, mut unhealthy) = <(Told, Told)>::default();
        loop {
            let begin = Instant::now();
            let mut due = full;
            match self.sync(found.take()).await {
                Ok(Synced::Proxy(who)) => return stopped_by(io, &who),
                Ok(Synced::Done { titles, unserved }) => {
                    retry = RETRY;
                    failed.tell(io, None)?;
                    unhealthy.tell(io, unserved)?;
                    if !titles.is_empty() || cause == "start" {
                        let what = if titles.is_empty() {
                            "nothing to change".to_owned()
                        } else {
                            titles.join("; ")
                        };
                        let took = begin.elapsed().as_millis();
                        writeln!(io.out, "{} {cause}: {what} ({took} ms)", clock::now())?;
                        io.out.flush()?;
                    }
                }
                Err(failure) => {
                    let text = format!("the sync failed: {failure}; retrying with a full reading");
                    failed.tell(io, Some(text))?;
                    due = Instant::now() + retry;
                    retry = (retry * 2).min(FULL);
                }
            }
            cause = loop {
                match self.wait(due, interrupts).await {
                    Woke::Signal => return stopped_by_signal(io),
                    Woke::Proxy(who) => return stopped_by(io, &who),
                    Woke::Due if due != full => break "retry",
                    Woke::Due => {
                        self.read_node();
                        full = Instant::now() + FULL;
                        due = full;
                    }
                    Woke::Full(read) => {
                        self.full = None;
                        let (live, why) = self.renew(read);
                        let why = why.map(|why| {
                            format!("cannot read the node in full: {why}; continuing with the last reading")
                        });
                        unread.tell(io, why)?;
                        found = live;
                        break "full";
                    }
                    Woke::Changed => {
                        if std::mem::take(&mut is_lost) {
                            writeln!(io.err, "kpx: the API server answers again")?;
                        }
                        self.health.queued();
                        break "changed";
                    }
                    Woke::Lost(why) => {
                        if !std::mem::replace(&mut is_lost, true) {
                            writeln!(io.err, "kpx: {why}; serving the last known state, retrying")?;
                        }
                    }
                    Woke::Flows(read) => {
                        self.flows = None;
                        if std::mem::take(&mut self.flows_changed) {
                            self.read_flows();
                        }
                        let forgotten = self.forget(read).await;
                        let why = forgotten.as_ref().err();
                        let why =
                            why.map(|why| format!("stale UDP connections are not deleted: {why}"));
                        noted.tell(io, why)?;
                        for title in forgotten.into_iter().flatten() {
                            writeln!(io.out, "{} {title}", clock::now())?;
                            io.out.flush()?;
                        }
                    }
                }
            };
        }
    }

    /// Starts to read the node and its rules.
    fn read_node(&mut self) {
        if self.full.is_some() {
            return;
        }
        let mut items = basis_items(self.mode);
        items.extend(live_items(self.mode));
        items.retain(|item| !ITS_ANSWERS.contains(item));
        items.sort();
        items.dedup();
        let session = self.session;
        self.disturbed = false;
        self.full = Some(Box::pin(async move {
            session.read(&items, &Progress::silent()).await
        }));
    }

    /// Adopts the result `read` of [`Follower::read_node`]; returns the live rules, unless they changed meanwhile, and
    /// why the rest is not adopted.
    fn renew(&mut self, read: Result<Evidence, Failure>) -> (Option<Evidence>, Option<Failure>) {
        let read = match read {
            Ok(read) => read,
            Err(why) => return (None, Some(why)),
        };
        let live = live_items(self.mode);
        let rules = read.only(&live);
        let mut evidence = self.basis.evidence.clone();
        evidence.extend(read);
        let why = match Read::new(self.session, evidence, self.mode) {
            Ok(basis) => {
                self.basis = basis;
                None
            }
            Err(why) => Some(why),
        };
        self.missed = if self.disturbed { self.missed + 1 } else { 0 };
        if self.missed > MISSED {
            self.missed = 0;
            self.programmed = None;
        }
        ((!self.disturbed).then_some(rules), why)
    }

    /// Waits until something must be done, at most until `due`.
    async fn wait(&mut self, due: Instant, interrupts: &mut clock::Interrupts) -> Woke {
        let (session, accepted) = (self.session, self.accepted.as_ref());
        let mut changed = pin!(self.watch.next());
        let mut flows = pin!(async {
            match &mut self.flows {
                Some(reading) => reading.await,
                None => pending().await,
            }
        });
        let mut full = pin!(async {
            match &mut self.full {
                Some(reading) => reading.await,
                None => pending().await,
            }
        });
        loop {
            let rest = due.saturating_duration_since(Instant::now());
            let pause = pin!(clock::pause(rest.min(LOOK)));
            let reads = select(flows.as_mut(), full.as_mut());
            let work = select(changed.as_mut(), reads);
            match select(select(work, pause), pin!(interrupts.next())).await {
                Either::Right(_) => return Woke::Signal,
                Either::Left((Either::Left((work, _)), _)) => match work {
                    Either::Left((Ok(()), _)) => return Woke::Changed,
                    Either::Left((Err(gap), _)) => return Woke::Lost(gap.to_string()),
                    Either::Right((Either::Left((read, _)), _)) => return Woke::Flows(read),
                    Either::Right((Either::Right((read, _)), _)) => return Woke::Full(read),
                },
                Either::Left((Either::Right(_), _)) => {}
            }
            // A process table that cannot be read fails the next sync, which says so.
            if let Ok(evidence) = session.read(&[Item::Processes], &Progress::silent()).await
                && let Ok(Some(who)) = started(session, &evidence, accepted)
            {
                return Woke::Proxy(who);
            }
            if Instant::now() >= due {
                return Woke::Due;
            }
        }
    }

    /// Brings the rules to the desired state; `found` are the live ones, if they were just read.
    async fn sync(&mut self, found: Option<Evidence>) -> Result<Synced, Failure> {
        let (services, slices) = (self.watch.services(), self.watch.slices());
        let desired = self.basis.basis.desired(&services, &slices);
        // The live rules are unknown until the last step is done.
        let before = self.programmed.take().filter(|_| found.is_none());
        let items = match (&before, &found) {
            (None, None) => live_items(self.mode),
            _ => vec![Item::Processes],
        };
        let session = self.session;
        let mut evidence = self.basis.evidence.clone();
        evidence.extend(found.unwrap_or_default());
        evidence.extend(session.read(&items, &Progress::silent()).await?);
        if let Some(who) = started(session, &evidence, self.accepted.as_ref())? {
            self.programmed = before;
            return Ok(Synced::Proxy(who));
        }
        let node = session.node(&evidence).with_services(services, slices);
        let families = session.families();
        let plan = match &before {
            Some(before) => before.advance(&desired, families)?,
            None => self.compare(&node, &desired)?,
        };
        let forgets = match &before {
            Some(before) => before.changes_udp(&desired),
            None => !plan.steps.is_empty(),
        };
        self.disturbed |= !plan.steps.is_empty();
        apply::run(&plan, &mut self.live, |_| {}).await?;
        let name = node.name()?;
        let mut nodes = node.nodes()?.iter();
        let object = nodes.find(|node| node.metadata.name == name);
        let unserved = self.health.synced(&desired, object, &session.host).await;
        self.programmed = match before {
            Some(before) => Some(before.at(desired)),
            None => Programmed::new(&node, desired),
        };
        if forgets {
            self.read_flows();
        }
        let titles = plan.steps.into_iter().map(|step| step.title);
        Ok(Synced::Done {
            titles: titles.collect(),
            unserved,
        })
    }

    /// Plans the repair of the live rules of `node`.
    fn compare(&self, node: &NodeSnapshot<'_>, desired: &DesiredState) -> Result<Plan, Failure> {
        let families = self.session.families();
        let found = diff::against(node, desired, families);
        if let Some(Unknown { what, gap, .. }) = found.unknown.first() {
            return Err(eyre!("cannot compare {what} with the desired state: {gap}").into());
        }
        let plan = plan::repair_to(node, desired, families, &found, &Layer::ALL, self.drain)?;
        Ok(plan)
    }

    /// Starts to read the connection table, which can take longer than the next change of the cluster. If a reading is in
    /// progress, another one follows: the first may already have passed connections of endpoints that were removed just
    /// now.
    fn read_flows(&mut self) {
        if self.flows.is_some() {
            self.flows_changed = true;
            return;
        }
        let session = self.session;
        self.flows = Some(Box::pin(async move {
            session.read(&[Item::Conntrack], &Progress::silent()).await
        }));
    }

    /// Deletes the UDP connections in `read` that no endpoint answers, as kube-proxy does; returns the titles of the
    /// steps.
    async fn forget(&mut self, read: Result<Evidence, Failure>) -> Result<Vec<String>, Failure> {
        let mut evidence = self.basis.evidence.clone();
        evidence.extend(read?);
        let node = self.session.node(&evidence);
        let node = node.with_services(self.watch.services(), self.watch.slices());
        let Plan { steps, .. } = plan::forget(&node, self.mode)?;
        let mut titles = Vec::new();
        for step in steps {
            let Action::Conntrack { flows } = &step.action else {
                continue;
            };
            if flows.iter().all(|flow| flow.proto == Proto::Udp) {
                self.live.apply(&step.action).await?;
                titles.push(step.title);
            }
        }
        Ok(titles)
    }
}

/// Returns the kube-proxy that runs now, unless it is the `accepted` one in an unchanged state.
fn started(
    session: &Session,
    evidence: &Evidence,
    accepted: Option<&Known>,
) -> Result<Option<String>, Failure> {
    let node = session.node(evidence);
    let mut running = kpx_node::node::processes::kube_proxies(node.processes()?);
    let other = running.find(|process| accepted != Some(&Known::of(process)));
    Ok(other.map(|process| format!("{} (pid {})", process.name, process.pid)))
}

fn stopped_by(io: &mut Io<'_>, who: &str) -> Result<u8, Failure> {
    writeln!(
        io.err,
        "kpx: {who} runs: stopped; the rules stay, and it updates them from now on"
    )?;
    Ok(FAILED)
}

fn stopped_by_signal(io: &mut Io<'_>) -> Result<u8, Failure> {
    writeln!(
        io.err,
        "kpx: stopped by a signal; the rules stay, and nothing updates them now"
    )?;
    Ok(CLEAN)
}
