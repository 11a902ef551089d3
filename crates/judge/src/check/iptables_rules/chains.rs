//! kube-proxy's chains: old, repeated or too many rules, and packets they drop.

use foldhash::{HashSet, HashSetExt as _};

use crate::check::core::{
    Collector, FAMILIES, IDLE, MODE, OBSERVED, RULES, VERSION, all_rules, family_or_proxy,
    rule_proof, syncs_slower_than, there,
};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Match, States, Target};
use kpx_node::cluster::release::Change;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::desired::NEEDS;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IR06",
        name: "chains-of-old-releases",
        severity: Severity::Error,
        when: When::Now,
        title: "No chain of an old kube-proxy release is left over",
        symptom: "None for weeks; then every sync fails at the next change of an endpoint.",
        why: "Older releases wrote KUBE-XLB chains for the Local traffic policy. Newer releases do not know and \
              never remove them. An old chain that jumps to a current one prevents its \
              deletion, and the whole sync fails.",
        verify: "There may be no chain with these names.",
        commands: &[Example::on_node("iptables-save | grep KUBE-XLB-")],
        fix: Text::plain(
            "Flush these chains and delete them, with the rules that jump to them, before the next change of an \
             endpoint: `iptables -t nat -F CHAIN`, `iptables -t nat -X CHAIN`.",
        ),
        incidents: &["kubernetes/kubernetes#132516: a month after the upgrade"],
        needs: &[RULES, IDLE, VERSION],
        caused_by: &[],
        run: old_chains,
    },
    Check {
        id: "IR12",
        name: "repeated-rules",
        severity: Severity::Warning,
        when: When::Now,
        title: "No rule in kube-proxy's chains is duplicated",
        symptom: "Rules grow by the hour, and so does the time of each sync.",
        why: "kube-proxy writes a chain as a whole, so no rule appears in it twice. Copies come from another writer: \
              a second kube-proxy, a script that restores a saved state, or a mix of backends.",
        verify: "No line may appear twice.",
        commands: &[Example::on_node(
            "iptables-save | grep '^-A KUBE-' | sort | uniq -d | head",
        )],
        fix: Text::plain(
            "Find the other writer and stop it; then restart kube-proxy on this node.",
        ),
        incidents: &["kubernetes/kubernetes#14870: 164,000 lines of rules"],
        needs: &[MODE, RULES, IDLE, &[Item::Services, Item::EndpointSlices]],
        caused_by: &[],
        run: repeated,
    },
    Check {
        id: "IR14",
        name: "invalid-dropped",
        severity: Severity::Warning,
        when: When::Now,
        title: "Few packets are dropped because conntrack considers them invalid",
        symptom: "Long transfers stall or break when replies take another route than requests.",
        why: "kube-proxy drops packets that conntrack considers invalid, because they would reset connections. With \
              asymmetric routing, or an address that several nodes announce, valid packets are among them.",
        verify: "The counter of the rule must not grow fast.",
        commands: &[Example::on_node("iptables -nvL KUBE-FORWARD")],
        fix: Text::plain(
            "If routing is asymmetric on purpose, set conntrack.tcpBeLiberal to true: kube-proxy then does not \
             write the rule.",
        ),
        incidents: &[
            "kubernetes/kubernetes#94861",
            "kubernetes/kubernetes#120412",
        ],
        needs: &[MODE, RULES, IDLE, OBSERVED, FAMILIES],
        caused_by: &[],
        run: invalid,
    },
    Check {
        id: "IR15",
        name: "rule-count",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Iptables]),
        title: "The iptables mode does not have too many rules",
        symptom: "Changes reach the node late, kube-proxy uses a whole CPU core, and other users of iptables wait for \
              its lock.",
        why: "All iptables tools read and write a table as a whole. With tens of thousands of rules each read or \
              write takes seconds, and the first packet of a connection passes through a long list.",
        verify: "Count the rules in kube-proxy's chains, and check the duration of its syncs.",
        commands: &[
            Example::on_node("iptables-save | grep -c '^-A KUBE-'"),
            Example::on_node(
                "curl -s http://127.0.0.1:10249/metrics | grep sync_proxy_rules_duration_seconds",
            ),
        ],
        fix: Text::plain("Plan the switch to the nftables mode."),
        incidents: &["kubernetes/enhancements#3866: the reason for the nftables mode"],
        needs: &[MODE, RULES, IDLE, OBSERVED, FAMILIES, NEEDS],
        caused_by: &[],
        run: many_rules,
    },
];

fn old_chains(facts: &Facts<'_>) -> Verdict {
    let version = facts.version();
    if let Ok(of) = &version
        && !of.version.has(Change::ForgetsOldChains)
    {
        let why = format!(
            "kube-proxy {} writes these chains, or removes them",
            of.version
        );
        return Err(Gap::NotApplicable(why));
    }
    let is_old = |name: &str| name.starts_with("KUBE-XLB-");
    let mut findings = Collector::default();
    for (family, store, rules) in all_rules(facts, &mut findings) {
        for table in &rules.tables {
            for chain in table.chains.iter().filter(|chain| is_old(&chain.name)) {
                let leads = chain.rules.iter().any(|rule| {
                    let to = match &rule.target {
                        Some(Target::Jump(to) | Target::Goto(to)) => to.as_ref(),
                        _ => "",
                    };
                    to.starts_with("KUBE-SVC-") || to.starts_with("KUBE-SEP-")
                });
                let there = there(store);
                let (severity, message) = if leads {
                    (
                        Severity::Error,
                        format!(
                            "this chain of an old release{there} jumps to a live chain: the next change of an endpoint makes every sync fail"
                        ),
                    )
                } else {
                    (
                        Severity::Warning,
                        format!(
                            "this chain of an old release is left over{there}, and nothing removes it"
                        ),
                    )
                };
                let seen = Proof::Chain {
                    family,
                    table: table.name.to_string(),
                    chain: chain.name.to_string(),
                    rules: chain.rules.len(),
                };
                let about = Subject::chain(family, &*table.name, &*chain.name);
                findings.push(Finding::new(severity, about, message).evidence([seen]));
            }
        }
    }
    match (findings.verdict(), version) {
        // An older release would have written them.
        (Ok(found), Err(gap)) if !found.is_empty() => Err(gap),
        (verdict, _) => verdict,
    }
}

