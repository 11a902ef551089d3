//! Values that nftables expressions read from a packet.

use std::net::IpAddr;

use super::matches::look_up;
use crate::trace::index::Index;
use crate::trace::opening::{self, Values};
use crate::trace::packet::{Link, Packet};
use crate::trace::region::Asked;
use crate::trace::route::{Lookup, Router};
use kpx_node::backend::nftables::model::{Datum, Expr, Table};
use kpx_node::backend::nftables::print;
use kpx_node::net::{Family, Proto};

/// A value read from a packet.
#[derive(Clone, Debug)]
pub(crate) enum Value<'p> {
    Addr(Asked<'p, IpAddr>),
    Port(Asked<'p, u16>),
    /// The number of a protocol.
    Proto(Asked<'p, u8>),
    Number(u64),
    /// One of these numbers.
    Within(Values),
    /// A number, or bits, that rules write by name.
    Named(u64, Names),
    Word(String),
    Concat(Vec<Value<'p>>),
    /// A random number below this.
    Random {
        modulus: u32,
        offset: u32,
    },
    /// The packet does not have the field: a rule that matches on it does not match.
    None,
    /// Unknown; the text names it.
    Unknown(String),
}

/// Names of numbers.
pub(crate) type Names = &'static [(&'static str, u64)];

/// Bits of the flags of TCP.
const TCP_FLAGS: Names = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ecn", 0x40),
    ("cwr", 0x80),
];

/// The flags that belong to ECN.
const ECN_FLAGS: u64 = 0xc0;

/// Types of service.
pub(super) const DSCP: Names = &[
    ("cs0", 0),
    ("be", 0),
    ("lephb", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("va", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Types of frames.
const ETHER_TYPES: Names = &[
    ("ip", 0x0800),
    ("arp", 0x0806),
    ("ip6", 0x86dd),
    ("8021q", 0x8100),
    ("vlan", 0x8100),
    ("8021ad", 0x88a8),
];

/// Users and groups by name.
const USERS: Names = &[("root", 0)];

/// Types of ICMP, of IPv4 and of IPv6.
const ICMP_TYPES: Names = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];
const ICMPV6_TYPES: Names = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];
const ICMP_CODES: Names = &[
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];
const ICMPV6_CODES: Names = &[
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];

/// Bits of `ct state` and `ct status`, and the directions of a connection.
const STATES: Names = &[
    ("invalid", 1),
    ("established", 2),
    ("related", 4),
    ("new", 8),
    ("untracked", 64),
];
const STATUS: Names = &[
    ("expected", 1),
    ("seen-reply", 1 << 1),
    ("assured", 1 << 2),
    ("confirmed", 1 << 3),
    ("snat", 1 << 4),
    ("dnat", 1 << 5),
    ("dying", 1 << 9),
];
const DIRECTIONS: Names = &[("original", 0), ("reply", 1)];

/// Types and groups of links (`ARPHRD_*`).
const LINK_TYPES: Names = &[
    ("ether", 1),
    ("ppp", 512),
    ("ipip", 768),
    ("ipip6", 769),
    ("loopback", 772),
    ("sit", 776),
    ("ipgre", 778),
    // As `ip` calls them.
    ("gre", 778),
    ("tunnel6", 769),
    ("none", 65534),
];
const LINK_GROUPS: Names = &[("default", 0)];

impl Value<'_> {
    /// Returns the number; packets with any other number need a walk of their own.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) | Self::Named(number, _) => Some(*number),
            Self::Port(port) => Some(u64::from(port.exact())),
            _ => None,
        }
    }

    /// Returns whether the number is between `first` and `last`, inclusive; `None` if it is no number.
    pub(super) fn between(&self, first: u64, last: u64) -> Option<bool> {
        match self {
            Self::Number(number) | Self::Named(number, _) => Some((first..=last).contains(number)),
            Self::Port(port) => Some(port.lies(first.into(), last.into())),
            Self::Within(values) => opening::within(values, &(first..=last)),
            _ => None,
        }
    }
}

/// Returns the value of a field that has one of `values`.
fn of_opening(values: Values) -> Value<'static> {
    if values.start() == values.end() {
        Value::Number(*values.start())
    } else {
        Value::Within(values)
    }
}

