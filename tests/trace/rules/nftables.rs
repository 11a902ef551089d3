//! Rules of nftables.

use kpx_judge::trace::Flow;
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::net::Proto;

use super::{check, check_flow, dropped, flow, iptables, to};
use crate::trace::recording;

/// Base chains of nftables that only look like the built-in ones of iptables.
#[test]
fn a_base_chain_of_others_is_run_beside_those_of_iptables() {
    for (table, chain) in [("inet mangle", "PREROUTING"), ("ip mangle", "SECOND")] {
        let mut evidence = iptables("-j MARK --set-xmark 0x1/0x1");
        evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
        let hook = "type filter hook prerouting priority mangle; policy accept;";
        let rules =
            format!("table {table} {{\n\tchain {chain} {{\n\t\t{hook}\n\t\tdrop\n\t}}\n}}\n");
        evidence.insert(Item::NftText, Ok(rules));
        assert_eq!(dropped(&evidence, &flow(false)), "1", "{table} {chain}");
    }
}

/// The rules of `lines` come before those of kube-proxy.
pub(in crate::trace) fn nftables(lines: &str) -> Evidence {
    let mut items = evidence::ITEMS.to_vec();
    items.retain(|item| *item != Item::Nft);
    let mut evidence = recording("seed-nftables").only(&items);
    let rules = evidence.text(Item::NftText).unwrap();
    let chain = "type filter hook prerouting priority mangle; policy accept;";
    let rules =
        format!("{rules}table inet other {{\n\tchain first {{\n\t\t{chain}\n{lines}\n\t}}\n}}\n");
    evidence.insert(Item::NftText, Ok(rules));
    evidence
}

#[test]
fn a_rule_of_nftables_takes_what_its_expressions_fit() {
    let rules = [
        ("ip saddr 198.18.0.0/15", "1"),
        ("ip saddr != 198.18.0.0/15", "0"),
        ("ip saddr 198.18.0.0-198.18.0.9", "1"),
        ("ip daddr 10.97.54.249-10.97.54.250", "0"),
        ("ip6 saddr != fd00::/8", "0"),
        ("meta nfproto ipv4", "1"),
        ("meta protocol ip6", "0"),
        ("iifname \"eth0\"", "1"),
        ("iifname \"eth*\"", "1"),
        ("iifname \"cni0\"", "0"),
        ("meta l4proto tcp", "1"),
        ("meta l4proto { udp, sctp }", "0"),
        ("meta l4proto 6", "1"),
        ("meta l4proto 17", "0"),
        ("icmp type echo-request", "0"),
        ("sctp dport 80", "0"),
        ("udp dport 80", "0"),
        ("udp dport != 81", "0"),
        ("tcp dport 80", "1"),
        ("tcp dport != 80", "0"),
        ("tcp dport { 80, 443 }", "1"),
        ("tcp dport http", "1"),
        ("tcp dport https", "0"),
        ("tcp dport domain", "0"),
        ("tcp dport { http, ntp }", "1"),
        (
            "tcp dport { https, ntp }",
            "`tcp dport == { https, ntp }` holds: yes",
        ),
        ("tcp dport ssh", "0"),
        ("tcp dport & 15 == 0", "1"),
        ("tcp dport & 16 == 0", "0"),
        ("udp dport & 15 == 0", "0"),
        ("tcp sport & 1 == 0", "what the source port is: yes"),
        ("meta priority & 15 == 0", "what meta priority is: yes"),
        ("tcp dport 81-90", "0"),
        ("tcp dport > 79", "1"),
        ("tcp dport > 80", "0"),
        ("tcp dport < 80", "0"),
        ("tcp dport < 81", "1"),
        ("tcp dport < 0", "0"),
        ("tcp dport <= 80", "1"),
        ("tcp dport <= 79", "0"),
        ("tcp dport >= 80", "1"),
        ("tcp dport >= 81", "0"),
        ("udp dport > 79", "0"),
        ("ip daddr . tcp dport { 10.97.54.248 . 80 }", "1"),
        ("ip daddr . tcp dport { 10.97.54.248 . 81 }", "0"),
        ("meta mark 0x00000001", "0"),
        ("meta mark != 0x00000001", "1"),
        ("ct mark 0x00000001", "0"),
        ("ct l3proto ipv4", "1"),
        ("ct direction original", "1"),
        ("ct status & dnat != 0", "0"),
        ("ct status & (dnat | snat) == 0", "1"),
        ("oifname != \"eth0\"", "1"),
        ("oifname \"eth0\"", "0"),
        ("meta oifkind \"veth\"", "0"),
        ("ip saddr & 255.0.0.255 == 198.0.0.1", "1"),
        ("ip saddr & 255.0.0.255 != 198.0.0.1", "0"),
        ("fib saddr . iif oif missing", "0"),
        ("fib saddr . iif oif exists", "1"),
        ("fib daddr oif exists", "1"),
        ("ct state new", "1"),
        ("ct state established,related", "0"),
        ("ct state != new", "0"),
        ("ct state ! established,related", "1"),
        ("ct state ! new", "0"),
        ("ct status dnat", "0"),
        ("ct status ! dnat", "1"),
        ("tcp flags fin,syn / fin,syn", "0"),
        ("tcp flags != fin,syn / fin,syn", "1"),
        ("tcp flags == fin,syn", "0"),
        ("tcp flags & (fin | syn | rst | ack) == syn", "1"),
        ("tcp flags & (fin | syn | rst | ack) != syn", "0"),
        ("tcp flags ! syn", "0"),
        ("tcp flags ! ack", "1"),
        ("tcp flags fin,syn", "1"),
        ("tcp flags fin / fin,syn", "0"),
        ("tcp flags syn / fin,syn,rst,psh,ack,urg,ecn,cwr", "1"),
        ("numgen random mod 4 < 1", "0.25"),
        ("numgen random mod 4 0", "0.25"),
        ("numgen random mod 4 offset 4 >= 5", "0.75"),
        (
            "numgen random mod 70000 < 35000",
            "`numgen random mod 70000 < 35000` holds: yes",
        ),
        ("fib daddr type local", "0"),
        ("fib daddr type unicast", "1"),
        ("fib saddr type unicast", "1"),
        ("tcp sport > 1024", "1"),
        ("tcp sport 8080", "0"),
        ("tcp sport { 80, 40000 }", "what the source port is: yes"),
    ];
    let drops = |rule: &str| nftables(&format!("{rule} drop"));
    check(&rules, false, drops);
    let rules = [
        ("tcp flags ! syn", "1"),
        ("ct state established,related", "1"),
    ];
    check(&rules, true, drops);

    let of = |proto| Flow {
        proto,
        ..flow(false)
    };
    let rules = [
        ("sctp dport 80", "1"),
        ("tcp dport 80", "0"),
        ("tcp flags ! syn", "0"),
    ];
    check_flow(&rules, &of(Proto::Sctp), drops);
    let rules = [
        ("icmp type echo-request", "1"),
        ("icmp type != echo-request", "0"),
        ("icmp type { echo-reply, 3 }", "0"),
        ("icmp type 8 icmp code 0", "1"),
        ("icmpv6 type echo-request", "0"),
        ("icmp id != 1", "what icmp id is: yes"),
        ("icmp sequence 1", "what icmp sequence is: yes"),
        ("icmp mtu 1400", "0"),
    ];
    check_flow(&rules, &of(Proto::Icmp), drops);
    let v6 = Flow {
        source: Some([0x2001, 2, 0, 0, 0, 0, 0, 1].into()),
        ..to([0xfd00, 0, 0, 0, 0, 0, 0, 9])
    };
    let rules = [
        ("ip saddr != 10.0.0.0/8", "0"),
        ("ip protocol tcp", "0"),
        ("ip6 saddr 2001:2::/48", "1"),
        ("ip6 nexthdr tcp", "1"),
        ("meta nfproto ipv6", "1"),
        ("meta protocol ip6", "1"),
    ];
    check_flow(&rules, &v6, drops);
}

