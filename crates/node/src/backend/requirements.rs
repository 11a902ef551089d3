//! What a mode requires of a node: the kernel's release, kernel modules and sysctls.
//!
//! Each mode's own requirements are beside it, in `backend/<mode>/requirements.rs`; the common ones are here.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Mode, iptables, ipvs, nftables};
use crate::cluster::config::{ProxyConfig, go_duration};
use crate::cluster::release::{Change, Release};
use crate::cluster::version::Version;
use crate::evidence::Kernel;

/// The feature gate of mode nftables.
pub const NFTABLES_GATE: &str = "NFTablesProxyMode";

/// The feature gate of mode ipvs.
pub const IPVS_GATE: &str = "KubeProxyIPVS";

/// Why a release of kube-proxy refuses to start in a mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It does not have the mode, which later releases have.
    TooOld {
        /// The first release with the mode on.
        on: Release,
    },
    /// The mode's feature gate is off.
    GateOff {
        /// The gate.
        gate: &'static str,
        /// The first release in which it is on by default, if a later one.
        on: Option<Release>,
    },
}

/// Returns why kube-proxy `version` with `config` refuses to start in `mode`; `None` if it does not.
pub fn refusal(mode: Mode, version: Version, config: &ProxyConfig) -> Option<Refusal> {
    let has = |change| version.has(change);
    match mode {
        Mode::Nftables => {
            let on = Change::NftablesModeOn.release();
            let alpha = config.gate("AllAlpha", false);
            let beta = config.gate("AllBeta", true);
            let usual = if has(Change::NftablesModeOn) {
                beta
            } else {
                alpha
            };
            if !has(Change::NftablesMode) {
                return Some(Refusal::TooOld { on });
            }
            let off = !has(Change::NftablesModeStable) && !config.gate(NFTABLES_GATE, usual);
            off.then(|| Refusal::GateOff {
                gate: NFTABLES_GATE,
                on: Some(on).filter(|_| !has(Change::NftablesModeOn)),
            })
        }
        Mode::Ipvs => {
            let off = has(Change::IpvsGate) && !config.gate(IPVS_GATE, true);
            off.then_some(Refusal::GateOff {
                gate: IPVS_GATE,
                on: None,
            })
        }
        // Userspace belongs to releases whose other modes kpx does not know.
        Mode::Iptables | Mode::Userspace => None,
    }
}

/// A kernel module that a mode uses.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    name: ModuleName,
    /// When the mode uses it; `None` for always.
    pub when: Option<Condition>,
    /// Its purpose in the mode.
    pub purpose: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum ModuleName {
    Is(&'static str),
    Scheduler,
}

/// When a mode uses a module.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Condition {
    /// IPv4 is in use.
    Ipv4,
    /// IPv6 is in use.
    Ipv6,
    /// kube-proxy does not have the change yet.
    Before(Change),
    /// kube-proxy has the change.
    Since(Change),
    /// Pods are on a Linux bridge.
    LinuxBridge,
    /// A Service has external IPs.
    ExternalIps,
    /// A Service has `loadBalancerSourceRanges`.
    SourceRanges,
    /// A Service has session affinity.
    SessionAffinity,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Before(change) => {
                return write!(f, "kube-proxy before {}", change.release());
            }
            Self::Since(change) => return write!(f, "kube-proxy {} or newer", change.release()),
            Self::LinuxBridge => "pods on a Linux bridge",
            Self::ExternalIps => "external IPs",
            Self::SourceRanges => "source ranges",
            Self::SessionAffinity => "session affinity",
        })
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Before(change) => {
                return serializer.collect_str(&format_args!("before-{}", change.release()));
            }
            Self::Since(change) => {
                return serializer.collect_str(&format_args!("since-{}", change.release()));
            }
            Self::LinuxBridge => "linux-bridge",
            Self::ExternalIps => "external-ips",
            Self::SourceRanges => "source-ranges",
            Self::SessionAffinity => "session-affinity",
        };
        serializer.serialize_str(name)
    }
}

impl Module {
    pub(super) const fn new(name: &'static str, purpose: &'static str) -> Self {
        Self {
            name: ModuleName::Is(name),
            when: None,
            purpose,
        }
    }

    /// Returns the module of the scheduler that kube-proxy is configured for.
    pub(super) const fn scheduler(purpose: &'static str) -> Self {
        Self {
            name: ModuleName::Scheduler,
            when: None,
            purpose,
        }
    }

