//! Look-ups in IP sets.

use std::net::IpAddr;

use crate::trace::index::{self, Index};
use crate::trace::packet::{Likelihood, Link, Packet, Part, Written, hash};
use crate::trace::region::{Asked, Coordinate as _};
use kpx_node::backend::ipset::Set;
use kpx_node::backend::iptables::model::Side;
use kpx_node::net::{Cidr, PortRange, Proto};

/// Returns the likelihood that `set` contains `packet`, looked up by `sides`.
///
/// The types are those of `ipset(8)`; the kernel compares the parts of an element with the packet's, one side each.
pub(crate) fn holds(
    set: &Set<'_>,
    sides: &[Side],
    packet: &Packet,
    index: Option<&Index>,
) -> Likelihood {
    let (method, parts) = match set.kind.split_once(':') {
        None | Some(("list", _)) => return open(set),
        Some((method, parts)) => (method, parts.split(',').collect::<Vec<_>>()),
    };
    if let Some(is_added) = wrote(set, sides, packet) {
        return Likelihood::sure(is_added);
    }
    if let Some(members) = index.and_then(|index| index.members(set))
        && let Some(parts) = index::member_parts(method, &parts, sides, packet)
    {
        return Likelihood::sure(members.find(&parts).is_some());
    }
    if let ("hash", ["net", "iface"]) = (method, parts.as_slice()) {
        return by_link(set, sides, packet);
    }
    let mut best: Option<(u32, bool)> = None;
    let mut unsure = false;
    for member in &set.members {
        match element(&member.element, &parts, sides, packet) {
            None => return open(set),
            Some(Fit::No) => {}
            Some(Fit::Open) => unsure = true,
            // The most specific prefix decides; `nomatch` excludes.
            Some(Fit::Yes(length)) => {
                let nomatch = member
                    .options
                    .split_ascii_whitespace()
                    .any(|o| o == "nomatch");
                if best.is_none_or(|(other, _)| length > other) {
                    best = Some((length, !nomatch));
                }
            }
        }
    }
    match best {
        Some((_, holds)) => Likelihood::sure(holds),
        None if unsure => Likelihood::unknown(format!("the source port is in set {}", set.name)),
        None => Likelihood::NO,
    }
}

