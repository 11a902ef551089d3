//! Connections that continue on another node: the state of that node judges the packet as it left the previous node, and the
//! reply on its way back.
//!
//! A packet to a pod or an address of another node enters that node with the source that it had when it left. Without the state
//! of that node, the verdict is that of the previous nodes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::HashMap;

use super::cell::{Cell, Client, Kind};
use super::judge::{Judge, Question};
use super::listeners::hung;
use super::place::Holder;
use super::single::{Signs, signs_inside};
use super::witnesses::Others;
use super::{Fate, Fault, Missing, Obstacle, TunnelState, Verdict, Way, Which};
use crate::trace::{self, Carried, Entry, Flow, Further, Kept, Outcome, Reply, World};
use kpx_node::evidence::Evidence;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::sockets::Socket;
use kpx_node::owner::{Owners, Port};

/// Nodes that a connection is followed through.
const MOST_NODES: usize = 4;

/// The states of the other nodes of a cluster, by their names.
#[derive(Debug, Default)]
pub struct Across<'e> {
    pub(super) nodes: BTreeMap<String, Result<NodeSnapshot<'e>, String>>,
}

impl<'e> Across<'e> {
    /// Returns the states in `nodes`: the evidence of each, or the reason why it was not read.
    pub fn new(nodes: impl IntoIterator<Item = (String, Result<&'e Evidence, String>)>) -> Self {
        let parse = |(name, read): (String, Result<&'e Evidence, String>)| {
            let node = read.map(|evidence| NodeSnapshot::new(evidence).called(Some(&name)));
            (name, node)
        };
        Self {
            nodes: nodes.into_iter().map(parse).collect(),
        }
    }

    /// Returns the state of the node `name`, if it was read.
    pub fn node(&self, name: &str) -> Option<&NodeSnapshot<'e>> {
        self.nodes.get(name)?.as_ref().ok()
    }

    /// Iterates over the names of the nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Returns a judge of connections through `node` that follows them to the other nodes.
    pub fn judge<'n>(&'e self, node: &'n NodeSnapshot<'n>) -> Judge<'n>
    where
        'e: 'n,
    {
        let stations = Stations {
            across: self,
            read: RefCell::default(),
            followed: RefCell::default(),
        };
        let mut judge = self.witnessed(node);
        judge.beyond = Some(Rc::new(stations));
        judge
    }

    /// Returns a judge of connections through `node` alone, who knows what the other nodes know of it.
    pub fn witnessed<'n>(&'e self, node: &'n NodeSnapshot<'n>) -> Judge<'n>
    where
        'e: 'n,
    {
        let mut judge = Judge::new(node);
        judge.others = Some(Rc::new(Others(self)));
        judge
    }
}

/// A packet that leaves a node for another one.
#[derive(Clone, Debug)]
pub(super) struct Leaving<'q> {
    question: Question<'q>,
    outcome: &'q Outcome,
    /// The node that it left, and the one that it goes to.
    from: Option<&'q str>,
    to: &'q str,
    /// The nodes that it passed.
    passed: usize,
    /// The VXLAN tunnel by which it left.
    tunnel: Option<Vxlan>,
}

/// Follows packets to other nodes.
pub(super) trait Beyond: fmt::Debug {
    /// Returns the fate of a packet on its destination node; `None` if nothing is known of that node.
    fn follow(&self, leaving: Leaving<'_>) -> Option<Onward>;
    /// Returns the single addresses that pods of other nodes name.
    fn signs(&self) -> HashMap<IpAddr, Signs>;
}

/// The way of a packet after the node that it left.
#[derive(Clone, Debug, PartialEq)]
pub enum Onward {
    /// It was followed to another node.
    Far(Rc<Far>),
    /// The other node was not read.
    Unread {
        /// The node.
        node: String,
        /// Why it was not read.
        reason: String,
    },
}

/// The fate of a packet on another node.
#[derive(Clone, Debug, PartialEq)]
pub struct Far {
    /// The node.
    pub node: String,
    /// The Service port, as that node sees it.
    pub port: Option<Port>,
    /// The packet as it arrives, its outcomes there, and the verdict on them.
    pub cell: Cell,
    /// Whether rules there stop it for its source alone, which a node before put in the place of the client's.
    pub admits_client: bool,
}

/// How a packet comes from another node, and how its replies leave for there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrival {
    /// The node that sent it.
    pub from: Option<String>,
    /// The link by which it comes in, if known.
    pub link: Option<String>,
    /// The VXLAN tunnel of the other node that carries it.
    pub tunnel: Option<Vxlan>,
    /// The outcomes of the reply on this node.
    pub replies: Vec<Outcome>,
}

