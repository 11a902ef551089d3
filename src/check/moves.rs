//! What is asked only before a change of mode: what the other mode does not have, or does otherwise.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::ask::{recorded, seen};
use super::excluded::foreign_servers;
use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::backend::ipvs::print;
use crate::cluster::Service;
use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Proto};
use crate::node::conntrack::Entry;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "AP03",
        name: "node-address-taken",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs]),
        title: "No Service has a node's own address",
        symptom: "After the move whole nodes are cut off: packets for that address never leave any node.",
        why: "In ipvs mode every address of a Service becomes local on every node. A Service whose externalIP or load \
              balancer's address is a node's, or the API server's, takes that address away from its owner. In iptables \
              and nftables mode the same Service does no harm.",
        verify: "No externalIP and no load balancer's address may be among the nodes' addresses.",
        commands: &[
            "kubectl get nodes -o wide",
            "kubectl get services -A -o wide",
        ],
        fix: "Take the address out of the Service before the move, or leave the node in its mode.",
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
        id: "AP09",
        name: "unallocated-addresses",
        severity: Severity::Info,
        when: When::For(&[Mode::Nftables]),
        title: "Nobody talks to cluster IPs that no Service has",
        symptom: "After the move connections to an address that once was a Service's are dropped at once.",
        why: "The nftables mode drops packets for addresses of the Services' range that no Service has, and rejects those \
              for ports that a Service does not have. The other modes let them pass to the default route.",
        verify: "Each destination in the Services' range must be the address of a Service.",
        commands: &["conntrack -L", "kubectl get services -A"],
        fix: "Find the clients: they are misconfigured today.",
        incidents: &["the README of kube-proxy's nftables mode tells it as a difference"],
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
        id: "CN08",
        name: "local-dns-address",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs]),
        title: "NodeLocal DNS listens on no Service's address",
        symptom: "After the move pods cannot resolve names, or the DNS cache cannot reach its upstream.",
        why: "In iptables mode NodeLocal DNS may put the address of Service kube-dns on its own link. In ipvs mode the \
              same address is on kube-ipvs0, and packets for it go to whichever took it: the cache that asks kube-dns \
              asks itself.",
        verify: "The link nodelocaldns must hold the link-local address alone.",
        commands: &[
            "ip addr show dev nodelocaldns",
            "kubectl -n kube-system get service kube-dns",
        ],
        fix: "Give NodeLocal DNS its flavour for ipvs, which listens on 169.254.20.10 alone, and point the kubelet there.",
        incidents: &["kubernetes/website#18716", "rancher/rke#2093"],
        needs: &[&[Item::Addresses, Item::Services]],
        caused_by: &[],
        run: local_dns,
    },
    Check {
        id: "DP03",
        name: "ipvs-settings-lost",
        severity: Severity::Warning,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "Nothing is set for ipvs that another mode does not have",
        symptom: "After the move endpoints get other shares of the traffic, and idle connections end at other times.",
        why: "Schedulers, the timeouts of IPVS and strictARP are settings of the ipvs mode. Other modes choose endpoints by \
              chance, and conntrack's timeouts hold. A scheduler acts on one node's connections alone in any case.",
        verify: "See the section ipvs of kube-proxy's configuration.",
        commands: &["kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A12 'ipvs:'"],
        fix: "Make sure that nobody counts on what is lost; then go on.",
        incidents: &["KEP-5495: schedulers give no benefit across nodes"],
        needs: &[MODE],
        caused_by: &[],
        run: lost,
    },
    Check {
        id: "KP19",
        name: "rollout-paced",
        severity: Severity::Warning,
        when: When::For(&Mode::ALL),
        title: "A rollout of kube-proxy waits for each node's rules",
        symptom: "A change of the DaemonSet is on all nodes within a minute, while none has written its rules yet.",
        why: "A DaemonSet goes on to the next node when the pod is ready. Without a readiness probe, kubeadm's way, a pod is \
              ready as soon as it runs: before it has removed the old mode's rules, and long before the first sync ends.",
        verify: "The container must have a readiness probe, or the strategy be OnDelete.",
        commands: &[
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.updateStrategy}{..readinessProbe}'",
        ],
        fix: "Move node by node, and wait on each until its rules are written; set the strategy to OnDelete before an edit.",
        incidents: &[
            "kubeadm's manifest has no probe; the gap was measured in kubernetes/kubernetes#139513",
        ],
        needs: &[&[Item::DaemonSets]],
        caused_by: &[],
        run: pacing,
    },
    Check {
        id: "NP05",
        name: "localhost-node-ports",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs, Mode::Nftables]),
        title: "Nobody uses NodePorts on 127.0.0.1",
        symptom: "After the move a process of the node (a registry mirror, say) cannot reach 127.0.0.1:NODEPORT.",
        why: "The iptables mode lets NodePorts answer on loopback addresses. The others do not, and cannot.",
        verify: "The counter of such packets must be 0, and no tracked connection go there.",
        commands: &[
            "curl -s http://127.0.0.1:10249/metrics | grep localhost_nodeports_accepted",
            "conntrack -L -d 127.0.0.1",
        ],
        fix: "Change the clients to the node's address, or to the Service's, before the move.",
        incidents: &[
            "kubernetes/kubernetes#67730",
            "the announcement of the nftables mode names it",
        ],
        needs: &[MODE, &[Item::Metrics, Item::Conntrack, Item::Services]],
        caused_by: &[],
        run: localhost,
    },
    Check {
        id: "NP07",
        name: "secondary-node-ports",
        severity: Severity::Error,
        when: When::For(&[Mode::Nftables]),
        title: "NodePorts are used on the node's primary address alone",
        symptom: "After the move NodePorts do not answer on one of the node's addresses any more.",
        why: "Where nodePortAddresses is not set, the iptables and ipvs modes serve NodePorts on every address of the node, \
              the nftables mode on the primary one of each family alone.",
        verify: "No tracked connection to a NodePort may have another address of the node as its destination.",
        commands: &[
            "conntrack -L | grep dport=NODEPORT",
            "kubectl get node NAME -o jsonpath='{.status.addresses}'",
        ],
        fix: "Set nodePortAddresses to the prefixes that clients use, before the move.",
        incidents: &["the announcement of the nftables mode names it"],
        needs: &[&[
            Item::ProxyConfig,
            Item::ConfigMaps,
            Item::Conntrack,
            Item::Services,
            Item::Addresses,
            Item::Nodes,
        ]],
        caused_by: &[],
        run: secondary,
    },
    Check {
        id: "SY10",
        name: "invalid-packets",
        severity: Severity::Warning,
        when: When::For(&[Mode::Nftables]),
        title: "Packets that conntrack takes for invalid do no harm",
        symptom: "After the move, under load, a connection to a Service is now and then reset by its client.",
        why: "Conntrack calls a packet outside the window invalid, and does not translate its source back: the client gets \
              it from an address it never talked to, and resets. The iptables mode drops such packets; the nftables mode \
              has no such rule, and leaves it to the setting that takes them for valid.",
        verify: "The setting must be 1, or conntrack.tcpBeLiberal true in kube-proxy's configuration.",
        commands: &["sysctl net.netfilter.nf_conntrack_tcp_be_liberal"],
        fix: "Set conntrack.tcpBeLiberal to true in kube-proxy's configuration with the move.",
        incidents: &[
            "kubernetes/kubernetes#117924",
            "kubernetes/kubernetes#122663",
            "kubermatic/kubermatic#15501",
        ],
        needs: &[&[Item::Sysctl, Item::ProxyConfig, Item::ConfigMaps]],
        caused_by: &[],
        run: liberal,
    },
];

