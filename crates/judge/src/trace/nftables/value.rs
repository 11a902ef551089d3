//! Values that nftables expressions read from a packet.

use std::net::IpAddr;

use crate::trace::index::Index;
use crate::trace::packet::{Link, Packet};
use crate::trace::region::Asked;
use crate::trace::route::Router;
use kpx_node::backend::nftables::model::{Expr, Table};
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
    Word(String),
    Concat(Vec<Value<'p>>),
    /// A random number below this.
    Random {
        modulus: u32,
        offset: u32,
    },
    /// Does not apply to this packet: a rule that asks for it does not match.
    None,
    /// Unknown; the text names it.
    Unknown(String),
}

impl Value<'_> {
    /// Returns the number that it is; packets with any other have to be walked for themselves.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Port(port) => Some(u64::from(port.exact())),
            _ => None,
        }
    }

    /// Returns whether the number is one of those from `first` to `last`; `None` if it is none.
    pub(super) fn between(&self, first: u64, last: u64) -> Option<bool> {
        match self {
            Self::Number(number) => Some((first..=last).contains(number)),
            Self::Port(port) => Some(port.lies(first.into(), last.into())),
            _ => None,
        }
    }
}

/// What expressions look at beside the packet.
#[derive(Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) router: &'c Router<'a>,
    pub(crate) table: &'c Table,
    /// Elements of large sets and maps, for recorded walks.
    pub(crate) index: Option<&'c Index>,
    /// Whether it is left open what sets with timeouts have.
    pub(crate) lasting: bool,
}

/// Reads `expr` from the packet.
pub(crate) fn read<'p>(expr: &Expr, packet: &'p Packet, context: &Context<'_, '_>) -> Value<'p> {
    match expr {
        Expr::Number(number) => Value::Number(*number),
        Expr::Word(word) => word.parse().map_or_else(
            |_| Value::Word(word.clone()),
            |addr| Value::Addr(Asked::new(addr, None)),
        ),
        Expr::Bool(flag) => Value::Number(u64::from(*flag)),
        Expr::Payload { protocol, field } => payload(protocol, field, packet),
        Expr::Meta(key) => meta(key, packet),
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
            match values
                .iter()
                .find(|v| matches!(v, Value::None | Value::Unknown(_)))
            {
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
            let side = |expr| match flags(expr) {
                Some(bits) => Value::Number(bits),
                None => read(expr, packet, context),
            };
            let (left, right) = (side(left), side(right));
            if let (Some(a), Some(b)) = (left.number(), right.number()) {
                return Value::Number(match op.as_str() {
                    "|" => a | b,
                    "&" => a & b,
                    "^" => a ^ b,
                    "<<" => a << (b & 63),
                    ">>" => a >> (b & 63),
                    other => return Value::Unknown(format!("what operator {other} gives")),
                });
            }
            match (left, right) {
                (Value::None, _) | (_, Value::None) => Value::None,
                (gap @ Value::Unknown(_), _) | (_, gap @ Value::Unknown(_)) => gap,
                _ => Value::Unknown(format!("what `{}` gives", print::expr(expr))),
            }
        }
        other => Value::Unknown(format!("what `{}` gives", print::expr(other))),
    }
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
        ("icmp" | "icmpv6", "type" | "code") if !packet.has_ports() => {
            Value::Unknown("which type of ICMP it is".to_owned())
        }
        ("ether", "type") => meta("protocol", packet),
        ("icmp" | "icmpv6" | "udplite" | "dccp" | "ah" | "esp" | "comp", _) => Value::None,
        ("tcp" | "udp" | "sctp" | "th", "dport") => Value::Port(packet.port()),
        ("tcp" | "udp" | "sctp" | "th", "sport") => match packet.source_port {
            Some(port) => Value::Port(Asked::new(port, None)),
            None => Value::Unknown("what the source port is".to_owned()),
        },
        ("tcp", "flags") => Value::Number(if packet.established { 0x10 } else { 0x02 }),
        (protocol, field) => Value::Unknown(format!("what {protocol} {field} is")),
    }
}

fn link(link: &Link) -> Value<'static> {
    match link {
        Link::None => Value::None,
        Link::Named(name) => Value::Word(name.to_string()),
        Link::Unknown => Value::Unknown("which link it passes".to_owned()),
    }
}

fn meta<'p>(key: &str, packet: &'p Packet) -> Value<'p> {
    match key {
        "l4proto" => Value::Proto(packet.proto()),
        "nfproto" => Value::Word(
            if packet.family() == Family::V4 {
                "ipv4"
            } else {
                "ipv6"
            }
            .to_owned(),
        ),
        "protocol" => Value::Word(
            if packet.family() == Family::V4 {
                "ip"
            } else {
                "ip6"
            }
            .to_owned(),
        ),
        "mark" => Value::Number(u64::from(packet.mark().exact())),
        "iif" | "iifname" => link(&packet.input),
        "oif" | "oifname" => link(&packet.output),
        "pkttype" => Value::Word("host".to_owned()),
        other => Value::Unknown(format!("what meta {other} is")),
    }
}

fn ct<'p>(key: &str, dir: Option<&str>, packet: &'p Packet) -> Value<'p> {
    match (key, dir) {
        ("mark", _) => Value::Number(u64::from(packet.ct_mark)),
        ("state", _) => Value::Word(
            match (packet.untracked, packet.established) {
                (true, _) => "untracked",
                (false, true) => "established",
                (false, false) => "new",
            }
            .to_owned(),
        ),
        ("direction", _) => {
            let direction = if packet.reply { "reply" } else { "original" };
            Value::Word(direction.to_owned())
        }
        ("l3proto", _) => meta("protocol", packet),
        ("protocol", _) => Value::Proto(packet.proto()),
        ("ip daddr" | "ip6 daddr" | "daddr", Some("original")) => {
            Value::Addr(packet.original_destination())
        }
        ("ip saddr" | "ip6 saddr" | "saddr", Some("original")) => {
            Value::Addr(packet.original_source())
        }
        ("proto-dst", Some("original")) => Value::Port(packet.original_port()),
        (key, _) => Value::Unknown(format!("what ct {key} is")),
    }
}

fn fib(
    result: &str,
    flags: &[String],
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Value<'static> {
    let addr = if flags.iter().any(|f| f == "saddr") {
        packet.source()
    } else {
        packet.destination()
    };
    if result != "type" {
        return Value::Unknown(format!("what fib {result} gives"));
    }
    let passed = flags.iter().find_map(|f| match f.as_str() {
        "iif" => Some(&packet.input),
        "oif" => Some(&packet.output),
        _ => None,
    });
    match context.router.address_type(addr, passed) {
        Ok(kind) => Value::Word(kind.to_owned()),
        Err(what) => Value::Unknown(what),
    }
}

/// Reads flags of a TCP header, one or several.
pub(super) fn flags(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Word(word) => Some(match word.as_str() {
            "fin" => 0x01,
            "syn" => 0x02,
            "rst" => 0x04,
            "psh" => 0x08,
            "ack" => 0x10,
            "urg" => 0x20,
            "ecn" => 0x40,
            "cwr" => 0x80,
            _ => return None,
        }),
        Expr::Set(list) => list.iter().try_fold(0, |all, one| Some(all | flags(one)?)),
        _ => None,
    }
}
