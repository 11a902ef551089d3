//! Addresses of Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::check::core::{
    Collector, HOME_GONE, MODE, OBSERVED, RANGE_OF_ITS_OWN, connection_proof, is_served,
    one_mac_fix, service_proof,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
    obstacle_fix,
};
use crate::verdict::{Obstacle, SharedMac, home_gone, shared_macs};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{Node, Service};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::desired::NEEDS;
use kpx_node::node::links::Addresses;
use kpx_node::node::sysctl::Sysctl;
use kpx_node::owner::{PortName, Role};
use kpx_node::words::listed;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "AP03",
        name: "node-address-taken",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs]),
        title: "No Service has a node's own address",
        symptom: "After the switch whole nodes are unreachable: packets for that address never leave any node.",
        why: "In ipvs mode every address of a Service becomes local on every node. If a Service's externalIP or load \
              balancer address is that of a node or of the API server, its owner is unreachable. In iptables and \
              nftables mode only the Service's own ports are taken.",
        verify: "No externalIP and no load balancer address may be among the nodes' addresses.",
        commands: &[
            Example::anywhere("kubectl get nodes -o wide"),
            Example::anywhere("kubectl get services -A -o wide"),
        ],
        fix: Text::plain(
            "Remove the address from the Service before the switch, or keep the node in its mode.",
        ),
        incidents: &[
            "kubernetes/kubernetes#127410",
            "kubernetes/kubernetes#75290",
            "kubernetes/kubernetes#104679",
        ],
        needs: &[&[Item::Services, Item::Nodes, Item::Addresses]],
        caused_by: &[],
        run: node_addresses,
    },
    Check {
        id: "AP08",
        name: "overlapping-ranges",
        severity: Severity::Error,
        when: When::Now,
        title: "Service addresses, pods and nodes do not share a range",
        symptom: "Some pods or nodes cannot be reached, others only from some nodes.",
        why: "An address that belongs to both a Service and a pod or node is translated to the Service wherever \
              kube-proxy runs, and the pod or node becomes unreachable.",
        verify: "No cluster IP may lie in a Node's podCIDR, in clusterCIDR, among the Nodes' addresses, or in the network of a \
                 link, and no external address of a Service in a range of pods or Services.",
        commands: &[
            Example::anywhere("kubectl get nodes -o jsonpath='{.items[*].spec.podCIDRs}'"),
            Example::anywhere("kubectl get services -A"),
        ],
        fix: Text::plain(
            "Configure a separate range for Services; this requires new cluster IPs for all of them. If a link's network has \
             them, give the link another network.",
        ),
        incidents: &["clusters that were merged or grown by hand"],
        needs: &[&[
            Item::Services,
            Item::Nodes,
            Item::ProxyConfig,
            Item::ConfigMaps,
            Item::Addresses,
            Item::ServiceCidrs,
            Item::Nft,
            Item::NftText,
        ]],
        caused_by: &[],
        run: overlaps,
    },
    Check {
        id: "AP13",
        name: "shared-by-nodes",
        severity: Severity::Error,
        when: When::Now,
        title: "No two Nodes share an address or a pod range, and this one has its own",
        symptom: "Some endpoints never answer, those of other nodes in particular, and others answer for them.",
        why: "Routes and tunnels lead to the pods of a Node by its address, and kube-proxy's NodePorts and health checks are \
              there. Cloned virtual machines, and machines that each have a NAT network, register with the same address, or announce \
              one MAC address for their ends of a tunnel. If the address of a machine changes, its Node keeps the old one until the \
              kubelet restarts. An address that VRRP moves from node to node is on two of them at once if its messages do not pass.",
        verify: "Each InternalIP and each podCIDR may be that of one Node only, and this node must have the InternalIP of its Node.",
        commands: &[Example::anywhere("kubectl get nodes -o wide")],
        fix: Text::plain(
            "Start each kubelet with --node-ip and the address by which other nodes reach it.",
        ),
        incidents: &["k3s-io/k3s#10109: machines of Vagrant share 10.0.2.15"],
        needs: &[&[
            Item::Nodes,
            Item::Addresses,
            Item::Links,
            Item::PodNetworks,
            Item::ProxyConfig,
            Item::EndpointSlices,
        ]],
        caused_by: &[],
        run: nodes_addresses,
    },
    Check {
        id: "AP14",
        name: "shared-by-services",
        severity: Severity::Error,
        when: When::Now,
        title: "No Service has the address and port of another, or of a machine",
        symptom: "Connections to an address of one Service, to the API server or to a kubelet reach the pods of another Service, on \
                  some nodes or at some times.",
        why: "An external or load balancer IP may be set on any number of Services. kube-proxy programs each, and the first rule \
              or the last write counts; the order differs from node to node, and with each sync. If a machine of the cluster \
              serves the address and port, kube-proxy takes over its connections on every node.",
        verify: "Each address may have a port and protocol of one Service only, and no endpoint on a machine and no kubelet there.",
        commands: &[
            Example::anywhere("kubectl get services -A -o wide | grep ADDRESS").with(&["ADDRESS"]),
        ],
        fix: Text::plain(
            "Remove the address from all Services but one, or give them different ports.",
        ),
        incidents: &[],
        needs: &[&[Item::Services, Item::EndpointSlices, Item::Nodes]],
        caused_by: &[],
        run: shared_by_services,
    },
    Check {
        id: "AP09",
        name: "unallocated-addresses",
        severity: Severity::Info,
        when: When::For(&[Mode::Nftables]),
        title: "No client uses cluster IPs that no Service has",
        symptom: "After the switch, connections to an address of a deleted Service are dropped at once.",
        why: "The nftables mode drops packets to addresses of the Service range that no Service has, and rejects \
              those to ports that a Service does not have. In the other modes they follow the default route.",
        verify: "Each destination in the Service range must be the address of a Service.",
        commands: &[
            Example::on_node("conntrack -L"),
            Example::anywhere("kubectl get services -A"),
        ],
        fix: Text::plain(
            "Find the clients and correct their configuration: these connections already fail today.",
        ),
        incidents: &["the README of kube-proxy's nftables mode lists it as a difference"],
        needs: &[&[
            Item::Conntrack,
            Item::Services,
            Item::ServiceCidrs,
            Item::Pods,
            Item::Nft,
            Item::NftText,
        ]],
        caused_by: &[],
        run: unallocated,
    },
    Check {
        id: "AP10",
        name: "family-not-served",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-proxy serves every IP family of the Services",
        symptom: "The IPv6 address of a Service does not answer, while the IPv4 address does.",
        why: "kube-proxy serves IPv6 only if the node supports it: with IPv6 disabled, or without ip6tables, it \
              serves only IPv4 and logs that once.",
        verify: "If Services have IPv6 addresses, IPv6 must be enabled and ip6tables must work.",
        commands: &[
            Example::on_node("sysctl net.ipv6.conf.all.disable_ipv6"),
            Example::anywhere("kubectl -n kube-system logs POD | grep -i stack").with(&["POD"]),
        ],
        fix: Text::plain(
            "Enable IPv6 with `sysctl -w net.ipv6.conf.all.disable_ipv6=0` and restart kube-proxy, or make the \
             Services single-stack.",
        ),
        incidents: &["kube-proxy: \"kube-proxy running in single-stack mode\""],
        needs: &[MODE, NEEDS, OBSERVED],
        caused_by: &[],
        run: not_served,
    },
];

