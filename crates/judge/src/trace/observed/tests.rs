//! A connection of the node to a Service, 10.96.0.10:80, whose endpoint is 10.244.1.5:8080.

use super::*;
use crate::trace::packet::{AsSent, Carried, Link};
use kpx_node::evidence::traced::Base;

const OWN: &str = "kpx-trace";
const CLIENT: &str = "10.0.0.1:4000";
const SERVICE: &str = "10.96.0.10:80";
const ENDPOINT: &str = "10.244.1.5:8080";

fn chain(family: &'static str, table: &str, chain: &str) -> ChainName {
    ChainName {
        family,
        table: table.to_owned(),
        chain: chain.to_owned(),
    }
}

fn own(name: &str) -> ChainName {
    chain("inet", OWN, name)
}

fn nat(name: &str) -> ChainName {
    chain("ip", "nat", name)
}

fn headers(source: &str, destination: &str) -> Headers {
    Headers {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

fn event(packet: u32, chain: ChainName, about: About, verdict: Ruling) -> Event {
    Event {
        packet,
        chain,
        about,
        verdict,
        headers: None,
        input: None,
        output: None,
    }
}

/// A message with the packet's addresses.
fn seen(packet: u32, name: &str, about: About, (source, destination): (&str, &str)) -> Event {
    Event {
        headers: Some(headers(source, destination)),
        ..event(packet, own(name), about, Ruling::Continue)
    }
}

/// kpx's own rules choose the packet, and find its connection to be new.
fn chosen(packet: u32, source: &str) -> [Event; 2] {
    ["from-host", "state-from-host"]
        .map(|name| seen(packet, name, About::Rule(1), (source, SERVICE)))
}

/// The rules that lead to the endpoint.
fn translated(packet: u32) -> [Event; 4] {
    let jump = Ruling::Jump("KUBE-SERVICES".to_owned());
    let goto = Ruling::Goto("KUBE-SVC-A".to_owned());
    [
        event(packet, nat("OUTPUT"), About::Rule(10), jump),
        event(packet, nat("KUBE-SERVICES"), About::Rule(21), goto),
        event(packet, nat("KUBE-SVC-A"), About::Rule(30), Ruling::Accept),
        event(
            packet,
            chain("ip", "filter", "OUTPUT"),
            About::Policy,
            Ruling::Accept,
        ),
    ]
}

fn left(packet: u32, output: u32) -> Event {
    Event {
        output: Some(output),
        ..seen(packet, "left", About::Policy, (CLIENT, ENDPOINT))
    }
}

fn traced(events: impl IntoIterator<Item = Event>) -> Traced {
    let base = |hook, priority| Some(Base { hook, priority });
    let bases = OWN_CHAINS.map(|own_chain| {
        (
            own(own_chain.name),
            base(own_chain.hook, own_chain.priority),
        )
    });
    let others = [
        (chain("ip", "raw", "OUTPUT"), base(3, -300)),
        (nat("PREROUTING"), base(0, -100)),
        (nat("OUTPUT"), base(3, -100)),
        (chain("ip", "filter", "OUTPUT"), base(3, 0)),
        (nat("KUBE-SERVICES"), None),
        (nat("KUBE-SVC-A"), None),
    ];
    Traced {
        own: OWN.to_owned(),
        events: events.into_iter().collect(),
        chains: bases.into_iter().chain(others).collect(),
        rules: [
            (nat("OUTPUT"), vec![10]),
            (nat("KUBE-SERVICES"), vec![20, 21]),
            (nat("KUBE-SVC-A"), vec![30]),
        ]
        .into(),
        ..Traced::default()
    }
}

/// The whole path, out by link 3.
fn delivered() -> Traced {
    let path = chosen(7, CLIENT).into_iter().chain(translated(7));
    traced(path.chain([left(7, 3)]))
}

fn hop(chain: &str, number: usize, effect: Effect) -> Hop {
    Hop {
        table: "nat".to_owned(),
        chain: chain.to_owned(),
        number,
        ..Hop::without_rule(Hook::Output, Subsystem::Iptables, effect)
    }
}

/// The hops of the same path as predicted: jump, goto, DNAT, and the route.
fn predicted() -> Vec<Hop> {
    let jump = Effect::Jump {
        to: "KUBE-SERVICES".to_owned(),
    };
    let goto = Effect::Goto {
        to: "KUBE-SVC-A".to_owned(),
    };
    let dnat = Effect::Dnat {
        address: [10, 244, 1, 5].into(),
        port: 8080,
    };
    let out = Effect::Out {
        device: None,
        gateway: None,
    };
    vec![
        hop("OUTPUT", 1, jump),
        hop("KUBE-SERVICES", 2, goto),
        hop("KUBE-SVC-A", 1, dnat),
        Hop::without_rule(Hook::Output, Subsystem::Routing, out),
    ]
}

fn outcome(verdict: Verdict, destination: &str, hops: Vec<Hop>) -> Outcome {
    let to: SocketAddr = destination.parse().unwrap();
    let from = CLIENT.parse::<SocketAddr>().unwrap().ip();
    Outcome {
        verdict,
        probability: 1.0,
        destination: (to.ip(), to.port()),
        masquerade: false,
        sticky: false,
        sent_from: from,
        source: from,
        as_sent: AsSent {
            destination: false,
            port: false,
            source: true,
        },
        when: Vec::new(),
        reason: String::new(),
        hops: hops.into_iter().map(Rc::new).collect(),
        output: Link::None,
        gateway: None,
        bridged: false,
        ttl: 64,
        carried: Carried::default(),
    }
}

fn means(traced: &Traced) -> Means<'_> {
    Means {
        traced,
        numbered: true,
        from_the_beginning: true,
        nft_is_other: false,
    }
}

/// The lines of a comparison: the kind, the chain and the number of each.
fn shown(compared: &Comparison) -> Vec<String> {
    let lines = compared.lines.iter().map(|line| match line {
        Line::Both(hop) => format!("both {} {}", hop.chain, hop.number),
        Line::Predicted(hop) => format!("predicted {} {}", hop.chain, hop.number),
        Line::Untraced(hop) => format!("untraced {} {}", hop.chain, hop.number),
        Line::Observed(step) => format!("observed {} {:?}", step.chain, step.number),
    });
    lines.collect()
}

fn compared(traced: &Traced, hops: Vec<Hop>) -> Comparison {
    let packet = observed(traced).unwrap();
    let outcomes = [outcome(Verdict::Deliver, ENDPOINT, hops)];
    compare(&outcomes, &packet, &means(traced)).unwrap()
}

#[test]
fn a_packet_is_followed_to_the_link_it_leaves_by() {
    let other = event(8, nat("OUTPUT"), About::Rule(10), Ruling::Drop);
    let path = chosen(7, CLIENT).into_iter().chain([other]);
    let end = event(7, nat("KUBE-SERVICES"), About::End, Ruling::Continue);
    let policy = seen(7, "state-from-host", About::Policy, (CLIENT, SERVICE));
    let path = path.chain([policy]).chain(translated(7));
    let mut traced = traced(path.chain([end, left(7, 3)]));
    traced.rules.remove(&nat("KUBE-SVC-A"));
    let packet = observed(&traced).unwrap();
    assert_eq!(packet.entry, Hook::Output);
    assert_eq!(packet.sent, headers(CLIENT, SERVICE));
    assert_eq!(packet.end, End::Left(headers(CLIENT, ENDPOINT), Some(3)));
    let last = (CLIENT.parse().unwrap(), ENDPOINT.parse().unwrap());
    assert_eq!(packet.last(), Some(last));
    let steps = packet.steps.iter();
    let steps: Vec<_> = steps
        .map(|step| (step.hook, &*step.table, &*step.chain, step.number))
        .collect();
    assert_eq!(
        steps,
        [
            (Hook::Output, "ip nat", "OUTPUT", Some(1)),
            (Hook::Output, "ip nat", "KUBE-SERVICES", Some(2)),
            // kpx asked after the rule was deleted.
            (Hook::Output, "ip nat", "KUBE-SVC-A", None),
            (Hook::Output, "ip filter", "OUTPUT", Some(0)),
        ]
    );
}

#[test]
fn a_packet_of_a_connection_in_another_state_is_passed_over() {
    let [first, _] = chosen(6, "10.0.0.1:3999");
    let not_new = seen(
        6,
        "state-from-host",
        About::Policy,
        ("10.0.0.1:3999", SERVICE),
    );
    let established = [first, not_new];
    assert_eq!(observed(&traced(established.clone())), None);
    let path = established.into_iter().chain(chosen(7, CLIENT));
    let packet = observed(&traced(path.chain([left(7, 3)]))).unwrap();
    assert_eq!(packet.sent.source, CLIENT.parse().unwrap());
}

/// Rules of the hook run before the kernel knows the connection.
#[test]
fn steps_before_the_state_of_the_connection_is_known_belong_to_the_path() {
    let [first, state] = chosen(7, CLIENT);
    let raw = event(
        7,
        chain("ip", "raw", "OUTPUT"),
        About::Policy,
        Ruling::Accept,
    );
    let [end, known] = ["from-host", "state-from-host"]
        .map(|name| seen(7, name, About::Policy, (CLIENT, SERVICE)));
    let packet = observed(&traced([first, end, raw, state, known, left(7, 3)])).unwrap();
    let tables: Vec<_> = packet.steps.iter().map(|step| &*step.table).collect();
    assert_eq!(tables, ["ip raw"]);
    // A packet begins where kpx chooses it.
    let end = seen(7, "left", About::Rule(1), (CLIENT, ENDPOINT));
    assert_eq!(observed(&traced([end])), None);
}

#[test]
fn hooks_have_the_numbers_of_the_kernel() {
    let hooks = [
        Hook::Prerouting,
        Hook::Input,
        Hook::Forward,
        Hook::Output,
        Hook::Postrouting,
    ];
    assert_eq!([0, 1, 2, 3, 4].map(hook), hooks.map(Some));
    assert_eq!(hook(5), None);
}

#[test]
fn nothing_follows_a_drop() {
    let drop = event(7, nat("KUBE-SVC-A"), About::Rule(30), Ruling::Drop);
    let path = chosen(7, CLIENT).into_iter().chain([drop, left(7, 3)]);
    let packet = observed(&traced(path)).unwrap();
    assert_eq!(packet.end, End::Dropped);
    assert_eq!(packet.last(), None);
    assert_eq!(packet.steps.len(), 1);
}

/// Through `lo`, it comes in again with another number.
#[test]
fn a_packet_is_followed_through_lo_but_no_other_one_is() {
    let again = |packet, source| Event {
        input: Some(LO),
        ..seen(packet, "arrived", About::Policy, (source, ENDPOINT))
    };
    let path = chosen(7, CLIENT).into_iter().chain([left(7, LO)]);
    let through = path.clone().chain([again(9, CLIENT)]);
    let packet = observed(&traced(through)).unwrap();
    assert_eq!(packet.end, End::Arrived(headers(CLIENT, ENDPOINT)));
    let other = path.chain([again(9, "10.0.0.1:4001")]);
    let packet = observed(&traced(other)).unwrap();
    assert_eq!(packet.end, End::Left(headers(CLIENT, ENDPOINT), Some(LO)));
}

/// Legacy tables are not traced: the packet is noticed again when it leaves, with another number and source.
#[test]
fn a_packet_whose_source_changed_is_followed_to_its_destination_alone() {
    const NODE: &str = "10.0.0.2:4000";
    let leaves = |destination| {
        let left = seen(9, "left", About::Policy, (NODE, destination));
        let path = chosen(7, CLIENT).into_iter().chain([left]);
        observed(&traced(path)).unwrap().end
    };
    assert_eq!(leaves(SERVICE), End::Left(headers(NODE, SERVICE), None));
    assert_eq!(leaves(ENDPOINT), End::Vanished);
}

#[test]
fn another_packet_of_the_same_client_is_not_followed() {
    let enters = Event {
        input: Some(3),
        ..seen(9, "from-links", About::Rule(1), (CLIENT, SERVICE))
    };
    let drop = event(9, nat("OUTPUT"), About::Rule(10), Ruling::Drop);
    let path = chosen(7, CLIENT).into_iter().chain([enters, drop]);
    let packet = observed(&traced(path)).unwrap();
    assert_eq!((packet.end, packet.steps.len()), (End::Vanished, 0));
    // The kernel uses a number again.
    let again = chosen(7, "10.0.0.1:4001").into_iter().chain([left(7, 3)]);
    let path = chosen(7, CLIENT).into_iter().chain(again);
    let packet = observed(&traced(path)).unwrap();
    assert_eq!(packet.end, End::Vanished);
}

#[test]
fn the_rest_of_a_path_is_waited_for() {
    let chosen = || chosen(7, CLIENT).into_iter();
    let complete = |traced: &Traced, millis| is_complete(traced, Duration::from_millis(millis));
    for (traced, patience) in [
        (delivered(), 60),
        (traced(chosen().chain([left(7, LO)])), 600),
        (traced(chosen()), 600),
    ] {
        assert!(!complete(&traced, patience - 1));
        assert!(complete(&traced, patience));
    }
    assert!(!complete(&traced([]), 1_000));
}

#[test]
fn a_path_as_predicted_agrees() {
    let traced = delivered();
    let compared = compared(&traced, predicted());
    assert!(compared.agrees());
    assert_eq!(
        shown(&compared),
        [
            "both OUTPUT 1",
            "both KUBE-SERVICES 2",
            "both KUBE-SVC-A 1",
            "untraced  0",
        ]
    );
}

#[test]
fn differences_stand_where_they_happen() {
    let traced = delivered();
    let mut hops = predicted();
    hops[1].number = 1;
    let other = compared(&traced, hops);
    assert!(!other.agrees() && other.ends_alike);
    assert_eq!(other.first_difference(), Some(1));
    assert_eq!(
        shown(&other)[..4],
        [
            "both OUTPUT 1",
            "observed KUBE-SERVICES Some(2)",
            "predicted KUBE-SERVICES 1",
            "both KUBE-SVC-A 1",
        ]
    );
    let mut hops = predicted();
    hops.remove(2);
    let missing = compared(&traced, hops);
    assert_eq!(shown(&missing)[3..], ["observed KUBE-SVC-A Some(1)"]);

    // Rules that kube-proxy would write have no numbers.
    let mut hops = predicted();
    hops[1].number = 1;
    let packet = observed(&traced).unwrap();
    let means = Means {
        numbered: false,
        ..means(&traced)
    };
    let outcomes = [outcome(Verdict::Deliver, ENDPOINT, hops)];
    assert!(compare(&outcomes, &packet, &means).unwrap().agrees());
}

#[test]
fn the_outcome_that_fits_best_is_compared() {
    let traced = delivered();
    let packet = observed(&traced).unwrap();
    let end = |verdict, to| outcome(verdict, to, predicted());
    let alike = |outcome| {
        let compared = compare(&[outcome], &packet, &means(&traced));
        compared.unwrap().ends_alike
    };
    assert!(alike(end(Verdict::Deliver, ENDPOINT)));
    assert!(alike(end(Verdict::Unmatched, ENDPOINT)));
    assert!(!alike(end(Verdict::Deliver, "10.244.1.5:8081")));
    assert!(!alike(end(Verdict::Deliver, "10.244.1.6:8080")));
    assert!(!alike(end(Verdict::Local, ENDPOINT)));
    assert!(!alike(end(Verdict::Drop, ENDPOINT)));
    let mut masqueraded = end(Verdict::Deliver, ENDPOINT);
    masqueraded.source = [10, 0, 0, 2].into();
    assert!(!alike(masqueraded));
    let mut chosen = end(Verdict::Deliver, "10.244.1.1:8080");
    chosen.when = vec![Assumption::Address {
        chosen: [10, 244, 1, 1].into(),
        first: [10, 244, 1, 1].into(),
        last: [10, 244, 1, 9].into(),
    }];
    assert!(alike(chosen));
    for (verdict, end, expected) in [
        (Verdict::Drop, End::Dropped, true),
        (Verdict::Reject, End::Vanished, true),
        (Verdict::Deliver, End::Dropped, false),
    ] {
        let packet = Observed {
            end,
            ..packet.clone()
        };
        let outcome = outcome(verdict, ENDPOINT, predicted());
        let compared = compare(&[outcome], &packet, &means(&traced)).unwrap();
        assert_eq!(compared.ends_alike, expected, "{verdict:?} {end:?}");
    }

    let mut hops = predicted();
    hops.remove(0);
    let outcomes = [
        outcome(Verdict::Deliver, "10.244.1.6:8080", predicted()),
        outcome(Verdict::Deliver, ENDPOINT, predicted()),
        outcome(Verdict::Deliver, ENDPOINT, hops),
    ];
    let compared = compare(&outcomes, &packet, &means(&traced)).unwrap();
    assert_eq!(compared.outcome, 1);
}

/// The kernel traces the legacy back end only if its log can be read.
#[test]
fn rules_of_the_legacy_back_end_are_compared_if_they_were_traced() {
    let legacy = |of: Traced| {
        let rename = |name: ChainName| match &*name.table {
            OWN => name,
            _ => ChainName {
                family: LEGACY,
                ..name
            },
        };
        let events = of.events.into_iter().map(|event| Event {
            chain: rename(event.chain),
            ..event
        });
        Traced {
            events: events.collect(),
            chains: of.chains.into_iter().map(|(k, v)| (rename(k), v)).collect(),
            rules: of.rules.into_iter().map(|(k, v)| (rename(k), v)).collect(),
            ..of
        }
    };
    let mut traced = legacy(delivered());
    traced.legacy = InLegacy::Traced;
    assert!(compared(&traced, predicted()).agrees());

    traced.legacy = InLegacy::NoTables;
    traced.events.retain(|event| event.chain.table == OWN);
    let compared = compared(&traced, predicted());
    assert!(compared.agrees());
    assert!(
        shown(&compared)
            .iter()
            .all(|line| line.starts_with("untraced"))
    );
}

/// The nft back end may have built-in chains of its own.
#[test]
fn rules_of_the_legacy_back_end_are_those_whose_chains_nft_does_not_have() {
    let mut traced = delivered();
    traced.events.retain(|event| event.chain.table == OWN);
    let is_builtin = |name: &ChainName| !name.chain.starts_with("KUBE-");
    traced.chains.retain(|name, _| is_builtin(name));
    assert!(compared(&traced, predicted()).agrees());
}

#[test]
fn as_many_steps_as_possible_are_common() {
    let step = |name: char| Step {
        hook: Hook::Output,
        table: String::new(),
        chain: name.to_string(),
        number: None,
        ruling: Ruling::Accept,
    };
    let key = |name: char| Key::of(&step(name), true);
    for (predicted, observed, expected) in [
        ("a", "xa", &[Some(1)][..]),
        ("xab", "abx", &[None, Some(0), Some(1)]),
        ("xya", "aaaxy", &[Some(3), Some(4), None]),
        ("xzab", "abx", &[None, None, Some(0), Some(1)]),
        ("aaba", "ba", &[None, None, Some(0), Some(1)]),
    ] {
        let predicted: Vec<_> = predicted.chars().map(key).collect();
        let steps: Vec<_> = observed.chars().map(step).collect();
        let seen: Vec<_> = observed.chars().map(key).zip(&steps).collect();
        assert_eq!(common(&predicted, &seen), expected, "{observed}");
    }
}

/// Rules before connection tracking are passed before the kernel knows whether the packet is wanted.
#[test]
fn steps_before_connection_tracking_are_untraced() {
    let traced = delivered();
    let mut hops = predicted();
    let mut raw = hop("OUTPUT", 1, Effect::Untrack);
    raw.table = "raw".to_owned();
    hops.insert(0, raw);
    let packet = observed(&traced).unwrap();
    let outcomes = [outcome(Verdict::Deliver, ENDPOINT, hops)];
    let compared = |from_the_beginning| {
        let means = Means {
            from_the_beginning,
            ..means(&traced)
        };
        compare(&outcomes, &packet, &means).unwrap()
    };
    assert_eq!(compared(true).first_difference(), Some(0));
    let late = compared(false);
    assert!(late.agrees());
    assert_eq!(shown(&late)[..2], ["untraced OUTPUT 1", "both OUTPUT 1"]);
    // The first rule behind it is in a table with one built-in chain.
    let mut filter = hop("OUTPUT", 1, Effect::Accept);
    filter.table = "filter".to_owned();
    let outcomes = [outcome(Verdict::Deliver, ENDPOINT, vec![filter])];
    let means = Means {
        from_the_beginning: false,
        ..means(&traced)
    };
    let compared = compare(&outcomes, &packet, &means).unwrap();
    assert!(shown(&compared).contains(&"predicted OUTPUT 1".to_owned()));
}

/// The kernel has one message for a rule, whatever it does.
#[test]
fn effects_of_one_rule_are_one_step() {
    let traced = delivered();
    let mut hops = predicted();
    let mark = Effect::Mark {
        from: 0,
        to: 0x4000,
    };
    hops.insert(2, hop("KUBE-SVC-A", 1, mark));
    let compared = compared(&traced, hops);
    assert!(compared.agrees());
    assert_eq!(shown(&compared)[2..4], ["both KUBE-SVC-A 1"; 2]);
}
