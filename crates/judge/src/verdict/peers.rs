//! The way to pods of other nodes, where routes by the Nodes' own addresses lead to them: a Node without such a route stands out.

use std::net::{IpAddr, SocketAddr};

use foldhash::{HashMap, HashSet};

use super::diversion::{has_routes_of_bird, pods_with};
use super::judge::{Judge, Question};
use super::neighbours::back_to;
use super::place::{Holder, has_own_address, pod_ranges};
use super::tunnel::ends_of;
use super::{Fault, Missing, Obstacle, Odd, OddWay, SameNetworkAs, WayThere, Wayless};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::{Entry, Outcome};
use kpx_node::backend::chain_owner::{Maker, SOFTWARE, Software};
use kpx_node::cluster::Node;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::agents::Agent;
use kpx_node::node::links::{Address, Link};
use kpx_node::node::routes::Route;
use kpx_node::owner::Endpoint;
use kpx_node::words::listed;

/// Another Node: its addresses in the cluster's network, and the ranges of its pods, if it has any.
#[derive(Debug)]
pub(super) struct Peer {
    addrs: Vec<IpAddr>,
    ranges: Vec<Cidr>,
}

/// The other Nodes by their names.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_name: HashMap<String, Peer>,
    by_address: HashMap<IpAddr, String>,
    /// The Node of each pod with an address of its own: not every cluster gives its Nodes ranges of pods.
    by_pod: HashMap<IpAddr, String>,
    /// By family, the length of ranges to which routes lead by the address of a Node; without such routes, none.
    lengths: [Option<u8>; 2],
    /// The gateways that lead elsewhere than to the pods of a Node: gateways of default routes, and other Nodes.
    gateways: HashSet<IpAddr>,
}

impl Peers {
    pub(super) fn new(node: &NodeSnapshot<'_>) -> Self {
        let mut peers = Self::default();
        let name = node.name().ok();
        let mut gateways: HashMap<IpAddr, Option<Vec<Cidr>>> = HashMap::default();
        for of in node.nodes().into_iter().flatten() {
            if Some(&of.metadata.name) == name.as_ref() {
                continue;
            }
            let (addrs, ranges) = (addresses(of), pod_ranges(of));
            let known = (!ranges.is_empty()).then(|| ranges.clone());
            gateways.extend(addrs.iter().map(|addr| (*addr, known.clone())));
            let name = || of.metadata.name.clone();
            let with_name = addrs.iter().map(|addr| (*addr, name()));
            peers.by_address.extend(with_name);
            peers
                .by_name
                .insert(of.metadata.name.clone(), Peer { addrs, ranges });
        }
        for pod in node.pods().into_iter().flatten() {
            let name = pod.spec.node_name.as_ref();
            if let Some(name) = name.filter(|_| has_own_address(pod)) {
                let of_pod = pod.addresses().map(|addr| (addr, name.clone()));
                peers.by_pod.extend(of_pod);
            }
        }
        let routes = node.routes().map_or(&[][..], |all| all.all.as_slice());
        let defaults = routes.iter().filter(|route| route.destination.prefix == 0);
        peers.gateways = defaults.filter_map(|default| default.gateway).collect();
        peers.gateways.extend(gateways.keys());
        for route in routes.iter().filter(|route| route.destination.prefix > 0) {
            let Some(ranges) = route.gateway.and_then(|gateway| gateways.get(&gateway)) else {
                continue;
            };
            let to = route.destination.normal();
            let is_its = ranges
                .as_ref()
                .is_none_or(|all| all.iter().any(|range| range.normal() == to));
            if is_its {
                let at = usize::from(to.family() == Family::V6);
                peers.lengths[at] = Some(to.prefix);
            }
        }
        peers
    }

    /// Returns the name of the Node that has `addr`.
    pub(super) fn with_address(&self, addr: IpAddr) -> Option<&str> {
        self.by_address.get(&addr).map(String::as_str)
    }

    /// Returns the address in `family` of the Node called `name`.
    pub(super) fn address(&self, name: &str, family: Family) -> Option<IpAddr> {
        let mut all = self.by_name.get(name)?.addrs.iter().copied();
        all.find(|addr| Family::of(*addr) == family)
    }

    /// Returns the name of the Node that has the pod with `addr`, or in whose range of pods it is, and the Node.
    pub(super) fn with_pod(&self, addr: IpAddr) -> Option<(&str, &Peer)> {
        let mut all = self.by_name.iter();
        let has = |(_, of): &(&String, &Peer)| of.ranges.iter().any(|range| range.contains(addr));
        // Two Nodes may have the same range.
        let found = match self.by_pod.get(&addr) {
            Some(name) => self.by_name.get_key_value(name),
            None => all.find(has),
        };
        found.map(|(name, of)| (name.as_str(), of))
    }
}

