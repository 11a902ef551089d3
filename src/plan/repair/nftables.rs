//! The table `kube-proxy` of one family, as one transaction.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::backend::nftables::model::{Chain, Element, Set, Table};
use crate::backend::nftables::print;
use crate::diff::{Action as Kind, Change, Layer, Object};

/// Returns what brings `have` to `want` in all that `changes` name, and what takes that back.
pub(super) fn change(have: Option<&Table>, want: &Table, changes: &[&Change]) -> (String, String) {
    let name = format!("{} {}", want.family, want.name);
    let Some(have) = have else {
        return (print::table(want), format!("delete table {name}\n"));
    };
    let changes = changes.iter().filter(|c| c.layer == Layer::Nftables);
    let mut touched = Touched::default();
    for change in changes {
        match &change.object {
            // What cannot be altered in place is replaced, and all with it.
            Object::Chain { .. } | Object::Set { .. } if change.action == Kind::Differs => {
                return (print::table(want), print::table(have));
            }
            Object::Chain { chain, .. } | Object::Rule { chain, .. } => {
                touched.chains.insert(chain);
            }
            Object::Set { name } => {
                touched.sets.insert(name);
            }
            Object::Member { set, member } => {
                touched.members.insert((set, member));
            }
            _ => {}
        }
    }
    (
        touched.text(&name, have, want),
        touched.text(&name, want, have),
    )
}

/// The objects to bring from one state to another, by name.
#[derive(Default)]
struct Touched<'c> {
    chains: BTreeSet<&'c str>,
    sets: BTreeSet<&'c str>,
    members: BTreeSet<(&'c str, &'c str)>,
}

impl Touched<'_> {
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

    /// Writes the transaction: what is new, then what others refer to it with, then what nothing refers to any more.
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
        for chain in self
            .chains
            .iter()
            .filter(|chain| from.chain(chain).is_some())
        {
            add(format_args!("flush chain {name} {chain}"));
        }
        for chain in self.chains.iter().filter_map(|chain| to.chain(chain)) {
            for rule in &chain.rules {
                add(format_args!(
                    "add rule {name} {} {}",
                    chain.name,
                    print::rule(rule)
                ));
            }
        }
        for (set, member) in &self.members {
            let (old, new) = (element(from, set, member), element(to, set, member));
            if let Some(old) = old {
                add(format_args!(
                    "delete element {name} {set} {{ {} }}",
                    print::expr(&old.key)
                ));
            }
            if let Some(new) = new {
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

fn element<'t>(table: &'t Table, set: &str, member: &str) -> Option<&'t Element> {
    let set = table.set(set)?;
    let mut all = set.elements.iter();
    all.find(|of| print::expr(&of.key) == member)
}
