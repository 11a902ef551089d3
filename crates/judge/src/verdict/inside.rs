//! Inside the network of a pod: its own rules, and whether something listens at the endpoint.
//!
//! Older bundles do not have the item: then these networks are not judged.

use std::cell::{OnceCell, RefCell};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;

use super::judge::{Judge, Question};
use super::local_ports::{DEFAULT_RANGE, LocalPorts};
use super::neighbours::is_link_local;
use super::ports::REPLY_PORT;
use super::replies::{common_tos, follow_on, marks, reply};
use super::{By, DEFAULT_TTL, Fate, Fault, Missing, Obstacle, Ways, Which, sysctl_of};
use crate::trace::mismatch::listed;
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup, Router, Transport};
use crate::trace::why::{decisive, maker};
use crate::trace::{
    Carried, Effect, Entry, Flow, Further, Outcome, Rule, Verdict, Walks, World, why,
};
use kpx_node::evidence::{Gap, IPTABLES, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::node::sockets::{Queue, Socket, Sockets};

/// The most ports named in a message about where a pod listens.
const MOST_NAMED: usize = 4;

/// The networks of pods by their addresses, and the results for them so far.
#[derive(Debug, Default)]
pub(super) struct Insides<'n> {
    /// `None` for an address that several have.
    by_address: OnceCell<Result<HashMap<IpAddr, Option<&'n PodNetwork>>, Gap>>,
    /// The reason why packets to an address and port, from another address, are not answered; separately for translated packets and
    /// for packets from outside.
    known: RefCell<HashMap<Ask, Option<Fault>>>,
    /// Whether rules of a pod set the type of service of packets.
    types: RefCell<HashMap<IpAddr, bool>>,
}

type Ask = (SocketAddr, Proto, IpAddr, bool, bool, Carried);

/// The bytes of datagrams that wait for a program of which it is not known whether it still reads.
const MANY_UNREAD: u32 = 8 * 1024;

/// With this TTL, a packet passes any cluster.
const LONG_LIVED: u8 = 32;

