//! Tunnels to other nodes: the addresses that Nodes announce for them (an address of two Nodes leads to neither), and the
//! tunnel's own packets, which carry packets of pods and pass the rules of the node as its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::judge::{Judge, Question};
use super::peers::{addresses, way_by};
use super::place::pod_ranges;
use super::replies::{ends, is_stopped};
use super::tunnel_mac::vtep;
use super::{By, Fault, Missing, Obstacle, Odd, OddWay, PortHolder, TunnelState, is_likely};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::why::decisive;
use crate::trace::{self, Carried, Entry, Flow, Outcome};
use kpx_node::cluster::{Node, Pod};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::links::Link;

/// The protocol of IP in IP.
const IPIP: Proto = Proto::Other(4);

/// Annotations with which agents announce the address of their Node: of flannel, and of Calico, which writes its prefix, too.
const ANNOTATIONS: &[&str] = &[
    "flannel.alpha.coreos.com/public-ip",
    "flannel.alpha.coreos.com/public-ipv6",
    "projectcalico.org/IPv4Address",
    "projectcalico.org/IPv6Address",
];

/// The beginnings of names of links whose tunnel has a UDP port that is known: of flannel, which takes the kernel's own for VXLAN, of
/// Calico, Kilo and Cilium, and of Open vSwitch, which both Antrea and OVN-Kubernetes use.
const PORTS: &[(&str, u16)] = &[
    ("flannel-wg", 51_820),
    ("flannel", 8472),
    ("vxlan.calico", 4789),
    ("wireguard.cali", 51_820),
    ("wg-v6.cali", 51_821),
    ("kilo", 51_820),
    ("cilium_wg", 51_871),
    ("genev_sys_6081", 6081),
    ("vxlan_sys_4789", 4789),
];

/// The annotation with which an administrator sets the address that flannel announces.
const OVERWRITE: &str = "flannel.alpha.coreos.com/public-ip-overwrite";

/// The annotation with which flannel announces how it carries packets to other Nodes.
pub(super) const BACKEND_TYPE: &str = "flannel.alpha.coreos.com/backend-type";

/// The annotations with which Calico announces the address of a tunnel's link, and that link.
const CALICO_TUNNELS: &[(Family, &str, &str)] = &[
    (
        Family::V4,
        "projectcalico.org/IPv4VXLANTunnelAddr",
        "vxlan.calico",
    ),
    (Family::V4, "projectcalico.org/IPv4IPIPTunnelAddr", "tunl0"),
    (
        Family::V6,
        "projectcalico.org/IPv6VXLANTunnelAddr",
        "vxlan-v6.calico",
    ),
];

/// The beginnings of names of the pods that set up such tunnels.
const AGENTS: &[&str] = &["kube-flannel", "flannel", "calico-node", "canal"];

/// The beginnings of names of links that Open vSwitch makes for its tunnels.
const OF_SWITCH: &[&str] = &["genev_sys_", "vxlan_sys_"];

