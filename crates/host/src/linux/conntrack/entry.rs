//! Reads the attributes of a tracked connection (`linux/netfilter/nfnetlink_conntrack.h`): as a line of `conntrack -L`, or
//! as numbers.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use kpx_node::evidence::{Phase, Tracked};
use kpx_node::net::Proto;

/// `CTA_*`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOINFO: u16 = 4;
const TIMEOUT: u16 = 7;
const MARK: u16 = 8;
const COUNTERS: [u16; 2] = [9, 10];
const USE: u16 = 11;
const ID: u16 = 12;
const ZONE: u16 = 18;
const SECCTX: u16 = 19;

/// `CTA_TUPLE_*`.
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const TUPLE_ZONE: u16 = 3;

/// `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const OFFLOAD: u32 = 1 << 14;
const HW_OFFLOAD: u32 = 1 << 15;

const TCP_STATES: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];

const SCTP_STATES: [&str; 10] = [
    "NONE",
    "CLOSED",
    "COOKIE_WAIT",
    "COOKIE_ECHOED",
    "ESTABLISHED",
    "SHUTDOWN_SENT",
    "SHUTDOWN_RECD",
    "SHUTDOWN_ACK_SENT",
    "HEARTBEAT_SENT",
    "HEARTBEAT_ACKED",
];

const DCCP_STATES: [&str; 10] = [
    "NONE", "REQUEST", "RESPOND", "PARTOPEN", "OPEN", "CLOSEREQ", "CLOSING", "TIMEWAIT", "IGNORE",
    "INVALID",
];