impl Judge<'_> {
    /// Returns why the network of the pod at the end of the way does not take the packet, or does not answer it.
    pub(super) fn inside(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        let at = SocketAddr::from(outcome.destination);
        let network = match self.network_of(at.ip()) {
            Ok(network) => network?,
            Err(gap) if self.is_of_old(gap) => return None,
            Err(gap) => {
                let is_here = self.places.is_pod_here(at.ip()) == Some(true);
                let what = "the networks of the node's pods are unknown";
                let gap = gap.clone();
                return is_here.then_some(Fault::Unknown(Missing::Gap { what, gap }));
            }
        };
        let is_translated = at.ip() != question.flow.destination;
        let is_outside = question.flow.entry == Entry::Outside;
        let asked = (
            at,
            question.flow.proto,
            outcome.source,
            is_translated,
            is_outside,
            outcome.carried.elsewhere(),
        );
        if let Some(known) = self.insides.known.borrow().get(&asked) {
            return known.clone();
        }
        let comes = comes(question.flow, outcome);
        let inside = Inside::of(network, at.ip()).sending(comes.proto, Some(at.port()), REPLY_PORT);
        if inside.is_of_vm() {
            return None;
        }
        // If nothing translated the packet, the client accepts its reply on any way.
        let is_ended = |fault: &Fault| match fault {
            Fault::Obstacle(what) => {
                matches!(&**what, Obstacle::Strayed { kind, .. } if is_of_vpn(kind))
            }
            _ => false,
        };
        let strayed = || {
            let fault = self.strayed(&inside, outcome.source, true)?;
            (is_translated || is_ended(&fault)).then_some(fault)
        };
        // Without the address of the gateway, nothing answers the pod.
        let end = inside
            .end(&comes)
            .map(|fault| self.no_gateway(&inside, outcome.source).unwrap_or(fault));
        let found = end
            .map(|fault| self.with_stranger(question, fault))
            .or_else(|| inside.has_source(outcome.source))
            .or_else(|| self.beside(&inside, question.flow, outcome.leaves_by()))
            .or_else(strayed)
            .or_else(|| self.gatewayless(&inside, outcome.source))
            .or_else(|| self.other_gateway(&inside, outcome.source));
        self.insides.known.borrow_mut().insert(asked, found.clone());
        found
    }

    /// Returns why the client's own network does not let its packet out.
    pub(super) fn inside_client(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        let address = flow.source.filter(|_| flow.entry == Entry::Pod)?;
        let network = self.network_of(address).ok().flatten()?;
        let leaves = Flow {
            entry: Entry::Host,
            ..flow.clone()
        };
        let inside = Inside::of(network, address).sending(flow.proto, None, flow.port);
        let stopped = || {
            let is_followed = network.has_rules() || network.addresses.contains(&flow.destination);
            is_followed.then(|| inside.leaving(&leaves)).flatten()
        };
        let link = || {
            self.broken_link_of(address)
                .map(|broken_link| Fault::Obstacle(Box::new(broken_link)))
        };
        if inside.is_of_vm() {
            return link();
        }
        let nowhere = || inside.nowhere(flow.destination, false);
        let unanswered = || {
            let silent = inside.unanswered(flow.destination)?;
            let not_own = || self.not_own(inside.next_hop(flow.destination)?.0);
            Some(not_own().or_else(|| self.mute(address)).unwrap_or(silent))
        };
        link()
            .or_else(|| self.duplicate_client(address))
            .or_else(nowhere)
            .or_else(|| self.beside(&inside, flow, None))
            .or_else(|| self.strayed(&inside, flow.destination, false))
            .or_else(|| self.gatewayless(&inside, flow.destination))
            .or_else(|| self.no_gateway(&inside, flow.destination))
            .or_else(unanswered)
            .or_else(stopped)
            .or_else(|| self.silent_gateway(&inside, flow.destination))
            .or_else(|| self.other_gateway(&inside, flow.destination))
            .or_else(|| self.unknown_gateway(&inside, flow.destination))
    }

    /// Returns `flow` as it reaches this node: with the fields that the network of its client gives its packets, and the link by
    /// which it comes in.
    pub fn as_sent(&self, flow: Flow) -> Flow {
        if flow.entry == Entry::Outside {
            return self.entering(flow);
        }
        let client = flow.source.filter(|_| flow.entry == Entry::Pod);
        let Some((client, network)) = client.and_then(|client| {
            let network = self.network_of(client).ok().flatten()?;
            Some((client, network))
        }) else {
            return flow;
        };
        let tos = match self.typing(client) {
            Some(inside) => {
                let leaves = Flow {
                    entry: Entry::Host,
                    ..flow.clone()
                };
                let node = NodeSnapshot::new(&inside.network.evidence);
                common_tos(&walked(&node, &leaves))
            }
            None => flow.carried.tos,
        };
        Flow {
            carried: Carried {
                tos,
                ecn: asks_for_ecn(network) && flow.proto == Proto::Tcp,
                ports: ports_of(network),
                ..flow.carried.clone()
            },
            ..flow
        }
    }

    /// Returns whether the pod with `address` has settings of its own for the packets that it sends.
    pub(super) fn has_own_settings(&self, address: IpAddr) -> bool {
        let network = self.network_of(address).ok().flatten();
        network.is_some_and(|network| {
            let ports = ports_of(network);
            asks_for_ecn(network)
                || ports.is_some_and(|(first, last)| format!("{first} {last}") != DEFAULT_RANGE)
        })
    }

    /// Returns the type of service of the replies to a packet that ends at a pod of this node; `None` if it is unknown.
    pub(super) fn tos_of_replies(&self, question: Question<'_>, outcome: &Outcome) -> Option<u8> {
        let Some(inside) = self.typing(outcome.destination.0) else {
            return Some(0);
        };
        let comes = comes(question.flow, outcome);
        let node = NodeSnapshot::new(&inside.network.evidence);
        let world = World::whole(&node, Family::of(comes.destination));
        let asked = Question {
            flow: &comes,
            port: None,
        };
        let taken = walked(&node, &comes);
        let replies = taken.iter().flat_map(|taken| {
            let first = reply(&node, asked, taken, Entry::Host);
            world.further(&Further::Reply(first)).unwrap_or_default()
        });
        common_tos(&replies.collect::<Vec<_>>())
    }

    /// Returns whether rules of the client's pod set the type of service of its packets, which may be another one for later packets.
    pub(super) fn is_typed(&self, flow: &Flow) -> bool {
        let client = flow.source.filter(|_| flow.entry == Entry::Pod);
        client.is_some_and(|client| self.typing(client).is_some())
    }

    /// Returns the network of the pod with `address`, if rules there set the type of service of packets.
    fn typing(&self, address: IpAddr) -> Option<Inside<'_>> {
        let network = self.network_of(address).ok().flatten()?;
        let mut types = self.insides.types.borrow_mut();
        let sets = types.entry(address).or_insert_with(|| sets_tos(network));
        sets.then(|| Inside::of(network, address))
    }

    /// Returns the fault of packets of a pod whose link is on a link of the node, past its rules; or of packets to it that leave the node
    /// by the link called `out`.
    fn beside(&self, inside: &Inside<'_>, flow: &Flow, out: Option<&str>) -> Option<Fault> {
        let link = inside.own_link()?;
        let parent = self.parent(link)?;
        let is_met = match out {
            // The node may have a link of the same kind there, by which it reaches them.
            Some(out) => flow.entry != Entry::Outside && out == parent.name,
            None => {
                self.places.service(flow.destination).is_some()
                    || self.places.own(flow.destination) == Some(&parent.name)
            }
        };
        is_met.then(|| {
            Fault::Obstacle(Box::new(Obstacle::Beside {
                pod: inside.address,
                kind: link.kind.clone(),
                parent: parent.name.clone(),
                reply: out.is_some(),
            }))
        })
    }

    /// Returns the link of the node on which `link` of a pod is, past its rules.
    fn parent(&self, link: &Link) -> Option<&Link> {
        self.far_end(link)
            .filter(|_| matches!(link.kind.as_str(), "macvlan" | "ipvlan"))
    }

    /// Returns whether packets of the pod do not pass the node's rules.
    fn is_beside(&self, inside: &Inside<'_>) -> bool {
        inside
            .own_link()
            .is_some_and(|link| self.parent(link).is_some())
    }

    /// Returns the fault of packets to `to`, or of replies, that leave the pod by a link without its address, which does not lead to the
    /// node.
    fn strayed(&self, inside: &Inside<'_>, to: IpAddr, reply: bool) -> Option<Fault> {
        let own = inside.own_link()?;
        // The source of a client's packet follows from the route.
        let Decision::Out {
            device: Some(name), ..
        } = inside.way(to, reply)?
        else {
            return None;
        };
        let mut links = inside.network.links.iter().flat_map(|link| &link.all);
        let link = links.find(|link| link.name == *name)?;
        let leads_here = self
            .far_end(link)
            .is_some_and(|far_end| far_end.kind == "veth");
        let is_own = *own.name == *name || inside.network.addresses.contains(&to);
        // Rules that mark packets lead them elsewhere.
        if is_own || leads_here || link.name == "lo" || inside.marks(to) {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::Strayed {
            pod: inside.address,
            pid: inside.network.pid,
            link: link.name.clone(),
            kind: link.kind.clone(),
            to,
            reply,
        })))
    }

    /// Returns the fault of packets to an address of a Service, or of a pod of another node, that the pod looks for on its own link, which
    /// leads to a bridge or a link of the node: neither the node nor a machine there has it, and the node does not answer for others.
    fn gatewayless(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let is_away = || self.peers().with_pod(to).is_some() && self.places.own(to).is_none();
        let is_here = || self.places.is_pod_here(to) == Some(true);
        if self.places.service(to).is_none() && (!is_away() || is_here()) {
            return None;
        }
        let (next, link) = inside.next_hop(to)?;
        let own = inside.own_link().filter(|own| own.name == link)?;
        let far = self.far_end(own).filter(|far_end| far_end.kind == "veth")?;
        if next != to
            || !to.is_ipv4()
            || self.places.own(to).is_some()
            || own.flag("NOARP") == Some(true)
        {
            return None;
        }
        let node = NodeSnapshot::new(&inside.network.evidence);
        let is_seen = node.neighbour_table().is_ok_and(|table| {
            table
                .on(to, &link)
                .is_some_and(|neighbour| neighbour.mac.is_some())
        });
        let sysctl = self.node.sysctl().ok()?;
        let asked = far.master.as_ref().unwrap_or(&far.name);
        let mut answers = ["all", asked]
            .into_iter()
            .map(|name| sysctl.get(&sysctl_of(name, "proxy_arp")));
        let is_silent = answers.all(|answer| answer == Some("0"));
        let routes = node.routes().ok()?.all.iter();
        let route = routes
            .map(|route| route.destination.normal())
            .filter(|destination| destination.contains(to))
            .max_by_key(|destination| destination.prefix)?;
        (is_silent && !is_seen).then(|| {
            Fault::Obstacle(Box::new(Obstacle::Gatewayless {
                pod: inside.address,
                pid: inside.network.pid,
                link,
                route,
            }))
        })
    }

    /// Returns the fault of a pod whose bridge does not exist: its link is a port of none, and nothing has its gateway.
    pub(super) fn no_bridge(&self, pod: IpAddr) -> Option<Obstacle> {
        let (network, own) = self.link_of_pod(pod)?;
        let far = self.far_end(own)?;
        if far.kind != "veth" || far.master.is_some() {
            return None;
        }
        let inside = Inside::of(network, pod);
        let node = NodeSnapshot::new(&network.evidence);
        let to = self.places.any_service(Family::of(pod))?;
        let (gateway, _) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        let all = &node.addresses().ok()?.all;
        let range = all.iter().find(|address| address.addr.addr == pod)?.addr;
        let is_of_bridge = !range.is_host() && range.contains(gateway) && !is_link_local(gateway);
        let is_gone = is_of_bridge && self.places.own(gateway).is_none();
        // A route by the link itself needs no bridge.
        let routes = self.node.routes().ok()?.all.iter();
        let mut by_link = routes.filter(|route| {
            route.destination.contains(pod) && route.devices().contains(&&*far.name)
        });
        (is_gone && by_link.next().is_none()).then(|| Obstacle::NoBridge {
            gateway,
            link: far.name.clone(),
            pod,
        })
    }

    /// Returns why the node's end of a pod's link does not answer for its addresses, if that is certain.
    fn mute(&self, pod: IpAddr) -> Option<Fault> {
        let (_, link) = self.link_of_pod(pod)?;
        let far = self.far_end(link)?;
        let fault = self.arp_on(far.master.as_ref().unwrap_or(&far.name))?;
        (fault.fate() != Fate::Unknown).then_some(fault)
    }

    /// Returns the fault of an address of a link of the node that the kernel does not take for its own.
    fn not_own(&self, address: IpAddr) -> Option<Fault> {
        Some(Fault::Obstacle(Box::new(Obstacle::NoLocalRoute {
            address,
            link: unrouted(self.node, address)?.to_owned(),
            inside: None,
        })))
    }

    /// Returns the fault of packets to `to` if the pod has a permanent neighbour entry of the next hop with a wrong MAC: not that of the
    /// other pod, or not that of the node's end of the pod's link. A bridge takes packets that it translates whatever their MAC is.
    fn other_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let node = NodeSnapshot::new(&inside.network.evidence);
        let table = node.neighbour_table().ok()?;
        let (gateway, own) = inside.next_hop(to)?;
        let entry = table
            .on(gateway, &own)
            .filter(|neighbour| neighbour.permanent)?;
        let (_, link) = self.link_of_pod(inside.address)?;
        let peer = self.far_end(link).filter(|_| own == link.name)?;
        let is_apart = peer.kind == "veth" && peer.master.is_none();
        let beside = self.link_of_pod(gateway).filter(|_| !is_apart);
        let (mac, whose) = match beside {
            Some((_, of_pod)) => (of_pod.mac.as_ref()?, format!("{} of that pod", of_pod.name)),
            None if is_apart => {
                let whose = format!("the node's end of that link, {},", peer.name);
                (peer.mac.as_ref()?, whose)
            }
            None => return None,
        };
        let used = entry.mac.as_ref()?;
        if used.eq_ignore_ascii_case(mac) {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::OtherMac {
            address: gateway,
            link: own,
            used: used.clone(),
            has: (mac.clone(), whose),
            of_pod: beside.is_some(),
            inside: Some((inside.address, inside.network.pid)),
        })))
    }

    /// Returns the TTL of packets from `address`, of a pod whose network is read, and a process in this network.
    pub(super) fn ttl_inside(&self, address: IpAddr) -> Option<(u8, u32)> {
        let network = self.network_of(address).ok().flatten()?;
        let node = NodeSnapshot::new(&network.evidence);
        let ttl = node.sysctl().ok()?.get(DEFAULT_TTL)?.parse().ok()?;
        Some((ttl, network.pid))
    }

    /// Returns the fault of packets to `to` whose gateway is a link-local address, as Calico sets it, and the node does not answer
    /// for it: it needs proxy ARP at the pod's link, and a route to that address by another link.
    fn silent_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let node = NodeSnapshot::new(&inside.network.evidence);
        let (gateway, own) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        if !gateway.is_ipv4() || !is_link_local(gateway) || self.places.own(gateway).is_some() {
            return None;
        }
        let mut links = inside.network.links.as_ref()?.all.iter();
        let peer = links.find(|link| link.name == own)?.peer?;
        let mut links = self.node.links().ok()?.all.iter();
        let link = links.find(|link| link.index == peer && link.kind == "veth")?;
        // Other network plugins set the gateway's neighbour entry themselves.
        let is_known = node.neighbour_table().map_or_else(
            |_| !link.name.starts_with("cali"),
            |all| {
                all.on(gateway, &own)
                    .is_some_and(|neighbour| neighbour.mac.is_some())
            },
        );
        if is_known {
            return None;
        }
        let sysctl = self.node.sysctl().ok()?;
        let keys = [
            sysctl_of("all", "proxy_arp"),
            sysctl_of(&link.name, "proxy_arp"),
        ];
        let [of_all, of_link] = keys.map(|key| sysctl.get(&key));
        let no_route = match (of_all, of_link?) {
            (Some("1"), _) | (_, "1") => true,
            (Some("0"), "0") => false,
            _ => return None,
        };
        let lookup = Lookup {
            source: Some(Asked::new(inside.address, None)),
            input: Some(&link.name),
            ..Lookup::to(Asked::new(gateway, None))
        };
        if no_route && !matches!(self.router.decide(lookup), Decision::Nowhere(_)) {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::ProxyArp {
            gateway,
            link: link.name.clone(),
            no_route,
        })))
    }

    /// Returns the gateway of packets to `to`, as the pod has it, and its link, if nothing has answered for it and the node does not have it.
    fn unseen_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<(IpAddr, String)> {
        let node = NodeSnapshot::new(&inside.network.evidence);
        let table = node.neighbour_table().ok()?;
        let (next, link) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        // The pod may still be asking for it.
        let is_seen = table
            .on(next, &link)
            .is_some_and(|neighbour| neighbour.mac.is_some());
        // Nodes answer for those of link-local scope.
        let is_open = !is_seen
            && !is_link_local(next)
            && self.places.own(next).is_none()
            && inside.asks_for_neighbours(&link)
            && !self.is_proxied(inside, next, &link);
        is_open.then_some((next, link))
    }

    /// Returns whether the node answers for `gateway` on the link called `own` of the pod: proxy ARP is on at its end, and a route leads to
    /// that address by another link.
    fn is_proxied(&self, inside: &Inside<'_>, gateway: IpAddr, own: &str) -> bool {
        let mut links = inside.network.links.iter().flat_map(|link| &link.all);
        let link = links.find(|link| link.name == own);
        let Some(far) = link
            .and_then(|link| self.far_end(link))
            .filter(|_| gateway.is_ipv4())
        else {
            return false;
        };
        let is_on = |link: &str| {
            let sysctl = self.node.sysctl();
            sysctl.is_ok_and(|all| all.get(&sysctl_of(link, "proxy_arp")) == Some("1"))
        };
        let way = self.way_to(gateway);
        (is_on("all") || is_on(&far.name)) && way.is_some_and(|(link, _)| link != far.name)
    }

    /// Returns the fault of packets to `to` whose gateway is to be the bridge of pods, which has no such address, and has not answered.
    fn no_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (gateway, _) = self.unseen_gateway(inside, to)?;
        let gone = self.gateway_gone(inside, gateway)?;
        // A link that is down loses its addresses of IPv6.
        let gone = self.home_down(inside.address).unwrap_or(gone);
        Some(Fault::Obstacle(Box::new(gone)))
    }

    /// Returns that the bridge of `pod` does not have the address that is the pod's gateway.
    pub(super) fn without_gateway(&self, pod: IpAddr) -> Option<Obstacle> {
        let network = self.network_of(pod).ok().flatten()?;
        let inside = Inside::of(network, pod);
        let to = self.places.any_service(Family::of(pod))?;
        let (gateway, _) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        let is_open = !is_link_local(gateway) && self.places.own(gateway).is_none();
        is_open.then(|| self.gateway_gone(&inside, gateway))?
    }

    /// Returns that the bridge of the pod does not have `gateway`, nor another address of the pod's network.
    fn gateway_gone(&self, inside: &Inside<'_>, gateway: IpAddr) -> Option<Obstacle> {
        let (_, own) = self.link_of_pod(inside.address)?;
        let bridge = self.far_end(own)?.master.as_ref()?;
        // Beyond a port to the network of machines, a router may have the address.
        if self.ports(bridge).any(|port| port.kind != "veth") {
            return None;
        }
        let node = NodeSnapshot::new(&inside.network.evidence);
        let addresses = node.addresses().ok()?;
        let range = addresses
            .all
            .iter()
            .find(|address| address.addr.addr == inside.address)?;
        // With another address there, it is the pod whose gateway is wrong.
        let of_node = self.node.addresses().ok()?.all.iter();
        let mut of_bridge = of_node.filter(|address| address.link == *bridge);
        if of_bridge.any(|address| range.addr.contains(address.addr.addr)) {
            return None;
        }
        Some(Obstacle::NoGateway {
            gateway: Cidr {
                addr: gateway,
                prefix: range.addr.prefix,
            },
            bridge: bridge.clone(),
        })
    }

    /// Returns the doubt about packets to `to` whose gateway, as the pod has it, is no address of this node and has not been seen.
    fn unknown_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (next, link) = self.unseen_gateway(inside, to)?;
        let why = format!(
            "whether anything answers for {next}, the gateway in the network of pod {}, is unknown: it is no address of the \
             node, and nothing has answered for it on {link}",
            inside.address
        );
        Some(Fault::Unknown(Missing::Unmodelled(why)))
    }

    /// Returns whether the network of the pod with `address` has no way to the Services of its family, or may have none.
    pub(super) fn leads_nowhere(&self, address: IpAddr) -> bool {
        let network = self.network_of(address).ok().flatten();
        let to = self.places.any_service(Family::of(address));
        let (Some(network), Some(to)) = (network, to) else {
            return false;
        };
        let inside = Inside::of(network, address);
        if inside.is_of_vm() {
            return false;
        }
        network.duplicates.contains(&address)
            || inside.nowhere(to, false).is_some()
            || inside.unanswered(to).is_some()
            || self.silent_gateway(&inside, to).is_some()
            || self.strayed(&inside, to, false).is_some()
            || self.gatewayless(&inside, to).is_some()
            || self.is_beside(&inside)
            || self.unknown_gateway(&inside, to).is_some()
    }

    /// Returns whether the network of the pod with `address` has rules of its own.
    pub(super) fn has_rules_inside(&self, address: IpAddr) -> bool {
        self.network_of(address)
            .ok()
            .flatten()
            .is_some_and(PodNetwork::has_rules)
    }

    /// Returns whether a link of the node leads to the network: others on the machine may have the same addresses. Files of a
    /// process do not tell.
    fn has_link_to(&self, network: &PodNetwork) -> bool {
        let (Some(inside), Ok(node)) = (&network.links, self.node.links()) else {
            return false;
        };
        inside.all.iter().all(|own| own.index == 0) || network.link_of(node).is_some()
    }

    /// Returns whether the networks of the node's pods are read, and none of them has `address`.
    pub(super) fn is_in_no_network(&self, address: IpAddr) -> bool {
        self.node.pod_networks().is_ok_and(|all| {
            !all.is_empty()
                && all
                    .iter()
                    .all(|network| !network.addresses.contains(&address))
        })
    }

    /// Returns whether the network of the pod with `address` has an address of a Service, too.
    pub(super) fn has_service_address(&self, address: IpAddr) -> bool {
        let network = self.network_of(address).ok().flatten();
        let own = network.iter().flat_map(|network| &network.addresses);
        let mut others = own.filter(|own_address| **own_address != address);
        others.any(|own_address| self.places.service(*own_address).is_some())
    }

    /// Returns whether the sockets of the pod with `address` are read.
    pub(super) fn knows_sockets_of(&self, address: IpAddr) -> bool {
        let network = self.network_of(address).ok().flatten();
        network.is_some_and(|network| NodeSnapshot::new(&network.evidence).sockets().is_ok())
    }

    /// Returns whether a program in the network of the pod with `address` listens on a TCP port; `None` if unknown.
    pub fn listens_inside(&self, address: IpAddr, port: u16) -> Option<bool> {
        let network = self.network_of(address).ok().flatten()?;
        let node = NodeSnapshot::new(&network.evidence);
        let sockets = node.sockets().ok()?;
        let mut taking = sockets.taking(Proto::Tcp, address, port);
        Some(taking.next().is_some())
    }

    /// Returns the network of the pod with `address`.
    pub(super) fn network_of(&self, address: IpAddr) -> Result<Option<&PodNetwork>, &Gap> {
        Ok(self.networks()?.get(&address).copied().flatten())
    }

    /// Returns the doubt about packets to an address that two pods of this node have.
    pub(super) fn in_two_pods(&self, outcome: &Outcome) -> Option<Fault> {
        let (address, _) = outcome.destination;
        if self.networks().ok()?.get(&address)?.is_some() {
            return None;
        }
        let all = self.node.pod_networks().into_iter().flatten();
        let ours = all.filter(|network| network.addresses.contains(&address));
        let processes: Vec<String> = ours.map(|network| network.pid.to_string()).collect();
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "more than one pod of this node has {address} (the networks of processes {}): which of them answers is not known",
            listed(&processes)
        ))))
    }

    /// Returns the networks of pods by their addresses; none for an address that several have.
    fn networks(&self) -> Result<&HashMap<IpAddr, Option<&PodNetwork>>, &Gap> {
        let by_address = self.insides.by_address.get_or_init(|| {
            let all = self.node.pod_networks()?.iter();
            let mut by_address = HashMap::default();
            let all: Vec<_> = all
                .filter(|network| self.has_link_to(network))
                .flat_map(|network| network.by_link.iter().map(move |own| (network, own)))
                .collect();
            for (network, (own, _)) in all.iter().filter(|(_, (_, link))| link != "lo") {
                let same = by_address.entry(*own).or_insert(Some(*network));
                // It is not known which of the two is the pod.
                *same = same.filter(|other| std::ptr::eq(*other, *network));
            }
            // A pod has its address on another link than lo, if any pod has it there.
            for (network, (own, _)) in all.iter().filter(|(_, (_, link))| link == "lo") {
                by_address.entry(*own).or_insert(Some(*network));
            }
            Ok(by_address)
        });
        by_address.as_ref()
    }
}

