//! NP, AP, MX, SY: what is seen of traffic beside the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::ask::recorded;
use super::facts::MODE;
use super::plugins::{NFT, RULES, name_of};
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::evidence::{Gap, Item, Time};
use crate::net::{Family, Proto};
use crate::trace::{Entry, Flow, Verdict as End, World};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "NP02",
        name: "port-of-a-client",
        severity: Severity::Warning,
        when: When::Now,
        title: "No client socket of the node uses the number of a NodePort",
        symptom: "A connection of the node to elsewhere, to the API server, say, times out once in a while.",
        why: "Where ip_local_port_range reaches into the range of NodePorts, the kernel gives clients such numbers. Answers \
              to that port look like traffic to the NodePort.",
        verify: "No tracked connection from the node may have an allocated NodePort as its source.",
        commands: &[
            "sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports",
            "conntrack -L | grep sport=NODEPORT",
        ],
        fix: "Reserve the range of NodePorts: net.ipv4.ip_local_reserved_ports.",
        incidents: &[
            "kubernetes/kubernetes#111682",
            "awslabs/amazon-eks-ami#1307",
        ],
        needs: &[&[Item::Conntrack, Item::Services, Item::Addresses]],
        caused_by: &["SY12"],
        run: client_ports,
    },
    Check {
        id: "AP06",
        name: "endpoint-without-pod",
        severity: Severity::Warning,
        when: When::Now,
        title: "Every endpoint on this node has its pod here",
        symptom: "A part of the connections to a Service hangs: they go to an address that no pod has.",
        why: "Endpoints come from a controller that follows the pods. One that hangs, or a slice that somebody wrote by hand, \
              leaves addresses of pods that are gone.",
        verify: "Each endpoint's address must be a pod's.",
        commands: &[
            "kubectl get endpointslices -A -o yaml | grep -B12 'nodeName: NAME'",
            "kubectl get pods -A -o wide --field-selector spec.nodeName=NAME",
        ],
        fix: "See whether kube-controller-manager is well; delete the slice, and it is written anew.",
        incidents: &["kubernetes/kubernetes#76338"],
        needs: &[&[
            Item::EndpointSlices,
            Item::Pods,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
        ]],
        caused_by: &[],
        run: stale_endpoints,
    },
    Check {
        id: "AP07",
        name: "left-to-another",
        severity: Severity::Info,
        when: When::Now,
        title: "No Service is left to another proxy by its label",
        symptom: "A Service has endpoints but no rules on any node.",
        why: "kube-proxy leaves alone what has the label service.kubernetes.io/service-proxy-name: some other software is to \
              serve it.",
        verify: "Look for the label where a Service has no rules.",
        commands: &["kubectl get services -A -l service.kubernetes.io/service-proxy-name"],
        fix: "Take the label away if no other proxy serves the Service.",
        incidents: &["documented with the label"],
        needs: &[&[Item::Services]],
        caused_by: &[],
        run: labelled,
    },
    Check {
        id: "AP12",
        name: "api-from-the-host",
        severity: Severity::Error,
        when: When::Now,
        title: "The node's own packets to the API server's Service arrive",
        symptom: "The node's agents log time-outs for https://10.96.0.1:443, while pods have no trouble; or nothing on the \
                  node gets through.",
        why: "Whatever runs in the node's network reaches the API server by the Service kubernetes. If the rules do not lead \
              there, network plug-ins and everything that follows them stop.",
        verify: "Trace a packet from the host, or ask for the version.",
        commands: &[
            "kpx trace default/kubernetes --source host",
            "curl -sk https://10.96.0.1/version",
        ],
        fix: "See with the trace where the packet ends, and mend that rule; restart kube-proxy if in doubt.",
        incidents: &[
            "kubernetes/kubernetes#133773",
            "aws/containers-roadmap#2826",
        ],
        needs: &[
            MODE,
            RULES,
            NFT,
            &[
                Item::IptablesLegacy4,
                Item::IptablesLegacy6,
                Item::IptablesNft4,
                Item::IptablesNft6,
                Item::Ipset,
                Item::Ipvs,
                Item::IpvsSave,
                Item::IpvsStats,
                Item::IpvsTimeout,
                Item::Addresses,
                Item::Links,
                Item::Routes,
                Item::Rules,
                Item::Sysctl,
                Item::Services,
            ],
        ],
        caused_by: &[
            "KP01", "DV01", "IR01", "IR03", "IR04", "NF02", "VS01", "DV02", "SY01", "KM01",
        ],
        run: api,
    },
    Check {
        id: "MX07",
        name: "first-sync",
        severity: Severity::Error,
        when: When::Now,
        title: "The first sync in nftables mode does not take minutes",
        symptom: "After a restart of kube-proxy no Service answers on the node, for minutes.",
        why: "A kube-proxy that starts in nftables mode has removed the other modes' rules and writes all of its own in one \
              go. With tens of thousands of endpoints this took more than a quarter of an hour, and health and readiness \
              said that all was well.",
        verify: "The metric of the last sync must be there, and younger than the process.",
        commands: &[
            "curl -s http://127.0.0.1:10249/metrics | grep -E 'last_timestamp|process_start_time'",
            "nft list map ip kube-proxy service-ips | wc -l",
        ],
        fix: "Wait if it is under way, or go back to the mode before; in large clusters update kube-proxy first.",
        incidents: &[
            "kubernetes/kubernetes#139513",
            "kubernetes/kubernetes#135639",
        ],
        needs: &[MODE, &[Item::Metrics, Item::Healthz]],
        caused_by: &["KP05"],
        run: first_sync,
    },
    Check {
        id: "SY09",
        name: "reverse-path",
        severity: Severity::Warning,
        when: When::Now,
        title: "Tunnels between nodes have no strict reverse path filter",
        symptom: "Connections to NodePorts hang when the endpoint is on another node.",
        why: "With rp_filter 1 the kernel drops a packet whose way back leads out of another link. Over a tunnel the way back \
              to a client is the uplink. Of the setting for all links and the link's own the higher one holds.",
        verify: "The higher of the two must be 0 or 2 for the links of the network plug-in.",
        commands: &["sysctl -a | grep '\\.rp_filter'"],
        fix: "Set it to 2 for the link, in a file of /etc/sysctl.d.",
        incidents: &["KubeSkoop asks for 0 with several network plug-ins"],
        needs: &[&[Item::Sysctl, Item::Links]],
        caused_by: &[],
        run: reverse_path,
    },
];

