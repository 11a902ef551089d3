//! kube-proxy's configuration as it is in force.

use serde::Serialize;
use serde_json::Value;

use super::{Gaps, modes::Relevant};
use crate::backend::Mode;
use crate::cluster::config::written;
use crate::cluster::flags::Flags;
use crate::cluster::version::ProxyVersion;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::node::mode::Leftover;
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    version: Result<ProxyVersion, Gap>,
    mode: ModeIs,
    pub(super) settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ModeIs {
    configured: Result<Mode, Gap>,
    reported: Result<Mode, Gap>,
    observed: Vec<Seen>,
    leftovers: Vec<Leftover>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    family: Family,
    /// Modes whose rules lead packets to Services; `null` if that is not known.
    serving: Option<Vec<Mode>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// In force, as far as is known; empty for nothing.
    value: String,
    from: From,
    /// What the configuration file says, where that is something else.
    file_says: Option<String>,
}

/// What says the value.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum From {
    /// The configuration file or ConfigMap.
    Config,
    /// A flag of kube-proxy's command line.
    Flag,
    /// `/configz` of the running kube-proxy.
    Running,
    /// Nothing; it is the default.
    Default,
}

const ALL: &[Mode] = &Mode::ALL;
const RULES: &[Mode] = &[Mode::Iptables, Mode::Ipvs];
const IPTABLES: &[Mode] = &[Mode::Iptables];
const IPVS: &[Mode] = &[Mode::Ipvs];
const NFT: &[Mode] = &[Mode::Nftables];

/// Settings with their defaults, and the modes they matter in; `~` stands for a default that depends on others.
#[rustfmt::skip]
const SETTINGS: &[(&str, &str, &[Mode])] = &[
    ("bindAddress", "0.0.0.0", ALL),
    ("clusterCIDR", "", ALL),
    ("configSyncPeriod", "15m0s", ALL),
    ("conntrack.maxPerCore", "32768", ALL),
    ("conntrack.min", "131072", ALL),
    ("conntrack.tcpBeLiberal", "false", ALL),
    ("conntrack.tcpCloseWaitTimeout", "1h0m0s", ALL),
    ("conntrack.tcpEstablishedTimeout", "24h0m0s", ALL),
    ("conntrack.udpStreamTimeout", "0s", ALL),
    ("conntrack.udpTimeout", "0s", ALL),
    ("detectLocal.bridgeInterface", "", ALL),
    ("detectLocal.interfaceNamePrefix", "", ALL),
    ("detectLocalMode", "ClusterCIDR", ALL),
    ("healthzBindAddress", "0.0.0.0:10256", ALL),
    ("hostnameOverride", "", ALL),
    ("iptables.localhostNodePorts", "true", IPTABLES),
    ("iptables.masqueradeAll", "false", RULES),
    ("iptables.masqueradeBit", "14", RULES),
    ("iptables.minSyncPeriod", "1s", IPTABLES),
    ("iptables.syncPeriod", "30s", IPTABLES),
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
    ("nodePortAddresses", "~", ALL),
];

