//! `KubeProxyConfiguration`, as kube-proxy reads it.
//!
//! Fields hold the values as written; the methods return the values in force. Unset, `null`, `""` and `0s` all mean
//! "not set", as in kubeadm's rendering.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_yaml::{DuplicateKeyPolicy, UserMessageFormatter};

use crate::evidence::{Gap, Item};
use crate::net::{Cidr, Family};

/// First words of a recorded configuration that is not from a file of the node; the rest of the line names its source.
pub const ORIGIN: &str = "# From ";

/// Port of `/healthz` by default.
pub const HEALTHZ_PORT: u16 = 10256;

/// A mode of kube-proxy.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Mode {
    /// Chains of `KUBE-*` rules.
    Iptables,
    /// Virtual servers, kube-ipvs0, IP sets, and a few rules.
    Ipvs,
    /// The nftables table `kube-proxy`.
    Nftables,
    /// Portals: `KUBE-PORTALS-*` and `KUBE-NODEPORT-*` rules that lead to ports of the process. Removed in 1.26.
    Userspace,
}

impl Mode {
    /// Every mode that kube-proxy still has: a node can be switched to each.
    pub const ALL: [Self; 3] = [Self::Iptables, Self::Ipvs, Self::Nftables];

    /// Every mode that a node may run in, old ones included.
    pub const EVER: [Self; 4] = [Self::Iptables, Self::Ipvs, Self::Nftables, Self::Userspace];

    /// Returns the mode with the name `name`, as kube-proxy's configuration spells it.
    pub fn named(name: &str) -> Option<Self> {
        Self::EVER.into_iter().find(|mode| mode.name() == name)
    }

    /// Returns the name kube-proxy's configuration uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

impl Mode {
    /// Returns the section of kube-proxy's configuration with the mode's sync periods.
    pub const fn section(self) -> &'static str {
        match self {
            Self::Iptables | Self::Userspace => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <Box<str>>::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("{name:?} is not a mode")))
    }
}

/// An element of `nodePortAddresses`. Since 1.37 a list may have several words; before, `primary` stood alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodePortsAt {
    /// `primary`: the addresses that the Node object has first.
    Primary,
    /// `localhost`: loopback addresses.
    Localhost,
    /// `all`: every address of the node.
    All,
    /// A prefix.
    Prefix(Cidr),
}

impl NodePortsAt {
    /// Returns the prefix of loopback addresses of `family`.
    pub fn loopback(family: Family) -> Cidr {
        match family {
            Family::V4 => Cidr {
                addr: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
                prefix: 8,
            },
            Family::V6 => Cidr::host(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        }
    }
}

impl FromStr for NodePortsAt {
    type Err = <Cidr as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.trim() {
            "primary" => Self::Primary,
            "localhost" => Self::Localhost,
            "all" => Self::All,
            prefix => Self::Prefix(prefix.parse()?),
        })
    }
}

/// `kubeproxy.config.k8s.io/v1alpha1`, with the fields that matter to kpx.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfig {
    /// Proxy mode: `iptables`, `ipvs`, `nftables`, up to 1.25 `userspace`, or empty for the default.
    #[serde(deserialize_with = "or_default")]
    pub mode: String,
    /// Node name that overrides the host name.
    #[serde(deserialize_with = "or_default")]
    pub hostname_override: String,
    /// Address that overrides the node's own; wildcards are ignored.
    #[serde(deserialize_with = "or_default")]
    pub bind_address: String,
    /// Listen address of `/healthz`.
    pub healthz_bind_address: Option<String>,
    /// Listen address of `/metrics` and `/proxyMode`.
    #[serde(deserialize_with = "or_default")]
    pub metrics_bind_address: String,
    /// Pod prefixes, separated by commas.
    #[serde(rename = "clusterCIDR", deserialize_with = "or_default")]
    pub cluster_cidr: String,
    /// `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`; empty means `ClusterCIDR`.
    #[serde(deserialize_with = "or_default")]
    pub detect_local_mode: String,
    /// Interface names for the last two local modes.
    #[serde(deserialize_with = "or_default")]
    pub detect_local: DetectLocal,
    /// Addresses that accept NodePort traffic: prefixes, `primary`, `localhost` or `all`.
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
    /// Connection to the API server.
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
    /// Bridge name, for `BridgeInterface`.
    #[serde(deserialize_with = "or_default")]
    pub bridge_interface: String,
    /// Interface name prefix, for `InterfaceNamePrefix`.
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
    /// Maximum interval between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// Minimum interval between two syncs, a Go duration.
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
    /// Prefixes of virtual servers that kube-proxy does not manage.
    #[serde(rename = "excludeCIDRs", deserialize_with = "or_default")]
    pub exclude_cidrs: Vec<String>,
    /// Whether kube-proxy restricts ARP to the addresses of each link.
    #[serde(rename = "strictARP", deserialize_with = "or_default")]
    pub strict_arp: bool,
    /// Maximum interval between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// Minimum interval between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub min_sync_period: String,
    /// IPVS timeout of idle TCP connections, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub tcp_timeout: String,
    /// IPVS timeout of TCP connections after FIN, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub tcp_fin_timeout: String,
    /// IPVS timeout of UDP, a Go duration.
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
    /// Maximum interval between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub sync_period: String,
    /// Minimum interval between two syncs, a Go duration.
    #[serde(deserialize_with = "or_default")]
    pub min_sync_period: String,
}