/// What both ends of a VXLAN tunnel must share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Vxlan {
    /// The UDP port to which it sends, and at which it receives.
    port: Option<u16>,
    /// The network.
    vni: Option<u64>,
}

/// Walks packets and replies through one node.
pub(crate) trait Walked {
    /// Follows the first packet of a flow.
    fn first(&self, flow: &Flow) -> Vec<Outcome>;
    /// Follows a reply.
    fn back(&self, reply: &Reply) -> Vec<Outcome>;
}

impl Walked for Kept<'_> {
    fn first(&self, flow: &Flow) -> Vec<Outcome> {
        self.walk(flow)
    }

    fn back(&self, reply: &Reply) -> Vec<Outcome> {
        self.reply(reply)
    }
}

impl Walked for World<'_, '_> {
    fn first(&self, flow: &Flow) -> Vec<Outcome> {
        self.walk(flow).unwrap_or_default()
    }

    fn back(&self, reply: &Reply) -> Vec<Outcome> {
        self.further(&Further::Reply(reply.clone()))
            .unwrap_or_default()
    }
}

/// The key of a packet that arrives at a node: the node, the source and the client's address, the destination, the protocol,
/// whether the connection is established, its link and fields, and the Service.
type Key = (
    String,
    (IpAddr, IpAddr),
    SocketAddr,
    Proto,
    bool,
    Carried,
    String,
);

/// The other nodes, each read for any number of packets.
#[derive(Debug)]
struct Stations<'n> {
    across: &'n Across<'n>,
    read: RefCell<BTreeMap<String, Rc<Station<'n>>>>,
    followed: RefCell<HashMap<Key, Rc<Far>>>,
}

#[derive(Debug)]
struct Station<'n> {
    judge: Judge<'n>,
    walks: [Kept<'n>; 2],
}

impl<'n> Stations<'n> {
    fn station(&self, node: &'n NodeSnapshot<'n>, name: &str) -> Rc<Station<'n>> {
        if let Some(known) = self.read.borrow().get(name) {
            return Rc::clone(known);
        }
        let station = Rc::new(Station {
            judge: self.across.witnessed(node),
            walks: Family::BOTH.map(|family| Kept::new(node, family)),
        });
        let mut all = self.read.borrow_mut();
        all.insert(name.to_owned(), Rc::clone(&station));
        station
    }
}

