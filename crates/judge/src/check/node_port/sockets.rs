//! NodePorts, and the sockets that listen on them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::check::core::{Collector, MODE, SOCKETS, VERSION, node_ports, proto_of};
use crate::check::{
    Check, Example, Facts, Finding, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
};
use crate::trace::sources::own_address;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::Service;
use kpx_node::cluster::config::NodePortsAt;
use kpx_node::cluster::release::{Change, OLDEST};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::processes::is_proxy_name;
use kpx_node::node::sockets::Socket;
use kpx_node::owner::{Endpoint, Port, Role};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NP01",
        name: "node-port-taken",
        severity: Severity::Error,
        when: When::Now,
        title: "No process of the node listens at an address and port of a Service",
        symptom: "A daemon, such as sshd, cannot be reached from outside, because its clients reach the Service; or local \
              clients reach the daemon.",
        why: "Since 1.24 kube-proxy no longer opens NodePorts as sockets, so a process can use the same port. An external IP \
              or a load balancer's address may be the node's own, at any port. Packets are translated before they reach the \
              socket.",
        verify: "Compare the listening sockets with the NodePorts, and with the ports of Services that have an address of the \
              node.",
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
            "k0sproject/k0s#4661: an external IP that is the node's own, at the port of sshd",
        ],
        needs: &[
            MODE,
            VERSION,
            SOCKETS,
            &[
                Item::Services,
                Item::EndpointSlices,
                Item::Addresses,
                Item::Nodes,
            ],
        ],
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

pub(in crate::check) fn socket_proof(socket: &Socket) -> Proof {
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

/// Ports at which a program listens on most nodes, or on those of the control plane.
const USUAL: &[(u16, &str)] = &[
    (22, "sshd"),
    (179, "a BGP daemon"),
    (2379, "etcd"),
    (6443, "the API server"),
    (10250, "the kubelet"),
];

fn taken(facts: &Facts<'_>) -> Verdict {
    let ports = node_ports(facts)?;
    let own = own_ports(facts);
    if ports.is_empty() && own.as_ref().is_ok_and(Vec::is_empty) {
        return Err(Gap::NotApplicable(
            "no Service has a NodePort, or an address of the node".to_owned(),
        ));
    }
    let mut findings = Collector::default();
    findings.read(all_sockets_read(facts));
    let listening = facts.node.sockets().map(|all| all.listening.as_slice());
    for socket in listening.iter().copied().flatten() {
        let port = socket.local.port();
        if let Some(service) = ports.get(&(socket.proto.number(), port))
            && !is_proxys(socket)
        {
            if socket.processes.is_empty() && may_be_proxys(facts) {
                let why = format!("it does not say which process listens on port {port}");
                findings.note(Gap::Absent(Item::Sockets, why));
                continue;
            }
            let message = "a process of the node listens on the Service's NodePort: its clients from outside reach the Service";
            let about = Subject::NodePort {
                service: service.clone(),
                number: port,
            };
            findings.push(
                Finding::new(Severity::Warning, about, message).evidence([socket_proof(socket)]),
            );
        }
    }
    for (port, at) in findings.read(own).into_iter().flatten() {
        findings.extend(shadowed(facts, port, at));
    }
    findings.verdict()
}

/// Returns the Service ports at addresses of this node from outside of the Service range, with these addresses.
fn own_ports<'f>(facts: &'f Facts<'_>) -> Result<Vec<(&'f Port, SocketAddr)>, Gap> {
    let served = facts.owners().ports().iter();
    let served = served.filter(|port| port.left_to.is_none());
    let outer = served.flat_map(|port| {
        let addresses = port.addresses.iter();
        let outer = addresses.filter(|(role, _)| *role != Role::ClusterIp);
        outer.filter_map(move |(_, at)| Some((port, SocketAddr::new(*at, port.port?))))
    });
    let mut outer: Vec<_> = outer.collect();
    if outer.is_empty() {
        return Ok(outer);
    }
    let addresses = facts.node.addresses()?;
    outer.retain(|(_, at)| {
        let mut all = addresses.all.iter();
        all.any(|address| address.addr.addr == at.ip() && address.link != DUMMY)
    });
    Ok(outer)
}

/// Returns that a process of the node listens at `at`, the address of `port`, too.
fn shadowed(facts: &Facts<'_>, port: &Port, at: SocketAddr) -> Option<Finding> {
    let is_endpoint = |endpoint: &Endpoint| endpoint.addr == at;
    if port.endpoints.iter().any(is_endpoint) {
        return None;
    }
    // A process that listens on all addresses loses nothing by an address that exists only for the Service.
    let is_nodes = own_address(facts.node, Family::of(at.ip())) == Some(at.ip());
    let (who, proof) = match facts.node.sockets() {
        Ok(sockets) => {
            let mut taking = sockets.taking(port.proto, at.ip(), at.port());
            let socket = taking.find(|taking| {
                !is_proxys(taking) && (is_nodes || !taking.local.ip().is_unspecified())
            })?;
            let name = socket
                .processes
                .first()
                .map(|process| process.name.as_str());
            (name.unwrap_or("a process").to_owned(), socket_proof(socket))
        }
        Err(gap) => {
            let is_it = |(number, _): &&(u16, &str)| *number == at.port();
            let (_, who) = USUAL
                .iter()
                .find(|usual| is_it(usual) && is_nodes && port.proto == Proto::Tcp)?;
            (
                (*who).to_owned(),
                Proof::Note(format!("the listening sockets are unknown: {gap}")),
            )
        }
    };
    let verb = if facts.node.sockets().is_ok() {
        "listens"
    } else {
        "usually listens"
    };
    let message = format!(
        "{who} of the node {verb} at this address and port, too: its clients reach the Service instead"
    );
    let about = Subject::ServiceAddress {
        service: ServiceRef::from(&port.name),
        address: at.ip(),
        port: Some(at.port()),
    };
    Some(
        Finding::new(Severity::Warning, about, message)
            .evidence([proof])
            .fix(
                "Give the Service another address or another port: at this one the node's own process gets no connection from \
                 outside, only on 127.0.0.1.",
            ),
    )
}

/// Returns whether kube-proxy is known to hold the socket.
pub(in crate::check) fn is_proxys(socket: &Socket) -> bool {
    let mut names = socket.processes.iter().map(|process| &process.name);
    names.any(|name| name.starts_with("kube-proxy") || is_proxy_name(name))
}

/// Returns whether kube-proxy itself may listen on NodePorts: old releases do, and releases that serve NodePorts on
/// loopback addresses in nftables mode.
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
    // Both families are served; with loopback addresses only, kube-proxy serves none on purpose.
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
