//! Calico.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::check::core::{Collector, IDLE, MODE, NFT, RULES, all_rules, name_of, rules_in_use};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Match, Rule, Ruleset, Side};
use kpx_node::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CN01",
        name: "calico-dataplane",
        severity: Severity::Error,
        when: When::For(&Mode::ALL),
        title: "Calico uses the same packet filter as the target mode",
        symptom: "After the switch network policies accept or drop the wrong traffic, and hosts cannot reach Services.",
        why: "Calico writes its rules to iptables or to nftables, and must use the same as kube-proxy: with one in \
              each, the order of their hooks is undefined, and neither project supports it.",
        verify: "For the nftables mode Calico must have a table in nftables, for the others chains in iptables.",
        commands: &[
            Example::on_node("nft list tables | grep calico"),
            Example::on_node("iptables-save | grep -c '^:cali-'"),
        ],
        fix: Text::plain(
            "Change Calico's data plane (spec.calicoNetwork.linuxDataplane) and kube-proxy's mode in the order that \
              Calico's documentation gives, node by node. With `nftablesMode: Auto` in FelixConfiguration, Calico follows \
             kube-proxy's mode itself.",
        ),
        incidents: &[
            "sighupio/distribution#505",
            "kubernetes-sigs/kubespray#12730",
        ],
        needs: &[
            MODE,
            RULES,
            NFT,
            IDLE,
            &[Item::Links, Item::Pods, Item::DaemonSets, Item::Nodes],
        ],
        caused_by: &[],
        run: calico_plane,
    },
    Check {
        id: "CN02",
        name: "calico-sees-ipvs",
        severity: Severity::Warning,
        when: When::For(&[Mode::Ipvs]),
        title: "No Calico agent must detect the ipvs mode",
        symptom: "After the switch policies do not apply to traffic to NodePorts and Service addresses.",
        why: "Felix, Calico's agent, checks whether kube-ipvs0 exists and then writes different rules. It restarts \
              when the link appears; older releases must be restarted manually.",
        verify: "After the switch Felix must have been started after kube-ipvs0 was created.",
        commands: &[Example::anywhere(
            "kubectl -n calico-system logs daemonset/calico-node | grep -i ipvs",
        )],
        fix: Text::plain(
            "Restart calico-node on this node after the switch: `kubectl -n calico-system delete pod POD`. It then \
             rewrites its rules.",
        ),
        incidents: &["projectcalico/node#956", "projectcalico/calico#4815"],
        needs: &[MODE, RULES, IDLE, &[Item::Links]],
        caused_by: &[],
        run: calico_ipvs,
    },
    Check {
        id: "CN03",
        name: "calico-node-ports",
        severity: Severity::Warning,
        when: When::Now,
        title: "Calico recognises every NodePort in ipvs mode",
        symptom: "A policy for hosts drops traffic to some NodePorts.",
        why: "In ipvs mode Felix distinguishes traffic to NodePorts from traffic to the host by a range of ports: \
              30000 to 32767 unless kubeNodePortRanges sets another. If the cluster's range differs, the other \
              NodePorts count as traffic to the host.",
        verify: "Each NodePort must lie in the range of Felix's rule.",
        commands: &[
            Example::on_node("iptables-save | grep 'kubernetes NodePort'"),
            Example::anywhere("kubectl get felixconfiguration default -o yaml"),
        ],
        fix: Text::plain("Set kubeNodePortRanges in FelixConfiguration to the cluster's range."),
        incidents: &["projectcalico/calico#2890"],
        needs: &[MODE, RULES, IDLE, &[Item::Links, Item::Services]],
        caused_by: &[],
        run: calico_ports,
    },
];

/// The variable of Felix, Calico's agent, that says whether it uses nftables: Disabled, Enabled, or Auto.
const NFTABLES_MODE: &str = "FELIX_NFTABLESMODE";

/// Returns the rules in which Calico may have chains: of both families, and of the back end that is not in use too, since Calico
/// chooses its own. Without links of Calico, it is no gap that the other one was not read.
fn rulesets<'f>(facts: &'f Facts<'_>, all: &mut Collector) -> Vec<&'f Ruleset<'f>> {
    let links = facts.node.links();
    if links.is_ok_and(|links| links.all.iter().any(|link| link.name.starts_with("cali"))) {
        let found = all_rules(facts, all);
        return found.into_iter().map(|(_, _, rules)| rules).collect();
    }
    rules_in_use(facts, all);
    let found = all_rules(facts, &mut Collector::default());
    found.into_iter().map(|(_, _, rules)| rules).collect()
}

/// Returns whether Calico has chains in iptables.
fn has_chains(facts: &Facts<'_>) -> Result<bool, Gap> {
    let mut all = Collector::default();
    let rulesets = rulesets(facts, &mut all);
    let mut chains = rulesets
        .iter()
        .flat_map(|rules| &rules.tables)
        .flat_map(|table| &table.chains);
    if chains.any(|chain| chain.name.starts_with("cali-")) {
        return Ok(true);
    }
    all.verdict().map(|_| false)
}

