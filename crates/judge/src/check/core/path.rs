//! The paths of packets that checks ask about.

use std::net::{IpAddr, SocketAddr};

use super::{Collector, idle_rules, proof_of};
use crate::check::{Facts, Proof};
use crate::trace::route::only_for_vrf;
use crate::trace::sources::{self, Pods, Source};
use crate::trace::{
    self, Assumption, Carried, Effect, Entry, Flow, Outcome, Question, Rule, Verdict, World,
};
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::{Family, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// The items that decide the path of a packet.
pub(in crate::check) const PATH: &[Item] = &join::<28>(&[
    IPTABLES,
    trace::NEEDS,
    &[
        Item::IptablesVersion,
        Item::Modules,
        Item::ModulesBuiltin,
        Item::Processes,
        Item::Host,
    ],
]);

/// The paths of packets of one IP family.
#[derive(Debug)]
pub(in crate::check) struct Paths<'n> {
    family: Family,
    world: World<'n, 'n>,
    sources: Vec<Source>,
}

impl<'n> Paths<'n> {
    /// Returns the paths of `family` on the node of `facts`.
    pub(in crate::check) fn of(facts: &Facts<'n>, family: Family) -> Self {
        Self {
            family,
            world: World::whole(facts.node, family),
            sources: sources(facts.node, family),
        }
    }

    /// Notes in `all` the unknown rules on the path. Returns whether the rules that may divert packets are known: those
    /// of the iptables backend in use, and of nftables.
    pub(in crate::check) fn note_unread(&self, facts: &Facts<'_>, all: &mut Collector) -> bool {
        let in_use = all.read(facts.node.saved(IptablesBackend::InUse, self.family));
        all.read(idle_rules(facts, self.family));
        let nft = match facts.node.nft() {
            // Without nftables there are no rules of it.
            Err(Gap::NotApplicable(_)) => true,
            read => all.read(read).is_some(),
        };
        in_use.is_some() && nft
    }

    /// Returns the first packet from `entry` to a port of `to`; `None` if no source there is known.
    pub(in crate::check) fn packet(
        &self,
        entry: Entry,
        to: SocketAddr,
        proto: Proto,
    ) -> Option<Flow> {
        let source = self.sources.iter().find(|source| source.entry == entry)?;
        Some(Flow {
            entry,
            source: source.addr,
            destination: to.ip(),
            port: to.port(),
            mark: 0,
            carried: Carried::default(),
            proto,
            established: false,
        })
    }

    /// Returns the ends of `flow` that are certain and for which `is_fine` does not hold. Notes in `all` ends that depend on
    /// something unknown.
    pub(in crate::check) fn astray(
        &self,
        all: &mut Collector,
        flow: &Flow,
        is_fine: impl Fn(&Outcome) -> bool,
    ) -> Vec<Outcome> {
        let item = Item::iptables(self.family);
        let outcomes = match self.world.walk(flow) {
            Ok(outcomes) => outcomes,
            Err(need) => {
                let why = format!("chain {} of table {} is missing", need.chain, need.table);
                all.note(Gap::Failed(item, why));
                return Vec::new();
            }
        };
        let mut astray = Vec::new();
        for outcome in outcomes {
            let open = match (outcome.verdict, outcome.when.first()) {
                (Verdict::Unknown, _) => outcome.reason.clone(),
                _ if is_fine(&outcome) => continue,
                (_, None) => {
                    let Some(reason) = only_for_vrf(self.world.node, &outcome) else {
                        astray.push(outcome);
                        continue;
                    };
                    reason
                }
                // Healthy nodes have rules that match on the route back.
                _ if outcome.when.iter().any(is_route_back) => continue,
                (_, Some(when)) => when.to_string(),
            };
            let (to, port) = (flow.destination, flow.port);
            let to = SocketAddr::new(to, port);
            all.note(Gap::Failed(
                item,
                format!("the path of a packet to {to} is unknown: {open}"),
            ));
        }
        astray
    }
}

fn is_route_back(when: &Assumption) -> bool {
    matches!(
        when,
        Assumption::Answer {
            question: Question::RouteBack { .. },
            ..
        }
    )
}

/// The usual sources of packets to `family`.
fn sources(node: &NodeSnapshot<'_>, family: Family) -> Vec<Source> {
    let slices = node.slices().map_or(&[][..], Vec::as_slice);
    let unspecified = match family {
        Family::V4 => IpAddr::from([0, 0, 0, 0]),
        Family::V6 => IpAddr::from([0_u16; 8]),
    };
    sources::usual(unspecified, &[], node, Pods::of(node, slices))
}

/// Returns the node's own address of `family`, to which packets from outside are sent.
pub(in crate::check) fn own_address(facts: &Facts<'_>, family: Family) -> Result<IpAddr, Gap> {
    sources::own_address(facts.node, family).ok_or_else(|| {
        let why = format!("it has no {family} address of this node");
        facts
            .this_node()
            .err()
            .unwrap_or(Gap::Absent(Item::Nodes, why))
    })
}

/// Returns in words how a packet ends.
pub(in crate::check) fn ended(outcome: &Outcome) -> String {
    let (address, port) = outcome.destination;
    match outcome.verdict {
        Verdict::Deliver => format!("it reaches {}", SocketAddr::new(address, port)),
        _ => outcome.reason.clone(),
    }
}

/// Returns the rule that decides how a packet ends, if a rule does.
pub(in crate::check) fn deciding(family: Family, outcome: &Outcome) -> Option<Proof> {
    let mut hops = outcome.hops.iter().rev();
    let hop = hops.find(|hop| {
        let decides = matches!(
            hop.effect,
            Effect::Dnat { .. } | Effect::Drop | Effect::Reject { .. }
        );
        decides && !hop.table.is_empty()
    })?;
    let rule = Rule::of(hop, family);
    Some(proof_of(&Rule { family, ..rule }))
}
