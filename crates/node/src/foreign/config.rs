//! kube-proxy's configuration: as a ConfigMap or a command line has it, or as far as its rules show it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::command::Command;
use crate::backend::Mode;
use crate::cluster::flags::Flags;
use crate::evidence::{Evidence, Gap, Item};
use crate::net::{Cidr, Family};
use crate::node::NodeSnapshot;
use crate::words::listed;

/// Returns the configuration from the command line of a kube-proxy among `lines`, and why it is incomplete. The lines are from a
/// process list, or from a file with its arguments.
pub(super) fn of_arguments(
    lines: &[String],
    command: &Command,
) -> Option<(String, Option<String>)> {
    let is_file =
        command.program == "cat" && command.args.iter().any(|arg| arg.ends_with("/kube-proxy"));
    let args: Vec<String> = if is_file {
        let lines = lines.iter().map(|line| line.trim());
        lines
            .filter(|line| line.starts_with("--"))
            .map(|line| line.replace('"', ""))
            .collect()
    } else if command.program == "ps" {
        let mut words = lines.iter().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words
                .iter()
                .position(|word| word.rsplit('/').next() == Some("kube-proxy"))?;
            let args = words[at + 1..].iter().map(|word| (*word).to_owned());
            words
                .get(at + 1)
                .is_some_and(|word| word.starts_with("--"))
                .then(|| args.collect())
        });
        words.next()?
    } else {
        return None;
    };
    let text = of_flags(&args)?;
    let why = (!is_file).then(|| "a list of processes may cut their arguments".to_owned());
    Some((text, why))
}

/// Returns the configuration that these arguments give, unless they name a file.
pub(super) fn of_flags<S: AsRef<str>>(args: &[S]) -> Option<String> {
    let flags = Flags::parse(args);
    (!flags.is_empty() && flags.value("config").is_none()).then(|| flags.to_config())
}

/// Adds the configuration that the rules in `evidence` show, as a part: settings that they do not show have their
/// defaults.
pub(super) fn infer(evidence: &mut Evidence) {
    let known = evidence.text(Item::ProxyConfig);
    if !matches!(known, Err(Gap::NotCollected(_))) {
        return;
    }
    let all = evidence.with_all_parts();
    let Some(mode) = shown_mode(&NodeSnapshot::new(&all)) else {
        return;
    };
    let text = |item: Item| all.text(item).unwrap_or_default();
    let seen = if mode == Mode::Nftables {
        let Ok(rules) = all.text(Item::NftText) else {
            return;
        };
        Seen::of_nftables(rules)
    } else {
        let rules = Family::BOTH.map(|family| text(Item::iptables(family)));
        Seen::of_iptables(rules.iter().flat_map(|text| text.lines()))
    };
    let mut config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n"
    );
    let mut shown = vec![format!("mode {mode}")];
    if !seen.cidrs.is_empty() {
        let cidrs: Vec<&str> = seen.cidrs.iter().map(String::as_str).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(config, "clusterCIDR: {:?}", cidrs.join(","));
        shown.push(format!("pods in {}", listed(&cidrs)));
    }
    if let Some(link) = &seen.link {
        let (kind, field, name) = match link.strip_suffix('+') {
            Some(prefix) => ("InterfaceNamePrefix", "interfaceNamePrefix", prefix),
            None => ("BridgeInterface", "bridgeInterface", link.as_str()),
        };
        let _ = writeln!(
            config,
            "detectLocalMode: {kind}\ndetectLocal:\n  {field}: {name:?}"
        );
        shown.push(format!("pods at {link}"));
    }
    if !seen.node_ports.is_empty() {
        let all: Vec<String> = seen.node_ports.iter().map(|at| format!("{at:?}")).collect();
        let _ = writeln!(config, "nodePortAddresses: [{}]", all.join(", "));
    }
    let section = mode.section();
    let _ = writeln!(
        config,
        "{section}:\n  masqueradeAll: {}",
        seen.masquerades_all
    );
    if let Some(bit) = seen.bit {
        let _ = writeln!(config, "  masqueradeBit: {bit}");
    }
    if mode == Mode::Ipvs {
        let servers = text(Item::IpvsSave)
            .lines()
            .filter(|line| line.starts_with("-A "));
        let schedulers: BTreeSet<&str> = servers
            .filter_map(|line| line.split(" -s ").nth(1)?.split_whitespace().next())
            .collect();
        if let Some(scheduler) = schedulers.first().filter(|_| schedulers.len() == 1) {
            let _ = writeln!(config, "  scheduler: {scheduler}");
        }
    }
    if seen.spares_localhost {
        config.push_str("  localhostNodePorts: false\n");
    }
    let why = format!(
        "it is not in the text; the rules show {}, and the rest is taken to be as by default",
        shown.join(" and ")
    );
    evidence.insert_part(Item::ProxyConfig, config, why);
}

