//! Tracked connections to endpoints that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::check::core::{MODE, Served, connection_proof};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text, Verdict, When,
};
use crate::diff::service_cidrs;
use crate::trace::knows_endpoints;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::conntrack::Entry;
use kpx_node::owner::{EndpointState, Owners, Port, PortName, Role, addresses};
use kpx_node::words::{listed, number_of};

/// The items that [`stale`] reads.
pub(in crate::check) const FLOWS: &[Item] = &[
    Item::Conntrack,
    Item::Services,
    Item::EndpointSlices,
    Item::Addresses,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CT02",
        name: "stale-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "UDP and SCTP flows to Services go to existing endpoints",
        symptom: "DNS, syslog or another UDP client that never stops sending gets no answers after a pod was replaced.",
        why: "The kernel translates a UDP flow like its first packet, as long as packets keep coming. kube-proxy \
              deletes the entries of endpoints that go; if it misses some, a busy client sends to a dead address \
              forever. It deletes none of SCTP, whose clients start again from the same port.",
        verify: "Look for entries whose reply source is not an endpoint.",
        commands: &[Example::on_node(
            "conntrack -L -p udp --orig-dst ADDRESS --orig-port-dst PORT",
        )
        .with(&["ADDRESS", "PORT"])],
        fix: Text::with(
            "Delete the entries with {}; the next packet creates a correct one.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        incidents: &[
            "kubernetes/kubernetes#101968",
            "kubernetes/kubernetes#125467",
            "kubernetes/kubernetes#19029",
            "kubernetes/kubernetes#48370",
        ],
        needs: &[FLOWS, &[Item::Pods, Item::Nodes, Item::ProxyConfig]],
        caused_by: &[],
        run: stale_udp,
    },
    Check {
        id: "CT03",
        name: "udp-without-endpoints",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow continues to a Service without endpoints",
        symptom: "After a Service lost all its endpoints and got new ones, a UDP client still gets no answers; the \
              node spends its time in softirq.",
        why: "The clean-up of conntrack in kube-proxy 1.32 to 1.36 skips Services without endpoints, so flows to the last \
              endpoint stay as long as the client keeps sending. Other releases delete them when the endpoint goes.",
        verify: "Look for UDP entries to the Service's address.",
        commands: &[Example::on_node("conntrack -L -p udp --orig-dst ADDRESS").with(&["ADDRESS"])],
        fix: Text::with(
            "Delete the entries with {}, and upgrade kube-proxy to 1.37, which deletes them itself.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        incidents: &[
            "kubernetes/kubernetes#139628: packets lost for 13 hours",
            "kubernetes/kubernetes#139629: the fix, in 1.37",
        ],
        needs: &[FLOWS],
        caused_by: &[],
        run: udp_without_endpoints,
    },
    Check {
        id: "CT04",
        name: "untranslated-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow to a Service is untranslated",
        symptom: "A UDP client that started while kube-proxy was away, or during a switch of the mode, gets no \
              answers.",
        why: "A flow whose first packet matched no rule is tracked unchanged, towards the Service's address itself, \
              as long as packets keep coming. If the kubelets give pods a resolver whose address no Service has any more, no name \
              is found.",
        verify: "Look for entries whose reply source is the Service's address.",
        commands: &[
            Example::on_node("conntrack -L -p udp --orig-dst ADDRESS --reply-src ADDRESS")
                .with(&["ADDRESS"]),
        ],
        fix: Text::with(
            "Delete the entries with {}; the next packet creates a correct one.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        incidents: &["kubernetes/kubernetes#122740"],
        needs: &[
            MODE,
            FLOWS,
            &[Item::Pods, Item::ServiceCidrs, Item::Nft, Item::NftText],
        ],
        caused_by: &[],
        run: untranslated_udp,
    },
    Check {
        id: "CT08",
        name: "reused-address",
        severity: Severity::Error,
        when: When::Now,
        title: "No waiting TCP connection to a Service leads to another Service's pod",
        symptom: "For up to two minutes after a pod was replaced, a client that tries again gets answers of another Service.",
        why: "The entry of a connection that got no answer stays for two minutes (net.netfilter.nf_conntrack_tcp_timeout_syn_sent) \
              and is found before any rule. If the network plugin gives the address of the pod that ended to a pod of another \
              Service meanwhile, a client that tries again from the same port reaches that one.",
        verify: "Look for entries whose reply source is an endpoint of another Service.",
        commands: &[
            Example::on_node("conntrack -L -p tcp --state SYN_SENT --orig-dst ADDRESS")
                .with(&["ADDRESS"]),
            Example::on_node("sysctl net.netfilter.nf_conntrack_tcp_timeout_syn_sent"),
        ],
        fix: Text::with(
            "Delete the entries with {}. To keep it from happening again, set \
             net.netfilter.nf_conntrack_tcp_timeout_syn_sent to less than the time after which the network plugin uses an \
             address again.",
            &[Example::kpx(&[
                "reconcile",
                "--part",
                "conntrack",
                "--apply",
            ])],
        ),
        incidents: &["aws/amazon-vpc-cni-k8s#3634"],
        needs: &[FLOWS],
        caused_by: &[],
        run: reused_address,
    },
    Check {
        id: "CT06",
        name: "ipvs-connections",
        severity: Severity::Warning,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "No connection uses IPVS any more",
        symptom: "After the switch, established connections hang or are reset.",
        why: "Connections that conntrack translated survive a switch of the mode. An IPVS connection lives in its own \
              table: it ends when the virtual server is removed, which kube-proxy does at once when it starts in \
              nftables mode.",
        verify: "Count the established connections.",
        commands: &[Example::on_node("ipvsadm -Lnc | grep -c ESTABLISHED")],
        fix: Text::plain("Drain the node first, or switch it when few connections are open."),
        incidents: &["measured with a real kube-proxy"],
        needs: &[MODE, &[Item::IpvsConnections, Item::Services]],
        caused_by: &[],
        run: connections,
    },
];