/// The network of a pod, as a node of its own.
struct Inside<'p> {
    address: IpAddr,
    network: &'p PodNetwork,
    /// The protocol and ports of the packets that leave it, where rules of routing may ask for them.
    transport: Option<Transport<'p>>,
}

impl<'p> Inside<'p> {
    const fn of(network: &'p PodNetwork, address: IpAddr) -> Self {
        Self {
            address,
            network,
            transport: None,
        }
    }

    /// Returns the same for packets of `proto` that leave by these ports.
    const fn sending(self, proto: Proto, source_port: Option<u16>, port: u16) -> Self {
        Self {
            transport: Some(Transport::of(proto, source_port, port)),
            ..self
        }
    }

    /// Returns why a packet that comes in does not end at a program, or is not answered.
    fn end(&self, comes: &Flow) -> Option<Fault> {
        let at = SocketAddr::new(comes.destination, comes.port);
        let no_way_back = || {
            let to = comes.source?;
            self.nowhere(to, true).or_else(|| self.unanswered(to))
        };
        let node = NodeSnapshot::new(&self.network.evidence);
        if let Some(link) = unrouted(&node, at.ip()) {
            return Some(Fault::Obstacle(Box::new(Obstacle::NoLocalRoute {
                address: at.ip(),
                link: link.to_owned(),
                inside: Some((self.address, self.network.pid)),
            })));
        }
        if !self.network.has_rules() {
            return self.deaf(comes.proto, at, at).or_else(no_way_back);
        }
        let outcomes = walked(&node, comes);
        let mut faults = outcomes.iter().map(|outcome| {
            let end = SocketAddr::from(outcome.destination);
            let fault = self.fault(&node, outcome, comes.proto, false);
            // Rules may send it to another port, as service meshes do.
            let is_here = self.network.addresses.contains(&end.ip());
            fault
                .or_else(|| is_here.then(|| self.deaf(comes.proto, at, end))?)
                .or_else(|| self.answer(&node, comes, outcome, Entry::Host))
        });
        faults.find_map(|fault| fault).or_else(no_way_back)
    }

