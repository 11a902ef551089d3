//! Every object of a recorded node, removed, added, changed or moved, one at a time: the change names it.

use std::cell::Cell;
use std::collections::BTreeMap;

use kpx_judge::diff::{self, Change, ChangeKind};
use kpx_node::backend::Mode;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::support::root;

/// A recorded node that can be changed.
struct Node {
    evidence: Evidence,
    mode: Mode,
    desired: DesiredState,
    /// The families that are compared.
    families: &'static [Family],
    /// How often something was changed.
    times: Cell<usize>,
}

impl Node {
    fn new(name: &str, mode: Mode) -> Self {
        let path = root().join("testdata/nodes").join(name);
        let mut evidence = kpx_node::evidence::load(&path, &diff::needs(mode)).unwrap();
        // Most metrics are not used here, and would be read a thousand times.
        let metrics = evidence.text(Item::Metrics).unwrap().lines();
        let metrics = metrics.filter(|line| {
            line.starts_with("kubernetes_build_info")
                || line.starts_with("kubeproxy_sync_proxy_rules_last")
        });
        let metrics = joined(&metrics.collect::<Vec<_>>());
        evidence.insert(Item::Metrics, Ok(metrics));
        let desired = NodeSnapshot::new(&evidence).desired(mode).unwrap().clone();
        Self {
            evidence,
            mode,
            desired,
            families: &Family::BOTH,
            times: Cell::new(0),
        }
    }

    fn text(&self, item: Item) -> &str {
        self.evidence.text(item).unwrap()
    }

    /// The changes once `item` reads `text`.
    fn with(&self, item: Item, text: String) -> Vec<Change> {
        let desired = kpx_node::node::desired::NEEDS.contains(&item);
        self.times.set(self.times.get() + 1);
        if desired || self.times.get().is_multiple_of(25) {
            let whole = self.whole(item, text.clone());
            if !desired {
                assert_eq!(whole, self.alone(item, text), "{item} alone and all");
            }
            return whole;
        }
        self.alone(item, text)
    }

    /// The whole comparison of `kpx diff`.
    fn whole(&self, item: Item, text: String) -> Vec<Change> {
        let mut evidence = self.evidence.clone();
        evidence.insert(item, Ok(text));
        let node = NodeSnapshot::new(&evidence);
        let found = diff::compare(&node, self.mode, self.families).unwrap();
        assert!(found.unknown.is_empty(), "{:?}", found.unknown);
        found.changes
    }

    /// The part that reads `item`; the desired state does not depend on it.
    fn alone(&self, item: Item, text: String) -> Vec<Change> {
        let families = match (self.mode, item) {
            (Mode::Iptables, Item::Iptables4) => &[Family::V4][..],
            (Mode::Iptables, Item::Iptables6) => &[Family::V6],
            _ => self.families,
        };
        let mut evidence = Evidence::default();
        for (other, read) in self.evidence.iter() {
            if other != item && !BUILT_FROM.contains(&other) {
                evidence.insert(other, read.map(str::to_owned).map_err(Clone::clone));
            }
        }
        evidence.insert(item, Ok(text));
        let node = NodeSnapshot::new(&evidence);
        let found = diff::against(&node, &self.desired, families);
        assert!(found.unknown.is_empty(), "{:?}", found.unknown);
        found.changes
    }
}

/// Items that only the desired state is built from.
const BUILT_FROM: &[Item] = &[
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::Pods,
    Item::DaemonSets,
];

/// Fails unless one of `changes` is `kind` (or a difference) of an object whose name contains `object`.
fn expect(changes: &[Change], kind: ChangeKind, object: &str, what: &str) {
    let named = changes.iter().any(|change| {
        let same = change.kind() == kind || change.kind() == ChangeKind::Differs;
        same && change.object.to_string().contains(object)
    });
    assert!(named, "{what}: no {kind:?} of {object} in {changes:#?}");
}

