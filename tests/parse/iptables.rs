//! `iptables-save` output: every recording, spellings of other versions, and generated rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kpx_node::backend::iptables::model::*;
use kpx_node::backend::iptables::parse::{Saved, left_out, rule, ruleset};
use kpx_node::backend::iptables::print::WithoutCounters;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Cidr, Mark, PortRange, Proto};
use proptest::prelude::*;

use crate::support::{recorded, recordings};

const ITEMS: [Item; 2] = [Item::Iptables4, Item::Iptables6];

fn saves() -> impl Iterator<Item = (String, Item, String)> {
    recordings().into_iter().flat_map(|name| {
        ITEMS.into_iter().filter_map(move |item| {
            recorded(&name, item.file()).map(|text| (name.clone(), item, text))
        })
    })
}

#[test]
fn every_recording_is_printed_as_it_was_read() {
    let mut seen = 0;
    for (name, item, text) in saves() {
        let parsed = ruleset(item, &text).unwrap();
        let printed = parsed.to_string();
        let lines = || text.lines().filter(|line| !line.starts_with('#'));
        for (had, got) in lines().zip(printed.lines()) {
            assert_eq!(got, had, "{name} {item}");
        }
        assert_eq!(printed.lines().count(), lines().count(), "{name} {item}");
        let again = ruleset(item, &printed).unwrap();
        assert_eq!(again.tables, parsed.tables);
        let bare = WithoutCounters(&parsed).to_string();
        assert!(!bare.lines().any(|line| line.starts_with('[')));
        seen += 1;
    }
    assert!(seen >= 40, "only {seen} recorded rulesets");
}

#[test]
fn reading_chain_by_chain_gives_the_same_as_reading_all() {
    let agree = |item, text: &str| {
        let all = ruleset(item, text).unwrap();
        let saved = Saved::new(item, text).unwrap();
        for table in &all.tables {
            assert_eq!(saved.chain(&table.name, "none").unwrap(), None);
            for chain in &table.chains {
                let one = saved.chain(&table.name, &chain.name).unwrap();
                assert_eq!(one, Some(chain));
            }
        }
    };
    for (_, item, text) in saves() {
        agree(item, &text);
    }
    // No version saves chains like these: undeclared, with their rules apart, or quoted.
    agree(
        Item::Iptables4,
        "*nat\n-A A -j X\n# no end\n\n-A \"A\" -j Y\n:B - [1:2]\n[3:4] -A B -j X\n-A A -j Z\n -A A\nCOMMIT\n",
    );
}

#[test]
fn no_rule_of_kube_proxy_has_an_unknown_match_or_target() {
    for (name, item, text) in saves() {
        let parsed = ruleset(item, &text).unwrap();
        for chain in parsed.tables.iter().flat_map(|table| &table.chains) {
            for rule in &chain.rules {
                let unknown = rule.matches.iter().any(|m| matches!(m, Match::Unknown(_)));
                let other = matches!(rule.target, Some(Target::Other { .. }));
                assert!(!unknown && !other, "{name} {item}: {}{rule}", chain.name);
            }
        }
    }
}

#[test]
fn a_match_and_a_target_are_small() {
    // A large cluster has hundreds of thousands of matches.
    assert!(size_of::<Match<'_>>() <= 40, "{}", size_of::<Match<'_>>());
    assert!(size_of::<Target<'_>>() <= 56, "{}", size_of::<Target<'_>>());
}