/// `conntrack`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConntrackSection {
    /// Conntrack entries per core; 32768 by default.
    pub max_per_core: Option<u32>,
    /// Minimum number of conntrack entries; 131072 by default.
    pub min: Option<u32>,
    /// Timeout of established TCP connections, a Go duration; 24 h by default.
    pub tcp_established_timeout: Option<String>,
    /// Timeout of TCP connections in `CLOSE_WAIT`, a Go duration; 1 h by default.
    pub tcp_close_wait_timeout: Option<String>,
    /// Whether conntrack accepts out-of-window packets.
    #[serde(deserialize_with = "or_default")]
    pub tcp_be_liberal: bool,
    /// Timeout of unanswered UDP flows, a Go duration; the kernel's own by default.
    pub udp_timeout: Option<String>,
    /// Timeout of answered UDP flows, a Go duration; the kernel's own by default.
    pub udp_stream_timeout: Option<String>,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// Path of the kubeconfig file.
    #[serde(deserialize_with = "or_default")]
    pub kubeconfig: String,
    /// Requests per second; 0 for the default.
    #[serde(deserialize_with = "or_default")]
    pub qps: f64,
    /// Requests at once; 0 for the default.
    #[serde(deserialize_with = "or_default")]
    pub burst: i64,
}

impl ClientConnection {
    /// Returns the seconds between requests, if these are longer than usual, and the first requests of kube-proxy are more than it sends
    /// at once.
    pub fn seconds_between(&self) -> Option<f64> {
        const FIRST_REQUESTS: i64 = 5;
        let is_slow = self.qps > 0.0 && self.qps < 1.0;
        (is_slow && (1..FIRST_REQUESTS).contains(&self.burst)).then(|| 1.0 / self.qps)
    }
}

/// Parses a configuration as written, without filling in defaults.
pub fn written(text: &str) -> Result<serde_json::Value, Gap> {
    let written: serde_json::Value = settings(text)?;
    if !written.is_object() {
        let why = "it has no settings".to_owned();
        return Err(Gap::Failed(Item::ProxyConfig, why));
    }
    Ok(written)
}

/// Parses a file of settings. kube-proxy refuses one without any, which has no `kind`.
fn settings<T: DeserializeOwned>(text: &str) -> Result<T, Gap> {
    let failed = |what| Gap::Failed(Item::ProxyConfig, what);
    let settings: Option<T> = yaml(text).map_err(failed)?;
    settings.ok_or_else(|| failed("it has no settings".to_owned()))
}

/// Returns whether kube-proxy can read `text`.
pub fn is_readable(text: &str) -> bool {
    yaml::<serde_json::Value>(text).is_ok_and(|value| value.is_object())
}

/// Parses YAML or JSON as kube-proxy does: of several documents, the first; of several values of a key, the last. An error is one
/// line, with the position in `text`.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_yaml::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let mut bytes = text.as_bytes();
    let first = serde_yaml::read_with_options(&mut bytes, options).next();
    // A text without a document is parsed for its error, or as empty.
    let value = first.unwrap_or_else(|| serde_yaml::from_str(text));
    value.map_err(|error: serde_yaml::Error| {
        let error = error.without_snippet();
        error.render_with_formatter(&UserMessageFormatter)
    })
}

