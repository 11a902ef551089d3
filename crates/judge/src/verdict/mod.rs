//! What happens to a connection, from the client to a live endpoint and back: one function decides it for every command.
//!
//! The walk of [`crate::trace`] gives the ways of the first packet. [`Judge`] follows each of them to its end: who has the
//! address, and does the reply come back? A part that was not read, or is not modelled, never counts as working.

mod across;
mod announced;
mod arp;
mod arp_rules;
mod balancer;
mod barrier;
mod blocking_rule;
mod bpf;
mod cell;
mod design;
mod detour;
mod diversion;
mod end;
mod fault;
mod ingress;
mod inside;
mod interface;
mod judge;
mod limits;
mod link_state;
mod listeners;
mod local_ports;
mod logged;
mod loss_class;
mod mtu;
mod neighbours;
mod obstacle;
mod outlook;
mod peers;
mod place;
mod ports;
mod replies;
mod reply;
mod shared_address;
mod single;
mod stranger;
mod survey;
mod tc;
mod tells;
mod third_node;
mod tproxy;
mod ttl;
mod tunnel;
mod tunnel_mac;
mod unanswered;
mod undeclared;
mod vacancy;
mod way_back;
mod wayless;
mod wireguard;
mod witnesses;
mod xfrm;

use std::fmt;

use serde::Serialize;

pub use across::{Across, Arrival, Far, Onward};
pub(crate) use announced::announces_from_nodes;
pub use balancer::{TARGET_TYPE, hidden_balancer, hidden_balancer_words, lacks_node_ports};
pub use barrier::Barrier;
pub use blocking_rule::{By, Pass, PluginAgent};
pub use cell::{Cell, Client, Kind, Target, client_names, targets};
pub use design::{is_by_design, is_local, undetected, unnamed};
pub use diversion::{Diversion, Diverter, Ways};
pub use end::{local_dns, lost_dns};
pub use fault::{Fault, Missing, Odd, OddWay, WayThere};
pub(crate) use inside::is_of_vpn;
pub use interface::tables_without_rules;
pub use judge::{Judge, MOST_TRACKED, Question, TRACKED, lacks_endpoints};
pub use limits::Limit;
pub use link_state::LinkState;
pub use local_ports::{DEFAULT_RANGE, LocalPorts, PORT_RANGE, RESERVED_PORTS};
pub(crate) use logged::Corrupted;
pub use loss_class::{LossClass, Place, Sender};
pub(crate) use mtu::tunnel_overhead;
pub(crate) use neighbours::is_link_local;
pub use obstacle::{
    AddressHolder, Arp, DEFAULT_TTL, FilterReason, Obstacle, PortHolder, SameNetworkAs,
    SilentMachine, TunnelState, Wayless, Which, WrongMac, accept_ra_of, disable_ipv6_of,
    route_words, sysctl_of,
};
pub use outlook::{Outlook, Worse, foreign_end};
pub use peers::home_gone;
pub use place::{Home, ranges_of_all_pods};
pub use ports::REPLY_PORT;
pub(crate) use ports::WITH_CHECKSUMS;
pub use stranger::Stranger;
pub use survey::{Brief, Failing, Standing, Surveyed, Tally, survey, unasked};
pub(crate) use tunnel::outer_family;
pub(crate) use tunnel_mac::{SharedMac, shared_macs};
pub use undeclared::Undeclared;
pub(crate) use witnesses::Witnesses;

use crate::trace::mismatch::listed;
use crate::trace::{Assumption, Outcome, Question as Condition};
use kpx_node::evidence::Item;

/// The fate of a connection; a greater one is worse.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It reaches a live endpoint of the Service, and the reply returns.
    Works,
    /// Something on the way is not read or not modelled.
    Unknown,
    /// Some of its ways fail.
    Partly,
    /// Another program, Service or pod answers.
    Misled,
    /// The client gets an error at once.
    Refused,
    /// The packet or its reply disappears: the client times out.
    Lost,
}