impl Judge<'_> {
    /// Returns the doubt about a packet to a pod of a neighbouring node: it does not leave by that node's address, although
    /// packets to pods of other nodes leave by theirs.
    pub(super) fn stray(&self, endpoint: &Endpoint, outcome: &Outcome) -> Option<Fault> {
        let name = endpoint.node.as_deref()?;
        // The slice is wrong about the node of a pod that is here.
        if matches!(self.network_of(endpoint.addr.ip()), Ok(Some(_))) {
            return None;
        }
        let device = outcome.leaves_by().filter(|link| *link != "lo")?;
        let to = Lookup::to(Asked::new(endpoint.addr.ip(), None));
        let route = self.router.found(to).ok().flatten();
        // Of several next hops, the kernel takes one for each connection.
        let hops = route.map_or(&[][..], |route| &route.nexthops);
        let mut others = hops.iter().skip(1);
        let mut stray = self
            .stray_to(endpoint.addr, name, device, outcome.gateway)
            .or_else(|| {
                others.find_map(|(gateway, link)| {
                    let device = link.as_deref().unwrap_or(device);
                    self.stray_to(endpoint.addr, name, device, *gateway)
                })
            });
        let by_node = |(gateway, _): &(Option<IpAddr>, _)| {
            let peer = self.peers().by_name.get(name);
            peer.is_some_and(|peer| gateway.is_some_and(|by| peer.addrs.contains(&by)))
        };
        if let Some(Fault::Unknown(Missing::PodRoute { there, .. })) = &mut stray
            && there
                .odd
                .as_ref()
                .is_none_or(|odd| matches!(odd.why, Odd::Unlearned { .. }))
            && hops.len() > 1
            && hops.iter().any(by_node)
        {
            let why = Odd::NextHop { hops: hops.len() };
            there.odd = Some(OddWay { why, hider: None });
        }
        stray
    }

    /// Returns the doubt about packets to `address`, a pod of the Node called `name`, that leave by `device` and `gateway`.
    pub(super) fn stray_to(
        &self,
        address: SocketAddr,
        name: &str,
        device: &str,
        gateway: Option<IpAddr>,
    ) -> Option<Fault> {
        let addr = address.ip();
        let family = Family::of(addr);
        let peers = self.peers();
        let peer = peers.by_name.get(name)?;
        // Each address of the Node leads to it.
        let by = gateway
            .filter(|gateway| peer.addrs.contains(gateway))
            .or_else(|| peers.address(name, family))?;
        if by == addr {
            return self.by_vpn(addr, name, device);
        }
        if let Some(odd) = self.by_rule((name, addr), by, (device, gateway)) {
            return self.missing_way(address, name, (device, gateway), odd);
        }
        if let Some(why) = self.out_of_range(address, peer) {
            return self.missing_way(
                address,
                name,
                (device, gateway),
                OddWay { why, hider: None },
            );
        }
        if !self.places.is_pod(addr) {
            return None;
        }
        let ranges = self.places.object().map(pod_ranges).unwrap_or_default();
        let mut shared = ranges.iter().filter(|range| range.contains(addr));
        // The address of a client may be one that no pod has.
        let is_pod = address.port() != 0 || peers.by_pod.contains_key(&addr);
        if is_pod
            && gateway.is_none()
            && !self.is_tunnel(device)
            && let Some(range) =
                shared.find(|own| peer.ranges.iter().any(|pods| pods.contains(own.addr)))
        {
            let why = Odd::Shared { range: *range };
            return self.missing_way(
                address,
                name,
                (device, gateway),
                OddWay { why, hider: None },
            );
        }
        if let Some(odd) = self.odd_way(addr, name, device, gateway) {
            return self.missing_way(address, name, (device, gateway), odd);
        }
        let Some(length) = peers.lengths[usize::from(family == Family::V6)] else {
            let is_odd =
                self.goes_by_default(addr) && self.is_next_to(by) && self.has_lost_routes(family);
            let why = if has_routes_of_bird(self.node, family) {
                Odd::Unlearned { has_others: false }
            } else {
                Odd::NoRoutes
            };
            let odd = OddWay { why, hider: None };
            return is_odd
                .then(|| self.missing_way(address, name, (device, gateway), odd))
                .flatten();
        };
        let is_open = |gateway| {
            gateway != by
                && (peers.gateways.contains(&gateway) || self.is_other_in_network(gateway, by))
        };
        // The gateway of a route by an IP tunnel without a fixed end is that end.
        let tunnel =
            (gateway.is_some() && self.is_open_ip_tunnel(device)).then(|| device.to_owned());
        if !gateway.is_none_or(is_open) || tunnel.is_none() && self.is_tunnel(device) {
            return None;
        }
        let known = peer.ranges.iter().find(|range| range.contains(addr));
        let around = Cidr {
            addr,
            prefix: length,
        };
        let range = known.copied().unwrap_or(around).normal();
        let direct = self.router.decide(Lookup::to(Asked::new(by, None)));
        let link = match direct {
            Decision::Out {
                device: Some(link),
                gateway: None,
                ..
            } => link,
            // The Node is in another network, behind the default route.
            Decision::Out {
                gateway: Some(router),
                ..
            } if gateway == Some(router) && self.goes_by_default(addr) => {
                let odd = OddWay {
                    why: Odd::Default,
                    hider: None,
                };
                return self.missing_way(address, name, (device, gateway), odd);
            }
            _ => return None,
        };
        let own = gateway
            .is_none()
            .then(|| self.own_in(range, addr, device))
            .flatten();
        if let Some((network, bridge)) = own.as_ref().filter(|(_, link)| self.is_inner(link)) {
            return Some(Fault::Obstacle(Box::new(Obstacle::SameNetwork {
                link: bridge.clone(),
                address: *network,
                others: SameNetworkAs::PodsOf {
                    node: name.to_owned(),
                    range,
                    by,
                },
            })));
        }
        let is_unlearned = own.is_none() && has_routes_of_bird(self.node, family);
        let odd = is_unlearned.then_some(OddWay {
            why: Odd::Unlearned { has_others: true },
            hider: None,
        });
        Some(Fault::Unknown(Missing::PodRoute {
            address,
            way: way_by(device, gateway),
            there: Box::new(WayThere {
                node: name.to_owned(),
                range,
                by,
                link: link.to_string(),
                tunnel,
                own,
                odd,
            }),
        }))
    }

    /// Returns whether `name` is a bridge that leads to no other machine: all its ports are links of pods or containers.
    pub(super) fn is_inner(&self, name: &str) -> bool {
        let links = self.node.links().map_or(&[][..], |links| &links.all);
        let mut ports = links
            .iter()
            .filter(|link| link.master.as_deref() == Some(name));
        self.link(name).is_some_and(|link| link.kind == "bridge")
            && ports.all(|port| port.kind == "veth")
    }

    /// Returns the doubt about packets to `address`, a pod of the Node called `name`, that leave by a link and a gateway, which is `odd`.
    pub(super) fn missing_way(
        &self,
        address: SocketAddr,
        name: &str,
        (device, gateway): (&str, Option<IpAddr>),
        odd: OddWay,
    ) -> Option<Fault> {
        let addr = address.ip();
        let peers = self.peers();
        let by = peers.address(name, Family::of(addr))?;
        let mut ranges = peers.by_name.get(name)?.ranges.iter();
        let is_shared = matches!(odd.why, Odd::Shared { .. });
        let of_peer = ranges.find(|range| range.contains(addr)).copied();
        let of_others = || self.others.as_ref()?.range_of(addr, &[by]);
        let range = of_peer.or_else(of_others).filter(|_| !is_shared);
        let (link, _) = self.way_to(by)?;
        Some(Fault::Unknown(Missing::PodRoute {
            address,
            way: way_by(device, gateway),
            there: Box::new(WayThere {
                node: name.to_owned(),
                range: range.unwrap_or_else(|| Cidr::host(addr)).normal(),
                by,
                link,
                tunnel: None,
                own: None,
                odd: Some(odd),
            }),
        }))
    }

    /// Returns that `address`, of a pod of the Node `peer`, is in none of the ranges of its pods: a route leads to the ranges, but only a
    /// default route to the address. Without podCIDRs, the ranges are those to which routes lead by an address of the Node.
    fn out_of_range(&self, address: SocketAddr, peer: &Peer) -> Option<Odd> {
        let addr = address.ip();
        let peers = self.peers();
        // The address of a client may belong to no pod, and pods in the host's network have the address of a node.
        let is_pod = address.port() != 0 || peers.by_pod.contains_key(&addr);
        let routes = &self.node.routes().ok()?.all;
        let by_peer = |route: &&Route| route.gateway.is_some_and(|by| peer.addrs.contains(&by));
        let mut ranges = if peer.ranges.is_empty() {
            let led = routes.iter().filter(by_peer);
            let led = led.filter(|route| route.destination.prefix > 0);
            led.map(|route| route.destination).collect()
        } else {
            peer.ranges.clone()
        };
        ranges.retain(|range| range.family() == Family::of(addr));
        let leads_to = |range: &Cidr| routes.iter().any(|route| route.destination == *range);
        let is_odd = is_pod
            && !peers.by_address.contains_key(&addr)
            && ranges.iter().any(leads_to)
            && !ranges.iter().any(|range| range.contains(addr))
            && self.goes_by_default(addr);
        is_odd.then_some(Odd::Outside { ranges })
    }

    /// Returns the doubt about a reply from another node to a pod of this node whose address is in none of this Node's ranges, where
    /// routes lead to the ranges of Nodes.
    pub(super) fn client_out_of_range(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let client = outcome.sent_from;
        if question.flow.entry != Entry::Pod || outcome.source != client || outcome.masquerade {
            return None;
        }
        let (name, peer) = self.peers().with_pod(outcome.destination.0)?;
        let own = self.places.object()?;
        let mut ranges = pod_ranges(own);
        ranges.retain(|range| range.family() == Family::of(client));
        let routes = &self.node.routes().ok()?.all;
        let leads_to = |range: &Cidr| routes.iter().any(|route| route.destination == *range);
        let is_odd = *name != own.metadata.name
            && !ranges.is_empty()
            && !ranges.iter().any(|range| range.contains(client))
            && matches!(self.places.holder(client), Some(Holder::Pod(_)))
            && peer.ranges.iter().any(leads_to);
        is_odd.then(|| {
            let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
            Fault::Unknown(Missing::Unmodelled(format!(
                "whether replies from node {name} reach the pod at {client} is unknown: the address is not in the range of this Node's pods \
                 ({}), to which the other nodes have routes; another file in /etc/cni/net.d than the network plugin's made the pod: remove \
                 that file, and delete the pod",
                listed(&ranges)
            )))
        })
    }

    /// Returns whether routes to the pods of other nodes would be there if they were not lost: those of the other family are, BIRD has made
    /// the route of this node's own block alone, kube-router routes here, or other nodes have routes to this node's pods by its address.
    fn has_lost_routes(&self, family: Family) -> bool {
        let routes = self.node.routes().map_or(&[][..], |all| all.all.as_slice());
        let by_bird = |route: &&Route| route.family == family && route.daemon() == Some("bird");
        let mut all = routes.iter().filter(by_bird).peekable();
        let other = usize::from(family == Family::V4);
        let lead_here = || {
            let own = self.places.object()?;
            let pods = &self.places.pods_here;
            let others = self.others.as_ref()?;
            Some(others.lead_there(&own.metadata.name, pods, &addresses(own)))
        };
        // Without its routing, kube-router has no bridge.
        let has_bridge = || self.link("kube-bridge").is_some();
        let routes_here =
            || has_bridge() && self.node.agent_of(Maker::Other("kube-router")) == Some(Agent::Runs);
        self.peers().lengths[other].is_some()
            || routes_here()
            || lead_here() == Some(true)
            || all.peek().is_some() && all.all(|route| route.kind == "blackhole")
    }

    /// Returns whether only a default route leads to `addr`.
    pub(super) fn goes_by_default(&self, addr: IpAddr) -> bool {
        let route = self.router.found(Lookup::to(Asked::new(addr, None)));
        let route = route.ok().flatten();
        route.is_some_and(|route| route.destination.prefix == 0)
    }

    /// Returns the oddity of the way by `device` and `gateway` to `pod` on the Node called `name`: the fixed end of a tunnel that is no
    /// address of it, or a route of a removed plugin, which hides the route by the Node's address.
    fn odd_way(
        &self,
        pod: IpAddr,
        name: &str,
        device: &str,
        gateway: Option<IpAddr>,
    ) -> Option<OddWay> {
        let links = &self.node.links().ok()?.all;
        let link = links.iter().find(|link| link.name == device)?;
        let other = self.places.node_called(name)?;
        let by = self.peers().address(name, Family::of(pod))?;
        let routes = &self.node.routes().ok()?.all;
        let to_pod = |route: &&Route| {
            route.kind == "unicast"
                && route.destination.prefix > 0
                && route.destination.contains(pod)
        };
        let is_taken =
            |route: &&Route| route.device.as_deref() == Some(device) && route.gateway == gateway;
        let is_direct = routes
            .iter()
            .filter(to_pod)
            .any(|route| route.gateway == Some(by));
        let hider = routes.iter().filter(to_pod).find(is_taken);
        let hider = hider
            .filter(|route| is_direct && route.gateway != Some(by))
            .cloned()
            .map(Box::new);
        let is_elsewhere = |remote: &IpAddr| {
            let is_known = self.peers().with_address(*remote).is_some()
                || self.is_other_in_network(*remote, by);
            !remote.is_multicast()
                && !ends_of(other).contains(remote)
                && (is_known || hider.is_some())
        };
        let remote = link.remote.filter(|_| link.is_tunnel());
        let end = remote.filter(is_elsewhere).map(|remote| Odd::End {
            link: device.to_owned(),
            kind: link.kind.clone(),
            remote,
        });
        let left = || {
            let plugin = plugin_of(link).filter(|_| hider.is_some())?;
            (self.node.agent(plugin) == Ok(Agent::Gone)).then(|| Odd::LeftOver {
                link: device.to_owned(),
                plugin: plugin.name,
            })
        };
        // Network plugins encrypt what goes to other nodes with routes of their own; a gateway may be another address of that node.
        let is_other = link.is_tunnel() && link.kind != "wireguard";
        let of_table = || {
            let table = &hider.as_ref().filter(|_| is_other)?.table;
            match table.as_str() {
                // A VPN, as far as is known; the end of other tunnels is judged above.
                "main" | "254" => (link.kind == "tun").then(|| Odd::Tunnel {
                    link: device.to_owned(),
                }),
                table => Some(Odd::OtherTable {
                    table: table.to_owned(),
                }),
            }
        };
        let why = end.or_else(left).or_else(of_table)?;
        Some(OddWay { why, hider })
    }

    /// Returns the routing policy rule that leads packets to `pod` of the Node called `name` by `way`, a link and a gateway, if others go by
    /// `by`, the address of that Node, or by a tunnel, or would without the rule.
    fn by_rule(
        &self,
        (name, pod): (&str, IpAddr),
        by: IpAddr,
        (device, gateway): (&str, Option<IpAddr>),
    ) -> Option<OddWay> {
        let plain = self.router.found(Lookup::to(Asked::new(pod, None)));
        let plain = plain.ok().flatten()?;
        let is_of_plugin = || {
            let link = self.link(device);
            link.is_some_and(|link| plugin_of(link).is_some())
        };
        let tunnel = (!plain.is_main() && !is_of_plugin())
            .then(|| self.announced_tunnel(name, Family::of(pod)))
            .flatten()
            .filter(|tunnel| tunnel != device);
        let hidden = self.hidden_in_main(pod, plain, tunnel.as_deref());
        let usual = hidden.unwrap_or(plain);
        let way = |route: &Route| (route.device.as_deref() == Some(device), route.gateway);
        if way(usual) == (true, gateway)
            || usual.gateway != Some(by) && !usual.devices().iter().any(|link| self.is_tunnel(link))
        {
            return None;
        }
        let (route, rule) = self.leading(pod, (device, gateway))?;
        let rule = rule?;
        // Network plugins lead packets into tunnels by rules of their own, but not by a default route.
        let is_of_tunnel = tunnel.is_some() && hidden.is_some();
        if self.is_tunnel(device) && route.destination.prefix > 0 && !is_of_tunnel
            || self.keeps_pod_apart(&route.table)
        {
            return None;
        }
        let bypass = pods_with(self.node, pod).and_then(|range| rule.bypass(range));
        let mut usual = usual.devices().into_iter();
        let tunnel = usual.find(|link| self.is_tunnel(link)).map(str::to_owned);
        Some(OddWay {
            why: Odd::Rule {
                rule: Box::new(rule.clone()),
                bypass: bypass.map(Box::new),
                tunnel,
            },
            hider: None,
        })
    }

    /// Returns the route of the main table to `pod` that `chosen`, a route of another table, hides: if `chosen` is a default route, as that of
    /// a VPN, any route to the pod; otherwise only one by `tunnel`, which network plugins announce.
    fn hidden_in_main(&self, pod: IpAddr, chosen: &Route, tunnel: Option<&str>) -> Option<&Route> {
        let is_default = chosen.destination.prefix == 0;
        let mut routes = self.node.routes().ok()?.all.iter();
        if chosen.is_main() {
            return None;
        }
        routes.find(|route| {
            let to = route.destination;
            let is_of_tunnel = || tunnel.is_some_and(|tunnel| route.devices() == [tunnel]);
            route.is_main()
                && route.kind == "unicast"
                && to.prefix > 0
                && to.contains(pod)
                && (is_default || is_of_tunnel())
        })
    }

    /// Returns the address of this node in `range` whose network leads packets for `pod` to `link`.
    fn own_in(&self, range: Cidr, pod: IpAddr, link: &str) -> Option<(Cidr, String)> {
        let mut all = self.node.addresses().ok()?.all.iter();
        let own = all.find(|own| {
            own.link == link && own.addr.contains(pod) && range.contains(own.addr.addr)
        })?;
        Some((own.addr, link.to_owned()))
    }

    /// Returns whether `gateway` is in the network of the Node's address `by` and not known to be the same machine. If only one
    /// route has a gateway in another network, no evidence shows whose it is: it may be another address of that node.
    pub(super) fn is_other_in_network(&self, gateway: IpAddr, by: IpAddr) -> bool {
        let link_to = |addr| match self.router.decide(Lookup::to(Asked::new(addr, None))) {
            Decision::Out {
                device: Some(link),
                gateway: None,
                ..
            } => Some(link),
            _ => None,
        };
        let (Some(link), Some(of_node)) = (link_to(gateway), link_to(by)) else {
            return false;
        };
        let mac = |addr| {
            let all = self.node.neighbour_table().ok()?;
            all.on(addr, &link)?.mac.as_deref()
        };
        link == of_node && (mac(gateway).is_none() || mac(gateway) != mac(by))
    }

    /// Returns the fault of a packet to a pod of another node, or of its reply, if its route hides the route by that node's address.
    /// The route leads to a third node, or to nothing that answers.
    pub(super) fn hidden_route(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if self.ends_here(outcome) {
            return None;
        }
        let ends = [Some(outcome.destination.0), back_to(question, outcome)];
        let mut all = ends.into_iter().flatten();
        let node_of = |pod: IpAddr| {
            let mut endpoints = question.port?.endpoints.iter();
            endpoints
                .find(|endpoint| endpoint.addr.ip() == pod)?
                .node
                .as_deref()
        };
        let found = all.find_map(|pod| self.hidden_route_to(pod, node_of(pod)))?;
        Some(Fault::Obstacle(Box::new(found)))
    }

    /// Returns the route to `pod` that hides the one by the address of its Node: the one called `name`, or else that in whose range it is.
    fn hidden_route_to(&self, pod: IpAddr, name: Option<&str>) -> Option<Obstacle> {
        let peers = self.peers();
        let named = name.and_then(|name| Some((name, peers.by_name.get(name)?)));
        let (name, peer) = named.or_else(|| peers.with_pod(pod))?;
        let route = self
            .router
            .found(Lookup::to(Asked::new(pod, None)))
            .ok()
            .flatten()?;
        let leads_there = |route: &Route| route.gateway.is_some_and(|by| peer.addrs.contains(&by));
        if leads_there(route) {
            return None;
        }
        // Not every cluster gives its Nodes ranges of pods.
        let is_of_node = |to: Cidr| {
            let mut ranges = peer.ranges.iter();
            to.prefix > 0
                && (peer.ranges.is_empty() || ranges.any(|range| range.normal() == to.normal()))
        };
        let is_hidden = |candidate: &&Route| {
            let (chosen, other) = (route.destination, candidate.destination);
            candidate.table == route.table
                && candidate.kind == route.kind
                && other.contains(pod)
                && (other.prefix < chosen.prefix
                    || other.prefix == chosen.prefix && candidate.metric > route.metric)
                && leads_there(candidate)
                && is_of_node(other)
        };
        let hidden = self.node.routes().ok()?.all.iter().find(is_hidden)?;
        let by = route.gateway;
        let is_of_other =
            by.is_some_and(|by| peers.by_name.values().any(|peer| peer.addrs.contains(&by)));
        let is_silent = || {
            let table = self.node.neighbour_table().ok()?;
            let found = table.on(by.unwrap_or(pod), route.device.as_deref()?)?;
            Some(found.failed)
        };
        (is_of_other || is_silent() == Some(true)).then(|| Obstacle::HiddenRoute {
            route: Box::new(route.clone()),
            hidden: Box::new(hidden.clone()),
            node: name.to_owned(),
        })
    }

    /// Returns the route that would lead to the pods of another node with `addr`: their range, that node's address, and the link.
    pub(super) fn route_to_pods_there(&self, addr: IpAddr) -> Option<(Cidr, IpAddr, String)> {
        let family = Family::of(addr);
        let (name, peer) = self.peers().with_pod(addr)?;
        let range = *peer.ranges.iter().find(|range| range.contains(addr))?;
        let by = self.peers().address(name, family)?;
        let (link, _) = self.way_to(by)?;
        Some((range, by, link))
    }

    /// Returns whether `name` is an IP tunnel whose routes name its other ends.
    fn is_open_ip_tunnel(&self, name: &str) -> bool {
        let links = self
            .node
            .links()
            .map_or(&[][..], |links| links.all.as_slice());
        let mut named = links.iter().filter(|link| link.name == name);
        named.any(|link| matches!(link.kind.as_str(), "ipip" | "sit") && link.remote.is_none())
    }

    /// Returns whether the link called `name` may lead to other nodes whatever the gateway is.
    pub(super) fn is_tunnel(&self, name: &str) -> bool {
        match self.node.links() {
            Ok(links) => {
                let mut all = links.all.iter();
                all.any(|link| link.name == name && link.is_tunnel())
            }
            Err(_) => true,
        }
    }
}