/// Returns the setting that makes Felix follow the mode of kube-proxy: it then looks for kube-proxy's table in nftables.
fn follows(facts: &Facts<'_>) -> Option<Proof> {
    let name = facts.node_name();
    let pods = facts.node.pods().map_or(&[][..], Vec::as_slice).iter();
    let here = pods.filter(|pod| name.is_none() || pod.spec.node_name == name);
    let pods = here.map(|pod| (format!("pod {}", pod.metadata.name), &pod.spec));
    let sets = facts
        .node
        .daemon_sets()
        .map_or(&[][..], Vec::as_slice)
        .iter();
    let sets = sets.map(|set| {
        (
            format!("DaemonSet {}", set.metadata.name),
            &set.spec.template.spec,
        )
    });
    let mut all = pods.chain(sets);
    all.find_map(|(source, spec)| {
        let containers = spec.containers.iter();
        let mut env = containers
            .filter(|container| container.name == "calico-node")
            .flat_map(|container| &container.env);
        let set = env.find(|env| env.get("name").and_then(Value::as_str) == Some(NFTABLES_MODE))?;
        let value = set.get("value").and_then(Value::as_str)?;
        value
            .eq_ignore_ascii_case("auto")
            .then(|| Proof::setting(source, NFTABLES_MODE, value))
    })
}

fn no_calico() -> Gap {
    Gap::NotApplicable("Calico does not run on this node".to_owned())
}

fn calico_plane(facts: &Facts<'_>) -> Verdict {
    let target = facts.mode()?;
    let chains = has_chains(facts);
    let table = match facts.node.nft() {
        // Without nftables there is no table.
        Err(Gap::NotApplicable(_)) => Ok(false),
        read => read.map(|rules| rules.tables.iter().any(|table| table.name == "calico")),
    };
    let in_iptables = ("iptables", "chains cali-… in iptables");
    let in_nftables = ("nftables", "table calico in nftables");
    let (right, other, (wrong, seen)) = match target {
        Mode::Nftables => (table, chains, in_iptables),
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => (chains, table, in_nftables),
    };
    if right? {
        return Ok(Vec::new());
    }
    if !other? {
        return Err(no_calico());
    }
    let switches = facts.target().is_some() && facts.current().is_ok_and(|mode| mode != target);
    if let Some(auto) = follows(facts).filter(|_| switches) {
        let message = format!(
            "Calico writes its rules to {wrong} now, and follows kube-proxy to the {target} mode"
        );
        let fix = "Let the switch of a node end, and look at Calico's rules there, before the next node: Felix restarts when \
                   kube-proxy's table in nftables appears or goes.";
        let seen = [auto, Proof::Note(seen.to_owned())];
        let about = Subject::software("Calico");
        return Ok(vec![
            Finding::new(Severity::Info, about, message)
                .evidence(seen)
                .fix(fix),
        ]);
    }
    let message = format!(
        "Calico writes its rules to {wrong}, which is not supported with the {target} mode"
    );
    Ok(vec![
        Finding::new(Severity::Error, Subject::software("Calico"), message)
            .evidence([Proof::Note(seen.to_owned())]),
    ])
}

fn calico_ipvs(facts: &Facts<'_>) -> Verdict {
    if !has_chains(facts)? {
        return Err(no_calico());
    }
    if facts.current()? == Mode::Ipvs {
        return Ok(Vec::new());
    }
    let message = "Calico's agent must rewrite its rules when kube-ipvs0 appears";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::software("Calico"), message)
            .evidence([Proof::Note("chains cali-… in iptables".to_owned())]),
    ])
}

fn ranges<'r>(rule: &'r Rule<'_>) -> Option<&'r Vec<kpx_node::net::PortRange>> {
    rule.matches.iter().find_map(|matched| match matched {
        Match::Multiport {
            side: Side::Destination,
            ports,
        } if !ports.inverted => Some(&ports.value),
        _ => None,
    })
}

fn calico_ports(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let mut read = Collector::default();
    let rulesets = rulesets(facts, &mut read);
    let tables = rulesets.iter().flat_map(|rules| &rules.tables);
    let all = tables
        .flat_map(|table| &table.chains)
        .flat_map(|chain| &chain.rules);
    let is_node_port_rule = |matched: &Match<'_>| matches!(matched, Match::Comment(text) if text.contains("kubernetes NodePort"));
    let ours = all.filter(|rule| rule.matches.iter().any(is_node_port_rule));
    let ranges: Vec<_> = ours.filter_map(ranges).flatten().collect();
    if ranges.is_empty() {
        read.verdict()?;
        let why = "no rule of Calico distinguishes NodePorts from other ports";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    // Each family has the same rule.
    let texts: BTreeSet<_> = ranges
        .iter()
        .map(|range| format!("{}-{}", range.first, range.last))
        .collect();
    let texts: Vec<_> = texts.into_iter().collect();
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let ports = service.spec.ports.iter().filter_map(|port| port.node_port);
        let outside =
            ports.filter(|port| !ranges.iter().any(|r| (r.first..=r.last).contains(port)));
        for port in outside {
            let message = "the NodePort is outside Calico's NodePort range";
            let seen = Proof::Note(format!("Calico's range is {}", texts.join(", ")));
            findings.push(
                Finding::new(
                    Severity::Warning,
                    Subject::NodePort {
                        service: service.into(),
                        number: port,
                    },
                    message,
                )
                .called(format!("{} {port}", name_of(service)))
                .evidence([seen]),
            );
        }
    }
    Ok(findings)
}
