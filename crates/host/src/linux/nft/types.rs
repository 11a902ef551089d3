//! Types of values, by the numbers that `nft` stores with its sets, and their values as `nft -j` prints them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::json::{quoted, string};
use crate::linux::nf_tables::wire::{Octets, Odd, address, put};
use Type as T;

/// Byte order of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    Big,
    Host,
}

/// A type of values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::enum_variant_names, reason = "these are types of something")]
pub(super) enum Type {
    NfProto,
    Integer,
    String,
    Ip4,
    Ip6,
    Ether,
    EtherType,
    Protocol,
    Port,
    IcmpType,
    TcpFlags,
    Time,
    Mark,
    Link,
    LinkType,
    Class,
    Uid,
    Gid,
    CtState,
    CtDirection,
    CtStatus,
    Icmp6Type,
    PacketType,
    IcmpCode,
    Icmp6Code,
    IcmpXCode,
    Dscp,
    Ecn,
    AddressType,
    Boolean,
    LinkName,
    IgmpType,
    Day,
}

/// Types with their number, name, bits and byte order.
#[rustfmt::skip]
const TYPES: &[(Type, u32, &str, u32, Order)] = &[
    (T::NfProto, 2, "nf_proto", 8, Order::Big),
    (T::Integer, 4, "integer", 0, Order::Big),
    (T::String, 5, "string", 0, Order::Host),
    (T::Ip4, 7, "ipv4_addr", 32, Order::Big),
    (T::Ip6, 8, "ipv6_addr", 128, Order::Big),
    (T::Ether, 9, "ether_addr", 48, Order::Big),
    (T::EtherType, 10, "ether_type", 16, Order::Big),
    (T::Protocol, 12, "inet_proto", 8, Order::Big),
    (T::Port, 13, "inet_service", 16, Order::Big),
    (T::IcmpType, 14, "icmp_type", 8, Order::Big),
    (T::TcpFlags, 15, "tcp_flag", 8, Order::Big),
    (T::Time, 18, "time", 32, Order::Host),
    (T::Mark, 19, "mark", 32, Order::Host),
    (T::Link, 20, "iface_index", 32, Order::Host),
    (T::LinkType, 21, "iface_type", 16, Order::Host),
    (T::Class, 23, "classid", 32, Order::Host),
    (T::Uid, 24, "uid", 32, Order::Host),
    (T::Gid, 25, "gid", 32, Order::Host),
    (T::CtState, 26, "ct_state", 32, Order::Host),
    (T::CtDirection, 27, "ct_dir", 8, Order::Big),
    (T::CtStatus, 28, "ct_status", 32, Order::Host),
    (T::Icmp6Type, 29, "icmpv6_type", 8, Order::Big),
    (T::PacketType, 31, "pkt_type", 8, Order::Host),
    (T::IcmpCode, 32, "icmp_code", 8, Order::Big),
    (T::Icmp6Code, 33, "icmpv6_code", 8, Order::Big),
    (T::IcmpXCode, 34, "icmpx_code", 8, Order::Big),
    (T::Dscp, 36, "dscp", 6, Order::Big),
    (T::Ecn, 37, "ecn", 2, Order::Big),
    (T::AddressType, 38, "fib_addrtype", 32, Order::Host),
    (T::Boolean, 39, "boolean", 1, Order::Big),
    (T::LinkName, 41, "ifname", 128, Order::Host),
    (T::IgmpType, 42, "igmp_type", 8, Order::Big),
    (T::Day, 45, "day", 8, Order::Host),
];

/// Names of links by index.
pub(super) trait LinkNames {
    /// Returns the name of link `index`, if it exists.
    fn name(&mut self, index: u32) -> Result<Option<&str>, Odd>;
}

impl Type {
    /// Returns the type with the number `id`.
    pub(super) fn of(id: u32) -> Result<Self, Odd> {
        let row = TYPES.iter().find(|row| row.1 == id);
        row.map(|row| row.0)
            .ok_or_else(|| format!("type {id} is unknown"))
    }

    /// Returns the types in the number of a concatenation, six bits each.
    pub(super) fn all_of(id: u32) -> Result<Vec<Self>, Odd> {
        let parts = (0..5).rev().map(|at| id >> (6 * at) & 0x3f);
        let parts = parts.skip_while(|part| *part == 0);
        if id >> 30 != 0 {
            return Err(format!("type {id:#x} is unknown"));
        }
        parts.map(Self::of).collect()
    }

