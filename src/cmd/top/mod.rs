//! `kpx top`

mod screen;

use std::collections::HashMap;
use std::future;
use std::pin::pin;
use std::time::{Duration, Instant};

use color_eyre::eyre::eyre;
use futures_util::future::{Either, join_all, select};

use super::Io;
use super::shared::failure::{Failure, Hint as _};
use super::shared::output::Output;
use super::shared::session::{Readable as _, Session};
use crate::backend::Mode;
use crate::backend::iptables::listing;
use crate::backend::iptables::model::{Match, Target};
use crate::cli::TopArgs;
use crate::evidence::{Gap, Item};
use crate::host::{self, ChainReader, Listing, Watch, clock};
use crate::meter::{Connections, Meter, Refused};
use crate::node::desired::NEEDS;
use crate::owner::{Owners, PortName};
use crate::render::{self, Format, Report as _};
use crate::report::CLEAN;
use crate::report::top::{Source, TopReport};
use crate::view::top::Names;
use crate::view::{Query, View};
use crate::words::number_of;
use screen::Screen;

/// The part of one processor that readings may use.
const LIMIT: f64 = 0.03;

/// How often the screen looks for typed keys.
const TICK: Duration = Duration::from_millis(50);

/// The chains of table filter in which kube-proxy rejects or drops packets to a Service.
const REFUSING: [&str; 3] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
];

pub(super) async fn run(session: &Session, io: &mut Io<'_>, args: &TopArgs) -> Result<u8, Failure> {
    session.refuse_bundle("`top` watches")?;
    let query = Query {
        view: View::Services,
        name: None,
        family: session.family(),
    };
    let mut items = query.needs();
    items.extend(NEEDS);
    items.sort();
    items.dedup();
    let evidence = session.gather(&items).await?;
    let node = session.node(&evidence);
    let mode = node.modes().current();
    if let Some(name) = args.service.as_deref() {
        let owners = Owners::new(&node);
        if !owners.ports().iter().any(|port| port.name.answers(name)) {
            return Err(eyre!("{name} not found"))
                .hint("name a Service as NAMESPACE/NAME[:PORT]; `kpx show services` lists them");
        }
    }
    let mut notes = Vec::new();
    let unseen = |gap: &Gap| format!("later changes of Services are not seen: {gap}");
    let mut watch = None;
    if session.cluster_from.is_none() {
        match Watch::start(&session.host).await {
            Ok(watched) => watch = Some(watched),
            Err(gap) => notes.push(unseen(&gap)),
        }
    }
    let mut reader = Reader::new(session, mode).await;
    notes.extend(reader.uncounted());
    let on_screen =
        io.terminal && io.interactive && args.count.is_none() && session.output.is_none();
    let mut screen = on_screen.then(|| Screen::open(args.sort));
    let mut interrupts = clock::Interrupts::listen();
    let mut left = args.count;
    let mut due = Instant::now();
    loop {
        let node = match &watch {
            Some(watch) => session
                .node(&evidence)
                .with_services(watch.services(), watch.slices()),
            None => session.node(&evidence),
        };
        let names = Names::new(&node, mode);
        let mut is_stale = false;
        loop {
            match wait(due, &mut interrupts, watch.as_mut(), screen.as_mut()).await? {
                Woken::Stop => return Ok(CLEAN),
                Woken::Changed(result) => {
                    is_stale = true;
                    notes.retain(|note| !note.starts_with("later changes"));
                    notes.extend(result.err().map(|gap| unseen(&gap)));
                    continue;
                }
                Woken::Due => {}
            }
            if is_stale {
                break;
            }
            let spent = reader.read().await?;
            due = Instant::now() + args.interval.max(spent.pause());
            let (mut services, elsewhere) =
                names.rows(&reader.meter, spent.time, args.service.as_deref());
            args.sort.sort(&mut services);
            let mut notes = notes.clone();
            notes.extend(reader.unaccounted());
            let report = TopReport {
                at: clock::now(),
                mode,
                source: reader.source(),
                seconds: spent.time.as_secs_f64(),
                processor: spent.part(),
                service_ports: names.count(),
                elsewhere,
                services,
                named: args.service.is_some(),
                notes,
            };
            if let Some(screen) = &mut screen {
                screen.show(report)?;
                continue;
            }
            // The first reading only tells what is open.
            if spent.time.is_zero() {
                continue;
            }
            print(session, io, &report)?;
            left = left.map(|left| left.saturating_sub(1));
            if left == Some(0) {
                return Ok(report.exit());
            }
        }
    }
}

fn print(session: &Session, io: &mut Io<'_>, report: &TopReport) -> Result<(), Failure> {
    match session.output {
        Some(Output::Format(Format::Json)) => {
            render::write_line(TopReport::KIND, report, io.out)?;
        }
        Some(Output::Format(Format::Yaml)) => {
            io.out.write_all(b"---\n")?;
            session.finish(io, report)?;
        }
        _ => {
            session.finish(io, report)?;
            io.out.write_all(b"\n")?;
        }
    }
    Ok(io.out.flush()?)
}

/// Why a wait ended.
enum Woken {
    /// A reading is due.
    Due,
    /// Services or endpoints changed, or cannot be watched at the moment.
    Changed(Result<(), Gap>),
    /// The user ends it.
    Stop,
}

