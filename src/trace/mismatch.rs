//! Why a packet does not go where the cluster's objects send it: wrong backends, missing rules and rules of others.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::hop::{Effect, Hook, Hop, Outcome, Subsystem, Verdict};
use super::packet::Flow;
use super::why;
use crate::diff::{Change, ChangeKind, Diff, Object, Unknown};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::owner::software::Maker;
use crate::owner::{Endpoint, EndpointState, Owners, Port};

/// Names listed before the rest is counted.
const MOST_NAMED: usize = 3;

/// Returns whether `outcomes` differ from the endpoints of `port`, so that a comparison with the desired state is worth its
/// time. Traffic policies are not considered.
pub(crate) fn is_odd(port: &Port, outcomes: &[Outcome]) -> bool {
    if port.left_to.is_some() {
        return false;
    }
    let Some(first) = outcomes.first() else {
        return true;
    };
    let family = Family::of(first.sent_from);
    let wanted = takers(port, family);
    let reached = reached(outcomes);
    let missed = wanted.iter().any(|addr| !reached.contains(addr));
    let wrong = reached.iter().any(|addr| !wanted.contains(addr));
    missed || wrong
}

/// Returns the endpoints that new connections should go to: the ready ones, or lacking those the ones that still serve.
pub(crate) fn takers(port: &Port, family: Family) -> BTreeSet<SocketAddr> {
    let of = |state: EndpointState| {
        port.endpoints
            .iter()
            .filter(|e| e.state == Some(state) && Family::of(e.addr.ip()) == family)
            .map(|e| e.addr)
            .collect::<BTreeSet<_>>()
    };
    let ready = of(EndpointState::Ready);
    if ready.is_empty() {
        of(EndpointState::ServingTerminating)
    } else {
        ready
    }
}

/// Returns whether `outcomes` of a client outside lead to endpoints on other nodes, with the client's own address: a Local
/// policy of `port` is not kept, and the client discards the reply.
pub(crate) fn is_unanswered(port: &Port, outcomes: &[Outcome]) -> bool {
    let lost = |of: &&Outcome| of.verdict == Verdict::Deliver && !of.masquerade;
    let Some(first) = outcomes.iter().find(lost) else {
        return false;
    };
    let family = Family::of(first.destination.0);
    usable(port, family).all(|of| of.local != Some(true))
}

/// Iterates over the endpoints of `port` that may get connections.
pub(crate) fn usable(port: &Port, family: Family) -> impl Iterator<Item = &Endpoint> {
    port.endpoints.iter().filter(move |of| {
        let takes = matches!(
            of.state,
            Some(EndpointState::Ready | EndpointState::ServingTerminating) | None
        );
        takes && Family::of(of.addr.ip()) == family
    })
}

/// Returns the backends that packets with these `outcomes` reach.
pub(crate) fn reached(outcomes: &[Outcome]) -> BTreeSet<SocketAddr> {
    let delivered = outcomes.iter().filter(|o| o.verdict == Verdict::Deliver);
    delivered
        .map(|o| SocketAddr::new(o.destination.0, o.destination.1))
        .collect()
}

/// Adds a note for each backend that is not an endpoint, or not a ready one.
pub(super) fn backends(port: &Port, outcomes: &[Outcome], notes: &mut Vec<String>) {
    let Some(first) = outcomes.first() else {
        return;
    };
    let takers = takers(port, Family::of(first.sent_from));
    for addr in reached(outcomes) {
        let name = &port.name;
        let known = port.endpoints.iter().find(|e| e.addr == addr);
        match known.map(|endpoint| endpoint.state) {
            None => notes.push(format!(
                "{addr} is not an endpoint of {name}: connections to it fail, or reach another pod"
            )),
            Some(Some(state)) if !takers.contains(&addr) => notes.push(format!(
                "{addr} is an endpoint of {name} in state {state}, but still gets connections"
            )),
            Some(_) => {}
        }
    }
}

/// Returns a note on the Service with the address of `flow`, which does not have the port.
pub(crate) fn other_port(owners: &Owners, flow: &Flow) -> Option<String> {
    let all: Vec<_> = owners.with_address(flow.destination).collect();
    let (first, role) = all.first()?;
    let ports = all
        .iter()
        .filter_map(|(port, _)| Some((port.port?, port.proto)));
    let ports: Vec<_> = ports
        .map(|(port, proto)| format!("{port}/{proto}"))
        .collect();
    Some(format!(
        "{} is the {role} of {}/{}, which has no port {}/{}; it has {}",
        flow.destination,
        first.name.namespace,
        first.name.name,
        flow.port,
        flow.proto,
        listed(&ports)
    ))
}

/// A problem of the route to a backend.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stray {
    /// There is no route; the reason.
    NoRoute(String),
    /// The route leads off this node although the backend runs on it; the link and gateway.
    Away(String),
}