/// Returns the addresses that become local in ipvs mode, apart from cluster IPs.
fn outer_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let ingress = service.status.load_balancer.ingress.iter();
    let ingress = ingress
        .filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|ingress| ingress.ip.as_ref());
    let all = service.spec.external_ips.iter().chain(ingress);
    all.filter_map(|text| text.parse().ok())
}

fn node_addresses(facts: &Facts<'_>) -> Verdict {
    let services = facts.node.services()?;
    let nodes = facts.node.nodes()?;
    let here = facts.node.addresses();
    let ports = facts.owners().ports().iter();
    let servers: BTreeSet<IpAddr> = ports
        .filter(|port| is_api(&port.name))
        .flat_map(|port| &port.endpoints)
        .map(|endpoint| endpoint.addr.ip())
        .collect();
    let mut findings = Vec::new();
    for service in services {
        let addresses: BTreeSet<_> = outer_addresses(service).collect();
        for ip in addresses {
            let node = nodes.iter().find(|node| {
                let theirs = &node.status.addresses;
                theirs
                    .iter()
                    .any(|address| address.address.parse() == Ok(ip))
            });
            let mut links = here.iter().flat_map(|here| &here.all);
            let link = links.find(|at| at.addr.addr == ip && at.link != DUMMY);
            let mut seen = Vec::new();
            seen.extend(node.map(|node| Proof::object("node", &node.metadata.name)));
            if servers.contains(&ip) {
                seen.push(Proof::Note(format!("{ip} is an API server's")));
            }
            seen.extend(link.map(|at| Proof::Address {
                link: at.link.clone(),
                address: ip,
            }));
            if seen.is_empty() {
                continue;
            }
            let message = "the Service has the address of a machine: in ipvs mode no other node can reach that machine";
            findings.push(
                Finding::new(
                    Severity::Error,
                    Subject::ServiceAddress {
                        service: service.into(),
                        address: ip,
                        port: None,
                    },
                    message,
                )
                .evidence(seen),
            );
        }
    }
    match here {
        // Without them, the node's other addresses are unknown.
        Err(gap) if findings.is_empty() => Err(gap),
        _ => Ok(findings),
    }
}