fn name_of(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

/// Returns the addresses that make packets for them local in ipvs mode, beside cluster IPs.
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
    let mut findings = Vec::new();
    for service in services {
        let addresses: BTreeSet<_> = outer_addresses(service).collect();
        for ip in addresses {
            let node = nodes.iter().find(|node| {
                let theirs = &node.status.addresses;
                theirs.iter().any(|of| of.address.parse() == Ok(ip))
            });
            let mut links = here.iter().flat_map(|here| &here.all);
            let link = links.find(|at| at.addr.addr == ip && at.link != DUMMY);
            let mut seen = Vec::new();
            seen.extend(node.map(|node| Proof::object("node", &node.metadata.name)));
            seen.extend(link.map(|at| Proof::Address {
                link: at.link.clone(),
                address: ip,
            }));
            if seen.is_empty() {
                continue;
            }
            let message = "the Service has the address of a node: in ipvs mode no other node reaches that node";
            findings.push(
                Finding::new(
                    Severity::Error,
                    format!("{} {ip}", name_of(service)),
                    message,
                )
                .seen(seen),
            );
        }
    }
    Ok(findings)
}

/// Returns the prefixes that cluster IPs come from: as the cluster has them, or as far as this node can tell.
fn service_cidrs(facts: &Facts<'_>) -> Result<Vec<Cidr>, Gap> {
    const FLAG: &str = "--service-cluster-ip-range=";
    let objects = facts.node.service_cidrs();
    let texts = objects.iter().copied().flatten();
    let texts = texts.flat_map(|of| &of.spec.cidrs);
    let found: Vec<Cidr> = texts.filter_map(|text| text.parse().ok()).collect();
    if !found.is_empty() {
        return Ok(found);
    }
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
        // Where the cluster has them and they may not be read, that is what is missing.
        if let Err(gap @ (Gap::Denied(..) | Gap::Failed(..))) = objects {
            return Err(gap);
        }
        let why = "which range cluster IPs come from is not known here: no kube-apiserver runs on this node";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    Ok(found)
}