#[test]
fn statements_of_nftables_have_their_effect() {
    // The ways that such rules part come together again.
    let crowd = format!("{}drop", "limit rate 5/second log\n".repeat(20));
    let rules = [
        ("meta mark set 0x4\nmeta mark 0x4 drop", "1"),
        ("ct mark set 0x8\nct mark 0x8 drop", "1"),
        ("ct mark set 0x8\nct mark 0x9 drop", "0"),
        (
            "meta mark set 0x1\nmeta mark set meta mark << 3\nmeta mark 0x8 drop",
            "1",
        ),
        (
            "meta mark set 0x8\nmeta mark set meta mark >> 3\nmeta mark 0x1 drop",
            "1",
        ),
        (
            "meta mark set 0x5\nmeta mark set meta mark | 0x4\nmeta mark 0x5 drop",
            "1",
        ),
        ("meta nftrace set 1\nmeta mark 0x1 drop", "0"),
        ("ct zone set 8\nct mark 0x8 drop", "0"),
        (
            "meta mark set symhash mod 4\ndrop",
            "the mark that is set is unknown: symhash mod 4",
        ),
        ("tcp dport vmap { 443 : accept, * : drop }", "1"),
        ("tcp dport vmap { * : accept, 80 : drop }", "1"),
        ("ct state vmap { established : accept, new : drop }", "1"),
        ("ct state vmap { established : drop }", "0"),
        (
            "tcp sport vmap { 5000 : drop }",
            "taken by rule 1 of other first: it is unknown what the source port is",
        ),
        (
            "quota over 25 mbytes used 0 bytes drop",
            "`quota over 25 mbytes` is used up: yes",
        ),
        (&crowd, "1"),
        ("numgen random mod 4 vmap { 0 : drop, 2 : drop }", "0.5"),
        ("numgen random mod 4 vmap { 0 : accept }\ndrop", "0.75"),
        (
            "meta l4proto tcp dnat ip to numgen random mod 4 map { 0 : 10.244.1.5, 1 : 10.244.1.6 }\ndrop",
            "0.5",
        ),
        ("meta priority set 1:1\ndrop", "1"),
        ("counter packets 0 bytes 0\ndrop", "1"),
        ("accept\ndrop", "0"),
        ("return\ndrop", "0"),
        ("continue\ndrop", "1"),
        // Tracked packets stay so.
        ("notrack\nct state untracked drop", "0"),
        (
            "ct state untracked drop\n}\nchain raw {\ntype filter hook prerouting priority raw; policy accept;\nnotrack",
            "1",
        ),
        (
            "ct mark 0 drop\nct direction original drop\nct original ip saddr 0.0.0.0/0 drop\nct state new drop\n}\n\
             chain raw {\ntype filter hook prerouting priority raw; policy accept;\nct mark 0 drop\nct state new drop\nnotrack",
            "0",
        ),
        (
            "}\nchain raw {\ntype filter hook prerouting priority raw; policy accept;\nct state invalid drop",
            "1",
        ),
        (
            "add @seen { ip saddr }\nip saddr @seen drop",
            "what set @seen holds: it was not read",
        ),
        ("reject with icmpv6 no-route\ndrop", "1"),
        ("dnat ip6 to fd00::1\ndrop", "1"),
        ("add @seen { ip6 saddr } drop", "0"),
        ("add @seen { ip saddr counter } drop", "1"),
        (
            "add @seen { ip saddr limit rate over 10/minute } drop",
            "`limit rate over 10/minute` of the element holds: yes",
        ),
        (
            "update @seen { ip saddr ct count over 20 } drop",
            "`ct count over 20` of the element holds: yes",
        ),
        (
            "meta mark set tcp dport map { 80 : 0x00000007, 443 : 0x00000008 }\nmeta mark 0x00000007 drop",
            "1",
        ),
        ("meta mark set tcp dport map { 443 : 0x00000008 } drop", "0"),
        (
            "queue flags bypass to 3",
            "queued by rule 1 of other first: a program in user space decides",
        ),
        (
            "queue to 1",
            "queued by rule 1 of other first: a program in user space decides",
        ),
        (
            "meta l4proto udp accept\ntproxy to :0",
            "taken by rule 2 of other first: the effect of tproxy is unknown",
        ),
        // Nothing listens there: the rule does not match.
        ("meta l4proto udp accept\ntproxy to :8080 drop", "0"),
        ("log prefix \"seen \" drop", "1"),
        ("jump nowhere", "chain nowhere does not exist"),
        ("jump second\ndrop\n}\nchain second {\nreturn", "1"),
        ("goto second\ndrop\n}\nchain second {\nreturn", "0"),
        ("goto second\n}\nchain second {\ndrop", "1"),
        (
            "jump second\n}\nchain second {\njump second",
            "chain second jumps to itself",
        ),
        (
            "ip saddr @banned drop\n}\nset banned {\ntype ipv4_addr\nflags timeout\n\
             elements = { 198.18.0.1 timeout 1h expires 59m }",
            "1",
        ),
    ];
    check(&rules, false, nftables);
}

