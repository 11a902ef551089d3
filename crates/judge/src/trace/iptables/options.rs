//! Matches whose options are kept as written.

use std::net::IpAddr;

use crate::trace::opening::{self, Values};
use crate::trace::packet::{Likelihood, Link, Packet};
use crate::trace::region::Coordinate as _;
use crate::trace::route::{Lookup, Router};
use crate::trace::tos;
use kpx_node::backend::iptables::model::States;
use kpx_node::evidence::Time;
use kpx_node::net::{Cidr, Family, PortRange, Proto};
use kpx_node::node::NodeSnapshot;

/// The options of a match, each with its values and whether `!` precedes it.
fn each(options: &str) -> Vec<(bool, &str, Vec<&str>)> {
    let mut all: Vec<(bool, &str, Vec<&str>)> = Vec::new();
    let mut inverted = false;
    for word in options.split_ascii_whitespace() {
        match (word, all.last_mut()) {
            ("!", _) => inverted = true,
            (name, _) if name.starts_with("--") => {
                all.push((std::mem::take(&mut inverted), name, Vec::new()));
            }
            (value, Some((.., values))) => values.push(value),
            (_, None) => {}
        }
    }
    all
}

/// `-m conntrack`, as `conntrack_mt` compares.
pub(super) fn conntrack(options: &str, packet: &Packet) -> Likelihood {
    let all = each(options);
    let unknown = |name: &str| Likelihood::unknown(format!("`-m conntrack {name} …` holds"));
    if !packet.is_tracked() {
        // Then only the state decides.
        let state_of = all.iter().find(|(_, name, _)| *name == "--ctstate");
        return match state_of {
            None => Likelihood::NO,
            Some((inverted, name, values)) => match states(values) {
                Some(states) => Likelihood::sure(state(states, packet) != *inverted),
                None => unknown(name),
            },
        };
    }
    let mut likelihood = Likelihood::YES;
    for (inverted, name, values) in &all {
        let value = values.first().copied().unwrap_or_default();
        let net = || value.parse::<Cidr>().ok();
        let holds = match *name {
            "--ctstate" => states(values).map(|states| state(states, packet)),
            "--ctdir" => Some((value == "REPLY") == packet.is_reply()),
            "--ctproto" => {
                let number = value.parse::<u8>().ok();
                number.map(|number| packet.proto().is(number))
            }
            "--ctorigdst" => net().map(|net| packet.original_destination().is_in(net)),
            "--ctorigsrc" => net().map(|net| packet.client().is_in(net)),
            "--ctorigdstport" => {
                let ports = value.parse::<PortRange>().ok();
                ports.map(|ports| packet.original_port().between(ports.first, ports.last))
            }
            "--ctstatus" => status(value, packet),
            _ => None,
        };
        let one = match holds {
            Some(holds) => Likelihood::sure(holds != *inverted),
            None => unknown(name),
        };
        likelihood = likelihood.and(one);
    }
    likelihood
}

/// Returns whether the packet is in one of `states`.
pub(crate) fn state(states: States, packet: &Packet) -> bool {
    let now = match (packet.untracked, packet.is_tracked(), packet.established) {
        (true, ..) => States::UNTRACKED,
        (false, false, _) => States::INVALID,
        (false, true, true) => States::ESTABLISHED,
        (false, true, false) => States::NEW,
    };
    let translated = |bit, holds| if holds { bit } else { 0 };
    let (dnat, snat) = packet.is_translated();
    let now = now | translated(States::DNAT, dnat) | translated(States::SNAT, snat);
    states.0 & now != 0
}

/// Returns whether the state and the status in the options of `-m conntrack` fit packets of an established connection (`later`),
/// or else packets that open one.
pub(crate) fn fits_state(options: &str, later: bool) -> bool {
    let now = if later { States::LATER } else { States::NEW };
    each(options).iter().all(|(inverted, name, values)| {
        let fits = match *name {
            "--ctstate" => states(values).is_none_or(|states| states.0 & now != 0),
            "--ctstatus" => {
                let mut list = values.iter().flat_map(|list| list.split(','));
                list.any(|status| matches!(status, "SEEN_REPLY" | "ASSURED" | "CONFIRMED")) == later
            }
            _ => return true,
        };
        fits != *inverted
    })
}