/// An address of a Node that its machine does not have.
#[derive(Clone, Copy, Debug)]
pub struct HomeGone<'n> {
    /// The Node's first address of this family in the cluster's network.
    pub address: IpAddr,
    /// The link that has it without using it, as another machine has it too.
    pub failed: Option<&'n Address>,
    /// Whether one of the machine's links to other machines has its network, or none of them has any address: else a router may
    /// translate it.
    pub is_certain: bool,
}

impl Judge<'_> {
    /// Returns `gone` as a fault of packets for `own`, the node's object; a doubt if a router may translate the address.
    pub(super) fn gone(&self, own: &Node, gone: &HomeGone<'_>) -> Fault {
        let address = gone.address;
        Fault::Obstacle(Box::new(if let Some(of) = gone.failed {
            Obstacle::Duplicate {
                address: of.addr,
                link: of.link.clone(),
            }
        } else if let Some(link) = self.without_ipv6(address) {
            Obstacle::Wayless {
                by: Wayless::Ipv6Off(link),
                refused: false,
            }
        } else if gone.is_certain {
            Obstacle::HomeGone {
                address,
                node: own.metadata.name.clone(),
                refused: false,
            }
        } else {
            return Fault::Unknown(Missing::Unmodelled(format!(
                "whether packets to {address} reach this machine is unknown: it is the address of the Node, and no link has it, so a \
                 router would have to translate it"
            )));
        }))
    }

    /// Returns the address of `own`, the Node of this machine, in `family`, if the machine uses none of the Node's addresses.
    pub(super) fn home_gone_in(&self, own: &Node, family: Family) -> Option<HomeGone<'_>> {
        home_gone(own, self.node, family)
    }

    /// Returns the fault of an endpoint at an address of this Node that the machine does not have.
    pub(super) fn at_lost_home(&self, endpoint: &Endpoint) -> Option<Fault> {
        let own = self.places.object()?;
        let address = endpoint.addr.ip();
        let gone = self.home_gone_in(own, Family::of(address))?;
        let is_it = gone.address == address && gone.failed.is_none();
        let fault = is_it.then(|| self.gone(own, &gone))?;
        matches!(fault, Fault::Obstacle(_)).then_some(fault)
    }

    /// Returns why packets to an address of this Node do not reach the node.
    pub(super) fn at_home(&self, question: Question<'_>) -> Option<Fault> {
        let address = question.flow.destination;
        let here = &self.node.addresses().ok()?.all;
        let own = self.places.object()?;
        let is_here = here
            .iter()
            .any(|own_address| own_address.addr.addr == address);
        if !is_here
            && addresses(own).contains(&address)
            && let Some(link) = self.without_ipv6(address)
        {
            return Some(Fault::Obstacle(Box::new(Obstacle::Wayless {
                by: Wayless::Ipv6Off(link),
                refused: false,
            })));
        }
        let gone = self.home_gone_in(own, Family::of(address))?;
        // The node's own packets, and those of its pods, come to its rules in any case.
        let is_met = gone.failed.is_none() || question.flow.entry == Entry::Outside;
        (gone.address == address && is_met).then(|| self.gone(own, &gone))
    }

    /// Returns the fault of an endpoint whose pod does not use its address, as IPv6 found another one with it.
    pub(super) fn duplicate(&self, endpoint: &Endpoint) -> Option<Fault> {
        let address = endpoint.addr.ip();
        let pod = endpoint
            .pod
            .as_deref()
            .filter(|_| self.is_duplicate(address))?;
        Some(Fault::Obstacle(Box::new(Obstacle::DuplicateInside {
            address,
            pod: pod.to_owned(),
        })))
    }

    /// Returns the same of a client, which is a pod of this node with `address`.
    pub(super) fn duplicate_client(&self, address: IpAddr) -> Option<Fault> {
        let is_duplicate = self.is_duplicate(address);
        let holder = self.places.holder(address).filter(|_| is_duplicate)?;
        let Holder::Pod(pod) = holder else {
            return None;
        };
        Some(Fault::Obstacle(Box::new(Obstacle::DuplicateInside {
            address,
            pod: pod.clone(),
        })))
    }

    /// Returns whether the network of a pod has `address` and does not use it.
    fn is_duplicate(&self, address: IpAddr) -> bool {
        let networks = self.node.pod_networks();
        networks.is_ok_and(|all| {
            all.iter()
                .any(|network| network.duplicates.contains(&address))
        })
    }
}

