//! Values that make kube-proxy refuse its configuration at start, so that its container crashes repeatedly.
//!
//! The rules follow `pkg/proxy/apis/config/validation` in Kubernetes 1.36, after the defaults of `v1alpha1`. Of feature gates, only
//! those that a known release removed or locked are validated; several words in `nodePortAddresses`, which depend on the release, are
//! not.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use serde::Serialize;
use serde_json::Value;

use super::config::{Mode, go_duration, written};
use super::release::{Change, RefusedGate, Release, refused_gate};
use super::version::Version;
use crate::evidence::Gap;
use crate::net::Family;

/// A field that kube-proxy refuses.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Refused {
    /// Path of the field in the configuration.
    pub field: String,
    /// Configured value.
    pub value: String,
    /// Values that kube-proxy accepts.
    pub allowed: &'static str,
}

impl Display for Refused {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            value,
            allowed,
        } = self;
        write!(f, "{field}: kube-proxy refuses {value}: {allowed}")
    }
}

const KIND: &str = "it must be KubeProxyConfiguration";
const API_VERSION: &str = "it must be kubeproxy.config.k8s.io/v1alpha1";
const UNKNOWN_GATE: &str = "this release does not know the feature gate: remove it";
const LOCKED_GATE: &str = "this release does not let the feature gate be off: remove it";
const BIT: &str = "it must be a number from 0 to 31";
const SCORE: &str = "it must be a number from -1000 to 1000";
const COUNT: &str = "it must be a number, 0 or more";
const LASTS: &str = "it must be a duration, 0 or more, such as 30s";
const MODES: &str = "it must be iptables, ipvs, nftables or empty";
const CIDR: &str = "each entry must be a prefix, such as 10.0.0.0/8";
const NODE_PORTS: &str =
    "each entry must be a prefix, or one of the words primary, localhost and all";
const CLUSTER: &str = "it must be one prefix, or one IPv4 and one IPv6 prefix separated by a comma";
const ADDRESS: &str = "it must be an IP address";
const ENDPOINT: &str = "it must be IP:PORT, [IP6]:PORT or an IP address";
const NAME: &str = "with this detectLocalMode it must not be empty";
const LOCAL: &str =
    "it must be ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix or empty";
const PERIOD: &str = "it must not be shorter than minSyncPeriod";

/// Returns the fields of the configuration `text` that kube-proxy refuses when it starts in `mode`. Without its `version`, fields
/// that only some releases refuse are omitted.
pub fn refused(text: &str, mode: Mode, version: Option<Version>) -> Result<Vec<Refused>, Gap> {
    let config = written(text)?;
    let mut validator = Validator {
        config: &config,
        found: Vec::new(),
    };
    validator.word("kind", KIND, |kind| kind == "KubeProxyConfiguration");
    validator.word("apiVersion", API_VERSION, |version| {
        version == "kubeproxy.config.k8s.io/v1alpha1"
    });
    if let Some(version) = version {
        validator.gates(mode, version);
    }
    validator.number("iptables.masqueradeBit", 0, 31, BIT);
    match mode {
        Mode::Iptables | Mode::Userspace => {}
        Mode::Ipvs => {
            for field in ["tcpTimeout", "tcpFinTimeout", "udpTimeout"] {
                validator.duration(&format!("ipvs.{field}"));
            }
            validator.list("ipvs.excludeCIDRs", CIDR, |all| {
                all.iter().all(|range| is_cidr(range))
            });
        }
        Mode::Nftables => validator.number("nftables.masqueradeBit", 0, 31, BIT),
    }
    validator.number("oomScoreAdj", -1000, 1000, SCORE);
    validator.number("conntrack.maxPerCore", 0, i64::MAX, COUNT);
    validator.number("conntrack.min", 0, i64::MAX, COUNT);
    validator.number("clientConnection.burst", 0, i64::MAX, COUNT);
    for field in [
        "conntrack.tcpEstablishedTimeout",
        "conntrack.tcpCloseWaitTimeout",
        "conntrack.udpTimeout",
        "conntrack.udpStreamTimeout",
        "configSyncPeriod",
    ] {
        validator.duration(field);
    }
    validator.periods(mode);
    validator.word("mode", MODES, |name| {
        Mode::named(name).is_some_and(|named| named != Mode::Userspace || mode == named)
    });
    validator.word("bindAddress", ADDRESS, |at| address(at).is_some());
    validator.word("healthzBindAddress", ENDPOINT, is_endpoint);
    validator.word("metricsBindAddress", ENDPOINT, is_endpoint);
    validator.list("nodePortAddresses", NODE_PORTS, |all| {
        let is_word = |text: &str| matches!(text, "primary" | "localhost" | "all");
        all.iter().all(|word| is_word(word) || is_cidr(word))
    });
    validator.local(version);
    Ok(validator.found)
}