/// Returns the Service ranges: those of the cluster, else those in the flags of this node's API server.
fn service_cidrs(facts: &Facts<'_>) -> Result<Vec<Cidr>, Gap> {
    const FLAG: &str = "--service-cluster-ip-range=";
    let objects = facts.node.service_cidrs();
    let found = crate::diff::service_cidrs(facts.node);
    if !found.is_empty() {
        return Ok(found);
    }
    let pods = facts.node.pods()?.iter();
    let words = pods
        .flat_map(|pod| &pod.spec.containers)
        .flat_map(|container| container.command.iter().chain(&container.args));
    let ranges = words.filter_map(|word| word.strip_prefix(FLAG));
    let found: Vec<Cidr> = ranges
        .flat_map(|ranges| ranges.split(','))
        .filter_map(|range| range.parse().ok())
        .collect();
    if found.is_empty() {
        objects?;
        let why = "the Service range is unknown: no ServiceCIDR object has it, and no kube-apiserver runs on this node";
        return Err(Gap::Absent(Item::ServiceCidrs, why.to_owned()));
    }
    Ok(found)
}

fn unallocated(facts: &Facts<'_>) -> Verdict {
    let ranges = service_cidrs(facts)?;
    let services = facts.node.services()?.iter();
    let ours: BTreeSet<IpAddr> = services
        .flat_map(|service| &service.spec.cluster_ips)
        .filter_map(|text| text.parse().ok())
        .collect();
    let strays: Vec<_> = facts
        .node
        .conntrack()?
        .entries
        .iter()
        .filter(|entry| {
            let to = entry.original.destination.ip();
            ranges.iter().any(|range| range.contains(to)) && !ours.contains(&to)
        })
        .map(connection_proof)
        .collect();
    if strays.is_empty() {
        return Ok(Vec::new());
    }
    let message = "clients connect to addresses of the Service range that no Service has: the nftables mode drops that";
    Ok(vec![
        Finding::new(Severity::Info, Subject::ServiceRange, message).evidence(strays),
    ])
}

/// Finds addresses that several Nodes have, and a machine without the address of its Node.
fn nodes_addresses(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    findings.add(shared_by_nodes(facts));
    for family in Family::BOTH {
        if let Some(finding) = elsewhere(facts, family) {
            findings.push(finding);
        }
    }
    findings.add(shared_ranges(facts));
    findings.add(shared_tunnel_macs(facts));
    findings.extend(held_twice(facts));
    findings.verdict()
}

/// Returns the finding of a node that has none of the addresses of its Node in `family`.
fn elsewhere(facts: &Facts<'_>, family: Family) -> Option<Finding> {
    let node = facts.this_node().ok()?;
    let own = &facts.node.addresses().ok()?.all;
    let gone = home_gone(node, facts.node, family)?;
    let first = gone.address;
    let global = own.iter().filter(|address| address.scope == "global");
    let global: Vec<String> = global
        .map(|global| format!("{} on {}", global.addr.addr, global.link))
        .take(4)
        .collect();
    let name = &node.metadata.name;
    let lost = "packets to the Node, its NodePorts and its pods do not reach it";
    if let Some(failed) = gone.failed {
        let duplicate = Obstacle::Duplicate {
            address: failed.addr,
            link: failed.link.clone(),
        };
        let message = format!("{duplicate}; it is the InternalIP of its Node {name}");
        let finding = Finding::new(Severity::Error, first, message);
        return Some(finding.fix(obstacle_fix(&duplicate)));
    }
    let (severity, unless) = if gone.is_certain {
        (Severity::Error, "")
    } else {
        (Severity::Warning, ", unless a router translates it")
    };
    let message = format!(
        "no link of this machine has {first}, the InternalIP of its Node {name}: {lost}{unless}"
    );
    let seen = format!("addresses of the machine: {}", listed(&global));
    Some(
        Finding::new(severity, first, message)
            .evidence([
                Proof::setting(format!("node {name}"), "InternalIP", first.to_string()),
                Proof::Note(seen),
            ])
            .fix(HOME_GONE),
    )
}

