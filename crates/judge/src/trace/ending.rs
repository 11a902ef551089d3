//! How a packet ends.

use super::branch::Branch;
use super::hop::{Hook, Outcome, Verdict};

/// Why the end of a translated packet is unknown after a rule that gives it a zone that is not known.
const ZONES: &str =
    "kpx does not follow which one, and replies of another zone are not translated back";

/// A packet that got through its last hook.
pub(super) fn arrived(branch: Branch, hook: Hook) -> Outcome {
    let packet = &branch.packet;
    if let Some(rule) = &packet.unknown_zone
        && (packet.dnat || packet.snat || packet.translated)
    {
        let reason = format!("put into a conntrack zone {rule}: {ZONES}");
        return outcome(branch, Verdict::Unknown, &reason);
    }
    let translated = branch.packet.dnat || branch.packet.virtual_server.is_some();
    match (translated, hook) {
        (true, _) => outcome(branch, Verdict::Deliver, "translated to a backend"),
        (false, Hook::Input) => outcome(branch, Verdict::Local, "delivered to the host itself"),
        (false, _) => outcome(
            branch,
            Verdict::Unmatched,
            "no rule translates it; it is routed unchanged",
        ),
    }
}

pub(super) fn outcome(branch: Branch, verdict: Verdict, reason: &str) -> Outcome {
    Outcome {
        verdict,
        probability: branch.weight,
        destination: branch.packet.target(),
        masquerade: branch.packet.snat,
        sticky: branch.packet.sticky,
        sent_from: branch.packet.original_source().shown(),
        source: branch.packet.source().shown(),
        as_sent: branch.packet.as_sent,
        when: branch.when,
        reason: reason.to_owned(),
        hops: branch.path.hops(),
        bridged: branch.packet.bridged,
        gateway: branch.packet.gateway,
        ttl: branch.packet.ttl,
        carried: branch.packet.carried(),
        output: branch.packet.output,
    }
}

/// Returns the common verdict of all outcomes: theirs, if they agree; unknown, if an unknown fact decides; else mixed.
pub fn overall(outcomes: &[Outcome]) -> Verdict {
    let mut verdicts = outcomes.iter().map(|outcome| outcome.verdict);
    let Some(first) = verdicts.next() else {
        return Verdict::Unknown;
    };
    let unsure = outcomes
        .iter()
        .any(|o| o.verdict == Verdict::Unknown || !o.when.is_empty());
    match (verdicts.all(|verdict| verdict == first), unsure) {
        (true, _) => first,
        (false, true) => Verdict::Unknown,
        (false, false) => Verdict::Mixed,
    }
}

/// Merges ways that end alike and differ only in an assumption without effect.
pub(super) fn merge(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut merged: Vec<Outcome> = Vec::new();
    for outcome in outcomes {
        let same = |o: &&mut Outcome| {
            o.verdict == outcome.verdict
                && o.destination == outcome.destination
                && o.masquerade == outcome.masquerade
                && o.sticky == outcome.sticky
                && o.source == outcome.source
                && o.output == outcome.output
                && o.carried == outcome.carried
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
