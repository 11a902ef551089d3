//! IR16: rules of other software that drop traffic to Services or send it elsewhere.
//!
//! The effect of a rule on a packet depends on every rule before it. So the check asks [`crate::proof`] for every packet of
//! pods and of the node to cluster IPs, and traces one packet from outside to each other address: a node may refuse some
//! clients outside on purpose.

mod effects;
mod finding;
mod foreign;
mod marks;
mod sources;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

use effects::{Act, Effects};

use crate::check::core::{Collector, MODE, PATH};
use crate::check::{Check, Example, Facts, Severity, Text, Verdict, When};
use crate::proof::{self, Fate, Space, Way};
use crate::trace::region::{Asked, Coordinate as _, Field, Ranges, address};
use crate::trace::route::{Decision, Lookup, Router};
use crate::trace::walk::Walker;
use crate::trace::{
    self, Assumption, Carried, Effect, Entry, Flow, Hop, Outcome, Question, Rule, Stop, Subsystem,
    World, mismatch,
};
use crate::verdict::Limit;
use finding::finding;
use foreign::{ForeignRules, is_foreign, is_foreign_table};
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::Ruleset;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::owner::chain_owner::is_node_local_dns;
use kpx_node::owner::{EndpointState, Owners, Port, Role};
use sources::Sources;

/// Maximum of traced Service ports; those that a rule names come first.
const MOST: usize = 1_000;

/// Maximum number of classes of packets from inside (2,000 Services have 10,000); with more, packets are traced.
const MOST_CLASSES: usize = 100_000;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "IR16",
    name: "foreign-drops",
    severity: Severity::Error,
    when: When::Now,
    title: "No rule of other software drops or diverts traffic to Services",
    symptom: "Connections to a Service time out, are refused or reach something else, although every rule of kube-proxy \
          exists and the endpoints are ready.",
    why: "A packet to a Service passes through every rule on its path, not only kube-proxy's: before translation with \
          the Service's address, then with the endpoint's. A firewall, a script or the other iptables backend can \
          drop it at any hook, and an accept in one table does not cancel a drop in another. A nat rule that comes before \
          kube-proxy's decides for it. A rule that clears kube-proxy's mark keeps its source from being masqueraded.",
    verify: "Trace a packet to the Service; the last step names the rule.",
    commands: &[
        Example::kpx(&["trace", "NAMESPACE/SERVICE"]).with(&["NAMESPACE/SERVICE"]),
        Example::kpx(&["diff", "--packets"]),
        Example::on_node(
            "iptables-nft-save -c | grep -E 'DROP|REJECT'; iptables-legacy-save -c | grep -E 'DROP|REJECT'",
        ),
        Example::on_node("nft list ruleset | grep -E 'drop|reject'"),
    ],
    fix: Text::plain(
        "Delete the rule, or change it in the configuration of its software so that it does not match Service \
         traffic.",
    ),
    incidents: &[
        "kubernetes/kubernetes#40182: Docker 1.13 sets the policy of FORWARD to DROP",
        "kubernetes/kubernetes#39823: pods do not reach Services under such a policy",
    ],
    needs: &[MODE, PATH],
    caused_by: &[],
    run: foreign_drops,
}];

fn foreign_drops(facts: &Facts<'_>) -> Verdict {
    facts.node.services()?;
    facts.node.slices()?;
    // Without these, no path is certain.
    facts.node.routes()?;
    facts.node.addresses()?;
    let mut all = Collector::default();
    // Rules of iptables drop packets, whatever unknown rules of nftables do.
    let without_nft = match facts.node.nft() {
        Ok(_) | Err(Gap::NotCollected(_) | Gap::Absent(..) | Gap::NotApplicable(_)) => None,
        Err(_) => {
            let node = NodeSnapshot::new(facts.node.evidence());
            let node = node.called(facts.node_name().as_deref());
            Some(node.with_nft(Ok(Ruleset::default())))
        }
    };
    let effects = match &without_nft {
        Some(node) => effects_on(node, facts, &mut all),
        None => effects_on(facts.node, facts, &mut all),
    };
    let findings = effects.iter();
    all.extend(findings.map(|(rule, effect)| finding(facts.node, rule, effect)));
    all.add(marks::unmasqueraded(facts));
    all.verdict()
}

/// Returns the effects of other software's rules on `node`, and notes in `all` what is not known.
fn effects_on<'n>(
    node: &'n NodeSnapshot<'n>,
    facts: &Facts<'_>,
    all: &mut Collector,
) -> BTreeMap<Rule, Effects> {
    let mut effects = BTreeMap::new();
    for family in Family::BOTH {
        let foreign = ForeignRules::of(facts, family);
        if foreign.any && all.read(translates(facts, family)).is_some() {
            let unknown = try_family(node, family, facts.owners(), &foreign, &mut effects);
            if let Some(gap) = unknown {
                all.note(gap);
            }
        }
        for gap in foreign.gaps {
            all.note(gap);
        }
    }
    effects
}

