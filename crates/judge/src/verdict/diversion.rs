//! Diversions: routes and routing policy rules that may end packets or send them elsewhere.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::detour::leads_to_silence;
use super::judge::Judge;
use super::place::ranges_of_all_pods;
use crate::trace::region::{Asked, AskedMark};
use crate::trace::route::{Decision, Lookup, Router, Transport, is_rejecting};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::{PolicyRule, Route};

/// Returns the widest known range of pods with `addr`: the range of all nodes, if known.
pub(super) fn pods_with(node: &NodeSnapshot<'_>, addr: IpAddr) -> Option<Cidr> {
    let known = ranges_of_all_pods(node).into_iter();
    known
        .filter(|range| range.contains(addr))
        .min_by_key(|range| range.prefix)
}

/// Returns whether `rule` is none of those with which every machine begins.
pub(super) fn is_special(rule: &PolicyRule) -> bool {
    let is_default = matches!(
        rule.table.as_deref(),
        Some("local" | "main" | "default" | "255" | "254" | "253")
    );
    !is_default || !rule.action.is_empty()
}

/// A route or routing policy rule that may end packets or send them elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Diversion {
    /// The route or rule.
    pub by: Diverter,
    /// The same in words.
    pub words: String,
    /// The destination of a packet that it may keep from its endpoint.
    pub end: SocketAddr,
}

/// A route or routing policy rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Diverter {
    /// A route.
    Route(Box<Route>),
    /// A routing policy rule.
    Rule(Box<PolicyRule>),
}

impl Diverter {
    /// Returns the command that removes it.
    pub fn removal(&self) -> String {
        match self {
            Self::Route(route) => route.removal(),
            Self::Rule(rule) => rule.removal(),
        }
    }

    /// Returns the routing daemon that makes it again when it is deleted.
    pub fn daemon(&self) -> Option<&str> {
        match self {
            Self::Route(route) => route.daemon(),
            Self::Rule(_) => None,
        }
    }
}

impl Diversion {
    /// Returns the rule that leads packets to pods past it, if it leads to a table and the end is a pod. A rule to next hops that do not
    /// answer is better removed.
    pub fn bypass(&self, node: &NodeSnapshot<'_>) -> Option<PolicyRule> {
        match &self.by {
            Diverter::Route(_) => None,
            Diverter::Rule(rule) if leads_to_silence(node, rule) => None,
            Diverter::Rule(rule) => rule.bypass(pods_with(node, self.end.ip())?),
        }
    }

    /// Returns the diversions of `node` that packets to one of `ends` may meet.
    pub fn all_of(node: &NodeSnapshot<'_>, ends: &[SocketAddr]) -> Vec<Self> {
        let end_in = |net: Cidr| ends.iter().find(|at| net.contains(at.ip())).copied();
        let mut found = Vec::new();
        for rule in node.rules().into_iter().flat_map(|all| &all.all) {
            let of_family = ends.iter().find(|at| Family::of(at.ip()) == rule.family);
            let end = rule.to.map_or(of_family.copied(), end_in);
            if let Some(end) = end
                && is_special(rule)
            {
                found.push(Self {
                    by: Diverter::Rule(Box::new(rule.clone())),
                    words: policy_rule(node, rule),
                    end,
                });
            }
        }
        for route in node.routes().into_iter().flat_map(|all| &all.all) {
            if is_rejecting(route)
                && let Some(end) = end_in(route.destination)
            {
                let words = format!("the {} route to {}", route.kind, route.destination);
                let words = match route.table.as_str() {
                    "main" => words,
                    table => format!("{words} in table {table}"),
                };
                found.push(Self {
                    by: Diverter::Route(Box::new(route.clone())),
                    words: words + &made_by(route),
                    end,
                });
            }
        }
        found
    }
}

impl Judge<'_> {
    /// Returns the route by which packets to `end` leave, as the object that diverts them.
    pub fn diverting_route(&self, end: SocketAddr) -> Option<Diversion> {
        let found = self.router.found(Lookup::to(Asked::new(end.ip(), None)));
        let route = found.ok()?.filter(|route| route.destination.prefix > 0)?;
        Some(Diversion {
            words: format!("the route {route}{}", made_by(route)),
            by: Diverter::Route(Box::new(route.clone())),
            end,
        })
    }
}