/// Returns whether a match is `-m connbytes`, or `-m length` that tells packets with data from those that open a connection of TCP.
pub(crate) fn tells_data(text: &str) -> bool {
    if text.starts_with("-m connbytes ") {
        return true;
    }
    let Some(options) = text.strip_prefix("-m length ") else {
        return false;
    };
    let mut all = each(options).into_iter();
    let range = all.find_map(|(_, _, values)| range_of(values.first()?, u64::from(u16::MAX)));
    let holds = |opens| {
        let bytes = opening::bytes_of_tcp(opens, Family::V4);
        opening::within(&bytes, &range.clone()?)
    };
    holds(true) != holds(false)
}

fn states(values: &[&str]) -> Option<States> {
    let bit = |name: &str| {
        let at = States::NAMES.iter().position(|state| *state == name)?;
        Some(1 << at)
    };
    let words = values.first()?.split(',');
    let bits = words.map(bit).try_fold(0, |all, bit| Some(all | bit?));
    bits.map(States)
}

/// Returns whether the connection has one of these statuses.
fn status(list: &str, packet: &Packet) -> Option<bool> {
    let one = |name: &str| {
        Some(match name {
            // iptables prints NONE for no status at all, of which none can be found.
            "NONE" | "EXPECTED" => false,
            "SEEN_REPLY" | "ASSURED" => packet.established,
            "CONFIRMED" => packet.is_confirmed(),
            "DNAT" => packet.is_translated().0,
            "SNAT" => packet.is_translated().1,
            _ => return None,
        })
    };
    list.split(',')
        .map(one)
        .try_fold(false, |any, one| Some(any | one?))
}

/// `-m policy`: without a policy of IPsec, it takes no packet.
pub(super) fn policy(options: &str, node: &NodeSnapshot<'_>) -> Likelihood {
    let all = each(options);
    let of = |name: &str| all.iter().find(|(_, of, _)| *of == name);
    let is_none = node.xfrm().is_ok_and(|policies| policies.all.is_empty());
    match of("--pol").map(|(inverted, _, values)| (*inverted, values.first().copied())) {
        Some((false, Some("none"))) if is_none => Likelihood::YES,
        Some((false, Some("ipsec"))) if is_none => Likelihood::NO,
        _ => Likelihood::unknown(format!("`-m policy {options}` holds")),
    }
}

/// Returns whether the route back leads through the link of the packet, as `rpfilter_lookup_reverse` asks. The walk assumes that
/// packets come in by the link of that route: that it leads elsewhere is certain only of those that are known to come in by another.
pub(super) fn returns(options: &str, packet: &Packet, router: &Router<'_>) -> Option<bool> {
    let Link::Named(link) = &packet.input else {
        return None;
    };
    if **link == *"lo" {
        return Some(true);
    }
    let has = |option: &str| options.split(' ').any(|word| word == option);
    let lookup = Lookup {
        source: Some(packet.destination()),
        mark: has("--validmark").then(|| packet.mark()),
        ..Lookup::to(packet.source())
    };
    let route = router.found(lookup).ok()?;
    let leads = route.is_some_and(|route| has("--loose") || route.devices().contains(&&**link));
    (leads || packet.entered_elsewhere).then_some(leads)
}

/// Returns whether `-m mac` matches; `None` if the sender's address is not known, and for other options.
pub(super) fn mac(text: &str, packet: &Packet, router: &Router<'_>) -> Option<bool> {
    let all = each(text.strip_prefix("-m mac ")?);
    let [(inverted, "--mac-source", values)] = all.as_slice() else {
        return None;
    };
    // A packet of the node itself has no link-layer address yet.
    if packet.input == Link::None {
        return Some(false);
    }
    Some(router.is_from(values.first()?, packet)? != *inverted)
}

