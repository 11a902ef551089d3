//! `kpx serve`: metrics and the health of this node, for Prometheus and for probes.
//!
//! Cheap counters are read often, in this process. Everything else is read in separate processes, after a change or a
//! while: their memory is freed when they end.

use std::collections::{BTreeMap, HashMap};
use std::future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use color_eyre::eyre::WrapErr as _;
use futures_util::future::{Either, select};
use http::StatusCode;

use super::args::ServeArgs;
use super::reading;
use super::reading::Reading;
use super::record::Folder;
use super::state::{Kind, Own, State, Syncs};
use crate::command::shared::change_sources;
use crate::command::shared::change_sources::{Look, Notices};
use crate::command::shared::counters::Reader;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::render::prometheus::CONTENT_TYPE;
use crate::report::CLEAN;
use kpx_host::{self as host, HttpAnswer, HttpServer, clock};
use kpx_judge::meter::Meter;
use kpx_judge::meter::totals::{Key, Total, Totals};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Gap, Item, Time};
use kpx_node::node::runtime::Metrics;
use kpx_node::owner::Owners;

/// The least time between the end of a reading of the whole node and the next.
const LEAST: Duration = Duration::from_secs(10);

/// How much unused budget of readings is kept: after a quiet time, a change and its repair are both seen soon.
const SAVED: Duration = Duration::from_secs(300);

/// The time limit of a process, in multiples of `--timeout`.
const LONGER: u32 = 20;

/// The result of a process: its output, or the reason why it failed.
type Ended = Result<Vec<u8>, String>;

/// A process that reads the whole node or writes a bundle.
struct Job {
    kind: Kind,
    begun: Instant,
    /// The processor time of kpx when it began, without the time for counters.
    processor: Duration,
    ended: Pin<Box<dyn Future<Output = Ended>>>,
}

/// Why a wait ended.
enum Woken {
    Due,
    Cluster(Result<(), Gap>),
    Job(Ended),
}

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ServeArgs,
) -> Result<u8, Failure> {
    session.refuse_bundle("`serve` follows")?;
    if args.reading {
        return reading::run(session, io).await;
    }
    session.machine()?;
    let mut interrupts = clock::Interrupts::listen();
    let state = Arc::new(Mutex::new(State::default()));
    let answers = Arc::clone(&state);
    let server = HttpServer::start(args.listen, move |path| answer(&answers, path))
        .wrap_err_with(|| format!("cannot listen at {}", args.listen))
        .hint("choose another address with --listen")?;
    // Not before: another kpx at this address may be writing to the folder.
    let folder = args.record.as_deref().map(|path| {
        Folder::open(path, args.record_size)
            .wrap_err_with(|| format!("cannot use the folder {}", path.display()))
            .hint("--record names a folder that kpx may write")
    });
    let folder = folder.transpose()?;
    writeln!(io.err, "kpx: serving http://{}/metrics", server.address())?;
    let reads = pin!(read(session, args, folder, state));
    // A read that waits for the machine or the API server does not delay the end.
    select(pin!(interrupts.next()), reads).await;
    Ok(CLEAN)
}

/// Keeps `state` up to date, until the counters were read `--count` times.
async fn read(
    session: &Session,
    args: &ServeArgs,
    folder: Option<Folder>,
    state: Arc<Mutex<State>>,
) {
    let mut serving = Serving::new(session, args, folder, state).await;
    let mut left = args.count;
    while left != Some(0) {
        serving.start_job();
        match serving.wait().await {
            Woken::Cluster(result) => serving.cluster_changed(result),
            Woken::Job(ended) => serving.job_ended(ended).await,
            Woken::Due if serving.due > Instant::now() => {}
            Woken::Due => {
                serving.count().await;
                left = left.map(|left| left.saturating_sub(1));
            }
        }
    }
}