/// A validation in progress.
struct Validator<'c> {
    config: &'c Value,
    found: Vec<Refused>,
}

impl<'c> Validator<'c> {
    /// Returns the value at `path`; `None` if it is not set.
    fn at(&self, path: &str) -> Option<&'c Value> {
        let mut place = self.config;
        for key in path.split('.') {
            place = place.get(key)?;
        }
        (!place.is_null()).then_some(place)
    }

    fn refuse(&mut self, field: &str, value: &Value, allowed: &'static str) {
        self.found.push(Refused {
            field: field.to_owned(),
            value: value.to_string(),
            allowed,
        });
    }

    fn number(&mut self, field: &str, least: i64, most: i64, allowed: &'static str) {
        if let Some(value) = self.at(field)
            && !value
                .as_i64()
                .is_some_and(|number| (least..=most).contains(&number))
        {
            self.refuse(field, value, allowed);
        }
    }

    /// Validates a string; an empty one means the default.
    fn word(&mut self, field: &str, allowed: &'static str, fits: impl Fn(&str) -> bool) {
        if let Some(value) = self.at(field)
            && !value
                .as_str()
                .is_some_and(|text| text.is_empty() || fits(text))
        {
            self.refuse(field, value, allowed);
        }
    }

    fn duration(&mut self, field: &str) {
        self.word(field, LASTS, |text| go_duration(text).is_some());
    }

    fn list(&mut self, field: &str, allowed: &'static str, fits: impl Fn(&[&str]) -> bool) {
        let Some(value) = self.at(field) else {
            return;
        };
        let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let words: Vec<&str> = all.iter().filter_map(Value::as_str).collect();
        if !value.is_array() || words.len() < all.len() || !fits(&words) {
            self.refuse(field, value, allowed);
        }
    }

    /// Validates the sync periods of `mode`. The defaults are 30 s, and a minimum of 1 s, or 0 for ipvs.
    fn periods(&mut self, mode: Mode) {
        let section = mode.section();
        let [long, short] =
            ["syncPeriod", "minSyncPeriod"].map(|field| format!("{section}.{field}"));
        self.duration(&long);
        self.duration(&short);
        let seconds = |field: &str, default: f64| {
            let set = self.at(field).and_then(Value::as_str);
            let set = set.and_then(go_duration).map(|time| time.as_secs_f64());
            set.filter(|seconds| *seconds > 0.0).unwrap_or(default)
        };
        let least = if mode == Mode::Ipvs { 0.0 } else { 1.0 };
        if seconds(&short, least) > seconds(&long, 30.0) {
            let value = self
                .at(&long)
                .cloned()
                .unwrap_or_else(|| Value::from("30s"));
            self.refuse(&long, &value, PERIOD);
        }
    }

    /// Validates feature gates. That of mode nftables is a requirement of the mode, where it runs in it.
    fn gates(&mut self, mode: Mode, version: Version) {
        let release = Release {
            major: version.major,
            minor: version.minor,
        };
        let gates = self.at("featureGates").and_then(Value::as_object);
        for (name, value) in gates.into_iter().flatten() {
            let is_of_mode = mode == Mode::Nftables && name == "NFTablesProxyMode";
            let Some(set) = value.as_bool().filter(|_| !is_of_mode) else {
                continue;
            };
            let allowed = match refused_gate(name, set, release) {
                Some(RefusedGate::Unknown(_)) => UNKNOWN_GATE,
                Some(RefusedGate::Locked(_)) => LOCKED_GATE,
                None => continue,
            };
            self.refuse(&format!("featureGates.{name}"), value, allowed);
        }
    }

    /// Validates the detection of local traffic.
    fn local(&mut self, version: Option<Version>) {
        let mode = self.at("detectLocalMode").and_then(Value::as_str);
        let mode = mode.unwrap_or_default();
        let always = version.is_some_and(|version| !version.has(Change::ClusterCidrOfLocalMode));
        if always || matches!(mode, "" | "ClusterCIDR") {
            self.word("clusterCIDR", CLUSTER, is_cluster_cidr);
        }
        let name = match mode {
            "" | "ClusterCIDR" | "NodeCIDR" => return,
            "BridgeInterface" => "detectLocal.bridgeInterface",
            "InterfaceNamePrefix" => "detectLocal.interfaceNamePrefix",
            _ => return self.word("detectLocalMode", LOCAL, |_| false),
        };
        let set = self.at(name).and_then(Value::as_str);
        if set.unwrap_or_default().is_empty() {
            self.refuse(name, &Value::from(""), NAME);
        }
    }
}

