//! Rules and settings of other software that affect kube-proxy's rules.

use crate::check::core::{
    Collector, FAMILIES, MODE, NFT, OBSERVED, RULES, is_open, rule_proof, rules_in_use,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::BRIDGE;
use kpx_node::backend::iptables::model::{Chain, Match, Rule, Ruleset, Table, Target};
use kpx_node::backend::nftables::expect::TABLE;
use kpx_node::backend::nftables::model::{Expr, Statement};
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::modules::filed;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IR02",
        name: "shadowed-jumps",
        severity: Severity::Error,
        when: When::Now,
        title: "No rule of other software takes packets before kube-proxy's chains",
        symptom: "Services do not answer, or Services without endpoints hang instead of being rejected, although \
              every rule of kube-proxy exists.",
        why: "Rules apply in order. A rule that accepts, drops or translates every packet, placed before the jump to \
              kube-proxy's chains, makes all traffic bypass them. Network plugins and firewalls that insert their \
              rules first do so.",
        verify: "Before the first jump to a KUBE chain there may be no rule that ends the evaluation for every packet.",
        commands: &[
            Example::on_node("iptables -t nat -S PREROUTING"),
            Example::on_node("iptables -S FORWARD"),
        ],
        fix: Text::plain(
            "Move the rule behind kube-proxy's, or configure the plugin to append its rules instead of inserting \
             them.",
        ),
        incidents: &[
            "projectcalico/calico#1055: rejects were never reached",
            "cilium/cilium#15234",
        ],
        needs: &[MODE, RULES, OBSERVED, FAMILIES],
        caused_by: &[],
        run: shadowed,
    },
    Check {
        id: "IR10",
        name: "mark-in-use",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "Only kube-proxy uses the bit that marks packets for masquerading",
        symptom: "Traffic is masqueraded that should not be, or leaves by the wrong route.",
        why: "kube-proxy marks packets with one bit, 0x4000 unless masqueradeBit sets another. Software that uses the \
              same bit for another purpose, in its rules or in a routing rule, acts on kube-proxy's packets, and \
              kube-proxy on its packets.",
        verify: "No routing rule may test the bit, and no rule of other software may set it.",
        commands: &[
            Example::on_node("ip rule"),
            Example::on_node("iptables-save | grep -i xmark"),
        ],
        fix: Text::plain(
            "Configure another bit in the other software, or set masqueradeBit of kube-proxy's mode (iptables.masqueradeBit or \
             nftables.masqueradeBit) and restart kube-proxy.",
        ),
        incidents: &[
            "cilium/cilium#8516",
            "cilium/cilium#15350",
            "tailscale/tailscale#591",
        ],
        needs: &[MODE, RULES, NFT, &[Item::Rules]],
        caused_by: &[],
        run: mark_users,
    },
    Check {
        id: "IR13",
        name: "flush-at-reload",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "No firewall service flushes rules of other software",
        symptom: "Services stop for half a minute to a minute when the firewall is reloaded; hostPorts stop \
              permanently.",
        why: "A firewalld with FlushAllOnReload, and an nftables.conf that begins with `flush ruleset`, remove every \
              rule when the service starts or is reloaded, including kube-proxy's.",
        verify: "The service must be disabled, or configured to keep the rules of other software.",
        commands: &[
            Example::on_node("systemctl is-enabled firewalld nftables"),
            Example::on_node("grep -i FlushAllOnReload /etc/firewalld/firewalld.conf"),
            Example::on_node(
                "grep 'flush ruleset' /etc/nftables.conf /etc/sysconfig/nftables.conf",
            ),
        ],
        fix: Text::plain(
            "Set FlushAllOnReload=no in firewalld.conf; in nftables.conf delete only the file's own tables instead \
             of the ruleset.",
        ),
        incidents: &["rancher/rke2#10469", "k0sproject/k0s#2908"],
        needs: &[&[Item::Firewalls]],
        caused_by: &[],
        run: flushes,
    },
];

fn ends(rule: &Rule<'_>) -> bool {
    matches!(
        rule.target,
        Some(
            Target::Accept
                | Target::Drop
                | Target::Reject { .. }
                | Target::Dnat(_)
                | Target::Snat(_)
                | Target::Masquerade { .. }
                | Target::Redirect { .. }
        )
    )
}

/// Returns the first rule that ends the evaluation for every packet of `chain` before a jump to a chain of kube-proxy.
///
/// It follows jumps down to `depth` levels.
fn first_end<'r>(table: &'r Table<'r>, chain: &'r Chain<'r>, depth: u8) -> Option<&'r Rule<'r>> {
    for rule in &chain.rules {
        if let Some(Target::Jump(to) | Target::Goto(to)) = &rule.target {
            if to.starts_with("KUBE-") {
                return None;
            }
            if depth > 0
                && rule.matches.iter().all(is_open)
                && let Some(next) = table.chain(to)
                && let Some(rule) = first_end(table, next, depth - 1)
            {
                return Some(rule);
            }
        } else if ends(rule) && rule.matches.iter().all(is_open) {
            return Some(rule);
        }
    }
    None
}

