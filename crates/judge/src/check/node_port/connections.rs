//! Tracked connections to NodePorts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::check::core::{MODE, VERSION, connection_proof, leaving, node_ports};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text,
    Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::release::Change;
use kpx_node::desired::{LOCALHOST_GATE, serves_localhost};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::owner::Role;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NP02",
        name: "client-port",
        severity: Severity::Warning,
        when: When::Now,
        title: "No connection of the node has a NodePort as its source port",
        symptom: "Occasionally a connection from the node, for example to the API server, times out.",
        why: "If ip_local_port_range overlaps the NodePort range, the kernel gives clients such ports. Replies to \
              that port look like traffic to the NodePort. Masquerading takes any port from 1024 on, and in ipvs mode the \
              replies to a NodePort do not return.",
        verify: "No tracked connection from the node may have an allocated NodePort as its source port.",
        commands: &[
            Example::on_node(
                "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
            ),
            Example::on_node("conntrack -L | grep sport=NODEPORT"),
        ],
        fix: Text::plain(
            "Reserve the NodePort range with `sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767`, and in a \
             file of /etc/sysctl.d.",
        ),
        incidents: &[
            "kubernetes/kubernetes#111682",
            "awslabs/amazon-eks-ami#1307",
            "kubernetes/kubernetes#139276: masquerading in ipvs mode",
        ],
        needs: &[MODE, &[Item::Conntrack, Item::Services, Item::Addresses]],
        caused_by: &[Because::Services("SY12")],
        run: client_ports,
    },
    Check {
        id: "NP05",
        name: "localhost-node-ports",
        severity: Severity::Error,
        when: When::For(&[Mode::Ipvs, Mode::Nftables]),
        title: "No client uses NodePorts on 127.0.0.1",
        symptom: "After the switch a process of the node, for example a container runtime with a registry mirror, \
              cannot reach 127.0.0.1:NODEPORT.",
        why: "In iptables mode NodePorts answer on loopback addresses; in ipvs mode they do not. In nftables mode they do \
              since 1.37, for TCP only, with the feature gate KubeProxyNFTablesLocalhostNodePorts (on by default since \
              1.38) and the word localhost, or a loopback prefix, in nodePortAddresses.",
        verify: "The counter of such packets must be 0, and no tracked connection may go there.",
        commands: &[
            Example::on_node(
                "curl -s http://127.0.0.1:10249/metrics | grep localhost_nodeports_accepted",
            ),
            Example::on_node("conntrack -L -d 127.0.0.1"),
        ],
        fix: Text::plain(
            "Before the switch, change the clients to the node's address, or to the Service's. The counter starts at the node's boot: \
             if these clients are gone, pass `--skip NP05`.",
        ),
        incidents: &[
            "kubernetes/kubernetes#67730",
            "k0sproject/k0s#5760: a registry on 127.0.0.1",
            "kubernetes/kubernetes#138427: NodePorts on localhost in nftables mode",
        ],
        needs: &[MODE, VERSION, &[Item::Conntrack, Item::Services]],
        caused_by: &[],
        run: localhost,
    },
    Check {
        id: "NP07",
        name: "secondary-node-ports",
        severity: Severity::Error,
        when: When::For(&[Mode::Nftables]),
        title: "NodePorts are used only on the node's primary address",
        symptom: "After the switch NodePorts no longer answer on one of the node's addresses.",
        why: "Without nodePortAddresses, the iptables and ipvs modes serve NodePorts on every address of the node, \
              the nftables mode only on the primary one of each family.",
        verify: "No tracked connection to a NodePort may have another address of the node as its destination.",
        commands: &[
            Example::on_node("conntrack -L | grep dport=NODEPORT").with(&["NODEPORT"]),
            Example::anywhere("kubectl get node NAME -o jsonpath='{.status.addresses}'")
                .with(&["NAME"]),
        ],
        fix: Text::plain(
            "Before the switch, set nodePortAddresses to the prefixes that clients use.",
        ),
        incidents: &["the announcement of the nftables mode mentions it"],
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
        id: "NP08",
        name: "leaving-node",
        severity: Severity::Warning,
        when: When::Now,
        title: "No load balancer's connection passes through a node that leaves",
        symptom: "When the cluster is scaled down, connections of a load balancer break, although their pods go on.",
        why: "With externalTrafficPolicy Cluster a load balancer may send a connection to any node, which passes it on to \
              the pod's node. When the first node is removed, the connection breaks. The load balancer stops sending new \
              ones as soon as /healthz answers 503, but established ones stay.",
        verify: "Look for tracked connections to NodePorts or load balancers' addresses whose pod is on another node.",
        commands: &[
            Example::anywhere("kubectl describe node NODE | grep ToBeDeleted").with(&["NODE"]),
            Example::on_node("conntrack -L | grep dport=NODEPORT").with(&["NODEPORT"]),
        ],
        fix: Text::with(
            "Remove the node after these connections ended: raise --node-delete-delay-after-taint of the cluster \
             autoscaler, or the draining time of the load balancer. {} lists them.",
            &[Example::kpx(&["show", "conntrack", "NAMESPACE/SERVICE"])
                .with(&["NAMESPACE/SERVICE"])],
        ),
        incidents: &["kubernetes/kubernetes#129605", "kubernetes/autoscaler#1907"],
        needs: &[&[
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
            Item::Conntrack,
            Item::Services,
            Item::EndpointSlices,
        ]],
        caused_by: &[],
        run: passing_through,
    },
];