impl Judge<'_> {
    /// Returns the address to which the tunnel sends a packet that leaves by it.
    pub(super) fn outer_end(&self, outcome: &Outcome) -> Option<IpAddr> {
        let tunnel = carrier(outcome.leaves_by()?, &self.node.links().ok()?.all)?;
        carried_by(tunnel)?;
        let (_, other) = self.both_ends(outcome)?;
        end_of(other, outer_family(tunnel))
    }

    /// Returns the fault of a packet to a pod of another node if rules of this node stop, or may stop, the packets of the tunnel
    /// to that node or from it.
    pub(super) fn stopped_tunnel(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let family = Family::of(question.flow.destination);
        if self.unread[usize::from(family == Family::V6)].is_some() || self.ends_here(outcome) {
            return None;
        }
        let out = outcome.leaves_by()?;
        let links = &self.node.links().ok()?.all;
        let tunnel = carrier(out, links)?;
        let (proto, port) = carried_by(tunnel)?;
        let (own, other) = self.both_ends(outcome)?;
        let name = &other.metadata.name;
        if proto == IPIP && [own, other].into_iter().all(is_of_azure) {
            return Some(Fault::Obstacle(Box::new(Obstacle::BlockedByCloud {
                link: out.to_owned(),
                node: name.clone(),
                cloud: "Azure",
                proto,
            })));
        }
        // The packets of the other node come first where the connection comes from there.
        let is_first = question.flow.entry == Entry::Outside;
        let key = (out.to_owned(), name.clone(), is_first);
        if let Some(known) = self.tunnels.borrow().get(&key) {
            return known.clone();
        }
        let outer = outer_family(tunnel);
        let (peer, own) = (end_of(other, outer)?, end_of(own, outer)?);
        let leaves = Flow {
            entry: Entry::Host,
            source: Some(own),
            destination: peer,
            port,
            mark: 0,
            carried: Carried::default(),
            proto,
            established: false,
        };
        let comes = Flow {
            entry: Entry::Outside,
            source: Some(peer),
            destination: own,
            // Each side of VXLAN and Geneve sends from its own ports; WireGuard answers to the port of the request.
            established: proto == IPIP || tunnel.kind == "wireguard",
            ..leaves.clone()
        };
        let mut opens = comes.clone();
        opens.established = false;
        let opens = (is_first && comes.established).then_some((opens, true));
        let all = [(leaves, false), (comes.clone(), true)].into_iter();
        let all = all.chain(opens);
        let mut stopped = all.filter_map(|(flow, incoming)| {
            let family = Family::of(flow.destination);
            let mut outcomes = self.back(family).brief(&flow);
            outcomes.retain(is_likely);
            if !incoming && let Some(fault) = self.strayed_carrier(out, name, &outcomes) {
                return Some(fault);
            }
            let first = outcomes.iter().find(|outcome| ends(outcome))?;
            let reason = trace::why(first, None);
            if !outcomes.iter().all(is_stopped) {
                let way = if incoming { "from" } else { "to" };
                return Some(Fault::Unknown(Missing::Other(format!(
                    "whether the packets of tunnel {out} {way} {name} pass is unknown: {reason}"
                ))));
            }
            if comes.established && incoming && !flow.established {
                return Some(Fault::Unknown(Missing::Other(format!(
                    "the packets of tunnel {out} from {name} pass only as replies, after packets in the other direction: {reason}"
                ))));
            }
            Some(Fault::Obstacle(Box::new(Obstacle::Tunnel {
                link: out.to_owned(),
                carrier: (proto, port),
                node: name.clone(),
                peer,
                incoming,
                reason,
                by: decisive(first).and_then(|hop| By::foreign(hop, family, self.node)),
                route: (!incoming)
                    .then(|| self.router.rejecting(Lookup::to(Asked::new(peer, None))))
                    .flatten()
                    .map(|route| Box::new(route.clone())),
            })))
        });
        let found = stopped.next();
        self.tunnels.borrow_mut().insert(key, found.clone());
        found
    }

    /// Returns the fault of the packets of the tunnel `link` to the Node `name`, which leave as in `outcomes`: they enter the tunnel
    /// again, or their next hop does not answer.
    fn strayed_carrier(&self, link: &str, name: &str, outcomes: &[Outcome]) -> Option<Fault> {
        let first = outcomes.first()?;
        let to = first.destination.0;
        let by = first.leaves_by().filter(|_| first.verdict.arrives())?;
        let links = &self.node.links().ok()?.all;
        let mut own = links.iter().filter(|own| own.name == link);
        // Those of WireGuard have a mark, which may lead them by another table.
        if by == link && own.all(|own| own.kind != "wireguard") {
            return self.led_into_tunnel(link, to, Some(name));
        }
        let silent = self.silent_neighbour(to, (by, first.gateway));
        silent
            .or_else(|| self.by_vpn(to, name, by))
            .or_else(|| self.carrier_by_rule(link, name, first))
    }

    /// Returns the doubt about the packets of the tunnel `link` to the Node `name`, which leave as in `outcome`, if a routing policy rule
    /// leads them by another way than other packets to that Node.
    fn carrier_by_rule(&self, link: &str, name: &str, outcome: &Outcome) -> Option<Fault> {
        let to = outcome.destination.0;
        let out = outcome.leaves_by()?;
        let Decision::Out {
            device: Some(usual),
            gateway,
            ..
        } = self.router.decide(Lookup::to(Asked::new(to, None)))
        else {
            return None;
        };
        if *usual == *out && gateway == outcome.gateway {
            return None;
        }
        let mut rules = self.node.rules().ok()?.all.iter();
        let rule = rules.find(|rule| {
            let is_of = |range: Cidr| range.contains(outcome.source);
            rule.family == Family::of(to) && rule.from.is_some_and(is_of)
        })?;
        let way = way_by(out, outcome.gateway);
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "routing policy rule {} ({rule}) leads the packets of tunnel {link} to {to} of node {name} by {way}, and other packets by {}: \
             whether they reach it is unknown",
            rule.priority,
            way_by(&usual, gateway)
        ))))
    }

    /// Returns the doubt about packets to `address` of the Node `name` that leave by `device`, a VPN of which the cluster makes no use.
    pub(super) fn by_vpn(&self, address: IpAddr, name: &str, device: &str) -> Option<Fault> {
        let link = self.link(device)?;
        let is_odd = link.kind == "tun" && !self.has_own_address_of_node(device);
        is_odd.then(|| {
            let rule = self
                .leading(address, (device, None))
                .and_then(|(_, rule)| rule);
            let led = rule.map_or_else(String::new, |rule| {
                format!(", as routing policy rule {} ({rule}) says", rule.priority)
            });
            let mut own = self.node.addresses().into_iter().flat_map(|all| &all.all);
            let own = own.find(|at| {
                at.link != device && !at.addr.is_host() && at.addr.contains(address)
            });
            let past = own
                .zip(rule)
                .and_then(|(own, rule)| rule.bypass(own.addr.normal()));
            let past = past.map_or_else(String::new, |past| {
                format!("; `{}` leads them past it", past.addition())
            });
            Fault::Unknown(Missing::Unmodelled(format!(
                "packets to {address}, the address of node {name}, leave by {device}, a VPN{led}: whether it leads there is unknown{past}"
            )))
        })
    }

    /// Returns the fault of a packet that no pod gets, if it leaves by a tunnel that only leads to pods.
    pub(super) fn back_into_tunnel(&self, outcome: &Outcome) -> Option<Fault> {
        let to = outcome.destination.0;
        let next = outcome.gateway.unwrap_or(to);
        let out = outcome.leaves_by()?;
        let links = &self.node.links().ok()?.all;
        let is_of_plugin = |link: &&Link| link.name == out && is_made_by_plugin(link);
        links.iter().find(is_of_plugin)?;
        let known = self.node.neighbour_table().ok()?.on(next, out);
        if self.ends_here(outcome)
            || self.places.is_pod(next)
            || known.is_some_and(|entry| !entry.failed)
        {
            return None;
        }
        self.led_into_tunnel(out, to, None)
    }

    /// Returns the fault of packets to `to` that a route leads into the tunnel `link`; they are its own packets to `node`, if that is given.
    fn led_into_tunnel(&self, link: &str, to: IpAddr, node: Option<&str>) -> Option<Fault> {
        let route = self.router.found(Lookup::to(Asked::new(to, None)));
        Some(Fault::Obstacle(Box::new(Obstacle::IntoTunnel {
            link: link.to_owned(),
            to,
            node: node.map(str::to_owned),
            route: Box::new(route.ok()??.clone()),
        })))
    }

    /// Returns this Node, and the other one to whose pods the packet goes.
    fn both_ends(&self, outcome: &Outcome) -> Option<(&Node, &Node)> {
        let other = self.places.node_of_pod(outcome.destination.0)?;
        let own = self.places.object()?;
        (other.metadata.name != own.metadata.name).then_some((own, other))
    }

    /// Returns the fault of a packet to a pod of another Node that announces this node's address for its tunnels.
    pub(super) fn same_tunnel_end(&self, outcome: &Outcome) -> Option<Fault> {
        let out = outcome.leaves_by()?;
        if self.node.links().is_err() || !self.is_tunnel(out) {
            return None;
        }
        let (own, other) = self.both_ends(outcome)?;
        if let Some(fault) =
            shared_end(own, other).or_else(|| self.bridge_as_tunnel_end(own, other))
        {
            return Some(fault);
        }
        ANNOTATIONS.iter().find_map(|annotation| {
            let address = announced(other, annotation)?;
            let node = other.metadata.name.clone();
            // A Node behind translation of addresses announces another one than its own, which its neighbours do not.
            let is_its = other
                .status
                .addresses
                .iter()
                .any(|node_address| node_address.address.parse() == Ok(address));
            let is_next = |address| self.is_next(address);
            let lives_next = addresses(other).into_iter().any(is_next);
            // Its administrator may have set it, and this node may have a network of its own for tunnels.
            let is_set = other.metadata.annotations.contains_key(OVERWRITE);
            let is_apart = announced(own, annotation)
                .is_some_and(|at| self.places.own(at).is_some() && !addresses(own).contains(&at));
            let lookup = Lookup::to(Asked::new(address, None));
            let route = self.router.found(lookup).ok().flatten();
            let is_routed =
                route.is_some_and(|route| route.destination.prefix > 0 && route.gateway.is_some());
            let is_known = is_its || is_set || is_apart || is_routed;
            let by = addresses(other)
                .into_iter()
                .find(|announced| Family::of(*announced) == Family::of(address));
            if !is_known
                && by.is_some_and(|by| {
                    is_next(by) && is_next(address) && self.is_other_in_network(address, by)
                })
            {
                let to = SocketAddr::new(outcome.destination.0, outcome.destination.1);
                let odd = OddWay {
                    why: Odd::Announced {
                        address,
                        annotation,
                    },
                    hider: None,
                };
                return self.missing_way(to, &node, (out, outcome.gateway), odd);
            }
            (!is_known && lives_next && !is_next(address)).then(|| {
                Fault::Obstacle(Box::new(Obstacle::ForeignTunnelEnd {
                    node,
                    address,
                    annotation,
                }))
            })
        })
    }

    /// Returns the fault of packets to pods of `other` if this Node, `own`, announces the address of a bridge of its own containers for its
    /// tunnels: the other Nodes reach no such address, so replies do not come back.
    fn bridge_as_tunnel_end(&self, own: &Node, other: &Node) -> Option<Fault> {
        if own.metadata.annotations.contains_key(OVERWRITE) {
            return None;
        }
        let links = &self.node.links().ok()?.all;
        let held = &self.node.addresses().ok()?.all;
        let nodes = self.node.nodes().ok()?;
        ANNOTATIONS.iter().find_map(|annotation| {
            let address = announced(own, annotation)?;
            let of = held.iter().find(|held| held.addr.addr == address)?;
            let mut bridges = links.iter().filter(|link| link.kind == "bridge");
            let is_inner = bridges.any(|link| link.name == of.link)
                && !addresses(own).contains(&address)
                && !self.has_own_address_of_node(&of.link);
            // A network for tunnels has other Nodes in it.
            let mut peers = nodes
                .iter()
                .filter(|node| node.metadata.name != own.metadata.name);
            let is_shared = peers
                .any(|node| announced(node, annotation).is_some_and(|at| of.addr.contains(at)));
            let peer = announced(other, annotation)?;
            let leaves_by = match self.router.decide(Lookup::to(Asked::new(peer, None))) {
                Decision::Out { device, .. } => device,
                _ => None,
            };
            let is_wrong = is_inner && !is_shared && leaves_by.is_some_and(|by| *by != *of.link);
            is_wrong.then(|| {
                Fault::Obstacle(Box::new(Obstacle::InnerTunnelEnd {
                    link: of.link.clone(),
                    address,
                    annotation,
                }))
            })
        })
    }

    /// Returns whether `address` is in a network of a link by which the node reaches other Nodes.
    fn is_next(&self, address: IpAddr) -> bool {
        let lookup = Lookup::to(Asked::new(address, None));
        let Decision::Out {
            device: Some(device),
            gateway: None,
            ..
        } = self.router.decide(lookup)
        else {
            return false;
        };
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        // Bridges of containers have networks that are the same on every machine.
        let mut it = links.iter().filter(|link| link.name == *device);
        it.all(|link| link.kind != "bridge" || self.has_own_address_of_node(&link.name))
    }

    /// Returns whether the link called `name` has the address that this Node has in the cluster.
    fn has_own_address_of_node(&self, name: &str) -> bool {
        let Some(own) = self.places.object() else {
            return false;
        };
        addresses(own)
            .into_iter()
            .any(|address| self.places.own(address) == Some(name))
    }

    /// Returns the fault of a packet to a pod of another Node that does not enter the tunnel to that Node, although the Nodes
    /// announce one, or other routes to Nodes use it.
    pub(super) fn off_tunnel(&self, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        let (own, other) = self.both_ends(outcome)?;
        let to = outcome.destination.0;
        let family = Family::of(to);
        // No tunnel leads to a pod with an address outside of its Node's ranges.
        let ranges = pod_ranges(other);
        if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(to)) {
            return None;
        }
        let out = outcome.leaves_by()?;
        let gateway = outcome.gateway?;
        let links = &self.node.links().ok()?.all;
        let is_carried = self.is_tunnel(out) || addresses(other).contains(&gateway);
        // A default route alone says nothing about the pods.
        let route = self.router.found(Lookup::to(Asked::new(to, None))).ok()??;
        if is_carried || route.destination.prefix > 0 {
            return None;
        }
        if let Some(fault) = shared_end(own, other) {
            return Some(fault);
        }
        let made = || {
            let is_other = own.metadata.annotations.contains_key(BACKEND_TYPE);
            let mut all = links.iter();
            let link = all
                .find(|link| is_made_by_plugin(link))
                .filter(|_| !is_other)?;
            Some(link.name.clone())
        };
        let direct = || {
            let is_direct = |node: &Node| {
                let kind = node.metadata.annotations.get(BACKEND_TYPE);
                kind.is_some_and(|kind| kind == "host-gw")
            };
            let mut its = addresses(other).into_iter();
            its.find(|at| Family::of(*at) == family)
                .filter(|_| is_direct(own) && is_direct(other))
        };
        let backend = |node: &Node| node.metadata.annotations.get(BACKEND_TYPE).cloned();
        let backends = backend(own).zip(backend(other));
        let (link, state) = match tunnel_to(own, other, family).or_else(made) {
            _ if let Some((own, other)) = backends.filter(|(own, other)| own != other) => {
                (out.to_owned(), TunnelState::OtherBackend { own, other })
            }
            None if let Some(link) = self.extension_to(own, other) => {
                (link, TunnelState::NoRouteOfVpn)
            }
            None => (out.to_owned(), TunnelState::NoGateway(direct()?)),
            Some(link) => match links.iter().find(|own_link| own_link.name == link) {
                None => (link, TunnelState::Missing),
                Some(of) if of.flag("UP") == Some(false) => {
                    let held_by = self.holder_of_port(of, links);
                    (link, TunnelState::Down { held_by })
                }
                Some(_) => (link, TunnelState::NoRoute),
            },
        };
        // A plugin that is gone may have left its annotations; k3s and RKE2 have no pod of it, nor of kube-proxy.
        let pod = self.agent_pod();
        let agent = pod.map(name_of);
        let error = pod.and_then(Pod::last_error).map(str::to_owned);
        let name = self.node.name().ok();
        let has_pods = || self.node.proxy_pod(name.as_deref()).is_some();
        if state == TunnelState::Missing && agent.is_none() && has_pods() {
            return None;
        }
        Some(Fault::Obstacle(Box::new(Obstacle::OffTunnel {
            link,
            state,
            node: other.metadata.name.clone(),
            to,
            way: format!("{out} via {gateway}"),
            agent,
            error,
        })))
    }

    /// Returns the fault of a packet that leaves by a tunnel which has the address of no link: the kernel sends no IPv4 packet from there,
    /// and other nodes send theirs to the address that the Node announces.
    pub(super) fn tunnel_source(&self, outcome: &Outcome) -> Option<Fault> {
        let link = self.link(outcome.leaves_by()?)?;
        let address = link.local?;
        let here = &self.node.addresses().ok()?.all;
        let family = Family::of(address);
        let own = self.places.object();
        let is_announced = || own.and_then(|own| end_of(own, family)) == Some(address);
        // A listing may be of the other family alone.
        let is_listed = here.iter().any(|at| at.addr.family() == family);
        if !is_listed || family == Family::V6 && !is_announced() {
            return None;
        }
        if let Some(held) = here.iter().find(|at| at.addr.addr == address) {
            // What other nodes send through the tunnel goes to the other machine.
            let duplicate = Obstacle::Duplicate {
                address: held.addr,
                link: held.link.clone(),
            };
            return held
                .is_duplicate()
                .then(|| Fault::Obstacle(Box::new(duplicate)));
        }
        let has_moved = own.is_some_and(|own| !addresses(own).contains(&address));
        Some(Fault::Obstacle(Box::new(Obstacle::TunnelSource {
            link: link.name.clone(),
            address,
            agent: self.agent().filter(|_| has_moved),
        })))
    }

    /// Returns the fault of a packet to a pod of another Node whose replies go to an address that this machine does not use.
    pub(super) fn home_gone(&self, outcome: &Outcome) -> Option<Fault> {
        let (own, _) = self
            .both_ends(outcome)
            .filter(|_| !self.ends_here(outcome))?;
        let is_carried = outcome.leaves_by().is_some_and(|link| self.is_tunnel(link));
        self.home_gone_of(own, Family::of(outcome.destination.0), is_carried)
    }

    /// Returns the fault of packets of `family` that other nodes send to this Node, `own`, if its machine does not use the Node's address;
    /// a tunnel may carry them.
    pub(super) fn home_gone_of(
        &self,
        own: &Node,
        family: Family,
        is_carried: bool,
    ) -> Option<Fault> {
        let gone = |family| self.home_gone_in(own, family);
        // A tunnel may carry packets of one family in packets of the other.
        let gone = if is_carried {
            let has_one = |at: &IpAddr| gone(Family::of(*at)).is_none();
            let mut both = Family::BOTH.into_iter().filter_map(gone);
            both.next()
                .filter(|_| !addresses(own).iter().any(has_one))?
        } else {
            gone(family)?
        };
        // Tunnels may have an address of their own.
        let is_own = |at| self.places.own(at).is_some();
        if ANNOTATIONS
            .iter()
            .filter_map(|annotation| announced(own, annotation))
            .any(is_own)
        {
            return None;
        }
        Some(self.gone(own, &gone))
    }

    /// Returns the pod of flannel or Calico on this node, as `NAMESPACE/NAME`.
    pub(super) fn agent(&self) -> Option<String> {
        self.agent_pod().map(name_of)
    }

    fn agent_pod(&self) -> Option<&Pod> {
        let name = self.node.name().ok()?;
        let mut pods = self.node.pods().ok()?.iter();
        pods.find(|pod| {
            let mut all = AGENTS.iter();
            pod.spec.node_name.as_deref() == Some(&*name)
                && all.any(|agent| pod.metadata.name.starts_with(agent))
        })
    }

    /// Returns what has the UDP port of the VXLAN tunnel `link`: another link, which must be up, or a program.
    fn holder_of_port(&self, link: &Link, links: &[Link]) -> Option<PortHolder> {
        let (proto, port) = carried_by(link)?;
        let mut others = links.iter().filter(|other| {
            other.kind == "vxlan" && other.name != link.name && other.flag("UP") == Some(true)
        });
        if let Some(holder) = others.find(|other| other.tunnel_port == Some(port)) {
            return Some(PortHolder::Link(holder.name.clone()));
        }
        let sockets = self.node.sockets().ok()?;
        let mut taking = sockets.taking(proto, Ipv4Addr::UNSPECIFIED.into(), port);
        let process = taking.find_map(|socket| socket.processes.first())?;
        Some(PortHolder::Program(format!(
            "{} (pid {})",
            process.name, process.pid
        )))
    }
}

