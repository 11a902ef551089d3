//! Rules of other programs, each in a few lines of its own: what kube-proxy never writes, but nodes have.

use kpx_judge::trace::World;
use kpx_node::evidence::{self, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;

use super::judge::{Judge, flow};
use super::network::Network;
use super::recording::{Recording, Target};

/// The destinations of packets; `Proto::Icmp` stands for a ping of either family.
const TARGETS: &[(&str, u16, Proto)] = &[
    ("10.0.2.15", 22, Proto::Tcp),
    ("10.0.2.15", 0, Proto::Icmp),
    ("10.0.2.115", 30999, Proto::Udp),
    ("10.100.99.99", 80, Proto::Tcp),
    ("10.244.2.50", 8080, Proto::Tcp),
    ("10.96.0.10", 9999, Proto::Udp),
    ("203.0.113.200", 443, Proto::Tcp),
    ("203.0.113.200", 0, Proto::Icmp),
    ("fd00:10:0:2::15", 30999, Proto::Tcp),
    ("fd00:10:0:2::15", 0, Proto::Icmp),
    ("fd00:10:96::999", 80, Proto::Tcp),
    ("fd00:10:96::999", 0, Proto::Icmp),
    ("fd00:10:96::30a", 9999, Proto::Tcp),
    ("fd00:10:244:2::a", 80, Proto::Udp),
];

/// Rules of a program.
struct Rules {
    name: &'static str,
    /// Whether they have conditions that no evidence decides.
    open: bool,
    /// For `nft -f`, after `flush ruleset`.
    nft: &'static str,
    /// For iptables-nft-restore and ip6tables-nft-restore.
    iptables: [&'static str; 2],
    /// For `ipset restore`.
    sets: &'static str,
}

const NONE: Rules = Rules {
    name: "",
    open: false,
    nft: "",
    iptables: [""; 2],
    sets: "",
};

const PROGRAMS: &[Rules] = &[
    Rules {
        name: "limits for each client, as of fail2ban",
        open: true,
        nft: "table inet limits {
    set seen4 { type ipv4_addr; flags dynamic; size 4096; }
    set seen6 { type ipv6_addr; flags dynamic; size 4096; }
    set many { type ipv4_addr; flags dynamic; size 4096; }
    set slow { type ipv4_addr; limit rate 1/minute burst 2 packets; elements = { 192.0.2.10, 192.0.2.200 }; }
    set spent { type ipv6_addr; quota over 100 bytes; elements = { 2001:db8:1::7 }; }
    chain input {
        type filter hook input priority filter - 1
        tcp dport 22 add @seen4 { ip saddr limit rate over 10/minute burst 3 packets } drop
        tcp dport 30999 add @seen6 { ip6 saddr limit rate over 10/minute burst 3 packets } reject
        udp dport 30999 add @many { ip saddr ct count over 1 } drop
    }
    chain forward {
        type filter hook forward priority filter - 1
        ip saddr @slow tcp dport 443 reject
        ip6 saddr @spent drop
        tcp dport 80 update @seen4 { ip saddr limit rate 1/minute burst 2 packets } accept
    }
}",
        ..NONE
    },
    Rules {
        name: "counters of elements, which are no conditions",
        nft: "table inet counts {
    set seen { type ipv4_addr; flags dynamic; size 4096; }
    set banned { type ipv4_addr; counter; elements = { 192.0.2.200, 10.244.1.200 }; }
    set slow { type ipv4_addr; limit rate 1/minute; elements = { 192.0.2.10 }; }
    set ports { type inet_service; counter; elements = { 8080, 9999 }; }
    chain forward {
        type filter hook forward priority filter
        ip saddr @banned tcp dport 443 drop
        ip saddr != @slow tcp dport 8080 reject
        udp dport != @ports drop
        tcp dport 80 update @seen { ip saddr counter } reject
    }
}",
        ..NONE
    },
    Rules {
        name: "a firewall of both families, as firewalld's",
        nft: "table inet firewall {
    chain raw {
        type filter hook prerouting priority raw + 10
        icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
        meta nfproto ipv6 fib saddr . mark . iif oif missing drop
        ip saddr 198.51.100.7 fib saddr . iif oif exists udp dport 9999 drop
    }
    chain input {
        type filter hook input priority filter + 10
        ct state { established, related } accept
        ct status & dnat != 0 accept
        ct state invalid drop
        iifname \"lo\" accept
        tcp dport 22 ip saddr 192.0.2.0/24 accept
        icmp type echo-request ip saddr 198.51.100.7 accept
        icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } ip6 saddr 2001:db8:1::7 accept
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        iifname \"cni0\" reject with icmp type host-prohibited
        reject with icmpx type admin-prohibited
    }
    chain forward {
        type filter hook forward priority filter + 10
        ct state vmap { established : accept, related : accept, invalid : drop }
        oifname \"eth0\" iifname { \"cni0\", \"pods0\" } udp dport 9999 accept
        meta l4proto { icmp, ipv6-icmp } accept
        tcp dport 80 reject with tcp reset
        reject with icmp type host-prohibited
        drop
    }
}",
        ..NONE
    },
    Rules {
        name: "a firewall of one family in a table of both",
        nft: "table inet families {
    set seen { type ipv4_addr; flags dynamic; size 4096; }
    set pairs { type ipv6_addr . inet_service; flags dynamic; size 4096; }
    chain forward {
        type filter hook forward priority filter
        meta l4proto udp reject with icmp type port-unreachable
        tcp dport 80 add @seen { ip saddr } drop
        add @pairs { ip6 saddr . tcp dport } reject with icmpv6 type admin-prohibited
        ip6 hoplimit set 9 udp dport 80 drop
    }
    chain input {
        type filter hook input priority filter
        ct state != new accept
        icmpv6 type nd-neighbor-solicit accept
        reject with icmpv6 type admin-prohibited
        icmp type != echo-reply drop
        tcp dport 22 reject with tcp reset
        ip ttl set 9 drop
    }
}",
        ..NONE
    },
    Rules {
        name: "ports of containers, as Docker's",
        open: true,
        nft: "table inet containers {
    map targets { type inet_service : ipv4_addr . inet_service; elements = { 443 : 10.244.2.50 . 8080 }; }
    chain prerouting {
        type nat hook prerouting priority dstnat - 5
        iifname \"eth0\" tcp dport 80 dnat ip to 10.244.2.50:1000-1003
        tcp dport 80 dnat ip6 to [fd00:10:244:2::a]:2000-2001
        tcp dport 8080 dnat ip to 10.244.2.60:8000-8090
        tcp dport 22 redirect to :tcp dport map { 22 : 30999, 23 : 80 }
        udp dport 30999 redirect to :udp dport map { 31000 : 80 }
        dnat ip to tcp dport map @targets
        tcp dport 30999 dnat ip6 to [fd00:10:244:2::b]:tcp dport map { 30999 : 81 }
        udp dport 9999 dnat ip to ip saddr map { 192.0.2.10 : 10.244.2.51, 10.244.1.0/24 : 10.244.2.52 }
    }
    chain output {
        type nat hook output priority -100
        udp dport 9999 dnat ip to 10.244.2.53
        tcp dport 9999 redirect to :30999
    }
    chain postrouting {
        type nat hook postrouting priority srcnat
        ip daddr 10.244.2.51 masquerade
        ip6 daddr fd00:10:244:2::a snat ip6 to fd00:10:0:2::15
    }
}",
        ..NONE
    },
    Rules {
        name: "networks and ranges of addresses",
        open: true,
        nft: "table ip ranges {
    chain prerouting {
        type nat hook prerouting priority dstnat
        tcp dport 443 dnat to 10.244.2.40-10.244.2.43
        ip daddr 10.100.99.0/24 dnat prefix to ip daddr map { 10.100.99.0/24 : 10.244.2.0/24 }
        udp dport 9999 dnat to 10.244.2.48-10.244.2.51:700-701
    }
    chain postrouting {
        type nat hook postrouting priority srcnat
        ip daddr 10.244.2.50 snat to 10.0.2.15-10.0.2.16
    }
}",
        ..NONE
    },
    Rules {
        name: "untracked packets, as of NodeLocal DNSCache",
        nft: "table inet nodelocal {
    chain early {
        type filter hook prerouting priority raw
        ct mark 0 drop
        ct state new drop
        udp dport { 80, 9999 } notrack
        tcp dport { 443, 30999 } notrack
    }
    chain late {
        type filter hook prerouting priority mangle
        tcp dport 8080 notrack
        tcp dport 8080 ct state untracked drop
        ct state != untracked accept
        meta nfproto ipv4 udp dport 9999 ct mark 0 reject
        ct direction original reject
        ct mark != 1 reject
        ct original ip saddr 0.0.0.0/0 reject
        ct status != dnat reject
        drop
    }
}",
        iptables: [
            "*mangle\n-A FORWARD -m connmark ! --mark 0x1 -p tcp --dport 8080 -j DROP\nCOMMIT\n*raw\n\
             -A OUTPUT -p tcp --dport 80 -j CT --notrack\n-A OUTPUT -p tcp --dport 80 -m connmark --mark 0x0 -j ACCEPT\n\
             -A OUTPUT -p tcp --dport 80 -m connmark ! --mark 0x1 -j ACCEPT\n\
             -A OUTPUT -p tcp --dport 80 -m conntrack --ctdir ORIGINAL -j ACCEPT\nCOMMIT\n*filter\n\
             -A OUTPUT -m conntrack --ctstate UNTRACKED -j DROP\nCOMMIT\n",
            "",
        ],
        ..NONE
    },
    Rules {
        name: "links that a packet does not pass",
        nft: "table inet links {
    chain prerouting {
        type filter hook prerouting priority mangle
        ip saddr 192.0.2.10 oifname != \"eth0\" tcp dport 443 drop
        ip saddr 192.0.2.200 oif != \"eth0\" tcp dport 443 drop
        oifname \"eth0\" drop
        oifname { \"eth0\", \"cni0\" } drop
        iifname . oifname { \"eth0\" . \"eth0\" } drop
        iifgroup != default drop
        meta oifkind \"veth\" drop
    }
    chain output {
        type filter hook output priority filter
        iifname != \"lo\" udp dport 9999 drop
        iif lo drop
        iifgroup default drop
        oifgroup default tcp dport 80 reject
    }
    chain forward {
        type filter hook forward priority filter
        meta iifkind \"veth\" meta oifkind \"veth\" icmp type echo-request drop
        meta iifkind \"bridge\" tcp dport 8080 drop
        meta iiftype ether udp dport 80 reject
        meta iiftype loopback drop
        meta skuid 0 drop
    }
}",
        ..NONE
    },
    Rules {
        name: "elements that the same packet adds",
        nft: "table inet knock {
    set seen { type ipv4_addr; flags dynamic; size 4096; }
    set gone { type ipv4_addr; flags dynamic; size 4096; elements = { 192.0.2.10 }; }
    set pairs { type ipv6_addr . inet_service; flags dynamic; size 4096; }
    chain prerouting {
        type filter hook prerouting priority mangle
        tcp dport { 22, 443 } add @seen { ip saddr }
        ip saddr 192.0.2.10 tcp dport 8080 ip saddr @gone delete @gone { ip saddr } ip saddr @gone drop
        update @pairs { ip6 saddr . tcp dport }
    }
    chain forward {
        type filter hook forward priority filter
        tcp dport 443 ip saddr @seen drop
        ip6 saddr . tcp dport @pairs reject
        ip6 daddr . tcp dport @pairs drop
    }
    chain input {
        type filter hook input priority filter
        tcp dport 22 ip saddr @seen reject
    }
}",
        ..NONE
    },
    Rules {
        name: "pings",
        nft: "table inet pings {
    chain prerouting {
        type filter hook prerouting priority mangle
        icmp type { echo-reply, destination-unreachable } drop
        icmp type echo-request icmp code 0 ip saddr 192.0.2.10 drop
        icmpv6 type echo-request ip6 saddr 2001:db8:1::7 drop
        icmp type 8 ip saddr 192.0.2.200 drop
        icmp code != 0 drop
        icmpv6 type >= 129 icmpv6 type < 133 drop
    }
}",
        iptables: [
            "*filter\n-A FORWARD -p icmp -m icmp --icmp-type 8/0 -s 198.51.100.7/32 -j REJECT\n\
             -A FORWARD -p icmp -m icmp --icmp-type 0 -j DROP\n-A INPUT -p icmp -m icmp ! --icmp-type 8 -j DROP\n\
             -A INPUT -p icmp -m icmp --icmp-type any -s 10.244.1.0/24 -j DROP\nCOMMIT\n",
            "*filter\n-A FORWARD -p ipv6-icmp -m icmp6 --icmpv6-type 128 -s 2001:db8:2::7/128 -j DROP\n\
             -A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 129 -j DROP\nCOMMIT\n",
        ],
        ..NONE
    },
    Rules {
        name: "marks and connections, as Calico's",
        nft: "table inet marks {
    chain prerouting {
        type filter hook prerouting priority mangle
        meta mark set tcp dport map { 80 : 0x10, 443 : 0x20 }
        meta mark set meta mark | 0x100
        meta l4proto tcp ct original proto-dst 8080 meta mark set meta mark & 0xff | 0x40
        ct mark set meta mark
    }
    chain nat {
        type nat hook prerouting priority dstnat
        tcp dport 443 iifname \"eth0\" dnat ip to 10.244.2.70:444
    }
    chain forward {
        type filter hook forward priority filter
        ct status dnat ct original ip daddr 203.0.113.200 ip saddr 192.0.2.10 drop
        ct status & (dnat | snat) == dnat ip saddr 192.0.2.200 drop
        meta mark 0x110 ip saddr & 0.0.0.255 == 0.0.0.10 drop
        ct mark 0x40 reject
        ct l3proto ipv6 udp dport 80 drop
    }
}",
        iptables: [
            "*raw\n-A PREROUTING -m rpfilter --validmark --invert -j DROP\nCOMMIT\n*filter\n\
             -A FORWARD -m conntrack --ctorigdst 203.0.113.200/32 --ctorigdstport 443 --ctproto 6 -s 198.51.100.7/32 -j REJECT\n\
             -A FORWARD -m conntrack --ctstate DNAT --ctproto 6 -j ACCEPT\n\
             -A INPUT -i lo -m conntrack --ctstatus CONFIRMED -p tcp --dport 22 -j REJECT\n\
             -A FORWARD -m conntrack --ctstatus SEEN_REPLY,CONFIRMED -j DROP\n\
             -A FORWARD -m conntrack --ctdir REPLY -j DROP\n\
             -A INPUT -m conntrack ! --ctproto 17 --ctdir ORIGINAL -s 192.0.2.200/32 -j DROP\n\
             -A INPUT -m policy --dir in --pol none -p udp -j REJECT\n\
             -A INPUT -m policy --dir in --pol ipsec -j DROP\n\
             -A FORWARD -s 0.0.0.7/0.0.0.255 -p udp -j REJECT\nCOMMIT\n",
            "*raw\n-A PREROUTING -m rpfilter --invert -j DROP\nCOMMIT\n*filter\n\
             -A FORWARD -m conntrack --ctorigdst fd00:10:96::/64 -p tcp -j REJECT\nCOMMIT\n",
        ],
        ..NONE
    },
    Rules {
        name: "translations of iptables",
        open: true,
        iptables: [
            "*nat\n-A PREROUTING -p tcp -m tcp --dport 443 -j DNAT --to-destination 10.244.2.50:1000-1003\n\
             -A PREROUTING -d 10.100.99.0/24 -j NETMAP --to 10.244.2.0/24\n\
             -A PREROUTING -p udp -m udp --dport 9999 -j DNAT --to-destination 10.244.2.40-10.244.2.41\n\
             -A PREROUTING -p tcp -m tcp --dport 22 -j REDIRECT --to-ports 30999-31000\n\
             -A OUTPUT -p tcp -m tcp --dport 8080 -j DNAT --to-destination :8080-8081\n\
             -A POSTROUTING -s 192.0.2.0/24 -j NETMAP --to 10.0.2.0/24\nCOMMIT\n",
            "*nat\n-A PREROUTING -p tcp -m tcp --dport 80 -j DNAT --to-destination [fd00:10:244:2::a]:2000-2001\nCOMMIT\n",
        ],
        ..NONE
    },
    Rules {
        name: "sets of networks and links",
        sets: "create places hash:net,iface\nadd places 192.0.2.0/24,eth0\nadd places 192.0.2.200,cni0\n\
               add places 10.0.0.0/8,cni0\nadd places 10.244.1.0/24,eth0\nadd places 198.51.0.0/16,eth0 nomatch\n\
               add places 198.0.0.0/8,eth0\n",
        iptables: [
            "*filter\n-A FORWARD -m set --match-set places src,src -j DROP\n-A INPUT ! -i lo -m set ! --match-set places src,src -j REJECT\nCOMMIT\n",
            "",
        ],
        ..NONE
    },
    // iptables-nft-save prints this one without its ports.
    Rules {
        name: "a set among rules of iptables",
        iptables: [
            "*filter\n-A INPUT -s 192.0.2.0/24 -p tcp -m tcp --dport 22 -j DROP\n-A FORWARD -p udp -j DROP\nCOMMIT\n",
            "",
        ],
        nft: "add rule ip filter FORWARD tcp dport { 443, 8080 } drop",
        ..NONE
    },
    // iptables-nft-save fails.
    Rules {
        name: "a port of any protocol among rules of iptables",
        iptables: [
            "",
            "*filter\n-A INPUT -s 2001:db8:1::/48 -p tcp -m tcp --dport 30999 -j DROP\n-A FORWARD -p ipv6-icmp -j DROP\nCOMMIT\n",
        ],
        nft: "add rule ip6 filter FORWARD meta l4proto tcp th dport 80 drop",
        ..NONE
    },
    Rules {
        name: "chains without a name, and flags",
        nft: "table inet blocks {
    chain forward {
        type filter hook forward priority filter
        tcp dport 80 jump {
            ip saddr 192.0.2.10 drop
            ip6 saddr 2001:db8:1::7 reject
            return
        }
        meta l4proto udp goto {
            ip saddr 192.0.2.200 reject
            udp dport 80 drop
        }
        tcp flags { syn | ack, fin } drop
        tcp flags == { fin | psh } drop
        tcp dport 443 tcp flags & (syn | rst) == syn drop
        tcp dport 8080 tcp flags { syn, ack } reject
    }
}",
        ..NONE
    },
];