/// The state besides the packet that expressions read.
#[derive(Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) router: &'c Router<'a>,
    pub(crate) table: &'c Table,
    /// Elements of large sets and maps, for recorded walks.
    pub(crate) index: Option<&'c Index>,
    /// Whether the contents of sets with timeouts are left open.
    pub(crate) lasting: bool,
}

/// Reads `expr` from the packet.
pub(crate) fn read<'p>(expr: &Expr, packet: &'p Packet, context: &Context<'_, '_>) -> Value<'p> {
    match expr {
        Expr::Lookup { key, data } => {
            let have = read(key, packet, context);
            match look_up(data, &have, packet, context).as_deref() {
                Err(what) => Value::Unknown(what.to_owned()),
                Ok([]) => Value::None,
                Ok([(chance, Datum::Data(found))]) if *chance >= 1.0 => {
                    read(found, packet, context)
                }
                Ok(_) => Value::Unknown(format!("what `{}` gives", print::expr(expr))),
            }
        }
        Expr::Number(number) => Value::Number(*number),
        Expr::Word(word) => word.parse().map_or_else(
            |_| Value::Word(word.clone()),
            |addr| Value::Addr(Asked::new(addr, None)),
        ),
        Expr::Bool(flag) => Value::Number(u64::from(*flag)),
        Expr::Payload { protocol, field } => match (protocol.as_str(), field.as_str()) {
            ("ether", "saddr") => sender(packet, context),
            ("ether", "daddr") => receiver(packet, context),
            ("ip", "ttl") | ("ip6", "hoplimit") if is_of(protocol, packet) => {
                of_opening(opening::ttl(packet, context.router))
            }
            (protocol, field) => payload(protocol, field, packet),
        },
        Expr::Meta(key) => match key.as_str() {
            "iifkind" | "iifgroup" | "iiftype" => of_link(key, &packet.input, context),
            "oifkind" | "oifgroup" | "oiftype" => of_link(key, &packet.output, context),
            "skuid" | "skgid" => match opening::user(packet, context.router) {
                Some(user) => Value::Named(user, USERS),
                None => meta(key, packet),
            },
            // The class that `net_cls` gives to a program: 0 without it.
            "cgroup" if opening::user(packet, context.router).is_some() => Value::Number(0),
            key => meta(key, packet),
        },
        Expr::Ct { key, dir } => ct(key, dir.as_deref(), packet),
        Expr::Fib { result, flags } => fib(result, flags, packet, context),
        Expr::Numgen {
            modulus, offset, ..
        } => Value::Random {
            modulus: *modulus,
            offset: *offset,
        },
        Expr::Concat(parts) => {
            let values: Vec<_> = parts
                .iter()
                .map(|part| read(part, packet, context))
                .collect();
            // A part that does not match decides, even if others are unknown.
            let none = values.iter().find(|value| matches!(value, Value::None));
            let gap = || {
                values
                    .iter()
                    .find(|value| matches!(value, Value::Unknown(_)))
            };
            match none.or_else(gap) {
                Some(gap) => gap.clone(),
                None => Value::Concat(values),
            }
        }
        Expr::Bits { op, left, right } => {
            if let (Expr::Meta(key), "&", Expr::Number(bits)) = (&**left, op.as_str(), &**right)
                && key == "mark"
                && let Ok(bits) = u32::try_from(*bits)
            {
                return Value::Number(packet.mark().bits(bits).into());
            }
            // Fragments are joined before any chain that has to do with connections; whether a packet may be fragmented is
            // left open.
            if let (Expr::Payload { protocol, field }, "&", Expr::Number(bits)) =
                (&**left, op.as_str(), &**right)
                && (protocol.as_str(), field.as_str()) == ("ip", "frag-off")
                && bits & DO_NOT_FRAGMENT == 0
                && packet.family() == Family::V4
            {
                return Value::Number(0);
            }
            let is_of_tcp = matches!(&**left, Expr::Payload { protocol, field } if protocol == "tcp" && field == "flags");
            let left = read(left, packet, context);
            let names = match left {
                Value::Named(_, names) => names,
                _ => TCP_FLAGS,
            };
            let right = match flags(right, names) {
                // Only at first does a client ask for ECN.
                Some(bits) if is_of_tcp && packet.ecn && packet.opens && bits & ECN_FLAGS != 0 => {
                    return Value::Unknown("what ECN the packet asks for".to_owned());
                }
                Some(bits) => Value::Number(bits),
                None => read(right, packet, context),
            };
            if let (Value::Addr(addr), "&", Value::Addr(mask)) = (&left, op.as_str(), &right) {
                return Value::Addr(Asked::new(masked(addr.exact(), mask.shown()), None));
            }
            if let (Some(a), Some(b)) = (left.number(), right.number()) {
                let number = match op.as_str() {
                    "|" => a | b,
                    "&" => a & b,
                    "^" => a ^ b,
                    "<<" => a << (b & 63),
                    ">>" => a >> (b & 63),
                    other => return Value::Unknown(format!("what operator {other} gives")),
                };
                return match left {
                    Value::Named(_, names) => Value::Named(number, names),
                    _ => Value::Number(number),
                };
            }
            match (left, right) {
                (Value::None, _) | (_, Value::None) => Value::None,
                (gap @ Value::Unknown(_), _) | (_, gap @ Value::Unknown(_)) => gap,
                _ => Value::Unknown(format!("what `{}` gives", print::expr(expr))),
            }
        }
        Expr::Other(json) => extra(json, packet)
            .unwrap_or_else(|| Value::Unknown(format!("what `{}` gives", print::expr(expr)))),
        other => Value::Unknown(format!("what `{}` gives", print::expr(other))),
    }
}

