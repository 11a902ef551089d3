//! The network of a pod, as a node of its own.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup, Router, Transport};
use crate::trace::why::{decisive, maker};
use crate::trace::{Carried, Effect, Entry, Flow, Outcome, Rule, Verdict, Walks, World, why};
use crate::verdict::judge::Question;
use crate::verdict::listeners::{hung, instead};
use crate::verdict::ports::REPLY_PORT;
use crate::verdict::replies::{follow_on, marks, reply};
use crate::verdict::{By, Fault, Missing, Obstacle, Ways, Which, sysctl_of};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::node::routes::Route;
use kpx_node::node::sockets::Socket;
use kpx_node::node::tc::Loss;

/// The most ports named in a message about where a pod listens.
pub(super) const MOST_NAMED: usize = 4;

/// With this TTL, a packet passes any cluster.
pub(super) const LONG_LIVED: u8 = 32;

/// The network of a pod, as a node of its own.
pub(super) struct Inside<'p> {
    pub(super) address: IpAddr,
    pub(super) network: &'p PodNetwork,
    /// The protocol and ports of the packets that leave it, where rules of routing may ask for them.
    pub(super) transport: Option<Transport<'p>>,
}

impl<'p> Inside<'p> {
    pub(super) const fn of(network: &'p PodNetwork, address: IpAddr) -> Self {
        Self {
            address,
            network,
            transport: None,
        }
    }

    /// Returns the same for packets of `proto` that leave by these ports.
    pub(super) const fn sending(self, proto: Proto, source_port: Option<u16>, port: u16) -> Self {
        Self {
            transport: Some(Transport::of(proto, source_port, port)),
            ..self
        }
    }

    /// Returns why a packet that comes in does not end at a program, or is not answered.
    pub(super) fn end(&self, comes: &Flow) -> Option<Fault> {
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
    pub(super) fn answer<'s>(
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
    pub(super) fn has_source(&self, source: IpAddr) -> Option<Fault> {
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
    pub(super) fn accepts_local(&self) -> Option<bool> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let sysctl = node.sysctl().ok()?;
        let of = |link: &str| sysctl.get(&sysctl_of(link, "accept_local"));
        let own = of(&self.own_link()?.name)?;
        Some([of("all")?, own].contains(&"1"))
    }

    /// Returns the link with the pod's address.
    pub(super) fn own_link(&self) -> Option<&'p Link> {
        self.network.link_with(self.address)
    }

    /// Returns why the queueing discipline of the pod's link loses what the pod sends.
    pub(super) fn thinned(&self, reply: bool) -> Option<Fault> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let link = &self.own_link()?.name;
        let (address, pid) = (self.address, self.network.pid);
        Some(match node.tc().ok()?.losses.get(link)? {
            Loss::All => Fault::Obstacle(Box::new(Obstacle::Tc {
                link: link.clone(),
                filter: None,
                inside: Some((address, pid)),
                reply,
            })),
            share => Fault::Unknown(Missing::Unmodelled(format!(
                "the tc qdisc of {link} in the network of pod {address} loses {share} of what it sends on purpose \
                 (`nsenter --net=/proc/{pid}/ns/net tc qdisc del dev {link} root` removes it)"
            ))),
        })
    }

    /// Returns whether a virtual machine has the pod's link, its routes and its sockets: its tap is a port of a bridge beside that link
    /// (bridge binding of `KubeVirt`), or on that link.
    pub(super) fn is_of_vm(&self) -> bool {
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
    pub(super) fn nowhere(&self, to: IpAddr, reply: bool) -> Option<Fault> {
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
    pub(super) fn way(&self, to: IpAddr, bound: bool) -> Option<Decision> {
        let node = NodeSnapshot::new(&self.network.evidence);
        node.routes().ok()?;
        let lookup = Lookup {
            source: bound.then(|| Asked::new(self.address, None)),
            transport: self.transport,
            ..Lookup::to(Asked::new(to, None))
        };
        Some(Router::new(&node).decide(lookup))
    }

    /// Returns the route of packets to `to` that are not bound to an address.
    pub(super) fn route(&self, to: IpAddr) -> Option<Route> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let lookup = Lookup {
            transport: self.transport,
            ..Lookup::to(Asked::new(to, None))
        };
        Router::new(&node).found(lookup).ok()?.cloned()
    }

    /// Returns the narrowest destination of a route by `link` that has `to`.
    pub(super) fn range_of(&self, to: IpAddr, link: &str) -> Option<Cidr> {
        let node = NodeSnapshot::new(&self.network.evidence);
        let routes = node.routes().ok()?.all.iter();
        routes
            .filter(|route| route.devices().contains(&link))
            .map(|route| route.destination.normal())
            .filter(|destination| destination.contains(to))
            .max_by_key(|destination| destination.prefix)
    }

    /// Returns whether a routing policy rule of the pod's network asks for a mark, and a rule there marks the pod's packets to `to`.
    pub(super) fn marks(&self, to: IpAddr) -> bool {
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
    pub(super) fn asks_for_neighbours(&self, name: &str) -> bool {
        let mut links = self.network.links.iter().flat_map(|link| &link.all);
        let link = links.find(|link| link.name == name);
        link.is_none_or(|link| link.flag("NOARP") != Some(true) && !is_of_vpn(&link.kind))
    }

    /// Returns the next hop of packets to `to`, and its link.
    pub(super) fn next_hop(&self, to: IpAddr) -> Option<(IpAddr, String)> {
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
    pub(super) fn unanswered(&self, to: IpAddr) -> Option<Fault> {
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
    pub(super) fn leaving(&self, leaves: &Flow) -> Option<Fault> {
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
    pub(super) fn changed(
        &self,
        node: &NodeSnapshot<'_>,
        outcome: &Outcome,
        which: &str,
    ) -> Option<Fault> {
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
    pub(super) fn fault(
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
    pub(super) fn deaf(&self, proto: Proto, at: SocketAddr, end: SocketAddr) -> Option<Fault> {
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
pub(super) fn unrouted<'n>(node: &'n NodeSnapshot<'_>, address: IpAddr) -> Option<&'n str> {
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

/// Returns whether `link` is a tap, behind which is a virtual machine.
pub(super) fn is_tap(link: &Link) -> bool {
    let is_ethernet = link.kind == "tun" && link.flag("POINTOPOINT") != Some(true);
    is_ethernet || link.kind == "tap" || link.name.starts_with("tap")
}

/// Returns whether links of this kind lead to the other end of a VPN alone.
pub(crate) fn is_of_vpn(kind: &str) -> bool {
    matches!(kind, "tun" | "wireguard")
}

/// Returns the packet of `flow` with `outcome` as it comes into the network of a pod.
pub(super) fn comes(flow: &Flow, outcome: &Outcome) -> Flow {
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
pub(super) fn walked<'n>(network: &'n NodeSnapshot<'n>, flow: &Flow) -> Vec<Outcome> {
    let family = Family::of(flow.destination);
    let world = World::whole(network, family);
    Walks::new(&world, family).walk(flow)
}
