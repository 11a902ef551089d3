//! What is odd about a trace, beyond its verdict.

use std::net::SocketAddr;

use super::hop::{Effect, Hook, Layer, Outcome, Verdict};
use super::ipvs::is_sticky;
use super::odd;
use super::packet::{Entry, Flow};
use crate::backend::ipvs::model::Key;
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::{NodeSnapshot, Store};
use crate::owner::Port;

/// Returns what is odd about `outcomes` of `flow`, in words; `service` is the Service port it is for, as the API tells.
pub fn notes(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
) -> Vec<String> {
    let mut notes = Vec::new();
    forwarding(node, flow, outcomes, &mut notes);
    undecided(outcomes, &mut notes);
    if flow.established {
        notes.push(
            "a later packet of a connection: translations are those its first packet meets now, and one that began under other rules keeps its own".to_owned(),
        );
    }
    if let Some(port) = service {
        if let Some(who) = &port.left_to {
            notes.push(format!(
                "{} is left to {who} by its label service-proxy-name; kube-proxy passes it over",
                port.name
            ));
        } else {
            odd::backends(port, outcomes, &mut notes);
        }
    }
    odd::routes(node, service, outcomes, &mut notes);
    affinity(node, flow, outcomes, &mut notes);
    conntrack(node, flow, outcomes, service, &mut notes);
    nobody_listens(node, flow, outcomes, &mut notes);
    gaps(node, flow, &mut notes);
    notes
}

/// Without forwarding the kernel drops between links whatever rules let pass; rules alone make the verdict.
fn forwarding(node: &NodeSnapshot<'_>, flow: &Flow, outcomes: &[Outcome], notes: &mut Vec<String>) {
    let keys: &[&str] = match Family::of(flow.destination) {
        Family::V4 => &["net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"],
        Family::V6 => &["net.ipv6.conf.all.forwarding"],
    };
    let Ok(sysctl) = node.sysctl() else { return };
    let Some((key, value)) = keys.iter().find_map(|key| Some((key, sysctl.get(key)?))) else {
        return;
    };
    let forwarded = outcomes
        .iter()
        .flat_map(|o| &o.hops)
        .any(|hop| hop.hook == Hook::Forward);
    if forwarded && value == "0" {
        notes.push(format!("{key} is 0: the node does not forward, so what goes from link to link is dropped after all this"));
    }
}

fn undecided(outcomes: &[Outcome], notes: &mut Vec<String>) {
    let mut said = Vec::new();
    for when in outcomes.iter().flat_map(|outcome| &outcome.when) {
        let question = when.trim_end_matches(": yes").trim_end_matches(": no");
        if !said.contains(&question) {
            said.push(question);
            notes.push(format!(
                "not known, both ways are shown and share evenly: {question}"
            ));
        }
    }
}

fn affinity(node: &NodeSnapshot<'_>, flow: &Flow, outcomes: &[Outcome], notes: &mut Vec<String>) {
    let hops = || outcomes.iter().flat_map(|outcome| &outcome.hops);
    let recent = hops().any(|hop| hop.layer != Layer::Ipvs && hop.rule.contains("-m recent"));
    let set = hops()
        .any(|hop| matches!(&hop.effect, Effect::Other { what } if what.contains("@affinity-")));
    let key = Key::Address {
        proto: flow.proto,
        addr: flow.destination,
        port: flow.port,
    };
    let persistent = hops().any(|hop| hop.layer == Layer::Ipvs)
        && node.ipvs().is_ok_and(|table| {
            table
                .servers
                .iter()
                .any(|server| server.key == key && is_sticky(server))
        });
    if recent || set || persistent {
        notes.push(
            "session affinity: this is a client without a record; one with a record goes to its old backend".to_owned(),
        );
    }
    let chooses = |scheduler: &str| matches!(scheduler, "sh" | "dh" | "mh" | "lblc" | "lblcr");
    let by_address = hops().find_map(|hop| match &hop.effect {
        Effect::Balance { scheduler, .. } if chooses(scheduler) => Some(scheduler.clone()),
        _ => None,
    });
    if let Some(scheduler) = by_address {
        notes.push(format!(
            "scheduler {scheduler} chooses by address: the shares are over all clients, each alone reaches one backend"
        ));
    }
}

