//! Walks that record what they ask: every packet of a region takes the way of the one that was walked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kpx_judge::proof::difference::Grouping;
use kpx_judge::proof::{Comparison, Fate, around};
use kpx_judge::trace::region::Ranges;
use kpx_judge::trace::{Entry, Flow, Outcome, Verdict};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;

use super::routes::with_routes;
use super::rules::nftables::nftables;
use super::rules::{flow, iptables};
use super::{recording, walk};

/// Packets from outside: to the address of default/nginx-svc, next to it, and elsewhere.
fn flows() -> Vec<Flow> {
    let mut flows = Vec::new();
    for source in [[198, 18, 0, 1], [198, 18, 0, 9], [203, 0, 113, 5]] {
        for destination in [
            [10, 97, 54, 248],
            [10, 97, 54, 249],
            [10, 97, 54, 252],
            [10, 97, 54, 255],
            [203, 0, 113, 8],
        ] {
            for port in [80, 81, 443] {
                for proto in [Proto::Tcp, Proto::Udp] {
                    flows.push(Flow {
                        source: Some(source.into()),
                        destination: destination.into(),
                        port,
                        proto,
                        ..flow(false)
                    });
                }
            }
        }
    }
    flows
}

/// Returns how the packets end. Fails if a recorded walk ends otherwise than a trace, or a packet of its region does.
fn ends(what: &str, evidence: &Evidence, flows: &[Flow]) -> Vec<Vec<Outcome>> {
    let node = NodeSnapshot::new(evidence);
    let ends: Vec<_> = flows.iter().map(|flow| walk(&node, flow)).collect();
    let fates: Vec<_> = ends.iter().map(|ends| Fate::of(ends)).collect();
    let found = around(&node, Family::V4, flows).unwrap();
    for (flow, (region, fate)) in flows.iter().zip(&found) {
        assert!(region.contains(flow), "{what}: {flow:?}");
        for (other, expected) in flows.iter().zip(&fates) {
            assert!(
                !region.contains(other) || fate == expected,
                "{what}: {other:?} as {flow:?}: {fate}, not {expected}"
            );
        }
    }
    ends
}

/// Returns the number of packets that rules which come first drop.
fn dropped(what: &str, evidence: &Evidence) -> usize {
    let is_first = |end: &Outcome| {
        [" mangle ", " other "]
            .iter()
            .any(|table| end.reason.contains(table))
    };
    let ends = ends(what, evidence, &flows());
    ends.iter().filter(|ends| ends.iter().any(is_first)).count()
}

/// Enough rules or elements for a look-up by key, none of which fits: `entry` is written for each number.
fn others(entry: impl Fn(usize) -> String) -> String {
    (1..=12).map(entry).collect()
}

#[test]
fn a_long_chain_drops_what_each_of_its_rules_fits() {
    const BLOCK: &str = "10.97.54.248/29";
    for (within, rule, count) in [
        (BLOCK, "-d 10.97.54.248/32", 18),
        ("10.97.54.252/30", "-d 10.97.54.252/32", 18),
        (BLOCK, "-d 10.97.54.255/32", 18),
        (BLOCK, "! -d 10.97.54.248/32", 54),
        (BLOCK, "-d 10.97.54.252/30", 36),
        (BLOCK, "-s 198.18.0.1/32", 24),
        (BLOCK, "! -s 198.18.0.1/32", 48),
        (BLOCK, "-s 198.18.0.0/24", 48),
        (BLOCK, "-p tcp -m tcp --dport 80", 12),
        (BLOCK, "-p tcp -m tcp ! --dport 80", 24),
        (BLOCK, "-p tcp -m tcp --dport 80:81", 24),
        (
            BLOCK,
            "-s 198.18.0.1/32 -d 10.97.54.248/32 -p udp -m udp --dport 443",
            1,
        ),
    ] {
        let rest = others(|n| {
            format!(
                "-A SECOND -d 192.0.2.{n}/32 -j DROP\n\
                 -A SECOND -s 192.0.2.{n}/32 -j DROP\n\
                 -A SECOND -p tcp -m tcp --dport {n} -j DROP\n"
            )
        });
        let rules = format!("-d {within} -j SECOND\n{rest}-A SECOND {rule} -j DROP");
        assert_eq!(dropped(rule, &iptables(&rules)), count, "{rule}");
    }
}

