//! SY: kernel settings.

use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};
use crate::node::links::Link;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "SY01",
    name: "ip-forward",
    severity: Severity::Error,
    when: When::Now,
    title: "The kernel forwards packets between links",
    symptom: "Pods reach neither Services nor other nodes, and NodePorts answer only for endpoints on the node itself.",
    why: "A packet from a pod to a Service, or from outside to a NodePort, comes in by one link and leaves by another. \
          With forwarding off the kernel drops it after translation, without a trace in any rule's counter. kube-proxy \
          turns IPv4 forwarding on in ipvs mode alone; otherwise it is left to the distribution and the network plug-in.",
    verify: "Both settings must be 1 for the families in use; a file that sets one to 0 wins again at the next boot or \
             `sysctl --system`.",
    commands: &[
        "sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding",
        "grep -rE '(ip_forward|all.forwarding)' /etc/sysctl.conf /etc/sysctl.d /usr/lib/sysctl.d /run/sysctl.d",
    ],
    fix: "Set it to 1 now, and in a file of /etc/sysctl.d so that it lasts.",
    incidents: &[
        "kubeadm refuses to join a node with IPv4 forwarding off (preflight FileContent--proc-sys-net-ipv4-ip_forward)",
    ],
    needs: &[&[
        Item::Sysctl,
        Item::Links,
        Item::Routes,
        Item::Addresses,
        Item::Services,
        Item::Nodes,
        Item::ProxyConfig,
    ]],
    caused_by: &[],
    run: ip_forward,
}];

fn ip_forward(facts: &Facts<'_>) -> Verdict {
    let sysctl = facts.node.sysctl()?;
    let mut findings = Vec::new();
    // Without pods' prefixes to tell, the Services' addresses do.
    let families = match facts.pod_families() {
        Ok(families) if !families.is_empty() => families,
        _ => facts.families()?,
    };
    for family in families {
        let key = match family {
            Family::V4 => "net.ipv4.ip_forward",
            Family::V6 => "net.ipv6.conf.all.forwarding",
        };
        let Some(value) = sysctl.get(key) else {
            return Err(Gap::Absent(Item::Sysctl, format!("{key} is not in it")));
        };
        if value != "0" {
            continue;
        }
        let seen = Proof::Sysctl {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let finding = if has_pod_network(facts) {
            let message = "forwarding is off: packets from and to pods are dropped";
            Finding::new(Severity::Error, key, message).seen([seen])
        } else {
            let message =
                "forwarding is off; nothing is lost yet, as no pod network is set up on this node";
            let note = "no link of pods and no route to pods' addresses".to_owned();
            Finding::new(Severity::Warning, key, message).seen([seen, Proof::Note(note)])
        };
        findings.push(finding.mend_by(
            "Turn it on, and write the same to a file of /etc/sysctl.d so that it lasts.",
            format!("sysctl -w {key}=1"),
        ));
    }
    Ok(findings)
}

/// Whether there are pods to forward for. What cannot be seen is taken to be there.
fn has_pod_network(facts: &Facts<'_>) -> bool {
    let (Ok(links), Ok(routes)) = (facts.node.links(), facts.node.routes()) else {
        return true;
    };
    let config = facts.node.proxy_config().ok();
    let of_cluster = config.iter().flat_map(|c| c.cluster_cidr.split(','));
    let node = facts.this_node().ok();
    let of_node = node.iter().flat_map(|n| n.spec.pod_cidrs.iter());
    let pods: Vec<Cidr> = of_cluster
        .chain(of_node.map(String::as_str))
        .filter_map(|text| text.trim().parse().ok())
        .collect();
    let leads_to_pods = |to: Cidr| {
        let overlap = |pods: &Cidr| pods.contains(to.addr) || to.contains(pods.addr);
        to.prefix > 0 && pods.iter().any(overlap)
    };
    links.all.iter().any(carries_pods) || routes.all.iter().any(|r| leads_to_pods(r.destination))
}

fn carries_pods(link: &Link) -> bool {
    let kinds = ["veth", "ipvlan", "macvlan", "vxlan", "geneve", "wireguard"];
    // Bridges and tunnels are often there for other reasons; these names are plug-ins' own.
    let names = ["cni", "cali", "cilium", "lxc", "flannel", "weave", "antrea"];
    kinds.contains(&link.kind.as_str()) || names.iter().any(|name| link.name.starts_with(name))
}
