//! Service ports and endpoints from the cluster's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::{Endpoint, EndpointState, Port, PortName, Role};
use crate::cluster::{self, Conditions, EndpointSlice, Service, ServicePort};
use crate::evidence::{Gap, Item};
use crate::net::{Family, Proto};
use crate::node::NodeSnapshot;

/// Returns the service ports of those `services` that kube-proxy serves, and gaps in the data.
pub(super) fn ports(node: &NodeSnapshot<'_>, services: &[Service]) -> (Vec<Port>, Vec<Gap>) {
    let all: Vec<_> = services.iter().collect();
    match node.slices() {
        Ok(slices) => (together(node, &all, slices), Vec::new()),
        Err(gap) => (together(node, &all, &[]), vec![gap]),
    }
}

/// Like [`ports`], but only for `services`.
pub(super) fn some_ports(node: &NodeSnapshot<'_>, services: &[&Service]) -> (Vec<Port>, Vec<Gap>) {
    let names = services
        .iter()
        .map(|service| service.metadata.name.as_str());
    let names: Vec<_> = names.collect();
    match cluster::list_naming(node.evidence(), Item::EndpointSlices, &names) {
        Ok(slices) => (together(node, services, &slices), Vec::new()),
        Err(gap) => (together(node, services, &[]), vec![gap]),
    }
}

fn together(node: &NodeSnapshot<'_>, services: &[&Service], slices: &[EndpointSlice]) -> Vec<Port> {
    // kube-proxy serves no endpoint of the others.
    let read = slices.iter().filter(|slice| slice.unread_for().is_none());
    let by_service = EndpointSlice::by_service(read);
    let here = node.name().ok();
    let served = services.iter().filter(|service| {
        service.spec.kind != "ExternalName"
            && !matches!(service.spec.cluster_ip.as_str(), "" | "None")
    });
    let ports = served.flat_map(|service| {
        let meta = &service.metadata;
        let slices = by_service
            .get(&(meta.namespace.as_str(), meta.name.as_str()))
            .map_or(&[][..], Vec::as_slice);
        ports_of(service, slices, here.as_deref())
    });
    ports.collect()
}

/// Returns the ports of `service`, whether kube-proxy serves it or not; `slices` are its EndpointSlices, and `here` is the
/// name of this node, if known.
pub fn ports_of(service: &Service, slices: &[&EndpointSlice], here: Option<&str>) -> Vec<Port> {
    let meta = &service.metadata;
    let ports = service.spec.ports.iter().map(|port| Port {
        name: PortName {
            namespace: meta.namespace.as_str().into(),
            name: meta.name.as_str().into(),
            port: port.name.as_str().into(),
        },
        proto: proto(&port.protocol),
        port: Some(port.port),
        kind: Some(match service.spec.kind.as_str() {
            "" => "ClusterIP".into(),
            kind => kind.into(),
        }),
        left_to: meta
            .labels
            .get("service.kubernetes.io/service-proxy-name")
            .map(|who| who.as_str().into()),
        addresses: addresses(service),
        node_port: port.node_port.filter(|&number| number != 0),
        health_check_port: service.spec.health_check_node_port.filter(|&n| n != 0),
        endpoints: endpoints(slices, port, here),
    });
    ports.collect()
}

fn proto(name: &str) -> Proto {
    name.parse().unwrap_or(Proto::Tcp)
}

/// Returns the addresses of `service` with their roles. Addresses of a load balancer that kube-proxy does not serve are omitted:
/// with `ipMode` Proxy, or of a family that the Service does not have.
pub fn addresses(service: &Service) -> BTreeSet<(Role, IpAddr)> {
    let spec = &service.spec;
    let first = std::slice::from_ref(&spec.cluster_ip);
    let cluster = if spec.cluster_ips.is_empty() {
        first
    } else {
        &spec.cluster_ips
    };
    let ingress = service.status.load_balancer.ingress.iter();
    let balancer = ingress
        .filter(|at| at.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|at| at.ip.as_deref())
        .filter(|ip| {
            ip.parse()
                .is_ok_and(|ip| service.has_family(Family::of(ip)))
        });
    let cluster = cluster.iter().map(|ip| (Role::ClusterIp, ip.as_str()));
    let external = spec.external_ips.iter();
    let all = cluster
        .chain(external.map(|ip| (Role::ExternalIp, ip.as_str())))
        .chain(balancer.map(|ip| (Role::LoadBalancerIp, ip)));
    all.filter_map(|(role, ip)| Some((role, ip.parse().ok()?)))
        .collect()
}

fn endpoints(slices: &[&EndpointSlice], port: &ServicePort, here: Option<&str>) -> Vec<Endpoint> {
    let mut found = BTreeMap::new();
    for slice in slices {
        for of in &slice.ports {
            let Some(number) = of.port else { continue };
            if of.name.as_deref().unwrap_or("") != port.name
                || proto(of.protocol.as_deref().unwrap_or("")) != proto(&port.protocol)
            {
                continue;
            }
            for endpoint in &slice.endpoints {
                let Some(ip) = endpoint.addresses.first().and_then(|ip| ip.parse().ok()) else {
                    continue;
                };
                let addr = SocketAddr::new(ip, number);
                let target = endpoint.target_ref.as_ref();
                found.entry(addr).or_insert_with(|| Endpoint {
                    addr,
                    pod: target
                        .filter(|target| target.kind == "Pod")
                        .map(|pod| format!("{}/{}", pod.namespace, pod.name).into()),
                    node: endpoint.node_name.as_deref().map(Into::into),
                    state: Some(state(endpoint.conditions)),
                    local: here.map(|here| endpoint.node_name.as_deref() == Some(here)),
                });
            }
        }
    }
    found.into_values().collect()
}

fn state(conditions: Conditions) -> EndpointState {
    let ready = conditions.ready.unwrap_or(true);
    let terminating = conditions.terminating.unwrap_or(false);
    match (ready, terminating, conditions.serving.unwrap_or(ready)) {
        // Endpoints of a Service that publishes not-ready addresses stay ready until they are removed.
        (true, _, _) => EndpointState::Ready,
        (false, true, true) => EndpointState::ServingTerminating,
        (false, true, false) => EndpointState::Terminating,
        (false, false, _) => EndpointState::NotReady,
    }
}
