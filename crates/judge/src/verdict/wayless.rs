//! Why a node has no way to an address, beyond a route that is missing: IPv6 is off at the link, no rule looks up table main, or the
//! kernel ignores the router advertisements that bring the default route.

use std::net::IpAddr;

use super::judge::{Judge, Question};
use super::peers::addresses;
use super::{Fault, Obstacle, Wayless, disable_ipv6_of};
use crate::trace::Outcome;
use crate::trace::packet::Link;
use kpx_node::cluster::Node;
use kpx_node::net::Family;
use kpx_node::node::links::Address;
use kpx_node::node::routes::{PolicyRule, Route};
use kpx_node::node::sysctl::Sysctl;
use kpx_node::owner::Endpoint;

impl Judge<'_> {
    /// Returns the fault of a packet to the pod of `endpoint`, on another node, that the provider's network has to lead: its route
    /// controller made no route to that node's pods, or none to those of this one, to which the replies go.
    pub(super) fn without_cloud_route(
        &self,
        endpoint: &Endpoint,
        outcome: &Outcome,
    ) -> Option<Fault> {
        let address = endpoint.addr.ip();
        let link = outcome.leaves_by().filter(|link| *link != "lo")?;
        let there = self.places.node_of_pod(address)?;
        let peers = self.peers();
        let by_node = |gateway| peers.with_address(gateway).is_some();
        let is_led = self.is_tunnel(link) || outcome.gateway.is_some_and(by_node);
        if endpoint.local == Some(true) || by_node(address) || is_led {
            return None;
        }
        let is_own = !outcome.masquerade && self.places.is_pod_here(outcome.source) == Some(true);
        let here = self.places.object().filter(|_| is_own);
        let lacking = |node: &&Node| node.lacks_route();
        let there = Some(there).filter(lacking).map(|node| (node, false));
        let (node, own) = there.or_else(|| Some((here.filter(lacking)?, true)))?;
        Some(Fault::Obstacle(Box::new(Obstacle::NoCloudRoute {
            node: node.metadata.name.clone(),
            own,
            link: link.to_owned(),
        })))
    }

    /// Returns the fault of packets to `to`, to which no route leads, if the reason is certain; `refused` if their sender gets an error.
    pub(super) fn wayless(&self, to: IpAddr, refused: bool) -> Option<Fault> {
        let by = if to.is_ipv6() && self.lacks_ipv6() {
            Wayless::NoIpv6
        } else if let Some(link) = self.without_ipv6(to) {
            Wayless::Ipv6Off(link)
        } else if self.lacks_main(to)? {
            Wayless::NoMain(Family::of(to))
        } else if self.places.is_pod_here(to) == Some(true) {
            let gone = self.home_down(to).or_else(|| self.without_gateway(to))?;
            return Some(Fault::Obstacle(Box::new(gone)));
        } else if let Some(link) = self.down_of_node() {
            Wayless::Down(link)
        } else if let Some(gone) = self.homeless(Family::of(to), refused) {
            return Some(Fault::Obstacle(Box::new(gone)));
        } else {
            Wayless::NoAdvertisements(self.deaf_to_routers(to)?.to_owned())
        };
        Some(Fault::Obstacle(Box::new(Obstacle::Wayless { by, refused })))
    }

    /// Returns whether the kernel certainly has no IPv6.
    fn lacks_ipv6(&self) -> bool {
        let settings = self.node.sysctl().ok();
        let has_one = |family: &str| {
            let mut all = settings.into_iter().flat_map(Sysctl::iter);
            all.any(|(key, _)| key.starts_with(&format!("net.{family}.conf.")))
        };
        self.node.has_no_ipv6() && has_one("ipv4") && !has_one("ipv6")
    }

    /// Returns the link with an address of this Node that is down.
    fn down_of_node(&self) -> Option<String> {
        let links = &self.node.links().ok()?.all;
        let own = self.places.links_of_node();
        let mut own = links.iter().filter(|link| own.contains(link.name.as_str()));
        let down = own.find(|link| link.flag("UP") == Some(false))?;
        Some(down.name.clone())
    }

    /// Returns that the machine certainly has no address of its Node in `family`.
    fn homeless(&self, family: Family, refused: bool) -> Option<Obstacle> {
        let own = self.places.object()?;
        let gone = self.home_gone_in(own, family)?;
        let is_gone = gone.failed.is_none() && gone.is_certain;
        is_gone.then(|| Obstacle::HomeGone {
            address: gone.address,
            node: own.metadata.name.clone(),
            refused,
        })
    }

    /// Returns the fault of a packet that a route keeps at the node (or sends to a whole network) although the node does not have its
    /// destination: without a transparent socket, nothing takes it, and the kernel sends no answer from an address that it does not have.
    pub(super) fn kept_by_route(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let to = outcome.destination.0;
        let is_endpoint = to != question.flow.destination;
        let is_kept = matches!(outcome.output, Link::None)
            || outcome.leaves_by() == Some("lo") && outcome.gateway.is_none();
        let has_it = |address: &Address| {
            address.addr.addr == to || !is_endpoint && address.broadcast == Some(to)
        };
        let here = &self.node.addresses().ok()?.all;
        if !is_kept || outcome.bridged || to.is_loopback() || here.iter().any(has_it) {
            return None;
        }
        let routes = &self.node.routes().ok()?.all;
        let is_it = |route: &&Route| {
            let keeps = match route.kind.as_str() {
                "local" => !matches!(route.table.as_str(), "local" | "255"),
                kind => matches!(kind, "broadcast" | "multicast" | "anycast"),
            };
            keeps && route.destination.contains(to)
        };
        let route = routes.iter().find(is_it)?;
        Some(Fault::Obstacle(Box::new(Obstacle::KeptByRoute {
            route: Box::new(route.clone()),
            // The rules to the kernel's own tables stay.
            rule: self
                .rule_to(route)
                .filter(|_| !matches!(route.table.as_str(), "local" | "255" | "main" | "254"))
                .map(|rule| Box::new(rule.clone())),
        })))
    }

    /// Returns the routing policy rule that leads to the table of `route`, unless it is a table of the kernel's own.
    pub(super) fn rule_to(&self, route: &Route) -> Option<&PolicyRule> {
        let is_default = matches!(route.table.as_str(), "main" | "254" | "default" | "253");
        let mut rules = self.node.rules().ok()?.all.iter();
        let leads_there = |rule: &&PolicyRule| {
            rule.family == route.family && rule.table.as_ref() == Some(&route.table)
        };
        rules.find(leads_there).filter(|_| !is_default)
    }

    /// Returns the link to `to` at which IPv6 is off: the one with the node's IPv4 address, or for pods of this node the one with
    /// theirs.
    pub(super) fn without_ipv6(&self, to: IpAddr) -> Option<String> {
        if to.is_ipv4() {
            return None;
        }
        let all = &self.node.addresses().ok()?.all;
        let sysctl = self.node.sysctl().ok()?;
        let own = self.places.object().map(addresses).unwrap_or_default();
        let is_here = self.places.is_pod_here(to) == Some(true);
        let leads = |address: &&Address| {
            let at = address.addr.addr;
            at.is_ipv4()
                && if is_here {
                    self.places.is_pod_here(at) == Some(true)
                } else {
                    own.contains(&at)
                }
        };
        let is_off = |link: &&str| {
            let has_address =
                |address: &Address| address.link == **link && address.addr.addr.is_ipv6();
            sysctl.get(&disable_ipv6_of(link)) == Some("1") && !all.iter().any(has_address)
        };
        let mut links = all
            .iter()
            .filter(leads)
            .map(|address| address.link.as_str());
        let link = links.find(is_off)?;
        // One setting of all links turns it off at each.
        let has_none = all
            .iter()
            .all(|assigned| assigned.addr.addr.is_ipv4() || assigned.addr.addr.is_loopback());
        let is_of_all = has_none && sysctl.get(&disable_ipv6_of("all")) == Some("1");
        Some(if is_of_all { "all" } else { link }.to_owned())
    }

    /// Returns whether table main has a route to `to` and no rule looks it up; `None` if another route or rule may end the packets.
    fn lacks_main(&self, to: IpAddr) -> Option<bool> {
        let family = Family::of(to);
        let routes = &self.node.routes().ok()?.all;
        let leads = |route: &&Route| route.family == family && route.destination.contains(to);
        let ends = |route: &Route| {
            matches!(
                route.kind.as_str(),
                "blackhole" | "unreachable" | "prohibit" | "throw"
            )
        };
        if routes.iter().filter(leads).any(ends) {
            return None;
        }
        let Ok(rules) = self.node.rules() else {
            return Some(false);
        };
        let ours = rules.all.iter().filter(|rule| rule.family == family);
        let ours: Vec<&PolicyRule> = ours.collect();
        if ours.is_empty() {
            return Some(false);
        }
        if ours.iter().any(|rule| rule.table.is_none()) {
            return None;
        }
        let has_route = routes.iter().filter(leads).any(|route| {
            route.is_main()
                && matches!(route.kind.as_str(), "unicast" | "")
                && !route.flags.iter().any(|flag| flag == "dead")
        });
        Some(has_route && !ours.iter().any(|rule| looks_up_main(rule)))
    }

    /// Returns the link to other nodes whose router advertisements the kernel ignores because it forwards, if `to` needs a default
    /// route and none exists.
    fn deaf_to_routers(&self, to: IpAddr) -> Option<&str> {
        if to.is_ipv4() || self.places.is_pod(to) {
            return None;
        }
        let routes = &self.node.routes().ok()?.all;
        let is_default = |route: &Route| {
            route.family == Family::V6
                && route.destination.prefix == 0
                && matches!(route.kind.as_str(), "unicast" | "")
        };
        if routes.iter().any(is_default) {
            return None;
        }
        let sysctl = self.node.sysctl().ok()?;
        let addresses = &self.node.addresses().ok()?.all;
        let is_on = |link: &str, name: &str| {
            let key = format!("net.ipv6.conf.{}.{name}", link.replace('.', "/"));
            sysctl.get(&key) == Some("1")
        };
        let has_global = |link: &str| {
            let mut own = addresses.iter().filter(|address| address.link == link);
            own.any(|address| address.addr.addr.is_ipv6() && address.scope == "global")
        };
        let mut links = self.places.links_of_node().iter().copied();
        links.find(|link| has_global(link) && is_on(link, "accept_ra") && is_on(link, "forwarding"))
    }
}

/// Returns whether every packet that gets to `rule` is looked up in table main.
fn looks_up_main(rule: &PolicyRule) -> bool {
    let every = PolicyRule {
        priority: rule.priority,
        ..PolicyRule::main(rule.family)
    };
    *rule == every
        || *rule
            == PolicyRule {
                table: Some("254".to_owned()),
                ..every
            }
}
