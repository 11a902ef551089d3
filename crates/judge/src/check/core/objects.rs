//! What checks read of API objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use crate::check::{Facts, Proof, ServiceRef};
use kpx_node::backend::ipvs::model::Key;
use kpx_node::cluster::{Node, Service, ServicePort};
use kpx_node::evidence::Gap;
use kpx_node::net::Proto;
use kpx_node::owner;

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

/// Returns the Service port of each NodePort, by protocol number and port.
pub(in crate::check) fn node_ports(
    facts: &Facts<'_>,
) -> Result<BTreeMap<(u8, u16), ServiceRef>, Gap> {
    let mut found = BTreeMap::new();
    for service in facts.node.services()? {
        for port in &service.spec.ports {
            if let Some(number) = port.node_port {
                let key = (proto_of(&port.protocol).number(), number);
                found.insert(key, port_of(service, port));
            }
        }
    }
    Ok(found)
}

/// Iterates over the Services that have an address for which `is_meant` holds.
pub(in crate::check) fn services_at<'f>(
    facts: &Facts<'f>,
    is_meant: impl Fn(&IpAddr) -> bool,
) -> impl Iterator<Item = &'f Service> {
    let services = facts.node.services().into_iter().flatten();
    services.filter(move |service| {
        let addresses = owner::addresses(service);
        addresses.iter().any(|(_, addr)| is_meant(addr))
    })
}

/// The Service ports by their addresses and NodePorts.
pub(in crate::check) struct Served(HashMap<(Option<IpAddr>, u16, Proto), ServiceRef>);

impl Served {
    /// Returns the items of the node's cluster; none if its Services are unknown.
    pub(in crate::check) fn new(facts: &Facts<'_>) -> Self {
        let mut served = HashMap::new();
        for service in facts.node.services().into_iter().flatten() {
            let addresses = owner::addresses(service);
            for port in &service.spec.ports {
                let proto = proto_of(&port.protocol);
                let at = addresses.iter().map(|(_, addr)| (Some(*addr), port.port));
                let at = at.chain(port.node_port.map(|number| (None, number)));
                for (addr, number) in at {
                    let key = (addr, number, proto);
                    served.entry(key).or_insert_with(|| port_of(service, port));
                }
            }
        }
        Self(served)
    }

    /// Returns the Service port that is served at `to`: as its address, or else as its NodePort.
    pub(in crate::check) fn at(&self, to: SocketAddr, proto: Proto) -> Option<&ServiceRef> {
        let by_address = self.0.get(&(Some(to.ip()), to.port(), proto));
        by_address.or_else(|| self.0.get(&(None, to.port(), proto)))
    }

    /// Returns the Service port that the virtual server `key` serves.
    pub(in crate::check) fn by(&self, key: Key) -> Option<&ServiceRef> {
        match key {
            Key::Address { proto, addr, port } => self.at(SocketAddr::new(addr, port), proto),
            Key::Fwmark { .. } => None,
        }
    }
}

fn port_of(service: &Service, port: &ServicePort) -> ServiceRef {
    let name = Some(port.name.as_str()).filter(|name| !name.is_empty());
    ServiceRef {
        port: name.map(Into::into),
        ..ServiceRef::from(service)
    }
}

/// Returns whether kube-proxy serves the Service: it has a cluster IP and no label that excludes it.
pub(in crate::check) fn is_served(service: &Service) -> bool {
    let labels = &service.metadata.labels;
    !matches!(service.spec.cluster_ip.as_str(), "" | "None")
        && service.spec.kind != "ExternalName"
        && !labels.contains_key("service.kubernetes.io/service-proxy-name")
        && !service.is_labelled_headless()
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

/// Services that a finding names before it counts the others.
const FEW: usize = 3;

/// Returns the names of the first of `services`, whatever the port, and how many more there are.
pub fn some_services(services: &BTreeSet<ServiceRef>) -> String {
    let whole: BTreeSet<ServiceRef> = services.iter().map(ServiceRef::whole).collect();
    let named: Vec<_> = whole.iter().take(FEW).map(ToString::to_string).collect();
    let more = match whole.len().saturating_sub(FEW) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", named.join(", "))
}
