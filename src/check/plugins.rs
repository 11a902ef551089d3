//! CN: network plug-ins.

use std::net::IpAddr;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::{Match, Rule, Side, Target};
use crate::cluster::Service;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;

/// The rules in use, of both families.
pub(super) const RULES: &[Item] = &[Item::Iptables4, Item::Iptables6];
/// The ruleset of nftables.
pub(super) const NFT: &[Item] = &[Item::Nft, Item::NftText];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CN01",
        name: "calico-dataplane",
        severity: Severity::Error,
        when: When::For(&Mode::ALL),
        title: "Calico writes its rules where the mode to come writes its own",
        symptom: "After the move policies let through, or drop, what they should not, and hosts lose Services.",
        why: "Calico writes its rules to iptables or to nftables, and must use what kube-proxy uses: with one in each, the \
              order of their hooks is nobody's plan, and neither supports it.",
        verify: "For the nftables mode Calico must have a table in nftables, for the others chains in iptables.",
        commands: &[
            "nft list tables | grep calico",
            "iptables-save | grep -c '^:cali-'",
        ],
        fix: "Change Calico's data plane (spec.calicoNetwork.linuxDataplane) and kube-proxy's mode in the order that Calico's \
              documentation gives, node by node.",
        incidents: &[
            "sighupio/distribution#505",
            "kubernetes-sigs/kubespray#12730",
        ],
        needs: &[MODE, RULES, NFT],
        caused_by: &[],
        run: calico_plane,
    },
    Check {
        id: "CN02",
        name: "calico-sees-ipvs",
        severity: Severity::Warning,
        when: When::For(&[Mode::Ipvs]),
        title: "No agent of Calico has to learn of the ipvs mode",
        symptom: "After the move policies do not hold for traffic to NodePorts and Service addresses.",
        why: "Felix, Calico's agent, looks whether kube-ipvs0 is there and writes other rules then. It restarts when the \
              link appears, or, in older releases, has to be restarted.",
        verify: "After the move Felix must have been started later than kube-ipvs0 was made.",
        commands: &["kubectl -n calico-system logs DAEMONSET/calico-node | grep -i ipvs"],
        fix: "Restart calico-node on this node after the move, and expect its rules to be rewritten.",
        incidents: &["projectcalico/node#956", "projectcalico/calico#4815"],
        needs: &[MODE, RULES],
        caused_by: &[],
        run: calico_ipvs,
    },
    Check {
        id: "CN03",
        name: "calico-node-ports",
        severity: Severity::Warning,
        when: When::Now,
        title: "Calico takes every NodePort for one in ipvs mode",
        symptom: "A policy for hosts drops traffic to some NodePorts.",
        why: "In ipvs mode Felix tells traffic to NodePorts from traffic to the host by a range of ports, 30000 to 32767 \
              unless kubeNodePortRanges says otherwise. Where the cluster's range is another, the rest counts as the host's.",
        verify: "Each NodePort must lie in the range of Felix's rule.",
        commands: &[
            "iptables-save | grep 'kubernetes NodePort'",
            "kubectl get felixconfiguration default -o yaml",
        ],
        fix: "Set kubeNodePortRanges in FelixConfiguration to the cluster's range.",
        incidents: &["projectcalico/calico#2890"],
        needs: &[MODE, &[Item::Iptables4, Item::Services]],
        caused_by: &[],
        run: calico_ports,
    },
    Check {
        id: "CN06",
        name: "host-ports",
        severity: Severity::Error,
        when: When::Now,
        title: "The hostPorts of running pods lead to them",
        symptom: "A hostPort (of an ingress controller, say) does not answer any more; the pod is well.",
        why: "A plug-in writes the rules for a pod's hostPorts when the pod starts, and never again. Somebody who flushes \
              table nat takes them away; kube-proxy brings back its own rules alone.",
        verify: "For each hostPort there must be a rule that translates to the pod's address.",
        commands: &["iptables-save -t nat | grep -E 'CNI-(DN|HOSTPORT)'"],
        fix: "Delete the pod, so that a new one is started; and find out who flushed the table.",
        incidents: &["rancher/rke2#10469", "containernetworking/plugins#512"],
        needs: &[
            RULES,
            NFT,
            &[
                Item::Pods,
                Item::Nodes,
                Item::Addresses,
                Item::ProxyConfig,
                Item::Links,
            ],
        ],
        caused_by: &[],
        run: host_ports,
    },
];