#[test]
fn spellings_of_other_versions_mean_the_same() {
    for (one, other) in [
        ("-s ! 10.0.0.0/8 -j DROP", "! -s 10.0.0.0/8 -j DROP"),
        ("-i ! eth0 -j DROP", "! -i eth0 -j DROP"),
        ("-s 10.0.0.0/255.0.0.0", "-s 10.0.0.0/8"),
        ("-s 10.0.0.1", "-s 10.0.0.1/32"),
        ("-p 6 -j DROP", "-p tcp -j DROP"),
        ("-j \"DROP\"", "-j DROP"),
        ("-p icmpv6 -j DROP", "-p ipv6-icmp -j DROP"),
        (
            "-p tcp --dport 80 -j DROP",
            "-p tcp -m tcp --dport 80 -j DROP",
        ),
        ("-p tcp -m tcp --dport ! 80", "-p tcp -m tcp ! --dport 80"),
        ("-p tcp ! --dport 80", "-p tcp -m tcp ! --dport 80"),
        ("-m tcp --destination-port 80", "-m tcp --dport 80"),
        (
            "-p tcp --syn",
            "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN",
        ),
        (
            "-j MARK --set-mark 0x4000/0x4000",
            "-j MARK --set-xmark 0x4000/0x4000",
        ),
        (
            "-j MARK --or-mark 0x4000",
            "-j MARK --set-xmark 0x4000/0x4000",
        ),
        (
            "-j MARK --and-mark 0xfffffffe",
            "-j MARK --set-xmark 0x0/0x1",
        ),
        (
            "-j MARK --set-xmark 0x1",
            "-j MARK --set-xmark 0x1/0xffffffff",
        ),
        (
            "-m statistic --mode random --probability 0.33333333349",
            "-m statistic --mode random --probability 0.3333333335",
        ),
        ("-m set --set a src", "-m set --match-set a src"),
        (
            "-j DNAT --to-destination [fd00::1]-[fd00::2]:80",
            "-j DNAT --to-destination [fd00::1-fd00::2]:80",
        ),
        ("-m nfacct --nfacct-name x", "-m nfacct --nfacct-name  x"),
        (
            "-m comment --comment \"plain\"",
            "-m comment --comment plain",
        ),
        (
            "-j DROP -m comment --comment \"behind the target\"",
            "-m comment --comment \"behind the target\" -j DROP",
        ),
        ("-p all -j DROP", "-j DROP"),
    ] {
        let (read, same) = (rule(one).unwrap(), rule(other).unwrap());
        assert_eq!(read, same, "{one}");
        assert!(
            !read.matches.iter().any(|m| matches!(m, Match::Unknown(_))),
            "{one}"
        );
    }
}

#[test]
fn rules_of_other_software_are_printed_as_they_were_read() {
    // From Calico, Cilium, portmap, flannel, Docker, firewalld, kube-router and the AWS CNI.
    for text in [
        " -m comment --comment \"cali:abc_-1\" -m set --match-set cali40all-ipam-pools src -m set ! --match-set cali40masq dst -j MASQUERADE --random-fully",
        " -p tcp -m comment --comment \"cali:x\" -m multiport --dports 22,68,179,2379:2380 -g cali-to-x",
        " -i cali+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        " -m addrtype --dst-type LOCAL --limit-iface-in -j DROP",
        " -m addrtype ! --src-type LOCAL --limit-iface-out -j DROP",
        " -m rpfilter --validmark --invert -j DROP",
        " -m socket --transparent --nowildcard -j MARK --set-xmark 0x200/0xffffffff",
        " -p tcp -m mark --mark 0x3fd50200 -j TPROXY --on-port 54613 --on-ip 127.0.0.1 --tproxy-mark 0x200/0xffffffff",
        " -s 10.0.0.0/8 ! -d 224.0.0.0/4 -m comment --comment \"flanneld masq\" -j MASQUERADE --random-fully",
        " ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80",
        " -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
        " -p tcp -m tcp --sport 1:1023 ! --dport 80 ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP",
        " -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE",
        " -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80",
        " -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xff",
        " -m connmark ! --mark 0x1/0xf -j CONNMARK --set-xmark 0x2/0xf",
        " -j SNAT --to-source 10.0.0.1-10.0.0.9:1024-65535 --random-fully --persistent",
        " -p udp -j REDIRECT --to-ports 1053-1054 --random",
        " -p icmp -m icmp --icmp-type 8/0 -m limit --limit 10/sec --limit-burst 20 -j ACCEPT",
        " -p ipv6-icmp -m icmp6 ! --icmpv6-type 135 -j ACCEPT",
        " -m pkttype --pkt-type multicast -j DROP",
        " -m rt ! --rt-type 0 --rt-segsleft 1:4 -j DROP",
        " -m iprange ! --src-range 10.0.0.1-10.0.0.9 -j DROP",
        " -m owner --uid-owner 0 -j RETURN",
        " -m hashlimit --hashlimit-upto 5/sec --hashlimit-burst 5 --hashlimit-mode srcip --hashlimit-name x",
        " -m physdev --physdev-in veth+ ! --physdev-out veth0 ! --physdev-is-bridged -j ACCEPT",
        " -m recent --update --seconds 60 --reap --hitcount 3 --rttl --name SSH --mask 255.255.255.255 --rdest",
        " -m recent --rcheck --name SSH --mask \"no address\" --rsource",
        " -m statistic --mode nth --every 3 --packet 0 -j X",
        " -p esp -j ACCEPT",
        " -p 47 -j ACCEPT",
        " -j LOG --log-prefix \"a \\\"b\\\" -s c \" --log-level 4",
        " -m string --string \"-j DROP\" --algo bm --to 65535",
        " -f -j DROP",
        " ! -f -m bpf --bytecode \"4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0\" -j ACCEPT",
        " -m comment --comment -s -j X",
        " -m comment --comment \"it\\'s\"",
    ] {
        assert_eq!(rule(text).unwrap().to_string(), text);
    }
}