pub(super) fn config(node: &NodeSnapshot<'_>, relevant: &Relevant, gaps: &mut Gaps) -> Config {
    let modes = relevant.modes.clone();
    let name = node.name().ok();
    for gap in &modes.gaps {
        // What another mode would have left where there is no trace of it is no gap.
        if !matches!(gap, Gap::NotCollected(_)) {
            gaps.add(gap.clone());
        }
    }
    let before = gaps.unknown.len();
    for family in Family::BOTH {
        relevant.iptables(node, family, gaps);
    }
    relevant.nft(node, gaps);
    relevant.ipvs(node, gaps);
    let all_read = gaps.unknown.len() == before;
    let version = node.proxy_version(name.as_deref());
    for gap in [modes.configured.as_ref().err(), version.as_ref().err()]
        .into_iter()
        .flatten()
    {
        gaps.add(gap.clone());
    }
    let seen = modes.observed.iter().map(|of| Seen {
        family: of.family,
        serving: Some(of.serving.clone()).filter(|modes| all_read || !modes.is_empty()),
    });
    Config {
        version,
        settings: settings(node, modes.current(), gaps),
        mode: ModeIs {
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
            .filter(|of| of.same_network != Some(false));
        here.find(|of| of.name.starts_with("kube-proxy"))
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
        .filter(|of| current.is_none_or(|mode| of.2.contains(&mode)));
    let rows = wanted.map(|&(name, default, _)| {
        let default = match (name, default, current) {
            ("nodePortAddresses", _, Some(Mode::Nftables)) => "primary",
            (_, "~", _) => "every address",
            _ => default,
        };
        let set = at(&file, name);
        let (mut value, mut from) = match &set {
            Some(value) if has_file => (value.clone(), From::Config),
            Some(value) => (value.clone(), From::Flag),
            None => (default.to_owned(), From::Default),
        };
        // With a file, this flag alone still counts.
        if name == "hostnameOverride"
            && has_file
            && let Some(name) = hostname.filter(|name| !name.is_empty())
        {
            (value, from) = (name.to_owned(), From::Flag);
        }
        let mut file_says = None;
        if let Some(in_force) = running.as_ref().and_then(|all| at(all, name))
            && in_force != value
        {
            file_says = (from == From::Config).then_some(value);
            (value, from) = (in_force, From::Running);
        }
        Setting {
            name,
            value,
            from,
            file_says,
        }
    });
    rows.collect()
}

/// Returns what stands at the dotted `path`, if it counts as set.
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
                .map(|of| of.as_str().map_or(of.to_string(), str::to_owned));
            words.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    // kube-proxy takes a zero period for none.
    let unset = text.is_empty() || text == "0s" && path.ends_with("ncPeriod");
    (!unset).then_some(text)
}

pub(super) fn page(config: &Config, page: &mut Page) {
    let mode = &config.mode;
    let known = |of: &Result<Mode, Gap>| match of {
        Ok(mode) => mode.to_string(),
        Err(gap) => format!("? ({gap})"),
    };
    page.para(
        "version     ",
        &match &config.version {
            Ok(of) => format!("{} (from {})", of.version, of.source),
            Err(gap) => format!("? ({gap})"),
        },
    );
    page.para("configured  ", &known(&mode.configured));
    page.para("reported    ", &known(&mode.reported));
    for seen in &mode.observed {
        let names = seen.serving.iter().flatten().map(|mode| mode.name());
        let names: Vec<&str> = names.collect();
        let names = match names.len() {
            0 if seen.serving.is_none() => "?".to_owned(),
            0 => "no mode leads packets to Services".to_owned(),
            1 => names.concat(),
            _ => format!("{}: they get in each other's way", names.join(" and ")),
        };
        page.para("observed    ", &format!("{}: {names}", seen.family));
    }
    for left in &mode.leftovers {
        let family = left
            .family
            .map_or_else(String::new, |family| format!("{family} "));
        let count = left.names.len();
        let what = left.kind.words(count);
        page.line(&format!(
            "left over   from {}: {count} {family}{what}",
            left.mode
        ));
    }
    if config.settings.is_empty() {
        return;
    }
    page.line("");
    let shown = config
        .settings
        .iter()
        .filter(|of| !of.value.is_empty() || page.style().wide);
    let cells = shown.map(|of| {
        let from = match of.from {
            From::Config => "config",
            From::Flag => "flag",
            From::Running => "/configz",
            From::Default => "default",
        };
        let from = match &of.file_says {
            Some(value) => format!("{from}; the file says {value}"),
            None => from.to_owned(),
        };
        let value = if of.value.is_empty() { "-" } else { &of.value };
        vec![of.name.to_owned(), value.to_owned(), from]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("SETTING", 0), ("VALUE", 0), ("FROM", 0)], &cells);
}