/// Returns the values that several of these Nodes share, with the names of the Nodes.
fn shared_keys<K: Ord>(nodes: &[Node], keys: impl Fn(&Node) -> Vec<K>) -> Vec<(K, Vec<&str>)> {
    let mut names: BTreeMap<K, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for key in keys(node) {
            names.entry(key).or_default().push(&node.metadata.name);
        }
    }
    let shared = names.into_iter().filter(|(_, names)| names.len() > 1);
    shared.collect()
}

fn shared_by_nodes(facts: &Facts<'_>) -> Verdict {
    let internal = |node: &Node| {
        let all = node.status.addresses.iter();
        let internal = all.filter(|address| address.kind == "InternalIP");
        internal
            .filter_map(|address| address.address.parse::<IpAddr>().ok())
            .collect()
    };
    let shared = shared_keys(facts.node.nodes()?, internal).into_iter();
    let findings = shared.map(|(addr, names)| {
        let message = format!(
            "nodes {} have the same InternalIP: packets to it, and to pods of these nodes, reach only one of them",
            listed(&names)
        );
        let evidence = names
            .iter()
            .map(|name| Proof::setting(format!("node {name}"), "InternalIP", addr.to_string()));
        let fix = Fix::on_node(
            "Start each kubelet with --node-ip and the address by which other nodes reach it: one of these addresses, in one of \
             these files.",
            "ip -br address; grep -sn -e --node-ip /var/lib/kubelet/kubeadm-flags.env /etc/default/kubelet /etc/sysconfig/kubelet",
        );
        Finding::new(Severity::Error, addr, message)
            .evidence(evidence)
            .fix(fix)
    });
    Ok(findings.collect())
}

/// Returns the findings on ranges of pods that several Nodes have and use: a network plugin may have ranges of its own.
fn shared_ranges(facts: &Facts<'_>) -> Verdict {
    let ranges = |node: &Node| {
        let ranges = node.spec.pod_cidrs.iter();
        ranges
            .filter_map(|text| text.parse().ok())
            .map(Cidr::normal)
            .collect()
    };
    let mut shared = shared_keys(facts.node.nodes()?, ranges);
    if !shared.is_empty() {
        let slices = facts.node.slices()?;
        let uses = |name: &str, range: Cidr| {
            let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            endpoints.any(|endpoint| {
                let first = endpoint.addresses.first();
                endpoint.node_name.as_deref() == Some(name)
                    && first.is_some_and(|text| text.parse().is_ok_and(|at| range.contains(at)))
            })
        };
        for (range, names) in &mut shared {
            names.retain(|name| uses(name, *range));
        }
        shared.retain(|(_, names)| names.len() > 1);
    }
    let shared = shared.into_iter();
    let findings = shared.map(|(prefix, names)| {
        let message = format!(
            "nodes {} have the same podCIDR: pods may get the same addresses, and routes lead to one of the nodes",
            listed(&names)
        );
        let evidence = names.iter().map(|name| Proof::setting(format!("node {name}"), "podCIDR", prefix));
        Finding::new(Severity::Warning, Subject::Prefix { prefix }, message)
            .evidence(evidence)
            .fix(RANGE_OF_ITS_OWN)
    });
    Ok(findings.collect())
}

