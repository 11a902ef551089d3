//! Changes of chains and rules, as one input of `iptables-restore --noflush` for each table, with its undo.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::model::{Chain, Rule, Ruleset};
use crate::action::{Action, Backend};
use crate::net::Family;

/// The changes of one table.
#[derive(Debug, Default)]
pub(crate) struct Edits<'r, 'a> {
    table: &'r str,
    /// Chains to write or delete: the name, the live and the desired chain.
    chains: Vec<(&'r str, Option<&'r Chain<'a>>, Option<&'r Chain<'a>>)>,
    /// Single rules of built-in chains, in the order they change.
    rules: Vec<Single<'r, 'a>>,
}

/// One rule of a chain that is not kube-proxy's.
#[derive(Debug)]
struct Single<'r, 'a> {
    verb: Verb,
    chain: &'r str,
    /// Its number from 1, when its turn comes.
    number: usize,
    rule: &'r Rule<'a>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Insert,
    Delete,
}

/// Returns what must change in each table for the chains of `have` named in `chains`, each a table and a chain, to become
/// those of `want`.
pub(crate) fn edits<'r, 'a>(
    have: &'r Ruleset<'a>,
    want: &'r Ruleset<'a>,
    chains: &BTreeSet<(&str, &str)>,
) -> Vec<Edits<'r, 'a>> {
    let mut all = Vec::new();
    for table in &want.tables {
        let live = have.table(&table.name);
        let mut edits = Edits {
            table: &table.name,
            ..Edits::default()
        };
        let names = chains.iter().filter(|(of, _)| *of == table.name);
        for &(_, name) in names {
            let (old, new) = (live.and_then(|t| t.chain(name)), table.chain(name));
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
    all.retain(|edits| !edits.chains.is_empty() || !edits.rules.is_empty());
    all
}

/// Returns the positions in `want` of the jumps that `have`, the rules of a built-in chain, does not have, each with the
/// position in `have` of a wrong one in its place.
pub(crate) fn missing_jumps(have: &[Rule<'_>], want: &[Rule<'_>]) -> Vec<(usize, Option<usize>)> {
    let missing = want
        .iter()
        .enumerate()
        .filter(|(_, rule)| !have.iter().any(|live| live.is_same(rule)));
    let found = missing.map(|(want_at, rule)| {
        let other = have.iter().position(|live| {
            live.target == rule.target
                && !want.iter().any(|wanted| live.is_same(wanted))
                && !is_other_modes(live, rule)
        });
        (want_at, other)
    });
    found.collect()
}

/// Returns whether `rule` is the jump of another mode to a chain that both modes have.
fn is_other_modes(rule: &Rule<'_>, wanted: &Rule<'_>) -> bool {
    rule.comment() != wanted.comment()
        && matches!(
            rule.comment(),
            Some("kube-proxy firewall rules" | "kubernetes load balancer firewall")
        )
}

impl<'r, 'a> Edits<'r, 'a> {
    /// Returns what removes `chains` and `rules` (chain, number from 1, rule) from `table`.
    ///
    /// The last name comes first: iptables 1.8 keeps the chains that its input names in a sorted list which it searches
    /// from the front, so that 22,000 chains take it half as long that way.
    pub(crate) fn removal(
        table: &'r str,
        mut chains: Vec<&'r Chain<'a>>,
        rules: Vec<(&'r str, usize, &'r Rule<'a>)>,
    ) -> Self {
        chains.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        let chains = chains
            .into_iter()
            .map(|old| (old.name.as_ref(), Some(old), None));
        let rules = rules.into_iter().map(|(chain, number, rule)| Single {
            verb: Verb::Delete,
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
        let wrong = missing_jumps(rules, &new.rules);
        let wrong: BTreeSet<usize> = wrong.into_iter().filter_map(|(_, at)| at).collect();
        for at in wrong.into_iter().rev() {
            let rule = now.remove(at);
            self.rules.push(Single {
                verb: Verb::Delete,
                chain: &new.name,
                number: at + 1,
                rule,
            });
        }
        let mut next = 0;
        for rule in &new.rules {
            if let Some(at) = now.iter().position(|live| live.is_same(rule)) {
                next = at + 1;
                continue;
            }
            now.insert(next, rule);
            next += 1;
            self.rules.push(Single {
                verb: Verb::Insert,
                chain: &new.name,
                number: next,
                rule,
            });
        }
    }

    /// Returns the name of the table.
    pub(crate) fn table(&self) -> &'r str {
        self.table
    }

    /// Returns the change and its undo.
    pub(crate) fn actions(&self, backend: Backend, family: Family) -> (Action, Action) {
        let action = |input| Action::Iptables {
            backend,
            family,
            input,
        };
        (action(self.input()), action(self.undo()))
    }

    /// Returns how often it does what: the number, a verb and a noun of each.
    pub(crate) fn counts(&self) -> [(usize, &'static str, &'static str); 4] {
        let written = self.chains.iter().filter(|(_, _, new)| new.is_some());
        let written = written.count();
        let inserted = self.rules.iter().filter(|rule| rule.verb == Verb::Insert);
        let inserted = inserted.count();
        [
            (written, "write", "chain"),
            (self.chains.len() - written, "delete", "chain"),
            (inserted, "insert", "rule"),
            (self.rules.len() - inserted, "delete", "rule"),
        ]
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
        verb,
        chain,
        number,
        rule,
    } in rules
    {
        match (verb, reverse) {
            (Verb::Insert, false) | (Verb::Delete, true) => {
                add(format_args!("-I {chain} {number}{rule}"));
            }
            (Verb::Delete, false) | (Verb::Insert, true) => add(format_args!("-D {chain}{rule}")),
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
