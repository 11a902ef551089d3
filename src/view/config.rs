//! kube-proxy's version, mode and settings in force.

use serde::Serialize;
use serde_json::Value;

use super::known::or_null;
use super::{Gaps, mode::Relevant};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::written;
use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::version::ProxyVersion;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::mode::Leftover;

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// `null` if unknown.
    #[serde(serialize_with = "or_null")]
    #[cfg_attr(test, schemars(with = "Option<ProxyVersion>"))]
    pub(crate) version: Result<ProxyVersion, Gap>,
    pub(crate) mode: ModeThreeWays,
    /// Empty if the configuration is unknown.
    pub(crate) settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModeThreeWays {
    /// The mode in kube-proxy's configuration; `null` if unknown.
    #[serde(serialize_with = "or_null")]
    #[cfg_attr(test, schemars(with = "Option<Mode>"))]
    pub(crate) configured: Result<Mode, Gap>,
    /// The mode that kube-proxy reports; `null` if unknown.
    #[serde(serialize_with = "or_null")]
    #[cfg_attr(test, schemars(with = "Option<Mode>"))]
    pub(crate) reported: Result<Mode, Gap>,
    /// The modes in the kernel, by family.
    pub(crate) observed: Vec<ObservedModes>,
    pub(crate) leftovers: Vec<Leftover>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObservedModes {
    pub(crate) family: Family,
    /// Modes whose rules dispatch packets to Services; `null` if unknown.
    pub(crate) serving: Option<Vec<Mode>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The value in force; empty if unset.
    pub(crate) value: String,
    pub(crate) from: Origin,
    /// The value in the configuration file if another one is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) in_file: Option<String>,
}

/// The source of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Origin {
    /// The configuration file or ConfigMap.
    Config,
    /// A flag of kube-proxy's command line.
    Flag,
    /// `/configz` of the running kube-proxy.
    Running,
    /// kube-proxy's default.
    Default,
}

const ALL: &[Mode] = &Mode::EVER;
const LOCAL: &[Mode] = &Mode::ALL;
const USERSPACE: &[Mode] = &[Mode::Userspace];
const SYNCED: &[Mode] = &[Mode::Iptables, Mode::Userspace];
const RULES: &[Mode] = &[Mode::Iptables, Mode::Ipvs];
const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFT: &[Mode] = &[Mode::Nftables];

/// Settings with their defaults and modes; `~` stands for a default that depends on other settings.
#[rustfmt::skip]
const SETTINGS: &[(&str, &str, &[Mode])] = &[
    ("bindAddress", "0.0.0.0", ALL),
    ("clusterCIDR", "", LOCAL),
    ("configSyncPeriod", "15m0s", ALL),
    ("conntrack.maxPerCore", "32768", ALL),
    ("conntrack.min", "131072", ALL),
    ("conntrack.tcpBeLiberal", "false", ALL),
    ("conntrack.tcpCloseWaitTimeout", "1h0m0s", ALL),
    ("conntrack.tcpEstablishedTimeout", "24h0m0s", ALL),
    ("conntrack.udpStreamTimeout", "0s", ALL),
    ("conntrack.udpTimeout", "0s", ALL),
    ("detectLocal.bridgeInterface", "", LOCAL),
    ("detectLocal.interfaceNamePrefix", "", LOCAL),
    ("detectLocalMode", "ClusterCIDR", LOCAL),
    ("healthzBindAddress", "0.0.0.0:10256", ALL),
    ("hostnameOverride", "", ALL),
    ("iptables.localhostNodePorts", "true", IPTABLES),
    ("iptables.masqueradeAll", "false", RULES),
    ("iptables.masqueradeBit", "14", RULES),
    ("iptables.minSyncPeriod", "1s", SYNCED),
    ("iptables.syncPeriod", "30s", SYNCED),
    ("ipvs.excludeCIDRs", "", IPVS),
    ("ipvs.minSyncPeriod", "0s", IPVS),
    ("ipvs.scheduler", "rr", IPVS),
    ("ipvs.strictARP", "false", IPVS),
    ("ipvs.syncPeriod", "30s", IPVS),
    ("ipvs.tcpFinTimeout", "0s", IPVS),
    ("ipvs.tcpTimeout", "0s", IPVS),
    ("ipvs.udpTimeout", "0s", IPVS),
    ("metricsBindAddress", "127.0.0.1:10249", ALL),
    ("mode", "iptables", ALL),
    ("nftables.masqueradeAll", "false", NFT),
    ("nftables.masqueradeBit", "14", NFT),
    ("nftables.minSyncPeriod", "1s", NFT),
    ("nftables.syncPeriod", "30s", NFT),
    ("nodePortAddresses", "~", LOCAL),
    ("portRange", "", USERSPACE),
    ("udpIdleTimeout", "250ms", USERSPACE),
];

