//! A tracked connection as its counters need it, without the text of `conntrack -L`.

use std::net::SocketAddr;

use crate::net::Proto;

/// A tracked TCP, UDP or SCTP connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tracked {
    /// Transport protocol.
    pub proto: Proto,
    /// The client.
    pub source: SocketAddr,
    /// The destination of the first packet.
    pub destination: SocketAddr,
    /// The source of the answers: the backend, if the destination was translated.
    pub backend: SocketAddr,
    /// The kernel's number of the entry (`CTA_ID`); 0 if it has none. Another connection may have the same.
    pub id: u32,
    /// How far it is.
    pub phase: Phase,
    /// Packets and bytes of both directions; `None` unless `net.netfilter.nf_conntrack_acct` is set.
    pub counted: Option<(u64, u64)>,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Phase {
    /// It waits for the first answer.
    Waiting,
    /// Both sides may send.
    Open,
    /// It has ended; the kernel keeps the entry for a while.
    Ended,
}
