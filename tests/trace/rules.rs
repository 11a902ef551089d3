//! Which packets a rule takes: a rule that drops is the first that a packet meets.

use std::fmt::Write as _;

use kpx::evidence::{self, Evidence, Item};
use kpx::net::Proto;
use kpx::node::NodeSnapshot;
use kpx::trace::{Entry, Flow, Verdict};

use super::{recording, walk};

/// From outside to default/nginx-svc.
fn flow(established: bool) -> Flow {
    Flow {
        entry: Entry::Outside,
        source: Some([198, 18, 0, 1].into()),
        destination: [10, 97, 54, 248].into(),
        port: 80,
        mark: 0,
        proto: Proto::Tcp,
        established,
    }
}

/// Returns the share of the packets that are dropped, or the condition that decides it, or why it is unknown.
fn dropped(evidence: &Evidence, established: bool) -> String {
    let node = NodeSnapshot::new(evidence);
    let outcomes = walk(&node, &flow(established));
    if let Some(of) = outcomes.iter().find(|of| of.verdict == Verdict::Unknown) {
        return of.reason.clone();
    }
    let drops = outcomes.iter().filter(|of| of.verdict == Verdict::Drop);
    if let Some(when) = drops.clone().find_map(|of| of.when.first()) {
        return when.to_string();
    }
    format!("{}", drops.fold(0.0, |all, of| all + of.probability))
}