/// Returns whether `-m ecn` matches. Linux and most other systems do not ask for ECN by default, and neither does a pod unless its
/// setting is known. `None` for packets of clients with another setting, for packets of other machines, and for other options.
pub(super) fn ecn(text: &str, packet: &Packet, router: &Router<'_>) -> Option<bool> {
    const NOT_CAPABLE: &str = "0";
    let all = each(text.strip_prefix("-m ecn ")?);
    let asks_for_none = if packet.has_socket {
        let setting = router.node.sysctl().ok()?.get("net.ipv4.tcp_ecn");
        matches!(setting, None | Some("0" | "2"))
    } else if packet.ecn {
        false
    } else if packet.is_reply() {
        // A reply has ECN only if the client asked for it.
        router.has_pod(packet.destination())
    } else {
        router.has_pod(packet.original_source())
    };
    if !asks_for_none {
        return None;
    }
    all.iter()
        .try_fold(true, |holds, (inverted, name, values)| {
            let is_set = match *name {
                "--ecn-tcp-cwr" | "--ecn-tcp-ece" => false,
                "--ecn-ip-ect" => *values.first()? == NOT_CAPABLE,
                _ => return None,
            };
            Some(holds && is_set != *inverted)
        })
}

/// Returns whether `-m connbytes` holds at the least and at the most packets or bytes that the connection may have.
pub(super) fn connbytes(text: &str, packet: &Packet) -> Option<(bool, bool)> {
    let all = each(text.strip_prefix("-m connbytes ")?);
    let option = |name: &str| all.iter().find(|(_, option, _)| *option == name);
    let word = |name| option(name)?.2.first().copied();
    let is_of_bytes = match word("--connbytes-mode")? {
        "bytes" => true,
        "packets" => false,
        _ => return None,
    };
    let values = opening::counted(packet, is_of_bytes, word("--connbytes-dir"));
    let (inverted, _, range) = option("--connbytes")?;
    // A single number has no upper end.
    let range = match *range.first()? {
        range if range.contains(':') => range_of(range, u64::MAX)?,
        low => number(low)?..=u64::MAX,
    };
    let holds = |count| range.contains(count) != *inverted;
    Some((holds(values.start()), holds(values.end())))
}

/// Returns whether a match on a field that [`opening`] knows holds; `None` for any other match, and if the field does not decide.
pub(super) fn field(text: &str, packet: &Packet, router: &Router<'_>) -> Option<bool> {
    let (name, options) = text.strip_prefix("-m ")?.split_once(' ')?;
    let all = each(options);
    let value = |values: &[&str]| values.first().and_then(|value| number(value));
    let in_range = |values: &Values, range: Option<Values>| opening::within(values, &range?);
    match (name, all.as_slice()) {
        ("length", [(inverted, "--length", range)]) => {
            let range = range_of(range.first()?, u64::from(u16::MAX));
            Some(in_range(&opening::length(packet), range)? != *inverted)
        }
        ("ttl" | "hl", [(inverted, option, values)]) => {
            let (left, value) = (opening::ttl(packet, router), value(values)?);
            let range = match *option {
                "--ttl-eq" | "--hl-eq" => value..=value,
                "--ttl-lt" | "--hl-lt" => 0..=value.checked_sub(1)?,
                "--ttl-gt" | "--hl-gt" => value + 1..=u64::from(u8::MAX),
                _ => return None,
            };
            Some(opening::within(&left, &range)? != *inverted)
        }
        ("tos" | "dscp", [(inverted, option, values)]) => {
            Some(tos::matches(packet, option, values.first()?)? != *inverted)
        }
        ("tcp", [(inverted, "--tcp-option", values)]) => {
            if !packet.is(Proto::Tcp) {
                return Some(false);
            }
            let is_known = opening::USUAL_OPTIONS.contains(&value(values)?);
            (!is_known).then_some(*inverted)
        }
        ("helper", [(inverted, "--helper", values)]) => {
            let may = opening::may_have_helper(packet, values.first()?);
            (!may).then_some(*inverted)
        }
        ("time", all) => at_time(all, router.node.taken()?),
        // Only a packet of a local process has a control group.
        ("cgroup", _) if !packet.has_socket => Some(false),
        // The class that `net_cls` gives to a program: 0 without it.
        ("cgroup", [(inverted, "--cgroup", values)]) => {
            opening::user(packet, router)?;
            Some((number(values.first()?)? == 0) != *inverted)
        }
        ("geoip", [(inverted, option, _)]) => {
            let is_source = matches!(*option, "--source-country" | "--src-cc");
            (is_source && opening::is_private(packet)).then_some(*inverted)
        }
        _ => None,
    }
}