/// Returns the answer for `path`.
fn answer(state: &Mutex<State>, path: &str) -> HttpAnswer {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    match path {
        "/metrics" => {
            let own = Own {
                processor: host::processor_time(),
                memory: host::resident_memory(),
                peak: host::peak_of_children(),
            };
            HttpAnswer {
                status: StatusCode::OK,
                content_type: CONTENT_TYPE,
                text: state.metrics(clock::now(), own),
            }
        }
        "/healthz" => {
            let (is_healthy, text) = state.health(clock::now());
            let status = if is_healthy {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            HttpAnswer::text(status, text)
        }
        "/livez" => HttpAnswer::text(StatusCode::OK, "ok\n"),
        "/" => HttpAnswer::text(StatusCode::OK, "/metrics\n/healthz\n/livez\n"),
        _ => HttpAnswer::not_found(),
    }
}

struct Serving<'s> {
    session: &'s Session,
    args: &'s ServeArgs,
    folder: Option<Folder>,
    state: Arc<Mutex<State>>,
    notices: Notices<'s>,
    /// Service ports by address; made anew before the next counters if the cluster changed.
    owners: Option<Owners>,
    reader: Reader<'s>,
    totals: Totals,
    job: Option<Job>,
    /// When the counters are due.
    due: Instant,
    /// When the node may be read again, and when it must be.
    node_from: Instant,
    node_at: Instant,
    /// Until when the budget pays for the readings of the node so far.
    paid_until: Instant,
    /// Whether something changed that the last reading of the node has not seen.
    is_changed: bool,
    /// Whether something changed since the last bundle, and when the next may be written.
    is_unrecorded: bool,
    record_from: Instant,
    /// The processor time of counters.
    counters: Duration,
}

