//! Converts the attributes of `linux/ip_vs.h` to records. Unknown attributes of newer kernels are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_HEADER_SIZE, NlasIterator};

use super::wire::{AF_INET, AF_INET6, FWD_MASK, dest, info, stats, svc, top};
use crate::linux::netlink::{append, nested};
use kpx_node::evidence::ipvs::{Destination, Forwarding, Info, Service, Stats, Timeouts};
use kpx_node::net::{Family, Proto};

/// Returns the version and table size of an answer to `IPVS_CMD_GET_INFO`.
pub(super) fn info(message: &[u8]) -> Option<Info> {
    Some(Info {
        version: number(find(message, info::VERSION)?)?,
        conn_tab_size: number(find(message, info::CONN_TAB_SIZE)?)?,
    })
}

/// Returns the timeouts in an answer to `IPVS_CMD_GET_CONFIG`. A kernel built without one of the protocols omits its
/// timeout.
pub(super) fn timeouts(message: &[u8]) -> Option<Timeouts> {
    Some(Timeouts {
        tcp: number(find(message, top::TIMEOUT_TCP)?)?,
        tcp_fin: number(find(message, top::TIMEOUT_TCP_FIN)?)?,
        udp: number(find(message, top::TIMEOUT_UDP)?)?,
    })
}

/// Returns the attributes of the virtual server in an entry of a dump; empty if it has none.
pub(super) fn service_attributes(message: &[u8]) -> &[u8] {
    find(message, top::SERVICE).unwrap_or(&[])
}

/// Returns the virtual server with these attributes, without its real servers.
pub(super) fn service(attributes: &[u8]) -> Option<Service> {
    let family = family(number(find(attributes, svc::AF)?)?)?;
    let fwmark = find(attributes, svc::FWMARK).and_then(number);
    let (mut protocol, mut addr, mut port) = (None, None, None);
    if fwmark.is_none() {
        let number: u16 = number(find(attributes, svc::PROTOCOL)?)?;
        protocol = Some(Proto::from_number(u8::try_from(number).ok()?));
        addr = Some(address(find(attributes, svc::ADDR)?, family)?);
        port = Some(big_endian(find(attributes, svc::PORT)?)?);
    }
    let prefix: u32 = match (find(attributes, svc::NETMASK)?, family) {
        (mask, Family::V4) => mask.iter().take(4).map(|b| b.leading_ones()).sum(),
        (mask, Family::V6) => number(mask)?,
    };
    Some(Service {
        family,
        protocol,
        address: addr,
        port,
        fwmark,
        scheduler: text(find(attributes, svc::SCHED_NAME)?),
        // The value is followed by a mask for requests.
        flags: number(find(attributes, svc::FLAGS)?)?,
        timeout: number(find(attributes, svc::TIMEOUT)?)?,
        prefix: u8::try_from(prefix).ok()?,
        engine: find(attributes, svc::PE_NAME).map(text),
        stats: counters(attributes, svc::STATS64, svc::STATS),
        destinations: Vec::new(),
        order: Vec::new(),
    })
}

/// Returns the attributes that identify a virtual server in a request, taken from the kernel's own attributes.
pub(super) fn service_key(attributes: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    for (kind, value) in iterate(attributes) {
        if (svc::AF..=svc::FWMARK).contains(&kind) {
            append(&mut key, kind, value);
        }
    }
    let mut request = Vec::new();
    nested(&mut request, top::SERVICE, &key);
    request
}

/// Returns the real server in an entry of a dump; `service` is the family of its virtual server.
pub(super) fn destination(message: &[u8], service: Family) -> Option<Destination> {
    let attributes = find(message, top::DEST)?;
    // Kernels before 3.18 use the same family for both.
    let family = match find(attributes, dest::ADDR_FAMILY) {
        Some(value) => family(number(value)?)?,
        None => service,
    };
    let count = |kind| find(attributes, kind).and_then(number::<u32>).unwrap_or(0);
    let forwarding = match number::<u32>(find(attributes, dest::FWD_METHOD)?)? & FWD_MASK {
        0 => Forwarding::Masq,
        1 => Forwarding::Local,
        2 => Forwarding::Tunnel,
        3 => Forwarding::Route,
        4 => Forwarding::Bypass,
        _ => return None,
    };
    Some(Destination {
        address: address(find(attributes, dest::ADDR)?, family)?,
        port: big_endian(find(attributes, dest::PORT)?)?,
        weight: number(find(attributes, dest::WEIGHT)?)?,
        forwarding,
        upper: count(dest::U_THRESH),
        lower: count(dest::L_THRESH),
        active: count(dest::ACTIVE_CONNS),
        inactive: count(dest::INACT_CONNS),
        persistent: count(dest::PERSIST_CONNS),
        stats: counters(attributes, dest::STATS64, dest::STATS),
    })
}

/// Returns the counters in attribute `wide`, or in `narrow` if the kernel (before 4.1) has no 64-bit counters.
fn counters(attributes: &[u8], wide: u16, narrow: u16) -> Option<Stats> {
    let set = find(attributes, wide).or_else(|| find(attributes, narrow))?;
    let counter = |kind| {
        let value = find(set, kind)?;
        match value.len() {
            4 => number::<u32>(value).map(u64::from),
            _ => number(value),
        }
    };
    Some(Stats {
        conns: counter(stats::CONNS)?,
        packets_in: counter(stats::INPKTS)?,
        packets_out: counter(stats::OUTPKTS)?,
        bytes_in: counter(stats::INBYTES)?,
        bytes_out: counter(stats::OUTBYTES)?,
    })
}

