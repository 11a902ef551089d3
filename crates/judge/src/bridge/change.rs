//! The change from one bridge to the next, as one transaction.

use std::collections::{BTreeMap, HashMap, HashSet};

use kpx_node::backend::nftables::model::{Chain, Element, Rule, Set, Table};
use kpx_node::backend::nftables::print;

/// Returns the input of `nft -f` that changes table `have` to `want`, which have the same name; empty if they are equal.
///
/// Chains, sets and elements that are in both stay, so session affinity is kept.
pub fn change(have: &Table, want: &Table) -> String {
    let mut text = Text {
        name: format!("{} {}", want.family, want.name),
        text: String::new(),
    };
    let (had, wanted) = (Index::new(have), Index::new(want));
    let alike = |set: &Set| {
        had.sets
            .get(set.name.as_str())
            .is_none_or(|old| same_kind(old, set))
    };
    if !want.sets.iter().all(alike) {
        // The types and the timeout of a set cannot change.
        return print::table(want);
    }
    let new = Table {
        family: want.family.clone(),
        name: want.name.clone(),
        comment: None,
        dormant: false,
        has_unread_flag: false,
        owner: None,
        limits: BTreeMap::new(),
        chains: want
            .chains
            .iter()
            .filter(|chain| !had.chains.contains_key(chain.name.as_str()))
            .map(|chain| Chain {
                rules: Vec::new(),
                ..chain.clone()
            })
            .collect(),
        sets: want
            .sets
            .iter()
            .filter(|set| !had.sets.contains_key(set.name.as_str()))
            .cloned()
            .collect(),
    };
    // A reference is added after its target and deleted before it.
    if !new.chains.is_empty() || !new.sets.is_empty() {
        text.text.push_str(&print::block(&new));
    }
    for chain in &want.chains {
        match had.chains.get(chain.name.as_str()) {
            Some(old) if old.rules == chain.rules => {}
            Some(_) => {
                text.flush(chain);
                text.rules(&chain.name, &chain.rules);
            }
            None => text.rules(&chain.name, &chain.rules),
        }
    }
    for set in &want.sets {
        if let Some(old) = had.sets.get(set.name.as_str()) {
            text.elements(old, set);
        }
    }
    let gone = |chain: &&Chain| !wanted.chains.contains_key(chain.name.as_str());
    have.chains.iter().filter(gone).for_each(|c| text.flush(c));
    for chain in have.chains.iter().filter(gone) {
        text.line(&format!("delete chain {} {}", text.name, chain.name));
    }
    for set in &have.sets {
        if !wanted.sets.contains_key(set.name.as_str()) {
            let kind = if set.data.is_some() { "map" } else { "set" };
            text.line(&format!("delete {kind} {} {}", text.name, set.name));
        }
    }
    text.text
}

fn same_kind(one: &Set, other: &Set) -> bool {
    (&one.key, &one.data, &one.flags, one.timeout)
        == (&other.key, &other.data, &other.flags, other.timeout)
}

struct Index<'t> {
    chains: HashMap<&'t str, &'t Chain>,
    sets: HashMap<&'t str, &'t Set>,
}

impl<'t> Index<'t> {
    fn new(table: &'t Table) -> Self {
        let chains = table
            .chains
            .iter()
            .map(|chain| (chain.name.as_str(), chain));
        let sets = table.sets.iter().map(|set| (set.name.as_str(), set));
        Self {
            chains: chains.collect(),
            sets: sets.collect(),
        }
    }
}

struct Text {
    name: String,
    text: String,
}

impl Text {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn flush(&mut self, chain: &Chain) {
        let line = format!("flush chain {} {}", self.name, chain.name);
        self.line(&line);
    }

    fn rules(&mut self, chain: &str, rules: &[Rule]) {
        for rule in rules {
            let line = format!("add rule {} {chain} {}", self.name, print::rule(rule));
            self.line(&line);
        }
    }

    /// Deletes the elements that only `have` has, and adds those that only `want` has.
    fn elements(&mut self, have: &Set, want: &Set) {
        let keyed =
            |set: &Set| -> HashSet<String> { set.elements.iter().map(print::element).collect() };
        let (old, new) = (keyed(have), keyed(want));
        let only = |set: &Set, others: &HashSet<String>, text: fn(&Element) -> String| {
            let elements = set.elements.iter();
            let only = elements.filter(|element| !others.contains(&print::element(element)));
            only.map(text).collect::<Vec<_>>()
        };
        let gone = only(have, &new, |element| print::expr(&element.key));
        let added = only(want, &old, print::element);
        for (verb, elements) in [("delete", gone), ("add", added)] {
            if !elements.is_empty() {
                let line = format!(
                    "{verb} element {} {} {{ {} }}",
                    self.name,
                    want.name,
                    elements.join(", ")
                );
                self.line(&line);
            }
        }
    }
}