#[test]
fn a_large_set_has_what_its_elements_name() {
    for (kind, entry, sides, count) in [
        ("hash:ip family inet", "198.18.0.1", "src", 30),
        ("hash:ip family inet", "10.97.54.248", "dst", 18),
        (
            "hash:ip,port family inet",
            "10.97.54.248,tcp:80",
            "dst,dst",
            3,
        ),
        (
            "hash:ip,port,ip family inet",
            "10.97.54.248,tcp:80,198.18.0.9",
            "dst,dst,src",
            1,
        ),
        ("hash:net family inet", "198.18.0.0/24", "src", 60),
        ("bitmap:port range 0-65535", "443", "dst", 30),
    ] {
        let (kinds, _) = kind.split_once(' ').unwrap();
        let rest = others(|n| {
            let element = match kinds {
                "bitmap:port" => n.to_string(),
                "hash:net" => format!("192.0.2.{n}/32"),
                "hash:ip" => format!("192.0.2.{n}"),
                "hash:ip,port" => format!("10.97.54.248,udp:{n}"),
                _ => format!("10.97.54.248,udp:{n},198.18.0.9"),
            };
            format!("add seen {element}\n")
        });
        let mut evidence = iptables(&format!("-m set --match-set seen {sides} -j DROP"));
        let set = format!("create seen {kind}\n{rest}add seen {entry}\n");
        evidence.insert(Item::Ipset, Ok(set));
        assert_eq!(dropped(kind, &evidence), count, "{kind} {entry}");
    }
}

