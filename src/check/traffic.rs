//! NP, CT: NodePorts against sockets and pods, and tracked connections against endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::cluster::Service;
use crate::evidence::{Gap, Item};
use crate::net::{Family, Proto};
use crate::node::conntrack::Entry;
use crate::node::sockets::Socket;
use crate::owner::{Owners, Port, State};

const SOCKETS: &[Item] = &[
    Item::Sockets,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
];
const FLOWS: &[Item] = &[
    Item::Conntrack,
    Item::Services,
    Item::EndpointSlices,
    Item::Addresses,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NP01",
        name: "node-port-taken",
        severity: Severity::Error,
        when: When::Now,
        title: "No process of the node listens on an allocated NodePort",
        symptom: "A daemon cannot be reached from outside, as its clients get the Service; or local clients get the daemon.",
        why: "Since 1.24 kube-proxy no longer opens NodePorts as sockets, so nothing keeps a process from taking one. \
              Packets from outside are translated before they reach the socket.",
        verify: "Compare the listening sockets with the NodePorts.",
        commands: &["ss -lntup", "kubectl get services -A | grep NodePort"],
        fix: "Give the daemon another port, or the Service another NodePort.",
        incidents: &[
            "kubernetes/kubernetes#40920",
            "kubernetes/kubernetes#100643: no more sockets",
        ],
        needs: &[SOCKETS, &[Item::Services]],
        caused_by: &[],
        run: taken,
    },
    Check {
        id: "NP03",
        name: "host-port-is-node-port",
        severity: Severity::Warning,
        when: When::Now,
        title: "No pod of the node has a hostPort that is a NodePort",
        symptom: "The hostPort of a pod answers with another Service, or the other way round.",
        why: "Both are translated in PREROUTING, and the first rule wins; which one that is depends on who wrote last.",
        verify: "Compare the hostPorts of the node's pods with the NodePorts.",
        commands: &[
            "kubectl get pods -A -o json | jq '.items[].spec.containers[].ports[]?.hostPort'",
        ],
        fix: "Move one of the two out of the range of NodePorts.",
        incidents: &["cilium/cilium#28832", "kubernetes/kubernetes#100643"],
        needs: &[&[Item::Pods, Item::Services]],
        caused_by: &[],
        run: host_ports,
    },
    Check {
        id: "NP04",
        name: "node-port-families",
        severity: Severity::Warning,
        when: When::Now,
        title: "nodePortAddresses names every family that is in use",
        symptom: "NodePorts answer over IPv4 alone, or over IPv6 alone.",
        why: "Where nodePortAddresses has prefixes of one family only, kube-proxy serves the other family's NodePorts on \
              all its addresses or on none, depending on mode and release, and says so in its log.",
        verify: "The list must be empty, [\"primary\"], or have a prefix of each family.",
        commands: &[
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A3 nodePortAddresses",
        ],
        fix: "Set nodePortAddresses to [\"primary\"], or add a prefix of the other family.",
        incidents: &["kube-proxy warns of it at its start"],
        needs: &[&[Item::ProxyConfig, Item::ConfigMaps, Item::Services]],
        caused_by: &[],
        run: families,
    },
    Check {
        id: "NP06",
        name: "health-check-ports",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy answers on every healthCheckNodePort",
        symptom: "The load balancer takes every node for dead, or sends traffic to nodes without endpoints.",
        why: "For a Service with externalTrafficPolicy Local kube-proxy listens on healthCheckNodePort and tells the load \
              balancer whether the node has endpoints. Without the listener the node gets no traffic.",
        verify: "kube-proxy must listen on the port.",
        commands: &[
            "ss -lntp | grep PORT",
            "curl -s http://127.0.0.1:PORT/healthz",
        ],
        fix: "See in kube-proxy's log why it could not listen (another process may have the port), then restart it.",
        incidents: &[
            "kubernetes/kubernetes#97225",
            "kubernetes/kubernetes#117621",
        ],
        needs: &[SOCKETS, &[Item::Services]],
        caused_by: &["KM01"],
        run: health_checks,
    },
    Check {
        id: "CT02",
        name: "stale-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "UDP flows to Services go to endpoints that there are",
        symptom: "DNS, syslog or another UDP client that never stops sending gets no answers after a pod was replaced.",
        why: "The kernel translates a UDP flow as its first packet was, as long as packets keep coming. kube-proxy deletes \
              the entries of endpoints that go; when it misses some, a busy client sends to a dead address for ever.",
        verify: "Look for entries whose answer would come from an address that is no endpoint.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS --orig-port-dst PORT"],
        fix: "Delete the entries; the next packet makes a right one.",
        incidents: &[
            "kubernetes/kubernetes#125467",
            "kubernetes/kubernetes#19029",
            "kubernetes/kubernetes#48370",
        ],
        needs: &[FLOWS],
        caused_by: &[],
        run: stale_udp,
    },
    Check {
        id: "CT03",
        name: "udp-without-endpoints",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow goes on to a Service without endpoints",
        symptom: "After a Service lost all its endpoints and got new ones, a UDP client still gets no answers; the node \
                  spends its time in softirq.",
        why: "From 1.32 on kube-proxy's clean-up of conntrack passes over Services without endpoints, so flows to the \
              last one stay as long as the client keeps sending.",
        verify: "Look for UDP entries to the Service's address.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS"],
        fix: "Delete the entries: no release since 1.32 does.",
        incidents: &["kubernetes/kubernetes#139628: a black hole of 13 hours"],
        needs: &[FLOWS],
        caused_by: &[],
        run: udp_without_endpoints,
    },
    Check {
        id: "CT04",
        name: "untranslated-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow to a Service goes untranslated",
        symptom: "A UDP client that started while kube-proxy was away, or during a change of mode, gets no answers.",
        why: "A flow whose first packet found no rules is tracked as it is, towards the Service's address itself, and \
              stays so as long as packets keep coming.",
        verify: "Look for entries whose answer would come from the Service's address.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS --reply-src ADDRESS"],
        fix: "Delete the entries; the next packet makes a right one.",
        incidents: &["kubernetes/kubernetes#122740"],
        needs: &[MODE, FLOWS],
        caused_by: &[],
        run: untranslated_udp,
    },
];

