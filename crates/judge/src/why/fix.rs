//! The fix of each cause: a sentence and a command.

use super::balancer::TARGET_ATTRIBUTES;
use super::cause::{At, Cause, PROXY_NAME, is_address};
use super::endpoints::{ButFor, Lack, Waits};
use crate::check::{
    Advice, Fix, ServiceRef, Writer, get_slices, hairpin_fix, home_fix, host_family_fix,
    no_route_fix, obstacle_fix, route_fix, rule_fix, selector_fix, silent_fix, stale_fix,
    unnetworked_fix, way_there_fix,
};
use crate::verdict::{Client, TARGET_TYPE};
use kpx_node::cluster::HEADLESS_LABEL;
use kpx_node::net::Proto;
use kpx_node::owner::Role;
use kpx_node::words::listed;

impl Cause {
    /// Returns the fix; `subject` is the Service port as `kpx trace` takes it.
    pub(super) fn fix(&self, at: &At) -> Option<Fix> {
        let none = ServiceRef::new("default", "");
        let service = at.service.as_ref().unwrap_or(&none);
        let (namespace, name) = (&*service.namespace, &*service.name);
        let with = |text: &'static str, line: String| Some(Fix::kubectl(text, line));
        let kpx = |text: &'static str, words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned());
            Some(Fix::kpx(text, words))
        };
        let on_node = |text: &'static str, line: String| Some(Fix::on_node(text, line));
        match self {
            Self::NoService {
                namespace,
                name,
                unread: Some(_),
                ..
            } => with(
                "Add it to what is read.",
                format!("kubectl -n {namespace} get service {name} -o yaml"),
            ),
            Self::NoService {
                name, elsewhere, ..
            } => match elsewhere.first() {
                Some(namespace) => kpx(
                    "Use the Service's own namespace.",
                    &["why", &format!("{namespace}/{name}")],
                ),
                None => kpx(
                    "Use the name of an existing Service, or create this one.",
                    &["show", "services"],
                ),
            },
            Self::Dns { server, .. } => kpx(
                "Find out why cluster DNS does not answer.",
                &["why", &server.to_string()],
            ),
            Self::NodeResolver {
                pod,
                host_network,
                workload,
                ..
            } => {
                let policy = if *host_network {
                    "ClusterFirstWithHostNet"
                } else {
                    "ClusterFirst"
                };
                let text = format!("Set dnsPolicy: {policy} in the template of the pod.");
                let namespace = pod
                    .split_once('/')
                    .map_or("default", |(namespace, _)| namespace);
                Some(match workload {
                    Some(workload) => Fix::kubectl(
                        text,
                        format!(
                            "kubectl -n {namespace} patch {workload} -p '{{\"spec\":{{\"template\":{{\"spec\":{{\"dnsPolicy\":\"{policy}\"}}}}}}}}'"
                        ),
                    ),
                    None => Fix::said(text),
                })
            }
            Self::NoAddress { .. } | Self::NoNodePort { .. } => kpx(
                "Use the address of an existing Service.",
                &["show", "services"],
            ),
            Self::OfNode { at, other, .. } => {
                Some(Fix::on_node("Ask the node itself.", format!("kpx why {at}")).at(other))
            }
            Self::NoPort { ports, .. } => Some(Fix::said(format!(
                "Use one of the Service's ports, {}, or add this one to the Service.",
                listed(ports)
            ))),
            Self::ExternalName { target, .. } if is_address(target) => Some(edit(
                "Make it a Service of type ClusterIP with ports and without a selector, and write an EndpointSlice with the address.",
                service,
            )),
            Self::ExternalName {
                untranslated: Some((_, to)),
                ..
            } => Some(Fix::said(format!(
                "Connect to port {to}, or make it a Service with a cluster IP, which translates ports: with a selector, or an EndpointSlice \
                 of its own."
            ))),
            Self::ExternalName {
                lacks_port: Some((to, _)),
                ..
            } => Some(Fix::said(format!("Connect to a port of {to}."))),
            Self::ExternalName { .. } => kpx(
                "Check that the alias resolves.",
                &["resolve", name, "--namespace", namespace],
            ),
            Self::OtherProxy { .. } => with(
                "If no other proxy serves the Service, remove the label.",
                format!("kubectl -n {namespace} label service {name} {PROXY_NAME}-"),
            ),
            Self::HeadlessLabel => with(
                "Remove the label, also where the Service is made (a chart, or an operator that copies labels): it is for Services without a cluster \
                 IP.",
                format!("kubectl -n {namespace} label service {name} {HEADLESS_LABEL}-"),
            ),
            Self::NoClusterIp => with(
                "Look for events of the Service.",
                format!("kubectl -n {namespace} describe service {name}"),
            ),
            // The doctor has the same text for UDP and SCTP.
            Self::StaleConnections { protocol, .. }
                if protocol != "tcp" && at.service.is_some() =>
            {
                kpx(
                    "End the connections; the next packet creates a correct one.",
                    &["reconcile", "--part", "conntrack", "--apply"],
                )
            }
            Self::StaleConnections { end, .. } => on_node(
                "End the connections; the next packet creates a correct one.",
                end.clone(),
            ),
            Self::Leftover { mode, .. } => kpx(
                "Remove what the other mode left behind.",
                &["reconcile", "--cleanup", mode.name(), "--apply"],
            ),
            Self::Idle(idle)
            | Self::Rules {
                proxy: Some(idle), ..
            } => idle.fix.clone(),
            Self::TableFull { fix, .. } | Self::Route { fix, .. } => Some(fix.clone()),
            Self::Rules { fix: Some(fix), .. } => Some((**fix).clone()),
            Self::ForeignRule { by, .. } => Some(rule_fix(by)),
            Self::Rules { .. } => kpx(
                "Repair kube-proxy's rules; if they break again, read kube-proxy's log.",
                &["reconcile", "--apply"],
            ),
            Self::SharedAddress {
                role,
                other_role: Role::ClusterIp,
                ..
            } if *role != Role::ClusterIp => {
                let status = match role {
                    Role::LoadBalancerIp => " --subresource=status",
                    Role::ClusterIp | Role::ExternalIp => "",
                };
                with(
                    "Take the address out of this Service: a cluster IP cannot be changed. A load balancer's address is in its status.",
                    format!("kubectl -n {namespace} edit service {name}{status}"),
                )
            }
            Self::SharedAddress { other, .. } => {
                let (namespace, name) = other.split_once('/')?;
                with(
                    "Remove the address from one of the two Services.",
                    format!("kubectl -n {namespace} edit service {name}"),
                )
            }
            Self::NodePortAddresses { .. } => with(
                "Add the node's range to nodePortAddresses in kube-proxy's configuration, then restart kube-proxy.",
                "kubectl -n kube-system edit configmap kube-proxy".to_owned(),
            ),
            Self::OnLoopback {
                instead: Some(at), ..
            } => Some(Fix::said(format!(
                "Use {at}, the NodePort at the node's own address."
            ))),
            Self::OnLoopback { .. } => Some(Fix::said(
                "Use the NodePort at an address of the node, or the Service's cluster IP.",
            )),
            Self::OtherFamily { .. } => with(
                "Use an address of the Service's own family, or give the Service both, if the cluster has both.",
                format!(
                    "kubectl -n {namespace} patch service {name} -p '{{\"spec\":{{\"ipFamilyPolicy\":\"PreferDualStack\"}}}}'"
                ),
            ),
            Self::NoEndpoints { lack, .. } => Some(fix_endpoints(lack, service)),
            Self::NoLocalEndpoints {
                policy, here: true, ..
            } => with(
                "Let pods use the cluster IP, or set the policy to Cluster.",
                format!(
                    "kubectl -n {namespace} patch service {name} -p '{{\"spec\":{{\"{policy}\":\"Cluster\"}}}}'"
                ),
            ),
            Self::NoLocalEndpoints {
                unnamed,
                writer: Some(writer @ (Writer::Mirror | Writer::Other)),
                ..
            } if !unnamed.is_empty() => with(
                "Set the nodeName of each endpoint, or let the controller that writes the endpoints do it: kube-proxy finds the \
                 endpoints of this node only by it. If the Service has a selector, the control plane sets it.",
                match writer {
                    Writer::Mirror => format!("kubectl -n {namespace} edit endpoints {name}"),
                    _ => format!(
                        "kubectl -n {namespace} edit endpointslices -l kubernetes.io/service-name={name}"
                    ),
                },
            ),
            Self::NoLocalEndpoints { unnamed, .. } if !unnamed.is_empty() => with(
                "Delete the EndpointSlices: the control plane recreates them at once, with the nodes. Until then the Service has \
                 no endpoints. Kubernetes 1.21 and newer sets the nodes.",
                format!(
                    "kubectl -n {namespace} delete endpointslices -l kubernetes.io/service-name={name}"
                ),
            ),
            Self::NoLocalEndpoints { ending, .. } if !ending.is_empty() => {
                let text = "During a rolling update there is nothing to fix: load balancers send new connections to other nodes \
                            as soon as their health checks fail here. Without health checks, let the pod serve while it \
                            terminates (a preStop hook that waits), and start its successor on this node first.";
                with(
                    text,
                    match ending.iter().find_map(|ending| ending.split_once('/')) {
                        Some((namespace, pod)) => {
                            format!("kubectl -n {namespace} describe pod {pod}")
                        }
                        None => format!("kubectl -n {namespace} {}", get_slices(name)),
                    },
                )
            }
            Self::NoLocalEndpoints { unready, .. } if !unready.is_empty() => {
                Some(start_fix(unready, namespace))
            }
            Self::NoLocalEndpoints { policy, .. } => with(
                "Send clients to a node with an endpoint, run an endpoint on every node, or set the policy to Cluster.",
                format!(
                    "kubectl -n {namespace} patch service {name} -p '{{\"spec\":{{\"{policy}\":\"Cluster\"}}}}'"
                ),
            ),
            Self::SourceRanges { .. } => Some(edit(
                "Add the range of these clients to loadBalancerSourceRanges (pods and nodes need it, too), or let them use the cluster IP.",
                service,
            )),
            Self::ForwardingOff { key } => on_node(
                "Turn forwarding on, also in /etc/sysctl.d.",
                format!("sysctl -w {key}=1"),
            ),
            Self::Obstacle { what, .. } => Some(obstacle_fix(what)),
            Self::WrongNode {
                home: Some(home), ..
            } => Some(home_fix(home)),
            Self::NoRoute {
                backend,
                is_service: true,
                ..
            } => Some(no_route_fix(backend.ip())),
            Self::NoRoute { backend, .. } | Self::WrongNode { backend, .. } => {
                Some(route_fix(backend.ip()))
            }
            Self::PodRoute {
                range,
                by,
                own,
                tunnel,
                odd,
                ..
            } => Some(way_there_fix(
                *range,
                *by,
                own.as_ref(),
                tunnel.as_deref(),
                odd.as_ref(),
            )),
            Self::Dormant { table } => on_node(
                "Let the kernel run the table again.",
                format!("nft add table {table}"),
            ),
            Self::BypassedReply { key, .. } => on_node(
                "Let bridged packets pass the rules; make both last in /etc/modules-load.d and /etc/sysctl.d.",
                format!("modprobe br_netfilter; sysctl -w {key}=1"),
            ),
            Self::NotMasqueraded { .. } => with(
                "Set clusterCIDR to the range of the pods in kube-proxy's configuration, then restart kube-proxy. Until then, a \
                 route for the Service range with the right source helps.",
                "kubectl -n kube-system edit configmap kube-proxy".to_owned(),
            ),
            Self::HairpinPort { bridge } => Some(hairpin_fix(bridge)),
            Self::Balancer {
                lacks_node_ports: true,
                ..
            } => with(
                "Let the load balancer send connections to the pods, or give the Service NodePorts (allocateLoadBalancerNodePorts: true).",
                format!(
                    "kubectl -n {namespace} annotate service {name} --overwrite {TARGET_TYPE}=ip"
                ),
            ),
            Self::Balancer {
                preserves: true, ..
            } => with(
                "Let clients inside the cluster use the cluster IP; or turn the preservation of client addresses off, or register \
                 pods as targets (aws-load-balancer-nlb-target-type: ip).",
                format!(
                    "kubectl -n {namespace} annotate service {name} --overwrite \
                     {TARGET_ATTRIBUTES}=preserve_client_ip.enabled=false"
                ),
            ),
            Self::Balancer { .. } => with(
                "Look at the load balancer itself: its targets must be these ports of nodes that are healthy there, and firewalls \
                 must let it reach them. Inside the cluster, use the cluster IP.",
                format!("kubectl -n {namespace} describe service {name}"),
            ),
            Self::Pending {
                class: Some(class), ..
            } => Some(Fix::kubectl(
                format!(
                    "Install the controller of {class}, or recreate the Service without loadBalancerClass, or with that of the controller \
                     that runs: the field cannot be changed."
                ),
                format!("kubectl -n {namespace} get service {name} -o yaml"),
            )),
            Self::Pending { .. } => with(
                "A controller of load balancers gives the address: that of the cloud, MetalLB, K3s' own, or another. Check that one runs, \
                 and what its events on the Service say.",
                format!("kubectl -n {namespace} describe service {name}"),
            ),
            Self::UndeclaredPort { of, .. } if of.stranger.is_some() => {
                of.stranger.as_ref().map(selector_fix)
            }
            Self::UndeclaredPort { of, .. } if of.instead().is_some() => Some(Fix::said(format!(
                "Set the protocol of the Service's port to {}, unless the program in the pod listens for the one that it has, too. Pods need not \
                 declare their ports.",
                of.instead().unwrap_or(of.proto).to_string().to_uppercase()
            ))),
            Self::UndeclaredPort { .. } => Some(Fix::said(
                "Look at which port the program listens; if it is another one, correct targetPort. Pods need not declare their ports.",
            )),
            Self::HeadlessPort { targets, .. } => Some(Fix::said(format!(
                "Connect to port {}, or make the port of the Service the same.",
                listed(&targets.iter().map(u16::to_string).collect::<Vec<_>>())
            ))),
            Self::NoPod { slice, writer, .. } => Some(writer.fix(namespace, slice, name)),
            Self::Twice { slice, writer, .. } => {
                let text = "List the pods' own addresses and ports as endpoints, or give the Service a selector.";
                let what = match (writer, slice.as_str()) {
                    (Writer::Mirror, _) => format!("edit endpoints {name}"),
                    (_, "") => get_slices(name),
                    (_, slice) => format!("edit endpointslice {slice}"),
                };
                with(text, format!("kubectl -n {namespace} {what}"))
            }
            Self::Finding { fix, .. } | Self::DnsFails { fix, .. } => (**fix).clone(),
            Self::Unexplained { .. } if service.is_of_api() => Some(Fix::said(
                "An API server announces its own address as an endpoint: if this node does not reach it there, let it announce another \
                 address (--advertise-address of kube-apiserver; on a machine with several addresses also --node-ip of the kubelet).",
            )),
            Self::Unexplained { .. } => {
                Some(Fix::kpx("Follow the packets rule by rule.", trace_of(at)))
            }
            Self::Probe { .. } => with(
                "Read the log of the application.",
                format!("kubectl -n {namespace} logs service/{name}"),
            ),
        }
    }
}

