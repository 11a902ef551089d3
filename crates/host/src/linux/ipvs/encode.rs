//! Converts commands to the attributes of `linux/ip_vs.h`.

use std::net::IpAddr;

use super::wire::{AF_INET, AF_INET6, dest, svc, top};
use crate::linux::netlink::{append, nested};
use kpx_node::action::{IpvsCommand, IpvsVerb};
use kpx_node::evidence::ipvs::{Destination, Forwarding, Service};
use kpx_node::net::{Family, Proto};

/// `IPVS_CMD_NEW_SERVICE`.
const NEW_SERVICE: u8 = 1;
/// `IPVS_CMD_SET_SERVICE`.
const SET_SERVICE: u8 = 2;
/// `IPVS_CMD_DEL_SERVICE`.
const DEL_SERVICE: u8 = 3;
/// `IPVS_CMD_NEW_DEST`.
const NEW_DEST: u8 = 5;
/// `IPVS_CMD_SET_DEST`.
const SET_DEST: u8 = 6;
/// `IPVS_CMD_DEL_DEST`.
const DEL_DEST: u8 = 7;

/// `IP_VS_SVC_F_HASHED`: internal to the kernel and not allowed in requests.
const HASHED: u32 = 0x2;

/// Returns the command's number and attributes.
pub(super) fn request(command: &IpvsCommand) -> (u8, Vec<u8>) {
    let number = match command.verb {
        IpvsVerb::AddServer => NEW_SERVICE,
        IpvsVerb::EditServer => SET_SERVICE,
        IpvsVerb::DeleteServer => DEL_SERVICE,
        IpvsVerb::AddReal => NEW_DEST,
        IpvsVerb::EditReal => SET_DEST,
        IpvsVerb::DeleteReal | IpvsVerb::RetireReal => DEL_DEST,
    };
    let whole = matches!(command.verb, IpvsVerb::AddServer | IpvsVerb::EditServer);
    let mut attributes = server(&command.server, whole);
    if let Some(real) = &command.real {
        nested(&mut attributes, top::DEST, &destination(real));
    }
    (number, attributes)
}

/// Returns the attributes that identify `service` in a request.
pub(super) fn key(service: &Service) -> Vec<u8> {
    server(service, false)
}

fn server(service: &Service, whole: bool) -> Vec<u8> {
    let mut inner = Vec::with_capacity(96);
    append(&mut inner, svc::AF, &family(service.family).to_ne_bytes());
    if let Some(mark) = service.fwmark {
        append(&mut inner, svc::FWMARK, &mark.to_ne_bytes());
    }
    if let Some(proto) = service.protocol {
        let number = u16::from(Proto::number(proto));
        append(&mut inner, svc::PROTOCOL, &number.to_ne_bytes());
    }
    if let Some(addr) = service.address {
        append(&mut inner, svc::ADDR, &address(addr));
    }
    if let Some(port) = service.port {
        append(&mut inner, svc::PORT, &port.to_be_bytes());
    }
    if whole {
        append(&mut inner, svc::SCHED_NAME, &text(&service.scheduler));
        if let Some(engine) = &service.engine {
            append(&mut inner, svc::PE_NAME, &text(engine));
        }
        // Flags, followed by a mask of the valid ones.
        let flags = [service.flags & !HASHED, u32::MAX].map(u32::to_ne_bytes);
        append(&mut inner, svc::FLAGS, &flags.concat());
        append(&mut inner, svc::TIMEOUT, &service.timeout.to_ne_bytes());
        let prefix = u32::from(service.prefix);
        let mask = match service.family {
            Family::V4 => u32::MAX
                .checked_shl(32 - prefix.min(32))
                .unwrap_or(0)
                .to_be_bytes(),
            Family::V6 => prefix.to_ne_bytes(),
        };
        append(&mut inner, svc::NETMASK, &mask);
    }
    let mut attributes = Vec::with_capacity(256);
    nested(&mut attributes, top::SERVICE, &inner);
    attributes
}

fn destination(real: &Destination) -> Vec<u8> {
    let forwarding: u32 = match real.forwarding {
        Forwarding::Masq => 0,
        Forwarding::Local => 1,
        Forwarding::Tunnel => 2,
        Forwarding::Route => 3,
        Forwarding::Bypass => 4,
    };
    let mut inner = Vec::with_capacity(96);
    append(&mut inner, dest::ADDR, &address(real.address));
    append(&mut inner, dest::PORT, &real.port.to_be_bytes());
    for (kind, value) in [
        (dest::FWD_METHOD, forwarding),
        (dest::WEIGHT, real.weight),
        (dest::U_THRESH, real.upper),
        (dest::L_THRESH, real.lower),
    ] {
        append(&mut inner, kind, &value.to_ne_bytes());
    }
    let family = family(Family::of(real.address));
    append(&mut inner, dest::ADDR_FAMILY, &family.to_ne_bytes());
    inner
}

const fn family(family: Family) -> u16 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

/// Returns an address as 16 bytes; an IPv4 address is the first four.
fn address(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::decode;
    use super::*;

    fn services() -> impl Strategy<Value = Service> {
        let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
        let v6 = any::<[u8; 16]>().prop_map(IpAddr::from);
        let addr = prop_oneof![v4, v6];
        let proto = prop_oneof![Just(Proto::Tcp), Just(Proto::Udp), Just(Proto::Sctp)];
        let rest = ("[a-z]{2,8}", any::<u32>(), any::<u32>(), 0_u8..=128);
        let marked = proptest::option::of(1_u32..);
        (
            addr,
            proto,
            any::<u16>(),
            marked,
            rest,
            proptest::option::of("[a-z]{3}"),
        )
            .prop_map(
                |(addr, proto, port, fwmark, (scheduler, flags, timeout, prefix), engine)| {
                    let named = fwmark.is_none();
                    let family = Family::of(addr);
                    Service {
                        family,
                        protocol: named.then_some(proto),
                        address: named.then_some(addr),
                        port: named.then_some(port),
                        fwmark,
                        scheduler,
                        flags: flags & !HASHED,
                        timeout,
                        prefix: prefix.min(family.bits()),
                        engine,
                        stats: None,
                        destinations: Vec::new(),
                        order: Vec::new(),
                    }
                },
            )
    }

    fn real(service: &Service, (port, weight, upper, lower): (u16, u32, u32, u32)) -> Destination {
        Destination {
            address: match service.family {
                Family::V4 => "10.244.1.2".parse().unwrap(),
                Family::V6 => "fd00:10:244::2".parse().unwrap(),
            },
            port,
            weight,
            forwarding: Forwarding::Masq,
            upper,
            lower,
            active: 0,
            inactive: 0,
            persistent: 0,
            stats: None,
        }
    }

    proptest! {
        #[test]
        fn encoding_and_decoding_are_inverse(service in services(), numbers: (u16, u32, u32, u32)) {
            let real = real(&service, numbers);
            let command = |verb, real: Option<&Destination>| IpvsCommand {
                verb,
                server: service.clone(),
                real: real.cloned(),
                line: String::new(),
            };
            let (number, bytes) = request(&command(IpvsVerb::AddServer, None));
            prop_assert_eq!(number, NEW_SERVICE);
            let attributes = decode::service_attributes(&bytes);
            prop_assert_eq!(decode::service(attributes), Some(service.clone()));
            prop_assert_eq!(decode::service_key(attributes), key(&service));
            let (number, bytes) = request(&command(IpvsVerb::AddReal, Some(&real)));
            prop_assert_eq!(number, NEW_DEST);
            prop_assert_eq!(decode::destination(&bytes, service.family), Some(real));
        }
    }
}
