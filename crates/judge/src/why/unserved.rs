//! Services and ports that kube-proxy does not serve at all.

use std::collections::BTreeSet;

use super::cause::Cause;
use super::target;
use super::target::{At as AskedAt, Found};
use crate::verdict::{Kind, Target};
use kpx_node::cluster::{Service, ServicePort};
use kpx_node::net::{Family, Proto};
use kpx_node::owner::Port;
use kpx_node::words::listed;

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
    let targets = other_targets(found.service, port, ports.iter())?;
    Some(Cause::HeadlessPort { port, targets })
}

/// Returns the ports of headless `service` among `ports` that its pods do not have, in words.
pub(super) fn headless_ports(service: &Service, ports: &[Port]) -> Vec<String> {
    let of = |port: &Port| {
        let number = port.port?;
        let targets = other_targets(service, number, [port].into_iter())?;
        let targets: Vec<String> = targets.iter().map(u16::to_string).collect();
        Some(format!(
            "{} is headless, so nothing translates its port {number}: clients must connect to port {} of the pods",
            port.name,
            listed(&targets)
        ))
    };
    ports.iter().filter_map(of).collect()
}

/// Returns the ports of the endpoints of `ports`, if `service` is headless and none of them is `number`.
fn other_targets<'p>(
    service: &Service,
    number: u16,
    ports: impl Iterator<Item = &'p Port>,
) -> Option<Vec<u16>> {
    let endpoints = ports.flat_map(|port| &port.endpoints);
    let targets: BTreeSet<u16> = endpoints.map(|endpoint| endpoint.addr.port()).collect();
    let is_other =
        service.spec.cluster_ip == "None" && !targets.is_empty() && !targets.contains(&number);
    is_other.then(|| targets.into_iter().collect())
}

/// Returns why kube-proxy does not serve the Service that was found, one of `services`, at all.
pub(super) fn not_served(found: &Found<'_>, services: &[Service]) -> Option<Cause> {
    let service = found.service;
    let spec = &service.spec;
    if spec.kind == "ExternalName" {
        return Some(alias(found, services));
    }
    let labels = &service.metadata.labels;
    if let Some(proxy) = labels.get("service.kubernetes.io/service-proxy-name") {
        let proxy = proxy.clone();
        return Some(Cause::OtherProxy { proxy });
    }
    let has_none = spec.cluster_ip.is_empty() && spec.cluster_ips.is_empty();
    has_none.then_some(Cause::NoClusterIp)
}

/// Returns what is wrong with the ports of the `ExternalName` Service that was found: its name is an alias, which translates none.
fn alias(found: &Found<'_>, services: &[Service]) -> Cause {
    let spec = &found.service.spec;
    let target = spec.external_name.clone().unwrap_or_default();
    let asked = match &found.only {
        Some(target::Only::Named(word)) => Some(word.as_str()),
        _ => None,
    };
    let is_asked = |port: &&ServicePort| {
        asked.is_none_or(|word| port.name == word || port.port.to_string() == word)
    };
    let ports: Vec<&ServicePort> = spec.ports.iter().filter(is_asked).collect();
    let other = |port: &&ServicePort| {
        let to = u16::try_from(port.target_port.as_ref()?.as_u64()?).ok()?;
        (to != port.port && to != 0).then_some((port.port, to))
    };
    let mut words = target.trim_end_matches('.').split('.');
    let to = match (words.next(), words.next(), words.next()) {
        (Some(name), Some(namespace), Some("svc")) => services.iter().find(|service| {
            service.metadata.name == name && service.metadata.namespace == namespace
        }),
        _ => None,
    };
    let to = to.filter(|to| to.spec.kind != "ExternalName" && to.spec.cluster_ip != "None");
    let number = asked
        .and_then(|word| word.parse().ok())
        .or_else(|| ports.first().map(|port| port.port));
    let lacks_port = to.zip(number).filter(|(to, number)| {
        let mut all = to.spec.ports.iter();
        all.all(|port| port.port != *number)
    });
    Cause::ExternalName {
        untranslated: ports.iter().find_map(other),
        lacks_port: lacks_port.map(|(to, number)| (target::full(to), number)),
        target,
    }
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
