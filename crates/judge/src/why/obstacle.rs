//! Obstacles as causes: their place on the way, and their repair.

use crate::repair::{Repair, RulePlace};
use crate::verdict::{
    DEFAULT_RANGE, DEFAULT_TTL, LinkState, Obstacle, PORT_RANGE, RESERVED_PORTS, Wayless, sysctl_of,
};
use kpx_node::net::{Cidr, Proto};
use kpx_node::node::routes::PolicyRule;

/// Returns the repairs that remove it.
pub(super) fn repairs(what: &Obstacle) -> Vec<Repair> {
    match what {
        Obstacle::LinkForwarding { link } => {
            vec![Repair::Set(sysctl_of(link, "forwarding"), "1")]
        }
        Obstacle::Forgotten { key, usual } => vec![Repair::Set((*key).to_owned(), usual)],
        Obstacle::ReversePath { even_loose: true, link, .. } => ["all", link]
            .map(|link| Repair::Set(sysctl_of(link, "rp_filter"), "0"))
            .into(),
        Obstacle::ReversePath { link, .. } => vec![Repair::Set(sysctl_of(link, "rp_filter"), "2")],
        // The pods of another Node need the route, or other packets of the pods the rule.
        Obstacle::RouteBack { home: Some(_), .. } | Obstacle::PastLocal { .. } => Vec::new(),
        Obstacle::RouteBack {
            before: Some(rule), ..
        } => vec![Repair::AddPolicyRule(rule.clone())],
        Obstacle::ReplyAway {
            client,
            rule: Some(rule),
            ..
        } => {
            let past = rule.bypass(Cidr::host(*client));
            past.map(|past| Repair::AddPolicyRule(Box::new(past)))
                .into_iter()
                .collect()
        }
        Obstacle::KeptByRoute {
            rule: Some(rule), ..
        }
        | Obstacle::Detour {
            rule: Some(rule), ..
        }
        | Obstacle::ThirdNode {
            rule: Some(rule), ..
        } => vec![Repair::RemovePolicyRule(rule.clone())],
        Obstacle::KeptByRoute { route, .. }
        | Obstacle::ThirdNode { route, .. }
        | Obstacle::Detour { route, .. }
        | Obstacle::HiddenRoute { route, .. }
        | Obstacle::Tunnel { route: Some(route), .. }
        | Obstacle::ReplyAway { route, .. }
        | Obstacle::IntoTunnel { route, .. } => vec![Repair::RemoveRoute(route.clone())],
        Obstacle::RouteBack { route, .. } => route
            .iter()
            .map(|route| Repair::RemoveRoute(route.clone()))
            .collect(),
        Obstacle::Xfrm { policies, .. } => policies
            .iter()
            .map(|policy| Repair::RemoveXfrm(Box::new(policy.clone())))
            .collect(),
        Obstacle::Tc {
            inside: Some((pod, _)),
            ..
        } => vec![Repair::OpenPod(*pod)],
        Obstacle::Tc { link, filter, .. } => {
            vec![Repair::RemoveFilter(link.clone(), filter.clone())]
        }
        Obstacle::Further {
            missing: Some((range, by, link)),
            ..
        } => vec![Repair::RoutePodsThere(*range, *by, link.clone())],
        Obstacle::Unanswered {
            there: Some(there), ..
        } => vec![Repair::RoutePodsThere(
            there.range,
            there.by,
            there.link.clone(),
        )],
        Obstacle::Deaf { at, .. } | Obstacle::FullQueue { at, .. } => {
            vec![Repair::OpenPod(at.ip())]
        }
        Obstacle::Ttl { pod: None, .. } => vec![Repair::Set(DEFAULT_TTL.to_owned(), "64")],
        Obstacle::Ttl {
            pod: Some((pod, _)),
            ..
        }
        | Obstacle::Unanswered {
            inside: Some((pod, _)),
            ..
        }
        | Obstacle::OtherMac {
            inside: Some((pod, _)),
            ..
        }
        | Obstacle::Taken {
            inside: Some((pod, _)),
            ..
        }
        | Obstacle::OwnEnd { pod, .. }
        | Obstacle::Inside { pod, .. }
        | Obstacle::InsideRoute { pod, .. }
        | Obstacle::OtherSource { pod, .. }
        | Obstacle::Strayed { pod, .. }
        | Obstacle::Gatewayless { pod, .. }
        | Obstacle::Link {
            inside: Some((pod, _)),
            ..
        }
        | Obstacle::NoLocalPort {
            to: None,
            pod: Some((pod, _)),
            ..
        } => vec![Repair::OpenPod(*pod)],
        Obstacle::Link { link, state, .. } => {
            let bridge = match state {
                LinkState::NoPortOf(bridge) => Some(bridge.clone()),
                _ => None,
            };
            vec![Repair::RaiseLink(link.clone(), bridge)]
        }
        Obstacle::Bound { ends: false, .. } => vec![Repair::Set(
            "net.ipv4.vs.expire_quiescent_template".to_owned(),
            "1",
        )],
        Obstacle::FullNeighbours { key, .. } => vec![Repair::Set((*key).to_owned(), "1000000")],
        Obstacle::NoLocalPort {
            to: Some(to),
            pod: Some(_),
            ..
        } => vec![Repair::EndTracked(*to, Proto::Tcp)],
        Obstacle::NoSourcePort { to, .. } => [Proto::Tcp, Proto::Udp]
            .into_iter()
            .map(|proto| Repair::EndTracked(*to, proto))
            .collect(),
        Obstacle::NoLocalPort { reserved: 1.., .. } => {
            vec![
                Repair::Set(RESERVED_PORTS.to_owned(), ""),
                Repair::Set(PORT_RANGE.to_owned(), DEFAULT_RANGE),
            ]
        }
        Obstacle::NoLocalPort { .. } => {
            vec![Repair::Set(PORT_RANGE.to_owned(), DEFAULT_RANGE)]
        }
        Obstacle::OnLink { .. }
        | Obstacle::Bound { ends: true, .. }
        | Obstacle::SameTunnelEnd { .. }
        | Obstacle::TunnelMac { .. }
        | Obstacle::UnallowedSource { .. }
        | Obstacle::NoGateway { .. }
        | Obstacle::ForeignTunnelEnd { .. }
        | Obstacle::InnerTunnelEnd { .. }
        | Obstacle::OffTunnel { .. }
        | Obstacle::TunnelSource { .. }
        | Obstacle::BlockedByCloud { .. }
        | Obstacle::NoCloudRoute { .. }
        | Obstacle::OtherMac { inside: None, .. }
        | Obstacle::AddressGone { .. }
        | Obstacle::NoLocalRoute { .. }
        | Obstacle::HomeGone { .. }
        | Obstacle::NoBridge { .. }
        | Obstacle::Beside { .. }
        | Obstacle::Duplicate { .. }
        | Obstacle::HeldElsewhere { .. }
        | Obstacle::DuplicateInside { .. }
        | Obstacle::KeptHere { .. }
        | Obstacle::ProxyArp { no_route: true, .. }
        | Obstacle::Wayless {
            by: Wayless::Down(_)
                | Wayless::NoAdvertisements(_)
                | Wayless::NoIpv6
                | Wayless::Ipv6Off(_),
            ..
        }
        | Obstacle::Unanswered { inside: None, .. }
        | Obstacle::NoPeer { .. }
        | Obstacle::DeadNextHop { .. }
        // Failed neighbour entries stay failed in the snapshot.
        | Obstacle::Arp { .. }
        | Obstacle::Tunnel { route: None, .. }
        | Obstacle::Ended { .. }
        | Obstacle::TwoPods { .. }
        | Obstacle::Further { .. } => Vec::new(),
        Obstacle::ProxyArp { link, .. } => vec![Repair::Set(sysctl_of(link, "proxy_arp"), "1")],
        Obstacle::Wayless {
            by: Wayless::NoMain(family),
            ..
        } => vec![Repair::AddPolicyRule(Box::new(PolicyRule::main(*family)))],
        Obstacle::Proxied { by, .. } | Obstacle::Limited { by, .. } => RulePlace::of(&by.rule)
            .map(Repair::Pass)
            .into_iter()
            .collect(),
        Obstacle::Isolated { bridge } => vec![Repair::JoinPorts(bridge.clone())],
        Obstacle::SameNetwork { link, address, .. } => {
            vec![Repair::RemoveAddress(address.addr, link.clone())]
        }
        Obstacle::Taken { address, link, .. } => {
            vec![Repair::RemoveAddress(*address, link.clone())]
        }
    }
}
