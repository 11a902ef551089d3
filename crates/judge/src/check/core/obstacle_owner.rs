//! Who sets what keeps packets from their way.

use crate::verdict::{AddressHolder, Arp, Obstacle, SilentMachine, Wayless};

/// Returns who sets `what`.
pub const fn obstacle_owner(what: &Obstacle) -> &'static str {
    match what {
        Obstacle::Unanswered {
            there: Some(there), ..
        } if there.own.is_some() => "addresses of the node",
        Obstacle::LinkForwarding { .. }
        | Obstacle::Forgotten { .. }
        | Obstacle::ReversePath { .. }
        | Obstacle::NoLocalPort { pod: None, .. }
        | Obstacle::FullNeighbours { .. }
        | Obstacle::Arp {
            by: Arp::Ignored(_) | Arp::Strict { .. },
            ..
        }
        | Obstacle::Ttl { pod: None, .. }
        | Obstacle::ProxyArp {
            no_route: false, ..
        }
        | Obstacle::Wayless {
            by: Wayless::NoAdvertisements(_) | Wayless::Ipv6Off(_),
            ..
        }
        | Obstacle::NoGateway { ipv6_off: true, .. } => "sysctl of the node",
        Obstacle::Wayless {
            by: Wayless::NoIpv6,
            ..
        } => "the kernel's command line",
        Obstacle::RouteBack { home: Some(_), .. } => "the CNI configuration of the node",
        Obstacle::RouteBack { home: None, .. }
        | Obstacle::DeadNextHop { .. }
        | Obstacle::Detour { rule: None, .. }
        | Obstacle::HiddenRoute { .. }
        | Obstacle::IntoTunnel { .. }
        | Obstacle::ReplyAway { .. }
        | Obstacle::ThirdNode { .. }
        | Obstacle::KeptByRoute { .. }
        | Obstacle::Unanswered { there: Some(_), .. }
        | Obstacle::ProxyArp { no_route: true, .. } => "routes of the node",
        Obstacle::Taken { inside: None, .. }
        | Obstacle::NoGateway { .. }
        | Obstacle::SameNetwork { .. }
        | Obstacle::Duplicate { .. }
        | Obstacle::NoLocalRoute { inside: None, .. }
        | Obstacle::HomeGone { .. } => "addresses of the node",
        Obstacle::Isolated { .. }
        | Obstacle::OnLink { .. }
        | Obstacle::SameTunnelEnd { .. }
        | Obstacle::UnallowedSource { .. }
        | Obstacle::ForeignTunnelEnd { .. }
        | Obstacle::InnerTunnelEnd { .. }
        | Obstacle::OffTunnel { .. }
        | Obstacle::TunnelSource { .. }
        | Obstacle::NoPeer { agent: Some(_), .. }
        | Obstacle::AddressGone { .. }
        | Obstacle::NoBridge { .. }
        | Obstacle::Beside { .. }
        | Obstacle::DuplicateInside { .. }
        | Obstacle::KeptHere { .. }
        | Obstacle::TwoPods { .. }
        | Obstacle::Unanswered {
            silent: Some(SilentMachine::PodHere(_)),
            ..
        } => "the network plugin",
        Obstacle::TunnelMac { .. } => "flannel",
        Obstacle::PastLocal { .. }
        | Obstacle::Detour { rule: Some(_), .. }
        | Obstacle::Wayless {
            by: Wayless::NoMain(_),
            ..
        } => "routing policy rules of the node",
        Obstacle::Xfrm { .. } => "IPsec of the node",
        Obstacle::Tc { inside: None, .. } => "traffic control of the node",
        Obstacle::Bound { .. } => "IPVS of the node",
        Obstacle::Unanswered {
            silent: Some(SilentMachine::Node(_)),
            ..
        } => "the machine of the Node",
        Obstacle::Unanswered {
            silent: Some(SilentMachine::ApiServer),
            ..
        } => "the API servers",
        Obstacle::Unanswered {
            silent: Some(SilentMachine::Listed { .. }),
            ..
        } => "what writes the EndpointSlice",
        Obstacle::Unanswered { inside: None, .. } => "the machine or pod with the address",
        Obstacle::Link { inside: None, .. }
        | Obstacle::NoPeer { agent: None, .. }
        | Obstacle::Arp { by: Arp::Off, .. }
        | Obstacle::Wayless {
            by: Wayless::Down(_),
            ..
        } => "links of the node",
        Obstacle::Arp {
            by: Arp::Dropped(_) | Arp::Unsolicited { .. } | Arp::There { .. },
            ..
        }
        | Obstacle::Tunnel { .. }
        | Obstacle::Proxied { .. }
        | Obstacle::Limited { .. } => "rules of the node",
        Obstacle::Ended { .. } => "the EndpointSlice controller",
        Obstacle::OtherMac { inside: None, .. } => "neighbours of the node",
        Obstacle::Deaf {
            stranger: Some(_), ..
        } => "the Service",
        Obstacle::Deaf { .. }
        | Obstacle::OwnEnd { .. }
        | Obstacle::NoLocalPort { pod: Some(_), .. }
        | Obstacle::OtherMac {
            inside: Some(_), ..
        }
        | Obstacle::Taken {
            inside: Some(_), ..
        }
        | Obstacle::FullQueue { .. }
        | Obstacle::NoLocalRoute {
            inside: Some(_), ..
        }
        | Obstacle::Ttl { pod: Some(_), .. }
        | Obstacle::Unanswered {
            inside: Some(_), ..
        }
        | Obstacle::Inside { .. }
        | Obstacle::InsideRoute { .. }
        | Obstacle::OtherSource { .. }
        | Obstacle::Strayed { .. }
        | Obstacle::Gatewayless { .. }
        | Obstacle::Link {
            inside: Some(_), ..
        }
        | Obstacle::Tc {
            inside: Some(_), ..
        } => "the pod",
        Obstacle::BlockedByCloud { cloud, .. } => cloud,
        Obstacle::NoCloudRoute { .. } => "the provider's route controller",
        Obstacle::HeldElsewhere {
            holder: AddressHolder::All(_),
            ..
        } => "the load balancer's pool",
        Obstacle::HeldElsewhere { .. } => "the other machine",
        Obstacle::NoSourcePort { .. } => "connection tracking of the node",
        Obstacle::Further { .. } => "rules and routes of the node",
    }
}