fn connection(entry: &Entry) -> Proof {
    let (from, to) = (entry.original.source, entry.original.destination);
    Proof::Connection(format!("{} {from} to {to}", entry.proto))
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
        .map(connection)
        .collect();
    if strays.is_empty() {
        return Ok(Vec::new());
    }
    let message = "clients talk to addresses of the Services' range that no Service has: nftables mode drops that";
    Ok(vec![
        Finding::new(Severity::Info, "cluster IPs", message).seen(strays),
    ])
}

fn local_dns(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.addresses()?.all.iter();
    let dns: Vec<_> = links.filter(|at| super::dummy::is_dns(&at.link)).collect();
    let mut findings = Vec::new();
    for service in facts.node.services()? {
        let ips = service.spec.cluster_ips.iter();
        for ip in ips.filter_map(|text| text.parse::<IpAddr>().ok()) {
            let Some(at) = dns.iter().find(|at| at.addr.addr == ip) else {
                continue;
            };
            let message = "NodeLocal DNS holds the Service's address, which in ipvs mode is on kube-ipvs0 as well";
            findings.push(
                Finding::new(Severity::Error, name_of(service), message).seen([Proof::Address {
                    link: at.link.clone(),
                    address: ip,
                }]),
            );
        }
    }
    Ok(findings)
}

fn lost(facts: &Facts<'_>) -> Verdict {
    let current = facts.current()?;
    if current != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {current} now")));
    }
    let ipvs = facts.configuration()?.ipvs;
    let strict = if ipvs.strict_arp { "true" } else { "" };
    let set = [
        ("ipvs.scheduler", ipvs.scheduler.as_str()),
        ("ipvs.tcpTimeout", &ipvs.tcp_timeout),
        ("ipvs.tcpFinTimeout", &ipvs.tcp_fin_timeout),
        ("ipvs.udpTimeout", &ipvs.udp_timeout),
        ("ipvs.strictARP", strict),
    ];
    let seen: Vec<_> = set
        .into_iter()
        .filter(|(_, value)| !matches!(*value, "" | "rr" | "0s" | "0"))
        .map(|(key, value)| Proof::setting("kube-proxy's configuration", key, value))
        .collect();
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "settings of the ipvs mode are in use, and lost with it";
    Ok(vec![
        Finding::new(Severity::Warning, "ipvs", message).seen(seen),
    ])
}

fn pacing(facts: &Facts<'_>) -> Verdict {
    let sets = facts.node.daemon_sets()?;
    let ours = sets.iter().find(|set| set.metadata.name == "kube-proxy");
    let Some(set) = ours else {
        let why = "kube-proxy does not run as a DaemonSet of that name";
        return Err(Gap::NotApplicable(why.to_owned()));
    };
    let strategy = set.spec.update_strategy.get("type");
    let strategy = strategy
        .and_then(serde_json::Value::as_str)
        .unwrap_or("RollingUpdate");
    let mut containers = set.spec.template.spec.containers.iter();
    if strategy != "RollingUpdate" || containers.any(|of| of.readiness_probe.is_some()) {
        return Ok(Vec::new());
    }
    let message =
        "a rollout does not wait until a node's rules are written: nothing tells when they are";
    let source = "DaemonSet kube-proxy";
    Ok(vec![Finding::new(Severity::Warning, source, message).seen(
        [
            Proof::setting(source, "updateStrategy", strategy),
            Proof::setting(source, "readinessProbe", "none"),
        ],
    )])
}

