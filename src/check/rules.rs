//! IB, IR, VS: rules of others beside kube-proxy's, and what is left of its older releases.

use std::collections::HashSet;

use super::ask::if_recorded;
use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::{Chain, Match, Policy, Rule, Ruleset, States, Table, Target};
use crate::evidence::{Gap, Item};
use crate::net::{Family, Proto};
use crate::node::Store;

/// The rules in use, of both families.
const RULES: &[Item] = &[Item::Iptables4, Item::Iptables6];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IB06",
        name: "incompatible-tables",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables, Mode::Ipvs]),
        title: "iptables can show, and change, its own tables",
        symptom: "A listing says that a table \"is incompatible, use 'nft' tool\", and kube-proxy's syncs fail.",
        why: "With the nft back end the tables of iptables are tables of nftables. Somebody added rules of nft's own kind \
              to one of them; from then on iptables refuses to touch the whole table.",
        verify: "No table may be called incompatible.",
        commands: &["iptables-save | grep incompatible", "nft list table ip nat"],
        fix: "Move the rules that nft alone knows to a table of their own name, and delete them here.",
        incidents: &["ubicloud/ubicloud#2966"],
        needs: &[RULES],
        caused_by: &[],
        run: incompatible,
    },
    Check {
        id: "IR02",
        name: "shadowed-jumps",
        severity: Severity::Error,
        when: When::Now,
        title: "No rule of others ends the way before kube-proxy's chains",
        symptom: "Services do not answer, or Services without endpoints hang instead of being refused, though every rule \
                  of kube-proxy is there.",
        why: "Rules are tried in order. One that accepts, drops or translates every packet, put before the rule that leads \
              to kube-proxy's chains, takes all traffic past them. Network plug-ins and firewalls that insert at the head \
              do so.",
        verify: "Before the first rule that leads to a KUBE chain there may be none that ends the way of every packet.",
        commands: &["iptables -t nat -S PREROUTING", "iptables -S FORWARD"],
        fix: "Move the rule behind kube-proxy's, or set the plug-in to append instead of insert.",
        incidents: &[
            "projectcalico/calico#1055: rejects were never reached",
            "cilium/cilium#15234",
        ],
        needs: &[MODE, RULES],
        caused_by: &["IB07"],
        run: shadowed,
    },
    Check {
        id: "IR06",
        name: "chains-of-old-releases",
        severity: Severity::Error,
        when: When::Now,
        title: "No chain of a long gone release of kube-proxy is left",
        symptom: "None for weeks; then, at the next change of an endpoint, every sync fails.",
        why: "Older releases wrote KUBE-XLB chains for the Local traffic policy and KUBE-PORTALS chains. Newer ones do not \
              know them, so nobody removes them. An old chain that leads to one of today's keeps it from being deleted, \
              and the sync that tries fails as a whole.",
        verify: "There may be no chain of these names.",
        commands: &["iptables-save | grep -E 'KUBE-(XLB|PORTALS)-'"],
        fix: "Flush these chains and delete them, with the rules that lead to them, before the next change of an endpoint.",
        incidents: &["kubernetes/kubernetes#132516: a month after the upgrade"],
        needs: &[RULES],
        caused_by: &[],
        run: old_chains,
    },
    Check {
        id: "IR10",
        name: "mark-in-use",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "The bit that marks packets to masquerade is kube-proxy's alone",
        symptom: "Traffic is masqueraded that should not be, or leaves by a wrong route.",
        why: "kube-proxy marks packets with one bit, 0x4000 unless masqueradeBit says otherwise. Software that gives the \
              same bit another meaning, in its rules or in a routing rule, sees kube-proxy's packets, and kube-proxy its.",
        verify: "No routing rule may ask for the bit, and no rule of others set it.",
        commands: &["ip rule", "iptables-save | grep -i xmark"],
        fix: "Give the other software another bit, or set iptables.masqueradeBit and restart kube-proxy.",
        incidents: &[
            "cilium/cilium#8516",
            "cilium/cilium#15350",
            "tailscale/tailscale#591",
        ],
        needs: &[MODE, RULES, &[Item::Rules]],
        caused_by: &[],
        run: mark_users,
    },
    Check {
        id: "IR12",
        name: "repeated-rules",
        severity: Severity::Warning,
        when: When::Now,
        title: "No rule is in one of kube-proxy's chains twice",
        symptom: "Rules grow by the hour, and syncs with them.",
        why: "kube-proxy writes a chain whole, so that no rule is in it twice. Copies come from another writer: a second \
              kube-proxy, a script that restores a saved state, a mix of back ends.",
        verify: "No line may be there twice.",
        commands: &["iptables-save | grep '^-A KUBE-' | sort | uniq -d | head"],
        fix: "Find the other writer and stop it; then restart kube-proxy on this node.",
        incidents: &["kubernetes/kubernetes#14870: 164,000 lines of rules"],
        needs: &[MODE, RULES],
        caused_by: &["IB01"],
        run: repeated,
    },
    Check {
        id: "IR14",
        name: "invalid-dropped",
        severity: Severity::Warning,
        when: When::Now,
        title: "Few packets are dropped because conntrack takes them for invalid",
        symptom: "Long transfers stall or break, where packets take another way back than they came.",
        why: "kube-proxy drops what conntrack calls invalid, as such packets would reset connections. Where routing is \
              asymmetric, or an address is announced by several nodes, good packets are among them.",
        verify: "The counter of the rule must not grow fast.",
        commands: &["iptables -nvL KUBE-FORWARD"],
        fix: "Where routing is asymmetric on purpose, set conntrack.tcpBeLiberal to true: kube-proxy then leaves the rule out.",
        incidents: &[
            "kubernetes/kubernetes#94861",
            "kubernetes/kubernetes#120412",
        ],
        needs: &[MODE, RULES],
        caused_by: &[],
        run: invalid,
    },
    Check {
        id: "IR15",
        name: "rule-count",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Iptables]),
        title: "The iptables mode does not have more rules than it can handle",
        symptom: "Changes reach the node late, kube-proxy takes a core, and other users of iptables wait for its lock.",
        why: "Every tool of iptables reads and writes a table whole. With tens of thousands of rules each of these takes \
              seconds, and the first packet of a connection walks a long list.",
        verify: "Count the rules in kube-proxy's chains; see how long its syncs take.",
        commands: &[
            "iptables-save | grep -c '^-A KUBE-'",
            "curl -s http://127.0.0.1:10249/metrics | grep sync_proxy_rules_duration_seconds",
        ],
        fix: "Plan the move to the nftables mode.",
        incidents: &["kubernetes/enhancements#3866: why there is an nftables mode"],
        needs: &[MODE, RULES, &[Item::Metrics]],
        caused_by: &["KP08"],
        run: many_rules,
    },
    Check {
        id: "VS14",
        name: "input-drops",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "What IPVS is to take gets past the filter for local packets",
        symptom: "NodePorts that answered in iptables mode do not answer in ipvs mode.",
        why: "IPVS takes packets where they are delivered locally, behind chain INPUT of table filter. A host firewall that \
              drops there what it does not know never let NodePorts through, and in iptables mode did not have to: they \
              are translated before and pass FORWARD.",
        verify: "With policy DROP, or a last rule that drops, INPUT must accept the NodePorts.",
        commands: &["iptables -S INPUT"],
        fix: "Accept the range of NodePorts in chain INPUT, in the firewall's own configuration.",
        incidents: &["kubernetes/kubernetes#98465"],
        needs: &[MODE, RULES, &[Item::Services]],
        caused_by: &[],
        run: input,
    },
];

