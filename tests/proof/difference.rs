//! Fates of packets, and how differences between two of them are gathered.

use std::net::IpAddr;
use std::slice;

use kpx_judge::proof::difference::{Difference, Differences, Grouping, Harm, Target};
use kpx_judge::proof::{Class, Fate, Way};
use kpx_judge::trace::region::{Coordinate as _, Field, Ranges, Region};
use kpx_judge::trace::{Assumption, Carried, Entry, Flow, Question, Verdict, World};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, Role};

use super::evidence;

/// The node's own address.
const OWN: &str = "10.0.2.15";

fn ip(addr: &str) -> IpAddr {
    addr.parse().unwrap()
}

fn way(verdict: Verdict) -> Way {
    Way {
        verdict,
        address: None,
        port: None,
        masquerade: false,
        source: None,
        out: None,
        expires: false,
        sticky: false,
        when: Vec::new(),
        share: 1.0,
    }
}

/// Returns the way to a backend.
fn to(addr: &str) -> Way {
    Way {
        address: Some(ip(addr)),
        port: Some(8080),
        ..way(Verdict::Deliver)
    }
}

fn share(share: f64, way: Way) -> Way {
    Way { share, ..way }
}

fn masqueraded(way: Way) -> Way {
    Way {
        masquerade: true,
        ..way
    }
}

fn sticky(way: Way) -> Way {
    Way {
        sticky: true,
        ..way
    }
}

/// Returns a way that depends on something unknown.
fn maybe(mut way: Way) -> Way {
    let condition = Assumption::Answer {
        question: Question::Other("whether it is so".to_owned()),
        holds: true,
    };
    way.when = vec![condition];
    way
}

fn fate(ways: &[Way]) -> Fate {
    let ways = ways.to_vec();
    Fate { ways }
}

/// Two fates: packets are dropped, and should reach a backend.
fn lost() -> [Fate; 2] {
    [way(Verdict::Drop), to("10.244.1.9")].map(|way| fate(&[way]))
}

fn one(number: impl Into<u128>) -> Ranges {
    let number = number.into();
    Ranges::between(number, number)
}

/// Returns the packets of TCP that clients outside send to a port of `addr`.
fn packets(addr: &str, port: u16) -> Region {
    let sources = Ranges::between(ip("192.0.2.0").number(), ip("192.0.2.255").number());
    let destination = one(ip(addr).number());
    Region::new([
        destination,
        one(Proto::Tcp.number()),
        one(port),
        sources,
        one(0_u8),
    ])
}

fn outside(region: Region, fates: [Fate; 2]) -> Class<2> {
    Class {
        entry: Entry::Outside,
        family: Family::V4,
        region,
        fates,
    }
}

