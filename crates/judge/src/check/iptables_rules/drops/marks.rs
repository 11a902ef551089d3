//! Rules of other software that clear the mark with which kube-proxy's rules say what to masquerade.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::check::core::{proof_of, some_services};
use crate::check::{Facts, Finding, Proof, ServiceRef, Severity, Subject, Verdict, rule_fix};
use crate::proof::difference::Harm;
use crate::proof::{clears_mark, of_node};
use crate::trace::{Effect, Hop, Rule, why};
use crate::verdict::By;
use kpx_node::backend::Mode;
use kpx_node::net::Family;
use kpx_node::owner::PortName;
use kpx_node::owner::chain_owner::{self, Maker};

/// The packets that lose the mark by one rule.
struct Cleared {
    maker: Maker,
    family: Family,
    services: BTreeSet<ServiceRef>,
    /// The source and the destination of one of them.
    shown: (String, SocketAddr),
}

/// Returns a finding for each rule of other software after which kube-proxy's rules no longer masquerade packets of Services.
pub(super) fn unmasqueraded(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let bit = 1_u32
        .checked_shl(u32::from(facts.configuration()?.masquerade_bit(mode)))
        .unwrap_or(0);
    let is_others = |table: &str, chain: &str| {
        is_other(chain_owner::maker_of_table(table))
            && is_other(chain_owner::maker_of_chain(table, chain))
    };
    if mode == Mode::Userspace || !clears_mark(facts.node, bit, is_others) {
        return Ok(Vec::new());
    }
    let packets = of_node(facts.node, mode, &Family::BOTH)?;
    let mut found: BTreeMap<Rule, Cleared> = BTreeMap::new();
    for of in &packets.foreign {
        let witness = &of.difference.witness;
        if of.difference.harm != Harm::Source || witness.mark != 0 {
            continue;
        }
        let mut hops = of.traces[0].iter().flat_map(|outcome| &outcome.hops);
        let Some(hop) = hops.find(|hop| clears(hop, bit) && is_other(why::maker(hop))) else {
            continue;
        };
        let family = Family::of(witness.destination);
        let from = witness.source;
        let cleared = found
            .entry(Rule::of(hop, family))
            .or_insert_with(|| Cleared {
                maker: why::maker(hop),
                family,
                services: BTreeSet::new(),
                shown: (
                    from.map_or_else(|| "host".to_owned(), |from| from.to_string()),
                    SocketAddr::new(witness.destination, witness.port),
                ),
            });
        let names = of.difference.names().filter_map(PortName::parse);
        cleared.services.extend(names.map(ServiceRef::from));
    }
    let found = found.into_iter();
    Ok(found
        .map(|(rule, of)| finding(facts, &rule, &of, bit))
        .collect())
}

/// Returns whether the rules of `maker` are of other software; that of network plugins counts, too.
const fn is_other(maker: Maker) -> bool {
    !matches!(maker, Maker::KubeProxy | Maker::Both | Maker::Kubelet)
}

/// Returns whether the rule of `hop` clears the bit of the packet's mark.
fn clears(hop: &Hop, bit: u32) -> bool {
    matches!(hop.effect, Effect::Mark { from, to } if from & bit != 0 && to & bit == 0)
}

fn finding(facts: &Facts<'_>, rule: &Rule, of: &Cleared, bit: u32) -> Finding {
    let message = format!(
        "a rule of other software clears kube-proxy's mark {bit:#x}, so packets to {} are not masqueraded: endpoints on other nodes answer \
         their clients directly",
        some_services(&of.services)
    );
    let (from, to) = &of.shown;
    let by = By::new(rule.clone(), of.maker, facts.node);
    let mut fix = rule_fix(&by.of_families([of.family], facts.node));
    let trace = ["trace", &to.to_string(), "--source", from].map(str::to_owned);
    fix.text = fix.text.and(" Trace a packet with ").kpx(trace).and(".");
    Finding::new(Severity::Warning, Subject::Rule(rule.clone()), message)
        .called(rule.name(facts.node))
        .services(&of.services)
        .evidence([
            proof_of(rule),
            Proof::Note(format!("a packet from {from} to {to} loses the mark here")),
        ])
        .fix(fix)
}
