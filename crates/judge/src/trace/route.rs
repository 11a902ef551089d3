//! Routing decisions, as the kernel's `fib_rules` and `fib_lookup` make them.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use super::hop::{Effect, Outcome};
use super::packet::{FIRST_EPHEMERAL, Link, Packet};
use super::region::{Asked, AskedMark, Coordinate as _, Ranges, ends};
use super::sources::OUTSIDE;
use kpx_node::evidence::Gap;
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::{PolicyRule, Route};

/// A routing decision.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Decision {
    /// To this host; the address to answer from.
    Local { source: Option<IpAddr> },
    /// Out through a link.
    Out {
        device: Option<Rc<str>>,
        gateway: Option<IpAddr>,
        source: Option<IpAddr>,
    },
    /// No way out: the type of the route, such as `unreachable`, `prohibit` or `blackhole`; `None` for no route.
    Nowhere(Option<String>),
    /// The routes are not known.
    Unknown(String),
}

/// The facts that decide on the way of a packet.
enum Best<'a> {
    /// A route, and the link by which it goes out.
    Route(&'a Route, Option<Rc<str>>),
    /// A routing policy rule of this action.
    Rule(String),
    None,
}

/// The packet's fields that a routing decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) destination: Asked<'a, IpAddr>,
    pub(crate) source: Option<Asked<'a, IpAddr>>,
    /// `None` for no mark.
    pub(crate) mark: Option<AskedMark<'a>>,
    pub(crate) input: Option<&'a str>,
    /// `None` if rules with protocols or ports are not to apply.
    pub(crate) transport: Option<Transport<'a>>,
}

/// The protocol of a packet and its ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transport<'a> {
    /// The protocol's number.
    pub(crate) proto: Asked<'a, u8>,
    pub(crate) port: Asked<'a, u16>,
    /// `None` for some ephemeral port.
    pub(crate) source_port: Option<u16>,
}

impl Transport<'_> {
    /// Returns the protocol and ports of a packet; without a source port, it has some ephemeral one.
    pub(crate) const fn of(proto: Proto, source_port: Option<u16>, port: u16) -> Self {
        Self {
            proto: Asked::new(proto.number(), None),
            port: Asked::new(port, None),
            source_port,
        }
    }
}

impl<'a> Lookup<'a> {
    /// Returns the look-up of a packet of which only `destination` is known.
    pub(crate) const fn to(destination: Asked<'a, IpAddr>) -> Self {
        Self {
            destination,
            source: None,
            mark: None,
            input: None,
            transport: None,
        }
    }

    /// Returns the look-up of `packet`, which comes in by `input`.
    pub(crate) fn of(packet: &'a Packet, input: Option<&'a str>) -> Self {
        Self {
            destination: packet.destination(),
            source: Some(packet.source()),
            mark: Some(packet.mark()),
            input,
            transport: Some(Transport {
                proto: packet.proto(),
                port: packet.port(),
                source_port: packet.source_port,
            }),
        }
    }
}

/// The node's routing, or its substitute where the routes are unknown.
#[derive(Debug)]
pub(crate) struct Router<'a> {
    pub(super) node: &'a NodeSnapshot<'a>,
    /// The rules that every kernel starts with.
    defaults: OnceCell<Vec<PolicyRule>>,
    /// A route, and a routing policy rule, that are passed over.
    but: (Option<Route>, Option<PolicyRule>),
    /// The tables that were asked, each with its family and number.
    tables: RefCell<Vec<(Family, String, Rc<Table<'a>>)>>,
}

/// The routes of one table and family by the addresses for which each is the best: the longest prefix, then the lowest metric.
#[derive(Debug)]
struct Table<'a> {
    /// Ascending ranges of addresses without overlap, each with its route: a position in `routes`.
    best: Vec<(u128, u128, usize)>,
    routes: Vec<&'a Route>,
    /// The links by which they go out.
    devices: Vec<Option<Rc<str>>>,
    /// All addresses of a route, computed on demand; and of routes with any.
    of_route: RefCell<HashMap<Option<usize>, Rc<Ranges>>>,
}