fn repeated(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut findings = Collector::default();
    for (family, store, rules) in all_rules(facts, &mut findings) {
        for table in &rules.tables {
            let ours = table
                .chains
                .iter()
                .filter(|chain| chain.name.starts_with("KUBE-"));
            for chain in ours.filter(|chain| chain.rules.len() > 1) {
                let mut known = HashSet::new();
                let copies = chain
                    .rules
                    .iter()
                    .filter(|rule| !known.insert((&rule.matches, &rule.target)));
                let seen: Vec<_> = copies
                    .map(|rule| rule_proof(family, table, chain, rule))
                    .collect();
                if !seen.is_empty() {
                    let about = Subject::chain(family, &*table.name, &*chain.name);
                    let message = format!(
                        "the chain has duplicate rules{}: another program writes to it",
                        there(store)
                    );
                    let served = facts.owners().chain(&chain.name).port();
                    findings.push(
                        Finding::new(Severity::Warning, about, message)
                            .services(served.map(|port| &port.name))
                            .evidence(seen),
                    );
                }
            }
        }
    }
    findings.verdict()
}

fn invalid(facts: &Facts<'_>) -> Verdict {
    /// A node that runs for weeks has fewer stray packets than this.
    const FEW: u64 = 10_000;
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Collector::default();
    let mut drops_any = false;
    for (family, store, rules) in all_rules(facts, &mut findings) {
        let Some(table) = rules.table("filter") else {
            continue;
        };
        let Some(chain) = table.chain("KUBE-FORWARD") else {
            continue;
        };
        let drops = chain.rules.iter().filter(|rule| {
            let invalid = |matched: &Match<'_>| matches!(matched, Match::State { states, .. } if states.value.0 == States::INVALID);
            rule.target == Some(Target::Drop) && rule.matches.iter().any(invalid)
        });
        for rule in drops {
            drops_any = true;
            let Some(counters) = rule.counters else {
                let why = format!("the {family} rules were saved without counters");
                findings.note(Gap::Absent(store.item(family), why));
                continue;
            };
            if counters.packets > FEW {
                let message = format!(
                    "many packets were dropped{} because conntrack considers them invalid",
                    there(store)
                );
                let seen = Proof::Note(format!(
                    "{} packets since the rule was written",
                    counters.packets
                ));
                findings.push(
                    Finding::new(Severity::Warning, family, message)
                        .evidence([seen, rule_proof(family, table, chain, rule)]),
                );
            }
        }
    }
    findings.read(facts.written(Mode::Iptables));
    match findings.verdict() {
        Ok(found) if found.is_empty() && !drops_any => {
            let why = "no rule of kube-proxy drops invalid packets";
            Err(Gap::NotApplicable(why.to_owned()))
        }
        verdict => verdict,
    }
}

/// Returns about how many rules the iptables mode has for the Services: two for each address, and three for each endpoint.
fn expected_rules(facts: &Facts<'_>) -> Result<usize, Gap> {
    let desired = facts.node.desired(Mode::Iptables)?;
    let ports = desired.families.iter().flat_map(|state| &state.ports);
    let rules = ports.map(|port| {
        let addresses = 1 + port.external_ips.len() + port.lb_ips.len();
        2 * addresses + 3 * port.endpoints.len()
    });
    Ok(rules.sum())
}

fn many_rules(facts: &Facts<'_>) -> Verdict {
    const MOST: usize = 40_000;
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Collector::default();
    if facts.current()? != Mode::Iptables {
        let count = findings.read(expected_rules(facts));
        if let Some(count) = count.filter(|count| *count > MOST) {
            let message = "the iptables mode would have so many rules that each sync takes seconds";
            let seen = Proof::Note(format!("about {count} rules for the Services"));
            findings
                .push(Finding::new(Severity::Warning, Mode::Iptables, message).evidence([seen]));
        }
        // The syncs of another mode say nothing about this one.
        return findings.verdict();
    }
    findings.read(facts.written(Mode::Iptables));
    for (family, store, rules) in all_rules(facts, &mut findings) {
        let chains = rules.tables.iter().flat_map(|table| &table.chains);
        let ours = chains.filter(|chain| chain.name.starts_with("KUBE-"));
        let count: usize = ours.map(|chain| chain.rules.len()).sum();
        if count > MOST {
            let message = format!(
                "kube-proxy has so many iptables rules{} that each sync takes seconds",
                there(store)
            );
            let seen = Proof::Note(format!("{count} rules in kube-proxy's chains"));
            findings.push(Finding::new(Severity::Warning, family, message).evidence([seen]));
        }
    }
    // 1 % of the syncs, by the next bucket of the histogram.
    let slow = findings.read(syncs_slower_than(facts, 5.0));
    for (family, of) in slow.iter().flatten().filter(|(_, of)| of.share > 0.01) {
        let message = "more than 1 % of kube-proxy's syncs take longer than four seconds";
        findings.push(
            Finding::new(Severity::Warning, family_or_proxy(*family), message)
                .evidence([of.proof.clone()]),
        );
    }
    findings.verdict()
}
