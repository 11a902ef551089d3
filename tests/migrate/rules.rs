//! Fake iptables and nftables: their rules and tables, as the tools store and print them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kpx_judge::diff::{self, Layer};
use kpx_judge::plan::{self, Drain, Plan, Programmed, Undo};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::cluster::{Endpoint, EndpointSlice, Service};
use kpx_node::evidence::{Item, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use crate::support::root;

/// The rules of one family.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Rules {
    /// The chains of each table: the policy, `-` for a user-defined chain, and the rules.
    tables: BTreeMap<String, BTreeMap<String, (String, Vec<String>)>>,
}

impl Rules {
    /// Parses the output of `iptables-save`.
    pub(super) fn parse(text: &str) -> Self {
        let mut rules = Self::default();
        let mut table = String::new();
        for line in text.lines() {
            // Counters may stand in front.
            let line = match line.split_once("] ") {
                Some((counters, rest)) if counters.starts_with('[') => rest,
                _ => line,
            };
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
                rules.tables.entry(table.clone()).or_default();
            } else if let Some(chain) = line.strip_prefix(':') {
                let mut words = chain.split(' ');
                let (name, policy) = (words.next().unwrap(), words.next().unwrap());
                let chains = rules.tables.get_mut(&table).unwrap();
                chains.insert(name.to_owned(), (policy.to_owned(), Vec::new()));
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rule) = rule.split_once(' ').unwrap();
                let chains = rules.tables.get_mut(&table).unwrap();
                chains.get_mut(chain).unwrap().1.push(rule.to_owned());
            }
        }
        rules
    }

    /// Applies the input of `iptables-restore --noflush`, completely or not at all.
    pub(super) fn restore(&mut self, input: &str) -> Result<(), String> {
        let mut next = self.clone();
        let mut table = String::new();
        for line in input.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
                continue;
            }
            let chains = next.tables.entry(table.clone()).or_default();
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            if let Some(name) = verb.strip_prefix(':') {
                // A declared chain is created or flushed.
                let policy = rest.split(' ').next().unwrap().to_owned();
                chains.insert(name.to_owned(), (policy, Vec::new()));
                continue;
            }
            let none = || format!("{line}: no chain {chain}");
            match verb {
                "-A" => {
                    let of = chains.get_mut(chain).ok_or_else(none)?;
                    of.1.push(rule.to_owned());
                }
                "-I" => {
                    let (number, rule) = rule.split_once(' ').unwrap();
                    let of = chains.get_mut(chain).ok_or_else(none)?;
                    let at = number.parse::<usize>().unwrap() - 1;
                    if at > of.1.len() {
                        return Err(format!("{line}: Index of insertion too big."));
                    }
                    of.1.insert(at, rule.to_owned());
                }
                "-D" => {
                    let of = chains.get_mut(chain).ok_or_else(none)?;
                    let at = of.1.iter().position(|there| there == rule);
                    of.1.remove(at.ok_or_else(|| format!("{line}: no such rule"))?);
                }
                "-X" => {
                    chains.remove(chain).ok_or_else(none)?;
                }
                "COMMIT" => {}
                _ => return Err(format!("{line}: what is that?")),
            }
        }
        for (table, chains) in &next.tables {
            for rule in chains.values().flat_map(|(_, rules)| rules) {
                let mut words = rule
                    .split(' ')
                    .skip_while(|word| !matches!(*word, "-j" | "-g"));
                let to = words.nth(1).unwrap_or_default();
                if to.starts_with("KUBE-") && !chains.contains_key(to) {
                    return Err(format!("{table}: nothing is at {to}: {rule}"));
                }
            }
        }
        *self = next;
        Ok(())
    }

    /// Deletes the first rule of each built-in chain that leads to one of kube-proxy's.
    pub(super) fn lose_jumps(&mut self) {
        let chains = self.tables.values_mut().flat_map(BTreeMap::values_mut);
        for (_, rules) in chains.filter(|(policy, _)| policy != "-") {
            if let Some(at) = rules.iter().position(|rule| rule.contains("-j KUBE-")) {
                rules.remove(at);
            }
        }
    }

    /// Returns the output of `iptables-save`.
    pub(super) fn save(&self) -> String {
        let mut text = String::new();
        for (table, chains) in &self.tables {
            text.push_str("# Generated by iptables-save v1.8.9 (nf_tables)\n");
            writeln!(text, "*{table}").unwrap();
            for (chain, (policy, _)) in chains {
                writeln!(text, ":{chain} {policy} [0:0]").unwrap();
            }
            for (chain, (_, rules)) in chains {
                for rule in rules {
                    writeln!(text, "-A {chain} {rule}").unwrap();
                }
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

/// The tables of nftables, by family and name, each as one block of text.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Tables(BTreeMap<String, String>);

impl Tables {
    /// Applies the input of `nft -f` for whole tables; migrations need no other changes.
    pub(super) fn load(&mut self, input: &str) -> Result<(), String> {
        let mut lines = input.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("add table ") {
                self.0.entry(name.to_owned()).or_default();
            } else if let Some(name) = line.strip_prefix("delete table ") {
                self.0
                    .remove(name)
                    .ok_or_else(|| format!("no table {name}"))?;
            } else if let Some(head) = line.strip_prefix("table ") {
                let name = head.trim_end_matches(" {").to_owned();
                let mut text = format!("{line}\n");
                for line in lines.by_ref() {
                    writeln!(text, "{line}").unwrap();
                    if line == "}" {
                        break;
                    }
                }
                self.0.insert(name, text);
            } else {
                return Err(format!("{line}: only whole tables are known here"));
            }
        }
        Ok(())
    }

    /// Returns the output of `nft list ruleset`.
    pub(super) fn list(&self) -> String {
        self.0.values().map(String::as_str).collect()
    }
}

/// `iptables-nft-restore` takes a time that grows with the square of the chains in one input.
#[test]
#[ignore = "takes long: make test-loops"]
fn many_chains_are_created_and_deleted_in_parts() {
    const LAYERS: &[Layer] = &[Layer::Iptables];
    let bundle = root().join("testdata/nodes/scale-2000x10-iptables");
    let needs = diff::needs(Mode::Iptables);
    let mut evidence = load(&bundle, &needs).unwrap();
    let empty = Rules::parse(
        "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n*mangle\nCOMMIT\n\
         *nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
    );
    let mut rules = empty.clone();
    let step = |rules: &mut Rules, action: &Action| {
        let Action::Iptables { input, .. } = action else {
            panic!("{action:?}");
        };
        let names = input
            .lines()
            .filter(|line| line.starts_with(':') || line.contains("-j KUBE-"));
        let names = names.count();
        assert!(names <= 5_000, "{names} chains and jumps");
        rules.restore(input).unwrap();
    };
    let mut undos = Vec::new();
    let mut apply = |rules: &mut Rules, plan: Plan| {
        for of in plan.steps {
            undos.push((rules.clone(), of.undo));
            step(rules, &of.action);
        }
    };

    evidence.insert(Item::Iptables4, Ok(rules.save()));
    let node = NodeSnapshot::new(&evidence);
    let found = diff::compare(&node, Mode::Iptables, &[Family::V4]).unwrap();
    let plan = |found| {
        plan::repair(
            &node,
            Mode::Iptables,
            &[Family::V4],
            found,
            LAYERS,
            Drain::First,
        )
        .unwrap()
    };
    apply(&mut rules, plan(&found));

    let mut evidence = load(&bundle, &needs).unwrap();
    evidence.insert(Item::Iptables4, Ok(rules.save()));
    let node = NodeSnapshot::new(&evidence);
    let found = diff::compare(&node, Mode::Iptables, &[Family::V4]).unwrap();
    assert!(found.changes.is_empty(), "{:?}", found.changes);
    let plan = plan::cleanup(&node, Mode::Iptables, &[Family::V4], true).unwrap();
    apply(&mut rules, plan);
    assert!(!rules.save().contains("KUBE-"));

    assert!(undos.len() > 12, "{}", undos.len());
    for (before, undo) in undos.into_iter().rev() {
        let Undo::Do(undo) = undo else {
            panic!("{undo:?}")
        };
        step(&mut rules, &undo);
        assert!(rules == before);
    }
    assert!(rules == empty);
}

/// The objects of a recording, of which every third Service is deleted, the first endpoint of every other slice has another
/// address, and each of the rest gets one more.
fn changed(node: &NodeSnapshot<'_>) -> (Vec<Service>, Vec<EndpointSlice>) {
    let mut services = node.services().unwrap().clone();
    let mut slices = node.slices().unwrap().clone();
    let mut number = 0_usize;
    services.retain(|_| {
        number += 1;
        !number.is_multiple_of(3)
    });
    for (number, slice) in slices.iter_mut().enumerate() {
        let host = if slice.address_type == "IPv6" {
            "fd00:10:244:9::"
        } else {
            "10.244.9."
        };
        let Some(first) = slice.endpoints.first_mut() else {
            continue;
        };
        let address = vec![format!("{host}{}", number + 1)];
        if number.is_multiple_of(2) {
            first.addresses = address;
        } else {
            let more = Endpoint {
                addresses: address,
                ..first.clone()
            };
            slice.endpoints.push(more);
        }
    }
    (services, slices)
}

/// The work of `reconcile --watch` after its first look: it knows the rules without reading them.
#[test]
fn the_steps_from_one_state_to_the_next_are_those_that_a_look_finds() {
    for (name, mode) in [
        ("dual-iptables", Mode::Iptables),
        ("full-iptables", Mode::Iptables),
        ("full-iptables-v1.30", Mode::Iptables),
        ("dual-nftables", Mode::Nftables),
        ("full-nftables", Mode::Nftables),
    ] {
        let bundle = root().join("testdata/nodes").join(name);
        let mut evidence = load(&bundle, &diff::needs(mode)).unwrap();
        let original = evidence.clone();
        let node = NodeSnapshot::new(&original);
        let (services, slices) = changed(&node);
        let next = NodeSnapshot::new(&original).with_services(services.clone(), slices.clone());
        let (old, new) = (node.desired(mode).unwrap(), next.desired(mode).unwrap());
        let known = Programmed::new(&node, old.clone()).unwrap();
        let there = known.advance(new, &Family::BOTH).unwrap();

        let layers = &[Layer::Iptables, Layer::Nftables];
        let found = diff::compare(&next, mode, &Family::BOTH).unwrap();
        let read = plan::repair(&next, mode, &Family::BOTH, &found, layers, Drain::First).unwrap();
        let inputs = |plan: &Plan| -> Vec<String> {
            plan.steps
                .iter()
                .map(|step| format!("{:?}", step.action))
                .collect()
        };
        assert!(inputs(&there).len() > 1, "{name}: {there:?}");
        assert_eq!(inputs(&there), inputs(&read), "{name}");

        let one = known.advance(new, &[Family::V4]).unwrap();
        assert_eq!(inputs(&one), inputs(&there)[..one.steps.len()], "{name}");
        assert!(
            one.steps.len() < there.steps.len() || !name.starts_with("dual"),
            "{name}"
        );
        assert!(
            known.advance(old, &Family::BOTH).unwrap().steps.is_empty(),
            "{name}"
        );
        assert!(known.changes_udp(new) && !known.changes_udp(old), "{name}");

        if mode == Mode::Nftables {
            continue;
        }
        let back = known.at(new.clone());
        let back = back.advance(old, &Family::BOTH).unwrap();
        let mut live = Family::BOTH.map(|family| {
            let text = evidence.text(Item::iptables(family));
            (family, Rules::parse(text.unwrap()))
        });
        for (plan, goal) in [(there, Some((services, slices))), (back, None)] {
            for step in &plan.steps {
                let Action::Iptables { family, input, .. } = &step.action else {
                    panic!("{step:?}");
                };
                let rules = live.iter_mut().find(|(of, _)| of == family);
                rules.unwrap().1.restore(input).unwrap();
            }
            for (family, rules) in &live {
                evidence.insert(Item::iptables(*family), Ok(rules.save()));
            }
            let mut node = NodeSnapshot::new(&evidence);
            if let Some((services, slices)) = goal {
                node = node.with_services(services, slices);
            }
            let rest = diff::compare(&node, mode, &Family::BOTH).unwrap();
            assert!(rest.changes.is_empty(), "{name}: {:?}", rest.changes);
        }
    }
}