/// Waits until `due`, a signal, a change of the cluster, or the key that ends the screen.
async fn wait(
    due: Instant,
    interrupts: &mut clock::Interrupts,
    mut watch: Option<&mut Watch>,
    mut screen: Option<&mut Screen>,
) -> Result<Woken, Failure> {
    loop {
        if let Some(screen) = &mut screen
            && screen.look()?
        {
            return Ok(Woken::Stop);
        }
        let rest = due.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(Woken::Due);
        }
        let tick = if screen.is_some() {
            TICK.min(rest)
        } else {
            rest
        };
        let change = async {
            match &mut watch {
                Some(watch) => watch.next().await,
                None => future::pending().await,
            }
        };
        let signal = pin!(interrupts.next());
        let event = pin!(select(signal, Box::pin(change)));
        match select(event, pin!(clock::pause(tick))).await {
            Either::Left((Either::Left(_), _)) => return Ok(Woken::Stop),
            Either::Left((Either::Right((result, _)), _)) => return Ok(Woken::Changed(result)),
            Either::Right(_) => {}
        }
    }
}

/// Reads counters of the kernel.
struct Reader<'s> {
    session: &'s Session,
    mode: Option<Mode>,
    meter: Meter,
    /// For the rules that refuse packets; `None` where none counts them.
    chains: Option<Vec<ChainReader>>,
    /// When the last reading ended, and the processor time of this process then.
    last: Option<(Instant, Duration)>,
}

/// What an interval took.
#[derive(Clone, Copy)]
struct Spent {
    /// Since the reading before; 0 for the first one.
    time: Duration,
    /// Of a processor.
    processor: Duration,
}

impl Spent {
    /// Returns how long to wait so that kpx stays below the limit.
    fn pause(self) -> Duration {
        self.processor.div_f64(LIMIT)
    }

    /// Returns the part of one processor.
    fn part(self) -> f64 {
        if self.time.is_zero() {
            return 0.0;
        }
        self.processor.as_secs_f64() / self.time.as_secs_f64()
    }
}

impl<'s> Reader<'s> {
    async fn new(session: &'s Session, mode: Option<Mode>) -> Self {
        let mut chains = None;
        if mode == Some(Mode::Iptables) {
            let readers = session.families().iter();
            let readers = readers.map(|&family| ChainReader::new(&session.host, family));
            chains = join_all(readers).await.into_iter().collect();
        }
        Self {
            session,
            mode,
            meter: Meter::default(),
            chains,
            last: None,
        }
    }

    const fn source(&self) -> Source {
        match self.mode {
            Some(Mode::Ipvs) => Source::Ipvs,
            _ => Source::Conntrack,
        }
    }

    /// Returns why refused packets are not counted.
    fn uncounted(&self) -> Option<String> {
        let why = match self.mode {
            _ if self.chains.is_some() => return None,
            Some(Mode::Iptables) => "kpx does not read the counters of the legacy back end",
            _ => "no rule counts them in this mode",
        };
        Some(format!("refused packets are unknown: {why}"))
    }

    /// Returns why packets and bytes are not counted, of all connections or of some.
    fn unaccounted(&self) -> Option<String> {
        let (uncounted, _) = self.meter.uncounted();
        if self.meter.is_counted() {
            return (uncounted > 0).then(|| {
                let count = number_of(uncounted, "connection");
                format!("packets and bytes of {count} are not counted: accounting was off when they began")
            });
        }
        let how = match self.source() {
            Source::Ipvs => "reading the counters of virtual servers needs CAP_NET_ADMIN",
            Source::Conntrack => {
                "`sysctl -w net.netfilter.nf_conntrack_acct=1` counts those of new connections"
            }
        };
        Some(format!("packets and bytes are unknown: {how}"))
    }

    /// Reads all counters.
    async fn read(&mut self) -> Result<Spent, Failure> {
        let host = &self.session.host;
        match self.source() {
            Source::Ipvs => self.meter.ipvs(&host::ipvs_table(host).await.readable()?),
            Source::Conntrack => {
                let all = host::connections(host, Connections::add).await;
                self.meter.track(all.readable()?);
            }
        }
        if let Some(chains) = &self.chains {
            let mut counts = HashMap::new();
            let reads = chains
                .iter()
                .flat_map(|reader| REFUSING.map(|chain| (reader, chain)));
            let reads = reads.map(async |(reader, chain)| {
                let listing = reader.read("filter", chain).await;
                (reader.family(), chain, listing)
            });
            for (family, chain, listing) in join_all(reads).await {
                if let Listing::Chain(text) = listing.readable()? {
                    refused(Item::iptables(family), chain, &text, &mut counts).readable()?;
                }
            }
            self.meter.refuse(counts);
        }
        let now = (Instant::now(), host::processor_time());
        let before = self.last.replace(now).unwrap_or(now);
        Ok(Spent {
            time: now.0 - before.0,
            processor: now.1.saturating_sub(before.1),
        })
    }
}

/// Adds the packets that the rules of `chain` in `text` have refused.
fn refused(
    item: Item,
    chain: &'static str,
    text: &str,
    counts: &mut HashMap<Refused, u64>,
) -> Result<(), Gap> {
    for rule in &listing::chain(item, text)?.rules {
        if !matches!(rule.target, Some(Target::Drop | Target::Reject { .. })) {
            continue;
        }
        let name = rule.comment().and_then(|text| text.split(' ').next());
        let Some(name) = name.and_then(PortName::parse) else {
            continue;
        };
        let proto = rule.matches.iter().find_map(|of| match of {
            Match::Protocol(of) => Some(of.value),
            _ => None,
        });
        if let (Some(proto), Some(counters)) = (proto, rule.counters) {
            let key = (chain.into(), name, proto);
            *counts.entry(key).or_default() += counters.packets;
        }
    }
    Ok(())
}
