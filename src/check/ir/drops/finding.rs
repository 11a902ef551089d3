//! The finding for a rule of other software that drops or diverts packets.

use std::collections::BTreeSet;

use super::{Act, Effects, Position};
use crate::check::{Finding, Fix, Proof, Prose, Rule, ServiceRef, Severity, Subject, Word};
use crate::net::Family;
use crate::node::{IptablesBackend, NodeSnapshot};
use crate::owner::software::Maker;
use crate::trace::{Subsystem, mismatch};

/// Services that a finding names; it counts the others.
const FEW: usize = 3;

/// The fix of a rule without a known owner.
const DELETE: &str =
    "If the rule is not needed, delete it here and in the configuration that creates it.";

/// Returns the finding for a rule.
pub(super) fn finding(node: &NodeSnapshot<'_>, position: &Position, effect: &Effects) -> Finding {
    let verb = match effect.act {
        Act::Drop => "drops",
        Act::Reject => "rejects",
        Act::Divert { .. } => "diverts",
    };
    let whole: BTreeSet<ServiceRef> = effect.services.iter().map(ServiceRef::whole).collect();
    let named: Vec<_> = whole.iter().take(FEW).map(ToString::to_string).collect();
    let more = match whole.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let services = format!("{}{more}", named.join(", "));
    let only_outside = effect.certain.keys().all(|kind| *kind == "outside");
    let (severity, message) = match (effect.certain.is_empty(), only_outside) {
        (true, _) => (
            Severity::Info,
            format!(
                "a rule of other software may {} traffic to {services}",
                &verb[..verb.len() - 1]
            ),
        ),
        // A firewall may close the node to the outside on purpose.
        (false, true) if !position.is_particular() => (
            Severity::Info,
            format!("the node's firewall {verb} traffic from outside to {services}"),
        ),
        (false, _) => (
            match effect.act {
                Act::Drop | Act::Reject => Severity::Error,
                Act::Divert { to_host: false } => Severity::Warning,
                // A program of the node that answers instead, such as a cache for DNS.
                Act::Divert { to_host: true } => Severity::Info,
            },
            format!("a rule of other software {verb} traffic to {services}"),
        ),
    };
    let mut seen = vec![position.proof()];
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
    let see = |text: String| {
        let text = Prose::from(text).and(" Trace a packet with ");
        match effect.certain.values().next() {
            None => text.kpx([Word::from("trace"), Word::Value("NAMESPACE/SERVICE")]),
            Some((from, to)) => text.kpx([
                "trace".to_owned(),
                to.to_string(),
                "--source".to_owned(),
                from.clone(),
            ]),
        }
        .and(".")
    };
    let finding = Finding::new(severity, position.about(), message)
        .called(position.subject(node))
        .services(&effect.services)
        .evidence(seen);
    if effect.certain.is_empty() {
        let text = "Compare the counter of the rule with the clients' errors; keep the rule if it is intended.";
        return finding.fix(text);
    }
    let command = position
        .deletion(node)
        .filter(|_| severity >= Severity::Warning);
    match (effect.maker, command) {
        (Maker::Other(who), _) => finding.fix(see(format!(
            "Change the rule in the configuration of {who}, which would otherwise restore it."
        ))),
        (_, Some(command)) => finding.fix(Fix::on_node(see(DELETE.to_owned()), command)),
        (_, None) if position.number == 0 => finding.fix(see(
            "Add a rule to the chain that accepts traffic of pods and Services.".to_owned(),
        )),
        (_, None) => finding.fix(see(DELETE.to_owned())),
    }
}

impl Position {
    /// Returns whether the rule matches packets by destination.
    fn is_particular(&self) -> bool {
        mismatch::is_particular(self.number, &self.rule)
    }

    /// Returns the program that lists and changes the rule.
    fn program(&self, node: &NodeSnapshot<'_>) -> String {
        let holds = |store| node.saved(store, self.family).is_ok();
        // The other backend's items show which one is in use.
        let back_end = match (
            self.other,
            holds(IptablesBackend::Legacy),
            holds(IptablesBackend::Nft),
        ) {
            (true, true, _) | (false, _, true) => "-legacy",
            (true, false, true) | (false, true, false) => "-nft",
            (_, false, false) => "",
        };
        match (self.nft, self.family) {
            (true, _) => "nft".to_owned(),
            (false, Family::V4) => format!("iptables{back_end}"),
            (false, Family::V6) => format!("ip6tables{back_end}"),
        }
    }

    fn about(&self) -> Subject {
        Subject::Rule(Rule {
            family: self.family,
            subsystem: match (self.nft, self.other) {
                (true, _) => Subsystem::Nftables,
                (false, true) => Subsystem::IptablesOther,
                (false, false) => Subsystem::Iptables,
            },
            table: self.table.clone(),
            chain: self.chain.clone(),
            number: self.number,
            rule: self.rule.clone(),
        })
    }

    fn subject(&self, node: &NodeSnapshot<'_>) -> String {
        let which = match self.number {
            0 => "policy".to_owned(),
            number => format!("rule {number}"),
        };
        let program = self.program(node);
        format!("{program} {} {} {which}", self.table, self.chain)
    }

    fn proof(&self) -> Proof {
        let rule = match (self.number, self.nft) {
            (0, true) => format!("{} policy drop", self.chain),
            (0, false) => format!("-P {} DROP", self.chain),
            (_, true) => format!("{}: {}", self.chain, self.rule),
            (_, false) => format!("-A {} {}", self.chain, self.rule),
        };
        Proof::rule(self.family, self.table.as_str(), rule)
    }

    /// Returns the command that deletes the rule.
    fn deletion(&self, node: &NodeSnapshot<'_>) -> Option<String> {
        let at = self.number.checked_sub(1)?;
        if self.nft {
            let (family, name) = self.table.split_once(' ')?;
            let chain = node.nft().ok()?.table(family, name)?.chain(&self.chain)?;
            let handle = chain.rules.get(at)?.handle?;
            return Some(format!(
                "nft delete rule {family} {name} {} handle {handle}",
                self.chain
            ));
        }
        let program = self.program(node);
        Some(format!(
            "{program} -t {} -D {} {}",
            self.table, self.chain, self.rule
        ))
    }
}
