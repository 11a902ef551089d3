//! Matches by module. `None` means that the match is not one of the model's, and is to be kept word for word.

use std::net::IpAddr;

use super::super::model::{
    AddrType, Direction, Invertible, IpRange, Match, Physdev, Recent, RecentAction, Side, Sides,
    States, TcpFlags, Text,
};
use super::words::{Options, span};
use crate::net::{Mark, PortRange, Proto};

/// Reads the `options` of `module` and puts the matches into `matches`; on `None` it puts nothing.
pub(super) fn read<'a>(
    module: &str,
    rule: &'a str,
    options: Options<'_, 'a>,
    matches: &mut Vec<Match<'a>>,
) -> Option<()> {
    let verbatim = || span(rule, options.words);
    matches.push(match module {
        "comment" => comment(options)?,
        "tcp" => return transport(Proto::Tcp, options, matches),
        "udp" => return transport(Proto::Udp, options, matches),
        "sctp" => return transport(Proto::Sctp, options, matches),
        "multiport" => multiport(options)?,
        "addrtype" => addrtype(options)?,
        "conntrack" => {
            states(options, "--ctstate", false).unwrap_or_else(|| Match::Conntrack(verbatim()))
        }
        "state" => states(options, "--state", true)?,
        "mark" => Match::Mark(mark(options)?),
        "connmark" => Match::Connmark(mark(options)?),
        "statistic" => statistic(options)?,
        "set" => set(options)?,
        "recent" => recent(options)?,
        "physdev" => physdev(options)?,
        "nfacct" => Match::Nfacct(only(options, "--nfacct-name").and_then(plain)?),
        "icmp" => Match::Icmp {
            v6: false,
            kind: only(options, "--icmp-type")?,
        },
        "icmp6" | "icmpv6" => Match::Icmp {
            v6: true,
            kind: only(options, "--icmpv6-type")?,
        },
        "limit" | "hashlimit" => Match::Limit {
            hash: module == "hashlimit",
            options: verbatim(),
        },
        "iprange" => iprange(options)?,
        "ipvs" => Match::Ipvs(verbatim()),
        "owner" => Match::Owner(verbatim()),
        "rpfilter" => Match::Rpfilter(verbatim()),
        "socket" => Match::Socket(verbatim()),
        "pkttype" => Match::PktType(only(options, "--pkt-type")?),
        "policy" => Match::Policy(verbatim()),
        "rt" => Match::Rt(verbatim()),
        _ => return None,
    });
    Some(())
}

/// Reads the one option `name` with its value.
fn only<'a>(mut options: Options<'_, 'a>, name: &str) -> Option<Invertible<Text<'a>>> {
    let (mut inverted, found) = options.next()?;
    let value = options.value(&mut inverted)?.text();
    (found == name && options.words.is_empty()).then_some(Invertible { inverted, value })
}

fn plain<T>(of: Invertible<T>) -> Option<T> {
    (!of.inverted).then_some(of.value)
}

fn comment<'a>(options: Options<'_, 'a>) -> Option<Match<'a>> {
    // Not `only`: a comment may be `!`.
    let (first, rest) = options.words.split_first()?;
    let (text, rest) = rest.split_first()?;
    (first.raw == "--comment" && rest.is_empty()).then(|| Match::Comment(text.text()))
}

fn transport<'a>(
    proto: Proto,
    mut options: Options<'_, 'a>,
    matches: &mut Vec<Match<'a>>,
) -> Option<()> {
    let (mut source, mut destination, mut flags) = (None, None, None);
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--sport" | "--source-port" => {
                let value = options.parse(&mut inverted)?;
                unset(source.as_ref())?;
                source = Some(Invertible { inverted, value });
            }
            "--dport" | "--destination-port" => {
                let value = options.parse(&mut inverted)?;
                unset(destination.as_ref())?;
                destination = Some(Invertible { inverted, value });
            }
            "--tcp-flags" if proto == Proto::Tcp => {
                let mask = tcp_flags(&options.value(&mut inverted)?.text())?;
                let set = tcp_flags(&options.value(&mut inverted)?.text())?;
                unset(flags.as_ref())?;
                flags = Some(Invertible {
                    inverted,
                    value: TcpFlags { mask, set },
                });
            }
            "--syn" if proto == Proto::Tcp => {
                unset(flags.as_ref())?;
                let value = TcpFlags {
                    mask: 0x17,
                    set: 0x02,
                };
                flags = Some(Invertible { inverted, value });
            }
            _ => return None,
        }
    }
    if flags.is_none() || source.is_some() || destination.is_some() {
        matches.push(Match::Ports {
            proto,
            source,
            destination,
        });
    }
    matches.extend(flags.map(Match::TcpFlags));
    Some(())
}