/// The routes of a node as they are, and without each of the diversions.
#[derive(Debug)]
pub struct Ways<'n> {
    node: &'n NodeSnapshot<'n>,
    router: Router<'n>,
    /// The routes without each route or rule, computed on demand.
    without: RefCell<Vec<(Diverter, Rc<Router<'n>>)>>,
    /// The protocol and ports of the packets; `None` for those of TCP to a port.
    transport: Option<Transport<'n>>,
}

impl<'n> Ways<'n> {
    /// Returns the routes of `node`.
    pub fn of(node: &'n NodeSnapshot<'n>) -> Self {
        Self {
            node,
            router: Router::new(node),
            without: RefCell::default(),
            transport: None,
        }
    }

    /// Returns the same for packets of this protocol with these ports.
    pub(super) fn carrying(self, transport: Option<Transport<'n>>) -> Self {
        Self { transport, ..self }
    }

    /// Returns the one route or rule that keeps packets from `source` from leaving the node to `to`: without it they leave,
    /// directly by a link if `directly`. It may concern only packets with a mark, or from a link.
    pub fn diverted(&self, to: SocketAddr, source: IpAddr, directly: bool) -> Option<Diversion> {
        let leaves = |router: &Router<'n>, mark: Option<u32>, input: Option<&str>| {
            let lookup = Lookup {
                source: Some(Asked::new(source, None)),
                mark: mark.map(AskedMark::of),
                input,
                transport: self.transport.or_else(|| {
                    (to.port() != 0).then(|| Transport::of(Proto::Tcp, None, to.port()))
                }),
                ..Lookup::to(Asked::new(to.ip(), None))
            };
            match router.decide(lookup) {
                Decision::Out {
                    device, gateway, ..
                } => {
                    let devices: Vec<&str> = device.as_deref().into_iter().collect();
                    let pod = Asked::new(to.ip(), None);
                    !directly || gateway.is_none() && router.home(pod, &devices).is_none()
                }
                Decision::Local { .. } | Decision::Nowhere(_) | Decision::Unknown(_) => false,
            }
        };
        let plainly = !leaves(&self.router, None, None);
        // Else the packets have a mark, or come in by a link, for which there is a rule.
        Diversion::all_of(self.node, &[to])
            .into_iter()
            .find(|diversion| {
                let (mark, input) = match &diversion.by {
                    Diverter::Rule(rule) if !plainly => {
                        (rule.mark.map(|mark| mark.value), rule.iif.as_deref())
                    }
                    _ => (None, None),
                };
                let is_met = plainly || !leaves(&self.router, mark, input);
                is_met && leaves(&self.without(&diversion.by), mark, input)
            })
    }

    fn without(&self, by: &Diverter) -> Rc<Router<'n>> {
        let mut known = self.without.borrow_mut();
        if let Some((_, router)) = known.iter().find(|(of, _)| of == by) {
            return Rc::clone(router);
        }
        let router = Rc::new(match by {
            Diverter::Route(route) => Router::without(self.node, Some(route), None),
            Diverter::Rule(rule) => Router::without(self.node, None, Some(rule)),
        });
        known.push((by.clone(), Rc::clone(&router)));
        router
    }
}

/// Returns a routing policy rule in words, with the effect of its table on all other packets.
fn policy_rule(node: &NodeSnapshot<'_>, rule: &PolicyRule) -> String {
    let words = format!("routing policy rule {} ({rule})", rule.priority);
    let Some(table) = rule.table.as_ref().filter(|_| rule.action.is_empty()) else {
        return words;
    };
    let routes = node.routes().map_or(&[][..], |all| all.all.as_slice());
    let mut own = routes
        .iter()
        .filter(|route| route.family == rule.family && route.table == *table);
    match (own.next(), own.next()) {
        (Some(only), None) => format!("{words}, whose table {table} has only \"{only}\","),
        _ => words,
    }
}

/// Returns whether BIRD has made routes of `family`: at least that of this node's own block.
pub(super) fn has_routes_of_bird(node: &NodeSnapshot<'_>, family: Family) -> bool {
    let mut routes = node.routes().into_iter().flat_map(|all| &all.all);
    routes.any(|route| route.family == family && route.daemon() == Some("bird"))
}

/// Returns the program that made a route, if its protocol shows it: ` (made by bird)`.
fn made_by(route: &Route) -> String {
    match route.daemon() {
        None => String::new(),
        Some(who) => format!(" (made by {who})"),
    }
}