#[test]
fn an_unknown_match_is_kept_in_its_place() {
    let text = "-m made-up --dir in --pol ipsec -s 1.2.3.0/255.0.255.0 -m tcp --tcp-option 3 -j TOS --set-tos 0x10/0xff";
    let rule = rule(text).unwrap();
    let unknown = |text: &'static str| Match::Unknown(text.into());
    assert_eq!(
        rule.matches,
        [
            unknown("-m made-up --dir in --pol ipsec"),
            unknown("-s 1.2.3.0/255.0.255.0"),
            unknown("-m tcp --tcp-option 3"),
        ]
    );
    assert_eq!(
        rule.target,
        Some(Target::Other {
            name: "TOS".into(),
            options: "--set-tos 0x10/0xff".into()
        })
    );
}

#[test]
fn warnings_of_iptables_save_are_kept() {
    let text = "# Table `nat' is incompatible, use 'nft' tool.\n*filter\n:INPUT DROP [1:2]\nCOMMIT\n\
        # Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n";
    let parsed = ruleset(Item::Iptables4, text).unwrap();
    assert!(parsed.legacy_too);
    assert_eq!(left_out(text).collect::<Vec<_>>(), ["nat"]);
    let input = parsed.chain("filter", "INPUT").unwrap();
    assert_eq!(input.policy, Some(Policy::Drop));
    assert_eq!(input.counters.bytes, 2);
}

#[test]
fn an_error_names_the_broken_line() {
    for (text, want) in [
        (
            "*nat\n:A - [0:0]\n",
            "cut short: table nat has no COMMIT; collect it again",
        ),
        (
            "*nat\nnonsense\nCOMMIT\n",
            "line 2: expected a table, chain, rule or COMMIT, found \"nonsense\"",
        ),
        (":A - [0:0]\n", "line 1: a chain outside a table"),
        ("-A A -j B\n", "line 1: a rule outside a table"),
        (
            "*nat\n-A A -m comment --comment \"x\nCOMMIT\n",
            "line 2: rule of A: a quote is not closed",
        ),
        (
            "*nat\n-A A -j B -j C\nCOMMIT\n",
            "line 2: rule of A: more than one target",
        ),
        (
            "*nat\n-A A -j\nCOMMIT\n",
            "line 2: rule of A: -j without a target",
        ),
        (
            "*nat\n-A A -j B -m mark !\nCOMMIT\n",
            "line 2: rule of A: nothing follows the last !",
        ),
        (
            "*nat\n-A A word\nCOMMIT\n",
            "line 2: rule of A: \"word\" is not an option",
        ),
        (
            "*nat\n*filter\n",
            "line 2: table filter begins before COMMIT of nat",
        ),
        (
            "*nat\n:A - [x:0]\n",
            "line 2: chain A: \"[x:0]\" are not counters",
        ),
        (
            "*nat\nCOMMIT\n*nat\n:A - [0:0]\nCOMMIT\n",
            "line 3: table nat is listed twice",
        ),
        (
            "*nat\n:A\"B - [0:0]\nCOMMIT\n",
            "line 2: chain A\"B: a name has no quotes",
        ),
    ] {
        let want = Gap::Failed(Item::Iptables4, want.to_owned());
        assert_eq!(ruleset(Item::Iptables4, text).unwrap_err(), want);
        // When chains are read one by one, an error in a rule appears when its chain is read.
        let by_chain = Saved::new(Item::Iptables4, text)
            .and_then(|saved| saved.chain("nat", "A").map(Option::<&_>::cloned));
        assert_eq!(by_chain.unwrap_err(), want, "{text}");
    }
    assert!(ruleset(Item::Iptables4, "").unwrap().tables.is_empty());
}

