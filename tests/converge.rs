//! Plans for mode ipvs, carried out on a node that remembers: they end where nothing differs, and unwind.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kpx::action::{Action, LinkCommand};
use kpx::backend::Mode;
use kpx::diff::{self, Layer};
use kpx::evidence::{Evidence, Item, load};
use kpx::net::Family;
use kpx::node::NodeSnapshot;
use kpx::plan::{self, Drain, Plan, Undo};
use serde_json::{Value, json};

use crate::support::root;

/// Sets, virtual servers and addresses as the standard tools list them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Node {
    /// What creates each set, and its members with their options.
    sets: BTreeMap<String, (String, BTreeMap<String, String>)>,
    /// The options of each virtual server, and its real servers with theirs.
    servers: BTreeMap<String, (String, BTreeMap<String, String>)>,
    links: Vec<Value>,
}

/// Splits `words` behind its first `count`.
fn split(line: &str, count: usize) -> (String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (first, rest) = words.split_at(count.min(words.len()));
    (first.join(" "), rest.join(" "))
}

impl Node {
    fn new(evidence: &Evidence) -> Self {
        let mut node = Self::default();
        for line in evidence.text(Item::Ipset).unwrap().lines() {
            node.restore(line);
        }
        for line in evidence.text(Item::IpvsSave).unwrap().lines() {
            node.ipvs(line);
        }
        node.links = serde_json::from_str(evidence.text(Item::Addresses).unwrap()).unwrap();
        node
    }