/// Parses an IPv4 address with leading zeros, as kube-proxy does, or an IPv6 address.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let parts = text.split('.').map(|part| {
        let short = part.trim_start_matches('0');
        if short.is_empty() && !part.is_empty() {
            "0"
        } else {
            short
        }
    });
    parts.collect::<Vec<_>>().join(".").parse().ok()
}

fn cidr_family(text: &str) -> Option<Family> {
    let (base, bits) = text.split_once('/')?;
    let family = Family::of(address(base)?);
    let bits: u8 = bits.parse().ok()?;
    (bits <= family.bits()).then_some(family)
}

fn is_cidr(text: &str) -> bool {
    cidr_family(text).is_some()
}

fn is_cluster_cidr(text: &str) -> bool {
    let families: Vec<_> = text
        .split(',')
        .map(|word| cidr_family(word.trim()))
        .collect();
    match families.as_slice() {
        [one] => one.is_some(),
        [Some(one), Some(other)] => one != other,
        _ => false,
    }
}

/// Returns whether `text` is a valid listen address; kube-proxy fills in a missing port.
fn is_endpoint(text: &str) -> bool {
    if address(text).is_some() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    address(host).is_some() && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, mode: Mode) -> Vec<String> {
        let text = format!("kind: KubeProxyConfiguration\n{text}\n");
        let refused = refused(&text, mode, None).unwrap();
        refused.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_masquerade_bit_out_of_range_is_refused_only_in_its_mode() {
        let text = "nftables:\n  masqueradeBit: 99";
        assert_eq!(
            said(text, Mode::Nftables),
            ["nftables.masqueradeBit: kube-proxy refuses 99: it must be a number from 0 to 31"]
        );
        assert_eq!(said(text, Mode::Iptables), Vec::<String>::new());
        assert_eq!(said("iptables:\n  masqueradeBit: -1", Mode::Ipvs).len(), 1);
        assert_eq!(
            said("iptables:\n  masqueradeBit: 3000", Mode::Ipvs).len(),
            1
        );
    }

    #[test]
    fn valid_values_are_not_refused() {
        for text in [
            "mode: \"\"\nbindAddress: 0.0.0.0\nmetricsBindAddress: 0.0.0.0\nhealthzBindAddress: \"[::]:10256\"",
            "bindAddress: 010.0.0.1\nnodePortAddresses: [primary]\noomScoreAdj: -999",
            "nodePortAddresses: [primary, localhost, 10.0.0.0/8]",
            "nodePortAddresses: [10.0.0.0/8, \"fd00::/8\"]\nconntrack: {min: 0, maxPerCore: null, udpTimeout: 0s}",
            "iptables: {syncPeriod: 0s, minSyncPeriod: 1s, masqueradeBit: 31}\nipvs: {excludeCIDRs: null}",
            "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.0.0.0/8,fd00::/48",
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            "clusterCIDR: \"\"\ndetectLocalMode: \"\"\nconfigSyncPeriod: 15m0s",
        ] {
            for mode in Mode::ALL {
                assert_eq!(said(text, mode), Vec::<String>::new(), "{text}");
            }
        }
    }

    #[test]
    fn the_userspace_mode_is_valid_only_while_it_runs() {
        assert_eq!(
            said("mode: userspace", Mode::Userspace),
            Vec::<String>::new()
        );
        for mode in Mode::ALL {
            assert_eq!(said("mode: userspace", mode).len(), 1, "{mode}");
        }
    }

    #[test]
    fn a_release_refuses_gates_that_it_does_not_know_or_has_locked() {
        let said = |text: &str, mode: Mode, minor: u16| {
            let text = format!("kind: KubeProxyConfiguration\n{text}\n");
            let refused = refused(&text, mode, Some(Version::new(1, minor, 0))).unwrap();
            refused
                .into_iter()
                .map(|refused| refused.field)
                .collect::<Vec<_>>()
        };
        for (gate, value, minor, is_refused) in [
            ("SupportIPVSProxyMode", "true", 20, false),
            ("SupportIPVSProxyMode", "true", 21, true),
            ("ProxyTerminatingEndpoints", "true", 29, false),
            ("ProxyTerminatingEndpoints", "false", 29, true),
            ("ProxyTerminatingEndpoints", "true", 30, true),
            ("NFTablesProxyMode", "false", 32, false),
            ("NFTablesProxyMode", "false", 33, true),
            ("NoSuchGate", "true", 36, false),
        ] {
            let found = said(
                &format!("featureGates: {{{gate}: {value}}}"),
                Mode::Iptables,
                minor,
            );
            assert_eq!(
                !found.is_empty(),
                is_refused,
                "{gate} {value} {minor}: {found:?}"
            );
        }
        let gate = "featureGates: {NFTablesProxyMode: false}";
        assert!(said(gate, Mode::Nftables, 33).is_empty());
        let cidr = "detectLocalMode: NodeCIDR\nclusterCIDR: 10.244.0.0";
        assert_eq!(said(cidr, Mode::Iptables, 31), ["clusterCIDR"]);
        assert!(said(cidr, Mode::Iptables, 32).is_empty());
    }

    #[test]
    fn each_invalid_field_is_refused() {
        for (text, field) in [
            ("mode: userspace", "mode"),
            ("apiVersion: kubeproxy.config.k8s.io/v1", "apiVersion"),
            ("clusterCIDR: 10.244.0.0", "clusterCIDR"),
            ("oomScoreAdj: 2000", "oomScoreAdj"),
            ("conntrack: {min: -1}", "conntrack.min"),
            ("conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout"),
            ("bindAddress: node1", "bindAddress"),
            (
                "metricsBindAddress: \"0.0.0.0:70000\"",
                "metricsBindAddress",
            ),
            (
                "nodePortAddresses: [secondary, 10.0.0.0/8]",
                "nodePortAddresses",
            ),
            ("nodePortAddresses: [10.0.0.1]", "nodePortAddresses"),
            ("ipvs: {excludeCIDRs: [10.0.0.0]}", "ipvs.excludeCIDRs"),
            ("ipvs: {tcpTimeout: soon}", "ipvs.tcpTimeout"),
            (
                "ipvs: {syncPeriod: 5s, minSyncPeriod: 10s}",
                "ipvs.syncPeriod",
            ),
            ("detectLocalMode: Bridge", "detectLocalMode"),
            (
                "detectLocalMode: InterfaceNamePrefix",
                "detectLocal.interfaceNamePrefix",
            ),
            (
                "detectLocalMode: ClusterCIDR\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8",
                "clusterCIDR",
            ),
        ] {
            let said = said(text, Mode::Ipvs);
            assert_eq!(said.len(), 1, "{text}: {said:?}");
            assert!(said[0].starts_with(&format!("{field}: ")), "{said:?}");
        }
    }
}
