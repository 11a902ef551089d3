//! Matches of `x_tables`, by name and revision, in the spelling of `iptables-save`.

use std::net::IpAddr;

use super::bytes::Fields;
use super::sets::Sets;
use super::words::{bits, limit, mask, name, not, only, quoted, range};
use crate::linux::nf_tables::wire::{Odd, address, put};
use kpx_node::net::Family;

/// Bits of `enum ip_conntrack_info` in a state mask, in the order of the tool.
const STATES: &[(u16, &str)] = &[
    (1, "INVALID"),
    (1 << 3, "NEW"),
    (1 << 2, "RELATED"),
    (1 << 1, "ESTABLISHED"),
    (1 << 8, "UNTRACKED"),
    (1 << 6, "SNAT"),
    (1 << 7, "DNAT"),
];

/// `RTN_*`.
const ADDRESS_TYPES: &[(u16, &str)] = &[
    (1, "UNSPEC"),
    (1 << 1, "UNICAST"),
    (1 << 2, "LOCAL"),
    (1 << 3, "BROADCAST"),
    (1 << 4, "ANYCAST"),
    (1 << 5, "MULTICAST"),
    (1 << 6, "BLACKHOLE"),
    (1 << 7, "UNREACHABLE"),
    (1 << 8, "PROHIBIT"),
    (1 << 9, "THROW"),
    (1 << 10, "NAT"),
    (1 << 11, "XRESOLVE"),
];

pub(super) const TCP_FLAGS: &[(u16, &str)] = &[
    (1, "FIN"),
    (2, "SYN"),
    (4, "RST"),
    (8, "PSH"),
    (16, "ACK"),
    (32, "URG"),
];

/// Ports and TCP flags, from a structure of `x_tables` or from expressions of `nf_tables`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Transport {
    pub(super) source: Option<Ports>,
    pub(super) destination: Option<Ports>,
    pub(super) flags: Option<Flags>,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Ports {
    pub(super) inverted: bool,
    pub(super) first: u16,
    pub(super) last: u16,
}

/// TCP flags: the mask, and the bits of it that must be set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Flags {
    pub(super) inverted: bool,
    pub(super) mask: u8,
    pub(super) set: u8,
}

impl Transport {
    /// Appends the options.
    pub(super) fn write(&self, to: &mut String) -> Result<(), Odd> {
        for (ports, option) in [(self.source, "--sport"), (self.destination, "--dport")] {
            let Some(ports) = ports else {
                continue;
            };
            if (ports.first, ports.last) == (0, u16::MAX) {
                return Err("has all ports".to_owned());
            }
            put!(to, "{} {option} ", not(ports.inverted));
            range(to, ports.first, ports.last, ':');
        }
        if let Some(flags) = self.flags {
            put!(to, "{} --tcp-flags ", not(flags.inverted));
            tcp_flags(to, flags.mask)?;
            to.push(' ');
            tcp_flags(to, flags.set)?;
        }
        Ok(())
    }
}

fn tcp_flags(to: &mut String, set: u8) -> Result<(), Odd> {
    if set == 0 {
        to.push_str("NONE");
        return Ok(());
    }
    bits(to, set.into(), TCP_FLAGS)
}