fn client_ports(facts: &Facts<'_>) -> Verdict {
    let mut ports: BTreeMap<(u8, u16), String> = BTreeMap::new();
    for service in facts.node.services()? {
        for port in &service.spec.ports {
            let proto = match port.protocol.as_str() {
                "UDP" => Proto::Udp,
                "SCTP" => Proto::Sctp,
                _ => Proto::Tcp,
            };
            if let Some(number) = port.node_port {
                ports.insert((proto.number(), number), name_of(service));
            }
        }
    }
    let links = facts.node.addresses()?.all.iter();
    let ours: BTreeSet<IpAddr> = links
        .filter(|at| at.link != DUMMY && !at.addr.addr.is_loopback())
        .map(|at| at.addr.addr)
        .collect();
    let mut findings = Vec::new();
    for entry in &facts.node.conntrack()?.entries {
        let from = entry.original.source;
        let ended = matches!(entry.state.as_deref(), Some("TIME_WAIT" | "CLOSE"));
        if ended || !ours.contains(&from.ip()) {
            continue;
        }
        if let Some(service) = ports.get(&(entry.proto.number(), from.port())) {
            let message = "a client of the node has the number of the NodePort as its own port";
            let seen = Proof::Connection(format!(
                "{} {from} to {}",
                entry.proto, entry.original.destination
            ));
            findings.push(
                Finding::new(
                    Severity::Warning,
                    format!("{service} {}", from.port()),
                    message,
                )
                .seen([seen]),
            );
        }
    }
    Ok(findings)
}

fn stale_endpoints(facts: &Facts<'_>) -> Verdict {
    let here = facts.node_name();
    let pods = facts.node.pods()?.iter();
    let pods: Vec<_> = pods.filter(|pod| pod.spec.node_name == here).collect();
    // A recording may hold kube-proxy's own pods alone.
    let is_proxy = |pod: &crate::cluster::Pod| {
        let mut containers = pod.spec.containers.iter();
        containers.any(|container| container.name == "kube-proxy")
    };
    if pods.iter().all(|pod| is_proxy(pod)) {
        let why = "of this node's pods none but kube-proxy's is known";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let known: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| {
            let all = pod.status.pod_ips.iter().map(|at| at.ip.as_str());
            all.chain(pod.status.pod_ip.as_deref())
        })
        .collect();
    let mut findings = Vec::new();
    for slice in facts.node.slices()? {
        for endpoint in &slice.endpoints {
            let of_pod = endpoint.target_ref.as_ref().filter(|of| of.kind == "Pod");
            let (Some(pod), Some(address)) = (of_pod, endpoint.addresses.first()) else {
                continue;
            };
            if endpoint.node_name != here || known.contains(address.as_str()) {
                continue;
            }
            let message = "the endpoint's address is no pod's on this node";
            let subject = format!(
                "{}/{} {address}",
                slice.metadata.namespace, slice.metadata.name
            );
            let seen = Proof::object("pod", format!("{}/{}", pod.namespace, pod.name));
            findings.push(Finding::new(Severity::Warning, subject, message).seen([seen]));
        }
    }
    Ok(findings)
}

fn labelled(facts: &Facts<'_>) -> Verdict {
    const LABEL: &str = "service.kubernetes.io/service-proxy-name";
    let services = facts.node.services()?.iter();
    let message = "the Service is left to another proxy, by its label";
    Ok(services
        .filter_map(|service| {
            let value = service.metadata.labels.get(LABEL)?;
            let name = name_of(service);
            let seen = Proof::setting(name.clone(), LABEL, value);
            Some(Finding::new(Severity::Info, name, message).seen([seen]))
        })
        .collect())
}