/// Returns the value of an expression that reads an option of TCP or IP, or an extension header: packets that open a connection have
/// only the usual ones. `None` for these, and for any other expression.
fn extra(json: &serde_json::Value, packet: &Packet) -> Option<Value<'static>> {
    const USUAL: [&str; 11] = [
        "eol",
        "fastopen",
        "maxseg",
        "mptcp",
        "mss",
        "nop",
        "sack",
        "sack-perm",
        "sack-permitted",
        "timestamp",
        "window",
    ];
    let (kind, body) = json.as_object()?.iter().next()?;
    let words: Vec<&str> = body.as_str().unwrap_or_default().split(' ').collect();
    let named = body["name"].as_str();
    let has_field = match kind.as_str() {
        "tcp option" | "ip option" => words.len() > 3,
        "exthdr" => words.len() > 1 && words[0] != "exthdr",
        _ => return None,
    } || body["field"].is_string();
    if kind == "tcp option" {
        let name = named.or_else(|| words.get(2).copied())?;
        let number = name.parse().ok();
        if !packet.is(Proto::Tcp) {
            return Some(Value::None);
        }
        if USUAL.contains(&name)
            || number.is_some_and(|number| opening::USUAL_OPTIONS.contains(&number))
        {
            return None;
        }
    }
    Some(if has_field {
        Value::None
    } else {
        Value::Number(0)
    })
}

/// Returns the bits of `addr` that `mask` has.
fn masked(addr: IpAddr, mask: IpAddr) -> IpAddr {
    match (addr, mask) {
        (IpAddr::V4(addr), IpAddr::V4(mask)) => IpAddr::V4(addr & mask),
        (IpAddr::V6(addr), IpAddr::V6(mask)) => IpAddr::V6(addr & mask),
        (addr, _) => addr,
    }
}

/// The bit of the field `frag-off` that forbids fragments: `IP_DF`.
const DO_NOT_FRAGMENT: u64 = 0x4000;

/// Returns the MAC address from which a packet comes: on a bridge, where it goes out, that is the sender's only if it is bridged.
fn sender(packet: &Packet, context: &Context<'_, '_>) -> Value<'static> {
    let is_low = is_low(context);
    if packet.input == Link::None && !is_low {
        return Value::None;
    }
    let is_senders = !is_low || packet.bridged || packet.output == Link::None;
    let known = if is_senders {
        context.router.sender(packet)
    } else {
        // The node sends it by the bridge, or by the link itself.
        let own = packet.bridge.as_deref().or(match &packet.output {
            Link::Named(name) => Some(&**name),
            Link::None | Link::Unknown => None,
        });
        own.and_then(|own| mac_of_link(own, context))
    };
    mac(known, "saddr")
}