/// A tracked connection of a Service that no endpoint answers until its entry is deleted.
#[derive(Debug)]
pub struct Stale<'e> {
    /// The entry.
    pub entry: &'e Entry,
    /// The Service port.
    pub service: PortName,
    /// Why none answers.
    pub why: Why,
}

/// Why no endpoint answers a tracked connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Why {
    /// Its endpoint is gone.
    Gone,
    /// The Service has no endpoints.
    WithoutEndpoints,
    /// It goes to the Service's address: no rule translated the first packet.
    Untranslated,
}

/// Returns the tracked connections of `node` that no endpoint answers: UDP flows, which a busy client keeps alive, SCTP associations with
/// pods that are gone, and TCP connections that wait for their first answer. An established TCP connection is not returned: its backend
/// may live longer than its endpoint. With the mode that is in force, connections that are not translated are found, too.
///
/// # Errors
///
/// The missing data that this needs.
pub fn stale<'e>(node: &'e NodeSnapshot<'_>, mode: Option<Mode>) -> Result<Vec<Stale<'e>>, Gap> {
    stale_of(node, mode, &Owners::new(node))
}

/// Like [`stale`], with the node's service ports.
pub(in crate::check) fn stale_of<'e>(
    node: &'e NodeSnapshot<'_>,
    mode: Option<Mode>,
    owners: &Owners,
) -> Result<Vec<Stale<'e>>, Gap> {
    let flows = node.conntrack()?;
    // Without these, every endpoint would seem to be missing.
    node.services()?;
    node.slices()?;
    let addresses = &node.addresses()?.all;
    let local: BTreeSet<IpAddr> = addresses.iter().map(|at| at.addr.addr).collect();
    // The node itself answers: NodeLocal DNS, or a process that listens on a NodePort.
    let answering = addresses
        .iter()
        .filter(|at| at.link != DUMMY || mode != Some(Mode::Ipvs));
    let answering: BTreeSet<IpAddr> = answering.map(|at| at.addr.addr).collect();
    let is_gone = without_pod(node);
    let waits = |entry: &Entry| match entry.proto {
        Proto::Udp => true,
        // A client keeps its port, and reconnects from it for ever; but a live pod ends the association itself.
        Proto::Sctp => is_gone
            .as_ref()
            .is_some_and(|is_gone| is_gone(entry.reply.source.ip())),
        Proto::Tcp => entry.state.as_deref() == Some("SYN_SENT"),
        _ => false,
    };
    let (mut found, mut unknown) = (Vec::new(), None);
    for entry in flows.entries.iter().filter(|entry| waits(entry)) {
        let (to, from) = (entry.original.destination, entry.reply.source);
        let at = owners.served_at(to, entry.proto);
        let at = at.filter(|(port, node_port)| {
            port.left_to.is_none() && (!node_port || local.contains(&to.ip()))
        });
        let Some((port, _)) = at else { continue };
        if serves(port, from) || node.is_proxy_port(from, entry.proto) {
            continue;
        }
        if !knows_endpoints(node, &port.name, Family::of(to.ip())) {
            unknown = node.evidence().part(Item::EndpointSlices);
            continue;
        }
        let any = port.endpoints.iter().any(|e| takes(e.state));
        let why = match (from == to, any) {
            (true, true) if mode.is_some() && !answering.contains(&from.ip()) => Why::Untranslated,
            (true, _) => continue,
            (false, true) => Why::Gone,
            (false, false) => Why::WithoutEndpoints,
        };
        found.push(Stale {
            entry,
            service: port.name.clone(),
            why,
        });
    }
    match unknown {
        Some(gap) if found.is_empty() => Err(gap),
        _ => Ok(found),
    }
}

