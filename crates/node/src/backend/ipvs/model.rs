//! What the ipvs mode owns: virtual servers, and the addresses of kube-ipvs0.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

pub use crate::evidence::ipvs::{DUMMY, Forwarding, Info, Stats, Timeouts};
use crate::net::{Family, Proto};

/// The IPVS table of one network namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Table {
    /// Virtual servers; the order means nothing.
    pub servers: Vec<VirtualServer>,
    /// Timeouts, where they were read.
    pub timeouts: Option<Timeouts>,
    /// The kernel's IPVS version and connection hash size, where they were read.
    pub info: Option<Info>,
    /// Whether limits, scheduler flags and templates of persistence are not known: they are 0 then.
    pub partial: bool,
}

/// The packets that a virtual server serves.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Key {
    /// An address and port; port 0 means every port without a server of its own.
    Address {
        /// TCP, UDP or SCTP.
        proto: Proto,
        /// The address.
        addr: IpAddr,
        /// The port.
        port: u16,
    },
    /// Packets with a firewall mark.
    Fwmark {
        /// The mark.
        mark: u32,
        /// The family it balances.
        family: Family,
    },
}

/// One virtual server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VirtualServer {
    /// The packets that it serves.
    pub key: Key,
    /// The scheduler: `rr`, `lc`, …
    pub scheduler: String,
    /// Flags, without the kernel's own `HASHED` bit (0x2).
    pub flags: Flags,
    /// Persistence in seconds; 0 without it.
    pub timeout: u32,
    /// The granularity of persistence, as a prefix length (32 or 128 for single clients).
    pub prefix: u8,
    /// The persistence engine, such as `sip`.
    pub engine: Option<String>,
    /// The real servers, in any order.
    pub reals: Vec<RealServer>,
    /// Indexes of the real servers in the kernel's order, if the scheduler uses it; empty if unknown.
    pub order: Vec<usize>,
    /// Counters, where they were read.
    pub stats: Option<Stats>,
}

impl Key {
    /// Returns the address and port; `None` for a mark.
    pub fn socket(self) -> Option<SocketAddr> {
        match self {
            Self::Address { addr, port, .. } => Some(SocketAddr::new(addr, port)),
            Self::Fwmark { .. } => None,
        }
    }

    /// Returns the protocol; `None` for a mark.
    pub const fn proto(self) -> Option<Proto> {
        match self {
            Self::Address { proto, .. } => Some(proto),
            Self::Fwmark { .. } => None,
        }
    }

    /// Returns whether it answers to TCP.
    pub fn is_tcp(self) -> bool {
        matches!(
            self,
            Self::Address {
                proto: Proto::Tcp,
                ..
            }
        )
    }
}

impl VirtualServer {
    /// Returns whether both have the same options; real servers and counters do not count.
    pub fn has_options_of(&self, other: &Self) -> bool {
        let flags = |side: &Self| side.flags.0 & Flags::OPTIONS;
        // Without persistence, timeout and prefix mean nothing.
        let persistence = |side: &Self| {
            let persistent = side.flags.0 & Flags::PERSISTENT != 0;
            persistent.then_some((side.timeout, side.prefix))
        };
        self.scheduler == other.scheduler
            && flags(self) == flags(other)
            && persistence(self) == persistence(other)
            && self.engine == other.engine
    }

    /// Returns the server without counters and connections.
    #[must_use]
    pub fn without_counters(&self) -> Self {
        Self {
            reals: self
                .reals
                .iter()
                .map(RealServer::without_counters)
                .collect(),
            order: self.order.clone(),
            ..self.without_reals()
        }
    }

    /// Returns the server without counters and real servers.
    #[must_use]
    pub fn without_reals(&self) -> Self {
        Self {
            key: self.key,
            scheduler: self.scheduler.clone(),
            flags: self.flags,
            timeout: self.timeout,
            prefix: self.prefix,
            engine: self.engine.clone(),
            reals: Vec::new(),
            order: Vec::new(),
            stats: None,
        }
    }
}

/// Flags of a virtual server, as in `ip_vs.h`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags(pub u32);

impl Flags {
    /// `IP_VS_SVC_F_PERSISTENT`.
    pub const PERSISTENT: u32 = 0x1;
    /// `IP_VS_SVC_F_HASHED`, which the kernel sets on every virtual server.
    pub const HASHED: u32 = 0x2;
    /// `IP_VS_SVC_F_ONEPACKET`.
    pub const ONE_PACKET: u32 = 0x4;
    /// `IP_VS_SVC_F_SCHED1`: `sh-fallback`, `mh-fallback`.
    pub const SCHED1: u32 = 0x8;
    /// `IP_VS_SVC_F_SCHED2`: `sh-port`, `mh-port`.
    pub const SCHED2: u32 = 0x10;
    /// `IP_VS_SVC_F_SCHED3`.
    pub const SCHED3: u32 = 0x20;
    /// The flags that are configured rather than the kernel's own.
    pub const OPTIONS: u32 =
        Self::PERSISTENT | Self::ONE_PACKET | Self::SCHED1 | Self::SCHED2 | Self::SCHED3;
}

/// One real server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RealServer {
    /// The address.
    pub addr: IpAddr,
    /// The port.
    pub port: u16,
    /// The weight; 0 takes no new connections.
    pub weight: u32,
    /// How packets reach it.
    pub forwarding: Forwarding,
    /// No new connections above this many; 0 for no limit.
    pub upper: u32,
    /// New connections again below this many.
    pub lower: u32,
    /// Connections, where they were read.
    pub connections: Option<Connections>,
    /// Counters, where they were read.
    pub stats: Option<Stats>,
}

impl RealServer {
    /// Returns the address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.addr, self.port)
    }

    /// Returns whether both have the same options; counters do not count.
    pub fn has_options_of(&self, other: &Self) -> bool {
        let options = |side: &Self| (side.weight, side.forwarding, side.upper, side.lower);
        options(self) == options(other)
    }

    /// Returns the server without counters and connections.
    #[must_use]
    pub fn without_counters(&self) -> Self {
        Self {
            connections: None,
            stats: None,
            ..self.clone()
        }
    }
}

/// Connections of a real server.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Connections {
    /// Established.
    pub active: u32,
    /// Closing, or without a state.
    pub inactive: u32,
    /// Persistence templates.
    pub persistent: u32,
}
