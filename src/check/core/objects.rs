//! What checks read of API objects.

use std::collections::BTreeMap;

use crate::check::{Facts, Proof};
use crate::cluster::{Node, Service};
use crate::evidence::Gap;
use crate::net::Proto;

/// Returns the namespace and name of a Service.
pub(in crate::check) fn name_of(service: &Service) -> String {
    format!("{}/{}", service.metadata.namespace, service.metadata.name)
}

/// Returns the protocol of a port; the API defaults to TCP.
pub(in crate::check) fn proto_of(text: &str) -> Proto {
    match text {
        "UDP" => Proto::Udp,
        "SCTP" => Proto::Sctp,
        _ => Proto::Tcp,
    }
}

/// Returns the Service of each NodePort, by protocol number and port.
pub(in crate::check) fn node_ports(facts: &Facts<'_>) -> Result<BTreeMap<(u8, u16), String>, Gap> {
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

/// Returns whether kube-proxy serves the Service: it has a cluster IP and no label that excludes it.
pub(in crate::check) fn is_served(service: &Service) -> bool {
    let labels = &service.metadata.labels;
    !matches!(service.spec.cluster_ip.as_str(), "" | "None")
        && service.spec.kind != "ExternalName"
        && !labels.contains_key("service.kubernetes.io/service-proxy-name")
        && !labels.contains_key("service.kubernetes.io/headless")
}

pub(in crate::check) fn service_proof(service: &Service) -> Proof {
    Proof::Object {
        what: "service",
        name: name_of(service),
    }
}

/// Returns why the node is about to be removed, as kube-proxy sees it; `None` if it stays.
pub(in crate::check) fn leaving(node: &Node) -> Option<Proof> {
    const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
    let deleted = node.metadata.deletion_timestamp.as_ref();
    let deleted = deleted.map(|at| Proof::setting("the Node", "deletionTimestamp", at));
    let tainted = node.spec.taints.iter().any(|taint| taint.key == TAINT);
    deleted.or_else(|| tainted.then(|| Proof::setting("the Node", "taint", TAINT)))
}
