//! Sends first packets of connections, and finds out how each ends.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use kpx_node::net::Proto;
use kpx_node::node::conntrack;
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::network::{Network, Place, Source};
use super::recording::Target;

/// Source ports: above those of Services and NodePorts.
const PORTS: std::ops::Range<u16> = 33_000..65_000;

/// TCP asks again after a second; by then all must be over, or a dropped request may get through after all.
const PATIENCE: Duration = Duration::from_millis(900);

/// The fate of a packet.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Seen {
    /// Got through: its last destination, and its last source.
    Through { to: SocketAddr, source: SocketAddr },
    /// Refused with an answer.
    Reject,
    /// Never seen again.
    Drop,
}

/// A packet that was sent, and its fate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) from: SocketAddr,
    pub(crate) seen: Seen,
}

/// Packets to send: as many connections as `count` says.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) count: usize,
}

struct Connection {
    order: usize,
    from: SocketAddr,
    socket: Socket,
    error: Option<io::Error>,
}

/// Sends the ordered packets; returns their fates, in the same order.
pub(crate) struct Sender<'n> {
    network: &'n Network,
    port: u16,
    most: usize,
    patience: Duration,
}

impl<'n> Sender<'n> {
    pub(crate) fn new(network: &'n Network) -> Self {
        Self {
            network,
            port: PORTS.start,
            most: 1000,
            patience: PATIENCE,
        }
    }

    /// Returns the sender for rules that do the same to every packet of a flow: one that is sent again changes nothing.
    pub(crate) fn patient(mut self) -> Self {
        self.patience = Duration::MAX;
        self
    }

    pub(crate) fn send(&mut self, orders: &[Order]) -> Vec<Vec<Sent>> {
        let mut results = vec![Vec::new(); orders.len()];
        // One piece of work is one connection; a batch of them is sent, and looked at before TCP gets impatient.
        let mut work: Vec<usize> = Vec::new();
        for (index, order) in orders.iter().enumerate() {
            work.extend(std::iter::repeat_n(index, order.count));
        }
        let mut slow = 0;
        let mut rest = work.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(rest.len().min(self.most));
            if let Some(sent) = self.batch(orders, batch) {
                for (index, sent) in sent {
                    results[index].push(sent);
                }
                rest = later;
            } else {
                slow += 1;
                assert!(
                    slow < 100,
                    "this machine is too busy to tell what happens to a packet"
                );
                self.most = (self.most / 2).max(20);
            }
        }
        results
    }

    /// Sends one batch; `None` if that took too long.
    fn batch(&mut self, orders: &[Order], batch: &[usize]) -> Option<Vec<(usize, Sent)>> {
        self.flush();
        let mut places: Vec<Place> = batch.iter().map(|i| orders[*i].source.place).collect();
        places.sort_unstable();
        places.dedup();
        let begin = Instant::now();
        let mut connections = Vec::new();
        for place in places {
            let port = &mut self.port;
            let opened = self.network.at(place).inside(|| {
                let here = batch.iter().filter(|i| orders[**i].source.place == place);
                let open = here.map(|&index| {
                    *port = if *port + 1 < PORTS.end {
                        *port + 1
                    } else {
                        PORTS.start
                    };
                    connect(index, &orders[index], *port)
                });
                open.collect::<Vec<_>>()
            });
            connections.extend(opened);
        }
        // Refusals come back at once, in the same processor's queue; this is for those of another one.
        thread::sleep(Duration::from_millis(10));
        let refused = connections
            .into_iter()
            .map(|connection| (connection.refusal(), connection));
        // Without its socket, a request is not repeated.
        let sent: Vec<_> = refused.map(|(error, c)| (c.order, c.from, error)).collect();
        if begin.elapsed() > self.patience {
            return None;
        }
        let tracked = self.tracked();
        let got = self.network.drain();
        let seen = sent.into_iter().map(|(index, from, refusal)| {
            let seen = refusal.unwrap_or_else(|| seen(from, &orders[index].target, &tracked, &got));
            (index, Sent { from, seen })
        });
        Some(seen.collect())
    }

    fn flush(&self) {
        self.network.drain();
        self.network.node.run("conntrack -F -f ipv4");
        self.network.node.run("conntrack -F -f ipv6");
    }

    fn tracked(&self) -> HashMap<Key, conntrack::Entry> {
        let mut tracked = HashMap::new();
        for family in ["ipv4", "ipv6"] {
            let text = self.network.node.run(&format!("conntrack -L -f {family}"));
            for entry in conntrack::parse(&text).unwrap().entries {
                let original = entry.original;
                tracked.insert(
                    (entry.proto.number(), original.source, original.destination),
                    entry,
                );
            }
        }
        tracked
    }
}