    /// Returns why the pod's network, `node`, stops the packets after the first one of the connection that `opens` with `outcome`:
    /// the replies, which enter at `from`, or later packets of the client.
    fn answer<'s>(
        &self,
        node: &'s NodeSnapshot<'s>,
        opens: &Flow,
        outcome: &Outcome,
        from: Entry,
    ) -> Option<Fault> {
        if opens.established || !outcome.verdict.arrives() {
            return None;
        }
        let question = Question {
            flow: opens,
            port: None,
        };
        let first = reply(node, question, outcome, from);
        let sent = Flow {
            established: true,
            ..opens.clone()
        };
        let world = World::whole(node, Family::of(opens.destination));
        let mut found = None;
        let followed = follow_on(&first, Some(sent), |which, packet| {
            let ends = world.further(&packet).unwrap_or_default();
            let is_reply = which != Which::Sent;
            let leaves = is_reply && from == Entry::Host;
            found = ends.iter().find_map(|end| {
                self.fault(node, end, opens.proto, is_reply)
                    .or_else(|| leaves.then(|| self.changed(node, end, "replies"))?)
            });
            // The first datagram is answered.
            if opens.proto == Proto::Udp && which != Which::Reply {
                found = found.take().map(|fault| {
                    let what =
                        format!("whether datagrams after the first one arrive is unknown: {fault}");
                    Fault::Unknown(Missing::Other(what))
                });
            }
            Ok::<_, Infallible>(found.is_none().then(|| marks(ends.iter())))
        });
        let Ok(()) = followed;
        found
    }

    /// Returns the fault of packets from `source`, if the pod itself has that address in addition to its own: the kernel takes them for
    /// martians, unless `accept_local` is on.
    fn has_source(&self, source: IpAddr) -> Option<Fault> {
        let is_its = source != self.address && self.network.addresses.contains(&source);
        let (pod, pid) = (self.address, self.network.pid);
        if let Some(link) = self.network.link_with(source).filter(|_| is_its)
            && self.accepts_local() == Some(false)
        {
            return Some(Fault::Obstacle(Box::new(Obstacle::Taken {
                address: source,
                link: link.name.clone(),
                inside: Some((pod, pid)),
                end: None,
            })));
        }
        is_its.then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "the pod with {pod} (process {pid}) has the client's address {source}, too, and discards packets from it unless \
                 accept_local is on"
            )))
        })
    }

    /// Returns whether the pod takes in packets from its own addresses; `None` if its setting is not read.
    fn accepts_local(&self) -> Option<bool> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let sysctl = node.sysctl().ok()?;
        let of = |link: &str| sysctl.get(&sysctl_of(link, "accept_local"));
        let own = of(&self.own_link()?.name)?;
        Some([of("all")?, own].contains(&"1"))
    }

    /// Returns the link with the pod's address.
    fn own_link(&self) -> Option<&'p Link> {
        self.network.link_with(self.address)
    }

    /// Returns whether a virtual machine has the pod's link, its routes and its sockets: its tap is a port of a bridge beside that link
    /// (bridge binding of `KubeVirt`), or on that link.
    fn is_of_vm(&self) -> bool {
        let links = self.network.links.as_ref();
        let links = links.map_or(&[][..], |links| links.all.as_slice());
        let is_bridged = |tap: &Link| {
            let mut beside = links.iter().filter(|link| link.master == tap.master);
            tap.master.is_some() && is_tap(tap) && beside.any(|beside| beside.peer.is_some())
        };
        let is_it = |link: &Link| link.kind == "macvtap" || is_bridged(link);
        links.iter().any(is_it)
    }

    /// Returns the fault of packets to `to`, or of replies, if no route of the pod's network leads there.
    fn nowhere(&self, to: IpAddr, reply: bool) -> Option<Fault> {
        if !matches!(self.way(to, true)?, Decision::Nowhere(_)) {
            return None;
        }
        let node = NodeSnapshot::new(&self.network.evidence);
        let ways = Ways::of(&node).carrying(self.transport);
        let diverted = ways.diverted(SocketAddr::new(to, 0), self.address, false);
        Some(Fault::Obstacle(Box::new(Obstacle::InsideRoute {
            pod: self.address,
            pid: self.network.pid,
            to,
            by: diverted.map(|diverted| (diverted.words, diverted.by.removal())),
            reply,
        })))
    }

    /// Returns the way of packets to `to`, from the pod's address if they are `bound` to it; `None` if its routes are not read, as
    /// with the files of a process.
    fn way(&self, to: IpAddr, bound: bool) -> Option<Decision> {
        let node = NodeSnapshot::new(&self.network.evidence);
        node.routes().ok()?;
        let lookup = Lookup {
            source: bound.then(|| Asked::new(self.address, None)),
            transport: self.transport,
            ..Lookup::to(Asked::new(to, None))
        };
        Some(Router::new(&node).decide(lookup))
    }

    /// Returns whether a routing policy rule of the pod's network asks for a mark, and a rule there marks the pod's packets to `to`.
    fn marks(&self, to: IpAddr) -> bool {
        let node = NodeSnapshot::new(&self.network.evidence);
        let rules = node.rules();
        if !rules.is_ok_and(|rules| rules.all.iter().any(|rule| rule.mark.is_some())) {
            return false;
        }
        let sent = Flow {
            entry: Entry::Host,
            source: Some(self.address),
            destination: to,
            port: REPLY_PORT,
            mark: 0,
            carried: Carried::default(),
            proto: Proto::Tcp,
            established: false,
        };
        let outcomes = walked(&node, &sent);
        let mut hops = outcomes.iter().flat_map(|outcome| &outcome.hops);
        hops.any(|hop| matches!(hop.effect, Effect::Mark { .. }))
    }

    /// Returns whether the pod asks for neighbours on its link of this name: links without ARP, as those of a VPN, need none.
    fn asks_for_neighbours(&self, name: &str) -> bool {
        let mut links = self.network.links.iter().flat_map(|link| &link.all);
        let link = links.find(|link| link.name == name);
        link.is_none_or(|link| link.flag("NOARP") != Some(true) && !is_of_vpn(&link.kind))
    }

    /// Returns the next hop of packets to `to`, and its link.
    fn next_hop(&self, to: IpAddr) -> Option<(IpAddr, String)> {
        match self.way(to, true)? {
            Decision::Out {
                device: Some(link),
                gateway,
                ..
            } => Some((gateway.unwrap_or(to), link.to_string())),
            _ => None,
        }
    }

    /// Returns the fault of packets to `to` whose next hop did not answer the pod.
    fn unanswered(&self, to: IpAddr) -> Option<Fault> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let table = node.neighbour_table().ok()?;
        let (address, link) = self.next_hop(to)?;
        let mut links = self.network.links.iter().flat_map(|link| &link.all);
        let own = links.find(|own_link| own_link.name == link);
        // A link that sends nothing gets no answer either: the other end of the link says why.
        if own.is_some_and(|own_link| own_link.flag("NO-CARRIER") == Some(true)) {
            return None;
        }
        let found = table
            .on(address, &link)
            .filter(|neighbour| neighbour.failed)?;
        Some(Fault::Obstacle(Box::new(Obstacle::Unanswered {
            address: found.address,
            link,
            inside: Some((self.address, self.network.pid)),
            there: None,
            silent: None,
        })))
    }

    /// Returns why the pod's own packet does not leave its network: rules stop it, or it ends there, and nothing listens.
    fn leaving(&self, leaves: &Flow) -> Option<Fault> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let outcomes = walked(&node, leaves);
        let at = SocketAddr::new(leaves.destination, leaves.port);
        outcomes.iter().find_map(|outcome| {
            let end = SocketAddr::from(outcome.destination);
            let stays = end.ip().is_loopback() || self.network.addresses.contains(&end.ip());
            let unheard = || {
                matches!(self.deaf(leaves.proto, at, end)?, Fault::Obstacle(of) if matches!(*of, Obstacle::Deaf { .. }))
                    .then(|| {
                        Fault::Obstacle(Box::new(Obstacle::OwnEnd {
                            pod: self.address,
                            pid: self.network.pid,
                            at,
                            end,
                        }))
                    })
            };
            self.fault(&node, outcome, leaves.proto, false)
                .or_else(|| stays.then(unheard)?)
                .or_else(|| (!stays).then(|| self.changed(&node, outcome, "packets"))?)
                .or_else(|| self.answer(&node, leaves, outcome, Entry::Outside))
        })
    }

    /// Returns the doubt about packets of the pod, in words, that its own rules change before they leave: the node gets others.
    fn changed(&self, node: &NodeSnapshot<'_>, outcome: &Outcome, which: &str) -> Option<Fault> {
        let is_asked_for = || {
            let mut rules = node.rules().into_iter().flat_map(|rules| &rules.all);
            rules.any(|rule| rule.mark.is_some())
        };
        let found = outcome.hops.iter().find_map(|hop| {
            let what = match hop.effect {
                Effect::Dnat { address, port } => {
                    format!("sends them to {}", SocketAddr::new(address, port))
                }
                Effect::Snat { address } if address != Some(self.address) => address.map_or_else(
                    || "changes their source".to_owned(),
                    |address| format!("gives them the source {address}"),
                ),
                Effect::Ttl { to } if to < LONG_LIVED => format!("sets their TTL to {to}"),
                Effect::Mark { to, .. } if to != 0 && is_asked_for() => {
                    format!("marks them {to:#x}, which a routing policy rule there asks for")
                }
                _ => return None,
            };
            Some((hop, what))
        });
        let (hop, what) = found?;
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "in the network of pod {} (process {}), rule {} of {} {} {what}: where the {which} end is not followed",
            self.address, self.network.pid, hop.number, hop.table, hop.chain
        ))))
    }

    /// Returns the fault of a packet that a rule of the pod's network stops, or may stop.
    fn fault(
        &self,
        node: &NodeSnapshot<'_>,
        outcome: &Outcome,
        proto: Proto,
        reply: bool,
    ) -> Option<Fault> {
        match outcome.verdict {
            Verdict::Drop | Verdict::Reject => {
                let hop = decisive(outcome)?;
                let rule = Rule::of(hop, Family::of(outcome.destination.0));
                let at = SocketAddr::from(outcome.destination);
                let by = By::new(rule, maker(hop), node);
                let by = if reply {
                    by.of_further(Family::of(at.ip()), node)
                } else {
                    by.from_outside(at, proto, node)
                };
                Some(Fault::Obstacle(Box::new(Obstacle::Inside {
                    pod: self.address,
                    pid: self.network.pid,
                    reason: why(outcome, None),
                    by: Box::new(by),
                    refused: outcome.verdict == Verdict::Reject,
                    reply,
                })))
            }
            Verdict::Unknown | Verdict::Mixed => {
                let what = format!("in the network of pod {}: {}", self.address, outcome.reason);
                Some(Fault::Unknown(Missing::Other(what)))
            }
            Verdict::Deliver | Verdict::Local | Verdict::Unmatched => None,
        }
    }

    /// Returns the fault of a packet to endpoint `at` that ends at address and port `end`, where nothing listens.
    fn deaf(&self, proto: Proto, at: SocketAddr, end: SocketAddr) -> Option<Fault> {
        // Sockets of SCTP need a module, and those of a virtual machine are behind its tap.
        let node = NodeSnapshot::new(&self.network.evidence);
        let is_vm = |link: &Link| is_tap(link) || link.kind == "macvtap";
        let has_sockets = matches!(proto, Proto::Tcp | Proto::Udp)
            && self
                .network
                .links
                .as_ref()
                .is_some_and(|links| !links.all.iter().any(is_vm));
        let sockets = node.sockets().ok().filter(|_| has_sockets)?;
        // A socket that is bound to a link takes packets that enter by this link.
        let by = self
            .own_link()
            .map(|link| (&*link.name, link.master.as_deref()));
        let is_open = |socket: &&Socket| match (&socket.device, by) {
            (Some(device), Some((name, master))) => {
                end.ip().is_loopback() || device == name || Some(&**device) == master
            }
            _ => true,
        };
        let mut taking = sockets.taking(proto, end.ip(), end.port());
        if taking.clone().any(|socket| is_open(&socket)) {
            return hung(sockets, proto, at, end);
        }
        let others = sockets
            .listening
            .iter()
            .filter(|listening| listening.proto == proto);
        let mut listens: Vec<SocketAddr> = others.map(|socket| socket.local).collect();
        // The same port at another address says most.
        listens.sort_by_key(|listen| (listen.port() != end.port(), *listen));
        listens.dedup();
        listens.truncate(MOST_NAMED);
        Some(Fault::Obstacle(Box::new(Obstacle::Deaf {
            at,
            end,
            listens,
            bound: taking.find_map(|socket| socket.device.clone()),
            instead: instead(sockets, proto, end),
            stranger: None,
        })))
    }
}