/// Notes that a target `SET` with these options adds the packet's addresses to a set, or takes them from there.
pub(super) fn write(options: &str, packet: &mut Packet) {
    let mut words = options.split_ascii_whitespace();
    let (Some(option), Some(name), Some(sides)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    let is_added = match option {
        "--add-set" => true,
        "--del-set" => false,
        _ => return,
    };
    let key = sides.split(',').map(|side| {
        let addr = if side == "dst" {
            packet.destination()
        } else {
            packet.source()
        };
        Part::Number(addr.shown().number(), addr.field())
    });
    let key = key.collect();
    packet.write(Written {
        set: name_of(name),
        key,
        is_added,
    });
}

/// Returns what names an IP set.
fn name_of(set: &str) -> u64 {
    hash(&format!("ipset {set}"))
}

/// Returns whether a rule added the packet's addresses to `set`, or took them from there; `None` for sets of more than addresses.
fn wrote(set: &Set<'_>, sides: &[Side], packet: &Packet) -> Option<bool> {
    let (_, kinds) = set.kind.split_once(':')?;
    if !kinds.split(',').all(|kind| matches!(kind, "ip" | "net")) {
        return None;
    }
    packet.wrote(name_of(&set.name), |key| {
        let mut pairs = key.iter().zip(sides);
        key.len() == sides.len()
            && pairs.all(|(part, side)| {
                let addr = match side {
                    Side::Destination => packet.destination(),
                    _ => packet.source(),
                };
                matches!(part, Part::Number(number, field) if addr.shown().number() == *number
                    && (addr.field() == *field || addr.exact() == addr.shown()))
            })
    })
}

/// `hash:net,iface`: the kernel looks for a net from the longest prefix to the shortest, and stops at the first net with the
/// address, even if the link differs (`hash_netiface4_kadt`, `mtype_test_cidrs`).
fn by_link(set: &Set<'_>, sides: &[Side], packet: &Packet) -> Likelihood {
    let mut best: Option<(u32, Vec<Likelihood>)> = None;
    for member in &set.members {
        let Some((net, link)) = member.element.split_once(',') else {
            return open(set);
        };
        let addr = match sides.first() {
            Some(Side::Destination) => packet.destination(),
            _ => packet.source(),
        };
        let length = match address(net, addr) {
            Some(Fit::Yes(length)) => length,
            Some(Fit::No | Fit::Open) => continue,
            None => return open(set),
        };
        let passed = match sides.get(1) {
            Some(Side::Destination) => &packet.output,
            _ => &packet.input,
        };
        let holds = match passed {
            _ if link.contains(':') => return open(set),
            Link::Named(name) => Likelihood::sure(fits(link, &member.options, name)),
            Link::None => Likelihood::NO,
            Link::Unknown => Likelihood::unknown(format!("the link is {link}")),
        };
        let nomatch = member
            .options
            .split_ascii_whitespace()
            .any(|word| word == "nomatch");
        let holds = if nomatch { Likelihood::NO } else { holds };
        match &mut best {
            Some((other, _)) if *other > length => {}
            Some((other, all)) if *other == length => all.push(holds),
            _ => best = Some((length, vec![holds])),
        }
    }
    let mut all = best.map_or_else(Vec::new, |(_, all)| all).into_iter();
    let any = |one: Likelihood, other: Likelihood| match one == Likelihood::YES {
        true => one,
        false if other.is_no() => one,
        false => other,
    };
    let first = all.next().unwrap_or(Likelihood::NO);
    all.fold(first, any)
}

/// Returns whether the link `name` is the one of a member, or begins as it does.
fn fits(link: &str, options: &str, name: &str) -> bool {
    if options
        .split_ascii_whitespace()
        .any(|word| word == "wildcard")
    {
        name.starts_with(link)
    } else {
        name == link
    }
}

fn open(set: &Set<'_>) -> Likelihood {
    Likelihood::unknown(format!("set {} of type {} contains it", set.name, set.kind))
}

enum Fit {
    No,
    /// It matches; the prefix length of each net, the first in the highest bits.
    Yes(u32),
    /// The answer depends on the source port.
    Open,
}

/// Compares one element; `None` for a type that is not modelled.
fn element(element: &str, kinds: &[&str], sides: &[Side], packet: &Packet) -> Option<Fit> {
    let mut values = element.split(',');
    let mut bits = 0;
    let mut unsure = false;
    for (at, kind) in kinds.iter().enumerate() {
        let value = values.next()?;
        let source = sides.get(at).is_none_or(|side| *side == Side::Source);
        let fit = match *kind {
            "ip" | "net" => {
                let addr = if source {
                    packet.source()
                } else {
                    packet.destination()
                };
                address(value, addr)?
            }
            "port" => {
                let (named, numbers) = match value.split_once(':') {
                    Some((named, numbers)) => (Some(named.parse::<Proto>().ok()?), numbers),
                    None => (None, value),
                };
                let range: PortRange = numbers.parse().ok()?;
                if !packet.has_ports() || named.is_some_and(|named| !packet.is(named)) {
                    Fit::No
                } else if source {
                    Fit::Open
                } else if packet.port().between(range.first, range.last) {
                    Fit::Yes(0)
                } else {
                    Fit::No
                }
            }
            "iface" => match if source {
                &packet.input
            } else {
                &packet.output
            } {
                Link::Named(name) if **name == *value => Fit::Yes(0),
                Link::Unknown => Fit::Open,
                Link::Named(_) | Link::None => Fit::No,
            },
            "mark" => {
                let mark = value
                    .strip_prefix("0x")
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok())?;
                if mark == packet.mark().exact() {
                    Fit::Yes(0)
                } else {
                    Fit::No
                }
            }
            _ => return None,
        };
        match fit {
            Fit::No => return Some(Fit::No),
            Fit::Open => unsure = true,
            // The kernel looks for the longest first net, and among these for the longest second one.
            Fit::Yes(length) if matches!(*kind, "ip" | "net") => bits = bits << 8 | length,
            Fit::Yes(_) => {}
        }
    }
    Some(if unsure { Fit::Open } else { Fit::Yes(bits) })
}

