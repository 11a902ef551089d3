//! Layouts of Cilium's service maps.
//!
//! Source: the structures `lb4_*` and `lb6_*` in Cilium's `bpf/lib/lb.h`, 1.20.0-pre. Addresses, ports and IDs of reverse
//! translations are in network byte order.

use std::cmp::Reverse;

use super::{
    CiliumAffinity, CiliumBackend, CiliumReverseNat, CiliumService, CiliumSourceRange, Content,
    Fields, KEPT, Layout, each, range,
};
use crate::net::{Family, Proto};

/// The kernel keeps 15 characters of a name, and reverse translations of connections (`reverse_sk`) begin alike: sizes tell them
/// apart. Name, size of a key, size of a value, layout.
const LAYOUTS: &[(&str, u32, u32, Layout)] = &[
    ("cilium_lb4_services_v2", 12, 12, |all| {
        services(all, Family::V4)
    }),
    ("cilium_lb6_services_v2", 24, 12, |all| {
        services(all, Family::V6)
    }),
    ("cilium_lb4_backends_v3", 4, 12, |all| {
        backends(all, Family::V4)
    }),
    ("cilium_lb6_backends_v3", 4, 24, |all| {
        backends(all, Family::V6)
    }),
    ("cilium_lb4_reverse_nat", 2, 6, |all| {
        reverse_nat(all, Family::V4)
    }),
    ("cilium_lb6_reverse_nat", 2, 18, |all| {
        reverse_nat(all, Family::V6)
    }),
    ("cilium_lb4_affinity", 16, 16, |all| {
        affinity(all, Family::V4)
    }),
    ("cilium_lb6_affinity", 24, 16, |all| {
        affinity(all, Family::V6)
    }),
    ("cilium_lb4_source_range", 12, 1, |all| {
        source_ranges(all, Family::V4)
    }),
    ("cilium_lb6_source_range", 24, 1, |all| {
        source_ranges(all, Family::V6)
    }),
];

/// Returns the layout of a map with Services of Cilium.
pub(super) fn layout(name: &str, key_size: u32, value_size: u32) -> Option<Layout> {
    let mut all = LAYOUTS.iter();
    let found = all.find(|(full, key, value, _)| {
        name.len() >= KEPT && full.starts_with(name) && (*key, *value) == (key_size, value_size)
    });
    found.map(|(.., layout)| *layout)
}

fn services(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        let (address, port) = (key.address(family)?, key.be16()?);
        let (slot, protocol, scope) = (key.own16()?, key.byte()?, key.byte()?);
        let (number, count, reverse_nat) = (value.own32()?, value.own16()?, value.be16()?);
        let flags = u16::from_le_bytes(value.take()?);
        Some(CiliumService {
            address,
            port,
            protocol: Proto::from_number(protocol),
            internal: scope == 1,
            slot,
            value: number,
            count,
            reverse_nat,
            flags,
            quarantined: value.own16()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|service| {
        (
            service.address,
            service.port,
            service.protocol.number(),
            service.internal,
            service.slot,
        )
    });
    Some(Content::CiliumServices(all))
}

fn backends(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        let id = key.own32()?;
        let (address, port) = (value.address(family)?, value.be16()?);
        Some(CiliumBackend {
            id,
            address,
            port,
            protocol: Proto::from_number(value.byte()?),
            state: value.byte()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|backend| backend.id);
    Some(Content::CiliumBackends(all))
}

fn reverse_nat(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        Some(CiliumReverseNat {
            id: key.be16()?,
            address: value.address(family)?,
            port: value.be16()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|translation| translation.id);
    Some(Content::CiliumReverseNat(all))
}

fn affinity(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        let client = key.address(family)?;
        // A client of IPv4 shares its field with a cookie of eight bytes.
        if family == Family::V4 {
            key.own32()?;
        }
        let (reverse_nat, is_cookie) = (key.be16()?, key.byte()? & 1 != 0);
        // The time of the last use.
        value.take::<8>()?;
        Some(CiliumAffinity {
            client: (!is_cookie).then_some(client),
            reverse_nat,
            backend: value.own32()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|affinity| (affinity.reverse_nat, affinity.client, affinity.backend));
    Some(Content::CiliumAffinity(all))
}

fn source_ranges(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    // The ID and its padding are a part of the prefix.
    const STATIC: u32 = 32;
    let entry = |key: &mut Fields<'_>, _: &mut Fields<'_>| {
        let prefix = key.own32()?.checked_sub(STATIC)?;
        let reverse_nat = key.be16()?;
        key.own16()?;
        Some(CiliumSourceRange {
            reverse_nat,
            source: range(key.address(family)?, prefix)?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|range| {
        (
            range.reverse_nat,
            range.source.addr,
            Reverse(range.source.prefix),
        )
    });
    Some(Content::CiliumSourceRanges(all))
}