/// Returns an error if the rules of kube-proxy are not known: a packet that is not translated ends elsewhere.
fn translates(facts: &Facts<'_>, family: Family) -> Result<(), Gap> {
    let rules = || facts.node.saved(IptablesBackend::InUse, family).map(|_| ());
    match facts.current() {
        Ok(Mode::Nftables) => facts.node.nft().map(|_| ()),
        Ok(Mode::Iptables | Mode::Userspace) => rules(),
        Ok(Mode::Ipvs) => {
            facts.node.ipvs()?;
            rules()
        }
        Err(_) => {
            facts.node.nft()?;
            rules()
        }
    }
}

/// Traces packets to Services of `family`, and records the effects of other software's rules. Returns why the path of a packet
/// is unknown, if it is.
fn try_family<'n>(
    node: &'n NodeSnapshot<'n>,
    family: Family,
    owners: &Owners,
    foreign: &ForeignRules,
    effects: &mut BTreeMap<Rule, Effects>,
) -> Option<Gap> {
    let ready = |port: &&Port| {
        let serves = |state| {
            matches!(
                state,
                Some(EndpointState::Ready | EndpointState::ServingTerminating)
            )
        };
        let mut all = port.endpoints.iter();
        port.left_to.is_none()
            && all
                .any(|endpoint| serves(endpoint.state) && Family::of(endpoint.addr.ip()) == family)
    };
    let mut ports: Vec<_> = owners.ports().iter().filter(ready).collect();
    let is_named = foreign.named();
    ports.sort_by_cached_key(|port| !is_named(port));
    let sources = Sources::of(node, family);
    let world = World::whole(node, family);
    let walker = Walker::recording(&world, family);
    let mut unknown = None;
    let mut trace = |flow: Flow, port: &Port| {
        let outcomes = match walker.walk(&flow) {
            Ok(outcomes) => outcomes,
            Err(Stop::Broken(gap)) => {
                unknown.get_or_insert(gap);
                return;
            }
            // A trace over complete rules needs no further chains.
            Err(Stop::Need(_)) => return,
        };
        for outcome in &outcomes {
            if outcome.verdict == trace::Verdict::Unknown {
                let item = Item::iptables(family);
                unknown.get_or_insert_with(|| Gap::Failed(item, outcome.reason.clone()));
            }
            let open = open(outcome, &outcomes);
            let limit = Limit::of(outcome, family, node);
            note(outcome, (open, limit), family, &flow, port, effects);
        }
    };
    let inside = inside(node, owners, family, &ports, &sources);
    let is_proved = inside.is_ok();
    for (flow, port) in inside.into_iter().flatten() {
        trace(flow, port);
    }
    for port in ports.into_iter().take(MOST) {
        for (source, to) in sources.flows(port, family) {
            if source.entry != Entry::Outside && is_proved {
                continue;
            }
            let flow = Flow {
                entry: source.entry,
                source: source.addr,
                destination: to.ip(),
                port: to.port(),
                mark: 0,
                carried: Carried::default(),
                proto: port.proto,
                established: false,
            };
            trace(flow, port);
        }
    }
    unknown
}