/// Returns the mode whose rules or virtual servers are shown.
fn shown_mode(node: &NodeSnapshot<'_>) -> Option<Mode> {
    let modes = node.modes();
    let is_of_ipvs = || {
        let mut all = modes
            .observed
            .iter()
            .flat_map(|observation| &observation.present);
        all.clone().any(|mode| *mode == Mode::Ipvs) && all.all(|mode| *mode == Mode::Ipvs)
    };
    let serving = modes
        .observed
        .iter()
        .any(|observation| !observation.serving.is_empty());
    let other = || (!serving && is_of_ipvs()).then_some(Mode::Ipvs);
    modes.observed().or_else(other)
}

/// The configuration as far as the rules show it.
#[derive(Debug, Default)]
struct Seen {
    /// Ranges of pods' addresses.
    cidrs: BTreeSet<String>,
    /// The link or prefix of links of pods.
    link: Option<String>,
    masquerades_all: bool,
    /// The bit of the masquerade mark.
    bit: Option<u32>,
    /// Whether addresses of the loopback link take no NodePorts.
    spares_localhost: bool,
    /// The ranges of addresses that take NodePorts.
    node_ports: BTreeSet<String>,
}

impl Seen {
    fn of_iptables<'l>(lines: impl Iterator<Item = &'l str>) -> Self {
        let mut seen = Self::default();
        for line in lines {
            let rule = match line.strip_prefix('[') {
                Some(rest) => rest.split_once("] ").map_or(line, |(_, rule)| rule),
                None => line,
            };
            let Some((chain, rule)) = rule
                .strip_prefix("-A ")
                .and_then(|rest| rest.split_once(' '))
            else {
                continue;
            };
            let of = |option: &str| {
                let (_, rest) = rule.split_once(option)?;
                rest.split_whitespace().next()
            };
            let is_of_service = chain.starts_with("KUBE-SVC-") || chain == "KUBE-SERVICES";
            if chain == "KUBE-POSTROUTING" && rule.contains("-m mark ! --mark ") {
                let mark = of("--mark ").and_then(|mark| mark.split('/').next());
                let mark =
                    mark.and_then(|mark| u32::from_str_radix(mark.strip_prefix("0x")?, 16).ok());
                seen.bit = mark
                    .filter(|mark| mark.is_power_of_two())
                    .map(u32::trailing_zeros);
            } else if is_of_service && rule.ends_with("-j KUBE-MARK-MASQ") {
                let at_cluster =
                    rule.contains("cluster IP\"") || rule.contains("KUBE-CLUSTER-IP dst,dst");
                if let Some(range) = of("! -s ") {
                    seen.cidrs.insert(range.to_owned());
                } else if let Some(link) = of("! -i ") {
                    seen.link = Some(link.to_owned());
                } else if at_cluster {
                    seen.masquerades_all = true;
                }
            } else if chain == "KUBE-SERVICES" && rule.ends_with("-j KUBE-NODEPORTS") {
                if rule.contains("! -d 127.0.0.0/8 ") {
                    seen.spares_localhost = true;
                } else {
                    seen.node_ports.extend(of("-d ").map(str::to_owned));
                }
            }
        }
        seen
    }

    fn of_nftables(text: &str) -> Self {
        let mut seen = Self::default();
        let (mut is_own, mut in_set) = (false, false);
        for line in text.lines() {
            if line.starts_with("table ") {
                is_own = line.contains(" kube-proxy ");
            }
            in_set = line.contains("set nodeport-ips {") || in_set && line.trim() != "}";
            if in_set && let Some((_, elements)) = line.split_once("elements = {") {
                let elements = elements.trim_end().trim_end_matches('}').split(',');
                let addresses =
                    elements.filter_map(|element| element.trim().parse::<IpAddr>().ok());
                seen.node_ports
                    .extend(addresses.map(|addr| Cidr::host(addr).to_string()));
            } else if is_own
                && line.contains("fib daddr type local ")
                && line.contains("@service-nodeports")
            {
                let all = if line.contains("ip6 ") {
                    "::/0"
                } else {
                    "0.0.0.0/0"
                };
                seen.node_ports.insert(all.to_owned());
            }
            let marks = line.contains("mark-for-masquerade") || line.contains("meta mark set");
            if !is_own || !marks || !line.contains(" daddr ") {
                continue;
            }
            let range = line
                .split_once("saddr != ")
                .and_then(|(_, rest)| rest.split_whitespace().next());
            match range.filter(|range| range.contains('/')) {
                Some(range) => drop(seen.cidrs.insert(range.to_owned())),
                None => seen.masquerades_all |= !line.contains(" saddr "),
            }
        }
        seen
    }
}