    fn row(self) -> &'static (Self, u32, &'static str, u32, Order) {
        let row = TYPES.iter().find(|row| row.0 == self);
        row.expect("each type has a row")
    }

    pub(super) fn name(self) -> &'static str {
        self.row().2
    }

    /// Returns the size in bits, 0 if it differs.
    pub(super) fn bits(self) -> u32 {
        self.row().3
    }

    pub(super) fn order(self) -> Order {
        self.row().4
    }

    /// Returns whether `nft` prefers a prefix to a range.
    pub(super) const fn has_prefixes(self) -> bool {
        matches!(self, T::Ip4 | T::Ip6 | T::Mark)
    }

    /// Returns whether values are sets of bits.
    pub(super) const fn is_flags(self) -> bool {
        matches!(self, T::TcpFlags | T::CtState | T::CtStatus)
    }

    pub(super) const fn is_string(self) -> bool {
        matches!(self, T::String | T::LinkName)
    }

    /// Returns the names of numbers.
    #[rustfmt::skip]
    const fn symbols(self) -> &'static [(u32, &'static str)] {
        match self {
            T::NfProto => &[(2, "ipv4"), (10, "ipv6")],
            T::EtherType => &[
                (0x800, "ip"), (0x806, "arp"), (0x86dd, "ip6"), (0x8100, "8021q"), (0x88a8, "8021ad"),
            ],
            T::Protocol => PROTOCOLS,
            T::IcmpType => &[
                (0, "echo-reply"), (3, "destination-unreachable"), (4, "source-quench"), (5, "redirect"),
                (8, "echo-request"), (9, "router-advertisement"), (10, "router-solicitation"),
                (11, "time-exceeded"), (12, "parameter-problem"), (13, "timestamp-request"),
                (14, "timestamp-reply"), (15, "info-request"), (16, "info-reply"),
                (17, "address-mask-request"), (18, "address-mask-reply"),
            ],
            T::Icmp6Type => &[
                (1, "destination-unreachable"), (2, "packet-too-big"), (3, "time-exceeded"),
                (4, "parameter-problem"), (128, "echo-request"), (129, "echo-reply"),
                (130, "mld-listener-query"), (131, "mld-listener-report"), (132, "mld-listener-done"),
                (133, "nd-router-solicit"), (134, "nd-router-advert"), (135, "nd-neighbor-solicit"),
                (136, "nd-neighbor-advert"), (137, "nd-redirect"), (138, "router-renumbering"),
                (141, "ind-neighbor-solicit"), (142, "ind-neighbor-advert"), (143, "mld2-listener-report"),
            ],
            T::IgmpType => &[
                (0x11, "membership-query"), (0x12, "membership-report-v1"), (0x16, "membership-report-v2"),
                (0x22, "membership-report-v3"), (0x17, "leave-group"),
            ],
            T::IcmpCode => &[
                (0, "net-unreachable"), (1, "host-unreachable"), (2, "prot-unreachable"),
                (3, "port-unreachable"), (9, "net-prohibited"), (10, "host-prohibited"),
                (13, "admin-prohibited"), (4, "frag-needed"),
            ],
            T::Icmp6Code => &[
                (0, "no-route"), (1, "admin-prohibited"), (3, "addr-unreachable"), (4, "port-unreachable"),
                (5, "policy-fail"), (6, "reject-route"),
            ],
            T::IcmpXCode => &[
                (1, "port-unreachable"), (3, "admin-prohibited"), (0, "no-route"), (2, "host-unreachable"),
            ],
            T::TcpFlags => &[
                (1, "fin"), (2, "syn"), (4, "rst"), (8, "psh"), (16, "ack"), (32, "urg"), (64, "ecn"),
                (128, "cwr"),
            ],
            T::LinkType => &[
                (1, "ether"), (512, "ppp"), (768, "ipip"), (769, "ipip6"), (772, "loopback"), (776, "sit"),
                (778, "ipgre"),
            ],
            T::CtState => &[
                (1, "invalid"), (8, "new"), (2, "established"), (4, "related"), (64, "untracked"),
            ],
            T::CtDirection => &[(0, "original"), (1, "reply")],
            T::CtStatus => &[
                (1, "expected"), (2, "seen-reply"), (4, "assured"), (8, "confirmed"), (16, "snat"),
                (32, "dnat"), (512, "dying"),
            ],
            T::PacketType => &[(0, "host"), (1, "broadcast"), (2, "multicast"), (3, "other")],
            T::Dscp => &[
                (0, "cs0"), (8, "cs1"), (16, "cs2"), (24, "cs3"), (32, "cs4"), (40, "cs5"), (48, "cs6"),
                (56, "cs7"), (1, "lephb"), (10, "af11"), (12, "af12"), (14, "af13"), (18, "af21"),
                (20, "af22"), (22, "af23"), (26, "af31"), (28, "af32"), (30, "af33"), (34, "af41"),
                (36, "af42"), (38, "af43"), (44, "va"), (46, "ef"),
            ],
            T::Ecn => &[(0, "not-ect"), (1, "ect1"), (2, "ect0"), (3, "ce")],
            T::AddressType => &[
                (0, "unspec"), (1, "unicast"), (2, "local"), (3, "broadcast"), (4, "anycast"),
                (5, "multicast"), (6, "blackhole"), (7, "unreachable"), (8, "prohibit"),
            ],
            T::Day => &[
                (0, "Sunday"), (1, "Monday"), (2, "Tuesday"), (3, "Wednesday"), (4, "Thursday"),
                (5, "Friday"), (6, "Saturday"),
            ],
            _ => &[],
        }
    }
}

