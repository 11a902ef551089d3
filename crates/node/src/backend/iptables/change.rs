//! Changes of chains and rules, as one input of `iptables-restore --noflush` for each table, with its undo.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use super::model::{Chain, Rule, Ruleset};
use crate::action::{Action, Backend};
use crate::net::Family;

/// The changes of one table.
#[derive(Debug, Default)]
pub struct Edits<'r, 'a> {
    table: &'r str,
    /// Chains to write or delete.
    chains: Vec<Edit<'r, 'a>>,
    /// Single rules of built-in chains, in the order they change.
    rules: Vec<Single<'r, 'a>>,
}

/// A chain to write or delete: its name, the live and the desired chain.
type Edit<'r, 'a> = (&'r str, Option<&'r Chain<'a>>, Option<&'r Chain<'a>>);

/// Most chains and jumps in one input for the nft back end, if there are several inputs.
///
/// `iptables-nft-restore` 1.8.9 keeps the chains that its input names in a sorted list, and searches it from the front for
/// each rule and jump: the time grows with the square of their number.
const MOST_NAMES: usize = 5_000;

/// One rule of a chain that is not kube-proxy's.
#[derive(Debug)]
struct Single<'r, 'a> {
    verb: Verb,
    chain: &'r str,
    /// Its number from 1, at the time of the change.
    number: usize,
    rule: &'r Rule<'a>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Insert,
    Delete,
}

/// Returns the changes in each table that make the chains of `have` named in `chains`, each a table and a chain, like
/// the chains of `want`.
pub fn edits<'r, 'a>(
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

/// Returns the positions in `want` of jumps that are missing in `have`, the rules of a built-in chain, each with the
/// position in `have` of a wrong jump in its place.
pub fn missing_jumps(have: &[Rule<'_>], want: &[Rule<'_>]) -> Vec<(usize, Option<usize>)> {
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
    /// Returns the change that removes `chains` and `rules` (chain, number from 1, rule) from `table`.
    ///
    /// The last name comes first: iptables 1.8 keeps the chains of its input in a sorted list, which it searches from
    /// the front. In this order, 22,000 chains take half the time.
    pub fn removal(
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

    /// Rules of a built-in chain: wrong ones are deleted, missing ones are inserted before the rules of others, as
    /// kube-proxy does.
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

    /// Divides the change into the inputs for `backend`, in an order in which no rule leads to a missing chain: chains to
    /// create before all other changes, chains to delete after them.
    pub fn parts(mut self, backend: Backend) -> Vec<Self> {
        let chains = std::mem::take(&mut self.chains);
        let (made, others): (Vec<_>, Vec<_>) = chains
            .iter()
            .copied()
            .partition(|(_, old, new)| old.is_none() && new.is_some());
        let (gone, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(.., new)| new.is_none());
        let names = |all: &[Edit<'_, '_>]| all.iter().map(names).sum::<usize>();
        if backend != Backend::Nft || names(&made).max(names(&gone)) <= MOST_NAMES {
            self.chains = chains;
            return vec![self];
        }
        let made = leaves_first(made);
        let mut gone = leaves_first(gone);
        gone.reverse();
        self.chains = others;
        let table = self.table;
        let part = |mut chains: Vec<Edit<'r, 'a>>| {
            chains.sort_unstable_by(|(a, ..), (b, ..)| b.cmp(a));
            Self {
                table,
                chains,
                rules: Vec::new(),
            }
        };
        let mut parts: Vec<_> = pieces(made).into_iter().map(part).collect();
        parts.push(self);
        parts.extend(pieces(gone).into_iter().map(part));
        parts.retain(|part| !part.chains.is_empty() || !part.rules.is_empty());
        parts
    }

    /// Returns the name of the table.
    pub fn table(&self) -> &'r str {
        self.table
    }

    /// Returns the change and its undo.
    pub fn actions(&self, backend: Backend, family: Family) -> (Action, Action) {
        let action = |input| Action::Iptables {
            backend,
            family,
            input,
        };
        (action(self.input()), action(self.undo()))
    }

    /// Returns the counts of its changes: number, verb and noun.
    pub fn counts(&self) -> [(usize, &'static str, &'static str); 4] {
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

/// Returns the number of chains that the input names for this one: itself, and the chains that its rules lead to.
fn names((_, old, new): &Edit<'_, '_>) -> usize {
    let rules = new.or(*old).into_iter().flat_map(|chain| &chain.rules);
    1 + rules.filter_map(Rule::leads_to).count()
}

/// Divides `chains` into parts that name at most [`MOST_NAMES`].
fn pieces<'r, 'a>(chains: Vec<Edit<'r, 'a>>) -> Vec<Vec<Edit<'r, 'a>>> {
    let mut pieces = Vec::new();
    let mut room = 0;
    for chain in chains {
        let names = names(&chain);
        if names > room {
            pieces.push(Vec::new());
            room = MOST_NAMES;
        }
        room = room.saturating_sub(names);
        if let Some(piece) = pieces.last_mut() {
            piece.push(chain);
        }
    }
    pieces
}

/// Sorts `chains` so that the targets of jumps come first.
fn leaves_first<'r, 'a>(mut waiting: Vec<Edit<'r, 'a>>) -> Vec<Edit<'r, 'a>> {
    let mut sorted = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let names: HashSet<&str> = waiting.iter().map(|(name, ..)| *name).collect();
        let waits = |(_, old, new): &Edit<'r, 'a>| {
            let rules = new.or(*old).into_iter().flat_map(|chain| &chain.rules);
            let mut targets = rules.filter_map(Rule::leads_to);
            targets.any(|to| names.contains(to))
        };
        let (later, next): (Vec<_>, Vec<_>) = waiting.iter().copied().partition(waits);
        // The kernel has no chains that lead to themselves.
        if next.is_empty() {
            sorted.extend(later);
            break;
        }
        sorted.extend(next);
        waiting = later;
    }
    sorted
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