fn api(facts: &Facts<'_>) -> Verdict {
    facts.current()?;
    let services = facts.node.services()?.iter();
    let service = services
        .filter(|of| of.metadata.namespace == "default" && of.metadata.name == "kubernetes")
        .find_map(|of| {
            Some((
                of.spec.cluster_ip.parse::<IpAddr>().ok()?,
                of.spec.ports.first()?.port,
            ))
        });
    let Some((destination, port)) = service else {
        return Err(Gap::NotApplicable(
            "there is no Service default/kubernetes".to_owned(),
        ));
    };
    let flow = Flow {
        entry: Entry::Host,
        source: None,
        destination,
        port,
        proto: Proto::Tcp,
        established: false,
    };
    let world = World::whole(facts.node, Family::of(destination));
    let outcomes = world.walk(&flow).map_err(|need| {
        let why = format!("chain {} of table {} is not in it", need.chain, need.table);
        Gap::Failed(Item::iptables(Family::of(destination)), why)
    })?;
    let lost: Vec<_> = outcomes
        .iter()
        .filter(|of| {
            matches!(
                of.verdict,
                End::Reject | End::Drop | End::Unmatched | End::Local
            )
        })
        .map(|of| Proof::Note(format!("{destination}:{port} from the host: {}", of.reason)))
        .collect();
    if lost.is_empty() {
        return match outcomes.iter().find(|of| of.verdict == End::Unknown) {
            Some(of) => Err(Gap::NotApplicable(format!(
                "where the packet goes is not known: {}",
                of.reason
            ))),
            None => Ok(Vec::new()),
        };
    }
    let message = "the node's own packets to the API server's Service do not reach an endpoint";
    Ok(vec![
        Finding::new(Severity::Error, "default/kubernetes", message).seen(lost),
    ])
}

fn first_sync(facts: &Facts<'_>) -> Verdict {
    /// Smaller clusters take a few.
    const MOST: u64 = 60;
    facts.only_in(&[Mode::Nftables])?;
    let metrics = facts.node.metrics()?;
    let waiting: Vec<_> = metrics
        .last_queued()
        .filter(|(family, _)| {
            let last = metrics.last_sync().find(|(of, _)| of == family);
            last.is_none_or(|(_, at)| at <= 0.0)
        })
        .map(|(family, _)| family)
        .collect();
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let started = metrics.of("process_start_time_seconds").next();
    let started = started.and_then(|sample| Time::from_epoch(sample.value));
    let clock = || {
        let health = facts.node.health().ok()?;
        health.current_time.as_deref()?.parse::<Time>().ok()
    };
    let now = facts.now.or_else(clock);
    let (Some(started), Some(now)) = (started, now) else {
        let why = "how long kube-proxy has been running is not known";
        return Err(Gap::Absent(Item::Metrics, why.to_owned()));
    };
    let age = now.since(started).as_secs();
    if age <= MOST {
        return Ok(Vec::new());
    }
    let message =
        "kube-proxy's first sync has not ended: new connections to Services are not translated";
    Ok(waiting
        .into_iter()
        .map(|family| {
            let seen = Proof::setting(
                "kube-proxy's metrics",
                "started",
                format_args!("{age} s before"),
            );
            Finding::new(Severity::Error, super::health::figures(family), message).seen([seen])
        })
        .collect())
}

fn reverse_path(facts: &Facts<'_>) -> Verdict {
    /// Links by which network plug-ins reach other nodes.
    const TUNNELS: [&str; 6] = ["flannel", "tunl", "vxlan", "cilium_", "geneve", "wireguard"];
    let links = facts.node.links()?.all.iter();
    let tunnels: Vec<_> = links
        .map(|link| link.name.as_str())
        .filter(|name| TUNNELS.iter().any(|start| name.starts_with(start)))
        .collect();
    if tunnels.is_empty() {
        return Err(Gap::NotApplicable(
            "there is no tunnel to other nodes".to_owned(),
        ));
    }
    let of_all = recorded(facts, "net.ipv4.conf.all.rp_filter")?;
    let mut findings = Vec::new();
    for link in tunnels {
        let key = format!("net.ipv4.conf.{}.rp_filter", link.replace('.', "/"));
        let own = recorded(facts, &key)?;
        if own.max(of_all) == "1" {
            let message =
                "the kernel drops what does not come the way it would answer, and tunnels are such";
            findings.push(
                Finding::new(Severity::Warning, link, message)
                    .seen([
                        super::ask::seen(&key, own),
                        super::ask::seen("net.ipv4.conf.all.rp_filter", of_all),
                    ])
                    .mend_by(
                        "Set it to 2, here and in a file of /etc/sysctl.d.",
                        format!("sysctl -w {key}=2"),
                    ),
            );
        }
    }
    Ok(findings)
}
