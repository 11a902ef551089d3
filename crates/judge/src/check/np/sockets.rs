//! NodePorts, and the sockets that listen on them.

use std::collections::BTreeMap;

use crate::check::core::{Collector, MODE, VERSION, node_ports, proto_of};
use crate::check::{Check, Example, Facts, Finding, Proof, Severity, Subject, Text, Verdict, When};
use kpx_node::backend::Mode;
use kpx_node::cluster::Service;
use kpx_node::cluster::config::NodePortsAt;
use kpx_node::cluster::release::{Change, OLDEST};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::processes::is_proxy_name;
use kpx_node::node::sockets::Socket;

pub(super) const SOCKETS: &[Item] = &[
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NP01",
        name: "node-port-taken",
        severity: Severity::Error,
        when: When::Now,
        title: "No process of the node listens on an allocated NodePort",
        symptom: "A daemon cannot be reached from outside, because its clients reach the Service; or local clients \
              reach the daemon.",
        why: "Since 1.24 kube-proxy no longer opens NodePorts as sockets, so a process can use the same port. Packets \
              from outside are translated before they reach the socket.",
        verify: "Compare the listening sockets with the NodePorts.",
        commands: &[
            Example::on_node("ss -lntup"),
            Example::anywhere("kubectl get services -A | grep NodePort"),
        ],
        fix: Text::plain(
            "Configure another port for the daemon, or another NodePort for the Service.",
        ),
        incidents: &[
            "kubernetes/kubernetes#40920",
            "kubernetes/kubernetes#100643: no more sockets",
        ],
        needs: &[MODE, VERSION, SOCKETS, &[Item::Services]],
        caused_by: &[],
        run: taken,
    },
    Check {
        id: "NP03",
        name: "host-port-is-node-port",
        severity: Severity::Warning,
        when: When::Now,
        title: "No hostPort of a pod on this node is a NodePort",
        symptom: "The hostPort of a pod answers with another Service, or the other way round.",
        why: "Both are translated in PREROUTING, and the first rule wins; the order depends on which software wrote \
              last.",
        verify: "Compare the hostPorts of the node's pods with the NodePorts.",
        commands: &[Example::anywhere(
            "kubectl get pods -A -o json | jq '.items[].spec.containers[].ports[]?.hostPort'",
        )],
        fix: Text::plain("Change the hostPort or the NodePort so that the numbers differ."),
        incidents: &["cilium/cilium#28832", "kubernetes/kubernetes#100643"],
        needs: &[&[Item::Pods, Item::Services]],
        caused_by: &[],
        run: host_ports,
    },
    Check {
        id: "NP04",
        name: "node-port-families",
        severity: Severity::Error,
        when: When::Now,
        title: "nodePortAddresses covers every IP family in use",
        symptom: "NodePorts answer only over IPv4, or only over IPv6.",
        why: "If nodePortAddresses has prefixes of only one family, kube-proxy serves NodePorts of the other family \
              on all addresses or on none, depending on mode and release, and logs a warning. Since 1.37 the list may \
              also have the words primary, localhost and all; older releases refuse to start with them, except for \
              primary alone.",
        verify: "The list must be empty, contain primary or all, or have a prefix of each family.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A3 nodePortAddresses",
        )],
        fix: Text::plain(
            "Set nodePortAddresses to [\"primary\"], or add a prefix of the other family.",
        ),
        incidents: &["kube-proxy logs a warning when it starts"],
        needs: &[MODE, VERSION, &[Item::Services]],
        caused_by: &[],
        run: families,
    },
];

pub(super) fn socket_proof(socket: &Socket) -> Proof {
    let names = socket.processes.iter();
    let names: Vec<_> = names
        .map(|p| format!("{} (pid {})", p.name, p.pid))
        .collect();
    Proof::Socket {
        socket: format!("{} {}", socket.proto, socket.local),
        process: match names.as_slice() {
            [] => "unknown process".to_owned(),
            some => some.join(", "),
        },
    }
}

/// Returns the gap of the first list of sockets that was not read; an empty result depends on all of them.
pub(super) fn all_sockets_read(facts: &Facts<'_>) -> Result<(), Gap> {
    match facts.node.sockets()?.gaps.first() {
        Some(gap) => Err(gap.clone()),
        None => Ok(()),
    }
}

fn taken(facts: &Facts<'_>) -> Verdict {
    let ports = node_ports(facts)?;
    if ports.is_empty() {
        return Err(Gap::NotApplicable("no Service has a NodePort".to_owned()));
    }
    let mut findings = Collector::default();
    findings.read(all_sockets_read(facts));
    for socket in &facts.node.sockets()?.listening {
        let port = socket.local.port();
        if let Some(service) = ports.get(&(socket.proto.number(), port))
            && !is_proxys(socket)
        {
            if socket.processes.is_empty() && may_be_proxys(facts) {
                let why = format!("it does not say which process listens on port {port}");
                findings.note(Gap::Absent(Item::Sockets, why));
                continue;
            }
            let message = "a process of the node listens on the Service's NodePort";
            let about = Subject::NodePort {
                service: service.clone(),
                number: port,
            };
            findings.push(
                Finding::new(Severity::Error, about, message).evidence([socket_proof(socket)]),
            );
        }
    }
    findings.verdict()
}

