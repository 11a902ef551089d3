//! Services and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::check::cni::taken_by_dns;
use crate::check::core::{
    Collector, MODE, SOCKETS, address_proof, is_served, name_of, proto_of, service_proof, setting,
    sysctl_proof, unlabelled,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, ServiceRef, Severity, Subject, Text,
    Verdict, When, Writer, early_demux_fix, host_family_fix, no_report, silent_fix, stale_fix,
    taken_fix, unnetworked_fix, without_family,
};
use kpx_node::backend::Mode;
use kpx_node::cluster::{
    Endpoint, EndpointSlice, Matching, Metadata, Pod, Service, ServicePort, Unready, hosts_without,
    makes_none, outdated, silent_nodes,
};
use kpx_node::desired::matching;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Family, Proto};
use kpx_node::node::desired::NEEDS;
use kpx_node::node::links::Address;
use kpx_node::words::{listed, number_of};

/// The bridge that the bridge plugin makes unless it gets another name, and that flannel uses.
const BRIDGE: &str = "cni0";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "AP01",
        name: "no-endpoints",
        severity: Severity::Warning,
        when: When::Now,
        title: "Every Service with a selector has ready endpoints",
        symptom: "Connections to the Service are refused, or in ipvs mode hang.",
        why: "A Service has no endpoints if its selector matches no pod, if its pods are not ready, or if the EndpointSlice \
              controller has not listed them. All modes then reject connections to it, which is correct but often \
              unexpected.",
        verify: "Look for ready endpoints in the Service's EndpointSlices.",
        commands: &[
            Example::anywhere("kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME")
                .with(&["NAMESPACE", "NAME"]),
            Example::anywhere("kubectl -n NAMESPACE get pods -l SELECTOR").with(&["NAMESPACE", "SELECTOR"]),
        ],
        fix: Text::plain("Start the pods, or correct the selector: compare it with the pods' labels. If pods are not ready, read their events."),
        incidents: &[
            "kubernetes/kubernetes#17359",
            "kubernetes/kubernetes#125619: a ready pod that its slice calls not ready",
            "aws/amazon-vpc-cni-k8s#1269: probes of pods with security groups",
        ],
        needs: &[
            &[
                Item::Services,
                Item::EndpointSlices,
                Item::Pods,
                Item::Nodes,
                Item::Addresses,
                Item::Sysctl,
                Item::Rules,
                Item::Routes,
            ],
            SOCKETS,
        ],
        caused_by: &[],
        run: no_endpoints,
    },
    Check {
        id: "AP04",
        name: "no-local-endpoints",
        severity: Severity::Info,
        when: When::Now,
        title: "Services with Local internal traffic have endpoints on this node",
        symptom: "Pods on this node cannot reach a Service that pods on other nodes can.",
        why: "With internalTrafficPolicy Local only endpoints on the client's own node are used; without any, the \
              traffic is dropped. This is as configured, but often not intended.",
        verify: "Compare the nodes of the endpoints with this one.",
        commands: &[
            Example::anywhere("kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME -o yaml | grep nodeName")
                .with(&["NAMESPACE", "NAME"]),
        ],
        fix: Text::plain("Run an endpoint on every node (a DaemonSet), or set the policy to Cluster."),
        incidents: &["kube-proxy counts them: kubeproxy_sync_proxy_rules_no_local_endpoints_total"],
        needs: &[MODE, NEEDS],
        caused_by: &[],
        run: no_local_endpoints,
    },
    Check {
        id: "AP06",
        name: "endpoint-without-pod",
        severity: Severity::Warning,
        when: When::Now,
        title: "Every endpoint on this node has its pod here",
        symptom: "Some connections to a Service hang: they go to an address that no pod has.",
        why: "Endpoints come from a controller that watches the pods. If it hangs, or if a slice was written \
              manually, slices contain addresses of pods that no longer exist.",
        verify: "Each endpoint's address must be a pod's.",
        commands: &[
            Example::anywhere("kubectl get endpointslices -A -o yaml | grep -B12 'nodeName: NAME'").with(&["NAME"]),
            Example::anywhere("kubectl get pods -A -o wide --field-selector spec.nodeName=NAME").with(&["NAME"]),
        ],
        fix: Text::plain(
            "Check the health of kube-controller-manager; run `kubectl -n NAMESPACE delete endpointslice NAME`: the controller \
             recreates it if the Service has a selector.",
        ),
        incidents: &[
            "kubernetes/kubernetes#76338",
            "kubernetes/kubernetes#107583: slices that are behind",
            "kubernetes/kubernetes#111929: slices of a former selector",
        ],
        needs: &[&[
            Item::EndpointSlices,
            Item::Services,
            Item::Pods,
            Item::PodNetworks,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
        ]],
        caused_by: &[Because::Services("SV01")],
        run: stale_endpoints,
    },
    Check {
        id: "AP07",
        name: "proxy-name-label",
        severity: Severity::Info,
        when: When::Now,
        title: "No Service is assigned to another proxy by its label",
        symptom: "A Service has endpoints but no rules on any node.",
        why: "kube-proxy ignores Services with the label service.kubernetes.io/service-proxy-name: another proxy has to serve \
              them.",
        verify: "Look for the label if a Service has no rules.",
        commands: &[
            Example::anywhere("kubectl get services -A -l service.kubernetes.io/service-proxy-name"),
        ],
        fix: Text::plain(
            "If no other proxy serves the Service, run `kubectl -n NAMESPACE label service NAME \
             service.kubernetes.io/service-proxy-name-`.",
        ),
        incidents: &["documented with the label"],
        needs: &[&[Item::Services]],
        caused_by: &[],
        run: labelled,
    },
    Check {
        id: "AP11",
        name: "sctp-tracked",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "The kernel tracks SCTP if Services use it",
        symptom: "A Service with an SCTP port does not answer, or its connections break.",
        why: "To translate SCTP the kernel must track its connections. That is an optional part of nf_conntrack.",
        verify: "The kernel must have timeouts for SCTP connections.",
        commands: &[Example::on_node("sysctl -a | grep nf_conntrack_sctp")],
        fix: Text::plain("Use a kernel that is built with CONFIG_NF_CT_PROTO_SCTP."),
        incidents: &["kubernetes/kubernetes#77265"],
        needs: &[&[Item::Services, Item::Sysctl]],
        caused_by: &[],
        run: sctp,
    },
];