fn shadowed(facts: &Facts<'_>) -> Verdict {
    const CHAINS: [(&str, &str, &str); 6] = [
        ("nat", "PREROUTING", "KUBE-SERVICES"),
        ("nat", "OUTPUT", "KUBE-SERVICES"),
        ("nat", "POSTROUTING", "KUBE-POSTROUTING"),
        ("filter", "FORWARD", "KUBE-FORWARD"),
        ("filter", "FORWARD", "KUBE-SERVICES"),
        ("filter", "OUTPUT", "KUBE-SERVICES"),
    ];
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut all = Collector::default();
    // Without kube-proxy's rules, nothing can come before them.
    all.read(facts.written(mode));
    let mut findings = Vec::new();
    for (family, rules) in rules_in_use(facts, &mut all) {
        for (name, built_in, ours) in CHAINS {
            let Some((table, chain)) = rules
                .table(name)
                .and_then(|t| Some((t, t.chain(built_in)?)))
            else {
                continue;
            };
            let to = Target::Jump(ours.into());
            if !chain
                .rules
                .iter()
                .any(|rule| rule.target.as_ref() == Some(&to))
            {
                continue;
            }
            let Some(rule) = first_end(table, chain, 4) else {
                continue;
            };
            let accepts = name == "filter" && rule.target == Some(Target::Accept);
            let (severity, message) = if accepts {
                (
                    Severity::Warning,
                    "a rule of other software accepts every packet before kube-proxy's rules can reject any",
                )
            } else {
                (
                    Severity::Error,
                    "a rule of other software takes every packet before kube-proxy's chains",
                )
            };
            let about = Subject::chain(family, name, built_in);
            let finding = Finding::new(severity, about, message);
            findings.push(finding.evidence([rule_proof(family, table, chain, rule)]));
        }
    }
    findings.dedup();
    all.extend(findings);
    all.verdict()
}

fn mark_users(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let bit = facts.configuration()?.masquerade_bit(mode);
    let bit = 1_u32.checked_shl(u32::from(bit)).unwrap_or(0);
    let mut findings = Collector::default();
    let rulesets = rules_in_use(facts, &mut findings);
    let dropped = rulesets
        .iter()
        .fold(0, |all, (_, rules)| all | dropped_marks(rules));
    let (mut seen, mut drops) = (Vec::new(), Vec::new());
    let policy = findings.read(facts.node.rules());
    for rule in policy.into_iter().flat_map(|rules| &rules.all) {
        let Some(mark) = rule.mark else { continue };
        let is_whole = mark.mask == u32::MAX;
        // A rule that tests the whole mark is about packets with exactly this mark.
        let tested = if is_whole { mark.value } else { mark.mask };
        let (uses, is_dropped) = (tested & bit != 0, is_whole && mark.value & dropped != 0);
        let what = if is_whole {
            format!("mark {:#x}", mark.value)
        } else {
            format!("{:#x}/{:#x}", mark.value, mark.mask)
        };
        let proof = Proof::Note(format!("routing rule {} tests {what}", rule.priority));
        if is_dropped {
            drops.push(proof);
        } else if uses {
            seen.push(proof);
        }
    }
    seen.extend(nft_mark_users(facts, &mut findings, bit));
    for (family, rules) in rulesets {
        for table in &rules.tables {
            let others = table
                .chains
                .iter()
                .filter(|chain| !chain.name.starts_with("KUBE-"));
            for chain in others {
                let sets = chain.rules.iter().filter(
                    // A rule that sets the whole mark does not use a single bit.
                    |rule| matches!(rule.target, Some(Target::Mark(mark)) if mark.value & bit != 0 && mark.mask != u32::MAX),
                );
                seen.extend(sets.map(|rule| rule_proof(family, table, chain, rule)));
            }
        }
    }
    if !seen.is_empty() {
        let message = "other software uses the bit that marks packets for masquerading";
        findings.push(
            Finding::new(Severity::Warning, Subject::Mark { mark: bit }, message).evidence(seen),
        );
    }
    if bit & dropped != 0 {
        let message = format!(
            "kube-proxy marks packets for masquerading with {bit:#x} (masqueradeBit {}), the mark by which KUBE-FIREWALL drops packets",
            bit.trailing_zeros()
        );
        findings.push(
            Finding::new(Severity::Error, Subject::Mark { mark: bit }, message).fix(
                "Set masqueradeBit of kube-proxy's mode to 14 (iptables.masqueradeBit or nftables.masqueradeBit), and restart kube-proxy. A \
                 kubelet since 1.28 does not write the rule, so KUBE-FIREWALL may be a leftover."
                    .to_owned(),
            ),
        );
    }
    if !drops.is_empty() {
        let message =
            "other software marks packets with the bit by which KUBE-FIREWALL drops packets";
        findings.push(
            Finding::new(Severity::Error, Subject::Mark { mark: dropped }, message)
                .evidence(drops)
                .fix(format!(
                    "Configure a mark without {:#x} in the other software: FwMark in the configuration of WireGuard. A kubelet since \
                     1.28 does not write the rule, so KUBE-FIREWALL may be a leftover.",
                    dropped | bit
                )),
        );
    }
    findings.verdict()
}