impl ProxyConfig {
    /// Returns the address at which kube-proxy serves `/healthz`; `None` if it is not a valid one.
    pub fn healthz_bind(&self) -> Option<SocketAddr> {
        let wildcard = match self.bind_address.parse() {
            Ok(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let default = SocketAddr::new(wildcard, HEALTHZ_PORT);
        match self.healthz_bind_address.as_deref().map_or("", str::trim) {
            "" => Some(default),
            bind => bind.parse().ok().or_else(|| {
                let addr = bind.parse().ok()?;
                Some(SocketAddr::new(addr, HEALTHZ_PORT))
            }),
        }
    }

    /// Returns the maximum interval between two syncs in `mode`.
    pub fn sync_period(&self, mode: Mode) -> Duration {
        let text = match mode {
            Mode::Iptables | Mode::Userspace => &self.iptables.sync_period,
            Mode::Ipvs => &self.ipvs.sync_period,
            Mode::Nftables => &self.nftables.sync_period,
        };
        let period = go_duration(text).filter(|period| !period.is_zero());
        period.unwrap_or(Duration::from_secs(30))
    }

    /// Reads YAML or JSON. A text without settings is a gap.
    pub fn parse(text: &str) -> Result<Self, Gap> {
        settings(text)
    }

    /// Returns the shortest and the longest time between two syncs in `mode`, as durations of Go: `1s`.
    pub fn periods_of(&self, mode: Mode) -> (&str, &str) {
        let (least, most) = match mode {
            Mode::Iptables | Mode::Userspace => {
                (&self.iptables.min_sync_period, &self.iptables.sync_period)
            }
            Mode::Ipvs => (&self.ipvs.min_sync_period, &self.ipvs.sync_period),
            Mode::Nftables => (&self.nftables.min_sync_period, &self.nftables.sync_period),
        };
        (least, most)
    }

    /// Returns the configured mode: iptables if none is set, `None` if the value is not a mode.
    pub fn mode_asked(&self) -> Option<Mode> {
        match self.mode.as_str() {
            "" => Some(Mode::Iptables),
            name => Mode::named(name),
        }
    }

    /// Returns the bit of the masquerade mark in `mode`.
    pub fn masquerade_bit(&self, mode: Mode) -> u8 {
        let bit = match mode {
            Mode::Iptables | Mode::Ipvs | Mode::Userspace => self.iptables.masquerade_bit,
            Mode::Nftables => self.nftables.masquerade_bit,
        };
        bit.unwrap_or(14)
    }

    /// Returns whether all Service traffic is masqueraded in `mode`.
    pub fn masquerade_all(&self, mode: Mode) -> bool {
        match mode {
            Mode::Iptables | Mode::Ipvs => self.iptables.masquerade_all,
            Mode::Nftables => self.nftables.masquerade_all,
            // kube-proxy opens the connections to endpoints itself.
            Mode::Userspace => false,
        }
    }

    /// Returns the addresses that accept NodePort traffic in `mode`; invalid values are ignored.
    pub fn node_ports_at(&self, mode: Mode) -> Vec<NodePortsAt> {
        if self.node_port_addresses.is_empty() {
            return vec![match mode {
                Mode::Nftables => NodePortsAt::Primary,
                Mode::Iptables | Mode::Ipvs | Mode::Userspace => NodePortsAt::All,
            }];
        }
        let words = self.node_port_addresses.iter();
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Returns whether `nodePortAddresses` names loopback addresses of `family` itself: a prefix of every address does not.
    pub fn names_loopback(&self, mode: Mode, family: Family) -> bool {
        let first = NodePortsAt::loopback(family).addr;
        self.node_ports_at(mode).iter().any(|at| match at {
            NodePortsAt::Localhost => true,
            NodePortsAt::Prefix(cidr) => {
                let overlaps = cidr.normal().addr.is_loopback() || cidr.contains(first);
                cidr.family() == family && cidr.prefix > 0 && overlaps
            }
            NodePortsAt::Primary | NodePortsAt::All => false,
        })
    }

    /// Returns the scheduler of virtual servers, `rr` by default.
    pub fn scheduler(&self) -> &str {
        match self.ipvs.scheduler.as_str() {
            "" => "rr",
            set => set,
        }
    }

    /// Returns the prefixes of virtual servers that kube-proxy does not manage.
    pub fn exclude_cidrs(&self) -> Vec<Cidr> {
        let words = self.ipvs.exclude_cidrs.iter();
        words.filter_map(|word| word.trim().parse().ok()).collect()
    }

    /// Returns the first pod prefix of `family`, host bits cleared.
    pub fn cluster_cidr(&self, family: Family) -> Option<Cidr> {
        first_of(family, self.cluster_cidr.split(','))
    }

    /// Returns the address that overrides the node's own; `None` for a wildcard.
    pub fn bind_address(&self) -> Option<IpAddr> {
        let addr: IpAddr = self.bind_address.trim().parse().ok()?;
        (!addr.is_unspecified()).then_some(addr)
    }

    /// Returns the family of the address that kube-proxy binds to, which is the primary one.
    pub fn bind_family(&self) -> Family {
        let addr = self.bind_address.trim().parse();
        addr.map_or(Family::V4, Family::of)
    }

    /// Returns whether the feature gate `name` is on; `default` if it is not set.
    pub fn gate(&self, name: &str, default: bool) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(default)
    }
}

/// Returns the first prefix of `family` among `words`, host bits cleared; words that are not prefixes are ignored.
pub fn first_of<'a>(family: Family, words: impl IntoIterator<Item = &'a str>) -> Option<Cidr> {
    let mut cidrs = words
        .into_iter()
        .filter_map(|word| word.trim().parse::<Cidr>().ok());
    cidrs.find(|cidr| cidr.family() == family).map(Cidr::normal)
}

/// Parses a Go duration: `30s`, `1h0m0s`, `1.5h`, `100ms`, `0`.
pub fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.trim().is_empty())
        .then(|| Duration::try_from_secs_f64(seconds).ok())
        .flatten()
}