fn no_endpoints(facts: &Facts<'_>) -> Verdict {
    let slices = EndpointSlice::by_service(facts.node.slices()?);
    let mut findings = Collector::default();
    let services = facts.node.services()?.iter();
    for service in services
        .clone()
        .filter(|s| is_served(s) && s.selector().is_none())
    {
        let meta = &service.metadata;
        let has_own = slices.contains_key(&(meta.namespace.as_str(), meta.name.as_str()));
        if !has_own && let Some(slice) = unlabelled(service, facts.node.slices()?) {
            findings.push(without_label(service, slice));
        }
    }
    for service in services.filter(|s| is_served(s) && s.selector().is_some()) {
        let meta = &service.metadata;
        let ours = slices.get(&(meta.namespace.as_str(), meta.name.as_str()));
        let ours = ours.into_iter().flatten();
        let ours: Vec<_> = ours.collect();
        let label = ours.first().and_then(|slice| slice.unread_for());
        if let Some(label) = label.filter(|_| ours.iter().all(|slice| slice.unread_for().is_some()))
        {
            findings.push(labelled_slices(service, &ours, label));
            continue;
        }
        let all: Vec<_> = ours.iter().flat_map(|slice| &slice.endpoints).collect();
        if all.iter().any(|endpoint| is_ready(endpoint)) {
            for finding in without_port(service, &ours) {
                findings.push(finding);
            }
            let pods = findings.read(facts.node.pods());
            if let Some(finding) = one_family(service, &ours, pods) {
                findings.push(finding);
            }
            continue;
        }
        let drains = |endpoint: &&&Endpoint| {
            let conditions = &endpoint.conditions;
            conditions.serving == Some(true) && conditions.terminating == Some(true)
        };
        let ending = all.iter().filter(|endpoint| drains(endpoint)).count();
        if ending > 0 {
            let message = "only terminating endpoints serve the Service, until they end";
            let seen = format!(
                "{}: {} of {} endpoints serve and terminate",
                name_of(service),
                ending,
                all.len()
            );
            findings
                .push(Finding::new(Severity::Info, service, message).evidence([Proof::Note(seen)]));
            continue;
        }
        if all.is_empty() {
            let pods = findings.read(facts.node.pods());
            findings.push(none_listed(facts, service, !ours.is_empty(), pods)?);
            continue;
        }
        let seen = format!("none of {} endpoints is ready", all.len());
        let pods = findings.read(facts.node.pods());
        let nodes = facts.node.nodes().map_or(&[][..], Vec::as_slice);
        let silent = silent_nodes(&all, nodes);
        let behind = outdated(&all, pods.map_or(&[][..], Vec::as_slice), nodes);
        if let Some(slice) = ours.first().filter(|_| !behind.is_empty()) {
            findings.push(outdated_slice(service, slice, &behind));
            continue;
        }
        let mut finding = unready(facts, service, &seen, pods);
        if !silent.is_empty() {
            let message = format!("the Service has no ready endpoint: {}", no_report(&silent));
            finding = Finding::new(Severity::Error, service, message)
                .evidence(finding.evidence)
                .fix(silent_fix(&silent));
        }
        findings.push(finding);
    }
    findings.verdict()
}