/// Parts of a connection until its line is written, as slices of the answer.
#[derive(Default)]
struct Parts<'a> {
    tuples: [&'a [u8]; 2],
    counters: [&'a [u8]; 2],
    status: u32,
    state: Option<&'static str>,
    timeout: Option<u32>,
    mark: Option<u32>,
    uses: Option<u32>,
    id: u32,
    zone: Option<u16>,
    context: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// Returns the parts of the connection with these attributes; `None` if they are not valid.
    fn of(attributes: &'a [u8]) -> Option<Self> {
        let mut parts = Self::default();
        for (kind, value) in Attributes(attributes) {
            match kind {
                ORIGINAL => parts.tuples[0] = value,
                REPLY => parts.tuples[1] = value,
                STATUS => parts.status = number(value)?,
                PROTOINFO => parts.state = state(value),
                TIMEOUT => parts.timeout = Some(number(value)?),
                MARK => parts.mark = Some(number(value)?),
                kind if kind == COUNTERS[0] => parts.counters[0] = value,
                kind if kind == COUNTERS[1] => parts.counters[1] = value,
                USE => parts.uses = Some(number(value)?),
                ID => parts.id = number(value)?,
                ZONE => parts.zone = Some(port(value)?),
                SECCTX => parts.context = find(value, 1),
                _ => {}
            }
        }
        Some(parts)
    }

    /// Returns the number of the transport protocol.
    fn proto(&self) -> Option<u8> {
        find(find(self.tuples[0], TUPLE_PROTO)?, 1)?
            .first()
            .copied()
    }

    fn is_unreplied(&self) -> bool {
        self.status & SEEN_REPLY == 0
    }
}

/// Appends the line of the connection with these attributes; `None` if they are not valid.
pub(super) fn write(attributes: &[u8], text: &mut String) -> Option<()> {
    let parts = Parts::of(attributes)?;
    // Writing to a string cannot fail.
    line(&parts, parts.proto()?, text)?.ok()
}

/// Passes the connection with these attributes to `take` if it is TCP, UDP or SCTP; `None` if they are not valid.
pub(super) fn tracked(attributes: &[u8], take: impl FnOnce(&Tracked)) -> Option<()> {
    let parts = Parts::of(attributes)?;
    let proto = Proto::from_number(parts.proto()?);
    if !matches!(proto, Proto::Tcp | Proto::Udp | Proto::Sctp) {
        return Some(());
    }
    let [original, reply] = parts.tuples;
    let counted = parts
        .counters
        .map(|counter| Some((wide(find(counter, 1)?)?, wide(find(counter, 2)?)?)));
    let phase = match parts.state {
        Some("SYN_SENT" | "COOKIE_WAIT" | "COOKIE_ECHOED") => Phase::Waiting,
        Some("NONE" | "LAST_ACK" | "TIME_WAIT" | "CLOSE" | "CLOSED") => Phase::Ended,
        _ if parts.is_unreplied() => Phase::Waiting,
        _ => Phase::Open,
    };
    take(&Tracked {
        proto,
        source: end(original, 1)?,
        destination: end(original, 2)?,
        backend: end(reply, 1)?,
        id: parts.id,
        phase,
        counted: match counted {
            [Some(to), Some(back)] => {
                Some((to.0.saturating_add(back.0), to.1.saturating_add(back.1)))
            }
            _ => None,
        },
    });
    Some(())
}

/// Returns an end of a direction: 1 is where it comes from, 2 where it goes to.
fn end(tuple: &[u8], which: u16) -> Option<SocketAddr> {
    let addr = address(tuple, which)?;
    let number = port(find(find(tuple, TUPLE_PROTO)?, which + 1)?)?;
    Some(SocketAddr::new(addr, number))
}

/// Returns an address of a direction: 1 is the source, 2 the destination.
fn address(tuple: &[u8], which: u16) -> Option<IpAddr> {
    let addresses = find(tuple, TUPLE_IP)?;
    Some(match (find(addresses, which), find(addresses, which + 2)) {
        (Some(v4), _) => IpAddr::from(<[u8; 4]>::try_from(v4.get(..4)?).ok()?),
        (None, v6) => IpAddr::from(<[u8; 16]>::try_from(v6?.get(..16)?).ok()?),
    })
}

fn line(parts: &Parts<'_>, proto: u8, text: &mut String) -> Option<std::fmt::Result> {
    let unreplied = parts.is_unreplied();
    write!(text, "{:<8} {proto}", name(proto)).ok()?;
    if let Some(seconds) = parts.timeout {
        write!(text, " {seconds}").ok()?;
    }
    if let Some(state) = parts.state {
        write!(text, " {state}").ok()?;
    }
    for (at, tuple) in parts.tuples.into_iter().enumerate() {
        ends(tuple, proto, text)?;
        if let Some(zone) = find(tuple, TUPLE_ZONE) {
            let side = ["orig", "reply"][at];
            write!(text, " zone-{side}={}", port(zone)?).ok()?;
        }
        let counters = parts.counters[at];
        if let (Some(packets), Some(bytes)) = (find(counters, 1), find(counters, 2)) {
            let (packets, bytes) = (wide(packets)?, wide(bytes)?);
            write!(text, " packets={packets} bytes={bytes}").ok()?;
        }
        if at == 0 && unreplied {
            text.push_str(" [UNREPLIED]");
        }
    }
    let flags = [
        (HW_OFFLOAD, " [HW_OFFLOAD]"),
        (OFFLOAD, " [OFFLOAD]"),
        (ASSURED, " [ASSURED]"),
    ];
    if let Some((_, flag)) = flags.iter().find(|(bit, _)| parts.status & bit != 0) {
        text.push_str(flag);
    }
    if let Some(mark) = parts.mark {
        write!(text, " mark={mark}").ok()?;
    }
    if let Some(context) = parts.context {
        let context = String::from_utf8_lossy(context);
        write!(text, " secctx={}", context.trim_end_matches('\0')).ok()?;
    }
    if let Some(zone) = parts.zone {
        write!(text, " zone={zone}").ok()?;
    }
    if let Some(uses) = parts.uses {
        write!(text, " use={uses}").ok()?;
    }
    Some(writeln!(text))
}

/// Appends the addresses of one direction, and its ports or the protocol's equivalent.
fn ends(tuple: &[u8], proto: u8, text: &mut String) -> Option<()> {
    write!(
        text,
        " src={} dst={}",
        address(tuple, 1)?,
        address(tuple, 2)?
    )
    .ok()?;
    let attributes = find(tuple, TUPLE_PROTO)?;
    // ICMP and ICMPv6 have a type, a code and an identifier.
    for (id, kind, code) in [(4, 5, 6), (7, 8, 9)] {
        if let (Some(id), Some(kind), Some(code)) = (
            find(attributes, id),
            find(attributes, kind),
            find(attributes, code),
        ) {
            let (kind, code, id) = (kind.first()?, code.first()?, port(id)?);
            write!(text, " type={kind} code={code} id={id}").ok()?;
        }
    }
    if let (Some(from), Some(to)) = (find(attributes, 2), find(attributes, 3)) {
        let (from, to) = (port(from)?, port(to)?);
        if proto == 47 {
            write!(text, " srckey={from:#x} dstkey={to:#x}").ok()?;
        } else {
            write!(text, " sport={from} dport={to}").ok()?;
        }
    }
    Some(())
}

/// Returns the state of a TCP, DCCP or SCTP connection.
fn state(info: &[u8]) -> Option<&'static str> {
    let (kind, value) = Attributes(info).next()?;
    let names = match kind {
        1 => &TCP_STATES,
        2 => &DCCP_STATES,
        3 => &SCTP_STATES,
        _ => return None,
    };
    let number = *find(value, 1)?.first()?;
    names.get(usize::from(number)).copied()
}

const fn name(proto: u8) -> &'static str {
    match proto {
        1 => "icmp",
        2 => "igmp",
        6 => "tcp",
        17 => "udp",
        33 => "dccp",
        47 => "gre",
        58 => "icmpv6",
        132 => "sctp",
        136 => "udplite",
        _ => "unknown",
    }
}

/// Iterates over attributes as kind and value, up to the first incomplete one.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let number = |at: usize| {
            let bytes = self.0.get(at..at + 2)?;
            Some(u16::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (length, kind) = (usize::from(number(0)?), number(2)?);
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The upper two bits mean nested, or network byte order.
        Some((kind & 0x3fff, value))
    }
}

fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = Attributes(attributes);
    all.find_map(|(of, value)| (of == kind).then_some(value))
}

