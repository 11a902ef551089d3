//! `KubeProxyConfiguration`, as kube-proxy reads it.
//!
//! Fields keep what was written; the methods give what is in force. Unset, `null`, `""` and `0s` all mean "not set",
//! as in kubeadm's rendering.

use serde::{Deserialize, Deserializer};

use crate::evidence::{Gap, Item};

/// `kubeproxy.config.k8s.io/v1alpha1`, with the fields that matter to kpx.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfig {
    /// `iptables`, `ipvs`, `nftables`, or empty for the default.
    #[serde(deserialize_with = "or_default")]
    pub mode: String,
    /// The node's name, where it is not the host's.
    #[serde(deserialize_with = "or_default")]
    pub hostname_override: String,
    /// The address that replaces the node's; wildcards do not.
    #[serde(deserialize_with = "or_default")]
    pub bind_address: String,
    /// Where `/healthz` listens.
    pub healthz_bind_address: Option<String>,
    /// Where `/metrics` and `/proxyMode` listen.
    #[serde(deserialize_with = "or_default")]
    pub metrics_bind_address: String,
    /// Pod prefixes, separated by commas.
    #[serde(rename = "clusterCIDR", deserialize_with = "or_default")]
    pub cluster_cidr: String,
    /// `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`; empty means `ClusterCIDR`.
    #[serde(deserialize_with = "or_default")]
    pub detect_local_mode: String,
    /// Names for the last two.
    #[serde(deserialize_with = "or_default")]
    pub detect_local: DetectLocal,
    /// Prefixes whose addresses take NodePort traffic, or `primary`.
    #[serde(deserialize_with = "or_default")]
    pub node_port_addresses: Vec<String>,
    /// The `iptables` section.
    #[serde(deserialize_with = "or_default")]
    pub iptables: IptablesSection,
    /// The `ipvs` section.
    #[serde(deserialize_with = "or_default")]
    pub ipvs: IpvsSection,
    /// The `nftables` section.
    #[serde(deserialize_with = "or_default")]
    pub nftables: NftablesSection,
    /// The `conntrack` section.
    #[serde(deserialize_with = "or_default")]
    pub conntrack: ConntrackSection,
    /// Where kube-proxy finds the API server.
    #[serde(deserialize_with = "or_default")]
    pub client_connection: ClientConnection,
    /// Feature gates.
    #[serde(deserialize_with = "or_default")]
    pub feature_gates: std::collections::BTreeMap<String, bool>,
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// For `BridgeInterface`.
    #[serde(deserialize_with = "or_default")]
    pub bridge_interface: String,
    /// For `InterfaceNamePrefix`.
    #[serde(deserialize_with = "or_default")]
    pub interface_name_prefix: String,
}

/// `iptables`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IptablesSection {
    /// The bit of the masquerade mark; 14 by default.
    pub masquerade_bit: Option<u8>,
    /// Whether all Service traffic is masqueraded.
    #[serde(deserialize_with = "or_default")]
    pub masquerade_all: bool,
    /// Whether NodePorts answer on 127.0.0.0/8; true by default.
    pub localhost_node_ports: Option<bool>,
    /// The longest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// The shortest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub min_sync_period: String,
}

/// `ipvs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpvsSection {
    /// The scheduler; empty means `rr`.
    #[serde(deserialize_with = "or_default")]
    pub scheduler: String,
    /// Virtual servers kube-proxy leaves alone.
    #[serde(rename = "excludeCIDRs", deserialize_with = "or_default")]
    pub exclude_cidrs: Vec<String>,
    /// Whether ARP is restricted to the link's own addresses.
    #[serde(rename = "strictARP", deserialize_with = "or_default")]
    pub strict_arp: bool,
    /// The longest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// The shortest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub min_sync_period: String,
    /// A Go duration.
    #[serde(deserialize_with = "or_default")]
    pub tcp_timeout: String,
    /// A Go duration.
    #[serde(deserialize_with = "or_default")]
    pub tcp_fin_timeout: String,
    /// A Go duration.
    #[serde(deserialize_with = "or_default")]
    pub udp_timeout: String,
}

/// `nftables`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NftablesSection {
    /// The bit of the masquerade mark; 14 by default.
    pub masquerade_bit: Option<u8>,
    /// Whether all Service traffic is masqueraded.
    #[serde(deserialize_with = "or_default")]
    pub masquerade_all: bool,
    /// The longest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// The shortest time between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub min_sync_period: String,
}

/// `conntrack`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConntrackSection {
    /// Entries per core; 32768 by default.
    pub max_per_core: Option<u32>,
    /// Entries at least; 131072 by default.
    pub min: Option<u32>,
    /// A Go duration; 24 h by default.
    pub tcp_established_timeout: Option<String>,
    /// A Go duration; 1 h by default.
    pub tcp_close_wait_timeout: Option<String>,
    /// Whether out-of-window packets are tolerated.
    #[serde(deserialize_with = "or_default")]
    pub tcp_be_liberal: bool,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// The kubeconfig file.
    #[serde(deserialize_with = "or_default")]
    pub kubeconfig: String,
}

impl ProxyConfig {
    /// Reads YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, Gap> {
        serde_yaml::from_str(text).map_err(|e| Gap::Failed(Item::ProxyConfig, e.to_string()))
    }
}

/// Reads `null` as the default.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