/// Returns the finding of `service`, whose `slice` lists the ready pods `behind` as not ready.
fn outdated_slice(service: &Service, slice: &EndpointSlice, behind: &[String]) -> Finding {
    let (first, others) = (&behind[0], behind.len() - 1);
    let more = match others {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let writer = Writer::of(slice, Some(service));
    let message = format!(
        "the Service has no ready endpoint: pod {first}{more} is Ready, but its EndpointSlice says otherwise: {}",
        writer.behind()
    );
    let Metadata {
        namespace, name, ..
    } = &service.metadata;
    Finding::new(Severity::Error, service, message)
        .evidence([Proof::object("EndpointSlice", &slice.metadata.name)])
        .fix(writer.fix(namespace, &slice.metadata.name, name))
}

/// Returns the finding of `service`, which has ready endpoints, if it has none of one of its families.
fn one_family(
    service: &Service,
    slices: &[&&EndpointSlice],
    pods: Option<&Vec<Pod>>,
) -> Option<Finding> {
    let mut families = service.spec.ip_families.iter();
    let has_ready = |family: &String| {
        let ours = slices.iter().filter(|slice| slice.address_type == *family);
        ours.flat_map(|slice| &slice.endpoints).any(is_ready)
    };
    let lacking: Family = families.find(|family| !has_ready(family))?.parse().ok()?;
    let known = pods.map_or(&[][..], Vec::as_slice);
    let has_none = Matching::of(service, Some(lacking), known).is_empty();
    let matching = Matching::of(service, None, known).shown();
    let (message, fix) = if has_none && !matching.is_empty() {
        (
            format!(
                "the pods of the Service have no address of {lacking}, so its {lacking} address refuses connections"
            ),
            "Give the cluster's pods addresses of that family, or make the Service single-stack (ipFamilyPolicy).",
        )
    } else {
        (
            format!(
                "the Service has ready endpoints, but none of {lacking}: its {lacking} address refuses connections"
            ),
            "Look for an EndpointSlice of this addressType, and for addresses of that family of the pods.",
        )
    };
    let seen = slices.iter().map(|slice| {
        let name = Some(&slice.metadata.name).filter(|name| !name.is_empty());
        Proof::Note(format!(
            "EndpointSlice{}: {} of {}",
            name.map_or_else(String::new, |name| format!(" {name}")),
            number_of(slice.endpoints.len(), "endpoint"),
            slice.address_type
        ))
    });
    Some(
        Finding::new(Severity::Warning, service, message)
            .evidence(seen)
            .fix(fix),
    )
}

/// Returns the finding of `service`, which has no selector and no slice, if `slice` is meant for it.
fn without_label(service: &Service, slice: &str) -> Finding {
    let message = format!(
        "the Service has no endpoint: EndpointSlice {slice} lacks the label kubernetes.io/service-name"
    );
    let Metadata {
        namespace, name, ..
    } = &service.metadata;
    Finding::new(Severity::Warning, service, message)
        .evidence([Proof::object("EndpointSlice", slice)])
        .fix(Fix::kubectl(
            "Give the EndpointSlice the label, also in what writes it.",
            format!(
                "kubectl -n {namespace} label endpointslice {slice} kubernetes.io/service-name={name}"
            ),
        ))
}

/// Returns the finding of `service` if all its slices have a label that makes kube-proxy ignore them.
fn labelled_slices(service: &Service, slices: &[&&EndpointSlice], label: &str) -> Finding {
    let message = format!(
        "kube-proxy reads none of the Service's EndpointSlices, since they have the label {label}"
    );
    let names: Vec<&str> = slices
        .iter()
        .map(|slice| slice.metadata.name.as_str())
        .collect();
    let seen = names
        .iter()
        .map(|name| Proof::object("EndpointSlice", *name));
    Finding::new(Severity::Warning, service, message)
        .evidence(seen)
        .fix(Fix::kubectl(
            "Remove the label from the EndpointSlices, and from what writes them.",
            format!(
                "kubectl -n {} label endpointslice {} {label}-",
                service.metadata.namespace,
                names.join(" ")
            ),
        ))
}

/// Returns the finding of `service` without a ready endpoint, with the reason why its pods among `pods` are not ready.
fn unready(facts: &Facts<'_>, service: &Service, seen: &str, pods: Option<&Vec<Pod>>) -> Finding {
    let pods = pods.map_or(&[][..], Vec::as_slice);
    let selected: Vec<&Pod> = pods.iter().filter(|pod| service.selects(pod)).collect();
    let nodes = facts.node.nodes().map_or(&[][..], Vec::as_slice);
    let mut unnetworked = selected.iter().filter_map(|pod| pod.unnetworked(nodes));
    if let Some((node, said)) = unnetworked.next() {
        let message = format!("no pod of the Service starts on node {node}: {said}");
        return Finding::new(Severity::Error, service, message)
            .evidence([Proof::Note(format!("{}: {seen}", name_of(service)))])
            .fix(unnetworked_fix(node));
    }
    if let Some((bridge, range)) = foreign_bridge(facts)
        && selected
            .iter()
            .any(|pod| is_here(facts, pod) && pod.is_starting())
    {
        let message = format!(
            "no pod of the Service starts on this node: bridge {} has {}, which is not in the Node's range of pods ({range})",
            bridge.link, bridge.addr
        );
        return Finding::new(Severity::Error, service, message)
            .evidence([address_proof(bridge)])
            .fix(Fix::on_node(
                "Delete the bridge, which is left from an earlier cluster: the network plugin makes it again with the next pod. Pods that it \
                 still carries lose their network: delete them, too.",
                format!("ip link del {}", bridge.link),
            ));
    }
    let stale = selected
        .iter()
        .find(|pod| pod.unready() == Some(Unready::Stale));
    let stale =
        stale.map(|pod| stale_fix(&format!("{}/{}", pod.metadata.namespace, pod.metadata.name)));
    let loses = |pod: &&&Pod| {
        let is_probed = matches!(pod.unready(), Some(Unready::Probe { .. }));
        let address = pod.addresses().next().filter(|_| is_probed);
        address.and_then(|address| facts.node.loses_answers(address))
    };
    let unheard = selected.iter().find_map(|pod| loses(&pod));
    let taken = selected.iter().find_map(|pod| facts.node.port_taken(pod));
    // A rule of the pod's node may stop the probe.
    let first = selected.iter().find_map(|pod| pod.unready());
    let is_probed = matches!(first, Some(Unready::Probe { port: Some(_), .. }));
    let reasons = selected.into_iter().filter_map(|pod| {
        let meta = &pod.metadata;
        let why = pod.unready()?;
        let taken = facts.node.port_taken(pod);
        let taken = taken.map_or_else(String::new, |taken| format!("; {taken}"));
        let holder = pod.port_holder_note(pods) + &taken;
        Some((meta, format!("pod {}: {why}{holder}", meta.name)))
    });
    let reasons: Vec<(&Metadata, String)> = reasons.collect();
    let base = "the Service has no ready endpoint";
    let message = match reasons.first() {
        Some((_, why)) => {
            let lost = unheard
                .as_ref()
                .map_or_else(String::new, |why| format!("; {why}"));
            format!("{base}: {why}{lost}")
        }
        None => base.to_owned(),
    };
    let look = reasons.first().map(|(meta, _)| {
        if is_probed {
            let service = ServiceRef::from(service).to_string();
            Fix::kpx(
                "The answer names the rule that stops the probe, or the pod whose events say why it fails.",
                ["why".to_owned(), service, "--all-nodes".to_owned()],
            )
        } else {
            Fix::describe_pod(&meta.namespace, &meta.name)
        }
    });
    let finding = Finding::new(Severity::Warning, service, message)
        .evidence([Proof::Note(format!("{}: {seen}", name_of(service)))])
        .evidence(reasons.into_iter().map(|(_, why)| Proof::Note(why)));
    // A Service with pods is less likely to be empty on purpose.
    let mut slices = facts.node.slices().into_iter().flatten();
    let has_pods = slices.any(|slice| {
        let meta = &service.metadata;
        slice.service() == Some((&meta.namespace, &meta.name)) && !slice.endpoints.is_empty()
    });
    let finding = if has_pods || look.is_some() {
        finding.first()
    } else {
        finding
    };
    let fix = stale
        .or(unheard.map(|_| early_demux_fix()))
        .or(taken.map(|_| taken_fix()));
    match fix.or(look) {
        Some(fix) => finding.fix(fix),
        None => finding,
    }
}

/// Returns the address of the bridge of pods that is in none of the Node's ranges of pods, and these ranges: the bridge plugin then makes
/// no pods.
fn foreign_bridge<'f>(facts: &'f Facts<'_>) -> Option<(&'f Address, String)> {
    let own = facts.this_node().ok()?;
    let ranges: Vec<Cidr> = own
        .spec
        .pod_cidrs
        .iter()
        .flat_map(|text| text.parse())
        .collect();
    let mut all = facts.node.addresses().ok()?.all.iter();
    let bridge = all.find(|at| {
        let mut of_family = ranges
            .iter()
            .filter(|range| range.family() == at.addr.family());
        let is_bridge = at.link == BRIDGE && at.scope == "global";
        is_bridge
            && of_family.clone().next().is_some()
            && !of_family.any(|range| range.contains(at.addr.addr))
    })?;
    Some((bridge, own.spec.pod_cidrs.join(", ")))
}

