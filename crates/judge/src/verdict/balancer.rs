//! Load balancers that no node shows.

use kpx_node::cluster::Service;
use kpx_node::words::listed;

/// The annotation with the kind of an NLB's targets.
pub const TARGET_TYPE: &str = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type";

/// Returns the names of the load balancer of `service` that kube-proxy does not serve; none if it has no such load balancer.
pub fn hidden_balancer(service: &Service) -> Vec<String> {
    if service.spec.kind != "LoadBalancer" {
        return Vec::new();
    }
    let ingress = service.status.load_balancer.ingress.iter();
    let names = ingress.filter_map(|ingress| match (&ingress.ip, &ingress.hostname) {
        (Some(ip), _) if ingress.ip_mode.as_deref() == Some("Proxy") => Some(ip.clone()),
        (None, Some(name)) => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

/// Returns what is known of the load balancer of `service` with these names.
pub fn hidden_balancer_words(service: &Service, names: &[String]) -> String {
    let names = listed(names);
    if lacks_node_ports(service) {
        return format!(
            "the load balancer {names} sends connections to NodePorts (target type instance), and the Service has none"
        );
    }
    format!("no evidence of a node shows the load balancer {names}")
}

/// Returns whether the load balancer of `service` sends connections to its NodePorts alone, and it has none.
pub fn lacks_node_ports(service: &Service) -> bool {
    let target = service.metadata.annotations.get(TARGET_TYPE);
    let mut ports = service.spec.ports.iter();
    target.is_some_and(|target| target == "instance")
        && ports.all(|port| port.node_port.is_none_or(|number| number == 0))
}
