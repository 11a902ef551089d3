//! ARP on the links of the node, and its counterpart of IPv6: how the node and its neighbours find each other.

use std::net::IpAddr;

use super::judge::{Judge, Question};
use super::obstacle::Arp;
use super::replies::{ends, is_stopped};
use super::{By, Fault, Missing, Obstacle, is_likely, sysctl_of};
use crate::trace::why::{decisive, maker};
use crate::trace::{Carried, Entry, Flow, Outcome, Rule, Subsystem};
use kpx_node::backend::nftables::model::{Base, Chain, Expr, Statement, Table, Verdict};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::chain_owner::Maker;

/// The types of the messages of `ICMPv6` by which a node asks for a neighbour's address, and gets it.
const SOLICITATION: u16 = 135;
const ADVERTISEMENT: u16 = 136;

/// The value of `arp_ignore` with which no request is answered.
const NEVER: &str = "8";

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
        let came_by = self
            .came_in_by(question, outcome)
            .filter(|_| question.flow.entry != Entry::Host);
        let leaves_by = outcome.leaves_by().filter(|_| !self.ends_here(outcome));
        let all = [came_by.as_deref(), leaves_by];
        let found = all.into_iter().flatten().map(|link| self.arp_on(link));
        found.reduce(|one, other| match one {
            Some(Fault::Unknown(_)) | None => other.or(one),
            certain => certain,
        })?
    }

    pub(super) fn arp_on(&self, link: &str) -> Option<Fault> {
        let fault = |by| {
            Some(Fault::Obstacle(Box::new(Obstacle::Arp {
                link: link.to_owned(),
                by,
            })))
        };
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let own = links.iter().find(|own_link| own_link.name == link)?;
        // Tunnels and links of some network plugins need no neighbour entry.
        let needs_it = own.kind == "bridge" || self.places.links_of_node().contains(link);
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
        match self.arp_rule(link)? {
            (rule, true) => {
                let by = By::new(rule, Maker::Unknown, self.node);
                fault(Arp::Dropped(Box::new(by)))
            }
            (rule, false) => Some(Fault::Unknown(Missing::Unmodelled(format!(
                "rule {} of chain {} in table {} may drop ARP packets of {link}: kpx does not follow them",
                rule.number, rule.chain, rule.table
            )))),
        }
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
        // A node that has an entry for the neighbour needs no answer.
        let is_known_there = self.knows_node(next);
        let all = &self.node.addresses().ok()?.all;
        let mut own = all
            .iter()
            .filter(|address| address.link == link && address.addr.addr.is_ipv6());
        let own = own.next()?.addr.addr;
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
        let asks = message(Entry::Host, own, next, SOLICITATION);
        let answered = message(Entry::Outside, next, own, ADVERTISEMENT);
        let asked = message(Entry::Outside, next, own, SOLICITATION);
        let answers = message(Entry::Host, own, next, ADVERTISEMENT);
        let of_node = [asks, answered].into_iter().filter(|_| !is_known);
        let of_neighbour = [asked, answers].into_iter().filter(|_| !is_known_there);
        of_node.chain(of_neighbour).find_map(|flow| {
            let mut outcomes = self.back(Family::V6).brief(&flow);
            outcomes.retain(is_likely);
            let first = outcomes.iter().find(|outcome| ends(outcome))?;
            let hop = decisive(first).filter(|_| outcomes.iter().all(is_stopped))?;
            let by = By::new(Rule::of(hop, Family::V6), maker(hop), self.node);
            Some(Fault::Obstacle(Box::new(Obstacle::Arp {
                link: link.to_owned(),
                by: Arp::Unsolicited(Box::new(by)),
            })))
        })
    }

    /// Returns whether the pod with address `next` has an entry of the node with a MAC address.
    fn knows_node(&self, next: IpAddr) -> bool {
        let Ok(Some(network)) = self.network_of(next) else {
            return false;
        };
        let inside = NodeSnapshot::new(&network.evidence);
        let gateways = inside.routes().map_or(&[][..], |all| all.all.as_slice());
        let mut gateways = gateways.iter().filter_map(|gateway| gateway.gateway);
        let table = inside.neighbour_table();
        gateways.any(|gateway| {
            let all = table.as_ref().map_or(&[][..], |all| all.all.as_slice());
            let mut own = all.iter().filter(|neighbour| neighbour.address == gateway);
            gateway.is_ipv6() && own.any(|neighbour| neighbour.mac.is_some())
        })
    }

    /// Returns the rule of nftables that drops ARP packets of `link`, and whether it certainly does.
    fn arp_rule(&self, link: &str) -> Option<(Rule, bool)> {
        let tables = self.node.nft().ok()?.tables.iter();
        let tables = tables.filter(|table| table.family == "arp" && !table.dormant);
        let chains = tables.flat_map(|table| {
            let chains = table.chains.iter();
            chains.filter_map(move |chain| Some((table, chain, chain.base.as_ref()?)))
        });
        let found = chains.filter_map(|(table, chain, base)| dropping(table, chain, base, link));
        found.max_by_key(|(_, is_certain)| *is_certain)
    }
}

/// Returns the rule of a base chain that drops ARP packets of `link`, and whether it certainly does.
fn dropping(table: &Table, chain: &Chain, base: &Base, link: &str) -> Option<(Rule, bool)> {
    let rule = |number| Rule {
        family: Family::V4,
        subsystem: Subsystem::Nftables,
        table: format!("{} {}", table.family, table.name),
        chain: chain.name.clone(),
        number,
        rule: String::new(),
    };
    let name = match base.hook.as_str() {
        "input" => "iifname",
        "output" => "oifname",
        _ => return None,
    };
    let mut may_accept = false;
    let mut possible = None;
    for (at, of) in chain.rules.iter().enumerate() {
        let mut is_certain = true;
        let mut holds = true;
        for statement in &of.statements {
            match statement {
                Statement::Match { left, op, right } => match (left, right) {
                    (Expr::Meta(key), Expr::Word(word)) if key == name => {
                        holds &= (word == link) == (op != "!=");
                    }
                    _ => is_certain = false,
                },
                Statement::Counter { .. } => {}
                Statement::Verdict(Verdict::Drop) if holds && is_certain && !may_accept => {
                    return Some((rule(at + 1), true));
                }
                Statement::Verdict(Verdict::Drop) if holds => {
                    possible = possible.or_else(|| Some(rule(at + 1)));
                }
                Statement::Verdict(Verdict::Accept) if holds => {
                    if is_certain {
                        return possible.map(|rule| (rule, false));
                    }
                    may_accept = true;
                }
                // Chains of their own, and what iptables-nft wrote.
                _ if holds => {
                    is_certain = false;
                    may_accept = true;
                }
                _ => {}
            }
        }
    }
    match possible {
        _ if base.policy == "drop" && !may_accept => Some((rule(0), true)),
        None if base.policy == "drop" => Some((rule(0), false)),
        possible => possible.map(|rule| (rule, false)),
    }
}