/// Returns whether `pod` is one of this node.
fn is_here(facts: &Facts<'_>, pod: &Pod) -> bool {
    facts
        .called()
        .is_ok_and(|here| pod.spec.node_name == Some(here))
}

/// Returns the finding of `service` without an endpoint, which has slices if `are_slices`: no pod matches, or no slice lists the pods
/// of `pods` that match.
fn none_listed(
    facts: &Facts<'_>,
    service: &Service,
    are_slices: bool,
    pods: Option<&Vec<Pod>>,
) -> Result<Finding, Gap> {
    let known = pods.map_or(&[][..], Vec::as_slice);
    let all = Matching::of(service, None, known);
    let families: Vec<Family> = service
        .spec
        .ip_families
        .iter()
        .filter_map(|ip_family| ip_family.parse().ok())
        .collect();
    let lacks = |family: &Family| Matching::of(service, Some(*family), known).ready.is_empty();
    if !all.ready.is_empty() && !families.is_empty() && families.iter().all(lacks) {
        let family = listed(&families.iter().map(ToString::to_string).collect::<Vec<_>>());
        let nodes = facts.node.nodes().map_or(&[][..], Vec::as_slice);
        if let [one] = families.as_slice() {
            let selected = known.iter().filter(|pod| service.selects(pod));
            let hosts = hosts_without(*one, selected, nodes);
            if !hosts.is_empty() {
                let why = without_family(*one, &hosts);
                let message = format!("the pods that match the Service's selector {why}");
                return Ok(
                    Finding::new(Severity::Warning, service, message).fix(host_family_fix(*one))
                );
            }
        }
        let message = format!(
            "the pods that match the Service's selector have no address of {family}, the Service's family"
        );
        return Ok(Finding::new(Severity::Warning, service, message)
            .evidence([Proof::Note(format!("{}: pods match: {}", name_of(service), listed(&all.shown())))])
            .fix("Give the cluster's pods addresses of that family, or recreate the Service with a family that they have (ipFamilies)."));
    }
    let matching = all;
    if are_slices && matching.ready.is_empty() {
        let seen = "no pod that matches the selector has an address";
        return Ok(unready(facts, service, seen, pods));
    }
    if matching.is_empty() {
        let seen = match pods {
            Some(_) => "no EndpointSlice exists, and no pod of this node matches the selector",
            None => "no EndpointSlice exists, and the pods were not read",
        };
        return Ok(unready(facts, service, seen, pods));
    }
    let ready = !matching.ready.is_empty();
    let names = listed(&matching.shown());
    let ready = if ready { "ready " } else { "" };
    let name = name_of(service);
    let message = if are_slices {
        "ready pods match the Service's selector, but its EndpointSlices do not list them"
    } else {
        "pods match the Service's selector, but it has no EndpointSlice"
    };
    let mut seen = vec![Proof::Note(format!("{name}: {ready}pods match: {names}"))];
    if !are_slices && makes_none(facts.node.services()?, facts.node.slices()?) {
        let all = "no Service with a selector has an EndpointSlice";
        seen.push(Proof::Note(all.to_owned()));
    }
    let fix = Fix::kubectl(
        "kube-controller-manager makes EndpointSlices: check that it runs, that the leader is not older than kube-proxy, and that \
         --controllers does not exclude endpointslice.",
        "kubectl -n kube-system get lease kube-controller-manager -o yaml",
    );
    Ok(Finding::new(Severity::Warning, service, message)
        .evidence(seen)
        .fix(fix))
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready.unwrap_or(true)
}