/// Names of protocols, which `nft` takes from the system's list.
#[rustfmt::skip]
const PROTOCOLS: &[(u32, &str)] = &[
    (0, "ip"), (1, "icmp"), (2, "igmp"), (6, "tcp"), (17, "udp"), (33, "dccp"), (41, "ipv6"), (47, "gre"),
    (50, "esp"), (51, "ah"), (58, "ipv6-icmp"), (89, "ospf"), (94, "ipip"), (103, "pim"), (108, "ipcomp"),
    (112, "vrrp"), (115, "l2tp"), (132, "sctp"), (136, "udplite"),
];

/// Returns the number in `bytes`, in the byte order `order`.
pub(super) fn number(bytes: &[u8], order: Order) -> Result<u128, Odd> {
    let mut all = [0; 16];
    let from = 16usize
        .checked_sub(bytes.len())
        .ok_or("a number has more than 16 bytes")?;
    let to = &mut all[from..];
    to.copy_from_slice(bytes);
    if order == Order::Host && cfg!(target_endian = "little") {
        to.reverse();
    }
    Ok(u128::from_be_bytes(all))
}

/// Appends a value: a string, a number or its name.
pub(super) fn value(
    to: &mut String,
    kind: Type,
    order: Order,
    value: Octets,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    if kind.is_string() {
        return text(to, value.get());
    }
    let number = number(value.get(), order)?;
    if kind.is_flags() && number.count_ones() > 1 {
        return flags(to, kind, number, links);
    }
    named(to, kind, number, links)
}

/// Appends bits as `nft` prints them: each `|` of two values contains the one of the lower bits.
fn flags(to: &mut String, kind: Type, number: u128, links: &mut dyn LinkNames) -> Result<(), Odd> {
    let bits: Vec<_> = (0..128).filter(|bit| number >> bit & 1 == 1).collect();
    for _ in 1..bits.len() {
        to.push_str("{\"|\": [");
    }
    for (at, bit) in bits.iter().enumerate() {
        if at > 0 {
            to.push_str(", ");
        }
        named(to, kind, 1 << bit, links)?;
        if at > 0 {
            to.push_str("]}");
        }
    }
    Ok(())
}

/// Appends bits as a list, or as one value if there is only one.
pub(super) fn flag_list(
    to: &mut String,
    kind: Type,
    number: u128,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    if number.count_ones() < 2 {
        return named(to, kind, number, links);
    }
    let mut separator = "[";
    for bit in (0..128).filter(|bit| number >> bit & 1 == 1) {
        to.push_str(separator);
        separator = ", ";
        named(to, kind, 1 << bit, links)?;
    }
    to.push(']');
    Ok(())
}

/// Appends a number of `kind`, or its name.
pub(super) fn named(
    to: &mut String,
    kind: Type,
    number: u128,
    links: &mut dyn LinkNames,
) -> Result<(), Odd> {
    let small = u32::try_from(number).ok();
    let symbols = kind.symbols().iter();
    if let Some((_, name)) = symbols.clone().find(|(value, _)| Some(*value) == small) {
        put!(to, "\"{name}\"");
        return Ok(());
    }
    match (kind, small) {
        (T::Ip4, Some(of)) => put!(to, "\"{}\"", Ipv4Addr::from(of)),
        (T::Ip6, _) => {
            to.push('"');
            address(to, Ipv6Addr::from(number).into());
            to.push('"');
        }
        (T::Ether, _) => {
            let bytes = number.to_be_bytes();
            let mut separator = '"';
            for byte in &bytes[10..] {
                put!(to, "{separator}{byte:02x}");
                separator = ':';
            }
            to.push('"');
        }
        (T::Time, _) => put!(to, "{}", number / 1000),
        (T::Boolean, _) => put!(to, "{}", number != 0),
        (T::Link, Some(index)) => match links.name(index)? {
            Some(name) => quoted(to, name),
            None => put!(to, "\"{}\"", index.cast_signed()),
        },
        (T::Class, Some(0)) => to.push_str("\"none\""),
        (T::Class, Some(u32::MAX)) => to.push_str("\"root\""),
        (T::Class, Some(handle)) => put!(to, "\"{:x}:{:x}\"", handle >> 16, handle & 0xffff),
        _ => integer(to, number),
    }
    Ok(())
}

/// Appends a number, as text if it has more than 64 bits.
pub(super) fn integer(to: &mut String, number: u128) {
    match u64::try_from(number) {
        Ok(number) => put!(to, "{number}"),
        Err(_) => put!(to, "\"{number:#x}\""),
    }
}

/// Appends a name; one that does not end is the start of names.
fn text(to: &mut String, bytes: &[u8]) -> Result<(), Odd> {
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return string(to, &[bytes, b"*"].concat());
    };
    let end = bytes.iter().position(|byte| *byte == 0);
    let name = &bytes[..end.unwrap_or(bytes.len())];
    match name.strip_suffix(b"*") {
        Some(start) => string(to, &[start, b"\\*"].concat()),
        None => string(to, name),
    }
}