/// Iterates over the rules of both families; one that the node does not have is passed over.
fn both<'f>(facts: &'f Facts<'_>) -> Result<Vec<(Family, &'f Ruleset<'f>)>, Gap> {
    let mut all = Vec::new();
    for family in Family::BOTH {
        match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => all.push((family, rules)),
            Err(Gap::Absent(..)) if family == Family::V6 => {}
            Err(gap) => return Err(gap),
        }
    }
    Ok(all)
}

fn told(family: Family, table: &Table<'_>, chain: &Chain<'_>, rule: &Rule<'_>) -> Proof {
    Proof::rule(
        family,
        table.name.as_ref(),
        format!("-A {}{rule}", chain.name),
    )
}

fn incompatible(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    for (family, rules) in both(facts)? {
        let names = rules.left_out.iter();
        // kube-proxy does not use the others.
        let names = names.filter(|name| matches!(name.as_ref(), "nat" | "filter" | "mangle"));
        findings.extend(names.map(|name| {
            let message = "iptables refuses to touch the table, as somebody put rules of nft's own kind into it";
            let ip = if family == Family::V4 { "ip" } else { "ip6" };
            Finding::new(Severity::Error, format!("{family} table {name}"), message)
                .seen([Proof::object("nft-table", format!("{ip} {name}"))])
        }));
    }
    Ok(findings)
}

