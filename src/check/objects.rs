//! AP, CN, DV: what the cluster's objects and the pods' links tell by themselves.

use std::net::IpAddr;

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::cluster::Service;
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};
use crate::node::desired::NEEDS;
use crate::node::links::Link;

const PODS: &[Item] = &[
    Item::Links,
    Item::Addresses,
    Item::ProxyConfig,
    Item::ConfigMaps,
    Item::Nodes,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "AP01",
        name: "no-endpoints",
        severity: Severity::Warning,
        when: When::Now,
        title: "Every Service with a selector has endpoints that are ready",
        symptom: "Connections to the Service are refused, or in ipvs mode hang.",
        why: "A selector that matches no pod, or pods that do not get ready, leave a Service without endpoints. All modes \
              then reject connections to it, which is right, and surprises nonetheless.",
        verify: "Look for ready endpoints in the Service's EndpointSlices.",
        commands: &[
            "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME",
            "kubectl -n NAMESPACE get pods -l SELECTOR",
        ],
        fix: "Compare the selector with the pods' labels, and see why the pods are not ready.",
        incidents: &["kubernetes/kubernetes#17359"],
        needs: &[&[Item::Services, Item::EndpointSlices]],
        caused_by: &[],
        run: no_endpoints,
    },
    Check {
        id: "AP04",
        name: "no-local-endpoints",
        severity: Severity::Info,
        when: When::Now,
        title: "Services for this node's own endpoints have some here",
        symptom: "Pods on this node cannot reach a Service that pods on other nodes can.",
        why: "With internalTrafficPolicy Local only endpoints of the client's own node are used, and where there are none \
              the traffic is dropped. That is as asked for, but often not as meant.",
        verify: "Compare the nodes of the endpoints with this one.",
        commands: &[
            "kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME -o yaml | grep nodeName",
        ],
        fix: "Run an endpoint on every node (a DaemonSet), or set the policy to Cluster.",
        incidents: &["kube-proxy counts them: kubeproxy_sync_proxy_rules_no_local_endpoints_total"],
        needs: &[MODE, NEEDS],
        caused_by: &[],
        run: no_local_endpoints,
    },
    Check {
        id: "AP08",
        name: "overlapping-ranges",
        severity: Severity::Error,
        when: When::Now,
        title: "Service addresses, pods and nodes do not share a range",
        symptom: "Some pods or nodes cannot be reached, others only from some nodes.",
        why: "An address that is both a Service's and a pod's or node's is translated to the Service wherever kube-proxy \
              runs, and nobody reaches the other one any more.",
        verify: "No cluster IP may lie in a Node's podCIDR, in clusterCIDR, or among the Nodes' addresses.",
        commands: &[
            "kubectl get nodes -o jsonpath='{.items[*].spec.podCIDRs}'",
            "kubectl get services -A",
        ],
        fix: "Give Services a range of their own; that takes new cluster IPs for all of them.",
        incidents: &["seen in clusters that were merged or grown by hand"],
        needs: &[&[
            Item::Services,
            Item::Nodes,
            Item::ProxyConfig,
            Item::ConfigMaps,
        ]],
        caused_by: &[],
        run: overlaps,
    },
    Check {
        id: "AP10",
        name: "family-not-served",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy serves every family that Services have addresses of",
        symptom: "The IPv6 address of a Service does not answer, while the IPv4 one does.",
        why: "kube-proxy serves IPv6 only where the node can: with IPv6 switched off, or without ip6tables, it goes on with \
              IPv4 alone and says so once in its log.",
        verify: "IPv6 must be on, and ip6tables work, where Services have IPv6 addresses.",
        commands: &[
            "sysctl net.ipv6.conf.all.disable_ipv6",
            "kubectl -n kube-system logs POD | grep -i stack",
        ],
        fix: "Switch IPv6 on and restart kube-proxy, or give the Services one family.",
        incidents: &["kube-proxy: \"kube-proxy running in single-stack mode\""],
        needs: &[MODE, NEEDS, &[Item::Iptables6]],
        caused_by: &[],
        run: not_served,
    },
    Check {
        id: "DV09",
        name: "proxy-protocol",
        severity: Severity::Error,
        when: When::Now,
        title: "Load balancers that speak the PROXY protocol are not bypassed",
        symptom: "From inside the cluster the load balancer's address answers with an error of the protocol, or not at all.",
        why: "kube-proxy delivers traffic for a load balancer's address straight to the endpoints. If they expect the PROXY \
              header that only the load balancer writes, connections from inside fail. ipMode Proxy tells kube-proxy to \
              keep out.",
        verify: "The Service's status must say ipMode: Proxy where the load balancer adds a header.",
        commands: &["kubectl -n NAMESPACE get service NAME -o yaml | grep -A3 ingress"],
        fix: "Use a cloud controller that sets ipMode Proxy (stable since 1.32), or one that gives a host name instead of an \
              address.",
        incidents: &[
            "hetznercloud/hcloud-cloud-controller-manager#727",
            "kubernetes/kubernetes#79783",
            "kubernetes/kubernetes#115931",
        ],
        needs: &[&[Item::Services]],
        caused_by: &[],
        run: proxy_protocol,
    },
    Check {
        id: "KM13",
        name: "bridge-netfilter",
        severity: Severity::Error,
        when: When::Now,
        title: "Packets between pods on a bridge pass the rules",
        symptom: "A Service fails exactly when the endpoint is on the client's own node.",
        why: "On a bridge of pods the endpoint's answer goes straight back to the client, past the rules that would undo \
              the translation, unless br_netfilter sends bridged packets through them.",
        verify: "The module br_netfilter must be loaded and the setting 1.",
        commands: &[
            "sysctl net.bridge.bridge-nf-call-iptables",
            "lsmod | grep br_netfilter",
        ],
        fix: "Load br_netfilter, set it to 1, and make both last.",
        incidents: &[
            "kubernetes/kubernetes#24019",
            "kubernetes/kubernetes#38802",
            "kelseyhightower/kubernetes-the-hard-way#561",
        ],
        needs: &[PODS, &[Item::Sysctl]],
        caused_by: &[],
        run: bridge_netfilter,
    },
    Check {
        id: "CN07",
        name: "hairpin",
        severity: Severity::Warning,
        when: When::Now,
        title: "Pods on a bridge can reach themselves over a Service",
        symptom: "A pod cannot reach its own Service, once in as many tries as there are endpoints.",
        why: "The translated packet must leave the bridge by the port it came in by, which a bridge does only with \
              hairpin_mode on that port, or while it is promiscuous.",
        verify: "The flag hairpin must be on for the ports of the pods' bridge.",
        commands: &["bridge -d link show | grep -E 'master|hairpin'"],
        fix: "Set hairpinMode to true in the configuration of the bridge plug-in; for running pods set it on each port.",
        incidents: &[
            "kubernetes/kubernetes#20475",
            "cloudnativelabs/kube-router#637",
        ],
        needs: &[PODS],
        caused_by: &[],
        run: hairpin,
    },
];