impl Beyond for Stations<'_> {
    fn signs(&self) -> HashMap<IpAddr, Signs> {
        let nodes = self.across.nodes.values().flatten();
        nodes.flat_map(signs_inside).collect()
    }

    fn follow(&self, leaving: Leaving<'_>) -> Option<Onward> {
        let node = match self.across.nodes.get(leaving.to)? {
            Ok(node) => node,
            Err(reason) => {
                return Some(Onward::Unread {
                    node: leaving.to.to_owned(),
                    reason: reason.clone(),
                });
            }
        };
        let station = self.station(node, leaving.to);
        let judge = &station.judge;
        let outcome = leaving.outcome;
        let to = SocketAddr::from(outcome.destination);
        let link = judge.comes_in_by(outcome).map(str::to_owned);
        let carried = Carried {
            input: link.as_deref().map(Arc::from),
            ..outcome.carried.elsewhere()
        };
        let asked = leaving.question.flow;
        let key = (
            leaving.to.to_owned(),
            (outcome.source, outcome.sent_from),
            to,
            asked.proto,
            asked.established,
            carried.clone(),
            leaving
                .question
                .port
                .map_or_else(String::new, |port| port.name.to_string()),
        );
        if let Some(known) = self.followed.borrow().get(&key) {
            return Some(Onward::Far(Rc::clone(known)));
        }
        let flow = Flow {
            entry: Entry::Outside,
            source: Some(outcome.source),
            destination: to.ip(),
            port: to.port(),
            mark: 0,
            carried,
            proto: asked.proto,
            established: asked.established,
        };
        let port = leaving.question.port.map_or_else(
            || port_at(node, judge, &flow),
            |port| Some(seen_from(port, leaving.to)),
        );
        let question = Question {
            flow: &flow,
            port: port.as_ref(),
        };
        let arrival = Arrival {
            from: leaving.from.map(str::to_owned),
            link,
            tunnel: leaving.tunnel,
            replies: Vec::new(),
        };
        let walks = &station.walks[usize::from(Family::of(to.ip()) == Family::V6)];
        let onward = (leaving.passed < MOST_NODES).then_some((self as &dyn Beyond, leaving.passed));
        let (outcomes, verdict, arrival) = judge.arrive(walks, question, arrival, onward);
        let is_replaced =
            outcome.source != outcome.sent_from && !outcome.sent_from.is_unspecified();
        let stops = |all: &[Outcome]| all.iter().any(|of| !of.verdict.arrives());
        let admits_client = is_replaced && stops(&outcomes) && {
            let kept = Flow {
                source: Some(outcome.sent_from),
                ..flow.clone()
            };
            !stops(&walks.first(&kept))
        };
        let far = Rc::new(Far {
            node: leaving.to.to_owned(),
            admits_client,
            cell: Cell {
                kind: match &port {
                    Some(port) if port.node_port == Some(to.port()) => Kind::NodePort,
                    _ => Kind::Endpoint,
                },
                client: Client::Elsewhere,
                from: leaving.from.unwrap_or("another node").to_owned(),
                flow,
                outcomes,
                verdict,
                arrival: Some(arrival),
            },
            port,
        });
        self.followed.borrow_mut().insert(key, Rc::clone(&far));
        Some(Onward::Far(far))
    }
}

/// Returns `port` as the node called `name` sees it.
fn seen_from(port: &Port, name: &str) -> Port {
    let mut port = port.clone();
    for endpoint in &mut port.endpoints {
        endpoint.local = endpoint.node.as_deref().map(|node| node == name);
    }
    port
}

/// Returns the Service port of a packet that arrives at `node`.
fn port_at(node: &NodeSnapshot<'_>, judge: &Judge<'_>, flow: &Flow) -> Option<Port> {
    let owners = Owners::at_address(node, flow.destination, flow.port);
    let at = owners.at(flow.destination, flow.port, flow.proto);
    let at = at.map(|(port, _)| port).or_else(|| {
        judge.places.own(flow.destination)?;
        owners.node_port(flow.port, flow.proto)
    });
    at.cloned()
}

