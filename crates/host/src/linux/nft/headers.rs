//! Headers of packets and their fields, and which header follows which.

use super::types::Type as T;
use Header as H;

/// Layer of a header, as `enum nft_payload_bases` counts them.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Layer {
    Link,
    Network,
    Transport,
    Inner,
}

/// A header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Header {
    /// One that is known to be none of the others.
    Unknown,
    /// IPv4 or IPv6, in a table for both.
    Inet,
    Ether,
    Ip,
    Ip6,
    Tcp,
    Udp,
    UdpLite,
    Sctp,
    Icmp,
    Icmp6,
    Igmp,
    Esp,
    /// Ports of a transport protocol that is not known.
    Ports,
}

/// A field of a header.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// Bits before it.
    pub(super) offset: u32,
    pub(super) bits: u32,
    pub(super) kind: T,
    /// Type of an ICMP message that has the field, if not all have it.
    pub(super) icmp_type: Option<u8>,
}

const fn field(name: &'static str, offset: u32, bits: u32, kind: T) -> Field {
    Field {
        name,
        offset,
        bits,
        kind,
        icmp_type: None,
    }
}

const fn number(name: &'static str, offset: u32, bits: u32) -> Field {
    field(name, offset, bits, T::Integer)
}

const fn of_icmp(name: &'static str, offset: u32, bits: u32, icmp_type: u8) -> Field {
    Field {
        icmp_type: Some(icmp_type),
        ..number(name, offset, bits)
    }
}

const SOURCE: Field = field("sport", 0, 16, T::Port);
const TARGET: Field = field("dport", 16, 16, T::Port);

static ETHER: [Field; 3] = [
    field("daddr", 0, 48, T::Ether),
    field("saddr", 48, 48, T::Ether),
    field("type", 96, 16, T::EtherType),
];
static IP: [Field; 12] = [
    number("version", 0, 4),
    number("hdrlength", 4, 4),
    field("dscp", 8, 6, T::Dscp),
    field("ecn", 14, 2, T::Ecn),
    number("length", 16, 16),
    number("id", 32, 16),
    number("frag-off", 48, 16),
    number("ttl", 64, 8),
    field("protocol", 72, 8, T::Protocol),
    number("checksum", 80, 16),
    field("saddr", 96, 32, T::Ip4),
    field("daddr", 128, 32, T::Ip4),
];
static IP6: [Field; 9] = [
    number("version", 0, 4),
    field("dscp", 4, 6, T::Dscp),
    field("ecn", 10, 2, T::Ecn),
    number("flowlabel", 12, 20),
    number("length", 32, 16),
    field("nexthdr", 48, 8, T::Protocol),
    number("hoplimit", 56, 8),
    field("saddr", 64, 128, T::Ip6),
    field("daddr", 192, 128, T::Ip6),
];
static TCP: [Field; 10] = [
    SOURCE,
    TARGET,
    number("sequence", 32, 32),
    number("ackseq", 64, 32),
    number("doff", 96, 4),
    number("reserved", 100, 4),
    field("flags", 104, 8, T::TcpFlags),
    number("window", 112, 16),
    number("checksum", 128, 16),
    number("urgptr", 144, 16),
];
static UDP: [Field; 4] = [
    SOURCE,
    TARGET,
    number("length", 32, 16),
    number("checksum", 48, 16),
];
static UDP_LITE: [Field; 4] = [
    SOURCE,
    TARGET,
    number("csumcov", 32, 16),
    number("checksum", 48, 16),
];
static SCTP: [Field; 4] = [
    SOURCE,
    TARGET,
    number("vtag", 32, 32),
    number("checksum", 64, 32),
];
static PORTS: [Field; 2] = [SOURCE, TARGET];
static ICMP: [Field; 7] = [
    field("type", 0, 8, T::IcmpType),
    field("code", 8, 8, T::IcmpCode),
    number("checksum", 16, 16),
    of_icmp("id", 32, 16, 8),
    of_icmp("sequence", 48, 16, 8),
    of_icmp("gateway", 32, 32, 5),
    of_icmp("mtu", 48, 16, 3),
];
static ICMP6: [Field; 8] = [
    field("type", 0, 8, T::Icmp6Type),
    field("code", 8, 8, T::Icmp6Code),
    number("checksum", 16, 16),
    of_icmp("parameter-problem", 32, 32, 4),
    of_icmp("mtu", 32, 32, 2),
    of_icmp("id", 32, 16, 128),
    of_icmp("sequence", 48, 16, 128),
    of_icmp("max-delay", 32, 16, 130),
];
static IGMP: [Field; 4] = [
    field("type", 0, 8, T::IgmpType),
    number("mrt", 8, 8),
    number("checksum", 16, 16),
    number("group", 32, 32),
];
static ESP: [Field; 2] = [number("spi", 0, 32), number("sequence", 32, 32)];

impl Header {
    /// Returns the fields, in ascending order.
    pub(super) fn fields(self) -> &'static [Field] {
        match self {
            H::Unknown | H::Inet => &[],
            H::Ether => &ETHER,
            H::Ip => &IP,
            H::Ip6 => &IP6,
            H::Tcp => &TCP,
            H::Udp => &UDP,
            H::UdpLite => &UDP_LITE,
            H::Sctp => &SCTP,
            H::Ports => &PORTS,
            H::Icmp => &ICMP,
            H::Icmp6 => &ICMP6,
            H::Igmp => &IGMP,
            H::Esp => &ESP,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            H::Unknown => "unknown",
            H::Inet => "inet",
            H::Ether => "ether",
            H::Ip => "ip",
            H::Ip6 => "ip6",
            H::Tcp => "tcp",
            H::Udp => "udp",
            H::UdpLite => "udplite",
            H::Sctp => "sctp",
            H::Icmp => "icmp",
            H::Icmp6 => "icmpv6",
            H::Igmp => "igmp",
            H::Esp => "esp",
            H::Ports => "th",
        }
    }

    pub(super) const fn layer(self) -> Layer {
        match self {
            H::Inet | H::Ether => Layer::Link,
            H::Ip | H::Ip6 => Layer::Network,
            _ => Layer::Transport,
        }
    }

    /// Returns whether `field` of this header names the next one.
    pub(super) fn names_next(self, field: &Field) -> bool {
        match self {
            H::Ether | H::Icmp | H::Icmp6 => field.name == "type",
            H::Ip => field.name == "protocol",
            H::Ip6 => field.name == "nexthdr",
            _ => false,
        }
    }

    /// Returns the header that follows this one if it names `number`. An error is a header that kpx does not know.
    pub(super) fn next(self, number: u128) -> Result<Option<Self>, String> {
        match self {
            H::Ip | H::Ip6 => transport(number),
            H::Inet => Ok(match number {
                2 => Some(H::Ip),
                10 => Some(H::Ip6),
                _ => None,
            }),
            H::Ether => match number {
                0x800 => Ok(Some(H::Ip)),
                0x86dd => Ok(Some(H::Ip6)),
                0x806 | 0x8100 | 0x88a8 => Err(format!("Ethernet type {number:#x} is not decoded")),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// Returns the transport header of the protocol `number`.
pub(super) fn transport(number: u128) -> Result<Option<Header>, String> {
    Ok(Some(match number {
        1 => H::Icmp,
        2 => H::Igmp,
        6 => H::Tcp,
        17 => H::Udp,
        50 => H::Esp,
        33 | 51 | 108 => return Err(format!("protocol {number} is not decoded")),
        58 => H::Icmp6,
        132 => H::Sctp,
        136 => H::UdpLite,
        _ => return Ok(None),
    }))
}
