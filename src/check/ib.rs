//! IB: the back ends of iptables.

use std::collections::BTreeMap;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::{Chain, Match, Rule, Ruleset, Target};
use crate::evidence::{Gap, IPTABLES, Item};
use crate::net::Family;
use crate::node::Store;

pub(super) const CHECKS: &[Check] = &[ONE_BACKEND, BARE, CANARIES, DUPLICATES];

const ONE_BACKEND: Check = Check {
    id: "IB01",
    name: "one-backend",
    severity: Severity::Error,
    when: When::Now,
    title: "Only one back end of iptables holds kube-proxy's rules",
    symptom: "Connections are masqueraded twice, go to pods that are long gone, or are rejected though the visible rules allow them.",
    why: "iptables has two stores in the kernel, legacy and nft, and a packet goes through both. Rules that one tool \
          wrote are invisible to the other, so kube-proxy's rules in the store it no longer uses are never updated, and \
          still apply.",
    verify: "Look into both; only one may hold KUBE-SVC, KUBE-SERVICES or KUBE-POSTROUTING rules. The one with moving \
             counters is not always the right one: both see the packets.",
    commands: &[
        "iptables --version",
        "iptables-legacy-save -c | grep -c KUBE-; iptables-nft-save -c | grep -c KUBE-",
    ],
    fix: "Find out which back end kube-proxy's image uses (it follows the chain KUBE-IPTABLES-HINT), then remove its \
          chains from the other one, jumps first, with that back end's own tools; or drain and reboot the node.",
    incidents: &[
        "kubernetes/kubernetes#71305",
        "cilium/cilium#28258: POSTROUTING twice",
    ],
    needs: &[
        IPTABLES,
        &[Item::IptablesVersion, Item::Modules, Item::ModulesBuiltin],
    ],
    caused_by: &[],
    run: one_backend,
};

const CANARIES: Check = Check {
    id: "IB07",
    name: "canaries",
    severity: Severity::Warning,
    when: When::Now,
    title: "kube-proxy's canary chains are in every table",
    symptom: "Services stop working on this node all at once, for up to half a minute or until kube-proxy restarts.",
    why: "In iptables mode kube-proxy keeps an empty chain, KUBE-PROXY-CANARY, in each table, and looks every half a \
          minute whether it is there. A canary that is gone shows that somebody flushed the table: firewalld at a \
          reload, a script with `iptables -F; iptables -X`, `nft flush ruleset`. kube-proxy then writes all rules anew.",
    verify: "The chain must be in the tables mangle, nat and filter.",
    commands: &["iptables-save | grep -E '^\\*|KUBE-PROXY-CANARY'"],
    fix: "Look again in a minute: kube-proxy mends it by itself if it is awake. Then find out who flushes the tables, \
          and make it leave the KUBE- chains alone.",
    incidents: &[
        "kubernetes/kubernetes#81517: the canaries",
        "rancher/rke2#10469: a reload of firewalld",
    ],
    needs: &[MODE, &[Item::Iptables4, Item::Iptables6]],
    caused_by: &[],
    run: canaries,
};

const BARE: Check = Check {
    id: "IB04",
    name: "lost-matches",
    severity: Severity::Error,
    when: When::Now,
    title: "No rule of kube-proxy or the kubelet lost what it asks for",
    symptom: "All traffic of the node is dropped, or none is refused any more.",
    why: "An older iptables that saves and restores the rules leaves out matches that it cannot read. What is left of the \
          kubelet's rule for marked packets, say, drops every packet.",
    verify: "Neither KUBE-FIREWALL may drop, nor KUBE-FORWARD accept, without asking for anything.",
    commands: &["iptables -S KUBE-FIREWALL", "iptables -S KUBE-FORWARD"],
    fix: "Delete the rule, and restart the kubelet and kube-proxy: they write theirs anew.",
    incidents: &[
        "cloudnativelabs/kube-router#1588: a mark was lost and the rule became a bare DROP",
    ],
    needs: &[&[Item::Iptables4, Item::Iptables6]],
    caused_by: &[],
    run: bare,
};

