//! Every packet: classes with the same fate, and differences between two states of a node.

mod difference;
mod stages;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use kpx_judge::bridge::{self, Lease};
use kpx_judge::plan::bridge_up;
use kpx_judge::proof::difference::{Difference, Grouping, Harm};
use kpx_judge::proof::{
    Comparison, Fate, Packets, Proved, around, in_mode, of_node, served_otherwise,
};
use kpx_judge::trace::region::{Field, Ranges};
use kpx_judge::trace::{Assumed, Carried, Entry, Flow, World};
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::{Element, Expr, Ruleset};
use kpx_node::backend::nftables::{parse, print};
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx_node::net::{Family, Proto};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;
use serde_json::{Value, json};

use crate::support::{kpx_on, root};

fn evidence(name: &str) -> Evidence {
    load(&root().join("testdata/nodes").join(name), ITEMS).unwrap()
}

fn mode(node: &NodeSnapshot<'_>) -> Mode {
    node.configured_mode().unwrap()
}

/// Fails for differences that a trace does not confirm.
fn confirmed(name: &str, packets: &Packets) {
    for proved in packets.differences.iter().chain(&packets.foreign) {
        let of = &proved.difference;
        assert!(proved.confirmed, "{name}: {:?} {}", of.witness, of.target);
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn healthy_nodes_treat_every_packet_as_expected() {
    packets_are_treated_as_expected(&[
        "seed-iptables",
        "seed-nftables",
        "seed-ipvs",
        "dual-nftables",
        "healthy-firewall",
        "leftover-nftables-to-ipvs",
    ]);
}

pub(crate) fn packets_are_treated_as_expected(names: &[&str]) {
    for name in names {
        let evidence = evidence(name);
        let node = NodeSnapshot::new(&evidence);
        let packets = of_node(&node, mode(&node), &Family::BOTH).unwrap();
        assert!(packets.classes > 100, "{name}: {}", packets.classes);
        let found = packets.differences.iter().chain(&packets.foreign);
        let found: Vec<_> = found
            .map(|proved| proved.difference.target.to_string())
            .collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn clients_that_affinity_remembers_are_no_difference() {
    let evidence = evidence("full-nftables");
    let node = NodeSnapshot::new(&evidence);
    let mut rules = node.nft().unwrap().clone();
    let sets = rules.tables.iter_mut().flat_map(|table| &mut table.sets);
    let mut sets = sets.filter(|set| set.name.starts_with("affinity-"));
    sets.next().unwrap().elements.push(Element {
        key: Expr::Word("10.244.1.99".to_owned()),
        value: None,
        comment: None,
        timeout: None,
        expires: None,
        conditions: Vec::new(),
    });
    let bound = NodeSnapshot::new(&evidence).with_nft(Ok(rules));
    let packets = of_node(&bound, Mode::Nftables, &Family::BOTH).unwrap();
    assert!(packets.differences.is_empty());
}

/// A node's flows: every kind of packet to the destinations that the rules name, and to others.
struct Flows {
    state: u64,
    sources: Vec<(Entry, Option<IpAddr>)>,
    destinations: Vec<IpAddr>,
    ports: Vec<u16>,
    marks: Vec<u32>,
}

impl Flows {
    fn new(node: &NodeSnapshot<'_>, marks: &[u32]) -> Self {
        let owners = Owners::new(node);
        let (mut destinations, mut ports) = (Vec::new(), vec![1, 22, 80, 10_256]);
        for port in owners.ports() {
            destinations.extend(port.addresses.iter().map(|(_, addr)| *addr));
            destinations.extend(port.endpoints.iter().map(|endpoint| endpoint.addr.ip()));
            ports.extend(port.port.into_iter().chain(port.node_port));
            ports.extend(port.endpoints.iter().map(|endpoint| endpoint.addr.port()));
        }
        let own = node.addresses().unwrap().all.iter().map(|at| at.addr.addr);
        destinations.extend(own);
        destinations.extend(
            ["127.0.0.5", "198.51.100.7", "10.96.3.3"].map(|ip| ip.parse::<IpAddr>().unwrap()),
        );
        destinations.retain(|addr| Family::of(*addr) == Family::V4);
        let here = |addr: &IpAddr| addr.to_string().starts_with("10.244.1.");
        let mut sources = vec![(Entry::Host, None)];
        for addr in &destinations {
            let own = node
                .addresses()
                .unwrap()
                .all
                .iter()
                .any(|at| at.addr.addr == *addr);
            if !own && !addr.is_loopback() {
                sources.push((
                    if here(addr) {
                        Entry::Pod
                    } else {
                        Entry::Outside
                    },
                    Some(*addr),
                ));
            }
        }
        sources.push((Entry::Outside, Some("198.18.0.1".parse().unwrap())));
        Self {
            state: 7,
            sources,
            destinations,
            ports,
            marks: marks.to_vec(),
        }
    }

    /// A pseudo-random number below `end` (xorshift).
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % end as u64).unwrap()
    }

    fn next(&mut self) -> Flow {
        let at = self.below(self.sources.len());
        let (entry, source) = self.sources[at];
        let at = self.below(self.destinations.len());
        let destination = self.destinations[at];
        let at = self.below(self.ports.len());
        let port = self.ports[at];
        let at = self.below(self.marks.len());
        let mark = self.marks[at];
        let protos = [Proto::Tcp, Proto::Tcp, Proto::Udp, Proto::Sctp, Proto::Icmp];
        let proto = protos[self.below(protos.len())];
        Flow {
            entry,
            source,
            destination,
            port,
            mark,
            carried: Carried::default(),
            proto,
            established: false,
        }
    }
}

fn is_in(packets: &Packets, flow: &Flow) -> bool {
    let mut found = packets.differences.iter();
    found.any(|proved| proved.difference.contains(flow))
}

/// Compares `is` with `should`, and random packets with what was found: each packet is in a difference exactly if its traces
/// differ. Returns whether there is a difference.
fn judged<'a>(
    name: &str,
    is: &'a NodeSnapshot<'a>,
    should: &'a NodeSnapshot<'a>,
    (flows, marks): (usize, &[u32]),
) -> bool {
    let owners = Owners::new(should);
    let comparison = Comparison::new(&owners, &[Family::V4], Grouping::Service);
    let packets = comparison.between(is, should).unwrap();
    confirmed(name, &packets);
    let worlds = (
        World::whole(is, Family::V4),
        World::whole(should, Family::V4),
    );
    let mut random = Flows::new(should, marks);
    for _ in 0..flows {
        let flow = random.next();
        // Pods have no loopback address of the node.
        if flow.entry == Entry::Pod && flow.destination.is_loopback() {
            continue;
        }
        let fates = [worlds.0.walk(&flow), worlds.1.walk(&flow)].map(|all| Fate::of(&all.unwrap()));
        assert_eq!(
            is_in(&packets, &flow),
            fates[0] != fates[1],
            "{name}: {flow:?}: {} {}",
            fates[0],
            fates[1]
        );
    }
    !packets.differences.is_empty()
}

/// Removes line `at` of those that `wanted` selects from an item.
fn without_line(
    evidence: &Evidence,
    item: Item,
    at: usize,
    wanted: &str,
) -> Option<(Evidence, String)> {
    let text = evidence.text(item).unwrap();
    let lines = text.split_inclusive('\n').enumerate();
    let (number, line) = lines.filter(|(_, line)| line.contains(wanted)).nth(at)?;
    let rest: String = text
        .split_inclusive('\n')
        .enumerate()
        .filter(|(n, _)| *n != number)
        .map(|(_, line)| line)
        .collect();
    let mut changed = evidence.clone();
    changed.insert(item, Ok(rest));
    Some((changed, line.trim().to_owned()))
}

/// Adds `rules` in front of those of `table`.
fn with_rules(evidence: &Evidence, table: &str, rules: &str) -> Evidence {
    let text = evidence.text(Item::Iptables4).unwrap();
    let head = format!("*{table}\n");
    let begin = text.find(&head).unwrap() + head.len();
    let chains = text[begin..].split_inclusive('\n');
    let chains = chains.take_while(|line| line.starts_with(':'));
    let at = begin + chains.map(str::len).sum::<usize>();
    let mut changed = evidence.clone();
    let changed_text = format!("{}{rules}\n{}", &text[..at], &text[at..]);
    changed.insert(Item::Iptables4, Ok(changed_text));
    changed
}

/// The marks of the packets that rules of others keep from Services of `evidence`.
fn kept(evidence: &Evidence) -> Vec<u128> {
    let node = NodeSnapshot::new(evidence);
    let packets = of_node(&node, Mode::Iptables, &[Family::V4]).unwrap();
    confirmed("marks", &packets);
    assert!(packets.differences.is_empty());
    let marks = ranges(&packets.foreign, Field::Mark);
    let marks: BTreeSet<_> = marks.flat_map(|(first, last)| first..=last).collect();
    marks.into_iter().collect()
}

/// The values of `field` in the classes of these differences.
fn ranges(found: &[Proved], field: Field) -> impl Iterator<Item = (u128, u128)> {
    let regions = found.iter().flat_map(|proved| &proved.difference.regions);
    regions.flat_map(move |(_, _, region)| region.of(field).ranges().to_vec())
}

#[test]
#[ignore = "takes long: make test-loops"]
fn packets_enter_with_the_marks_that_rules_look_for() {
    let whole = evidence("seed-iptables");
    let drop = "-A FORWARD -m mark --mark 0x10/0x30 -j DROP";
    let dropped = with_rules(&whole, "filter", drop);
    assert_eq!(kept(&dropped), [0x10]);
    // A rule that sets the mark decides which packets have it.
    let set = with_rules(
        &dropped,
        "mangle",
        "-A PREROUTING -s 10.244.0.0/16 -j MARK --set-xmark 0x10/0x10",
    );
    assert_eq!(kept(&set), [0]);
    // The kubelet's chain looks for a mark that only older rules of kube-proxy set.
    let kubelets =
        "-A FORWARD -j KUBE-FIREWALL\n-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP";
    assert_eq!(
        kept(&with_rules(&whole, "filter", kubelets)),
        [] as [u128; 0]
    );
    let cleared = with_rules(
        &dropped,
        "mangle",
        "-A PREROUTING -j MARK --set-xmark 0x0/0x10",
    );
    assert_eq!(kept(&cleared), [] as [u128; 0]);
    // Packets come in by the link of their return route on a node that is set up well.
    let strays = "-A PREROUTING -m rpfilter --invert -j DROP";
    let strays = kept(&with_rules(&whole, "mangle", strays));
    assert_eq!(strays, [] as [u128; 0]);
    // So does a rule that inverts its bits, or restores them from the connection.
    let of_pods = |target: &str| {
        let rule = format!("-A PREROUTING -s 10.244.0.0/16 -j {target}");
        kept(&with_rules(&dropped, "mangle", &rule))
    };
    assert_eq!(of_pods("MARK --set-xmark 0x10/0x0"), [0]);
    assert_eq!(
        of_pods("CONNMARK --restore-mark --nfmask 0x10 --ctmask 0x10"),
        [] as [u128; 0]
    );
    let any = "-A FORWARD -m mark ! --mark 0x0/0x30 -j DROP";
    assert_eq!(kept(&with_rules(&whole, "filter", any)), [0x30]);
    // A packet without a mark is the better example.
    let both = format!("{drop}\n-A FORWARD -s 10.244.0.0/16 -j DROP");
    let both = with_rules(&whole, "filter", &both);
    let found = of_node(&NodeSnapshot::new(&both), Mode::Iptables, &[Family::V4]).unwrap();
    let marks = found
        .foreign
        .iter()
        .map(|proved| proved.difference.witness.mark);
    assert_eq!(marks.collect::<BTreeSet<_>>(), BTreeSet::from([0]));
    // Routing rules of the family look for marks, too. kube-proxy itself marks packets that enter without one.
    let marked = with_rules(&whole, "filter", "-A FORWARD -m mark ! --mark 0x0 -j DROP");
    assert_eq!(kept(&marked), [0]);
    let rules = ["0x10", "0x20"].map(|mark| {
        json!([
            { "priority": 0, "src": "all", "table": "local" },
            { "priority": 9, "src": "all", "table": "main", "fwmark": mark },
            { "priority": 32766, "src": "all", "table": "main" },
        ])
    });
    let mut routed = marked;
    routed.insert(Item::Rules, Ok(rules.map(|rule| rule.to_string()).concat()));
    assert_eq!(kept(&routed), [0, 0x10]);

    let (is, should) = (NodeSnapshot::new(&dropped), NodeSnapshot::new(&whole));
    assert!(judged(drop, &should, &is, (2_000, &[0, 0x10])));

    // Marks next to each other, of which no other rule asks before.
    let drop = "-A PREROUTING -m mark --mark 0x1/0x3 -j DROP";
    let dropped = with_rules(&whole, "mangle", drop);
    let is = NodeSnapshot::new(&dropped);
    assert!(judged(drop, &should, &is, (1_000, &[0, 1])));
}

/// A packet of the node whose mark changes in OUTPUT is routed again (`ip_route_me_harder`), by its source this time.
#[test]
fn packets_that_have_the_mark_already_are_not_routed_again() {
    let mut whole = evidence("seed-iptables");
    let rules = r#"[{"priority":9,"src":"10.0.2.15","action":"blackhole"},{"priority":32766,"src":"all","table":"main"}]"#;
    whole.insert(Item::Rules, Ok(rules.to_owned()));
    let whole = with_rules(&whole, "filter", "-A FORWARD -m mark --mark 0x10 -j RETURN");
    let rule = "-A OUTPUT -j MARK --set-xmark 0x10/0xffffffff";
    let marked = with_rules(&whole, "mangle", rule);
    let (is, should) = (NodeSnapshot::new(&marked), NodeSnapshot::new(&whole));
    assert!(judged(rule, &is, &should, (2_000, &[0, 0x10])));
}

#[test]
#[ignore = "takes long: make test-loops"]
fn packets_enter_with_the_marks_that_rules_of_nftables_look_for() {
    let whole = evidence("seed-iptables");
    for (set, drop, marks) in [
        ("", "meta mark 0x10 drop", vec![0x10]),
        ("", "meta mark & 0x30 == 0x10 drop", vec![0x10]),
        ("", "meta mark { 0x10, 0x20 } drop", vec![0x10, 0x20]),
        (
            "",
            "meta mark vmap { 0x10 : drop, 0x20 : accept }",
            vec![0x10],
        ),
        ("", "tcp dport 80 drop", vec![0]),
        ("", "tcp dport vmap { 80 : drop }", vec![0]),
        // A rule that sets the mark decides which packets have it.
        ("meta mark set 0x10", "meta mark 0x10 drop", vec![0]),
        (
            "meta mark set meta mark | 0x10",
            "meta mark 0x10 drop",
            vec![0],
        ),
        (
            "meta mark set meta mark & 0x30 | 0x10",
            "meta mark 0x10 drop",
            vec![0],
        ),
        (
            "ip saddr 10.244.0.0/16 meta mark set ct mark",
            "meta mark 0x10 drop",
            vec![],
        ),
        (
            "meta mark set meta mark | 0x20",
            "meta mark 0x30 drop",
            vec![0x30],
        ),
        ("meta priority set 0x10", "meta mark 0x10 drop", vec![0x10]),
        (
            "meta mark set meta mark & 0xffffffdf",
            "meta mark 0x10 drop",
            vec![0x10],
        ),
        (
            "ip saddr 10.244.0.0/16 meta mark set meta mark & 0xffffffef",
            "meta mark & 0x10 == 0x10 drop",
            vec![],
        ),
        (
            "ip saddr 10.244.0.0/16 meta mark set ct mark & 0x20",
            "meta mark & 0x10 == 0x10 drop",
            vec![0x10],
        ),
        (
            "meta mark set meta mark & 0xffffffdf | 0x20",
            "meta mark & 0x10 == 0x10 drop",
            vec![0x10],
        ),
        (
            "meta mark set meta mark ^ 0x20",
            "meta mark & 0x10 == 0x10 drop",
            vec![0x10],
        ),
        (
            "ip saddr 10.244.0.0/16 meta mark set meta mark << 2",
            "meta mark & 0x10 == 0x10 drop",
            vec![],
        ),
        ("", "meta mark 0x10-0x1f drop", vec![0x10]),
        ("", "meta mark & 0x30 != 0x0 drop", vec![0x30]),
    ] {
        let chain = |hook: &str, rule: &str| {
            format!(
                "\tchain {hook} {{\n\t\ttype filter hook {hook} priority -150; policy accept;\n\t\t{rule}\n\t}}\n"
            )
        };
        let chains = [chain("prerouting", set), chain("forward", drop)].concat();
        let mut evidence = whole.clone();
        evidence.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
        evidence.insert(
            Item::NftText,
            Ok(format!("table inet vpn {{\n{chains}}}\n")),
        );
        assert_eq!(kept(&evidence), marks, "{set}; {drop}");
    }
}

/// Twenty rules, each of which may mark a packet or not, would be a million ways if equal ones were kept apart.
#[test]
fn ways_that_come_out_the_same_are_walked_once() {
    let whole = evidence("seed-iptables");
    let mark = "-A PREROUTING -m limit --limit 1/sec -j MARK --set-xmark 0x10/0x10\n";
    let limited = with_rules(&whole, "mangle", &mark.repeat(20));
    let drop = "-A FORWARD -m mark --mark 0x20/0x20 -j DROP";
    assert_eq!(kept(&with_rules(&limited, "filter", drop)), [0x20]);
}

/// Returns seed-iptables with `count` external IPs of a Service that its rules do not serve.
fn crowded(count: u32) -> Evidence {
    let mut evidence = evidence("seed-iptables");
    let services = evidence.text(Item::Services).unwrap();
    let mut services: Value = serde_json::from_str(services).unwrap();
    let items = services["items"].as_array_mut().unwrap();
    let nginx = items
        .iter_mut()
        .find(|service| service["metadata"]["name"] == "nginx-svc");
    let addresses = (0..count).map(|n| format!("203.0.{}.{}", n / 256, n % 256));
    nginx.unwrap()["spec"]["externalIPs"] = addresses.collect();
    evidence.insert(Item::Services, Ok(services.to_string()));
    evidence
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_packet_is_in_one_part_and_clients_have_no_address_of_the_node() {
    let evidence = crowded(600);
    let node = NodeSnapshot::new(&evidence);
    let packets = of_node(&node, Mode::Iptables, &[Family::V4]).unwrap();
    confirmed("parts", &packets);
    let [lost] = packets.differences.as_slice() else {
        panic!("{:?}", packets.differences);
    };
    let of = &lost.difference;
    assert_eq!(of.target.to_string(), "default/nginx-svc, external IP");
    let regions = of
        .regions
        .iter()
        .filter(|(entry, ..)| *entry == Entry::Host);
    let found = regions.flat_map(|(_, _, region)| region.of(Field::Destination).ranges());
    let found: u128 = found.map(|(first, last)| last - first + 1).sum();
    assert_eq!(found, 600);
    let own: IpAddr = "10.0.2.15".parse().unwrap();
    let sources = Ranges::of(ranges(&packets.differences, Field::Source).collect());
    assert!(!sources.has(own));
}

#[test]
fn packets_around_one_share_its_fate() {
    let evidence = evidence("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    let mut random = Flows::new(&node, &[0]);
    let flows: Vec<_> = (0..50).map(|_| random.next()).collect();
    let found = around(&node, Family::V4, &flows).unwrap();
    assert_eq!(found.len(), flows.len());
    let world = World::whole(&node, Family::V4);
    for (flow, (region, fate)) in flows.iter().zip(&found) {
        assert!(region.contains(flow), "{flow:?}");
        assert_eq!(*fate, Fate::of(&world.walk(flow).unwrap()), "{flow:?}");
    }
}

#[test]
fn packets_to_one_service_that_end_at_two_wrong_places_are_two_differences() {
    let whole = evidence("seed-iptables");
    let stolen =
        [("198.18.0.0/16", "10.9.9.1"), ("198.19.0.0/16", "10.9.9.2")].map(|(from, to)| {
            format!(
                "-A PREROUTING -s {from} -d 10.97.54.248/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination {to}"
            )
        });
    let stolen = with_rules(&whole, "nat", &stolen.join("\n"));
    let (is, should) = (NodeSnapshot::new(&stolen), NodeSnapshot::new(&whole));
    let owners = Owners::new(&should);
    let comparison = Comparison::new(&owners, &[Family::V4], Grouping::Service);
    let packets = comparison.between(&is, &should).unwrap();
    let misled = packets
        .differences
        .iter()
        .map(|difference| &difference.difference);
    let misled = misled.filter(|misled| misled.harm == Harm::Misled);
    let ends: Vec<_> = misled.map(|misled| misled.fates[0].to_string()).collect();
    for to in ["10.9.9.1", "10.9.9.2"] {
        let ends = ends.iter().filter(|end| end.contains(to));
        assert_eq!(ends.count(), 1, "{to}");
    }
}

#[test]
fn what_a_set_with_timeouts_has_is_left_open() {
    let mut evidence = evidence("seed-iptables");
    let sets = |timeout| {
        format!("create blocked hash:ip family inet hashsize 1024 maxelem 65536{timeout}\n")
    };
    let rule = "-A FORWARD -m set --match-set blocked src -j DROP";
    evidence = with_rules(&evidence, "filter", rule);
    evidence.insert(Item::Ipset, Ok(sets("")));
    assert_eq!(kept(&evidence), [] as [u128; 0]);
    evidence.insert(Item::Ipset, Ok(sets(" timeout 600")));
    let node = NodeSnapshot::new(&evidence);
    let packets = of_node(&node, Mode::Iptables, &[Family::V4]).unwrap();
    confirmed("sets", &packets);
    let of = &packets.foreign[0].difference;
    assert_eq!(of.harm, Harm::Unsure);
    let when = of.fates[0].ways.iter().flat_map(|way| &way.when);
    let when: Vec<_> = when.map(ToString::to_string).collect();
    assert!(
        when.iter()
            .any(|when| when.starts_with("set blocked has it at the time")),
        "{when:?}"
    );
}

/// Compares a node with itself without one rule, for every `step`th rule.
fn mutations(name: &str, item: Item, wanted: &str, step: usize, flows: usize) -> [usize; 2] {
    let whole = evidence(name);
    let mut counts = [0; 2];
    for at in (0..).step_by(step) {
        let Some((changed, line)) = without_line(&whole, item, at, wanted) else {
            break;
        };
        let (changed, node) = (NodeSnapshot::new(&changed), NodeSnapshot::new(&whole));
        let differs = judged(&line, &changed, &node, (flows, &[0]));
        counts[usize::from(differs)] += 1;
    }
    counts
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_rule_less_is_a_difference_exactly_if_a_packet_shows_it() {
    let counts = mutations("seed-iptables", Item::Iptables4, "-A KUBE", 9, 1_000);
    assert!(counts[0] > 0 && counts[1] > 5, "{counts:?}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_virtual_server_less_is_a_difference_exactly_if_a_packet_shows_it() {
    let counts = mutations("seed-ipvs", Item::IpvsSave, "-a ", 4, 1_000);
    assert!(counts[1] > 3, "{counts:?}");
}

/// The same for the rules and elements of nftables.
fn mutations_of_nftables(name: &str, step: usize, flows: usize) -> [usize; 2] {
    let evidence = evidence(name);
    let mut counts = [0; 2];
    for at in (0..).step_by(step) {
        let node = NodeSnapshot::new(&evidence);
        let mut rules = node.nft().unwrap().clone();
        let Some(what) = remove(&mut rules, at) else {
            break;
        };
        let changed = NodeSnapshot::new(&evidence).with_nft(Ok(rules));
        counts[usize::from(judged(&what, &changed, &node, (flows, &[0])))] += 1;
    }
    counts
}

/// Removes the rule or element at a position in the tables of IPv4.
fn remove(rules: &mut Ruleset, mut at: usize) -> Option<String> {
    for table in rules.tables.iter_mut().filter(|table| table.family == "ip") {
        for chain in &mut table.chains {
            if at < chain.rules.len() {
                chain.rules.remove(at);
                return Some(format!("rule {at} of {}", chain.name));
            }
            at -= chain.rules.len();
        }
        for set in &mut table.sets {
            if at < set.elements.len() {
                set.elements.remove(at);
                return Some(format!("element {at} of {}", set.name));
            }
            at -= set.elements.len();
        }
    }
    None
}

#[test]
#[ignore = "takes long: make test-loops"]
fn an_element_less_is_a_difference_exactly_if_a_packet_shows_it() {
    let counts = mutations_of_nftables("seed-nftables", 9, 1_000);
    assert!(counts[0] > 0 && counts[1] > 5, "{counts:?}");
}

#[test]
#[ignore = "takes minutes: `make test-loops`"]
fn long_every_rule_less_of_every_mode() {
    // Set when it is compiled, every rule is removed in turn.
    let step = |many| option_env!("KPX_EVERY").map_or(many, |_| 1);
    mutations("seed-iptables", Item::Iptables4, "-A KUBE", 3, 1_000);
    mutations("seed-ipvs", Item::IpvsSave, "-a ", 2, 1_000);
    mutations_of_nftables("seed-nftables", 3, 1_000);
    for (name, item, wanted, many) in [
        ("seed-iptables", Item::Iptables4, "-A ", 16),
        ("seed-ipvs", Item::IpvsSave, "-", 8),
        ("seed-ipvs", Item::Iptables4, "-A ", 16),
        ("seed-ipvs", Item::Ipset, "add ", 8),
    ] {
        let counts = mutations(name, item, wanted, step(many), 100_000);
        println!("{name}, {}: {counts:?}", item.file());
        assert!(counts[1] > 0, "{name}: {counts:?}");
    }
    let counts = mutations_of_nftables("seed-nftables", step(16), 100_000);
    println!("nftables: {counts:?}");
    assert!(counts[1] > 0, "{counts:?}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn modes_differ_in_what_upstream_documents() {
    let evidence = evidence("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    for mode in [Mode::Nftables, Mode::Ipvs] {
        let packets = in_mode(&node, mode, &Family::BOTH).unwrap();
        confirmed("seed-iptables", &packets);
        let then = Assumed::new(&node, mode).unwrap();
        let (then, now) = (then.snapshot(), NodeSnapshot::new(&evidence));
        assert!(judged(mode.name(), &then, &now, (3_000, &[0])), "{mode}");
        assert!(
            packets
                .differences
                .iter()
                .all(|difference| difference.uses.is_some()),
            "{mode}"
        );
        assert_eq!(packets.without_ranges, mode == Mode::Nftables, "{mode}");
    }
}

#[test]
fn connections_that_a_mode_would_treat_differently_are_counted() {
    let mut evidence = evidence("seed-iptables");
    let connections = [
        ("tcp 6", "127.0.0.1", "127.0.0.1", 31082),
        ("tcp 6", "127.0.0.9", "127.0.0.1", 30089),
        ("tcp 6", "10.0.2.15", "127.0.0.1", 31082),
        ("tcp 6", "10.244.2.3", "10.96.0.10", 53),
        ("udp 17", "10.244.2.3", "10.96.0.10", 53),
        ("udp 17", "10.244.1.14", "10.96.0.10", 53),
        ("udp 17", "10.0.2.15", "10.96.0.10", 53),
        ("tcp 6", "10.244.1.14", "10.96.0.10", 54),
    ];
    let connections = connections.map(|(proto, from, to, port)| {
        format!("{proto} 60 src={from} dst={to} sport=40000 dport={port} src={to} dst={from} sport={port} dport=40000 mark=0 use=1\n")
    });
    evidence.insert(Item::Conntrack, Ok(connections.concat()));
    let node = NodeSnapshot::new(&evidence);
    let packets = in_mode(&node, Mode::Nftables, &[Family::V4]).unwrap();
    let uses = packets.differences.iter().map(|difference| {
        let Difference { harm, entries, .. } = &difference.difference;
        (*harm, entries.contains(&Entry::Host), difference.uses)
    });
    assert_eq!(
        uses.collect::<Vec<_>>(),
        [
            (Harm::Lost, false, Some(0)),
            (Harm::Lost, true, Some(3)),
            (Harm::Source, false, Some(2)),
            (Harm::Ends, true, Some(0)),
            (Harm::Ends, true, Some(1)),
        ]
    );
}

#[test]
#[ignore = "takes long: make test-loops"]
fn the_bridge_sends_every_packet_to_a_service_where_its_mode_would() {
    bridges_send_packets_alike(&["seed-iptables", "dual-nftables", "seed-ipvs"]);
}

pub(crate) fn bridges_send_packets_alike(names: &[&str]) {
    for name in names {
        let evidence = evidence(name);
        let node = NodeSnapshot::new(&evidence);
        for mode in [Mode::Iptables, Mode::Nftables] {
            let desired = node.desired(mode).unwrap();
            let marks = bridge::marks(&node, desired).unwrap();
            let lease = Lease::of(Duration::from_secs(60));
            let tables = bridge::tables(desired, &Family::BOTH, marks, &lease).unwrap();
            let found = served_otherwise(&node, tables.clone(), mode, &Family::BOTH).unwrap();
            assert_eq!(found, None, "{name} {mode}");
            // A bridge without one of its elements does not.
            let mut broken = tables;
            let map = broken[0].sets.iter_mut().filter(|set| set.data.is_some());
            let map = map.max_by_key(|map| map.elements.len()).unwrap();
            map.elements.remove(0);
            let found = served_otherwise(&node, broken, mode, &Family::BOTH).unwrap();
            assert!(found.is_some(), "{name} {mode}");
        }
    }
}

#[test]
fn node_ports_at_loopback_addresses_are_no_reason_against_a_bridge() {
    let evidence = evidence("seed-iptables");
    let node = NodeSnapshot::new(&evidence);
    let desired = node.desired(Mode::Iptables).unwrap();
    let marks = bridge::marks(&node, desired).unwrap();
    let lease = Lease::of(Duration::from_secs(60));
    let tables = bridge::tables(desired, &[Family::V4], marks, &lease).unwrap();
    for (addresses, serves) in [("127.0.0.0/8", true), ("10.0.2.15", false)] {
        let text = print::block(&tables[0]);
        let others = format!("fib daddr type local ip daddr != {addresses}");
        let text = text.replace("fib daddr type local meta", &format!("{others} meta"));
        assert!(text.contains(&others), "{text}");
        let tables = parse::text(&text).unwrap().tables;
        let found = served_otherwise(&node, tables, Mode::Iptables, &[Family::V4]).unwrap();
        assert_eq!(found.is_none(), serves, "{addresses}: {found:?}");
    }
}

#[test]
fn the_bridge_of_mode_ipvs_serves_node_ports_at_every_address() {
    for name in ["seed-ipvs", "full-ipvs", "dual-ipvs"] {
        let mut evidence = evidence(name);
        // Mode nftables would serve NodePorts at the primary addresses alone.
        let mut links: Value =
            serde_json::from_str(evidence.text(Item::Addresses).unwrap()).unwrap();
        let of_lo = links[0]["addr_info"].as_array_mut().unwrap();
        of_lo.push(json!({
            "family": "inet", "local": "10.244.1.129", "prefixlen": 25, "scope": "global", "label": "lo",
        }));
        evidence.insert(Item::Addresses, Ok(links.to_string()));
        let node = NodeSnapshot::new(&evidence);
        let lease = Lease::of(Duration::from_secs(60));
        let plan = bridge_up(&node, Mode::Ipvs, &Family::BOTH, &lease).unwrap();
        assert!(!plan.steps.is_empty(), "{name}");
        let unproved = plan
            .notes
            .iter()
            .find(|note| note.starts_with("not proved"));
        assert_eq!(unproved, None, "{name}");
    }
}

#[tokio::test]
async fn snapshots_of_packets() {
    let mut all = String::new();
    for (name, more) in [
        ("seed-iptables", &[][..]),
        ("seed-iptables", &["--mode", "nftables"]),
        ("seed-nftables", &["--mode", "iptables"]),
        ("seed-ipvs", &["--mode", "nftables"]),
        ("ir16-foreign-drops", &[]),
        ("leftover-ipvs-to-nftables", &[]),
        ("cn04-cilium", &["--mode", "iptables"]),
    ] {
        let mut args = vec!["diff", "--packets"];
        args.extend(more);
        let ran = kpx_on(name, &args).await;
        let more = more.join(" ");
        writeln!(all, "$ kpx --from {name} diff --packets {more}\n{ran}").unwrap();
    }
    insta::assert_snapshot!(all);
}