    /// One line of `ipset restore`.
    fn restore(&mut self, line: &str) {
        let exist = line.ends_with(" -exist");
        let line = line.trim_end_matches(" -exist");
        let (verb, rest) = split(line, 1);
        let (name, rest) = split(&rest, 1);
        match verb.as_str() {
            "create" => {
                let there = self.sets.get(&name);
                assert!(exist || there.is_none(), "{line}");
                self.sets.entry(name).or_insert((rest, BTreeMap::new()));
            }
            "destroy" => assert!(self.sets.remove(&name).is_some(), "{line}"),
            "swap" => {
                let (one, other) = (self.sets[&name].clone(), self.sets[&rest].clone());
                self.sets.insert(name, other);
                self.sets.insert(rest, one);
            }
            "rename" => {
                let set = self.sets.remove(&name).unwrap();
                assert!(self.sets.insert(rest, set).is_none(), "{line}");
            }
            "add" => {
                let (member, options) = split(&rest, 1);
                let members = &mut self.sets.get_mut(&name).unwrap().1;
                let there = members.insert(member, options);
                assert!(exist || there.is_none(), "{line}");
            }
            "del" => {
                let members = &mut self.sets.get_mut(&name).unwrap().1;
                let there = members.remove(&rest);
                assert!(exist || there.is_some(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }

    /// One command of ipvsadm.
    fn ipvs(&mut self, line: &str) {
        let line = line.split(" #").next().unwrap();
        let (verb, rest) = split(line, 1);
        let (key, rest) = split(&rest, 2);
        let (real, options) = split(&rest, 2);
        match verb.as_str() {
            "-A" => {
                let there = self.servers.insert(key, (rest, BTreeMap::new()));
                assert!(there.is_none(), "{line}");
            }
            "-E" => self.servers.get_mut(&key).unwrap().0 = rest,
            "-D" => assert!(self.servers.remove(&key).is_some(), "{line}"),
            "-a" | "-e" => {
                let reals = &mut self.servers.get_mut(&key).unwrap().1;
                reals.insert(real, options);
            }
            "-d" => {
                let reals = &mut self.servers.get_mut(&key).unwrap().1;
                assert!(reals.remove(&real).is_some(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }

    fn addresses(&mut self) -> &mut Vec<Value> {
        let mut links = self.links.iter_mut();
        let link = links.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        link["addr_info"].as_array_mut().unwrap()
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::Ipset { input } => input.lines().for_each(|line| self.restore(line)),
            Action::Ipvs { commands } => {
                for command in commands {
                    self.ipvs(&command.line);
                }
            }
            Action::Link { commands } => {
                for command in commands {
                    match command {
                        LinkCommand::AddAddress { addr, .. } => {
                            let (family, bits) = match Family::of(*addr) {
                                Family::V4 => ("inet", 32),
                                Family::V6 => ("inet6", 128),
                            };
                            let addr = addr.to_string();
                            let entry = json!({"family": family, "local": addr, "prefixlen": bits, "scope": "global"});
                            self.addresses().push(entry);
                        }
                        LinkCommand::DeleteAddress { addr, .. } => {
                            let addr = addr.to_string();
                            self.addresses().retain(|info| info["local"] != addr);
                        }
                        other => panic!("{other}"),
                    }
                }
            }
            other => panic!("{other}"),
        }
    }

    /// Puts what the node has into `evidence`.
    fn tell(&self, evidence: &mut Evidence) {
        let mut sets = String::new();
        for (name, (head, members)) in &self.sets {
            writeln!(sets, "create {name} {head}").unwrap();
            for (member, options) in members {
                writeln!(sets, "add {name} {member} {options}").unwrap();
            }
        }
        let mut servers = String::new();
        for (key, (options, reals)) in &self.servers {
            writeln!(servers, "-A {key} {options}").unwrap();
            for (real, options) in reals {
                writeln!(servers, "-a {key} {real} {options}").unwrap();
            }
        }
        evidence.insert(Item::Ipset, Ok(sets));
        evidence.insert(Item::IpvsSave, Ok(servers));
        let links = Value::from(self.links.clone()).to_string();
        evidence.insert(Item::Addresses, Ok(links));
    }

    /// The same, with addresses in one order and by themselves.
    fn sorted(&self) -> Self {
        let mut node = self.clone();
        let addresses = node.addresses();
        let mut all: Vec<Value> = addresses.iter().map(|info| info["local"].clone()).collect();
        all.sort_by_key(Value::to_string);
        *addresses = all;
        node
    }

    /// Makes differences of every kind, others for each `seed`.
    fn disturb(&mut self, seed: usize) {
        let mut number = seed;
        let mut turn = |every: usize| {
            number += 1;
            number.is_multiple_of(every)
        };
        for (name, (head, members)) in &mut self.sets {
            members.retain(|_, _| !turn(5));
            if turn(4) && head.starts_with("hash") {
                *head = head.replace("maxelem 65536", "maxelem 1000");
            }
            if turn(3) && name.ends_with("CLUSTER-IP") {
                let six = name.starts_with("KUBE-6");
                let addr = if six { "fd00::9" } else { "10.9.9.9" };
                members.insert(format!("{addr},tcp:9"), String::new());
            }
        }
        self.servers.retain(|_, _| !turn(6));
        for (options, reals) in self.servers.values_mut() {
            reals.retain(|_, _| !turn(5));
            if turn(4) {
                "-s wlc -p 77".clone_into(options);
            }
            if turn(3) {
                for options in reals.values_mut() {
                    "-m -w 9".clone_into(options);
                }
            }
        }
        self.addresses().retain(|_| !turn(4));
        let extra = self.addresses()[0]["local"].as_str().unwrap().to_owned();
        let at = format!("{extra}:9");
        let key = if extra.contains(':') {
            format!("-t [{extra}]:9")
        } else {
            format!("-t {at}")
        };
        self.servers
            .insert(key, ("-s wlc".to_owned(), BTreeMap::new()));
    }
}

fn plan(evidence: &Evidence) -> Plan {
    const LAYERS: &[Layer] = &[Layer::Ipset, Layer::Ipvs, Layer::Link];
    let node = NodeSnapshot::new(evidence);
    let found = diff::compare(&node, Mode::Ipvs, &Family::BOTH).unwrap();
    assert!(found.unknown.is_empty(), "{:?}", found.unknown);
    plan::repair(
        &node,
        Mode::Ipvs,
        &Family::BOTH,
        &found,
        LAYERS,
        Drain::First,
    )
    .unwrap()
}

#[test]
fn a_plan_ends_where_nothing_differs_and_its_undo_where_it_began() {
    for name in ["dual-ipvs", "full-ipvs", "full-ipvs-v1.30"] {
        let bundle = root().join("testdata/nodes").join(name);
        let mut evidence = load(&bundle, &diff::needs(Mode::Ipvs)).unwrap();
        let healthy = Node::new(&evidence);
        for seed in 0..12 {
            let mut node = healthy.clone();
            node.disturb(seed);
            let disturbed = node.clone();
            node.tell(&mut evidence);
            let plan_ = plan(&evidence);
            assert!(plan_.steps.len() > 3, "{name} {seed}: {plan_:?}");
            for step in &plan_.steps {
                node.apply(&step.action);
            }
            node.tell(&mut evidence);
            let rest = plan(&evidence);
            assert!(rest.steps.is_empty(), "{name} {seed}: {rest:?}");
            for step in plan_.steps.iter().rev() {
                let Undo::Do(undo) = &step.undo else {
                    panic!("{name} {seed}: {}", step.title);
                };
                node.apply(undo);
            }
            assert_eq!(node.sorted(), disturbed.sorted(), "{name} {seed}");
        }
    }
}