/// Parses a number in network byte order.
fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.get(..4)?.try_into().ok()?))
}

fn wide(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.get(..8)?.try_into().ok()?))
}

fn port(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(from: [u8; 4], to: [u8; 4], proto: &[Vec<u8>]) -> Vec<u8> {
        let ip = [attribute(1, &from), attribute(2, &to)].concat();
        [
            attribute(TUPLE_IP, &ip),
            attribute(TUPLE_PROTO, &proto.concat()),
        ]
        .concat()
    }

    fn ports(proto: u8, from: u16, to: u16) -> Vec<Vec<u8>> {
        vec![
            attribute(1, &[proto]),
            attribute(2, &from.to_be_bytes()),
            attribute(3, &to.to_be_bytes()),
        ]
    }

    #[test]
    fn counters_end_at_the_highest_number() {
        let counted = [u64::MAX, 1].map(u64::to_be_bytes);
        let counted = [attribute(1, &counted[0]), attribute(2, &counted[1])].concat();
        let bytes = [
            attribute(
                ORIGINAL,
                &tuple([10, 0, 0, 1], [10, 96, 0, 1], &ports(6, 4000, 443)),
            ),
            attribute(
                REPLY,
                &tuple([10, 244, 1, 5], [10, 0, 0, 1], &ports(6, 6443, 4000)),
            ),
            attribute(COUNTERS[0], &counted),
            attribute(COUNTERS[1], &counted),
        ]
        .concat();
        let mut sum = None;
        tracked(&bytes, |entry| sum = entry.counted).unwrap();
        assert_eq!(sum, Some((u64::MAX, 2)));
    }

    #[test]
    fn a_connection_is_a_line_of_conntrack() {
        let state = attribute(1, &attribute(1, &[3]));
        let bytes = [
            attribute(
                0x8000 | ORIGINAL,
                &tuple([10, 0, 0, 1], [10, 96, 0, 1], &ports(6, 4000, 443)),
            ),
            attribute(
                0x8000 | REPLY,
                &tuple([10, 244, 1, 5], [10, 0, 0, 1], &ports(6, 6443, 4000)),
            ),
            attribute(STATUS, &(SEEN_REPLY | ASSURED).to_be_bytes()),
            attribute(PROTOINFO, &state),
            attribute(TIMEOUT, &300_u32.to_be_bytes()),
            attribute(MARK, &5_u32.to_be_bytes()),
            attribute(ZONE, &7_u16.to_be_bytes()),
            attribute(USE, &1_u32.to_be_bytes()),
        ];
        let mut text = String::new();
        write(&bytes.concat(), &mut text).unwrap();
        assert_eq!(
            text,
            "tcp      6 300 ESTABLISHED src=10.0.0.1 dst=10.96.0.1 sport=4000 dport=443 \
             src=10.244.1.5 dst=10.0.0.1 sport=6443 dport=4000 [ASSURED] mark=5 zone=7 use=1\n"
        );
    }

    #[test]
    fn echo_requests_have_an_identifier_and_no_ports() {
        let echo = |kind: u8| {
            vec![
                attribute(1, &[1]),
                attribute(4, &9_u16.to_be_bytes()),
                attribute(5, &[kind]),
                attribute(6, &[0]),
            ]
        };
        let bytes = [
            attribute(ORIGINAL, &tuple([10, 0, 0, 1], [10, 0, 0, 2], &echo(8))),
            attribute(REPLY, &tuple([10, 0, 0, 2], [10, 0, 0, 1], &echo(0))),
            attribute(STATUS, &0_u32.to_be_bytes()),
        ];
        let mut text = String::new();
        write(&bytes.concat(), &mut text).unwrap();
        assert_eq!(
            text,
            "icmp     1 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=9 [UNREPLIED] \
             src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=9\n"
        );
    }

    #[test]
    fn a_direction_without_a_source_is_not_a_connection() {
        let whole = tuple([10, 0, 0, 1], [10, 96, 0, 1], &ports(17, 4000, 53));
        let ip = [attribute(2, &[10, 0, 0, 1]), attribute(2, &[10, 96, 0, 1])].concat();
        let proto = attribute(TUPLE_PROTO, &ports(17, 4000, 53).concat());
        let half = [attribute(TUPLE_IP, &ip), proto].concat();
        for (tuples, is_valid) in [([&whole, &whole], true), ([&whole, &half], false)] {
            let bytes = [attribute(ORIGINAL, tuples[0]), attribute(REPLY, tuples[1])].concat();
            assert_eq!(write(&bytes, &mut String::new()).is_some(), is_valid);
        }
    }

    #[test]
    fn truncated_attributes_are_not_a_connection() {
        let whole = attribute(
            ORIGINAL,
            &tuple([10, 0, 0, 1], [10, 96, 0, 1], &ports(17, 4000, 53)),
        );
        assert!(write(&whole, &mut String::new()).is_none(), "no reply");
        for cut in 0..whole.len() {
            assert!(write(&whole[..cut], &mut String::new()).is_none(), "{cut}");
        }
    }
}
