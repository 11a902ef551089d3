//! Addresses on kube-ipvs0, and on other links.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::check::bugs;
use crate::check::core::{
    DRIFT_NEEDS, MODE, OBSERVED, RESTART, VERSION, address_proof, name_of, service_proof,
    services_at, split_addresses,
};
use crate::check::{
    Advice, Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict,
    When,
};
use crate::diff::Layer;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::Service;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::desired::NEEDS;
use kpx_node::node::links::Address;
use kpx_node::owner::chain_owner::is_node_local_dns;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "DV02",
        name: "missing-addresses",
        severity: Severity::Error,
        when: When::Now,
        title: "Every Service address is on kube-ipvs0",
        symptom: "A timeout, or \"No route to host\", for one Service on this node, although its virtual server \
              exists.",
        why: "IPVS handles only packets whose destination is local to the kernel. Packets for an address that is not \
              on kube-ipvs0 leave the node by the default route instead.",
        verify: "Each Service address must be on the link.",
        commands: &[
            Example::on_node("ip -br addr show dev kube-ipvs0"),
            Example::on_node("ip route get ADDRESS").with(&["ADDRESS"]),
        ],
        fix: RESTART,
        incidents: &["cloudnativelabs/kube-router#425: the same on kube-dummy-if"],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::In("DV01"),
            Because::Services("DV06"),
            Because::Loss("KM01"),
            Because::Outdated,
        ],
        run: |facts| facts.drifted("DV02", &[Mode::Ipvs], Layer::Link),
    },
    Check {
        id: "DV03",
        name: "stale-addresses",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-ipvs0 has only addresses of Services",
        symptom: "A host outside the cluster that has the address cannot be reached from this node.",
        why: "Addresses on kube-ipvs0 are local: packets for an address that moved elsewhere never leave the node. \
              kube-proxy deletes addresses that are no longer needed with each sync, but has missed some.",
        verify: "Each address on the link must belong to a Service.",
        commands: &[
            Example::on_node("ip -br addr show dev kube-ipvs0"),
            Example::anywhere("kubectl get services -A -o wide"),
        ],
        fix: Text::plain(
            "Delete the address with `ip addr del ADDRESS dev kube-ipvs0`, or restart kube-proxy on this node.",
        ),
        incidents: &["kubernetes/kubernetes#78421"],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::Same("DV04"),
            Because::Same("DV05"),
            Because::Node("KM01"),
        ],
        run: |facts| facts.drifted("DV03", &[Mode::Ipvs], Layer::Link),
    },
    Check {
        id: "DV04",
        name: "address-conflict",
        severity: Severity::Error,
        when: When::Now,
        title: "No address on kube-ipvs0 is a node's own address",
        symptom: "The whole node, or every other node, is unreachable: packets for that address never leave this node.",
        why: "Every address on kube-ipvs0 is local. A Service with an externalIP that is the address of a node or of \
              the API server makes that address local on every node in ipvs mode, so its owner is unreachable. The \
              same Service is harmless in iptables mode.",
        verify: "No address on kube-ipvs0 may be on another link, or among the addresses of a Node.",
        commands: &[
            Example::on_node("ip -br addr"),
            Example::anywhere("kubectl get nodes -o wide"),
            Example::anywhere("kubectl get services -A -o wide | grep ADDRESS").with(&["ADDRESS"]),
        ],
        fix: Text::plain(
            "Remove the address from the Service's externalIPs; kube-proxy then removes it from the link.",
        ),
        incidents: &[
            "kubernetes/kubernetes#127410",
            "kubernetes/kubernetes#75290",
            "kubernetes/kubernetes#104679",
            "kubernetes/kubernetes#66966",
            "kubernetes-sigs/kubespray#4993: whole nodes unreachable",
        ],
        needs: &[
            MODE,
            VERSION,
            &[Item::Addresses, Item::Nodes, Item::Services, Item::Pods],
        ],
        caused_by: &[],
        run: conflict,
    },
    Check {
        id: "DV05",
        name: "node-local-dns",
        severity: Severity::Error,
        when: When::Now,
        title: "NodeLocal DNS does not share an address with kube-ipvs0",
        symptom: "DNS works or fails depending on which link got the address first, and breaks when kube-proxy \
              restarts.",
        why: "In iptables mode NodeLocal DNS listens on the address of Service kube-dns itself. In ipvs mode \
              kube-proxy adds that address to kube-ipvs0 and IPVS takes the packets, so NodeLocal DNS must use only \
              its link-local address.",
        verify: "No address may be on both links.",
        commands: &[Example::on_node(
            "ip -br addr show dev nodelocaldns; ip -br addr show dev kube-ipvs0",
        )],
        fix: Text::plain(
            "Configure NodeLocal DNS for the ipvs mode: only -localip 169.254.20.10, and the same address as the \
             kubelet's clusterDNS.",
        ),
        incidents: &["kubernetes/website#18716", "deliveryhero/helm-charts#663"],
        needs: &[MODE, &[Item::Addresses, Item::Services]],
        caused_by: &[],
        run: local_dns,
    },
    Check {
        id: "DV08",
        name: "host-filter",
        severity: Severity::Warning,
        when: When::Now,
        title: "Service addresses do not lead to the node's own sockets",
        symptom: "A daemon of the node that listens on all addresses, for example ssh, answers on every Service \
              address.",
        why: "Service addresses are local in ipvs mode, so a socket on 0.0.0.0 accepts connections to any port \
              without a virtual server. KUBE-IPVS-FILTER rejects those with the set KUBE-IPVS-IPS.",
        verify: "INPUT must lead to KUBE-IPVS-FILTER, and the set must contain the Service addresses.",
        commands: &[Example::on_node(
            "iptables -S KUBE-IPVS-FILTER; ipset list KUBE-IPVS-IPS",
        )],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#72236",
            "kubernetes/kubernetes#108460: the filter",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Outdated],
        run: |facts| facts.drifted("DV08", &[Mode::Ipvs], Layer::Iptables),
    },
    Check {
        id: "DV09",
        name: "proxy-protocol",
        severity: Severity::Warning,
        when: When::Now,
        title: "Load balancers that use the PROXY protocol are not bypassed",
        symptom: "From inside the cluster the load balancer's address answers with a protocol error, or not at all.",
        why: "kube-proxy delivers traffic for a load balancer's address directly to the endpoints. If they expect the \
              PROXY header that only the load balancer adds, connections from inside fail. ipMode Proxy makes \
              kube-proxy leave this traffic alone.",
        verify: "The Service's status must contain ipMode: Proxy if the load balancer adds a header.",
        commands: &[Example::anywhere(
            "kubectl -n NAMESPACE get service NAME -o yaml | grep -A3 ingress",
        )
        .with(&["NAMESPACE", "NAME"])],
        fix: Text::plain(
            "Use a cloud controller that sets ipMode Proxy (stable since 1.32), or one that reports a host name \
             instead of an address.",
        ),
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
        id: "DV10",
        name: "source-address",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables]),
        title: "Leftover addresses on kube-ipvs0 do not become source addresses",
        symptom: "Processes of the node cannot reach Services, while pods can.",
        why: "For a destination on one of its own links the kernel chooses the same address as source. While \
              kube-ipvs0 has a Service's address, the node's packets to it have it as source too, and the reply never \
              leaves the endpoint's node. The ipvs mode masquerades such packets; the iptables mode does so only if \
              it can detect that they are not a pod's.",
        verify: "In iptables mode either kube-ipvs0 does not exist, or clusterCIDR, detectLocalMode or masqueradeAll \
              is set.",
        commands: &[
            Example::on_node("ip route get SERVICE-ADDRESS").with(&["SERVICE-ADDRESS"]),
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -E 'clusterCIDR|masqueradeAll'",
            ),
        ],
        fix: Text::with(
            "Set clusterCIDR to the pods' prefixes, or masqueradeAll to true; remove kube-ipvs0 with {} once \
             nothing uses it.",
            &[Example::kpx(&["reconcile", "--cleanup", "ipvs"])],
        ),
        incidents: &["aws/containers-roadmap#2826: the switch from ipvs to iptables on EKS"],
        needs: &[MODE, NEEDS, OBSERVED, &[Item::ConfigMaps]],
        caused_by: &[],
        run: source,
    },
    Check {
        id: "DV11",
        name: "detected-address",
        severity: Severity::Warning,
        when: When::Now,
        title: "No agent uses a Service's address as the node's own",
        symptom: "Pods of this node cannot reach those of other nodes: tunnels or routes lead to an address that \
              every node has.",
        why: "Network plugins look for the node's address on its links, and some use the first one they find. On \
              kube-ipvs0 and on NodeLocal DNS's link that is an address that all nodes have.",
        verify: "No annotation of the Node may contain an address of these links.",
        commands: &[
            Example::anywhere("kubectl get node NAME -o yaml | grep -A20 annotations")
                .with(&["NAME"]),
            Example::on_node("ip addr show dev kube-ipvs0"),
        ],
        fix: Text::plain(
            "Configure in the plugin which link or prefix has the node's address, and restart its agent.",
        ),
        incidents: &["projectcalico/calico#6910", "projectcalico/node#1170"],
        needs: &[&[
            Item::Addresses,
            Item::Nodes,
            Item::ProxyConfig,
            Item::Services,
        ]],
        caused_by: &[],
        run: detected,
    },
];

