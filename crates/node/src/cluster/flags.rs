//! kube-proxy's command line, converted to the equivalent configuration file.

use std::fmt::Write as _;

/// Type of a flag's value in the configuration file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Text,
    Number,
    /// A flag without a value is `true`.
    Bool,
    /// Values separated by commas.
    List,
}

use Kind::{Bool, List, Number, Text};

/// Each flag with its section (empty for the top level) and field.
const FLAGS: &[(&str, &str, &str, Kind)] = &[
    ("bind-address", "", "bindAddress", Text),
    ("cluster-cidr", "", "clusterCIDR", Text),
    ("config-sync-period", "", "configSyncPeriod", Text),
    ("conntrack-max-per-core", "conntrack", "maxPerCore", Number),
    ("conntrack-min", "conntrack", "min", Number),
    (
        "conntrack-tcp-be-liberal",
        "conntrack",
        "tcpBeLiberal",
        Bool,
    ),
    (
        "conntrack-tcp-timeout-close-wait",
        "conntrack",
        "tcpCloseWaitTimeout",
        Text,
    ),
    (
        "conntrack-tcp-timeout-established",
        "conntrack",
        "tcpEstablishedTimeout",
        Text,
    ),
    ("conntrack-udp-timeout", "conntrack", "udpTimeout", Text),
    (
        "conntrack-udp-timeout-stream",
        "conntrack",
        "udpStreamTimeout",
        Text,
    ),
    ("detect-local-mode", "", "detectLocalMode", Text),
    ("healthz-bind-address", "", "healthzBindAddress", Text),
    ("hostname-override", "", "hostnameOverride", Text),
    (
        "iptables-localhost-nodeports",
        "iptables",
        "localhostNodePorts",
        Bool,
    ),
    (
        "iptables-masquerade-bit",
        "iptables",
        "masqueradeBit",
        Number,
    ),
    (
        "iptables-min-sync-period",
        "iptables",
        "minSyncPeriod",
        Text,
    ),
    ("iptables-sync-period", "iptables", "syncPeriod", Text),
    ("ipvs-exclude-cidrs", "ipvs", "excludeCIDRs", List),
    ("ipvs-min-sync-period", "ipvs", "minSyncPeriod", Text),
    ("ipvs-scheduler", "ipvs", "scheduler", Text),
    ("ipvs-strict-arp", "ipvs", "strictARP", Bool),
    ("ipvs-sync-period", "ipvs", "syncPeriod", Text),
    ("ipvs-tcp-timeout", "ipvs", "tcpTimeout", Text),
    ("ipvs-tcpfin-timeout", "ipvs", "tcpFinTimeout", Text),
    ("ipvs-udp-timeout", "ipvs", "udpTimeout", Text),
    ("kubeconfig", "clientConnection", "kubeconfig", Text),
    ("masquerade-all", "iptables", "masqueradeAll", Bool),
    ("metrics-bind-address", "", "metricsBindAddress", Text),
    ("nodeport-addresses", "", "nodePortAddresses", List),
    (
        "pod-bridge-interface",
        "detectLocal",
        "bridgeInterface",
        Text,
    ),
    (
        "pod-interface-name-prefix",
        "detectLocal",
        "interfaceNamePrefix",
        Text,
    ),
    ("proxy-mode", "", "mode", Text),
];

/// Returns the flag for a field path: `section.field`, or `field` at the top level.
pub(crate) fn flag_of(path: &str) -> Option<&'static str> {
    let (section, field) = path.split_once('.').unwrap_or(("", path));
    let mut rows = FLAGS.iter();
    let row = rows.find(|(_, home, name, _)| *home == section && *name == field);
    row.map(|(flag, ..)| *flag)
}

/// Returns the field of the configuration that `flag` sets, without its section.
pub fn field_of(flag: &str) -> Option<&'static str> {
    let row = FLAGS.iter().find(|(name, ..)| *name == flag);
    row.map(|(_, _, field, _)| *field)
}

/// Flags of a kube-proxy, by name; the last flag with a name counts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Flags(Vec<(String, Option<String>)>);

