//! Words that are public: those of kube-proxy, Kubernetes, the kernel and common software. Redaction keeps them.

use std::collections::HashSet;
use std::sync::LazyLock;

use kpx_node::backend::ipvs::expect::SETS;

/// Words of kube-proxy's own comments.
const COMMENTS: &str = "+ -> @no-endpoint-nodeports @no-endpoint-services Active ClusterIP ClusterIPs Drop Ensure ExternalIP IP \
    IPs KUBE-FIREWALL KUBE-PROXY-FIREWALL KUBE-SERVICES Kubernetes LOCAL LoadBalancer LoadBalancerSourceRanges NOTE \
    NodePort NodePorts Reject SNAT TCP UDP SCTP accept accepted access active affinity all and are balancer be before block by \
    can chain check cidr cluster clusterIP connection connections conntrack destinations drop dropped dst endpoint endpoints \
    external externalIP externalTrafficPolicy=local externally-visible filter firewall flow for forwarding from hairpin handle has \
    health helper in incoming invalid ip ip:port ips ipvs is jump kube-proxy kubernetes last lb load loadbalancer local \
    localnet mark masq masquerade must no node nodeport nodeports non-local not of off-cluster on or other outside packet packets \
    pod pods port portal portals ports postrouting purpose redirect reject requiring route rule rules service services \
    session set short-circuit solving source sourceRange src subject tcp that the this to traffic udp unallocated vmap \
    will with xlb DEFAULT NodeLocal DNS Cache: skip allow";

/// Words of kube-proxy's, the kernel's and kpx's messages.
const MESSAGES: &str = "BUG BridgeInterface CPU ClusterCIDR InterfaceNamePrefix NodeCIDR Another Kernel Proxier Proxy Using Unmaintained Warning a an app asked back before build can case \
    chance could currently default detected deprecated detected: dbg driver drivers err error exit exec execute failed \
    fell falling get grab hash:ip hash:ip,port hash:net holding incompatible ip6tables ip6tables-restore ip_set ip_tables \
    ip_vs ipset ipsets iptables iptables-restore it kernel kube-proxy's list listing lock lockup loaded missing mode module \
    modules modprobe msg name nftables nft_compat operator proxier running rr wrr lc wlc lblc lblcr sh dh sed nq mh \
    requested restore restart revision rollback scheduler settype soft specified stage start status still stopped stuck supported \
    sync syncing t terminated time timed try unmaintained use used user userspace using version wait waiting was watchdog were \
    xtables Generated Completed nf_tables legacy Table tables table tool incompatible present see them iptables-save ip6tables-save \
    iptables-legacy-save ip6tables-legacy-save iptables-nft-save ip6tables-nft-save iptables-legacy ip6tables-legacy nft managed touch \
    Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec by do filter mangle nat raw security ahead have us v4 v6 IPv4 IPv6 IPVS Can't can't cannot Failed Kube-proxy reach reached answer answers failing command \
    Error ProxyServer Couldn't Failed No Set Unauthorized address adding already any are as be because cache certificate chain chain/target/match \
    chains check code configuration connect connection context could couldn't create deadline decoder decoding denied destinations \
    determine dial directory dummy ensure exceeded exist exists fail false family field file find following forbidden found get \
    host i/o id in interface is issued jumps kind lacks lenient line list load lookup match named network no not occurred of ok on open \
    option or parameters parse parseIP permission read refused required resource resources rule rules server service set size \
    socket strict such switch target that the there timeout tls to type unable unexpected unknown v1 verify version watch \
    whether will without write x509 your EndpointSlice Service Node bind listen lacks ip6tables-nft-restore iptables-nft-restore \
    recent comment addrtype statistic multiport --xor-mark --or-mark --random-fully *v1.EndpointSlice *v1.Service *v1.Node *v1.ServiceCIDR \
    nf_conntrack nf_conntrack_ipv4 nf_conntrack_max strict: unknown: KubeProxyConfiguration lookup: ipFamily retryingTime \
    Linux full dropping neighbour neighbor arp_cache ndisc_cache overflow! Route martian dev bad checksum From ulen wireguard Packet \
    unallowed src peer NETDEV WATCHDOG transmit queue Detected Hardware Unit Hang skb rides rocket unregister_netdevice become free Usage \
    count Possible flooding Sending cookies Dropping request memory Memory cgroup Killed process total-vm anon-rss file-rss shmem-rss UID \
    pgtables oom_score_adj another message out SYN request_sock_TCP xennet consider increasing sysctl slots destination available \
    NIC Link link Down Down, down definitely status slave self-detected detected stall stalls on page allocation failure: order GFP_ATOMIC \
    Remounting Remounting filesystem Filesystem read-only has been shut down Log I/O Error Detected forced readonly EXT4-fs XFS BTRFS audit avc denied \
    apparmor DENIED comm operation type failure";