fn passing_through(facts: &Facts<'_>) -> Verdict {
    const SHOWN: usize = 3;
    let node = facts.this_node()?;
    let Some(why) = leaving(node) else {
        return Ok(Vec::new());
    };
    facts.node.services()?;
    facts.node.slices()?;
    let owners = facts.owners();
    let entries = facts.node.conntrack()?.entries.iter();
    let (services, passing): (Vec<_>, Vec<_>) = entries
        .filter_map(|entry| {
            let to = entry.original.destination;
            let (port, node_port) = owners.served_at(to, entry.proto)?;
            let external = node_port || !port.addresses.contains(&(Role::ClusterIp, to.ip()));
            let ended = matches!(entry.state.as_deref(), Some("TIME_WAIT" | "CLOSE"));
            let mut endpoints = port.endpoints.iter();
            let backend = endpoints.find(|endpoint| endpoint.addr == entry.reply.source);
            let passes =
                external && !ended && backend.is_some_and(|backend| backend.local == Some(false));
            passes.then_some((&port.name, entry))
        })
        .unzip();
    let about = Subject::Node {
        name: Some(node.metadata.name.clone()),
    };
    if passing.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the node is about to be removed, and load balancers' connections to other nodes pass through it";
    let count = number_of(passing.len(), "connection");
    Ok(vec![
        Finding::new(Severity::Warning, about, message)
            .services(services)
            .evidence([why, Proof::Note(count)])
            .evidence(passing.into_iter().take(SHOWN).map(connection_proof)),
    ])
}

/// Returns the tracked connections to NodePorts at addresses that `at` selects.
fn to_node_ports(
    facts: &Facts<'_>,
    at: impl Fn(IpAddr) -> bool,
) -> Result<Vec<(ServiceRef, Proof)>, Gap> {
    let ports = node_ports(facts)?;
    let entries = facts.node.conntrack()?.entries.iter();
    let there = entries.filter(|entry| at(entry.original.destination.ip()));
    let there = there.filter_map(|entry| {
        let to = entry.original.destination;
        let of = ports.get(&(entry.proto.number(), to.port()))?;
        Some((of.clone(), connection_proof(entry)))
    });
    Ok(there.collect())
}