/// Returns the link of `node` that is up and has `address`, for which no table has the route that makes it the kernel's own.
fn unrouted<'n>(node: &'n NodeSnapshot<'_>, address: IpAddr) -> Option<&'n str> {
    let routes = &node.routes().ok()?.all;
    // A listing may be of table main alone.
    let mut own = routes.iter().filter(|route| route.kind == "local");
    own.clone().find(|route| route.table == "local")?;
    if own.any(|route| route.destination.contains(address)) {
        return None;
    }
    let mut addresses = node.addresses().ok()?.all.iter();
    let found = addresses.find(|own| {
        let in_use = !["tentative", "dadfailed"]
            .iter()
            .any(|flag| own.flags.iter().any(|own| own == flag));
        own.addr.addr == address && in_use
    })?;
    let link = node
        .links()
        .ok()?
        .all
        .iter()
        .find(|link| link.name == found.link)?;
    (link.flag("UP") == Some(true)).then_some(found.link.as_str())
}

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

/// Returns whether `link` is a tap, behind which is a virtual machine.
fn is_tap(link: &Link) -> bool {
    let is_ethernet = link.kind == "tun" && link.flag("POINTOPOINT") != Some(true);
    is_ethernet || link.kind == "tap" || link.name.starts_with("tap")
}