/// Parts of names of chains, tables, sets and files, as common software gives them.
const NAMES: &str = "ACCEPT ADMIN ANTREA CANARY CHECK CLUSTER CNI CT DN DOCKER DROP EXTERNAL FILTER FIREWALL FLANNEL FORWARD \
    FW FWD FWDI FWDO GROUP HINT HOSTPORT HOSTPORTS HP IN INGRESS EGRESS INPUT IP IPS IPTABLES IPVS ISOLATION KUBE KUBELET LIBVIRT LOAD BALANCER \
    LOCAL LOG LOGDROP MANGLE MARK MASQ NAT NODE NODEPORT NODEPORTS NODES NWPLCY OLD OUT OUTPUT POD PODS POSTRT POSTRTG PORT PORTS PORTALS \
    POSTROUTING PRE POST PREROUTING PRT PRX PROXY RAW REJECT ROUTER SECURITY SERVICES SERVICE SETMARK SNAT DNAT SOURCE RANGES STAGE USER WEAVE \
    CILIUM DEFAULT NPC agent besteffort burstable kubepods kubelite podruntime rke2 runtime slice scope controller worker accept after alive all allow allowed alpha antrea app api apps args b beta backends bans before bin binary blacklist block bridge broute by cali \
    cali40all cali40masq cali40s cali40this cali60all cali60masq cali60s cali60this calico canary chain check cidr \
    cilium cluster clusters cni cni0 common conf config connection connections conntrack consul container containers control counter current d \
    daemon default deny devices dispatch dnat dns docker docker0 drop dropped dst dummy egress eks eksbuild enabled endpoint endpoints \
    etc ext external f2b failsafe fib filter firewall firewalld flannel flowtable for forward forwarding from fw group \
    hairpin hairpins firewalls refuse refused refusing outside daddr dport saddr l4proto hep hook host hosts hostport hostports http https icmp if in incoming ingress inet init input install internal invalid ip ip4 ip6 ipam ipip \
    ips iptables ip6tables ipv4 ipv6 ipvs k0s k3s k8s kpx kube kubeconfig kubelet kubernetes kubeproxy lib lib64 libvirt limit link links lo load local lock log \
    logging loopback main manage manager mangle manifest manifests map mark masq masquerade masquerading mcast microk8s modprobe modules multi multicast nat \
    net netfilter netif network new nftables no node nodeport nodeports nodes ns none ntp os other out outgoing output parent pi \
    po podman pods policy pools port portals ports post posts postrouting pre pri pro prefix prerouting private \
    profile proxy public pod rancher raw rc reject rejects related return route router routing rpf rules run save sbin security server service \
    services set sets skip snap snat source src ssh sshd state static sysctl sysinit sysconfig system systemd table tables target tcp th this \
    to tracking trusted tw udp ufw usr user users untracked v v4 v6 validate var vip vips vmap vxlan wants weave wg wireguard wl work xtables yaml yml \
    yes zone zones true false modprobe NetworkManager conf.d modprobe.d modules-load.d";

