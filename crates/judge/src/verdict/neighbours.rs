//! Neighbours on the way: entries that failed, and those that were set by hand.
//!
//! Older bundles do not have this item.

use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question};
use super::peers::addresses;
use super::place::Reports;
use super::{Fault, Missing, Obstacle, SilentMachine, WayThere};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::{Entry, Outcome};
use kpx_node::cluster::{CONTROLLER, EndpointSlice};
use kpx_node::net::Family;
use kpx_node::node::links::Link;
use kpx_node::node::neighbours::{Neighbour, Neighbours};

/// Beginnings of names of links, each of a network plugin that sets neighbours itself. Those of tunnels (Flannel, Calico) are known by
/// the kind of their link.
const WRITERS: &[&str] = &[
    // Cilium: its own gateway.
    "cilium", "lxc",   // Calico: 169.254.1.1.
    "cali",  // Azure: every pod.
    "azure", // Antrea, OVN-Kubernetes and Kube-OVN: the gateways of other nodes.
    "antrea", "ovn",
];

/// The next hop of a packet or its reply, and the link.
type Step<'s> = (IpAddr, &'s str);

impl Judge<'_> {
    /// Returns the fault of packets that need a neighbour entry which the full table does not have.
    pub(super) fn full_neighbours(
        &self,
        question: Question<'_>,
        outcomes: &[Outcome],
    ) -> Option<Fault> {
        let family = Family::of(question.flow.destination);
        let key = match family {
            Family::V4 => "net.ipv4.neigh.default.gc_thresh3",
            Family::V6 => "net.ipv6.neigh.default.gc_thresh3",
        };
        let counters = self.node.neighbours(family).ok()?;
        let most: u64 = self.node.sysctl().ok()?.get(key)?.trim().parse().ok()?;
        let entries = counters.last("entries").ok()?;
        let is_full = entries >= most && counters.sum("table_fulls").ok()? > 0;
        let mut arriving = outcomes.iter().filter(|outcome| outcome.verdict.arrives());
        let needs_one = arriving.any(|outcome| !self.ends_here(outcome));
        (is_full && needs_one)
            .then(|| Fault::Obstacle(Box::new(Obstacle::FullNeighbours { key, entries, most })))
    }

    /// Returns the fault of a packet whose next hop, or whose reply's, does not answer.
    pub(super) fn unanswered(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let all = self.node.neighbour_table().ok()?;
        let found = self.on_the_way(question, outcome, |address, link| {
            all.on(address, link).filter(|neighbour| neighbour.failed)
        })?;
        let next = outcome.gateway.unwrap_or(outcome.destination.0);
        let is_there = found.address == next && outcome.leaves_by() == Some(found.link.as_str());
        let end = if is_there {
            Some((outcome.destination.0, outcome.gateway))
        } else {
            let client = back_to(question, outcome);
            client.map(|client| (client, (client != found.address).then_some(found.address)))
        };
        let detour = end.and_then(|(to, gateway)| self.detour(to, (&found.link, gateway)));
        let known = detour.or_else(|| self.arp_there(found.address, &found.link));
        if known.is_some() {
            return known;
        }
        let there = self.way_there(question, outcome).filter(|_| is_there);
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let carrier = links.iter().find(|link| {
            link.name == found.link
                && !link.external
                && matches!(link.kind.as_str(), "vxlan" | "geneve")
        });
        let address = found.address;
        let link = found.link.clone();
        Some(Fault::Obstacle(Box::new(match carrier {
            Some(carrier) if there.is_none() => Obstacle::NoPeer {
                address,
                agent: self.agent().filter(|agent| made(agent, &link)),
                link,
                kind: carrier.kind.clone(),
            },
            _ => Obstacle::Unanswered {
                address,
                link,
                inside: None,
                silent: self.silent_at(address, &found.link),
                there,
            },
        })))
    }

    /// Returns the fault of packets for `to` that leave by `link` and `gateway`, if the next hop does not answer.
    pub(super) fn silent_neighbour(
        &self,
        to: IpAddr,
        (link, gateway): (&str, Option<IpAddr>),
    ) -> Option<Fault> {
        let address = gateway.unwrap_or(to);
        let entry = self.node.neighbour_table().ok()?.on(address, link)?;
        if !entry.failed {
            return None;
        }
        let detour = self.detour(to, (link, gateway));
        detour
            .or_else(|| self.arp_there(address, link))
            .or_else(|| {
                Some(Fault::Obstacle(Box::new(Obstacle::Unanswered {
                    address,
                    link: link.to_owned(),
                    inside: None,
                    silent: self.silent_at(address, link),
                    there: None,
                })))
            })
    }

    /// Returns the fault of a packet whose next hop, or whose reply's, is an address of another node that was read, if it is sent to
    /// another MAC address than that machine has. Routers of clouds may answer for all machines.
    pub(super) fn other_machine(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let others = self.others.as_ref()?;
        let all = self.node.neighbour_table().ok()?;
        let links = &self.node.links().ok()?.all;
        let machine = |address| {
            let name = self.peers().with_address(address)?;
            let (link, mac) = others.link_with(name, address)?;
            Some((name, link, mac))
        };
        let is_same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        let (entry, (name, far, has)) = self.on_the_way(question, outcome, |address, link| {
            let entry = all.on(address, link).filter(|entry| !entry.failed)?;
            Some((entry, machine(address)?))
        })?;
        let used = entry.mac.as_deref()?;
        let own = links.iter().find(|link| link.name == entry.link)?;
        if own.mac.as_deref().is_some_and(|own| is_same(own, has)) {
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "{} of this node and {far} of node {name} have the same MAC address, {has}: which of them gets what is sent there is \
                 unknown",
                own.name
            ))));
        }
        // Those that answer for themselves.
        let mut beside = all.all.iter().filter(|other| other.link == entry.link);
        let is_direct = beside.any(|other| {
            let mac = other.mac.as_deref().zip(machine(other.address));
            mac.is_some_and(|(mac, (_, _, has))| is_same(mac, has))
        });
        let twin = others.twin_of(name, entry.address);
        if is_same(used, has) {
            let (other, its) = twin?;
            return Some(Fault::Unknown(Missing::Unmodelled(format!(
                "{its} of node {other} has {}, too, the address of node {name}: which of them gets the packets changes with each ARP reply",
                entry.address
            ))));
        }
        is_direct.then(|| {
            Fault::Obstacle(Box::new(Obstacle::OtherMac {
                address: entry.address,
                link: entry.link.clone(),
                used: used.to_owned(),
                has: (has.to_owned(), format!("{far} of node {name}")),
                of_pod: false,
                inside: None,
                twin,
            }))
        })
    }

    /// Returns the machine with `address`, which does not answer on `link`, if it is that of a Node whose kubelet does not report, or of an
    /// API server on no Node; or the pod of this node with it.
    fn silent_at(&self, address: IpAddr, link: &str) -> Option<SilentMachine> {
        let nodes = self.node.nodes().ok()?;
        let with = |address| nodes.iter().find(|node| addresses(node).contains(&address));
        if let Some(node) = with(address) {
            let name = &node.metadata.name;
            let is_silent = matches!(self.places.reports(name), Some(Reports::Not(_)));
            return is_silent.then(|| SilentMachine::Node(name.clone()));
        }
        let slices = self.node.slices().ok()?.iter();
        let of_api = slices.filter(|slice| slice.service() == Some(("default", "kubernetes")));
        let servers = of_api
            .flat_map(|slice| &slice.endpoints)
            .flat_map(|endpoint| &endpoint.addresses);
        let servers: Vec<IpAddr> = servers.filter_map(|text| text.parse().ok()).collect();
        let is_gone = servers.contains(&address) && servers.iter().any(|at| with(*at).is_some());
        if is_gone {
            return Some(SilentMachine::ApiServer);
        }
        let is_card = self.places.links_of_node().contains(link)
            && self.link(link).is_some_and(|link| link.kind != "bridge");
        let here = self.node.name().ok();
        let mut pods = self.node.pods().into_iter().flatten();
        let pod = pods.find(|pod| {
            is_card && here.is_some() && pod.spec.node_name == here && pod.has_ip(address)
        });
        if let Some(pod) = pod {
            let meta = &pod.metadata;
            return Some(SilentMachine::PodHere(format!(
                "{}/{}",
                meta.namespace, meta.name
            )));
        }
        self.listed_alone(address)
    }

    /// Returns that a slice lists `address` which the `EndpointSlice` controller does not write.
    fn listed_alone(&self, address: IpAddr) -> Option<SilentMachine> {
        let lists = |slice: &&EndpointSlice| {
            let mut own = slice.endpoints.iter();
            own.any(|endpoint| {
                let mut all = endpoint.addresses.iter();
                endpoint.target_ref.is_none() && all.any(|text| text.parse() == Ok(address))
            })
        };
        let slice = self.node.slices().ok()?.iter().find(lists)?;
        let writer = slice.managed_by().unwrap_or_default().to_owned();
        let (namespace, service) = slice.service()?;
        let is_of_others =
            writer != CONTROLLER && (namespace, service) != ("default", "kubernetes");
        is_of_others.then(|| SilentMachine::Listed {
            slice: format!("{namespace}/{}", slice.metadata.name),
            service: service.to_owned(),
            writer,
        })
    }

    /// Returns the way that the packet should take to its endpoint, a pod of another node, or the reply to its client, if it takes
    /// another one.
    fn way_there(&self, question: Question<'_>, outcome: &Outcome) -> Option<Box<WayThere>> {
        let to = SocketAddr::from(outcome.destination);
        let fault = if let Some(port) = question.port {
            let mut endpoints = port.endpoints.iter();
            let endpoint =
                endpoints.find(|endpoint| endpoint.addr == to && endpoint.local != Some(true))?;
            self.stray(endpoint, outcome)?
        } else {
            let (name, _) = self.peers().with_pod(to.ip())?;
            let out = outcome.leaves_by()?;
            self.stray_to(SocketAddr::new(to.ip(), 0), name, out, outcome.gateway)?
        };
        match fault {
            Fault::Unknown(Missing::PodRoute { there, .. }) => Some(there),
            _ => None,
        }
    }

    /// Returns the fault of packets whose route has several next hops, of which one does not answer.
    pub(super) fn dead_next_hop(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        let all = self.node.neighbour_table().ok()?;
        let ends = [Some(outcome.destination.0), back_to(question, outcome)];
        ends.into_iter().flatten().find_map(|to| {
            let lookup = Lookup::to(Asked::new(to, None));
            let route = self.router.found(lookup).ok().flatten()?;
            let dead = |(gateway, link): &(Option<IpAddr>, Option<String>)| {
                let found = all.on((*gateway)?, link.as_deref()?)?;
                found.failed.then_some(found)
            };
            let found = route.nexthops.iter().find_map(dead)?;
            (route.nexthops.len() > 1).then(|| {
                Fault::Obstacle(Box::new(Obstacle::DeadNextHop {
                    address: found.address,
                    link: found.link.clone(),
                    route: Box::new(route.clone()),
                }))
            })
        })
    }

    /// Returns the doubt about a packet if the next hop, or the reply's next hop, has an entry that is not resolved yet, or was set
    /// by hand.
    pub(super) fn unsure_neighbour(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let all = match self.node.neighbour_table() {
            Ok(all) => all,
            Err(gap) if self.ends_here(outcome) || self.is_of_old(&gap) => return None,
            Err(gap) => {
                let what = "the neighbours are unknown";
                return Some(Fault::Unknown(Missing::Gap { what, gap }));
            }
        };
        let found = self.on_the_way(question, outcome, |address, link| {
            let entry = all.on(address, link)?;
            let is_open = entry.incomplete || entry.permanent && self.is_foreign(all, entry);
            is_open.then_some(entry)
        });
        // By IPv6, a client on a bridge learns the node's MAC address from an answer that the entry leads.
        let found = found.or_else(|| {
            let client = outcome.sent_from;
            let is_asked = client.is_ipv6() && outcome.bridged && !self.knows_node(client);
            let link = outcome.leaves_by().filter(|_| is_asked)?;
            let entry = all.on(client, link)?;
            (entry.permanent && self.is_foreign(all, entry)).then_some(entry)
        })?;
        let (address, link) = (found.address, &found.link);
        let mac = found.mac.as_deref().unwrap_or("no address");
        if !found.incomplete
            && let Some((_, of_pod)) = self.link_of_pod(address)
            && let Some(has) = &of_pod.mac
        {
            return (!has.eq_ignore_ascii_case(mac)).then(|| {
                Fault::Obstacle(Box::new(Obstacle::OtherMac {
                    address,
                    link: link.clone(),
                    used: mac.to_owned(),
                    has: (has.clone(), format!("{} of the pod", of_pod.name)),
                    of_pod: true,
                    twin: None,
                    inside: None,
                }))
            });
        }
        Some(Fault::Unknown(Missing::Unmodelled(if found.incomplete {
            let mut routes = self.node.routes().into_iter().flat_map(|all| &all.all);
            let led = routes.find(|route| {
                route.gateway == Some(address)
                    && route.device.as_ref() == Some(link)
                    && route.destination.prefix > 0
            });
            let led = led.map_or_else(String::new, |route| {
                format!("; the route {route} leads there")
            });
            format!(
                "{address} has not answered on {link} yet: the node is asking for its link-layer address (its neighbour \
                 entry is INCOMPLETE){led}"
            )
        } else {
            format!(
                "a static neighbour entry sends packets for {address} on {link} to {mac}: whether that is its address is \
                 unknown (`ip neigh del {address} dev {link}` removes the entry)"
            )
        })))
    }

    /// Returns the doubt about a packet whose next hop, or whose reply's, nothing knows: no Node, pod or default route has its address, and
    /// the node has no entry for it.
    pub(super) fn unknown_next_hop(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let all = self.node.neighbour_table().ok()?;
        self.node.nodes().ok()?;
        if self.ends_here(outcome) {
            return None;
        }
        let client = back_to(question, outcome);
        let ends = [Some(outcome.destination.0), client];
        ends.into_iter().flatten().find_map(|to| {
            let route = self.router.found(Lookup::to(Asked::new(to, None)));
            let route = route.ok().flatten()?;
            let hops = route.nexthops.iter();
            let hops = hops.map(|(gateway, link)| (*gateway, link.as_deref()));
            let only = (route.gateway, route.device.as_deref());
            let mut hops = hops.chain(route.nexthops.is_empty().then_some(only));
            hops.find_map(|(gateway, link)| {
                let gateway = gateway.filter(|gateway| *gateway != to);
                let link = link?;
                let next = gateway.unwrap_or(to);
                // The address of a client outside of the cluster is made up.
                let is_made_up = gateway.is_none() && Some(to) == client;
                let is_pod = self.places.is_pod_here(next) == Some(true);
                // No pod is expected to forward packets.
                let is_known = if is_pod {
                    gateway.is_none()
                } else {
                    all.on(next, link).is_some()
                        || self.node_at(next).is_some()
                        || self.is_default_gateway(next)
                };
                if is_made_up || is_known || !self.asks_for_neighbours(link) {
                    return None;
                }
                let what = if is_pod {
                    "it is a pod"
                } else {
                    "no Node has this address, and the node has no neighbour entry for it"
                };
                Some(Fault::Unknown(Missing::Unmodelled(format!(
                    "whether {next} takes the packets for {to} is unknown: {what}; the route {route} leads there"
                ))))
            })
        })
    }

    /// Returns whether a default route has this gateway.
    fn is_default_gateway(&self, address: IpAddr) -> bool {
        let mut routes = self.node.routes().into_iter().flat_map(|all| &all.all);
        routes.any(|route| {
            let mut hops = route.nexthops.iter();
            let is_its = route.gateway == Some(address)
                || hops.any(|(gateway, _)| *gateway == Some(address));
            route.destination.prefix == 0 && is_its
        })
    }

    /// Returns whether packets that leave by `link` need the MAC address of their next hop, which no network plugin is known to set.
    fn asks_for_neighbours(&self, link: &str) -> bool {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let has = |link: &Link, flag| link.flag(flag) != Some(false);
        let mut own = links.iter().filter(|own| own.name == link);
        own.any(|own| {
            let flags = ["NOARP", "LOOPBACK", "POINTOPOINT"];
            !own.is_tunnel() && !is_written(link) && !flags.iter().any(|flag| has(own, flag))
        })
    }

    /// Returns whether a neighbour entry for `address` was set by hand.
    pub(super) fn is_set_by_hand(&self, address: IpAddr) -> bool {
        let Ok(all) = self.node.neighbour_table() else {
            return false;
        };
        let mut of = all
            .all
            .iter()
            .filter(|neighbour| neighbour.address == address);
        of.any(|neighbour| neighbour.permanent && self.is_foreign(all, neighbour))
    }

    /// Returns the result of `find` for the next hop of the packet, else for the next hop of its reply.
    pub(super) fn on_the_way<T>(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        find: impl Fn(IpAddr, &str) -> Option<T>,
    ) -> Option<T> {
        if self.ends_here(outcome) {
            return None;
        }
        let next = outcome.gateway.unwrap_or(outcome.destination.0);
        let there: Option<Step<'_>> = outcome.leaves_by().map(|link| (next, link));
        if let Some(found) = there.and_then(|(address, link)| find(address, link)) {
            return Some(found);
        }
        let client = back_to(question, outcome)?;
        let back = self.router.decide(Lookup::to(Asked::new(client, None)));
        match back {
            Decision::Out {
                device: Some(link),
                gateway,
                ..
            } => find(gateway.unwrap_or(client), &link),
            _ => None,
        }
    }

    /// Returns whether no network plugin is known to write such an entry: entries of bridges and physical links are learnt.
    fn is_foreign(&self, all: &Neighbours, entry: &Neighbour) -> bool {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let Some(link) = links.iter().find(|link| link.name == entry.link) else {
            return false;
        };
        let has_cilium = links.iter().any(|link| link.name == "cilium_host");
        if is_written(&link.name) || has_cilium || link.is_tunnel() || is_link_local(entry.address)
        {
            return false;
        }
        // Each pod may have a link of its own.
        let is_alike = |name: &str| {
            let of_kind = |link: &Link| link.name == name && link.kind == "veth";
            name == link.name || link.kind == "veth" && links.iter().any(of_kind)
        };
        let beside = || {
            let alike = all.all.iter().filter(|neighbour| is_alike(&neighbour.link));
            alike.filter(|alike| alike.address != entry.address && alike.mac.is_some())
        };
        let is_only = beside().all(|beside| !beside.permanent);
        link.kind == "bridge" && self.places.is_pod_here(entry.address) == Some(true)
            || is_only && beside().next().is_some()
    }
}

/// Returns whether a network plugin sets the neighbours on the link called `name` itself.
fn is_written(name: &str) -> bool {
    WRITERS.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns whether `agent`, a pod of flannel or Calico, made a VXLAN link called `link`.
fn made(agent: &str, link: &str) -> bool {
    let prefix = if agent.contains("flannel") {
        "flannel"
    } else {
        "vxlan"
    };
    link.starts_with(prefix)
}

/// Returns the client to which the node routes the reply.
pub(super) fn back_to(question: Question<'_>, outcome: &Outcome) -> Option<IpAddr> {
    let is_translated = outcome.masquerade || outcome.source != outcome.sent_from;
    // A bridge carries a reply to the client's own address from port to port.
    let is_routed = question.flow.entry != Entry::Host && (!outcome.bridged || is_translated);
    is_routed.then_some(outcome.sent_from)
}

pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