/// Returns the NodePorts of TCP and UDP Services.
fn node_ports(facts: &Facts<'_>) -> Result<BTreeSet<(u8, u16)>, Gap> {
    let ports = facts
        .node
        .services()?
        .iter()
        .flat_map(|service| &service.spec.ports);
    let numbers = ports.filter_map(|port| {
        let proto = match port.protocol.as_str() {
            "UDP" => Proto::Udp,
            "SCTP" => Proto::Sctp,
            _ => Proto::Tcp,
        };
        Some((proto.number(), port.node_port?))
    });
    Ok(numbers.collect())
}

/// Returns the tracked connections to NodePorts at addresses that `at` picks.
fn to_node_ports(facts: &Facts<'_>, at: impl Fn(IpAddr) -> bool) -> Result<Vec<Proof>, Gap> {
    let ports = node_ports(facts)?;
    let entries = facts.node.conntrack()?.entries.iter();
    let there = entries.filter(|entry| {
        let to = entry.original.destination;
        ports.contains(&(entry.proto.number(), to.port())) && at(to.ip())
    });
    Ok(there.map(connection).collect())
}

fn localhost(facts: &Facts<'_>) -> Verdict {
    const NAME: &str = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    let current = facts.current()?;
    if current != Mode::Iptables {
        let why =
            format!("the mode is {current} now, where NodePorts do not answer on 127.0.0.1 either");
        return Err(Gap::NotApplicable(why));
    }
    let metrics = facts.node.metrics();
    let counters: Vec<_> = metrics
        .iter()
        .flat_map(|metrics| metrics.of(NAME))
        .collect();
    let flows = to_node_ports(facts, |to| to.is_loopback());
    let counted = counters.iter().filter(|sample| sample.value > 0.0);
    let mut seen: Vec<_> = counted
        .map(|sample| Proof::setting("kube-proxy's metrics", NAME, sample.value))
        .collect();
    seen.extend(flows.iter().flatten().cloned());
    if seen.is_empty() {
        // Either tells, and nothing of both is not an answer.
        return match (counters.is_empty(), flows) {
            (true, Err(gap)) => Err(gap),
            _ => Ok(Vec::new()),
        };
    }
    let message = "NodePorts are used on 127.0.0.1, where the mode to come does not serve them";
    Ok(vec![
        Finding::new(Severity::Error, "127.0.0.1", message).seen(seen),
    ])
}

fn secondary(facts: &Facts<'_>) -> Verdict {
    if !facts.configuration()?.node_port_addresses.is_empty() {
        return Ok(Vec::new());
    }
    let node = facts.this_node()?;
    let primary: BTreeSet<IpAddr> = node
        .status
        .addresses
        .iter()
        .filter(|of| of.kind == "InternalIP")
        .filter_map(|of| of.address.parse().ok())
        .collect();
    let links = facts.node.addresses()?.all.iter();
    let others: BTreeSet<IpAddr> = links
        .filter(|at| at.link != DUMMY)
        .map(|at| at.addr.addr)
        .filter(|ip| !ip.is_loopback() && !primary.contains(ip))
        .collect();
    let seen = to_node_ports(facts, |to| others.contains(&to))?;
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "NodePorts are used on further addresses of the node, which the nftables mode does not serve";
    Ok(vec![
        Finding::new(Severity::Error, "nodePortAddresses", message).seen(seen),
    ])
}

fn liberal(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";
    if facts.configuration()?.conntrack.tcp_be_liberal || recorded(facts, KEY)? != "0" {
        return Ok(Vec::new());
    }
    let message = "packets out of window are invalid, and in nftables mode no rule drops them";
    Ok(vec![Finding::new(Severity::Warning, KEY, message).seen([
        seen(KEY, 0),
        Proof::setting(
            "kube-proxy's configuration",
            "conntrack.tcpBeLiberal",
            false,
        ),
    ])])
}

/// Finds the virtual servers that a start of kube-proxy in nftables mode would clear, though they are not its own.
pub(super) fn cleared_servers(facts: &Facts<'_>) -> Verdict {
    let foreign = foreign_servers(facts)?.unwrap_or_default();
    let message = "the virtual server is not kube-proxy's, and its start in nftables mode clears it with its own";
    Ok(foreign
        .into_iter()
        .map(|key| {
            let name = print::name(key);
            Finding::new(Severity::Error, name.clone(), message)
                .seen([Proof::object("virtual-server", name)])
                .mend("Move the other software's virtual servers to another machine first, or leave this node in its mode.")
        })
        .collect())
}