/// Appends ` -m NAME` and the options of the match `module`, whose structure is `info`.
pub(super) fn write(
    to: &mut String,
    family: Family,
    sets: &mut Sets,
    module: &str,
    revision: u32,
    info: &[u8],
) -> Result<(), Odd> {
    // Revisions of `state` and `conntrack` share a structure and differ in the name that is printed.
    if module != "conntrack" {
        put!(to, " -m {module}");
    }
    let mut written = || match (module, revision) {
        ("comment", 0) => {
            to.push_str(" --comment");
            quoted(to, Fields::new(info, 256)?.text(0, 256)?);
            Ok(())
        }
        ("tcp", 0) => tcp(to, Fields::new(info, 12)?),
        ("udp", 0) => udp(to, Fields::new(info, 10)?),
        ("sctp", 0) => sctp(to, Fields::new(info, 292)?),
        ("icmp", 0) => icmp(to, "--icmp-type", Fields::new(info, 4)?),
        ("icmp6", 0) => icmp(to, "--icmpv6-type", Fields::new(info, 4)?),
        ("conntrack", 3) => conntrack(to, family, Fields::new(info, 164)?),
        ("statistic", 0) => statistic(to, Fields::new(info, 24)?),
        ("limit", 0) => {
            let info = Fields::new(info, 40)?;
            limit(to, info.u32(0)?.into(), info.u32(4)?)
        }
        ("mark" | "connmark", 1) => mark_is(to, Fields::new(info, 12)?),
        ("addrtype", 1) => addrtype(to, Fields::new(info, 8)?),
        ("set", 4) => set(to, sets, Fields::new(info, 48)?),
        ("recent", 1) => recent(to, family, Fields::new(info, 228)?),
        ("nfacct", 0 | 1) => {
            let account = Fields::new(info, 40)?.text(0, 32)?;
            to.push_str(" --nfacct-name ");
            quoted(to, account);
            Ok(())
        }
        ("multiport", 1) => multiport(to, Fields::new(info, 48)?),
        ("physdev", 0) => physdev(to, Fields::new(info, 66)?),
        ("owner", 1) => owner(to, Fields::new(info, 18)?),
        ("rpfilter", 0) => {
            let options = [
                (1, "--loose"),
                (2, "--validmark"),
                (4, "--accept-local"),
                (8, "--invert"),
            ];
            switches(to, Fields::new(info, 1)?.u8(0)?, &options)
        }
        ("socket", 1..=3) => {
            let options = [
                (1, "--transparent"),
                (2, "--nowildcard"),
                (4, "--restore-skmark"),
            ];
            switches(to, Fields::new(info, 1)?.u8(0)?, &options)
        }
        ("iprange", 1) => iprange(to, family, Fields::new(info, 65)?),
        ("pkttype", 0) => pkttype(to, Fields::new(info, 8)?),
        ("ipvs", 0) => ipvs(to, family, Fields::new(info, 40)?),
        _ => Err("is unknown".to_owned()),
    };
    written().map_err(|why| format!("match {module} revision {revision} {why}"))
}

fn tcp(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (option, mask, set, inverted) = (info.u8(8)?, info.u8(9)?, info.u8(10)?, info.u8(11)?);
    if option != 0 {
        return Err("has a TCP option".to_owned());
    }
    only(inverted.into(), 7)?;
    let flags = Flags {
        inverted: inverted & 4 != 0,
        mask,
        set,
    };
    let used = flags.inverted || mask != 0;
    if !used && set != 0 {
        return Err("has flags without a mask".to_owned());
    }
    let transport = Transport {
        source: ports(info, 0, inverted & 1 != 0)?,
        destination: ports(info, 4, inverted & 2 != 0)?,
        flags: used.then_some(flags),
    };
    transport.write(to)
}

fn udp(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let inverted = info.u8(8)?;
    only(inverted.into(), 3)?;
    let transport = Transport {
        source: ports(info, 0, inverted & 1 != 0)?,
        destination: ports(info, 4, inverted & 2 != 0)?,
        flags: None,
    };
    transport.write(to)
}

/// Reads two ports; `None` for all.
fn ports(info: Fields<'_>, at: usize, inverted: bool) -> Result<Option<Ports>, Odd> {
    let (first, last) = (info.u16(at)?, info.u16(at + 2)?);
    if !inverted && (first, last) == (0, u16::MAX) {
        return Ok(None);
    }
    Ok(Some(Ports {
        inverted,
        first,
        last,
    }))
}

/// `struct xt_sctp_info`.
fn sctp(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (flags, inverted) = (info.u32(284)?, info.u32(288)?);
    // Bit 4 is for chunk types.
    only(flags, 3)?;
    only(inverted, flags)?;
    for (bit, at, option) in [(1, 4, "--sport"), (2, 0, "--dport")] {
        if flags & bit != 0 {
            put!(to, "{} {option} ", not(inverted & bit != 0));
            range(to, info.u16(at)?, info.u16(at + 2)?, ':');
        }
    }
    Ok(())
}

