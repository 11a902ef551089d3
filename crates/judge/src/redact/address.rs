//! Replaces addresses and preserves prefixes: two addresses that share k bits still share exactly k bits.
//!
//! The scheme is Crypto-PAn: a keyed hash of the preceding bits decides whether a bit is flipped.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest as _, Sha256};

use kpx_node::net::{Cidr, Family};

/// Treatment of a network with a fixed meaning.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    /// Its addresses do not change.
    Keep,
    /// Its addresses change within the network.
    Change,
}

/// Networks with a fixed meaning.
const FIXED: &[(&str, Within)] = &[
    ("0.0.0.0/32", Within::Keep),
    ("10.0.0.0/8", Within::Change),
    ("100.64.0.0/10", Within::Change),
    ("127.0.0.0/8", Within::Keep),
    ("169.254.0.0/16", Within::Keep),
    ("172.16.0.0/12", Within::Change),
    ("192.168.0.0/16", Within::Change),
    // Networks for benchmarks: a trace takes its clients from them.
    ("198.18.0.0/15", Within::Keep),
    ("198.51.100.0/24", Within::Keep),
    ("224.0.0.0/3", Within::Keep),
    ("::/127", Within::Keep),
    ("2000::/3", Within::Change),
    ("2001:2::/48", Within::Keep),
    ("fc00::/8", Within::Change),
    ("fd00::/8", Within::Change),
    // The rest of a link-local address often contains the hardware address.
    ("fe80::/64", Within::Change),
    ("fec0::/10", Within::Change),
    ("ff00::/8", Within::Keep),
];

/// A keyed permutation of all addresses.
pub(super) struct Addresses {
    key: [u8; 32],
    fixed: Vec<(Cidr, Within)>,
    flips: HashMap<(Family, u8, u128), bool>,
    done: HashMap<IpAddr, IpAddr>,
    /// Whether the replacements are mapped back to their originals.
    back: bool,
}

impl Addresses {
    pub(super) fn new(key: [u8; 32]) -> Self {
        let fixed = FIXED.iter().map(|(text, within)| {
            let cidr = text.parse().expect("the table contains only prefixes");
            (cidr, *within)
        });
        Self {
            key,
            fixed: fixed.collect(),
            flips: HashMap::new(),
            done: HashMap::new(),
            back: false,
        }
    }

    /// Maps originals to replacements, or `back`.
    pub(super) fn turn(&mut self, back: bool) {
        if self.back != back {
            self.back = back;
            self.done.clear();
        }
    }

    /// Returns the replacement of `addr`.
    pub(super) fn map(&mut self, addr: IpAddr) -> IpAddr {
        if let Some(&done) = self.done.get(&addr) {
            return done;
        }
        let new = match addr {
            IpAddr::V4(v4) => IpAddr::V4(self.v4(v4)),
            IpAddr::V6(v6) => IpAddr::V6(match v6.to_ipv4_mapped() {
                Some(v4) => self.v4(v4).to_ipv6_mapped(),
                None => Ipv6Addr::from_bits(self.permute(Family::V6, v6.to_bits())),
            }),
        };
        self.done.insert(addr, new);
        new
    }

    /// Returns the replacement of `cidr`, with the same length, which contains the replacements of its addresses.
    pub(super) fn map_prefix(&mut self, cidr: Cidr) -> Cidr {
        let new = Cidr {
            addr: self.map(cidr.addr),
            prefix: cidr.prefix,
        };
        if cidr == cidr.normal() {
            new.normal()
        } else {
            new
        }
    }

    fn v4(&mut self, addr: Ipv4Addr) -> Ipv4Addr {
        let bits = self.permute(Family::V4, u128::from(addr.to_bits()));
        Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX))
    }

    fn permute(&mut self, family: Family, value: u128) -> u128 {
        let width = family.bits();
        (0..width).fold(0, |new, place| {
            let original = if self.back {
                new
            } else {
                shift(value, width - place)
            };
            let bit = value >> (width - 1 - place) & 1;
            new << 1 | bit ^ u128::from(self.flip(family, place, original))
        })
    }

    /// Returns whether to flip the bit at `place`, given the preceding bits `before`.
    fn flip(&mut self, family: Family, place: u8, before: u128) -> bool {
        let width = family.bits();
        let is_fixed = |(cidr, within): &(Cidr, Within)| {
            let network = match cidr.addr {
                IpAddr::V4(addr) => u128::from(addr.to_bits()),
                IpAddr::V6(addr) => addr.to_bits(),
            };
            if cidr.family() != family {
                false
            } else if place < cidr.prefix {
                before == shift(network, width - place)
            } else {
                let inside = shift(before, place - cidr.prefix);
                *within == Within::Keep && inside == shift(network, width - cidr.prefix)
            }
        };
        if self.fixed.iter().any(is_fixed) {
            return false;
        }
        let key = &self.key;
        *self
            .flips
            .entry((family, place, before))
            .or_insert_with(|| {
                let mut hasher = Sha256::new();
                hasher.update(key);
                hasher.update([width, place]);
                hasher.update(before.to_be_bytes());
                hasher.finalize()[0] & 1 == 1
            })
    }
}

fn shift(value: u128, places: u8) -> u128 {
    value.checked_shr(u32::from(places)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shared(a: IpAddr, b: IpAddr) -> u32 {
        match (a, b) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn prefixes_are_kept(a: Ipv4Addr, b: Ipv4Addr, low in 0u32..256, c: Ipv6Addr, d: Ipv6Addr) {
            let mut map = Addresses::new([7; 32]);
            let near = Ipv4Addr::from_bits(a.to_bits() ^ low);
            for (x, y) in [(a.into(), b.into()), (a.into(), near.into()), (c.into(), d.into())] {
                prop_assert_eq!(shared(map.map(x), map.map(y)), shared(x, y));
            }
        }
    }

    proptest! {
        #[test]
        fn replacements_are_mapped_back(a: Ipv4Addr, b: Ipv6Addr) {
            let mut map = Addresses::new([7; 32]);
            for addr in [IpAddr::V4(a), IpAddr::V6(b)] {
                map.turn(false);
                let new = map.map(addr);
                map.turn(true);
                prop_assert_eq!(map.map(new), addr);
            }
        }
    }

    #[test]
    fn addresses_with_a_fixed_meaning_are_kept() {
        let mut map = Addresses::new([7; 32]);
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.25.10",
            "224.0.0.1",
            "255.255.255.255",
            "198.51.100.77",
            "::",
            "::1",
            "ff02::1",
        ] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(map.map(addr), addr);
        }
        for text in [
            "10.0.0.1",
            "172.20.0.1",
            "192.168.1.1",
            "fe80::1",
            "fd00::1",
            "203.0.113.9",
        ] {
            let addr: IpAddr = text.parse().unwrap();
            let new = map.map(addr);
            assert_ne!(new, addr);
            let fixed: Vec<Cidr> = FIXED
                .iter()
                .map(|(text, _)| text.parse().unwrap())
                .collect();
            assert!(
                fixed
                    .iter()
                    .all(|net| net.contains(addr) == net.contains(new)),
                "{text} {new}"
            );
        }
    }

    #[test]
    fn a_prefix_contains_the_same_addresses_as_before() {
        let mut map = Addresses::new([9; 32]);
        let net = map.map_prefix("10.244.0.0/16".parse().unwrap());
        assert_eq!(net, net.normal());
        assert!(net.contains(map.map("10.244.17.3".parse().unwrap())));
        assert!(!net.contains(map.map("10.245.17.3".parse().unwrap())));
    }
}
