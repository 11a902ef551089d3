//! iptables matches evaluated for a packet.

use std::net::IpAddr;

use super::{options, sets};
use crate::trace::hop::{Pace, Question};
use crate::trace::index::Index;
use crate::trace::opening;
use crate::trace::packet::{FIRST_EPHEMERAL, Likelihood, Link, Packet};
use crate::trace::region::Asked;
use crate::trace::route::Router;
use kpx_node::backend::ipset::Sets;
use kpx_node::backend::iptables::model::{
    AddrType, Direction, Invertible, IpRange, Match, NO_LINKS, Physdev, Recent, RecentAction, Rule,
    Side, Text,
};
use kpx_node::evidence::Gap;
use kpx_node::net::{PortRange, Proto};

/// The state besides the packet that matches read.
#[derive(Debug)]
pub(crate) struct Context<'c, 'a> {
    pub(crate) router: &'c Router<'a>,
    pub(crate) sets: Result<&'c Sets<'a>, Gap>,
    /// Whether a packet that enters by a bridge passes iptables as a bridged one (`bridge-nf-call-iptables`).
    pub(crate) bridges: &'c [String],
    /// Members of large sets, for recorded walks.
    pub(crate) index: Option<&'c Index>,
    /// Whether the contents of sets with timeouts are left open.
    pub(crate) lasting: bool,
}

/// Returns the likelihood that `rule` matches `packet`.
pub(crate) fn rule(rule: &Rule<'_>, packet: &Packet, context: &Context<'_, '_>) -> Likelihood {
    let mut likelihood = Likelihood::YES;
    for m in &rule.matches {
        likelihood = likelihood.and(one(m, packet, context));
        if likelihood.is_no() {
            return likelihood;
        }
    }
    likelihood
}