    pub(super) const fn when(self, condition: Condition) -> Self {
        Self {
            when: Some(condition),
            ..self
        }
    }

    /// Returns the module's name, with `scheduler` for virtual servers.
    pub fn name(&self, scheduler: &str) -> Cow<'static, str> {
        match self.name {
            ModuleName::Is(name) => Cow::Borrowed(name),
            ModuleName::Scheduler => Cow::Owned(format!("ip_vs_{scheduler}")),
        }
    }
}

/// The modules of every mode. The kernel loads most modules automatically where loading is allowed.
const MODULES: &[Module] = &[
    Module::new("br_netfilter", "passes bridged packets to the rules").when(Condition::LinuxBridge),
    Module::new(
        "nf_conntrack",
        "tracks connections, for address translation",
    ),
    Module::new("nf_nat", "translates addresses"),
];

/// Returns the modules that `mode` uses.
pub fn modules(mode: Mode) -> impl Iterator<Item = &'static Module> {
    let own: [&[Module]; 2] = match mode {
        Mode::Iptables => [
            iptables::requirements::RULES,
            iptables::requirements::MODULES,
        ],
        Mode::Ipvs => [iptables::requirements::RULES, ipvs::requirements::MODULES],
        Mode::Nftables => [nftables::requirements::MODULES, &[]],
        Mode::Userspace => [iptables::requirements::RULES, &[]],
    };
    MODULES.iter().chain(own.into_iter().flatten())
}

/// Returns the names of the modules that `mode` uses on every node, with `scheduler` for virtual servers.
///
/// kube-proxy writes IPv4 rules on every node, so the modules of IPv4 are among them.
pub fn modules_always(mode: Mode, scheduler: &str) -> Vec<Cow<'static, str>> {
    let always = modules(mode).filter(|module| matches!(module.when, None | Some(Condition::Ipv4)));
    let mut names: Vec<_> = always.map(|needed| needed.name(scheduler)).collect();
    names.sort_unstable();
    names
}

/// Returns the oldest kernel that kube-proxy supports in `mode`; `None` for any.
pub const fn oldest_kernel(mode: Mode) -> Option<Kernel> {
    match mode {
        Mode::Iptables | Mode::Userspace => None,
        Mode::Ipvs => Some(ipvs::requirements::OLDEST_KERNEL),
        Mode::Nftables => Some(nftables::requirements::OLDEST_KERNEL),
    }
}

/// A sysctl with the value that a mode requires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sysctl {
    /// The dotted key.
    pub key: &'static str,
    /// The value.
    pub want: Want,
    /// The program that sets it, or should.
    pub by: By,
    /// The purpose of the value.
    pub purpose: &'static str,
}

/// The value that a sysctl should have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Want {
    /// Exactly this one.
    Is(u64),
    /// This one or more.
    AtLeast(u64),
}

impl Want {
    /// Returns whether `value` is as wanted.
    pub const fn is_met(self, value: u64) -> bool {
        match self {
            Self::Is(want) => value == want,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(want) => want.fmt(f),
            Self::AtLeast(least) => write!(f, ">={least}"),
        }
    }
}

/// The program that sets a sysctl, or should.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// kube-proxy sets it when it starts.
    KubeProxy,
    /// The pod network needs it; kube-proxy does not set it.
    Network,
    /// kpx recommends it.
    Advice,
}

/// The facts that the wanted sysctls depend on.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'c> {
    /// kube-proxy's configuration, if known.
    pub config: Option<&'c ProxyConfig>,
    /// The kernel, if known.
    pub kernel: Option<Kernel>,
    /// Whether NodePorts answer on 127.0.0.1; only iptables mode can.
    pub localhost_node_ports: bool,
    /// Whether IPv6 is in use.
    pub ipv6: bool,
    /// Whether bridged packets may be passed to the rules.
    pub bridge: bool,
}

/// Returns the sysctls that `mode` requires or benefits from.
pub fn sysctls(mode: Mode, setup: &Setup<'_>) -> Vec<Sysctl> {
    let mut all = match mode {
        Mode::Iptables => iptables::requirements::sysctls(setup.localhost_node_ports),
        Mode::Ipvs => ipvs::requirements::sysctls(setup),
        Mode::Nftables => nftables::requirements::sysctls(setup),
        Mode::Userspace => Vec::new(),
    };
    forwarding(mode, setup, &mut all);
    if let Some(config) = setup.config {
        conntrack(config, &mut all);
    }
    all
}

