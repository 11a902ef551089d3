//! Readings of the kernel's counters of what flows through Services.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::failure::Failure;
use super::notice::layout;
use super::session::{Readable as _, Session};
use crate::backend::Mode;
use crate::backend::iptables::listing;
use crate::backend::iptables::model::{Chain, Match, Target};
use crate::evidence::{Gap, Item};
use crate::host::{self, ChainReader, Listing};
use crate::meter::{Connections, Meter, Refused};
use crate::net::Family;
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::owner::PortName;
use crate::render::Progress;
use crate::report::top::Source;
use crate::words::number_of;

/// The chains of table filter in which kube-proxy rejects or drops packets to a Service.
const REFUSING: [&str; 3] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
];

/// Reads counters of the kernel.
pub(in crate::cmd) struct Reader<'s> {
    session: &'s Session,
    mode: Option<Mode>,
    pub(in crate::cmd) meter: Meter,
    refusals: Refusals,
    /// The virtual servers, without their counters, as one number.
    layout: Option<u64>,
    /// When the last reading ended, and the processor time of this process then.
    last: Option<(Instant, Duration)>,
    /// The time between the last two readings.
    interval: Duration,
}

/// Where the counters of rules that refuse packets are read.
enum Refusals {
    /// Nowhere; the text says why.
    Uncounted(&'static str),
    /// In single chains, at each reading.
    Chains(Vec<ChainReader>),
    /// In all rules, which takes long.
    Rules(Rules),
}

/// Readings of all rules of iptables.
struct Rules {
    /// The part of one processor that they may use.
    share: f64,
    /// When the next one may begin.
    due: Instant,
    last: Option<Instant>,
    /// Why the last one failed, if it did.
    unread: Option<String>,
}

/// What an interval took.
#[derive(Clone, Copy)]
pub(in crate::cmd) struct Spent {
    /// Since the reading before; 0 for the first one.
    pub(in crate::cmd) time: Duration,
    /// Of a processor.
    pub(in crate::cmd) processor: Duration,
    /// The part of it that went into a reading of all rules.
    rules: Duration,
    /// The part of one processor that such readings may use.
    rules_share: f64,
}

impl Spent {
    /// Returns how long to wait so that kpx stays below `limit`, a part of one processor.
    pub(in crate::cmd) fn pause(self, limit: f64) -> Duration {
        let used = self.processor.saturating_sub(self.rules);
        used.div_f64(limit - self.rules_share)
    }

    /// Returns the part of one processor.
    pub(in crate::cmd) fn part(self) -> f64 {
        if self.time.is_zero() {
            return 0.0;
        }
        self.processor.as_secs_f64() / self.time.as_secs_f64()
    }
}

impl<'s> Reader<'s> {
    /// Returns a reader of the counters of `mode`; `rules_share` is the part of one processor that it may use to read all rules
    /// where no single chain can be read, as in the legacy back end of iptables.
    pub(in crate::cmd) async fn new(
        session: &'s Session,
        mode: Option<Mode>,
        rules_share: Option<f64>,
    ) -> Self {
        let refusals = refusals(session, mode, rules_share).await;
        Self {
            session,
            mode,
            meter: Meter::default(),
            refusals,
            layout: None,
            last: None,
            interval: Duration::ZERO,
        }
    }

    /// Returns the mode whose counters are read.
    pub(in crate::cmd) const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Reads the counters of another mode from now on; the next reading only tells what is open.
    pub(in crate::cmd) async fn set_mode(&mut self, mode: Option<Mode>) {
        let share = match &self.refusals {
            Refusals::Rules(of) => Some(of.share),
            _ => None,
        };
        *self = Self::new(self.session, mode, share).await;
    }

    /// Returns a number that changes with the virtual servers; `None` where they were not read.
    pub(in crate::cmd) const fn layout(&self) -> Option<u64> {
        self.layout
    }

    pub(in crate::cmd) const fn source(&self) -> Source {
        match self.mode {
            Some(Mode::Ipvs) => Source::Ipvs,
            _ => Source::Conntrack,
        }
    }

