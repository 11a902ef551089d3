//! What obstacles do to packets.

use super::{AddressHolder, Obstacle, Which, WrongMac};
use crate::verdict::Fate;

impl Obstacle {
    /// Returns its place on the packet's way: a smaller number is earlier, as for causes.
    pub const fn stage(&self) -> u8 {
        match self {
            Self::LinkForwarding { .. } | Self::Xfrm { .. } => 9,
            Self::Proxied { .. } => 4,
            Self::Limited { .. } => 10,
            Self::NoLocalPort { .. }
            | Self::Forgotten { .. }
            | Self::InsideRoute { reply: false, .. }
            | Self::OtherSource { .. }
            | Self::Strayed { reply: false, .. }
            | Self::Gatewayless { .. }
            | Self::Beside { reply: false, .. }
            | Self::ProxyArp { .. }
            | Self::NoGateway { .. }
            | Self::OwnEnd { .. }
            | Self::HeldElsewhere { .. }
            | Self::OtherMac {
                inside: Some(_), ..
            }
            | Self::Unanswered {
                inside: Some(_), ..
            } => 0,
            Self::OnLink { .. } => 1,
            Self::Bound { .. } => 2,
            Self::ReversePath { .. }
            | Self::RouteBack { .. }
            | Self::NoBridge { .. }
            | Self::NoLocalRoute { inside: None, .. }
            | Self::Duplicate { .. }
            | Self::Taken { end: None, .. } => 3,
            Self::Taken { end: Some(_), .. }
            | Self::Wayless { .. }
            | Self::ReplyAway { .. }
            | Self::KeptByRoute { .. }
            | Self::PastLocal { .. } => 8,
            Self::Deaf { .. }
            | Self::Inside { .. }
            | Self::InsideRoute { reply: true, .. }
            | Self::Strayed { reply: true, .. }
            | Self::Beside { reply: true, .. }
            | Self::FullQueue { .. }
            | Self::TwoPods { .. }
            | Self::AddressGone { .. }
            | Self::NoLocalRoute {
                inside: Some(_), ..
            }
            | Self::DuplicateInside { .. }
            | Self::KeptHere { .. }
            | Self::Ended { .. } => 12,
            Self::Isolated { .. }
            | Self::SameNetwork { .. }
            | Self::UnallowedSource { .. }
            | Self::SameTunnelEnd { .. }
            | Self::TunnelMac { .. }
            | Self::ForeignTunnelEnd { .. }
            | Self::InnerTunnelEnd { .. }
            | Self::OffTunnel { .. }
            | Self::TunnelSource { .. }
            | Self::BlockedByCloud { .. }
            | Self::NoCloudRoute { .. }
            | Self::HomeGone { .. }
            | Self::OtherMac { .. }
            | Self::Unanswered { .. }
            | Self::NoSourcePort { .. }
            | Self::NoPeer { .. }
            | Self::DeadNextHop { .. }
            | Self::Detour { .. }
            | Self::HiddenRoute { .. }
            | Self::IntoTunnel { .. }
            | Self::ThirdNode { .. }
            | Self::Arp { .. }
            | Self::FullNeighbours { .. }
            | Self::Tunnel { .. }
            | Self::Ttl { .. }
            | Self::Link { .. }
            | Self::Further { .. }
            | Self::Tc { .. } => 11,
        }
    }

    /// Returns what happens to a packet.
    pub const fn fate(&self) -> Fate {
        match self {
            Self::Taken {
                end: Some((_, Some(_))),
                ..
            }
            | Self::Proxied { .. }
            | Self::HeldElsewhere {
                holder: AddressHolder::Machine(_) | AddressHolder::Gateway(_),
                ..
            }
            | Self::KeptHere { now: Some(_), .. }
            | Self::Ended { now: Some(_), .. } => Fate::Misled,
            Self::Taken {
                end: Some((_, None)),
                ..
            }
            | Self::Deaf { .. }
            | Self::OwnEnd { .. }
            | Self::NoLocalPort { .. }
            | Self::HeldElsewhere {
                holder: AddressHolder::All(_),
                ..
            }
            | Self::InsideRoute { reply: false, .. }
            | Self::Inside { refused: true, .. }
            | Self::Wayless { refused: true, .. }
            | Self::RouteBack { refused: true, .. }
            | Self::HomeGone { refused: true, .. }
            | Self::Xfrm { refused: true, .. } => Fate::Refused,
            Self::FullQueue {
                of_sockets: (full, all),
                ..
            } if *full < *all => Fate::Partly,
            Self::DeadNextHop { .. }
            | Self::TwoPods { .. }
            | Self::TunnelMac {
                wrong: WrongMac::OfTwo { .. },
                ..
            }
            | Self::Limited { .. }
            | Self::FullNeighbours { .. }
            | Self::Further {
                which: Which::Datagram,
                ..
            } => Fate::Partly,
            Self::LinkForwarding { .. }
            | Self::Forgotten { .. }
            | Self::OnLink { .. }
            | Self::SameTunnelEnd { .. }
            | Self::SameNetwork { .. }
            | Self::UnallowedSource { .. }
            | Self::TunnelMac { .. }
            | Self::ForeignTunnelEnd { .. }
            | Self::InnerTunnelEnd { .. }
            | Self::OffTunnel { .. }
            | Self::TunnelSource { .. }
            | Self::OtherMac { .. }
            | Self::AddressGone { .. }
            | Self::NoLocalRoute { .. }
            | Self::HomeGone { refused: false, .. }
            | Self::Duplicate { .. }
            | Self::DuplicateInside { .. }
            | Self::KeptHere { now: None, .. }
            | Self::ProxyArp { .. }
            | Self::NoGateway { .. }
            | Self::Wayless { refused: false, .. }
            | Self::ReversePath { .. }
            | Self::RouteBack { refused: false, .. }
            | Self::ReplyAway { .. }
            | Self::KeptByRoute { .. }
            | Self::PastLocal { .. }
            | Self::NoBridge { .. }
            | Self::Strayed { .. }
            | Self::Gatewayless { .. }
            | Self::Beside { .. }
            | Self::Isolated { .. }
            | Self::Unanswered { .. }
            | Self::NoSourcePort { .. }
            | Self::NoPeer { .. }
            | Self::OtherSource { .. }
            | Self::BlockedByCloud { .. }
            | Self::NoCloudRoute { .. }
            | Self::IntoTunnel { .. }
            | Self::Detour { .. }
            | Self::HiddenRoute { .. }
            | Self::ThirdNode { .. }
            | Self::Arp { .. }
            | Self::Tunnel { .. }
            | Self::Ttl { .. }
            | Self::FullQueue { .. }
            | Self::Link { .. }
            | Self::InsideRoute { reply: true, .. }
            | Self::Ended { now: None, .. }
            | Self::Tc { .. }
            | Self::Bound { .. }
            | Self::Xfrm { refused: false, .. }
            | Self::Inside { refused: false, .. }
            | Self::Further { .. }
            | Self::Taken { end: None, .. } => Fate::Lost,
        }
    }
}

impl Obstacle {
    /// Returns the share of the packets that it stops: 0 to 1.
    pub(in crate::verdict) fn failing(&self) -> f64 {
        match self {
            Self::DeadNextHop { route, .. } => {
                1.0 / f64::from(u32::try_from(route.nexthops.len()).unwrap_or(u32::MAX))
            }
            Self::TwoPods { .. }
            | Self::TunnelMac {
                wrong: WrongMac::OfTwo { .. },
                ..
            } => 0.5,
            _ => 1.0,
        }
    }
}