/// Returns a finding if clients use NodePorts on loopback addresses.
pub(in crate::check) fn localhost(facts: &Facts<'_>) -> Verdict {
    const NAME: &str = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total";
    let current = facts.current()?;
    if current != Mode::Iptables {
        let why = format!("the mode is {current} now, and NodePorts do not answer on 127.0.0.1");
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
        .map(|sample| {
            let packets = format!("{} since the node's boot", sample.value);
            Proof::setting("kube-proxy's metrics", NAME, packets)
        })
        .collect();
    let flows_seen = flows.iter().flatten();
    let (services, flows_seen): (Vec<_>, Vec<_>) = flows_seen.cloned().unzip();
    seen.extend(flows_seen);
    if seen.is_empty() {
        // The counter has every packet since the node's boot; the connections, for releases without the counter, only the current
        // ones.
        if counters.is_empty() {
            metrics?;
            flows?;
        }
        return Ok(Vec::new());
    }
    let finding = |severity, message: &str| {
        Finding::new(severity, IpAddr::from(Ipv4Addr::LOCALHOST), message)
            .services(&services)
            .evidence(seen.iter().cloned())
    };
    let version = facts.version().ok().map(|found| found.version);
    let newer = version.filter(|version| version.has(Change::LocalhostNodePorts));
    let (Some(version), Some(Mode::Nftables)) = (newer, facts.target()) else {
        let message = "clients use NodePorts on 127.0.0.1, which the target mode does not serve";
        return Ok(vec![finding(Severity::Error, message)]);
    };
    let config = facts.configuration()?;
    // The clients that are counted use IPv4: iptables serves no others.
    if config.names_loopback(Mode::Nftables, Family::V4) && serves_localhost(&config, version) {
        let message =
            "clients use NodePorts on 127.0.0.1, which the nftables mode serves for TCP only";
        return Ok(vec![finding(Severity::Info, message).fix(
            "Make sure that these clients use TCP. kube-proxy passes their connections on itself, which is slower.",
        )]);
    }
    let message = "clients use NodePorts on 127.0.0.1, which the target mode does not serve with this configuration";
    Ok(vec![finding(Severity::Error, message).fix(format!(
        "Before the switch, set nodePortAddresses to [primary, localhost] and the feature gate {LOCALHOST_GATE} to true, \
         which serves TCP; or change the clients to the node's address."
    ))])
}

/// Returns a finding if clients use NodePorts on addresses other than the primary ones.
pub(in crate::check) fn secondary(facts: &Facts<'_>) -> Verdict {
    if !facts.configuration()?.node_port_addresses.is_empty() {
        return Ok(Vec::new());
    }
    let node = facts.this_node()?;
    let primary: BTreeSet<IpAddr> = node
        .status
        .addresses
        .iter()
        .filter(|address| address.kind == "InternalIP")
        .filter_map(|address| address.address.parse().ok())
        .collect();
    let links = facts.node.addresses()?.all.iter();
    let others: BTreeSet<IpAddr> = links
        .filter(|at| at.link != DUMMY)
        .map(|at| at.addr.addr)
        .filter(|ip| !ip.is_loopback() && !primary.contains(ip))
        .collect();
    let there = to_node_ports(facts, |to| others.contains(&to))?;
    let (services, seen): (Vec<_>, Vec<_>) = there.into_iter().unzip();
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "clients use NodePorts on secondary addresses of the node, which the nftables mode does not serve";
    Ok(vec![
        Finding::new(
            Severity::Error,
            Subject::setting("nodePortAddresses"),
            message,
        )
        .services(services)
        .evidence(seen),
    ])
}

fn client_ports(facts: &Facts<'_>) -> Verdict {
    let ports = node_ports(facts)?;
    let links = facts.node.addresses()?.all.iter();
    let ours: BTreeSet<IpAddr> = links
        .filter(|at| at.link != DUMMY && !at.addr.addr.is_loopback())
        .map(|at| at.addr.addr)
        .collect();
    let mut findings = Vec::new();
    let is_ipvs = facts.current().ok() == Some(Mode::Ipvs);
    for entry in &facts.node.conntrack()?.entries {
        let from = entry.original.source;
        let masqueraded = entry.reply.destination;
        if is_ipvs
            && entry.state.as_deref() == Some("SYN_SENT")
            && masqueraded != from
            && ours.contains(&masqueraded.ip())
            && let Some(service) = ports.get(&(entry.proto.number(), masqueraded.port()))
        {
            let number = masqueraded.port();
            let message = "masquerading gave a connection the NodePort as its source port, and IPVS takes the replies to it";
            let to = facts
                .owners()
                .served_at(entry.original.destination, entry.proto);
            let about = Subject::NodePort {
                service: service.clone(),
                number,
            };
            findings.push(
                Finding::new(Severity::Warning, about, message)
                    .called(format!("{} {number}", service.whole()))
                    .services(to.map(|(port, _)| ServiceRef::from(&port.name)))
                    .evidence([connection_proof(entry)])
                    .fix(Fix::kpx(
                        "Switch to the nftables mode: in ipvs mode nothing keeps masquerading from NodePorts, and ip_local_reserved_ports \
                         is for sockets alone. Until then, let clients try again with another port.",
                        ["doctor", "--to", "nftables"],
                    )),
            );
        }
        let ended = matches!(entry.state.as_deref(), Some("TIME_WAIT" | "CLOSE"));
        if ended || !ours.contains(&from.ip()) {
            continue;
        }
        if let Some(service) = ports.get(&(entry.proto.number(), from.port())) {
            let message = "a client on the node uses the NodePort as its source port";
            findings.push(
                Finding::new(
                    Severity::Warning,
                    Subject::NodePort {
                        service: service.clone(),
                        number: from.port(),
                    },
                    message,
                )
                .called(format!("{} {}", service.whole(), from.port()))
                .evidence([connection_proof(entry)]),
            );
        }
    }
    Ok(findings)
}
