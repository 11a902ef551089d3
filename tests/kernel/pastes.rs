//! Listings of the tools, read as pasted text, compared with what kpx reads of the same state itself.

use std::collections::BTreeSet;

use kpx_node::backend::iptables::model::{Match, NO_LINKS, Ruleset};
use kpx_node::backend::{ipset, iptables};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::foreign;
use kpx_node::net::Family;
use kpx_node::node::{NodeSnapshot, conntrack};

use super::netns::Netns;
use super::tools::rules;

const BACKENDS: [&str; 2] = ["nft", "legacy"];

/// Rules of other programs, with matches and targets of every kind that nodes have.
const OTHERS: &str = "\
*nat
-A PREROUTING -p tcp -m tcp --dport 8079 -j REDIRECT --to-ports 8080
-A PREROUTING -p tcp -m multiport ! --dports 80,443 -j RETURN
-A PREROUTING -m addrtype --dst-type LOCAL --limit-iface-in -j RETURN
-A PREROUTING -m iprange --dst-range 192.0.2.1-192.0.2.9 -j RETURN
-A PREROUTING -m statistic --mode nth --every 3 --packet 1 -j RETURN
-A PREROUTING -m recent --update --seconds 60 --hitcount 4 --name x --rsource -j RETURN
-A PREROUTING -p tcp -m tcp --sport 53 ! --dport 1000:2000 -j RETURN
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -o eth+ -p tcp -j SNAT --to-source 192.0.2.1 --random --persistent
COMMIT
*filter
-A INPUT -i lo -j ACCEPT
-A INPUT ! -i eth0 -m mark ! --mark 0x1/0xff -m comment --comment \"two \\\"words\\\"\"
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A INPUT -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m limit --limit 5/min -j LOG --log-prefix \"IPT drop: \"
-A INPUT -p tcp -j REJECT --reject-with tcp-reset
-A FORWARD -m set --match-set KUBE-TEST dst,dst -j DROP
-A OUTPUT -m owner --uid-owner 1000 -j ACCEPT
COMMIT
*mangle
-A PREROUTING -j MARK --set-xmark 0x10000/0x30000
-A PREROUTING -m connmark ! --mark 0x1 -j CONNMARK --restore-mark
-A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
COMMIT
";

const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

fn paste(outputs: &[(String, String)]) -> Evidence {
    let mut text = String::new();
    for (command, output) in outputs {
        text.extend(["root@node1:~# ", command, "\n", output, "\n"]);
    }
    let found =
        foreign::paste(text.as_bytes()).unwrap_or_else(|| panic!("nothing is recognised:\n{text}"));
    found.nodes[0].evidence.with_all_parts()
}

