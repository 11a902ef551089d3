//! How a packet ends.

use super::hop::{Hook, Outcome, Verdict};
use super::walk::State;

/// A packet that got through its last hook.
pub(super) fn arrived(state: State, hook: Hook) -> Outcome {
    let translated = state.packet.dnat || state.packet.virtual_server.is_some();
    match (translated, hook) {
        (true, _) => outcome(state, Verdict::Deliver, "translated to a backend"),
        (false, Hook::Input) => outcome(state, Verdict::Local, "taken by the host itself"),
        (false, _) => outcome(
            state,
            Verdict::Unmatched,
            "no rule translates it; it is routed as it is",
        ),
    }
}

pub(super) fn outcome(state: State, verdict: Verdict, reason: &str) -> Outcome {
    Outcome {
        verdict,
        probability: state.weight,
        destination: (state.packet.destination, state.packet.port),
        masquerade: state.packet.source != state.packet.original_source || state.packet.snat,
        sent_from: state.packet.original_source,
        source: state.packet.source,
        when: state.when,
        reason: reason.to_owned(),
        hops: state.path.hops(),
    }
}

/// Puts ways together that end alike and differ in nothing but an assumption without effect.
pub(super) fn merge(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut merged: Vec<Outcome> = Vec::new();
    for outcome in outcomes {
        let same = |o: &&mut Outcome| {
            o.verdict == outcome.verdict
                && o.destination == outcome.destination
                && o.masquerade == outcome.masquerade
                && o.source == outcome.source
                && o.reason == outcome.reason
        };
        match merged.iter_mut().find(same) {
            Some(first) => {
                first.probability += outcome.probability;
                first.when.retain(|when| outcome.when.contains(when));
            }
            None => merged.push(outcome),
        }
    }
    merged.sort_by(|a, b| {
        b.probability
            .total_cmp(&a.probability)
            .then(a.destination.cmp(&b.destination))
    });
    merged
}