fn name_of(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

fn proto_of(text: &str) -> Proto {
    match text {
        "UDP" => Proto::Udp,
        "SCTP" => Proto::Sctp,
        _ => Proto::Tcp,
    }
}

/// Returns the NodePorts with the Service that has each.
fn node_ports(facts: &Facts<'_>) -> Result<BTreeMap<(u8, u16), String>, Gap> {
    let mut found = BTreeMap::new();
    for service in facts.node.services()? {
        for port in &service.spec.ports {
            if let Some(number) = port.node_port {
                found.insert(
                    (proto_of(&port.protocol).number(), number),
                    name_of(service),
                );
            }
        }
    }
    Ok(found)
}

fn proof(socket: &Socket) -> Proof {
    let names = socket.processes.iter();
    let names: Vec<_> = names
        .map(|p| format!("{} (pid {})", p.name, p.pid))
        .collect();
    Proof::Socket {
        socket: format!("{} {}", socket.proto, socket.local),
        process: match names.as_slice() {
            [] => "by which process is not known".to_owned(),
            some => some.join(", "),
        },
    }
}

/// Returns the first list of sockets that was not read, which an empty result depends on.
fn whole(facts: &Facts<'_>) -> Result<(), Gap> {
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
    let mut findings = Vec::new();
    for socket in &facts.node.sockets()?.listening {
        let port = socket.local.port();
        let proxys = socket
            .processes
            .iter()
            .any(|p| p.name.starts_with("kube-proxy"));
        if let Some(service) = ports.get(&(socket.proto.number(), port))
            && !proxys
        {
            let message = "a process of the node listens on the Service's NodePort";
            let subject = format!("{service} port {port}");
            findings.push(Finding::new(Severity::Error, subject, message).seen([proof(socket)]));
        }
    }
    if findings.is_empty() {
        whole(facts)?;
    }
    Ok(findings)
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
                let message = "the pod's hostPort is a NodePort as well";
                let subject = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
                let seen = Proof::Note(format!("{proto} {number} is the NodePort of {service}"));
                findings.push(Finding::new(Severity::Warning, subject, message).seen([seen]));
            }
        }
    }
    Ok(findings)
}

fn families(facts: &Facts<'_>) -> Verdict {
    let config = facts.configuration()?;
    let cidrs = config.node_port_cidrs();
    if cidrs.is_empty() {
        return Ok(Vec::new());
    }
    let services = facts.node.services()?.iter();
    let with = services.filter(|service| service.spec.ports.iter().any(|p| p.node_port.is_some()));
    let used: BTreeSet<Family> = with
        .flat_map(|service| &service.spec.cluster_ips)
        .filter_map(|text| text.parse().ok().map(Family::of))
        .collect();
    let lacking = used
        .into_iter()
        .filter(|family| cidrs.iter().all(|c| c.family() != *family));
    Ok(lacking
        .map(|family| {
            let message =
                "nodePortAddresses has no prefix of a family that Services with NodePorts use";
            Finding::new(Severity::Warning, family.to_string(), message).seen([Proof::Setting {
                source: "kube-proxy's configuration".to_owned(),
                key: "nodePortAddresses".to_owned(),
                value: config.node_port_addresses.join(", "),
            }])
        })
        .collect())
}