fn bare(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    for family in Family::BOTH {
        let rules = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => rules,
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
        for (name, target) in [
            ("KUBE-FIREWALL", Target::Drop),
            ("KUBE-FORWARD", Target::Accept),
        ] {
            let chain = rules.chain("filter", name);
            let all = chain.map_or(&[][..], |chain| &chain.rules).iter();
            let asks = |rule: &&Rule<'_>| {
                let mut matches = rule.matches.iter();
                matches.any(|of| !matches!(of, Match::Comment(_)))
            };
            let lost = all.filter(|rule| rule.target.as_ref() == Some(&target) && !asks(rule));
            let seen: Vec<_> = lost
                .map(|rule| Proof::rule(family, "filter", format!("-A {name}{rule}")))
                .collect();
            if !seen.is_empty() {
                let message = "a rule takes every packet: it lost what it asked for";
                let subject = format!("{family} filter {name}");
                findings.push(Finding::new(Severity::Error, subject, message).seen(seen));
            }
        }
    }
    Ok(findings)
}

const DUPLICATES: Check = Check {
    id: "IB08",
    name: "duplicate-rules",
    severity: Severity::Warning,
    when: When::Now,
    title: "No rule that leads to kube-proxy's chains is there twice",
    symptom: "Rules pile up, syncs take longer and longer, and counters add up to more than there was.",
    why: "kube-proxy looks whether a jump is there before it adds one. If the look fails (iptables 1.8.0 to 1.8.2 with \
          the nft back end, or two back ends that see different rules) it adds one with each sync.",
    verify: "No line may be there twice.",
    commands: &["iptables-save | grep '^-A' | grep KUBE- | sort | uniq -d"],
    fix: "Delete the copies with `iptables -D`, once for each, and update iptables where it is 1.8.0 to 1.8.2.",
    incidents: &[
        "kubernetes/kubernetes#82361",
        "kubernetes/kubernetes#14870: 164,000 lines of rules",
    ],
    needs: &[&[Item::Iptables4, Item::Iptables6]],
    caused_by: &["IB01"],
    run: duplicates,
};

fn canaries(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Vec::new();
    for family in Family::BOTH {
        let rules = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => rules,
            // Without ip6tables on the node the question is IPv4's alone.
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
        let has = |table: &str| rules.chain(table, CANARY).is_some();
        let missing: Vec<_> = ["mangle", "nat", "filter"]
            .into_iter()
            .filter(|table| !has(table))
            .collect();
        // A family without any was never set up, or is another check's: what it holds of other modes tells.
        let any = rules.tables.iter().flat_map(|table| &table.chains);
        if missing.is_empty() || !any.into_iter().any(|chain| is_proxys(&chain.name)) {
            continue;
        }
        let message = "kube-proxy's canary is gone: somebody flushed the table";
        findings.extend(missing.into_iter().map(|table| {
            let subject = format!("{family} table {table}");
            Finding::new(Severity::Warning, subject, message).seen([Proof::Chain {
                family,
                table: table.to_owned(),
                chain: format!("{CANARY} missing"),
                rules: 0,
            }])
        }));
    }
    Ok(findings)
}

const CANARY: &str = "KUBE-PROXY-CANARY";

fn duplicates(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    for family in Family::BOTH {
        let rules = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => rules,
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
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
                    let subject = format!("{family} {} {}", table.name, chain.name);
                    let message =
                        "the rule that leads to one of kube-proxy's chains is there more than once";
                    Finding::new(Severity::Warning, subject, message).seen([Proof::Rule {
                        family,
                        table: table.name.to_string(),
                        rule: format!("{} -j {to}, {count} times", chain.name),
                    }])
                }));
            }
        }
    }
    Ok(findings)
}

