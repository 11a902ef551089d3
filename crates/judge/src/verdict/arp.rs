//! ARP on the links of the node, and its counterpart of IPv6: how the node and its neighbours find each other.

use std::net::IpAddr;
use std::rc::Rc;

use super::arp_rules::{Message, dropping};
use super::judge::{Judge, Question};
use super::obstacle::Arp;
use super::replies::{ends, is_stopped};
use super::{By, Fault, Missing, Obstacle, is_decided, is_likely, sysctl_of};
use crate::trace::region::Asked;
use crate::trace::route::{Decision, Lookup};
use crate::trace::why::{decisive, maker};
use crate::trace::{Carried, Effect, Entry, Flow, Hop, Outcome, Rule};
use kpx_node::evidence::Gap;
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::chain_owner::Maker;

/// The types of the messages of `ICMPv6` by which a node asks for a neighbour's address, and gets it.
const SOLICITATION: u16 = 135;
const ADVERTISEMENT: u16 = 136;

/// The value of `arp_ignore` with which no request is answered.
pub(super) const NEVER: &str = "8";

impl Judge<'_> {
    /// Returns the fault of a packet that passes a link on which the node and its neighbours do not find each other.
    pub(super) fn arp(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        if outcome.destination.0.is_ipv6() {
            return self.on_the_way(question, outcome, |next, link| {
                let key = (next, link.to_owned());
                if let Some(known) = self.neighbours.borrow().get(&key) {
                    return known.clone();
                }
                let found = self.ndp(next, link);
                self.neighbours.borrow_mut().insert(key, found.clone());
                found
            });
        }
        if let Some(fault) = self.arp_between_pods(outcome) {
            return Some(fault);
        }
        let came_by = self
            .came_in_by(question, outcome)
            .filter(|_| question.flow.entry != Entry::Host);
        let leaves_by = outcome.leaves_by().filter(|_| !self.ends_here(outcome));
        let next = outcome.gateway.unwrap_or(outcome.destination.0);
        let back = came_by.as_deref().map(|link| {
            let client = outcome.sent_from;
            let next = match self.router.decide(Lookup::to(Asked::new(client, None))) {
                Decision::Out {
                    device: Some(device),
                    gateway,
                    ..
                } if *device == *link => Some(gateway.unwrap_or(client)),
                _ => None,
            };
            (link, next)
        });
        let all = [back, leaves_by.map(|link| (link, Some(next)))];
        let found = all
            .into_iter()
            .flatten()
            .map(|(link, next)| self.arp_on(link, next));
        found.reduce(|one, other| match one {
            Some(Fault::Unknown(_)) | None => other.or(one),
            certain => certain,
        })?
    }

    /// Returns the fault of a packet between two pods of a bridge, which find each other on it.
    fn arp_between_pods(&self, outcome: &Outcome) -> Option<Fault> {
        let link = outcome.leaves_by()?;
        if !self.stays_on_bridge(outcome) {
            return None;
        }
        let ends = [outcome.sent_from, outcome.destination.0];
        let messages = Message::of_bridge(link, &ends[..1], &ends[1..]);
        let (rule, is_certain) = dropping(self.node, &messages)?;
        Some(self.arp_fault(link, rule, is_certain))
    }

    /// Returns whether the packet is between two pods whose links are ports of the bridge by which it leaves: the reply stays on it.
    pub(super) fn stays_on_bridge(&self, outcome: &Outcome) -> bool {
        let Some(link) = outcome.leaves_by().filter(|_| !outcome.masquerade) else {
            return false;
        };
        let ends = [outcome.sent_from, outcome.destination.0];
        let bridge = |pod| {
            let (_, own) = self.link_of_pod(pod)?;
            self.far_end(own)?.master.as_deref()
        };
        let is_shared = ends[0] != ends[1] && ends.iter().all(|end| bridge(*end) == Some(link));
        is_shared && outcome.source == outcome.sent_from
    }

    /// Returns the doubt about a packet to or from a link whose ARP messages may be dropped by rules that were not read.
    pub(super) fn unread_arp(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let gap = self.node.arptables().err()?;
        let is_old = gap.is_absence() || matches!(gap, Gap::NotCollected(_));
        let is_here = question.flow.entry == Entry::Host && self.ends_here(outcome);
        if is_old || is_here || outcome.destination.0.is_ipv6() {
            return None;
        }
        let what = "rules of the legacy back end of arptables may drop ARP messages";
        Some(Fault::Unknown(Missing::Gap { what, gap }))
    }

    /// Returns the fault of ARP messages of `link` that `rule` drops, or may drop.
    fn arp_fault(&self, link: &str, rule: Rule, is_certain: bool) -> Fault {
        if is_certain {
            let by = By::new(rule, Maker::Unknown, self.node);
            return Fault::Obstacle(Box::new(Obstacle::Arp {
                link: link.to_owned(),
                by: Arp::Dropped(Box::new(by)),
            }));
        }
        Fault::Unknown(Missing::Unmodelled(format!(
            "rule {} of chain {} in table {} may drop ARP packets of {link}: kpx does not follow them",
            rule.number,
            rule.chain,
            rule.named_table()
        )))
    }

    /// Returns the fault of the neighbour `address` on `link`, another node that was read, if a rule there drops its ARP messages.
    pub(super) fn arp_there(&self, address: IpAddr, link: &str) -> Option<Fault> {
        let node = self.peers().with_address(address)?;
        let mut own = self.node.addresses().ok()?.all.iter();
        let own = own.find(|own| own.link == link && own.addr.contains(address))?;
        let by = self
            .others
            .as_ref()?
            .arp_rule(node, address, own.addr.addr)?;
        Some(Fault::Obstacle(Box::new(Obstacle::Arp {
            link: link.to_owned(),
            by: Arp::There {
                node: node.to_owned(),
                address,
                by: Box::new(by),
            },
        })))
    }

    /// Returns the fault of packets that need ARP on `link`, where the neighbour is `next`, if it is known.
    pub(super) fn arp_on(&self, link: &str, next: Option<IpAddr>) -> Option<Fault> {
        let fault = |by| {
            Some(Fault::Obstacle(Box::new(Obstacle::Arp {
                link: link.to_owned(),
                by,
            })))
        };
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let own = links.iter().find(|own_link| own_link.name == link)?;
        // Tunnels and links of some network plugins need no neighbour entry.
        let is_of_node = self.places.links_of_node().contains(link) && !own.is_tunnel();
        let needs_it = own.kind == "bridge" || is_of_node;
        if needs_it && own.flag("NOARP") == Some(true) {
            return fault(Arp::Off);
        }
        let keys = [
            sysctl_of("all", "arp_ignore"),
            sysctl_of(link, "arp_ignore"),
        ];
        let sysctl = self.node.sysctl().ok();
        let is_never = |key: &String| sysctl.is_some_and(|all| all.get(key) == Some(NEVER));
        if needs_it && let Some(key) = keys.into_iter().find(is_never) {
            return fault(Arp::Ignored(key));
        }
        let (rule, is_certain) = arp_rule(self.node, link, next)?;
        Some(self.arp_fault(link, rule, is_certain))
    }

    /// Returns the fault of an IPv6 neighbour `next` on `link` if rules stop the messages by which it and the node find each other.
    fn ndp(&self, next: IpAddr, link: &str) -> Option<Fault> {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let needs_it = links
            .iter()
            .find(|own_link| own_link.name == link)
            .is_some_and(|link| {
                !link.is_tunnel()
                    && link.flag("NOARP") != Some(true)
                    && link.flag("LOOPBACK") != Some(true)
            });
        let table = self.node.neighbour_table().ok();
        let is_known = table
            .and_then(|all| all.on(next, link))
            .is_some_and(|link| link.mac.is_some());
        if !needs_it {
            return None;
        }
        // A neighbour that has an entry for the node needs no answer.
        let is_known_there = self.knows_node(next);
        let all = &self.node.addresses().ok()?.all;
        let own = all
            .iter()
            .filter(|address| address.link == link && address.addr.addr.is_ipv6());
        let own: Vec<IpAddr> = own.map(|address| address.addr.addr).collect();
        let message = |entry, source, destination, kind| Flow {
            entry,
            source: Some(source),
            destination,
            port: kind,
            mark: 0,
            carried: Carried::default(),
            proto: Proto::Icmpv6,
            established: false,
        };
        let first = *own.first()?;
        let asks = message(Entry::Host, first, next, SOLICITATION);
        let answered = message(Entry::Outside, next, first, ADVERTISEMENT);
        let asked = message(Entry::Outside, next, first, SOLICITATION);
        let answers = message(Entry::Host, first, next, ADVERTISEMENT);
        let of_node = [asks, answered].into_iter().filter(|_| !is_known);
        let of_neighbour = [asked, answers].into_iter().filter(|_| !is_known_there);
        let by_rules = of_node
            .chain(of_neighbour)
            .find_map(|flow| self.ndp_rule(&flow, link));
        // What the node asks for a packet that it forwards comes from its link-local address.
        by_rules.or_else(|| {
            let mut all = own.iter();
            let first = self.blocked_messages(link, *all.next()?, next)?;
            all.all(|own| self.blocked_messages(link, *own, next).is_some())
                .then_some(first)
        })
    }

    /// Returns the fault of `flow`, a message of neighbour discovery on `link`, if a rule stops it, or changes its hop limit, so that its
    /// receiver discards it.
    fn ndp_rule(&self, flow: &Flow, link: &str) -> Option<Fault> {
        let mut outcomes = self.back(Family::V6).brief(flow);
        outcomes.retain(is_likely);
        let is_changed = |outcome: &Outcome| outcome.ttl != u8::MAX;
        let is_certain = |outcome: &Outcome| outcome.when.iter().all(is_decided);
        let hop_limit = !outcomes.is_empty()
            && outcomes
                .iter()
                .all(|outcome| is_changed(outcome) && is_certain(outcome));
        if hop_limit {
            outcomes = self.back(Family::V6).walk(flow);
        }
        let is_setter = |hop: &&Rc<Hop>| matches!(hop.effect, Effect::Ttl { .. });
        let hop = if hop_limit {
            outcomes.first()?.hops.iter().rfind(is_setter)?
        } else {
            let first = outcomes.iter().find(|outcome| ends(outcome))?;
            decisive(first).filter(|_| outcomes.iter().all(is_stopped))?
        };
        let by = By::new(Rule::of(hop, Family::V6), maker(hop), self.node);
        Some(Fault::Obstacle(Box::new(Obstacle::Arp {
            link: link.to_owned(),
            by: Arp::Unsolicited {
                by: Box::new(by),
                hop_limit,
            },
        })))
    }

    /// Returns the rule that keeps `pod` from finding its `gateway`, an address of this node.
    pub(super) fn stopped_discovery(&self, pod: IpAddr, gateway: IpAddr) -> Option<Fault> {
        let link = self.places.own(gateway)?;
        let found = if pod.is_ipv6() {
            self.ndp(pod, link)
        } else {
            self.arp_on(link, Some(pod))
        };
        found.filter(|fault| matches!(fault, Fault::Obstacle(_)))
    }

    /// Returns whether the pod with address `next` has an entry of the node with a MAC address.
    pub(super) fn knows_node(&self, next: IpAddr) -> bool {
        let Ok(Some(network)) = self.network_of(next) else {
            return false;
        };
        let inside = NodeSnapshot::new(&network.evidence);
        let gateways = inside.routes().map_or(&[][..], |all| all.all.as_slice());
        let mut gateways = gateways.iter().filter_map(|gateway| gateway.gateway);
        gateways.any(|gateway| gateway.is_ipv6() && self.knows(next, gateway))
    }

    /// Returns whether `pod` has a neighbour entry with a MAC address for `other`.
    pub(super) fn knows(&self, pod: IpAddr, other: IpAddr) -> bool {
        let Ok(Some(network)) = self.network_of(pod) else {
            return false;
        };
        let inside = NodeSnapshot::new(&network.evidence);
        let table = inside.neighbour_table().ok();
        let mut all = table.map_or(&[][..], |all| all.all.as_slice()).iter();
        all.any(|neighbour| neighbour.address == other && neighbour.mac.is_some())
    }
}

/// Returns the rule that drops the messages by which `node` and its neighbour on `link` find each other, and whether it certainly does.
pub(super) fn arp_rule(
    node: &NodeSnapshot<'_>,
    link: &str,
    there: Option<IpAddr>,
) -> Option<(Rule, bool)> {
    let all = &node.addresses().ok()?.all;
    let of_link = all
        .iter()
        .filter(|own| own.link == link && own.addr.addr.is_ipv4());
    let own: Vec<IpAddr> = of_link.map(|own| own.addr.addr).collect();
    let there: Vec<IpAddr> = there.into_iter().collect();
    dropping(node, &Message::of_neighbours(link, &own, &there))
}