fn joined(lines: &[&str]) -> String {
    lines.join("\n") + "\n"
}

/// The chain of a line of `iptables-save -c` that is a rule.
fn chain_of(line: &str) -> Option<&str> {
    let rule = line.split_once("] -A ").map_or(line, |(_, rule)| rule);
    (rule != line).then(|| rule.split(' ').next().unwrap())
}

fn is_ours(chain: &str) -> bool {
    chain.starts_with("KUBE-")
}

/// Chains in which Services may be in any order.
fn is_free(chain: &str, table: &str, mode: Mode) -> bool {
    match mode {
        Mode::Iptables => [
            "KUBE-SERVICES",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-PROXY-FIREWALL",
        ]
        .contains(&chain),
        _ => (table, chain) == ("filter", "KUBE-IPVS-OUT-FILTER"),
    }
}

/// Returns the service port that the comment of a rule begins with.
fn service(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("--comment ")?;
    let word = rest.trim_start_matches('"').split([' ', '"']).next()?;
    word.contains('/').then_some(word)
}

fn rules(name: &str, mode: Mode) {
    let node = Node::new(name, mode);
    for item in [Item::Iptables4, Item::Iptables6] {
        let text = node.text(item).to_owned();
        let lines: Vec<&str> = text.lines().collect();
        let mut table = "";
        let mut count = 0;
        for (at, line) in lines.iter().enumerate() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            }
            let Some(chain) = chain_of(line) else {
                continue;
            };
            let jumps = line.contains(" -j KUBE-") || line.contains(" -j DROP");
            if !is_ours(chain) && !jumps {
                continue;
            }
            count += 1;
            let mut without = lines.clone();
            without.remove(at);
            let changes = node.with(item, joined(&without));
            expect(&changes, ChangeKind::Missing, chain, line);
            let spn = service(line);
            assert!(
                spn.is_none() || changes.iter().any(|c| c.service.as_deref() == spn),
                "{line}: {changes:#?}"
            );

            let (head, target) = line.rsplit_once(" -j ").unwrap_or((line, ""));
            let other = if target == "RETURN" {
                "ACCEPT"
            } else {
                "RETURN"
            };
            let otherwise = format!("{head} -j {other}");
            let mut with = lines.clone();
            with[at] = &otherwise;
            expect(
                &node.with(item, joined(&with)),
                ChangeKind::Missing,
                chain,
                line,
            );

            if !is_ours(chain) {
                continue;
            }
            let added = format!("[0:0] -A {chain} -s 192.0.2.99/32 -j RETURN");
            let mut with = lines.clone();
            with.insert(at, &added);
            expect(
                &node.with(item, joined(&with)),
                ChangeKind::Extra,
                chain,
                line,
            );

            if chain_of(lines[at + 1]) == Some(chain) {
                let mut moved = lines.clone();
                moved.swap(at, at + 1);
                let changes = node.with(item, joined(&moved));
                let tail = lines[at + 1].contains("this must be the last rule")
                    && !line.contains("this must be the last rule");
                if !is_free(chain, table, mode) || tail {
                    expect(&changes, ChangeKind::Differs, chain, line);
                } else {
                    assert!(changes.is_empty(), "{line}: {changes:#?}");
                }
            }
        }
        assert!(count > 10, "{item}: {count} rules");
        chains(&node, item, &lines);
    }
}

/// Whole chains.
fn chains(node: &Node, item: Item, lines: &[&str]) {
    let mut table = "";
    for line in lines {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let Some(chain) = line.strip_prefix(':').and_then(|l| l.split(' ').next()) else {
            continue;
        };
        if !is_ours(chain) {
            continue;
        }
        let mut inside = "";
        let without: Vec<&str> = lines
            .iter()
            .copied()
            .filter(|line| {
                inside = line.strip_prefix('*').unwrap_or(inside);
                let declared = line.strip_prefix(':').and_then(|l| l.split(' ').next());
                inside != table || (declared != Some(chain) && chain_of(line) != Some(chain))
            })
            .collect();
        let changes = node.with(item, joined(&without));
        expect(
            &changes,
            ChangeKind::Missing,
            &format!("{table} chain {chain}"),
            line,
        );
    }
}

