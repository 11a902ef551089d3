//! IR16: rules of other software that drop traffic to Services.
//!
//! The effect of a rule on a packet depends on every rule before it. So the check traces packets like `kpx trace`: for
//! each Service one from a pod, one from the node and one from outside.

mod finding;
mod foreign;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::check::core::{by_family, if_recorded};
use crate::check::{Check, Facts, Severity, Verdict, When};
use crate::evidence::{Gap, IPTABLES};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::software::Maker;
use crate::owner::{EndpointState, Owners, Port};
use crate::trace::sources::Source;
use crate::trace::{
    self, Assumption, Effect, Entry, Flow, Hop, Outcome, Question, Subsystem, World,
};
use finding::finding;
use foreign::{ForeignRules, is_foreign, is_foreign_table};
use sources::Sources;

/// Maximum of traced Service ports; those that a rule names come first.
const MOST: usize = 100;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "IR16",
    name: "foreign-drops",
    severity: Severity::Error,
    when: When::Now,
    title: "No rule of other software drops traffic to Services",
    symptom: "Connections to a Service time out or are refused, although every rule of kube-proxy exists and the \
          endpoints are ready.",
    why: "A packet to a Service passes through every rule on its path, not only kube-proxy's: before translation with \
          the Service's address, then with the endpoint's. A firewall, a script or the other iptables backend can \
          drop it at any hook, and an accept in one table does not cancel a drop in another.",
    verify: "Trace a packet to the Service; the last step names the rule.",
    commands: &[
        "kpx trace NAMESPACE/SERVICE",
        "kpx diff --packets",
        "iptables-nft-save -c | grep -E 'DROP|REJECT'; iptables-legacy-save -c | grep -E 'DROP|REJECT'",
        "nft list ruleset | grep -E 'drop|reject'",
    ],
    fix: "Delete the rule, or change it in the configuration of its software so that it does not match Service \
          traffic.",
    incidents: &[
        "kubernetes/kubernetes#40182: Docker 1.13 sets the policy of FORWARD to DROP",
        "kubernetes/kubernetes#39823: pods do not reach Services under such a policy",
    ],
    needs: &[IPTABLES, trace::NEEDS],
    caused_by: &[],
    run: foreign_drops,
}];

/// The position of a rule.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Position {
    family: Family,
    /// Whether it is in the iptables backend that is not in use.
    other: bool,
    nft: bool,
    table: String,
    chain: String,
    /// From 1; 0 for the chain's policy.
    number: usize,
    rule: String,
}

/// The effects of a rule on traced packets.
#[derive(Debug)]
struct Effects {
    rejects: bool,
    maker: Maker,
    services: BTreeSet<String>,
    /// Packets that are certainly lost: by kind of source, the first source and its destination.
    certain: BTreeMap<&'static str, (String, SocketAddr)>,
    /// Unknown conditions that a drop depends on.
    open: BTreeSet<String>,
}

fn foreign_drops(facts: &Facts<'_>) -> Verdict {
    let node = facts.node;
    node.services()?;
    node.slices()?;
    if_recorded(node.routes())?;
    if_recorded(node.addresses())?;
    if_recorded(node.nft().map(|_| ()).or_else(|gap| match gap {
        // Without nftables it has no rules.
        Gap::Absent(..) | Gap::NotApplicable(_) => Ok(()),
        gap => Err(gap),
    }))?;
    let mut effects = BTreeMap::new();
    let (mut owners, mut gap) = (None, None);
    for (family, foreign) in by_family(|family| ForeignRules::of(node, family))? {
        if foreign.any {
            let owners = owners.get_or_insert_with(|| Owners::new(node));
            try_family(node, family, owners, &foreign, &mut effects);
        }
        gap = gap.or(foreign.gap);
    }
    match gap {
        Some(gap) if effects.is_empty() => Err(gap),
        _ => Ok(effects
            .iter()
            .map(|(position, effect)| finding(node, position, effect))
            .collect()),
    }
}