const fn family(number: u16) -> Option<Family> {
    match number {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

/// Parses an address: 16 bytes in either family; an IPv4 address is the first four.
fn address(value: &[u8], family: Family) -> Option<IpAddr> {
    match family {
        Family::V4 => {
            let bytes: [u8; 4] = value.get(..4)?.try_into().ok()?;
            Some(IpAddr::V4(Ipv4Addr::from(bytes)))
        }
        Family::V6 => {
            let bytes: [u8; 16] = value.get(..16)?.try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
    }
}

fn big_endian(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.get(..2)?.try_into().ok()?))
}

/// Parses text up to its NUL.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// A number in the machine's byte order.
trait Number: Sized {
    fn read(value: &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ident)+) => {$(
        impl Number for $number {
            fn read(value: &[u8]) -> Option<Self> {
                let bytes = value.get(..size_of::<Self>())?;
                Some(Self::from_ne_bytes(bytes.try_into().ok()?))
            }
        }
    )+};
}

numbers! { u16 u32 u64 }

fn number<T: Number>(value: &[u8]) -> Option<T> {
    T::read(value)
}

fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    iterate(attributes).find_map(|(k, value)| (k == kind).then_some(value))
}

/// Iterates over attributes, up to the first incomplete one.
fn iterate(attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(attributes).map_while(|nla| {
        let nla = nla.ok()?;
        let (kind, end) = (nla.kind(), usize::from(nla.length()));
        Some((kind, nla.into_inner().get(NLA_HEADER_SIZE..end)?))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attributes(list: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, value) in list {
            append(&mut bytes, *kind, value);
        }
        bytes
    }

    fn a_service(more: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = attributes(&[
            (svc::SCHED_NAME, b"rr\0"),
            (svc::FLAGS, &[3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            (svc::TIMEOUT, &10800_u32.to_ne_bytes()),
            // An attribute of a newer kernel.
            (99, &[1, 2, 3, 4, 5]),
        ]);
        bytes.extend(attributes(more));
        bytes
    }

    #[test]
    fn an_ipv4_service_has_a_mask_and_a_big_endian_port() {
        let mut addr = [0; 16];
        addr[..4].copy_from_slice(&[10, 96, 0, 1]);
        let bytes = a_service(&[
            (svc::AF, &AF_INET.to_ne_bytes()),
            (svc::PROTOCOL, &132_u16.to_ne_bytes()),
            (svc::ADDR, &addr),
            (svc::PORT, &[0x01, 0xbb]),
            (svc::NETMASK, &[255, 255, 255, 0]),
        ]);
        let service = service(&bytes).unwrap();
        assert_eq!(service.protocol, Some(Proto::Sctp));
        assert_eq!(service.address, Some("10.96.0.1".parse().unwrap()));
        assert_eq!((service.port, service.prefix), (Some(443), 24));
        assert_eq!((service.flags, service.timeout), (3, 10800));
        assert_eq!(service.stats, None);
    }

    #[test]
    fn an_ipv6_service_has_a_prefix_length() {
        let bytes = a_service(&[
            (svc::AF, &AF_INET6.to_ne_bytes()),
            (svc::FWMARK, &7_u32.to_ne_bytes()),
            (svc::NETMASK, &64_u32.to_ne_bytes()),
            (svc::PE_NAME, b"sip\0"),
        ]);
        let service = service(&bytes).unwrap();
        assert_eq!((service.fwmark, service.prefix), (Some(7), 64));
        assert_eq!((service.address, service.port), (None, None));
        assert_eq!(service.engine.as_deref(), Some("sip"));
    }

    #[test]
    fn counters_fall_back_to_32_bits() {
        let narrow = attributes(&[
            (stats::CONNS, &1_u32.to_ne_bytes()),
            (stats::INPKTS, &2_u32.to_ne_bytes()),
            (stats::OUTPKTS, &3_u32.to_ne_bytes()),
            (stats::INBYTES, &(u64::MAX - 1).to_ne_bytes()),
            (stats::OUTBYTES, &5_u64.to_ne_bytes()),
        ]);
        let only = attributes(&[(dest::STATS, &narrow)]);
        let read = counters(&only, dest::STATS64, dest::STATS).unwrap();
        assert_eq!((read.conns, read.bytes_in), (1, u64::MAX - 1));
    }

    #[test]
    fn a_request_identifies_a_server_by_the_kernels_attributes() {
        let bytes = a_service(&[(svc::FWMARK, &7_u32.to_ne_bytes())]);
        let key = service_key(&bytes);
        assert_eq!(
            find(&key, top::SERVICE).unwrap(),
            attributes(&[(svc::FWMARK, &7_u32.to_ne_bytes())])
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..100) {
            let mut message = a_service(&[(svc::AF, &AF_INET.to_ne_bytes())]);
            let at = at.min(message.len());
            message.splice(at.., bytes.iter().copied());
            for message in [&bytes, &message] {
                drop((info(message), timeouts(message), service(message)));
                drop((service_key(message), destination(message, Family::V6)));
            }
        }
    }
}