/// Returns whether links of this kind lead to the other end of a VPN alone.
fn is_of_vpn(kind: &str) -> bool {
    matches!(kind, "tun" | "wireguard")
}

/// Returns whether clients in the network of a pod ask for ECN.
fn asks_for_ecn(network: &PodNetwork) -> bool {
    let node = NodeSnapshot::new(&network.evidence);
    node.sysctl()
        .is_ok_and(|all| all.get("net.ipv4.tcp_ecn") == Some("1"))
}

/// Returns the first and the last port that the network of a pod gives to clients.
fn ports_of(network: &PodNetwork) -> Option<(u16, u16)> {
    let ports = LocalPorts::read(&NodeSnapshot::new(&network.evidence)).ok()?;
    Some((ports.first, ports.last))
}

/// Returns whether rules of a pod's network set the type of service of packets.
fn sets_tos(network: &PodNetwork) -> bool {
    let items = IPTABLES.iter().chain(&[Item::Nft]);
    let mut texts = items.filter_map(|item| network.evidence.text(*item).ok());
    texts.any(|text| {
        let mut words = ["-j TOS", "-j DSCP", "dscp"].into_iter();
        words.any(|word| text.contains(word))
    })
}

/// Returns the packet of `flow` with `outcome` as it comes into the network of a pod.
fn comes(flow: &Flow, outcome: &Outcome) -> Flow {
    let (destination, port) = outcome.destination;
    Flow {
        entry: Entry::Outside,
        source: Some(outcome.source),
        destination,
        port,
        mark: 0,
        carried: outcome.carried.elsewhere(),
        ..flow.clone()
    }
}

/// Returns the ends of `flow` in the network of a pod.
fn walked<'n>(network: &'n NodeSnapshot<'n>, flow: &Flow) -> Vec<Outcome> {
    let family = Family::of(flow.destination);
    let world = World::whole(network, family);
    Walks::new(&world, family).walk(flow)
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