#[test]
fn a_comment_may_end_with_an_exclamation_mark() {
    let text = " -m comment --comment ! -j ACCEPT";
    assert_eq!(rule(text).unwrap().matches.len(), 1);
    assert!(rule(" -j ACCEPT -m comment --comment !").is_ok());
}

#[test]
fn flags_of_which_none_is_looked_at_are_printed() {
    let text = " -p tcp -m tcp ! --tcp-flags NONE NONE";
    assert_eq!(rule(text).unwrap().to_string(), text);
}

#[test]
fn a_name_with_a_backslash_is_printed_as_it_was_declared() {
    let text = "*nat\n:A\\B - [0:0]\n[0:0] -A A\\B -j ACCEPT\nCOMMIT\n";
    let rules = ruleset(Item::Iptables4, text).unwrap();
    assert_eq!(rules.tables[0].chains[0].rules.len(), 1);
    assert_eq!(rules.to_string(), text);
}

#[test]
fn any_blank_separates_words() {
    let read = ruleset(Item::Iptables4, "*nat\n-A A\r-j\x0cDROP\nCOMMIT\n").unwrap();
    assert_eq!(read.to_string(), "*nat\n:A - [0:0]\n-A A -j DROP\nCOMMIT\n");
}

fn name() -> impl Strategy<Value = Text<'static>> {
    "[A-Za-z][A-Za-z0-9._-]{0,14}\\+?".prop_map(Text::Owned)
}

fn invertible<T: std::fmt::Debug>(
    of: impl Strategy<Value = T>,
) -> impl Strategy<Value = Invertible<T>> {
    (any::<bool>(), of).prop_map(|(inverted, value)| Invertible { inverted, value })
}

fn cidr() -> impl Strategy<Value = Cidr> {
    (any::<IpAddr>(), 0..=128_u8).prop_map(|(addr, prefix)| Cidr {
        addr,
        prefix: if addr.is_ipv4() { prefix % 33 } else { prefix },
    })
}

fn ports() -> impl Strategy<Value = PortRange> {
    (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange {
        first: a.min(b),
        last: a.max(b),
    })
}

fn mark() -> impl Strategy<Value = Mark> {
    (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Mark { value, mask })
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Source), Just(Side::Destination)]
}

