//! Load balancers that kube-proxy does not serve: their way begins outside of the node.

use std::net::IpAddr;

use super::cause::Cause;
use crate::verdict::hidden_balancer;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::cluster::{DaemonSet, Pod, PodSpec, Service};
use kpx_node::node::NodeSnapshot;
use kpx_node::words::listed;

/// The annotation with the settings of an NLB's targets.
pub(super) const TARGET_ATTRIBUTES: &str =
    "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes";

/// The annotation with the kind of AWS load balancer, and its values for an NLB.
const AWS_TYPE: (&str, &[&str]) = (
    "service.beta.kubernetes.io/aws-load-balancer-type",
    &["nlb", "external", "nlb-ip"],
);

/// The annotation with the kind of an NLB's targets.
const TARGET_TYPE: &str = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";

/// The class of Services with an NLB.
const NLB_CLASSES: [&str; 2] = ["service.k8s.aws/nlb", "eks.amazonaws.com/nlb"];

/// Returns that `service` waits for a load balancer to give it an address.
pub(super) fn pending(service: &Service) -> Option<Cause> {
    let spec = &service.spec;
    let waits = spec.kind == "LoadBalancer"
        && service.status.load_balancer.ingress.is_empty()
        && spec.external_ips.is_empty();
    waits.then(|| {
        let ports = spec.ports.iter().filter_map(|port| port.node_port);
        Cause::Pending {
            node_ports: ports.filter(|port| *port != 0).collect(),
        }
    })
}

/// Parts of the names of DaemonSets and pods that announce addresses of load balancers.
const ANNOUNCERS: &[&str] = &[
    "speaker",
    "metallb",
    "kube-vip",
    "cilium",
    "svclb",
    "purelb",
    "openelb",
    "loxilb",
    "kube-router",
    "calico",
    "antrea",
    "ovn",
    "keepalived",
    "porter",
    "cloud",
    "ccm",
];

/// Parts of the names of DaemonSets and pods of the speakers of `MetalLB`.
const SPEAKERS: &[&str] = &["speaker", "metallb"];

/// The label of Nodes that load balancers exclude: `MetalLB` announces nothing on them.
const LEFT_OUT: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The option with which the speaker of `MetalLB` ignores that label.
const IGNORES: &str = "--ignore-exclude-lb";

/// Returns that only `MetalLB` announces addresses, and all Nodes are excluded.
fn all_left_out(node: &NodeSnapshot<'_>) -> Option<String> {
    let is_one = |name: &str| SPEAKERS.iter().any(|speaker| name.contains(speaker));
    let sets = node.daemon_sets().map_or(&[][..], Vec::as_slice).iter();
    let pods = node.pods().map_or(&[][..], Vec::as_slice).iter();
    let found: Vec<(&str, &PodSpec)> = sets
        .map(|set| (&*set.metadata.name, &set.spec.template.spec))
        .chain(pods.map(|pod| (&*pod.metadata.name, &pod.spec)))
        .filter(|(name, _)| is_announcer(name))
        .collect();
    let ignores = |spec: &PodSpec| {
        let mut containers = spec.containers.iter();
        containers.any(|container| container.args.iter().any(|arg| arg.starts_with(IGNORES)))
    };
    let nodes = node.nodes().ok()?;
    let is_left_out = !nodes.is_empty()
        && nodes
            .iter()
            .all(|node| node.metadata.labels.contains_key(LEFT_OUT));
    let is_metallb = !found.is_empty()
        && found
            .iter()
            .all(|(name, spec)| is_one(name) && !ignores(spec));
    (is_left_out && is_metallb).then(|| {
        format!(
            "MetalLB announces no address: all Nodes have the label {LEFT_OUT}, which it honors. `kubectl label nodes NODE {LEFT_OUT}-` \
             removes it from a Node"
        )
    })
}

/// Returns whether what is called `name` may announce addresses of load balancers.
fn is_announcer(name: &str) -> bool {
    ANNOUNCERS.iter().any(|announcer| name.contains(announcer))
}

/// Returns that nothing is known to announce the load balancer's addresses of `service` in a network of the node `name`.
pub(super) fn unannounced(
    service: &Service,
    node: &NodeSnapshot<'_>,
    name: &str,
) -> Option<String> {
    let left_out = all_left_out(node);
    let is_set = |set: &DaemonSet| is_announcer(&set.metadata.name);
    let is_pod = |pod: &Pod| is_announcer(&pod.metadata.name);
    let is_announced =
        node.daemon_sets().ok()?.iter().any(is_set) || node.pods().ok()?.iter().any(is_pod);
    if is_announced && left_out.is_none() {
        return None;
    }
    let own = || {
        node.addresses()
            .into_iter()
            .flat_map(|all| &all.all)
            .filter(|at| at.link != DUMMY)
    };
    let is_here = |ip: &IpAddr| own().any(|at| at.addr.addr == *ip);
    let is_near = |ip: &IpAddr| {
        own().any(|at| at.addr.prefix < at.addr.family().bits() && at.addr.contains(*ip))
    };
    let ingress = service.status.load_balancer.ingress.iter();
    let ingress = ingress.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    let addresses = ingress.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok());
    let addresses: Vec<IpAddr> = addresses.filter(|ip| !is_here(ip) && is_near(ip)).collect();
    let first = addresses.first()?;
    if left_out.is_some() {
        return left_out;
    }
    let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Some(format!(
        "nothing is known to announce {} to its network: no link of {name} has it, and no DaemonSet of MetalLB, kube-vip or the like exists. \
         Clients there find it only if a machine answers for it, which `arping {first}` on another machine of that network shows",
        listed(&all)
    ))
}

/// Returns the load balancer of `service` that no node shows; `None` if it has none.
pub(super) fn unseen(service: &Service) -> Option<Cause> {
    let spec = &service.spec;
    let names = hidden_balancer(service);
    if names.is_empty() {
        return None;
    }
    let annotation = |key: &str| service.metadata.annotations.get(key).map(String::as_str);
    let has_pods =
        annotation(TARGET_TYPE) == Some("ip") || annotation(AWS_TYPE.0) == Some("nlb-ip");
    let class = spec.load_balancer_class.as_deref();
    let is_nlb = annotation(AWS_TYPE.0).is_some_and(|annotation| AWS_TYPE.1.contains(&annotation))
        || class.is_some_and(|class| NLB_CLASSES.contains(&class));
    let is_off = annotation(TARGET_ATTRIBUTES)
        .is_some_and(|annotation| annotation.contains("preserve_client_ip.enabled=false"));
    let ports = spec.ports.iter().filter_map(|port| port.node_port);
    Some(Cause::Balancer {
        names,
        node_ports: if has_pods {
            Vec::new()
        } else {
            ports.filter(|port| *port != 0).collect()
        },
        // Targets by address do not get them unless that is asked for.
        preserves: is_nlb && !has_pods && !is_off,
    })
}
