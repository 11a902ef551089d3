//! The finding for a rule of other software that drops or diverts packets.

use super::effects::{Act, Effects};
use crate::check::core::{proof_of, some_services};
use crate::check::{Finding, Proof, Severity, Subject, limit_fix, rule_fix};
use crate::trace::Rule;
use crate::verdict::By;
use kpx_node::node::NodeSnapshot;

/// Returns the finding for a rule.
pub(super) fn finding(node: &NodeSnapshot<'_>, rule: &Rule, effect: &Effects) -> Finding {
    let verb = match effect.act {
        Act::Drop => "drops",
        Act::Reject => "rejects",
        Act::Divert { .. } => "diverts",
    };
    let services = some_services(&effect.services);
    let only_outside = effect.certain.keys().all(|kind| *kind == "outside");
    let (severity, message) = match (effect.certain.is_empty(), &effect.limit, only_outside) {
        (true, Some(limit), _) => (
            if limit.is_usual {
                Severity::Error
            } else {
                Severity::Warning
            },
            format!(
                "a rule of other software {verb} what exceeds its limit, also of traffic to {services}{}",
                limit.so_far()
            ),
        ),
        (true, None, _) => (
            Severity::Info,
            format!(
                "a rule of other software may {} traffic to {services}",
                &verb[..verb.len() - 1]
            ),
        ),
        // A firewall may block clients outside on purpose.
        (false, _, true) if !rule.is_particular() => (
            Severity::Info,
            format!("the node's firewall {verb} traffic from outside to {services}"),
        ),
        (false, ..) => (
            match effect.act {
                Act::Drop | Act::Reject => Severity::Error,
                Act::Divert { to_host: false } => Severity::Warning,
                // A program of the node that answers instead, such as a cache for DNS.
                Act::Divert { to_host: true } => Severity::Info,
            },
            format!("a rule of other software {verb} traffic to {services}"),
        ),
    };
    let mut seen = vec![proof_of(rule)];
    seen.extend(effect.certain.iter().map(|(kind, (_, to))| {
        let from = match *kind {
            "pod" => "a pod of this node",
            "host" => "the node",
            _ => "outside",
        };
        Proof::Note(match effect.act {
            Act::Drop | Act::Reject => format!("a packet from {from} to {to} ends here"),
            Act::Divert { .. } => {
                format!("kube-proxy's rules do not see a packet from {from} to {to}")
            }
        })
    }));
    if effect.certain.is_empty() {
        let open = effect
            .open
            .iter()
            .map(|when| Proof::Note(format!("depends on: {when}")));
        seen.extend(open);
    }
    let finding = Finding::new(severity, Subject::Rule(rule.clone()), message)
        .called(rule.name(node))
        .services(&effect.services)
        .evidence(seen);
    if let (true, Some(limit)) = (effect.certain.is_empty(), &effect.limit) {
        let by = By::new(rule.clone(), effect.maker, node);
        return finding.fix(limit_fix(limit, &by));
    }
    let Some((from, to)) = effect.certain.values().next() else {
        let text = "Compare the counter of the rule with the clients' errors; keep the rule if it is intended.";
        return finding.fix(text);
    };
    let by = By::new(rule.clone(), effect.maker, node);
    let mut fix = rule_fix(&by.of_families(effect.families.iter().copied(), node));
    fix.advice = fix.advice.filter(|_| severity >= Severity::Warning);
    let trace = ["trace", &to.to_string(), "--source", from].map(str::to_owned);
    fix.text = fix.text.and(" Trace a packet with ").kpx(trace).and(".");
    finding.fix(fix)
}
