//! nftables expressions evaluated for a packet.

use std::net::IpAddr;

use crate::backend::iptables::model::States;
use crate::backend::nftables::model::{Datum, Expr, Set, Table};
use crate::backend::nftables::print;
use crate::net::{Cidr, Family, Proto};
use crate::trace::hop::Question;
use crate::trace::iptables::matches::state as in_state;
use crate::trace::packet::{Likelihood, Link, Packet};
use crate::trace::route::Router;
use crate::trace::walk::has_ports;

/// A value read from a packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Addr(IpAddr),
    Number(u64),
    Word(String),
    Concat(Vec<Value>),
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

/// What expressions look at beside the packet.
#[derive(Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) router: &'c Router<'a>,
    pub(crate) table: &'c Table,
}

/// Reads `expr` from the packet.
pub(crate) fn value(expr: &Expr, packet: &Packet, context: &Context<'_, '_>) -> Value {
    match expr {
        Expr::Number(number) => Value::Number(*number),
        Expr::Word(word) => word
            .parse()
            .map_or_else(|_| Value::Word(word.clone()), Value::Addr),
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
                .map(|part| value(part, packet, context))
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
            let side = |expr| match flags(expr) {
                Some(bits) => Value::Number(bits),
                None => value(expr, packet, context),
            };
            match (side(left), side(right)) {
                (Value::Number(a), Value::Number(b)) => Value::Number(match op.as_str() {
                    "|" => a | b,
                    "&" => a & b,
                    "^" => a ^ b,
                    "<<" => a << (b & 63),
                    ">>" => a >> (b & 63),
                    other => return Value::Unknown(format!("what operator {other} gives")),
                }),
                (Value::None, _) | (_, Value::None) => Value::None,
                (gap @ Value::Unknown(_), _) | (_, gap @ Value::Unknown(_)) => gap,
                _ => Value::Unknown(format!("what `{}` gives", print::expr(expr))),
            }
        }
        other => Value::Unknown(format!("what `{}` gives", print::expr(other))),
    }
}

fn payload(protocol: &str, field: &str, packet: &Packet) -> Value {
    let family = packet.family();
    match (protocol, field) {
        ("ip", _) if family != Family::V4 => Value::None,
        ("ip6", _) if family != Family::V6 => Value::None,
        ("ip" | "ip6", "saddr") => Value::Addr(packet.source),
        ("ip" | "ip6", "daddr") => Value::Addr(packet.destination),
        ("ip", "protocol") | ("ip6", "nexthdr") => proto(packet.proto),
        ("tcp", _) if packet.proto != Proto::Tcp => Value::None,
        ("udp", _) if packet.proto != Proto::Udp => Value::None,
        ("sctp", _) if packet.proto != Proto::Sctp => Value::None,
        ("icmp" | "icmpv6", "type" | "code") if !has_ports(packet.proto) => {
            Value::Unknown("which type of ICMP it is".to_owned())
        }
        ("icmp" | "icmpv6" | "udplite" | "dccp" | "ah" | "esp" | "comp", _) => Value::None,
        ("tcp" | "udp" | "sctp" | "th", "dport") => Value::Number(u64::from(packet.port)),
        ("tcp" | "udp" | "sctp" | "th", "sport") => {
            Value::Unknown("what the source port is".to_owned())
        }
        ("tcp", "flags") => Value::Number(if packet.established { 0x10 } else { 0x02 }),
        (protocol, field) => Value::Unknown(format!("what {protocol} {field} is")),
    }
}

fn proto(proto: Proto) -> Value {
    Value::Word(proto.to_string())
}

fn link(link: &Link) -> Value {
    match link {
        Link::None => Value::None,
        Link::Named(name) => Value::Word(name.clone()),
        Link::Unknown => Value::Unknown("which link it passes".to_owned()),
    }
}

fn meta(key: &str, packet: &Packet) -> Value {
    match key {
        "l4proto" => proto(packet.proto),
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
        "mark" => Value::Number(u64::from(packet.mark)),
        "iif" | "iifname" => link(&packet.input),
        "oif" | "oifname" => link(&packet.output),
        "pkttype" => Value::Word("host".to_owned()),
        other => Value::Unknown(format!("what meta {other} is")),
    }
}

