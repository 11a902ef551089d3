//! Layouts of Calico's service maps.
//!
//! Source: `felix/bpf/nat/maps.go` and `maps6.go` of Calico, whose version 3 of the front ends has flags. Ports are in the byte
//! order of the machine.

use std::cmp::Reverse;

use super::{CalicoBackend, CalicoFrontend, Content, Fields, Layout, each, range};
use crate::net::{Family, Proto};

/// Name, size of a key, size of a value, layout.
const LAYOUTS: &[(&str, u32, u32, Layout)] = &[
    ("cali_v4_nat_fe3", 16, 20, |all| frontends(all, Family::V4)),
    ("cali_v6_nat_fe3", 40, 20, |all| frontends(all, Family::V6)),
    ("cali_v4_nat_be", 8, 8, |all| backends(all, Family::V4)),
    ("cali_v6_nat_be", 8, 20, |all| backends(all, Family::V6)),
];

/// Returns the layout of a map with Services of Calico.
pub(super) fn layout(name: &str, key_size: u32, value_size: u32) -> Option<Layout> {
    let mut all = LAYOUTS.iter();
    let found =
        all.find(|(full, key, value, _)| *full == name && (*key, *value) == (key_size, value_size));
    found.map(|(.., layout)| *layout)
}

fn frontends(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let bits = u32::from(family.bits());
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        // Address, port and protocol are a part of the prefix.
        let prefix = key.own32()?.checked_sub(bits + 24)?;
        let (address, port, protocol) = (key.address(family)?, key.own16()?, key.byte()?);
        let source = range(key.address(family)?, prefix)?;
        Some(CalicoFrontend {
            address,
            port,
            protocol: Proto::from_number(protocol),
            source: (source.prefix != 0).then_some(source),
            id: value.own32()?,
            count: value.own32()?,
            local: value.own32()?,
            affinity: value.own32()?,
            flags: value.own32()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|frontend| {
        let source = frontend
            .source
            .map(|source| (source.addr, Reverse(source.prefix)));
        (
            frontend.address,
            frontend.port,
            frontend.protocol.number(),
            source,
        )
    });
    Some(Content::CalicoFrontends(all))
}

fn backends(pairs: &[(Vec<u8>, Vec<u8>)], family: Family) -> Option<Content> {
    let entry = |key: &mut Fields<'_>, value: &mut Fields<'_>| {
        Some(CalicoBackend {
            id: key.own32()?,
            ordinal: key.own32()?,
            address: value.address(family)?,
            port: value.own16()?,
        })
    };
    let mut all = each(pairs, entry)?;
    all.sort_by_key(|backend| (backend.id, backend.ordinal));
    Some(Content::CalicoBackends(all))
}