/// Traces packets to Services of `family`, and records the effects of other software's rules.
fn try_family<'n>(
    node: &'n NodeSnapshot<'n>,
    family: Family,
    owners: &Owners,
    foreign: &ForeignRules,
    effects: &mut BTreeMap<Position, Effects>,
) {
    let ready = |port: &&Port| {
        let serves = |state| {
            matches!(
                state,
                Some(EndpointState::Ready | EndpointState::ServingTerminating)
            )
        };
        let mut all = port.endpoints.iter();
        port.left_to.is_none()
            && all.any(|of| serves(of.state) && Family::of(of.addr.ip()) == family)
    };
    let mut ports: Vec<_> = owners.ports().iter().filter(ready).collect();
    ports.sort_by_key(|port| !foreign.name(port));
    let sources = Sources::of(node, family);
    let world = World::whole(node, family);
    for port in ports.into_iter().take(MOST) {
        for (source, to) in sources.flows(port, family) {
            let flow = Flow {
                entry: source.entry,
                source: source.addr,
                destination: to.ip(),
                port: to.port(),
                proto: port.proto,
                established: false,
            };
            // A trace over complete rules needs no further chains.
            let Ok(outcomes) = world.walk(&flow) else {
                continue;
            };
            for outcome in &outcomes {
                let open = open(outcome, &outcomes);
                note(outcome, open, family, source, to, port, effects);
            }
        }
    }
}

fn is_lost(outcome: &Outcome) -> bool {
    use trace::Verdict::{Drop, Reject};
    matches!(outcome.verdict, Drop | Reject)
}

/// Returns the unknown conditions of `outcome`: those that lead to it, and those that would avoid the loss.
fn open<'o>(outcome: &'o Outcome, all: &[Outcome]) -> Vec<&'o Assumption> {
    let matters = |when: &&Assumption| {
        let Assumption::Answer {
            question,
            holds: false,
        } = when
        else {
            return true;
        };
        let opposite = Assumption::Answer {
            question: question.clone(),
            holds: true,
        };
        let mut others = all.iter().filter(|other| other.when.contains(&opposite));
        others.any(|other| !is_lost(other))
    };
    outcome.when.iter().filter(matters).collect()
}

/// Records the rule that ends `outcome`, if it belongs to other software.
fn note(
    outcome: &Outcome,
    open: Vec<&Assumption>,
    family: Family,
    source: &Source,
    to: SocketAddr,
    port: &Port,
    effects: &mut BTreeMap<Position, Effects>,
) {
    if !is_lost(outcome) {
        return;
    }
    let Some(hop) = outcome.hops.last().filter(|hop| is_foreign_drop(hop)) else {
        return;
    };
    // Rules do not show whether the route back uses the same link; healthy nodes have such rules.
    let is_route_back = |when: &&Assumption| {
        matches!(
            when,
            Assumption::Answer {
                question: Question::RouteBack(_),
                ..
            }
        )
    };
    if open.iter().any(is_route_back) {
        return;
    }
    let position = Position {
        // A table of family inet covers both.
        family: if hop.subsystem == Subsystem::Nftables && hop.table.starts_with("inet ") {
            Family::V4
        } else {
            family
        },
        other: hop.subsystem == Subsystem::IptablesOther,
        nft: hop.subsystem == Subsystem::Nftables,
        table: hop.table.clone(),
        chain: hop.chain.clone(),
        number: hop.number,
        rule: hop.rule.clone(),
    };
    let effect = effects.entry(position).or_insert_with(|| Effects {
        rejects: outcome.verdict == trace::Verdict::Reject,
        maker: trace::why::maker(hop),
        services: BTreeSet::new(),
        certain: BTreeMap::new(),
        open: BTreeSet::new(),
    });
    effect
        .services
        .insert(format!("{}/{}", port.name.namespace, port.name.name));
    if open.is_empty() {
        let kind = match source.entry {
            Entry::Pod => "pod",
            Entry::Host => "host",
            Entry::Outside => "outside",
        };
        let from = match source.entry {
            Entry::Pod => outcome.sent_from.to_string(),
            Entry::Host => "host".to_owned(),
            Entry::Outside => "external".to_owned(),
        };
        effect.certain.entry(kind).or_insert((from, to));
    } else {
        effect
            .open
            .extend(open.into_iter().map(ToString::to_string));
    }
}

/// Returns whether `hop` drops by a rule that belongs neither to kube-proxy nor to a network policy.
fn is_foreign_drop(hop: &Hop) -> bool {
    if !matches!(hop.effect, Effect::Drop | Effect::Reject { .. }) {
        return false;
    }
    let table = match hop.subsystem {
        Subsystem::Nftables => hop.table.split_once(' ').map_or("", |(_, name)| name),
        Subsystem::Iptables | Subsystem::IptablesOther => "",
        Subsystem::Ipvs | Subsystem::Routing => return false,
    };
    is_foreign_table(table) && is_foreign(trace::why::maker(hop))
}