/// What the rules before kube-proxy's do with every packet.
enum End<'r> {
    /// Nothing: they may all be passed.
    None,
    /// This one ends the way.
    At(&'r Rule<'r>),
}

/// Whether the match holds for every packet of a new connection to a Service.
fn is_open(of: &Match<'_>) -> bool {
    match of {
        Match::Comment(_) => true,
        Match::State { states, .. } => !states.not && states.is.0 & States::NEW != 0,
        Match::Source(cidr) | Match::Destination(cidr) => !cidr.not && cidr.is.prefix == 0,
        _ => false,
    }
}

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

/// Returns the rule that takes every packet of `chain`, down to `depth` chains that it leads to, before a rule leads to
/// one of kube-proxy's chains.
fn first_end<'r>(table: &'r Table<'r>, chain: &'r Chain<'r>, depth: u8) -> End<'r> {
    for rule in &chain.rules {
        if let Some(Target::Jump(to) | Target::Goto(to)) = &rule.target {
            if to.starts_with("KUBE-") {
                return End::None;
            }
            if depth > 0
                && rule.matches.iter().all(is_open)
                && let Some(next) = table.chain(to)
                && let End::At(rule) = first_end(table, next, depth - 1)
            {
                return End::At(rule);
            }
        } else if ends(rule) && rule.matches.iter().all(is_open) {
            return End::At(rule);
        }
    }
    End::None
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
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut findings = Vec::new();
    for (family, rules) in both(facts)? {
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
            let End::At(rule) = first_end(table, chain, 4) else {
                continue;
            };
            let accepts = name == "filter" && rule.target == Some(Target::Accept);
            let (severity, message) = if accepts {
                (
                    Severity::Warning,
                    "a rule of others accepts every packet before kube-proxy's can refuse any",
                )
            } else {
                (
                    Severity::Error,
                    "a rule of others takes every packet before it reaches kube-proxy's chains",
                )
            };
            let subject = format!("{family} {name} {built_in}");
            let finding = Finding::new(severity, subject, message);
            findings.push(finding.seen([told(family, table, chain, rule)]));
        }
    }
    findings.dedup();
    Ok(findings)
}

