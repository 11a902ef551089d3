//! Stages other than the rules, with the kernel as the judge: each fault is made, real connections fail, `kpx why` names it, and
//! its fix, typed as printed, lets them work again.

mod inside;
mod ipv6;
mod network;
mod random_faults;

use std::time::Duration;

use inside::Inside;
use kpx_judge::check::Fix;
use kpx_judge::verdict::{Client, Fate};
use network::{FAR, NEAR, Network, fate};

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn settings_of_links_decide_what_comes_in() {
    let network = Network::new();
    network
        .fails(
            "forwarding of a link",
            "sysctl -q -w net.ipv4.conf.cni0.forwarding=0",
            FAR,
            &["net.ipv4.conf.cni0.forwarding is 0"],
        )
        .await;
    network
        .fails(
            "forwarding of the link of replies",
            "sysctl -q -w net.ipv4.conf.eth0.forwarding=0",
            FAR,
            &["net.ipv4.conf.eth0.forwarding is 0"],
        )
        .await;
    network.shell("sysctl -q -w net.ipv4.ip_forward=0");
    network.agree("no forwarding").await;
    network.shell("sysctl -q -w net.ipv4.conf.cni0.forwarding=1 net.ipv4.conf.eth0.forwarding=1");
    network.agree("forwarding of two links").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn the_way_back_decides_what_comes_in() {
    let mut network = Network::new();
    let route = "ip route add 10.244.1.5/32 via 10.0.2.16 dev eth0";
    let words = ["route to 10.244.1.5/32 by eth0 via 10.0.2.16 leads elsewhere"];
    network.fails("a route back", route, FAR, &words).await;
    network.shell("sysctl -q -w net.ipv4.conf.cni0.rp_filter=1");
    network.agree("a strict filter alone").await;
    network
        .fails("a filtered bridge", route, NEAR, &words)
        .await;
    network.shell("sysctl -q -w net.ipv4.conf.cni0.rp_filter=0");
    network
        .other
        .run("ip route replace 10.244.1.0/24 via 10.0.3.15");
    network.shell(
        "iptables -t mangle -A PREROUTING -s 10.244.1.5 -j MARK --set-mark 1\n\
         ip rule add fwmark 1 lookup 100\n\
         ip route add 10.244.2.0/24 via 10.0.3.16 dev eth1 table 100\n\
         ip route add 10.244.1.5 dev cni0 table 100\n",
    );
    // By a gateway that no Node has, the packets might end anywhere.
    let answer = network.why(FAR).await;
    assert_eq!(
        fate(&answer, Client::Pod),
        Fate::Unknown,
        "{}",
        answer.sentence
    );
    network.announce_both();
    network.agree("a marked way").await;
    network.shell("sysctl -q -w net.ipv4.conf.eth1.rp_filter=1");
    network.agree("a marked way with a filter").await;
    let answer = network.why(FAR).await;
    let words =
        "the strict rp_filter of eth1 drops packets from 10.244.2.7: the route back leads by eth0";
    let mut causes = answer.causes.iter();
    let cause = causes
        .find(|cause| cause.sentence.ends_with(words))
        .unwrap();
    network.shell(&cause.fix.as_ref().unwrap().command().unwrap());
    network.agree("a marked way with a loose filter").await;
    network.shell("sysctl -q -w net.ipv4.conf.eth1.rp_filter=0 net.ipv4.conf.all.rp_filter=1");
    network.agree("a marked way with the filter of all").await;
    network.shell("sysctl -q -w net.ipv4.conf.all.rp_filter=2");
    network.agree("a loose filter of all").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn routing_policy_rules_ask_for_ports() {
    let network = Network::new();
    network
        .fails(
            "the port of the endpoint",
            "ip rule add iif cni0 ipproto tcp dport 8080 prohibit priority 907",
            FAR,
            &["ipproto tcp dport 8080 prohibit"],
        )
        .await;
    for harmless in [
        "ip rule add ipproto tcp dport 81-8079 prohibit priority 908",
        "ip rule add ipproto udp dport 8080 prohibit priority 909",
        "ip rule add iif cni0 sport 22 prohibit priority 910",
        "ip rule add uidrange 5000-6000 prohibit priority 911",
        "ip rule add from 10.244.1.0/24 goto 912 priority 906",
    ] {
        network.shell(harmless);
        network.agree(harmless).await;
    }
    network.shell("ip rule add ipproto tcp dport 80 prohibit priority 905");
    network
        .agree("the port of the Service, before it is translated")
        .await;
    let answer = network.why(FAR).await;
    assert!(fate(&answer, Client::Host).fails(), "{}", answer.sentence);
    assert_eq!(fate(&answer, Client::Pod), Fate::Works);
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn an_address_of_a_pod_is_no_address_of_the_node() {
    let network = Network::new();
    network
        .fails(
            "the client's address",
            "ip addr add 10.244.1.5/32 dev eth0",
            FAR,
            &["eth0 of the node itself has the address 10.244.1.5 of the client"],
        )
        .await;
    network
        .fails(
            "the endpoint's address",
            "ip addr add 10.244.2.7/32 dev eth1",
            FAR,
            &[
                "eth1 of the node itself has the address of endpoint 10.244.2.7:8080",
                "nothing listens",
            ],
        )
        .await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn later_packets_know_the_nat_of_their_connection_and_lack_its_mark() {
    for fault in [
        "iptables -t mangle -A OUTPUT -m conntrack --ctstate DNAT -j DROP",
        "iptables -t mangle -A PREROUTING -m conntrack --ctstate SNAT -j DROP",
        "nft add table ip low\n\
         nft 'add chain ip low some { type filter hook input priority 101; }'\n\
         nft add rule ip low some ct status dnat reject",
        "iptables -I OUTPUT -m mark --mark 0/0x4000 -j DROP",
        "nft add table ip low\n\
         nft 'add chain ip low some { type filter hook output priority 0; }'\n\
         nft add rule ip low some tcp dport 8080 meta mark 0 drop",
    ] {
        let network = Network::new();
        network.shell(fault);
        network.agree(fault).await;
        let answer = network.why(FAR).await;
        assert!(fate(&answer, Client::Host).fails(), "{fault}");
    }
    let mut network = Network::new();
    network.reads_pods = true;
    let _inside = [&network.client, &network.near].map(Inside::new);
    let rule = "ip rule add to 10.244.1.5 priority 100 blackhole";
    network.shell(rule);
    // The reply of a pod on the same bridge needs no route.
    network.agree(rule).await;
    assert_eq!(fate(&network.why(NEAR).await, Client::Pod), Fate::Works);
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn a_packet_lives_until_its_ttl_ends() {
    let network = Network::new();
    for (about, fault) in [
        (
            "iptables before routing",
            "iptables -t mangle -I PREROUTING -s 10.244.1.0/24 -j TTL --ttl-set 1",
        ),
        (
            "iptables behind routing",
            "iptables -t mangle -I POSTROUTING -d 10.244.2.0/24 -j TTL --ttl-set 1",
        ),
        (
            "a decrement",
            "iptables -t mangle -I FORWARD -d 10.244.2.0/24 -j TTL --ttl-dec 62",
        ),
    ] {
        network
            .fails(about, fault, FAR, &["sets the TTL of the packets"])
            .await;
    }
    network.shell("iptables -t mangle -I POSTROUTING -d 10.244.2.0/24 -j TTL --ttl-set 2");
    network.agree("enough for the other node").await;
    network.shell("iptables -t mangle -D POSTROUTING 1");
    let table = "nft add table inet low\n\
                 nft 'add chain inet low in { type filter hook prerouting priority -150; }'\n\
                 nft add rule inet low in ip saddr 10.244.1.0/24 ip ttl set 1";
    network
        .fails("nftables", table, FAR, &["sets the TTL of the packets"])
        .await;
    network.shell("sysctl -q -w net.ipv4.ip_default_ttl=1");
    network.agree("the TTL of the node's own packets").await;
    let answer = network.why(FAR).await;
    let text = &answer.sentence;
    assert!(text.contains("net.ipv4.ip_default_ttl is 1"), "{text}");
    network.shell("sysctl -q -w net.ipv4.ip_default_ttl=2");
    network.agree("enough of them").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn chains_on_links_and_bridges_stop_packets_and_replies() {
    let network = Network::new();
    let table = |family: &str, hook: &str, rule: &str| {
        let priority = if hook.contains("priority") {
            ""
        } else {
            " priority 0"
        };
        format!(
            "nft add table {family} low\n\
             nft 'add chain {family} low some {{ type filter hook {hook}{priority}; }}'\n\
             nft add rule {family} low some {rule}\n"
        )
    };
    for (hook, rule, service) in [
        ("prerouting", "ip daddr 10.96.0.11 drop", FAR),
        ("prerouting priority 10", "ip daddr 10.244.2.7 drop", FAR),
        ("forward", "ip daddr 10.244.1.6 tcp dport 8080 drop", NEAR),
        ("input", "ip daddr 10.244.2.0/24 drop", FAR),
    ] {
        let fault = table("bridge", hook, rule);
        network
            .fails(hook, &fault, service, &["drops the packets"])
            .await;
        network.shell("nft delete table bridge low");
    }
    for (hook, rule) in [
        ("output", "ip daddr 10.244.1.5 drop"),
        ("forward", "ip daddr 10.244.1.5 drop"),
        ("forward", "ip daddr 10.244.1.99 drop"),
    ] {
        network.shell(&table("bridge", hook, rule));
        network.agree(rule).await;
        network.shell("nft delete table bridge low");
    }
    for (hook, rule, words) in [
        (
            "ingress device eth0",
            "ip saddr 10.244.2.7 drop",
            "dropped by rule 1 of low some",
        ),
        (
            "egress device eth0",
            "ip daddr 10.244.2.7 drop",
            "rule 1 of chain some in table netdev low drops the packets",
        ),
    ] {
        network
            .fails(hook, &table("netdev", hook, rule), FAR, &[words])
            .await;
        network.shell("nft delete table netdev low");
        let other = hook.replace("eth0", "eth1");
        network.shell(&table("netdev", &other, rule));
        network.agree(&other).await;
        network.shell("nft delete table netdev low");
    }
    // Which port of a bridge a pod has is not always known.
    for (hook, rule) in [
        ("ingress device veth0", "ip daddr 10.96.0.0/12 drop"),
        ("ingress device cni0", "ip daddr 10.244.2.7 drop"),
    ] {
        network.shell(&table("netdev", hook, rule));
        let answer = network.why(FAR).await;
        assert!(!network.answers(Client::Pod, FAR), "{hook}");
        assert_ne!(fate(&answer, Client::Pod), Fate::Works, "{hook}");
        let text = &answer.sentence;
        let is_named = text.contains("table netdev low") || text.contains("low some");
        assert!(is_named, "{hook}: {text}");
        network.shell("nft delete table netdev low");
        network.agree(hook).await;
    }
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn packets_of_a_connection_that_is_there_are_judged_by_themselves() {
    let network = Network::new();
    for (about, fault, words) in [
        (
            "the state",
            "iptables -I FORWARD -d 10.244.1.6 -m conntrack --ctstate ESTABLISHED -j DROP",
            "drops the later packets of each connection",
        ),
        // Packets of the pod to itself by way of the Service are no replies.
        (
            "flags of replies",
            "iptables -I FORWARD -s 10.244.1.6 -p tcp --tcp-flags SYN,ACK ACK -j DROP",
            "drops the later packets of each connection",
        ),
        (
            "flags in nftables",
            "nft add table inet low\n\
             nft 'add chain inet low some { type filter hook forward priority 0; }'\n\
             nft add rule inet low some ip daddr 10.244.1.6 'tcp flags & (syn | ack) == ack' drop",
            "drops the later packets of each connection",
        ),
    ] {
        network.fails(about, fault, NEAR, &[words]).await;
    }
    network.shell("nft delete table inet low");
    for accepts in [
        "iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
        "iptables -A FORWARD -d 10.244.1.6 -p tcp --dport 8081 -m conntrack --ctstate ESTABLISHED -j DROP",
        "iptables -A FORWARD -m conntrack --ctstate NEW -j ACCEPT",
    ] {
        network.shell(accepts);
        network.agree(accepts).await;
    }
    network.shell("iptables -P FORWARD DROP");
    network.agree("only what is new or there").await;
    network.shell("iptables -D FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT");
    network.agree("only what is new").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn arp_decides_whether_the_node_and_its_pods_find_each_other() {
    let network = Network::new();
    let flush = || {
        for netns in [&network.node, &network.client, &network.near] {
            netns.run("ip neigh flush all");
        }
    };
    for (about, fault, words) in [
        (
            "no answers",
            "sysctl -q -w net.ipv4.conf.cni0.arp_ignore=8",
            "net.ipv4.conf.cni0.arp_ignore is 8",
        ),
        ("no ARP", "ip link set cni0 arp off", "ARP is off at cni0"),
        (
            "requests that are dropped",
            "nft add table arp low\n\
             nft 'add chain arp low in { type filter hook input priority 0; }'\n\
             nft add rule arp low in iifname cni0 drop",
            "rule 1 of chain in in table arp low drops ARP packets of cni0",
        ),
    ] {
        flush();
        network.agree(&format!("before {about}")).await;
        network.shell(fault);
        flush();
        let answer = network.why(FAR).await;
        assert!(!network.answers(Client::Pod, FAR), "{about}");
        assert!(fate(&answer, Client::Pod).fails(), "{about}");
        let text = &answer.sentence;
        assert!(text.contains(words), "{about}: {text}");
        let fix = answer.fix.as_ref().and_then(Fix::command);
        network.shell(&fix.unwrap());
    }
    flush();
    network.agree("at the end").await;
    network.shell("nft add rule arp low in iifname eth1 drop");
    network.agree("on another link").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn isolated_ports_do_not_reach_each_other() {
    let network = Network::new();
    let isolate = "ip link set veth0 type bridge_slave isolated on\n\
                   ip link set veth1 type bridge_slave isolated on";
    network
        .fails(
            "isolated ports",
            isolate,
            NEAR,
            &["the ports of bridge cni0 are isolated"],
        )
        .await;
    network.shell("sysctl -q -w net.bridge.bridge-nf-call-iptables=0");
    network.agree("a bridge without rules").await;
    network.shell(isolate);
    network.agree("isolated ports without rules").await;
    network.shell("sysctl -q -w net.bridge.bridge-nf-call-iptables=1");
    network.shell("ip link set veth1 type bridge_slave isolated off");
    network.agree("one isolated port").await;
}

/// Leads the packets to pods of the other node through a tunnel, as Flannel does.
fn tunnel(network: &Network) {
    network.shell(
        "ip link add flannel.1 type vxlan id 1 dstport 8472 local 10.0.2.15 dev eth0 nolearning\n\
         ip link set flannel.1 address 02:00:00:00:01:01 up\n\
         ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink\n\
         ip neigh replace 10.244.2.0 lladdr 02:00:00:00:01:02 nud permanent dev flannel.1\n\
         bridge fdb append 02:00:00:00:01:02 dev flannel.1 dst 10.0.2.16\n",
    );
    network.other.feed(
        "sh -e",
        "ip link add flannel.1 type vxlan id 1 dstport 8472 local 10.0.2.16 dev eth0 nolearning\n\
         ip link set flannel.1 address 02:00:00:00:01:02 up\n\
         ip addr add 10.244.2.0/32 dev flannel.1\n\
         ip route replace 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink\n\
         ip neigh replace 10.244.1.0 lladdr 02:00:00:00:01:01 nud permanent dev flannel.1\n\
         bridge fdb append 02:00:00:00:01:01 dev flannel.1 dst 10.0.2.15\n",
    );
    network.shell("ip addr add 10.244.1.0/32 dev flannel.1");
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn rules_stop_the_packets_of_a_tunnel() {
    let network = Network::new();
    tunnel(&network);
    let table = "nft add table inet low\n\
                 nft 'add chain inet low some { type filter hook input priority 0; }'\n\
                 nft add rule inet low some udp dport 8472 drop";
    for (about, fault, words) in [
        (
            "packets to the other node",
            "iptables -I OUTPUT -p udp --dport 8472 -j DROP",
            "the packets of tunnel flannel.1 (UDP port 8472) to node",
        ),
        (
            "packets from the other node",
            "iptables -I INPUT -p udp --dport 8472 -j DROP",
            "the packets of tunnel flannel.1 (UDP port 8472) from node",
        ),
        ("nftables", table, "dropped by rule 1 of low some"),
    ] {
        network.fails(about, fault, FAR, &[words]).await;
    }
    network.shell("iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
    network
        .fails(
            "a firewall that closes",
            "iptables -P INPUT DROP",
            FAR,
            &["(UDP port 8472) from node", "INPUT"],
        )
        .await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn neighbours_that_failed_or_were_set_by_hand_are_named() {
    let network = Network::new();
    network.agree("before").await;
    for (fault, service, wanted, words, undo) in [
        (
            "ip neigh replace 10.244.1.6 lladdr 02:00:00:00:00:99 nud permanent dev cni0",
            NEAR,
            Fate::Unknown,
            "a static neighbour entry sends packets for 10.244.1.6 on cni0 to 02:00:00:00:00:99",
            "ip neigh del 10.244.1.6 dev cni0",
        ),
        (
            "ip neigh replace 10.244.1.5 lladdr 02:00:00:00:00:99 nud permanent dev cni0",
            FAR,
            Fate::Unknown,
            "a static neighbour entry sends packets for 10.244.1.5 on cni0 to 02:00:00:00:00:99",
            "ip neigh del 10.244.1.5 dev cni0",
        ),
        (
            "ip link set veth1 down; ip neigh flush dev cni0",
            NEAR,
            Fate::Lost,
            "10.244.1.6 did not answer on cni0",
            "ip link set veth1 up",
        ),
    ] {
        network.shell(fault);
        assert!(!network.answers(Client::Pod, service), "{fault}");
        // The kernel asks three times, a second apart.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let answer = network.why(service).await;
        let of_pod = fate(&answer, Client::Pod);
        assert_eq!(of_pod, wanted, "{fault}: {}", answer.sentence);
        assert!(answer.sentence.contains(words), "{}", answer.sentence);
        // Now it is asking again.
        network.agree(fault).await;
        network.shell(undo);
        assert!(network.answers(Client::Pod, service), "{undo}");
        network.agree(undo).await;
    }
    // A tunnel's neighbours are set by its network plugin, and those of a pod that the connection does not need do no harm.
    tunnel(&network);
    network.shell("ip neigh replace 10.244.1.77 lladdr 02:00:00:00:00:77 nud permanent dev cni0");
    network.agree("a tunnel").await;
    assert!(network.answers(Client::Pod, FAR));
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn policies_of_ipsec_stop_packets_and_replies() {
    let network = Network::new();
    for policy in [
        "src 10.244.1.0/24 dst 10.244.2.7/32 dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 proto tcp dport 8080 dir out",
        "src 10.244.2.7/32 dst 10.244.1.5/32 dir fwd",
        "src 10.244.2.7/32 dst 10.244.1.5/32 proto tcp sport 8080 dir out",
        "src 10.244.1.0/24 dst 10.244.2.7/32 dir fwd",
        "src 10.244.1.0/24 dst 10.96.0.11/32 dir fwd",
        "src 10.96.0.11/32 dst 10.244.1.5/32 dir out",
        "src 10.244.1.5/32 dst 10.96.0.11/32 dir out",
        "src 10.0.2.15/32 dst 10.96.0.11/32 dir out",
        "src 10.0.2.15/32 dst 10.244.2.7/32 dir out",
        "src 10.244.2.7/32 dst 10.0.2.15/32 dir in",
        "src 10.96.0.11/32 dst 10.0.2.15/32 dir in",
        "src 10.0.2.15/32 dst 10.244.2.7/32 dir fwd",
        "src 10.244.1.1/32 dst 10.244.1.6/32 dir out",
        "src 10.244.1.5/32 dst 10.244.1.6/32 dir out",
        "src 10.244.1.5/32 dst 10.244.1.6/32 dir fwd",
        "src 10.244.1.6/32 dst 10.244.1.5/32 dir fwd",
        "src 10.96.0.10/32 dst 10.244.1.5/32 dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 dev eth0 dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 dev eth1 dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 proto udp dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 proto tcp dport 81 dir out",
        "src 0.0.0.0/0 dst 10.244.2.7/32 dir out if_id 7",
    ] {
        network.shell(&format!("ip xfrm policy add {policy} action block"));
        network.agree(policy).await;
        network.shell("ip xfrm policy flush");
    }
    let block = "ip xfrm policy add src 10.244.1.0/24 dst 10.96.0.11/32 dir fwd action block\n\
                 ip xfrm policy add src 10.244.1.0/24 dst 10.244.2.0/24 proto tcp dir out action block priority 9";
    network
        .fails("two policies", block, FAR, &["xfrm policies", "dir fwd"])
        .await;
    // The first policy decides, by its priority, then by its age.
    let allow = |priority: u8| {
        format!("ip xfrm policy add src 0.0.0.0/0 dst 10.244.2.7/32 dir out priority {priority}")
    };
    for (before, behind) in [(5, 9), (9, 5), (7, 7)] {
        network.shell(&allow(before));
        network.shell(&format!(
            "ip xfrm policy add src 10.244.1.0/24 dst 10.244.2.0/24 dir out action block priority {behind}"
        ));
        network.agree(&format!("{before} {behind}")).await;
        network.shell("ip xfrm policy flush");
    }
    network.shell("ip xfrm policy add src 10.244.1.0/24 dst 10.244.2.0/24 dir out action block");
    network.shell("sysctl -q -w net.ipv4.conf.eth0.disable_xfrm=1");
    network.agree("a link without IPsec").await;
    network.shell("sysctl -q -w net.ipv4.conf.eth0.disable_xfrm=0; ip xfrm policy flush");
    // Without a state, the packets wait for one.
    let tunnel = "ip xfrm policy add src 10.244.1.0/24 dst 10.244.2.0/24 dir out \
                  tmpl src 10.0.2.15 dst 10.0.2.16 proto esp mode tunnel";
    network.shell(tunnel);
    network.agree("a tunnel").await;
    let answer = network.why(FAR).await;
    assert_eq!(fate(&answer, Client::Pod), Fate::Unknown);
    let words = "the xfrm policy `src 10.244.1.0/24 dst 10.244.2.0/24 dir out` sends the packets through IPsec";
    assert!(answer.sentence.contains(words), "{}", answer.sentence);
    network.shell("ip xfrm policy flush");
    network.shell("ip xfrm policy add src 10.9.0.0/16 dst 10.8.0.0/16 dir out tmpl proto esp");
    network.agree("IPsec of others").await;
}

#[tokio::test]
#[ignore = "needs root and network namespaces"]
async fn traffic_control_on_the_way_drops_or_leaves_open() {
    let network = Network::new();
    network
        .fails(
            "a qdisc that drops",
            "tc qdisc add dev eth0 root blackhole",
            FAR,
            &["the tc qdisc of eth0 loses the packets"],
        )
        .await;
    // Neither a shaper, nor a choice of its class, nor a program on a link that is not on the way.
    network.shell(
        "tc qdisc add dev eth0 root handle 1: htb\n\
         tc filter add dev eth0 parent 1: protocol ip u32 match ip dst 10.244.2.7/32 flowid 1:1\n\
         tc qdisc add dev eth1 clsact\n\
         tc filter add dev eth1 egress protocol ip bpf da bytecode \"1,6 0 0 2\"\n\
         tc qdisc add dev cni0 clsact\n\
         tc filter add dev cni0 egress protocol arp u32 match u32 0 0 flowid 1:1\n",
    );
    network.agree("no fault").await;
    assert!(network.answers(Client::Pod, FAR));
    network.shell("tc qdisc del dev cni0 clsact");
    for (link, hook, service) in [
        ("eth0", "egress", FAR),
        ("eth0", "ingress", FAR),
        ("cni0", "ingress", FAR),
        ("cni0", "egress", FAR),
        ("veth0", "ingress", NEAR),
        ("veth1", "egress", NEAR),
    ] {
        let about = format!("{link} {hook}");
        // 2 is TC_ACT_SHOT.
        network.shell(&format!(
            "tc qdisc add dev {link} clsact\n\
             tc filter add dev {link} {hook} protocol ip pref 7 bpf da bytecode \"1,6 0 0 2\""
        ));
        // By which port the packets of the host and of other pods go is not known.
        if !link.starts_with("veth") {
            network.agree(&about).await;
        }
        assert!(!network.answers(Client::Pod, service), "{about}");
        let answer = network.why(service).await;
        assert_eq!(fate(&answer, Client::Pod), Fate::Unknown, "{about}");
        let words = format!("a tc program on {link} (`{hook} protocol ip pref 7 bpf`) may drop");
        assert!(answer.sentence.contains(&words), "{}", answer.sentence);
        network.shell(&format!("tc qdisc del dev {link} clsact"));
        network.agree(&about).await;
    }
    // The packets of a tunnel pass the link below it.
    tunnel(&network);
    network.agree("a tunnel").await;
    network.shell(
        "tc qdisc add dev eth0 clsact\n\
         tc filter add dev eth0 egress protocol ip pref 7 bpf da bytecode \"1,6 0 0 2\"",
    );
    let answer = network.why(FAR).await;
    assert!(!network.answers(Client::Pod, FAR));
    assert_eq!(fate(&answer, Client::Pod), Fate::Unknown);
    assert!(
        answer.sentence.contains("a tc program on eth0"),
        "{}",
        answer.sentence
    );
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn chains_of_a_bridge_see_replies_as_they_leave() {
    for (source, works) in [("10.244.2.0/24", true), ("10.96.0.11", false)] {
        let network = Network::new();
        network.shell(&format!(
            "nft add table bridge low
             nft 'add chain bridge low some {{ type filter hook output priority 0; }}'
             nft 'add rule bridge low some ip saddr {source} drop'"
        ));
        let answer = network.why(FAR).await;
        let fate = fate(&answer, Client::Pod);
        let said = (fate == Fate::Works, network.answers(Client::Pod, FAR));
        assert_eq!(said, (works, works), "{source}: {}", answer.sentence);
    }
}