fn name_of(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

fn is_served(service: &Service) -> bool {
    let labels = &service.metadata.labels;
    !matches!(service.spec.cluster_ip.as_str(), "" | "None")
        && service.spec.kind != "ExternalName"
        && !labels.contains_key("service.kubernetes.io/service-proxy-name")
        && !labels.contains_key("service.kubernetes.io/headless")
}

fn of(service: &Service) -> Proof {
    Proof::Object {
        what: "service",
        name: name_of(service),
    }
}

fn no_endpoints(facts: &Facts<'_>) -> Verdict {
    let slices = facts.node.slices()?;
    let has_selector = |service: &&Service| {
        service
            .spec
            .selector
            .as_ref()
            .is_some_and(|labels| !labels.is_empty())
    };
    let mut findings = Vec::new();
    let services = facts.node.services()?.iter();
    for service in services.filter(|s| is_served(s)).filter(has_selector) {
        let ours = slices.iter().filter(|slice| {
            let label = slice.metadata.labels.get("kubernetes.io/service-name");
            slice.metadata.namespace == service.metadata.namespace
                && label == Some(&service.metadata.name)
        });
        let all: Vec<_> = ours.flat_map(|slice| &slice.endpoints).collect();
        let ready = |e: &&&crate::cluster::Endpoint| e.conditions.ready.unwrap_or(true);
        if all.iter().any(|e| ready(&e)) {
            continue;
        }
        let seen = match all.len() {
            0 => "no pod matches the selector".to_owned(),
            count => format!("none of {count} endpoints is ready"),
        };
        let message = "the Service has no endpoint that is ready";
        findings.push(
            Finding::new(Severity::Warning, name_of(service), message)
                .seen([Proof::Note(format!("{}: {seen}", name_of(service)))]),
        );
    }
    Ok(findings)
}

fn no_local_endpoints(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    let mut names: Vec<_> = desired
        .families
        .iter()
        .flat_map(|state| &state.ports)
        .filter(|port| port.internal_local && port.has_endpoints && !port.has_internal())
        .map(|port| format!("{}/{}", port.namespace, port.service))
        .collect();
    names.sort();
    names.dedup();
    let message =
        "internalTrafficPolicy is Local, and no endpoint is on this node: its pods get no answer";
    let finding = |name: String| {
        Finding::new(Severity::Info, name.clone(), message).seen([Proof::Object {
            what: "service",
            name,
        }])
    };
    Ok(names.into_iter().map(finding).collect())
}

fn overlaps(facts: &Facts<'_>) -> Verdict {
    let services = facts.node.services()?;
    let nodes = facts.node.nodes();
    let config = facts.configuration();
    if let (Err(gap), Err(_)) = (&nodes, &config) {
        return Err(gap.clone());
    }
    let mut ranges: Vec<(Cidr, String)> = Vec::new();
    for node in nodes.iter().flat_map(|nodes| nodes.iter()) {
        let name = &node.metadata.name;
        let pods = node
            .spec
            .pod_cidrs
            .iter()
            .filter_map(|text| text.parse().ok());
        ranges.extend(pods.map(|cidr| (cidr, format!("pods of node {name}"))));
        let own = node.status.addresses.iter();
        let own = own.filter_map(|a| a.address.parse::<IpAddr>().ok());
        ranges.extend(own.map(|ip| (Cidr::host(ip), format!("node {name}"))));
    }
    if let Ok(config) = &config {
        for family in Family::BOTH {
            let pods = config.cluster_cidr(family);
            ranges.extend(pods.map(|cidr| (cidr, "clusterCIDR".to_owned())));
        }
    }
    let mut findings = Vec::new();
    for service in services.iter().filter(|service| is_served(service)) {
        for ip in service
            .spec
            .cluster_ips
            .iter()
            .filter_map(|text| text.parse::<IpAddr>().ok())
        {
            let in_it = ranges.iter().filter(|(cidr, _)| cidr.contains(ip));
            let seen: Vec<_> = in_it
                .map(|(cidr, whose)| Proof::Note(format!("{ip} is in {cidr}, {whose}")))
                .collect();
            if !seen.is_empty() {
                let message = "the Service's address lies in a range of pods or nodes";
                findings.push(Finding::new(Severity::Error, name_of(service), message).seen(seen));
            }
        }
    }
    Ok(findings)
}

fn not_served(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    let mut findings = Vec::new();
    for family in Family::BOTH {
        if desired.family(family).is_some() {
            continue;
        }
        let with: Vec<_> = facts
            .node
            .services()?
            .iter()
            .filter(|service| is_served(service))
            .filter(|service| {
                let mut all = service.spec.cluster_ips.iter();
                all.any(|text| text.parse().is_ok_and(|ip| Family::of(ip) == family))
            })
            .map(of)
            .collect();
        if !with.is_empty() {
            let message =
                "Services have addresses of a family that kube-proxy does not serve on this node";
            findings.push(Finding::new(Severity::Warning, family.to_string(), message).seen(with));
        }
    }
    Ok(findings)
}

fn proxy_protocol(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let told = service.metadata.annotations.iter().find(|(key, value)| {
            key.to_lowercase().contains("proxy-protocol")
                && !matches!(value.as_str(), "" | "false" | "none")
        });
        let Some((key, value)) = told else {
            continue;
        };
        let ingress = service.status.load_balancer.ingress.iter();
        let ours: Vec<_> = ingress
            .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
            .filter_map(|ingress| ingress.ip.clone())
            .collect();
        if ours.is_empty() {
            continue;
        }
        let message = "the load balancer adds a PROXY header, and traffic from inside goes past it";
        findings.push(
            Finding::new(Severity::Error, name_of(service), message).seen([
                Proof::Setting {
                    source: name_of(service),
                    key: key.clone(),
                    value: value.clone(),
                },
                Proof::Note(format!("{} without ipMode Proxy", ours.join(", "))),
            ]),
        );
    }
    Ok(findings)
}