/// Returns the differences that these classes of packets are on seed-iptables.
fn gathered(grouping: Grouping, classes: &[Class<2>]) -> Vec<Difference> {
    let evidence = evidence("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    let owners = Owners::new(&node);
    let mut all = Differences::new(&node, &owners, grouping);
    for class in classes {
        all.add(class, 0, 1);
    }
    all.finish()
}

/// Returns the only difference that one class of packets is.
fn single(class: Class<2>) -> Difference {
    let mut found = gathered(Grouping::Service, &[class]);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn the_harm_is_what_happens_to_the_packets() {
    let (a, b) = (to("10.244.1.9"), to("10.244.2.9"));
    let half = |way: &Way| share(0.5, way.clone());
    let [drop, reject, local, unmatched, unknown] = [
        Verdict::Drop,
        Verdict::Reject,
        Verdict::Local,
        Verdict::Unmatched,
        Verdict::Unknown,
    ]
    .map(way);
    let only = |way: &Way| vec![way.clone()];
    for (is, should, harm) in [
        (only(&drop), only(&a), Harm::Lost),
        (only(&unmatched), only(&a), Harm::Lost),
        (vec![half(&a), half(&drop)], only(&a), Harm::Lost),
        (only(&b), only(&a), Harm::Misled),
        (only(&a), only(&unmatched), Harm::Misled),
        (only(&a), only(&local), Harm::Misled),
        (only(&a), only(&drop), Harm::Open),
        (only(&a), only(&reject), Harm::Open),
        (only(&drop), only(&reject), Harm::Ends),
        (only(&unmatched), only(&drop), Harm::Ends),
        (only(&masqueraded(a.clone())), only(&a), Harm::Source),
        (
            only(&sticky(masqueraded(a.clone()))),
            only(&a),
            Harm::Source,
        ),
        (only(&sticky(a.clone())), only(&a), Harm::Affinity),
        (
            vec![share(0.9, a.clone()), share(0.1, b.clone())],
            vec![half(&a), half(&b)],
            Harm::Uneven,
        ),
        (only(&maybe(drop.clone())), only(&a), Harm::Unsure),
        (only(&a), only(&maybe(drop.clone())), Harm::Unsure),
        (only(&unknown), only(&a), Harm::Unsure),
        (only(&a), only(&unknown), Harm::Unsure),
    ] {
        let fates = [fate(&is), fate(&should)];
        let of = single(outside(packets("10.109.235.134", 80), fates));
        assert_eq!(of.harm, harm, "{} {}", of.fates[0], of.fates[1]);
    }
}

#[test]
fn a_fate_in_words_names_what_stops_packets_first() {
    let third = |way: Way| share(1.0 / 3.0, way);
    let (a, b) = (to("10.244.1.9"), to("10.244.2.9"));
    let drop = way(Verdict::Drop);
    let only_address = Way {
        port: None,
        ..a.clone()
    };
    let only_port = Way {
        address: None,
        ..a.clone()
    };
    for (ways, words) in [
        (vec![a.clone()], "to 10.244.1.9:8080"),
        (vec![only_address], "to 10.244.1.9"),
        (vec![only_port], "to port 8080"),
        (vec![way(Verdict::Local)], "to the host itself"),
        (vec![way(Verdict::Unmatched)], "routed unchanged"),
        (vec![way(Verdict::Mixed)], "unknown"),
        (
            vec![sticky(masqueraded(a.clone()))],
            "to 10.244.1.9:8080, masqueraded, sticky",
        ),
        (
            vec![share(0.75, a.clone()), share(0.25, drop.clone())],
            "dropped 25.0%; to 10.244.1.9:8080 75.0%",
        ),
        (
            vec![third(a), third(b), third(way(Verdict::Reject))],
            "rejected 33.3%; to 10.244.1.9:8080 33.3%; and 1 more",
        ),
    ] {
        assert_eq!(fate(&ways).to_string(), words);
    }
}

#[test]
fn packets_are_sent_to_a_service_a_node_port_or_neither() {
    let ports = |addr: &str, first: u16, last: u16| {
        let mut region = packets(addr, first);
        *region.of_mut(Field::Port) = Ranges::between(first.into(), last.into());
        region
    };
    let mut echo = ports("10.109.235.134", 0, u16::MAX);
    *echo.of_mut(Field::Proto) = one(Proto::Icmp.number());
    for (region, target, kind) in [
        (
            packets("10.109.235.134", 80),
            "default/nginx-svc-nodeport, cluster IP",
            "ports of Services at a cluster IP",
        ),
        (
            packets(OWN, 31082),
            "default/nginx-svc-nodeport, NodePort",
            "NodePorts at addresses of the node",
        ),
        (
            packets("127.0.0.1", 31082),
            "default/nginx-svc-nodeport, NodePort at a loopback address",
            "NodePorts at loopback addresses",
        ),
        (
            packets("10.0.2.99", 31082),
            "default/nginx-svc-nodeport, NodePort at another address",
            "NodePorts at addresses that are not the node's",
        ),
        // Two ports are not one NodePort.
        (ports(OWN, 31082, 31083), "no Service", "no Service"),
        (packets(OWN, 31083), "no Service", "no Service"),
        (
            packets("10.109.235.134", 81),
            "a port of a cluster IP that no Service has",
            "a port of a cluster IP that no Service has",
        ),
        (echo, "ping to a cluster IP", "ping to a cluster IP"),
    ] {
        let of = single(outside(region, lost())).target;
        assert_eq!((&*of.to_string(), &*of.kind()), (target, kind));
    }
    let external = Target::Service("default/a".to_owned(), Role::ExternalIp);
    assert_eq!(external.kind(), "ports of Services at an external IP");
}

#[test]
fn differences_of_one_kind_with_one_harm_and_end_are_one() {
    let (one, other) = (packets("10.109.235.134", 80), packets("10.97.54.248", 80));
    let count = |grouping, classes: [(&Region, [Way; 2]); 2]| {
        let classes =
            classes.map(|(region, ways)| outside(region.clone(), ways.map(|way| fate(&[way]))));
        gathered(grouping, &classes).len()
    };
    let a = || to("10.244.1.9");
    let [drop, reject] = [Verdict::Drop, Verdict::Reject].map(|verdict| [way(verdict), a()]);
    let two = |end: &[Way; 2]| [(&one, end.clone()), (&other, end.clone())];
    assert_eq!(count(Grouping::Kind, two(&drop)), 1);
    assert_eq!(count(Grouping::Service, two(&drop)), 2);
    let both = [(&one, drop.clone()), (&one, reject)];
    assert_eq!(count(Grouping::Kind, both.clone()), 2);
    assert_eq!(count(Grouping::Service, both), 2);
    let misled = ["10.244.2.9", "10.244.3.9"].map(|addr| (&one, [to(addr), a()]));
    assert_eq!(count(Grouping::Kind, misled.clone()), 1);
    assert_eq!(count(Grouping::Service, misled), 2);
    // Packets whose fate depends on an unknown condition are one difference, for all Services.
    let unsure = [maybe(way(Verdict::Drop)), a()];
    assert_eq!(count(Grouping::Service, two(&unsure)), 1);
    // A difference in the source is one, wherever the packets end.
    let source = |way: Way| (&one, [masqueraded(way.clone()), way]);
    let sources = [source(a()), source(way(Verdict::Unmatched))];
    assert_eq!(count(Grouping::Service, sources), 1);
    let classes = [&one, &other].map(|region| outside(region.clone(), lost()));
    let found = gathered(Grouping::Kind, &classes);
    let [all] = found.as_slice() else {
        panic!("{found:?}");
    };
    let names: Vec<_> = all.services.iter().map(String::as_str).collect();
    assert_eq!(names, ["default/nginx-svc", "default/nginx-svc-nodeport"]);
    assert_eq!(all.regions.len(), 2);
}

#[test]
fn the_example_of_a_difference_is_a_usual_packet() {
    let chosen = |field: Field, values: Ranges| {
        let mut region = packets("203.0.113.1", 9);
        *region.of_mut(field) = values;
        single(outside(region, lost())).witness
    };
    let usual = chosen(Field::Port, Ranges::between(1, 65_535));
    assert_eq!(usual.port, 80);
    assert_eq!(chosen(Field::Port, Ranges::between(81, 500)).port, 443);
    assert_eq!(chosen(Field::Port, Ranges::between(1, 22)).port, 22);
    let protos = [Proto::Sctp, Proto::Udp, Proto::Tcp].map(|proto| u128::from(proto.number()));
    let any = Ranges::of(protos.map(|proto| (proto, proto)).to_vec());
    assert_eq!(chosen(Field::Proto, any).proto, Proto::Tcp);
    let echo = chosen(Field::Proto, one(Proto::Icmp.number()));
    assert_eq!((echo.proto, echo.port), (Proto::Icmp, 0));
    assert_eq!(chosen(Field::Mark, Ranges::between(0, 9)).mark, 0);
    assert_eq!(chosen(Field::Mark, Ranges::between(8, 9)).mark, 9);
    let all = Ranges::between(0, u32::MAX.into());
    assert_eq!(
        chosen(Field::Source, all.clone()).source,
        Some(ip("198.18.0.1"))
    );
    assert_eq!(
        chosen(Field::Destination, all).destination,
        ip(OWN),
        "an address of the node"
    );
    // Among several classes, one to an address of the node; else that of the first.
    for (addresses, example) in [
        (["203.0.113.1", "203.0.113.2"], "203.0.113.1"),
        (["203.0.113.1", OWN], OWN),
        ([OWN, "203.0.113.1"], OWN),
        (["127.0.0.1", OWN], "127.0.0.1"),
    ] {
        let classes = addresses.map(|addr| outside(packets(addr, 9), lost()));
        let found = gathered(Grouping::Service, &classes);
        let [of] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(of.witness.destination, ip(example), "{addresses:?}");
    }
}

#[test]
fn a_difference_has_the_packets_of_its_classes_alone() {
    let of = single(outside(packets("10.109.235.134", 80), lost()));
    let flow = of.witness.clone();
    assert!(of.contains(&flow));
    for other in [
        Flow {
            entry: Entry::Pod,
            ..flow.clone()
        },
        Flow {
            port: 81,
            ..flow.clone()
        },
        Flow {
            destination: ip("::1"),
            ..flow.clone()
        },
    ] {
        assert!(!of.contains(&other), "{other:?}");
    }
}

#[test]
fn ways_that_differ_in_a_share_alone_are_one_way() {
    let evidence = evidence("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    let flow = Flow {
        entry: Entry::Outside,
        source: Some(ip("198.18.0.1")),
        destination: ip(OWN),
        port: 30089,
        mark: 0,
        carried: Carried::default(),
        proto: Proto::Tcp,
        established: false,
    };
    let outcomes = World::whole(&node, Family::V4).walk(&flow).unwrap();
    let [delivered] = outcomes.as_slice() else {
        panic!("{outcomes:?}");
    };
    let expected = Way {
        address: Some(ip("10.244.1.21")),
        port: Some(80),
        source: Some(ip("10.0.2.15")),
        out: Some(("eth0".into(), Some(ip("10.0.2.2")))),
        ..masqueraded(way(Verdict::Deliver))
    };
    let [mut half, mut other] = [delivered.clone(), delivered.clone()];
    (half.probability, other.probability) = (0.5, 0.25);
    let rest = other.clone();
    let same = Fate::of(&[half, other.clone(), rest]);
    assert_eq!(same.ways, slice::from_ref(&expected));
    // A packet that is stopped has no way on.
    let mut stopped = delivered.clone();
    stopped.verdict = Verdict::Drop;
    stopped.sticky = true;
    assert_eq!(Fate::of(&[stopped]).ways, [way(Verdict::Drop)]);
    // Fields that are as they were sent are not named.
    let mut sent = delivered.clone();
    (sent.as_sent.destination, sent.as_sent.port) = (true, false);
    (sent.masquerade, sent.sticky) = (false, true);
    let port = Way {
        address: None,
        masquerade: false,
        source: None,
        ..sticky(expected)
    };
    assert_eq!(Fate::of(slice::from_ref(&sent)).ways, [port]);
    // Ways that differ in anything else stay apart.
    other.when = maybe(way(Verdict::Deliver)).when;
    let several = Fate::of(&[delivered.clone(), other, sent]);
    assert_eq!(several.ways.len(), 3);
}

#[test]
fn equal_fates_have_the_same_ways_with_the_same_shares() {
    let (a, b) = (to("10.244.1.9"), to("10.244.2.9"));
    let half = |way: &Way| share(0.5, way.clone());
    let both = fate(&[half(&a), half(&b)]);
    assert_eq!(both, both.clone());
    let rounded = share(0.5 + 2_f64.powi(-31), a.clone());
    assert_eq!(both, fate(&[rounded, half(&b)]));
    for other in [
        fate(&[half(&a)]),
        fate(&[half(&b), half(&a)]),
        fate(&[share(0.6, a.clone()), share(0.4, b)]),
        fate(&[half(&a), half(&maybe(a))]),
    ] {
        assert_ne!(both, other);
    }
    assert_eq!(both.verdict(), Some(Verdict::Deliver));
    assert_eq!(fate(&[way(Verdict::Drop), half(&to(OWN))]).verdict(), None);
    assert_eq!(Fate::NONE.verdict(), None);
}

#[test]
fn packets_that_leave_otherwise_are_rerouted_and_those_that_expire_are_lost() {
    let out = |link: &str| Way {
        out: Some((link.into(), None)),
        ..to("10.244.1.9")
    };
    let fate = |ways: Vec<Way>| Fate { ways };
    let text = |is: &Way, should: &Way| {
        let [is, should] = [is, should].map(|way| fate(vec![way.clone()]));
        assert_ne!(is, should);
        is.text_beside(&should)
    };
    assert_eq!(
        text(&out("eth1"), &out("eth0")),
        "to 10.244.1.9:8080 by eth1"
    );
    let expires = Way {
        expires: true,
        ..out("eth0")
    };
    let lost = "to 10.244.1.9:8080, with a TTL that ends at the next node";
    assert_eq!(text(&expires, &out("eth0")), lost);
    let snat = |source: &str| Way {
        masquerade: true,
        source: Some(ip(source)),
        ..out("eth0")
    };
    let foreign = "to 10.244.1.9:8080, masqueraded as 192.0.2.1";
    assert_eq!(text(&snat("192.0.2.1"), &snat("10.0.2.15")), foreign);
}
