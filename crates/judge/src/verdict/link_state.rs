//! Links on the way that carry nothing.

use std::fmt;
use std::net::IpAddr;

use super::arp::NEVER;
use super::judge::{Judge, Question};
use super::{Fault, Obstacle, SameNetworkAs, sysctl_of};
use crate::trace::region::Asked;
use crate::trace::route::Lookup;
use crate::trace::{Entry, Outcome};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::pod_networks::PodNetwork;
use kpx_node::node::routes::Route;

/// Why a link carries nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkState {
    /// It is not up.
    Down,
    /// It is up without a carrier.
    NoCarrier,
    /// It does not answer requests for its link-layer address.
    NoArp,
    /// The same, as this sysctl, `arp_ignore`, is 8 in the network of its pod.
    IgnoresArp(String),
    /// As a port of a bridge, it is in this state, and not `forwarding`.
    Blocked(String),
    /// It is no port of this bridge, by which the route to its pod leads.
    NoPortOf(String),
}

impl LinkState {
    /// Returns why `link` carries nothing; `None` if it does, as far as is listed.
    fn of(link: &Link) -> Option<Self> {
        if link.flag("UP") == Some(false) {
            return Some(Self::Down);
        }
        if link.flag("NO-CARRIER") == Some(true) {
            return Some(Self::NoCarrier);
        }
        let blocked = link
            .port_state
            .as_ref()
            .filter(|port_state| *port_state != "forwarding");
        blocked.cloned().map(Self::Blocked)
    }
}

impl fmt::Display for LinkState {
    /// Writes what follows the name of the link.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("is down"),
            Self::NoCarrier => {
                f.write_str("has no carrier: its other end is down, or not connected")
            }
            Self::NoArp => f.write_str(
                "has ARP turned off (NOARP), so it answers no request for its link-layer address",
            ),
            Self::IgnoresArp(key) => write!(
                f,
                "answers no request for its link-layer address, as {key} is 8 there"
            ),
            Self::Blocked(state) => write!(
                f,
                "is a bridge port in state {state}, which forwards nothing"
            ),
            Self::NoPortOf(bridge) => {
                write!(
                    f,
                    "is no port of bridge {bridge}, by which the route to the pod leads"
                )
            }
        }
    }
}

