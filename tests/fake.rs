//! A fake node: it applies changes and lists its state as the standard tools do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use kpx_node::action::{Action, LinkCommand, LocalRoute, RouteCommand};
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use serde_json::{Value, json};

/// Sets, virtual servers and addresses as the standard tools list them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Node {
    /// The options that create each set, and its members with their options.
    pub(crate) sets: BTreeMap<String, (String, BTreeMap<String, String>)>,
    /// The options of each virtual server, and its real servers with theirs.
    pub(crate) servers: BTreeMap<String, (String, BTreeMap<String, String>)>,
    pub(crate) links: Vec<Value>,
    /// kpx's routes.
    pub(crate) routes: Vec<LocalRoute>,
    /// Addresses of kube-ipvs0 whose route of the kernel was deleted.
    hidden: BTreeSet<IpAddr>,
}

/// Splits `words` after the first `count`.
fn split(line: &str, count: usize) -> (String, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (first, rest) = words.split_at(count.min(words.len()));
    (first.join(" "), rest.join(" "))
}

impl Node {
    pub(crate) fn new(evidence: &Evidence) -> Self {
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

    /// Applies one line of `ipset restore`.
    pub(crate) fn restore(&mut self, line: &str) {
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

    /// Applies one command of ipvsadm.
    pub(crate) fn ipvs(&mut self, line: &str) {
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
            // Gone already is gone.
            "-D" => drop(self.servers.remove(&key)),
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

    pub(crate) fn addresses(&mut self) -> &mut Vec<Value> {
        let mut links = self.links.iter_mut();
        let link = links.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        link["addr_info"].as_array_mut().unwrap()
    }

    pub(crate) fn apply(&mut self, action: &Action) {
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
                            self.hidden.remove(addr);
                            let addr = addr.to_string();
                            self.addresses().retain(|info| info["local"] != addr);
                        }
                        LinkCommand::AddDummy { name } => {
                            if self.links.iter().all(|link| link["ifname"] != *name) {
                                self.links.push(json!({"ifname": name, "addr_info": []}));
                            }
                        }
                        LinkCommand::Delete { name } => {
                            self.hidden.clear();
                            self.links.retain(|link| link["ifname"] != *name);
                        }
                    }
                }
            }
            Action::Routes { commands } => {
                for command in commands {
                    match command {
                        RouteCommand::Add(route) => {
                            self.routes.retain(|own_route| own_route != route);
                            self.routes.push(route.clone());
                        }
                        RouteCommand::Delete(route) => {
                            self.routes.retain(|own_route| own_route != route);
                        }
                        RouteCommand::Hide(bound) => {
                            let held = self.routes.iter().any(|route| route.addr == bound.addr);
                            assert!(held, "{command}: nothing else makes it local");
                            self.hidden.insert(bound.addr);
                        }
                        RouteCommand::Renew(bound) => drop(self.hidden.remove(&bound.addr)),
                    }
                }
            }
            other => panic!("{other}"),
        }
    }

    /// Returns the routes of the table local that matter, as `ip -j route show table all` lists them.
    pub(crate) fn local_routes(&self) -> String {
        let links = self
            .links
            .iter()
            .filter(|link| link["ifname"] == "kube-ipvs0");
        let infos = links.flat_map(|link| link["addr_info"].as_array().unwrap());
        let addresses =
            infos.map(|info| info["local"].as_str().unwrap().parse::<IpAddr>().unwrap());
        let kernels = addresses.filter(|addr| !self.hidden.contains(addr)).map(|addr| {
            json!({"type": "local", "dst": addr, "dev": "kube-ipvs0", "table": "local", "protocol": "kernel"})
        });
        let ours = self.routes.iter().map(|route| {
            json!({
                "type": "local", "dst": route.addr, "dev": route.device, "table": "local", "protocol": "107",
                "prefsrc": route.source,
            })
        });
        let mut all: Vec<Value> = kernels.chain(ours).collect();
        all.sort_by_key(Value::to_string);
        Value::from(all).to_string()
    }

    /// Adds the state of the node to `evidence`.
    pub(crate) fn tell(&self, evidence: &mut Evidence) {
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
}
