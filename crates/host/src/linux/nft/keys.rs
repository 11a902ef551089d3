//! Keys of packets and connections that a rule can load.

use super::types::{Order, Type as T};

/// A field of a packet's metadata, connection or socket that a rule loads.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) number: u32,
    pub(super) name: &'static str,
    pub(super) kind: T,
    pub(super) order: Order,
    pub(super) bits: u32,
}

const fn host(number: u32, name: &'static str, kind: T, bits: u32) -> Key {
    Key {
        number,
        name,
        kind,
        order: Order::Host,
        bits,
    }
}

const fn big(number: u32, name: &'static str, kind: T, bits: u32) -> Key {
    Key {
        order: Order::Big,
        ..host(number, name, kind, bits)
    }
}

/// `enum nft_meta_keys`; those whose values need files of the host are missing.
pub(super) mod meta {
    pub(in crate::linux::nft) const PROTOCOL: u32 = 1;
    pub(in crate::linux::nft) const LINK_TYPE: u32 = 8;
    pub(in crate::linux::nft) const TRACE: u32 = 12;
    pub(in crate::linux::nft) const NF_PROTO: u32 = 15;
    pub(in crate::linux::nft) const L4_PROTO: u32 = 16;
}

pub(super) static META: &[Key] = &[
    host(0, "length", T::Integer, 32),
    big(meta::PROTOCOL, "protocol", T::EtherType, 16),
    host(2, "priority", T::Class, 32),
    host(3, "mark", T::Mark, 32),
    host(4, "iif", T::Link, 32),
    host(5, "oif", T::Link, 32),
    host(6, "iifname", T::LinkName, 128),
    host(7, "oifname", T::LinkName, 128),
    host(meta::LINK_TYPE, "iiftype", T::LinkType, 16),
    host(9, "oiftype", T::LinkType, 16),
    host(10, "skuid", T::Uid, 32),
    host(11, "skgid", T::Gid, 32),
    host(meta::TRACE, "nftrace", T::Integer, 1),
    host(meta::NF_PROTO, "nfproto", T::NfProto, 8),
    host(meta::L4_PROTO, "l4proto", T::Protocol, 8),
    host(19, "pkttype", T::PacketType, 8),
    host(20, "cpu", T::Integer, 32),
    host(23, "cgroup", T::Integer, 32),
    big(24, "random", T::Integer, 32),
    host(26, "iifkind", T::LinkName, 128),
    host(27, "oifkind", T::LinkName, 128),
    host(31, "day", T::Day, 8),
    host(33, "sdif", T::Link, 32),
    host(34, "sdifname", T::LinkName, 128),
];

/// `enum nft_ct_keys`.
pub(super) mod ct {
    pub(in crate::linux::nft) const L3_PROTO: u32 = 7;
    pub(in crate::linux::nft) const SOURCE: u32 = 8;
    pub(in crate::linux::nft) const TARGET: u32 = 9;
    pub(in crate::linux::nft) const PROTOCOL: u32 = 10;
    pub(in crate::linux::nft) const SOURCE_PORT: u32 = 11;
    pub(in crate::linux::nft) const TARGET_PORT: u32 = 12;
}

pub(super) static CT: &[Key] = &[
    host(0, "state", T::CtState, 32),
    host(1, "direction", T::CtDirection, 8),
    host(2, "status", T::CtStatus, 32),
    host(3, "mark", T::Mark, 32),
    host(5, "expiration", T::Time, 32),
    host(6, "helper", T::String, 128),
    host(ct::L3_PROTO, "l3proto", T::NfProto, 8),
    big(ct::SOURCE, "saddr", T::Integer, 0),
    big(ct::TARGET, "daddr", T::Integer, 0),
    big(ct::PROTOCOL, "protocol", T::Protocol, 8),
    big(ct::SOURCE_PORT, "proto-src", T::Port, 16),
    big(ct::TARGET_PORT, "proto-dst", T::Port, 16),
    host(14, "packets", T::Integer, 64),
    host(15, "bytes", T::Integer, 64),
    host(16, "avgpkt", T::Integer, 64),
    host(17, "zone", T::Integer, 16),
    big(19, "ip saddr", T::Ip4, 32),
    big(20, "ip daddr", T::Ip4, 32),
    big(21, "ip6 saddr", T::Ip6, 128),
    big(22, "ip6 daddr", T::Ip6, 128),
    big(23, "id", T::Integer, 32),
];

/// `enum nft_socket_keys`.
pub(super) static SOCKET: &[Key] = &[
    host(0, "transparent", T::Integer, 8),
    host(1, "mark", T::Mark, 32),
    host(2, "wildcard", T::Integer, 8),
];

/// Returns the key `number` of the list `of`, called `what`.
pub(super) fn find(of: &'static [Key], what: &str, number: u32) -> Result<&'static Key, String> {
    let found = of.iter().find(|key| key.number == number);
    found.ok_or_else(|| format!("{what} key {number} is not decoded"))
}
