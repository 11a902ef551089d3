//! Load balancers that kube-proxy does not serve: their way begins outside of the node.

use super::cause::Cause;
use crate::verdict::{TARGET_TYPE, hidden_balancer, lacks_node_ports};
use kpx_node::cluster::Service;

/// The annotation with the settings of an NLB's targets.
pub(super) const TARGET_ATTRIBUTES: &str =
    "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes";

/// The annotation with the kind of AWS load balancer, and its values for an NLB.
const AWS_TYPE: (&str, &[&str]) = (
    "service.beta.kubernetes.io/aws-load-balancer-type",
    &["nlb", "external", "nlb-ip"],
);

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
            class: spec.load_balancer_class.clone(),
        }
    })
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
    let ports = ports.filter(|port| *port != 0 && !has_pods);
    let node_ports: Vec<u16> = ports.collect();
    Some(Cause::Balancer {
        names,
        lacks_node_ports: lacks_node_ports(service),
        // Targets by address do not get them unless that is asked for.
        preserves: is_nlb && !node_ports.is_empty() && !is_off,
        node_ports,
    })
}
