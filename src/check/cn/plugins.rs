//! Network plugins: Cilium, `hostPorts`, bridges and `NodeLocal` DNS.

use std::net::IpAddr;

use crate::backend::Mode;
use crate::backend::iptables::model::Target;
use crate::check::core::{
    NFT, PODS, RULES, bridges, is_cilium, is_node_local_dns, link_proof, name_of, runs_here,
    still_held,
};
use crate::check::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::IptablesBackend;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CN04",
        name: "cilium-leftovers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No rules of kube-proxy are left over next to Cilium",
        symptom: "Some connections to Services go to pods that no longer exist, on nodes that are older than the \
              replacement of kube-proxy.",
        why: "Cilium can replace kube-proxy. kube-proxy's rules stay on each node until it reboots, and apply to \
              traffic that Cilium does not handle.",
        verify: "If Cilium runs and kube-proxy does not, there may be no KUBE-SVC chain.",
        commands: &[
            "iptables-save | grep -c KUBE-SVC",
            "cilium-dbg status | grep KubeProxyReplacement",
        ],
        fix: "Drain and reboot the node. Or run `kpx cleanup --mode MODE --force` to see the plan that removes the \
              rules, and add --apply to run it.",
        incidents: &["kube-hetzner/terraform-hcloud-kube-hetzner#1210"],
        needs: &[&[
            Item::Processes,
            Item::Links,
            Item::Iptables4,
            Item::Iptables6,
            Item::Nft,
            Item::NftText,
        ]],
        caused_by: &[],
        run: cilium_leftovers,
    },
    Check {
        id: "CN06",
        name: "host-ports",
        severity: Severity::Error,
        when: When::Now,
        title: "The hostPorts of running pods lead to them",
        symptom: "A hostPort, for example of an ingress controller, no longer answers, although the pod is healthy.",
        why: "A plugin writes the rules for a pod's hostPorts only when the pod starts. If table nat is flushed, they \
              are lost; kube-proxy restores only its own rules.",
        verify: "For each hostPort there must be a rule that translates to the pod's address.",
        commands: &["iptables-save -t nat | grep -E 'CNI-(DN|HOSTPORT)'"],
        fix: "Run `kubectl -n NAMESPACE delete pod POD`, so that a new one starts; and find out what flushed the \
              table.",
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
    Check {
        id: "CN07",
        name: "hairpin",
        severity: Severity::Warning,
        when: When::Now,
        title: "Pods on a bridge can reach themselves through a Service",
        symptom: "A pod cannot reach its own Service, in one of n attempts with n endpoints.",
        why: "The translated packet must leave the bridge by the port it came from, which a bridge allows only with \
              hairpin_mode on that port, or while it is promiscuous.",
        verify: "The flag hairpin must be on for the ports of the pods' bridge.",
        commands: &["bridge -d link show | grep -E 'master|hairpin'"],
        fix: "Set hairpinMode to true in the configuration of the bridge plugin; for running pods run `bridge link \
              set dev PORT hairpin on`.",
        incidents: &[
            "kubernetes/kubernetes#20475",
            "cloudnativelabs/kube-router#637",
        ],
        needs: &[PODS],
        caused_by: &[],
        run: hairpin,
    },
    Check {
        id: "CN08",
        name: "local-dns-address",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs]),
        title: "NodeLocal DNS does not listen on a Service's address",
        symptom: "After the switch pods cannot resolve names, or the DNS cache cannot reach its upstream.",
        why: "In iptables mode NodeLocal DNS may have the address of Service kube-dns on its own link. In ipvs mode \
              the same address is also on kube-ipvs0, and the packets go to either: the cache that queries kube-dns \
              queries itself.",
        verify: "The link nodelocaldns must have only the link-local address.",
        commands: &[
            "ip addr show dev nodelocaldns",
            "kubectl -n kube-system get service kube-dns",
        ],
        fix: "Install the ipvs variant of NodeLocal DNS, which listens only on 169.254.20.10, and set this address as \
              the kubelet's clusterDNS.",
        incidents: &["kubernetes/website#18716", "rancher/rke#2093"],
        needs: &[&[Item::Addresses, Item::Services]],
        caused_by: &[],
        run: local_dns,
    },
];

fn cilium_leftovers(facts: &Facts<'_>) -> Verdict {
    if !is_cilium(facts)? {
        return Err(Gap::NotApplicable(
            "Cilium does not run on this node".to_owned(),
        ));
    }
    if runs_here(facts)? {
        return Ok(Vec::new());
    }
    let message = "Cilium runs here and kube-proxy does not, but rules of kube-proxy are left over";
    still_held(facts, message)
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
        return Err(Gap::NotApplicable(
            "no pod on this node has a hostPort".to_owned(),
        ));
    }
    let links = facts.node.links()?.all.iter();
    let mut names = links.map(|link| link.name.as_str());
    let tables = &facts.node.nft()?.tables;
    if names.any(|name| name.starts_with("cilium_"))
        || tables.iter().any(|of| of.name == "cni_hostport")
    {
        let why = "hostPorts on this node do not use iptables rules";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let mut findings = Vec::new();
    for (pod, ip, port) in wanted {
        let rules = facts
            .node
            .iptables(IptablesBackend::InUse, Family::of(ip))?;
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
            let seen = Proof::Note(format!("no rule in table nat translates to {ip}"));
            findings.push(Finding::new(Severity::Error, subject, message).evidence([seen]));
        }
    }
    Ok(findings)
}

fn hairpin(facts: &Facts<'_>) -> Verdict {
    let links = &facts.node.links()?.all;
    let mut findings = Vec::new();
    let mut is_known = false;
    for bridge in bridges(facts)? {
        if bridge.flags.iter().any(|flag| flag == "PROMISC") {
            is_known = true;
            continue;
        }
        let ports: Vec<_> = links
            .iter()
            .filter(|port| port.master.as_ref() == Some(&bridge.name) && port.kind == "veth")
            .collect();
        is_known |= ports.iter().any(|port| port.hairpin.is_some());
        let off = ports.iter().filter(|port| port.hairpin == Some(false));
        let seen: Vec<_> = off.map(|port| link_proof(port, "hairpin off")).collect();
        if !seen.is_empty() {
            let message = "hairpin mode is off on these bridge ports: a pod cannot reach itself through its Service";
            findings
                .push(Finding::new(Severity::Warning, bridge.name.clone(), message).evidence(seen));
        }
    }
    if findings.is_empty() && !is_known {
        let why = "the hairpin mode of the bridge ports is unknown";
        return Err(Gap::Absent(Item::Links, why.to_owned()));
    }
    Ok(findings)
}

fn local_dns(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.addresses()?.all.iter();
    let dns: Vec<_> = links.filter(|at| is_node_local_dns(&at.link)).collect();
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let ips = service.spec.cluster_ips.iter();
        for ip in ips.filter_map(|text| text.parse::<IpAddr>().ok()) {
            let Some(at) = dns.iter().find(|at| at.addr.addr == ip) else {
                continue;
            };
            let message =
                "NodeLocal DNS has the Service's address, which in ipvs mode is also on kube-ipvs0";
            findings.push(
                Finding::new(Severity::Error, name_of(service), message).evidence([
                    Proof::Address {
                        link: at.link.clone(),
                        address: ip,
                    },
                ]),
            );
        }
    }
    Ok(findings)
}
