//! Tables of iptables that others flush, lock or rewrite.

use std::collections::BTreeMap;

use crate::check::core::{
    Collector, FAMILIES, MODE, OBSERVED, RULES, by_family, containers, is_proxys, mounts,
    rules_in_use, tool,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Match, Rule, Target};
use kpx_node::backend::iptables::parse::left_out;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;

/// The fix of a rule that lost its conditions.
const DELETE: &str = "Delete the rule, then restart the kubelet and kube-proxy: they restore theirs. If it comes back, two \
                      releases of iptables write these rules (the node's, and one in an image): use the same one.";

const CANARY: &str = "KUBE-PROXY-CANARY";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IB04",
        name: "lost-matches",
        severity: Severity::Error,
        when: When::Now,
        title: "No rule of kube-proxy or the kubelet lost its conditions",
        symptom: "All traffic of the node is dropped, or none is rejected any more.",
        why: "An older iptables that saves and restores the rules drops matches that it cannot read. The kubelet's \
              rule for marked packets, for example, then drops every packet.",
        verify: "KUBE-FIREWALL may not drop, and KUBE-FORWARD may not accept, without a condition.",
        commands: &[
            Example::on_node("iptables -S KUBE-FIREWALL"),
            Example::on_node("iptables -S KUBE-FORWARD"),
        ],
        fix: Text::plain(DELETE),
        incidents: &[
            "cloudnativelabs/kube-router#1588: a mark was lost and the rule became a bare DROP",
            "kubernetes/kubernetes#114549",
        ],
        needs: &[RULES],
        caused_by: &[],
        run: bare,
    },
    Check {
        id: "IB05",
        name: "shared-lock",
        severity: Severity::Warning,
        when: When::Now,
        title: "All programs that write rules share the iptables lock",
        symptom: "Rules vanish or syncs fail occasionally: two programs wrote the same table at once.",
        why: "The legacy backend serialises writers with a lock on /run/xtables.lock. A pod that does not mount this \
              file locks a file of its own.",
        verify: "The pod must mount the file.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{..volumeMounts[*].mountPath}'",
        )],
        fix: Text::plain(
            "Mount /run/xtables.lock from the host (FileOrCreate) in every pod that writes rules.",
        ),
        incidents: &[
            "kubernetes/kubernetes#57428",
            "k3s-io/k3s#11098",
            "kubernetes-sigs/kind#944",
        ],
        needs: &[
            MODE,
            &[Item::Pods, Item::DaemonSets, Item::Nodes, Item::Addresses],
        ],
        caused_by: &[],
        run: lock,
    },
    Check {
        id: "IB06",
        name: "incompatible-tables",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "iptables can list and change its tables",
        symptom: "A listing reports that a table \"is incompatible, use 'nft' tool\", and kube-proxy's syncs fail.",
        why: "With the nft backend the tables of iptables are nftables tables. If other software adds native nft \
              rules to one of them, iptables refuses to change the whole table.",
        verify: "No table may be reported as incompatible.",
        commands: &[
            Example::on_node("iptables-save | grep incompatible"),
            Example::on_node("nft list table ip nat"),
        ],
        fix: Text::plain(
            "Move the native nft rules to a table of their own, and delete them here with `nft delete rule`.",
        ),
        incidents: &["ubicloud/ubicloud#2966"],
        needs: &[RULES],
        caused_by: &[],
        run: incompatible,
    },
    Check {
        id: "IB07",
        name: "canaries",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy's canary chains exist in every table",
        symptom: "Services stop working on this node all at once, for up to half a minute or until kube-proxy \
              restarts.",
        why: "In iptables mode kube-proxy keeps an empty chain, KUBE-PROXY-CANARY, in each table, and checks every \
              half minute that it exists. A missing canary means that the table was flushed: by a reload of \
              firewalld, a script with `iptables -F; iptables -X`, or `nft flush ruleset`. kube-proxy then rewrites \
              all rules.",
        verify: "The chain must exist in the tables mangle, nat and filter.",
        commands: &[Example::on_node(
            "iptables-save | grep -E '^\\*|KUBE-PROXY-CANARY'",
        )],
        fix: Text::with(
            "Run {} again in a minute: a running kube-proxy restores the chains automatically. Then find out what \
             flushes the tables, and configure it to keep the KUBE- chains.",
            &[Example::kpx(&["doctor"])],
        ),
        incidents: &[
            "kubernetes/kubernetes#81517: the canaries",
            "rancher/rke2#10469: a reload of firewalld",
        ],
        needs: &[MODE, RULES, OBSERVED, FAMILIES],
        caused_by: &[Because::Outdated],
        run: canaries,
    },
    Check {
        id: "IB08",
        name: "duplicate-rules",
        severity: Severity::Warning,
        when: When::Now,
        title: "No jump to kube-proxy's chains is duplicated",
        symptom: "Rules accumulate, syncs take longer and longer, and counters are too high.",
        why: "kube-proxy checks whether a jump exists before it adds one. If the check fails (iptables 1.8.0 to 1.8.2 \
              with the nft backend, or two backends with different rules), it adds one with each sync.",
        verify: "No line may appear twice.",
        commands: &[Example::on_node(
            "iptables-save | grep '^-A' | grep KUBE- | sort | uniq -d",
        )],
        fix: Text::plain(
            "Delete the copies with `iptables -D`, once for each, and upgrade iptables if it is 1.8.0 to 1.8.2.",
        ),
        incidents: &[
            "kubernetes/kubernetes#82361",
            "kubernetes/kubernetes#14870: 164,000 lines of rules",
        ],
        needs: &[RULES],
        caused_by: &[],
        run: duplicates,
    },
];

/// The message for a rule that lost its conditions.
const LOST: &str = "a rule applies to every packet: it lost its conditions";

