//! Leftovers of another network plugin on the node.

use std::collections::BTreeSet;

use crate::check::core::{
    Collector, IDLE, REPLACEMENT, RULES, all_rules, link_proof, rule_proof, tool,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::chain_owner::{SOFTWARE, Software, is_built_in};
use kpx_node::backend::iptables::model::{Rule, Target};
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::agents::Agent;
use kpx_node::words::{listed, number_of};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "CN12",
    name: "plugin-leftovers",
    severity: Severity::Error,
    when: When::Now,
    title: "No rules and links of another network plugin are left over",
    symptom: "Connections between pods of different nodes time out where a NetworkPolicy selects them; some pods have no \
              network, or their traffic leaves by a tunnel that does not exist.",
    why: "A network plugin that is replaced leaves its chains, links and IP sets on every node that is not rebooted, and \
          nothing updates them. A rule of it that masquerades traffic between pods hides the address by which policies know \
          a pod; a rule that drops packets enforces policies of an earlier time.",
    verify: "The chains and links must be those of the plugin whose pod runs on the node.",
    commands: &[
        Example::on_node(
            "iptables-save | grep -E '^:(FLANNEL|cali|CILIUM_|WEAVE|KUBE-ROUTER|ANTREA)'",
        ),
        Example::on_node("ip -br link; ls /etc/cni/net.d"),
    ],
    fix: Text::plain(
        "Delete the configuration of the former plugin in /etc/cni/net.d, then drain and reboot the node.",
    ),
    incidents: &["projectcalico/calico#12920", "tigera/docs#2768"],
    needs: &[
        REPLACEMENT,
        RULES,
        IDLE,
        &[
            Item::Nft,
            Item::NftText,
            Item::Ipset,
            Item::Links,
            Item::Pods,
            Item::Nodes,
            Item::ProxyConfig,
        ],
    ],
    caused_by: &[],
    run: leftovers,
}];

/// The most chains for which the fix has a command; with more, a reboot is quicker.
const MOST_CHAINS: usize = 6;

/// The plugin's own way to remove its leftovers from a node.
const CLEANERS: &[(&str, &str)] = &[
    (
        "Cilium",
        "`cilium-dbg post-uninstall-cleanup -f` in Cilium's image removes its programs, maps and own links once \
         /var/run/cilium/cilium.pid is deleted; its chains, the pods' links, its routing rule and sysctls stay.",
    ),
    ("Weave Net", "`weave reset --force` removes all of it."),
    (
        "kube-router",
        "`kube-router --cleanup-config` in kube-router's image removes all of it.",
    ),
];

