//! Rules that are not kube-proxy's.

use crate::trace::{Effect, Entry, Hop, Outcome, Rule, Subsystem, mismatch, why};
use crate::verdict::{By, Cell, Fault, Obstacle, Which};
use crate::why::Cause;
use crate::why::look::Look;
use kpx_node::net::Family;
use kpx_node::owner::chain_owner::Maker;

impl Look<'_> {
    pub(super) fn foreign(&self, hop: &Hop, cell: &Cell) -> Cause {
        let faults = cell.verdict.faults();
        // `hop` is a jump if several rules behind it end packets: the first of these rules says more.
        let is_jump = matches!(hop.effect, Effect::Jump { .. } | Effect::Goto { .. });
        let mut ways = cell.outcomes.iter().zip(&cell.verdict.ways);
        let hop = ways
            .find_map(|(outcome, way)| match way.fault {
                Some(Fault::Stopped { hop, .. }) => outcome.hops.get(hop),
                _ => None,
            })
            .filter(|_| is_jump)
            .map_or(hop, |ended| &**ended);
        let family = Family::of(cell.flow.destination);
        let rule_of = Rule::of(hop, family);
        let software = match rule_of.maker(self.node, why::maker(hop)) {
            Maker::Other(who) => Some(who.to_owned()),
            Maker::Kubelet => Some("the kubelet".to_owned()),
            _ => None,
        };
        let rule = mismatch::short(&hop.rule);
        let is_on = |outcome: &Outcome| outcome.hops.iter().any(|other| **other == *hop);
        let there = cell.arrival.iter().flat_map(|arrival| &arrival.replies);
        let here = cell
            .verdict
            .ways
            .iter()
            .filter_map(|way| way.lost.as_deref());
        let which = faults.iter().find_map(|fault| match fault {
            Fault::Obstacle(what) => match **what {
                Obstacle::Further { which, .. } => Some(which),
                _ => None,
            },
            _ => None,
        });
        let is_first = cell.outcomes.iter().any(is_on);
        let which = match which {
            _ if is_first => None,
            Some(which @ (Which::Sent | Which::Datagram)) => Some(which),
            which => here
                .chain(there)
                .any(is_on)
                .then(|| which.unwrap_or(Which::Reply)),
        };
        let by = By::new(rule_of, why::maker(hop), self.node);
        let mut by = by.of_families([family], self.node);
        // A rule behind another one that ends packets is on no way yet.
        let next = cell.outcomes.first().filter(|_| which.is_none());
        let first = cell.outcomes.iter().find(|outcome| is_on(outcome));
        if let Some(first) = first.or(next) {
            by = match cell.flow.entry {
                Entry::Outside => {
                    by.from_outside(first.destination.into(), cell.flow.proto, self.node)
                }
                Entry::Host => by.from_host(family, self.node),
                Entry::Pod => by,
            };
        }
        Cause::ForeignRule {
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            number: hop.number,
            rule,
            effect: hop.effect.verb(),
            software,
            other_back_end: hop.subsystem == Subsystem::IptablesOther,
            which,
            then: faults.iter().find_map(|fault| follows(hop, fault)),
            by: Box::new(by),
        }
    }
}

/// Returns what happens to packets behind `hop`, which lets them pass.
pub(super) fn follows(hop: &Hop, fault: &Fault) -> Option<String> {
    if matches!(hop.effect, Effect::Drop | Effect::Reject { .. }) {
        return None;
    }
    if let (Effect::Ttl { .. }, Fault::Stopped { reason, .. }) = (&hop.effect, fault) {
        return Some(format!("({reason})"));
    }
    match fault {
        Fault::Stopped { .. } | Fault::Untranslated { again: false, .. } => None,
        Fault::Untranslated {
            address,
            service,
            again: true,
        } => {
            let owner = service.as_ref().map_or_else(
                || "in the Service range".to_owned(),
                |name| format!("an address of Service {name}"),
            );
            Some(format!(
                "to {address}, {owner}: a connection is translated once, so kube-proxy's rules no longer apply"
            ))
        }
        Fault::NoEndpoint { address, .. } => {
            Some(format!("to {address}, which is no endpoint of the Service"))
        }
        other => Some(format!("({other})")),
    }
}