/// Returns each backend of translated packets that has a problem with its route.
pub(crate) fn strays(
    node: &NodeSnapshot<'_>,
    port: Option<&Port>,
    outcomes: &[Outcome],
) -> Vec<(SocketAddr, Stray)> {
    let own = |addr: IpAddr| {
        node.addresses()
            .is_ok_and(|all| all.all.iter().any(|at| at.addr.addr == addr))
    };
    let mut strays = Vec::new();
    for outcome in outcomes {
        let backend = SocketAddr::new(outcome.destination.0, outcome.destination.1);
        let translated = |hop: &&std::rc::Rc<Hop>| {
            matches!(
                hop.effect,
                Effect::Dnat { .. } | Effect::Balance { .. } | Effect::Relay { .. }
            )
        };
        let Some(at) = outcome.hops.iter().rposition(|hop| translated(&hop)) else {
            continue;
        };
        let routed = outcome.hops[at..].iter().rev();
        let Some(hop) = routed
            .into_iter()
            .find(|hop| hop.subsystem == Subsystem::Routing)
        else {
            continue;
        };
        match &hop.effect {
            Effect::Nowhere { why } => strays.push((backend, Stray::NoRoute(why.clone()))),
            Effect::Out {
                device,
                gateway: Some(gateway),
            } if !own(*gateway) => {
                let local = port.is_some_and(|port| {
                    let mut endpoints = port.endpoints.iter();
                    endpoints.any(|e| e.addr == backend && e.local == Some(true))
                });
                if local {
                    let device = device.as_deref().unwrap_or("a link");
                    strays.push((backend, Stray::Away(format!("{device} via {gateway}"))));
                }
            }
            _ => {}
        }
    }
    strays
}

/// Adds a note for each translated packet without a route, or with one off this node although the backend is on it.
pub(super) fn routes(
    node: &NodeSnapshot<'_>,
    port: Option<&Port>,
    outcomes: &[Outcome],
    notes: &mut Vec<String>,
) {
    let mut away = Vec::new();
    for (backend, stray) in strays(node, port, outcomes) {
        match stray {
            Stray::NoRoute(why) => notes.push(format!("no route to backend {backend}: {why}")),
            Stray::Away(way) => away.push((backend.to_string(), way)),
        }
    }
    if let Some((_, way)) = away.first() {
        let names: Vec<_> = away.iter().map(|(addr, _)| addr.clone()).collect();
        notes.push(format!(
            "{} on this node, but the route leads off the node, by {way}",
            be(&names)
        ));
    }
}

fn be(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", listed(names))
}

/// Returns the first names, and how many more there are.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = &names[..names.len().min(MOST_NAMED)];
    let text = shown.join(", ");
    match names.len() - shown.len() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// The reasons why a packet does not reach the endpoints of its Service.