/// Returns the bits of the mark by which KUBE-FIREWALL, of the kubelet, drops packets.
fn dropped_marks(rules: &Ruleset<'_>) -> u32 {
    let chain = rules.chain("filter", "KUBE-FIREWALL").into_iter();
    let rules = chain.flat_map(|chain| &chain.rules);
    let drops = rules.filter(|rule| matches!(rule.target, Some(Target::Drop)));
    let marks = drops
        .flat_map(|rule| &rule.matches)
        .filter_map(|matched| match matched {
            Match::Mark(mark) if !mark.inverted => Some(mark.value.value & mark.value.mask),
            _ => None,
        });
    marks.fold(0, |all, mark| all | mark)
}

/// Returns the rules of other software in nftables that set `bit` of the mark.
fn nft_mark_users(facts: &Facts<'_>, findings: &mut Collector, bit: u32) -> Vec<Proof> {
    let rules = match facts.node.nft() {
        // Without nftables there are none.
        Err(Gap::NotApplicable(_)) => None,
        read => findings.read(read),
    };
    let tables = rules.into_iter().flat_map(|rules| &rules.tables);
    let is_own = |name: &str| [TABLE, BRIDGE].contains(&name);
    let others = tables.filter(|table| !is_own(&table.name) && !table.is_of_iptables());
    let mut seen = Vec::new();
    for table in others {
        for chain in &table.chains {
            let sets = chain.rules.iter().filter(|rule| {
                let mut statements = rule.statements.iter();
                statements.any(|statement| matches!(statement, Statement::Mangle { key, value } if *key == Expr::Meta("mark".to_owned()) && sets_bit(value, bit)))
            });
            seen.extend(sets.map(|rule| {
                let place = format!("{} {} {}", table.family, table.name, chain.name);
                Proof::object("nft-rule", format!("{place}: {}", print::rule(rule)))
            }));
        }
    }
    seen
}

/// Returns whether the mark `value` has `bit` and other bits: a mark that is set as a whole does not use a single bit.
fn sets_bit(value: &Expr, bit: u32) -> bool {
    let Expr::Bits { op, left, right } = value else {
        return false;
    };
    let is_set = |side: &Expr| matches!(side, Expr::Number(number) if number & u64::from(bit) != 0);
    matches!(op.as_str(), "|" | "^") && (is_set(left) || is_set(right))
        || sets_bit(left, bit)
        || sets_bit(right, bit)
}

/// Returns the services that flush rules of all software when they start or reload.
pub(in crate::check) fn flushes(facts: &Facts<'_>) -> Verdict {
    let lines: Vec<_> = filed(facts.node.evidence().text(Item::Firewalls)?).collect();
    let enabled = |service: &str| {
        let mut units = lines.iter().filter(|(_, line)| *line == "enabled");
        units.any(|(file, _)| file.ends_with(&format!("/{service}.service")))
    };
    let mut findings = Vec::new();
    let setting = lines.iter().find_map(|(file, line)| {
        let value = line.strip_prefix("FlushAllOnReload=")?;
        Some((*file, value.trim()))
    });
    // The default is yes.
    if enabled("firewalld") && setting.is_none_or(|(_, value)| !value.eq_ignore_ascii_case("no")) {
        let (file, value) = setting.unwrap_or(("/etc/firewalld/firewalld.conf", "yes (default)"));
        let message = "a reload of firewalld also flushes kube-proxy's rules";
        findings.push(
            Finding::new(Severity::Warning, Subject::software("firewalld"), message)
                .evidence([Proof::setting(file, "FlushAllOnReload", value)])
                .fix(Fix::on_node(
                    "Let firewalld keep rules of other software. This reload still flushes them.",
                    format!(
                        "{} && firewall-cmd --reload",
                        match setting {
                            Some(_) => format!(
                                "sed -i 's/^FlushAllOnReload=.*/FlushAllOnReload=no/' {file}"
                            ),
                            None => format!("echo FlushAllOnReload=no >> {file}"),
                        }
                    ),
                )),
        );
    }
    let flush = lines.iter().find(|(_, line)| *line == "flush ruleset");
    if let Some((file, line)) = flush.filter(|_| enabled("nftables")) {
        let message = "a start of the service nftables also flushes kube-proxy's rules";
        findings.push(
            Finding::new(Severity::Warning, Subject::software("nftables"), message)
                .evidence([Proof::Note(format!("{file}: {line}"))])
                .fix(Fix::on_node(
                    "Let nftables.service keep rules of other software: delete only the file's own tables instead of the ruleset (`table inet \
                     filter`, then `delete table inet filter`). A restart of the service still flushes all: reload it.",
                    format!("sed -i 's/^flush ruleset/#&/' {file}"),
                )),
        );
    }
    Ok(findings)
}