/// Returns whether kube-proxy is known to hold the socket.
pub(super) fn is_proxys(socket: &Socket) -> bool {
    let mut names = socket.processes.iter().map(|process| &process.name);
    names.any(|name| name.starts_with("kube-proxy") || is_proxy_name(name))
}

/// Returns whether kube-proxy itself may listen on NodePorts: old releases do, and those that serve NodePorts on loopback
/// addresses in nftables mode.
fn may_be_proxys(facts: &Facts<'_>) -> bool {
    let (Ok(mode), Ok(found)) = (facts.mode(), facts.version()) else {
        return true;
    };
    match mode {
        Mode::Userspace => true,
        Mode::Nftables if found.version.has(Change::LocalhostNodePorts) => true,
        Mode::Iptables | Mode::Ipvs | Mode::Nftables => !found.version.is_at_least(OLDEST),
    }
}

fn host_ports(facts: &Facts<'_>) -> Verdict {
    let ports = node_ports(facts)?;
    if ports.is_empty() {
        return Err(Gap::NotApplicable("no Service has a NodePort".to_owned()));
    }
    let here = facts.node.pods()?;
    let mut findings = Vec::new();
    for pod in here {
        for port in pod
            .spec
            .containers
            .iter()
            .flat_map(|container| &container.ports)
        {
            let number = port.get("hostPort").and_then(serde_json::Value::as_u64);
            let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
                continue;
            };
            let proto = port.get("protocol").and_then(serde_json::Value::as_str);
            let proto = proto_of(proto.unwrap_or("TCP"));
            if let Some(service) = ports.get(&(proto.number(), number)) {
                let message = "the pod's hostPort is also a NodePort";
                let about = Subject::object("Pod", &pod.metadata.namespace, &pod.metadata.name);
                let whole = service.whole();
                let seen = Proof::Note(format!("{proto} {number} is the NodePort of {whole}"));
                findings.push(
                    Finding::new(Severity::Warning, about, message)
                        .services([service])
                        .evidence([seen]),
                );
            }
        }
    }
    Ok(findings)
}

fn families(facts: &Facts<'_>) -> Verdict {
    let config = facts.configuration()?;
    let setting = || {
        let value = config.node_port_addresses.join(", ");
        Proof::setting("kube-proxy's configuration", "nodePortAddresses", value)
    };
    let words = config.node_ports_at(facts.mode().unwrap_or(Mode::Iptables));
    let is_word = |at: &NodePortsAt| !matches!(at, NodePortsAt::Prefix(_));
    let is_set = !config.node_port_addresses.is_empty();
    let needed = match words.as_slice() {
        [NodePortsAt::Primary] => Some((
            Change::NodePortPrimary,
            "kube-proxy does not start: before 1.30 nodePortAddresses takes no words, only prefixes",
        )),
        all => all.iter().any(is_word).then_some((
            Change::NodePortWords,
            "kube-proxy does not start: before 1.37 nodePortAddresses takes no words but primary alone",
        )),
    };
    if let Some((change, message)) = needed.filter(|_| is_set) {
        let found = facts.version()?;
        if !found.version.has(change) {
            let seen = Proof::setting(found.source.to_string(), "version", found.version);
            return Ok(vec![
                Finding::new(Severity::Error, Subject::setting("nodePortAddresses"), message).evidence([setting(), seen])
                    .fix("Set nodePortAddresses to prefixes, such as that of the network of the nodes, or to [\"primary\"] (since 1.30)."),
            ]);
        }
    }
    let covers = |family: Family| {
        words.iter().any(|at| match at {
            NodePortsAt::Primary | NodePortsAt::All => true,
            NodePortsAt::Localhost => false,
            NodePortsAt::Prefix(cidr) => cidr.family() == family,
        })
    };
    // Both families are served; or, with loopback addresses only, none is on purpose.
    let served = Family::BOTH.map(covers);
    if served[0] == served[1] {
        return Ok(Vec::new());
    }
    let services = facts.node.services()?.iter();
    let with = services.filter(|service| service.spec.ports.iter().any(|p| p.node_port.is_some()));
    let mut used: BTreeMap<Family, Vec<&Service>> = BTreeMap::new();
    for service in with {
        for text in &service.spec.cluster_ips {
            if let Ok(addr) = text.parse() {
                used.entry(Family::of(addr)).or_default().push(service);
            }
        }
    }
    let lacking = used.into_iter().filter(|(family, _)| !covers(*family));
    Ok(lacking
        .map(|(family, services)| {
            let message =
                "nodePortAddresses has no prefix of this IP family, which Services with NodePorts use";
            Finding::new(Severity::Warning, family, message)
                .services(services)
                .evidence([setting()])
        })
        .collect())
}
