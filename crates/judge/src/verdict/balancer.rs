//! Load balancers that no node shows.

use kpx_node::cluster::Service;
use kpx_node::words::listed;

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

/// Returns that nothing is known of the load balancer with these names.
pub fn hidden_balancer_words(names: &[String]) -> String {
    let names = listed(names);
    format!("no evidence of a node shows the load balancer {names}")
}