fn one(m: &Match<'_>, packet: &Packet, context: &Context<'_, '_>) -> Likelihood {
    match m {
        Match::Source(net) => Likelihood::sure(packet.source().is_in(net.value) != net.inverted),
        Match::Destination(net) => {
            Likelihood::sure(packet.destination().is_in(net.value) != net.inverted)
        }
        Match::In(name) => link(name, &packet.input),
        Match::Out(name) => link(name, &packet.output),
        Match::Protocol(proto) => Likelihood::sure(packet.is(proto.value) != proto.inverted),
        Match::Ports {
            proto,
            source,
            destination,
        } => {
            if !packet.is(*proto) {
                return Likelihood::NO;
            }
            let destination = destination.map_or(Likelihood::YES, |p| {
                Likelihood::sure(holds(p.value, packet) != p.inverted)
            });
            destination.and(source.map_or(Likelihood::YES, |p| {
                source_port(&[p.value], p.inverted, packet)
            }))
        }
        Match::Multiport { side, ports } => multiport(*side, ports, packet),
        Match::Comment(_) | Match::Nfacct(_) => Likelihood::YES,
        Match::AddrType {
            source,
            destination,
            limit,
        } => {
            let of = |want: &Option<Invertible<AddrType>>, addr| {
                want.map_or(Likelihood::YES, |want| {
                    addr_type(want, addr, *limit, packet, context)
                })
            };
            of(source, packet.source()).and(of(destination, packet.destination()))
        }
        Match::State { states, .. } => {
            Likelihood::sure(options::state(states.value, packet) != states.inverted)
        }
        Match::Mark(mark) => Likelihood::sure(packet.mark().matches(mark.value) != mark.inverted),
        Match::Connmark(_) if !packet.is_tracked() => Likelihood::NO,
        Match::Connmark(mark) => {
            Likelihood::sure(mark.value.matches(packet.ct_mark) != mark.inverted)
        }
        Match::Random(chance) => {
            Likelihood::chance(f64::from(chance.value) / f64::from(1u32 << 31)).not(chance.inverted)
        }
        Match::Nth { every, .. } => {
            Likelihood::chance(1.0 / f64::from(every.value.max(1))).not(every.inverted)
        }
        Match::Set { name, sides } => match &context.sets {
            Err(gap) => Likelihood::undecided(Question::UnreadSet(format!(
                "set {} contains it: {gap}",
                name.value
            ))),
            Ok(sets) => match sets.set(&name.value) {
                None => Likelihood::unknown(format!(
                    "set {} contains it: the set was not read",
                    name.value
                )),
                Some(set) if context.lasting && set.has_timeouts() => {
                    Likelihood::unknown(format!("set {} has it at the time", name.value))
                }
                Some(set) => sets::holds(set, sides, packet, context.index).not(name.inverted),
            },
        },
        Match::Recent(recent) => self::recent(recent),
        Match::TcpFlags(_) if !packet.is(Proto::Tcp) => Likelihood::NO,
        Match::TcpFlags(flags) => {
            let now = packet.tcp_flags();
            Likelihood::sure((now & flags.value.mask == flags.value.set) != flags.inverted)
        }
        Match::Physdev(physdev) => {
            let Physdev {
                input,
                output,
                is_in,
                is_out,
                is_bridged,
            } = physdev.as_ref();
            // A routed packet has a bridge port only on its way in, a bridged one has two.
            let bridged = packet.bridged;
            let enters = bridged
                || matches!(&packet.input, Link::Named(name) if context.bridges.iter().any(|bridge| **bridge == **name));
            let flag = |want: &Option<Invertible<()>>, holds: bool| {
                want.map_or(Likelihood::YES, |want| {
                    Likelihood::sure(holds != want.inverted)
                })
            };
            let port = |want: &Option<Invertible<Text<'_>>>, here: bool, addr| match want {
                None => Likelihood::YES,
                Some(want) if here => match context.router.port_of(addr) {
                    // Packets of another machine behind the bridge do not come in by the link of a pod.
                    Link::Unknown if context.router.leads_to_pod(&want.value) => {
                        Likelihood::sure(want.inverted)
                    }
                    Link::Unknown => {
                        Likelihood::unknown(format!("the bridge port is {}", want.value))
                    }
                    known => link(want, &known),
                },
                Some(want) => Likelihood::sure(want.inverted),
            };
            flag(is_in, enters)
                .and(flag(is_out, bridged))
                .and(flag(is_bridged, bridged))
                .and(port(input, enters, packet.original_source()))
                .and(port(output, bridged, packet.destination()))
        }
        Match::Ipvs(options) => ipvs(options, packet),
        Match::Conntrack(options) => options::conntrack(options, packet),
        Match::Policy(options) => options::policy(options, context.router.node),
        Match::Icmp { v6, kind } if packet.is(if *v6 { Proto::Icmpv6 } else { Proto::Icmp }) => {
            icmp(kind, packet)
        }
        // The packets of a connection have no routing header; without one, even an inverted option does not match (`rt_mt6`).
        Match::Icmp { .. } | Match::Rt(_) => Likelihood::NO,
        Match::Limit { options, .. } => Likelihood::undecided(Question::rate(
            &format!("the rate limit `{options}`"),
            options.contains("--hashlimit-above"),
        )),
        Match::Rpfilter(options) => {
            let inverted = options.split(' ').any(|word| word == "--invert");
            match options::returns(options, packet, context.router) {
                Some(leads) => Likelihood::sure(leads != inverted),
                None => Likelihood::undecided(Question::RouteBack {
                    text: format!(
                        "`-m rpfilter {options}` finds the return route by the same link"
                    ),
                    inverted,
                }),
            }
        }
        Match::Socket(options) => socket(options, packet, context),
        Match::PktType(kind) => Likelihood::sure((kind.value == "unicast") != kind.inverted),
        Match::IpRange(range) => {
            let IpRange {
                source,
                destination,
            } = range.as_ref();
            let of = |want: &Option<Invertible<(IpAddr, IpAddr)>>, addr: Asked<'_, IpAddr>| {
                want.map_or(Likelihood::YES, |want| {
                    let (first, last) = want.value;
                    Likelihood::sure(addr.is_between(first, last) != want.inverted)
                })
            };
            of(source, packet.source()).and(of(destination, packet.destination()))
        }
        // Only a packet of a local process has an owner; without one, `owner_mt` takes a rule whose options are all inverted.
        Match::Owner(options) if !packet.has_socket => {
            let words: Vec<_> = options.split_ascii_whitespace().collect();
            let mut options = words
                .iter()
                .enumerate()
                .filter(|(_, word)| word.starts_with("--"));
            Likelihood::sure(options.all(|(at, _)| at > 0 && words[at - 1] == "!"))
        }
        Match::Owner(options) => match options::owner(options, packet, context.router) {
            Some(holds) => Likelihood::sure(holds),
            None => Likelihood::unknown(format!("the sender is {options}")),
        },
        Match::Unknown(text) if text == NO_LINKS => Likelihood::unknown(
            "the rule is for the packet's links, which the listing does not show".to_owned(),
        ),
        // Fragments are joined before any rule (but of `raw` with `raw_before_defrag`), and no first packet of a connection is one.
        Match::Unknown(text) if text == "-f" || text.starts_with("-m frag") => Likelihood::NO,
        Match::Unknown(text) if text == "! -f" => Likelihood::YES,
        // A rule that searches for a text is for packets with data: a packet that opens a connection has none.
        Match::Unknown(text) if text.starts_with("-m string ") => {
            if packet.is(Proto::Tcp) && WEB.iter().any(|word| text.contains(word)) {
                return Likelihood::unknown(format!("`{text}` holds for the data"));
            }
            Likelihood::sure(text.contains("! --string") || text.contains("! --hex-string"))
        }
        Match::Unknown(text) if text.contains("--connlimit-") => {
            let over = text.contains("--connlimit-above") != text.contains("! --connlimit");
            let mut words = text.split(' ');
            words.find(|word| word.starts_with("--connlimit-") && !word.ends_with("mask"));
            if words.next() == Some("0") {
                return Likelihood::sure(over);
            }
            Likelihood::undecided(Question::rate(
                &format!("the limit of connections `{text}`"),
                over,
            ))
        }
        Match::Unknown(text) if text.starts_with("-m connbytes ") => {
            match options::connbytes(text, packet) {
                Some((first, last)) if first == last => Likelihood::sure(first),
                Some((_, last)) if !packet.opens => {
                    Likelihood::undecided(Question::count(&format!("`{text}`"), last))
                }
                _ => Likelihood::unknown(format!("`{text}` holds")),
            }
        }
        Match::Unknown(text) => {
            let known = options::masked(text, packet).or_else(|| options::mss(text, packet));
            let known = known.or_else(|| options::mac(text, packet, context.router));
            let known = known.or_else(|| options::field(text, packet, context.router));
            match known.or_else(|| options::ecn(text, packet, context.router)) {
                Some(holds) => Likelihood::sure(holds),
                None => Likelihood::unknown(format!("`{text}` holds")),
            }
        }
    }
}