fn one_backend(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    let mut unread = None;
    for family in Family::BOTH {
        let (used, idle) = stores(facts);
        let in_use = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => written(rules, family),
            // Without ip6tables on the node the question is IPv4's alone.
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
        // Rules in one store alone are what should be, whatever the other holds of others' rules.
        if in_use.is_empty() {
            continue;
        }
        let other = match facts.node.iptables(idle, family) {
            Ok(rules) => written(rules, family),
            // Read live, an idle back end without rules does not apply.
            Err(Gap::NotApplicable(_)) => continue,
            Err(_) if idle == Store::Legacy && no_legacy(facts, family) => continue,
            Err(gap) => {
                unread.get_or_insert(gap);
                continue;
            }
        };
        if other.is_empty() {
            continue;
        }
        let message = format!(
            "kube-proxy's chains are in both back ends: {} in {}, {} in {}",
            in_use.len(),
            name(used),
            other.len(),
            name(idle)
        );
        findings.push(Finding::new(Severity::Error, family.to_string(), message).seen(other));
    }
    match unread {
        Some(gap) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

/// Returns the store in use by its own name, and the other one.
fn stores(facts: &Facts<'_>) -> (Store, Store) {
    let there = |items: [Item; 2]| {
        let mut items = items.into_iter();
        items.any(|item| facts.node.evidence().text(item).is_ok())
    };
    // The rules of a back end are kept apart only when it is not the one in use.
    if there([Item::IptablesLegacy4, Item::IptablesLegacy6]) {
        return (Store::Nft, Store::Legacy);
    }
    if there([Item::IptablesNft4, Item::IptablesNft6]) {
        return (Store::Legacy, Store::Nft);
    }
    let version = facts.node.evidence().text(Item::IptablesVersion);
    // `iptables v1.8.9 (nf_tables)`; before 1.8 there was legacy alone, and nothing in parentheses.
    let nft = match version {
        Ok(text) => text.contains("nf_tables"),
        Err(_) => true,
    };
    if nft {
        (Store::Nft, Store::Legacy)
    } else {
        (Store::Legacy, Store::Nft)
    }
}

const fn name(store: Store) -> &'static str {
    match store {
        Store::InUse => "the one in use",
        Store::Legacy => "legacy",
        Store::Nft => "nft",
    }
}

/// Whether the kernel cannot hold legacy rules of `family`, as its module is not loaded and not built in.
fn no_legacy(facts: &Facts<'_>, family: Family) -> bool {
    let Ok(modules) = facts.node.modules() else {
        return false;
    };
    let Some(loaded) = &modules.loaded else {
        return false;
    };
    let legacy = match family {
        Family::V4 => "ip_tables",
        Family::V6 => "ip6_tables",
    };
    let built_in = match &modules.builtin {
        Some(builtin) => builtin.contains(legacy),
        // What is built in cannot need a module: with x_tables loaded, ip_tables would be a module too.
        None => !loaded.contains_key("x_tables"),
    };
    !loaded.contains_key(legacy) && !built_in
}

/// Returns the chains that only kube-proxy writes and that hold rules.
fn written(rules: &Ruleset<'_>, family: Family) -> Vec<Proof> {
    let proof = |table: &str, chain: &Chain<'_>| Proof::Chain {
        family,
        table: table.to_owned(),
        chain: chain.name.to_string(),
        rules: chain.rules.len(),
    };
    let tables = rules.tables.iter();
    tables
        .flat_map(|table| {
            let chains = table.chains.iter();
            let ours = chains.filter(|c| !c.rules.is_empty() && is_proxys(&c.name));
            ours.map(|chain| proof(&table.name, chain))
        })
        .collect()
}

/// Whether the chain is kube-proxy's: neither the kubelet's nor kube-router's.
fn is_proxys(chain: &str) -> bool {
    let others = [
        "KUBE-FIREWALL",
        "KUBE-MARK-DROP",
        "KUBE-KUBELET-CANARY",
        "KUBE-IPTABLES-HINT",
        "KUBE-ROUTER-",
        "KUBE-NWPLCY-",
        "KUBE-POD-FW-",
        "KUBE-SRC-",
        "KUBE-DST-",
        "KUBE-HOSTPORTS",
        "KUBE-HP-",
    ];
    chain.starts_with("KUBE-") && !others.iter().any(|other| chain.starts_with(other))
}
