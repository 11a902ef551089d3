//! Basic types: families, protocols, prefixes, ports and marks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// An IP family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The network that a probe connects from.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vantage {
    /// The node's.
    #[default]
    Node,
    /// The network of the pod with this address.
    Pod(IpAddr),
    /// A network of the probe's own, not the node's; its address is neither a pod's nor the node's.
    Outside,
}

impl Family {
    /// Both families, in the order of kpx's output.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of `addr`.
    pub const fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the number of bits in an address: 32 or 128.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// Returns the loopback addresses: 127.0.0.0/8 or `::1`.
    pub const fn loopback(self) -> Cidr {
        match self {
            Self::V4 => Cidr {
                addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
                prefix: 8,
            },
            Self::V6 => Cidr {
                addr: IpAddr::V6(Ipv6Addr::LOCALHOST),
                prefix: 128,
            },
        }
    }

    /// Returns the protocol of echo requests.
    pub const fn echo(self) -> Proto {
        match self {
            Self::V4 => Proto::Icmp,
            Self::V6 => Proto::Icmpv6,
        }
    }

    /// Returns the family's name in nftables: `ip` or `ip6`.
    pub const fn nft_name(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl FromStr for Family {
    type Err = NounError;

    /// Parses `IPv4` or `IPv6`.
    fn from_str(text: &str) -> Result<Self, NounError> {
        let mut both = Self::BOTH.into_iter();
        both.find(|family| family.to_string() == text)
            .ok_or_else(|| NounError::Family(text.to_owned()))
    }
}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Box<str>>::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}

/// A transport protocol, by its IP protocol number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Proto {
    /// Number 6.
    Tcp,
    /// Number 17.
    Udp,
    /// Number 132.
    Sctp,
    /// Number 1.
    Icmp,
    /// Number 58.
    Icmpv6,
    /// Any other number.
    Other(u8),
}

impl Proto {
    /// Returns the protocol, and of ICMP that of `family`.
    #[must_use]
    pub const fn in_family(self, family: Family) -> Self {
        match (self, family) {
            (Self::Icmp | Self::Icmpv6, Family::V4) => Self::Icmp,
            (Self::Icmp | Self::Icmpv6, Family::V6) => Self::Icmpv6,
            (other, _) => other,
        }
    }

    /// Returns the protocol with IP protocol number `number`.
    pub const fn from_number(number: u8) -> Self {
        match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            1 => Self::Icmp,
            58 => Self::Icmpv6,
            other => Self::Other(other),
        }
    }

    /// Returns the IP protocol number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Icmp => 1,
            Self::Icmpv6 => 58,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for Proto {
    /// Writes the lower-case name that iptables, ipset and nft use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Sctp => f.write_str("sctp"),
            Self::Icmp => f.write_str("icmp"),
            Self::Icmpv6 => f.write_str("ipv6-icmp"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}

impl Serialize for Proto {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Proto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Box<str>>::deserialize(deserializer)?;
        name.parse().map_err(de::Error::custom)
    }
}

impl FromStr for Proto {
    type Err = NounError;

    /// Parses a name in either case (`tcp`, `TCP`) or a number.
    fn from_str(text: &str) -> Result<Self, NounError> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "sctp" => Self::Sctp,
            "icmp" => Self::Icmp,
            "ipv6-icmp" | "icmpv6" => Self::Icmpv6,
            other => Self::from_number(
                other
                    .parse()
                    .map_err(|_| NounError::Proto(text.to_owned()))?,
            ),
        })
    }
}

/// Text that cannot be parsed as one of this module's types.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum NounError {
    /// Not `IPv4` or `IPv6`.
    #[error("{0:?} is not an IP family")]
    Family(String),
    /// Not a protocol name or number.
    #[error("{0:?} is not a protocol")]
    Proto(String),
    /// Not an address with an optional prefix length or mask.
    #[error("{0:?} is not an address or prefix")]
    Cidr(String),
    /// Not a port or a range of ports.
    #[error("{0:?} is not a port or a port range")]
    Ports(String),
    /// Not a mark with an optional mask.
    #[error("{0:?} is not a mark")]
    Mark(String),
}

/// An address prefix. Host bits are kept as written; [`Cidr::normal`] clears them.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cidr {
    /// IP address.
    pub addr: IpAddr,
    /// Prefix length: 0 to 32, or 0 to 128.
    pub prefix: u8,
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Box<str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Cidr {
    /// Returns the prefix that contains only `addr`.
    pub const fn host(addr: IpAddr) -> Self {
        Self {
            addr,
            prefix: Family::of(addr).bits(),
        }
    }

    /// Returns whether this is a single address.
    pub const fn is_host(&self) -> bool {
        self.prefix == Family::of(self.addr).bits()
    }

    /// Returns the family of the prefix.
    pub const fn family(&self) -> Family {
        Family::of(self.addr)
    }

    /// Returns whether `addr` is in the prefix; always false for the other family.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.family() == Family::of(addr) && mask(addr, self.prefix) == mask(self.addr, self.prefix)
    }

    /// Returns the prefix with its host bits cleared.
    #[must_use]
    pub fn normal(self) -> Self {
        Self {
            addr: mask(self.addr, self.prefix),
            prefix: self.prefix,
        }
    }
}