fn icmp(to: &mut String, option: &str, info: Fields<'_>) -> Result<(), Odd> {
    let (kind, first, last, inverted) = (info.u8(0)?, info.u8(1)?, info.u8(2)?, info.u8(3)?);
    only(inverted.into(), 1)?;
    if kind == u8::MAX {
        return Err("has any type".to_owned());
    }
    put!(to, "{} {option} {kind}", not(inverted != 0));
    match (first, last) {
        (0, u8::MAX) => {}
        (code, last) if code == last => put!(to, "/{code}"),
        _ => return Err("has a range of codes".to_owned()),
    }
    Ok(())
}

/// `struct xt_conntrack_mtinfo3`.
fn conntrack(to: &mut String, family: Family, info: Fields<'_>) -> Result<(), Odd> {
    /// Prints as the match `state`.
    const ALIAS: u16 = 1 << 13;
    const STATE: u16 = 1;
    const PROTOCOL: u16 = 1 << 1;
    const STATUS: u16 = 1 << 6;
    const EXPIRES: u16 = 1 << 7;
    const DIRECTION: u16 = 1 << 12;
    let (flags, inverted) = (info.u16(146)?, info.u16(148)?);
    let states = info.u16(150)?;
    only(flags.into(), 0x3fff & !u32::from(STATUS | EXPIRES))?;
    only(inverted.into(), 0x1fff)?;
    let has = |flag: u16| (flags & flag != 0).then_some(not(inverted & flag != 0));
    if flags & ALIAS != 0 {
        if flags != ALIAS | STATE && flags != ALIAS {
            return Err("has more than a state".to_owned());
        }
        put!(to, " -m state{} --state ", not(inverted & STATE != 0));
        return bits(to, states, STATES);
    }
    to.push_str(" -m conntrack");
    if let Some(not) = has(STATE) {
        put!(to, "{not} --ctstate ");
        bits(to, states, STATES)?;
    }
    if let Some(not) = has(PROTOCOL) {
        put!(to, "{not} --ctproto {}", info.u16(136)?);
    }
    let addresses = [
        (1 << 2, 0, "--ctorigsrc"),
        (1 << 3, 32, "--ctorigdst"),
        (1 << 4, 64, "--ctreplsrc"),
        (1 << 5, 96, "--ctrepldst"),
    ];
    for (flag, at, option) in addresses {
        if let Some(not) = has(flag) {
            put!(to, "{not} {option} ");
            address_and_mask(to, family, info, at)?;
        }
    }
    let ports = [
        (1 << 8, 138, 154, "--ctorigsrcport"),
        (1 << 9, 140, 156, "--ctorigdstport"),
        (1 << 10, 142, 158, "--ctreplsrcport"),
        (1 << 11, 144, 160, "--ctrepldstport"),
    ];
    for (flag, low, high, option) in ports {
        if let Some(not) = has(flag) {
            put!(to, "{not} {option} ");
            range(to, info.u16(low)?, info.u16(high)?, ':');
        }
    }
    match has(DIRECTION) {
        Some("") => to.push_str(" --ctdir ORIGINAL"),
        Some(_) => to.push_str(" --ctdir REPLY"),
        None => {}
    }
    Ok(())
}

fn statistic(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (mode, flags) = (info.u16(0)?, info.u16(2)?);
    only(flags.into(), 1)?;
    let not = not(flags != 0);
    let first = info.u32(4)?;
    match mode {
        0 => {
            let probability = f64::from(first) / f64::from(1_u32 << 31);
            put!(to, " --mode random{not} --probability {probability:.11}");
        }
        1 => {
            let every = u64::from(first) + 1;
            let packet = info.u32(8)?;
            put!(to, " --mode nth{not} --every {every} --packet {packet}");
        }
        other => return Err(format!("has mode {other}")),
    }
    Ok(())
}

fn mark_is(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    mark_words(to, info.u8(8)? != 0, info.u32(0)?, info.u32(4)?);
    Ok(())
}