/// Returns a finding for each port of `service` for which no ready endpoint in `slices` has a port: kube-proxy finds it by name.
fn without_port(service: &Service, slices: &[&&EndpointSlice]) -> Vec<Finding> {
    let has = |port: &&ServicePort| {
        let proto = proto_of(&port.protocol);
        slices.iter().any(|slice| {
            let mut ports = slice.ports.iter();
            ports.any(|slice_port| matching(slice_port, &port.name, proto).is_some())
                && slice.endpoints.iter().any(is_ready)
        })
    };
    let message = "a port of the Service leads to no endpoint: no container has its target port";
    let lacking = service.spec.ports.iter().filter(|port| !has(port));
    lacking
        .map(|port| {
            let seen = format!("no ready endpoint has a port {:?}", port.name);
            Finding::new(Severity::Warning, service, message)
                .evidence([Proof::Note(format!("{}: {seen}", name_of(service)))])
                .fix("Compare the Service's targetPort with the names of the pods' ports.")
        })
        .collect()
}

fn no_local_endpoints(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let desired = facts.node.desired(mode)?;
    let ports = desired.families.iter().flat_map(|state| &state.ports);
    let unserved = ports
        .filter(|port| port.internal_local && port.has_endpoints && !port.has_internal())
        .map(|port| (ServiceRef::new(&port.namespace, &port.service), port));
    // One of several ports may be the DNS port.
    let mut names = BTreeMap::new();
    for (service, port) in unserved {
        // A cache of the node takes the address before kube-proxy does.
        let is_dns = port.is_cluster_dns() && {
            let taken = taken_by_dns(facts)?;
            taken.iter().all(|(_, at)| at.addr.addr != port.cluster_ip)
        };
        *names.entry(service).or_insert(false) |= is_dns;
    }
    let finding = |(service, is_dns): (ServiceRef, bool)| {
        let seen = Proof::object("service", service.to_string());
        let local = "internalTrafficPolicy is Local, but no endpoint is on this node";
        let (severity, effect) = if is_dns {
            (Severity::Error, "pods here resolve no names")
        } else {
            (Severity::Info, "pods here get no reply")
        };
        Finding::new(severity, service, format!("{local}: {effect}")).evidence([seen])
    };
    Ok(names.into_iter().map(finding).collect())
}