/// Returns `None` if an option is given twice.
fn unset<T>(slot: Option<&T>) -> Option<()> {
    slot.is_none().then_some(())
}

fn tcp_flags(text: &str) -> Option<u8> {
    match text {
        "NONE" => Some(0),
        "ALL" => Some(0x3f),
        list => bits(list, &TcpFlags::NAMES).and_then(|b| u8::try_from(b).ok()),
    }
}

/// Reads a list of `names`, separated by commas, to a set of bits.
fn bits(list: &str, names: &[&str]) -> Option<u16> {
    let mut bits = 0;
    for word in list.split(',') {
        bits |= 1 << names.iter().position(|name| *name == word)?;
    }
    Some(bits)
}

fn multiport<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let (mut inverted, name) = options.next()?;
    let side = match name {
        "--sports" | "--source-ports" => Side::Source,
        "--dports" | "--destination-ports" => Side::Destination,
        "--ports" => Side::Either,
        _ => return None,
    };
    let list = options.value(&mut inverted)?.text();
    let value: Option<Vec<PortRange>> = list.split(',').map(|port| port.parse().ok()).collect();
    let ports = Invertible {
        inverted,
        value: value?,
    };
    options
        .words
        .is_empty()
        .then_some(Match::Multiport { side, ports })
}

fn addrtype<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let (mut source, mut destination, mut limit) = (None, None, None);
    while let Some((mut inverted, name)) = options.next() {
        let mut kinds = |options: &mut Options<'_, 'a>| {
            let list = options.value(&mut inverted)?.text();
            let value = AddrType(bits(&list, &AddrType::NAMES)?);
            Some(Invertible { inverted, value })
        };
        match name {
            "--src-type" if source.is_none() => source = Some(kinds(&mut options)?),
            "--dst-type" if destination.is_none() => destination = Some(kinds(&mut options)?),
            "--limit-iface-in" if limit.is_none() && !inverted => limit = Some(Direction::In),
            "--limit-iface-out" if limit.is_none() && !inverted => limit = Some(Direction::Out),
            _ => return None,
        }
    }
    Some(Match::AddrType {
        source,
        destination,
        limit,
    })
}

fn states<'a>(options: Options<'_, 'a>, name: &str, old: bool) -> Option<Match<'a>> {
    let list = only(options, name)?;
    let value = States(u8::try_from(bits(&list.value, &States::NAMES)?).ok()?);
    let states = Invertible {
        inverted: list.inverted,
        value,
    };
    Some(Match::State { states, old })
}

fn mark(options: Options<'_, '_>) -> Option<Invertible<Mark>> {
    let mark = only(options, "--mark")?;
    Some(Invertible {
        inverted: mark.inverted,
        value: mark.value.parse().ok()?,
    })
}

fn statistic<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let (mut mode, mut chance, mut every, mut packet) = (None, None, None, None);
    while let Some((mut inverted, name)) = options.next() {
        match name {
            "--mode" if !inverted => mode = Some(options.value(&mut inverted)?.raw),
            "--probability" => {
                let share: f64 = options.parse(&mut inverted)?;
                // As libxt_statistic reads it: lround(0x80000000 * probability).
                let value = (share * f64::from(1_u32 << 31)).round();
                if !(0.0..=f64::from(1_u32 << 31)).contains(&value) {
                    return None;
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a whole number from 0 to 2^31"
                )]
                let value = value as u32;
                chance = Some(Invertible { inverted, value });
            }
            "--every" => {
                let value = options.parse(&mut inverted)?;
                every = Some(Invertible { inverted, value });
            }
            "--packet" if !inverted => packet = Some(options.parse(&mut inverted)?),
            _ => return None,
        }
    }
    match (mode?, chance, every, packet) {
        ("random", Some(chance), None, None) => Some(Match::Random(chance)),
        ("nth", None, Some(every), packet) => Some(Match::Nth {
            every,
            packet: packet.unwrap_or(0),
        }),
        _ => None,
    }
}

