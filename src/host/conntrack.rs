//! Tracked connections, printed as `conntrack -L` does: by that program, or by netlink where it is missing.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Protocol,
    Status, Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::context::Context;
use super::netlink::dump;
use super::{exec, modules};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// `enum tcp_conntrack` in `linux/netfilter/nf_conntrack_tcp.h`, as `conntrack` names them.
const TCP_STATES: &[&str] = &[
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];

/// `CTA_ZONE` in `linux/netfilter/nfnetlink_conntrack.h`.
const CTA_ZONE: u16 = 18;

/// Reads the tracked connections of the families that were asked for, IPv4 first.
pub(super) async fn read(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if !context.path("proc/sys/net/netfilter").exists()
        || modules::would_load(context, "nf_conntrack_netlink")
    {
        return Err(Gap::NotApplicable(
            "connections are not tracked, or not listed: nf_conntrack or nf_conntrack_netlink is not loaded".to_owned(),
        ));
    }
    let mut text = String::new();
    for &family in &context.options.families {
        let args: &[&str] = match family {
            Family::V4 => &["-L", "-f", "ipv4"],
            Family::V6 => &["-L", "-f", "ipv6"],
        };
        let listed = match exec::run(context, item, "conntrack", args).await {
            Err(Gap::Absent(..)) => {
                let list = async move |_: Arc<Context>| by_netlink(item, family);
                context.inside(item, list).await
            }
            listed => listed,
        };
        text.push_str(&listed?);
    }
    Ok(text)
}

fn by_netlink(item: Item, family: Family) -> Result<String, Gap> {
    let family = match family {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
    };
    let request = NetfilterMessage::new(
        NetfilterHeader::new(family, 0, 0),
        ConntrackMessage::Get(Vec::new()),
    );
    let mut text = String::new();
    for answer in dump(item, NETLINK_NETFILTER, &request)? {
        if let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = answer.inner {
            // Writing to a string cannot fail.
            writeln!(text, "{}", entry(&attributes)).ok();
        }
    }
    Ok(text)
}

fn entry(attributes: &[ConntrackAttribute]) -> String {
    let mut original: &[Tuple] = &[];
    let mut reply: &[Tuple] = &[];
    let mut status = Status::empty();
    let (mut timeout, mut state, mut mark, mut zone) = (None, None, 0, None);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => original = tuple,
            ConntrackAttribute::CtaTupleReply(tuple) => reply = tuple,
            ConntrackAttribute::CtaProtoInfo(infos) => state = infos.iter().find_map(tcp_state),
            ConntrackAttribute::CtaStatus(bits) => status = *bits,
            ConntrackAttribute::CtaTimeout(seconds) => timeout = Some(*seconds),
            ConntrackAttribute::CtaMark(bits) => mark = *bits,
            ConntrackAttribute::Other(other) if other.kind() == CTA_ZONE => {
                zone = Some(number(other));
            }
            _ => {}
        }
    }
    let protocol = original.iter().find_map(protocol);
    let mut words = match protocol {
        Some(protocol) => vec![format!(
            "{:<8} {}",
            protocol_name(protocol),
            u8::from(protocol)
        )],
        None => vec!["unknown  0".to_owned()],
    };
    words.extend(timeout.map(|seconds| seconds.to_string()));
    words.extend(state.map(str::to_owned));
    words.extend(ends(original));
    if !status.contains(Status::SeenReply) {
        words.push("[UNREPLIED]".to_owned());
    }
    words.extend(ends(reply));
    if status.contains(Status::Assured) {
        words.push("[ASSURED]".to_owned());
    }
    words.push(format!("mark={mark}"));
    words.extend(zone.map(|zone| format!("zone={zone}")));
    words.join(" ")
}

fn tcp_state(info: &ProtoInfo) -> Option<&'static str> {
    let ProtoInfo::TCP(attributes) = info else {
        return None;
    };
    attributes.iter().find_map(|attribute| match attribute {
        ProtoInfoTCP::State(state) => TCP_STATES.get(usize::from(*state)).copied(),
        _ => None,
    })
}

fn protocol(tuple: &Tuple) -> Option<Protocol> {
    let Tuple::Proto(attributes) = tuple else {
        return None;
    };
    attributes.iter().find_map(|attribute| match attribute {
        ProtoTuple::Protocol(protocol) => Some(*protocol),
        _ => None,
    })
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Icmp => "icmp",
        Protocol::Igmp => "igmp",
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Dccp => "dccp",
        Protocol::Gre => "gre",
        Protocol::Ipv6Icmp => "icmpv6",
        Protocol::Sctp => "sctp",
        Protocol::UdpLite => "udplite",
        _ => "unknown",
    }
}

fn ends(tuple: &[Tuple]) -> Vec<String> {
    let (mut addresses, mut ports) = (Vec::new(), Vec::new());
    for part in tuple {
        match part {
            Tuple::Ip(ips) => addresses.extend(ips.iter().filter_map(|ip| match ip {
                IPTuple::SourceAddress(ip) => Some(address("src", *ip)),
                IPTuple::DestinationAddress(ip) => Some(address("dst", *ip)),
                _ => None,
            })),
            Tuple::Proto(attributes) => {
                ports.extend(attributes.iter().filter_map(|port| match port {
                    ProtoTuple::SourcePort(port) => Some(format!("sport={port}")),
                    ProtoTuple::DestinationPort(port) => Some(format!("dport={port}")),
                    _ => None,
                }));
            }
            _ => {}
        }
    }
    [addresses, ports].concat()
}

fn address(key: &str, ip: IpAddr) -> String {
    format!("{key}={ip}")
}

/// Returns the value of an attribute that is a number in network order.
fn number(attribute: &DefaultNla) -> u32 {
    let mut bytes = vec![0; attribute.value_len()];
    attribute.emit_value(&mut bytes);
    bytes
        .iter()
        .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}