fn health_checks(facts: &Facts<'_>) -> Verdict {
    let wanted: Vec<_> = facts
        .node
        .services()?
        .iter()
        .filter(|service| {
            let labels = &service.metadata.labels;
            service.spec.kind == "LoadBalancer"
                && service.spec.external_traffic_policy.as_deref() == Some("Local")
                && !labels.contains_key("service.kubernetes.io/service-proxy-name")
                && !labels.contains_key("service.kubernetes.io/headless")
        })
        .filter_map(|service| Some((name_of(service), service.spec.health_check_node_port?)))
        .filter(|(_, port)| *port != 0)
        .collect();
    if wanted.is_empty() {
        return Err(Gap::NotApplicable(
            "no Service has a healthCheckNodePort".to_owned(),
        ));
    }
    let sockets = facts.node.sockets()?;
    let mut findings = Vec::new();
    for (service, port) in wanted {
        let here = || {
            let all = sockets.listening.iter();
            all.filter(|s| s.proto == Proto::Tcp && s.local.port() == port)
        };
        let others: Vec<_> = here()
            .filter(|s| {
                !s.processes.is_empty()
                    && !s.processes.iter().any(|p| p.name.starts_with("kube-proxy"))
            })
            .map(proof)
            .collect();
        if !others.is_empty() {
            let message = "another process than kube-proxy listens on the healthCheckNodePort";
            let subject = format!("{service} port {port}");
            findings.push(Finding::new(Severity::Error, subject, message).seen(others));
        } else if here().next().is_none() {
            whole(facts)?;
            let message =
                "nobody listens on the healthCheckNodePort: load balancers take the node for dead";
            let seen = Proof::Socket {
                socket: format!("tcp port {port}"),
                process: "nobody listens".to_owned(),
            };
            let subject = format!("{service} port {port}");
            findings.push(Finding::new(Severity::Error, subject, message).seen([seen]));
        }
    }
    Ok(findings)
}

/// Calls `each` with every UDP flow to a Service, its port, and where the answers come from.
fn udp_flows(
    facts: &Facts<'_>,
    mut each: impl FnMut(&Entry, &Port, SocketAddr),
) -> Result<(), Gap> {
    let flows = facts.node.conntrack()?;
    // Without these every endpoint would seem gone.
    facts.node.services()?;
    facts.node.slices()?;
    let addresses = facts.node.addresses()?;
    let local: BTreeSet<IpAddr> = addresses.all.iter().map(|at| at.addr.addr).collect();
    let owners = Owners::new(facts.node);
    for entry in flows
        .entries
        .iter()
        .filter(|entry| entry.proto == Proto::Udp)
    {
        let to = entry.original.destination;
        let at = owners
            .at(to.ip(), to.port(), Proto::Udp)
            .map(|(port, _)| port);
        let at = at.or_else(|| {
            let ours = local.contains(&to.ip());
            ours.then(|| owners.node_port(to.port(), Proto::Udp))
                .flatten()
        });
        if let Some(port) = at.filter(|port| port.left_to.is_none()) {
            each(entry, port, entry.reply.source);
        }
    }
    Ok(())
}

fn serves(port: &Port, addr: SocketAddr) -> bool {
    let mut all = port.endpoints.iter();
    all.any(|e| e.addr == addr && takes(e.state))
}

fn takes(state: Option<State>) -> bool {
    // What is not known to be gone is there.
    !matches!(state, Some(State::NotReady | State::Terminating))
}

fn connection(entry: &Entry) -> Proof {
    Proof::Connection(format!(
        "udp {} to {}, answers from {}",
        entry.original.source, entry.original.destination, entry.reply.source
    ))
}

/// Returns findings for the flows that `wrong` picks, one for each Service port.
fn flows(
    facts: &Facts<'_>,
    message: &str,
    wrong: impl Fn(&Port, SocketAddr, &Entry) -> bool,
) -> Verdict {
    let mut by_port: BTreeMap<(String, SocketAddr), Vec<Proof>> = BTreeMap::new();
    udp_flows(facts, |entry, port, from| {
        if wrong(port, from, entry) {
            let name = format!("{}/{}", port.name.namespace, port.name.name);
            let to = entry.original.destination;
            by_port
                .entry((name, to))
                .or_default()
                .push(connection(entry));
        }
    })?;
    Ok(by_port
        .into_iter()
        .map(|((name, to), seen)| {
            let command = format!(
                "conntrack -D -p udp --orig-dst {} --orig-port-dst {}",
                to.ip(),
                to.port()
            );
            Finding::new(Severity::Error, format!("{name} {to}"), message)
                .seen(seen)
                .mend_by(
                    "Delete the entries; the next packet makes right ones.",
                    command,
                )
        })
        .collect())
}

fn stale_udp(facts: &Facts<'_>) -> Verdict {
    let message = "UDP flows go to an endpoint that is not there any more";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        any && from != entry.original.destination && !serves(port, from)
    })
}

fn udp_without_endpoints(facts: &Facts<'_>) -> Verdict {
    let message = "UDP flows go on, though the Service has no endpoints any more";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        !any && from != entry.original.destination
    })
}

fn untranslated_udp(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let addresses = facts.node.addresses()?;
    // NodeLocal DNS, or a NodePort that a process took: the node itself answers.
    let answered: BTreeSet<IpAddr> = addresses
        .all
        .iter()
        .filter(|at| at.link != DUMMY || mode != Mode::Ipvs)
        .map(|at| at.addr.addr)
        .collect();
    let message = "UDP flows go to the Service's address itself, untranslated";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        any && from == entry.original.destination
            && !serves(port, from)
            && !answered.contains(&from.ip())
    })
}
