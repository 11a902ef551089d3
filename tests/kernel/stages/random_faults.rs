//! Random faults of a node, one or two at a time: what kpx says of a connection is what the kernel does with it.
//!
//! `KPX_SEED` and `KPX_TRIALS` choose others than the fixed ones, `KPX_FAMILY` (4 or 6) one family, and `KPX_FAULT` is a command
//! line to try instead of them.

use std::fmt::Write as _;

use kpx_judge::verdict::{Client, Fate};
use kpx_node::backend::Mode;
use kpx_node::net::Family;

use super::inside::Inside;
use super::network::{FAR, NEAR, Network, fate};
use crate::kernel::trace::mutate::Dice;

const LINKS: &[&str] = &["cni0", "veth0", "veth1", "eth0", "eth1"];

/// A pod that asks, the endpoints, the Services, the nodes, and an address that nothing has.
const HOSTS: &[&str] = &[
    "10.244.1.5",
    "10.244.1.6",
    "10.244.2.7",
    "10.96.0.10",
    "10.96.0.11",
    "10.244.1.1",
    "10.0.2.15",
    "10.0.2.16",
    "10.0.2.99",
];

const RANGES: &[&str] = &[
    "10.244.1.0/24",
    "10.244.2.0/24",
    "10.244.0.0/16",
    "10.96.0.0/12",
    "10.0.2.0/24",
    "10.0.0.0/8",
    "0.0.0.0/0",
];

/// Faults that kpx is known not to see, or to judge otherwise than the kernel, by a part of their command: none of them is tried.
const KNOWN: &[&str] = &[
    // How often a node asks for a neighbour, and ARP that a bridge keeps from a port.
    "_solicit=0",
    "proxy_arp on",
    "locked on",
    "vlan_filtering 1",
    // The address of another link may come back, and is said to be lost.
    "--to-source 10.0.3.15",
    "snat to 10.0.3.15",
    // Rules that drop some packets an hour.
    "limit rate 1/hour drop",
    "--limit-burst 1 -j DROP",
    // The time to live in chains of bridges.
    "add table bridge low; nft 'add chain bridge low some { type filter hook prerouting",
    "add table bridge low; nft 'add chain bridge low some { type filter hook input",
    "arptables -A OUTPUT -d",
    "TEE",
    // An address that a route alone makes the node's own.
    "ip route add local 10.244.",
    // The address of a Service as a broadcast address, or as one that the node chooses for its packets (IPv6).
    "brd 10.96.",
    "ip addr add 10.96.0.10/32 dev eth0",
    // A qdisc of a bridge that loses packets: ARP passes it, and first packets between ports.
    "dev cni0 root blackhole",
    "dev cni0 root tbf",
    // The question for a neighbour goes to a multicast address.
    "--dst-type UNICAST -j TTL",
    // Queues that hold no packet.
    "fifo limit",
];

struct Faults<'d>(&'d mut Dice);

