//! Where packets go compared with where the cluster's objects send them, and differences of the rules in words.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::hop::{Effect, Hook, Hop, Outcome, Verdict};
use super::packet::Flow;
use crate::diff::{Change, ChangeKind};
use kpx_node::net::Family;
use kpx_node::owner::{Endpoint, EndpointState, Owners, Port, PortName};

/// Names listed before the rest is counted.
const MOST_NAMED: usize = 3;

/// Iterates over the endpoints of `port` that may get connections.
pub(crate) fn usable(port: &Port, family: Family) -> impl Iterator<Item = &Endpoint> {
    port.endpoints.iter().filter(move |endpoint| {
        let takes = matches!(
            endpoint.state,
            Some(EndpointState::Ready | EndpointState::ServingTerminating) | None
        );
        takes && Family::of(endpoint.addr.ip()) == family
    })
}

/// Returns the backends that packets with these `outcomes` reach.
pub(crate) fn reached(outcomes: &[Outcome]) -> BTreeSet<SocketAddr> {
    let delivered = outcomes.iter().filter(|o| o.verdict == Verdict::Deliver);
    delivered
        .map(|o| SocketAddr::new(o.destination.0, o.destination.1))
        .collect()
}

/// Returns a note on the Service with the address of `flow`, which does not have the port.
pub fn other_port(owners: &Owners, flow: &Flow) -> Option<String> {
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

/// Returns the first names, and how many more there are.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = &names[..names.len().min(MOST_NAMED)];
    let text = shown.join(", ");
    match names.len() - shown.len() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Returns whether `text` is the Service of `name`, without a port.
pub(crate) fn is_service_of(text: &str, name: &PortName) -> bool {
    text.split_once('/') == Some((&name.namespace, &name.name))
}

/// Returns a change as text: the object and its fault.
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

/// Returns the first line of a rule or chain, and how many more it has.
pub(crate) fn short(text: &str) -> String {
    match text.split_once('\n') {
        None => text.to_owned(),
        Some((first, _)) => format!("{first} …"),
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
