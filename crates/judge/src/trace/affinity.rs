//! Session affinity: the backend to which the node remembers to have sent a client.

use std::net::{IpAddr, SocketAddr};

use super::hop::{Effect, Hop, Outcome, Subsystem};
use super::nftables::chain::AFFINITY;
use super::packet::Flow;
use kpx_node::backend::nftables::model::{Element, Expr};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Port;

/// Returns `outcomes` for the client of `flow`: of the outcomes that bind clients, the one with the backend to which this
/// client is bound, if known.
pub fn remembered(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    port: Option<&Port>,
    mut outcomes: Vec<Outcome>,
) -> Vec<Outcome> {
    let bound = outcomes
        .iter()
        .position(|outcome| binds(node, flow, port, outcome));
    if let Some(at) = bound {
        let mut only = outcomes.swap_remove(at);
        only.probability = 1.0;
        return vec![only];
    }
    outcomes
}

/// Returns whether the node remembers that it sent the client of `flow` to the backend of `outcome`.
pub(super) fn binds(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    port: Option<&Port>,
    outcome: &Outcome,
) -> bool {
    let client = outcome.sent_from;
    let mut hops = outcome.hops.iter();
    outcome.sticky
        && !flow.established
        && hops.any(|hop| match hop.subsystem {
            Subsystem::Ipvs => in_template(node, flow, client, outcome.destination.into()),
            _ => {
                in_list(node, client, port, hop).unwrap_or(false)
                    || in_set(node, client, hop).unwrap_or(false)
            }
        })
}

/// Returns whether IPVS has a template that leads `client` to `real`.
fn in_template(node: &NodeSnapshot<'_>, flow: &Flow, client: IpAddr, real: SocketAddr) -> bool {
    let server = SocketAddr::new(flow.destination, flow.port);
    let all = node.ipvs_connections();
    all.is_ok_and(|all| {
        all.all.iter().any(|entry| {
            entry.client.port() == 0
                && entry.client.ip() == client
                && entry.server == server
                && entry.proto == flow.proto
                && entry.real == real
        })
    })
}

/// Returns whether `client` is in the list of `xt_recent` to which the rule of `hop` adds it, and not for too long.
fn in_list(
    node: &NodeSnapshot<'_>,
    client: IpAddr,
    port: Option<&Port>,
    hop: &Hop,
) -> Option<bool> {
    let (_, rest) = hop.rule.split_once("-m recent --set ")?;
    let (_, name) = rest.split_once("--name ")?;
    let name = name.split_ascii_whitespace().next()?;
    let seconds = port.and_then(|port| seconds(node, port));
    let recent = node.recent().ok()?;
    let mut all = recent.clients.iter();
    let found = all.find(|entry| entry.list == name && entry.addr == client)?;
    Some(found.age? < f64::from(seconds?))
}

/// Returns for how many seconds the Service of `port` binds clients.
fn seconds(node: &NodeSnapshot<'_>, port: &Port) -> Option<u32> {
    let mut services = node.services().ok()?.iter();
    let service = services.find(|service| {
        *service.metadata.name == *port.name.name
            && *service.metadata.namespace == *port.name.namespace
    })?;
    service.spec.affinity()
}

/// Returns whether `client` is in the set of nftables that the rule of `hop` updates.
fn in_set(node: &NodeSnapshot<'_>, client: IpAddr, hop: &Hop) -> Option<bool> {
    let Effect::Other { what } = &hop.effect else {
        return None;
    };
    let (_, name) = what.split_once('@')?;
    let rules = node.nft().ok().filter(|_| name.starts_with(AFFINITY))?;
    let is_it =
        |element: &Element| matches!(&element.key, Expr::Word(word) if word.parse() == Ok(client));
    let mut sets = rules.tables.iter().filter_map(|table| table.set(name));
    Some(sets.any(|set| set.elements.iter().any(is_it)))
}
