//! `kpx reconcile --watch`: programs the node in place of a kube-proxy that is missing or hangs.
//!
//! Every sync reads the live rules, compares them with the desired state of the watched objects, and applies the
//! difference. There is no model of the live rules that could be wrong; the price is one reading of them per sync.

use std::pin::pin;
use std::time::{Duration, Instant};

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use super::goal;
use crate::action::Action;
use crate::apply::{self, Apply as _};
use crate::backend::Mode;
use crate::cli::ReconcileArgs;
use crate::cmd::Io;
use crate::cmd::shared::change::{consented, open_after_guard};
use crate::cmd::shared::failure::{Failure, Hint as _};
use crate::cmd::shared::session::Session;
use crate::diff::{self, Layer, Unknown};
use crate::evidence::{Evidence, Item};
use crate::host::{Live, Watch, clock};
use crate::net::Proto;
use crate::node::desired::Basis;
use crate::plan::{self, Drain, FORGET_NEEDS, Plan};
use crate::render::Progress;
use crate::report::{CLEAN, FAILED};

/// How often to look for a kube-proxy.
const LOOK: Duration = Duration::from_secs(1);
/// How often to read the whole node again: kube-proxy's default `syncPeriod`.
const FULL: Duration = Duration::from_secs(30);
/// Pause after a failed sync.
const RETRY: Duration = Duration::from_secs(1);