impl<'a> Table<'a> {
    fn new(routes: impl Iterator<Item = &'a Route>, family: Family, table: &str) -> Self {
        let usable = routes.filter(|route| {
            route.family == family
                && number(&route.table) == table
                && !route.flags.iter().any(|f| f == "dead")
        });
        let mut all: Vec<_> = usable
            .map(|route| (ends(route.destination), route))
            .collect();
        // The outer prefix first; of equal ones the best.
        all.sort_by_key(|((first, last), route)| (*first, std::cmp::Reverse(*last), route.metric));
        all.dedup_by_key(|(ends, _)| *ends);
        let mut best = Vec::with_capacity(all.len());
        let mut open: Vec<(u128, usize)> = Vec::new();
        let mut next = 0;
        let mut close = |open: &mut Vec<(u128, usize)>, next: &mut u128, before: Option<u128>| {
            while let Some(&(last, route)) = open.last() {
                let ends = before.is_none_or(|before| last < before);
                let until = before.filter(|_| !ends).map_or(last, |before| before - 1);
                if *next <= until {
                    best.push((*next, until, route));
                }
                *next = until.saturating_add(1);
                if !ends || until == u128::MAX {
                    break;
                }
                open.pop();
            }
        };
        for (route, ((first, last), _)) in all.iter().enumerate() {
            if *first > 0 {
                close(&mut open, &mut next, Some(*first));
            }
            open.push((*last, route));
            next = *first;
        }
        close(&mut open, &mut next, None);
        let routes: Vec<_> = all.into_iter().map(|(_, route)| route).collect();
        let devices = routes.iter().map(|route| {
            let (_, device) = next_hop(route);
            device.map(Rc::from)
        });
        Self {
            best,
            devices: devices.collect(),
            routes,
            of_route: RefCell::default(),
        }
    }

    /// Returns the best route to `addr`, and the link by which it goes out.
    fn find(&self, addr: Asked<'_, IpAddr>) -> Option<(&'a Route, Option<Rc<str>>)> {
        let at = addr.shown().number();
        let next = self.best.partition_point(|(first, ..)| *first <= at);
        let found = self.best[..next].last().filter(|(_, last, _)| *last >= at);
        let route = found.map(|(.., route)| *route);
        if addr.is_recorded() {
            let mut of_route = self.of_route.borrow_mut();
            let ranges = of_route.entry(route).or_insert_with(|| {
                let of = self.best.iter();
                let of = of.filter(|(.., other)| route.is_none_or(|route| route == *other));
                let of = of.map(|(first, last, _)| (*first, *last)).collect();
                Rc::new(Ranges::of(of))
            });
            addr.within(ranges);
        }
        route.map(|route| (self.routes[route], self.devices[route].clone()))
    }
}

impl<'a> Router<'a> {
    pub(crate) fn new(node: &'a NodeSnapshot<'a>) -> Self {
        Self {
            node,
            defaults: OnceCell::new(),
            but: (None, None),
            tables: RefCell::default(),
        }
    }

    /// Returns the routing of `node` without a route or a routing policy rule.
    pub(crate) fn without(
        node: &'a NodeSnapshot<'a>,
        route: Option<&Route>,
        rule: Option<&PolicyRule>,
    ) -> Self {
        Self {
            but: (route.cloned(), rule.cloned()),
            ..Self::new(node)
        }
    }

    /// Returns whether one of `words` is the address of another Node.
    fn names_other_node(&self, words: &str) -> bool {
        let here = self.node.addresses().into_iter().flat_map(|all| &all.all);
        let own: Vec<IpAddr> = here.map(|at| at.addr.addr).collect();
        let nodes = self.node.nodes().into_iter().flatten();
        let mut all = nodes.flat_map(|node| &node.status.addresses);
        all.any(|known| {
            let addr = known
                .address
                .parse()
                .ok()
                .filter(|addr| !own.contains(addr));
            addr.is_some() && words.split(' ').any(|word| word.parse().ok() == addr)
        })
    }

    /// Returns whether a copy of `packet` that goes as `words` say reaches another Node, which serves its destination as well.
    pub(crate) fn copies(&self, packet: &Packet, words: &str) -> bool {
        !packet.dnat && !packet.is_reply() && self.names_other_node(words)
    }

    /// Returns whether a routing policy rule asks for the packet's type of service.
    pub(crate) fn asks_for_tos(&self) -> bool {
        let rules = self.node.rules();
        rules.is_ok_and(|rules| rules.all.iter().any(|rule| rule.tos != 0))
    }