pub(crate) fn config(node: &NodeSnapshot<'_>, relevant: &Relevant, gaps: &mut Gaps) -> Config {
    let modes = relevant.modes.clone();
    let name = node.name().ok();
    for gap in &modes.gaps {
        // An item that was not collected matters only if a mode in use reads it.
        if !matches!(gap, Gap::NotCollected(_)) {
            gaps.add(gap.clone());
        }
    }
    let before = gaps.count();
    for family in Family::BOTH {
        relevant.iptables(node, family, gaps);
    }
    relevant.nft(node, gaps);
    relevant.ipvs(node, gaps);
    let all_read = gaps.count() == before;
    let version = node.proxy_version(name.as_deref());
    for gap in [modes.configured.as_ref().err(), version.as_ref().err()]
        .into_iter()
        .flatten()
    {
        gaps.add(gap.clone());
    }
    let seen = modes.observed.iter().map(|observation| ObservedModes {
        family: observation.family,
        serving: Some(observation.serving.clone()).filter(|modes| all_read || !modes.is_empty()),
    });
    Config {
        version,
        settings: settings(node, modes.current(), gaps),
        mode: ModeThreeWays {
            observed: seen.collect(),
            configured: modes.configured,
            reported: modes.reported,
            leftovers: modes.leftovers,
        },
    }
}

fn settings(node: &NodeSnapshot<'_>, current: Option<Mode>, gaps: &mut Gaps) -> Vec<Setting> {
    let text = |item| node.evidence().text(item);
    let Some(file) = gaps.take(text(Item::ProxyConfig).and_then(written)) else {
        return Vec::new();
    };
    let running = text(Item::Configz).ok().and_then(|text| {
        let answer: Value = serde_json::from_str(text).ok()?;
        answer.get("kubeproxy.config.k8s.io").cloned()
    });
    let args = node.processes().ok().and_then(|all| {
        let mut here = all
            .processes
            .iter()
            .filter(|process| process.same_network != Some(false));
        here.find(|process| process.name.starts_with("kube-proxy"))
    });
    let flags = args.map(|process| Flags::parse(&process.args));
    let has_file = flags
        .as_ref()
        .is_none_or(|flags| flags.value("config").is_some());
    let hostname = flags
        .as_ref()
        .and_then(|flags| flags.value("hostname-override"));
    let wanted = SETTINGS
        .iter()
        .filter(|setting| current.is_none_or(|mode| setting.2.contains(&mode)));
    let rows = wanted.map(|&(name, default, _)| {
        let default = match (name, default, current) {
            ("nodePortAddresses", _, Some(Mode::Nftables)) => "primary",
            (_, "~", _) => "every address",
            _ => default,
        };
        let set = at(&file, name);
        let (mut value, mut from) = match &set {
            Some(value) if has_file => (value.clone(), Origin::Config),
            Some(value) => (value.clone(), Origin::Flag),
            None => (default.to_owned(), Origin::Default),
        };
        // The only flag that overrides the file.
        if name == "hostnameOverride"
            && has_file
            && let Some(name) = hostname.filter(|name| !name.is_empty())
        {
            (value, from) = (name.to_owned(), Origin::Flag);
        }
        let mut in_file = None;
        if let Some(in_force) = running.as_ref().and_then(|all| at(all, name))
            && in_force != value
        {
            in_file = (from == Origin::Config).then_some(value);
            (value, from) = (in_force, Origin::Running);
        }
        Setting {
            name,
            value,
            from,
            in_file,
        }
    });
    rows.collect()
}

/// Returns the value at the dotted `path`, if it is set.
fn at(config: &Value, path: &str) -> Option<String> {
    let mut value = config;
    for part in path.split('.') {
        value = value.get(part)?;
    }
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let words = all
                .iter()
                .map(|word| word.as_str().map_or(word.to_string(), str::to_owned));
            words.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    // kube-proxy treats a zero period as unset.
    let unset = text.is_empty() || text == "0s" && path.ends_with("ncPeriod");
    (!unset).then_some(text)
}