/// Follows the cluster until a signal arrives or a kube-proxy starts.
pub(super) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ReconcileArgs,
) -> Result<u8, Failure> {
    let host = &session.host;
    if session.is_remote() || args.nodes.are_several() {
        return Err(Failure::usage(
            "`reconcile --watch` works on this node only",
        ));
    }
    if session.from.is_some() || session.cluster_from.is_some() || host.no_api {
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
    let make = async || super::plan(session, args, mode).await;
    consented(session, io, args.change.yes, &goal(mode), &make).await?;
    for not_served in [
        "not served: /healthz and health check node ports (spec.healthCheckNodePort); load balancers that probe this node see it as failed",
        "not served: changes of kube-proxy's configuration; restart kpx after one",
    ] {
        writeln!(io.err, "kpx: {not_served}")?;
    }
    let drain = if args.no_drain {
        Drain::No
    } else {
        Drain::First
    };
    let basis = read_basis(session, mode).await?;
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
    fn of(process: &crate::node::processes::Process) -> Self {
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

async fn read_basis(session: &Session, mode: Mode) -> Result<Read, Failure> {
    let mut items = diff::needs(mode);
    items.extend([Item::Processes, Item::Healthz]);
    items.retain(|item| !matches!(item, Item::Services | Item::EndpointSlices));
    items.sort();
    items.dedup();
    let evidence = session.read(&items, &Progress::silent()).await?;
    let node = session.node(&evidence);
    // Without its Node object, every zone and local endpoint would be wrong.
    node.nodes()?;
    let basis = node.basis(mode)?;
    Ok(Read { basis, evidence })
}

/// Returns the live state that a sync of `mode` compares.
fn live_items(mode: Mode) -> Vec<Item> {
    let mut items = vec![Item::Processes, Item::Sysctl];
    items.extend(match mode {
        Mode::Iptables => &[Item::Iptables4, Item::Iptables6][..],
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

/// Why a wait ended.
enum Woke {
    Changed,
    Lost(String),
    Due,
    Proxy(String),
    Signal,
}

/// How a sync ended.
enum Synced {
    Done {
        titles: Vec<String>,
        notes: Vec<String>,
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
}

impl Follower<'_> {
    async fn follow(
        &mut self,
        io: &mut Io<'_>,
        interrupts: &mut clock::Interrupts,
    ) -> Result<u8, Failure> {
        let mut cause = "start";
        let mut full = Instant::now();
        let mut is_lost = false;
        loop {
            let begin = Instant::now();
            let synced = self.sync().await;
            let took = begin.elapsed().as_millis();
            let mut wait = FULL.saturating_sub(full.elapsed());
            match synced {
                Ok(Synced::Proxy(who)) => return stopped_by(io, &who),
                Ok(Synced::Done { titles, notes }) => {
                    if !titles.is_empty() || cause == "start" {
                        let what = if titles.is_empty() {
                            "nothing to change".to_owned()
                        } else {
                            titles.join("; ")
                        };
                        writeln!(io.out, "{} {cause}: {what} ({took} ms)", clock::now())?;
                        io.out.flush()?;
                    }
                    for note in notes {
                        writeln!(io.err, "kpx: {note}")?;
                    }
                }
                Err(failure) => {
                    writeln!(
                        io.err,
                        "kpx: the sync failed: {failure}; trying again with a full reading"
                    )?;
                    (full, wait) = (Instant::now() - FULL, RETRY);
                }
            }
            cause = match self.wait(wait, interrupts).await {
                Woke::Signal => {
                    writeln!(
                        io.err,
                        "kpx: stopped by a signal; the rules stay, and nothing updates them now"
                    )?;
                    return Ok(CLEAN);
                }
                Woke::Proxy(who) => return stopped_by(io, &who),
                Woke::Changed => {
                    if std::mem::take(&mut is_lost) {
                        writeln!(io.err, "kpx: the API server answers again")?;
                    }
                    "changed"
                }
                Woke::Lost(why) => {
                    if !std::mem::replace(&mut is_lost, true) {
                        writeln!(io.err, "kpx: {why}; serving the last known state, retrying")?;
                    }
                    "full"
                }
                Woke::Due => "full",
            };
            if full.elapsed() >= FULL {
                match read_basis(self.session, self.mode).await {
                    Ok(read) => self.basis = read,
                    Err(why) => writeln!(
                        io.err,
                        "kpx: cannot read the node in full: {why}; continuing with the last reading"
                    )?,
                }
                full = Instant::now();
            }
        }
    }

    /// Waits for a change of the cluster, a kube-proxy, a signal, or for `limit`.
    async fn wait(&mut self, limit: Duration, interrupts: &mut clock::Interrupts) -> Woke {
        let begin = Instant::now();
        let (session, accepted) = (self.session, self.accepted.as_ref());
        let mut changed = pin!(self.watch.next());
        loop {
            let rest = limit.saturating_sub(begin.elapsed());
            let pause = pin!(clock::pause(rest.min(LOOK)));
            let either = select(changed.as_mut(), pause);
            match select(either, pin!(interrupts.next())).await {
                Either::Right(_) => return Woke::Signal,
                Either::Left((Either::Left((Ok(()), _)), _)) => return Woke::Changed,
                Either::Left((Either::Left((Err(gap), _)), _)) => {
                    return Woke::Lost(gap.to_string());
                }
                Either::Left((Either::Right(_), _)) => {}
            }
            // A process table that cannot be read fails the next sync, which says so.
            if let Ok(evidence) = session.read(&[Item::Processes], &Progress::silent()).await
                && let Ok(Some(who)) = started(session, &evidence, accepted)
            {
                return Woke::Proxy(who);
            }
            if begin.elapsed() >= limit {
                return Woke::Due;
            }
        }
    }

    /// Reads the live rules, and applies their difference from the desired state.
    async fn sync(&mut self) -> Result<Synced, Failure> {
        let session = self.session;
        let desired = self
            .basis
            .basis
            .desired(&self.watch.services(), &self.watch.slices());
        let mut evidence = self.basis.evidence.clone();
        evidence.extend(
            session
                .read(&live_items(self.mode), &Progress::silent())
                .await?,
        );
        if let Some(who) = started(session, &evidence, self.accepted.as_ref())? {
            return Ok(Synced::Proxy(who));
        }
        let node = session.node(&evidence);
        let found = diff::against(&node, &desired, session.families());
        if let Some(Unknown { what, gap, .. }) = found.unknown.first() {
            return Err(eyre!("cannot compare {what} with the desired state: {gap}").into());
        }
        let families = session.families();
        let plan = plan::repair_to(&node, &desired, families, &found, &Layer::ALL, self.drain)?;
        apply::run(&plan, &mut self.live, |_| {}).await?;
        let mut titles: Vec<String> = plan.steps.into_iter().map(|step| step.title).collect();
        let mut notes = Vec::new();
        if !titles.is_empty() {
            match self.forget().await {
                Ok(forgotten) => titles.extend(forgotten),
                Err(why) => notes.push(format!("stale UDP connections are not deleted: {why}")),
            }
        }
        Ok(Synced::Done { titles, notes })
    }

    /// Deletes the UDP connections that no endpoint answers, as kube-proxy does; returns the titles of the steps.
    async fn forget(&mut self) -> Result<Vec<String>, Failure> {
        let evidence = self.session.read(FORGET_NEEDS, &Progress::silent()).await?;
        let Plan { steps, .. } = plan::forget(&self.session.node(&evidence), self.mode)?;
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

/// Returns the kube-proxy that runs now, unless it is the one that was `accepted` and is as it was.
fn started(
    session: &Session,
    evidence: &Evidence,
    accepted: Option<&Known>,
) -> Result<Option<String>, Failure> {
    let node = session.node(evidence);
    let mut running = crate::node::processes::kube_proxies(node.processes()?);
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