type Key = (u8, SocketAddr, SocketAddr);

impl Connection {
    /// Returns the error that the sender got, if any.
    fn refusal(&self) -> Option<Seen> {
        let late = self.socket.take_error().unwrap();
        let error = late.as_ref().or(self.error.as_ref())?;
        // OUTPUT drops without an answer.
        let dropped = error.raw_os_error() == Some(Errno::EPERM as i32);
        Some(if dropped { Seen::Drop } else { Seen::Reject })
    }
}

fn seen(
    from: SocketAddr,
    target: &Target,
    tracked: &HashMap<Key, conntrack::Entry>,
    got: &HashSet<SocketAddr>,
) -> Seen {
    let to = SocketAddr::new(target.addr, target.port);
    let Some(entry) = tracked.get(&(target.proto.number(), from, to)) else {
        return Seen::Drop;
    };
    let (to, source) = (entry.reply.source, entry.reply.destination);
    // A packet of the node to itself is tracked once it leaves, and may be dropped when it enters.
    let arrived = match target.proto {
        Proto::Tcp | Proto::Icmp | Proto::Icmpv6 => !entry.unreplied,
        _ => got.contains(&source),
    };
    if NODE.contains(&to.ip().to_string().as_str()) && !arrived {
        return Seen::Drop;
    }
    Seen::Through { to, source }
}

/// The node's own addresses.
const NODE: &[&str] = &[
    "127.0.0.1",
    "10.0.2.15",
    "10.0.2.115",
    "10.244.1.1",
    "::1",
    "fd00:10:0:2::15",
    "fd00:10:244:1::1",
];

fn connect(index: usize, order: &Order, port: u16) -> Connection {
    let to = SocketAddr::new(order.target.addr, order.target.port);
    let any = match to {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = SocketAddr::new(order.source.addr.unwrap_or(any), port);
    let domain = Domain::for_address(to);
    let (kind, proto) = match order.target.proto {
        Proto::Tcp => (Type::STREAM, Protocol::TCP),
        Proto::Udp => (Type::DGRAM, Protocol::UDP),
        // The kernel may not have SCTP, but it tracks and translates it.
        Proto::Sctp => (Type::RAW, Protocol::from(132)),
        Proto::Icmp => (Type::RAW, Protocol::ICMPV4),
        Proto::Icmpv6 => (Type::RAW, Protocol::ICMPV6),
        other @ Proto::Other(_) => panic!("{other}"),
    };
    let socket = Socket::new(domain, kind, Some(proto)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let raw = kind == Type::RAW;
    let first = match order.target.proto {
        Proto::Icmp => echo(8, port),
        Proto::Icmpv6 => echo(128, port),
        _ => sctp_init(port, order.target.port),
    };
    // conntrack lists no ports of what has none.
    let port = if order.target.port == 0 { 0 } else { port };
    if order.target.proto == Proto::Tcp {
        // Closed with a reset, without TIME_WAIT.
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        socket.set_reuse_address(true).unwrap();
    }
    let bound = if raw {
        SocketAddr::new(from.ip(), 0)
    } else {
        from
    };
    socket
        .bind(&bound.into())
        .unwrap_or_else(|e| panic!("{from}: {e}"));
    let begun = if raw {
        let to = SocketAddr::new(to.ip(), 0);
        socket
            .connect(&to.into())
            .and_then(|()| socket.send(&first).map(drop))
    } else if order.target.proto == Proto::Udp {
        socket
            .connect(&to.into())
            .and_then(|()| socket.send(b"?").map(drop))
    } else {
        socket.connect(&to.into())
    };
    let local = socket.local_addr().ok().and_then(|a| a.as_socket());
    let local = local.map_or(from, |local| SocketAddr::new(local.ip(), port));
    let error = begun
        .err()
        .filter(|e| e.raw_os_error() != Some(EINPROGRESS));
    Connection {
        order: index,
        from: local,
        socket,
        error,
    }
}

const EINPROGRESS: i32 = 115;

/// An echo request of ICMP; the kernel fills in the checksum of `ICMPv6`.
fn echo(kind: u8, id: u16) -> Vec<u8> {
    // Small enough for a sum without a carry.
    let id = id & 0x3fff;
    let sum = !(u16::from(kind) * 256 + id + 1);
    let ([a, b], [c, d]) = (sum.to_be_bytes(), id.to_be_bytes());
    vec![kind, 0, a, b, c, d, 0, 1]
}

/// The INIT chunk that an SCTP association begins with.
fn sctp_init(from: u16, to: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20]);
    packet.extend(7u32.to_be_bytes());
    packet.extend(65536u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1u32.to_be_bytes());
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