/// Returns whether `rule` of `chain` in table filter ends every packet, which kube-proxy's and the kubelet's there never do.
fn is_bare(chain: &str, rule: &Rule<'_>) -> bool {
    let target = match chain {
        "KUBE-FIREWALL" => Target::Drop,
        "KUBE-FORWARD" => Target::Accept,
        _ => return false,
    };
    let mut matches = rule.matches.iter();
    rule.target.as_ref() == Some(&target)
        && matches.all(|matched| matches!(matched, Match::Comment(_)))
}

/// Returns the problem of `rule` of `chain` in table filter if it lost its conditions, and its fix.
pub fn lost_conditions(family: Family, chain: &str, rule: &Rule<'_>) -> Option<(String, Fix)> {
    let message = || format!("filter chain {chain}: {LOST}");
    is_bare(chain, rule).then(|| (message(), delete(family, chain, &[rule])))
}

/// Returns the fix of `rules` of `chain` in table filter that lost their conditions.
fn delete(family: Family, chain: &str, rules: &[&Rule<'_>]) -> Fix {
    let tool = tool(IptablesBackend::InUse, family);
    let rules = rules.iter().map(|rule| format!("{tool} -D {chain}{rule}"));
    Fix::on_node(DELETE, rules.collect::<Vec<_>>().join(" && "))
}

fn bare(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    for (family, rules) in rules_in_use(facts, &mut findings) {
        for name in ["KUBE-FIREWALL", "KUBE-FORWARD"] {
            let all = rules.chain("filter", name).into_iter();
            let all = all.flat_map(|chain| &chain.rules);
            let lost: Vec<&Rule<'_>> = all.filter(|rule| is_bare(name, rule)).collect();
            if lost.is_empty() {
                continue;
            }
            let seen = lost.iter();
            let seen = seen.map(|rule| Proof::rule(family, "filter", format!("-A {name}{rule}")));
            let about = Subject::chain(family, "filter", name);
            findings.push(
                Finding::new(Severity::Error, about, LOST)
                    .evidence(seen)
                    .fix(delete(family, name, &lost)),
            );
        }
    }
    findings.verdict()
}

fn canaries(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Collector::default();
    findings.read(facts.written(Mode::Iptables));
    for (family, rules) in rules_in_use(facts, &mut findings) {
        let has = |table: &str| rules.chain(table, CANARY).is_some();
        let missing: Vec<_> = ["mangle", "nat", "filter"]
            .into_iter()
            .filter(|table| !has(table))
            .collect();
        // Without any chain the family was never set up, or lost all; other checks report chains of other modes.
        let any = rules.tables.iter().flat_map(|table| &table.chains);
        if missing.is_empty() || !any.into_iter().any(|chain| is_proxys(&chain.name)) {
            continue;
        }
        let message = "kube-proxy's canary chain is missing: the table was flushed";
        findings.extend(missing.into_iter().map(|table| {
            Finding::new(Severity::Warning, Subject::table(family, table), message).evidence([
                Proof::Chain {
                    family,
                    table: table.to_owned(),
                    chain: format!("{CANARY} missing"),
                    rules: 0,
                },
            ])
        }));
    }
    findings.verdict()
}

fn duplicates(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    for (family, rules) in rules_in_use(facts, &mut findings) {
        for table in &rules.tables {
            for chain in table.chains.iter().filter(|chain| chain.policy.is_some()) {
                let mut seen: Vec<&Rule<'_>> = Vec::new();
                let mut copies: BTreeMap<String, usize> = BTreeMap::new();
                for rule in &chain.rules {
                    let Some(Target::Jump(to)) = &rule.target else {
                        continue;
                    };
                    if !to.starts_with("KUBE-") {
                        continue;
                    }
                    let same = |other: &&Rule<'_>| {
                        other.target == rule.target && other.matches == rule.matches
                    };
                    if seen.iter().any(same) {
                        *copies.entry(to.to_string()).or_insert(1) += 1;
                    } else {
                        seen.push(rule);
                    }
                }
                findings.extend(copies.into_iter().map(|(to, count)| {
                    let about = Subject::chain(family, &*table.name, &*chain.name);
                    let message = "the jump to one of kube-proxy's chains is duplicated";
                    Finding::new(Severity::Warning, about, message).evidence([Proof::Rule {
                        family,
                        table: table.name.to_string(),
                        rule: format!("{} -j {to}, {count} times", chain.name),
                    }])
                }));
            }
        }
    }
    findings.verdict()
}

fn lock(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut findings = Collector::default();
    let all = findings.read(containers(facts));
    let without: Vec<_> = all
        .iter()
        .flatten()
        .filter(|(_, container)| !mounts(container, "/run/xtables.lock"))
        .map(|(name, _)| Proof::setting(name, "volumeMounts", "no /run/xtables.lock"))
        .collect();
    if !without.is_empty() {
        let message = "kube-proxy's pod does not share the iptables lock with the node";
        findings.push(Finding::new(Severity::Warning, Subject::Proxy, message).evidence(without));
    }
    findings.verdict()
}

fn incompatible(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let listing = |family| {
        facts
            .node
            .evidence()
            .text(IptablesBackend::InUse.item(family))
    };
    for (family, text) in by_family(facts, &mut findings, listing) {
        let names = left_out(text);
        // kube-proxy does not use other tables.
        let names = names.filter(|name| matches!(*name, "nat" | "filter" | "mangle"));
        findings.extend(names.map(|name| {
            let message =
                "iptables refuses to change the table, because it contains native nft rules";
            let ip = family.nft_name();
            Finding::new(Severity::Error, Subject::table(family, name), message)
                .evidence([Proof::object("nft-table", format!("{ip} {name}"))])
        }));
    }
    findings.verdict()
}
