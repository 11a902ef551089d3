//! Routes by a third node, which sees only one direction of a connection, so that its kube-proxy drops later packets as invalid.

use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question};
use super::neighbours::back_to;
use super::{Fault, Missing, Obstacle};
use crate::trace::Outcome;
use crate::trace::region::Asked;
use crate::trace::route::Lookup;
use kpx_node::backend::Mode;
use kpx_node::desired::DesiredState;
use kpx_node::net::{Family, Proto};
use kpx_node::node::links::Address;
use kpx_node::node::routes::Route;

impl Judge<'_> {
    /// Returns the fault of a packet, or of its reply, whose next hop is a node that sees nothing of the other direction.
    pub(super) fn by_third_node(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        // Conntrack knows no invalid datagrams.
        if question.flow.proto == Proto::Udp {
            return None;
        }
        let to = outcome.destination.0;
        let there = || {
            if self.ends_here(outcome) || !self.is_next_to(to) {
                return None;
            }
            let route = self.router.found(Lookup::to(Asked::new(to, None)));
            let route = route.ok().flatten()?;
            Some((route, self.third_node(route, to)?, false))
        };
        let (route, third, reply) =
            there().or_else(|| self.back_by_third_node(question, outcome))?;
        Some(self.third(route, third, reply, None))
    }

    /// Returns the fault of the reply to a pod's packet that came from the Node `from`, and leaves by another one.
    pub(super) fn back_by_other_node(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
        from: &str,
    ) -> Option<Fault> {
        let client = back_to(question, outcome).filter(|client| self.places.is_pod(*client))?;
        if question.flow.proto == Proto::Udp {
            return None;
        }
        let route = self.route_back(outcome, client)?;
        let third = self.third_node(route, client)?;
        let home = self.peers().address(from, Family::of(client));
        (third.0 != from).then(|| self.third(route, third, true, home))
    }

    /// Returns the fault of packets, or replies, that leave by `route` for a node which does not see the other direction; they should
    /// leave by `home`.
    fn third(
        &self,
        route: &Route,
        (node, by): (&str, IpAddr),
        reply: bool,
        home: Option<IpAddr>,
    ) -> Fault {
        if self.drops_invalid() {
            return Fault::Obstacle(Box::new(Obstacle::ThirdNode {
                node: node.to_owned(),
                by,
                rule: self.rule_to(route).map(|rule| Box::new(rule.clone())),
                route: Box::new(route.clone()),
                reply,
                home,
            }));
        }
        let (what, other) = if reply {
            ("replies", "requests")
        } else {
            ("packets", "replies")
        };
        Fault::Unknown(Missing::Unmodelled(format!(
            "{what} leave by node {node} ({by}), which does not see the {other}: whether it drops them is unknown (route {route})"
        )))
    }

    /// Returns the route of the reply to `client`: translated back, it still has the endpoint's address when it is routed.
    fn route_back(&self, outcome: &Outcome, client: IpAddr) -> Option<&Route> {
        let lookup = Lookup {
            source: Some(Asked::new(outcome.destination.0, None)),
            input: outcome.leaves_by().filter(|_| !self.ends_here(outcome)),
            ..Lookup::to(Asked::new(client, None))
        };
        self.router.found(lookup).ok().flatten()
    }

    /// Returns the route by which the reply leaves through a third node, and the Node that is its next hop; the packets
    /// of the client come another way.
    fn back_by_third_node(
        &self,
        question: Question<'_>,
        outcome: &Outcome,
    ) -> Option<(&Route, (&str, IpAddr), bool)> {
        let client = back_to(question, outcome)?;
        // Whether the node of a pod sends by the same way is not known.
        if self.places.is_pod(client) {
            return None;
        }
        let route = self.route_back(outcome, client)?;
        let third = self.third_node(route, client)?;
        let is_asymmetric = if self.peers().with_address(client).is_some() {
            self.is_next_to(client)
        } else {
            // Packets from outside come the way that the node itself takes there.
            let usual = self.router.found(Lookup::to(Asked::new(client, None)));
            usual
                .ok()?
                .is_none_or(|usual| usual.gateway != Some(third.1))
        };
        is_asymmetric.then_some((route, third, true))
    }

    /// Returns the Node, and its address, to which `route` leads, if it is neither this node nor the Node of `end`.
    fn third_node(&self, route: &Route, end: IpAddr) -> Option<(&str, IpAddr)> {
        let by = route.gateway?;
        let device = route.device.as_deref()?;
        let name = self.peers().with_address(by)?;
        let is_its = self.peers().with_address(end) == Some(name);
        let is_third = !is_its && !self.is_tunnel(device) && self.places.own(end).is_none();
        is_third.then_some((name, by))
    }

    /// Returns whether `node`, the address of a Node, is in a network of this one, so that both send each other packets directly.
    pub(super) fn is_next_to(&self, node: IpAddr) -> bool {
        if self.peers().with_address(node).is_none() {
            return false;
        }
        let addresses = self.node.addresses().map_or(&[][..], |all| &all.all);
        let has_it = |address: &Address| !address.addr.is_host() && address.addr.contains(node);
        let mut its = addresses.iter().filter(|address| has_it(address));
        its.any(|address| !self.is_tunnel(&address.link))
    }

    /// Returns whether kube-proxy of a node with the same configuration drops forwarded packets that conntrack calls invalid.
    fn drops_invalid(&self) -> bool {
        let is_iptables = self.node.configured_mode().ok() == Some(Mode::Iptables);
        let state = self.node.desired(Mode::Iptables);
        is_iptables && state.is_ok_and(DesiredState::drops_invalid)
    }

    /// Returns the doubt about a reply to a pod of another Node that does not leave by that Node's address.
    pub(super) fn stray_reply(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let client = back_to(question, outcome)?;
        if !self.places.is_pod(client) {
            return None;
        }
        let (name, _) = self.peers().with_pod(client)?;
        let route = self.router.found(Lookup::to(Asked::new(client, None)));
        let route = route.ok().flatten()?;
        let (device, gateway) = (route.device.as_deref()?, route.gateway);
        self.stray_to(SocketAddr::new(client, 0), name, device, gateway)
    }
}