fn conflict(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (ours, others) = split_addresses(facts)?;
    let nodes = facts.node.nodes();
    let mut of_nodes = HashMap::new();
    for node in nodes.iter().flat_map(|nodes| nodes.iter()) {
        for address in &node.status.addresses {
            if let Ok(ip) = address.address.parse::<IpAddr>() {
                of_nodes.entry(ip).or_insert(node);
            }
        }
    }
    let mut findings = Vec::new();
    for address in ours.iter().filter(|address| address.scope != "link") {
        let ip = address.addr.addr;
        let mut seen = vec![address_proof(address)];
        let link = others
            .iter()
            .find(|o| o.addr.addr == ip && !is_node_local_dns(&o.link));
        seen.extend(link.map(|other| address_proof(other)));
        seen.extend(of_nodes.get(&ip).map(|node| Proof::Object {
            what: "node",
            name: node.metadata.name.clone(),
        }));
        let services: Vec<_> = services_with(facts, ip).collect();
        // The address of a load balancer that a program holds here, such as kube-vip or keepalived.
        let is_held = !services.is_empty()
            && !of_nodes.contains_key(&ip)
            && link.is_some_and(|own| is_added(own, &others));
        if seen.len() < 2 || nodes.is_ok() && is_held {
            continue;
        }
        seen.extend(services.iter().map(|service| service_proof(service)));
        let message = if link.is_some() {
            own_address(facts, &services)
        } else {
            "the address of a node is on kube-ipvs0: packets for that node never leave this one"
                .to_owned()
        };
        findings.push(
            Finding::new(Severity::Error, ip, message)
                .evidence(seen)
                .fix(free(facts, ip, &services))
                .services(services),
        );
    }
    match nodes {
        // Without the Nodes, the check cannot pass.
        Err(gap) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

/// Returns whether `own` is not the first address of its link, or has no network: programs add such addresses to what the machine has.
fn is_added(own: &Address, others: &[&Address]) -> bool {
    let mut of_link = others.iter().filter(|other| {
        other.link == own.link
            && other.addr.family() == own.addr.family()
            && other.scope == own.scope
    });
    own.addr.is_host() || of_link.next().is_some_and(|first| first.addr != own.addr)
}

/// Returns the effect of a Service with the node's own address in this release.
fn own_address(facts: &Facts<'_>, services: &[&Service]) -> String {
    let mut effects = vec!["other nodes cannot reach this one at it"];
    if bugs::has(facts, bugs::NODE_PORTS) {
        effects.push("this release serves no NodePorts at it");
    }
    if bugs::has(facts, bugs::HOST_SERVICES) {
        effects.push("this release rejects connections to the node's own ports at it, such as ssh and the kubelet's");
    }
    let what = match services {
        [] => "this node's own address is on kube-ipvs0",
        _ => {
            "a Service has this node's own address, which ipvs mode puts on kube-ipvs0 of every node"
        }
    };
    format!("{what}: {}", effects.join(", and "))
}

/// Returns how to remove the address `ip` of a node from `services`.
fn free(facts: &Facts<'_>, ip: IpAddr, services: &[&Service]) -> Fix {
    let has = |service: &&&Service| {
        service
            .spec
            .external_ips
            .iter()
            .any(|text| text.parse() == Ok(ip))
    };
    if let Some(service) = services.iter().find(has) {
        let meta = &service.metadata;
        let advice = Advice::Edit {
            resource: "service",
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        let text = "Remove the address from the Service's externalIPs; kube-proxy then removes it from the link.";
        return Fix::new(text, advice);
    }
    let Some(service) = services.first() else {
        return Fix::said(
            "Find out which Service had the address, and restart kube-proxy on this node.",
        );
    };
    let pods = facts.node.pods().map_or(&[][..], Vec::as_slice);
    let mut images = pods.iter().flat_map(|pod| &pod.spec.containers);
    let text = if images.any(|image| image.image.contains(SERVICE_LB)) {
        "k3s' servicelb gives Services the addresses of nodes, which ipvs mode cannot serve: start the servers of k3s with \
         --disable=servicelb and use another load balancer, or use another mode of kube-proxy."
    } else {
        "The controller of the load balancer has given the Service the address of a node: remove it from the controller's pool \
         (MetalLB: IPAddressPool, kube-vip: its range), or use another mode of kube-proxy."
    };
    let meta = &service.metadata;
    let command = format!(
        "kubectl -n {} get service {} -o jsonpath='{{.status.loadBalancer}}'",
        meta.namespace, meta.name
    );
    Fix::kubectl(text, command)
}

/// The image of k3s' load balancer.
const SERVICE_LB: &str = "klipper-lb";

fn services_with<'a>(facts: &Facts<'a>, ip: IpAddr) -> impl Iterator<Item = &'a Service> {
    let services = facts.node.services().ok();
    let all = services.into_iter().flatten();
    all.filter(move |service| {
        let ingress = service.status.load_balancer.ingress.iter();
        let ingress = ingress.filter_map(|ingress| ingress.ip.as_ref());
        let mut of = service.spec.external_ips.iter().chain(ingress);
        of.any(|text| text.parse() == Ok(ip))
    })
}

fn local_dns(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (ours, others) = split_addresses(facts)?;
    let message = "the address is on kube-ipvs0 and on the link of NodeLocal DNS";
    Ok(others
        .iter()
        .filter(|other| is_node_local_dns(&other.link))
        .filter_map(|other| {
            let mine = ours.iter().find(|a| a.addr.addr == other.addr.addr)?;
            Some(
                Finding::new(Severity::Error, mine.addr.addr, message)
                    .evidence([address_proof(mine), address_proof(other)])
                    .services(services_at(facts, |at| *at == mine.addr.addr)),
            )
        })
        .collect())
}

fn proxy_protocol(facts: &Facts<'_>) -> Verdict {
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let annotation = service.metadata.annotations.iter().find(|(key, value)| {
            let key = key.to_lowercase().replace(['-', '_'], "");
            let is_on = !matches!(value.as_str(), "" | "false" | "none");
            key.contains("proxyprotocol") && is_on
                || value.contains("proxy_protocol_v2.enabled=true")
        });
        let Some((key, value)) = annotation else {
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
        let message = "the load balancer adds a PROXY header, but traffic from inside the cluster bypasses it";
        // The connections work; how the program handles them without the header is its own matter.
        findings.push(Finding::new(Severity::Warning, service, message).evidence([
            Proof::Setting {
                source: name_of(service),
                key: key.clone(),
                value: value.clone(),
            },
            Proof::Note(format!("{} without ipMode Proxy", ours.join(", "))),
        ]));
    }
    Ok(findings)
}

fn source(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Nftables])?;
    if facts.target().is_none() && facts.node.is_served_by(Mode::Ipvs) {
        return Err(Gap::NotApplicable(
            "only the rules of mode ipvs lead packets to Services: kube-ipvs0 is in use".to_owned(),
        ));
    }
    let held = facts.node.addresses()?.all.iter();
    let held = held.filter(|at| at.link == DUMMY && at.scope != "link");
    let mut held: Vec<_> = held.map(|at| at.addr.addr).collect();
    held.sort_unstable();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let desired = facts.node.desired(mode)?;
    if desired.masquerade_all {
        return Ok(Vec::new());
    }
    let blind = desired
        .families
        .iter()
        .filter(|state| state.detector.is_none());
    Ok(blind
        .filter_map(|state| {
            let ours: Vec<_> = held
                .iter()
                .filter(|ip| ip.is_ipv4() == state.node_ip.is_ipv4())
                .take(3)
                .map(|address| Proof::Address {
                    link: DUMMY.to_owned(),
                    address: *address,
                })
                .collect();
            // A migration removes the link later.
            let severity = match facts.target() {
                Some(_) => Severity::Warning,
                None => Severity::Error,
            };
            let message = "the node's own packets to Services get a Service's address as source, and no rule masquerades them";
            (!ours.is_empty()).then(|| {
                let finding = Finding::new(severity, state.family, message).evidence(ours);
                match facts.target() {
                    Some(_) => finding,
                    None => finding.fix(Fix::kpx(
                        "Remove what mode ipvs left behind.",
                        ["reconcile", "--cleanup", "ipvs", "--apply"],
                    )),
                }
            })
        })
        .collect())
}

fn detected(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.addresses()?.all.iter();
    let shared: BTreeMap<IpAddr, &str> = links
        .filter(|at| at.link == DUMMY || is_node_local_dns(&at.link))
        .map(|at| (at.addr.addr, at.link.as_str()))
        .collect();
    let node = facts.this_node()?;
    let mut findings = Vec::new();
    for (key, value) in &node.metadata.annotations {
        let address = value.split('/').next().unwrap_or(value);
        let Some((ip, link)) = address
            .parse()
            .ok()
            .and_then(|ip| shared.get_key_value(&ip))
        else {
            continue;
        };
        let message = "an agent uses an address that all nodes have as this node's own";
        findings.push(
            Finding::new(Severity::Warning, Subject::setting(key), message)
                .services(services_at(facts, |at| at == ip))
                .evidence([
                    Proof::setting("the Node", key, value),
                    Proof::Address {
                        link: (*link).to_owned(),
                        address: *ip,
                    },
                ]),
        );
    }
    Ok(findings)
}