/// Returns the findings on addresses of this node that other nodes have, too.
fn held_twice(facts: &Facts<'_>) -> Vec<Finding> {
    let (Some(across), Some(name)) = (facts.across(), facts.node_name()) else {
        return Vec::new();
    };
    let shared = across.shared_addresses(&name, facts.node).into_iter();
    let findings = shared.map(|(address, nodes)| {
        let names: Vec<_> = nodes.keys().collect();
        let message = format!(
            "nodes {} have the same address, {address}: their neighbours reach any of them, and connections break when that changes",
            listed(&names)
        );
        let evidence = nodes
            .iter()
            .map(|(node, link)| Proof::Note(format!("node {node} has {address} on {link}")));
        let ports = facts.owners().ports().iter();
        let with_it = ports.filter(|port| port.addresses.iter().any(|(_, at)| *at == address));
        Finding::new(Severity::Warning, address, message)
            .evidence(evidence)
            .services(with_it.map(|port| ServiceRef::from(&port.name)))
            .fix(Fix::on_node(
                "Remove the address from all of these nodes but one. If keepalived sets it, its messages (IP protocol 112 to 224.0.0.18 \
                 or ff02::12) must pass between the nodes, or it needs unicast_peer. Those that arrive here:",
                format!("timeout 10 tcpdump -ni {} proto 112", nodes.get(&*name).map_or("any", |link| link)),
            ))
    });
    findings.collect()
}

/// Returns the findings on Nodes that announce one MAC address for their ends of a tunnel.
fn shared_tunnel_macs(facts: &Facts<'_>) -> Verdict {
    let shared = shared_macs(facts.node.nodes()?).into_iter();
    let findings = shared.map(|shared| {
        let SharedMac { link, mac, nodes } = &shared;
        let names: Vec<_> = nodes.iter().map(|node| &*node.metadata.name).collect();
        let copies = shared.machine().map_or(String::new(), |id| {
            format!("; they have the same machineID, {id}, as copies of one machine do")
        });
        let message = format!(
            "nodes {} announce the same MAC address for {link}, {mac}: packets to pods of any of them reach one of the nodes{copies}",
            listed(&names)
        );
        let evidence = nodes.iter().map(|node| {
            let id = &node.status.node_info.machine_id;
            Proof::setting(format!("node {}", node.metadata.name), "machineID", id)
        });
        Finding::new(Severity::Error, Subject::link(link), message)
            .evidence(evidence)
            .fix(one_mac_fix(link))
    });
    Ok(findings.collect())
}

/// The port at which kubelets serve by default.
const KUBELET: u16 = 10250;

/// Finds addresses and ports that two Services have, or a Service and a machine of the cluster.
fn shared_by_services(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    findings.extend(shared(facts)?);
    let nodes = findings
        .read(facts.node.nodes())
        .map_or(&[][..], Vec::as_slice);
    findings.read(facts.node.slices());
    // Of endpoints, those outside the pods' network.
    let machines: BTreeMap<IpAddr, &str> = nodes
        .iter()
        .flat_map(|node| node.status.addresses.iter().map(move |at| (node, at)))
        .filter_map(|(node, at)| Some((at.address.parse().ok()?, node.metadata.name.as_str())))
        .collect();
    let ports = facts.owners().ports();
    let served: BTreeMap<(SocketAddr, String), &PortName> = ports
        .iter()
        .flat_map(|port| port.endpoints.iter().map(move |endpoint| (port, endpoint)))
        .filter(|(port, of)| machines.contains_key(&of.addr.ip()) || is_api(&port.name))
        .map(|(port, of)| ((of.addr, port.proto.to_string()), &port.name))
        .collect();
    for port in ports.iter().filter(|port| port.left_to.is_none()) {
        let proto = port.proto.to_string();
        for (addr, number) in port
            .addresses
            .iter()
            .filter_map(|address| Some((address.1, port.port?)))
        {
            let at = SocketAddr::new(addr, number);
            if port.endpoints.iter().any(|endpoint| endpoint.addr == at) {
                continue;
            }
            let whose = match (served.get(&(at, proto.clone())), machines.get(&addr)) {
                (Some(other), _) if is_api(other) => "an API server".to_owned(),
                (Some(other), _)
                    if (&other.namespace, &other.name)
                        != (&port.name.namespace, &port.name.name) =>
                {
                    format!("an endpoint of {}/{}", other.namespace, other.name)
                }
                (None, Some(node)) if number == KUBELET && port.proto == Proto::Tcp => {
                    format!("the kubelet of node {node}")
                }
                _ => continue,
            };
            let message = format!(
                "{at}/{proto} is {whose}: kube-proxy leads connections to it to the endpoints of {}/{}, on every node",
                port.name.namespace, port.name.name
            );
            findings.push(
                Finding::new(
                    Severity::Error,
                    Subject::service_at(&port.name, at),
                    message,
                )
                .services([ServiceRef::from(&port.name)])
                .fix(format!(
                    "Remove {addr} from the external addresses of {}/{}.",
                    port.name.namespace, port.name.name
                )),
            );
        }
    }
    findings.verdict()
}

