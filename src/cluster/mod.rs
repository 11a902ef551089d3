//! The cluster as kpx understands it: API objects as plain types, with only the fields that matter to a service proxy.
//!
//! Sources: the objects' JSON as the API server writes it (`kubectl get -o json`). Fields that are not named here are ignored.

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

/// Reads the list in `item`.
pub fn list<T: DeserializeOwned>(evidence: &Evidence, item: Item) -> Result<Vec<T>, Gap> {
    let list: List<T> =
        serde_json::from_str(evidence.text(item)?).map_err(|e| Gap::Failed(item, e.to_string()))?;
    Ok(list.items)
}

/// Reads those objects of the list in `item` in which one of `names` stands somewhere, and passes the others over.
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

/// Returns what kpx was not allowed to read of the list in `item`, in its own words; nothing for a list of others.
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

/// A list as the API server or kubectl writes it.
#[derive(Clone, Debug, Deserialize)]
pub struct List<T> {
    /// The objects.
    pub items: Vec<T>,
}

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// `metadata`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The name.
    pub name: String,
    /// The namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// The unique id.
    pub uid: String,
    /// The version to write back with.
    pub resource_version: String,
    /// When it was made, RFC 3339.
    pub creation_timestamp: Option<String>,
    /// Set while it is being deleted.
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: Labels,
    /// Annotations.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: Labels,
    /// Whom it belongs to.
    #[serde(rename = "ownerReferences", deserialize_with = "null_is_default")]
    pub owners: Vec<Owner>,
    /// Who wrote which fields, and when.
    #[serde(deserialize_with = "null_is_default")]
    pub managed_fields: Vec<ManagedFields>,
}

impl Metadata {
    /// Returns when the object was last written, as far as it tells.
    pub fn last_edit(&self) -> Option<Time> {
        let edits = self.managed_fields.iter().map(|of| of.time.as_deref());
        let times = edits.chain([self.creation_timestamp.as_deref()]);
        times.filter_map(|time| time?.parse().ok()).max()
    }
}

/// Who wrote which fields of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    /// When they last did, RFC 3339.
    pub time: Option<String>,
}

/// Whom an object belongs to.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// `ReplicaSet`, `DaemonSet`, …
    pub kind: String,
    /// The name.
    pub name: String,
    /// Whether it makes another one where this one is gone.
    pub controller: bool,
}

/// A range that cluster IPs come from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// The name.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: ServiceCidrSpec,
}

/// `spec` of a `ServiceCIDR`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// The prefixes, one per family.
    #[serde(deserialize_with = "null_is_default")]
    pub cidrs: Vec<String>,
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, namespace, labels.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: ServiceSpec,
    /// What the load balancer reported.
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
    /// External IPs.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Vec<String>,
    /// Where an `ExternalName` Service points.
    pub external_name: Option<String>,
    /// The ports.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ServicePort>,
    /// Which pods; `None` when endpoints are made by hand.
    pub selector: Option<Labels>,
    /// `ClientIP` or `None`.
    pub session_affinity: Option<String>,
    /// How long affinity lasts.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Option<String>,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// Prefixes that may use the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Vec<String>,
    /// Which load-balancer implementation.
    pub load_balancer_class: Option<String>,
    /// The port of the health-check server.
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
    /// For `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIp>,
}

/// `clientIP`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIp {
    /// Seconds.
    pub timeout_seconds: Option<u32>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// The name; empty for an unnamed port.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// The port.
    pub port: u16,
    /// The target: a number or a name.
    pub target_port: Option<serde_json::Value>,
    /// The NodePort.
    pub node_port: Option<u16>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// What the load balancer reported.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// The addresses.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Vec<Ingress>,
}

/// One load-balancer address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    /// The address.
    pub ip: Option<String>,
    /// The host name.
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
    /// The endpoints.
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    /// The ports, for every endpoint alike.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<EndpointPort>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// The addresses; only the first counts.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<String>,
    /// The host name that DNS has for it.
    pub hostname: Option<String>,
    /// Ready, serving, terminating.
    pub conditions: Conditions,
    /// The node it runs on.
    pub node_name: Option<String>,
    /// The zone it runs in.
    pub zone: Option<String>,
    /// Topology hints.
    pub hints: Option<Hints>,
    /// The pod behind it.
    pub target_ref: Option<TargetRef>,
}