fn name_of(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

/// Returns the tunnel that takes packets which leave by link `out`: itself, or the only one of the switch that it belongs to.
fn carrier<'l>(out: &str, links: &'l [Link]) -> Option<&'l Link> {
    let link = links.iter().find(|link| link.name == out)?;
    if link.kind != "openvswitch" {
        return Some(link);
    }
    let of_switch = |link: &&Link| OF_SWITCH.iter().any(|name| link.name.starts_with(name));
    let mut all = links.iter().filter(of_switch);
    all.next().filter(|_| all.next().is_none())
}

/// Returns the fault of packets between pods of two Nodes that announce the same address for their tunnels.
fn shared_end(own: &Node, other: &Node) -> Option<Fault> {
    ANNOTATIONS.iter().find_map(|annotation| {
        let address = announced(other, annotation)?;
        (announced(own, annotation) == Some(address)).then(|| {
            Fault::Obstacle(Box::new(Obstacle::SameTunnelEnd {
                node: other.metadata.name.clone(),
                address,
                annotation,
            }))
        })
    })
}

/// Returns whether only flannel or Calico makes such a link.
pub(super) fn is_made_by_plugin(link: &Link) -> bool {
    let mut names = ["flannel.", "vxlan.calico"].into_iter();
    link.kind == "vxlan" && names.any(|name| link.name.starts_with(name))
}

