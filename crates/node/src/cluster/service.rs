//! Services, and the ranges of their cluster IPs.

use serde::Deserialize;

use super::metadata::null_is_default;
use super::{Labels, Metadata};

/// The label of headless Services and of their EndpointSlices: kube-proxy ignores what has it.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// A `ServiceCIDR` object: a range of cluster IPs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Name of the object.
    pub metadata: Metadata,
    /// The ranges.
    pub spec: ServiceCidrSpec,
}

/// `spec` of a `ServiceCIDR`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// Prefixes, one per family.
    #[serde(deserialize_with = "null_is_default")]
    pub cidrs: Vec<String>,
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, namespace, labels.
    pub metadata: Metadata,
    /// Specification of the Service.
    pub spec: ServiceSpec,
    /// Status of the load balancer.
    pub status: ServiceStatus,
}

impl Service {
    /// Returns whether kube-proxy ignores it for the label of headless Services, which it may have by mistake.
    pub fn is_labelled_headless(&self) -> bool {
        self.metadata.labels.contains_key(HEADLESS_LABEL)
    }
}

/// `spec` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`; empty means `ClusterIP`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The first cluster IP, `None` for a headless Service, or empty.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// The cluster IPs, one per family.
    #[serde(rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Vec<String>,
    /// `IPv4` and `IPv6`, in the order of `cluster_ips`.
    #[serde(deserialize_with = "null_is_default")]
    pub ip_families: Vec<String>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
    pub ip_family_policy: Option<String>,
    /// External addresses of the Service.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Vec<String>,
    /// Target name of an `ExternalName` Service.
    pub external_name: Option<String>,
    /// Ports of the Service.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
    /// Pod selector; `None` if the endpoints are managed manually.
    pub selector: Option<Labels>,
    /// `ClientIP` or `None`.
    pub session_affinity: Option<String>,
    /// Settings of session affinity.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<String>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// Prefixes of the clients that may use the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// Load-balancer implementation.
    pub load_balancer_class: Option<String>,
    /// Port of the health-check server.
    pub health_check_node_port: Option<u16>,
    /// `PreferClose`, `PreferSameZone`, `PreferSameNode`.
    pub traffic_distribution: Option<String>,
    /// Whether endpoints are published before they are ready.
    pub publish_not_ready_addresses: Option<bool>,
}

impl ServiceSpec {
    /// Returns the seconds that a client keeps its backend; `None` without session affinity.
    pub fn affinity(&self) -> Option<u32> {
        (self.session_affinity.as_deref() == Some("ClientIP")).then(|| {
            let config = self.session_affinity_config.as_ref();
            let seconds = config.and_then(|c| c.client_ip.as_ref()?.timeout_seconds);
            seconds.unwrap_or(10800)
        })
    }
}

/// `sessionAffinityConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// Settings for `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIp>,
}

/// `clientIP`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    /// Affinity timeout, in seconds.
    pub timeout_seconds: Option<u32>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name of the port; empty if it has none.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// Port of the cluster IP.
    pub port: u16,
    /// Port of the pods: a number or a name.
    pub target_port: Option<serde_json::Value>,
    /// Port of the nodes.
    pub node_port: Option<u16>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Status of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// Addresses of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

/// An address of a load balancer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    /// IP address.
    pub ip: Option<String>,
    /// Host name.
    pub hostname: Option<String>,
    /// `VIP` or `Proxy`.
    pub ip_mode: Option<String>,
}