/// Returns the MAC address to which a packet goes: where it comes in, and is not bridged, that is one of the node.
fn receiver(packet: &Packet, context: &Context<'_, '_>) -> Value<'static> {
    let is_low = is_low(context);
    if packet.input == Link::None && !is_low {
        return Value::None;
    }
    let goes_out = packet.bridged || is_low && packet.output != Link::None;
    let own = || match (&packet.bridge, &packet.input) {
        (Some(name), _) | (None, Link::Named(name)) => mac_of_link(name, context),
        (None, Link::None | Link::Unknown) => None,
    };
    let known = if goes_out {
        context.router.receiver(packet)
    } else {
        own()
    };
    mac(known, "daddr")
}

/// Returns the MAC address of the node's link `name`.
fn mac_of_link<'c>(name: &str, context: &Context<'c, '_>) -> Option<&'c str> {
    let links = context.router.node.links().ok()?;
    let link = links.all.iter().find(|link| *link.name == *name)?;
    link.mac.as_deref()
}

/// Returns whether a rule that sends a frame to `mac` leaves the packet on its way: to the pod that it is for, or to the bridge where
/// the node takes it.
pub(super) fn keeps_way(mac: &str, packet: &Packet, context: &Context<'_, '_>) -> bool {
    let is_same = |known: Option<&str>| known.is_some_and(|known| known.eq_ignore_ascii_case(mac));
    let of_bridge = || {
        packet
            .bridge
            .as_deref()
            .and_then(|name| mac_of_link(name, context))
    };
    is_same(context.router.receiver(packet)) || !packet.bridged && is_same(of_bridge())
}

/// Returns whether the rules are of links or bridges.
fn is_low(context: &Context<'_, '_>) -> bool {
    matches!(context.table.family.as_str(), "bridge" | "netdev")
}

fn mac(known: Option<&str>, field: &str) -> Value<'static> {
    known.map_or_else(
        || Value::Unknown(format!("what ether {field} is")),
        |mac| Value::Word(mac.to_ascii_lowercase()),
    )
}

fn payload<'p>(protocol: &str, field: &str, packet: &'p Packet) -> Value<'p> {
    let family = packet.family();
    match (protocol, field) {
        ("ip", _) if family != Family::V4 => Value::None,
        ("ip6", _) if family != Family::V6 => Value::None,
        ("ip" | "ip6", "saddr") => Value::Addr(packet.source()),
        ("ip" | "ip6", "daddr") => Value::Addr(packet.destination()),
        ("ip", "protocol") | ("ip6", "nexthdr") => Value::Proto(packet.proto()),
        ("tcp", _) if !packet.is(Proto::Tcp) => Value::None,
        ("udp", _) if !packet.is(Proto::Udp) => Value::None,
        ("sctp", _) if !packet.is(Proto::Sctp) => Value::None,
        ("icmp", _) if !packet.is(Proto::Icmp) => Value::None,
        ("icmpv6", _) if !packet.is(Proto::Icmpv6) => Value::None,
        // A ping.
        ("icmp", "type") => Value::Named(packet.icmp_type().into(), ICMP_TYPES),
        ("icmpv6", "type") => Value::Named(packet.icmp_type().into(), ICMPV6_TYPES),
        ("icmp", "code") => Value::Named(0, ICMP_CODES),
        ("icmpv6", "code") => Value::Named(0, ICMPV6_CODES),
        ("icmp" | "icmpv6", "id" | "sequence" | "checksum") => {
            Value::Unknown(format!("what {protocol} {field} is"))
        }
        ("ether", "type") => meta("protocol", packet),
        // ARP is no packet of IP.
        ("arp" | "icmp" | "icmpv6" | "udplite" | "dccp" | "ah" | "esp" | "comp", _) => Value::None,
        ("tcp" | "udp" | "sctp" | "th", "dport") => Value::Port(packet.port()),
        ("tcp" | "udp" | "sctp" | "th", "sport") => match packet.source_port {
            Some(port) => Value::Port(Asked::new(port, None)),
            None => match packet.ports {
                Some((first, last)) => Value::Within(first.into()..=last.into()),
                None => Value::Unknown("what the source port is".to_owned()),
            },
        },
        ("tcp", "flags") => Value::Named(packet.tcp_flags().into(), TCP_FLAGS),
        ("ip" | "ip6", "dscp") => match packet.tos {
            Some(tos) => Value::Named(u64::from(tos >> 2), DSCP),
            None => Value::Unknown("what the type of service is".to_owned()),
        },
        ("ip", "length") => of_opening(opening::length(packet)),
        (protocol, field) => Value::Unknown(format!("what {protocol} {field} is")),
    }
}

