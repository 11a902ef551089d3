//! The packets that a rule takes: a rule that drops is the first that a packet meets.

pub(super) mod nftables;

use std::fmt::Write as _;
use std::net::IpAddr;

use kpx_judge::trace::{Carried, Entry, Flow, Hop, Verdict};
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;
use nftables::nftables;
use serde_json::{Value, json};

use super::routes::with_routes;
use super::{recording, walk};

/// From outside to default/nginx-svc.
pub(super) fn flow(established: bool) -> Flow {
    Flow {
        entry: Entry::Outside,
        source: Some([198, 18, 0, 1].into()),
        destination: [10, 97, 54, 248].into(),
        port: 80,
        mark: 0,
        carried: Carried::default(),
        proto: Proto::Tcp,
        established,
    }
}

/// The same to another address.
fn to(destination: impl Into<IpAddr>) -> Flow {
    Flow {
        destination: destination.into(),
        ..flow(false)
    }
}

/// Returns the share of the packets that are dropped, or the condition that decides it, or why it is unknown.
fn dropped(evidence: &Evidence, flow: &Flow) -> String {
    let node = NodeSnapshot::new(evidence);
    let outcomes = walk(&node, flow);
    if let Some(of) = outcomes
        .iter()
        .find(|outcome| outcome.verdict == Verdict::Unknown)
    {
        return of.reason.clone();
    }
    let drops = outcomes
        .iter()
        .filter(|outcome| outcome.verdict == Verdict::Drop);
    if let Some(when) = drops.clone().find_map(|outcome| outcome.when.first()) {
        return when.to_string();
    }
    format!("{}", drops.fold(0.0, |all, of| all + of.probability))
}

fn check(rules: &[(&str, &str)], established: bool, with: impl Fn(&str) -> Evidence) {
    check_flow(rules, &flow(established), with);
}

