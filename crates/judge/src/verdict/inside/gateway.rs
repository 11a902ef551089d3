//! How packets leave the network of a pod: its links, routes and next hop.

use std::net::{IpAddr, Ipv4Addr};

use super::network::{Inside, unrouted};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::{Entry, Flow};
use crate::verdict::judge::Judge;
use crate::verdict::neighbours::is_link_local;
use crate::verdict::obstacle::Arp;
use crate::verdict::{DEFAULT_TTL, Fate, Fault, Missing, Obstacle, disable_ipv6_of, sysctl_of};
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::links::Link;
use kpx_node::node::pod_networks::PodNetwork;

/// The gateway of all pods of Calico.
const CALICO_GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));

impl Judge<'_> {
    /// Returns the fault of a pod's packets to `to` whose route there gives them a source that does not lead back to the pod.
    pub(super) fn other_source(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let route = inside.route(to)?;
        let source = route.source.filter(|source| *source != inside.address)?;
        let way = |to| match self.router.decide(Lookup::to(Asked::new(to, None))) {
            Decision::Out { device, .. } => device,
            _ => None,
        };
        let home = way(inside.address)?;
        (way(source)? != home).then(|| {
            Fault::Obstacle(Box::new(Obstacle::OtherSource {
                pod: inside.address,
                pid: inside.network.pid,
                source,
                route: Box::new(route),
            }))
        })
    }

    /// Returns the fault of packets of a pod whose link is on a link of the node, past its rules; or of packets to it that leave the node
    /// by the link called `out`.
    pub(super) fn beside(
        &self,
        inside: &Inside<'_>,
        flow: &Flow,
        out: Option<&str>,
    ) -> Option<Fault> {
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
    pub(super) fn parent(&self, link: &Link) -> Option<&Link> {
        self.far_end(link)
            .filter(|_| matches!(link.kind.as_str(), "macvlan" | "ipvlan"))
    }

    /// Returns whether packets of the pod do not pass the node's rules.
    pub(super) fn is_beside(&self, inside: &Inside<'_>) -> bool {
        inside
            .own_link()
            .is_some_and(|link| self.parent(link).is_some())
    }

    /// Returns the fault of packets to `to`, or of replies, that leave the pod by a link without its address, which does not lead to the
    /// node.
    pub(super) fn strayed(&self, inside: &Inside<'_>, to: IpAddr, reply: bool) -> Option<Fault> {
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
            range: inside.range_of(to, &name).filter(|range| range.prefix > 0),
            to,
            reply,
        })))
    }

    /// Returns the fault of packets to an address of a Service, or of a pod of another node, that the pod looks for on its own link, which
    /// leads to a bridge or a link of the node: neither the node nor a machine there has it, and the node does not answer for others.
    pub(super) fn gatewayless(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let is_away = || self.peers().with_pod(to).is_some() && self.places.own(to).is_none();
        let is_here = || self.places.is_pod_here(to) == Some(true);
        if self.places.service(to).is_none() && (!is_away() || is_here()) {
            return None;
        }
        let (next, link) = inside.next_hop(to)?;
        let mut links = inside.network.links.iter().flat_map(|link| &link.all);
        let own = links.find(|own| own.name == link)?;
        let far = self.far_end(own).filter(|far_end| far_end.kind == "veth")?;
        let is_second = inside.own_link().is_none_or(|first| first.name != link);
        let may_be_elsewhere = || {
            let mut ports = far.master.iter().flat_map(|bridge| self.ports(bridge));
            ports.any(|port| port.kind != "veth")
        };
        if next != to
            || is_second && may_be_elsewhere()
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
        let route = inside.range_of(to, &link)?;
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
    pub(in crate::verdict) fn no_bridge(&self, pod: IpAddr) -> Option<Obstacle> {
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
    pub(super) fn mute(&self, pod: IpAddr) -> Option<Fault> {
        let (_, link) = self.link_of_pod(pod)?;
        let far = self.far_end(link)?;
        let fault = self.arp_on(far.master.as_ref().unwrap_or(&far.name), Some(pod))?;
        (fault.fate() != Fate::Unknown).then_some(fault)
    }

    /// Returns the fault of an address of a link of the node that the kernel does not take for its own.
    pub(super) fn not_own(&self, address: IpAddr) -> Option<Fault> {
        Some(Fault::Obstacle(Box::new(Obstacle::NoLocalRoute {
            address,
            link: unrouted(self.node, address)?.to_owned(),
            inside: None,
        })))
    }

    /// Returns the fault of packets to `to` if the pod has a permanent neighbour entry of the next hop with a wrong MAC: not that of the
    /// other pod, or not that of the node's end of the pod's link. A bridge takes packets that it translates whatever their MAC is.
    pub(super) fn other_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
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
            twin: None,
        })))
    }

    /// Returns the TTL of packets from `address`, of a pod whose network is read, and a process in this network.
    pub(in crate::verdict) fn ttl_inside(&self, address: IpAddr) -> Option<(u8, u32)> {
        let network = self.network_of(address).ok().flatten()?;
        let node = NodeSnapshot::new(&network.evidence);
        let ttl = node.sysctl().ok()?.get(DEFAULT_TTL)?.parse().ok()?;
        Some((ttl, network.pid))
    }

    /// Returns the fault of packets to `to` whose gateway is a link-local address, as Calico sets it, and the node does not answer
    /// for it: it needs proxy ARP at the pod's link, and a route to that address by another link.
    pub(super) fn silent_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
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
        self.unproxied(gateway, link, inside.address)
    }

    /// Returns the fault of packets of `pod` if the node does not answer for the gateway of Calico's pods, whose network was not read.
    pub(super) fn silent_for_calico(&self, pod: IpAddr) -> Option<Fault> {
        let way = self.router.decide(Lookup::to(Asked::new(pod, None)));
        let Decision::Out {
            device: Some(device),
            gateway: None,
            ..
        } = way
        else {
            return None;
        };
        let link = self.link(&device).filter(|link| {
            link.kind == "veth" && link.master.is_none() && link.name.starts_with("cali")
        })?;
        let is_own = self.places.own(CALICO_GATEWAY).is_some();
        (pod.is_ipv4() && !is_own).then(|| self.unproxied(CALICO_GATEWAY, link, pod))?
    }

    /// Returns that the node does not answer `pod` at `link` for its gateway, which no machine has: that needs proxy ARP at the
    /// link, and a route to the gateway by another one.
    fn unproxied(&self, gateway: IpAddr, link: &Link, pod: IpAddr) -> Option<Fault> {
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
            source: Some(Asked::new(pod, None)),
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

    /// Returns the fault of packets to `to` whose gateway is an address of the node at another link than the pod's, which the node answers
    /// for only without strict ARP.
    pub(super) fn unheard_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (gateway, own) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        self.places.own(gateway).filter(|_| gateway.is_ipv4())?;
        let (_, link) = self.link_of_pod(inside.address)?;
        let far = self.far_end(link).filter(|_| link.name == own)?;
        let asked = match &far.master {
            None => far,
            // Switches of network plugins answer themselves, as Cilium's programs do.
            Some(master) => self.link(master).filter(|link| link.kind == "bridge")?,
        };
        if self.link("cilium_host").is_some() {
            return None;
        }
        let asked = asked.name.as_str();
        let node = NodeSnapshot::new(&inside.network.evidence);
        let is_known = node.neighbour_table().is_ok_and(|all| {
            let entry = all.on(gateway, &own);
            entry.is_some_and(|entry| entry.mac.is_some())
        });
        // Some network plugins give the address to the link of each pod.
        let mut of_node = self.node.addresses().ok()?.all.iter();
        let is_there = of_node.any(|at| at.link == asked && at.addr.addr == gateway);
        if is_known || is_there || !inside.asks_for_neighbours(&own) {
            return None;
        }
        // The greater of the two values counts.
        let sysctl = self.node.sysctl().ok()?;
        let mut keys = [
            sysctl_of("all", "arp_ignore"),
            sysctl_of(asked, "arp_ignore"),
        ]
        .into_iter();
        let key = keys.find(|key| matches!(sysctl.get(key), Some("1" | "2")))?;
        Some(Fault::Obstacle(Box::new(Obstacle::Arp {
            link: asked.to_owned(),
            by: Arp::Strict { key, gateway },
        })))
    }

    /// Returns the gateway of packets to `to`, as the pod has it, and its link, if nothing has answered for it and the node does not have it.
    pub(super) fn unseen_gateway(
        &self,
        inside: &Inside<'_>,
        to: IpAddr,
    ) -> Option<(IpAddr, String)> {
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
    pub(super) fn is_proxied(&self, inside: &Inside<'_>, gateway: IpAddr, own: &str) -> bool {
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
    pub(super) fn no_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (gateway, _) = self.unseen_gateway(inside, to)?;
        let gone = self.gateway_gone(inside, gateway)?;
        // A link that is down loses its addresses of IPv6.
        let gone = self.home_down(inside.address).unwrap_or(gone);
        Some(Fault::Obstacle(Box::new(gone)))
    }

    /// Returns that the bridge of `pod` does not have the address that is the pod's gateway.
    pub(in crate::verdict) fn without_gateway(&self, pod: IpAddr) -> Option<Obstacle> {
        let network = self.network_of(pod).ok().flatten()?;
        let inside = Inside::of(network, pod);
        let to = self.places.any_service(Family::of(pod))?;
        let (gateway, _) = inside.next_hop(to).filter(|(next, _)| *next != to)?;
        let is_open = !is_link_local(gateway) && self.places.own(gateway).is_none();
        is_open.then(|| self.gateway_gone(&inside, gateway))?
    }

    /// Returns that the bridge of the pod does not have `gateway`, nor another address of the pod's network.
    pub(super) fn gateway_gone(&self, inside: &Inside<'_>, gateway: IpAddr) -> Option<Obstacle> {
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
        let off = disable_ipv6_of(bridge);
        Some(Obstacle::NoGateway {
            ipv6_off: gateway.is_ipv6()
                && self
                    .node
                    .sysctl()
                    .is_ok_and(|all| all.get(&off) == Some("1")),
            gateway: Cidr {
                addr: gateway,
                prefix: range.addr.prefix,
            },
            bridge: bridge.clone(),
        })
    }

    /// Returns the doubt about packets to `to` whose gateway, as the pod has it, is no address of this node and has not been seen.
    pub(super) fn unknown_gateway(&self, inside: &Inside<'_>, to: IpAddr) -> Option<Fault> {
        let (next, link) = self.unseen_gateway(inside, to)?;
        let why = format!(
            "whether anything answers for {next}, the gateway in the network of pod {}, is unknown: it is no address of the \
             node, and nothing has answered for it on {link}",
            inside.address
        );
        Some(Fault::Unknown(Missing::Unmodelled(why)))
    }

    /// Returns whether the network of the pod with `address` has no way to the Services of its family, or may have none.
    pub(in crate::verdict) fn leads_nowhere(&self, address: IpAddr) -> bool {
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
            || self.unheard_gateway(&inside, to).is_some()
            || self.strayed(&inside, to, false).is_some()
            || self.gatewayless(&inside, to).is_some()
            || self.is_beside(&inside)
            || self.other_source(&inside, to).is_some()
            || self.unknown_gateway(&inside, to).is_some()
    }

    /// Returns whether the network of the pod with `address` has rules of its own.
    pub(in crate::verdict) fn has_rules_inside(&self, address: IpAddr) -> bool {
        self.network_of(address)
            .ok()
            .flatten()
            .is_some_and(PodNetwork::has_rules)
    }

    /// Returns whether a link of the node leads to the network: others on the machine may have the same addresses. Files of a
    /// process do not tell.
    pub(super) fn has_link_to(&self, network: &PodNetwork) -> bool {
        let (Some(inside), Ok(node)) = (&network.links, self.node.links()) else {
            return false;
        };
        inside.all.iter().all(|own| own.index == 0) || network.link_of(node).is_some()
    }

    /// Returns whether the networks of the node's pods are read, and none of them has `address`.
    pub(in crate::verdict) fn is_in_no_network(&self, address: IpAddr) -> bool {
        self.node.pod_networks().is_ok_and(|all| {
            !all.is_empty()
                && all
                    .iter()
                    .all(|network| !network.addresses.contains(&address))
        })
    }

    /// Returns whether the network of the pod with `address` has an address of a Service, too.
    pub(in crate::verdict) fn has_service_address(&self, address: IpAddr) -> bool {
        let network = self.network_of(address).ok().flatten();
        let own = network.iter().flat_map(|network| &network.addresses);
        let mut others = own.filter(|own_address| **own_address != address);
        others.any(|own_address| self.places.service(*own_address).is_some())
    }
}
