//! Programs that listen, and leave connections or datagrams waiting.

use std::net::SocketAddr;

use super::{Fault, Missing, Obstacle};
use kpx_node::net::Proto;
use kpx_node::node::sockets::{Queue, Sockets};

/// The bytes of datagrams that wait for a program of which it is not known whether it still reads.
pub(super) const MANY_UNREAD: u32 = 8 * 1024;

/// Returns the protocol of which a socket takes address and port `end`, where none of `proto` does.
pub(super) fn instead(sockets: &Sockets, proto: Proto, end: SocketAddr) -> Option<Proto> {
    let mut others = [Proto::Tcp, Proto::Udp]
        .into_iter()
        .filter(|other| *other != proto);
    others.find(|other| {
        sockets
            .taking(*other, end.ip(), end.port())
            .next()
            .is_some()
    })
}

/// Returns the fault of endpoint `at` whose program listens at `end` in these sockets and leaves connections or datagrams waiting.
pub(super) fn hung(
    sockets: &Sockets,
    proto: Proto,
    at: SocketAddr,
    end: SocketAddr,
) -> Option<Fault> {
    if proto == Proto::Udp {
        let unread = sockets
            .taking(proto, end.ip(), end.port())
            .filter_map(|socket| socket.unread)
            .max()?;
        return (unread >= MANY_UNREAD).then_some(Fault::Unknown(Missing::Unread { at, unread }));
    }
    let queues: Vec<Queue> = sockets.queues(end.ip(), end.port()).collect();
    let full = queues.iter().filter(|queue| queue.is_full());
    let fullest = queues.iter().max_by_key(|queue| queue.waiting)?;
    let Queue { waiting, most } = *fullest;
    if full.clone().next().is_some() {
        let of_sockets = (full.count(), queues.len());
        let full = Obstacle::FullQueue {
            at,
            waiting,
            most,
            of_sockets,
        };
        return Some(Fault::Obstacle(Box::new(full)));
    }
    (waiting > 0).then_some(Fault::Unknown(Missing::Waiting { at, waiting }))
}
