//! The cluster's API objects as plain types, with only the fields that kpx uses.
//!
//! Source: the objects' JSON as the API server prints it (`kubectl get -o json`). Other fields are ignored.

pub mod config;
pub mod edit;
pub mod flags;
pub mod pod;
pub mod release;
pub mod validate;
pub mod version;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::evidence::{Evidence, Gap, Item, Time};

/// Parses the list in `item`.
pub fn list<T: DeserializeOwned>(evidence: &Evidence, item: Item) -> Result<Vec<T>, Gap> {
    let list: List<T> =
        serde_json::from_str(evidence.text(item)?).map_err(|e| Gap::Failed(item, e.to_string()))?;
    Ok(list.items)
}

/// Parses only the objects of the list in `item` that contain one of `names`.
pub fn list_naming<T: DeserializeOwned>(
    evidence: &Evidence,
    item: Item,
    names: &[&str],
) -> Result<Vec<T>, Gap> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let failed = |e: serde_json::Error| Gap::Failed(item, e.to_string());
    let list: Raw<'_> = serde_json::from_str(evidence.text(item)?).map_err(failed)?;
    let objects = list.items.into_iter().map(RawValue::get);
    let wanted = objects.filter(|text| names.iter().any(|name| text.contains(name)));
    wanted
        .map(|text| serde_json::from_str(text).map_err(failed))
        .collect()
}

/// Returns the parts of the list in `item` that kpx was not allowed to read, as kpx recorded them; empty for a list
/// that kpx did not write.
pub fn missing(evidence: &Evidence, item: Item) -> Result<Vec<String>, Gap> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        metadata: ListMetadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ListMetadata {
        missing: Vec<String>,
    }
    let head: Head =
        serde_json::from_str(evidence.text(item)?).map_err(|e| Gap::Failed(item, e.to_string()))?;
    Ok(head.metadata.missing)
}

/// A list as printed by the API server or kubectl.
#[derive(Clone, Debug, Deserialize)]
pub struct List<T> {
    /// Objects of the list.
    pub items: Vec<T>,
}

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// `metadata` of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// Namespace of the object; empty for a cluster-wide object.
    pub namespace: String,
    /// Unique ID of the object.
    pub uid: String,
    /// Resource version, required to update the object.
    pub resource_version: String,
    /// Creation time, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Deletion time, RFC 3339; set while the object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Labels of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// Annotations of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Labels,
    /// Owner references.
    #[serde(rename = "ownerReferences", deserialize_with = "null_is_default")]
    pub owners: Vec<Owner>,
    /// Writers of the object's fields.
    #[serde(deserialize_with = "null_is_default")]
    pub managed_fields: Vec<ManagedFields>,
}

impl Metadata {
    /// Returns the time of the last recorded write.
    pub fn last_edit(&self) -> Option<Time> {
        let edits = self.managed_fields.iter().map(|of| of.time.as_deref());
        let times = edits.chain([self.creation_timestamp.as_deref()]);
        times.filter_map(|time| time?.parse().ok()).max()
    }
}

/// An entry of `managedFields`: one writer of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    /// Time of the writer's last change, RFC 3339.
    pub time: Option<String>,
}

/// An owner reference.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Kind of the owner: `ReplicaSet`, `DaemonSet`, …
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Whether the owner is the controller, which recreates the object.
    pub controller: bool,
}

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

/// An EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Name, namespace, labels (`kubernetes.io/service-name`).
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: String,
    /// Endpoints of the slice.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// Ports of every endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// IP addresses; only the first one is used.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// Host name in DNS.
    pub hostname: Option<String>,
    /// State of the endpoint: ready, serving, terminating.
    pub conditions: Conditions,
    /// Name of the node it runs on.
    pub node_name: Option<String>,
    /// Zone it runs in.
    pub zone: Option<String>,
    /// Topology hints.
    pub hints: Option<Hints>,
    /// The pod behind it.
    pub target_ref: Option<TargetRef>,
}

/// Conditions of an endpoint; an unset condition has the API's default.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conditions {
    /// Unset means ready.
    pub ready: Option<bool>,
    /// Unset means serving.
    pub serving: Option<bool>,
    /// Unset means not terminating.
    pub terminating: Option<bool>,
}