impl Faults<'_> {
    fn pick(&mut self, all: &[&'static str]) -> &'static str {
        let found: &&'static str = self.0.pick(all);
        found
    }

    fn chance(&mut self, of: usize) -> bool {
        self.0.below(of) == 0
    }

    fn place(&mut self) -> &'static str {
        if self.chance(2) {
            self.pick(HOSTS)
        } else {
            self.pick(RANGES)
        }
    }

    /// Returns a command line of a shell that changes something on the node.
    fn one(&mut self) -> String {
        match self.0.below(12) {
            0 | 1 => self.sysctl(),
            2 => self.policy_rule(),
            3 => self.route(),
            4 | 5 => self.link(),
            6 => self.neighbour(),
            7 => self.traffic_control(),
            8 => self.iptables(),
            9 => self.nft(),
            10 => self.own_rule(),
            _ => self.other(),
        }
    }

    fn sysctl(&mut self) -> String {
        let link = self.pick(&[
            "all", "default", "cni0", "eth0", "eth1", "lo", "veth0", "veth1",
        ]);
        let value = self.pick(&["0", "1", "2", "8"]);
        match self.0.below(4) {
            0 | 1 => {
                let name = self.pick(&[
                    "rp_filter",
                    "forwarding",
                    "accept_local",
                    "arp_ignore",
                    "arp_filter",
                    "arp_announce",
                    "proxy_arp",
                    "route_localnet",
                    "src_valid_mark",
                    "accept_source_route",
                    "disable_policy",
                    "disable_xfrm",
                    "drop_unicast_in_l2_multicast",
                    "bc_forwarding",
                    "proxy_arp_pvlan",
                    "shared_media",
                    "medium_id",
                ]);
                format!("sysctl -q -w net.ipv4.conf.{link}.{name}={value}")
            }
            2 => {
                let name = self.pick(&[
                    "net.ipv4.ip_forward=0",
                    "net.ipv4.ip_default_ttl=1",
                    "net.ipv4.ip_default_ttl=2",
                    "net.ipv4.ip_nonlocal_bind=1",
                    "net.ipv4.ip_no_pmtu_disc=3",
                    "net.ipv4.ip_local_port_range='40000 40000'",
                    "net.ipv4.tcp_timestamps=0",
                    "net.ipv4.tcp_ecn=1",
                    "net.ipv4.fwmark_reflect=1",
                    "net.ipv4.tcp_fwmark_accept=1",
                    "net.ipv4.tcp_early_demux=0",
                    "net.ipv4.ip_early_demux=0",
                    "net.ipv4.icmp_ratelimit=0",
                    "net.ipv4.conf.all.forwarding=0",
                    "net.bridge.bridge-nf-call-iptables=0",
                    "net.bridge.bridge-nf-call-arptables=0",
                    "net.bridge.bridge-nf-filter-vlan-tagged=1",
                    "net.netfilter.nf_conntrack_tcp_be_liberal=1",
                    "net.netfilter.nf_conntrack_tcp_loose=0",
                    "net.netfilter.nf_conntrack_checksum=0",
                ]);
                format!("sysctl -q -w {name}")
            }
            _ => {
                let link = self.pick(&["cni0", "eth0", "veth0", "default"]);
                let name = self.pick(&[
                    "mcast_solicit=0",
                    "ucast_solicit=0",
                    "app_solicit=0",
                    "unres_qlen_bytes=0",
                    "unres_qlen=0",
                    "base_reachable_time_ms=1",
                    "delay_first_probe_time=0",
                ]);
                let flush = if self.chance(2) {
                    "; ip neigh flush all"
                } else {
                    ""
                };
                format!("sysctl -q -w net.ipv4.neigh.{link}.{name}{flush}")
            }
        }
    }

    fn policy_rule(&mut self) -> String {
        let mut line = String::from("ip rule add");
        let not = if self.chance(8) { " not" } else { "" };
        let selector = match self.0.below(9) {
            0 | 1 => format!("{not} from {}", self.place()),
            2 | 3 => format!("{not} to {}", self.place()),
            4 => format!(" from {} to {}", self.place(), self.place()),
            5 => format!(" iif {}", self.pick(&["cni0", "eth0", "lo", "veth0"])),
            6 => format!(
                " fwmark {}",
                self.pick(&["0x4000/0x4000", "0/0x4000", "0", "0x4000"])
            ),
            7 => format!(
                " ipproto tcp {} {}",
                self.pick(&["dport", "sport"]),
                self.pick(&["80", "8080", "1-1023"])
            ),
            _ => format!(
                " from all {}",
                self.pick(&["tos 0x10", "oif eth0", "oif cni0"])
            ),
        };
        line += &selector;
        let priority = self.pick(&["5", "100", "32765", "32766", "40000"]);
        let action = self.pick(&[
            "prohibit",
            "blackhole",
            "unreachable",
            "lookup 100",
            "lookup 100",
            "lookup 100 suppress_prefixlength 0",
            "lookup main suppress_prefixlength 0",
            "lookup main suppress_prefixlength 24",
            "lookup local",
            "goto 32767",
        ]);
        write!(line, " priority {priority} {action}").unwrap();
        if action.contains("lookup 100") && !self.chance(4) {
            let route = self.route_in(" table 100");
            return format!("{route}; {line}");
        }
        if self.chance(12) {
            line += "; ip rule del priority 32766";
        }
        line
    }

    fn route(&mut self) -> String {
        match self.0.below(8) {
            0 => "ip route del 10.244.2.0/24".to_owned(),
            1 => "ip route del 10.244.1.0/24".to_owned(),
            2 => "ip route del default".to_owned(),
            3 => {
                let at = self.pick(HOSTS);
                format!(
                    "ip route {} local {at} dev lo table local",
                    self.pick(&["add", "del"])
                )
            }
            _ => self.route_in(""),
        }
    }

    fn route_in(&mut self, table: &str) -> String {
        let to = self.place();
        let verb = self.pick(&["add", "replace", "append", "prepend"]);
        let kind = self.pick(&["blackhole", "unreachable", "prohibit", "throw"]);
        let link = self.pick(&["cni0", "eth0", "eth1", "lo"]);
        let gateway = self.pick(&["10.0.2.16", "10.0.3.16", "10.0.2.99", "10.244.1.6"]);
        let options = self.pick(&[
            "",
            "",
            "",
            " metric 5",
            " mtu 300",
            " src 10.0.3.15",
            " src 10.244.1.1",
            " onlink",
            " scope link",
            " advmss 500",
        ]);
        match self.0.below(5) {
            0 => format!("ip route {verb} {kind} {to}{table}"),
            1 | 2 => format!("ip route {verb} {to} via {gateway}{options}{table}"),
            3 => format!("ip route {verb} {to} dev {link}{options}{table}"),
            _ => format!("ip route {verb} {to} nexthop via 10.0.2.16 nexthop via {gateway}{table}"),
        }
    }

    fn link(&mut self) -> String {
        let link = self.pick(LINKS);
        match self.0.below(6) {
            0 => {
                let what = self.pick(&[
                    "down",
                    "mtu 68",
                    "mtu 600",
                    "arp off",
                    "multicast off",
                    "promisc on",
                    "address 02:00:00:00:00:99",
                    "nomaster",
                    "allmulticast on",
                    "txqueuelen 0",
                    "netns 1",
                ]);
                if what == "netns 1" {
                    return format!("ip link set {link} down; ip link set {link} up");
                }
                format!("ip link set {link} {what}")
            }
            1 | 2 => {
                let port = self.pick(&["veth0", "veth1"]);
                let what = self.pick(&[
                    "isolated on",
                    "hairpin off",
                    "learning off",
                    "flood off",
                    "mcast_flood off",
                    "bcast_flood off",
                    "proxy_arp on",
                    "proxy_arp_wifi on",
                    "neigh_suppress on",
                    "guard on",
                    "root_block on",
                    "fastleave on",
                    "locked on",
                    "state 0",
                    "state 1",
                    "state 2",
                    "state 4",
                    "cost 100",
                    "vlan_tunnel on",
                ]);
                let flush = self.pick(&["", "; ip neigh flush dev cni0"]);
                format!("ip link set {port} type bridge_slave {what}{flush}")
            }
            3 => {
                let what = self.pick(&[
                    "vlan_filtering 1",
                    "vlan_filtering 1 vlan_default_pvid 0",
                    "vlan_default_pvid 0",
                    "ageing_time 0",
                    "nf_call_iptables 1",
                    "nf_call_arptables 1",
                    "stp_state 1",
                    "mcast_snooping 1",
                    "vlan_stats_enabled 1",
                    "no_linklocal_learn 1",
                    "fdb_max_learned 1",
                ]);
                format!("ip link set cni0 type bridge {what}")
            }
            4 => {
                let port = self.pick(&["veth0", "veth1"]);
                match self.0.below(4) {
                    0 => format!(
                        "ip link set cni0 type bridge vlan_filtering 1; bridge vlan del dev {port} vid 1"
                    ),
                    1 => format!(
                        "ip link set cni0 type bridge vlan_filtering 1; bridge vlan add dev {port} vid 7 pvid untagged"
                    ),
                    2 => "ip link set cni0 type bridge vlan_filtering 1; bridge vlan del dev cni0 vid 1 self".to_owned(),
                    _ => format!(
                        "bridge fdb replace $(ip -n {{NEAR}} -br link show up0 | grep -o '[0-9a-f:]\\{{17\\}}') dev {port} master static"
                    ),
                }
            }
            _ => {
                let at = self.pick(HOSTS);
                let prefix = self.pick(&["32", "32", "24", "16"]);
                match self.0.below(4) {
                    0 => "ip addr del 10.244.1.1/24 dev cni0".to_owned(),
                    1 => "ip addr del 10.0.2.15/24 dev eth0".to_owned(),
                    2 => format!("ip addr add 10.0.2.15/24 brd {at} dev eth1"),
                    _ => format!("ip addr add {at}/{prefix} dev {link}"),
                }
            }
        }
    }

    fn neighbour(&mut self) -> String {
        let at = self.pick(&["10.244.1.5", "10.244.1.6", "10.0.2.99"]);
        let link = if at.starts_with("10.244") {
            "cni0"
        } else {
            "eth0"
        };
        match self.0.below(4) {
            0 | 1 => format!(
                "ip neigh replace {at} lladdr 02:00:00:00:00:99 dev {link} nud {}",
                "permanent"
            ),
            2 => format!(
                "ip neigh add proxy {} dev {}",
                self.pick(HOSTS),
                self.pick(LINKS)
            ),
            _ => format!(
                "arptables -A {} {} -j DROP",
                self.pick(&["INPUT", "OUTPUT", "FORWARD"]),
                self.pick(&[
                    "-i cni0",
                    "-o cni0",
                    "-s 10.244.1.6",
                    "-d 10.244.1.5",
                    "-o eth0",
                    "-i eth0"
                ])
            ),
        }
    }

    fn traffic_control(&mut self) -> String {
        let link = self.pick(LINKS);
        if self.chance(3) {
            let what = self.pick(&[
                "netem loss 100%",
                "netem delay 5ms",
                "netem duplicate 100%",
                "netem corrupt 100%",
                "netem limit 0",
                "tbf rate 1mbit burst 10k latency 10ms",
                "tbf rate 1kbit burst 40 latency 1ms",
                "tbf rate 8mbit burst 60 latency 10ms",
                "pfifo limit 0",
                "pfifo limit 1",
                "bfifo limit 1",
                "fq_codel",
                "sfq",
                "red limit 100000 avpkt 1000",
                "prio",
                "blackhole",
                "fq",
                "cake",
                "codel limit 1",
            ]);
            return format!("tc qdisc replace dev {link} root {what}");
        }
        let side = self.pick(&["ingress", "egress"]);
        let classifier = match self.0.below(7) {
            0 => "protocol all matchall".to_owned(),
            1 => format!("protocol ip flower dst_ip {}", self.place()),
            2 => format!("protocol ip flower src_ip {}", self.place()),
            3 => format!(
                "protocol ip flower ip_proto tcp {} {}",
                self.pick(&["dst_port", "src_port"]),
                self.pick(&["80", "8080"])
            ),
            4 => format!("protocol ip u32 match ip dst {}", self.place()),
            5 => "protocol arp flower arp_op request".to_owned(),
            _ => format!(
                "protocol ip flower tcp_flags {}",
                self.pick(&["0x2/0x12", "0x12/0x12"])
            ),
        };
        let action = self.pick(&[
            "drop",
            "drop",
            "pass",
            "mirred egress redirect dev eth1",
            "mirred egress mirror dev eth1",
            "skbedit mark 0x4000",
            "skbedit ptype otherhost",
            "pedit ex munge ip ttl set 1 pipe csum ip",
            "pedit ex munge tcp dport set 81 pipe csum ip tcp",
            "police rate 1kbit burst 10 conform-exceed drop",
            "gact reclassify",
            "ok random determ drop 2",
            "vlan push id 5",
        ]);
        format!(
            "tc qdisc replace dev {link} clsact; tc filter add dev {link} {side} prio 1 {classifier} action {action}"
        )
    }

    fn iptables(&mut self) -> String {
        let (table, chain, target) = match self.0.below(5) {
            0 => (
                "raw",
                self.pick(&["PREROUTING", "OUTPUT"]),
                self.pick(&[
                    "DROP",
                    "CT --notrack",
                    "CT --zone 7",
                    "CT --zone-orig 7",
                    "CT --zone-reply 7",
                    "ACCEPT",
                ]),
            ),
            1 => (
                "mangle",
                self.pick(&["PREROUTING", "OUTPUT", "FORWARD", "INPUT", "POSTROUTING"]),
                self.pick(&[
                    "DROP",
                    "MARK --set-mark 0x4000",
                    "MARK --set-mark 0",
                    "TTL --ttl-set 1",
                    "TTL --ttl-inc 3",
                    "TOS --set-tos 0x10",
                    "ACCEPT",
                    "CONNMARK --set-mark 1",
                    "TEE --gateway 10.0.3.16",
                    "DSCP --set-dscp 5",
                ]),
            ),
            2 => (
                "nat",
                self.pick(&["PREROUTING", "OUTPUT"]),
                self.pick(&[
                    "ACCEPT",
                    "RETURN",
                    "DNAT --to-destination 10.244.1.6:8080",
                    "DNAT --to-destination 10.244.1.6",
                    "REDIRECT --to-ports 8080",
                    "DNAT --to-destination 10.244.2.7:8080 --persistent",
                ]),
            ),
            3 => (
                "nat",
                self.pick(&["POSTROUTING", "INPUT"]),
                self.pick(&[
                    "ACCEPT",
                    "SNAT --to-source 10.0.3.15",
                    "SNAT --to-source 10.9.9.9",
                    "SNAT --to-source 10.244.1.1",
                    "RETURN",
                ]),
            ),
            _ => (
                "filter",
                self.pick(&["FORWARD", "INPUT", "OUTPUT"]),
                self.pick(&[
                    "DROP",
                    "REJECT",
                    "REJECT --reject-with tcp-reset",
                    "ACCEPT",
                    "LOG",
                    "NFQUEUE --queue-num 7",
                    "NFQUEUE --queue-num 7 --queue-bypass",
                ]),
            ),
        };
        let matches = match self.0.below(12) {
            0 => String::new(),
            1 => format!(" -s {}", self.place()),
            2 | 3 => format!(" -d {}", self.place()),
            4 => format!(" -p tcp --dport {}", self.pick(&["80", "8080"])),
            5 => format!(" -p tcp --sport {}", self.pick(&["80", "8080"])),
            6 => format!(
                " -m conntrack --ctstate {}",
                self.pick(&[
                    "NEW",
                    "ESTABLISHED",
                    "INVALID",
                    "DNAT",
                    "SNAT",
                    "NEW,UNTRACKED",
                    "RELATED"
                ])
            ),
            7 => format!(
                " -p tcp --tcp-flags {}",
                self.pick(&["SYN,ACK SYN,ACK", "SYN,ACK SYN", "FIN FIN", "RST RST"])
            ),
            8 => format!(
                " -m mark --mark {}",
                self.pick(&["0x4000/0x4000", "0/0x4000"])
            ),
            9 => format!(
                " -m addrtype --{}-type {}",
                self.pick(&["src", "dst"]),
                self.pick(&["LOCAL", "UNICAST", "BROADCAST"])
            ),
            10 => format!(
                " -m {}",
                self.pick(&[
                    "limit --limit 1/hour --limit-burst 1",
                    "statistic --mode nth --every 2 --packet 0",
                    "ttl --ttl-eq 63",
                    "ttl --ttl-eq 64",
                    "length --length 0:60",
                    "connlimit --connlimit-above 0 -p tcp",
                    "rpfilter --invert",
                    "conntrack --ctdir REPLY",
                    "conntrack --ctorigdstport 80 -p tcp",
                    "tcp -p tcp ! --syn",
                    "physdev --physdev-in veth0",
                    "pkttype --pkt-type unicast",
                    "recent --set --name x"
                ])
            ),
            _ => {
                let way = match chain {
                    "INPUT" | "PREROUTING" => "-i",
                    "OUTPUT" | "POSTROUTING" => "-o",
                    _ => self.pick(&["-i", "-o"]),
                };
                format!(
                    " {way} {}",
                    self.pick(&["cni0", "eth0", "eth1", "lo", "veth0", "veth+"])
                )
            }
        };
        let verb = self.pick(&["-I", "-I", "-I", "-A"]);
        if self.chance(15) {
            let policy = self.pick(&["FORWARD", "INPUT", "OUTPUT"]);
            return format!("iptables -P {policy} DROP");
        }
        format!("iptables -t {table} {verb} {chain}{matches} -j {target}")
    }

    fn nft(&mut self) -> String {
        let (family, kind, hook) = match self.0.below(4) {
            0 => (
                "bridge",
                "filter",
                self.pick(&["prerouting", "input", "forward", "output", "postrouting"]),
            ),
            1 => {
                let link = self.pick(LINKS);
                let hook = match self.pick(&["ingress", "egress"]) {
                    "ingress" => format!("ingress device {link}"),
                    _ => format!("egress device {link}"),
                };
                return self.nft_table("netdev", "filter", &hook);
            }
            2 => (
                "ip",
                "nat",
                self.pick(&["prerouting", "output", "postrouting", "input"]),
            ),
            _ => (
                self.pick(&["ip", "inet"]),
                self.pick(&["filter", "filter", "route"]),
                self.pick(&["prerouting", "input", "forward", "output", "postrouting"]),
            ),
        };
        let (kind, hook) = if kind == "route" {
            ("route", "output")
        } else {
            (kind, hook)
        };
        self.nft_table(family, kind, hook)
    }

    fn nft_table(&mut self, family: &str, kind: &str, hook: &str) -> String {
        let matches = match self.0.below(12) {
            0 => String::new(),
            1 => format!("ip saddr {}", self.place()),
            2 | 3 => format!("ip daddr {}", self.place()),
            4 => format!("tcp dport {}", self.pick(&["80", "8080", "!= 80"])),
            5 => format!("tcp sport {}", self.pick(&["80", "8080"])),
            6 if family != "netdev" => format!(
                "ct {}",
                self.pick(&[
                    "state new",
                    "state established",
                    "status dnat",
                    "direction reply",
                    "state invalid",
                    "original proto-dst 80"
                ])
            ),
            7 => format!(
                "tcp flags {}",
                self.pick(&["syn / syn,ack", "syn,ack / syn,ack", "rst"])
            ),
            8 => self
                .pick(&[
                    "arp operation request",
                    "ether type arp",
                    "ether type ip",
                    "meta protocol ip",
                    "meta l4proto tcp",
                    "meta pkttype host",
                    "meta length < 100",
                    "ip ttl 63",
                    "ip ttl < 64",
                ])
                .to_owned(),
            9 => format!(
                "meta mark {}",
                self.pick(&["0", "!= 0", "0x4000", "& 0x4000 == 0x4000"])
            ),
            10 if family == "ip" || family == "inet" => self
                .pick(&[
                    "fib saddr . iif oif missing",
                    "fib daddr type local",
                    "fib saddr type local",
                    "rt nexthop 10.0.2.16",
                    "socket transparent 1",
                    "meta skuid 0",
                ])
                .to_owned(),
            _ => format!(
                "{} {}",
                self.pick(&["iifname", "oifname"]),
                self.pick(&["cni0", "eth0", "lo", "veth0", "\"veth*\""])
            ),
        };
        let action = if kind == "nat" {
            self.pick(&[
                "accept",
                "dnat to 10.244.1.6:8080",
                "dnat to 10.244.2.7:8080",
                "snat to 10.9.9.9",
                "masquerade",
                "redirect to :8080",
                "snat to 10.0.3.15",
            ])
        } else if family == "netdev" || family == "bridge" {
            self.pick(&[
                "drop",
                "drop",
                "accept",
                "meta mark set 0x4000",
                "counter",
                "ip ttl set 1",
            ])
        } else {
            self.pick(&[
                "drop",
                "reject",
                "reject with tcp reset",
                "accept",
                "notrack",
                "meta mark set 0x4000",
                "meta mark set 0",
                "queue num 7",
                "queue flags bypass num 7",
                "ip ttl set 1",
                "ct mark set 1",
                "limit rate 1/hour drop",
                "ip daddr set 10.244.1.6",
                "tcp dport set 81",
                "tcp option maxseg size set 500",
                "counter",
                "log",
            ])
        };
        let priority = self.pick(&[
            "-450", "-300", "-160", "-150", "-101", "-100", "-99", "0", "10", "99", "100", "101",
            "300",
        ]);
        let policy = if kind == "filter" && self.chance(12) {
            " policy drop;"
        } else {
            ""
        };
        format!(
            "nft add table {family} low; nft 'add chain {family} low some {{ type {kind} hook {hook} priority {priority};{policy} }}'; nft 'add rule {family} low some {matches} {action}'"
        )
    }

    /// Changes kube-proxy's rules.
    fn own_rule(&mut self) -> String {
        let table = self.pick(&["nat", "nat", "nat", "filter"]);
        let number = self.0.below(100);
        let change = self.pick(&["-D", "-D", "-D", "-F"]);
        // A rule of a chain that exists, whichever.
        if self.0.below(2) == 0 {
            return "handle=$(nft -a list table ip kube-proxy | grep -v ' chain\\| set\\| map\\|type ' | grep -o 'handle [0-9]*' | cut -d' ' -f2 | sort -n | head -NUMBER | tail -1); chain=$(nft -a list table ip kube-proxy | awk -v h=$handle '/chain/ {c=$2} $NF==h && !/chain/ {print c}'); nft -a list chain ip kube-proxy $chain | grep \"handle $handle\"; nft delete rule ip kube-proxy $chain handle $handle".replace("NUMBER", &(number / 3).to_string());
        }
        format!(
            "rule=$(iptables-save -t {table} | grep '^-A' | sed -n \"$(({number} % $(iptables-save -t {table} | grep -c '^-A') + 1))p\"); if [ {change} = -D ]; then echo \"iptables -t {table} -D ${{rule#-A }}\" | sh -e; else set -- $rule; iptables -t {table} -F $2; fi; echo \"$rule\""
        )
    }

    fn other(&mut self) -> String {
        match self.0.below(3) {
            0 => {
                let way = self.pick(&["in", "out", "fwd"]);
                let action = self.pick(&["block", "allow"]);
                let (from, to) = (self.place(), self.place());
                format!("ip xfrm policy add dir {way} src {from} dst {to} action {action}")
            }
            1 => {
                let at = self.pick(&["10.96.0.10", "10.96.0.11"]);
                format!(
                    "ip link add kube-ipvs0 type {}; ip addr add {at}/32 dev kube-ipvs0",
                    self.pick(&["dummy", "bridge"])
                )
            }
            _ => {
                let at = self.pick(HOSTS);
                match self.0.below(4) {
                    0 => format!(
                        "ip link add wg0 type bridge; ip link set wg0 up; ip addr add {at}/24 dev wg0"
                    ),
                    1 => format!(
                        "ip link add tun7 type ipip local 10.0.2.15 remote 10.0.2.16; ip link set tun7 up; ip route replace {} dev tun7",
                        self.place()
                    ),
                    2 => format!(
                        "ip link add vrf7 type vrf table 7; ip link set vrf7 up; ip link set {} master vrf7",
                        self.pick(&["cni0", "eth0", "eth1"])
                    ),
                    _ => format!(
                        "ip link add link {} name mac7 type macvlan mode bridge; ip link set mac7 up; ip addr add {at}/32 dev mac7",
                        self.pick(&["eth0", "cni0"])
                    ),
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test reads its own settings")]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns whether all, none or some of the connections of `client` to `service` get an answer.
fn answers(network: &Network, client: Client, service: &str) -> Option<bool> {
    let first = network.answers(client, service);
    let again = (0..3).all(|_| network.answers(client, service) == first);
    again.then_some(first)
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn long_random_faults_are_judged_as_the_kernel_does() {
    let number = |name: &str| setting(name).and_then(|text| text.parse().ok());
    let seed = number("KPX_SEED").unwrap_or(20_261_201);
    let trials = number("KPX_TRIALS").unwrap_or(60);
    let (mut wrong, mut decided, mut unknown) = (Vec::new(), 0, 0);
    for trial in 0..trials {
        let mut dice = Dice::new(seed + trial);
        let mode = *dice.pick(&[Mode::Iptables, Mode::Nftables]);
        let family = match setting("KPX_FAMILY").as_deref() {
            Some("6") => Family::V6,
            Some(_) => Family::V4,
            None => *dice.pick(&Family::BOTH),
        };
        let mut network = Network::of(mode, family);
        network.reads_pods = true;
        network.add_outside(mode);
        let _inside = [&network.client, &network.near].map(Inside::new);
        let mut lines = vec![Faults(&mut dice).one()];
        if dice.below(3) == 0 {
            lines.push(Faults(&mut dice).one());
        }
        if let Some(fault) = setting("KPX_FAULT") {
            lines = vec![fault];
        }
        if KNOWN
            .iter()
            .any(|known| lines.iter().any(|line| line.contains(known)))
        {
            continue;
        }
        // A command may be refused, as a second one of the same kind: what it has done by then stays.
        let script = network.words(&lines.join("\n"));
        let script = script.replace("{NEAR}", network.near.name());
        let said = network.node.run_any(&script);
        for service in [NEAR, FAR] {
            let before = network.why(service).await;
            for client in [Client::Pod, Client::Host, Client::Outside] {
                let fate = fate(&before, client);
                let answers = answers(&network, client, service);
                let is_wrong = match (fate, answers) {
                    (Fate::Unknown, _) => {
                        unknown += 1;
                        continue;
                    }
                    (Fate::Works, works) => works != Some(true),
                    // Another endpoint may answer.
                    (Fate::Partly | Fate::Misled, _) => false,
                    (_, works) => works == Some(true),
                };
                decided += 1;
                if is_wrong {
                    wrong.push(format!(
                        "seed {} ({mode}, {family}): {}\n{said}    {service} from {client:?}: {fate}, answers {answers:?}: {}",
                        seed + trial,
                        lines.join(" && "),
                        before.sentence
                    ));
                    eprintln!("{}", wrong.last().unwrap());
                }
            }
        }
    }
    eprintln!(
        "{trials} trials: {decided} decided, {unknown} unknown, {} wrong",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
