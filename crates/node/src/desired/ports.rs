//! Conversion of Services to service ports.

use std::net::IpAddr;

use super::endpoints::{self, Choice, Context, Endpoint};
use super::settings::lenient_ip;
use crate::cluster::config::ProxyConfig;
use crate::cluster::release::Change;
use crate::cluster::version::Version;
use crate::cluster::{ByService, Service, ServicePort as ApiPort};
use crate::net::{Cidr, Family, Proto};

/// One port of a Service in one family: the unit that kube-proxy programs rules for.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the API")]
pub struct ServicePort {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port; may be empty.
    pub port_name: String,
    /// `NAMESPACE/NAME` or `NAMESPACE/NAME:PORT`, as kube-proxy writes it in comments.
    pub spn: String,
    /// Transport protocol.
    pub proto: Proto,
    /// Cluster IP of the family.
    pub cluster_ip: IpAddr,
    /// Port of the cluster IP.
    pub port: u16,
    /// NodePort, if it has one.
    pub node_port: Option<u16>,
    /// External IPs of the family.
    pub external_ips: Vec<IpAddr>,
    /// Load-balancer IPs that kube-proxy handles on the node.
    pub lb_ips: Vec<IpAddr>,
    /// Prefixes of the clients that may use the load-balancer IPs; empty means all clients.
    pub source_ranges: Vec<Cidr>,
    /// Port of the health-check server.
    pub health_check: Option<u16>,
    /// Session affinity timeout, in seconds.
    pub affinity: Option<u32>,
    /// Whether external traffic goes only to endpoints on this node.
    pub external_local: bool,
    /// Whether internal traffic goes only to endpoints on this node.
    pub internal_local: bool,
    /// Whether it has an address or port outside the cluster.
    pub accessible: bool,
    /// All endpoints, usable or not, sorted by address and port as text.
    pub endpoints: Vec<Endpoint>,
    /// Whether at least one endpoint is usable on any node.
    pub has_endpoints: bool,
    choice: Choice,
}

impl ServicePort {
    /// Returns whether some of its traffic has policy Cluster.
    pub fn uses_cluster(&self) -> bool {
        !self.internal_local || self.accessible
    }

    /// Returns whether some of its traffic has policy Local.
    pub fn uses_local(&self) -> bool {
        self.internal_local || (self.external_local && self.accessible)
    }

    /// Returns whether it is the cluster's DNS.
    pub fn is_cluster_dns(&self) -> bool {
        matches!(self.namespace.as_str(), "kube-system" | "openshift-dns") && self.port == 53
    }

    /// Returns whether internal traffic has a usable endpoint.
    pub fn has_internal(&self) -> bool {
        self.has_endpoints && !(self.internal_local && self.choice.local.is_empty())
    }

    /// Returns whether external traffic has a usable endpoint.
    pub fn has_external(&self) -> bool {
        self.has_endpoints && !(self.external_local && self.choice.local.is_empty())
    }

    /// Returns whether kube-proxy creates chains for policy Cluster.
    pub fn has_cluster_chain(&self) -> bool {
        self.uses_cluster() && !self.choice.cluster.is_empty()
    }

    /// Returns whether kube-proxy creates chains for policy Local.
    pub fn has_local_chain(&self) -> bool {
        self.uses_local() && !self.choice.local.is_empty()
    }

    /// Returns whether source ranges restrict its load-balancer IPs.
    pub fn has_firewall(&self) -> bool {
        !self.lb_ips.is_empty() && !self.source_ranges.is_empty()
    }

    /// Returns whether `node` is in one of the source ranges.
    pub fn admits(&self, node: IpAddr) -> bool {
        self.source_ranges.iter().any(|range| range.contains(node))
    }

    /// Returns the positions of the endpoints used by policy Cluster.
    pub fn cluster_at(&self) -> &[u32] {
        &self.choice.cluster
    }

    /// Returns the positions of the endpoints used by policy Local.
    pub fn local_at(&self) -> &[u32] {
        &self.choice.local
    }

    /// Returns the positions of the endpoints used by any policy.
    pub fn reachable_at(&self) -> &[u32] {
        &self.choice.reachable
    }
}

/// Returns the service ports of `family`, sorted.
pub(super) fn ports(
    services: &[Service],
    slices: &ByService<'_>,
    context: &Context<'_>,
    config: &ProxyConfig,
    family: Family,
) -> Vec<ServicePort> {
    let mut found = Vec::new();
    for service in services {
        let Some(cluster_ip) = cluster_ip(service, family) else {
            continue;
        };
        let shared = Shared::of(service, config, context.version, family);
        let key = (
            service.metadata.namespace.as_str(),
            service.metadata.name.as_str(),
        );
        let slices = slices.get(&key).map_or(&[][..], Vec::as_slice);
        for port in &service.spec.ports {
            found.extend(shared.port(port, cluster_ip, slices, context, family));
        }
    }
    found.sort_by(|a, b| a.key().cmp(&b.key()));
    found
}

impl ServicePort {
    fn key(&self) -> (&str, &str, &str, Proto) {
        (&self.namespace, &self.service, &self.port_name, self.proto)
    }
}

