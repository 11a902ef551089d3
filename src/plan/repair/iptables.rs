//! Chains and rules, as one input of `iptables-restore --noflush` for each table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::action::{Action, Backend};
use crate::backend::iptables::model::{Chain, Rule, Ruleset};
use crate::diff::{self, Change, Layer, Object};
use crate::net::Family;
use crate::plan::{Plan, Undo};

/// What changes in one table.
#[derive(Debug, Default)]
pub(in crate::plan) struct Edits<'r, 'a> {
    table: &'r str,
    /// Chains to write or delete: the name, as it is, as it should be.
    chains: Vec<(&'r str, Option<&'r Chain<'a>>, Option<&'r Chain<'a>>)>,
    /// Rules of built-in chains, in the order of the changes.
    rules: Vec<Single<'r, 'a>>,
}

/// One rule of a chain that is not kube-proxy's.
#[derive(Debug)]
struct Single<'r, 'a> {
    is: Way,
    chain: &'r str,
    /// Its number from 1, when its turn comes.
    number: usize,
    rule: &'r Rule<'a>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Insert,
    Delete,
}

/// Returns what must change in each table for `have` to hold what `changes` miss of `want`.
pub(super) fn edits<'r, 'a>(
    have: &'r Ruleset<'a>,
    want: &'r Ruleset<'a>,
    changes: &[&Change],
) -> Vec<Edits<'r, 'a>> {
    let mut touched: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for change in changes.iter().filter(|c| c.layer == Layer::Iptables) {
        if let Object::Chain { table, chain } | Object::Rule { table, chain, .. } = &change.object {
            touched.entry(table).or_default().insert(chain);
        }
    }
    let mut all = Vec::new();
    for table in &want.tables {
        let Some(names) = touched.get(table.name.as_ref()) else {
            continue;
        };
        let there = have.table(&table.name);
        let mut edits = Edits {
            table: &table.name,
            ..Edits::default()
        };
        for &name in names {
            let (old, new) = (there.and_then(|t| t.chain(name)), table.chain(name));
            match (old, new) {
                (_, Some(new)) if new.policy.is_some() => edits.jumps(old, new),
                (old, new) => {
                    let name = old.or(new).map(|chain| chain.name.as_ref());
                    edits.chains.extend(name.map(|name| (name, old, new)));
                }
            }
        }
        all.push(edits);
    }
    all
}

impl<'r, 'a> Edits<'r, 'a> {
    /// Returns what removes `chains` and `rules` (chain, number from 1, rule) from `table`.
    ///
    /// The last name comes first: iptables 1.8 keeps the chains that its input names in a sorted list which it searches
    /// from the front, so that 22,000 chains take it half as long that way.
    pub(in crate::plan) fn removal(
        table: &'r str,
        mut chains: Vec<&'r Chain<'a>>,
        rules: Vec<(&'r str, usize, &'r Rule<'a>)>,
    ) -> Self {
        chains.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        let chains = chains
            .into_iter()
            .map(|old| (old.name.as_ref(), Some(old), None));
        let rules = rules.into_iter().map(|(chain, number, rule)| Single {
            is: Way::Delete,
            chain,
            number,
            rule,
        });
        Self {
            table,
            chains: chains.collect(),
            rules: rules.collect(),
        }
    }

    /// Rules of a built-in chain: those that are wrong go, those that are missing come in front of what others have there,
    /// as kube-proxy puts them.
    fn jumps(&mut self, old: Option<&'r Chain<'a>>, new: &'r Chain<'a>) {
        let rules = old.map_or(&[][..], |chain| &chain.rules);
        let mut now: Vec<&'r Rule<'a>> = rules.iter().collect();
        let wrong = diff::jumps(rules, &new.rules);
        let wrong: BTreeSet<usize> = wrong.into_iter().filter_map(|(_, at)| at).collect();
        for at in wrong.into_iter().rev() {
            let rule = now.remove(at);
            self.rules.push(Single {
                is: Way::Delete,
                chain: &new.name,
                number: at + 1,
                rule,
            });
        }
        let mut next = 0;
        for rule in &new.rules {
            if let Some(at) = now.iter().position(|there| diff::same(there, rule)) {
                next = at + 1;
                continue;
            }
            now.insert(next, rule);
            next += 1;
            self.rules.push(Single {
                is: Way::Insert,
                chain: &new.name,
                number: next,
                rule,
            });
        }
    }

    /// Adds the step to `plan`.
    pub(in crate::plan) fn push(&self, plan: &mut Plan, backend: Backend, family: Family) {
        let step = |input| Action::Iptables {
            backend,
            family,
            input,
        };
        let title = format!("{family} table {}: {}", self.table, self.title());
        plan.push(title, step(self.input()), Undo::Do(step(self.undo())));
    }

    fn title(&self) -> String {
        let kept = self
            .chains
            .iter()
            .filter(|(_, _, new)| new.is_some())
            .count();
        let gone = self.chains.len() - kept;
        let inserted = self
            .rules
            .iter()
            .filter(|rule| rule.is == Way::Insert)
            .count();
        let deleted = self.rules.len() - inserted;
        let parts = [
            (kept, "write", "chain"),
            (gone, "delete", "chain"),
            (inserted, "insert", "rule"),
            (deleted, "delete", "rule"),
        ];
        let parts = parts.iter().filter(|(count, _, _)| *count > 0);
        let parts = parts.map(|(count, verb, what)| {
            let s = if *count == 1 { "" } else { "s" };
            format!("{verb} {count} {what}{s}")
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    fn input(&self) -> String {
        let chains = self.chains.iter().map(|&(name, _, new)| (name, new));
        text(self.table, chains, self.rules.iter(), false)
    }

    fn undo(&self) -> String {
        let chains = self.chains.iter().map(|&(name, old, _)| (name, old));
        text(self.table, chains, self.rules.iter().rev(), true)
    }
}

/// Writes the input: chains with all their rules, then single rules, then the chains to delete, which nothing leads to by
/// then.
fn text<'t, 'r: 't, 'a: 'r>(
    table: &str,
    chains: impl Iterator<Item = (&'r str, Option<&'r Chain<'a>>)> + Clone,
    rules: impl Iterator<Item = &'t Single<'r, 'a>>,
    reverse: bool,
) -> String {
    let mut text = format!("*{table}\n");
    let mut add = |args: std::fmt::Arguments<'_>| {
        text.write_fmt(args)
            .expect("writing to a String does not fail");
        text.push('\n');
    };
    for (name, _) in chains.clone() {
        add(format_args!(":{name} - [0:0]"));
    }
    for (name, chain) in chains.clone() {
        for rule in chain.iter().flat_map(|chain| &chain.rules) {
            add(format_args!("-A {name}{rule}"));
        }
    }
    for Single {
        is,
        chain,
        number,
        rule,
    } in rules
    {
        match (is, reverse) {
            (Way::Insert, false) | (Way::Delete, true) => {
                add(format_args!("-I {chain} {number}{rule}"));
            }
            (Way::Delete, false) | (Way::Insert, true) => add(format_args!("-D {chain}{rule}")),
        }
    }
    for (name, chain) in chains {
        if chain.is_none() {
            add(format_args!("-X {name}"));
        }
    }
    text.push_str("COMMIT\n");
    text
}
