//! kube-proxy's configuration as it is in force.

use serde::Serialize;

use super::Gaps;
use crate::backend::Mode;
use crate::cluster::version::ProxyVersion;
use crate::node::NodeSnapshot;
use crate::node::mode::Leftover;
use crate::render::Page;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    version: Option<ProxyVersion>,
    mode: ModeIs,
    settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ModeIs {
    configured: Option<Mode>,
    reported: Option<Mode>,
    observed: Option<Mode>,
    leftovers: Vec<Leftover>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Setting {
    name: &'static str,
    value: String,
    /// Whether the configuration says so; kube-proxy's default otherwise.
    set: bool,
}

pub(super) fn config(node: &NodeSnapshot<'_>, gaps: &mut Gaps) -> Config {
    let modes = node.modes();
    let name = node.name().ok();
    let mut settings = Vec::new();
    if let Some(config) = gaps.take(node.proxy_config()) {
        let mode = modes.current().unwrap_or(Mode::Iptables);
        let mut add = |setting, value: String, set| {
            settings.push(Setting {
                name: setting,
                value,
                set,
            });
        };
        let text = |value: &str, default: &str| {
            let set = !value.is_empty();
            (if set { value } else { default }.to_owned(), set)
        };
        let (value, set) = text(&config.bind_address, "0.0.0.0");
        add("bindAddress", value, set);
        let (value, set) = text(&config.cluster_cidr, "-");
        add("clusterCIDR", value, set);
        let (value, set) = text(&config.detect_local_mode, "ClusterCIDR");
        add("detectLocalMode", value, set);
        let (value, set) = text(&config.hostname_override, "-");
        add("hostnameOverride", value, set);
        let bit = config.masquerade_bit(mode);
        let own = match mode {
            Mode::Nftables => config.nftables.masquerade_bit,
            _ => config.iptables.masquerade_bit,
        };
        add("masqueradeBit", bit.to_string(), own.is_some());
        let all = config.masquerade_all(mode);
        add("masqueradeAll", all.to_string(), all);
        let ports = config.node_port_addresses.join(",");
        let default = if config.node_ports_on_primary(mode) {
            "primary"
        } else {
            "every address"
        };
        let (value, set) = text(&ports, default);
        add("nodePortAddresses", value, set);
        if mode == Mode::Ipvs {
            let set = !config.ipvs.scheduler.is_empty();
            add("ipvs.scheduler", config.scheduler().to_owned(), set);
            let strict = config.ipvs.strict_arp;
            add("ipvs.strictARP", strict.to_string(), strict);
        }
        settings.sort_by_key(|of| of.name);
    }
    modes.gaps.iter().for_each(|gap| gaps.add(gap.clone()));
    Config {
        version: node.proxy_version(name.as_deref()).ok(),
        mode: ModeIs {
            observed: modes.observed(),
            configured: modes.configured.ok(),
            reported: modes.reported.ok(),
            leftovers: modes.leftovers,
        },
        settings,
    }
}

pub(super) fn page(config: &Config, page: &mut Page) {
    let name = |mode: Option<Mode>| mode.map_or("?", Mode::name);
    let mode = &config.mode;
    page.line(&format!(
        "mode     configured {}, reported {}, observed {}",
        name(mode.configured),
        name(mode.reported),
        name(mode.observed)
    ));
    let version = config.version.map_or_else(
        || "?".to_owned(),
        |of| format!("{} (from {})", of.version, of.source),
    );
    page.line(&format!("version  {version}"));
    for left in &mode.leftovers {
        let family = left
            .family
            .map_or_else(String::new, |family| format!("{family} "));
        let kind = serde_json::to_string(&left.kind).unwrap_or_default();
        let kind = kind.trim_matches('"').replace('-', " ");
        let count = left.names.len();
        page.line(&format!("left by {}: {count} {family}{kind}", left.mode));
    }
    page.line("");
    let cells = config.settings.iter().map(|of| {
        let from = if of.set { "configured" } else { "default" };
        vec![of.name.to_owned(), of.value.clone(), from.to_owned()]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("SETTING", 0), ("VALUE", 0), ("FROM", 1)], &cells);
}