/// Texts that every request of HTTP has, or most have.
const WEB: [&str; 5] = ["GET", "POST", "HTTP/", "Host:", "Content-"];

/// Compares an interface name with the one a packet passes.
fn link(name: &Invertible<Text<'_>>, link: &Link) -> Likelihood {
    match link {
        Link::None => Likelihood::sure(name.inverted),
        // Only a packet of the node to itself passes lo, and its link is known.
        Link::Unknown if name.value == "lo" => Likelihood::sure(name.inverted),
        Link::Unknown => Likelihood::unknown(format!("the link is {}", name.value)),
        Link::Named(have) => Likelihood::sure(fits(&name.value, have) != name.inverted),
    }
}

/// Returns whether the link `name` fits `pattern`, whose trailing `+` matches any rest.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('+') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// The source port of a first packet is ephemeral, so unknown beforehand.
fn source_port(ranges: &[PortRange], inverted: bool, packet: &Packet) -> Likelihood {
    if let Some(port) = packet.source_port {
        let mut ranges = ranges.iter();
        return Likelihood::sure(
            ranges.any(|range| (range.first..=range.last).contains(&port)) != inverted,
        );
    }
    if let Some((first, last)) = packet.ports {
        let has = |range: &PortRange| range.first <= first && last <= range.last;
        let is_apart = |range: &PortRange| range.last < first || last < range.first;
        if ranges.iter().any(has) || ranges.iter().all(is_apart) {
            return Likelihood::sure(ranges.iter().any(has) != inverted);
        }
    }
    let all = ranges.iter().any(|r| r.first == 0 && r.last == u16::MAX);
    if all || ranges.is_empty() {
        return Likelihood::sure(all != inverted);
    }
    if ranges.iter().all(|range| range.last < FIRST_EPHEMERAL) {
        return Likelihood::sure(inverted);
    }
    let text: Vec<_> = ranges.iter().map(ToString::to_string).collect();
    Likelihood::unknown(format!("the source port is {}", text.join(",")))
}

fn multiport(side: Side, ports: &Invertible<Vec<PortRange>>, packet: &Packet) -> Likelihood {
    let has = || ports.value.iter().any(|range| holds(*range, packet));
    match side {
        Side::Destination => Likelihood::sure(has() != ports.inverted),
        Side::Either if has() => Likelihood::sure(!ports.inverted),
        Side::Source | Side::Either => source_port(&ports.value, ports.inverted, packet),
    }
}

/// Returns whether the destination port is in `range`.
fn holds(range: PortRange, packet: &Packet) -> bool {
    packet.port().between(range.first, range.last)
}

fn addr_type(
    want: Invertible<AddrType>,
    addr: Asked<'_, IpAddr>,
    limit: Option<Direction>,
    packet: &Packet,
    context: &Context<'_, '_>,
) -> Likelihood {
    let passed = match limit {
        None => None,
        Some(Direction::In) => Some(&packet.input),
        Some(Direction::Out) => Some(&packet.output),
    };
    let kind = match context.router.address_type(addr, passed) {
        Ok(kind) => kind,
        Err(what) => return Likelihood::of_unknown(what),
    };
    let wants = |kind: &str| {
        let named = |name: &&str| name.eq_ignore_ascii_case(kind);
        let bit = AddrType::NAMES.iter().position(named);
        bit.is_some_and(|bit| want.value.0 & (1 << bit) != 0)
    };
    let is = match addr.shown() {
        IpAddr::V4(_) => wants(kind),
        // As in `match_type6`: an address of this host is UNICAST, too. A rule that names several types asks for all of them, and
        // for types that only routes decide.
        IpAddr::V6(_) => {
            let mut routed = ["local", "anycast", "unreachable"].into_iter();
            (!wants("multicast") || kind == "multicast")
                && (!wants("unicast") || kind != "multicast")
                && (!wants("unspec") || addr.is_unspecified())
                && (!routed.clone().any(wants)
                    || routed.any(|routed| routed == kind && wants(routed)))
        }
    };
    Likelihood::sure(is != want.inverted)
}

