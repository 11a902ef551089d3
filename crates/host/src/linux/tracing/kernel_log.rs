//! Traces in legacy tables, which the kernel writes to its log, `/dev/kmsg`, in addition to traces in nftables.
//!
//! The two have no clock in common, so their order follows from the hooks and the priorities of the base chains.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::libc::O_NONBLOCK;

use kpx_node::evidence::traced::{About, Base, ChainName, Event, Headers};

/// Size of the longest record in bytes.
const RECORD: usize = 8192;

/// Place of a base chain in one pass through the hooks.
type Place = (u8, i32);

/// Number of the pass, and the place in it.
type Key = (u32, Place);

/// Bases of chains; `None` for user-defined ones.
type Chains = BTreeMap<ChainName, Option<Base>>;

/// A trace in the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Line {
    /// The text after `TRACE: `: table, chain, type and number.
    pub(super) place: String,
    pub(super) headers: Headers,
}

/// Opens the log at its end.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(O_NONBLOCK).open(path)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// Reads the traces that are new in the log, and whether the kernel overwrote some.
pub(super) fn read(mut log: &File) -> io::Result<(Vec<Line>, bool)> {
    let (mut lines, mut lost) = (Vec::new(), false);
    let mut record = vec![0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => return Ok((lines, lost)),
            Ok(length) => lines.extend(parse(&String::from_utf8_lossy(&record[..length]))),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok((lines, lost)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(Errno::EPIPE as i32) => lost = true,
            Err(e) => return Err(e),
        }
    }
}

/// Parses a record: `4,1339,5140900,-;TRACE: nat:PREROUTING:rule:1 IN=eth0 OUT= SRC=10.0.0.1 …`.
pub(super) fn parse(record: &str) -> Option<Line> {
    let (_, text) = record.lines().next()?.split_once(';')?;
    let (place, packet) = text.strip_prefix("TRACE: ")?.split_once(" IN=")?;
    // An error of ICMP quotes another packet after its own addresses.
    let value = |key: &str| packet.split(' ').find_map(|word| word.strip_prefix(key));
    let address = |key| value(key)?.parse::<IpAddr>().ok();
    let has_ports = matches!(value("PROTO="), Some("TCP" | "UDP" | "SCTP"));
    let port = |key| match value(key) {
        Some(port) if has_ports => port.parse().ok(),
        _ => Some(0),
    };
    Some(Line {
        place: place.to_owned(),
        headers: Headers {
            source: SocketAddr::new(address("SRC=")?, port("SPT=")?),
            destination: SocketAddr::new(address("DST=")?, port("DPT=")?),
        },
    })
}

/// Merges the events of nftables with the events of legacy tables, whose order stays. A legacy event gets the number of the
/// packet with the same source; events of packets that nftables does not trace are dropped.
pub(super) fn merge(heard: &[Event], logged: &[Event], chains: &Chains) -> Vec<Event> {
    let mut sources: HashMap<u32, SocketAddr> = HashMap::new();
    let mut passes: HashMap<SocketAddr, Pass> = HashMap::new();
    let mut keys: HashMap<SocketAddr, Vec<(Key, usize)>> = HashMap::new();
    for (at, event) in heard.iter().enumerate() {
        if let Some(headers) = event.headers {
            sources.insert(event.packet, headers.source);
        }
        let Some(source) = sources.get(&event.packet) else {
            continue;
        };
        let base = chains.get(&event.chain).copied().flatten();
        let pass = passes.entry(*source).or_default();
        keys.entry(*source)
            .or_default()
            .push((pass.advance(base, 0), at));
    }
    let mut behind: BTreeMap<usize, Vec<Event>> = BTreeMap::new();
    let mut passes: HashMap<SocketAddr, Pass> = HashMap::new();
    for event in logged {
        let Some(headers) = event.headers else {
            continue;
        };
        let pass = passes.entry(headers.source).or_insert(Pass {
            number: 1,
            ..Pass::default()
        });
        let base = chains.get(&event.chain).copied().flatten();
        let number = match event.about {
            About::Rule(number) => number,
            // Behind the last rule.
            About::Policy | About::End => u64::MAX,
        };
        let key = pass.advance(base, number);
        let Some(keys) = keys.get(&headers.source) else {
            continue;
        };
        let before = keys.partition_point(|(other, _)| *other <= key);
        if let Some((_, at)) = before.checked_sub(1).and_then(|before| keys.get(before)) {
            behind.entry(*at).or_default().push(Event {
                packet: heard[*at].packet,
                ..event.clone()
            });
        }
    }
    let mut events = Vec::with_capacity(heard.len() + logged.len());
    for (at, event) in heard.iter().enumerate() {
        events.push(event.clone());
        events.extend(behind.remove(&at).unwrap_or_default());
    }
    events
}

/// A packet on its way through the hooks, which begins again when it comes in by another link or is sent again.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    number: u32,
    last: Option<Place>,
    /// Number of the last rule in a base chain.
    rule: u64,
}