/// Returns the bridges that pods are on.
fn bridges<'a>(facts: &Facts<'a>) -> Result<Vec<&'a Link>, Gap> {
    let links = &facts.node.links()?.all;
    let addresses = facts.node.addresses();
    let config = facts.configuration().ok();
    let node = facts.this_node().ok();
    let of_node = node.iter().flat_map(|node| &node.spec.pod_cidrs);
    let mut pods: Vec<Cidr> = of_node.filter_map(|text| text.parse().ok()).collect();
    pods.extend(
        Family::BOTH
            .iter()
            .filter_map(|f| config.as_ref()?.cluster_cidr(*f)),
    );
    let is_pods = |link: &&Link| {
        let ports = links
            .iter()
            .any(|port| port.master.as_ref() == Some(&link.name));
        let named = ["cni", "cbr"]
            .iter()
            .any(|prefix| link.name.starts_with(prefix));
        let mut at = addresses
            .iter()
            .flat_map(|a| &a.all)
            .filter(|at| at.link == link.name);
        let inside = at.any(|at| pods.iter().any(|cidr| cidr.contains(at.addr.addr)));
        link.kind == "bridge" && ports && (named || inside)
    };
    let found: Vec<_> = links.iter().filter(is_pods).collect();
    if found.is_empty() {
        let why = "pods are not on a bridge here";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(found)
}