/// Compares the type, and the code, if one is named, with those of a ping.
fn icmp(kind: &Invertible<Text<'_>>, packet: &Packet) -> Likelihood {
    let text = &*kind.value;
    let (of, code) = text.split_once('/').unwrap_or((text, ""));
    let number = |text: &str| match text {
        "any" | "255" => Some(packet.icmp_type()),
        "echo-request" | "ping" if packet.is(Proto::Icmp) => Some(8),
        "echo-reply" | "pong" if packet.is(Proto::Icmp) => Some(0),
        "echo-request" => Some(128),
        "echo-reply" => Some(129),
        text => text.parse::<u8>().ok(),
    };
    // A code may be a range: `0:255`.
    let codes = code.split(':').map(|code| {
        if code.is_empty() {
            Some(0)
        } else {
            number(code)
        }
    });
    match (number(of), codes.min().flatten()) {
        (Some(of), Some(code)) => {
            Likelihood::sure((of == packet.icmp_type() && code == 0) != kind.inverted)
        }
        // Any other name is not that of a ping.
        (None, _) => Likelihood::sure(kind.inverted),
        (_, None) => Likelihood::unknown(format!("the type of ICMP is {text}")),
    }
}

/// A trace assumes a new client; the walk notes that affinity applies.
fn recent(recent: &Recent<'_>) -> Likelihood {
    // kube-proxy's lists bind clients to their previous endpoint.
    if recent.action.value != RecentAction::Set
        && !recent.action.inverted
        && let Some(hits @ 2..) = recent.hitcount
    {
        let what = format!(
            "the limit of {hits} hits of list {} of xt_recent",
            recent.name
        );
        let pace = recent.seconds.map(|seconds| Pace {
            count: hits,
            seconds,
            is_shared: false,
        });
        return Likelihood::undecided(Question::rate(&what, true).at(pace));
    }
    if recent.action.value != RecentAction::Set && !recent.name.starts_with("KUBE-") {
        return Likelihood::unknown(format!("list {} of xt_recent has the client", recent.name));
    }
    let holds = match recent.action.value {
        RecentAction::Set => true,
        RecentAction::Check | RecentAction::Update | RecentAction::Remove => false,
    };
    Likelihood::sure(holds != recent.action.inverted)
}

/// `-m socket`: the first packet of a connection finds only a socket that is bound to its destination (`xt_socket`); sockets bound
/// to any address count only with `--nowildcard`.
fn socket(options: &str, packet: &Packet, context: &Context<'_, '_>) -> Likelihood {
    let takes_any = options.split(' ').any(|word| word == "--nowildcard");
    if !takes_any && !packet.established {
        let kind = context.router.address_type(packet.destination(), None);
        if kind.is_ok_and(|kind| !kind.eq_ignore_ascii_case("local")) {
            return Likelihood::NO;
        }
    }
    if opening::lacks_listener(packet, context.router) {
        return Likelihood::NO;
    }
    Likelihood::unknown(format!("`-m socket {options}` finds a local socket"))
}

/// `-m ipvs`: looks at the virtual server that took the packet.
fn ipvs(options: &str, packet: &Packet) -> Likelihood {
    let mut words = options.split_ascii_whitespace();
    let mut likelihood = Likelihood::YES;
    let mut inverted = false;
    while let Some(word) = words.next() {
        let server = packet.virtual_server;
        let mut value = || words.next().unwrap_or("");
        let holds = match word {
            "!" => {
                inverted = true;
                continue;
            }
            "--ipvs" => server.is_some(),
            "--vproto" => {
                let want = value();
                server.is_some_and(|(proto, ..)| want.parse() == Ok(proto))
            }
            "--vaddr" => {
                let want = value().parse::<kpx_node::net::Cidr>();
                server.is_some_and(|(_, addr, _)| want.is_ok_and(|net| net.contains(addr)))
            }
            "--vport" => {
                let want = value();
                server.is_some_and(|(.., port)| want.parse() == Ok(port))
            }
            other => return Likelihood::unknown(format!("`-m ipvs {other} …` holds")),
        };
        likelihood = likelihood.and(Likelihood::sure(holds != inverted));
        inverted = false;
    }
    likelihood
}