/// Returns the protocol and the port of the tunnel's packets at `link`; `None` if unknown.
fn carried_by(link: &Link) -> Option<(Proto, u16)> {
    match link.kind.as_str() {
        "vxlan" | "geneve" | "wireguard" => {
            let mut known = PORTS.iter();
            let by_name = known.find(|(name, _)| link.name.starts_with(name));
            let port = link.tunnel_port.or(by_name.map(|(_, port)| *port))?;
            Some((Proto::Udp, port))
        }
        "ipip" => Some((IPIP, 0)),
        _ => None,
    }
}

impl Judge<'_> {
    /// Returns the link of the tunnel to the Node called `name`, as both Nodes announce it.
    pub(super) fn announced_tunnel(&self, name: &str, family: Family) -> Option<String> {
        tunnel_to(
            self.places.object()?,
            self.places.node_called(name)?,
            family,
        )
    }

    /// Returns the link of the VPN by which flannel's backend `extension` carries packets from `own` to `other`, if it does.
    fn extension_to(&self, own: &Node, other: &Node) -> Option<String> {
        let is_extended = |node: &Node| {
            let kind = node.metadata.annotations.get(BACKEND_TYPE);
            kind.is_some_and(|kind| kind == "extension")
        };
        let by = addresses(other).into_iter().next()?;
        let (link, _) = self.way_to(by)?;
        (is_extended(own) && is_extended(other) && self.is_tunnel(&link)).then_some(link)
    }
}

