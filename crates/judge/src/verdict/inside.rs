//! Inside the network of a pod: its own rules, and whether something listens at the endpoint.
//!
//! Older bundles do not have the item: then these networks are not judged.

mod gateway;
mod network;

use std::cell::{OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;

use super::judge::{Judge, Question};
use super::local_ports::{DEFAULT_RANGE, LocalPorts};
use super::place::Holder;
use super::ports::REPLY_PORT;
use super::replies::{common_tos, reply};
use super::{Fault, Missing, Obstacle};
use crate::trace::mismatch::listed;
use crate::trace::{Carried, Entry, Flow, Further, Outcome, World};
use kpx_node::evidence::{Gap, IPTABLES, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::owner::Port;
pub(crate) use network::is_of_vpn;
use network::{Inside, comes, walked};

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
        let is_outside = question.flow.entry == Entry::Outside;
        // A node before may have translated it.
        let has_address = |port: &Port| !port.addresses.is_empty();
        let is_translated = at.ip() != question.flow.destination
            || is_outside && question.port.is_some_and(has_address);
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
        let end = inside.end(&comes).map(|fault| {
            let is_silent = matches!(&fault, Fault::Obstacle(what) if matches!(**what, Obstacle::Unanswered { .. }));
            let missing = self.no_gateway(&inside, outcome.source);
            let missing = missing.or_else(|| is_silent.then(strayed)?);
            let not_own = || match &fault {
                Fault::Obstacle(what) => match **what {
                    Obstacle::Unanswered { address, .. } => self.not_own(address),
                    _ => None,
                },
                _ => None,
            };
            missing.or_else(not_own).unwrap_or(fault)
        });
        let found = end
            .map(|fault| self.with_stranger(question, fault))
            .or_else(|| inside.has_source(outcome.source))
            .or_else(|| self.beside(&inside, question.flow, outcome.leaves_by()))
            .or_else(strayed)
            .or_else(|| self.gatewayless(&inside, outcome.source))
            .or_else(|| self.other_gateway(&inside, outcome.source))
            .or_else(|| inside.thinned(true));
        self.insides.known.borrow_mut().insert(asked, found.clone());
        found
    }

    /// Returns why the client's own network does not let its packet out.
    pub(super) fn inside_client(&self, question: Question<'_>) -> Option<Fault> {
        let flow = question.flow;
        let address = flow.source.filter(|_| flow.entry == Entry::Pod)?;
        let Some(network) = self.network_of(address).ok().flatten() else {
            let not_own = self.bridge_not_own(address);
            return not_own.or_else(|| self.silent_for_calico(address));
        };
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
            let (gateway, _) = inside.next_hop(flow.destination)?;
            let because = self.not_own(gateway).or_else(|| self.mute(address));
            let because = because.or_else(|| self.stopped_discovery(address, gateway));
            Some(because.unwrap_or(silent))
        };
        link()
            .or_else(|| self.duplicate_client(address))
            .or_else(nowhere)
            .or_else(|| self.beside(&inside, flow, None))
            .or_else(|| self.strayed(&inside, flow.destination, false))
            .or_else(|| self.other_source(&inside, flow.destination))
            .or_else(|| self.gatewayless(&inside, flow.destination))
            .or_else(|| self.no_gateway(&inside, flow.destination))
            .or_else(unanswered)
            .or_else(stopped)
            .or_else(|| self.silent_gateway(&inside, flow.destination))
            .or_else(|| self.unheard_gateway(&inside, flow.destination))
            .or_else(|| self.other_gateway(&inside, flow.destination))
            .or_else(|| self.unknown_gateway(&inside, flow.destination))
            .or_else(|| self.expiring_gateway(&inside, flow.destination))
            .or_else(|| inside.thinned(false))
    }

    /// Returns the doubt about packets to `to` of a pod whose next hop is an address of the node that the kernel does not take for its
    /// own: the pod still has a neighbour entry of it.
    fn expiring_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (gateway, link) = inside.next_hop(to)?;
        let fault = self.not_own(gateway)?;
        let node = NodeSnapshot::new(&inside.network.evidence);
        let entry = node.neighbour_table().ok()?.on(gateway, &link);
        let is_kept = entry.is_some_and(|entry| entry.permanent);
        (!is_kept).then(|| {
            Fault::Unknown(Missing::Unmodelled(format!(
                "{fault}; the pod has a neighbour entry of it that the node will not confirm when it expires"
            )))
        })
    }

    /// Returns the fault of any pod of the bridge whose network has `pod`, if the kernel does not take the bridge's address for its own.
    fn bridge_not_own(&self, pod: IpAddr) -> Option<Fault> {
        let links = &self.node.links().ok()?.all;
        let is_bridge = |name: &str| {
            links
                .iter()
                .any(|link| link.name == name && link.kind == "bridge")
        };
        let mut own = self.node.addresses().ok()?.all.iter();
        let own =
            own.find(|own| !own.addr.is_host() && own.addr.contains(pod) && is_bridge(&own.link))?;
        self.not_own(own.addr.addr)
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

    /// Returns the fault of packets to an address that two pods of this node have, or the doubt about them.
    pub(super) fn in_two_pods(&self, outcome: &Outcome) -> Option<Fault> {
        let (address, _) = outcome.destination;
        if self.networks().ok()?.get(&address)?.is_some() {
            return None;
        }
        let all = self.node.pod_networks().into_iter().flatten();
        let ours: Vec<_> = all
            .filter(|network| network.addresses.contains(&address))
            .collect();
        let pod = |at: &IpAddr| match self.places.holder(*at) {
            Some(Holder::Pod(name)) => Some(name),
            _ => None,
        };
        // The other pod has its own address beside it.
        let beside = ours.iter().flat_map(|network| &network.addresses);
        let other = beside
            .filter_map(pod)
            .find(|name| Some(*name) != pod(&address));
        if let Some((own, other)) = pod(&address).zip(other) {
            return Some(Fault::Obstacle(Box::new(Obstacle::TwoPods {
                address,
                pods: [own.clone(), other.clone()],
            })));
        }
        let processes: Vec<String> = ours.iter().map(|network| network.pid.to_string()).collect();
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