/// nft does not show what matches and targets of iptables compare.
#[test]
fn what_nft_does_not_show_is_unknown() {
    let rules = [
        ("xt match \"comment\" drop", "1"),
        ("xt match \"string\" drop", "nft does not show its options"),
        (
            "xt target \"TEE\"",
            "the effect of xt target TEE is unknown",
        ),
    ];
    check(&rules, false, nftables);
}

/// `hash_netiface4_kadt`: the longest prefix with the address decides, whatever its link.
#[test]
fn a_set_of_networks_and_links_stops_at_the_longest_prefix() {
    for (members, expected) in [
        (&["198.18.0.0/15,eth0"][..], "1"),
        (&["198.18.0.0/15,eth0", "198.18.0.0/24,cni0"], "0"),
        (&["198.18.0.0/15,cni0", "198.18.0.0/15,eth0"], "1"),
        (&["198.18.0.0/15,cni0", "198.18.0.0/24,eth0"], "1"),
        (&["198.18.0.0/15,eth0", "198.18.0.1,eth0 nomatch"], "0"),
    ] {
        let mut evidence = iptables("-m set --match-set CLIENTS src,src -j DROP");
        let members: String = members
            .iter()
            .flat_map(|member| ["add CLIENTS ", member, "\n"])
            .collect();
        let sets = format!("create CLIENTS hash:net,iface family inet\n{members}");
        evidence.insert(Item::Ipset, Ok(sets));
        assert_eq!(dropped(&evidence, &flow(false)), expected, "{members}");
    }
}