/// Returns whether `name` is the Service of the API servers.
fn is_api(name: &PortName) -> bool {
    &*name.namespace == "default" && &*name.name == "kubernetes"
}

/// Finds addresses and ports that two Services have.
fn shared(facts: &Facts<'_>) -> Verdict {
    type At = (IpAddr, u16, String);
    facts.node.services()?;
    let mut users: BTreeMap<At, Vec<(&PortName, Role)>> = BTreeMap::new();
    for port in facts
        .owners()
        .ports()
        .iter()
        .filter(|port| port.left_to.is_none())
    {
        for (role, addr) in &port.addresses {
            if let Some(number) = port.port {
                let key = (*addr, number, port.proto.to_string());
                users.entry(key).or_default().push((&port.name, *role));
            }
        }
    }
    let name = |port: &PortName| format!("{}/{}", port.namespace, port.name);
    let findings = users.into_iter().filter_map(|((addr, number, proto), users)| {
        let (first, _) = users.first()?;
        if users.iter().all(|(of, _)| name(of) == name(first)) {
            return None;
        }
        let at = SocketAddr::new(addr, number);
        let words: Vec<String> = users
            .iter()
            .map(|(of, role)| format!("{} ({role})", name(of)))
            .collect();
        let message = format!(
            "{at}/{proto} belongs to {}: kube-proxy serves only one of them there; which one may differ by node and change with each sync",
            listed(&words)
        );
        Some(
            Finding::new(Severity::Error, Subject::service_at(*first, at), message)
                .evidence(words.iter().map(|word| Proof::Note(format!("{at}/{proto}: {word}"))))
                .services(users.iter().map(|(of, _)| ServiceRef::from(*of))),
        )
    });
    Ok(findings.collect())
}

fn overlaps(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let services = facts.node.services()?;
    let nodes = findings.read(facts.node.nodes());
    let config = findings.read(facts.configuration());
    let links = findings.read(facts.node.addresses());
    let mut ranges: Vec<(Cidr, String)> = Vec::new();
    let mut pods: Vec<Cidr> = Vec::new();
    for node in nodes.iter().flat_map(|nodes| nodes.iter()) {
        let name = &node.metadata.name;
        let all = node.spec.pod_cidrs.iter();
        let own_pods: Vec<Cidr> = all.filter_map(|text| text.parse().ok()).collect();
        pods.extend(&own_pods);
        let own_pods = own_pods.into_iter();
        ranges.extend(own_pods.map(|cidr| (cidr, format!("pods of node {name}"))));
        let own = node.status.addresses.iter();
        let own = own.filter_map(|a| a.address.parse::<IpAddr>().ok());
        ranges.extend(own.map(|ip| (Cidr::host(ip), format!("node {name}"))));
    }
    ranges.extend(links.into_iter().flat_map(networks));
    let clusters = Family::BOTH.map(|family| config.as_ref()?.cluster_cidr(family));
    let mut inside: Vec<(&Service, Proof)> = Vec::new();
    for service in services.iter().filter(|service| is_served(service)) {
        let all = service.spec.cluster_ips.iter();
        for ip in all.filter_map(|text| text.parse::<IpAddr>().ok()) {
            let note =
                |(cidr, whose): &(Cidr, String)| Proof::Note(format!("{ip} is in {cidr}, {whose}"));
            let in_it = ranges.iter().filter(|(cidr, _)| cidr.contains(ip));
            let seen: Vec<_> = in_it.map(note).collect();
            let cluster = clusters.iter().flatten().find(|cidr| cidr.contains(ip));
            let cluster = cluster.map(|cidr| (*cidr, "clusterCIDR".to_owned()));
            match cluster {
                // The pods have other prefixes, so the setting is wrong, and is no range of pods.
                Some(cluster) if seen.is_empty() && !pods.is_empty() => {
                    inside.push((service, note(&cluster)));
                }
                None if seen.is_empty() => {}
                cluster => {
                    let seen = seen.into_iter().chain(cluster.as_ref().map(note));
                    let message = "the Service's address is in a range of pods, nodes or links";
                    let finding = Finding::new(Severity::Error, service, message).may_stop();
                    findings.push(finding.evidence(seen));
                }
            }
        }
    }
    let machines: Vec<IpAddr> = nodes
        .iter()
        .flat_map(|nodes| nodes.iter())
        .flat_map(|node| &node.status.addresses)
        .filter_map(|at| at.address.parse().ok())
        .collect();
    let mut taken: Vec<(Cidr, String)> = Vec::new();
    taken.extend(pods.iter().map(|cidr| (*cidr, "pods".to_owned())));
    // A range that has machines, too, is that of the network.
    let is_of_pods = |cidr: &Cidr| {
        inside.is_empty() && !machines.is_empty() && !machines.iter().any(|ip| cidr.contains(*ip))
    };
    let of_pods = clusters.iter().flatten().filter(|cidr| is_of_pods(cidr));
    taken.extend(of_pods.map(|cidr| (*cidr, "pods (clusterCIDR)".to_owned())));
    let of_services = crate::diff::service_cidrs(facts.node).into_iter();
    taken.extend(of_services.map(|cidr| (cidr, "Services".to_owned())));
    for service in services.iter().filter(|service| is_served(service)) {
        findings.extend(outer_inside(service, &taken));
    }
    if !inside.is_empty() {
        let pods: BTreeSet<String> = pods.iter().map(ToString::to_string).collect();
        let pods: Vec<String> = pods.into_iter().collect();
        let message = "clusterCIDR contains addresses of Services: kube-proxy treats packets of the node from such an address as \
                       a pod's, and does not masquerade them";
        let (services, seen): (Vec<_>, Vec<_>) = inside.into_iter().unzip();
        findings.push(
            Finding::new(Severity::Error, Subject::setting("clusterCIDR"), message)
                .services(services)
                .evidence(seen)
                .fix(format!(
                    "Set clusterCIDR to a prefix that has the pods ({}) and no Service, and restart kube-proxy.",
                    listed(&pods)
                )),
        );
    }
    findings.verdict()
}