    fn table(&self, routes: &'a [Route], family: Family, table: &str) -> Rc<Table<'a>> {
        let name = number(table);
        let mut tables = self.tables.borrow_mut();
        let mut made = tables.iter();
        if let Some((.., made)) = made.find(|(of, number, _)| *of == family && number == name) {
            return Rc::clone(made);
        }
        let kept = routes
            .iter()
            .filter(|route| self.but.0.as_ref() != Some(*route));
        let made = Rc::new(Table::new(kept, family, name));
        tables.push((family, name.to_owned(), Rc::clone(&made)));
        made
    }

    /// Returns the routing decision for a packet.
    pub(crate) fn decide(&self, lookup: Lookup<'_>) -> Decision {
        let routes = match self.node.routes() {
            Ok(routes) => &routes.all,
            Err(gap) => return self.without_routes(lookup.destination, &gap),
        };
        match self.best(routes, lookup) {
            Best::Rule(action) => Decision::Nowhere(Some(action)),
            Best::None => Decision::Nowhere(None),
            Best::Route(route, device) => match route.kind.as_str() {
                "unicast" | "" => Decision::Out {
                    device,
                    // A destination that is its own gateway is a neighbour.
                    gateway: next_hop(route)
                        .0
                        .filter(|gateway| !lookup.destination.is_address(*gateway)),
                    source: route.source,
                },
                "local" | "broadcast" | "multicast" | "anycast" => Decision::Local {
                    source: route.source,
                },
                other => Decision::Nowhere(Some(other.to_owned())),
            },
        }
    }

    /// Returns the route that leads somewhere and decides for a packet; `None` if none does.
    ///
    /// # Errors
    ///
    /// The routes are not known.
    pub(crate) fn found(&self, lookup: Lookup<'_>) -> Result<Option<&'a Route>, Gap> {
        let routes = &self.node.routes()?.all;
        Ok(match self.best(routes, lookup) {
            Best::Route(route, _) if matches!(route.kind.as_str(), "unicast" | "") => Some(route),
            Best::Route(..) | Best::Rule(_) | Best::None => None,
        })
    }

    /// Returns the route that rejects a packet.
    pub(crate) fn rejecting(&self, lookup: Lookup<'_>) -> Option<&'a Route> {
        let routes = &self.node.routes().ok()?.all;
        match self.best(routes, lookup) {
            Best::Route(route, _) if is_rejecting(route) => Some(route),
            Best::Route(..) | Best::Rule(_) | Best::None => None,
        }
    }

    fn best(&self, routes: &'a [Route], lookup: Lookup<'_>) -> Best<'a> {
        let family = Family::of(lookup.destination.shown());
        let rules = match self.node.rules() {
            Ok(rules) if rules.all.iter().any(|rule| rule.family == family) => &rules.all,
            _ => self.defaults.get_or_init(|| {
                let both = Family::BOTH.into_iter();
                both.flat_map(default_rules).collect()
            }),
        };
        let mut from = 0;
        for rule in rules.iter().filter(|rule| rule.family == family) {
            if rule.priority < from || self.but.1.as_ref() == Some(rule) || !applies(rule, lookup) {
                continue;
            }
            if let Some(to) = rule.goto {
                // Without its target, the rule decides nothing: IPv6 has no rule 32767.
                let mut all = rules.iter().filter(|rule| rule.family == family);
                if all.any(|rule| rule.priority == to) {
                    from = to;
                }
                continue;
            }
            let Some(table) = &rule.table else {
                // Rules for VRFs, and rules that only continue, decide nothing.
                if matches!(rule.action.as_str(), "" | "nop") {
                    continue;
                }
                return Best::Rule(rule.action.clone());
            };
            let found = self.table(routes, family, table).find(lookup.destination);
            let Some((route, device)) = found else {
                continue;
            };
            let short = |length| u32::from(route.destination.prefix) <= length;
            match route.kind.as_str() {
                "throw" => {}
                // Only a route that leads somewhere may be suppressed: fib_rules_lookup checks for errors first.
                "unicast" | "" | "local" | "broadcast" | "multicast" | "anycast"
                    if rule.suppress_prefix.is_some_and(short) => {}
                _ => return Best::Route(route, device),
            }
        }
        Best::None
    }

    /// Returns the type of `addr`, as nft names it: `local`, `broadcast`, `multicast`, `anycast` or `unicast`. With a link, the addresses
    /// of others are `unicast`, as for `inet_dev_addr_type`.
    pub(crate) fn address_type(
        &self,
        addr: Asked<'_, IpAddr>,
        link: Option<&Link>,
    ) -> Result<&'a str, String> {
        if addr.is_multicast() {
            return Ok("multicast");
        }
        let shown = addr.shown();
        let own = self.own(addr);
        let own =
            own.map_err(|gap| format!("whether {shown} is an address of this host: {gap}"))?;
        Ok(match (own, link) {
            (Some(_), Some(Link::Unknown)) => {
                return Err(format!(
                    "whether {shown} is an address of the packet's link"
                ));
            }
            (Some((_, device)), Some(Link::Named(name))) if *device != **name => "unicast",
            (Some((kind, _)), _) => kind,
            (None, _) if shown.is_ipv4() && (addr.is_broadcast() || addr.is_unspecified()) => {
                "broadcast"
            }
            (None, _) => "unicast",
        })
    }

    /// Returns the type and the link (empty if unknown) that the local table has for `addr`; `None` if it has none.
    fn own(&self, addr: Asked<'_, IpAddr>) -> Result<Option<(&'a str, &'a str)>, String> {
        if let Ok(routes) = self.node.routes() {
            let family = Family::of(addr.shown());
            let found = self.table(&routes.all, family, "local").find(addr);
            if found.is_some() || routes.all.iter().any(|route| route.table == "local") {
                let device = |route: &'a Route| route.device.as_deref().unwrap_or_default();
                return Ok(found.map(|(route, _)| (route.kind.as_str(), device(route))));
            }
        }
        if addr.is_loopback() {
            return Ok(Some(("local", "lo")));
        }
        let addresses = match self.node.addresses() {
            Ok(addresses) => addresses,
            Err(gap) => {
                let mut shown = self.node.connected().into_iter().flatten();
                let own = shown.find(|connection| addr.is_address(connection.own));
                return match own {
                    Some(own) => Ok(Some(("local", own.link.as_str()))),
                    None if OUTSIDE.iter().any(|address| addr.is_address(*address)) => Ok(None),
                    None => Err(gap.to_string()),
                };
            }
        };
        let mut all = addresses.all.iter();
        let found = all.find(|a| addr.is_address(a.addr.addr));
        Ok(found.map(|a| ("local", a.link.as_str())))
    }

    /// Returns the address masquerading gives on `device` towards `gateway`, as `inet_select_addr` does.
    pub(crate) fn masquerade(
        &self,
        family: Family,
        device: Option<&str>,
        gateway: Option<IpAddr>,
    ) -> Option<IpAddr> {
        let addresses = &self.node.addresses().ok()?.all;
        let usable = || {
            addresses.iter().filter(move |a| {
                a.addr.family() == family
                    && a.scope == "global"
                    && !a
                        .flags
                        .iter()
                        .any(|f| f == "secondary" || f == "deprecated")
            })
        };
        let on = |name: &str| {
            let mut here = usable().filter(|a| a.link == name);
            let near = gateway.and_then(|g| {
                usable()
                    .filter(|a| a.link == name)
                    .find(|a| a.addr.contains(g))
            });
            near.or_else(|| here.next()).map(|a| a.addr.addr)
        };
        device
            .and_then(on)
            .or_else(|| usable().map(|a| a.addr.addr).next())
    }

    /// Decides by the node's addresses alone: the answer is recorded for other destinations, too.
    fn without_routes(&self, destination: Asked<'_, IpAddr>, gap: &Gap) -> Decision {
        match self.own(destination) {
            Ok(Some(("local", _))) => {
                return Decision::Local {
                    source: Some(destination.exact()),
                };
            }
            Err(reason) => return Decision::Unknown(reason),
            Ok(_) => {}
        }
        let addresses = self.node.addresses();
        let mut networks = addresses.iter().flat_map(|addresses| &addresses.all);
        let connected = networks.find(|a| !a.addr.is_host() && destination.is_in(a.addr));
        match connected {
            Some(address) => Decision::Out {
                device: Some(address.link.as_str().into()),
                gateway: None,
                source: Some(address.addr.addr),
            },
            None => Decision::Unknown(gap.to_string()),
        }
    }
}

/// Returns why it is not certain that `outcome` ends for want of a route, if it does.
pub(crate) fn only_for_vrf(node: &NodeSnapshot<'_>, outcome: &Outcome) -> Option<String> {
    let last = outcome.hops.last()?;
    let is_routed = matches!(last.effect, Effect::Nowhere { .. });
    only_in_vrf(node, outcome.destination.0).filter(|_| is_routed)
}

/// Returns why the lack of a route to `to` is not certain, if the table of a VRF has one: packets that enter by the links of the VRF, and
/// packets of programs that are bound to it, are looked up there.
pub(crate) fn only_in_vrf(node: &NodeSnapshot<'_>, to: IpAddr) -> Option<String> {
    let links = node.links().ok()?;
    let mut routes = node.routes().ok()?.all.iter();
    let (route, vrf) = routes.find_map(|route| {
        let own_tables = ["main", "local", "default"];
        let leads = !own_tables.contains(&&*route.table)
            && route.kind != "broadcast"
            && route.destination.contains(to);
        let vrf = links.vrf_of(route.device.as_deref().filter(|_| leads)?)?;
        Some((route, vrf))
    })?;
    Some(format!(
        "only VRF {} has a route to {to}, in its table {}: kpx does not follow which packets are looked up there",
        vrf.name, route.table
    ))
}

/// Returns the gateway and the link of a route, of several the first.
fn next_hop(route: &Route) -> (Option<IpAddr>, Option<&str>) {
    match route.nexthops.first() {
        Some((gateway, device)) => (*gateway, device.as_deref()),
        None => (route.gateway, route.device.as_deref()),
    }
}

/// Returns the number of the table `name`, if it is one of the kernel's own.
fn number(name: &str) -> &str {
    match name {
        "local" => "255",
        "main" | "" => "254",
        "default" => "253",
        other => other,
    }
}

/// Returns whether `route` is used without a routing policy rule of the administrator's: the kernel has rules for its own three tables.
pub(crate) fn is_of_own_tables(route: &Route) -> bool {
    ["local", "main", "default"]
        .map(number)
        .contains(&number(&route.table))
}

fn applies(rule: &PolicyRule, lookup: Lookup<'_>) -> bool {
    let none = match Family::of(lookup.destination.shown()) {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let source = lookup.source.unwrap_or(Asked::new(none, None));
    let holds = rule.from.is_none_or(|p: Cidr| source.is_in(p))
        && rule.to.is_none_or(|p| lookup.destination.is_in(p))
        && rule.mark.is_none_or(|wanted| match lookup.mark {
            Some(mark) => mark.matches(wanted),
            None => wanted.matches(0),
        })
        && rule
            .iif
            .as_deref()
            .is_none_or(|i| lookup.input.unwrap_or("lo") == i)
        && rule.oif.is_none()
        && carries(rule, lookup.transport)
        && rule.users.is_none_or(|(first, _)| first == 0)
        && rule.tos == 0;
    holds != rule.not
}

/// Returns whether a packet with this protocol and these ports is one that `rule` is for.
fn carries(rule: &PolicyRule, transport: Option<Transport<'_>>) -> bool {
    if rule.proto.is_none() && rule.ports.is_none() && rule.source_ports.is_none() {
        return true;
    }
    transport.is_some_and(|transport| {
        rule.proto
            .is_none_or(|proto| transport.proto.is(proto.number()))
            && rule
                .ports
                .is_none_or(|(first, last)| transport.port.between(first, last))
            && rule
                .source_ports
                .is_none_or(|(first, last)| match transport.source_port {
                    Some(port) => (first..=last).contains(&port),
                    None => first <= FIRST_EPHEMERAL && LAST_EPHEMERAL <= last,
                })
    })
}

/// The highest port that Linux gives to a client that asks for none.
const LAST_EPHEMERAL: u16 = 60_999;

/// The rules every kernel starts with.
fn default_rules(family: Family) -> Vec<PolicyRule> {
    [(0, "local"), (32766, "main"), (32767, "default")]
        .map(|(priority, table)| PolicyRule {
            priority,
            table: Some(table.to_owned()),
            ..PolicyRule::main(family)
        })
        .to_vec()
}

/// Returns whether packets end at `route`.
pub(crate) fn is_rejecting(route: &Route) -> bool {
    matches!(
        route.kind.as_str(),
        "blackhole" | "unreachable" | "prohibit"
    )
}
