//! Fake iptables and nftables: their rules and tables, as the tools store and print them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kpx::action::Action;
use kpx::backend::Mode;
use kpx::diff::{self, Layer};
use kpx::evidence::{Item, load};
use kpx::net::Family;
use kpx::node::NodeSnapshot;
use kpx::plan::{self, Drain, Plan, Undo};

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