/// Returns the address of the Node `own` in `family`, if its machine uses none of the Node's addresses.
pub fn home_gone<'n>(
    own: &Node,
    node: &'n NodeSnapshot<'n>,
    family: Family,
) -> Option<HomeGone<'n>> {
    let here = &node.addresses().ok()?.all;
    let mut announced = addresses(own);
    announced.retain(|at| Family::of(*at) == family);
    let address = *announced.first()?;
    // A listing may be of the other family alone.
    if here
        .iter()
        .all(|own_address| own_address.addr.family() != family)
    {
        return None;
    }
    let is_used =
        |address: &Address| !address.is_duplicate() && announced.contains(&address.addr.addr);
    if here.iter().any(is_used) {
        return None;
    }
    let failed = here
        .iter()
        .find(|own_address| own_address.addr.addr == address);
    let out = outward(node);
    let is_out = |address: &&Address| address.scope == "global" && out.contains(&*address.link);
    let of_out = here.iter().filter(is_out);
    let mut of_family = of_out
        .filter(|address| address.addr.family() == family)
        .peekable();
    let has_none = of_family.peek().is_none() && !out.is_empty();
    let is_certain = has_none
        || of_family
            .any(|own_address| own_address.addr.prefix > 0 && own_address.addr.contains(address));
    Some(HomeGone {
        address,
        failed,
        is_certain,
    })
}