fn forwarding(mode: Mode, setup: &Setup<'_>, all: &mut Vec<Sysctl>) {
    let mut network = |key, purpose| {
        all.push(Sysctl {
            key,
            want: Want::Is(1),
            by: By::Network,
            purpose,
        });
    };
    let forwards = "forwards packets between links";
    if mode != Mode::Ipvs {
        network("net.ipv4.ip_forward", forwards);
    }
    if setup.ipv6 {
        network("net.ipv6.conf.all.forwarding", forwards);
    }
    let bridged = "passes bridged packets to the rules";
    if setup.bridge {
        network("net.bridge.bridge-nf-call-iptables", bridged);
    }
    if setup.bridge && setup.ipv6 {
        network("net.bridge.bridge-nf-call-ip6tables", bridged);
    }
}

/// Adds what kube-proxy's `setupConntrack` sets.
fn conntrack(config: &ProxyConfig, all: &mut Vec<Sysctl>) {
    let mut add = |key, want, purpose| {
        all.push(Sysctl {
            key,
            want,
            by: By::KubeProxy,
            purpose,
        });
    };
    let conntrack = &config.conntrack;
    if conntrack.max_per_core != Some(0) {
        let least = u64::from(conntrack.min.unwrap_or(131_072));
        let key = "net.netfilter.nf_conntrack_max";
        add(key, Want::AtLeast(least), "limits tracked connections");
    }
    let seconds = |text: Option<&str>, default: u64| match text.and_then(go_duration) {
        None => Some(default).filter(|&seconds| seconds > 0),
        Some(Duration::ZERO) => None,
        Some(time) => Some(time.as_secs()),
    };
    let timeouts = [
        (
            "net.netfilter.nf_conntrack_tcp_timeout_established",
            conntrack.tcp_established_timeout.as_deref(),
            86400,
            "forgets idle connections",
        ),
        (
            "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            conntrack.tcp_close_wait_timeout.as_deref(),
            3600,
            "forgets half-closed connections",
        ),
        (
            "net.netfilter.nf_conntrack_udp_timeout",
            conntrack.udp_timeout.as_deref(),
            0,
            "forgets idle UDP flows",
        ),
        (
            "net.netfilter.nf_conntrack_udp_timeout_stream",
            conntrack.udp_stream_timeout.as_deref(),
            0,
            "forgets idle UDP flows",
        ),
    ];
    for (key, text, default, purpose) in timeouts {
        if let Some(seconds) = seconds(text, default) {
            add(key, Want::Is(seconds), purpose);
        }
    }
    if conntrack.tcp_be_liberal {
        add(TCP_BE_LIBERAL, Want::Is(1), "accepts out-of-window packets");
    }
}

/// The sysctl with which conntrack accepts packets out of the TCP window.
pub(super) const TCP_BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_mode_names_each_module_once() {
        for mode in Mode::ALL {
            let names: Vec<_> = modules(mode).map(|module| module.name("rr")).collect();
            let unique: BTreeSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{mode}: {names:?}");
        }
    }

    #[test]
    fn kernels_before_a_mode_are_too_old_for_it() {
        assert_eq!(oldest_kernel(Mode::Iptables), None);
        assert_eq!(oldest_kernel(Mode::Ipvs), Some(Kernel(4, 1)));
        assert_eq!(oldest_kernel(Mode::Nftables), Some(Kernel(5, 13)));
    }

    #[test]
    fn kube_proxy_writes_connection_reuse_on_old_kernels_only() {
        let reuse = |kernel| {
            let found = ipvs::requirements::conn_reuse_mode(kernel);
            found.map(|sysctl| (sysctl.want, sysctl.by))
        };
        assert_eq!(reuse(Kernel(4, 0)), None);
        assert_eq!(reuse(Kernel(4, 1)), Some((Want::Is(0), By::KubeProxy)));
        assert_eq!(reuse(Kernel(5, 8)), Some((Want::Is(0), By::KubeProxy)));
        assert_eq!(reuse(Kernel(5, 9)), Some((Want::Is(1), By::Advice)));
    }
}