    /// Returns why refused packets are not counted, or not at each reading.
    pub(in crate::cmd) fn uncounted(&self) -> Option<String> {
        let unknown = |why: &str| Some(format!("refused packets are unknown: {why}"));
        match &self.refusals {
            Refusals::Uncounted(why) => unknown(why),
            Refusals::Chains(_) => None,
            Refusals::Rules(of) => match (&of.unread, self.meter.refused_over()) {
                (Some(why), _) => unknown(why),
                (None, None) => unknown("the rules have been read only once"),
                (None, Some(over)) if over <= self.interval * 2 => None,
                (None, Some(over)) => Some(format!(
                    "refused packets are those of {:.0} s: kpx reads all rules of iptables for them",
                    over.as_secs_f64()
                )),
            },
        }
    }

    /// Returns why packets and bytes are not counted, of all connections or of some.
    pub(in crate::cmd) fn unaccounted(&self) -> Option<String> {
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
    pub(in crate::cmd) async fn read(&mut self) -> Result<Spent, Failure> {
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
        let by_chain = match &self.refusals {
            Refusals::Chains(chains) => Some(in_chains(chains).await?),
            _ => None,
        };
        let mut spent = self.spent();
        if let Some(counts) = by_chain {
            self.meter.refuse(counts, spent.time);
        }
        if let Refusals::Rules(rules) = &mut self.refusals {
            let before = host::processor_time();
            rules.read(self.session, &mut self.meter).await?;
            spent.rules = host::processor_time().saturating_sub(before);
            spent.rules_share = rules.share;
        }
        Ok(spent)
    }

    /// Returns what was spent since the last reading.
    fn spent(&mut self) -> Spent {
        let now = (Instant::now(), host::processor_time());
        let before = self.last.replace(now).unwrap_or(now);
        self.interval = now.0 - before.0;
        Spent {
            time: self.interval,
            processor: now.1.saturating_sub(before.1),
            rules: Duration::ZERO,
            rules_share: 0.0,
        }
    }
}

impl Rules {
    /// Reads all rules, if that is due.
    async fn read(&mut self, session: &Session, meter: &mut Meter) -> Result<(), Failure> {
        let (now, before) = (Instant::now(), host::processor_time());
        if now < self.due {
            return Ok(());
        }
        let families = session.families();
        let items: Vec<_> = families.iter().map(|of| Item::iptables(*of)).collect();
        let evidence = session.read(&items, &Progress::silent()).await?;
        match in_rules(&session.node(&evidence), families) {
            Ok(counts) => {
                let last = self.last.replace(now);
                meter.refuse(counts, last.map_or(Duration::ZERO, |last| now - last));
                self.unread = None;
            }
            Err(gap) => {
                self.last = None;
                meter.forget_refused();
                self.unread = Some(gap.to_string());
            }
        }
        let used = host::processor_time().saturating_sub(before);
        self.due = now + used.div_f64(self.share);
        Ok(())
    }
}

/// The packets that rules have refused.
type Counts = HashMap<Refused, u64>;

/// Reads the chains that refuse packets.
async fn in_chains(readers: &[ChainReader]) -> Result<Counts, Failure> {
    let mut counts = HashMap::new();
    let reads = readers
        .iter()
        .flat_map(|reader| REFUSING.map(|chain| (reader, chain)));
    let reads = reads.map(async |(reader, name)| {
        let listing = reader.read("filter", name).await;
        (reader.family(), name, listing)
    });
    for (family, name, listing) in join_all(reads).await {
        if let Listing::Chain(text) = listing.readable()? {
            let chain = listing::chain(Item::iptables(family), &text).readable()?;
            add_refused(name, &chain, &mut counts);
        }
    }
    Ok(counts)
}

/// Returns the packets that the rules of `node` have refused.
fn in_rules(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Counts, Gap> {
    let mut counts = HashMap::new();
    for family in families {
        let rules = node.saved(IptablesBackend::InUse, *family)?;
        for name in REFUSING {
            if let Some(chain) = rules.chain("filter", name)? {
                add_refused(name, chain, &mut counts);
            }
        }
    }
    Ok(counts)
}

/// Adds the packets that the rules of the chain `name` have refused.
fn add_refused(name: &'static str, chain: &Chain<'_>, counts: &mut Counts) {
    for rule in &chain.rules {
        if !matches!(rule.target, Some(Target::Drop | Target::Reject { .. })) {
            continue;
        }
        let service = rule.comment().and_then(|text| text.split(' ').next());
        let Some(service) = service.and_then(PortName::parse) else {
            continue;
        };
        let proto = rule.matches.iter().find_map(|of| match of {
            Match::Protocol(of) => Some(of.value),
            _ => None,
        });
        if let (Some(proto), Some(counters)) = (proto, rule.counters) {
            let key = (name.into(), service, proto);
            *counts.entry(key).or_default() += counters.packets;
        }
    }
}

/// Returns where the counters of rules that refuse packets are read.
async fn refusals(session: &Session, mode: Option<Mode>, rules_share: Option<f64>) -> Refusals {
    if mode != Some(Mode::Iptables) {
        return Refusals::Uncounted("no rule counts them in this mode");
    }
    let readers = session.families().iter();
    let readers = readers.map(|&family| ChainReader::new(&session.host, family));
    let chains: Option<Vec<_>> = join_all(readers).await.into_iter().collect();
    match (chains, rules_share) {
        (Some(chains), _) => Refusals::Chains(chains),
        (None, None) => {
            Refusals::Uncounted("this takes a reading of all rules in the legacy back end")
        }
        (None, Some(share)) => Refusals::Rules(Rules {
            share,
            due: Instant::now(),
            last: None,
            unread: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;
    use crate::net::Proto;

    fn counted(text: &str) -> Result<Counts, Gap> {
        let mut evidence = Evidence::default();
        evidence.insert(Item::Iptables4, Ok(text.to_owned()));
        in_rules(&NodeSnapshot::new(&evidence), &[Family::V4])
    }

    #[test]
    fn rules_of_kube_proxy_that_refuse_packets_are_counted_by_service() {
        let text = "*filter\n:INPUT ACCEPT [9:9]\n:KUBE-SERVICES - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n\
            [7:420] -A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"default/web:http has no endpoints\" -m tcp \
            --dport 80 -j REJECT --reject-with icmp-port-unreachable\n\
            [2:120] -A KUBE-SERVICES -d 10.96.0.9/32 -p udp -m comment --comment \"default/web:http has no endpoints\" -m udp \
            --dport 80 -j REJECT --reject-with icmp-port-unreachable\n\
            [5:300] -A KUBE-PROXY-FIREWALL -d 203.0.113.1/32 -p tcp -m comment --comment \"default/web:http traffic not \
            accepted by KUBE-FW-AAAAAAAAAAAAAAAA\" -m tcp --dport 80 -j DROP\n\
            [4:240] -A INPUT -p tcp -m comment --comment default/web:http -j DROP\nCOMMIT\n";
        let counts = counted(text).unwrap();
        let web = PortName::parse("default/web:http").unwrap();
        let of = |chain: &str, proto| counts.get(&(chain.into(), web.clone(), proto)).copied();
        assert_eq!(of("KUBE-SERVICES", Proto::Tcp), Some(7));
        assert_eq!(of("KUBE-SERVICES", Proto::Udp), Some(2));
        assert_eq!(of("KUBE-PROXY-FIREWALL", Proto::Tcp), Some(5));
        assert_eq!(counts.len(), 3);
    }

    #[test]
    fn rules_that_were_not_read_count_nothing() {
        let missing = in_rules(&NodeSnapshot::new(&Evidence::default()), &[Family::V4]);
        assert!(missing.is_err());
    }

    #[test]
    fn a_reading_of_all_rules_delays_no_other_counter() {
        let spent = Spent {
            time: Duration::from_secs(2),
            processor: Duration::from_millis(620),
            rules: Duration::from_millis(600),
            rules_share: 0.01,
        };
        assert_eq!(spent.pause(0.03), Duration::from_secs(1));
    }
}