fn read(evidence: &Evidence, item: Item) -> &str {
    evidence.text(item).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the rules by table and chain, without counters; without links where `drops_links`, as a listing without `-v` has them.
fn plain(rules: &Ruleset<'_>, drops_links: bool) -> Vec<String> {
    let mut all = Vec::new();
    for table in &rules.tables {
        for chain in &table.chains {
            for rule in &chain.rules {
                let mut rule = rule.clone();
                rule.counters = None;
                if drops_links {
                    let is_link = |of: &Match<'_>| {
                        matches!(of, Match::In(_) | Match::Out(_))
                            || matches!(of, Match::Unknown(text) if text == NO_LINKS)
                    };
                    rule.matches.retain(|matched| !is_link(matched));
                }
                all.push(format!("{} {}{rule}", table.name, chain.name));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn rules_are_the_same_in_every_listing() {
    for backend in BACKENDS {
        let netns = Netns::new();
        netns.run("ipset create KUBE-TEST hash:ip,port");
        netns.feed(&format!("iptables-{backend}-restore"), &rules());
        netns.feed(&format!("iptables-{backend}-restore -n"), OTHERS);
        let own = netns.collect(&[Item::Iptables4]).await;
        let own = iptables::parse::ruleset(Item::Iptables4, read(&own, Item::Iptables4)).unwrap();
        // Without -n, names depend on the machine's files: samples have these forms.
        for form in ["-nvL", "-nvxL", "-nvL --line-numbers", "-S", "-vS", "-nL"] {
            let command = |table: &str| format!("iptables-{backend} -t {table} {form}");
            let outputs = TABLES.map(|table| (command(table), netns.run(&command(table))));
            let pasted = paste(&outputs);
            let listed =
                iptables::parse::ruleset(Item::Iptables4, read(&pasted, Item::Iptables4)).unwrap();
            let lacks_links = form == "-nL";
            let (own, listed) = (plain(&own, lacks_links), plain(&listed, lacks_links));
            for rule in &own {
                assert!(
                    listed.contains(rule),
                    "{backend} {form}: {rule}\nis not in\n{listed:#?}"
                );
            }
            assert_eq!(own.len(), listed.len(), "{backend} {form}");
            // Of the tables that are not listed, nothing is known.
            let missing = pasted.missing_part(Item::Iptables4).unwrap_or_default();
            assert!(
                missing.contains("table raw is not shown"),
                "{backend} {form}: {missing}"
            );
            assert_eq!(
                missing.contains("links (-i, -o)"),
                lacks_links,
                "{backend} {form}: {missing}"
            );
        }
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn a_save_is_complete() {
    for backend in BACKENDS {
        let netns = Netns::new();
        netns.feed(&format!("iptables-{backend}-restore"), &rules());
        let own = netns.collect(&[Item::Iptables4]).await;
        let command = format!("iptables-{backend}-save -c");
        let pasted = paste(&[(command.clone(), netns.run(&command))]);
        assert_eq!(pasted.missing_part(Item::Iptables4), None, "{backend}");
        let of = |evidence: &Evidence| {
            let rules =
                iptables::parse::ruleset(Item::Iptables4, read(evidence, Item::Iptables4)).unwrap();
            plain(&rules, false)
        };
        assert_eq!(of(&pasted), of(&own), "{backend}");
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn sets_are_the_same_in_both_listings() {
    let netns = Netns::new();
    netns.feed(
        "ipset restore",
        "create KUBE-CLUSTER-IP hash:ip,port comment\n\
         add KUBE-CLUSTER-IP 10.96.0.1,tcp:443\n\
         add KUBE-CLUSTER-IP 10.96.0.10,udp:53 comment \"kube-system/kube-dns:dns\"\n\
         create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\n\
         add KUBE-NODE-PORT-TCP 31082\n\
         create empty hash:net family inet6\n",
    );
    let own = netns.collect(&[Item::Ipset]).await;
    let own = ipset::parse(read(&own, Item::Ipset)).unwrap();
    for command in ["ipset list", "ipset save"] {
        let pasted = paste(&[(command.to_owned(), netns.run(command))]);
        assert_eq!(pasted.missing_part(Item::Ipset), None, "{command}");
        let listed = ipset::parse(read(&pasted, Item::Ipset)).unwrap();
        assert_eq!(listed.sets.len(), own.sets.len(), "{command}");
        for set in &own.sets {
            assert_eq!(listed.set(&set.name), Some(set), "{command}");
        }
    }
    let terse = paste(&[("ipset list -t".to_owned(), netns.run("ipset list -t"))]);
    assert!(
        terse
            .missing_part(Item::Ipset)
            .unwrap()
            .contains("members of set")
    );
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn addresses_routes_and_rules_are_the_same() {
    let netns = Netns::new();
    for command in [
        "ip link add eth0 type veth peer name eth1",
        "ip link set eth0 up",
        "ip link set eth1 up",
        "ip addr add 192.0.2.10/24 brd + dev eth0",
        "ip addr add 192.0.2.11/24 dev eth0",
        "ip addr add 2001:db8::10/64 dev eth0 nodad",
        "ip route add default via 192.0.2.1 metric 100",
        "ip route add blackhole 10.99.0.0/16",
        "ip route add 203.0.113.0/24 nexthop via 192.0.2.2 nexthop via 192.0.2.3 weight 2",
        "ip route add 198.51.100.0/24 via 192.0.2.1 table 100",
        "ip rule add from 10.244.0.0/16 to 10.96.0.0/12 iif eth0 lookup 100 priority 20",
        "ip rule add not fwmark 0x10/0xff lookup 100 priority 30",
    ] {
        netns.run(command);
    }
    let own = netns
        .collect(&[Item::Addresses, Item::Links, Item::Routes, Item::Rules])
        .await;
    let outputs = [
        "ip addr",
        "ip -d link",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ip rule",
        "ip -6 rule",
    ];
    let outputs: Vec<_> = outputs
        .map(|command| (command.to_owned(), netns.run(command)))
        .into();
    let pasted = paste(&outputs);
    let (own, pasted) = (NodeSnapshot::new(&own), NodeSnapshot::new(&pasted));
    let addresses = |node: &NodeSnapshot<'_>| -> BTreeSet<String> {
        let all = &node.addresses().unwrap().all;
        all.iter()
            .map(|address| {
                format!(
                    "{} {} {} {:?}",
                    address.link, address.addr, address.scope, address.broadcast
                )
            })
            .collect()
    };
    assert_eq!(addresses(&pasted), addresses(&own));
    let links = |node: &NodeSnapshot<'_>| -> BTreeSet<String> {
        let all = &node.links().unwrap().all;
        all.iter()
            .map(|link| {
                format!(
                    "{} {} {} {} {}",
                    link.name,
                    link.kind,
                    link.state,
                    link.mtu,
                    link.flags.join(",")
                )
            })
            .collect()
    };
    assert_eq!(links(&pasted), links(&own));
    let routes = |node: &NodeSnapshot<'_>| -> BTreeSet<String> {
        let all = &node.routes().unwrap().all;
        all.iter()
            .map(|route| {
                format!(
                    "{} {route} {} {:?} {:?} {:?}",
                    route.table, route.metric, route.source, route.nexthops, route.device
                )
            })
            .collect()
    };
    assert_eq!(routes(&pasted), routes(&own));
    let rules = |node: &NodeSnapshot<'_>| -> BTreeSet<String> {
        let all = &node.rules().unwrap().all;
        all.iter()
            .map(|rule| {
                format!(
                    "{} {} {rule}",
                    if rule.family == Family::V4 { 4 } else { 6 },
                    rule.priority
                )
            })
            .collect()
    };
    assert_eq!(rules(&pasted), rules(&own));
    for command in ["ip -o addr", "ip -br addr"] {
        let pasted = paste(&[(command.to_owned(), netns.run(command))]);
        let pasted = NodeSnapshot::new(&pasted);
        let short = |node: &NodeSnapshot<'_>| -> BTreeSet<String> {
            node.addresses()
                .unwrap()
                .all
                .iter()
                .map(|address| format!("{} {}", address.link, address.addr))
                .collect()
        };
        assert_eq!(short(&pasted), short(&own), "{command}");
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn handles_of_nftables_and_lines_of_conntrack_are_read() {
    let netns = Netns::new();
    netns.feed(
        "nft -f -",
        "table ip kube-proxy {\n\
         map service-ips {\n type ipv4_addr . inet_proto . inet_service : verdict\n \
         elements = { 10.96.0.1 . tcp . 443 comment \"default/kubernetes:https\" : goto x }\n}\n\
         chain x {\n meta l4proto tcp dnat to 192.0.2.10:6443\n}\n\
         chain nat-prerouting {\n type nat hook prerouting priority dstnat; policy accept;\n \
         ip daddr . meta l4proto . th dport vmap @service-ips\n}\n}\n",
    );
    let listed = netns.run("nft list ruleset");
    let pasted = paste(&[(
        "nft -a list ruleset".to_owned(),
        netns.run("nft -a list ruleset"),
    )]);
    assert_eq!(read(&pasted, Item::NftText).trim_end(), listed.trim_end());
    for port in ["1000", "1001"] {
        netns.run(&format!(
            "conntrack -I -p tcp -s 192.0.2.7 -d 192.0.2.8 --sport {port} --dport 80 --state ESTABLISHED -t 1000 -u ASSURED"
        ));
    }
    let output = netns.run("conntrack -L");
    let own = netns.collect(&[Item::Conntrack]).await;
    let pasted = paste(&[("conntrack -L".to_owned(), output)]);
    let tuples = |evidence: &Evidence| -> BTreeSet<String> {
        let all = conntrack::parse(read(evidence, Item::Conntrack))
            .unwrap()
            .entries;
        all.iter()
            .map(|entry| {
                format!(
                    "{} {:?} {:?} {:?}",
                    entry.proto, entry.state, entry.original, entry.reply
                )
            })
            .collect()
    };
    assert_eq!(tuples(&pasted).len(), 2);
    assert_eq!(tuples(&pasted), tuples(&own));
}