/// Appends the options of the match `mark`.
pub(super) fn mark_words(to: &mut String, inverted: bool, value: u32, mask: u32) {
    put!(to, "{} --mark 0x{value:x}", not(inverted));
    if mask != u32::MAX {
        put!(to, "/0x{mask:x}");
    }
}

fn addrtype(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (source, destination, flags) = (info.u16(0)?, info.u16(2)?, info.u32(4)?);
    only(flags, 15)?;
    for (types, inverted, option) in [(source, 1, "--src-type"), (destination, 2, "--dst-type")] {
        if types != 0 {
            put!(to, "{} {option} ", not(flags & inverted != 0));
            bits(to, types, ADDRESS_TYPES)?;
        }
    }
    if flags & 4 != 0 {
        to.push_str(" --limit-iface-in");
    }
    if flags & 8 != 0 {
        to.push_str(" --limit-iface-out");
    }
    Ok(())
}

/// `struct xt_set_info_match_v4`, without counters.
fn set(to: &mut String, sets: &mut Sets, info: Fields<'_>) -> Result<(), Odd> {
    if info.bytes(8, 40)?.iter().any(|byte| *byte != 0) {
        return Err("matches counters".to_owned());
    }
    let (index, dimensions, flags) = (info.u16(0)?, info.u8(2)?, info.u8(3)?);
    let set = name(sets.name(index)?)?;
    put!(to, "{} --match-set {set}", not(flags & 1 != 0));
    if !(1..=6).contains(&dimensions) {
        return Err("has no dimension".to_owned());
    }
    for dimension in 1..=dimensions {
        to.push(if dimension == 1 { ' ' } else { ',' });
        to.push_str(if flags & (1 << dimension) != 0 {
            "src"
        } else {
            "dst"
        });
    }
    only(flags.into(), (1 << (dimensions + 1)) - 1)
}

/// `struct xt_recent_mtinfo_v1`.
fn recent(to: &mut String, family: Family, info: Fields<'_>) -> Result<(), Odd> {
    let (seconds, hits) = (info.u32(0)?, info.u32(4)?);
    let (check, inverted, side) = (info.u8(8)?, info.u8(9)?, info.u8(210)?);
    only(check.into(), 63)?;
    to.push_str(not(inverted != 0));
    let actions = [
        (2, "--set"),
        (1, "--rcheck"),
        (4, "--update"),
        (8, "--remove"),
    ];
    switches(to, check & 15, &actions)?;
    if seconds != 0 {
        put!(to, " --seconds {seconds}");
    }
    switches(to, check & 32, &[(32, "--reap")])?;
    if hits != 0 {
        put!(to, " --hitcount {hits}");
    }
    switches(to, check & 16, &[(16, "--rttl")])?;
    put!(to, " --name {} --mask ", name(info.text(10, 200)?)?);
    address(to, info.address(212, family)?);
    to.push_str(match side {
        0 => " --rsource",
        1 => " --rdest",
        other => return Err(format!("has side {other}")),
    });
    Ok(())
}

/// Appends options without a value.
fn switches(to: &mut String, flags: u8, options: &[(u8, &str)]) -> Result<(), Odd> {
    let mut left = flags;
    for (bit, option) in options.iter().filter(|(bit, _)| flags & bit != 0) {
        left &= !bit;
        put!(to, " {option}");
    }
    only(left.into(), 0)
}

/// `struct xt_multiport_v1`.
fn multiport(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (side, count) = (info.u8(0)?, usize::from(info.u8(1)?));
    let option = match side {
        0 => "--sports",
        1 => "--dports",
        2 => "--ports",
        other => return Err(format!("has side {other}")),
    };
    if count == 0 || count > 15 {
        return Err("has too many ports".to_owned());
    }
    put!(to, "{} {option} ", not(info.u8(47)? != 0));
    let mut number = 0;
    while number < count {
        if number > 0 {
            to.push(',');
        }
        put!(to, "{}", info.u16(2 + 2 * number)?);
        if info.u8(32 + number)? != 0 {
            number += 1;
            if number == count {
                return Err("has half a range".to_owned());
            }
            put!(to, ":{}", info.u16(2 + 2 * number)?);
        }
        number += 1;
    }
    Ok(())
}