/// Returns the names of the links of `node` that lead to other machines and are no ports of other links. Links of pods and
/// containers, and tunnels, do not lead to other machines.
pub(super) fn outward<'n>(node: &'n NodeSnapshot<'n>) -> HashSet<&'n str> {
    let Ok(links) = node.links() else {
        return HashSet::default();
    };
    let networks = node.pod_networks().map_or(&[][..], Vec::as_slice);
    let ends = networks.iter().filter_map(|network| network.link_of(links));
    let of_pods: HashSet<u32> = ends.map(|end| end.index).collect();
    let is_plain = |link: &Link| {
        let is_inner = matches!(link.kind.as_str(), "dummy" | "ifb" | "tap" | "nlmon");
        // A machine may be a container, whose link is a veth, too.
        let is_of_pod =
            link.kind == "veth" && (networks.is_empty() || of_pods.contains(&link.index));
        !is_inner && !is_of_pod && !link.is_tunnel() && link.name != "lo"
    };
    let leads_out = |link: &&Link| {
        let mut ports = links.all.iter();
        let is_port = |candidate: &Link| candidate.master.as_ref() == Some(&link.name);
        link.master.is_none()
            && match link.kind.as_str() {
                "bridge" => ports.any(|port| is_port(port) && is_plain(port)),
                _ => is_plain(link),
            }
    };
    let out = links.all.iter().filter(leads_out);
    out.map(|out| out.name.as_str()).collect()
}

/// Returns the network plugin that `link` is of, by its name.
fn plugin_of(link: &Link) -> Option<&'static Software> {
    // kube-router names its tunnels by the addresses of their ends.
    let is_of_router = link.kind == "ipip" && link.name.starts_with("tun-");
    let mut plugins = SOFTWARE.iter().filter(|plugin| !plugin.agents.is_empty());
    plugins
        .find(|plugin| plugin.has_link(&link.name) || is_of_router && plugin.name == "kube-router")
}

/// Returns a link and a gateway in words: `eth0 via 10.0.0.1`.
pub(super) fn way_by(device: &str, gateway: Option<IpAddr>) -> String {
    gateway.map_or_else(
        || device.to_owned(),
        |gateway| format!("{device} via {gateway}"),
    )
}

/// Returns the addresses of `node` in the cluster's network.
pub(super) fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.addresses.iter();
    let own = all.filter(|address| address.kind == "InternalIP");
    own.filter_map(|address| address.address.parse().ok())
        .collect()
}