fn link(link: &Link) -> Value<'static> {
    match link {
        // The kernel compares with an empty name, or index 0.
        Link::None => Value::Word(String::new()),
        Link::Named(name) => Value::Word(name.to_string()),
        Link::Unknown => Value::Unknown("which link it passes".to_owned()),
    }
}

/// Returns whether `protocol` is that of the packet: `ip` or `ip6`.
fn is_of(protocol: &str, packet: &Packet) -> bool {
    (protocol == "ip") == (packet.family() == Family::V4)
}

fn meta<'p>(key: &str, packet: &'p Packet) -> Value<'p> {
    match key {
        "length" => of_opening(opening::length(packet)),
        "l4proto" => Value::Proto(packet.proto()),
        "nfproto" => Value::Word(
            if packet.family() == Family::V4 {
                "ipv4"
            } else {
                "ipv6"
            }
            .to_owned(),
        ),
        "protocol" => {
            let number = if packet.family() == Family::V4 {
                0x0800
            } else {
                0x86dd
            };
            Value::Named(number, ETHER_TYPES)
        }
        "mark" => Value::Number(u64::from(packet.mark().exact())),
        "iif" | "iifname" => link(&packet.input),
        "oif" | "oifname" => link(&packet.output),
        "pkttype" => Value::Word("host".to_owned()),
        // Only a packet of a local process has an owner, and one that comes in for its connection.
        "skuid" | "skgid" | "cgroup"
            if !packet.has_socket && (packet.output != Link::None || packet.opens) =>
        {
            Value::None
        }
        other => Value::Unknown(format!("what meta {other} is")),
    }
}

/// Returns a value of a link that the list of links has.
fn of_link(key: &str, link: &Link, context: &Context<'_, '_>) -> Value<'static> {
    let unknown = || Value::Unknown(format!("what meta {key} is"));
    let name = match link {
        Link::None => return Value::None,
        Link::Unknown => return unknown(),
        Link::Named(name) => name,
    };
    let Ok(links) = context.router.node.links() else {
        return unknown();
    };
    let Some(link) = links.all.iter().find(|link| *link.name == **name) else {
        return unknown();
    };
    match key {
        // A physical link has no kind.
        "iifkind" | "oifkind" if link.kind.is_empty() => Value::None,
        "iifkind" | "oifkind" => Value::Word(link.kind.clone()),
        "iifgroup" | "oifgroup" => match &link.group {
            Some(group) => group_number(group).map_or_else(
                || Value::Word(group.clone()),
                |group| Value::Named(group, LINK_GROUPS),
            ),
            None => unknown(),
        },
        _ => {
            let of = |kind: &&(&str, u64)| link.link_type.as_deref() == Some(kind.0);
            let found = LINK_TYPES.iter().find(of);
            found.map_or_else(unknown, |(_, number)| Value::Named(*number, LINK_TYPES))
        }
    }
}

fn group_number(group: &str) -> Option<u64> {
    match group {
        "default" => Some(0),
        group => group.parse().ok(),
    }
}