impl Pass {
    /// Goes on to `rule` of a base chain, or to a user-defined chain; returns the place among all passes.
    fn advance(&mut self, base: Option<Base>, rule: u64) -> Key {
        if let Some(base) = base {
            let rank = match base.hook {
                0 | 3 => 0,
                1 | 2 => 1,
                _ => 2,
            };
            let place = (rank, base.priority);
            let again = rule != 0 && self.last == Some(place) && rule <= self.rule;
            let is_before = self.last.is_some_and(|last| place < last);
            // A packet that left with another source is no pass.
            let first = self.number == 0 && rank == 0;
            self.number += u32::from(first || is_before || again);
            (self.last, self.rule) = (Some(place), rule);
        }
        (self.number, self.last.unwrap_or((0, i32::MIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::traced::{LEGACY, OWN_CHAINS, Ruling};

    const RECORD: &str = "4,1339,5140900,-;TRACE: nat:KUBE-SERVICES:rule:17 IN=eth0 OUT= MAC=aa:bb SRC=192.0.2.10 DST=10.97.54.248 LEN=60 TOS=0x00 PREC=0x00 TTL=64 ID=7 DF PROTO=TCP SPT=40000 DPT=80 WINDOW=64240 RES=0x00 SYN URGP=0 \n SUBSYSTEM=x\n";

    #[test]
    fn a_record_has_place_and_addresses() {
        let line = parse(RECORD).unwrap();
        assert_eq!(line.place, "nat:KUBE-SERVICES:rule:17");
        assert_eq!(line.headers.source.to_string(), "192.0.2.10:40000");
        assert_eq!(line.headers.destination.to_string(), "10.97.54.248:80");
        assert_eq!(parse("4,1,2,-;eth0: link up\n"), None);
        let v6 = "4,1,2,-;TRACE: raw:OUTPUT:policy:1 IN= OUT=lo SRC=fd00:0000:0000:0000:0000:0000:0000:0001 DST=0000:0000:0000:0000:0000:0000:0000:0001 LEN=64 PROTO=ICMPv6 TYPE=128 CODE=0 ID=1 SEQ=1";
        assert_eq!(parse(v6).unwrap().headers.source.to_string(), "[fd00::1]:0");
        let quoting = "4,1,2,-;TRACE: raw:OUTPUT:policy:1 IN= OUT=lo SRC=10.0.0.1 DST=10.0.0.2 PROTO=ICMP TYPE=3 CODE=3 [SRC=10.0.0.2 DST=10.0.0.9 PROTO=UDP SPT=1 DPT=2 ]";
        assert_eq!(
            parse(quoting).unwrap().headers.source.to_string(),
            "10.0.0.1:0"
        );
    }

    fn event(packet: u32, table: &str, chain: &str, number: u64, source: Option<&str>) -> Event {
        let family = if table == "kpx" { "ip" } else { LEGACY };
        Event {
            packet,
            chain: ChainName {
                family,
                table: table.to_owned(),
                chain: chain.to_owned(),
            },
            about: About::Rule(number),
            verdict: Ruling::Continue,
            headers: source.map(|source| Headers {
                source: source.parse().unwrap(),
                destination: "10.0.0.9:80".parse().unwrap(),
            }),
            input: None,
            output: None,
        }
    }

    fn chains() -> Chains {
        let own = OWN_CHAINS.map(|own| ("ip", "kpx", own.name, own.hook, own.priority));
        let legacy = [
            (LEGACY, "raw", "OUTPUT", 3, -300),
            (LEGACY, "raw", "PREROUTING", 0, -300),
            (LEGACY, "nat", "OUTPUT", 3, -100),
            (LEGACY, "filter", "INPUT", 1, 0),
            (LEGACY, "nat", "POSTROUTING", 4, 100),
        ];
        let all = own.into_iter().chain(legacy);
        let bases = all.map(|(family, table, chain, hook, priority)| {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            let name = ChainName {
                family,
                table,
                chain,
            };
            (name, Some(Base { hook, priority }))
        });
        bases.collect()
    }

    /// A packet that leaves by lo with another source, is in again, and is sent once more.
    #[test]
    fn events_of_the_log_come_at_their_hooks() {
        let (before, after) = (Some("10.0.0.1:4000"), Some("10.0.0.2:5000"));
        let once = |id: u32| {
            [
                event(id, "kpx", "from-host", 1, before),
                event(id, "kpx", "state-from-host", 1, before),
                event(id, "kpx", "left", 0, after),
                event(id + 1, "kpx", "from-links", 0, after),
                event(id + 1, "kpx", "arrived", 0, after),
            ]
        };
        let logged = [
            event(0, "raw", "OUTPUT", 1, before),
            event(0, "nat", "OUTPUT", 1, before),
            event(0, "nat", "KUBE-SERVICES", 2, before),
            event(0, "nat", "POSTROUTING", 1, before),
            event(0, "raw", "PREROUTING", 1, after),
            event(0, "filter", "INPUT", 1, after),
            event(0, "filter", "INPUT", 2, after),
        ];
        let strange = event(0, "raw", "OUTPUT", 1, Some("10.9.9.9:1"));
        let heard = [once(7), once(8)].concat();
        let logged = [&logged[..], &[strange], &logged[..]].concat();
        let merged = merge(&heard, &logged, &chains());
        let names = |events: &[Event]| -> Vec<String> {
            let name = |event: &Event| format!("{} {}", event.packet, event.chain.chain);
            events.iter().map(name).collect()
        };
        let expected = [
            "from-host",
            "OUTPUT",
            "state-from-host",
            "OUTPUT",
            "KUBE-SERVICES",
            "POSTROUTING",
            "left",
            "from-links",
            "PREROUTING",
            "INPUT",
            "INPUT",
            "arrived",
        ];
        let with = |first: u32| {
            let numbered = expected.iter().enumerate();
            numbered.map(move |(at, name)| format!("{} {name}", first + u32::from(at > 6)))
        };
        assert_eq!(names(&merged), with(7).chain(with(8)).collect::<Vec<_>>());
    }
}