/// Names of links that the kernel or common software gives, and that show nothing private.
const LINKS: &[&str] = &[
    "all",
    "antrea-gw0",
    "antrea-tun0",
    "bpfin.cali",
    "bpfout.cali",
    "br-ex",
    "br-int",
    "cilium_geneve",
    "cilium_host",
    "cilium_net",
    "cilium_vxlan",
    "cilium_wg0",
    "datapath",
    "default",
    "docker_gwbridge",
    "egw0",
    "genev_sys_6081",
    "kube-bridge",
    "kube-dummy-if",
    "kube-ipvs0",
    "lo",
    "node-local-dns",
    "nodelocaldns",
    "ovn-k8s-mp0",
    "ovs-system",
    "vxlan-v6.calico",
    "vxlan.calico",
    "vxlan_sys_4789",
    "weave",
    "wg-v6.cali",
    "wireguard.cali",
];

/// Beginnings of links' names that only a number follows.
const NUMBERED: &[&str] = &[
    "bond",
    "br",
    "cbr",
    "cni",
    "docker",
    "dummy",
    "enP",
    "eni",
    "eno",
    "enp",
    "ens",
    "eth",
    "flannel",
    "flannel-v6",
    "geneve",
    "gre",
    "ib",
    "ip6tnl",
    "ipip",
    "lxcbr",
    "lxdbr",
    "nodelocaldns",
    "podman",
    "ppp",
    "sit",
    "tailscale",
    "tap",
    "team",
    "tun",
    "tunl",
    "usb",
    "virbr",
    "vlan",
    "vmbr",
    "vxlan",
    "wg",
    "wlan",
    "wlp",
];

/// Beginnings of links' names that show their purpose; the rest is private.
pub(super) const LINK_PREFIXES: &[&str] = &[
    "antrea",
    "azv",
    "bond",
    "br-",
    "cali",
    "cbr",
    "cilium_",
    "cni",
    "docker",
    "eni",
    "enx",
    "flannel",
    "geneve",
    "gke",
    "kube-",
    "lxc",
    "nodelocaldns",
    "ovn",
    "tap",
    "tun",
    "veth",
    "virbr",
    "vlan",
    "vxlan",
    "weave",
    "wg",
    "wireguard",
];

/// Words that a comment keeps.
pub(super) static IN_COMMENTS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let of_sets = SETS.iter().flat_map(|set| of_comment(set.comment));
    of_comment(COMMENTS).chain(of_sets).chain([""]).collect()
});

/// Characters around the words of a comment.
pub(super) const AROUND: [char; 10] = [';', ':', '.', '\'', '"', '`', '(', ')', '[', ']'];

/// Returns the words of `comment`.
fn of_comment(comment: &'static str) -> impl Iterator<Item = &'static str> {
    let words = comment.split_ascii_whitespace();
    words.map(|word| word.trim_end_matches(',').trim_matches(AROUND))
}

/// Words that a message keeps.
pub(super) static IN_MESSAGES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let all = [COMMENTS, MESSAGES];
    all.into_iter()
        .flat_map(str::split_ascii_whitespace)
        .collect()
});

static PARTS: LazyLock<HashSet<&str>> = LazyLock::new(|| NAMES.split_ascii_whitespace().collect());

/// Returns whether `word` is a public part of a name: a known word, a number, or a single character.
pub(super) fn in_names(word: &str) -> bool {
    word.len() < 2 || PARTS.contains(word) || word.bytes().all(|b| b.is_ascii_digit())
}

/// Returns whether the name of a link is common: known, or a known word and a number.
pub(super) fn is_common_link(name: &str) -> bool {
    // Names of PCI devices contain their place: enp3s0f0np0.
    let is_place = |rest: &str| {
        let all = rest
            .bytes()
            .all(|b| b.is_ascii_digit() || b".sfnpdv".contains(&b));
        rest.is_empty() || all && rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    };
    LINKS.contains(&name)
        || NUMBERED
            .iter()
            .any(|start| name.strip_prefix(start).is_some_and(is_place))
}