/// Returns a field of the packet's connection; only the state if it is not tracked, or not yet.
pub(super) fn ct<'p>(key: &str, dir: Option<&str>, packet: &'p Packet) -> Value<'p> {
    let tracked = packet.is_tracked();
    match (key, dir) {
        ("state", _) => {
            let state = match (packet.untracked, tracked, packet.established) {
                (true, ..) => 64,
                (false, false, _) => 1,
                (false, true, true) => 2,
                (false, true, false) => 8,
            };
            Value::Named(state, STATES)
        }
        _ if !tracked => Value::None,
        ("status", _) => {
            let mut status = 0;
            let (dnat, snat) = packet.is_translated();
            for (name, holds) in [
                ("dnat", dnat),
                ("snat", snat),
                ("confirmed", packet.is_confirmed()),
                ("assured", packet.established),
                ("seen-reply", packet.established),
            ] {
                let bit = STATUS.iter().find(|(of, _)| *of == name);
                status |= bit.map_or(0, |(_, bit)| if holds { *bit } else { 0 });
            }
            Value::Named(status, STATUS)
        }
        ("mark", _) => Value::Number(u64::from(packet.ct_mark)),
        ("direction", _) => Value::Named(packet.is_reply().into(), DIRECTIONS),
        ("l3proto", _) => meta("nfproto", packet),
        ("protocol", _) => Value::Proto(packet.proto()),
        ("ip daddr" | "ip saddr", _) if packet.family() != Family::V4 => Value::None,
        ("ip6 daddr" | "ip6 saddr", _) if packet.family() != Family::V6 => Value::None,
        ("ip daddr" | "ip6 daddr" | "daddr", Some("original")) => {
            Value::Addr(packet.original_destination())
        }
        ("ip saddr" | "ip6 saddr" | "saddr", Some("original")) => Value::Addr(packet.client()),
        ("proto-dst", Some("original")) => Value::Port(packet.original_port()),
        ("bytes" | "packets", _) => of_opening(opening::counted(packet, key == "bytes", dir)),
        ("helper", _) if !opening::may_have_some_helper(packet) => Value::None,
        (key, _) => Value::Unknown(format!("what ct {key} is")),
    }
}

fn fib(
    result: &str,
    flags: &[String],
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Value<'static> {
    let has = |flag: &str| flags.iter().any(|own_flag| own_flag == flag);
    let passed = match (has("iif"), has("oif")) {
        (true, _) => Some(&packet.input),
        (false, true) => Some(&packet.output),
        (false, false) => None,
    };
    let (addr, other) = if has("saddr") {
        (packet.source(), packet.destination())
    } else {
        (packet.destination(), packet.source())
    };
    if result == "type" {
        return match context.router.address_type(addr, passed) {
            Ok(kind) => Value::Word(kind.to_owned()),
            Err(what) => Value::Unknown(what),
        };
    }
    let unknown = || Value::Unknown(format!("what fib {result} gives"));
    if !matches!(result, "oif" | "oifname") || matches!(passed, Some(Link::Unknown)) {
        return unknown();
    }
    // A packet of the node to itself came in by lo.
    if passed == Some(&Link::Named("lo".into())) {
        return Value::Word("lo".to_owned());
    }
    let lookup = Lookup {
        source: Some(other),
        mark: has("mark").then(|| packet.mark()),
        ..Lookup::to(addr)
    };
    let Ok(route) = context.router.found(lookup) else {
        return unknown();
    };
    // The name of the link; an empty one if there is none.
    let name = match (route, passed) {
        (Some(route), Some(Link::Named(link))) if route.devices().contains(&&**link) => {
            link.to_string()
        }
        (None, _) | (Some(_), Some(_)) => String::new(),
        (Some(route), None) => match route.devices().first() {
            Some(link) => (*link).to_owned(),
            None => return unknown(),
        },
    };
    Value::Word(name)
}

/// Reads names of bits, or numbers, one or several.
pub(super) fn flags(expr: &Expr, names: Names) -> Option<u64> {
    match expr {
        Expr::Word(word) => {
            let found = names.iter().find(|(name, _)| name == word);
            found.map(|(_, bits)| *bits)
        }
        Expr::Number(number) => Some(*number),
        Expr::Set(list) => list
            .iter()
            .try_fold(0, |all, one| Some(all | flags(one, names)?)),
        Expr::Bits { op, left, right } if op == "|" => {
            Some(flags(left, names)? | flags(right, names)?)
        }
        _ => None,
    }
}
