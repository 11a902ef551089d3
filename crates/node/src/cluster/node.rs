//! Nodes.

use serde::Deserialize;

use super::metadata::null_is_default;
use super::{Condition, Metadata};

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
    /// Taints of the node.
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<Taint>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key of the taint.
    pub key: String,
    /// Its value; empty without one.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
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