fn state(link: &Link, what: &str) -> Proof {
    Proof::Link {
        link: link.name.clone(),
        state: what.to_owned(),
    }
}

fn bridge_netfilter(facts: &Facts<'_>) -> Verdict {
    let bridges = bridges(facts)?;
    let key = "net.bridge.bridge-nf-call-iptables";
    let value = facts.node.sysctl()?.get(key);
    if value.is_some_and(|value| value != "0") {
        return Ok(Vec::new());
    }
    let message = "bridged packets pass the rules by: answers from pods on the same node go astray";
    let seen = Proof::Sysctl {
        key: key.to_owned(),
        value: value.unwrap_or("missing").to_owned(),
    };
    Ok(vec![
        Finding::new(Severity::Error, bridges[0].name.clone(), message)
            .seen([seen])
            .seen(bridges.iter().map(|link| state(link, "a bridge of pods")))
            .mend_by(
                "Load the module, set it, and make both last.",
                match value {
                    // The setting is there with the module, which modprobe may not know if it is built in.
                    Some(_) => format!("sysctl -w {key}=1"),
                    None => format!("modprobe br_netfilter && sysctl -w {key}=1"),
                },
            ),
    ])
}

fn hairpin(facts: &Facts<'_>) -> Verdict {
    let links = &facts.node.links()?.all;
    let mut findings = Vec::new();
    let mut told = false;
    for bridge in bridges(facts)? {
        if bridge.flags.iter().any(|flag| flag == "PROMISC") {
            told = true;
            continue;
        }
        let ports: Vec<_> = links
            .iter()
            .filter(|port| port.master.as_ref() == Some(&bridge.name) && port.kind == "veth")
            .collect();
        told |= ports.iter().any(|port| port.hairpin.is_some());
        let off = ports.iter().filter(|port| port.hairpin == Some(false));
        let seen: Vec<_> = off.map(|port| state(port, "hairpin off")).collect();
        if !seen.is_empty() {
            let message = "ports of the pods' bridge do not send back: a pod cannot reach itself over its Service";
            findings.push(Finding::new(Severity::Warning, bridge.name.clone(), message).seen(seen));
        }
    }
    if findings.is_empty() && !told {
        let why = "whether the ports send back is not in it";
        return Err(Gap::Absent(Item::Links, why.to_owned()));
    }
    Ok(findings)
}