#[test]
#[ignore = "what the one on two families shows, on more Services: make test-loops"]
fn every_rule_of_the_iptables_mode() {
    rules("full-iptables", Mode::Iptables);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_rule_of_the_iptables_mode_on_two_families() {
    rules("dual-iptables", Mode::Iptables);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_rule_of_the_ipvs_mode() {
    rules("dual-ipvs", Mode::Ipvs);
}

#[test]
fn every_extra_chain() {
    let node = Node::new("full-iptables", Mode::Iptables);
    let text = node.text(Item::Iptables4);
    let more = "\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-MARK-MASQ - ";
    let changes = node.with(
        Item::Iptables4,
        text.replacen("\n:KUBE-MARK-MASQ - ", more, 1),
    );
    expect(
        &changes,
        ChangeKind::Extra,
        "nat chain KUBE-SVC-AAAAAAAAAAAAAAAA",
        more,
    );
    // kube-proxy removes chains of table nat only.
    let more = "*filter\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n";
    assert_eq!(
        node.with(Item::Iptables4, text.replacen("*filter\n", more, 1)),
        []
    );
    // Chains with other names belong to other software.
    let more =
        "\n:KUBE-SVC-aaaaaaaaaaaaaaaa - [0:0]\n:KUBE-ROUTER-INPUT - [0:0]\n:KUBE-MARK-MASQ - ";
    let text = text.replacen("\n:KUBE-MARK-MASQ - ", more, 1);
    assert_eq!(node.with(Item::Iptables4, text), []);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_set_and_member() {
    let node = Node::new("full-ipvs", Mode::Ipvs);
    let text = node.text(Item::Ipset).to_owned();
    let lines: Vec<&str> = text.lines().collect();
    let (mut sets, mut members) = (0, 0);
    for (at, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[1];
        let mut without = lines.clone();
        if words[0] == "create" {
            sets += 1;
            without.retain(|line| line.split(' ').nth(1) != Some(name));
            let changes = node.with(Item::Ipset, joined(&without));
            expect(&changes, ChangeKind::Missing, &format!("set {name}"), line);
            let other = line.replacen("hash:ip,port", "hash:net,port", 1);
            let other = other.replacen("range 0-65535", "range 1024-65535", 1);
            let mut with = lines.clone();
            with[at] = &other;
            if other != *line {
                let changes = node.with(Item::Ipset, joined(&with));
                expect(&changes, ChangeKind::Differs, &format!("set {name}"), line);
            }
            continue;
        }
        members += 1;
        without.remove(at);
        let member = format!("set {name} member {}", words[2]);
        let changes = node.with(Item::Ipset, joined(&without));
        expect(&changes, ChangeKind::Missing, &member, line);
        let hosts = name.contains("IPVS-IPS") || name.contains("LOOP-BACK");
        assert!(
            hosts || changes[0].service.is_some(),
            "{line}: {changes:#?}"
        );
        let last = words[2].pop_digit();
        let added = format!("add {name} {last}");
        let mut with = lines.clone();
        with.push(&added);
        if !lines.contains(&added.as_str()) {
            let changes = node.with(Item::Ipset, joined(&with));
            expect(
                &changes,
                ChangeKind::Extra,
                &format!("set {name} member {last}"),
                line,
            );
        }
    }
    assert!(
        sets == 34 && members > 100,
        "{sets} sets, {members} members"
    );
}

trait PopDigit {
    /// Returns the text with another last digit.
    fn pop_digit(&self) -> String;
}

impl PopDigit for str {
    fn pop_digit(&self) -> String {
        let mut text = self.to_owned();
        let last = text.pop().unwrap();
        // A prefix length must stay within its bounds.
        let other = match (last.to_digit(16), text.contains('/')) {
            (Some(digit), true) => char::from_digit((digit + 5) % 10 % 4, 10),
            (Some(digit), false) => char::from_digit((digit + 1) % 10, 10),
            (None, _) => Some('1'),
        };
        text.push(other.unwrap());
        text
    }
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_virtual_and_real_server() {
    let node = Node::new("full-ipvs", Mode::Ipvs);
    let text = node.text(Item::IpvsSave).to_owned();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        let server = format!("virtual server {} {}", proto(words[1]), words[2]);
        let mut without = lines.clone();
        if words[0] == "-A" {
            without.retain(|line| {
                line.split(' ').nth(2) != Some(words[2]) || line.split(' ').nth(1) != Some(words[1])
            });
            let changes = node.with(Item::IpvsSave, joined(&without));
            expect(&changes, ChangeKind::Missing, &server, line);
            assert!(changes[0].service.is_some(), "{line}: {changes:#?}");
            let other = line.replacen("-s rr", "-s lc", 1);
            let mut with = lines.clone();
            with[at] = &other;
            let changes = node.with(Item::IpvsSave, joined(&with));
            expect(&changes, ChangeKind::Differs, &server, line);
            continue;
        }
        without.remove(at);
        let real = format!("{server} real server {}", words[4]);
        let changes = node.with(Item::IpvsSave, joined(&without));
        expect(&changes, ChangeKind::Missing, &real, line);
        for (from, to) in [("-w 1", "-w 0"), ("-m ", "-g ")] {
            let other = line.replacen(from, to, 1);
            let mut with = lines.clone();
            with[at] = &other;
            let changes = node.with(Item::IpvsSave, joined(&with));
            expect(&changes, ChangeKind::Differs, &real, line);
        }
        let v6 = words[4].starts_with('[');
        let stray = if v6 { "[fd00:99::9]:9" } else { "192.0.2.99:9" };
        let added = format!("-a {} {} -r {stray} -m -w 1", words[1], words[2]);
        let mut with = lines.clone();
        with.insert(at, &added);
        let changes = node.with(Item::IpvsSave, joined(&with));
        expect(
            &changes,
            ChangeKind::Extra,
            &format!("{server} real server {stray}"),
            line,
        );
        // A real server that takes no new connections drains, if it is one for TCP.
        let draining = added.replace("-w 1", "-w 0");
        with[at] = &draining;
        let changes = node.with(Item::IpvsSave, joined(&with));
        assert_eq!(
            changes.is_empty(),
            words[1] == "-t",
            "{draining}: {changes:#?}"
        );
    }
    let stray = joined(&lines) + "-A -t 192.0.2.99:9 -s rr\n-A -f 7 -s rr\n";
    let changes = node.with(Item::IpvsSave, stray);
    expect(
        &changes,
        ChangeKind::Extra,
        "virtual server tcp 192.0.2.99:9",
        "a stray one",
    );
    assert_eq!(changes.len(), 1, "marks are others': {changes:#?}");
}

fn proto(option: &str) -> &str {
    match option {
        "-t" => "tcp",
        "-u" => "udp",
        _ => "sctp",
    }
}

#[test]
fn every_address_of_the_dummy_link() {
    let node = Node::new("full-ipvs", Mode::Ipvs);
    let links: Value = serde_json::from_str(node.text(Item::Addresses)).unwrap();
    let dummy = links.as_array().unwrap().iter();
    let dummy = dummy
        .clone()
        .position(|l| l["ifname"] == "kube-ipvs0")
        .unwrap();
    let count = links[dummy]["addr_info"].as_array().unwrap().len();
    assert!(count > 20);
    for at in 0..count {
        let mut fewer = links.clone();
        let gone = fewer[dummy]["addr_info"].as_array_mut().unwrap().remove(at);
        let addr = gone["local"].as_str().unwrap();
        let changes = node.with(Item::Addresses, fewer.to_string());
        expect(
            &changes,
            ChangeKind::Missing,
            &format!("address {addr}"),
            addr,
        );
        assert!(changes[0].service.is_some(), "{addr}: {changes:#?}");
    }
    let mut more = links.clone();
    let all = more[dummy]["addr_info"].as_array_mut().unwrap();
    let mut stray = all[0].clone();
    stray["local"] = json!("192.0.2.99");
    all.push(stray);
    let changes = node.with(Item::Addresses, more.to_string());
    expect(
        &changes,
        ChangeKind::Extra,
        "kube-ipvs0 address 192.0.2.99",
        "a stray one",
    );

    let all: Value = serde_json::from_str(node.text(Item::Links)).unwrap();
    let others = all.as_array().unwrap().iter();
    let others: Vec<_> = others.filter(|l| l["ifname"] != "kube-ipvs0").collect();
    let changes = node.with(Item::Links, json!(others).to_string());
    expect(&changes, ChangeKind::Missing, "link kube-ipvs0", "the link");
}

#[test]
fn every_kernel_setting() {
    for (name, mode, keys) in [
        (
            "full-iptables",
            Mode::Iptables,
            &["net.ipv4.conf.all.route_localnet"][..],
        ),
        (
            "full-ipvs-lc-strictarp",
            Mode::Ipvs,
            &[
                "net.ipv4.ip_forward",
                "net.ipv4.vs.conntrack",
                "net.ipv4.vs.expire_nodest_conn",
                "net.ipv4.vs.expire_quiescent_template",
                "net.ipv4.conf.all.arp_ignore",
                "net.ipv4.conf.all.arp_announce",
            ],
        ),
    ] {
        let node = Node::new(name, mode);
        for key in keys {
            let lines = node.text(Item::Sysctl).lines();
            let start = format!("{key} = ");
            let text: String = lines
                .flat_map(|line| match line.strip_prefix(&start) {
                    Some(_) => [start.as_str(), "7", "\n"],
                    None => [line, "", "\n"],
                })
                .collect();
            let changes = node.with(Item::Sysctl, text);
            assert_eq!(changes.len(), 1, "{key}");
            expect(&changes, ChangeKind::Differs, key, key);
        }
    }
}

/// Objects of kube-proxy's tables by kind, with their positions in the listing.
fn listed(all: &Value) -> BTreeMap<&'static str, Vec<usize>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (at, object) in all["nftables"].as_array().unwrap().iter().enumerate() {
        for kind in ["table", "chain", "set", "map", "rule"] {
            let of = &object[kind];
            if of["table"] == "kube-proxy" || kind == "table" && of["name"] == "kube-proxy" {
                found.entry(kind).or_default().push(at);
            }
        }
    }
    found
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_object_of_the_nftables_mode() {
    tables("ip", &[Family::V4]);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn every_object_of_the_nftables_mode_for_ipv6() {
    tables("ip6", &[Family::V6]);
}

fn tables(family: &str, families: &'static [Family]) {
    let node = Node {
        families,
        ..Node::new("dual-nftables", Mode::Nftables)
    };
    let mut all: Value = serde_json::from_str(node.text(Item::Nft)).unwrap();
    let objects = all["nftables"].as_array_mut().unwrap();
    objects.retain(|object| {
        let mut of = object.as_object().unwrap().values();
        of.any(|fields| fields["family"] == family)
    });
    let listed = listed(&all);
    let name = |at: usize, kind: &str| all["nftables"][at][kind]["name"].as_str().unwrap();
    let without = |at: usize, gone: &dyn Fn(&Value) -> bool| {
        let mut fewer = all.clone();
        let objects = fewer["nftables"].as_array_mut().unwrap();
        objects.remove(at);
        objects.retain(|object| !gone(object));
        node.with(Item::Nft, fewer.to_string())
    };
    let replaced = |at: usize, kind: &str, key: &str, value: Value| {
        let mut other = all.clone();
        other["nftables"][at][kind][key] = value;
        node.with(Item::Nft, other.to_string())
    };
    for &at in &listed["table"] {
        let family = &all["nftables"][at]["table"]["family"];
        let changes = without(at, &|object| {
            ["chain", "set", "map", "rule"]
                .iter()
                .any(|k| object[k]["family"] == *family)
        });
        expect(&changes, ChangeKind::Missing, "table ip", "a table");
    }
    for &at in &listed["chain"] {
        let (family, name) = (&all["nftables"][at]["chain"]["family"], name(at, "chain"));
        let changes = without(at, &|object| {
            object["rule"]["chain"] == name && object["rule"]["family"] == *family
        });
        expect(
            &changes,
            ChangeKind::Missing,
            &format!("chain {name}"),
            name,
        );
        if all["nftables"][at]["chain"]["prio"].is_i64() {
            let changes = replaced(at, "chain", "prio", json!(7));
            expect(
                &changes,
                ChangeKind::Differs,
                &format!("chain {name}"),
                name,
            );
        }
    }
    for &at in &listed["rule"] {
        let rule = &all["nftables"][at]["rule"];
        let chain = rule["chain"].as_str().unwrap();
        let object = format!("chain {chain} rule");
        if rule["comment"] != "Drop traffic to unallocated ClusterIPs" {
            expect(
                &without(at, &|_| false),
                ChangeKind::Missing,
                &object,
                chain,
            );
            let changes = replaced(at, "rule", "expr", json!([{"accept": null}]));
            expect(&changes, ChangeKind::Differs, &object, chain);
        }
        let mut with = all.clone();
        let mut stray = all["nftables"][at].clone();
        stray["rule"]["expr"] = json!([{"accept": null}]);
        with["nftables"].as_array_mut().unwrap().insert(at, stray);
        let changes = node.with(Item::Nft, with.to_string());
        expect(&changes, ChangeKind::Extra, &object, chain);
        let next = &all["nftables"][at + 1]["rule"];
        if next["chain"] == rule["chain"] && next["family"] == rule["family"] {
            let mut moved = all.clone();
            moved["nftables"].as_array_mut().unwrap().swap(at, at + 1);
            let changes = node.with(Item::Nft, moved.to_string());
            expect(&changes, ChangeKind::Differs, &object, chain);
        }
    }
    let mut elements = 0;
    for kind in ["set", "map"] {
        for &at in &listed[kind] {
            let name = name(at, kind);
            expect(
                &without(at, &|_| false),
                ChangeKind::Missing,
                &format!("set {name}"),
                name,
            );
            if name.starts_with("affinity-") {
                let changes = replaced(at, kind, "timeout", json!(7));
                expect(&changes, ChangeKind::Differs, &format!("set {name}"), name);
                continue;
            }
            let changes = replaced(at, kind, "type", json!("mark"));
            expect(&changes, ChangeKind::Differs, &format!("set {name}"), name);
            let Some(all_elements) = all["nftables"][at][kind]["elem"].as_array() else {
                continue;
            };
            for position in 0..all_elements.len() {
                elements += 1;
                let mut fewer = all_elements.clone();
                let gone = fewer.remove(position);
                let changes = replaced(at, kind, "elem", json!(fewer));
                expect(
                    &changes,
                    ChangeKind::Missing,
                    &format!("set {name} member"),
                    &gone.to_string(),
                );
                assert!(
                    changes[0].service.is_some() || name == "nodeport-ips",
                    "{gone}: {changes:#?}"
                );
                if kind == "map" {
                    let mut other = all_elements.clone();
                    other[position][1] = json!({"goto": {"target": "services"}});
                    let changes = replaced(at, kind, "elem", json!(other));
                    expect(
                        &changes,
                        ChangeKind::Differs,
                        &format!("set {name} member"),
                        &gone.to_string(),
                    );
                }
            }
        }
    }
    assert!(elements > 20, "{elements} elements");
}
