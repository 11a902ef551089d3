//! Barriers: everything except kube-proxy's rules and the settings of the Services that stops connections on a node.

use std::net::{IpAddr, SocketAddr};

use super::{Cell, Fault, Obstacle};
use crate::trace::{Effect, Hop, Outcome, Subsystem, Walks, why};
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::Maker;

/// A barrier: it stops connections, and is not a rule of kube-proxy.
#[derive(Clone, Debug, PartialEq)]
pub enum Barrier {
    /// A setting, a link or an address.
    Obstacle(Box<Obstacle>),
    /// A rule of other software that stops packets, or changes them so that they are lost later.
    Rule {
        /// Its hop.
        hop: Box<Hop>,
        /// The family of the packets.
        family: Family,
        /// How the packets end, in words.
        reason: String,
        /// Whether it is a rule of IP that stops them.
        of_ip: bool,
    },
    /// The routes: none leads to the endpoint, or the wrong one.
    Routes {
        /// The destination of the packets.
        to: SocketAddr,
        /// Their source when they are routed.
        source: IpAddr,
        /// Their fate.
        fault: Box<Fault>,
    },
}

impl Barrier {
    /// Returns the obstacles that stop the connections of `cell` on this node, without duplicates; `walks` are the
    /// walks of its family.
    pub(super) fn all_of(cell: &Cell, walks: &Walks<'_, '_, '_>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for (outcome, way) in cell.outcomes.iter().zip(&cell.verdict.ways) {
            let found = way
                .fault
                .as_ref()
                .and_then(|fault| Self::of(cell, walks, outcome, fault));
            all.extend(found.filter(|barrier| !all.contains(barrier)));
        }
        all
    }

    fn of(
        cell: &Cell,
        walks: &Walks<'_, '_, '_>,
        outcome: &Outcome,
        fault: &Fault,
    ) -> Option<Self> {
        let rule = |hop: &Hop, of_ip| Self::Rule {
            hop: Box::new(hop.clone()),
            family: Family::of(outcome.destination.0),
            reason: fault.to_string(),
            of_ip,
        };
        match fault {
            Fault::Obstacle(what) => Some(Self::Obstacle(what.clone())),
            Fault::Stopped { hop, .. } => {
                let hop = outcome.hops.get(*hop)?;
                is_foreign(hop).then(|| rule(hop, !is_beside_ip(hop)))
            }
            Fault::ForeignSource { source } => {
                // A brief walk keeps no hops of packets that arrive.
                let outcomes = walks.walk(&cell.flow);
                let mut hops = outcomes.iter().flat_map(|outcome| &outcome.hops);
                let sets = Effect::Snat {
                    address: Some(*source),
                };
                let hop = hops.find(|hop| hop.effect == sets && is_foreign(hop))?;
                Some(rule(hop, false))
            }
            Fault::NoRoute { to, .. } | Fault::WrongWay { address: to, .. } => Some(Self::Routes {
                to: *to,
                source: outcome.sent_from,
                fault: Box::new(fault.clone()),
            }),
            _ => None,
        }
    }
}

/// Returns whether the rule of `hop` is of other software.
fn is_foreign(hop: &Hop) -> bool {
    match why::maker(hop) {
        Maker::Other(_) | Maker::Unknown => true,
        Maker::Kernel => hop.number == 0,
        Maker::Kubelet | Maker::KubeProxy | Maker::Both => false,
    }
}

/// Returns whether the rule of `hop` is on links or bridges, or sets the TTL: packets that it stops are not dropped by a rule of
/// IP.
fn is_beside_ip(hop: &Hop) -> bool {
    let family = hop.table.split(' ').next();
    hop.subsystem == Subsystem::Nftables && matches!(family, Some("bridge" | "netdev"))
        || matches!(hop.effect, Effect::Ttl { .. })
}