fn serves(port: &Port, addr: SocketAddr) -> bool {
    let mut all = port.endpoints.iter();
    all.any(|e| e.addr == addr && takes(e.state))
}

fn takes(state: Option<EndpointState>) -> bool {
    // Assume that an endpoint in an unknown state serves.
    !matches!(
        state,
        Some(EndpointState::NotReady | EndpointState::Terminating)
    )
}

pub(in crate::check) fn connection(entry: &Entry) -> Proof {
    Proof::Connection(format!(
        "{} {} to {}, replies from {}",
        entry.proto, entry.original.source, entry.original.destination, entry.reply.source
    ))
}

/// Returns a finding with `message` for each Service address with flows of UDP or SCTP that are stale for this reason.
fn flows(facts: &Facts<'_>, mode: Option<Mode>, why: Why, message: &str) -> Verdict {
    let mut by_port: BTreeMap<(ServiceRef, SocketAddr, Proto), Vec<Proof>> = BTreeMap::new();
    for of in stale_of(facts.node, mode, facts.owners())? {
        if of.why == why && of.entry.proto != Proto::Tcp {
            let to = of.entry.original.destination;
            let key = (of.service.into(), to, of.entry.proto);
            by_port.entry(key).or_default().push(connection(of.entry));
        }
    }
    let finding = |((service, to, proto), seen): ((ServiceRef, SocketAddr, Proto), Vec<Proof>)| {
        let message = format!("{} flows {message}", protocol(proto));
        Finding::new(Severity::Error, Subject::service_at(service, to), message)
            .evidence(seen)
            .fix(Fix::kpx(
                "Delete the entries; the next packet creates correct ones.",
                ["reconcile", "--part", "conntrack", "--apply"],
            ))
    };
    Ok(by_port.into_iter().map(finding).collect())
}

fn stale_udp(facts: &Facts<'_>) -> Verdict {
    let message = "go to an endpoint that no longer exists";
    let mut findings = flows(facts, None, Why::Gone, message)?;
    findings.extend(to_no_pod(facts));
    Ok(findings)
}

/// Returns the name of a protocol in a sentence.
fn protocol(proto: Proto) -> String {
    proto.to_string().to_uppercase()
}

