//! Changes of the table `kube-proxy` of one family, as one transaction, with its undo.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::model::{Chain, Element, Set, Table};
use super::print;
use crate::action::Action;

/// The objects of a table that change.
#[derive(Debug, Default)]
pub struct Edits<'c> {
    chains: BTreeSet<&'c str>,
    sets: BTreeSet<&'c str>,
    elements: Vec<ElementEdit<'c>>,
    /// Whether the whole table is replaced.
    replace: bool,
}

/// An element that changes.
#[derive(Clone, Copy, Debug)]
struct ElementEdit<'c> {
    set: &'c str,
    have: Option<&'c Element>,
    want: Option<&'c Element>,
}

impl<'c> Edits<'c> {
    /// Rewrites the chain `name`, or deletes it.
    pub fn chain(&mut self, name: &'c str) {
        self.chains.insert(name);
    }

    /// Creates or deletes the set or map `name`.
    pub fn set(&mut self, name: &'c str) {
        self.sets.insert(name);
    }

    /// Turns the element `have` of `set` into `want`.
    pub fn element(&mut self, set: &'c str, have: Option<&'c Element>, want: Option<&'c Element>) {
        self.elements.push(ElementEdit { set, have, want });
    }

    /// Replaces the whole table, for a change that cannot be made in place.
    pub fn replace(&mut self) {
        self.replace = true;
    }

    /// Returns the change that brings the live table `have` to `want` in all objects named, and its undo.
    pub fn actions(mut self, have: Option<&Table>, want: &Table) -> (Action, Action) {
        let name = format!("{} {}", want.family, want.name);
        let (change, undo) = match have {
            None => (print::table(want), format!("delete table {name}\n")),
            Some(have) if self.replace => (print::table(want), print::table(have)),
            Some(have) => {
                let key = |edit: &ElementEdit<'c>| {
                    edit.have
                        .or(edit.want)
                        .map(|element| print::expr(&element.key))
                };
                self.elements
                    .sort_by_cached_key(|element| (element.set, key(element)));
                let change = self.text(&name, have, want);
                for element in &mut self.elements {
                    std::mem::swap(&mut element.have, &mut element.want);
                }
                (change, self.text(&name, want, have))
            }
        };
        (Action::Nft { input: change }, Action::Nft { input: undo })
    }

    /// Returns the chains and sets that only `to` has, empty.
    fn new_objects(&self, from: &Table, to: &Table) -> Table {
        let chains = self
            .chains
            .iter()
            .filter(|chain| from.chain(chain).is_none());
        let sets = self.sets.iter().filter(|set| from.set(set).is_none());
        Table {
            family: to.family.clone(),
            name: to.name.clone(),
            comment: None,
            dormant: false,
            has_unread_flag: false,
            owner: None,
            limits: BTreeMap::new(),
            chains: chains
                .filter_map(|chain| to.chain(chain))
                .map(|chain| Chain {
                    rules: Vec::new(),
                    ..chain.clone()
                })
                .collect(),
            sets: sets
                .filter_map(|set| to.set(set))
                .map(|set| Set {
                    elements: Vec::new(),
                    ..set.clone()
                })
                .collect(),
        }
    }

    /// Writes the transaction from one state to the other: new objects first, then the rules and elements that refer to them,
    /// then the deletion of unreferenced objects.
    fn text(&self, name: &str, from: &Table, to: &Table) -> String {
        let new = self.new_objects(from, to);
        let mut text = if new.chains.is_empty() && new.sets.is_empty() {
            String::new()
        } else {
            print::block(&new)
        };
        let mut add = |args: std::fmt::Arguments<'_>| {
            text.write_fmt(args)
                .expect("writing to a String does not fail");
            text.push('\n');
        };
        let written = || self.chains.iter().filter_map(|chain| to.chain(chain));
        // Rules refer to counters by name; one that exists keeps its count.
        for counter in print::counters(written()) {
            add(format_args!("add counter {name} {counter}"));
        }
        for chain in self
            .chains
            .iter()
            .filter(|chain| from.chain(chain).is_some())
        {
            add(format_args!("flush chain {name} {chain}"));
        }
        for chain in written() {
            for rule in &chain.rules {
                add(format_args!(
                    "add rule {name} {} {}",
                    chain.name,
                    print::rule(rule)
                ));
            }
        }
        for ElementEdit { set, have, want } in &self.elements {
            if let Some(old) = have {
                add(format_args!(
                    "delete element {name} {set} {{ {} }}",
                    print::expr(&old.key)
                ));
            }
            if let Some(new) = want {
                add(format_args!(
                    "add element {name} {set} {{ {} }}",
                    print::element(new)
                ));
            }
        }
        for set in &new.sets {
            let Some(set) = to.set(&set.name) else {
                continue;
            };
            for element in set.elements.iter().filter(|_| set.timeout.is_none()) {
                let set = &set.name;
                add(format_args!(
                    "add element {name} {set} {{ {} }}",
                    print::element(element)
                ));
            }
        }
        for chain in &self.chains {
            if from.chain(chain).is_some() && to.chain(chain).is_none() {
                add(format_args!("delete chain {name} {chain}"));
            }
        }
        for set in &self.sets {
            if let (Some(old), None) = (from.set(set), to.set(set)) {
                let kind = if old.data.is_some() { "map" } else { "set" };
                add(format_args!("delete {kind} {name} {set}"));
            }
        }
        text
    }
}