fn ct(key: &str, dir: Option<&str>, packet: &Packet) -> Value {
    match (key, dir) {
        ("mark", _) => Value::Number(u64::from(packet.ct_mark)),
        ("direction", _) => Value::Word("original".to_owned()),
        ("l3proto", _) => meta("protocol", packet),
        ("protocol", _) => proto(packet.proto),
        ("ip daddr" | "ip6 daddr" | "daddr", Some("original")) => Value::Addr(packet.original.0),
        ("ip saddr" | "ip6 saddr" | "saddr", Some("original")) => {
            Value::Addr(packet.original_source)
        }
        ("proto-dst", Some("original")) => Value::Number(u64::from(packet.original.1)),
        (key, _) => Value::Unknown(format!("what ct {key} is")),
    }
}

fn fib(result: &str, flags: &[String], packet: &Packet, context: &Context<'_, '_>) -> Value {
    let addr = if flags.iter().any(|f| f == "saddr") {
        packet.source
    } else {
        packet.destination
    };
    if result != "type" {
        return Value::Unknown(format!("what fib {result} gives"));
    }
    let passed = flags.iter().find_map(|f| match f.as_str() {
        "iif" => Some(&packet.input),
        "oif" => Some(&packet.output),
        _ => None,
    });
    let kind = match (context.router.local_device(addr), passed) {
        (Err(reason), _) => return Value::Unknown(format!("whether {addr} is local: {reason}")),
        (Ok(Some(device)), Some(Link::Named(name))) if device != *name => "unicast",
        (Ok(Some(_)), _) => "local",
        (Ok(None), _) if addr.is_multicast() => "multicast",
        (Ok(None), _) if matches!(addr, IpAddr::V4(a) if a.is_broadcast() || a.is_unspecified()) => {
            "broadcast"
        }
        (Ok(None), _) => "unicast",
    };
    Value::Word(kind.to_owned())
}

/// Returns the likelihood that `left op right` holds.
pub(crate) fn compare(
    left: &Expr,
    op: &str,
    right: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    if let Expr::Ct { key, .. } = left
        && let "state" | "status" = key.as_str()
    {
        return connection(key, op, right, packet);
    }
    let have = value(left, packet, context);
    let mut likelihood = match have {
        Value::Random { modulus, offset } if modulus <= MOST_NUMBERS => {
            let numbers = (offset..).take(modulus as usize);
            each(numbers.map(|n| holds(&Value::Number(u64::from(n)), op, right, packet, context)))
        }
        have => holds(&have, op, right, packet, context),
    };
    for question in &mut likelihood.undecided {
        if let Question::Other(what) = question
            && what.is_empty()
        {
            let (left, right) = (print::expr(left), print::expr(right));
            *what = format!("whether `{left} {op} {right}` holds");
        }
    }
    likelihood
}

/// Numbers a random one is looked at one by one for.
const MOST_NUMBERS: u32 = 65_536;

/// Returns the likelihood of one of several equally likely cases.
fn each(cases: impl Iterator<Item = Likelihood>) -> Likelihood {
    let (mut all, mut sum) = (0.0, 0.0);
    for likelihood in cases {
        if !likelihood.undecided.is_empty() {
            return likelihood;
        }
        all += 1.0;
        sum += likelihood.chance;
    }
    Likelihood::chance(sum / f64::max(all, 1.0))
}

/// Returns the likelihood that `have op right` holds; the unknown part is not described yet.
fn holds(
    have: &Value,
    op: &str,
    right: &Expr,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    match op {
        // `tcp flags ! syn`: none of the bits.
        "!" => bits(have, right).not(true),
        "==" | "in" | "!=" => {
            let likelihood = if op == "in" && matches!(have, Value::Number(_)) {
                bits(have, right)
            } else {
                contains(right, have, packet, context)
            };
            if *have == Value::None {
                Likelihood::NO
            } else {
                likelihood.not(op == "!=")
            }
        }
        "<" | ">" | "<=" | ">=" => match (have, value(right, packet, context)) {
            (Value::Number(a), Value::Number(b)) => Likelihood::sure(match op {
                "<" => *a < b,
                ">" => *a > b,
                "<=" => *a <= b,
                _ => *a >= b,
            }),
            (Value::None, _) => Likelihood::NO,
            (Value::Unknown(what), _) => Likelihood::unknown(what),
            _ => Likelihood::unknown(""),
        },
        _ => Likelihood::unknown(""),
    }
}