fn check(rules: &[(&str, &str)], established: bool, with: impl Fn(&str) -> Evidence) {
    let mut wrong = Vec::new();
    for (rule, expected) in rules {
        let dropped = dropped(&with(rule), established);
        let is_text = expected.len() > 4;
        if dropped != *expected && !(is_text && dropped.contains(expected)) {
            wrong.push(format!("{rule}: {dropped}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rules of `lines` come first in mangle PREROUTING, but for those of chain SECOND.
fn iptables(lines: &str) -> Evidence {
    let mut evidence = recording("seed-iptables");
    let rules = evidence.text(Item::Iptables4).unwrap();
    let chain = ":POSTROUTING ACCEPT [0:0]\n";
    let mut with = format!("{chain}:SECOND - [0:0]\n");
    for rule in lines.lines() {
        let chain = if rule.starts_with("-A ") {
            ""
        } else {
            "-A PREROUTING "
        };
        writeln!(with, "{chain}{rule}").unwrap();
    }
    let rules = rules.replacen(chain, &with, 1);
    evidence.insert(Item::Iptables4, Ok(rules));
    evidence
}

#[test]
fn a_rule_of_iptables_takes_what_its_matches_fit() {
    let rules = [
        ("-s 198.18.0.0/15", "1"),
        ("! -s 198.18.0.0/15", "0"),
        ("-d 10.97.54.248/32", "1"),
        ("! -d 10.97.54.248/32", "0"),
        ("-i eth0", "1"),
        ("-i eth+", "1"),
        ("-i cni+", "0"),
        ("! -i eth0", "0"),
        ("-p tcp", "1"),
        ("-p udp", "0"),
        ("! -p tcp", "0"),
        ("-p tcp -m tcp --dport 80", "1"),
        ("-p tcp -m tcp --dport 81:90", "0"),
        ("-p tcp -m tcp ! --dport 80", "0"),
        ("-p udp -m udp --dport 80", "0"),
        ("-p tcp -m tcp --sport 0:65535", "1"),
        (
            "-p tcp -m tcp --sport 1024:65535",
            "the source port is 1024:65535: yes",
        ),
        ("-p tcp -m multiport --dports 79,80", "1"),
        ("-p tcp -m multiport ! --dports 79,80", "0"),
        ("-p tcp -m multiport --ports 80", "1"),
        ("-p tcp -m multiport ! --ports 80", "0"),
        (
            "-p tcp -m multiport --ports 81",
            "the source port is 81: yes",
        ),
        (
            "-p tcp -m multiport --sports 80,81",
            "the source port is 80,81: yes",
        ),
        ("-m mark --mark 0x1", "0"),
        ("-m mark ! --mark 0x1", "1"),
        ("-m connmark --mark 0x1", "0"),
        ("-m connmark ! --mark 0x1", "1"),
        (
            "-m statistic --mode random --probability 0.25000000000",
            "0.25",
        ),
        ("-m statistic --mode nth --every 4 --packet 0", "0.25"),
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN", "1"),
        ("-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN", "0"),
        ("-p tcp -m tcp --tcp-flags ACK ACK", "0"),
        ("-m pkttype --pkt-type unicast", "1"),
        ("-m pkttype --pkt-type broadcast", "0"),
        ("-m pkttype ! --pkt-type multicast", "1"),
        ("-m iprange --src-range 198.18.0.1-198.18.0.9", "1"),
        ("-m iprange ! --src-range 198.18.0.1-198.18.0.9", "0"),
        ("-m iprange --dst-range 10.97.54.249-10.97.54.250", "0"),
        (
            "-m iprange --src-range 198.18.0.0-198.18.0.1 --dst-range 10.97.54.240-10.97.54.247",
            "0",
        ),
        ("-m conntrack --ctstate NEW", "1"),
        ("-m conntrack ! --ctstate NEW", "0"),
        ("-m conntrack --ctstate RELATED,ESTABLISHED", "0"),
        ("-m conntrack --ctstate DNAT", "0"),
        ("-m addrtype --dst-type LOCAL", "0"),
        ("-m addrtype ! --dst-type LOCAL", "1"),
        ("-m addrtype --dst-type UNICAST", "1"),
        ("-m addrtype --dst-type MULTICAST", "0"),
        ("-m recent --set --name seen --rsource", "1"),
        ("-m recent --rcheck --name seen --rsource", "0"),
        ("-m physdev --physdev-is-bridged", "0"),
        ("-m physdev ! --physdev-is-bridged", "1"),
        ("-p icmp -m icmp --icmp-type 8", "0"),
        (
            "-m limit --limit 5/sec",
            "the rate limit `--limit 5/sec` is exceeded: yes",
        ),
        (
            "-m socket --transparent",
            "`-m socket --transparent` finds a local socket: yes",
        ),
        ("-m made-up --option", "`-m made-up --option` holds: yes"),
    ];
    let drops = |rule: &str| iptables(&format!("{rule} -j DROP"));
    check(&rules, false, drops);
    let rules = [
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN", "0"),
        ("-p tcp -m tcp --tcp-flags ACK ACK", "1"),
        ("-m conntrack --ctstate NEW", "0"),
        ("-m conntrack --ctstate RELATED,ESTABLISHED", "1"),
    ];
    check(&rules, true, drops);
}

/// The rules of `lines` come before those of kube-proxy.
fn nftables(lines: &str) -> Evidence {
    let mut items = evidence::ITEMS.to_vec();
    items.retain(|item| *item != Item::Nft);
    let mut evidence = recording("seed-nftables").only(&items);
    let rules = evidence.text(Item::NftText).unwrap();
    let chain = "type filter hook prerouting priority mangle; policy accept;";
    let rules =
        format!("{rules}table ip other {{\n\tchain first {{\n\t\t{chain}\n{lines}\n\t}}\n}}\n");
    evidence.insert(Item::NftText, Ok(rules));
    evidence
}

#[test]
fn a_rule_of_nftables_takes_what_its_expressions_fit() {
    let rules = [
        ("ip saddr 198.18.0.0/15", "1"),
        ("ip saddr != 198.18.0.0/15", "0"),
        ("iifname \"eth0\"", "1"),
        ("iifname \"eth*\"", "1"),
        ("iifname \"cni0\"", "0"),
        ("meta l4proto tcp", "1"),
        ("meta l4proto { udp, sctp }", "0"),
        ("udp dport 80", "0"),
        ("udp dport != 81", "0"),
        ("tcp dport 80", "1"),
        ("tcp dport != 80", "0"),
        ("tcp dport { 80, 443 }", "1"),
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
        ("ct state new", "1"),
        ("ct state established,related", "0"),
        ("ct state != new", "0"),
        ("ct status dnat", "0"),
        ("tcp flags & (fin | syn | rst | ack) == syn", "1"),
        ("tcp flags & (fin | syn | rst | ack) != syn", "0"),
        ("tcp flags ! syn", "0"),
        ("tcp flags ! ack", "1"),
        ("numgen random mod 4 < 1", "0.25"),
        ("numgen random mod 4 0", "0.25"),
        ("numgen random mod 4 offset 4 >= 5", "0.75"),
        ("fib daddr type local", "0"),
        ("fib daddr type unicast", "1"),
        ("fib saddr type unicast", "1"),
        ("tcp sport > 1024", "what the source port is: yes"),
    ];
    let drops = |rule: &str| nftables(&format!("{rule} drop"));
    check(&rules, false, drops);
    let rules = [
        ("tcp flags ! syn", "1"),
        ("ct state established,related", "1"),
    ];
    check(&rules, true, drops);
}

#[test]
fn targets_of_iptables_have_their_effect() {
    let rules = [
        (
            "-j MARK --set-xmark 0x4/0x4\n-m mark --mark 0x4/0x4 -j DROP",
            "1",
        ),
        (
            "-j CONNMARK --set-xmark 0x8/0xffffffff\n-m connmark --mark 0x8 -j DROP",
            "1",
        ),
        (
            "-j MARK --set-xmark 0x4/0xffffffff\n\
             -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff\n\
             -m connmark --mark 0x4 -j DROP",
            "1",
        ),
        (
            "-j CONNMARK --set-xmark 0x8/0xffffffff\n\
             -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff\n\
             -m mark --mark 0x8 -j DROP",
            "1",
        ),
        (
            "-j CONNMARK --restore-mark --nfmask 0xf --ctmask 0xf\n-m mark --mark 0x0 -j DROP",
            "1",
        ),
        ("-j LOG\n-j DROP", "1"),
        ("-j ACCEPT\n-j DROP", "0"),
        ("-j RETURN\n-j DROP", "0"),
        (
            "-j NFQUEUE --queue-num 1\n-j DROP",
            "a program in user space decides",
        ),
        (
            "-p tcp -j TPROXY --on-port 1 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1",
            "delivered to a local proxy",
        ),
        (
            "-j TEE --gateway 10.0.0.1",
            "the effect of target TEE is unknown",
        ),
        ("-j NOWHERE", "chain NOWHERE of table mangle does not exist"),
        ("-j SECOND\n-j DROP\n-A SECOND -j RETURN", "1"),
        ("-g SECOND\n-j DROP\n-A SECOND -j RETURN", "0"),
        ("-g SECOND\n-A SECOND -j DROP", "1"),
    ];
    check(&rules, false, iptables);
}

#[test]
fn statements_of_nftables_have_their_effect() {
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
            "meta l4proto tcp dnat to numgen random mod 4 map { 0 : 10.244.1.5, 1 : 10.244.1.6 }\ndrop",
            "0.5",
        ),
        ("meta priority set 1:1\ndrop", "1"),
        ("counter packets 0 bytes 0\ndrop", "1"),
        ("accept\ndrop", "0"),
        ("return\ndrop", "0"),
        ("continue\ndrop", "1"),
        ("notrack\nct state untracked drop", "1"),
        ("notrack\nct state new drop", "0"),
        ("queue to 1", "a program in user space decides"),
        ("jump nowhere", "chain nowhere does not exist"),
        ("jump second\ndrop\n}\nchain second {\nreturn", "1"),
        ("goto second\ndrop\n}\nchain second {\nreturn", "0"),
        ("goto second\n}\nchain second {\ndrop", "1"),
    ];
    check(&rules, false, nftables);
}

/// Sets of others remember clients for other ends.
#[test]
fn a_set_that_kube_proxy_did_not_make_is_no_affinity() {
    let evidence = nftables("update @seen { ip saddr }");
    let outcomes = walk(&NodeSnapshot::new(&evidence), &flow(false));
    assert!(outcomes.iter().all(|of| !of.sticky));
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

#[test]
fn a_virtual_server_of_a_mark_comes_before_that_of_an_address() {
    for (mark, family, first) in [
        ("0x8", "", [10, 9, 9, 9]),
        ("0x9", "", [10, 244, 1, 14]),
        ("0x8", " -6", [10, 244, 1, 14]),
    ] {
        let mut evidence = recording("seed-ipvs");
        let servers = evidence.text(Item::IpvsSave).unwrap();
        // kube-proxy adds its own mark, 0x4000.
        let real = if family.is_empty() {
            "10.9.9.9:80"
        } else {
            "[fd00::9]:80"
        };
        let servers =
            format!("{servers}-A -f 16392{family} -s rr\n-a -f 16392{family} -r {real} -m -w 1\n");
        evidence.insert(Item::IpvsSave, Ok(servers));
        let rules = evidence.text(Item::Iptables4).unwrap();
        let rules = format!(
            "{rules}*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j MARK --set-xmark {mark}/0xffffffff\nCOMMIT\n"
        );
        evidence.insert(Item::Iptables4, Ok(rules));
        let node = NodeSnapshot::new(&evidence);
        let outcomes = walk(&node, &flow(false));
        assert_eq!(
            outcomes[0].destination.0,
            std::net::IpAddr::from(first),
            "{mark}{family}"
        );
    }
}

#[test]
fn a_policy_rule_takes_what_its_selectors_fit() {
    let with = |selectors: &str| {
        let mut evidence = recording("seed-iptables");
        let rules = format!(
            r#"[{{"priority":9,{selectors},"action":"blackhole"}},{{"priority":32766,"src":"all","table":"main"}}]"#
        );
        evidence.insert(Item::Rules, Ok(rules));
        evidence
    };
    // The packet is translated and marked by then.
    let rules = [
        (r#""src":"all""#, "1"),
        (r#""src":"198.18.0.0","srclen":15"#, "1"),
        (r#""not":null,"src":"198.18.0.0","srclen":15"#, "0"),
        (r#""src":"10.0.0.0","srclen":8"#, "0"),
        (r#""not":null,"src":"10.0.0.0","srclen":8"#, "1"),
        (r#""src":"all","dst":"10.244.0.0","dstlen":16"#, "1"),
        (r#""src":"all","dst":"10.97.0.0","dstlen":16"#, "0"),
        (
            r#""src":"10.0.0.0","srclen":8,"dst":"10.244.0.0","dstlen":16"#,
            "0",
        ),
        (r#""src":"all","fwmark":"0x4000","fwmask":"0x4000""#, "1"),
        (r#""src":"all","fwmark":"0x0","fwmask":"0x4000""#, "0"),
        (
            r#""src":"10.0.0.0","srclen":8,"fwmark":"0x4000","fwmask":"0x4000""#,
            "0",
        ),
        (r#""src":"all","iif":"eth0""#, "1"),
        (r#""src":"all","iif":"cni0""#, "0"),
        (r#""src":"all","oif":"eth0""#, "0"),
    ];
    check(&rules, false, with);
}