fn check_flow(rules: &[(&str, &str)], flow: &Flow, with: impl Fn(&str) -> Evidence) {
    let mut wrong = Vec::new();
    for (rule, expected) in rules {
        let dropped = dropped(&with(rule), flow);
        let is_text = expected.len() > 4;
        if dropped != *expected && !(is_text && dropped.contains(expected)) {
            wrong.push(format!("{rule}: {dropped}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rules of `lines` come first in mangle PREROUTING, but for those of chain SECOND.
pub(super) fn iptables(lines: &str) -> Evidence {
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
        ("-p tcp -m multiport --ports 81", "0"),
        ("-p tcp -m multiport --sports 80,81", "0"),
        (
            "-p tcp -m multiport --sports 80,40000",
            "the source port is 80,40000: yes",
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
        (
            "-m recent --rcheck --name seen --rsource",
            "list seen of xt_recent has the client: yes",
        ),
        ("-m recent --rcheck --name KUBE-SEP-A --rsource", "0"),
        ("-m physdev --physdev-is-bridged", "0"),
        ("-m physdev ! --physdev-is-bridged", "1"),
        ("-p icmp -m icmp --icmp-type 8", "0"),
        (
            "-m conntrack --ctorigdst 10.97.54.248/32 --ctorigdstport 80",
            "1",
        ),
        ("-m conntrack ! --ctorigdst 10.97.54.248/32", "0"),
        ("-m conntrack --ctproto 6 --ctdir ORIGINAL", "1"),
        ("-m conntrack --ctdir REPLY", "0"),
        ("-m conntrack --ctstatus SEEN_REPLY,ASSURED", "0"),
        (
            "-m conntrack --ctexpire 1:9",
            "`-m conntrack --ctexpire …` holds: yes",
        ),
        ("-s 198.0.0.1/255.0.0.255", "1"),
        ("! -s 198.0.0.1/255.0.0.255", "0"),
        ("-m rpfilter --invert", "0"),
        (
            "-m limit --limit 5/sec",
            "the rate limit `--limit 5/sec` has room: yes",
        ),
        ("-m socket --transparent", "0"),
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

/// `inet_addr_type` of the kernel.
#[test]
fn each_address_has_one_type() {
    for (destination, rule, expected) in [
        ([255; 4], "--dst-type BROADCAST", "1"),
        ([255; 4], "--dst-type UNICAST", "0"),
        ([10, 0, 2, 255], "--dst-type BROADCAST", "1"),
        ([10, 0, 2, 255], "--dst-type UNICAST", "0"),
        ([224, 0, 0, 251], "--dst-type MULTICAST", "1"),
        ([224, 0, 0, 251], "--dst-type UNICAST", "0"),
        ([10, 0, 2, 15], "--dst-type LOCAL --limit-iface-in", "1"),
    ] {
        let flow = Flow {
            destination: destination.into(),
            ..flow(false)
        };
        let rules = iptables(&format!("-m addrtype {rule} -j DROP"));
        assert_eq!(dropped(&rules, &flow), expected, "{destination:?} {rule}");
    }
}

/// `match_type6` of the kernel.
#[test]
fn an_address_of_ipv6_can_have_two_types() {
    const LOCAL: &str = "fd00:10:0:2::15";
    for (destination, rule, expected) in [
        (LOCAL, "--dst-type LOCAL", "1"),
        (LOCAL, "--dst-type UNICAST", "1"),
        (LOCAL, "! --dst-type UNICAST", "0"),
        (LOCAL, "--dst-type UNICAST,LOCAL", "1"),
        (LOCAL, "--dst-type ANYCAST", "0"),
        (LOCAL, "--dst-type UNSPEC", "0"),
        ("fd00:10:0:2::", "--dst-type UNICAST", "1"),
        ("fd00:10:0:2::", "--dst-type LOCAL", "0"),
        ("2001:db8::8", "--dst-type LOCAL", "0"),
        ("2001:db8::8", "--dst-type UNICAST", "1"),
        ("2001:db8::8", "--dst-type UNICAST,LOCAL", "0"),
        ("ff02::1", "--dst-type MULTICAST", "1"),
        ("ff02::1", "--dst-type UNICAST", "0"),
        ("ff02::1", "--dst-type UNICAST,MULTICAST", "0"),
    ] {
        let mut evidence = recording("dual-iptables");
        let rules = evidence.text(Item::Iptables6).unwrap();
        let drop = format!(
            "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -m addrtype {rule} -j DROP\nCOMMIT\n"
        );
        let rules = format!("{rules}{drop}");
        evidence.insert(Item::Iptables6, Ok(rules));
        let flow = Flow {
            destination: destination.parse().unwrap(),
            source: Some("2001:db8::7".parse().unwrap()),
            ..flow(false)
        };
        assert_eq!(dropped(&evidence, &flow), expected, "{destination} {rule}");
    }
}

/// Packets come in by eth0, here a bridge; its ports are unknown.
#[test]
fn a_packet_that_enters_by_a_bridge_has_an_unknown_port() {
    let rules = [
        ("--physdev-is-in", "1"),
        ("! --physdev-is-in", "0"),
        ("--physdev-is-out", "0"),
        ("--physdev-is-bridged", "0"),
        ("--physdev-in veth1", "the bridge port is veth1: yes"),
        ("--physdev-out veth1", "0"),
        ("! --physdev-out veth1", "1"),
    ];
    check(&rules, false, |rule| {
        let mut evidence = iptables(&format!("-m physdev {rule} -j DROP"));
        let links = evidence.text(Item::Links).unwrap();
        let bridge = r#""linkinfo":{"info_kind":"bridge"},"ifname":"eth0""#;
        let links = links.replacen(r#""ifname":"eth0""#, bridge, 1);
        evidence.insert(Item::Links, Ok(links));
        evidence
    });
}

/// Packets have the mark 7.
#[test]
fn a_set_has_links_and_marks() {
    for (kind, element, expected) in [
        ("hash:net,iface", "198.18.0.0/15,eth0", "1"),
        ("hash:net,iface", "198.18.0.0/15,eth1", "0"),
        ("hash:net,iface", "198.51.100.0/24,eth0", "0"),
        ("hash:ip,mark", "198.18.0.1,0x00000007", "1"),
        ("hash:ip,mark", "198.18.0.1,0x00000008", "0"),
    ] {
        let mut evidence = iptables(
            "-j MARK --set-xmark 0x7/0xffffffff\n-m set --match-set CLIENTS src,src -j DROP",
        );
        let sets = format!("create CLIENTS {kind} family inet\nadd CLIENTS {element}\n");
        evidence.insert(Item::Ipset, Ok(sets));
        assert_eq!(
            dropped(&evidence, &flow(false)),
            expected,
            "{kind} {element}"
        );
    }
}

#[test]
fn a_rule_for_pings_takes_one() {
    let ping = Flow {
        proto: Proto::Icmp,
        port: 0,
        ..flow(false)
    };
    for (kind, expected) in [
        ("--icmp-type 8", "1"),
        ("--icmp-type 8/0", "1"),
        ("--icmp-type any", "1"),
        ("! --icmp-type 8", "0"),
        ("--icmp-type 0", "0"),
        ("--icmp-type 3/4", "0"),
    ] {
        let rules = iptables(&format!("-p icmp -m icmp {kind} -j DROP"));
        assert_eq!(dropped(&rules, &ping), expected, "{kind}");
    }
}

#[test]
fn only_a_packet_of_the_host_has_an_owner() {
    let host = Flow {
        entry: Entry::Host,
        source: None,
        ..flow(false)
    };
    // A client on the node is a program of root.
    for (options, from_host, from_outside) in [
        ("--uid-owner 0", "1", "0"),
        ("--uid-owner 0-99 --socket-exists", "1", "0"),
        ("--uid-owner 1000", "0", "0"),
        ("! --uid-owner 0", "0", "1"),
        ("! --uid-owner 0 ! --gid-owner 0", "0", "1"),
        ("! --uid-owner 0 --gid-owner 0", "0", "0"),
    ] {
        let rules = iptables(&format!("-A POSTROUTING -m owner {options} -j DROP"));
        assert_eq!(dropped(&rules, &host), from_host, "{options}");
        assert_eq!(dropped(&rules, &flow(false)), from_outside, "{options}");
    }
}

#[test]
fn a_packet_from_outside_comes_in_by_the_link_of_its_route() {
    let mut evidence = iptables("-i eth1 -j DROP");
    assert_eq!(dropped(&evidence, &flow(false)), "0");
    let routes = evidence.text(Item::Routes).unwrap();
    let near = r#"[{"dst":"198.18.0.0/15","dev":"eth1","scope":"link","flags":[]},"#;
    let routes = routes.replacen('[', near, 1);
    evidence.insert(Item::Routes, Ok(routes));
    assert_eq!(dropped(&evidence, &flow(false)), "1");
}

#[test]
fn a_chain_with_the_name_of_a_built_in_one_of_another_table_is_not_run() {
    for (table, chain) in [("filter", "PREROUTING"), ("raw", "FORWARD")] {
        let mut evidence = recording("seed-iptables");
        let rules = evidence.text(Item::Iptables4).unwrap();
        let rules = rules.replacen("*mangle\n", "*raw\nCOMMIT\n*mangle\n", 1);
        let table = format!("*{table}\n");
        let with = format!("{table}:{chain} - [0:0]\n-A {chain} -j DROP\n");
        let rules = rules.replacen(&table, &with, 1);
        evidence.insert(Item::Iptables4, Ok(rules));
        assert_eq!(dropped(&evidence, &flow(false)), "0", "{table}");
    }
}

#[test]
fn chains_nest_but_never_end_in_themselves() {
    let mut lines = "-j C0\n".to_owned();
    for depth in 0..63 {
        writeln!(lines, "-A C{depth} -j C{}", depth + 1).unwrap();
    }
    let nested = |last: &str| {
        let mut evidence = iptables(&format!("{lines}-A C63 -j {last}\n"));
        let rules = evidence.text(Item::Iptables4).unwrap();
        let chains = (0..64).fold("*mangle\n".to_owned(), |chains, depth| {
            format!("{chains}:C{depth} - [0:0]\n")
        });
        let rules = rules.replacen("*mangle\n", &chains, 1);
        evidence.insert(Item::Iptables4, Ok(rules));
        dropped(&evidence, &flow(false))
    };
    assert_eq!(nested("DROP"), "1");
    assert_eq!(nested("C0"), "chain C0 jumps to itself");
}

#[test]
fn fib_tells_the_type_of_an_address_and_where_it_is() {
    let drops = |rule: &str| {
        let mut evidence = nftables(&format!("{rule} drop"));
        for (kind, dst) in [("local", "172.17.0.1"), ("broadcast", "172.17.255.255")] {
            let route = json!({"type": kind, "dst": dst, "dev": "docker0", "table": "local"});
            with_routes(&mut evidence, &route.to_string());
        }
        evidence
    };
    // The packet comes in through eth0, which has 10.0.2.15.
    let rules = [
        ("fib daddr type local", "1"),
        ("fib daddr . iif type local", "1"),
    ];
    check_flow(&rules, &to([10, 0, 2, 15]), drops);
    let rules = [
        ("fib daddr type local", "1"),
        ("fib daddr . iif type local", "0"),
        ("fib daddr . iif type unicast", "1"),
    ];
    check_flow(&rules, &to([172, 17, 0, 1]), drops);
    let rules = [
        ("fib daddr type broadcast", "1"),
        ("fib daddr . iif type broadcast", "0"),
        ("fib daddr . iif type unicast", "1"),
    ];
    check_flow(&rules, &to([172, 17, 255, 255]), drops);
    let multicast = [("fib daddr type multicast", "1")];
    check_flow(&multicast, &to([224, 0, 0, 1]), drops);
    for broadcast in [[255; 4], [0; 4], [10, 0, 2, 255]] {
        let rules = [("fib daddr type broadcast", "1")];
        check_flow(&rules, &to(broadcast), drops);
    }
    // A packet of the node to itself goes out through lo.
    let rule = "}\nchain output {\ntype filter hook output priority mangle; policy accept;\n\
        fib daddr . oif type unicast drop";
    let own = Flow {
        entry: Entry::Host,
        source: None,
        ..to([10, 0, 2, 15])
    };
    check_flow(&[(rule, "1")], &own, nftables);
}

/// A list without the local table shows the node's own addresses no less than its links do.
#[test]
fn without_the_local_table_an_address_of_a_link_is_local() {
    let drops = |rule: &str| {
        let mut evidence = nftables(&format!("{rule} drop"));
        let mut routes: Vec<Value> =
            serde_json::from_str(evidence.text(Item::Routes).unwrap()).unwrap();
        routes.retain(|route| route["table"] != "local");
        evidence.insert(Item::Routes, Ok(Value::from(routes).to_string()));
        evidence
    };
    let rules = [("fib daddr type local", "1")];
    check_flow(&rules, &to([10, 0, 2, 15]), drops);
    check_flow(&rules, &to([127, 0, 0, 1]), drops);
    let rules = [("fib daddr type local", "0")];
    check_flow(&rules, &to([10, 0, 2, 16]), drops);
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
        (
            "-j CONNMARK --set-xmark 0x4/0xf\n-m connmark --mark 0x4 -j DROP",
            "1",
        ),
        // `(ct_mark & !ctmask) ^ value`: a bit outside of the mask is inverted.
        (
            "-j CONNMARK --set-xmark 0xc/0xffffffff\n\
             -j CONNMARK --set-xmark 0x8/0x0\n\
             -m connmark --mark 0x4 -j DROP",
            "1",
        ),
        (
            "-j MARK --set-xmark 0xc/0xffffffff\n\
             -j CONNMARK --set-xmark 0x28/0xffffffff\n\
             -j CONNMARK --save-mark --nfmask 0xf --ctmask 0x7\n\
             -m connmark --mark 0x24 -j DROP",
            "1",
        ),
        ("-j CT --zone 1\n-j DROP", "1"),
        ("-j ULOG\n-j DROP", "1"),
        ("-j LOG\n-j DROP", "1"),
        ("-j ACCEPT\n-j DROP", "0"),
        ("-j RETURN\n-j DROP", "0"),
        (
            "-j NFQUEUE --queue-num 1\n-j DROP",
            "a program in user space decides",
        ),
        (
            "-p tcp -j TPROXY --on-port 0 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1",
            "hands it to a local proxy",
        ),
        // Nothing listens there.
        (
            "-p tcp -j TPROXY --on-port 1 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1",
            "1",
        ),
        ("-j TEE --gateway 10.0.0.1\n-j DROP", "1"),
        ("-j NOWHERE", "chain NOWHERE of table mangle does not exist"),
        ("-j SECOND\n-j DROP\n-A SECOND -j RETURN", "1"),
        ("-g SECOND\n-j DROP\n-A SECOND -j RETURN", "0"),
        ("-g SECOND\n-A SECOND -j DROP", "1"),
    ];
    check(&rules, false, iptables);
}

#[test]
fn a_step_has_the_packets_of_its_rules_counter() {
    for (counter, packets) in [
        ("counter packets 7 bytes 420 ", Some(7)),
        ("counter name \"all\" ", None),
        ("", None),
    ] {
        let evidence = nftables(&format!("{counter}drop"));
        let outcomes = walk(&NodeSnapshot::new(&evidence), &flow(false));
        let last: Option<&Hop> = outcomes[0].hops.last().map(AsRef::as_ref);
        assert_eq!(last.unwrap().packets, packets, "{counter}");
    }
}

#[test]
fn a_client_in_a_set_of_kube_proxy_is_bound_to_its_backend() {
    let looked_up = "ip saddr @affinity-ABC continue\n\t\t";
    for (statement, sticky) in [
        (
            format!("{looked_up}update @affinity-ABC {{ ip saddr }}"),
            true,
        ),
        (format!("{looked_up}add @affinity-ABC {{ ip saddr }}"), true),
        (
            format!("{looked_up}delete @affinity-ABC {{ ip saddr }}"),
            false,
        ),
        // No rule asks for the clients in it.
        ("update @affinity-ABC { ip saddr }".to_owned(), false),
        (
            format!("{looked_up}update @affinity-DEF {{ ip saddr }}"),
            false,
        ),
    ] {
        let evidence = nftables(&statement);
        let outcomes = walk(&NodeSnapshot::new(&evidence), &flow(false));
        assert!(
            outcomes.iter().all(|outcome| outcome.sticky == sticky),
            "{statement}"
        );
    }
}

/// Sets of others remember clients for other ends.
#[test]
fn a_set_that_kube_proxy_did_not_make_is_no_affinity() {
    let evidence = nftables("update @seen { ip saddr }");
    let outcomes = walk(&NodeSnapshot::new(&evidence), &flow(false));
    assert!(outcomes.iter().all(|outcome| !outcome.sticky));
}

#[test]
fn a_virtual_server_of_a_mark_comes_before_that_of_an_address() {
    for (mark, family, real, first) in [
        ("0x8", "", "10.9.9.9:8080", "10.9.9.9:8080"),
        // A real server without a port gets the port of the packet.
        ("0x8", "", "10.9.9.9:0", "10.9.9.9:80"),
        ("0x9", "", "10.9.9.9:8080", "10.244.1.14:80"),
        ("0x8", " -6", "[fd00::9]:80", "10.244.1.14:80"),
    ] {
        let mut evidence = recording("seed-ipvs");
        let servers = evidence.text(Item::IpvsSave).unwrap();
        // kube-proxy adds its own mark, 0x4000.
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
        let to = std::net::SocketAddr::from(outcomes[0].destination);
        assert_eq!(to.to_string(), first, "{mark}{family} {real}");
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

    // The route to the endpoints has 24 bits.
    let with = |length: &str| {
        let mut evidence = recording("seed-iptables");
        let rules = format!(
            r#"[{{"priority":8,"src":"all","table":"local"}},{{"priority":9,"src":"all","table":"main"{length}}},{{"priority":10,"src":"all","action":"blackhole"}}]"#
        );
        evidence.insert(Item::Rules, Ok(rules));
        let routes = evidence.text(Item::Routes).unwrap();
        let routes = routes.replacen('[', r#"[{"dst":"10.244.1.0/24","dev":"eth0"},"#, 1);
        evidence.insert(Item::Routes, Ok(routes));
        evidence
    };
    let rules = [
        ("", "0"),
        (r#","suppress_prefixlen":0"#, "0"),
        (r#","suppress_prefixlen":23"#, "0"),
        (r#","suppress_prefixlen":24"#, "1"),
        (r#","suppress_prefixlen":32"#, "1"),
    ];
    check(&rules, false, with);
}

/// Each rule may double the ways of a packet.
#[test]
fn too_many_undecided_rules_leave_the_end_unknown() {
    const WHY: &str = "too many conditions that the evidence does not decide: they leave more than 1,024 possible paths";
    let (mut of_iptables, mut of_nftables) = (String::new(), String::new());
    for bit in 0..24 {
        let bit = 1_u32 << bit;
        let limit = format!("-m limit --limit {}/sec", bit % 97 + 1);
        writeln!(of_iptables, "{limit} -j MARK --set-xmark {bit:#x}/{bit:#x}").unwrap();
        writeln!(
            of_nftables,
            "limit rate {}/second meta mark set meta mark | {bit:#x}",
            bit % 97 + 1
        )
        .unwrap();
    }
    for evidence in [iptables(of_iptables.trim()), nftables(of_nftables.trim())] {
        assert_eq!(dropped(&evidence, &flow(false)), WHY);
    }
}

/// The link of the packet is not known.
#[test]
fn only_packets_of_the_node_to_itself_pass_the_loopback_link() {
    for (rules, expected) in [
        ("iifname != \"lo\" drop", "1"),
        ("iif != \"lo\" drop", "1"),
        ("iifname \"lo\" accept\n\t\tdrop", "1"),
        ("iifname != { \"lo\" } drop", "1"),
        ("iifname \"eth0\" drop", "which link it passes"),
    ] {
        let mut evidence = iptables("-j MARK --set-xmark 0x1/0x1");
        for item in [Item::Nft, Item::Routes, Item::Addresses] {
            evidence.insert(item, Err(Gap::NotCollected(item)));
        }
        let hook = "type filter hook prerouting priority -300; policy accept;";
        let text =
            format!("table inet guard {{\n\tchain pre {{\n\t\t{hook}\n\t\t{rules}\n\t}}\n}}\n");
        evidence.insert(Item::NftText, Ok(text));
        let dropped = dropped(&evidence, &flow(false));
        let is_text = expected.len() > 4;
        let is_so = dropped == expected || is_text && dropped.contains(expected);
        assert!(is_so, "{rules}: {dropped}");
    }
}
