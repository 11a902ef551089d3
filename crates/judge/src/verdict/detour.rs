//! Routes and routing policy rules that lead packets to a next hop that does not answer, although another way leads to their
//! destination.

use std::net::IpAddr;

use super::judge::Judge;
use super::peers::way_by;
use super::{Fault, Obstacle};
use crate::trace::region::Asked;
use crate::trace::route::{Lookup, Router};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::routes::{PolicyRule, Route};

/// A link and a gateway.
type Way<'w> = (&'w str, Option<IpAddr>);

impl Judge<'_> {
    /// Returns the fault of packets for `to` that leave by `way`, whose next hop does not answer, if that is the fault of a routing
    /// policy rule, or of a route that hides the one to the network of another Node.
    pub(super) fn detour(&self, to: IpAddr, way: Way<'_>) -> Option<Fault> {
        let (route, rule) = self.leading(to, way)?;
        let rule = rule.filter(|rule| leads_to_silence(self.node, rule));
        let without = match rule {
            Some(rule) => Router::without(self.node, None, Some(rule)),
            None => Router::without(self.node, Some(route), None),
        };
        let other = without.found(Lookup::to(Asked::new(to, None)));
        let other = other.ok().flatten()?;
        let usual = (other.device.as_deref()?, other.gateway);
        let (link, _) = usual;
        let is_direct = || {
            other.gateway.is_none()
                && other.destination.prefix > 0
                && self.is_next_to(to)
                && !self.is_tunnel(link)
        };
        let leads = usual != way
            && !is_silent(self.node, to, usual)
            && (self.rule_to(route).is_some() || is_direct());
        leads.then(|| {
            Fault::Obstacle(Box::new(Obstacle::Detour {
                to,
                way: way_by(way.0, way.1),
                usual: way_by(link, other.gateway),
                route: Box::new(route.clone()),
                rule: rule.map(|rule| Box::new(rule.clone())),
            }))
        })
    }

    /// Returns the route by which packets for `to` leave by `way`, and the routing policy rule that leads to its table.
    pub(super) fn leading(
        &self,
        to: IpAddr,
        way: Way<'_>,
    ) -> Option<(&Route, Option<&PolicyRule>)> {
        let is_it =
            |route: &Route| (route.device.as_deref(), route.gateway) == (Some(way.0), way.1);
        let plain = self.router.found(Lookup::to(Asked::new(to, None)));
        if let Some(route) = plain.ok().flatten().filter(|route| is_it(route)) {
            return Some((route, self.rule_to(route)));
        }
        let mut routes = self.node.routes().ok()?.all.iter();
        routes.find_map(|route| {
            let is_led = route.destination.contains(to) && is_it(route);
            let rule = self.rule_to(route).filter(|_| is_led)?;
            Some((route, Some(rule)))
        })
    }

    /// Returns the obstacle to packets for `to` that is `rule`, if it leads them to next hops that do not answer.
    pub fn detour_by(&self, rule: &PolicyRule, to: IpAddr) -> Option<Box<Obstacle>> {
        let mut routes = self.node.routes().ok()?.all.iter();
        let route = routes.find(|route| {
            Some(&route.table) == rule.table.as_ref() && route.destination.contains(to)
        })?;
        let way = (route.device.as_deref()?, route.gateway);
        match self.detour(to, way)? {
            Fault::Obstacle(what) if matches!(&*what, Obstacle::Detour { rule: Some(by), .. } if **by == *rule) => {
                Some(what)
            }
            _ => None,
        }
    }
}

/// Returns whether nothing answers at the next hop of `way` to `to`.
fn is_silent(node: &NodeSnapshot<'_>, to: IpAddr, (link, gateway): Way<'_>) -> bool {
    let table = node.neighbour_table().ok();
    let entry = table.and_then(|all| all.on(gateway.unwrap_or(to), link));
    entry.is_some_and(|entry| entry.failed)
}

/// Returns whether no route in the table of `rule` has a next hop that answers.
pub(super) fn leads_to_silence(node: &NodeSnapshot<'_>, rule: &PolicyRule) -> bool {
    let routes = node.routes().map_or(&[][..], |all| all.all.as_slice());
    let mut own = routes
        .iter()
        .filter(|route| route.family == rule.family && Some(&route.table) == rule.table.as_ref())
        .peekable();
    let is_dead = |route: &Route| {
        let way = route.device.as_deref().zip(route.gateway);
        way.is_some_and(|(link, by)| is_silent(node, by, (link, Some(by))))
    };
    own.peek().is_some() && own.all(is_dead)
}
