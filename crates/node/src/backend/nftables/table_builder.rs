//! A table in the making.

use std::collections::{HashMap, HashSet};

use super::model::{Base, Chain, Datum, Element, Expr, Rule, Set, Statement, Table};
use super::print;
use crate::net::Family;

/// A table in the making: its chains and sets by name.
#[derive(Debug)]
pub struct Draft {
    table: Table,
    chains: HashMap<String, usize>,
    sets: HashMap<String, usize>,
    /// Keys of elements, by set.
    seen: HashSet<(usize, String)>,
}

impl Draft {
    /// Returns the table `name` of `family`, with nothing in it.
    pub fn new(family: Family, name: &str, comment: &str) -> Self {
        Self {
            table: Table {
                family: family.nft_name().to_owned(),
                name: name.to_owned(),
                comment: Some(comment.to_owned()),
                ..Table::default()
            },
            chains: HashMap::new(),
            sets: HashMap::new(),
            seen: HashSet::new(),
        }
    }

    /// Returns the table.
    pub fn finish(self) -> Table {
        self.table
    }

    /// Adds a chain, unless there is one of that name; returns whether there was none.
    pub fn chain(&mut self, name: &str, base: Option<Base>) -> bool {
        let new = !self.chains.contains_key(name);
        if new {
            self.chains.insert(name.to_owned(), self.table.chains.len());
            self.table.chains.push(Chain {
                name: name.to_owned(),
                base,
                ..Chain::default()
            });
        }
        new
    }

    /// Gives a chain a comment.
    pub(crate) fn describe(&mut self, chain: &str, comment: &str) {
        if let Some(&at) = self.chains.get(chain) {
            self.table.chains[at].comment = Some(comment.to_owned());
        }
    }

    /// Adds a rule at the end of an existing chain.
    pub fn rule(&mut self, chain: &str, statements: Vec<Statement>, comment: Option<&str>) {
        if let Some(&at) = self.chains.get(chain) {
            self.table.chains[at].rules.push(Rule {
                handle: None,
                comment: comment.map(str::to_owned),
                statements,
            });
        }
    }

    /// Adds a set or map, unless there is one of that name.
    pub fn set(&mut self, set: Set) {
        if !self.sets.contains_key(&set.name) {
            self.sets.insert(set.name.clone(), self.table.sets.len());
            self.table.sets.push(set);
        }
    }

    /// Adds an element to an existing set, unless its key is in it.
    pub fn add(
        &mut self,
        set: &str,
        mut key: Vec<Expr>,
        value: Option<Datum>,
        comment: Option<&str>,
    ) {
        if let Some(&at) = self.sets.get(set) {
            let key = if key.len() == 1 {
                key.remove(0)
            } else {
                Expr::Concat(key)
            };
            if !self.seen.insert((at, print::expr(&key))) {
                return;
            }
            self.table.sets[at].elements.push(Element {
                key,
                value,
                comment: comment.map(str::to_owned),
                timeout: None,
                expires: None,
                conditions: Vec::new(),
            });
        }
    }
}