/// Lists the variants of [`Match`]; the compiler asks for new ones.
macro_rules! variants {
    ($($variant:pat,)+) => {
        const VARIANTS: &[&str] = &[$(stringify!($variant),)+];

        /// Returns the name of a match's variant.
        fn variant(of: &Match<'_>) -> &'static str {
            match of {
                $($variant => stringify!($variant),)+
            }
        }
    };
}

// Each needs a strategy in `matches`.
variants! {
    Match::Source(_),
    Match::Destination(_),
    Match::In(_),
    Match::Out(_),
    Match::Protocol(_),
    Match::Ports { .. },
    Match::TcpFlags(_),
    Match::Multiport { .. },
    Match::Comment(_),
    Match::AddrType { .. },
    Match::State { .. },
    Match::Mark(_),
    Match::Connmark(_),
    Match::Random(_),
    Match::Nth { .. },
    Match::Set { .. },
    Match::Recent(_),
    Match::Physdev(_),
    Match::Nfacct(_),
    Match::Ipvs(_),
    Match::Icmp { .. },
    Match::Limit { .. },
    Match::IpRange(_),
    Match::Owner(_),
    Match::Rpfilter(_),
    Match::Socket(_),
    Match::PktType(_),
    Match::Conntrack(_),
    Match::Policy(_),
    Match::Rt(_),
    Match::Unknown(_),
}

/// Returns a strategy for each variant of [`Match`].
fn matches() -> Vec<BoxedStrategy<Match<'static>>> {
    let proto = || prop_oneof![Just(Proto::Tcp), Just(Proto::Udp), Just(Proto::Sctp)];
    let some_ports = || proptest::option::of(invertible(ports()));
    let flag = || proptest::option::of(invertible(Just(())));
    let link = || proptest::option::of(invertible(name()));
    let options = |option: &'static str| name().prop_map(move |to| format!("{option} {to}").into());
    vec![
        invertible(cidr()).prop_map(Match::Source).boxed(),
        invertible(cidr()).prop_map(Match::Destination).boxed(),
        invertible(name()).prop_map(Match::In).boxed(),
        invertible(name()).prop_map(Match::Out).boxed(),
        invertible((1..=255_u8).prop_map(Proto::from_number))
            .prop_map(Match::Protocol)
            .boxed(),
        (proto(), some_ports(), some_ports())
            .prop_map(|(proto, source, destination)| Match::Ports {
                proto,
                source,
                destination,
            })
            .boxed(),
        invertible((0..64_u8, 0..64_u8).prop_map(|(mask, set)| TcpFlags {
            mask: mask | 1,
            set,
        }))
        .prop_map(Match::TcpFlags)
        .boxed(),
        (side(), invertible(proptest::collection::vec(ports(), 1..5)))
            .prop_map(|(side, ports)| Match::Multiport { side, ports })
            .boxed(),
        "[^\\x00-\\x1f\\x7f\u{85}\u{2028}\u{2029}]{0,40}"
            .prop_map(|t| Match::Comment(t.into()))
            .boxed(),
        proptest::option::of(invertible((1..4096_u16).prop_map(AddrType)))
            .prop_map(|destination| Match::AddrType {
                source: None,
                destination,
                limit: Some(Direction::In),
            })
            .boxed(),
        (invertible((1..128_u8).prop_map(States)), any::<bool>())
            .prop_map(|(states, old)| Match::State { states, old })
            .boxed(),
        invertible(mark()).prop_map(Match::Mark).boxed(),
        invertible(mark()).prop_map(Match::Connmark).boxed(),
        invertible(0..=1_u32 << 31).prop_map(Match::Random).boxed(),
        (invertible(any::<u32>()), any::<u32>())
            .prop_map(|(every, packet)| Match::Nth { every, packet })
            .boxed(),
        (invertible(name()), proptest::collection::vec(side(), 1..=6))
            .prop_map(|(name, sides)| Match::Set {
                name,
                sides: Sides::new(&sides).unwrap(),
            })
            .boxed(),
        recent().boxed(),
        (link(), link(), flag(), flag(), flag())
            .prop_filter("looks at nothing", |(a, b, c, d, e)| {
                a.is_some() || b.is_some() || c.is_some() || d.is_some() || e.is_some()
            })
            .prop_map(|(input, output, is_in, is_out, is_bridged)| {
                Match::Physdev(Box::new(Physdev {
                    input,
                    output,
                    is_in,
                    is_out,
                    is_bridged,
                }))
            })
            .boxed(),
        name().prop_map(Match::Nfacct).boxed(),
        options("--vdir").prop_map(Match::Ipvs).boxed(),
        (any::<bool>(), invertible(name()))
            .prop_map(|(v6, kind)| Match::Icmp { v6, kind })
            .boxed(),
        (any::<bool>(), options("--limit"))
            .prop_map(|(hash, options)| Match::Limit { hash, options })
            .boxed(),
        (
            invertible(range()),
            proptest::option::of(invertible(range())),
        )
            .prop_map(|(source, destination)| {
                Match::IpRange(Box::new(IpRange {
                    source: Some(source),
                    destination,
                }))
            })
            .boxed(),
        options("--uid-owner").prop_map(Match::Owner).boxed(),
        Just(Match::Rpfilter("--validmark --invert".into())).boxed(),
        Just(Match::Socket("--transparent".into())).boxed(),
        invertible(name()).prop_map(Match::PktType).boxed(),
        options("--ctproto").prop_map(Match::Conntrack).boxed(),
        options("--pol").prop_map(Match::Policy).boxed(),
        options("--rt-type").prop_map(Match::Rt).boxed(),
        (name(), name())
            .prop_map(|(a, b)| Match::Unknown(format!("-m x{a} --y {b}").into()))
            .boxed(),
    ]
}