/// Returns the namespace and name.
pub(super) fn name_of(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

/// Whether Calico has chains in iptables, and a table in nftables.
fn has_chains(facts: &Facts<'_>) -> Result<bool, Gap> {
    let rules = facts.node.iptables(Store::InUse, Family::V4)?;
    let mut chains = rules.tables.iter().flat_map(|table| &table.chains);
    Ok(chains.any(|chain| chain.name.starts_with("cali-")))
}

fn no_calico() -> Gap {
    Gap::NotApplicable("Calico does not run here".to_owned())
}

fn calico_plane(facts: &Facts<'_>) -> Verdict {
    let target = facts.mode()?;
    let chains = has_chains(facts)?;
    let tables = facts.node.nft()?.tables.iter();
    let table = tables.clone().any(|table| table.name == "calico");
    let (wrong, seen) = match (chains, table, target) {
        (false, false, _) => return Err(no_calico()),
        (true, false, Mode::Nftables) => ("iptables", "chains cali-… in iptables"),
        (false, true, Mode::Iptables | Mode::Ipvs) => ("nftables", "table calico in nftables"),
        _ => return Ok(Vec::new()),
    };
    let message =
        format!("Calico writes its rules to {wrong}, which does not go with the {target} mode");
    Ok(vec![
        Finding::new(Severity::Error, "Calico", message).seen([Proof::Note(seen.to_owned())]),
    ])
}

fn calico_ipvs(facts: &Facts<'_>) -> Verdict {
    if !has_chains(facts)? {
        return Err(no_calico());
    }
    if facts.current()? == Mode::Ipvs {
        return Ok(Vec::new());
    }
    let message = "Calico's agent has to write other rules once kube-ipvs0 is there";
    Ok(vec![
        Finding::new(Severity::Warning, "Calico", message)
            .seen([Proof::Note("chains cali-… in iptables".to_owned())]),
    ])
}

fn ranges<'r>(rule: &'r Rule<'_>) -> Option<&'r Vec<crate::net::PortRange>> {
    rule.matches.iter().find_map(|of| match of {
        Match::Multiport {
            side: Side::Destination,
            ports,
        } if !ports.not => Some(&ports.is),
        _ => None,
    })
}

fn calico_ports(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let rules = facts.node.iptables(Store::InUse, Family::V4)?;
    let all = rules
        .tables
        .iter()
        .flat_map(|table| &table.chains)
        .flat_map(|chain| &chain.rules);
    let says =
        |of: &Match<'_>| matches!(of, Match::Comment(text) if text.contains("kubernetes NodePort"));
    let ours = all.filter(|rule| rule.matches.iter().any(says));
    let ranges: Vec<_> = ours.filter_map(ranges).flatten().collect();
    if ranges.is_empty() {
        let why = "no rule of Calico tells NodePorts from other ports";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let told: Vec<_> = ranges
        .iter()
        .map(|range| format!("{}-{}", range.first, range.last))
        .collect();
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let ports = service.spec.ports.iter().filter_map(|port| port.node_port);
        let outside =
            ports.filter(|port| !ranges.iter().any(|r| (r.first..=r.last).contains(port)));
        for port in outside {
            let message = "the NodePort is outside the range that Calico takes for NodePorts";
            let seen = Proof::Note(format!("Calico's range is {}", told.join(", ")));
            findings.push(
                Finding::new(
                    Severity::Warning,
                    format!("{} {port}", name_of(service)),
                    message,
                )
                .seen([seen]),
            );
        }
    }
    Ok(findings)
}

fn host_ports(facts: &Facts<'_>) -> Verdict {
    let here = facts.node_name();
    let pods = facts.node.pods()?.iter();
    let pods = pods.filter(|pod| {
        pod.spec.node_name == here && !pod.spec.host_network && pod.status.phase == "Running"
    });
    let mut wanted = Vec::new();
    for pod in pods {
        let ports = pod
            .spec
            .containers
            .iter()
            .flat_map(|container| &container.ports);
        let ports: Vec<_> = ports
            .filter_map(|port| port.get("hostPort")?.as_u64())
            .filter(|port| *port != 0)
            .collect();
        let ip = pod
            .status
            .pod_ip
            .as_deref()
            .and_then(|ip| ip.parse::<IpAddr>().ok());
        if let (Some(ip), [first, ..]) = (ip, ports.as_slice()) {
            wanted.push((pod, ip, *first));
        }
    }
    if wanted.is_empty() {
        return Err(Gap::NotApplicable("no pod here has a hostPort".to_owned()));
    }
    let links = facts.node.links()?.all.iter();
    let mut names = links.map(|link| link.name.as_str());
    let tables = &facts.node.nft()?.tables;
    if names.any(|name| name.starts_with("cilium_"))
        || tables.iter().any(|of| of.name == "cni_hostport")
    {
        let why = "hostPorts are not served by rules of iptables here";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut findings = Vec::new();
    for (pod, ip, port) in wanted {
        let rules = facts.node.iptables(Store::InUse, Family::of(ip))?;
        let nat = rules
            .table("nat")
            .into_iter()
            .flat_map(|table| &table.chains);
        let ours = nat.filter(|chain| !chain.name.starts_with("KUBE-"));
        let leads = ours
            .flat_map(|chain| &chain.rules)
            .any(|rule| match &rule.target {
                Some(Target::Dnat(to)) => to
                    .addrs
                    .is_some_and(|(first, last)| first <= ip && ip <= last),
                _ => false,
            });
        if !leads {
            let subject = format!("{}/{} {port}", pod.metadata.namespace, pod.metadata.name);
            let message = "no rule leads from the hostPort to the pod";
            let seen = Proof::Note(format!("nothing in table nat translates to {ip}"));
            findings.push(Finding::new(Severity::Error, subject, message).seen([seen]));
        }
    }
    Ok(findings)
}