impl Fate {
    /// Every fate, the best first.
    pub const ALL: [Self; 6] = [
        Self::Works,
        Self::Unknown,
        Self::Partly,
        Self::Misled,
        Self::Refused,
        Self::Lost,
    ];

    /// Returns the name, as in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Unknown => "unknown",
            Self::Partly => "partly",
            Self::Misled => "misled",
            Self::Refused => "refused",
            Self::Lost => "lost",
        }
    }

    /// Returns whether connections certainly fail, all or some of them.
    pub const fn fails(self) -> bool {
        matches!(
            self,
            Self::Partly | Self::Misled | Self::Refused | Self::Lost
        )
    }

    /// Returns the fate of several connections together: the common one if they agree, and [`Fate::Partly`] if some of
    /// them fail. If one is unknown and the others work, the whole is unknown.
    pub fn of_all(fates: impl IntoIterator<Item = Self>) -> Self {
        let mut all = fates.into_iter();
        let Some(first) = all.next() else {
            return Self::Unknown;
        };
        all.fold(first, |one, other| match (one, other) {
            (a, b) if a == b => a,
            (Self::Works | Self::Unknown, Self::Works | Self::Unknown) => Self::Unknown,
            // All of them fail, each in its own way.
            (a, b) if a.fails() && b.fails() && a != Self::Partly && b != Self::Partly => a.max(b),
            _ => Self::Partly,
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The verdict on the connections of one client to one address.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Their fate.
    pub fate: Fate,
    /// The fate of each outcome of the walk, in their order.
    pub ways: Vec<Way>,
    /// The reason why other packets of the client bypass the rules, or may bypass them.
    pub beside: Option<Fault>,
}

/// The fate of the packets with one outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// The share of the packets: 0 to 1.
    pub share: f64,
    /// Why they do not work; `None` if they do.
    pub fault: Option<Fault>,
    /// Their way after this node, if they continue on another one whose state is given.
    pub onward: Option<Onward>,
    /// The reply, if this node stops it.
    pub lost: Option<Box<Outcome>>,
}

impl Way {
    /// Returns a way of unknown share.
    fn of(fault: Option<Fault>, onward: Option<Onward>) -> Self {
        Self {
            share: 0.0,
            fault,
            onward,
            lost: None,
        }
    }

    /// Returns what happens to the packets; [`Fate::Partly`] only on another node.
    pub fn fate(&self) -> Fate {
        self.fault.as_ref().map_or(Fate::Works, Fault::fate)
    }
}

impl Verdict {
    /// Returns the verdict on packets with `outcomes`, each with its way.
    fn joined(outcomes: &[Outcome], judged: Vec<Way>) -> Self {
        let is_possible = |outcome: &&Outcome| is_likely(outcome);
        let pairs = outcomes.iter().zip(judged);
        let ways: Vec<Way> = pairs
            .map(|(outcome, way)| Way {
                share: outcome.probability,
                fault: way.fault.filter(|_| is_possible(&outcome)),
                ..way
            })
            .collect();
        let possible: Vec<_> = outcomes
            .iter()
            .zip(&ways)
            .filter(|(outcome, _)| is_possible(outcome))
            .collect();
        let fates = || possible.iter().map(|(_, way)| way.fate());
        let differ = fates().any(|fate| Some(fate) != fates().next());
        let is_open = possible
            .iter()
            .any(|(outcome, _)| !outcome.when.iter().all(is_decided));
        Self {
            // Which of the ways a packet takes depends on an unknown condition.
            fate: if differ && is_open {
                Fate::Unknown
            } else {
                Fate::of_all(fates())
            },
            ways,
            beside: None,
        }
    }

    /// Returns the share of the packets that certainly fail: 0 to 1.
    pub fn failing(&self) -> f64 {
        let failing = self.ways.iter().filter(|way| way.fate().fails());
        // The sum of no floats is -0.
        failing.fold(0.0, |sum, way| {
            let part = way.fault.as_ref().map_or(1.0, Fault::failing);
            sum + way.share * part
        })
    }

    /// Returns the share of the packets whose fate is unknown: 0 to 1.
    pub fn unknown(&self) -> f64 {
        let unknown = self.ways.iter().filter(|way| way.fate() == Fate::Unknown);
        unknown.fold(0.0, |sum, way| sum + way.share)
    }

    /// Returns the first fault in words, with the condition where it is unknown whether the packets with `outcomes` meet it.
    pub fn reason(&self, outcomes: &[Outcome]) -> Option<String> {
        let first = *self.faults().first()?;
        let mut ways = outcomes.iter().zip(&self.ways);
        let of_way = ways.find(|(_, way)| way.fault.as_ref() == Some(first));
        // A fault that is a gap of the sets names the condition itself.
        let is_of_sets = matches!(first, Fault::Unknown(Missing::Gap { gap, .. }) if gap.item() == Some(Item::Ipset));
        let when = of_way.filter(|_| self.fate == Fate::Unknown && !is_of_sets);
        let when = when.map_or_else(String::new, |(outcome, _)| conditions(&outcome.when));
        Some(format!("{first}{when}"))
    }

    /// Returns the faults without duplicates, the worst first; gaps are in the order of their items.
    pub fn faults(&self) -> Vec<&Fault> {
        let mut faults: Vec<&Fault> = Vec::new();
        let mut ways: Vec<&Way> = self.ways.iter().collect();
        let item = |way: &Way| match &way.fault {
            Some(Fault::Unknown(Missing::Gap { gap, .. })) => gap.item(),
            _ => None,
        };
        ways.sort_by_key(|way| (std::cmp::Reverse(way.fate()), item(way)));
        let of_ways = ways.into_iter().filter_map(|way| way.fault.as_ref());
        for fault in of_ways.chain(&self.beside) {
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        faults
    }
}

/// Returns whether `outcome` is one of a usual connection: it comes in where its return route is, and exceeds no limit alone.
fn is_likely(outcome: &Outcome) -> bool {
    let is_odd = |when: &Assumption| when.is_astray() || when.is_exceeded();
    !outcome.when.iter().any(is_odd)
}

/// Returns whether `when` does not leave open which way a packet takes: an address out of a range is as good as another, the walk puts
/// packets where their return route is, and one connection exceeds no limit.
pub const fn is_decided(when: &Assumption) -> bool {
    matches!(
        when,
        Assumption::Address { .. }
            | Assumption::Port { .. }
            | Assumption::Answer {
                question: Condition::RouteBack { .. } | Condition::Rate { .. },
                ..
            }
    )
}

/// Returns the condition of an end of packets, as text after it: `, if …`.
pub fn conditions(when: &[Assumption]) -> String {
    let all = when.iter().filter_map(|when| match when {
        Assumption::Answer { question, holds } => Some(match (question, holds) {
            (Condition::Value(value), _) => format!("depending on {value}"),
            (_, true) => format!("if {question}"),
            (_, false) => format!("unless {question}"),
        }),
        Assumption::Address { .. } | Assumption::Port { .. } | Assumption::Unseen { .. } => None,
    });
    let all: Vec<String> = all.collect();
    match all.as_slice() {
        [] => String::new(),
        all => format!(", {}", listed(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::Fate::{Lost, Misled, Partly, Refused, Unknown, Works};
    use super::*;

    #[test]
    fn the_fate_of_several_connections() {
        for (fates, wanted) in [
            (&[][..], Unknown),
            (&[Works, Works], Works),
            (&[Works, Unknown], Unknown),
            (&[Unknown, Works, Unknown], Unknown),
            (&[Lost, Lost], Lost),
            (&[Lost, Refused], Lost),
            (&[Refused, Misled], Refused),
            (&[Works, Lost], Partly),
            (&[Unknown, Lost], Partly),
            (&[Lost, Refused, Works], Partly),
            (&[Partly, Lost], Partly),
        ] {
            assert_eq!(Fate::of_all(fates.iter().copied()), wanted, "{fates:?}");
        }
    }
}
