//! The packet being traced, and the likelihood of a match.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::hop::Question;
use crate::net::{Family, Proto};

/// Where a packet enters the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry {
    /// Sent by a pod of this node: comes in through the pod's link.
    Pod,
    /// Sent by a process in the node's own network.
    Host,
    /// Comes in through the uplink.
    Outside,
}

/// The first packet of a flow, as it is sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Flow {
    /// Where it enters.
    pub entry: Entry,
    /// The source address; `None` lets the node choose, for [`Entry::Host`].
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// TCP, UDP or SCTP, or ICMP for an echo request.
    pub proto: Proto,
    /// Whether the connection is already there.
    pub established: bool,
}

/// A packet on its way, with what the kernel keeps beside it.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the kernel keeps each of these separately"
)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The destination port; the source port is some ephemeral one.
    pub(crate) port: u16,
    pub(crate) proto: Proto,
    pub(crate) mark: u32,
    pub(crate) ct_mark: u32,
    /// The mark that nat chains left on the first packet, where this is a later one.
    pub(crate) first_mark: Option<u32>,
    /// The link it came in by; `None` for packets of the node itself, and where IPVS sends it again.
    pub(crate) input: Link,
    /// The link it goes out by, once routed.
    pub(crate) output: Link,
    /// The link it goes out by after `OUTPUT`, if it was rerouted there: the rules of `OUTPUT` still see the first.
    pub(crate) rerouted: Option<Link>,
    /// Whether it goes from port to port of one bridge, so that only `br_netfilter` shows it to the rules of IP.
    pub(crate) bridged: bool,
    /// Whether the destination was translated by a nat rule.
    pub(crate) dnat: bool,
    /// Whether the source was translated.
    pub(crate) snat: bool,
    /// Whether it is not tracked.
    pub(crate) untracked: bool,
    /// Whether the connection is already there.
    pub(crate) established: bool,
    /// Whether nat decided on the destination, and on the source: once per connection.
    pub(crate) bound: [bool; 2],
    /// The virtual server that accepted it: protocol, address, port.
    pub(crate) virtual_server: Option<(Proto, IpAddr, u16)>,
    /// The address and port it was sent to.
    pub(crate) original: (IpAddr, u16),
    /// The address it was sent from.
    pub(crate) original_source: IpAddr,
}

/// A link a packet passes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Link {
    /// None.
    None,
    /// This one.
    Named(String),
    /// An unknown link.
    Unknown,
}

impl Packet {
    /// Returns the first packet of `flow`, before it is routed.
    pub(crate) fn of(flow: &Flow) -> Self {
        let unspecified = match Family::of(flow.destination) {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self {
            source: flow.source.unwrap_or(unspecified),
            destination: flow.destination,
            port: flow.port,
            proto: flow.proto,
            mark: 0,
            ct_mark: 0,
            first_mark: None,
            input: Link::None,
            output: Link::None,
            rerouted: None,
            bridged: false,
            dnat: false,
            snat: false,
            untracked: false,
            established: flow.established,
            bound: [false; 2],
            virtual_server: None,
            original: (flow.destination, flow.port),
            original_source: flow.source.unwrap_or(flow.destination),
        }
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.destination)
    }
}

/// The likelihood that a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Likelihood {
    /// The probability that it does, apart from unknown facts: 0 to 1.
    pub(crate) chance: f64,
    /// The unknown facts that decide it; empty when it is decided.
    pub(crate) undecided: Vec<Question>,
}

impl Likelihood {
    pub(crate) const NO: Self = Self {
        chance: 0.0,
        undecided: Vec::new(),
    };
    pub(crate) const YES: Self = Self {
        chance: 1.0,
        undecided: Vec::new(),
    };

    pub(crate) fn sure(holds: bool) -> Self {
        if holds { Self::YES } else { Self::NO }
    }

    pub(crate) fn chance(chance: f64) -> Self {
        Self {
            chance,
            undecided: Vec::new(),
        }
    }

    pub(crate) fn unknown(what: impl Into<String>) -> Self {
        Self::undecided(Question::Other(what.into()))
    }

    pub(crate) fn undecided(question: Question) -> Self {
        Self {
            chance: 1.0,
            undecided: vec![question],
        }
    }

    pub(crate) fn is_no(&self) -> bool {
        self.chance == 0.0
    }

    /// Returns the likelihood that this does not hold, if `not`.
    pub(crate) fn not(self, not: bool) -> Self {
        match (not, self.undecided.is_empty()) {
            (false, _) | (true, false) => self,
            (true, true) => Self::chance(1.0 - self.chance),
        }
    }

    /// Returns the likelihood that both hold.
    pub(crate) fn and(mut self, other: Self) -> Self {
        if self.is_no() || other.is_no() {
            return Self::NO;
        }
        self.undecided.extend(other.undecided);
        Self {
            chance: self.chance * other.chance,
            undecided: self.undecided,
        }
    }
}