fn set<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let (mut inverted, name) = options.next()?;
    if name != "--match-set" && name != "--set" {
        return None;
    }
    let value = options.value(&mut inverted)?.text();
    let list = options.value(&mut inverted)?;
    let mut sides = [Side::Either; Sides::MAX];
    let mut count = 0;
    for word in list.raw.split(',') {
        *sides.get_mut(count)? = match word {
            "src" => Side::Source,
            "dst" => Side::Destination,
            _ => return None,
        };
        count += 1;
    }
    let sides = Sides::new(&sides[..count])?;
    options.words.is_empty().then_some(Match::Set {
        name: Invertible { inverted, value },
        sides,
    })
}

fn recent<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let mut action = None;
    let mut recent = Recent {
        action: Invertible::plain(RecentAction::Set),
        seconds: None,
        reap: false,
        hitcount: None,
        rttl: false,
        name: Text::Borrowed("DEFAULT"),
        mask: None,
        side: Side::Source,
    };
    while let Some((mut inverted, name)) = options.next() {
        let acts = match name {
            "--set" => Some(RecentAction::Set),
            "--rcheck" => Some(RecentAction::Check),
            "--update" => Some(RecentAction::Update),
            "--remove" => Some(RecentAction::Remove),
            _ => None,
        };
        if let Some(value) = acts {
            unset(action.as_ref())?;
            action = Some(Invertible { inverted, value });
            continue;
        }
        if inverted {
            return None;
        }
        match name {
            "--seconds" => recent.seconds = Some(options.parse(&mut inverted)?),
            "--reap" => recent.reap = true,
            "--hitcount" => recent.hitcount = Some(options.parse(&mut inverted)?),
            "--rttl" => recent.rttl = true,
            "--name" => recent.name = options.value(&mut inverted)?.text(),
            "--mask" => recent.mask = Some(options.parse(&mut inverted)?),
            "--rsource" => recent.side = Side::Source,
            "--rdest" => recent.side = Side::Destination,
            _ => return None,
        }
    }
    recent.action = action?;
    Some(Match::Recent(Box::new(recent)))
}

fn physdev<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let mut physdev = Physdev::default();
    while let Some((mut inverted, name)) = options.next() {
        let flag = Some(Invertible {
            inverted,
            value: (),
        });
        match name {
            "--physdev-in" => {
                let value = options.value(&mut inverted)?.text();
                physdev.input = Some(Invertible { inverted, value });
            }
            "--physdev-out" => {
                let value = options.value(&mut inverted)?.text();
                physdev.output = Some(Invertible { inverted, value });
            }
            "--physdev-is-in" => physdev.is_in = flag,
            "--physdev-is-out" => physdev.is_out = flag,
            "--physdev-is-bridged" => physdev.is_bridged = flag,
            _ => return None,
        }
    }
    Some(Match::Physdev(Box::new(physdev)))
}

fn iprange<'a>(mut options: Options<'_, 'a>) -> Option<Match<'a>> {
    let mut ranges = IpRange::default();
    while let Some((mut inverted, name)) = options.next() {
        let text = options.value(&mut inverted)?.text();
        let value: (IpAddr, IpAddr) = match text.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => (text.parse().ok()?, text.parse().ok()?),
        };
        match name {
            "--src-range" => ranges.source = Some(Invertible { inverted, value }),
            "--dst-range" => ranges.destination = Some(Invertible { inverted, value }),
            _ => return None,
        }
    }
    Some(Match::IpRange(Box::new(ranges)))
}
