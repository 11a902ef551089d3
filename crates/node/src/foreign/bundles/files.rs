//! The files of each tool's bundle, and the content of each.

use crate::evidence::Item;

/// The tools whose bundles are known.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Tool {
    Eks,
    Bottlerocket,
    Rancher,
    Sos,
    MustGather,
    Troubleshoot,
    Dump,
    Cilium,
    Calico,
    Antrea,
    Microk8s,
    K8sSnap,
    Retina,
    Kind,
}

impl Tool {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Eks => "EKS log collector",
            Self::Bottlerocket => "Bottlerocket logs",
            Self::Rancher => "Rancher log collector",
            Self::Sos => "sos report",
            Self::MustGather => "must-gather",
            Self::Troubleshoot => "troubleshoot.sh support bundle",
            Self::Dump => "kubectl cluster-info dump",
            Self::Cilium => "cilium sysdump",
            Self::Calico => "calicoctl cluster diags",
            Self::Antrea => "Antrea support bundle",
            Self::Microk8s => "microk8s inspection report",
            Self::K8sSnap => "k8s inspection report",
            Self::Retina => "Retina capture",
            Self::Kind => "kind logs",
        }
    }
}

/// The content of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The output of a command.
    Run(&'static str),
    /// The same, if nothing better is in the bundle.
    Weak(&'static str),
    /// An item as it is.
    Is(Item),
    /// kube-proxy's log.
    Log,
    /// Objects of the API of one namespace each, or of all of them.
    Objects,
    /// A file with prompts or titles of its own.
    Text,
    /// The name of the node.
    Name,
    /// The output of `uname -a`.
    Uname,
    /// The version of Kubernetes on the node.
    Version,
}

use What::{Is, Log, Name, Objects, Run, Text, Uname, Version, Weak};

/// Files by the end of their paths: `*` stands for any characters of one folder or file name, `{node}` for the node's.
pub(super) const FILES: &[(Tool, &str, What)] = &[
    (
        Tool::Eks,
        "networking/iptables-save.txt",
        Run("iptables-save"),
    ),
    (
        Tool::Eks,
        "networking/ip6tables-save.txt",
        Run("ip6tables-save"),
    ),
    (
        Tool::Eks,
        "networking/iptables-mangle.txt",
        Weak("iptables -t mangle -nvL"),
    ),
    (
        Tool::Eks,
        "networking/iptables-filter.txt",
        Weak("iptables -t filter -nvL"),
    ),
    (
        Tool::Eks,
        "networking/iptables-nat.txt",
        Weak("iptables -t nat -nvL"),
    ),
    (Tool::Eks, "networking/ipset.txt", Run("ipset save")),
    (Tool::Eks, "networking/ipvsadm.txt", Run("ipvsadm")),
    (Tool::Eks, "networking/ifconfig.txt", Run("ifconfig")),
    (
        Tool::Eks,
        "networking/iproute.txt",
        Run("ip route show table all"),
    ),
    (
        Tool::Eks,
        "networking/ip6route.txt",
        Run("ip -6 route show table all"),
    ),
    (Tool::Eks, "networking/iprule.txt", Run("ip rule show")),
    (Tool::Eks, "networking/ip6rule.txt", Run("ip -6 rule show")),
    (Tool::Eks, "networking/conntrack.txt", Text),
    (
        Tool::Eks,
        "networking/conntrack6.txt",
        Run("conntrack -L -f ipv6"),
    ),
    (Tool::Eks, "system/netstat.txt", Run("netstat -plant")),
    (Tool::Eks, "sysctls/sysctl_all.txt", Run("sysctl -a")),
    (Tool::Eks, "modinfo/ip_vs", Run("lsmod | grep ip_vs")),
    (Tool::Eks, "kernel/dmesg.current", Is(Item::KernelLog)),
    (Tool::Eks, "kernel/uname.txt", Uname),
    (Tool::Eks, "var_log/kube-proxy*.log", Log),
    (Tool::Eks, "var_log/*kube-proxy*/kube-proxy/*.log", Log),
    (Tool::Eks, "kubelet/svc.log", Run("kubectl get svc")),
    (
        Tool::Bottlerocket,
        "iptables-filter",
        Run("iptables -t filter -nvL"),
    ),
    (
        Tool::Bottlerocket,
        "iptables-nat",
        Run("iptables -t nat -nvL"),
    ),
    (Tool::Bottlerocket, "dmesg", Is(Item::KernelLog)),
    (
        Tool::Rancher,
        "networking/iptablessave",
        Run("iptables-save"),
    ),
    (
        Tool::Rancher,
        "networking/ip6tablessave",
        Run("ip6tables-save"),
    ),
    (
        Tool::Rancher,
        "networking/nft_ruleset",
        Run("nft list ruleset"),
    ),
    (Tool::Rancher, "networking/ipvsadm", Run("ipvsadm -ln")),
    (Tool::Rancher, "networking/ipaddrshow", Run("ip addr show")),
    (
        Tool::Rancher,
        "networking/iplinkshow",
        Run("ip -s link show"),
    ),
    (
        Tool::Rancher,
        "networking/iproute",
        Run("ip route show table all"),
    ),
    (
        Tool::Rancher,
        "networking/ipv6route",
        Run("ip -6 route show"),
    ),
    (Tool::Rancher, "networking/iprule", Run("ip rule show")),
    (Tool::Rancher, "networking/ipv6rule", Run("ip -6 rule show")),
    (Tool::Rancher, "networking/ssanp", Weak("ss -anp")),
    (
        Tool::Rancher,
        "networking/sstunlp4",
        Run("ss -tunlp4 | grep 4"),
    ),
    (
        Tool::Rancher,
        "networking/sstunlp6",
        Run("ss -tunlp6 | grep 6"),
    ),
    (Tool::Rancher, "systeminfo/sysctla", Run("sysctl -a")),
    (Tool::Rancher, "systeminfo/lsmod", Run("lsmod")),
    (Tool::Rancher, "systeminfo/conntrack", Run("conntrack -S")),
    (Tool::Rancher, "systeminfo/dmesg", Is(Item::KernelLog)),
    (Tool::Rancher, "systeminfo/uname", Uname),
    (Tool::Rancher, "systeminfo/hostname", Name),
    (
        Tool::Rancher,
        "kubectl/services",
        Run("kubectl get services -o wide -A"),
    ),
    (
        Tool::Rancher,
        "kubectl/endpoints",
        Run("kubectl get endpoints -A"),
    ),
    (
        Tool::Rancher,
        "kubectl/pods",
        Run("kubectl get pods -o wide -A"),
    ),
    (Tool::Rancher, "kubectl/nodes.json", Objects),
    (
        Tool::Rancher,
        "kubectl/nodes",
        Run("kubectl get nodes -o wide"),
    ),
    (Tool::Rancher, "podlogs/kube-system-kube-proxy*", Log),
    (
        Tool::Sos,
        "sos_commands/*/iptables_-t_nat_-nvL",
        Run("iptables -t nat -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/iptables_-t_filter_-nvL",
        Weak("iptables -t filter -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/iptables_-t_mangle_-nvL",
        Run("iptables -t mangle -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/iptables_-t_raw_-nvL",
        Run("iptables -t raw -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/iptables_-vnxL",
        Run("iptables -vnxL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/ip6tables_-t_nat_-nvL",
        Run("ip6tables -t nat -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/ip6tables_-t_filter_-nvL",
        Weak("ip6tables -t filter -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/ip6tables_-t_mangle_-nvL",
        Run("ip6tables -t mangle -nvL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/ip6tables_-vnxL",
        Run("ip6tables -vnxL"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/nft_-a_list_ruleset",
        Run("nft -a list ruleset"),
    ),
    (
        Tool::Sos,
        "sos_commands/*/nft_list_ruleset",
        Weak("nft list ruleset"),
    ),
    (
        Tool::Sos,
        "sos_commands/ipvs/ipvsadm_-Ln",
        Run("ipvsadm -Ln"),
    ),
    (
        Tool::Sos,
        "sos_commands/ipvs/ipvsadm_-Ln_--stats",
        Run("ipvsadm -Ln --stats"),
    ),
    (
        Tool::Sos,
        "sos_commands/ipvs/ipvsadm_-Ln_--timeout",
        Run("ipvsadm -Ln --timeout"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-d_address",
        Run("ip -d address"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-o_addr",
        Weak("ip -o addr"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-s_-d_link",
        Run("ip -s -d link"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_route_show_table_all",
        Run("ip route show table all"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-6_route_show_table_all",
        Run("ip -6 route show table all"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-4_rule*",
        Run("ip -4 rule"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ip_-6_rule*",
        Run("ip -6 rule"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/ss_-peaonmi",
        Run("ss -peaonmi"),
    ),
    (
        Tool::Sos,
        "sos_commands/networking/netstat_-W_-neopa",
        Weak("netstat -W -neopa"),
    ),
    (
        Tool::Sos,
        "sos_commands/conntrack/conntrack_-L_-o_extended",
        Run("conntrack -L -o extended"),
    ),
    (Tool::Sos, "sos_commands/kernel/sysctl_-a", Run("sysctl -a")),
    (Tool::Sos, "sos_commands/kernel/lsmod", Weak("lsmod")),
    (Tool::Sos, "sos_commands/kernel/uname_-a", Uname),
    (Tool::Sos, "sos_commands/kernel/dmesg", Is(Item::KernelLog)),
    (Tool::Sos, "sos_commands/host/hostname", Name),
    (
        Tool::Sos,
        "sos_commands/kubernetes/*_get_-o_json_*",
        Objects,
    ),
    (
        Tool::Sos,
        "sos_commands/kubernetes/*/*_get_--all-namespaces_true_services",
        Run("kubectl get services -A"),
    ),
    (
        Tool::Sos,
        "sos_commands/kubernetes/*/*_get_--all-namespaces_true_endpoints",
        Run("kubectl get endpoints -A"),
    ),
    (Tool::Sos, "proc/net/ip_vs_conn", Is(Item::IpvsConnections)),
    (Tool::Sos, "proc/net/tcp", Is(Item::Tcp4)),
    (Tool::Sos, "proc/net/tcp6", Is(Item::Tcp6)),
    (Tool::Sos, "proc/net/udp", Is(Item::Udp4)),
    (Tool::Sos, "proc/net/udp6", Is(Item::Udp6)),
    (
        Tool::Sos,
        "proc/net/stat/nf_conntrack",
        Is(Item::ConntrackStat),
    ),
    (Tool::Sos, "proc/net/stat/arp_cache", Is(Item::Neighbours4)),
    (
        Tool::Sos,
        "proc/net/stat/ndisc_cache",
        Is(Item::Neighbours6),
    ),
    (Tool::Sos, "proc/modules", Is(Item::Modules)),
    (Tool::MustGather, "core/services.yaml", Objects),
    (Tool::MustGather, "core/endpoints.yaml", Objects),
    (Tool::MustGather, "core/pods.yaml", Objects),
    (Tool::MustGather, "core/configmaps.yaml", Objects),
    (
        Tool::MustGather,
        "discovery.k8s.io/endpointslices.yaml",
        Objects,
    ),
    (Tool::MustGather, "apps/daemonsets.yaml", Objects),
    (Tool::MustGather, "core/nodes/*.yaml", Objects),
    (Tool::MustGather, "core/services/*.yaml", Objects),
    (
        Tool::MustGather,
        "discovery.k8s.io/endpointslices/*.yaml",
        Objects,
    ),
    (
        Tool::MustGather,
        "pods/*/kube-proxy/kube-proxy/logs/current.log",
        Log,
    ),
    (Tool::MustGather, "pods/sdn-*/sdn/sdn/logs/current.log", Log),
    (
        Tool::MustGather,
        "network_logs/{node}_iptables",
        Run("iptables-save -c"),
    ),
    (
        Tool::Troubleshoot,
        "cluster-resources/services/*.json",
        Objects,
    ),
    (
        Tool::Troubleshoot,
        "cluster-resources/endpointslices/*.json",
        Objects,
    ),
    (
        Tool::Troubleshoot,
        "cluster-resources/endpoints/*.json",
        Objects,
    ),
    (
        Tool::Troubleshoot,
        "cluster-resources/configmaps/*.json",
        Objects,
    ),
    (
        Tool::Troubleshoot,
        "cluster-resources/daemonsets/*.json",
        Objects,
    ),
    (Tool::Troubleshoot, "cluster-resources/pods/*.json", Objects),
    (Tool::Troubleshoot, "cluster-resources/nodes.json", Objects),
    (
        Tool::Troubleshoot,
        "host-collectors/system/sysctl.json",
        Text,
    ),
    (
        Tool::Troubleshoot,
        "host-collectors/{node}/system/sysctl.json",
        Text,
    ),
    (Tool::Troubleshoot, "host-collectors/run-host/*", Text),
    (
        Tool::Troubleshoot,
        "host-collectors/{node}/run-host/*",
        Text,
    ),
    (Tool::Troubleshoot, "sysctl/{node}", Run("sysctl -a")),
    (Tool::Dump, "nodes.json", Objects),
    (Tool::Dump, "nodes.yaml", Objects),
    (Tool::Dump, "*/services.json", Objects),
    (Tool::Dump, "*/services.yaml", Objects),
    (Tool::Dump, "*/pods.json", Objects),
    (Tool::Dump, "*/pods.yaml", Objects),
    (Tool::Dump, "*/daemonsets.json", Objects),
    (Tool::Dump, "*/daemonsets.yaml", Objects),
    (Tool::Dump, "kube-system/kube-proxy*/logs.txt", Log),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/iptables-save--c.md",
        Run("iptables-save -c"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip6tables-save--c.md",
        Run("ip6tables-save -c"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/iptables-nft-save--c.md",
        Run("iptables-nft-save -c"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/iptables-legacy-save--c.md",
        Run("iptables-legacy-save -c"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/cilium-dbg-service-list.md",
        Run("cilium-dbg service list"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/cilium-dbg-bpf-lb-list.md",
        Run("cilium-dbg bpf lb list"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/cilium-service-list.md",
        Run("cilium service list"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/cilium-bpf-lb-list.md",
        Run("cilium bpf lb list"),
    ),
    (
        Tool::Cilium,
        "cmd/cilium-dbg-service-list.md",
        Run("cilium-dbg service list"),
    ),
    (
        Tool::Cilium,
        "cmd/cilium-dbg-bpf-lb-list.md",
        Run("cilium-dbg bpf lb list"),
    ),
    (
        Tool::Cilium,
        "cmd/cilium-service-list.md",
        Run("cilium service list"),
    ),
    (
        Tool::Cilium,
        "cmd/cilium-bpf-lb-list.md",
        Run("cilium bpf lb list"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip-a.md",
        Run("ip a"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip--d--s--s-l.md",
        Run("ip -d -s -s l"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip--4-r.md",
        Run("ip -4 r"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip--6-r.md",
        Run("ip -6 r"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ip--d-rule.md",
        Run("ip -d rule"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/ipset-list.md",
        Run("ipset list"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/sysctl--a.md",
        Run("sysctl -a"),
    ),
    (
        Tool::Cilium,
        "cilium-bugtool-{node}/cmd/lsmod.md",
        Run("lsmod"),
    ),
    (
        Tool::Cilium,
        "cmd/iptables-save--c.md",
        Run("iptables-save -c"),
    ),
    (
        Tool::Cilium,
        "cmd/ip6tables-save--c.md",
        Run("ip6tables-save -c"),
    ),
    (Tool::Cilium, "cmd/ip-a.md", Run("ip a")),
    (Tool::Cilium, "cmd/ip--4-r.md", Run("ip -4 r")),
    (Tool::Cilium, "cmd/ip--d-rule.md", Run("ip -d rule")),
    (Tool::Cilium, "cmd/ipset-list.md", Run("ipset list")),
    (Tool::Cilium, "cmd/sysctl--a.md", Run("sysctl -a")),
    (Tool::Cilium, "cmd/lsmod.md", Run("lsmod")),
    (Tool::Cilium, "k8s-services-*.yaml", Objects),
    (Tool::Cilium, "k8s-endpoints-*.yaml", Objects),
    (Tool::Cilium, "k8s-endpointslices-*.yaml", Objects),
    (Tool::Cilium, "k8s-nodes-*.yaml", Objects),
    (Tool::Cilium, "k8s-pods-*.yaml", Objects),
    (
        Tool::Calico,
        "nodes/{node}/iptables-legacy-save.txt",
        Run("iptables-legacy-save -c"),
    ),
    (
        Tool::Calico,
        "nodes/{node}/iptables-nft-save.txt",
        Run("iptables-nft-save -c"),
    ),
    (
        Tool::Calico,
        "nodes/{node}/nft-ruleset.txt",
        Run("nft -n -a list ruleset"),
    ),
    (
        Tool::Calico,
        "nodes/{node}/ip-route.txt",
        Run("ip route show table all"),
    ),
    (
        Tool::Calico,
        "nodes/{node}/ip-route-v6.txt",
        Run("ip -6 route show table all"),
    ),
    (Tool::Calico, "nodes/{node}/ip-rule.txt", Run("ip rule")),
    (Tool::Calico, "nodes/{node}/ip-addr.txt", Run("ip addr")),
    (Tool::Calico, "nodes/{node}/ip-link.txt", Run("ip link")),
    (
        Tool::Calico,
        "nodes/{node}/ipset-list.txt",
        Run("ipset list"),
    ),
    (Tool::Calico, "cluster/kubernetes/services.yaml", Objects),
    (Tool::Calico, "cluster/kubernetes/endpoints.yaml", Objects),
    (
        Tool::Calico,
        "cluster/kubernetes/endpointslices.yaml",
        Objects,
    ),
    (Tool::Calico, "cluster/kubernetes/nodes.yaml", Objects),
    (Tool::Calico, "cluster/kubernetes/pods.yaml", Objects),
    (Tool::Calico, "cluster/kubernetes/configmaps.yaml", Objects),
    (Tool::Calico, "cluster/kubernetes/daemonsets.yaml", Objects),
    (Tool::Antrea, "iptables", Text),
    (Tool::Antrea, "ipset", Run("ipset save")),
    (Tool::Antrea, "nftables", Run("nft list ruleset")),
    (Tool::Antrea, "link", Run("ip link")),
    (Tool::Antrea, "address", Run("ip addr")),
    (Tool::Antrea, "rule", Run("ip rule")),
    (Tool::Antrea, "route", Run("ip route show table all")),
    (
        Tool::Microk8s,
        "network/iptables",
        Run("iptables -t nat -L -n -v"),
    ),
    (Tool::Microk8s, "network/iptables-S", Run("iptables -S")),
    (Tool::Microk8s, "network/iptables-L", Weak("iptables -L")),
    (Tool::Microk8s, "network/ifconfig", Run("ifconfig")),
    (Tool::Microk8s, "network/netstat", Run("netstat -pln")),
    (Tool::Microk8s, "k8s/cluster-info-dump", Objects),
    (Tool::K8sSnap, "iptables.log", Run("iptables-save")),
    (
        Tool::K8sSnap,
        "iptables-legacy.log",
        Run("iptables-legacy-save"),
    ),
    (Tool::K8sSnap, "iptables6.log", Run("ip6tables-save")),
    (
        Tool::K8sSnap,
        "iptables6-legacy.log",
        Run("ip6tables-legacy-save"),
    ),
    (Tool::K8sSnap, "ip-a.log", Run("ip a")),
    (Tool::K8sSnap, "ip-r.log", Run("ip r")),
    (Tool::K8sSnap, "ss-plnt.log", Run("ss -plnt")),
    (Tool::K8sSnap, "cluster-info/*/services.json", Objects),
    (Tool::K8sSnap, "cluster-info/nodes.json", Objects),
    (Tool::Retina, "iptables-rules.txt", Text),
    (Tool::Retina, "ip-resources.txt", Text),
    (Tool::Retina, "socket-stats.txt", Text),
    (
        Tool::Retina,
        "proc-net/ip_vs_conn",
        Is(Item::IpvsConnections),
    ),
    (Tool::Retina, "proc-net/tcp", Is(Item::Tcp4)),
    (Tool::Retina, "proc-net/tcp6", Is(Item::Tcp6)),
    (Tool::Retina, "proc-net/udp", Is(Item::Udp4)),
    (Tool::Retina, "proc-net/udp6", Is(Item::Udp6)),
    (Tool::Kind, "{node}/kubernetes-version.txt", Version),
    (Tool::Kind, "{node}/containers/kube-proxy*.log", Log),
    (
        Tool::Kind,
        "{node}/pods/kube-system_kube-proxy*/kube-proxy/*.log",
        Log,
    ),
];

/// Signs of each tool, any of which is enough: all of its files are there.
const SIGNS: &[(Tool, &[&str])] = &[
    (Tool::Eks, &["system/script-params.txt"]),
    (
        Tool::Eks,
        &["networking/iptables-mangle.txt", "networking/iproute.txt"],
    ),
    (Tool::Eks, &["networking/get_api_server.txt"]),
    (
        Tool::Bottlerocket,
        &["iptables-nat", "journalctl.log", "settings.json"],
    ),
    (Tool::Rancher, &["networking/iptablessave"]),
    (Tool::Rancher, &["collector-output.log"]),
    (Tool::Sos, &["sos_reports/manifest.json"]),
    (Tool::Sos, &["sos_commands/*/*"]),
    (Tool::Calico, &["nodes/*/iptables-nft-save.txt"]),
    (Tool::Calico, &["nodes/*/iptables-legacy-save.txt"]),
    (Tool::Cilium, &["cmd/iptables-save--c.md"]),
    (Tool::Cilium, &["k8s-services-*.yaml"]),
    (
        Tool::Troubleshoot,
        &["version.yaml", "cluster-resources/nodes.json"],
    ),
    (Tool::Troubleshoot, &["host-collectors/*/*"]),
    (Tool::MustGather, &["cluster-scoped-resources/*/*/*"]),
    (Tool::MustGather, &["namespaces/*/core/*.yaml"]),
    (Tool::K8sSnap, &["snap-list-k8s.log"]),
    (Tool::K8sSnap, &["iptables-legacy.log", "ip-a.log"]),
    (Tool::Microk8s, &["network/iptables-S", "network/iptables"]),
    (Tool::Microk8s, &["inspection-report/args/kube-proxy"]),
    (Tool::Antrea, &["ovsports", "agentinfo"]),
    (Tool::Retina, &["iptables-rules.txt", "ip-resources.txt"]),
    (Tool::Dump, &["nodes.json", "kube-system/services.json"]),
    (Tool::Dump, &["nodes.yaml", "kube-system/services.yaml"]),
    (Tool::Kind, &["kind-version.txt"]),
];

/// Folders whose files are of other network namespaces, or copies.
const SKIPPED: &[&str] = &[
    "namespaces/*/ip_netns_exec_*",
    "sos_commands/networking/namespaces/*/*",
];

/// Returns the value of `{node}` in `pattern` at the end of `path`; `None` if they do not fit.
#[expect(clippy::option_option, reason = "a pattern that fits may have no node")]
pub(super) fn fits<'p>(path: &'p str, pattern: &str) -> Option<Option<&'p str>> {
    let parts: Vec<&str> = path.split('/').collect();
    let wanted: Vec<&str> = pattern.split('/').collect();
    let start = parts.len().checked_sub(wanted.len())?;
    let mut node = None;
    for (part, wanted) in parts[start..].iter().zip(wanted) {
        if let Some((before, after)) = wanted.split_once("{node}") {
            let inside = part.strip_prefix(before)?.strip_suffix(after)?;
            if inside.is_empty() {
                return None;
            }
            node = Some(inside);
        } else if !is_like(part, wanted) {
            return None;
        }
    }
    Some(node)
}

/// Returns whether `name` fits `pattern` with any number of `*`.
fn is_like(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let mut ends = (0..=rest.len()).filter(|at| rest.is_char_boundary(*at));
            ends.any(|at| is_like(&rest[at..], after))
        }),
    }
}

/// The most folders above a file of no known tool.
const DEPTH: usize = 3;

/// Returns whether the file at `path` may be evidence.
pub fn is_wanted(path: &str) -> bool {
    if SKIPPED.iter().any(|pattern| fits(path, pattern).is_some()) {
        return false;
    }
    let known = FILES
        .iter()
        .any(|(_, pattern, _)| fits(path, pattern).is_some());
    let is_sign = || {
        SIGNS.iter().any(|(_, all)| {
            all.iter()
                .any(|sign| !sign.contains('*') && fits(path, sign).is_some())
        })
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_text = || match name.rsplit_once('.') {
        None => true,
        Some((_, end)) => [
            "txt", "log", "md", "json", "yaml", "yml", "out", "gz", "xz", "save", "lst",
        ]
        .contains(&end),
    };
    known || is_sign() || path.matches('/').count() < DEPTH && is_text()
}

/// Returns the tool that made a bundle of `paths`.
pub(super) fn kind_of(paths: &[&str]) -> Option<Tool> {
    let has = |sign: &str| paths.iter().any(|path| fits(path, sign).is_some());
    SIGNS
        .iter()
        .find(|(_, all)| all.iter().all(|sign| has(sign)))
        .map(|(kind, _)| *kind)
}