/// Returns whether `node` is a machine of Azure, whose virtual networks drop IP in IP (Azure Virtual Network FAQ).
fn is_of_azure(node: &Node) -> bool {
    let id = node.spec.provider_id.as_deref();
    id.is_some_and(|id| id.starts_with("azure://"))
}

/// Returns the link of the tunnel by which pods of `other` are reached from `own`, as both announce it; `None` if they announce none.
fn tunnel_to(own: &Node, other: &Node, family: Family) -> Option<String> {
    let of_flannel = |node: &Node| {
        let kind = node.metadata.annotations.get(BACKEND_TYPE)?;
        match kind.as_str() {
            "vxlan" => Some(vtep(node, family)?.link(family)),
            "wireguard" => Some("flannel-wg".to_owned()),
            "ipip" => Some("flannel.ipip".to_owned()),
            _ => None,
        }
    };
    let of_calico = |node: &Node| {
        let mut all = CALICO_TUNNELS.iter().filter(|(of, ..)| *of == family);
        let (.., link) =
            all.find(|(_, annotation, _)| node.metadata.annotations.contains_key(*annotation))?;
        Some((*link).to_owned())
    };
    let both = |find: &dyn Fn(&Node) -> Option<String>| {
        find(own).filter(|link| Some(link) == find(other).as_ref())
    };
    both(&of_flannel).or_else(|| both(&of_calico))
}