impl Judge<'_> {
    /// Returns the fault of a packet if it or its reply leaves by a link that carries nothing.
    pub(super) fn broken_link(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        let there = self.broken(outcome.leaves_by()?, Some(outcome.destination.0));
        // What a tunnel carries leaves by another link.
        let under = || {
            let (link, _) = self.way_to(self.outer_end(outcome)?)?;
            self.broken(&link, None)
        };
        let back = || {
            let is_host = question.flow.entry == Entry::Host;
            let (link, _) = self.way_to(outcome.sent_from).filter(|_| !is_host)?;
            let broken = self.broken(&link, Some(outcome.sent_from))?;
            let is_outside = question.flow.entry == Entry::Outside;
            let shared = is_outside.then(|| self.client_in_bridge(&link, outcome.sent_from));
            Some(shared.flatten().unwrap_or(broken))
        };
        let broken = there.or_else(under).or_else(back)?;
        Some(Fault::Obstacle(Box::new(broken)))
    }

    /// Returns that the network of the bridge `name`, which carries nothing, has the address of `client`, who is outside.
    fn client_in_bridge(&self, name: &str, client: IpAddr) -> Option<Obstacle> {
        self.link(name).filter(|link| link.kind == "bridge")?;
        let mut own = self.node.addresses().ok()?.all.iter();
        let own = own.find(|own| own.link == name && own.addr.contains(client))?;
        let mut routes = self.node.routes().ok()?.all.iter();
        let default = routes.find(|route| {
            route.is_main() && route.destination.prefix == 0 && route.family == Family::of(client)
        })?;
        (!self.places.is_pod(client)).then(|| Obstacle::SameNetwork {
            link: name.to_owned(),
            address: own.addr,
            others: SameNetworkAs::Client {
                client,
                way: Box::new(Route {
                    destination: Cidr::host(client),
                    ..default.clone()
                }),
            },
        })
    }

    /// Returns the link `name`, or the link of `pod` behind it, if it carries nothing.
    fn broken(&self, name: &str, pod: Option<IpAddr>) -> Option<Obstacle> {
        let links = &self.node.links().ok()?.all;
        let first = links.iter().find(|link| link.name == name)?;
        let of_node = |link: &Link, state| Obstacle::Link {
            link: link.name.clone(),
            inside: None,
            state,
        };
        let own = LinkState::of(first);
        if own == Some(LinkState::Down) {
            return own.map(|state| of_node(first, state));
        }
        // A bridge without a carrier has no port with one: the pod's says more.
        let of_pod = pod.and_then(|pod| self.broken_at_pod(pod, first));
        of_pod.or_else(|| own.map(|state| of_node(first, state)))
    }

    /// Returns the link inside `pod`, or its other end behind `first`, if it carries nothing.
    fn broken_at_pod(&self, pod: IpAddr, first: &Link) -> Option<Obstacle> {
        if let Some(broken) = self.broken_link_of(pod) {
            return Some(broken);
        }
        let (_, inside) = self.link_of_pod(pod)?;
        let port = self.far_end(inside)?;
        let is_apart = first.kind == "bridge" && port.master.as_ref() != Some(&first.name);
        if let Some(bridge) = port.master.as_ref().filter(|_| is_apart) {
            let all = &self.node.addresses().ok()?.all;
            let of_link = |name: &str| {
                let mut its = all.iter().filter(|address| address.link == name);
                its.find(|address| !address.addr.is_host() && address.addr.contains(pod))
            };
            if of_link(bridge).is_some() {
                if let Some(twin) = of_link(&first.name) {
                    return Some(Obstacle::SameNetwork {
                        link: first.name.clone(),
                        address: twin.addr,
                        others: SameNetworkAs::Pods(bridge.clone()),
                    });
                }
                let route = self.router.found(Lookup::to(Asked::new(pod, None)));
                return Some(self.led_astray(pod, bridge, route.ok().flatten()));
            }
        }
        let is_alone = is_apart && port.master.is_none();
        is_alone.then(|| Obstacle::Link {
            link: port.name.clone(),
            inside: None,
            state: LinkState::NoPortOf(first.name.clone()),
        })
    }

    /// Returns the link of the node to `pod`, or the bridge that it is a port of, if it is down: a route by it has gone then.
    pub(super) fn home_down(&self, pod: IpAddr) -> Option<Obstacle> {
        let links = &self.node.links().ok()?.all;
        let (_, inside) = self.link_of_pod(pod)?;
        let port = self.far_end(inside)?;
        let bridge = port.master.as_ref();
        let bridge = bridge.and_then(|name| links.iter().find(|link| link.name == *name));
        // The switch of Open vSwitch is always down.
        let bridge = bridge.filter(|bridge| bridge.kind == "bridge");
        let mut all = bridge.into_iter().chain([port]);
        let down = all.find(|link| LinkState::of(link) == Some(LinkState::Down))?;
        Some(Obstacle::Link {
            link: down.name.clone(),
            inside: None,
            state: LinkState::Down,
        })
    }

    /// Returns the link in the network of `pod` that is down or answers nothing, or its other end if this carries nothing.
    pub(super) fn broken_link_of(&self, pod: IpAddr) -> Option<Obstacle> {
        let (network, link) = self.link_of_pod(pod)?;
        let port = self.far_end(link);
        let state = if link.flag("UP") == Some(false) {
            LinkState::Down
        } else if link.kind == "veth" && link.flag("NOARP") == Some(true) {
            // Without a bridge, the node may have a route that needs no answer.
            port?.master.as_ref()?;
            LinkState::NoArp
        } else if let Some(key) = never_answering(network, &link.name)
            && pod.is_ipv4()
            && port.is_some_and(|port| port.master.is_some())
        {
            LinkState::IgnoresArp(key)
        } else {
            return self.home_down(pod).or_else(|| {
                Some(Obstacle::Link {
                    link: port?.name.clone(),
                    inside: None,
                    state: LinkState::of(port?)?,
                })
            });
        };
        Some(Obstacle::Link {
            link: link.name.clone(),
            inside: Some((pod, network.pid)),
            state,
        })
    }
}

/// Returns the sysctl in the network of a pod with which `link` answers no ARP request.
fn never_answering(network: &PodNetwork, link: &str) -> Option<String> {
    let node = NodeSnapshot::new(&network.evidence);
    let sysctl = node.sysctl().ok()?;
    let keys = [
        sysctl_of("all", "arp_ignore"),
        sysctl_of(link, "arp_ignore"),
    ];
    keys.into_iter().find(|key| sysctl.get(key) == Some(NEVER))
}
