//! Services and ports that kube-proxy does not serve at all.

use std::collections::BTreeSet;

use super::cause::Cause;
use super::target;
use super::target::{At as AskedAt, Found};
use crate::verdict::{Kind, Target};
use kpx_node::cluster::Service;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::Port;

/// Returns that an address and port that are asked about without a protocol take no connections of TCP.
pub(super) fn no_tcp(found: &Found<'_>, ports: &[Port]) -> Option<String> {
    let is_asked = matches!(found.at, AskedAt::Address(_) | AskedAt::NodePort(_));
    let first = ports.first()?;
    let is_other = ports.iter().all(|port| port.proto != Proto::Tcp);
    (is_asked && is_other).then(|| {
        let proto = first.proto.to_string().to_uppercase();
        format!(
            "{} is a port of {proto} alone: connections of TCP to it fail",
            first.name
        )
    })
}

/// Returns why clients of a headless Service do not reach the port with this number: names lead them to the pods, which have other
/// ports.
pub(super) fn headless_port(found: &Found<'_>, ports: &[Port]) -> Option<Cause> {
    let Some(target::Only::Named(word)) = &found.only else {
        return None;
    };
    let port: u16 = word.parse().ok()?;
    if found.service.spec.cluster_ip != "None" {
        return None;
    }
    let endpoints = ports.iter().flat_map(|port| &port.endpoints);
    let targets: BTreeSet<u16> = endpoints.map(|endpoint| endpoint.addr.port()).collect();
    let is_other = !targets.is_empty() && !targets.contains(&port);
    is_other.then(|| Cause::HeadlessPort {
        port,
        targets: targets.into_iter().collect(),
    })
}

/// Returns why kube-proxy does not serve `service` at all.
pub(super) fn not_served(service: &Service) -> Option<Cause> {
    let spec = &service.spec;
    if spec.kind == "ExternalName" {
        let target = spec.external_name.clone().unwrap_or_default();
        return Some(Cause::ExternalName { target });
    }
    let labels = &service.metadata.labels;
    if let Some(proxy) = labels.get("service.kubernetes.io/service-proxy-name") {
        let proxy = proxy.clone();
        return Some(Cause::OtherProxy { proxy });
    }
    let has_none = spec.cluster_ip.is_empty() && spec.cluster_ips.is_empty();
    has_none.then_some(Cause::NoClusterIp)
}

/// Returns that `service` does not have the family of `target`.
pub(super) fn other_family(service: &Service, target: Target<'_>) -> Option<Cause> {
    let role = match target.kind {
        Kind::Address(role) => Some(role),
        Kind::NodePort => None,
        Kind::Endpoint => return None,
    };
    let has = |family: &Family| service.has_family(*family);
    (!has(&target.family())).then(|| Cause::OtherFamily {
        address: target.at.ip(),
        role,
        families: Family::BOTH.into_iter().filter(has).collect(),
    })
}
