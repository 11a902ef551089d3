//! The table of everything kpx may read: also its statement of what it looks at.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::net::Family;

/// What it takes to read an item on a live node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Privilege {
    /// Any user may read it.
    None,
    /// `CAP_NET_ADMIN` (root, usually).
    NetAdmin,
    /// Root reads it whole; others see a part.
    Root,
    /// The Kubernetes API, with the named resource's `get` and `list`.
    Api,
}

macro_rules! items {
    ($($(#[doc = $doc:literal])+ $name:ident = $file:literal, $privilege:ident;)+) => {
        /// One thing kpx can read from a node or its cluster.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Item { $($(#[doc = $doc])+ $name,)+ }

        /// Every [`Item`], in the order a bundle lists them.
        pub const ITEMS: &[Item] = &[$(Item::$name,)+];

        impl Item {
            /// Returns the file that holds this item in a bundle, below its root.
            pub const fn file(self) -> &'static str {
                match self { $(Self::$name => $file,)+ }
            }

            /// Returns what it takes to read the item live.
            pub const fn privilege(self) -> Privilege {
                match self { $(Self::$name => Privilege::$privilege,)+ }
            }

            /// Returns one line that says what the item is.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

items! {
    /// The running kernel's release, `uname -r`.
    KernelRelease = "node/kernel-release.txt", None;
    /// What tells this machine from others: its host name, machine id, boot id, and its hardware's ids.
    Host = "node/host.txt", None;
    /// IPv4 rules of the iptables back end in use, `iptables-save -c`.
    Iptables4 = "node/iptables-save.txt", NetAdmin;
    /// IPv6 rules of the iptables back end in use, `ip6tables-save -c`.
    Iptables6 = "node/ip6tables-save.txt", NetAdmin;
    /// IPv4 rules of the legacy back end, when it is not the one in use.
    IptablesLegacy4 = "node/iptables-legacy-save.txt", NetAdmin;
    /// IPv6 rules of the legacy back end, when it is not the one in use.
    IptablesLegacy6 = "node/ip6tables-legacy-save.txt", NetAdmin;
    /// IPv4 rules of the nft back end, when it is not the one in use.
    IptablesNft4 = "node/iptables-nft-save.txt", NetAdmin;
    /// IPv6 rules of the nft back end, when it is not the one in use.
    IptablesNft6 = "node/ip6tables-nft-save.txt", NetAdmin;
    /// The version and back end of iptables, `iptables --version`.
    IptablesVersion = "node/iptables-version.txt", None;
    /// The version of conntrack, `conntrack --version`.
    ConntrackVersion = "node/conntrack-version.txt", None;
    /// The nftables ruleset, `nft -j list ruleset`.
    Nft = "node/nft.json", NetAdmin;
    /// The nftables ruleset as text, `nft list ruleset`; read when there is no JSON.
    NftText = "node/nft.txt", NetAdmin;
    /// IP sets with their members, `ipset save`.
    Ipset = "node/ipset-save.txt", NetAdmin;
    /// Virtual and real servers with counters and timeouts, read by netlink.
    Ipvs = "node/ipvs.json", NetAdmin;
    /// Virtual and real servers, `ipvsadm -Sn`.
    IpvsSave = "node/ipvsadm-save.txt", NetAdmin;
    /// Counters of virtual and real servers, `ipvsadm -Ln --stats`.
    IpvsStats = "node/ipvsadm-stats.txt", NetAdmin;
    /// IPVS timeouts in seconds, `ipvsadm -Ln --timeout`.
    IpvsTimeout = "node/ipvsadm-timeout.txt", NetAdmin;
    /// The IPVS connection table, `/proc/net/ip_vs_conn`.
    IpvsConnections = "node/ip_vs_conn.txt", Root;
    /// Addresses of every link, `ip -j addr`.
    Addresses = "node/ip-addr.json", None;
    /// Links with their kinds and flags, `ip -j -d link`.
    Links = "node/ip-link.json", None;
    /// Routes of every table, `ip -j route show table all`.
    Routes = "node/ip-route.json", None;
    /// Routing policy rules, `ip -j rule`.
    Rules = "node/ip-rule.json", None;
    /// Listening TCP sockets over IPv4, `/proc/net/tcp`.
    Tcp4 = "node/proc-net-tcp.txt", None;
    /// Listening TCP sockets over IPv6, `/proc/net/tcp6`.
    Tcp6 = "node/proc-net-tcp6.txt", None;
    /// UDP sockets over IPv4, `/proc/net/udp`.
    Udp4 = "node/proc-net-udp.txt", None;
    /// UDP sockets over IPv6, `/proc/net/udp6`.
    Udp6 = "node/proc-net-udp6.txt", None;
    /// Listening sockets with their processes, `ss -lntuSHp`.
    Sockets = "node/ss.txt", Root;
    /// Connected sockets from addresses of kube-ipvs0, or of a route of kpx's, with their processes, as `ss -ntuHp` does.
    HeldSockets = "node/ss-held.txt", Root;
    /// Kernel settings, `sysctl -a` or the part that matters.
    Sysctl = "node/sysctl.txt", None;
    /// Loaded modules, `/proc/modules`.
    Modules = "node/proc-modules.txt", None;
    /// Modules built into the kernel, `modules.builtin`.
    ModulesBuiltin = "node/modules-builtin.txt", None;
    /// Loadable modules and what they depend on, `modules.dep`.
    ModulesDep = "node/modules-dep.txt", None;
    /// Modules loaded at boot: the lines of `/etc/modules` and modules-load.d, each behind its file's name.
    ModulesLoad = "node/modules-load.txt", None;
    /// Module options, aliases and blacklists: the lines of modprobe.d, each behind its file's name.
    Modprobe = "node/modprobe.txt", None;
    /// What firewall services are set to do: what matters of their files, each line behind its file's name.
    Firewalls = "node/firewalls.txt", None;
    /// What network managers say of links: what matters of their files below `/run`, each line behind its file's name.
    LinkManagers = "node/link-managers.txt", None;
    /// Messages of the kernel since boot, `dmesg`.
    KernelLog = "node/dmesg.txt", Root;
    /// The version of ipset, `ipset --version`.
    IpsetVersion = "node/ipset-version.txt", None;
    /// The version of nft, `nft --version`.
    NftVersion = "node/nft-version.txt", None;
    /// Counters of connection tracking, `/proc/net/stat/nf_conntrack`.
    ConntrackStat = "node/nf_conntrack-stat.txt", None;
    /// Tracked connections, `conntrack -L`.
    Conntrack = "node/conntrack.txt", NetAdmin;
    /// Processes of service proxies: pid, start time, command line and control group of each.
    Processes = "node/processes.json", Root;
    /// Files of the node that say how kube-proxy is to run: its own configuration, its manifest, its arguments.
    ProxyFiles = "node/proxy-files.json", Root;
    /// The journal of the newest migration that kpx began here, without its steps.
    Migration = "node/migration.jsonl", Root;
    /// The configuration file kube-proxy runs with.
    ProxyConfig = "kube-proxy/config.conf", Root;
    /// What kube-proxy says its mode is, `/proxyMode`.
    ProxyMode = "kube-proxy/proxy-mode.txt", None;
    /// kube-proxy's health, `/healthz`.
    Healthz = "kube-proxy/healthz.json", None;
    /// kube-proxy's metrics, `/metrics`.
    Metrics = "kube-proxy/metrics.txt", None;
    /// The configuration kube-proxy says it runs with, `/configz`.
    Configz = "kube-proxy/configz.json", None;
    /// kube-proxy's log.
    ProxyLog = "kube-proxy/kube-proxy.log", Api;
    /// The tools that kube-proxy finds in its own file system, a path in each line.
    ProxyTools = "kube-proxy/tools.txt", Root;
    /// Services of all namespaces.
    Services = "cluster/services.json", Api;
    /// EndpointSlices of all namespaces.
    EndpointSlices = "cluster/endpointslices.json", Api;
    /// The Node objects.
    Nodes = "cluster/nodes.json", Api;
    /// ConfigMaps of kube-system that configure kube-proxy.
    ConfigMaps = "cluster/configmaps.json", Api;
    /// DaemonSets of kube-system that run a service proxy.
    DaemonSets = "cluster/daemonsets.json", Api;
    /// Pods of kube-proxy, and of this node.
    Pods = "cluster/pods.json", Api;
    /// `ServiceCIDR` objects: the ranges that cluster IPs come from.
    ServiceCidrs = "cluster/servicecidrs.json", Api;
    /// What the API server lets kpx do: its answers to access reviews (`SelfSubjectAccessReview`).
    Access = "cluster/access.json", Api;
}

/// The rules of iptables: both families, of the back end in use and of the other one.
pub const IPTABLES: &[Item] = &[
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
];

/// Joins `lists`, which have `N` items together, in a constant.
///
/// # Panics
///
/// At compile time, if `lists` do not have `N` items.
pub const fn join<const N: usize>(lists: &[&[Item]]) -> [Item; N] {
    let mut joined = [Item::KernelRelease; N];
    let (mut list, mut count) = (0, 0);
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            joined[count] = lists[list][at];
            count += 1;
            at += 1;
        }
        list += 1;
    }
    assert!(count == N, "the lists have fewer items than N");
    joined
}

impl Item {
    /// Returns whether the item is rules of iptables, of either family and back end.
    pub fn is_iptables(self) -> bool {
        IPTABLES.contains(&self)
    }

    /// Returns the item that holds the rules of the iptables back end in use.
    pub const fn iptables(family: Family) -> Self {
        match family {
            Family::V4 => Self::Iptables4,
            Family::V6 => Self::Iptables6,
        }
    }

    /// Returns whether the item belongs to the cluster rather than to one node: `--cluster-from` takes these.
    pub fn is_of_cluster(self) -> bool {
        self == Self::ProxyConfig || self.file().starts_with("cluster/")
    }

    /// Returns the item whose bundle file is `file`, if there is one.
    pub fn of_file(file: &str) -> Option<Self> {
        ITEMS.iter().copied().find(|item| item.file() == file)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file())
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.file())
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = String::deserialize(deserializer)?;
        Self::of_file(&file)
            .ok_or_else(|| serde::de::Error::custom(format!("{file} is not a file of a bundle")))
    }
}