impl Flags {
    /// Parses kube-proxy's arguments: `--name=value`, `--name value` or `--name`.
    pub fn parse<S: AsRef<str>>(args: &[S]) -> Self {
        let mut flags = Vec::new();
        let mut args = args.iter().map(AsRef::as_ref).peekable();
        while let Some(arg) = args.next() {
            let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                continue;
            };
            if let Some((name, value)) = flag.split_once('=') {
                flags.push((name.to_owned(), Some(value.to_owned())));
                continue;
            }
            // A boolean flag takes a value only with `=`.
            let value = args.next_if(|next| !next.starts_with('-'));
            flags.push((flag.to_owned(), value.map(str::to_owned)));
        }
        Self(flags)
    }

    /// Parses the arguments that a distribution's own program passes on: `--kube-proxy-arg=name=value`.
    pub fn passed_on<S: AsRef<str>>(args: &[S]) -> Self {
        let outer = Self::parse(args);
        let passed = outer
            .0
            .iter()
            .filter(|(name, _)| name == "kube-proxy-arg")
            .filter_map(|(_, value)| value.as_deref())
            .map(|value| format!("--{}", value.trim_start_matches('-')));
        Self::parse(&passed.collect::<Vec<_>>())
    }

    /// Returns whether there are no flags.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of the flag `name`; empty for a flag without a value.
    pub fn value(&self, name: &str) -> Option<&str> {
        let mut last = self.0.iter().rev();
        let (_, value) = last.find(|(flag, _)| flag == name)?;
        Some(value.as_deref().unwrap_or_default())
    }

    /// Returns whether the boolean flag `name` is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value != "false")
    }

    /// Returns the equivalent configuration file. Flags without a field are omitted.
    pub fn to_config(&self) -> String {
        let mut text =
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
                .to_owned();
        let mut sections: Vec<&str> = FLAGS.iter().map(|(_, section, ..)| *section).collect();
        sections.sort_unstable();
        sections.dedup();
        for section in sections {
            let mut head = (!section.is_empty()).then(|| format!("{section}:\n"));
            for (flag, home, field, kind) in FLAGS {
                if *home != section {
                    continue;
                }
                let Some(value) = self.value(flag) else {
                    continue;
                };
                text += head.take().as_deref().unwrap_or_default();
                let indent = if section.is_empty() { "" } else { "  " };
                // Writing to a String cannot fail.
                writeln!(text, "{indent}{field}: {}", kind.write(value)).ok();
            }
        }
        text
    }
}

/// Returns `text` as a YAML string: a JSON string, without the characters that JSON allows and YAML does not.
fn quoted(text: &str) -> String {
    let mut yaml = String::new();
    for c in serde_json::Value::from(text).to_string().chars() {
        if c.is_control() || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}') {
            // Writing to a String cannot fail.
            write!(yaml, "\\u{:04x}", u32::from(c)).ok();
        } else {
            yaml.push(c);
        }
    }
    yaml
}

impl Kind {
    fn write(self, value: &str) -> String {
        match self {
            Number if value.parse::<i64>().is_ok() => value.to_owned(),
            Text | Number => quoted(value),
            Bool => match value {
                "" | "1" | "t" | "T" | "TRUE" | "true" | "True" => "true".to_owned(),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => "false".to_owned(),
                other => quoted(other),
            },
            List => {
                let parts = value
                    .split(',')
                    .map(str::trim)
                    .filter(|part| !part.is_empty());
                format!("[{}]", parts.map(quoted).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::config::ProxyConfig;

    #[test]
    fn flags_convert_to_a_configuration() {
        let args = [
            "/usr/local/bin/kube-proxy",
            "--proxy-mode=ipvs",
            "--cluster-cidr",
            "10.244.0.0/16,fd00::/56",
            "--masquerade-all",
            "--ipvs-strict-arp=1",
            "--ipvs-exclude-cidrs=10.0.0.0/8, 10.1.0.0/16",
            "--iptables-masquerade-bit=15",
            "--conntrack-tcp-timeout-established=24h0m0s",
            "--v=2",
            "--proxy-mode=nftables",
        ];
        let flags = Flags::parse(&args);
        assert_eq!(flags.value("v"), Some("2"));
        let text = flags.to_config();
        let config = ProxyConfig::parse(&text).unwrap();
        assert_eq!(config.mode, "nftables");
        assert_eq!(config.cluster_cidr, "10.244.0.0/16,fd00::/56");
        assert!(config.iptables.masquerade_all && config.ipvs.strict_arp);
        assert_eq!(config.ipvs.exclude_cidrs, ["10.0.0.0/8", "10.1.0.0/16"]);
        assert_eq!(config.iptables.masquerade_bit, Some(15));
        let timeout = config.conntrack.tcp_established_timeout;
        assert_eq!(timeout.as_deref(), Some("24h0m0s"));
    }

    #[test]
    fn characters_that_yaml_refuses_are_escaped() {
        let text = "a\u{7f}\u{85}\u{feff}\u{ffff}\"\\é";
        let config = Flags::parse(&[format!("--proxy-mode={text}")]).to_config();
        assert_eq!(ProxyConfig::parse(&config).unwrap().mode, text);
    }

    #[test]
    fn flags_passed_on_by_a_distribution_are_parsed() {
        let args = [
            "k3s",
            "server",
            "--kube-proxy-arg=proxy-mode=ipvs",
            "--kube-proxy-arg",
            "ipvs-scheduler=lc",
            "--token=secret",
        ];
        let text = Flags::passed_on(&args).to_config();
        assert!(text.contains("mode: \"ipvs\"") && text.contains("scheduler: \"lc\""));
        assert!(!text.contains("secret"));
        assert!(Flags::passed_on(&["k3s", "server"]).is_empty());
        let is_off = |args: &[&str]| Flags::parse(args).is_on("disable-kube-proxy");
        assert!(is_off(&[
            "k3s",
            "server",
            "--disable-kube-proxy",
            "--token=x"
        ]));
        assert!(is_off(&["k3s", "server", "--disable-kube-proxy=true"]));
        assert!(!is_off(&["k3s", "server", "--disable-kube-proxy=false"]));
        assert!(!is_off(&["k3s", "server"]));
    }

    #[test]
    fn flags_are_sorted_and_unique() {
        assert!(FLAGS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