/// `struct xt_physdev_info`.
fn physdev(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (inverted, flags) = (info.u8(64)?, info.u8(65)?);
    only(flags.into(), 31)?;
    let options = [
        (8, "--physdev-is-in", None),
        (1, "--physdev-in", Some(0)),
        (16, "--physdev-is-out", None),
        (2, "--physdev-out", Some(32)),
        (4, "--physdev-is-bridged", None),
    ];
    for (bit, option, link) in options {
        if flags & bit != 0 {
            put!(to, "{} {option}", not(inverted & bit != 0));
            if let Some(at) = link {
                put!(to, " {}", name(info.text(at, 16)?)?);
            }
        }
    }
    Ok(())
}

/// `struct xt_owner_match_info`.
fn owner(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let (flags, inverted) = (info.u8(16)?, info.u8(17)?);
    only(flags.into(), 7)?;
    let options = [
        (4, "--socket-exists", None),
        (1, "--uid-owner", Some(0)),
        (2, "--gid-owner", Some(8)),
    ];
    for (bit, option, at) in options {
        if flags & bit != 0 {
            put!(to, "{} {option}", not(inverted & bit != 0));
            if let Some(at) = at {
                match (info.u32(at)?, info.u32(at + 4)?) {
                    (first, last) if first == last => put!(to, " {first}"),
                    (first, last) => put!(to, " {first}-{last}"),
                }
            }
        }
    }
    Ok(())
}

/// `struct xt_iprange_mtinfo`.
fn iprange(to: &mut String, family: Family, info: Fields<'_>) -> Result<(), Odd> {
    let flags = info.u8(64)?;
    only(flags.into(), 0x33)?;
    for (bit, at, option) in [(1, 0, "--src-range"), (2, 32, "--dst-range")] {
        if flags & bit != 0 {
            put!(to, "{} {option} ", not(flags & (bit << 4) != 0));
            address(to, info.address(at, family)?);
            to.push('-');
            address(to, info.address(at + 16, family)?);
        }
    }
    Ok(())
}

fn pkttype(to: &mut String, info: Fields<'_>) -> Result<(), Odd> {
    let name = match info.u32(0)? {
        0 => "unicast",
        1 => "broadcast",
        2 => "multicast",
        other => return Err(format!("has type {other}")),
    };
    put!(to, "{} --pkt-type {name}", not(info.u32(4)? != 0));
    Ok(())
}

/// `struct xt_ipvs_mtinfo`, without direction, method and control port.
fn ipvs(to: &mut String, family: Family, info: Fields<'_>) -> Result<(), Odd> {
    let (inverted, flags) = (info.u8(38)?, info.u8(39)?);
    only(flags.into(), 15)?;
    let has = |bit: u8| (flags & bit != 0).then_some(not(inverted & bit != 0));
    // Bit 1 is set for all packets of IPVS, and is printed only if nothing else is.
    if flags == 1 {
        put!(to, "{} --ipvs", not(inverted & 1 != 0));
    } else if inverted & 1 != 0 {
        return Err("inverts --ipvs beside others".to_owned());
    }
    if let Some(not) = has(2) {
        put!(to, "{not} --vproto {}", info.u8(34)?);
    }
    if let Some(not) = has(4) {
        put!(to, "{not} --vaddr ");
        address_and_mask(to, family, info, 0)?;
    }
    if let Some(not) = has(8) {
        put!(to, "{not} --vport {}", info.be16(32)?);
    }
    Ok(())
}

/// Appends an address, and the mask behind it unless all its bits are set.
fn address_and_mask(
    to: &mut String,
    family: Family,
    info: Fields<'_>,
    at: usize,
) -> Result<(), Odd> {
    address(to, info.address(at, family)?);
    let bits = info.address(at + 16, family)?;
    let is_full = match bits {
        IpAddr::V4(bits) => bits.to_bits() == u32::MAX,
        IpAddr::V6(bits) => bits.to_bits() == u128::MAX,
    };
    if !is_full {
        mask(to, bits);
    }
    Ok(())
}