impl Judge<'_> {
    /// Returns what happens to a packet after this node, on which it has the fault `here`, if any.
    pub(super) fn go_on(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        here: Option<Fault>,
        (beyond, passed): (&dyn Beyond, usize),
    ) -> Way {
        let is_open = here
            .as_ref()
            .is_none_or(|fault| fault.fate() == Fate::Unknown);
        let is_astray = matches!(
            here,
            Some(Fault::Unknown(
                Missing::PodRoute { .. } | Missing::Beyond { .. }
            ))
        );
        let to = (is_open && !is_astray)
            .then(|| self.far_node(question, outcome))
            .flatten();
        let Some(to) = to else {
            return Way::of(here, None);
        };
        let name = self.node.name().ok();
        let leaving = Leaving {
            question,
            outcome,
            from: name.as_deref(),
            to: &to,
            passed: passed + 1,
            tunnel: outcome.leaves_by().and_then(|link| self.vxlan(link)),
        };
        let Some(onward) = beyond.follow(leaving) else {
            return Way::of(here, None);
        };
        let Onward::Far(far) = &onward else {
            return Way::of(here, Some(onward));
        };
        let there = there(far);
        let fault = match there {
            Some(fault) if fault.fate().fails() => Some(fault),
            there => match here {
                // The other node shows it.
                Some(Fault::Unknown(
                    Missing::OtherMachine(_) | Missing::Vacant { .. } | Missing::Silent { .. },
                )) => there,
                here => here.or(there),
            },
        };
        Way::of(fault, Some(onward))
    }

    /// Returns the way of a packet after this node, as far as it is known.
    pub(super) fn onward(&self, question: Question<'_>, outcome: &Outcome) -> Option<Onward> {
        let beyond = self.beyond.as_ref()?;
        let way = self.go_on(question, outcome, None, (beyond.as_ref(), 0));
        way.onward
    }

    /// Returns the node that has `addr`, or whose range of pods has it.
    pub(crate) fn node_of(&self, addr: IpAddr) -> Option<String> {
        match self.places.holder(addr) {
            Some(Holder::Node(name)) => Some(name.clone()),
            _ => self
                .places
                .node_of_pod(addr)
                .map(|node| node.metadata.name.clone()),
        }
    }

    /// Returns the other node that has `addr` itself.
    pub(crate) fn node_at(&self, addr: IpAddr) -> Option<String> {
        match self.places.holder(addr) {
            Some(Holder::Node(name)) if self.node.name().ok().as_ref() != Some(name) => {
                Some(name.clone())
            }
            _ => None,
        }
    }

    /// Returns the other node to which a packet that leaves this one goes.
    pub(super) fn far_node(&self, question: Question<'_>, outcome: &Outcome) -> Option<String> {
        if !outcome.verdict.arrives() || self.ends_here(outcome) || outcome.source.is_unspecified()
        {
            return None;
        }
        let at = SocketAddr::from(outcome.destination);
        let own = self.node.name().ok();
        let node_at = |addr| match self.places.holder(addr) {
            Some(Holder::Node(name)) => Some(name.clone()),
            _ => None,
        };
        let endpoints = question.port.into_iter().flat_map(|port| &port.endpoints);
        let mut endpoints = endpoints.filter(|endpoint| endpoint.addr == at);
        let by_slice = endpoints.find_map(|endpoint| endpoint.node.as_deref().map(str::to_owned));
        let by_gateway = outcome.gateway.and_then(node_at);
        let end = by_slice.or_else(|| node_at(at.ip())).or_else(|| {
            self.places
                .node_of_pod(at.ip())
                .map(|node| node.metadata.name.clone())
        });
        // The node's own pods are here, by whatever route.
        let end = end.filter(|node| Some(node) != own.as_ref())?;
        Some(
            by_gateway
                .filter(|node| Some(node) != own.as_ref())
                .unwrap_or(end),
        )
    }

    /// Judges a packet that comes from another node, and its reply on this one, through `world`, whose rules may differ from the node's.
    pub(crate) fn arrived_in(
        &self,
        world: &World<'_, '_>,
        question: Question<'_>,
        arrival: &Arrival,
    ) -> (Vec<Outcome>, Verdict, Arrival) {
        let outcomes = world.walk(question.flow).unwrap_or_default();
        self.follow_further(world, question, &outcomes);
        self.arrive(world, question, arrival.clone(), None)
    }

    /// Judges a packet that comes from another node, and its reply on this one; with `onward`, also on the nodes after
    /// this one.
    fn arrive(
        &self,
        walks: &dyn Walked,
        question: Question<'_>,
        arrival: Arrival,
        onward: Option<(&dyn Beyond, usize)>,
    ) -> (Vec<Outcome>, Verdict, Arrival) {
        let mut arrival = Arrival {
            replies: Vec::new(),
            ..arrival
        };
        let outcomes = walks.first(question.flow);
        let judged = outcomes.iter().map(|outcome| {
            let here = self
                .other_end(&arrival, outcome)
                .or_else(|| {
                    let is_carried = arrival.tunnel.is_some();
                    let family = Family::of(question.flow.destination);
                    self.home_gone_of(self.places.object()?, family, is_carried)
                })
                .or_else(|| self.fault(question, outcome));
            let here = here
                .or_else(|| self.unheard(question, outcome))
                .or_else(|| self.back_by_other_node(question, outcome, arrival.from.as_deref()?));
            let arrives = here
                .as_ref()
                .is_none_or(|fault| fault.fate() == Fate::Unknown);
            if arrives && (self.ends_here(outcome) || self.is_here(question, outcome) == Some(true))
            {
                let back = self.leaves_again(walks, question, outcome, &mut arrival);
                let fails = back.as_ref().is_some_and(|fault| fault.fate().fails());
                let way = Way::of(if fails { back } else { here.or(back) }, None);
                return self.with_further(question, outcome, way);
            }
            match onward {
                Some(onward) => {
                    let way = self.go_on(question, outcome, here, onward);
                    self.with_further(question, outcome, way)
                }
                None => Way::of(here, None),
            }
        });
        let judged: Vec<_> = judged.collect();
        let verdict = Verdict::joined(&outcomes, judged);
        let verdict = self.with_beside(question, &outcomes, verdict);
        (outcomes, verdict, arrival)
    }

    /// Returns the VXLAN tunnel `link`.
    fn vxlan(&self, link: &str) -> Option<Vxlan> {
        let link = self.link(link)?;
        (link.kind == "vxlan").then_some(Vxlan {
            port: link.tunnel_port,
            vni: link.vni,
        })
    }

    /// Returns the fault of a packet that comes by a tunnel whose ends have different UDP ports or networks.
    fn other_end(&self, arrival: &Arrival, outcome: &Outcome) -> Option<Fault> {
        let link = arrival.link.as_ref()?;
        let (own, other) = (self.vxlan(link)?, arrival.tunnel?);
        let state = match (own.port.zip(other.port), own.vni.zip(other.vni)) {
            (Some((own, other)), _) if own != other => TunnelState::OtherPort { own, other },
            (_, Some((own, other))) if own != other => TunnelState::OtherNetwork {
                own,
                announced: other,
                windows: false,
            },
            _ => return None,
        };
        Some(Fault::Obstacle(Box::new(Obstacle::OffTunnel {
            link: link.clone(),
            state,
            node: arrival.from.clone().unwrap_or_default(),
            to: outcome.destination.0,
            way: link.clone(),
            agent: self.agent(),
            error: None,
        })))
    }

    /// Returns that surely nothing listens at an endpoint in the node's own network, or that a link of the node has the address of
    /// a pod.
    pub(super) fn unheard(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let proto = question.flow.proto;
        if !self.ends_here(outcome) || !matches!(proto, Proto::Tcp | Proto::Udp) {
            return None;
        }
        let address = SocketAddr::from(outcome.destination);
        let sockets = self.node.sockets().ok()?;
        let mut taking = sockets.taking(proto, address.ip(), address.port());
        let mut open = taking.clone();
        let socket = open.find(|socket| self.is_open(socket, question, outcome));
        if self.places.is_pod(address.ip())
            && let Some(link) = self.places.own(address.ip())
            && self.places.is_of_node_object(address.ip()) == Ok(false)
        {
            let program = socket.and_then(|socket| socket.processes.first());
            return Some(Fault::Obstacle(Box::new(Obstacle::Taken {
                address: address.ip(),
                link: link.to_owned(),
                inside: None,
                end: Some((address, program.map(|program| program.name.clone()))),
            })));
        }
        if socket.is_some() {
            return hung(sockets, proto, address, address);
        }
        let bound = taking.find_map(|socket| socket.device.clone());
        if !sockets.gaps.is_empty() && bound.is_none() {
            return None;
        }
        let on_port =
            |socket: &&Socket| socket.proto == proto && socket.local.port() == address.port();
        let elsewhere = sockets.listening.iter().filter(on_port);
        let listens: Vec<SocketAddr> = elsewhere.map(|elsewhere| elsewhere.local).collect();
        let mut endpoints = question.port.iter().flat_map(|port| &port.endpoints);
        let has_pod = endpoints.any(|endpoint| endpoint.addr == address && endpoint.pod.is_some());
        Some(if bound.is_some() || has_pod && !listens.is_empty() {
            let deaf = Obstacle::Deaf {
                bound,
                instead: None,
                at: address,
                end: address,
                listens,
                stranger: None,
            };
            self.with_stranger(question, Fault::Obstacle(Box::new(deaf)))
        } else {
            let is_elses = self.places.is_of_node_object(address.ip()) == Ok(false);
            let link = self.places.own(address.ip()).filter(|_| is_elses);
            Fault::NothingListens {
                address,
                vrf: None,
                link: link.map(str::to_owned),
            }
        })
    }

    /// Returns whether `socket` takes the packet, which ends at this node: one that is bound to a link takes what comes in by it.
    pub(super) fn is_open(
        &self,
        socket: &Socket,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> bool {
        let Some(device) = &socket.device else {
            return true;
        };
        let input = match question.flow.entry {
            Entry::Host => Some(Rc::from("lo")),
            _ => self.came_in_by(question, outcome),
        };
        let vrf_of = |link: &str| Some(self.node.links().ok()?.vrf_of(link)?.name.clone());
        input.is_none_or(|link| *link == **device || vrf_of(&link).as_ref() == Some(device))
    }

    /// Returns why the reply of an endpoint of this node does not leave for the node that sent the packet.
    fn leaves_again(
        &self,
        walks: &dyn Walked,
        question: Question<'_>,
        outcome: &Outcome,
        arrival: &mut Arrival,
    ) -> Option<Fault> {
        let entry = if self.ends_here(outcome) {
            Entry::Host
        } else {
            Entry::Pod
        };
        // Translated back, the reply goes to where the packet was sent from.
        let reply = self.reply_from(question, outcome, entry);
        let replies = walks.back(&reply);
        let fault = self.stopped(&replies, Which::Reply, outcome.sent_from);
        let leave = || {
            let mut leaving = replies.iter().filter(|reply| reply.verdict.arrives());
            leaving.find_map(|reply| self.on_the_way_back(question, reply))
        };
        let fault = fault
            .or_else(|| untracked(outcome, &replies))
            .or_else(leave);
        for reply in replies {
            if !arrival.replies.contains(&reply) {
                arrival.replies.push(reply);
            }
        }
        fault
    }
}

