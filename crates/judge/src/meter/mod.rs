//! The traffic of Services between two readings of the kernel's counters.

pub mod totals;

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::time::Duration;

use kpx_node::evidence::ipvs::{Dump, Stats};
use kpx_node::evidence::{Phase, Tracked};
use kpx_node::net::Proto;
use kpx_node::owner::PortName;

/// A destination, and the backend to which it is translated.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Way {
    /// Transport protocol.
    pub proto: Proto,
    /// The destination of the first packet.
    pub destination: SocketAddr,
    /// Its destination.
    pub backend: SocketAddr,
}

/// The traffic on a way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that wait for their first answer now; IPVS does not show them.
    pub waiting: u64,
    /// New connections since the last reading.
    pub new: u64,
    /// New connections since the first reading.
    pub new_in_all: u64,
    /// Packets since the last reading, of both directions.
    pub packets: u64,
    /// Bytes since the last reading, of both directions.
    pub bytes: u64,
}

impl Flow {
    /// Adds the numbers of another way.
    pub fn add(&mut self, other: &Self) {
        self.open += other.open;
        self.waiting += other.waiting;
        self.new += other.new;
        self.new_in_all += other.new_in_all;
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// One reading of the connection table: the connections whose destination is translated.
#[derive(Debug, Default)]
pub struct Connections {
    /// By a hash of the connection.
    each: HashMap<u64, One>,
    ways: HashMap<Way, u32>,
    /// By the numbers in `ways`: the open and the waiting connections.
    numbers: Vec<(u64, u64)>,
    /// Entries without counters.
    uncounted: usize,
}

#[derive(Clone, Copy, Debug)]
struct One {
    way: u32,
    packets: u64,
    bytes: u64,
}

impl Connections {
    /// Adds a connection.
    pub fn add(&mut self, of: &Tracked) {
        if of.backend == of.destination {
            return;
        }
        let way = Way {
            proto: of.proto,
            destination: of.destination,
            backend: of.backend,
        };
        let next = u32::try_from(self.ways.len()).unwrap_or(u32::MAX);
        let way = *self.ways.entry(way).or_insert(next);
        if way == next {
            self.numbers.push((0, 0));
        }
        if let Some((open, waiting)) = self.numbers.get_mut(way as usize) {
            *open += u64::from(of.phase == Phase::Open);
            *waiting += u64::from(of.phase == Phase::Waiting);
        }
        self.uncounted += usize::from(of.counted.is_none());
        let (packets, bytes) = of.counted.unwrap_or_default();
        let one = One {
            way,
            packets,
            bytes,
        };
        let key = (of.id, of.proto, of.source, of.destination, of.backend);
        // The same numbers in every reading.
        let hash = foldhash::fast::FixedState::with_seed(0).hash_one(key);
        self.each.insert(hash, one);
    }
}

/// Compares each reading with the one before.
#[derive(Debug, Default)]
pub struct Meter {
    flows: HashMap<Way, Flow>,
    /// The last reading by family.
    tracked: Option<Vec<Connections>>,
    stats: Option<HashMap<Way, Stats>>,
    /// Whether the IPVS table was read without its counters.
    is_partial: bool,
    /// First packets that rules have refused: in all, and between the last two readings of their counters.
    refused: Option<HashMap<Refused, (u64, u64)>>,
    /// The time between these readings; 0 after the first one.
    refused_over: Duration,
}

/// The rules that refuse packets to a service port: their chain, and the port.
pub type Refused = (Box<str>, PortName, Proto);

impl Meter {
    /// Takes a reading of the connection table, by family. The first reading only shows open connections.
    pub fn track(&mut self, now: Vec<Connections>) {
        self.begin();
        let before = self.tracked.take();
        for (at, table) in now.iter().enumerate() {
            let mut flows = vec![Flow::default(); table.numbers.len()];
            for (flow, &(open, waiting)) in flows.iter_mut().zip(&table.numbers) {
                (flow.open, flow.waiting) = (open, waiting);
            }
            let old = before.as_ref().and_then(|all| all.get(at));
            for (key, one) in table.each.iter().filter(|_| old.is_some()) {
                let was = old.and_then(|old| old.each.get(key));
                let Some(flow) = flows.get_mut(one.way as usize) else {
                    continue;
                };
                flow.new += u64::from(was.is_none());
                flow.packets += one.packets.saturating_sub(was.map_or(0, |was| was.packets));
                flow.bytes += one.bytes.saturating_sub(was.map_or(0, |was| was.bytes));
            }
            for (way, &at) in &table.ways {
                if let Some(flow) = flows.get(at as usize) {
                    self.add(*way, *flow);
                }
            }
        }
        self.tracked = Some(now);
    }

    /// Takes a reading of the IPVS table. The first reading only shows open connections.
    pub fn ipvs(&mut self, table: &Dump) {
        self.begin();
        let before = self.stats.take();
        let mut now = HashMap::new();
        for server in &table.services {
            let (Some(proto), Some(address), Some(port)) =
                (server.protocol, server.address, server.port)
            else {
                continue;
            };
            for real in &server.destinations {
                let way = Way {
                    proto,
                    destination: SocketAddr::new(address, port),
                    backend: SocketAddr::new(real.address, real.port),
                };
                let stats = real.stats.unwrap_or_default();
                now.insert(way, stats);
                let mut flow = Flow {
                    open: u64::from(real.active),
                    ..Flow::default()
                };
                if let Some(before) = &before {
                    // A real server that was removed and added again counts from 0.
                    let was = before.get(&way).filter(|was| was.conns <= stats.conns);
                    let was = was.copied().unwrap_or_default();
                    let since =
                        |counter: fn(&Stats) -> u64| counter(&stats).saturating_sub(counter(&was));
                    flow.new = since(|stats| stats.conns);
                    flow.packets =
                        since(|stats| stats.packets_in) + since(|stats| stats.packets_out);
                    flow.bytes = since(|stats| stats.bytes_in) + since(|stats| stats.bytes_out);
                }
                self.add(way, flow);
            }
        }
        self.stats = Some(now);
        self.is_partial = table.partial;
    }

    /// Takes a reading of the counters of rules that reject or drop packets, `over` after the previous one.
    pub fn refuse(&mut self, now: HashMap<Refused, u64>, over: Duration) {
        let before = self.refused.take();
        let since = now.into_iter().map(|(rule, count)| {
            // A new rule counts from 0; before the first reading, the counts are unknown.
            let was = before
                .as_ref()
                .map_or(count, |all| all.get(&rule).map_or(0, |counts| counts.0));
            let since = if was <= count { count - was } else { count };
            (rule, (count, since))
        });
        self.refused = Some(since.collect());
        self.refused_over = over;
    }

    /// Returns the time over which refused packets were counted; `None` if they are unknown.
    pub fn refused_over(&self) -> Option<Duration> {
        let over = self.refused.as_ref().map(|_| self.refused_over);
        over.filter(|over| !over.is_zero())
    }

    /// Returns whether rules count the packets that they refuse.
    pub fn refuses(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns the service ports whose packets were refused since the last reading, and how many.
    pub fn refused(&self) -> impl Iterator<Item = (&PortName, &Proto, u64)> {
        let all = self.refused.iter().flatten();
        let some = all.filter(|(_, (_, since))| *since > 0);
        some.map(|((_, name, proto), &(_, since))| (name, proto, since))
    }

    /// Returns the traffic on each way that was seen.
    pub fn flows(&self) -> impl Iterator<Item = (&Way, &Flow)> {
        self.flows.iter()
    }

    /// Returns whether packets and bytes are counted: of some connections at least, if there are any.
    pub fn is_counted(&self) -> bool {
        let (uncounted, all) = self.uncounted();
        !self.is_partial && (all == 0 || uncounted < all)
    }

    /// Returns how many connections have no counters, and how many there are.
    pub fn uncounted(&self) -> (usize, usize) {
        let tables = self.tracked.iter().flatten();
        tables.fold((0, 0), |(uncounted, all), table| {
            (uncounted + table.uncounted, all + table.each.len())
        })
    }

    /// Forgets the last reading, but keeps the totals.
    fn begin(&mut self) {
        self.flows.retain(|_, flow| {
            *flow = Flow {
                new_in_all: flow.new_in_all,
                ..Flow::default()
            };
            flow.new_in_all > 0
        });
    }

    fn add(&mut self, way: Way, of: Flow) {
        let flow = self.flows.entry(way).or_default();
        *flow = Flow {
            new_in_all: flow.new_in_all + of.new,
            ..of
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way {
        proto: Proto::Tcp,
        destination: at(10, 80),
        backend: at(20, 8080),
    };

    const fn at(host: u8, port: u16) -> SocketAddr {
        let ip = std::net::Ipv4Addr::new(10, 0, 0, host);
        SocketAddr::V4(std::net::SocketAddrV4::new(ip, port))
    }

    /// A connection from port `port` with number `id` and so many packets.
    fn one(id: u32, port: u16, phase: Phase, packets: u64) -> Tracked {
        Tracked {
            proto: WAY.proto,
            source: at(1, port),
            destination: WAY.destination,
            backend: WAY.backend,
            id,
            phase,
            counted: Some((packets, packets * 100)),
        }
    }

    fn read(meter: &mut Meter, all: &[Tracked]) -> Flow {
        let mut now = Connections::default();
        for of in all {
            now.add(of);
        }
        meter.track(vec![now]);
        let found: Vec<_> = meter.flows().map(|(way, flow)| (*way, *flow)).collect();
        match found.as_slice() {
            [] => Flow::default(),
            [(WAY, flow)] => *flow,
            others => panic!("{others:?}"),
        }
    }

    #[test]
    fn what_was_there_before_the_first_reading_is_not_new() {
        let mut meter = Meter::default();
        let first = read(&mut meter, &[one(1, 1000, Phase::Open, 7)]);
        let open = Flow {
            open: 1,
            ..Flow::default()
        };
        assert_eq!(first, open);
        let now = [
            one(1, 1000, Phase::Open, 10),
            one(2, 1001, Phase::Waiting, 1),
            one(3, 1002, Phase::Ended, 6),
        ];
        let second = Flow {
            open: 1,
            waiting: 1,
            new: 2,
            new_in_all: 2,
            packets: 3 + 1 + 6,
            bytes: 1000,
        };
        assert_eq!(read(&mut meter, &now), second);
        let nothing = Flow {
            new_in_all: 2,
            ..Flow::default()
        };
        assert_eq!(read(&mut meter, &[]), nothing);
    }

    #[test]
    fn the_same_ports_again_are_a_new_connection() {
        let mut meter = Meter::default();
        read(&mut meter, &[one(1, 1000, Phase::Open, 90)]);
        let again = read(&mut meter, &[one(2, 1000, Phase::Open, 4)]);
        assert_eq!((again.new, again.packets), (1, 4));
    }

    #[test]
    fn connections_that_are_not_translated_are_no_traffic_of_services() {
        let mut meter = Meter::default();
        let mut direct = one(1, 1000, Phase::Open, 1);
        direct.backend = direct.destination;
        assert_eq!(read(&mut meter, &[direct]), Flow::default());
    }

    #[test]
    fn without_accounting_nothing_is_counted_but_connections() {
        let mut meter = Meter::default();
        assert!(meter.is_counted());
        let mut old = one(1, 1000, Phase::Open, 1);
        old.counted = None;
        read(&mut meter, &[old]);
        assert!(!meter.is_counted());
        read(&mut meter, &[old, one(2, 1001, Phase::Open, 1)]);
        assert!(meter.is_counted());
        assert_eq!(meter.uncounted(), (1, 2));
    }

    fn table(conns: u64, packets_in: u64) -> Dump {
        let text = format!(
            r#"{{"services": [{{"family": "IPv4", "protocol": "tcp", "address": "10.0.0.10", "port": 80, "scheduler": "rr",
                "prefix": 32, "destinations": [{{"address": "10.0.0.20", "port": 8080, "weight": 1, "forwarding": "masq",
                "active": 3, "stats": {{"conns": {conns}, "packetsIn": {packets_in}, "packetsOut": 1, "bytesIn": 0,
                "bytesOut": 0}}}}]}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_real_server_that_is_added_again_counts_from_nothing() {
        let mut meter = Meter::default();
        let mut after = |conns, packets_in| {
            meter.ipvs(&table(conns, packets_in));
            let flow = *meter.flows().next().unwrap().1;
            (flow.open, flow.new, flow.packets)
        };
        assert_eq!(after(100, 1000), (3, 0, 0));
        assert_eq!(after(104, 1040), (3, 4, 40));
        assert_eq!(after(2, 20), (3, 2, 21));
    }

    #[test]
    fn refused_packets_are_counted_from_the_first_reading_on() {
        let mut meter = Meter::default();
        let name = PortName::parse("default/web").unwrap();
        let of =
            |count| HashMap::from([(("KUBE-SERVICES".into(), name.clone(), Proto::Tcp), count)]);
        assert!(!meter.refuses());
        assert_eq!(meter.refused_over(), None);
        meter.refuse(of(50), Duration::ZERO);
        assert_eq!(meter.refused().count(), 0);
        // Before the second reading, the rate is unknown.
        assert_eq!(meter.refused_over(), None);
        let minute = Duration::from_secs(60);
        meter.refuse(of(57), minute);
        assert_eq!(meter.refused_over(), Some(minute));
        assert_eq!(meter.refused().next(), Some((&name, &Proto::Tcp, 7)));
        meter.refuse(HashMap::new(), minute);
        meter.refuse(of(2), minute);
        assert_eq!(meter.refused().next(), Some((&name, &Proto::Tcp, 2)));
        assert!(meter.refuses());
    }
}