fn address(value: &str, addr: Asked<'_, IpAddr>) -> Option<Fit> {
    if let Some((first, last)) = value.split_once('-') {
        let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
        return Some(if addr.is_between(first, last) {
            Fit::Yes(0)
        } else {
            Fit::No
        });
    }
    let net: Cidr = value.parse().ok()?;
    Some(if addr.is_in(net) {
        Fit::Yes(u32::from(net.prefix))
    } else {
        Fit::No
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::packet::{Carried, Entry, Flow};
    use kpx_node::backend::ipset::Member;

    fn packet() -> Packet {
        to(Proto::Tcp, 443)
    }

    fn to(proto: Proto, port: u16) -> Packet {
        Packet::of(&Flow {
            entry: Entry::Pod,
            source: Some("10.1.0.5".parse().unwrap()),
            destination: "203.0.113.11".parse().unwrap(),
            port,
            mark: 0,
            carried: Carried::default(),
            proto,
            established: false,
        })
    }

    fn set(kind: &'static str, members: &[(&'static str, &'static str)]) -> Set<'static> {
        Set {
            name: "S".into(),
            kind: kind.into(),
            options: "".into(),
            members: members
                .iter()
                .map(|&(element, options)| Member {
                    element: element.into(),
                    options: options.into(),
                })
                .collect(),
        }
    }

    #[test]
    fn each_part_is_compared_with_its_side() {
        use Side::{Destination as D, Source as S};
        let ranges = set(
            "hash:ip,port,net",
            &[("203.0.113.11,tcp:443,10.1.0.0/16", "")],
        );
        assert_eq!(holds(&ranges, &[D, D, S], &packet(), None), Likelihood::YES);
        assert_eq!(holds(&ranges, &[S, D, S], &packet(), None), Likelihood::NO);
        let udp = set("hash:ip,port", &[("203.0.113.11,udp:443", "")]);
        assert_eq!(holds(&udp, &[D, D], &packet(), None), Likelihood::NO);
        let ports = set("bitmap:port", &[("443", "")]);
        assert_eq!(holds(&ports, &[D], &packet(), None), Likelihood::YES);
        assert_eq!(holds(&ports, &[S], &packet(), None).undecided.len(), 1);
    }

    #[test]
    fn an_index_has_the_ports_of_a_bitmap_for_every_protocol() {
        let mut ports = set("bitmap:port", &[("", ""); 20]);
        for (member, port) in ports.members.iter_mut().zip(440..) {
            member.element = port.to_string().into();
        }
        let index = Index::default();
        let mut found = 0;
        for proto in [Proto::Tcp, Proto::Udp, Proto::Sctp, Proto::Icmp] {
            for port in [80, 439, 440, 459, 460] {
                let packet = to(proto, port);
                let one_by_one = holds(&ports, &[Side::Destination], &packet, None);
                let indexed = holds(&ports, &[Side::Destination], &packet, Some(&index));
                assert_eq!(indexed, one_by_one, "{proto} {port}");
                found += usize::from(indexed == Likelihood::YES);
            }
        }
        assert_eq!(found, 6);
    }

    #[test]
    fn the_most_specific_prefix_decides() {
        let nets = set(
            "hash:net",
            &[("10.0.0.0/8", ""), ("10.1.0.0/16", "nomatch")],
        );
        assert_eq!(
            holds(&nets, &[Side::Source], &packet(), None),
            Likelihood::NO
        );
        // Of two nets, the first.
        let pairs = set(
            "hash:net,net",
            &[
                ("10.0.0.0/8,203.0.113.0/24", ""),
                ("10.1.0.0/16,203.0.0.0/12", "nomatch"),
            ],
        );
        let sides = [Side::Source, Side::Destination];
        assert_eq!(holds(&pairs, &sides, &packet(), None), Likelihood::NO);
    }
}
