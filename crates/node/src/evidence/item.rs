//! The table of everything that kpx reads from a node or its cluster.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::net::Family;

/// Privilege required to read an item on a live node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Privilege {
    /// Readable by any user.
    None,
    /// `CAP_NET_ADMIN`, usually as root.
    NetAdmin,
    /// Root reads all of it, other users a part.
    Root,
    /// Kubernetes API with `get` and `list` on the resource.
    Api,
}

macro_rules! items {
    ($($(#[doc = $doc:literal])+ $name:ident = $file:literal, $privilege:ident;)+) => {
        /// Something that kpx can read from a node or its cluster.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Item { $($(#[doc = $doc])+ $name,)+ }

        /// Every [`Item`], in the order a bundle lists them.
        pub const ITEMS: &[Item] = &[$(Item::$name,)+];

        impl Item {
            /// Returns the path of the item's file in a bundle.
            pub const fn file(self) -> &'static str {
                match self { $(Self::$name => $file,)+ }
            }

            /// Returns the privilege required to read the item live.
            pub const fn privilege(self) -> Privilege {
                match self { $(Self::$name => Privilege::$privilege,)+ }
            }

            /// Returns a one-line description of the item.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

items! {
    /// The running kernel's release, `uname -r`.
    KernelRelease = "node/kernel-release.txt", None;
    /// Identity of the machine: host name, machine ID, boot ID and hardware IDs.
    Host = "node/host.txt", None;
    /// IPv4 rules of the iptables back end in use, `iptables-save -c`.
    Iptables4 = "node/iptables-save.txt", NetAdmin;
    /// IPv6 rules of the iptables back end in use, `ip6tables-save -c`.
    Iptables6 = "node/ip6tables-save.txt", NetAdmin;
    /// IPv4 rules of the legacy back end, if it is not the one in use.
    IptablesLegacy4 = "node/iptables-legacy-save.txt", Root;
    /// IPv6 rules of the legacy back end, if it is not the one in use.
    IptablesLegacy6 = "node/ip6tables-legacy-save.txt", Root;
    /// IPv4 rules of the nft back end, if it is not the one in use.
    IptablesNft4 = "node/iptables-nft-save.txt", NetAdmin;
    /// IPv6 rules of the nft back end, if it is not the one in use.
    IptablesNft6 = "node/ip6tables-nft-save.txt", NetAdmin;
    /// Rules of the legacy back end of arptables, `arptables-legacy -n --line-numbers -L`.
    Arptables = "node/arptables-legacy.txt", Root;
    /// Version and back end of iptables, `iptables --version`.
    IptablesVersion = "node/iptables-version.txt", None;
    /// Version of conntrack, `conntrack --version`.
    ConntrackVersion = "node/conntrack-version.txt", None;
    /// Ruleset of nftables, `nft -j list ruleset`.
    Nft = "node/nft.json", NetAdmin;
    /// Ruleset of nftables as text, `nft list ruleset`; used if there is no JSON.
    NftText = "node/nft.txt", NetAdmin;
    /// IP sets with their members, `ipset save`.
    Ipset = "node/ipset-save.txt", NetAdmin;
    /// Virtual and real servers with counters and timeouts, read over netlink.
    Ipvs = "node/ipvs.json", NetAdmin;
    /// Virtual and real servers, `ipvsadm -Sn`.
    IpvsSave = "node/ipvsadm-save.txt", NetAdmin;
    /// Counters of virtual and real servers, `ipvsadm -Ln --stats`.
    IpvsStats = "node/ipvsadm-stats.txt", NetAdmin;
    /// IPVS timeouts in seconds, `ipvsadm -Ln --timeout`.
    IpvsTimeout = "node/ipvsadm-timeout.txt", NetAdmin;
    /// IPVS connection table, `/proc/net/ip_vs_conn`.
    IpvsConnections = "node/ip_vs_conn.txt", Root;
    /// Clients in lists of `xt_recent`, with the kernel's clock: lines of their files, each prefixed with its file name.
    Recent = "node/xt_recent.txt", Root;
    /// Addresses of every link, `ip -j addr`.
    Addresses = "node/ip-addr.json", None;
    /// Links with their kinds and flags, `ip -j -d link`.
    Links = "node/ip-link.json", None;
    /// Routes of every table, `ip -j route show table all`.
    Routes = "node/ip-route.json", None;
    /// Routing policy rules, `ip -j rule`.
    Rules = "node/ip-rule.json", None;
    /// Neighbours of every link with their link-layer addresses, `ip -j neigh`.
    NeighbourTable = "node/ip-neigh.json", None;
    /// Policies of IPsec (xfrm), `ip xfrm policy`.
    XfrmPolicies = "node/ip-xfrm-policy.txt", NetAdmin;
    /// Security associations of IPsec without their keys, `ip xfrm state list nokeys`.
    XfrmStates = "node/ip-xfrm-state.txt", NetAdmin;
    /// Queueing disciplines and filters of links, `tc -j qdisc` and `tc -j filter`.
    Tc = "node/tc.json", None;
    /// Programs of eBPF on control groups and links, maps, and the Services in those of Cilium and Calico.
    Bpf = "node/bpf.json", Root;
    /// Addresses, links, routes, qdiscs, listening sockets and rules inside each network namespace of pods.
    PodNetworks = "node/pod-networks.txt", Root;
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
    /// Connected sockets with a source address of kube-ipvs0 or of a kpx route, with their processes, like `ss -ntuHp`.
    HeldSockets = "node/ss-held.txt", Root;
    /// Kernel settings, `sysctl -a` or the relevant part of it.
    Sysctl = "node/sysctl.txt", None;
    /// Loaded modules, `/proc/modules`.
    Modules = "node/proc-modules.txt", None;
    /// Modules built into the kernel, `modules.builtin`.
    ModulesBuiltin = "node/modules-builtin.txt", None;
    /// Loadable modules and their dependencies, `modules.dep`.
    ModulesDep = "node/modules-dep.txt", None;
    /// Modules loaded at boot: lines of `/etc/modules` and modules-load.d, each prefixed with its file name.
    ModulesLoad = "node/modules-load.txt", None;
    /// Module options, aliases and blacklists: lines of modprobe.d, each prefixed with its file name.
    Modprobe = "node/modprobe.txt", None;
    /// Settings of firewall services: the relevant lines of their files, each prefixed with its file name.
    Firewalls = "node/firewalls.txt", None;
    /// Link states of network managers: the relevant lines of their files in `/run`, each prefixed with its file name.
    LinkManagers = "node/link-managers.txt", None;
    /// Kernel messages since boot, `dmesg`.
    KernelLog = "node/dmesg.txt", Root;
    /// Version of ipset, `ipset --version`.
    IpsetVersion = "node/ipset-version.txt", None;
    /// Version of nft, `nft --version`.
    NftVersion = "node/nft-version.txt", None;
    /// Counters of connection tracking, `/proc/net/stat/nf_conntrack`.
    ConntrackStat = "node/nf_conntrack-stat.txt", None;
    /// Counters of the IPv4 neighbour table, `/proc/net/stat/arp_cache`.
    Neighbours4 = "node/arp_cache-stat.txt", None;
    /// Counters of the IPv6 neighbour table, `/proc/net/stat/ndisc_cache`.
    Neighbours6 = "node/ndisc_cache-stat.txt", None;
    /// Tracked connections, `conntrack -L`.
    Conntrack = "node/conntrack.txt", NetAdmin;
    /// Processes of service proxies: PID, start time, command line and control group.
    Processes = "node/processes.json", Root;
    /// Files of the node that configure kube-proxy: its configuration file, manifest or arguments file.
    ProxyFiles = "node/proxy-files.json", Root;
    /// Journal of the last migration on this node, without its steps.
    Migration = "node/migration.jsonl", Root;
    /// Configuration file of the running kube-proxy.
    ProxyConfig = "kube-proxy/config.conf", Root;
    /// Mode reported by kube-proxy, `/proxyMode`.
    ProxyMode = "kube-proxy/proxy-mode.txt", None;
    /// Health of kube-proxy, `/healthz`.
    Healthz = "kube-proxy/healthz.json", None;
    /// Metrics of kube-proxy, `/metrics`.
    Metrics = "kube-proxy/metrics.txt", None;
    /// Configuration reported by kube-proxy, `/configz`.
    Configz = "kube-proxy/configz.json", None;
    /// Log of kube-proxy.
    ProxyLog = "kube-proxy/kube-proxy.log", Api;
    /// Tools in kube-proxy's own file system, and `/etc/protocols`, one path per line.
    ProxyTools = "kube-proxy/tools.txt", Root;
    /// Services of all namespaces.
    Services = "cluster/services.json", Api;
    /// EndpointSlices of all namespaces.
    EndpointSlices = "cluster/endpointslices.json", Api;
    /// Node objects.
    Nodes = "cluster/nodes.json", Api;
    /// ConfigMaps of kube-system that configure kube-proxy.
    ConfigMaps = "cluster/configmaps.json", Api;
    /// DaemonSets of kube-system that run a service proxy.
    DaemonSets = "cluster/daemonsets.json", Api;
    /// Pods of kube-proxy, and all Pods of this node.
    Pods = "cluster/pods.json", Api;
    /// `ServiceCIDR` objects: the ranges of cluster IPs.
    ServiceCidrs = "cluster/servicecidrs.json", Api;
    /// Permissions of kpx in the cluster: answers to access reviews (`SelfSubjectAccessReview`).
    Access = "cluster/access.json", Api;
}

/// Rules of iptables: both families, in the back end in use and in the other one.
pub const IPTABLES: &[Item] = &[
    Item::Iptables4,
    Item::Iptables6,
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
];

/// Items of a node whose text is never empty: tools and files that have a header, a version or JSON, and lists that every node
/// has entries of. The others may have nothing to list.
const NEVER_EMPTY: &[Item] = &[
    Item::KernelRelease,
    Item::Host,
    Item::IptablesVersion,
    Item::ConntrackVersion,
    Item::Nft,
    Item::Ipvs,
    Item::IpvsStats,
    Item::IpvsTimeout,
    Item::IpvsConnections,
    Item::Addresses,
    Item::Links,
    Item::Routes,
    Item::Rules,
    Item::NeighbourTable,
    Item::Tc,
    Item::Bpf,
    Item::Tcp4,
    Item::Tcp6,
    Item::Udp4,
    Item::Udp6,
    Item::Sysctl,
    Item::KernelLog,
    Item::IpsetVersion,
    Item::NftVersion,
    Item::ConntrackStat,
    Item::Neighbours4,
    Item::Neighbours6,
    Item::Processes,
    Item::ProxyFiles,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Healthz,
    Item::Metrics,
    Item::Configz,
    Item::ProxyLog,
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

    /// Returns the item with the rules of `family` in the iptables back end in use.
    pub const fn iptables(family: Family) -> Self {
        match family {
            Family::V4 => Self::Iptables4,
            Family::V6 => Self::Iptables6,
        }
    }

    /// Returns whether the item describes the cluster, not a single node: `--cluster-from` reads these items.
    pub fn is_of_cluster(self) -> bool {
        self == Self::ProxyConfig || self.is_object()
    }

    /// Returns whether only the API server has it.
    pub fn is_object(self) -> bool {
        self.file().starts_with("cluster/")
    }

    /// Returns whether its text is never empty: an empty file has not been read.
    pub fn is_never_empty(self) -> bool {
        self.is_object() || NEVER_EMPTY.contains(&self)
    }

    /// Returns the item whose bundle file is `file`; `None` if there is none.
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