/// Returns whether the options of `-m time` hold at `now`, as `time_mt` compares; `None` for options that are not read, and another
/// zone than UTC.
fn at_time(all: &[(bool, &str, Vec<&str>)], now: Time) -> Option<bool> {
    const DAY: i64 = 86_400;
    // 1 January 1970 was a Thursday.
    const NAMES: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let of_day = |text: &str| {
        let parts = text.split(':').map(|part| part.parse::<i64>().ok());
        let units = [3600, 60, 1].into_iter();
        let mut seconds = parts.zip(units).map(|(part, unit)| Some(part? * unit));
        seconds.try_fold(0, |sum, part| Some(sum + part?))
    };
    let (mut start, mut stop, mut holds) = (0, DAY - 1, true);
    for (inverted, name, values) in all {
        let value = *values.first()?;
        let date = || format!("{value}Z").parse::<Time>().ok();
        match *name {
            "--timestart" => start = of_day(value)?,
            "--timestop" => stop = of_day(value)?,
            "--datestart" => holds &= now >= date()?,
            "--datestop" => holds &= now <= date()?,
            "--weekdays" => {
                let today = usize::try_from(now.seconds.div_euclid(DAY).rem_euclid(7)).ok()?;
                let is_one = value.split(',').any(|day| day == NAMES[today]);
                holds &= is_one != *inverted;
            }
            _ => return None,
        }
    }
    let second = now.seconds.rem_euclid(DAY);
    let (is_after, is_before) = (second >= start, second <= stop);
    let is_within = if start < stop {
        is_after && is_before
    } else {
        is_after || is_before
    };
    Some(holds && is_within)
}

/// Returns whether `-m owner` matches the program that sends the packet; `None` if it is not known, and for other options.
pub(super) fn owner(options: &str, packet: &Packet, router: &Router<'_>) -> Option<bool> {
    let user = opening::user(packet, router)?;
    each(options)
        .iter()
        .try_fold(true, |holds, (inverted, option, values)| {
            let is = match *option {
                "--uid-owner" | "--gid-owner" => {
                    let mut ends = values.first()?.splitn(2, '-').map(number);
                    let first = ends.next()??;
                    let last = ends.next().unwrap_or(Some(first))?;
                    (first..=last).contains(&user)
                }
                "--socket-exists" => true,
                _ => return None,
            };
            Some(holds && is != *inverted)
        })
}

/// Returns a number, written as one of base 10 or 16.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the range `LOW:HIGH`, either of which may be absent, or the single number.
fn range_of(text: &str, highest: u64) -> Option<Values> {
    let Some((low, high)) = text.split_once(':') else {
        return number(text).map(|one| one..=one);
    };
    let low = if low.is_empty() { 0 } else { number(low)? };
    let high = if high.is_empty() {
        highest
    } else {
        number(high)?
    };
    Some(low..=high)
}

/// Returns whether `-m tcpmss` matches: hosts offer segments of 536 to 8,960 bytes in the packets that open connections, and nothing in
/// later ones, which only an inverted range matches (`xt_tcpmss`). `None` for a part of that range, and for other options.
pub(super) fn mss(text: &str, packet: &Packet) -> Option<bool> {
    const SYN: u8 = 2;
    let options = text.strip_prefix("-m tcpmss ")?;
    if !packet.is(Proto::Tcp) {
        return Some(false);
    }
    let (inverted, range) = match options.strip_prefix("! ") {
        Some(rest) => (true, rest),
        None => (false, options),
    };
    let range = range.strip_prefix("--mss ")?;
    if packet.tcp_flags() & SYN == 0 {
        return Some(inverted);
    }
    let (low, high) = range.split_once(':').unwrap_or((range, range));
    let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
    let (all, none) = (low <= 536 && high >= 8960, high < 536 || low > 8960);
    (all || none).then_some(all != inverted)
}

/// `-s ADDRESS/MASK` with a mask that is no prefix; `None` for any other match.
pub(super) fn masked(text: &str, packet: &Packet) -> Option<bool> {
    let (inverted, text) = match text.strip_prefix("! ") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (side, value) = text.split_once(' ')?;
    let (want, mask) = value.split_once('/')?;
    let (want, mask): (IpAddr, IpAddr) = (want.parse().ok()?, mask.parse().ok()?);
    let have = match side {
        "-s" => packet.source(),
        "-d" => packet.destination(),
        _ => return None,
    };
    let is = have.exact().is_ipv4() == want.is_ipv4()
        && have.shown().number() & mask.number() == want.number() & mask.number();
    Some(is != inverted)
}
