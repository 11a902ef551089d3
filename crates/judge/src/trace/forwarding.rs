//! Forwarding that is off: the kernel drops packets that it would have to forward, whatever the rules decide.

use std::rc::Rc;

use super::ending::merge;
use super::hop::{Effect, Hook, Hop, Outcome, Subsystem, Verdict};
use super::packet::Flow;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Returns the sysctl that turns forwarding off, if the node would have to forward the packet of `outcomes`.
fn forwarding_off(
    node: &NodeSnapshot<'_>,
    flow: &Flow,
    outcomes: &[Outcome],
) -> Option<&'static str> {
    let key = not_forwarding(node, Family::of(flow.destination)).ok()??;
    let forwards = outcomes.iter().any(|outcome| first(outcome).is_some());
    forwards.then_some(key)
}

/// Returns the sysctl that turns forwarding off in `family`, if one does.
pub fn not_forwarding(
    node: &NodeSnapshot<'_>,
    family: Family,
) -> Result<Option<&'static str>, Gap> {
    let keys: &[&'static str] = match family {
        Family::V4 => &["net.ipv4.ip_forward", "net.ipv4.conf.all.forwarding"],
        Family::V6 => &["net.ipv6.conf.all.forwarding"],
    };
    let sysctl = node.sysctl()?;
    let found = keys.iter().find_map(|key| Some((*key, sysctl.get(key)?)));
    match found {
        Some((key, "0")) => Ok(Some(key)),
        Some(_) => Ok(None),
        None => {
            sysctl.whole()?;
            let what = format!("it has no {}", keys[0]);
            Err(Gap::Absent(Item::Sysctl, what))
        }
    }
}

/// Returns the position of the first hop at which the node forwards the packet.
fn first(outcome: &Outcome) -> Option<usize> {
    outcome
        .hops
        .iter()
        .position(|hop| hop.hook == Hook::Forward)
}

/// Returns the `outcomes` of rules with the kernel's own decision: if forwarding is off, a packet that the node would have to
/// forward is dropped before FORWARD.
pub fn forwarded(node: &NodeSnapshot<'_>, flow: &Flow, outcomes: &[Outcome]) -> Vec<Outcome> {
    let Some(key) = forwarding_off(node, flow, outcomes) else {
        return outcomes.to_vec();
    };
    let dropped = outcomes.iter().map(|outcome| {
        let Some(at) = first(outcome) else {
            return outcome.clone();
        };
        let mut hops = outcome.hops[..at].to_vec();
        let why = format!("not forwarded: {key} is 0");
        let effect = Effect::Nowhere { why };
        hops.push(Rc::new(Hop::without_rule(
            Hook::Forward,
            Subsystem::Routing,
            effect,
        )));
        Outcome {
            verdict: Verdict::Drop,
            masquerade: false,
            sticky: false,
            source: outcome.sent_from,
            reason: format!("{key} is 0, so the node forwards no packets"),
            hops,
            ..outcome.clone()
        }
    });
    merge(dropped.collect())
}