impl<'s> Serving<'s> {
    async fn new(
        session: &'s Session,
        args: &'s ServeArgs,
        folder: Option<Folder>,
        state: Arc<Mutex<State>>,
    ) -> Self {
        let now = Instant::now();
        let mut serving = Self {
            session,
            args,
            folder,
            state,
            notices: Notices::new(session),
            owners: None,
            reader: Reader::new(session, None).await,
            totals: Totals::new(args.services),
            job: None,
            due: now,
            node_from: now,
            node_at: now,
            paid_until: now,
            is_changed: true,
            is_unrecorded: true,
            record_from: now,
            counters: Duration::ZERO,
        };
        for source in change_sources::SOURCES {
            serving.state().changes.insert(source, 0);
        }
        serving.state().stale_after = args.check_interval * 3;
        serving.watch_cluster().await;
        serving
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the part of a processor for one of the two kinds of readings.
    fn share(&self) -> f64 {
        self.args.budget / 100.0 / 2.0
    }

    /// Starts to watch the cluster, unless a bundle stands for it or it is watched already.
    async fn watch_cluster(&mut self) {
        if self.notices.watch.is_none() {
            let started = self.notices.watch_cluster().await;
            known(&mut self.state().unknown, change_sources::CLUSTER, started);
        }
    }

    async fn wait(&mut self) -> Woken {
        let until = match self.next_job_at() {
            Some(at) => at.min(self.due),
            None => self.due,
        };
        let rest = until.saturating_duration_since(Instant::now());
        let (cluster, job) = (self.notices.cluster(), self.job.as_mut());
        let job = async {
            match job {
                Some(job) => job.ended.as_mut().await,
                None => future::pending().await,
            }
        };
        let (cluster, job) = (pin!(cluster), pin!(job));
        match select(select(cluster, job), pin!(clock::pause(rest))).await {
            Either::Left((Either::Left((result, _)), _)) => Woken::Cluster(result),
            Either::Left((Either::Right((ended, _)), _)) => Woken::Job(ended),
            Either::Right(_) => Woken::Due,
        }
    }

    fn cluster_changed(&mut self, result: Result<(), Gap>) {
        let mut state = self.state();
        match result {
            Ok(()) => {
                state.unknown.remove(change_sources::CLUSTER);
                *state.changes.entry(change_sources::CLUSTER).or_default() += 1;
            }
            Err(gap) => {
                state
                    .unknown
                    .insert(change_sources::CLUSTER, gap.to_string());
            }
        }
        drop(state);
        self.owners = None;
        self.changed();
    }

    const fn changed(&mut self) {
        self.is_changed = true;
        self.is_unrecorded = true;
    }

    /// Returns when the node is read next.
    fn next_node_at(&self) -> Instant {
        if self.is_changed {
            self.node_from
        } else {
            self.node_from.max(self.node_at)
        }
    }

    /// Returns when the next process is due; `None` while one runs, or if nothing is to be done.
    fn next_job_at(&self) -> Option<Instant> {
        if self.job.is_some() {
            return None;
        }
        let node = self.next_node_at();
        let records = self.folder.is_some() && self.is_unrecorded;
        // The node has a name once it was read.
        let has_read = self.state().reading.is_some();
        Some(if records && has_read {
            node.min(self.record_from.max(self.node_from))
        } else {
            node
        })
    }

    /// Starts the process that is due.
    fn start_job(&mut self) {
        let now = Instant::now();
        if self.next_job_at().is_none_or(|at| at > now) {
            return;
        }
        let mut arguments = self.session.arguments();
        let kind = if now >= self.next_node_at() {
            self.is_changed = false;
            arguments.extend(["serve", "--reading"].map(str::to_owned));
            Kind::Node
        } else {
            self.record_from = now + self.args.record_interval;
            match self.next_bundle() {
                Ok(path) => {
                    self.is_unrecorded = false;
                    arguments.extend(["snapshot", "-q", "--file", &path].map(str::to_owned));
                    Kind::Record
                }
                Err(why) => {
                    self.state()
                        .end(Kind::Record, clock::now(), Duration::ZERO, Err(why));
                    return;
                }
            }
        };
        let limit = self.session.host.timeout * LONGER;
        let ended = async move {
            // Findings are no failure, and a bundle with gaps is a bundle.
            let most = if kind == Kind::Record {
                3
            } else {
                i32::from(CLEAN)
            };
            let printed = host::run_self(&arguments, most, limit).await;
            printed.map_err(|why| why.to_string())
        };
        self.job = Some(Job {
            kind,
            begun: now,
            processor: host::processor_time().saturating_sub(self.counters),
            ended: Box::pin(ended),
        });
    }

    fn next_bundle(&self) -> Result<String, String> {
        let folder = self.folder.as_ref().ok_or("there is no folder")?;
        let reading = self
            .state()
            .reading
            .as_ref()
            .and_then(|reading| reading.node.clone());
        let node = reading.unwrap_or_else(|| "node".to_owned());
        let path = folder.next(&node, &clock::now().to_string());
        let path = path.map_err(|why| why.to_string())?;
        Ok(path.display().to_string())
    }

    async fn job_ended(&mut self, ended: Ended) {
        let Some(job) = self.job.take() else {
            return;
        };
        let mode = self.take_over(&job, ended);
        if mode.is_some() && mode != self.reader.mode() {
            // Another mode has other counters; those of Services continue.
            self.reader.set_mode(mode).await;
        }
    }

    /// Adopts the output of the process `job`; returns the mode that it found.
    fn take_over(&mut self, job: &Job, ended: Ended) -> Option<Mode> {
        let now = Instant::now();
        let used = host::processor_time().saturating_sub(self.counters);
        let price = used.saturating_sub(job.processor).div_f64(self.share());
        self.paid_until = paid(self.paid_until, now, price);
        self.node_from = self.paid_until.max(now + LEAST);
        let pause = self.node_from - now;
        let mut mode = None;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = if job.kind == Kind::Record {
            // A bundle that could not be written is written later.
            self.is_unrecorded |= ended.is_err();
            if let Some(folder) = self.folder.as_ref().filter(|_| ended.is_ok()) {
                let content = folder.keep();
                state.record = known(&mut state.unknown, "record", content);
            }
            ended.map(drop)
        } else {
            let result = ended.and_then(|text| Reading::parse(&text));
            let period = self.args.check_interval;
            self.node_at = now + if result.is_ok() { period } else { pause };
            state.stale_after = period.max(price) * 3;
            result.map(|reading| {
                let is = |mode: &Mode| reading.mode.as_deref() == Some(mode.name());
                mode = Mode::EVER.into_iter().find(is);
                state.reading = Some(reading);
            })
        };
        state.end(job.kind, clock::now(), job.begun.elapsed(), result);
        mode
    }

    /// Reads the counters.
    async fn count(&mut self) {
        let (begun, before) = (Instant::now(), host::processor_time());
        let host = &self.session.host;
        let syncs = self.syncs().await;
        let conntrack = host::conntrack_fill(host).await;
        self.name_ports().await;
        let flows = self.reader.read().await;
        let Look {
            generation,
            changed,
        } = self.notices.look(self.reader.layout()).await;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.syncs = syncs;
        state.generation = known(&mut state.unknown, "nftables-generation", generation);
        let is_changed = !changed.is_empty();
        for source in changed {
            *state.changes.entry(source).or_default() += 1;
        }
        state.conntrack = known(&mut state.unknown, "conntrack", conntrack);
        let flows = flows.map_err(|why| why.to_string());
        let result = flows.as_ref().map(drop).map_err(Clone::clone);
        let has_flows = known(&mut state.unknown, "traffic", flows).is_some();
        state.rows = None;
        state.ports = self.owners.as_ref().map(|owners| owners.ports().len());
        if let Some(owners) = self.owners.as_ref().filter(|_| has_flows) {
            let meter = &self.reader.meter;
            let counted = &counted(owners, meter);
            self.totals
                .add(counted, |key| owners.named(&key.0, key.1).is_some());
            let (rows, others) = self.totals.each();
            let rows = rows.into_iter();
            let rows = rows.map(|(key, total)| (key.0.to_string(), key.1.to_string(), total));
            state.rows = Some((rows.collect(), others));
            state.is_accounted = meter.is_counted();
            state.is_refusal_counted = meter.refuses();
            note(
                &mut state.unknown,
                "traffic-bytes",
                self.reader.unaccounted(),
            );
            note(&mut state.unknown, "refused", self.reader.uncounted());
        }
        state.end(Kind::Counters, clock::now(), begun.elapsed(), result);
        drop(state);
        if is_changed {
            self.changed();
        }
        let used = host::processor_time().saturating_sub(before);
        self.counters += used;
        let pause = used.div_f64(self.share());
        self.due = Instant::now() + self.args.interval.max(pause);
    }

    /// Finds the service ports of the cluster's objects, if they changed.
    async fn name_ports(&mut self) {
        self.watch_cluster().await;
        if self.owners.is_some() {
            return;
        }
        if let Some(watch) = &self.notices.watch {
            let nothing = Evidence::default();
            let node = self.session.node(&nothing);
            let node = node.with_services(watch.services(), watch.slices());
            self.owners = Some(Owners::new(&node));
        } else if self.session.source.cluster_bundle().is_some() {
            let items = [Item::Services, Item::EndpointSlices];
            let evidence = self.session.gather(&items).await;
            let evidence = evidence.map_err(|why| why.to_string());
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let evidence = known(&mut state.unknown, change_sources::CLUSTER, evidence);
            self.owners = evidence.map(|evidence| Owners::new(&self.session.node(&evidence)));
        }
    }

    /// Asks kube-proxy for its last sync.
    async fn syncs(&self) -> Syncs {
        let items = [Item::Healthz, Item::Metrics];
        let evidence = match self.session.gather(&items).await {
            Ok(evidence) => evidence,
            Err(why) => {
                return Syncs {
                    unknown: Some(why.to_string()),
                    ..Syncs::default()
                };
            }
        };
        let node = self.session.node(&evidence);
        let is_healthy = match node.health() {
            Ok(health) => health.healthy,
            Err(Gap::NotApplicable(_)) => None,
            Err(gap) => {
                return Syncs {
                    unknown: Some(gap.to_string()),
                    ..Syncs::default()
                };
            }
        };
        let last = node.metrics().into_iter().flat_map(Metrics::last_sync);
        let last = last.filter_map(|(family, at)| {
            let at = Time::from_epoch(at).filter(|_| at > 0.0)?;
            let family = family.map_or_else(
                || "both".to_owned(),
                |known_family| known_family.to_string(),
            );
            Some((family, at))
        });
        Syncs {
            last: last.collect(),
            is_healthy,
            unknown: None,
        }
    }
}

/// Returns until when the budget pays, after a reading of `price` that ended `now`.
fn paid(until: Instant, now: Instant, price: Duration) -> Instant {
    until.max(now.checked_sub(SAVED).unwrap_or(until)) + price
}

/// Returns the traffic of each service port since the last reading.
fn counted(owners: &Owners, meter: &Meter) -> HashMap<Key, Total> {
    let mut all: HashMap<Key, Total> = HashMap::new();
    for (way, flow) in meter.flows() {
        if let Some((port, _)) = owners.served_at(way.destination, way.proto) {
            let total = all.entry((port.name.clone(), port.proto)).or_default();
            total.open += flow.open;
            total.new += flow.new;
            total.packets += flow.packets;
            total.bytes += flow.bytes;
        }
    }
    for (name, proto, count) in meter.refused() {
        all.entry((name.clone(), *proto)).or_default().refused += count;
    }
    all
}

/// Returns the value, or notes its gap.
fn known<T, E: ToString>(
    unknown: &mut BTreeMap<&'static str, String>,
    what: &'static str,
    read: Result<T, E>,
) -> Option<T> {
    let (read, why) = match read {
        Ok(read) => (Some(read), None),
        Err(why) => (None, Some(why.to_string())),
    };
    note(unknown, what, why);
    read
}

/// Notes or clears the gap of a part.
fn note(unknown: &mut BTreeMap<&'static str, String>, what: &'static str, why: Option<String>) {
    match why {
        Some(why) => drop(unknown.insert(what, why)),
        None => drop(unknown.remove(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_times_pay_for_several_readings_and_no_more() {
        let start = Instant::now() + SAVED;
        let price = SAVED / 3;
        let mut until = paid(start, start, price);
        assert_eq!(until, start + price, "nothing is saved at the start");
        let now = start + SAVED * 10;
        for _ in 0..3 {
            assert!(until <= now);
            until = paid(until, now, price);
        }
        assert_eq!(until, now);
        assert_eq!(paid(until, now, price), now + price);
    }
}
