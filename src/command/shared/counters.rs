//! Readings of the kernel's counters of the traffic of Services.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::change_sources::layout;
use super::failure::Failure;
use super::session::{Readable as _, Session};
use crate::report::traffic_source::Source;
use kpx_host::{self as host, ChainReader, Listing};
use kpx_judge::meter::{Connections, Meter, Refused};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::listing;
use kpx_node::backend::iptables::model::{Match, Target};
use kpx_node::evidence::{Gap, Item};
use kpx_node::owner::PortName;
use kpx_node::words::number_of;

/// The chains of table filter in which kube-proxy rejects or drops packets to a Service.
const REFUSING: [&str; 3] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
];

/// Reads counters of the kernel.
pub(in crate::command) struct Reader<'s> {
    session: &'s Session,
    mode: Option<Mode>,
    pub(in crate::command) meter: Meter,
    /// For the rules that refuse packets; `None` where none counts them.
    chains: Option<Vec<ChainReader>>,
    /// The virtual servers, without their counters, as one number.
    layout: Option<u64>,
    /// When the last reading ended, and the processor time of this process then.
    last: Option<(Instant, Duration)>,
}

/// The cost of an interval.
#[derive(Clone, Copy)]
pub(in crate::command) struct Spent {
    /// Since the reading before; 0 for the first one.
    pub(in crate::command) time: Duration,
    /// Of a processor.
    pub(in crate::command) processor: Duration,
}

impl Spent {
    /// Returns how long to wait so that kpx stays below `limit`, a part of one processor.
    pub(in crate::command) fn pause(self, limit: f64) -> Duration {
        self.processor.div_f64(limit)
    }

    /// Returns the part of one processor.
    pub(in crate::command) fn part(self) -> f64 {
        if self.time.is_zero() {
            return 0.0;
        }
        self.processor.as_secs_f64() / self.time.as_secs_f64()
    }
}

impl<'s> Reader<'s> {
    pub(in crate::command) async fn new(session: &'s Session, mode: Option<Mode>) -> Self {
        let chains = chains(session, mode).await;
        Self {
            session,
            mode,
            meter: Meter::default(),
            chains,
            layout: None,
            last: None,
        }
    }

    /// Returns the mode whose counters are read.
    pub(in crate::command) const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Reads the counters of another mode from now on; the next reading only shows open connections.
    pub(in crate::command) async fn set_mode(&mut self, mode: Option<Mode>) {
        *self = Self::new(self.session, mode).await;
    }

    /// Returns a number that changes with the virtual servers; `None` where they were not read.
    pub(in crate::command) const fn layout(&self) -> Option<u64> {
        self.layout
    }

    pub(in crate::command) const fn source(&self) -> Source {
        match self.mode {
            Some(Mode::Ipvs) => Source::Ipvs,
            _ => Source::Conntrack,
        }
    }

    /// Returns why refused packets are not counted.
    pub(in crate::command) fn uncounted(&self) -> Option<String> {
        let why = match self.mode {
            _ if self.chains.is_some() => return None,
            Some(Mode::Iptables) => "both back ends of iptables have tables",
            _ => "no rule counts them in this mode",
        };
        Some(format!("refused packets are unknown: {why}"))
    }

    /// Returns why packets and bytes are not counted, of all connections or of some.
    pub(in crate::command) fn unaccounted(&self) -> Option<String> {
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
    pub(in crate::command) async fn read(&mut self) -> Result<Spent, Failure> {
        let host = &self.session.host;
        match self.source() {
            Source::Ipvs => {
                let table = host::ipvs_table(host).await.readable()?;
                self.layout = Some(layout(&table));
                self.meter.ipvs(&table);
            }
            Source::Conntrack => {
                self.layout = None;
                let all = host::connections(host, Connections::add).await;
                self.meter.track(all.readable()?);
            }
        }
        let now = (Instant::now(), host::processor_time());
        let before = self.last.replace(now).unwrap_or(now);
        let time = now.0 - before.0;
        if let Some(chains) = &self.chains {
            let mut counts = HashMap::new();
            let names = REFUSING.map(|chain| ("filter".to_owned(), chain.to_owned()));
            let reads = chains.iter().map(|reader| reader.read(names.to_vec()));
            for (reader, listings) in chains.iter().zip(join_all(reads).await) {
                let item = Item::iptables(reader.family());
                for (chain, listing) in REFUSING.into_iter().zip(listings) {
                    if let Listing::Chain(text) = listing.readable()? {
                        refused(item, chain, &text, &mut counts).readable()?;
                    }
                }
            }
            self.meter.refuse(counts, time);
        }
        Ok(Spent {
            time,
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
        let proto = rule.matches.iter().find_map(|matched| match matched {
            Match::Protocol(matched) => Some(matched.value),
            _ => None,
        });
        if let (Some(proto), Some(counters)) = (proto, rule.counters) {
            let key = (chain.into(), name, proto);
            *counts.entry(key).or_default() += counters.packets;
        }
    }
    Ok(())
}

/// Returns readers of the rules that refuse packets, where they count them.
async fn chains(session: &Session, mode: Option<Mode>) -> Option<Vec<ChainReader>> {
    if mode != Some(Mode::Iptables) {
        return None;
    }
    let readers = session.families().iter();
    let readers = readers.map(|&family| ChainReader::new(&session.host, family));
    join_all(readers).await.into_iter().collect()
}