impl Cause {
    /// Returns what helps until the fix is done: rules that kpx writes, if no kube-proxy removes them.
    pub(super) fn meanwhile(&self) -> Option<Fix> {
        match self {
            Self::Rules {
                proxy: Some(idle),
                fix: None,
                ..
            } if idle.lasts => Some(Fix::kpx(
                "Until then, write the rules that kube-proxy does not write.",
                ["reconcile", "--apply"].map(str::to_owned),
            )),
            _ => None,
        }
    }
}

/// Returns the arguments of the command that traces the first connections that fail.
fn trace_of(at: &At) -> Vec<String> {
    let first = at.failed.first();
    let to = first.map_or_else(|| at.subject.clone(), |failed| failed.to.at.to_string());
    let source = match first.map(|failed| failed.client) {
        Some(Client::Host) => &["--source", "host"][..],
        Some(Client::Outside) => &["--source", "outside"],
        _ => &[],
    };
    let protocol = match first.map(|failed| failed.to.protocol) {
        None | Some(Proto::Tcp) => Vec::new(),
        Some(other) => vec!["--protocol".to_owned(), other.to_string()],
    };
    let rest = source.iter().copied().chain(["-o", "wide"]);
    let words = ["trace".to_owned(), to].into_iter().chain(protocol);
    words.chain(rest.map(str::to_owned)).collect()
}