/// A tracked connection is translated as it was when it began, whatever the rules say now.
fn conntrack(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    service: Option<&Port>,
    notes: &mut Vec<String>,
) {
    let Ok(table) = node.conntrack() else { return };
    let target = SocketAddr::new(flow.destination, flow.port);
    let sent_from = outcomes.first().map(|outcome| outcome.sent_from);
    let mut backends: Vec<SocketAddr> = Vec::new();
    let (mut count, mut own) = (0usize, 0usize);
    for entry in &table.entries {
        if entry.proto != flow.proto || entry.original.destination != target {
            continue;
        }
        count += 1;
        own += usize::from(Some(entry.original.source.ip()) == sent_from);
        let backend = entry.reply.source;
        if !backends.contains(&backend) {
            backends.push(backend);
        }
    }
    backends.sort();
    let stale: Vec<_> = backends
        .iter()
        .filter(|addr| service.is_some_and(|port| port.endpoints.iter().all(|e| e.addr != **addr)))
        .map(ToString::to_string)
        .collect();
    // Where all of them go to endpoints that new connections may go to as well, that is no news.
    let chosen = odd::reached(outcomes);
    if stale.is_empty() && backends.iter().all(|backend| chosen.contains(backend)) {
        return;
    }
    let all: Vec<_> = backends.iter().map(ToString::to_string).collect();
    let (noun, verb) = if count == 1 {
        ("connection", "passes")
    } else {
        ("connections", "pass")
    };
    let own = match (own, sent_from) {
        (0, _) | (_, None) => String::new(),
        (own, Some(source)) => format!("; {own} of them from {source}"),
    };
    notes.push(format!(
        "{count} tracked {noun} to {target} {verb} all of this by, to {}{own}",
        odd::listed(&all)
    ));
    if !stale.is_empty() {
        notes.push(format!(
            "tracked connections still go to {}, no endpoint any more; `conntrack -D -p {} --orig-dst {} --orig-port-dst {}` ends them",
            odd::listed(&stale), flow.proto, flow.destination, flow.port
        ));
    }
}

fn nobody_listens(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
    notes: &mut Vec<String>,
) {
    let ends_here = |outcome: &&Outcome| outcome.verdict == Verdict::Local;
    let Some(outcome) = outcomes.iter().find(ends_here) else {
        return;
    };
    let (addr, port) = outcome.destination;
    match node.sockets() {
        Ok(sockets) => match sockets.taking(flow.proto, addr, port).next() {
            None => notes.push(format!(
                "nothing on this host listens on {}/{}",
                SocketAddr::new(addr, port),
                flow.proto
            )),
            Some(socket) => {
                let holder = socket.processes.first().map_or_else(
                    || "a process that is not told".to_owned(),
                    |process| format!("{} (pid {})", process.name, process.pid),
                );
                notes.push(format!("{holder} listens there"));
            }
        },
        Err(gap) => notes.push(format!(
            "whether something listens on port {port} is not known: {gap}"
        )),
    }
}

/// Says which rules of `family` the kernel applies and a trace cannot show: those of an iptables back end that holds tables
/// and whose program is missing, say.
pub fn unread(node: &NodeSnapshot<'_>, family: Family) -> Vec<String> {
    let back_ends = [(Store::Legacy, "legacy"), (Store::Nft, "nft")];
    let unread = back_ends.into_iter().filter_map(|(store, name)| {
        let gap = match node.saved(store, family) {
            Ok(_) | Err(Gap::NotCollected(_) | Gap::NotApplicable(_)) => return None,
            Err(gap) => gap,
        };
        Some(format!(
            "the {name} back end of iptables holds tables that this trace leaves out, and that may drop the packet: {gap}"
        ))
    });
    unread.collect()
}

fn gaps(node: &NodeSnapshot<'_>, flow: &Flow, notes: &mut Vec<String>) {
    let mut missing = |what: &str, gap: Option<Gap>| match gap {
        // Not there is not the same as not known.
        None | Some(Gap::NotApplicable(_) | Gap::Absent(..)) => {}
        Some(gap) => notes.push(format!("{what}: {gap}")),
    };
    missing(
        "traced without routes, by addresses alone",
        node.routes().err(),
    );
    missing("traced without the rules of nftables", node.nft().err());
    if flow.entry != Entry::Host {
        missing(
            "traced without settings such as ip_forward",
            node.sysctl().err(),
        );
    }
    if Family::of(flow.destination) == Family::V4 {
        missing(
            "tracked connections were not looked at",
            node.conntrack().err(),
        );
    }
}