#[test]
fn a_large_set_or_map_of_nftables_has_what_its_elements_name() {
    type Other<'a> = &'a dyn Fn(usize) -> String;
    const MAP: &str = "map seen {\ntype ipv4_addr . inet_proto . inet_service : verdict";
    let address = |n: usize| format!("192.0.2.{n}");
    let end = |n: usize| format!("10.97.54.248 . {n}");
    let policy = |n: usize| format!("10.97.54.248 . tcp . {n} : accept");
    let cases: [(&str, &str, &str, Other<'_>, usize); 7] = [
        (
            "ip saddr @seen drop",
            "set seen {\ntype ipv4_addr",
            "198.18.0.1",
            &address,
            30,
        ),
        (
            "ip saddr != @seen drop",
            "set seen {\ntype ipv4_addr",
            "198.18.0.1",
            &address,
            60,
        ),
        (
            "ip daddr . th dport @seen drop",
            "set seen {\ntype ipv4_addr . inet_service",
            "10.97.54.248 . 80, 10.97.54.249 . 81",
            &end,
            12,
        ),
        (
            "th dport @seen drop",
            "set seen {\ntype inet_service",
            "443",
            &|n| n.to_string(),
            30,
        ),
        (
            "ip daddr . meta l4proto . th dport vmap @seen",
            MAP,
            "10.97.54.248 . tcp . 80 : drop, 10.97.54.249 . udp . 81 : drop",
            &policy,
            6,
        ),
        (
            "ip daddr . meta l4proto . th dport vmap @seen",
            MAP,
            "10.97.54.248 . tcp . 80 : jump second",
            &policy,
            3,
        ),
        (
            "ip daddr . meta l4proto . th dport vmap @seen",
            MAP,
            "10.97.54.248 . 17 . 80 : goto second",
            &policy,
            3,
        ),
    ];
    for (rule, kind, entry, other, count) in cases {
        let rest = others(|n| format!("{}, ", other(n)));
        let text = format!(
            "{rule}\n}}\nchain second {{\ndrop\n}}\n{kind}\nelements = {{ {rest}{entry} }}"
        );
        assert_eq!(dropped(rule, &nftables(&text)), count, "{rule} {entry}");
    }
}

#[test]
fn virtual_servers_are_found_by_address_protocol_and_port() {
    let mut evidence = recording("seed-ipvs");
    let servers = evidence.text(Item::IpvsSave).unwrap();
    let servers = format!(
        "{servers}-A -t [fd00::9]:80 -s rr\n-a -t [fd00::9]:80 -r [fd00::1]:80 -m -w 1\n\
         -A -u 10.97.54.249:81 -s rr\n-a -u 10.97.54.249:81 -r 10.9.9.9:81 -m -w 1\n\
         -A -t 10.97.54.252:0 -s rr -p 600\n-a -t 10.97.54.252:0 -r 10.9.9.9:0 -m -w 1\n"
    );
    evidence.insert(Item::IpvsSave, Ok(servers));
    // The addresses are local: a virtual server takes packets that are.
    let routes = evidence.text(Item::Routes).unwrap();
    let local = r#"[{"type":"local","dst":"10.97.54.248/29","dev":"lo","table":"local"},"#;
    let routes = routes.replacen('[', local, 1);
    evidence.insert(Item::Routes, Ok(routes));
    assert_eq!(dropped("servers", &evidence), 0);
    let node = NodeSnapshot::new(&evidence);
    let ends = flows().into_iter().filter_map(|flow| {
        let (addr, port) = walk(&node, &flow)[0].destination;
        let to_server = addr == IpAddr::from([10, 9, 9, 9]);
        to_server.then(|| format!("{} {} {port}", flow.destination, flow.proto))
    });
    let ends: BTreeSet<_> = ends.collect();
    let expected = [
        "10.97.54.249 udp 81",
        "10.97.54.252 tcp 443",
        "10.97.54.252 tcp 80",
        "10.97.54.252 tcp 81",
    ];
    assert_eq!(ends, BTreeSet::from(expected.map(str::to_owned)));
}

/// An answer about every packet must stay valid; the elements of a set with timeouts do not stay.
#[test]
fn what_a_set_of_nftables_with_timeouts_has_is_left_open() {
    let rules = |flags: &str| {
        nftables(&format!(
            "ip saddr @banned drop\nip saddr vmap @policies\n}}\n\
             set banned {{\ntype ipv4_addr\n{flags}elements = {{ 198.51.100.7 }}\n}}\n\
             map policies {{\ntype ipv4_addr : verdict\nelements = {{ 198.51.100.8 : drop }}"
        ))
    };
    for (flags, client, open) in [
        ("", [198, 51, 100, 7], false),
        ("", [198, 51, 100, 8], false),
        ("flags timeout\n", [198, 51, 100, 7], true),
    ] {
        let (with, without) = (rules(flags), nftables(""));
        let (is, should) = (NodeSnapshot::new(&with), NodeSnapshot::new(&without));
        let owners = Owners::new(&should);
        let comparison = Comparison::new(&owners, &[Family::V4], Grouping::Service);
        let packets = comparison.between(&is, &should).unwrap();
        let flow = Flow {
            source: Some(client.into()),
            ..flow(false)
        };
        let mut found = packets
            .differences
            .iter()
            .map(|difference| &difference.difference);
        let found = found.find(|difference| difference.contains(&flow)).unwrap();
        let when = found.fates[0].ways.iter().flat_map(|way| &way.when);
        let when: BTreeSet<_> = when.map(ToString::to_string).collect();
        let condition = "set @banned has it at the time: yes";
        assert_eq!(
            when.contains(condition),
            open,
            "{flags}{client:?}: {when:?}"
        );
        assert_eq!(when.is_empty(), !open, "{flags}{client:?}: {when:?}");
    }
}

#[test]
fn a_route_is_for_the_addresses_of_its_prefix() {
    let mut evidence = recording("seed-iptables");
    let blackhole = r#"{"type":"blackhole","dst":"203.0.113.0/24"}"#;
    with_routes(&mut evidence, blackhole);
    let flows = [[9, 9, 9, 9], [203, 0, 113, 8], [203, 0, 114, 8]].map(|destination| Flow {
        destination: destination.into(),
        ..flow(false)
    });
    let ends = ends("routes", &evidence, &flows);
    let verdicts: Vec<_> = ends.iter().map(|ends| ends[0].verdict).collect();
    assert_eq!(
        verdicts,
        [Verdict::Unmatched, Verdict::Drop, Verdict::Unmatched]
    );
}

#[test]
fn without_pod_prefixes_the_pods_of_a_node_are_those_with_its_name() {
    let [with, without] = ["-d 10.97.54.248/32 -j DROP", "-d 10.97.54.248/32"].map(|rule| {
        let mut evidence = iptables(rule);
        let nodes = evidence.text(Item::Nodes).unwrap();
        let nodes = nodes.replace("\"podCIDR", "\"other");
        evidence.insert(Item::Nodes, Ok(nodes));
        evidence
    });
    let (is, should) = (NodeSnapshot::new(&with), NodeSnapshot::new(&without));
    let owners = Owners::new(&should);
    let comparison = Comparison::new(&owners, &[Family::V4], Grouping::Service);
    let packets = comparison.between(&is, &should).unwrap();
    for (source, home) in [
        ([10, 244, 1, 14], Entry::Pod),
        ([10, 244, 2, 3], Entry::Outside),
    ] {
        for entry in [Entry::Pod, Entry::Outside] {
            let flow = Flow {
                entry,
                source: Some(source.into()),
                ..flow(false)
            };
            let mut found = packets.differences.iter();
            let is_one = found.any(|proved| proved.difference.contains(&flow));
            assert_eq!(is_one, entry == home, "{flow:?}");
        }
    }
}

#[test]
fn ranges_that_overlap_or_touch_are_one() {
    let ranges = Ranges::of(vec![(8, 9), (4, 5), (1, 3), (2, 2), (11, 12), (9, 9)]);
    assert_eq!(ranges.ranges(), [(1, 5), (8, 9), (11, 12)]);
    let all = Ranges::of(vec![(0, u128::MAX), (5, u128::MAX)]);
    assert_eq!(all, Ranges::between(0, u128::MAX));
}