/// `flags in number`: any of the bits.
fn bits(have: &Value, right: &Expr) -> Likelihood {
    let mask = match right {
        Expr::Number(number) => Some(*number),
        right => flags(right),
    };
    match (have, mask) {
        (Value::Number(have), Some(mask)) => Likelihood::sure(have & mask != 0),
        (Value::None, _) => Likelihood::NO,
        _ => Likelihood::unknown(""),
    }
}

/// `ct state` and `ct status`.
fn connection(key: &str, op: &str, right: &Expr, packet: &Packet) -> Likelihood {
    let words: Vec<&str> = match right {
        Expr::Word(word) => vec![word],
        Expr::Set(list) => list
            .iter()
            .filter_map(|e| {
                if let Expr::Word(word) = e {
                    Some(word.as_str())
                } else {
                    None
                }
            })
            .collect(),
        other => return Likelihood::unknown(format!("whether ct {key} is {}", print::expr(other))),
    };
    let mut any = false;
    for word in words {
        any |= match (key, word) {
            ("state", word) => {
                let bit = match word {
                    "invalid" => States::INVALID,
                    "new" => States::NEW,
                    "related" => States::RELATED,
                    "established" => States::ESTABLISHED,
                    "untracked" => States::UNTRACKED,
                    other => return Likelihood::unknown(format!("whether ct state is {other}")),
                };
                in_state(States(bit), packet)
            }
            (_, "dnat") => packet.dnat,
            (_, "snat") => packet.snat,
            (_, "confirmed" | "assured" | "seen-reply") => packet.established,
            (_, other) => return Likelihood::unknown(format!("whether ct status has {other}")),
        };
    }
    Likelihood::sure(any != (op == "!="))
}

/// Returns the likelihood that `want` (a value, range, prefix, anonymous or named set) contains `have`.
pub(crate) fn contains(
    want: &Expr,
    have: &Value,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    if let Value::Unknown(what) = have {
        return Likelihood::unknown(what.clone());
    }
    if *have == Value::None {
        return Likelihood::NO;
    }
    match want {
        Expr::Named(name) => match context.table.set(name) {
            None => Likelihood::unknown(format!("what set @{name} holds: it was not read")),
            Some(set) => in_set(set, have),
        },
        Expr::Set(list) => any(list
            .iter()
            .map(|want| contains(want, have, packet, context))),
        Expr::Any => Likelihood::YES,
        want => match same(want, have) {
            Some(holds) => Likelihood::sure(holds),
            None => match (value(want, packet, context), have) {
                (Value::Number(a), Value::Number(b)) => Likelihood::sure(a == *b),
                _ => Likelihood::unknown(""),
            },
        },
    }
}

/// Returns whether a named set has `have`; of a set with timeouts only what is alive was listed.
fn in_set(set: &Set, have: &Value) -> Likelihood {
    let elements = set.elements.iter();
    any(elements
        .map(|element| same(&element.key, have).map_or(Likelihood::unknown(""), Likelihood::sure)))
}

fn any(all: impl Iterator<Item = Likelihood>) -> Likelihood {
    let mut undecided = None;
    for likelihood in all {
        if likelihood.undecided.is_empty() && likelihood.chance >= 1.0 {
            return likelihood;
        }
        if !likelihood.undecided.is_empty() {
            undecided.get_or_insert(likelihood);
        }
    }
    undecided.unwrap_or(Likelihood::NO)
}