/// Returns packets of pods and of the node to cluster IPs of `ports` that do not reach a backend: one of each class and port.
fn inside<'n, 'p>(
    node: &'n NodeSnapshot<'n>,
    owners: &Owners,
    family: Family,
    ports: &[&'p Port],
    sources: &Sources,
) -> Result<Vec<(Flow, &'p Port)>, Gap> {
    // NodeLocal DNS answers at these itself.
    let addresses = node.addresses().into_iter().flat_map(|all| &all.all);
    let local: HashSet<_> = addresses
        .filter(|at| is_node_local_dns(&at.link))
        .map(|at| at.addr.addr)
        .collect();
    let mut targets = Vec::new();
    for port in ports {
        let Some(number) = port.port else { continue };
        for (role, addr) in &port.addresses {
            if *role == Role::ClusterIp && Family::of(*addr) == family && !local.contains(addr) {
                targets.push((addr.number(), number, *port));
            }
        }
    }
    targets.sort_by_key(|(addr, ..)| *addr);
    let destinations = Ranges::of(targets.iter().map(|(addr, ..)| (*addr, *addr)).collect());
    let space = Space::of(node, owners, family)?.only(&[Entry::Pod, Entry::Host], &destinations);
    let endpoints = ports.iter().flat_map(|port| &port.endpoints);
    let endpoints: HashSet<SocketAddr> = endpoints.map(|endpoint| endpoint.addr).collect();
    let arrives = |way: &Way| match (way.verdict, way.address, way.port) {
        (trace::Verdict::Unknown, ..) => true,
        (trace::Verdict::Deliver, Some(addr), port) => {
            port.is_none_or(|port| endpoints.contains(&SocketAddr::new(addr, port)))
        }
        _ => false,
    };
    let astray = |fate: &Fate| !fate.ways.iter().all(arrives);
    let classes = proof::with_fate(node, &space, MOST_CLASSES, astray)?;
    let router = Router::new(node);
    let is_behind_link = |addr: IpAddr| {
        let way = router.decide(Lookup::to(Asked::new(addr, None)));
        matches!(way, Decision::Out { gateway: None, .. })
    };
    // Where each pod has a link, addresses behind none are of no pod.
    let pods_have_links = sources.pods().any(is_behind_link);
    let mut flows = Vec::new();
    for class in classes {
        let mut flow = class.witness();
        if let Some(usual) = sources.pod_in(class.region.of(Field::Source)) {
            flow.source = flow.source.and(usual.addr);
        }
        if flow.entry == Entry::Pod && pods_have_links && !flow.source.is_none_or(is_behind_link) {
            continue;
        }
        for (first, last) in class.region.of(Field::Destination).ranges() {
            let from = targets.partition_point(|(addr, ..)| addr < first);
            let here = targets[from..].iter().take_while(|(addr, ..)| addr <= last);
            for (addr, number, port) in here {
                let of = class.region.of(Field::Proto);
                if of.contains(port.proto.number().into())
                    && class.region.of(Field::Port).contains((*number).into())
                {
                    let to = Flow {
                        destination: address(family, *addr),
                        port: *number,
                        mark: 0,
                        proto: port.proto,
                        ..flow.clone()
                    };
                    flows.push((to, *port));
                }
            }
        }
    }
    Ok(flows)
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
    (open, limit): (Vec<&Assumption>, Option<Limit>),
    family: Family,
    flow: &Flow,
    port: &Port,
    effects: &mut BTreeMap<Rule, Effects>,
) {
    use trace::Verdict::{Drop, Local, Reject};
    let last = outcome.hops.last().map(AsRef::as_ref);
    let (act, hop) = match outcome.verdict {
        Drop => (Act::Drop, last.filter(|hop| is_foreign_drop(hop))),
        Reject => (Act::Reject, last.filter(|hop| is_foreign_drop(hop))),
        verdict => {
            let to_host = verdict == Local;
            (Act::Divert { to_host }, diverts(outcome, port))
        }
    };
    let Some(hop) = hop else { return };
    // Rules do not show whether the route back uses the same link; healthy nodes have such rules.
    let is_route_back = |when: &&Assumption| {
        matches!(
            when,
            Assumption::Answer {
                question: Question::RouteBack { .. },
                ..
            }
        )
    };
    if open.iter().any(is_route_back) {
        return;
    }
    let rule = Rule::of(hop, family);
    let effect = effects.entry(rule).or_insert_with(|| Effects {
        act,
        maker: trace::why::maker(hop),
        services: BTreeSet::new(),
        families: BTreeSet::new(),
        certain: BTreeMap::new(),
        open: BTreeSet::new(),
        limit: None,
    });
    effect.limit = effect.limit.take().or(limit);
    effect.services.insert((&port.name).into());
    effect.families.insert(family);
    if open.is_empty() {
        let kind = match flow.entry {
            Entry::Pod => "pod",
            Entry::Host => "host",
            Entry::Outside => "outside",
        };
        let from = match flow.entry {
            Entry::Pod => outcome.sent_from.to_string(),
            Entry::Host => "host".to_owned(),
            Entry::Outside => "outside".to_owned(),
        };
        effect
            .certain
            .entry(kind)
            .or_insert_with(|| (from, SocketAddr::new(flow.destination, flow.port)));
    } else {
        effect
            .open
            .extend(open.into_iter().map(ToString::to_string));
    }
}

/// Returns whether `hop` drops by a rule that belongs neither to kube-proxy nor to a network policy.
fn is_foreign_drop(hop: &Hop) -> bool {
    matches!(hop.effect, Effect::Drop | Effect::Reject { .. }) && is_of_others(hop)
}

/// Returns the rule of other software that keeps a packet to `port` from its endpoints.
fn diverts<'o>(outcome: &'o Outcome, port: &Port) -> Option<&'o Hop> {
    let (addr, number) = outcome.destination;
    let to = SocketAddr::new(addr, number);
    if port.endpoints.iter().any(|endpoint| endpoint.addr == to) {
        return None;
    }
    let mut hops = outcome.hops.iter().map(AsRef::as_ref);
    hops.find(|hop| hop.number > 0 && mismatch::is_past_nat(hop) && is_of_others(hop))
}

/// Returns whether the rule of `hop` belongs neither to kube-proxy nor to a network policy.
fn is_of_others(hop: &Hop) -> bool {
    let table = match hop.subsystem {
        Subsystem::Nftables => hop.table.split_once(' ').map_or("", |(_, name)| name),
        Subsystem::Iptables | Subsystem::IptablesOther => "",
        Subsystem::Arptables | Subsystem::Ipvs | Subsystem::Routing | Subsystem::Process => {
            return false;
        }
    };
    is_foreign_table(table) && is_foreign(trace::why::maker(hop))
}