#[derive(Debug)]
pub(crate) struct Causes<'d, 'o> {
    /// The rule that takes the packet before kube-proxy's rules, and its owner.
    pub taken: Option<(&'o Hop, String)>,
    /// The changes of the Service's own rules; lacking those, the changes of the common rules. The most serious one is first.
    pub changes: Vec<&'d Change>,
}

/// Returns the reasons why packets to `at` with these `outcomes` do not reach the endpoints of `port`.
///
/// `diff` compares the node with the desired state.
pub(crate) fn reasons<'d, 'o>(
    diff: &'d Diff,
    port: &Port,
    at: IpAddr,
    outcomes: &'o [Outcome],
) -> Causes<'d, 'o> {
    let Some(first) = outcomes.first() else {
        return Causes {
            taken: None,
            changes: Vec::new(),
        };
    };
    let family = Family::of(first.sent_from);
    let of_family = |change: &&Change| change.family.is_none_or(|of| of == family);
    let spn = port.name.to_string();
    let is_mine = |change: &&Change| change.service.as_deref() == Some(&spn);
    let extra: Vec<&Change> = diff
        .changes
        .iter()
        .filter(of_family)
        .filter(|change| change.kind() != ChangeKind::Missing && !is_mine(change))
        .collect();
    let mut hops = outcomes.iter().flat_map(|outcome| &outcome.hops);
    let taken = hops.find_map(|hop| Some((hop.as_ref(), takes(hop, &extra)?)));
    let mut changes: Vec<&Change> = diff
        .changes
        .iter()
        .filter(of_family)
        .filter(is_mine)
        .collect();
    // Without a change of its own, a change of the common rules is the cause.
    if changes.is_empty() {
        changes = diff
            .changes
            .iter()
            .filter(of_family)
            .filter(|change| change.service.is_none() && change.kind() != ChangeKind::Extra)
            .collect();
    }
    // A Service has several addresses: what is wrong with the others explains less.
    changes.sort_by_cached_key(|change| (change.kind(), !is_about(change, at)));
    Causes { taken, changes }
}

/// Returns whether a change's text has the address.
fn is_about(change: &Change, at: IpAddr) -> bool {
    let text = in_words(change);
    text.split(|c: char| !(c.is_ascii_hexdigit() || matches!(c, '.' | ':')))
        .any(|word| {
            let with_port = || word.parse().map(|addr: SocketAddr| addr.ip());
            word.parse().or_else(|_| with_port()) == Ok(at)
        })
}

/// Returns a change as text: the object, and what is wrong with it.
pub(crate) fn in_words(change: &Change) -> String {
    let what = match (change.kind(), change.have(), change.want()) {
        (ChangeKind::Missing, _, Some(want)) => format!("is missing: {}", short(&want)),
        (ChangeKind::Missing, ..) => "is missing".to_owned(),
        (ChangeKind::Extra, Some(have), _) => format!("is extra: {}", short(&have)),
        (ChangeKind::Extra, ..) => "is extra".to_owned(),
        (ChangeKind::Differs, Some(have), Some(want)) => {
            format!("is {}, should be {}", short(&have), short(&want))
        }
        (ChangeKind::Differs, ..) => "differs".to_owned(),
    };
    format!("{} {what}", change.object)
}

/// Returns notes on the rule that takes the packet before kube-proxy's rules, and on missing rules of kube-proxy.
///
/// `diff` compares the node with the desired state.
pub(crate) fn causes(diff: &Diff, port: &Port, at: IpAddr, outcomes: &[Outcome]) -> Vec<String> {
    let mut notes = Vec::new();
    if outcomes.is_empty() {
        return notes;
    }
    let Causes { taken, changes } = reasons(diff, port, at, outcomes);
    if let Some((hop, owner)) = taken {
        notes.push(format!(
            "table {} rule {} of {} takes the packet first: {} ({owner})",
            hop.table,
            hop.number,
            hop.chain,
            short(&hop.rule)
        ));
    }
    if let Some(change) = changes.first() {
        let more = match changes.len() {
            1 => String::new(),
            2 => "; `kpx diff` lists one more difference".to_owned(),
            count => format!("; `kpx diff` lists {} more differences", count - 1),
        };
        notes.push(format!("why: {}{more}", in_words(change)));
    }
    for Unknown { what, gap, .. } in &diff.unknown {
        notes.push(format!("{what} were not compared: {gap}"));
    }
    notes
}

/// Returns the first line of a rule or chain, and how many more it has.
pub(crate) fn short(text: &str) -> String {
    match text.split_once('\n') {
        None => text.to_owned(),
        Some((first, _)) => format!("{first} (and more)"),
    }
}

/// Returns whether rule `number` of a chain is about certain destinations or ports, unlike a firewall's rule for all traffic.
pub(crate) fn is_particular(number: usize, rule: &str) -> bool {
    const WORDS: [&str; 6] = ["-d ", "--dport", "--dst", "daddr", "dport", "match-set"];
    number > 0 && WORDS.iter().any(|word| rule.contains(word))
}

/// Returns whether `hop` keeps a packet from the nat rules that come after it.
pub(crate) fn is_past_nat(hop: &Hop) -> bool {
    let nat = hop.table == "nat" && matches!(hop.hook, Hook::Prerouting | Hook::Output);
    match &hop.effect {
        Effect::Dnat { .. } | Effect::Untrack => true,
        Effect::Accept => nat,
        _ => false,
    }
}

/// Returns the owner of a hop's rule, if it keeps the packet from kube-proxy's rules and is not one of them.
fn takes(hop: &Hop, extra: &[&Change]) -> Option<String> {
    if hop.number == 0 {
        return None;
    }
    let away = match &hop.effect {
        Effect::Drop | Effect::Reject { .. } => true,
        // A rule of kube-proxy's own chains that should not be there.
        Effect::Return | Effect::Jump { .. } | Effect::Goto { .. } => {
            return extra
                .iter()
                .any(|change| is_of(&change.object, hop))
                .then(|| "kube-proxy did not write it".to_owned());
        }
        _ => is_past_nat(hop),
    };
    if !away {
        return None;
    }
    match why::maker(hop) {
        Maker::Other(who) => Some(who.to_owned()),
        Maker::Unknown => Some("not kube-proxy's".to_owned()),
        Maker::Kubelet => Some("the kubelet".to_owned()),
        Maker::KubeProxy | Maker::Both | Maker::Kernel => extra
            .iter()
            .any(|change| is_of(&change.object, hop))
            .then(|| "kube-proxy did not write it".to_owned()),
    }
}

fn is_of(object: &Object, hop: &Hop) -> bool {
    // A hop counts from 1.
    let is_at = |number: usize| number + 1 == hop.number;
    match object {
        Object::IptablesRule {
            table, chain, at, ..
        } => *table == hop.table && *chain == hop.chain && is_at(at.number),
        Object::IptablesChain { table, chain, .. } => *table == hop.table && *chain == hop.chain,
        _ => false,
    }
}