fn mask(addr: IpAddr, prefix: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            let keep = u32::MAX
                .checked_shl(32 - u32::from(prefix.min(32)))
                .unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & keep))
        }
        IpAddr::V6(a) => {
            let keep = u128::MAX
                .checked_shl(128 - u32::from(prefix.min(128)))
                .unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & keep))
        }
    }
}

impl fmt::Display for Cidr {
    /// Writes `ADDR/PREFIX`, always with the prefix length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = NounError;

    /// Parses `ADDR`, `ADDR/PREFIX` or `ADDR/MASK` (a contiguous dotted mask).
    fn from_str(text: &str) -> Result<Self, NounError> {
        let bad = || NounError::Cidr(text.to_owned());
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        let bits = Family::of(addr).bits();
        let prefix = match prefix {
            None => bits,
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => p.parse().map_err(|_| bad())?,
            Some(m) => match m.parse::<Ipv4Addr>() {
                Ok(m)
                    if m.to_bits().leading_ones() + m.to_bits().trailing_zeros() >= 32
                        && bits == 32 =>
                {
                    u8::try_from(m.to_bits().leading_ones()).map_err(|_| bad())?
                }
                _ => return Err(bad()),
            },
        };
        if prefix > bits {
            return Err(bad());
        }
        Ok(Self { addr, prefix })
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An inclusive range of ports; a single port has equal ends.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl PortRange {
    /// Returns the range that contains only `port`.
    pub const fn one(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }

    /// Returns whether `port` is in the range.
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    /// Writes `80` or `80:90`, as iptables-save does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

impl FromStr for PortRange {
    type Err = NounError;

    /// Parses `80`, `80:90` or `80-90`; an open end means 0 or 65535.
    fn from_str(text: &str) -> Result<Self, NounError> {
        let bad = |_| NounError::Ports(text.to_owned());
        let Some((first, last)) = text.split_once([':', '-']) else {
            return text.parse().map(Self::one).map_err(bad);
        };
        let first = if first.is_empty() {
            0
        } else {
            first.parse().map_err(bad)?
        };
        let last = if last.is_empty() {
            u16::MAX
        } else {
            last.parse().map_err(bad)?
        };
        Ok(Self { first, last })
    }
}

/// A packet mark with a mask.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Mark {
    /// Expected value of the masked bits.
    pub value: u32,
    /// Bits that are compared.
    pub mask: u32,
}

impl Mark {
    /// Returns whether a packet marked `mark` has this mark.
    pub const fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }
}

impl fmt::Display for Mark {
    /// Writes `0x4000/0x4000`; the mask is omitted if all bits are set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.value)?;
        if self.mask == u32::MAX {
            Ok(())
        } else {
            write!(f, "/{:#x}", self.mask)
        }
    }
}

impl FromStr for Mark {
    type Err = NounError;

    /// Parses `VALUE` or `VALUE/MASK`, decimal or `0x` hexadecimal.
    fn from_str(text: &str) -> Result<Self, NounError> {
        let number = |t: &str| {
            let parsed = match t.strip_prefix("0x").or_else(|| t.strip_prefix("0X")) {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => t.parse(),
            };
            parsed.map_err(|_| NounError::Mark(text.to_owned()))
        };
        match text.split_once('/') {
            Some((value, mask)) => Ok(Self {
                value: number(value)?,
                mask: number(mask)?,
            }),
            None => Ok(Self {
                value: number(text)?,
                mask: u32::MAX,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_a_length_or_a_mask() {
        assert_eq!("10.0.0.0/255.0.0.0".parse::<Cidr>().unwrap().prefix, 8);
        assert_eq!("10.0.0.1".parse::<Cidr>().unwrap().prefix, 32);
        assert!("10.0.0.1/33".parse::<Cidr>().is_err());
        assert!("10.0.0.0/255.0.255.0".parse::<Cidr>().is_err());
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
    }

    #[test]
    fn only_the_masked_bits_are_compared() {
        let mark: Mark = "0x4000/0x4000".parse().unwrap();
        assert!(mark.matches(0xc000));
        assert!(!mark.matches(0x8000));
        assert_eq!(mark.to_string(), "0x4000/0x4000");
    }
}