fn recent() -> impl Strategy<Value = Match<'static>> {
    let action = prop_oneof![
        Just(RecentAction::Set),
        Just(RecentAction::Check),
        Just(RecentAction::Update),
        Just(RecentAction::Remove),
    ];
    let number = || proptest::option::of(1..10_000_u32);
    (
        invertible(action),
        number(),
        number(),
        any::<bool>(),
        name(),
        side(),
    )
        .prop_map(|(action, seconds, hitcount, rttl, name, side)| {
            Match::Recent(Box::new(Recent {
                action,
                seconds,
                reap: false,
                hitcount,
                rttl,
                name,
                mask: Some([255, 255, 255, 255].into()),
                side,
            }))
        })
}

fn range() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    any::<(std::net::Ipv4Addr, std::net::Ipv4Addr)>()
        .prop_map(|(first, last)| (IpAddr::V4(first), IpAddr::V4(last)))
}

fn a_match() -> impl Strategy<Value = Match<'static>> {
    proptest::strategy::Union::new(matches())
}

#[test]
fn every_match_is_generated_and_read_as_it_was_printed() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut generated = BTreeSet::new();
    for strategy in matches() {
        let tree = strategy.new_tree(&mut runner).unwrap();
        let of = proptest::strategy::ValueTree::current(&tree);
        generated.insert(variant(&of));
        let text = Rule {
            matches: vec![of.clone()],
            ..Rule::default()
        }
        .to_string();
        let read = rule(text.trim_start()).unwrap();
        let reader = "parse/matches.rs does not read what print.rs prints";
        assert_eq!(read.matches, [of], "{reader}:{text}");
    }
    for name in VARIANTS {
        assert!(
            generated.contains(name),
            "{name} has no strategy: add one to `matches` in tests/parse/iptables.rs"
        );
    }
}

fn target() -> impl Strategy<Value = Target<'static>> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(random, random_fully, persistent)| NatFlags {
            random,
            random_fully,
            persistent,
        },
    );
    let addrs = prop_oneof![
        any::<(std::net::Ipv4Addr, std::net::Ipv4Addr)>()
            .prop_map(|(a, b)| (IpAddr::V4(a), IpAddr::V4(b))),
        any::<(std::net::Ipv6Addr, std::net::Ipv6Addr)>()
            .prop_map(|(a, b)| (IpAddr::V6(a), IpAddr::V6(b))),
    ];
    let nat = (
        proptest::option::of(addrs),
        proptest::option::of(ports()),
        flags,
    )
        .prop_filter("leads nowhere", |(addrs, ports, _)| {
            addrs.is_some() || ports.is_some()
        })
        .prop_map(|(addrs, ports, flags)| Nat {
            addrs,
            ports,
            flags,
        })
        .boxed();
    prop_oneof![
        name().prop_map(|n| Target::Jump(format!("C-{n}").into())),
        name().prop_map(Target::Goto),
        Just(Target::Accept),
        Just(Target::Return),
        proptest::option::of(name()).prop_map(|with| Target::Reject { with }),
        nat.clone().prop_map(Target::Dnat),
        nat.prop_map(Target::Snat),
        (proptest::option::of(ports()), any::<bool>()).prop_map(|(ports, random)| {
            Target::Masquerade {
                ports,
                random,
                random_fully: !random,
            }
        }),
        mark().prop_map(Target::Mark),
        name().prop_map(|n| Target::Other {
            name: "LOG".into(),
            options: format!("--log-prefix {n}").into()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_rule_reads_as_itself(
        matches in proptest::collection::vec(a_match(), 0..6),
        target in proptest::option::of(target()),
        counters in proptest::option::of(any::<(u64, u64)>()),
    ) {
        let counters = counters.map(|(packets, bytes)| Counters { packets, bytes });
        let rule = Rule { counters, matches, target };
        let chain = Chain { name: "C".into(), rules: vec![rule], ..Chain::default() };
        let table = Table::new("nat", vec![chain]);
        let text = table.to_string();
        let read = ruleset(Item::Iptables4, &text).unwrap();
        prop_assert_eq!(&read.tables, &[table]);
        prop_assert_eq!(read.to_string(), text);
    }
}