fn old_chains(facts: &Facts<'_>) -> Verdict {
    let is_old = |name: &str| name.starts_with("KUBE-XLB-") || name.starts_with("KUBE-PORTALS-");
    let mut findings = Vec::new();
    for (family, rules) in both(facts)? {
        for table in &rules.tables {
            for chain in table.chains.iter().filter(|chain| is_old(&chain.name)) {
                let leads = chain.rules.iter().any(|rule| {
                    let to = match &rule.target {
                        Some(Target::Jump(to) | Target::Goto(to)) => to.as_ref(),
                        _ => "",
                    };
                    to.starts_with("KUBE-SVC-") || to.starts_with("KUBE-SEP-")
                });
                let (severity, message) = if leads {
                    (
                        Severity::Error,
                        "the chain of an older release leads to one of today's: when that one goes, every sync fails",
                    )
                } else {
                    (
                        Severity::Warning,
                        "the chain of an older release is left, and nobody removes it",
                    )
                };
                let seen = Proof::Chain {
                    family,
                    table: table.name.to_string(),
                    chain: chain.name.to_string(),
                    rules: chain.rules.len(),
                };
                let subject = format!("{family} {} {}", table.name, chain.name);
                findings.push(Finding::new(severity, subject, message).seen([seen]));
            }
        }
    }
    Ok(findings)
}

fn mark_users(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let bit = facts.configuration()?.masquerade_bit(mode);
    let bit = 1_u32.checked_shl(u32::from(bit)).unwrap_or(0);
    let mut seen = Vec::new();
    let policy = &if_recorded(facts.node.rules())?.all;
    seen.extend(policy.iter().filter_map(|rule| {
        let mark = rule
            .mark
            .filter(|mark| mark.mask & bit != 0 && mark.mask != u32::MAX)?;
        Some(Proof::Note(format!(
            "routing rule {} asks for {:#x}/{:#x}",
            rule.priority, mark.value, mark.mask
        )))
    }));
    for (family, rules) in both(facts)? {
        for table in &rules.tables {
            let others = table
                .chains
                .iter()
                .filter(|chain| !chain.name.starts_with("KUBE-"));
            for chain in others {
                let sets = chain.rules.iter().filter(
                    // A mark that is set whole is no bit of anybody's.
                    |rule| matches!(rule.target, Some(Target::Mark(mark)) if mark.value & bit != 0 && mark.mask != u32::MAX),
                );
                seen.extend(sets.map(|rule| told(family, table, chain, rule)));
            }
        }
    }
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "others use the bit that marks packets to masquerade";
    Ok(vec![
        Finding::new(Severity::Warning, format!("mark {bit:#x}"), message).seen(seen),
    ])
}

fn repeated(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let mut findings = Vec::new();
    for (family, rules) in both(facts)? {
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
                    .map(|rule| told(family, table, chain, rule))
                    .collect();
                if !seen.is_empty() {
                    let subject = format!("{family} {} {}", table.name, chain.name);
                    let message =
                        "the chain holds the same rule more than once: somebody else writes to it";
                    findings.push(Finding::new(Severity::Warning, subject, message).seen(seen));
                }
            }
        }
    }
    Ok(findings)
}