/// Returns the predicate for addresses in this node's range of pods that no pod has; `None` if the pods are not known.
fn without_pod<'n>(node: &'n NodeSnapshot<'_>) -> Option<impl Fn(IpAddr) -> bool + use<'n>> {
    let name = node.object_name().ok()?;
    let object = node.nodes().ok()?.iter();
    let object = object.clone().find(|object| object.metadata.name == name)?;
    let pods = node.pods().ok()?.iter();
    let ranges = object.spec.pod_cidrs.iter();
    let ranges: Vec<Cidr> = ranges.filter_map(|text| text.parse().ok()).collect();
    let own =
        pods.filter(|pod| pod.spec.node_name.as_deref() == Some(name.as_str()) && !pod.has_ended());
    let own: Vec<Vec<IpAddr>> = own.map(|pod| pod.addresses().collect()).collect();
    let in_range = move |ip: IpAddr| ranges.iter().any(|range| range.contains(ip));
    // A pod without an address may get this one; if no pod has an address, the pods were not recorded.
    if own.iter().any(Vec::is_empty) || !own.iter().flatten().any(|ip| in_range(*ip)) {
        return None;
    }
    let addresses = node.addresses().map_or(&[][..], |all| &all.all);
    Some(move |ip: IpAddr| {
        in_range(ip)
            && !addresses.iter().any(|at| at.addr.addr == ip)
            && !own.iter().flatten().any(|address| *address == ip)
    })
}

/// Returns a finding for each address of no Service, such as a hostPort, whose flows of UDP or SCTP are translated to an address in
/// this node's range of pods that no pod has. None if the pods are not known.
fn to_no_pod(facts: &Facts<'_>) -> Vec<Finding> {
    let (Some(is_gone), Ok(flows)) = (without_pod(facts.node), facts.node.conntrack()) else {
        return Vec::new();
    };
    let mut by_flow: BTreeMap<(SocketAddr, IpAddr, Proto), Vec<Proof>> = BTreeMap::new();
    for entry in &flows.entries {
        let (to, from) = (entry.original.destination, entry.reply.source.ip());
        let is_translated = to.ip() != from;
        if matches!(entry.proto, Proto::Udp | Proto::Sctp)
            && is_translated
            && is_gone(from)
            && facts.owners().served_at(to, entry.proto).is_none()
        {
            by_flow
                .entry((to, from, entry.proto))
                .or_default()
                .push(connection(entry));
        }
    }
    let finding = |((to, from, proto), seen): ((SocketAddr, IpAddr, Proto), Vec<Proof>)| {
        let message = format!(
            "{} flows are translated to {from}, which no pod on this node has any more",
            protocol(proto)
        );
        Finding::new(Severity::Error, Subject::from(to.ip()), message)
            .called(to.to_string())
            .evidence(seen)
            .fix(Fix::on_node(
                "Delete the entries; the next packet creates correct ones.",
                format!(
                    "conntrack -D -p {proto} --orig-dst {} --orig-port-dst {} --reply-src {from}",
                    to.ip(),
                    to.port()
                ),
            ))
    };
    by_flow.into_iter().map(finding).collect()
}

fn udp_without_endpoints(facts: &Facts<'_>) -> Verdict {
    let message = "continue, although the Service has no endpoints";
    flows(facts, None, Why::WithoutEndpoints, message)
}

fn reused_address(facts: &Facts<'_>) -> Verdict {
    let owners = facts.owners();
    let mut by_port: BTreeMap<(ServiceRef, SocketAddr), (BTreeSet<String>, Vec<Proof>)> =
        BTreeMap::new();
    for of in stale_of(facts.node, None, owners)? {
        let (to, from) = (of.entry.original.destination, of.entry.reply.source);
        let mut others = owners.ports().iter().filter(|port| port.name != of.service);
        let other = others.find(|port| serves(port, from));
        if of.entry.proto == Proto::Tcp
            && let Some(other) = other
        {
            let (names, seen) = by_port.entry((of.service.into(), to)).or_default();
            names.insert(other.name.to_string());
            seen.push(connection(of.entry));
        }
    }
    let finding = |((service, to), (names, seen)): (
        (ServiceRef, SocketAddr),
        (BTreeSet<String>, Vec<Proof>),
    )| {
        let names: Vec<_> = names.into_iter().collect();
        let message = format!(
            "waiting TCP connections lead to {}, which has the address of a former endpoint",
            listed(&names)
        );
        Finding::new(Severity::Error, Subject::service_at(service, to), message).evidence(seen)
    };
    Ok(by_port.into_iter().map(finding).collect())
}

fn untranslated_udp(facts: &Facts<'_>) -> Verdict {
    let message = "to the Service's address are not translated";
    let mut findings = flows(facts, Some(facts.mode()?), Why::Untranslated, message)?;
    findings.extend(unserved_dns(facts));
    Ok(findings)
}

