//! Fields that kpx does not follow, with their values in packets that open a usual connection: small packets without
//! options or a type of service. Packets of the node itself come from a program of root.

use std::ops::RangeInclusive;

use super::packet::Packet;
use super::route::Router;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::sockets::Socket;

/// The effect of a rule that hands packets to a transparent proxy, in words.
pub(crate) const TPROXY: &str = "TPROXY";

/// Values that a field may have.
pub(super) type Values = RangeInclusive<u64>;

/// The most hops that a packet from another machine has passed; it was sent with a TTL of 64 to 255.
const MOST_HOPS: u64 = 48;

/// The packets of a TCP connection with one request and one answer, from the client and from the server.
const SHORT: (u64, u64) = (5, 4);

/// Bytes that a link carries.
const MTU: u64 = 1_500;

/// Ports of the protocols of conntrack helpers.
const HELPED: [(&str, u16); 9] = [
    ("amanda", 10080),
    ("ftp", 21),
    ("h323", 1720),
    ("irc", 6667),
    ("pptp", 1723),
    ("sane", 6566),
    ("sip", 5060),
    ("snmp", 161),
    ("tftp", 69),
];

/// Options of TCP that packets which open connections have, or may have: those of segments, windows, acknowledgements and times, of
/// multipath TCP and of fast open.
pub(super) const USUAL_OPTIONS: [u64; 9] = [0, 1, 2, 3, 4, 5, 8, 30, 34];

/// Ranges of addresses that belong to no country.
const PRIVATE: [&str; 6] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
];

/// Returns whether no program of the node takes what TPROXY hands to `port`: then the rule of iptables drops the packet that opens a
/// connection (`tproxy_tg4`), and that of nft does not match (`nft_tproxy_eval_v4`).
pub(super) fn lacks_proxy(port: u16, packet: &Packet, router: &Router<'_>) -> bool {
    port != 0 && is_unheard(packet, router, |own| own == port)
}

/// Returns whether no socket of the node takes `packet`, which opens a connection, at its port.
pub(super) fn lacks_listener(packet: &Packet, router: &Router<'_>) -> bool {
    is_unheard(packet, router, |own| packet.port().is(own))
}

/// Returns whether `packet` opens a connection, and no program of the node listens at a port for which `is_it` holds.
fn is_unheard(packet: &Packet, router: &Router<'_>, is_it: impl Fn(u16) -> bool) -> bool {
    let is_of =
        |socket: &Socket| socket.proto == packet.shown_proto() && is_it(socket.local.port());
    let sockets = router.node.sockets();
    let is_silent = sockets
        .is_ok_and(|sockets| sockets.gaps.is_empty() && !sockets.listening.iter().any(is_of));
    !packet.established && is_silent
}

/// Returns whether all of `values` are in `range`, or none; `None` for a part of them.
pub(super) fn within(values: &Values, range: &Values) -> Option<bool> {
    if range.contains(values.start()) && range.contains(values.end()) {
        return Some(true);
    }
    let apart = values.end() < range.start() || range.end() < values.start();
    apart.then_some(false)
}

/// Returns the bytes of `packet` with its IP header: with data once a connection of TCP is there, and as much as a link carries.
pub(super) fn length(packet: &Packet) -> Values {
    if packet.is(Proto::Tcp) {
        bytes_of_tcp(packet.opens, packet.family())
    } else {
        28..=MTU
    }
}

/// Returns the bytes of a packet of TCP that opens a connection, or of one with data.
pub(super) const fn bytes_of_tcp(opens: bool, family: Family) -> Values {
    match (opens, family) {
        (true, Family::V4) => 40..=80,
        (true, Family::V6) => 60..=100,
        (false, Family::V4) => 41..=MTU,
        (false, Family::V6) => 61..=MTU,
    }
}

/// Returns the time to live, or hop limit, that `packet` has left.
pub(super) fn ttl(packet: &Packet, router: &Router<'_>) -> Values {
    let left = u64::from(packet.ttl);
    if packet.has_socket || router.has_pod(packet.original_source()) {
        return left..=left;
    }
    left.saturating_sub(MOST_HOPS).max(1)..=255
}

/// Returns the packets, or bytes, that conntrack has counted of the connection in a direction, or in both. Of one that is there already,
/// the first value is that at the end of a short one.
pub(super) fn counted(packet: &Packet, bytes: bool, direction: Option<&str>) -> Values {
    let is_tcp = packet.is(Proto::Tcp);
    let (sent, got) = match (packet.opens, packet.is_reply()) {
        (true, is_reply) => (1, u64::from(is_reply)),
        (false, _) if is_tcp => SHORT,
        (false, is_reply) => (2, 1 + u64::from(is_reply)),
    };
    let count = match direction {
        Some("original") => sent,
        Some("reply") => got,
        _ => sent + got,
    };
    let size = match (bytes, is_tcp) {
        (false, _) => 1..=1,
        (true, true) => bytes_of_tcp(true, packet.family()),
        (true, false) => 28..=MTU,
    };
    let most = if packet.opens {
        count * size.end()
    } else {
        u64::MAX
    };
    count * size.start()..=most
}

/// Returns the user of the program that sends `packet`. A client on the node is a program of root, as the kubelet and the container
/// runtime are. `None` for a server, and in the network of a pod.
pub(super) fn user(packet: &Packet, router: &Router<'_>) -> Option<u64> {
    let is_of_node = router.node.services().is_ok();
    (packet.has_socket && !packet.is_reply() && is_of_node).then_some(0)
}

/// Returns whether the helper called `name` may follow the connection.
pub(super) fn may_have_helper(packet: &Packet, name: &str) -> bool {
    let protocol = name.split('-').next().unwrap_or(name);
    let port = HELPED.iter().find(|(helper, _)| *helper == protocol);
    port.is_none_or(|(_, port)| packet.original_port().is(*port))
}

/// Returns whether any helper may follow the connection.
pub(super) fn may_have_some_helper(packet: &Packet) -> bool {
    HELPED
        .iter()
        .any(|(_, port)| packet.original_port().is(*port))
}

/// Returns whether the source of `packet` belongs to no country.
pub(super) fn is_private(packet: &Packet) -> bool {
    let ranges = PRIVATE
        .iter()
        .filter_map(|range| range.parse::<Cidr>().ok());
    let mut ours = ranges.filter(|range| range.addr.is_ipv4() == packet.source().shown().is_ipv4());
    ours.any(|range| packet.source().is_in(range))
}