fn edit(text: &'static str, service: &ServiceRef) -> Fix {
    let advice = Advice::Edit {
        resource: "service",
        namespace: service.namespace.to_string(),
        name: service.name.to_string(),
    };
    Fix::new(text, advice)
}

fn fix_endpoints(lack: &Lack, service: &ServiceRef) -> Fix {
    let (namespace, name) = (&service.namespace, &service.name);
    let pods = |what: &str| format!("kubectl -n {namespace} {what}");
    let (text, command) = match lack {
        Lack::NoSlice { .. } | Lack::Unlisted { .. } => (
            "kube-controller-manager makes EndpointSlices: check that it runs, that the leader is not older than kube-proxy, and \
             that --controllers does not exclude endpointslice.",
            "kubectl -n kube-system get lease kube-controller-manager -o yaml".to_owned(),
        ),
        Lack::Outdated { slices, writer, .. } => {
            let slice = slices.first().map_or("", String::as_str);
            return writer.fix(namespace, slice, name);
        }
        Lack::NotStarted { pods: all } => return start_fix(all, namespace),
        Lack::NotReady { silent, .. } if !silent.is_empty() => return silent_fix(silent),
        Lack::NotReady { pods: all, .. } if !all.is_empty() => return start_fix(all, namespace),
        Lack::NoPods {
            but_for: Some(ButFor::Label { .. }),
            ..
        } => {
            let text = "Correct the selector, or give the pods the label in their template.";
            return edit(text, service);
        }
        Lack::NoPods {
            but_for: Some(ButFor::Namespace {
                namespace: other, ..
            }),
            ..
        } => {
            let text = format!(
                "Create the Service in namespace {other}, where the pods are, or the pods in {namespace}."
            );
            return Fix::said(text);
        }
        Lack::NoPods { selector, .. } => (
            "Correct the selector, or start the pods: the description of their workload says how many it wants, and why it creates none \
             (a quota, an admission webhook).",
            pods(&format!(
                "describe replicasets,statefulsets,daemonsets -l {selector}"
            )),
        ),
        Lack::HostNames { slices, .. } => (
            "Make the Service one of type ExternalName with the host name, or replace the slice by one of addressType IPv4 or IPv6 with \
             addresses: kube-proxy resolves no names.",
            pods(&format!("delete endpointslice {}", slices.join(" "))),
        ),
        Lack::SliceFamily { family, .. } => {
            let text = format!(
                "Create an EndpointSlice with addressType {family} for the Service, or make it one of the family that its endpoints have \
                 (ipFamilies)."
            );
            return Fix::kubectl(text, pods(&get_slices(name)));
        }
        Lack::OtherFamily { family, hosts, .. } if !hosts.is_empty() => {
            return host_family_fix(*family);
        }
        Lack::OtherFamily { family, .. } => {
            return Fix::said(format!(
                "Give the pods {family} addresses (the network plugin's configuration, and the cluster's pod ranges), or create the \
                 Service with the family that they have (ipFamilies)."
            ));
        }
        Lack::Labelled { slices, label } => (
            "Remove the label from the EndpointSlice, and from what writes it.",
            pods(&format!(
                "label endpointslice {} {label}-",
                slices.join(" ")
            )),
        ),
        Lack::StatesUnread { selector, .. } => (
            "Start the pods, find out why they are not ready, or correct the selector.",
            pods(&format!("get pods -l {selector}")),
        ),
        Lack::SelectorUnread { .. } => (
            "Look at the selector, and at the pods that it matches.",
            pods(&format!("get service {name} -o yaml")),
        ),
        Lack::NoSelector {
            unlabelled: Some(slice),
        } => (
            "Give the EndpointSlice the label, also in what writes it.",
            pods(&format!(
                "label endpointslice {slice} kubernetes.io/service-name={name}"
            )),
        ),
        Lack::NoSelector { unlabelled: None } if service.is_of_api() => (
            "The API servers write these endpoints themselves: check that one is ready, and that its --endpoint-reconciler-type is \
             not none.",
            "kubectl get --raw '/readyz?verbose'".to_owned(),
        ),
        Lack::NoSelector { unlabelled: None } => {
            let text = "Create an EndpointSlice with the label kubernetes.io/service-name, or set a selector.";
            return edit(text, service);
        }
        Lack::NotReady { endpoints, .. } | Lack::Terminating { endpoints } => {
            let first = endpoints
                .first()
                .and_then(|endpoint| endpoint.split_once('/'));
            let command = match first {
                Some((_, pod)) => pods(&format!("describe pod {pod}")),
                None => pods(&get_slices(name)),
            };
            ("Find out why the pods are not ready.", command)
        }
        Lack::PortName {
            slices,
            writer,
            wanted,
            names,
        } => {
            let text = if names.contains(wanted) {
                "Give the port of the EndpointSlice its number."
            } else {
                "Give the port of the EndpointSlice the name of the Service's port: kube-proxy joins them by name."
            };
            return match (slices.first(), writer) {
                (_, Writer::Mirror) => Fix::kubectl(
                    "Give the port of the Endpoints object, which the EndpointSlice mirrors, the name of the Service's port: \
                     kube-proxy matches them by name.",
                    pods(&format!("edit endpoints {name}")),
                ),
                (Some(slice), _) => {
                    Fix::kubectl(text, pods(&format!("edit endpointslice {slice}")))
                }
                (None, _) => Fix::kubectl(text, pods(&get_slices(name))),
            };
        }
        Lack::TargetPort { .. } => {
            let text = "Use a port name of the containers as targetPort, or its number.";
            return edit(text, service);
        }
    };
    Fix::kubectl(text, command)
}

/// Returns how to see why pods do not start, or are not ready.
fn start_fix(pods: &[Waits], namespace: &str) -> Fix {
    let crashed = pods
        .iter()
        .find_map(|pod| Some((pod, pod.crashed.as_ref()?)));
    let name = |waits: &Waits| {
        waits
            .pod
            .split_once('/')
            .map_or(waits.pod.clone(), |(_, name)| name.to_owned())
    };
    if let Some(fix) = pods.iter().find_map(|pod| pod.fix.as_ref()) {
        return fix.clone();
    }
    if let Some(node) = pods.iter().find_map(|pod| pod.offline.as_ref()) {
        return unnetworked_fix(node);
    }
    if let Some(stale) = pods.iter().find(|pod| pod.stale) {
        return stale_fix(&stale.pod);
    }
    match (crashed, pods.first()) {
        (Some((of, container)), _) => Fix::kubectl(
            "Look at the log of the container that ended, and fix what ends it.",
            format!(
                "kubectl -n {namespace} logs {} -c {container} --previous",
                name(of)
            ),
        ),
        (None, first) => Fix::describe_pod(namespace, &first.map(name).unwrap_or_default()),
    }
}