/// Deserializes `null` as the default.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        let seconds = |text| go_duration(text).map(|d| d.as_secs_f64());
        assert_eq!(seconds("1h0m30s"), Some(3630.0));
        assert_eq!(seconds("250ms"), Some(0.25));
        assert_eq!(seconds("0s"), Some(0.0));
        assert_eq!(seconds("0"), Some(0.0));
        assert_eq!(seconds(""), None);
        assert_eq!(seconds("10"), None);
        assert_eq!(seconds("1d"), None);
    }

    #[test]
    fn the_first_document_counts_and_the_last_value_of_a_key() {
        let mode = |text| ProxyConfig::parse(text).map(|config| config.mode);
        assert_eq!(mode("mode: ipvs\n---\n").as_deref(), Ok("ipvs"));
        assert_eq!(
            mode("---\nmode: ipvs\n---\nmode: [\n").as_deref(),
            Ok("ipvs")
        );
        assert_eq!(mode("mode: iptables\nmode: ipvs\n").as_deref(), Ok("ipvs"));
        assert!(mode("mode: ipvs\n\tportRange: \"\"\n").is_err());
        assert!(mode("---\n").is_err());
    }

    #[test]
    fn unset_values_use_the_defaults() {
        let config =
            ProxyConfig::parse("mode: \"\"\nclusterCIDR: \" 10.1.2.3/16 ,fd00::/48\"\n").unwrap();
        assert_eq!(config.mode_asked(), Some(Mode::Iptables));
        assert_eq!(config.masquerade_bit(Mode::Ipvs), 14);
        assert_eq!(config.scheduler(), "rr");
        assert_eq!(config.cluster_cidr(Family::V4), "10.1.0.0/16".parse().ok());
        assert_eq!(config.cluster_cidr(Family::V6), "fd00::/48".parse().ok());
        assert_eq!(config.node_ports_at(Mode::Nftables), [NodePortsAt::Primary]);
        assert_eq!(config.node_ports_at(Mode::Iptables), [NodePortsAt::All]);
    }

    #[test]
    fn an_error_is_one_line_with_its_position() {
        let text = "mode: \"\"\nportRange: \"\"# ours\n";
        let what =
            "comments must be separated from other tokens by whitespace at line 2, column 14";
        let gap = Gap::Failed(Item::ProxyConfig, what.to_owned());
        assert_eq!(ProxyConfig::parse(text).unwrap_err(), gap);
    }

    #[test]
    fn node_port_addresses_may_mix_words_and_prefixes() {
        let text = "nodePortAddresses: [primary, localhost, all, 10.0.0.0/8, elsewhere]";
        let config = ProxyConfig::parse(text).unwrap();
        assert_eq!(
            config.node_ports_at(Mode::Nftables),
            [
                NodePortsAt::Primary,
                NodePortsAt::Localhost,
                NodePortsAt::All,
                NodePortsAt::Prefix("10.0.0.0/8".parse().unwrap())
            ]
        );
    }
}
