//! CN16: packets between pods keep their source.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::check::core::{Collector, PATH, Paths, proof_of};
use crate::check::{
    Because, Check, Example, Facts, Finding, Severity, Subject, Text, Verdict, When, rule_fix,
};
use crate::trace::{Effect, Entry, Hop, Outcome, Rule, Verdict as End, why};
use crate::verdict::By;
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::chain_owner::Maker;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "CN16",
    name: "pod-sources",
    severity: Severity::Warning,
    when: When::Now,
    title: "Packets between pods keep the address of their pod",
    symptom: "NetworkPolicies, loadBalancerSourceRanges and programs in pods see the address of a node as that of the client: \
              connections that a policy allows are dropped, and logs name nodes as clients.",
    why: "Network plugins masquerade what pods send to addresses outside of the cluster, and leave out the ranges of pods. A rule \
          without these ranges, or with outdated ones, replaces the address by which NetworkPolicies know a pod.",
    verify: "Only kube-proxy's rules may replace the source of a packet from a pod to a pod.",
    commands: &[
        Example::on_node("iptables-save -t nat | grep -E 'MASQUERADE|SNAT'"),
        Example::kpx(&["trace", "ADDRESS", "--source", "NAMESPACE/POD"])
            .with(&["ADDRESS", "NAMESPACE/POD"]),
    ],
    fix: Text::plain("Leave the ranges of pods out where the rule is configured."),
    incidents: &["tigera/docs#2768: rules of flannel that stay after a switch to Calico"],
    needs: &[PATH, &[Item::Pods, Item::ProxyConfig]],
    // It says that replies are lost, too.
    caused_by: &[Because::Same("SY16")],
    run: hidden,
}];

/// A rule that replaces the source of packets to pods.
struct Hiding {
    rule: Rule,
    maker: Maker,
    /// The source that pods see; `None` if it is not known.
    seen: Option<IpAddr>,
}

fn hidden(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    for family in findings.read(facts.pod_families()).unwrap_or_default() {
        let paths = Paths::of(facts, family);
        let mut all: Vec<Hiding> = Vec::new();
        for to in destinations(facts, family) {
            let flow = paths.packet(Entry::Pod, SocketAddr::new(to, 80), Proto::Tcp);
            let Some((flow, from)) = flow.and_then(|flow| flow.source.map(|from| (flow, from)))
            else {
                continue;
            };
            if from == to {
                continue;
            }
            let arrives =
                |outcome: &Outcome| matches!(outcome.verdict, End::Deliver | End::Unmatched);
            let is_fine = |outcome: &Outcome| !arrives(outcome) || hides(outcome).is_none();
            for outcome in paths.astray(&mut findings, &flow, is_fine) {
                let Some((hop, seen)) = hides(&outcome) else {
                    continue;
                };
                if all.iter().all(|hiding| !hiding.rule.is(hop)) {
                    all.push(Hiding {
                        rule: Rule::of(hop, family),
                        maker: why::maker(hop),
                        seen,
                    });
                }
            }
        }
        findings.extend(all.into_iter().map(|hiding| finding(facts, family, hiding)));
    }
    findings.verdict()
}

/// Returns the hop at which a rule of other software replaces the source of a packet, and with which address.
fn hides(outcome: &Outcome) -> Option<(&Hop, Option<IpAddr>)> {
    outcome.hops.iter().find_map(|hop| {
        let (Effect::Snat { address } | Effect::Masquerade { address }) = &hop.effect else {
            return None;
        };
        let is_foreign = !matches!(why::maker(hop), Maker::KubeProxy | Maker::Both);
        is_foreign.then_some((&**hop, *address))
    })
}

/// Returns the address of one pod with its own network on each of a few Nodes.
fn destinations(facts: &Facts<'_>, family: Family) -> Vec<IpAddr> {
    const NODES: usize = 4;
    const HERE: usize = 2;
    let here = facts.node_name();
    let nodes = facts.node.nodes().into_iter().flatten();
    let of_nodes = nodes.flat_map(|node| &node.status.addresses);
    let of_nodes: Vec<IpAddr> = of_nodes.filter_map(|at| at.address.parse().ok()).collect();
    let pods = facts.node.pods().into_iter().flatten();
    let pods = pods.filter(|pod| !pod.spec.host_network);
    let pods = pods.flat_map(|pod| pod.addresses().map(|at| (pod.spec.node_name.clone(), at)));
    let slices = facts.node.slices().into_iter().flatten();
    let endpoints = slices.flat_map(|slice| &slice.endpoints);
    let endpoints = endpoints.filter(|endpoint| {
        endpoint
            .target_ref
            .as_ref()
            .is_some_and(|target| target.kind == "Pod")
    });
    let endpoints = endpoints.flat_map(|endpoint| {
        let all = endpoint
            .addresses
            .iter()
            .filter_map(|text| text.parse().ok());
        all.map(|at: IpAddr| (endpoint.node_name.clone(), at))
    });
    let mut by_node: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for (node, at) in pods.chain(endpoints) {
        let Some(node) = node.filter(|_| Family::of(at) == family && !of_nodes.contains(&at))
        else {
            continue;
        };
        let most = if Some(&node) == here.as_ref() {
            HERE
        } else {
            1
        };
        let all = by_node.entry(node).or_default();
        if all.len() < most && !all.contains(&at) {
            all.push(at);
        }
    }
    by_node.into_values().take(NODES).flatten().collect()
}

fn finding(facts: &Facts<'_>, family: Family, of: Hiding) -> Finding {
    let by = By::new(of.rule, of.maker, facts.node).of_families([family], facts.node);
    let seen = of
        .seen
        .map_or_else(|| "another address".to_owned(), |at| at.to_string());
    let message = format!(
        "a rule of other software replaces the source of packets between pods: NetworkPolicies and the receiving pods see {seen} instead of \
         the pod's address"
    );
    let fix = rule_fix(&by);
    Finding::new(Severity::Warning, Subject::Rule(by.rule.clone()), message)
        .called(by.rule.name(facts.node))
        .evidence([proof_of(&by.rule)])
        .fix(fix)
}