/// The leftovers of one plugin.
#[derive(Default)]
struct Left {
    /// Rules outside its chains that the plugin wrote, or that lead to its chains: program, table, chain, rule.
    rules: Vec<(&'static str, String, String, String)>,
    /// Its chains: program, table, name.
    chains: Vec<(&'static str, String, String)>,
    /// Its tables of nftables.
    tables: Vec<String>,
    /// Its links, with their kinds.
    links: Vec<(String, String)>,
    /// Its IP sets.
    sets: Vec<String>,
    /// The effect of its rules on packets.
    effects: BTreeSet<&'static str>,
    seen: Vec<Proof>,
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.rules.is_empty()
            && self.chains.is_empty()
            && self.tables.is_empty()
            && self.links.is_empty()
            && self.sets.is_empty()
    }
}

fn leftovers(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let plugins = SOFTWARE.iter().filter(|plugin| !plugin.agents.is_empty());
    let left = plugins.map(|plugin| (plugin, left_of(facts, &mut findings, plugin)));
    let left: Vec<_> = left.filter(|(_, left)| !left.is_nothing()).collect();
    if left.is_empty() {
        return findings.verdict();
    }
    let here = facts.called()?;
    let pods = facts.node.pods()?.iter();
    let pods: Vec<&Pod> = pods
        .filter(|pod| pod.spec.node_name.as_deref() == Some(&here))
        .collect();
    let is_running = |software: &&Software| {
        let mut pods = pods.iter().filter(|pod| pod.status.phase == "Running");
        pods.any(|pod| software.has_agent(pod))
    };
    let running: Vec<&Software> = SOFTWARE.iter().filter(is_running).collect();
    for (of, left) in left {
        let mut proxies = facts.node.ebpf().iter();
        let proxy = proxies.find(|proxy| proxy.proxy.name() == of.name);
        let attached = proxy.is_some_and(|proxy| !proxy.programs.is_empty());
        let Some(agent) = findings.read(facts.node.agent(of)) else {
            continue;
        };
        let mut others = running.iter().filter(|other| other.name != of.name);
        match (agent, others.next()) {
            // CN13 says so of programs.
            (Agent::Missing, _) => findings.extend((!attached).then(|| missing(of, left, &here))),
            (Agent::Gone, Some(other)) => {
                findings.push(finding(of, Some(other), left, attached, &here));
            }
            // Jumps into chains that no agent updates, whichever plugin the node has.
            (Agent::Gone, None)
                if running.is_empty()
                    && !left.rules.is_empty()
                    && proxy.is_some_and(|proxy| proxy.agent == Ok(false)) =>
            {
                findings.push(finding(of, None, left, attached, &here));
            }
            (Agent::Runs, _) | (Agent::Gone, None) => {}
        }
    }
    if running.is_empty() {
        let why = "no pod of a network plugin runs on this node";
        return match findings.verdict() {
            Ok(found) if found.is_empty() => Err(Gap::NotApplicable(why.to_owned())),
            other => other,
        };
    }
    findings.verdict()
}

/// Returns the objects of `plugin` on the node.
fn left_of(facts: &Facts<'_>, findings: &mut Collector, plugin: &Software) -> Left {
    let mut left = Left::default();
    for (family, store, rules) in all_rules(facts, findings) {
        let tool = tool(store, family);
        for table in &rules.tables {
            for chain in &table.chains {
                let is_own = plugin.has_name(&chain.name);
                if is_own {
                    let names = (tool, table.name.to_string(), chain.name.to_string());
                    left.chains.push(names);
                    left.effects.extend(chain.rules.iter().filter_map(effect));
                }
                // A jump from a chain of another plugin belongs to that plugin.
                if is_own || !is_built_in(&chain.name) {
                    continue;
                }
                for rule in chain.rules.iter().filter(|rule| is_rule_of(plugin, rule)) {
                    let place = (table.name.to_string(), chain.name.to_string());
                    let text = rule.to_string().trim_start().to_owned();
                    left.rules.push((tool, place.0, place.1, text));
                    left.effects.extend(effect(rule));
                    left.seen.push(rule_proof(family, table, chain, rule));
                }
            }
        }
    }
    let tables = facts.node.nft().map_or(&[][..], |rules| &rules.tables);
    for table in tables.iter().filter(|table| plugin.has_table(&table.name)) {
        let name = format!("{} {}", table.family, table.name);
        left.seen.push(Proof::object("nft-table", name.clone()));
        left.tables.push(name);
    }
    if let Some(links) = findings.read(facts.node.links()) {
        for link in links.all.iter().filter(|link| plugin.has_link(&link.name)) {
            left.seen.push(link_proof(link, &link.kind));
            left.links.push((link.name.clone(), link.kind.clone()));
        }
    }
    let sets = facts.node.ipset().map_or(&[][..], |sets| &sets.sets);
    for set in sets.iter().filter(|set| plugin.has_name(&set.name)) {
        left.sets.push(set.name.to_string());
    }
    left
}

/// Returns whether `rule` is of `plugin`, or leads to one of its chains.
fn is_rule_of(plugin: &Software, rule: &Rule<'_>) -> bool {
    let to = match &rule.target {
        Some(Target::Jump(to) | Target::Goto(to)) => plugin.has_name(to),
        _ => false,
    };
    to || plugin.has_rule(&rule.to_string(), rule.comment())
}

/// Returns what a rule does with packets.
fn effect(rule: &Rule<'_>) -> Option<&'static str> {
    match rule.target.as_ref()? {
        Target::Masquerade { .. } | Target::Snat(_) => Some("masquerade"),
        Target::Dnat(_) => Some("translate"),
        Target::Drop | Target::Reject { .. } => Some("drop"),
        Target::Accept => Some("accept"),
        _ => None,
    }
}

/// Returns the finding on a plugin that connects pods of the node called `here`, and does not run.
fn missing(plugin: &Software, left: Left, here: &str) -> Finding {
    let name = plugin.name;
    let message = format!(
        "{name} does not run on this node, although pods are connected by its links: nothing updates its rules, routes and \
         policies"
    );
    Finding::new(Severity::Warning, Subject::software(name), message)
        .evidence(left.seen)
        .fix(Fix::kubectl(
            "Start its agent on this node, and find out why it does not run.",
            format!("kubectl get pods -A -o wide --field-selector spec.nodeName={here}"),
        ))
}

/// Returns the finding on the leftovers of `plugin` on the node called `here`; its programs of eBPF may still be attached.
fn finding(
    plugin: &Software,
    other: Option<&Software>,
    left: Left,
    attached: bool,
    here: &str,
) -> Finding {
    let name = plugin.name;
    let mut parts = Vec::new();
    if !left.rules.is_empty() {
        let effects: Vec<&str> = left.effects.iter().copied().collect();
        let rules = number_of(left.rules.len(), "rule");
        parts.push(match effects.as_slice() {
            [] => rules,
            effects => format!("{rules} into chains that {} packets", effects.join(" and ")),
        });
    } else if !left.chains.is_empty() {
        parts.push(number_of(left.chains.len(), "chain"));
    }
    for (count, what) in [
        (left.tables.len(), "nftables table"),
        (left.links.len(), "link"),
        (left.sets.len(), "IP set"),
    ] {
        if count > 0 {
            parts.push(number_of(count, what));
        }
    }
    let message = format!(
        "objects of {name} are left over, and nothing updates them: {}; {}",
        listed(&parts),
        match other {
            Some(other) => format!("the network plugin of the node is {}", other.name),
            None => "no pod of a network plugin runs on the node".to_owned(),
        }
    );
    let severity = if left.rules.is_empty() && left.tables.is_empty() {
        Severity::Warning
    } else {
        Severity::Error
    };
    let fix = if attached {
        Fix::drain(
            format!(
                "Then reboot the node: that removes the programs of {name}, which are attached and redirect packets, together \
                 with its rules."
            ),
            Some(here),
        )
    } else {
        fix(plugin, &left)
    };
    let runs = Proof::Note(match other {
        Some(other) => format!("{} runs on this node, {name} does not", other.name),
        None => format!("{name} does not run on this node"),
    });
    Finding::new(severity, Subject::software(name), message)
        .may_stop()
        .evidence(left.seen)
        .evidence([runs])
        .fix(fix)
}

fn fix(plugin: &Software, left: &Left) -> Fix {
    let mut cleaners = CLEANERS.iter();
    let cleaner = cleaners.find(|(name, _)| *name == plugin.name);
    let cleaner = cleaner.map_or(String::new(), |(_, text)| format!("{text} "));
    let text = format!(
        "Delete the configuration of {} in /etc/cni/net.d, and what is left on the node: no pod of it recreates that. {cleaner}\
         Draining and rebooting the node removes the rest.",
        plugin.name
    );
    let commands = commands(left);
    if commands.is_empty() {
        Fix::said(text)
    } else {
        Fix::on_node(text, commands.join("; "))
    }
}

/// Returns the commands that disable the objects.
fn commands(left: &Left) -> Vec<String> {
    let rules = left.rules.iter();
    let rules =
        rules.map(|(tool, table, chain, rule)| format!("{tool} -t {table} -D {chain} {rule}"));
    let mut commands: Vec<String> = rules.collect();
    if left.chains.len() <= MOST_CHAINS {
        for action in ["-F", "-X"] {
            let chains = left.chains.iter();
            commands.extend(
                chains.map(|(tool, table, chain)| format!("{tool} -t {table} {action} {chain}")),
            );
        }
    }
    let tables = left.tables.iter();
    commands.extend(tables.map(|name| format!("nft delete table {name}")));
    // Pods may still use ends of veth pairs.
    let links = left.links.iter().filter(|(_, kind)| kind != "veth");
    commands.extend(links.map(|(name, _)| format!("ip link delete {name}")));
    commands
}