/// Returns the cluster IP of `family`; `None` if kube-proxy does not serve the Service.
fn cluster_ip(service: &Service, family: Family) -> Option<IpAddr> {
    let spec = &service.spec;
    let skipped = matches!(spec.cluster_ip.as_str(), "" | "None")
        || spec.kind == "ExternalName"
        || service
            .metadata
            .labels
            .contains_key("service.kubernetes.io/service-proxy-name")
        || service.is_labelled_headless();
    if skipped {
        return None;
    }
    let text = if spec.ip_families.is_empty() {
        Some(&spec.cluster_ip)
    } else {
        let name = family.to_string();
        let at = spec.ip_families.iter().position(|f| *f == name)?;
        spec.cluster_ips.get(at)
    };
    lenient_ip(text?).filter(|&addr| Family::of(addr) == family)
}

/// Properties shared by all ports of a Service.
struct Shared<'a> {
    service: &'a Service,
    external_ips: Vec<IpAddr>,
    any_external_ip: bool,
    lb_ips: Vec<IpAddr>,
    source_ranges: Vec<Cidr>,
    external_local: bool,
    internal_local: bool,
    health_check: Option<u16>,
    affinity: Option<u32>,
}

impl<'a> Shared<'a> {
    fn of(service: &'a Service, config: &ProxyConfig, version: Version, family: Family) -> Self {
        let spec = &service.spec;
        let of_family = |text: &String| lenient_ip(text).filter(|&a| Family::of(a) == family);
        let external: Vec<_> = spec.external_ips.iter().filter_map(of_family).collect();
        let any_external_ip = !external.is_empty();
        let with_external = config.gate("AllowServiceExternalIPs", true);
        let modes_count = version.has(Change::LoadBalancerIpMode)
            && config.gate(
                "LoadBalancerIPMode",
                version.has(Change::LoadBalancerIpModeDefault),
            );
        let ingress = service.status.load_balancer.ingress.iter();
        let lb_ips = ingress
            .filter(|at| !modes_count || at.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
        let lb_ips = lb_ips.filter_map(|at| at.ip.as_ref().and_then(of_family));
        let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
        let external_kind = matches!(spec.kind.as_str(), "LoadBalancer" | "NodePort")
            || !spec.external_ips.is_empty();
        let external_local = external_kind && local(&spec.external_traffic_policy);
        let affinity = spec.affinity();
        Self {
            service,
            external_ips: if with_external { external } else { Vec::new() },
            any_external_ip,
            lb_ips: lb_ips.collect(),
            source_ranges: source_ranges(&spec.load_balancer_source_ranges, family),
            external_local,
            internal_local: local(&spec.internal_traffic_policy),
            health_check: (spec.kind == "LoadBalancer" && external_local)
                .then_some(spec.health_check_node_port)
                .flatten()
                .filter(|&port| port != 0),
            affinity,
        }
    }

    fn port(
        &self,
        port: &ApiPort,
        cluster_ip: IpAddr,
        slices: &[&crate::cluster::EndpointSlice],
        context: &Context<'_>,
        family: Family,
    ) -> Option<ServicePort> {
        let metadata = &self.service.metadata;
        let proto = match port.protocol.as_str() {
            "" => Proto::Tcp,
            name => name.parse().ok()?,
        };
        let node_port = port.node_port.filter(|&number| number != 0);
        let mut spn = format!("{}/{}", metadata.namespace, metadata.name);
        if !port.name.is_empty() {
            spn.push(':');
            spn.push_str(&port.name);
        }
        let mut built = ServicePort {
            namespace: metadata.namespace.clone(),
            service: metadata.name.clone(),
            port_name: port.name.clone(),
            spn,
            proto,
            cluster_ip,
            port: port.port,
            node_port,
            external_ips: self.external_ips.clone(),
            lb_ips: self.lb_ips.clone(),
            source_ranges: self.source_ranges.clone(),
            health_check: self.health_check,
            affinity: self.affinity,
            external_local: self.external_local,
            internal_local: self.internal_local,
            accessible: node_port.is_some() || !self.lb_ips.is_empty() || self.any_external_ip,
            endpoints: endpoints::collect(slices, context, family, &port.name, proto),
            has_endpoints: false,
            choice: Choice::default(),
        };
        built.choice = endpoints::choose(
            &built.endpoints,
            context,
            context.hints_count(&metadata.annotations),
            built.uses_cluster(),
            built.uses_local(),
        );
        built.has_endpoints = built.choice.any;
        Some(built)
    }
}

/// Returns the ranges of `family`; a range that allows all clients makes the list empty.
fn source_ranges(texts: &[String], family: Family) -> Vec<Cidr> {
    let parsed = texts
        .iter()
        .filter_map(|text| text.trim().parse::<Cidr>().ok());
    let ours: Vec<_> = parsed.filter(|cidr| cidr.family() == family).collect();
    if ours.iter().any(|cidr| cidr.prefix == 0) {
        return Vec::new();
    }
    ours.into_iter().map(Cidr::normal).collect()
}