fn stale_endpoints(facts: &Facts<'_>) -> Verdict {
    let here = Some(facts.called()?);
    let pods = facts.node.pods()?.iter();
    let pods: Vec<_> = pods.filter(|pod| pod.spec.node_name == here).collect();
    // A bundle may contain only kube-proxy's pods.
    let is_proxy = |pod: &Pod| {
        let mut containers = pod.spec.containers.iter();
        containers.any(|container| container.name == "kube-proxy")
    };
    let mut slices = facts.node.slices()?.iter();
    let is_pods = |endpoint: &Endpoint| endpoint.node_name == here && endpoint.target_ref.is_some();
    let mut findings = Collector::default();
    // Without the Nodes, kube-proxy's name of this node is not confirmed.
    findings.read(facts.node.nodes());
    if !slices.any(|slice| slice.endpoints.iter().any(is_pods)) {
        return findings.verdict();
    }
    if pods.iter().all(|pod| is_proxy(pod)) {
        let why = "it has no pod of this node but kube-proxy's";
        return Err(Gap::Absent(Item::Pods, why.to_owned()));
    }
    let known: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| {
            let all = pod.status.pod_ips.iter().map(|at| at.ip.as_str());
            all.chain(pod.status.pod_ip.as_deref())
        })
        .collect();
    // The addresses of a pod do not include its further networks.
    let networks = facts.node.pod_networks().into_iter().flatten();
    let further: BTreeSet<IpAddr> = networks
        .flat_map(|network| network.addresses.clone())
        .collect();
    let is_further = |text: &str| text.parse().is_ok_and(|addr| further.contains(&addr));
    for slice in facts.node.slices()? {
        for endpoint in &slice.endpoints {
            let of_pod = endpoint
                .target_ref
                .as_ref()
                .filter(|target_ref| target_ref.kind == "Pod");
            let (Some(pod), Some(address)) = (of_pod, endpoint.addresses.first()) else {
                continue;
            };
            let is_known = known.contains(address.as_str()) || is_further(address);
            if endpoint.node_name != here || is_known {
                continue;
            }
            let message = "no pod on this node has the endpoint's address";
            let (meta, service) = (&slice.metadata, slice.service());
            let name = service.map_or("", |(_, name)| name);
            let about = if meta.name.is_empty() {
                Subject::from(ServiceRef::new(&meta.namespace, name))
            } else {
                Subject::object("EndpointSlice", &meta.namespace, &meta.name)
            };
            let mut all = facts.node.services().into_iter().flatten();
            let of = all.find(|service| {
                service.metadata.namespace == meta.namespace && service.metadata.name == name
            });
            let fix = Writer::of(slice, of).fix(&meta.namespace, &meta.name, name);
            let subject = format!("{about} {address}");
            let seen = Proof::object("pod", format!("{}/{}", pod.namespace, pod.name));
            findings.push(
                Finding::new(Severity::Warning, about, message)
                    .called(subject)
                    .services(service.map(|(namespace, name)| ServiceRef::new(namespace, name)))
                    .evidence([seen])
                    .fix(fix),
            );
        }
    }
    findings.verdict()
}

