//! What iptables matches say of a packet.

use std::net::IpAddr;

use super::packet::{Link, Odds, Packet};
use super::route::Router;
use super::sets;
use super::walk::has_ports;
use crate::backend::ipset::Sets;
use crate::backend::iptables::model::{
    AddrType, Direction, IpRange, Match, Maybe, Physdev, Recent, RecentAction, Rule, Side, States,
    Text,
};
use crate::evidence::Gap;
use crate::net::{PortRange, Proto};

/// Flags of a first packet, and of a later one, as bits of the TCP header.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// What matches look at beside the packet.
#[derive(Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) router: &'c Router<'a>,
    pub(crate) sets: Result<&'c Sets<'a>, Gap>,
    /// Whether a packet that enters by a bridge passes iptables as a bridged one (`bridge-nf-call-iptables`).
    pub(crate) bridges: &'c [String],
}

/// Returns the odds that `rule` matches `packet`.
pub(crate) fn rule(rule: &Rule<'_>, packet: &Packet, context: &Context<'_, '_>) -> Odds {
    let mut odds = Odds::YES;
    for m in &rule.matches {
        odds = odds.and(one(m, packet, context));
        if odds.is_no() {
            return odds;
        }
    }
    odds
}

fn one(m: &Match<'_>, packet: &Packet, context: &Context<'_, '_>) -> Odds {
    match m {
        Match::Source(net) => Odds::sure(net.is.contains(packet.source) != net.not),
        Match::Destination(net) => Odds::sure(net.is.contains(packet.destination) != net.not),
        Match::In(name) => link(name, &packet.input),
        Match::Out(name) => link(name, &packet.output),
        Match::Protocol(proto) => Odds::sure((proto.is == packet.proto) != proto.not),
        Match::Ports {
            proto,
            source,
            destination,
        } => {
            if *proto != packet.proto {
                return Odds::NO;
            }
            let destination = destination.map_or(Odds::YES, |p| {
                Odds::sure(p.is.contains(packet.port) != p.not)
            });
            destination.and(source.map_or(Odds::YES, |p| source_port(&[p.is], p.not)))
        }
        Match::Multiport { side, ports } => multiport(*side, ports, packet),
        Match::Comment(_) | Match::Nfacct(_) => Odds::YES,
        Match::AddrType {
            source,
            destination,
            limit,
        } => {
            let of = |want: &Option<Maybe<AddrType>>, addr| {
                want.map_or(Odds::YES, |want| {
                    addr_type(want, addr, *limit, packet, context)
                })
            };
            of(source, packet.source).and(of(destination, packet.destination))
        }
        Match::State { states, .. } => Odds::sure(state(states.is, packet) != states.not),
        Match::Mark(mark) => Odds::sure(mark.is.matches(packet.mark) != mark.not),
        Match::Connmark(mark) => Odds::sure(mark.is.matches(packet.ct_mark) != mark.not),
        Match::Random(chance) => {
            Odds::chance(f64::from(chance.is) / f64::from(1u32 << 31)).not(chance.not)
        }
        Match::Nth { every, .. } => Odds::chance(1.0 / f64::from(every.is.max(1))).not(every.not),
        Match::Set { name, sides } => match &context.sets {
            Err(gap) => Odds::unknown(format!("whether set {} has it: {gap}", name.is)),
            Ok(sets) => match sets.set(&name.is) {
                None => Odds::unknown(format!("whether set {} has it: it was not read", name.is)),
                Some(set) => sets::holds(set, sides, packet).not(name.not),
            },
        },
        Match::Recent(recent) => self::recent(recent),
        Match::TcpFlags(_) if packet.proto != Proto::Tcp => Odds::NO,
        Match::TcpFlags(flags) => {
            let now = if packet.established { ACK } else { SYN };
            Odds::sure((now & flags.is.mask == flags.is.set) != flags.not)
        }
        Match::Physdev(physdev) => {
            let Physdev {
                input,
                output,
                is_in,
                is_out,
                is_bridged,
            } = physdev.as_ref();
            // A routed packet has a bridge port only on its way in, a bridged one has two; which ones is not told.
            let bridged = packet.bridged;
            let enters = bridged
                || matches!(&packet.input, Link::Named(name) if context.bridges.contains(name));
            let flag = |want: &Option<Maybe<()>>, holds: bool| {
                want.map_or(Odds::YES, |want| Odds::sure(holds != want.not))
            };
            let port = |want: &Option<Maybe<Text<'_>>>, here: bool| match want {
                None => Odds::YES,
                Some(want) if here => {
                    Odds::unknown(format!("whether the bridge port is {}", want.is))
                }
                Some(want) => Odds::sure(want.not),
            };
            flag(is_in, enters)
                .and(flag(is_out, bridged))
                .and(flag(is_bridged, bridged))
                .and(port(input, enters))
                .and(port(output, bridged))
        }
        Match::Ipvs(options) => ipvs(options, packet),
        // Only protocols with ports are traced.
        Match::Icmp { .. } if !has_ports(packet.proto) => Odds::unknown("which type of ICMP it is"),
        Match::Icmp { .. } => Odds::NO,
        Match::Limit { options, .. } => {
            Odds::unknown(format!("whether the rate limit `{options}` is used up"))
        }
        Match::Rpfilter(options) => Odds::unknown(format!(
            "whether `-m rpfilter {options}` finds the way back by the same link"
        )),
        Match::Socket(options) => Odds::unknown(format!(
            "whether `-m socket {options}` finds a local socket"
        )),
        Match::PktType(kind) => Odds::sure((kind.is == "unicast") != kind.not),
        Match::IpRange(range) => {
            let IpRange {
                source,
                destination,
            } = range.as_ref();
            let of = |want: &Option<Maybe<(IpAddr, IpAddr)>>, addr: IpAddr| {
                want.map_or(Odds::YES, |want| {
                    let (first, last) = want.is;
                    let inside = first.is_ipv4() == addr.is_ipv4() && first <= addr && addr <= last;
                    Odds::sure(inside != want.not)
                })
            };
            of(source, packet.source).and(of(destination, packet.destination))
        }
        // Only a packet of a local process has an owner.
        Match::Owner(_) if packet.input != Link::None => Odds::NO,
        Match::Owner(options) => Odds::unknown(format!("whether the sender is {options}")),
        Match::Unknown(text) => Odds::unknown(format!("whether `{text}` holds")),
    }
}