/// Lets the kernel track connections, which it does for rules that ask for them alone.
const TRACKED: &str = "table inet tracked { chain late { type filter hook prerouting priority 300; ct state new; }; }";

fn targets() -> Vec<Target> {
    let target = |&(addr, port, proto): &(&str, u16, Proto)| {
        let addr = addr.parse().unwrap();
        Target {
            addr,
            port,
            proto: proto.in_family(Family::of(addr)),
            backend: None,
            sticky: false,
        }
    };
    TARGETS.iter().map(target).collect()
}

/// The text of `nft` says the same as its JSON.
fn text_says_the_same(judge: &Judge<'_>, node: &str) {
    let mut items = evidence::ITEMS.to_vec();
    items.retain(|item| *item != Item::Nft);
    let mut by_text = judge.evidence.only(&items);
    by_text.insert(Item::NftText, Ok(node.to_owned()));
    let (listed, printed) = (
        NodeSnapshot::new(&judge.evidence),
        NodeSnapshot::new(&by_text),
    );
    for order in judge.orders() {
        let flow = flow(&order);
        let family = Family::of(flow.destination);
        let [listed, printed] = [&listed, &printed].map(|node| {
            let outcomes = World::whole(node, family).walk(&flow).unwrap();
            let key = |of: &kpx_judge::trace::Outcome| {
                (of.verdict, of.destination, of.source, of.when.len())
            };
            outcomes.iter().map(key).collect::<Vec<_>>()
        });
        assert_eq!(listed, printed, "{}: {flow:?}", judge.name);
    }
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn host_the_kernel_agrees_about_rules_of_other_programs() {
    let recording = Recording::named("dual-iptables");
    let network = Network::new(&recording, true);
    let mut flows = 0;
    let mut wrong = Vec::new();
    for rules in PROGRAMS {
        let node = &network.node;
        node.run("nft flush ruleset");
        if !rules.sets.is_empty() {
            node.feed("ipset restore", rules.sets);
        }
        for (command, text) in ["iptables-nft-restore", "ip6tables-nft-restore"]
            .into_iter()
            .zip(rules.iptables)
        {
            if !text.is_empty() {
                node.feed(command, text);
            }
        }
        node.feed("nft -f -", TRACKED);
        node.feed("nft -f -", rules.nft);
        let judge = Judge::new(rules.name.to_owned(), &recording, &network).await;
        let judge = judge.of(targets(), rules.open);
        if rules.iptables == NONE.iptables {
            text_says_the_same(&judge, &node.run("nft list ruleset"));
        }
        let (many, differ) = judge.differences();
        flows += many;
        wrong.extend(
            differ
                .into_iter()
                .map(|difference| format!("{}: {difference}", rules.name)),
        );
    }
    assert!(
        wrong.is_empty(),
        "{} of {flows} flows:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(flows > 1000, "{flows}");
}
