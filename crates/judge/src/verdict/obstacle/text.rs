//! Obstacles in words.

use std::fmt;

use super::tunnel::off_tunnel;
use super::{
    AddressHolder, DEFAULT_TTL, FilterReason, Obstacle, SameNetworkAs, SilentMachine, WayThere,
    Wayless, Which, WrongMac, accept_ra_of, disable_ipv6_of, route_words, sysctl_of,
};
use crate::trace::mismatch::listed;
use crate::verdict::local_ports::{MASQUERADED_PORTS, PORT_RANGE, RESERVED_PORTS};
use kpx_node::net::{Cidr, Proto};
use kpx_node::node::routes::Route;
use kpx_node::node::xfrm::Policy;

/// Returns what a tunnel sends its packets in: `UDP port 8472`.
fn carrier_words((proto, port): (Proto, u16)) -> String {
    match (proto, port) {
        (Proto::Udp, port) => format!("UDP port {port}"),
        (other, _) => format!("protocol {}", other.number()),
    }
}

impl fmt::Display for Obstacle {
    /// Writes a sentence without its subject's name and without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkForwarding { link } => write!(
                f,
                "{} is 0, so the node forwards no packets that come in by {link}",
                sysctl_of(link, "forwarding")
            ),
            Self::Forgotten { key, .. } => write!(
                f,
                "{key} is 0, so the node forgets connections at once and does not translate their replies back"
            ),
            Self::ReversePath {
                link,
                source,
                back,
                even_loose,
                because,
            } => {
                if let Some(FilterReason::InPodRange { range, address }) = because {
                    write!(
                        f,
                        "clusterCIDR {range} contains {address}, the node's own address, so kube-proxy does not masquerade its connections: "
                    )?;
                }
                let which = if *even_loose { "" } else { "strict " };
                write!(
                    f,
                    "the {which}rp_filter of {link} drops packets from {source}: "
                )?;
                match back {
                    Some(back) if *even_loose => write!(
                        f,
                        "the route back leads by {back}, and {link} has no IPv4 address"
                    ),
                    Some(back) => write!(f, "the route back leads by {back}"),
                    None => f.write_str("no route leads back"),
                }
            }
            Self::RouteBack {
                pod,
                home: Some(home),
                ..
            } => write!(f, "pod {pod} runs on this node, but {home}"),
            Self::RouteBack {
                pod,
                link,
                way,
                route,
                ..
            } => match (route, way) {
                (Some(route), _) => write!(
                    f,
                    "packets from pod {pod} come in by {link}, but the {} leads elsewhere: replies to the pod are lost",
                    route_words(route)
                ),
                (None, Some(way)) => write!(
                    f,
                    "no route leads to pod {pod} by its link {link}: packets to it leave by {way}, and are lost"
                ),
                (None, None) => write!(f, "no route leads to pod {pod} by its link {link}"),
            },
            Self::IntoTunnel {
                link,
                to,
                node: Some(node),
                route,
            } => write!(
                f,
                "the packets of tunnel {link} to {to} of node {node} enter the tunnel again: the {} leads there",
                route_words(route)
            ),
            Self::IntoTunnel {
                link, to, route, ..
            } => write!(
                f,
                "packets to {to} enter tunnel {link}, which leads to pods alone: the {} leads there",
                route_words(route)
            ),
            Self::ReplyAway {
                client,
                address,
                wire,
                route,
                rule,
                is_vpn,
                ..
            } => {
                let link = route.devices().first().copied().unwrap_or_default();
                write!(f, "replies to {client} leave by {link}, not by {wire}, which has the network of {address}: the {} leads there", route_words(route))?;
                if let Some(rule) = rule {
                    write!(f, " (routing policy rule {}: {rule})", rule.priority)?;
                }
                f.write_str(if *is_vpn {
                    ", and a VPN sends them from another address or drops them"
                } else {
                    ", where no router is"
                })
            }
            Self::KeptHere {
                address,
                pod,
                node,
                link,
                bridge,
                now,
            } => {
                write!(f, "{address} is the address of pod {pod} on node {node}, but in ")?;
                match bridge {
                    Some(range) => write!(f, "{range}, a network of its own on each node,")?,
                    None => f.write_str("the range of this node's pods,")?,
                }
                write!(f, " so packets for it leave by {link}")?;
                match now {
                    Some(now) => write!(f, ", and pod {now} gets them"),
                    None => f.write_str(", where no pod has it"),
                }
            }
            Self::PastLocal {
                address,
                holder,
                link,
                rule,
            } => write!(
                f,
                "routing policy rule {} ({rule}) comes before the table local and leads packets for {address}, the address of {holder} on \
                 this node, out by {link}",
                rule.priority
            ),
            Self::KeptByRoute { route, .. } if route.kind == "broadcast" => write!(
                f,
                "the node takes {} for a broadcast address, to which no connection leads: table {} has the route {route}",
                route.destination.addr, route.table
            ),
            Self::KeptByRoute { route, .. } => write!(
                f,
                "the packets end at the node itself, which does not have their destination: table {} has the route {route}, which is for \
                 packets to programs on the node",
                route.table
            ),
            Self::SameNetwork {
                link,
                address,
                others: SameNetworkAs::Client { client, .. },
            } => write!(
                f,
                "{link}, a bridge inside the node, has {address}, and replies to {client} stay there, as the route to that network leads \
                 by it"
            ),
            Self::SameNetwork {
                link,
                address,
                others: SameNetworkAs::Endpoint(endpoint),
            } => write!(
                f,
                "{link}, a bridge inside the node, has {address}, so packets for the endpoint {endpoint} stay there, where nothing has the \
                 address"
            ),
            Self::SameNetwork {
                link,
                address,
                others: SameNetworkAs::PodsOf { node, .. },
            } => write!(
                f,
                "{link}, a bridge inside the node, has {address}, of the network of the pods of node {node}, and the route to them leads by \
                 it"
            ),
            Self::SameNetwork {
                link,
                address,
                others: SameNetworkAs::Pods(bridge),
            } => write!(
                f,
                "{link} has {address}, of the network of the pods on bridge {bridge}, and the route to them leads by {link}"
            ),
            Self::NoBridge { gateway, link, .. } => write!(
                f,
                "the bridge of the pods is gone: {link} is a port of none, and no link of the node has {gateway}, the gateway of the pod"
            ),
            Self::Strayed {
                pod,
                link,
                kind,
                range,
                to,
                reply,
                ..
            } => {
                let what = if *reply { "its replies" } else { "its packets" };
                let kind = match kind.as_str() {
                    "" => String::new(),
                    kind => format!(" ({kind})"),
                };
                let to = match range {
                    Some(range) if *range != Cidr::host(*to) => format!("{to}, in {range},"),
                    _ => to.to_string(),
                };
                write!(
                    f,
                    "in the network of pod {pod}, {what} to {to} leave by {link}{kind}, which does not lead to the node, so no rule of \
                     the node translates them"
                )
            }
            Self::Gatewayless {
                pod, link, route, ..
            } => write!(
                f,
                "pod {pod} looks for addresses in {route} on its own link {link}, where no machine has them: that route has no gateway, so \
                 the packets never reach the node"
            ),
            Self::Beside {
                pod,
                kind,
                parent,
                reply,
            } => {
                if *reply {
                    write!(
                        f,
                        "pod {pod} has a link of type {kind} on {parent}, which accepts no packets from the node itself, or from \
                         pods through the node"
                    )
                } else {
                    write!(
                        f,
                        "pod {pod} has a link of type {kind} on {parent}: its packets leave there without passing the node's rules, so none \
                         translates them"
                    )
                }
            }
            Self::Xfrm { policies, .. } => {
                let (blocking, unmet): (Vec<_>, Vec<_>) =
                    policies.iter().partition(|policy| policy.blocks);
                let named = |all: &[&Policy]| {
                    let texts: Vec<_> = all.iter().map(|policy| format!("`{policy}`")).collect();
                    let noun = if all.len() == 1 { "policy" } else { "policies" };
                    format!("the xfrm {noun} {} (IPsec)", listed(&texts))
                };
                if !blocking.is_empty() {
                    let verb = if blocking.len() == 1 { "blocks" } else { "block" };
                    write!(f, "{} {verb} the packets", named(&blocking))?;
                }
                if !blocking.is_empty() && !unmet.is_empty() {
                    f.write_str("; ")?;
                }
                if !unmet.is_empty() {
                    write!(f, "no security association exists for {}: the packets are dropped", named(&unmet))?;
                }
                Ok(())
            }
            Self::Tc {
                link,
                filter,
                inside,
                reply,
            } => {
                let what = if *reply { "the replies" } else { "the packets" };
                let whose = match inside {
                    Some((pod, pid)) => format!(" in the network of pod {pod} (process {pid})"),
                    None => String::new(),
                };
                match filter {
                    Some(filter) => {
                        write!(f, "the tc filter `{filter}` of {link}{whose} drops {what}")
                    }
                    None => write!(f, "the tc qdisc of {link}{whose} loses {what}"),
                }
            }
            Self::OnLink {
                address,
                link,
                network,
            } => write!(
                f,
                "{address} is in the network {network} of {link}, the pods' own link: pods look for it there, and their packets \
                 do not reach the rules of the node"
            ),
            Self::Proxied {
                by, port, program, ..
            } => write!(
                f,
                "rule {} of chain {} in table {} (TPROXY) hands the packets to {program} at port {port}, which answers in place of the \
                 Service",
                by.rule.number, by.rule.chain, by.rule.table
            ),
            Self::FullNeighbours { key, entries, most } => write!(
                f,
                "the neighbour table is full ({entries} of {most} entries, {key}): packets to pods and machines without an entry are dropped"
            ),
            Self::NoLocalPort {
                to,
                first,
                last,
                reserved,
                pod,
            } => {
                match pod {
                    Some((pod, _)) => write!(
                        f,
                        "pod {pod} has no port left to connect from: every port that it may use"
                    ),
                    None => f.write_str(
                        "clients on the node have no port left to connect from: every port that the kernel gives them",
                    ),
                }?;
                write!(f, " ({PORT_RANGE}, {first}-{last}")?;
                match to {
                    None => write!(f, ") is reserved ({RESERVED_PORTS})"),
                    Some(to) if *reserved > 0 => write!(
                        f,
                        ", without {reserved} of {RESERVED_PORTS}) has a connection to {to}"
                    ),
                    Some(to) => write!(f, ") has a connection to {to}"),
                }
            }
            Self::NoSourcePort { source, to, used } => write!(
                f,
                "{used} of the {MASQUERADED_PORTS} source ports that masquerading may give to connections from {source} to {to} are in \
                 use, so new connections are dropped"
            ),
            Self::TwoPods {
                address,
                pods: [one, other],
            } => write!(
                f,
                "pods {one} and {other} both have the address {address}, and connections reach the one or the other"
            ),
            Self::SameTunnelEnd {
                node,
                address,
                annotation,
            } => write!(
                f,
                "this node and node {node} announce the same address, {address}, to each other (annotation {annotation}): neither finds \
                 the way to the other's pods"
            ),
            Self::ForeignTunnelEnd {
                node,
                address,
                annotation,
            } => write!(
                f,
                "node {node} announces {address} for its tunnels (annotation {annotation}), which is no address of that Node, so \
                 packets to its pods do not reach it"
            ),
            Self::InnerTunnelEnd {
                link,
                address,
                annotation,
            } => write!(
                f,
                "the network plugin took {address} of {link} for this node's address (annotation {annotation}): other nodes send what \
                 is for its pods there, and do not reach it"
            ),
            Self::TunnelSource { link, address, .. } if address.is_ipv4() => write!(
                f,
                "tunnel {link} sends from {address}, which no link of this machine has, so the kernel drops what it sends"
            ),
            Self::TunnelSource { link, address, .. } => write!(
                f,
                "tunnel {link} has the local address {address}, which no link of this machine has: other nodes send what is for it there"
            ),
            Self::OffTunnel {
                link,
                state,
                node,
                to,
                way,
                error,
                ..
            } => f.write_str(&off_tunnel(link, state, (node, *to), way, error.as_deref())),
            Self::OtherMac {
                address,
                link,
                used,
                has: (mac, of),
                inside,
                twin,
                ..
            } => {
                let who =
                    inside.map_or_else(|| "the node".to_owned(), |(pod, _)| format!("pod {pod}"));
                write!(
                    f,
                    "{who} sends packets for {address} on {link} to the MAC address {used}, but {of} has {mac}"
                )?;
                match twin {
                    Some((node, link)) => {
                        write!(f, "; {link} of node {node} has {address}, too")
                    }
                    None => Ok(()),
                }
            }
            Self::AddressGone { at, pod } => write!(
                f,
                "pod {pod} of endpoint {at} has lost its address: no network of a pod on this node has it"
            ),
            Self::NoLocalRoute {
                address,
                link,
                inside,
            } => {
                let whose = match inside {
                    Some((_, pid)) => format!("of the pod (process {pid})"),
                    None => "of the node".to_owned(),
                };
                write!(
                    f,
                    "{link} {whose} has {address}, but table local there has no route to it, so the kernel does not take it for its own: \
                     it neither answers ARP for it nor takes packets to it"
                )
            }
            Self::HomeGone { address, node, .. } => write!(
                f,
                "no link of this machine has {address}, the address of its Node {node}, so what other nodes send to its pods does not \
                 reach it"
            ),
            Self::Duplicate { address, link } => write!(
                f,
                "IPv6 found another machine with {}, an address of {link} (dadfailed): this node does not use it, and does not answer for \
                 it",
                address.addr
            ),
            Self::HeldElsewhere {
                address,
                link,
                holder: AddressHolder::Gateway(mac),
            } => write!(
                f,
                "{address}, the address of a load balancer, is also that of a gateway of this node, at {mac} on {link}"
            ),
            Self::HeldElsewhere {
                address,
                link,
                holder: AddressHolder::Machine(mac),
            } => write!(
                f,
                "another machine has {address}, the address of a load balancer: on {link} it is at {mac}, the link-layer address of no node"
            ),
            Self::HeldElsewhere {
                address,
                link,
                holder: AddressHolder::All(network),
            } => write!(
                f,
                "{address}, the address of a load balancer, is the broadcast address of {network}, the network of {link}: no machine opens a \
                 connection to it, and no router leads there"
            ),
            Self::DuplicateInside { address, pod } => write!(
                f,
                "IPv6 found another pod or machine with {address}, the address of pod {pod} (dadfailed), so the pod does not use it"
            ),
            Self::NoGateway {
                gateway,
                bridge,
                ipv6_off: true,
            } => write!(
                f,
                "{} is 1, so {bridge} does not have {}, the gateway of its pods, and their packets do not leave it",
                disable_ipv6_of(bridge),
                gateway.addr
            ),
            Self::NoGateway {
                gateway, bridge, ..
            } => write!(
                f,
                "no link of the node has {}, the gateway of the pods on bridge {bridge}, so their packets do not leave it",
                gateway.addr
            ),
            Self::OwnEnd { pod, at, end, .. } => {
                write!(f, "in the network of pod {pod}, its packets to {at} ")?;
                if at == end {
                    f.write_str(
                        "end at the pod itself, which has that address, and nothing listens there",
                    )
                } else {
                    write!(f, "are redirected to {end}, and nothing listens there")
                }
            }
            Self::TunnelMac {
                node,
                link,
                announced,
                used,
                wrong: WrongMac::Own,
            } => write!(
                f,
                "{link} has the MAC address {used}, but node {node} announces {announced} for it: {node} discards what other nodes \
                 send to its pods through the tunnel"
            ),
            Self::TunnelMac {
                node,
                link,
                used,
                wrong: WrongMac::Same,
                ..
            } => write!(
                f,
                "{link} of this node and of node {node} have the same MAC address, {used}: VXLAN discards packets from its own address"
            ),
            Self::TunnelMac {
                node,
                link,
                used,
                wrong: WrongMac::OfTwo { third, machine },
                ..
            } => {
                write!(
                    f,
                    "nodes {node} and {third} announce the same MAC address for {link}, {used}: packets to pods of one of them go to the \
                     other, and are lost"
                )?;
                match machine {
                    Some(id) => write!(
                        f,
                        " (both have machineID {id}, as copies of one machine do)"
                    ),
                    None => Ok(()),
                }
            }
            Self::TunnelMac {
                node,
                link,
                announced,
                used,
                wrong: WrongMac::Far,
            } => write!(
                f,
                "packets for the pods of node {node} leave by {link} to the MAC address {used}, but {node} announces {announced}: it \
                 discards them"
            ),
            Self::TunnelMac {
                node,
                link,
                wrong: WrongMac::SharedRange(third),
                ..
            } => write!(
                f,
                "nodes {node} and {third} have the same range of pods, and {link} sends the packets for both to {third}"
            ),
            Self::TunnelMac {
                node,
                link,
                announced,
                used,
                wrong: WrongMac::Sent,
            } => write!(
                f,
                "packets for the pods of node {node} leave by {link} to the MAC address {used}, but the link of {node} has {announced}: it \
                 discards them"
            ),
            Self::UnallowedSource {
                link,
                address,
                server,
                client,
            } => write!(
                f,
                "replies to pods of node {client} leave node {server} by {link} with the source {address}: {client} drops them, because its \
                 WireGuard takes only addresses of pods from {server}"
            ),
            Self::ProxyArp {
                gateway,
                no_route: true,
                ..
            } => write!(
                f,
                "the node does not answer for {gateway}, the gateway of the pods: proxy ARP needs a route to that address, and the \
                 node has none"
            ),
            Self::ProxyArp { gateway, link, .. } => write!(
                f,
                "the node does not answer for {gateway}, the gateway of the pod at {link}: {} is 0",
                sysctl_of(link, "proxy_arp")
            ),
            Self::Wayless {
                by: Wayless::NoMain(family),
                ..
            } => write!(
                f,
                "no routing policy rule of {family} looks up table main, so its routes are not used"
            ),
            Self::Wayless {
                by: Wayless::Down(link),
                ..
            } => write!(
                f,
                "{link}, the link with an address of this Node, is down, so no route leads by it"
            ),
            Self::Wayless {
                by: Wayless::NoAdvertisements(link),
                ..
            } => write!(
                f,
                "the node has no default route of IPv6: it forwards, and {} is 1, so the kernel ignores router advertisements",
                accept_ra_of(link)
            ),
            Self::Wayless {
                by: Wayless::NoIpv6,
                ..
            } => f.write_str(
                "this node's kernel runs without IPv6: it has no IPv6 address, not even ::1, and none of IPv6's sysctls",
            ),
            Self::Wayless {
                by: Wayless::Ipv6Off(link),
                ..
            } if link == "all" => write!(
                f,
                "{} is 1, so no link has an IPv6 address, and no IPv6 route leads anywhere",
                disable_ipv6_of(link)
            ),
            Self::Wayless {
                by: Wayless::Ipv6Off(link),
                ..
            } => write!(
                f,
                "{} is 1, so {link} has no IPv6 address, and no IPv6 route leads by it",
                disable_ipv6_of(link)
            ),
            Self::Bound {
                client,
                server,
                real,
                seconds,
                ..
            } => write!(
                f,
                "session affinity binds client {client} of {server} to {real}, which is no endpoint any more, for another {seconds} s, \
                 and each new connection renews that"
            ),
            Self::Deaf {
                at,
                bound: Some(link),
                ..
            } => write!(
                f,
                "the socket at {at} is bound to link {link}, and takes nothing that comes in by another one"
            ),
            Self::Deaf {
                at,
                end,
                listens,
                instead,
                stranger,
                ..
            } => {
                if at == end {
                    write!(f, "nothing in the pod listens at {at}")?;
                } else {
                    write!(
                        f,
                        "rules in the pod send packets for {at} to {end}, and nothing listens there"
                    )?;
                }
                match (instead, listens.as_slice()) {
                    (Some(proto), _) => {
                        let proto = proto.to_string().to_uppercase();
                        write!(f, ": it takes {proto} alone at this port")?;
                    }
                    (None, []) => f.write_str(": no port is open in it")?,
                    (None, all) => {
                        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
                        write!(f, ": it listens at {}", listed(&all))?;
                    }
                }
                match stranger {
                    Some(stranger) => write!(f, "; {stranger}"),
                    None => Ok(()),
                }
            }
            Self::Inside {
                pod, reason, reply, ..
            } => {
                let what = if *reply {
                    "the reply is"
                } else {
                    "the packet is"
                };
                write!(f, "in the network of pod {pod}, {what} {reason}")
            }
            Self::Link {
                link,
                inside,
                state,
            } => {
                if let Some((pod, _)) = inside {
                    write!(f, "in the network of pod {pod}, ")?;
                }
                write!(f, "{link} {state}")
            }
            Self::InsideRoute {
                pod, to, by, reply, ..
            } => {
                let what = if *reply { "the replies" } else { "its packets" };
                write!(f, "in the network of pod {pod}, ")?;
                match by {
                    Some((words, _)) => write!(f, "{words} ends {what} to {to}"),
                    None => write!(f, "no route leads to {to}, so {what} end there"),
                }
            }
            Self::OtherSource {
                pod, source, route, ..
            } => write!(
                f,
                "in the network of pod {pod}, the {} gives its packets the source {source}: the node has no route to that address by the \
                 pod's link, so replies are lost",
                route_words(route)
            ),
            Self::NoCloudRoute { node, own, link } => {
                let what = if *own { "replies" } else { "packets" };
                write!(
                    f,
                    "the provider's network, which {what} to the pods of node {node} pass by {link}, has no route to them \
                     (condition NetworkUnavailable of the Node: NoRouteCreated)"
                )
            }
            Self::BlockedByCloud {
                link,
                node,
                cloud,
                proto,
            } => write!(
                f,
                "the packets of tunnel {link} to node {node} are IP protocol {}, which the network of {cloud} drops",
                proto.number()
            ),
            Self::Ended {
                at,
                pod,
                phase,
                now,
            } => {
                write!(f, "pod {pod} of endpoint {at} ")?;
                match phase {
                    Some(phase) => write!(f, "has ended (phase {phase})")?,
                    None => f.write_str("no longer exists")?,
                }
                f.write_str(", but its EndpointSlice still says that it is ready")?;
                match now {
                    Some(now) => write!(
                        f,
                        ": pod {now}, which the Service does not select, has the address now"
                    ),
                    None => Ok(()),
                }
            }
            Self::Unanswered {
                address,
                link,
                there: Some(there),
                ..
            } => {
                let WayThere {
                    node, range, by, ..
                } = &**there;
                write!(f, "packets to the pods of {node} ({range}) ")?;
                match &there.own {
                    Some((own, _)) => {
                        write!(f, "leave by {link}, which has {own}, and not by {by}")
                    }
                    None => write!(f, "leave by {link} to {address}, not by {by}"),
                }?;
                write!(
                    f,
                    "; {address} did not answer there when the node last asked for its link-layer address (its neighbour entry is \
                     FAILED)"
                )
            }
            Self::Unanswered {
                address,
                link,
                silent: Some(SilentMachine::Node(node)),
                ..
            } => write!(
                f,
                "Node {node} is not ready, and {address}, its address, did not answer on {link} when this node last asked (its neighbour \
                 entry is FAILED)"
            ),
            Self::Unanswered {
                address,
                link,
                silent: Some(SilentMachine::PodHere(pod)),
                ..
            } => write!(
                f,
                "{address} is pod {pod} of this node, but packets for it leave by {link}, the node's own card, where nothing answers: a pod \
                 with a macvlan or ipvlan link on that card is reached from other machines alone"
            ),
            Self::Unanswered {
                address,
                link,
                inside,
                silent,
                ..
            } => {
                let who = match inside {
                    Some((pod, _)) => {
                        write!(f, "in the network of pod {pod}, ")?;
                        "it"
                    }
                    None => "the node",
                };
                match silent {
                    Some(SilentMachine::ApiServer) => {
                        write!(f, "no Node has the API server's address {address}, which")
                    }
                    Some(SilentMachine::Listed { slice, .. }) => write!(
                        f,
                        "no Node has {address}, which EndpointSlice {slice} lists; it"
                    ),
                    Some(SilentMachine::Node(_) | SilentMachine::PodHere(_)) | None => {
                        write!(f, "{address}")
                    }
                }?;
                write!(
                    f,
                    " did not answer on {link} when {who} last asked for its link-layer address (its neighbour entry is FAILED)"
                )
            }
            Self::NoPeer {
                address,
                link,
                kind,
                agent,
            } => {
                let writer = agent.as_ref().map_or_else(
                    || "what made the link".to_owned(),
                    |agent| format!("the network plugin ({agent})"),
                );
                write!(
                    f,
                    "{link} (a {kind} link) has no entry that leads to {address}: {writer} has to write the neighbour and the address of the \
                     node behind it; nothing there answered when the node last asked (its neighbour entry is FAILED)"
                )
            }
            Self::DeadNextHop {
                address,
                link,
                route,
            } => write!(
                f,
                "the route to {} has {} next hops, of which {address} on {link} does not answer (its neighbour entry is \
                 FAILED): packets that take it are lost",
                route.destination,
                route.nexthops.len()
            ),
            Self::Detour {
                to,
                way,
                usual,
                route,
                rule,
            } => {
                match rule {
                    Some(rule) => write!(f, "routing policy rule {} ({rule})", rule.priority)?,
                    None => write!(f, "the route {route}{}", in_table(route))?,
                }
                write!(
                    f,
                    " leads packets for {to} to {way}, where nothing answers (the neighbour entry is FAILED); without it they leave by \
                     {usual}"
                )
            }
            Self::HiddenRoute {
                route,
                hidden,
                node,
            } => write!(
                f,
                "the route {route} hides {hidden}, which leads to the pods of node {node} by the address of that node"
            ),
            Self::Limited { limit, by } => write!(
                f,
                "rule {} of chain {} in table {} drops the connections that exceed {}{}{}",
                by.rule.number,
                by.rule.chain,
                by.rule.table,
                limit.limit,
                match (limit.is_of_connection, limit.is_shared) {
                    (true, _) => "",
                    (false, true) => ", which all clients share",
                    (false, false) => ", which each client has for itself",
                },
                limit.so_far()
            ),
            Self::ThirdNode {
                node,
                by,
                route,
                reply,
                ..
            } => {
                let (what, other) = if *reply {
                    ("replies", "requests")
                } else {
                    ("packets", "replies")
                };
                let table = in_table(route);
                write!(
                    f,
                    "the route {route}{table} leads {what} by {by}, node {node}, which does not see the {other}: its kube-proxy drops such \
                     packets as invalid (chain KUBE-FORWARD)"
                )
            }
            Self::Arp { link, by } => by.write(f, link),
            Self::Tunnel {
                link,
                carrier,
                node,
                peer,
                incoming,
                reason,
                route,
                ..
            } => {
                let way = if *incoming { "from" } else { "to" };
                write!(
                    f,
                    "the packets of tunnel {link} ({}) {way} node {node} ({peer}) ",
                    carrier_words(*carrier)
                )?;
                match route {
                    Some(route) => write!(f, "end at the {} route to {}", route.kind, route.destination),
                    None => write!(f, "are {reason}"),
                }
            }
            Self::Ttl { ttl, pod } => {
                let whose = match pod {
                    Some((pod, _)) => format!(" in the network of pod {pod}"),
                    None => String::new(),
                };
                write!(
                    f,
                    "{DEFAULT_TTL} is {ttl}{whose}, so packets end before they reach the endpoint"
                )
            }
            Self::FullQueue {
                at,
                waiting,
                most,
                of_sockets: (full, all),
            } => {
                if full == all {
                    write!(f, "the program at {at} takes no connections")?;
                } else {
                    write!(
                        f,
                        "{full} of the {all} sockets that share port {} at {at} {} no connections",
                        at.port(),
                        if *full == 1 { "takes" } else { "take" }
                    )?;
                }
                write!(f, ": {waiting} wait for it, and no more than {most} may")
            }
            Self::Further {
                which, to, reason, ..
            } => match which {
                Which::Reply => write!(f, "the reply to {to} is lost: {reason}"),
                Which::LaterReply => write!(
                    f,
                    "the connection opens, but later replies to {to} are lost: {reason}"
                ),
                Which::Sent => write!(
                    f,
                    "the connection opens, but what the client then sends to {to} is lost: {reason}"
                ),
                Which::Datagram => write!(
                    f,
                    "the first datagram from a port is answered, but those that follow it to or from {to} are lost: {reason}"
                ),
            },
            Self::Isolated { bridge } => write!(
                f,
                "the ports of bridge {bridge} are isolated, so its pods do not reach each other"
            ),
            Self::Taken {
                address,
                link,
                end: None,
                inside,
            } => {
                let of = inside.map_or_else(
                    || "the node itself".to_owned(),
                    |(pod, _)| format!("pod {pod}"),
                );
                let so = if address.is_ipv6() {
                    "the replies end there"
                } else {
                    "the kernel discards the client's packets"
                };
                write!(
                    f,
                    "{link} of {of} has the address {address} of the client, so {so}"
                )
            }
            Self::Taken {
                link,
                end: Some((at, program)),
                ..
            } => {
                write!(
                    f,
                    "{link} of the node itself has the address of endpoint {at}, so the packets end at the node, where "
                )?;
                match program {
                    Some(program) => write!(f, "{program} listens"),
                    None => f.write_str("nothing listens"),
                }
            }
        }
    }
}

/// Returns the table of `route` in words, after the route: ` of table 99`.
pub(super) fn in_table(route: &Route) -> String {
    match route.table.as_str() {
        "main" => String::new(),
        table => format!(" of table {table}"),
    }
}