/// Returns the doubt about a connection whose packets a node does not track, but whose replies it does: the replies are invalid
/// there.
fn untracked(outcome: &Outcome, replies: &[Outcome]) -> Option<Fault> {
    let is_out = |outcome: &Outcome| {
        let mut hops = outcome.hops.iter();
        hops.any(|hop| matches!(hop.effect, trace::Effect::Untrack))
    };
    if !is_out(outcome) || replies.iter().all(is_out) {
        return None;
    }
    Some(Fault::Unknown(Missing::Unmodelled(
        "a rule takes the packets out of connection tracking, and not their replies, which rules for invalid packets may \
         drop"
            .to_owned(),
    )))
}

/// Returns the fault of a packet on another node as a fault of the previous node.
fn there(far: &Far) -> Option<Fault> {
    let verdict = &far.cell.verdict;
    if verdict.fate == Fate::Works {
        return None;
    }
    let fault = verdict.faults().first().map_or_else(
        || {
            Fault::Unknown(Missing::Other(
                "the way of the packet depends on unknown conditions".to_owned(),
            ))
        },
        |fault| (*fault).clone(),
    );
    Some(Fault::There {
        node: far.node.clone(),
        fate: verdict.fate,
        failing: verdict.failing(),
        fault: Box::new(fault),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Item;
    use kpx_node::owner::{Endpoint, EndpointState};

    const NODES: &str = r#"{"items": [
        {"metadata": {"name": "w1"}, "spec": {"podCIDR": "10.1.1.0/24"},
         "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
        {"metadata": {"name": "w2"}, "spec": {"podCIDR": "10.1.2.0/24"},
         "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}},
        {"metadata": {"name": "w3"}, "spec": {"podCIDR": "10.1.3.0/24"},
         "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.3"}]}}]}"#;

    /// Returns node `w`N of three: its pods are behind cni0, and those of the other nodes behind these gateways.
    fn node(number: u8, gateways: &[(u8, &str)]) -> Evidence {
        let mut evidence = Evidence::default();
        let addresses = format!(
            r#"[{{"ifname": "eth0", "addr_info": [{{"family": "inet", "local": "192.0.2.{number}", "prefixlen": 24}}]}},
                {{"ifname": "cni0", "addr_info": [{{"family": "inet", "local": "10.1.{number}.1", "prefixlen": 24}}]}}]"#
        );
        let mut routes = format!(
            r#"[{{"dst": "192.0.2.0/24", "dev": "eth0"}}, {{"dst": "10.1.{number}.0/24", "dev": "cni0"}},
                {{"type": "local", "table": "local", "dst": "192.0.2.{number}", "dev": "eth0"}},
                {{"type": "local", "table": "local", "dst": "10.1.{number}.1", "dev": "cni0"}}"#
        );
        for (to, gateway) in gateways {
            routes.extend([
                ", {\"dst\": \"10.1.",
                &to.to_string(),
                ".0/24\", \"gateway\": \"",
                gateway,
                "\", \"dev\": \"eth0\"}",
            ]);
        }
        routes.push(']');
        let links =
            r#"[{"ifname": "eth0"}, {"ifname": "cni0", "linkinfo": {"info_kind": "bridge"}}]"#;
        let sysctl = "net.ipv4.ip_forward = 1\nnet.ipv4.conf.all.forwarding = 1\n\
                      net.bridge.bridge-nf-call-iptables = 1\n";
        let none = r#"{"items": []}"#;
        for (item, text) in [
            (Item::Addresses, addresses.as_str()),
            (Item::Routes, &routes),
            (Item::Links, links),
            (Item::Sysctl, sysctl),
            (Item::Nodes, NODES),
            (Item::Services, none),
            (Item::EndpointSlices, none),
            (Item::Pods, none),
            (Item::Iptables4, "*filter\nCOMMIT\n"),
            (Item::Nft, r#"{"nftables": []}"#),
            (Item::Conntrack, ""),
            (Item::ProxyConfig, "mode: iptables\n"),
        ] {
            evidence.insert(item, Ok(text.to_owned()));
        }
        evidence
    }

    fn port(at: &str, node: Option<&str>) -> Port {
        let mut port = Port::nobody(80, Proto::Tcp);
        port.endpoints.push(Endpoint {
            addr: at.parse().unwrap(),
            pod: Some("a/b".into()),
            node: node.map(Into::into),
            state: Some(EndpointState::Ready),
            local: Some(node == Some("w1")),
        });
        port
    }

    /// Returns the nodes that a packet from a pod of w1 to the endpoint passes, and the verdict on it.
    fn path(states: &[(&str, &Evidence)], port: &Port) -> (Vec<String>, Verdict) {
        let home = NodeSnapshot::new(states[0].1).called(Some("w1"));
        let others = states[1..].iter();
        let across = Across::new(others.map(|(name, of)| ((*name).to_owned(), Ok(*of))));
        let judge = across.judge(&home);
        let at = port.endpoints[0].addr;
        let flow = Flow {
            entry: Entry::Pod,
            source: Some([10, 1, 1, 7].into()),
            destination: at.ip(),
            port: at.port(),
            mark: 0,
            carried: Carried::default(),
            proto: Proto::Tcp,
            established: false,
        };
        let outcomes = World::whole(&home, Family::V4).walk(&flow).unwrap();
        let question = Question {
            flow: &flow,
            port: Some(port),
        };
        let verdict = judge.judge(question, &outcomes);
        let mut nodes = Vec::new();
        let mut onward = verdict.ways[0].onward.clone();
        while let Some(Onward::Far(far)) = onward {
            nodes.push(far.node.clone());
            onward = far.cell.verdict.ways[0].onward.clone();
        }
        (nodes, verdict)
    }

    #[test]
    fn a_packet_goes_on_at_the_node_of_its_gateway_and_then_at_that_of_the_endpoint() {
        let direct = [(2, "192.0.2.2"), (3, "192.0.2.3")];
        let (w1, w2) = (
            node(1, &direct),
            node(2, &[(1, "192.0.2.1"), (3, "192.0.2.3")]),
        );
        let w3 = node(3, &[(1, "192.0.2.1"), (2, "192.0.2.2")]);
        let around = node(1, &[(2, "192.0.2.2"), (3, "192.0.2.2")]);
        let all = |first| [("w1", first), ("w2", &w2), ("w3", &w3)];
        for (first, at, on, wanted) in [
            (&w1, "10.1.3.7:80", Some("w3"), &["w3"][..]),
            // The slice does not say where it is.
            (&w1, "10.1.3.7:80", None, &["w3"]),
            (&w1, "10.1.1.8:80", Some("w1"), &[]),
        ] {
            let (nodes, verdict) = path(&all(first), &port(at, on));
            assert_eq!(nodes, wanted, "{at}");
            assert_eq!(verdict.fate, Fate::Works, "{at}: {verdict:?}");
        }
        let (nodes, verdict) = path(&all(&around), &port("10.1.3.7:80", Some("w3")));
        // The state of one node does not show that this is a way.
        assert_eq!((nodes.len(), verdict.fate), (0, Fate::Unknown));
    }

    #[test]
    fn the_reply_takes_the_routes_of_the_other_node() {
        let w1 = node(1, &[(2, "192.0.2.2")]);
        let back = node(2, &[(1, "192.0.2.1")]);
        let lost = node(2, &[]);
        let fates = [&back, &lost].map(|w2| {
            let (_, verdict) = path(&[("w1", &w1), ("w2", w2)], &port("10.1.2.7:80", Some("w2")));
            let fault = verdict.faults().first().map(ToString::to_string);
            (verdict.fate, fault)
        });
        assert_eq!(fates[0], (Fate::Works, None));
        let said = "on node w2, the reply to 10.1.1.7 is lost: the node has no route to it";
        assert_eq!(fates[1], (Fate::Lost, Some(said.to_owned())));
    }

    #[test]
    fn a_reply_that_leaves_otherwise_than_by_the_clients_node_may_be_lost() {
        let w1 = node(1, &[(2, "192.0.2.2")]);
        let default = r#", {"dst": "default", "gateway": "192.0.2.254", "dev": "eth0"}]"#;
        let by_default = |gateways: &[(u8, &str)]| {
            let mut node = node(2, gateways);
            let routes = node.text(Item::Routes).unwrap();
            let routes = routes.trim_end_matches(']').to_owned() + default;
            node.insert(Item::Routes, Ok(routes));
            node
        };
        let direct = (1, "192.0.2.1");
        for (gateways, wanted) in [
            (&[direct, (3, "192.0.2.3")][..], Fate::Works),
            (&[(3, "192.0.2.3")], Fate::Unknown),
            (&[(1, "192.0.2.3"), (3, "192.0.2.3")], Fate::Unknown),
            // Without any such route, a router leads to them.
            (&[], Fate::Works),
        ] {
            let w2 = by_default(gateways);
            let (_, verdict) = path(
                &[("w1", &w1), ("w2", &w2)],
                &port("10.1.2.7:80", Some("w2")),
            );
            assert_eq!(verdict.fate, wanted, "{gateways:?}: {verdict:?}");
            let faults = verdict.faults();
            let said = faults.first().map(ToString::to_string).unwrap_or_default();
            let words = "on node w2, the replies to pod 10.1.1.7 on w1 leave by eth0 via 192.0.2.";
            assert_eq!(said.starts_with(words), wanted != Fate::Works, "{said}");
        }
    }

    #[test]
    fn without_the_state_of_the_other_node_the_verdict_is_as_before() {
        let w1 = node(1, &[(2, "192.0.2.2")]);
        let (nodes, verdict) = path(&[("w1", &w1)], &port("10.1.2.7:80", Some("w2")));
        assert_eq!((nodes.len(), verdict.fate), (0, Fate::Works));
        assert_eq!(verdict.ways[0].onward, None);
    }
}