/// The fewest queries without an answer that are no accident.
const FEWEST_QUERIES: usize = 3;

/// Returns the finding of pods that ask an address for names which no Service has, although it is of the Service range: the kubelets give
/// pods another address than that of the cluster's DNS.
fn unserved_dns(facts: &Facts<'_>) -> Option<Finding> {
    let services = facts.node.services().ok()?;
    let of_services: BTreeSet<(Role, IpAddr)> = services.iter().flat_map(addresses).collect();
    let mut ranges = service_cidrs(facts.node);
    // A Service range is at least that wide.
    let cluster_ips = of_services
        .iter()
        .filter(|(role, _)| *role == Role::ClusterIp);
    ranges.extend(cluster_ips.map(|(_, addr)| Cidr {
        addr: *addr,
        prefix: if addr.is_ipv4() { 24 } else { 112 },
    }));
    let own = &facts.node.addresses().ok()?.all;
    let here: BTreeSet<IpAddr> = facts
        .node
        .pods()
        .ok()?
        .iter()
        .flat_map(Pod::addresses)
        .collect();
    let is_stray = |entry: &&Entry| {
        let to = entry.original.destination;
        to.port() == 53
            && entry.unreplied
            && entry.is_untranslated_to(to)
            && here.contains(&entry.original.source.ip())
            && ranges.iter().any(|range| range.contains(to.ip()))
            && of_services.iter().all(|(_, addr)| *addr != to.ip())
            && own.iter().all(|own| own.addr.addr != to.ip())
    };
    let strays: Vec<&Entry> = facts
        .node
        .conntrack()
        .ok()?
        .entries
        .iter()
        .filter(is_stray)
        .collect();
    let to = strays.first()?.original.destination.ip();
    let strays: Vec<_> = strays
        .into_iter()
        .filter(|entry| entry.original.destination.ip() == to)
        .collect();
    if strays.len() < FEWEST_QUERIES {
        return None;
    }
    let dns = services.iter().find(|service| {
        let mut ports = service.spec.ports.iter();
        service.metadata.namespace == "kube-system" && ports.any(|port| port.port == 53)
    });
    let has = dns.map_or_else(String::new, |dns| {
        let meta = &dns.metadata;
        format!(
            ": {}/{} has {}",
            meta.namespace,
            meta.name,
            listed(&dns.spec.cluster_ips)
        )
    });
    let message = format!("pods ask this address for names, and no Service has it{has}");
    let fix = Fix::said(format!(
        "Set clusterDNS in the kubelets' configuration (--cluster-dns) to the address of the cluster's DNS, and create the pods again; or create \
         that Service again with the clusterIP {to}."
    ));
    Some(
        Finding::new(Severity::Error, to, message)
            .services(dns.map(ServiceRef::from))
            .evidence(
                strays
                    .into_iter()
                    .take(FEWEST_QUERIES)
                    .map(connection_proof),
            )
            .fix(fix),
    )
}

fn connections(facts: &Facts<'_>) -> Verdict {
    let current = facts.current()?;
    if current != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {current} now")));
    }
    let open = facts.node.ipvs_connections()?.all.iter();
    let open: Vec<_> = open
        .filter(|connection| connection.state == "ESTABLISHED")
        .collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let message = match facts.target() {
        Some(Mode::Nftables) => {
            "kube-proxy ends these IPVS connections at once when it starts in nftables mode"
        }
        _ => {
            "these IPVS connections end when the virtual servers are removed; the switch itself keeps them"
        }
    };
    let seen = open.iter().map(|connection| {
        Proof::Connection(format!(
            "{} {} to {}, served by {}",
            connection.proto, connection.client, connection.server, connection.real
        ))
    });
    let count = number_of(open.len(), "connection");
    let served = Served::new(facts);
    let services = open
        .iter()
        .filter_map(|connection| served.at(connection.server, connection.proto));
    let services: BTreeSet<&ServiceRef> = services.collect();
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Connections, message)
            .called(count)
            .services(services)
            .evidence(seen),
    ])
}