/// Topology hints.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    /// Zones that the endpoint is meant for.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Named>,
    /// Nodes that the endpoint is meant for.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Named>,
}

/// A reference to an object by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Name of the object.
    pub name: String,
}

/// The object behind an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// Kind of the object, usually `Pod`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the port; unset and empty are different.
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`; unset means `TCP`.
    pub protocol: Option<String>,
    /// Port number; unset means all ports.
    pub port: Option<u16>,
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels (zone).
    pub metadata: Metadata,
    /// Pod prefixes of the node.
    pub spec: NodeSpec,
    /// Addresses and versions.
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// First pod prefix.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    /// Pod prefixes, one per family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
    /// Whether the node is cordoned.
    pub unschedulable: Option<bool>,
    /// ID of the machine at the cloud provider.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// `status` of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Addresses of the node.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<NodeAddress>,
    /// Versions and IDs reported by the kubelet.
    pub node_info: NodeInfo,
    /// Conditions: `Ready`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// An address of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// IP address or name.
    pub address: String,
}

/// Versions and IDs reported by the kubelet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Kernel release.
    pub kernel_version: String,
    /// Version of the kubelet.
    pub kubelet_version: String,
    /// kube-proxy's version as assumed by the kubelet (removed in newer releases).
    pub kube_proxy_version: String,
    /// Name of the distribution.
    pub os_image: String,
    /// Machine ID, from `/etc/machine-id`.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// Boot ID of the kernel.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// UUID of the hardware.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Name and version.
    pub metadata: Metadata,
    /// File contents by name.
    #[serde(deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, String>,
    /// Whether the ConfigMap can no longer be changed.
    #[serde(deserialize_with = "null_is_default")]
    pub immutable: bool,
}

/// A Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name and labels.
    pub metadata: Metadata,
    /// Node and containers.
    pub spec: PodSpec,
    /// Phase, addresses and container states.
    pub status: PodStatus,
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Name of the node.
    pub node_name: Option<String>,
    /// Whether the pod uses the node's network namespace.
    pub host_network: bool,
    /// Containers of the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Volumes, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<serde_json::Value>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Entry point.
    #[serde(deserialize_with = "null_is_default")]
    pub command: Vec<String>,
    /// Arguments of the entry point.
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    /// Ports, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<serde_json::Value>,
    /// Readiness probe, as written.
    pub readiness_probe: Option<serde_json::Value>,
    /// Volume mounts, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volume_mounts: Vec<serde_json::Value>,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Running`, …
    pub phase: String,
    /// First IP address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// IP addresses, one per family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
    /// State of each container.
    #[serde(deserialize_with = "null_is_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Conditions: `Ready`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// A condition of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `Ready`, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Details of the condition.
    pub message: String,
}

/// State of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// Number of restarts.
    pub restart_count: u32,
    /// Current state.
    pub state: ContainerState,
    /// State before the last restart.
    pub last_state: ContainerState,
}

/// State of a container: waiting, running or terminated.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set while the container waits to start.
    pub waiting: Option<ContainerWaiting>,
    /// Set after the container has ended.
    pub terminated: Option<ContainerTerminated>,
}

/// Details of a waiting container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerWaiting {
    /// `CrashLoopBackOff`, ….
    pub reason: Option<String>,
    /// Details of the reason.
    pub message: Option<String>,
}

/// Details of a terminated container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTerminated {
    /// `Error`, `OOMKilled`, `Completed`, ….
    pub reason: Option<String>,
    /// Exit status.
    pub exit_code: i32,
}

/// An address of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// IP address.
    pub ip: String,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Name and labels.
    pub metadata: Metadata,
    /// Specification of the DaemonSet.
    pub spec: DaemonSetSpec,
}

/// `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    /// Pod template.
    pub template: PodTemplate,
    /// Update strategy, as written.
    pub update_strategy: serde_json::Value,
}

/// A pod template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels of the pods.
    pub metadata: Metadata,
    /// Specification of the pods.
    pub spec: PodSpec,
}

/// Deserializes `null` as the default, as the API server's Go types do.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