/// Finds what a map gives for `have`: every entry that may apply, with its chance.
pub(crate) fn look_up<'m>(
    map: &'m Expr,
    have: &Value,
    context: &'m Context<'_, '_>,
) -> Result<Vec<(f64, &'m Datum)>, String> {
    let entries: Vec<(&Expr, &Datum)> = match map {
        Expr::Map(entries) => entries.iter().map(|(key, datum)| (key, datum)).collect(),
        Expr::Named(name) => {
            let set = context
                .table
                .set(name)
                .ok_or_else(|| format!("map @{name} was not read"))?;
            set.elements
                .iter()
                .filter_map(|e| Some((&e.key, e.value.as_ref()?)))
                .collect()
        }
        other => return Err(format!("what map `{}` is", print::expr(other))),
    };
    match have {
        Value::Random { modulus, offset } => {
            let chance = 1.0 / f64::from((*modulus).max(1));
            let mut found = Vec::new();
            for number in *offset..offset.saturating_add(*modulus) {
                let hit = entries
                    .iter()
                    .find(|(key, _)| same(key, &Value::Number(u64::from(number))) == Some(true));
                found.extend(hit.map(|(_, datum)| (chance, *datum)));
            }
            Ok(found)
        }
        Value::Unknown(what) => Err(what.clone()),
        Value::None => Ok(Vec::new()),
        have => {
            for (key, datum) in entries {
                match same(key, have) {
                    Some(true) => return Ok(vec![(1.0, datum)]),
                    Some(false) => {}
                    None => {
                        return Err(format!("whether key `{}` of a map fits", print::expr(key)));
                    }
                }
            }
            Ok(Vec::new())
        }
    }
}

/// Compares a written value with one read from a packet; `None` where they cannot be compared.
fn same(want: &Expr, have: &Value) -> Option<bool> {
    Some(match (want, have) {
        (Expr::Any, _) => true,
        (Expr::Concat(parts), Value::Concat(values)) => {
            if parts.len() != values.len() {
                return None;
            }
            for (part, value) in parts.iter().zip(values) {
                if !same(part, value)? {
                    return Some(false);
                }
            }
            true
        }
        (Expr::Number(want), Value::Number(have)) => want == have,
        (Expr::Bool(want), Value::Number(have)) => u64::from(*want) == *have,
        (Expr::Number(want), Value::Word(have)) => {
            // Protocols may be listed by number.
            u8::try_from(*want).is_ok_and(|n| Proto::from_number(n).to_string() == *have)
        }
        (Expr::Word(want), Value::Word(have)) => match want.strip_suffix('*') {
            Some(prefix) => have.starts_with(prefix),
            None => want == have || want == "icmpv6" && have == "ipv6-icmp",
        },
        (Expr::Word(want), Value::Addr(have)) => want.parse::<IpAddr>().ok()? == *have,
        (word @ Expr::Word(want), Value::Number(have)) => {
            service(want).or_else(|| flags(word))? == *have
        }
        (Expr::Prefix { addr, len }, Value::Addr(have)) => {
            let Expr::Word(addr) = addr.as_ref() else {
                return None;
            };
            Cidr {
                addr: addr.parse().ok()?,
                prefix: *len,
            }
            .contains(*have)
        }
        (Expr::Range(first, last), have) => at_least(have, first)? && !above(have, last)?,
        (Expr::Set(list), have) => {
            let mut any = false;
            for want in list {
                any |= same(want, have)?;
            }
            any
        }
        _ => return None,
    })
}

/// Service names that nft prints for ports by default.
fn service(name: &str) -> Option<u64> {
    Some(match name {
        "domain" => 53,
        "http" => 80,
        "https" => 443,
        "ssh" => 22,
        _ => return None,
    })
}

/// Reads flags of a TCP header, one or several.
fn flags(expr: &Expr) -> Option<u64> {
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

fn at_least(have: &Value, first: &Expr) -> Option<bool> {
    match (have, first) {
        (Value::Number(have), Expr::Number(first)) => Some(have >= first),
        (Value::Addr(have), Expr::Word(first)) => Some(*have >= first.parse::<IpAddr>().ok()?),
        _ => None,
    }
}

fn above(have: &Value, last: &Expr) -> Option<bool> {
    match (have, last) {
        (Value::Number(have), Expr::Number(last)) => Some(have > last),
        (Value::Addr(have), Expr::Word(last)) => Some(*have > last.parse::<IpAddr>().ok()?),
        _ => None,
    }
}