/// Returns the findings on external addresses of `service` in ranges of pods or Services.
fn outer_inside(service: &Service, taken: &[(Cidr, String)]) -> Vec<Finding> {
    let own = &service.spec.cluster_ips;
    let outer: BTreeSet<IpAddr> = outer_addresses(service).collect();
    let outer = outer
        .into_iter()
        .filter(|ip| !own.contains(&ip.to_string()));
    let findings = outer.filter_map(|ip| {
        let (cidr, whose) = taken.iter().find(|(cidr, _)| cidr.contains(ip))?;
        let message = format!(
            "{ip}, an external address of the Service, is in {cidr}, a range of {whose}: routers outside lead it elsewhere or nowhere, and \
             it may be given to one of these, too"
        );
        let about = Subject::ServiceAddress {
            service: service.into(),
            address: ip,
            port: None,
        };
        let fix = "Give the Service an address outside of these ranges: remove it from externalIPs, or from the pool of the controller of \
                   load balancers.";
        Some(
            Finding::new(Severity::Warning, about, message)
                .services([ServiceRef::from(service)])
                .fix(fix),
        )
    });
    findings.collect()
}

/// Returns the networks of the links in `addresses` and their names; kube-ipvs0 has Services' addresses.
fn networks(addresses: &Addresses) -> impl Iterator<Item = (Cidr, String)> {
    let all = addresses.all.iter();
    let all = all.filter(|at| at.link != DUMMY && !at.addr.is_host());
    all.map(|at| (at.addr.normal(), format!("the network of link {}", at.link)))
}

fn not_served(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    let mut findings = Collector::default();
    for family in Family::BOTH {
        let with: Vec<_> = facts
            .node
            .services()?
            .iter()
            .filter(|service| is_served(service))
            .filter(|service| {
                let mut all = service.spec.cluster_ips.iter();
                all.any(|text| text.parse().is_ok_and(|ip| Family::of(ip) == family))
            })
            .collect();
        if with.is_empty() {
            continue;
        }
        if desired.family(family).is_some() {
            // Only kube-proxy's rules prove that it serves the family; IPv6 may have been disabled since.
            findings.read(facts.written_for(mode, family));
            findings.read(facts.node.sysctl().and_then(Sysctl::whole));
            continue;
        }
        let message = "Services have addresses of this IP family, but kube-proxy does not serve it on this node";
        findings.push(
            Finding::new(Severity::Warning, family, message)
                .evidence(with.iter().map(|service| service_proof(service)))
                .services(with),
        );
    }
    findings.verdict()
}