/// Returns the address that `node` announces with `annotation`.
fn announced(node: &Node, annotation: &str) -> Option<IpAddr> {
    let text = node.metadata.annotations.get(annotation)?;
    text.parse::<Cidr>().ok().map(|parsed| parsed.addr)
}

/// Returns the addresses at which tunnels to `node` may end: all of its own, and those that it announces.
pub(super) fn ends_of(node: &Node) -> Vec<IpAddr> {
    let own = node.status.addresses.iter();
    let own = own.filter_map(|address| address.address.parse().ok());
    own.chain(
        ANNOTATIONS
            .iter()
            .filter_map(|annotation| announced(node, annotation)),
    )
    .collect()
}

/// Returns the address of `node` in `family` for tunnels: the one that it announces, else its own.
pub(super) fn end_of(node: &Node, family: Family) -> Option<IpAddr> {
    let mut all = ANNOTATIONS
        .iter()
        .filter_map(|annotation| announced(node, annotation))
        .chain(addresses(node));
    all.find(|address| Family::of(*address) == family)
}

/// Returns the family of the own packets of tunnel `link`.
pub(crate) fn outer_family(link: &Link) -> Family {
    match link.local.or(link.remote) {
        Some(address) => Family::of(address),
        None if link.name.contains("-v6") => Family::V6,
        None => Family::V4,
    }
}