fn labelled(facts: &Facts<'_>) -> Verdict {
    const LABEL: &str = "service.kubernetes.io/service-proxy-name";
    let services = facts.node.services()?.iter();
    let message = "kube-proxy ignores this Service: its label names another proxy";
    Ok(services
        .filter_map(|service| {
            let value = service.metadata.labels.get(LABEL)?;
            let seen = Proof::setting(name_of(service), LABEL, value);
            Some(Finding::new(Severity::Info, service, message).evidence([seen]))
        })
        .collect())
}

fn sctp(facts: &Facts<'_>) -> Verdict {
    let services = facts.node.services()?.iter();
    let with: Vec<_> = services
        .filter(|service| {
            service
                .spec
                .ports
                .iter()
                .any(|port| port.protocol == "SCTP")
        })
        .collect();
    if with.is_empty() {
        return Err(Gap::NotApplicable("no Service has an SCTP port".to_owned()));
    }
    // This sysctl exists if the kernel tracks connections and the list has the settings of conntrack.
    setting(facts, "net.netfilter.nf_conntrack_icmp_timeout")?;
    let key = "net.netfilter.nf_conntrack_sctp_timeout_established";
    if facts.node.sysctl()?.known(key)?.is_some() {
        return Ok(Vec::new());
    }
    let message = "Services have SCTP ports, but the kernel does not track SCTP";
    Ok(vec![
        Finding::new(
            Severity::Warning,
            Subject::Protocol {
                protocol: Proto::Sctp,
            },
            message,
        )
        .evidence([sysctl_proof(key, "missing")])
        .evidence(with.iter().map(|service| service_proof(service)))
        .services(with),
    ])
}