/// Conditions of an endpoint; an unset one has the API's meaning, see the specification.
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
    /// Zones that should use the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Vec<Named>,
    /// Nodes that should use the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Vec<Named>,
}

/// An object with a name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    pub name: String,
}

/// What an endpoint stands for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    /// `Pod`, usually.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
}

/// A port of a slice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// The name; unset and empty differ.
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`; unset means `TCP`.
    pub protocol: Option<String>,
    /// The port; unset means all ports.
    pub port: Option<u16>,
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name and labels (zone).
    pub metadata: Metadata,
    /// Pod prefixes.
    pub spec: NodeSpec,
    /// Addresses and versions.
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The first pod prefix.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    /// Pod prefixes, one per family.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
    /// Whether no pods are sent there.
    pub unschedulable: Option<bool>,
    /// The provider's id of the machine.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// `status` of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// The addresses.
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<NodeAddress>,
    /// Versions the kubelet reports.
    pub node_info: NodeInfo,
    /// What is the case: `Ready`, ….
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
    /// The address.
    pub address: String,
}

/// Versions the kubelet reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// The kernel's release.
    pub kernel_version: String,
    /// The kubelet's version.
    pub kubelet_version: String,
    /// The version the kubelet takes kube-proxy to have (removed in newer releases).
    pub kube_proxy_version: String,
    /// The distribution.
    pub os_image: String,
    /// The machine's id, as in `/etc/machine-id`.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// The id of the kernel's boot.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The id of the hardware.
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Name and version.
    pub metadata: Metadata,
    /// Files by name.
    #[serde(deserialize_with = "null_is_default")]
    pub data: BTreeMap<String, String>,
    /// Whether nobody can change it.
    #[serde(deserialize_with = "null_is_default")]
    pub immutable: bool,
}

/// A Pod, as far as it says which version of what runs where.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name and labels.
    pub metadata: Metadata,
    /// Where it runs and what.
    pub spec: PodSpec,
    /// Its addresses.
    pub status: PodStatus,
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node.
    pub node_name: Option<String>,
    /// Whether it uses the node's network.
    pub host_network: bool,
    /// The containers.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// The volumes, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<serde_json::Value>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// The name.
    pub name: String,
    /// The image.
    pub image: String,
    /// The command.
    #[serde(deserialize_with = "null_is_default")]
    pub command: Vec<String>,
    /// The arguments.
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    /// The ports.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<serde_json::Value>,
    /// What tells that it is ready, as written.
    pub readiness_probe: Option<serde_json::Value>,
    /// The mounts, as written.
    #[serde(deserialize_with = "null_is_default")]
    pub volume_mounts: Vec<serde_json::Value>,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Running`, …
    pub phase: String,
    /// The first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Addresses, one per family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
    /// The containers, as they are.
    #[serde(deserialize_with = "null_is_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// What is the case: `Ready`, ….
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// Something that is the case with an object, or not.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `Ready`, ….
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why.
    pub message: String,
}

/// A container, as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// The name.
    pub name: String,
    /// How often it was restarted.
    pub restart_count: u32,
    /// What it does.
    pub state: ContainerState,
    /// What it did before its last restart.
    pub last_state: ContainerState,
}

/// What a container does, or did.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set while it waits.
    pub waiting: Option<ContainerWaiting>,
    /// Set after its end.
    pub terminated: Option<ContainerTerminated>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerWaiting {
    /// `CrashLoopBackOff`, ….
    pub reason: Option<String>,
    /// What else there is to say.
    pub message: Option<String>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerTerminated {
    /// `Error`, `OOMKilled`, `Completed`, ….
    pub reason: Option<String>,
    /// Its exit status.
    pub exit_code: i32,
}

/// An address of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Name and labels.
    pub metadata: Metadata,
    /// The pods it makes.
    pub spec: DaemonSetSpec,
}

/// `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    /// The pods it makes.
    pub template: PodTemplate,
    /// How it replaces them, as written.
    pub update_strategy: serde_json::Value,
}

/// A template of pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Labels.
    pub metadata: Metadata,
    /// What runs.
    pub spec: PodSpec,
}

/// Reads `null` as the default, as the API server's Go types do.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