/// Compares an interface name with the one a packet passes.
fn link(name: &Maybe<Text<'_>>, link: &Link) -> Odds {
    match link {
        Link::None => Odds::sure(name.not),
        Link::Unknown => Odds::unknown(format!("whether the link is {}", name.is)),
        Link::Named(have) => Odds::sure(fits(&name.is, have) != name.not),
    }
}

/// Returns whether the link `name` fits `pattern`, whose trailing `+` stands for anything.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('+') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// The source port is an ephemeral one that nobody knows beforehand.
fn source_port(ranges: &[PortRange], not: bool) -> Odds {
    let all = ranges.iter().any(|r| r.first == 0 && r.last == u16::MAX);
    if all || ranges.is_empty() {
        return Odds::sure(all != not);
    }
    let text: Vec<_> = ranges.iter().map(ToString::to_string).collect();
    Odds::unknown(format!("whether the source port is {}", text.join(",")))
}

fn multiport(side: Side, ports: &Maybe<Vec<PortRange>>, packet: &Packet) -> Odds {
    let has = |port| ports.is.iter().any(|range| range.contains(port));
    match side {
        Side::Destination => Odds::sure(has(packet.port) != ports.not),
        Side::Either if has(packet.port) => Odds::sure(!ports.not),
        Side::Source | Side::Either => source_port(&ports.is, ports.not),
    }
}

fn addr_type(
    want: Maybe<AddrType>,
    addr: IpAddr,
    limit: Option<Direction>,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Odds {
    let local = match context.router.local_device(addr) {
        Ok(local) => local,
        Err(reason) => {
            return Odds::unknown(format!(
                "whether {addr} is an address of this host: {reason}"
            ));
        }
    };
    let passed = match limit {
        None => None,
        Some(Direction::In) => Some(&packet.input),
        Some(Direction::Out) => Some(&packet.output),
    };
    let local = match (local, passed) {
        (Some(_), None) => true,
        (Some(device), Some(Link::Named(name))) => device == *name,
        (None, _) | (Some(_), Some(Link::None)) => false,
        (Some(_), Some(Link::Unknown)) => {
            return Odds::unknown(format!("whether {addr} is an address of the packet's link"));
        }
    };
    let bit = if local {
        AddrType::LOCAL.0
    } else if addr.is_multicast() {
        1 << 5
    } else if addr.is_unspecified() || matches!(addr, IpAddr::V4(a) if a.is_broadcast()) {
        1 << 3
    } else {
        1 << 1
    };
    Odds::sure((want.is.0 & bit != 0) != want.not)
}

/// Returns whether the packet is in one of `states`.
pub(crate) fn state(states: States, packet: &Packet) -> bool {
    let now = match (packet.untracked, packet.established) {
        (true, _) => States::UNTRACKED,
        (false, true) => States::ESTABLISHED,
        (false, false) => States::NEW,
    };
    let translated = |bit, holds| if holds { bit } else { 0 };
    let now = now | translated(States::DNAT, packet.dnat) | translated(States::SNAT, packet.snat);
    states.0 & now != 0
}

/// A client that was not seen before: that is what a trace is about; the walk notes that affinity is in play.
fn recent(recent: &Recent<'_>) -> Odds {
    let holds = match recent.action.is {
        RecentAction::Set => true,
        RecentAction::Check | RecentAction::Update | RecentAction::Remove => false,
    };
    Odds::sure(holds != recent.action.not)
}

/// `-m ipvs`: looks at the virtual server that took the packet.
fn ipvs(options: &str, packet: &Packet) -> Odds {
    let mut words = options.split_ascii_whitespace();
    let mut odds = Odds::YES;
    let mut not = false;
    while let Some(word) = words.next() {
        let server = packet.virtual_server;
        let mut value = || words.next().unwrap_or("");
        let holds = match word {
            "!" => {
                not = true;
                continue;
            }
            "--ipvs" => server.is_some(),
            "--vproto" => {
                let want = value();
                server.is_some_and(|(proto, ..)| want.parse() == Ok(proto))
            }
            "--vaddr" => {
                let want = value().parse::<crate::net::Cidr>();
                server.is_some_and(|(_, addr, _)| want.is_ok_and(|net| net.contains(addr)))
            }
            "--vport" => {
                let want = value();
                server.is_some_and(|(.., port)| want.parse() == Ok(port))
            }
            other => return Odds::unknown(format!("whether `-m ipvs {other} …` holds")),
        };
        odds = odds.and(Odds::sure(holds != not));
        not = false;
    }
    odds
}