fn invalid(facts: &Facts<'_>) -> Verdict {
    /// So many may be stray packets of any node that runs for weeks.
    const FEW: u64 = 10_000;
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Vec::new();
    let mut counted = false;
    for (family, rules) in both(facts)? {
        let Some(table) = rules.table("filter") else {
            continue;
        };
        let Some(chain) = table.chain("KUBE-FORWARD") else {
            continue;
        };
        let drops = chain.rules.iter().filter(|rule| {
            let invalid = |of: &Match<'_>| matches!(of, Match::State { states, .. } if states.is.0 == States::INVALID);
            rule.target == Some(Target::Drop) && rule.matches.iter().any(invalid)
        });
        for rule in drops {
            let Some(counters) = rule.counters else {
                continue;
            };
            counted = true;
            if counters.packets > FEW {
                let message = "many packets were dropped because conntrack takes them for invalid";
                let seen = Proof::Note(format!(
                    "{} packets since the rule was written",
                    counters.packets
                ));
                findings.push(
                    Finding::new(Severity::Warning, family.to_string(), message)
                        .seen([seen, told(family, table, chain, rule)]),
                );
            }
        }
    }
    if findings.is_empty() && !counted {
        let why = "no rule drops them, or the rules were saved without counters";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(findings)
}

fn many_rules(facts: &Facts<'_>) -> Verdict {
    const MOST: usize = 40_000;
    facts.only_in(&[Mode::Iptables])?;
    let mut findings = Vec::new();
    if facts.current()? == Mode::Iptables {
        for (family, rules) in both(facts)? {
            let chains = rules.tables.iter().flat_map(|table| &table.chains);
            let ours = chains.filter(|chain| chain.name.starts_with("KUBE-"));
            let count: usize = ours.map(|chain| chain.rules.len()).sum();
            if count > MOST {
                let message = "the iptables mode has so many rules that each sync takes seconds";
                let seen = Proof::Note(format!("{count} rules in kube-proxy's chains"));
                findings.push(
                    Finding::new(Severity::Warning, family.to_string(), message).seen([seen]),
                );
            }
        }
    }
    // One sync in a hundred, as the next bucket of the histogram tells it.
    let slow = facts
        .node
        .metrics()
        .map(|metrics| super::health::slower_than(metrics, 5.0));
    for (family, of) in slow.iter().flatten().filter(|(_, of)| of.share > 0.01) {
        let message = "more than one sync in a hundred takes over four seconds";
        findings.push(
            Finding::new(Severity::Warning, super::health::figures(*family), message)
                .seen([of.proof.clone()]),
        );
    }
    Ok(findings)
}

/// Whether a rule of `chain`, or of one that it leads to, accepts new connections to `port`.
fn accepts(table: &Table<'_>, chain: &Chain<'_>, port: u16, depth: u8) -> bool {
    chain.rules.iter().any(|rule| {
        let fits = rule.matches.iter().all(|of| match of {
            Match::State { states, .. } => states.not != (states.is.0 & States::NEW != 0),
            Match::In(link) => link.is != "lo",
            Match::Ports { destination, .. } => destination
                .is_none_or(|range| range.not != (range.is.first..=range.is.last).contains(&port)),
            Match::Multiport { ports, .. } => {
                ports.not != ports.is.iter().any(|r| (r.first..=r.last).contains(&port))
            }
            Match::Icmp { .. } => false,
            Match::Protocol(proto) => matches!(proto.is, Proto::Tcp),
            // Who may connect is the firewall's business, and what is not understood is given the benefit of the doubt.
            _ => true,
        });
        fits && match &rule.target {
            Some(Target::Accept) => true,
            Some(Target::Jump(to) | Target::Goto(to)) if depth > 0 && !to.starts_with("KUBE-") => {
                table
                    .chain(to)
                    .is_some_and(|next| accepts(table, next, port, depth - 1))
            }
            _ => false,
        }
    })
}

fn input(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let services = facts.node.services()?.iter();
    let ports = services.flat_map(|service| &service.spec.ports);
    let Some(port) = ports.filter_map(|port| port.node_port).min() else {
        return Err(Gap::NotApplicable("no Service has a NodePort".to_owned()));
    };
    let mut findings = Vec::new();
    for (family, rules) in both(facts)? {
        let Some(table) = rules.table("filter") else {
            continue;
        };
        let Some(chain) = table.chain("INPUT") else {
            continue;
        };
        let last = chain.rules.iter().find(|rule| {
            let refuses = matches!(rule.target, Some(Target::Drop | Target::Reject { .. }));
            refuses && rule.matches.iter().all(is_open)
        });
        let closed = chain.policy == Some(Policy::Drop) || last.is_some();
        if !closed || accepts(table, chain, port, 5) {
            continue;
        }
        let message =
            "what is delivered locally is dropped unless it is known, and NodePorts are not";
        let seen = match last {
            Some(rule) => told(family, table, chain, rule),
            None => Proof::rule(family, "filter", "-P INPUT DROP"),
        };
        findings
            .push(Finding::new(Severity::Error, format!("{family} INPUT"), message).seen([seen]));
    }
    Ok(findings)
}
