//! The rules of one family against what they should be.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::sequence::{self, Edit};
use super::{Action, Change, Layer, Object};
use crate::backend::iptables::expect::{Names, TAIL};
use crate::backend::iptables::model::{Chain, Rule, Ruleset, Table};
use crate::backend::iptables::names::{EXT, FW, SEP, SVC, SVL};
use crate::desired::FamilyState;
use crate::net::Family;

/// What a mode's rules have that no list of rules can say.
pub(super) trait Scope {
    /// The family.
    fn family(&self) -> Family;
    /// Returns whether Services may stand in any order in `chain`.
    fn is_free(&self, table: &str, chain: &str) -> bool;
    /// Returns whether a chain that should not be there is kube-proxy's, and drift.
    fn is_extra(&self, table: &str, chain: &str) -> bool;
    /// Returns whether others may write in `chain`, which kube-proxy leaves alone then.
    fn is_shared(&self, table: &str, chain: &str) -> bool;
    /// Returns the service port that `chain` serves.
    fn owner(&self, chain: &str) -> Option<&str>;
    /// Returns the service port that `rule` serves, where its comment does not tell.
    fn owner_of(&self, _rule: &Rule<'_>) -> Option<&str> {
        None
    }
}

/// The iptables mode.
pub(super) struct Iptables<'a> {
    state: &'a FamilyState,
    names: &'a Names,
    /// Service ports by their chains; a node without differences needs none.
    owners: OnceCell<HashMap<&'a str, &'a str>>,
}

impl<'a> Iptables<'a> {
    pub(super) fn new(state: &'a FamilyState, names: &'a Names) -> Self {
        Self {
            state,
            names,
            owners: OnceCell::new(),
        }
    }

    fn owners(&self) -> HashMap<&'a str, &'a str> {
        let mut owners = HashMap::new();
        for (port, names) in self.state.ports.iter().zip(self.names.iter()) {
            let all = [&names.svc, &names.svl, &names.ext, &names.fw];
            for name in all.into_iter().chain(&names.seps) {
                owners.insert(name.as_str(), port.spn.as_str());
            }
        }
        owners
    }
}

impl Scope for Iptables<'_> {
    fn family(&self) -> Family {
        self.state.family
    }

    fn is_free(&self, _table: &str, chain: &str) -> bool {
        matches!(
            chain,
            "KUBE-SERVICES" | "KUBE-EXTERNAL-SERVICES" | "KUBE-NODEPORTS" | "KUBE-PROXY-FIREWALL"
        )
    }

    fn is_extra(&self, table: &str, chain: &str) -> bool {
        // A large cluster's stale chains wait to be collected; nothing leads to them.
        table == "nat" && !self.state.large && is_hashed(chain)
    }

    fn is_shared(&self, table: &str, chain: &str) -> bool {
        // kubelet's too: kube-proxy writes it only where NodePorts answer on localhost.
        (table, chain) == ("filter", "KUBE-FIREWALL") && !self.state.node_ports.localhost
    }

    fn owner(&self, chain: &str) -> Option<&str> {
        let owners = self.owners.get_or_init(|| self.owners());
        owners.get(chain).copied()
    }
}

/// Returns whether `chain` is named as kube-proxy names the chains of service ports.
fn is_hashed(chain: &str) -> bool {
    let hash = [SVC, SVL, EXT, FW, SEP]
        .iter()
        .find_map(|prefix| chain.strip_prefix(prefix));
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7'))
    })
}

/// Compares the chains that `want` names, and those kube-proxy would remove.
pub(super) fn compare(have: &Ruleset<'_>, want: &Ruleset<'_>, scope: &impl Scope) -> Vec<Change> {
    Comparison::new(have, scope).finish(want)
}

/// A comparison that is told chain by chain what should be there.
pub(super) struct Comparison<'r, 'a, S> {
    scope: &'r S,
    tables: Vec<There<'r, 'a>>,
    changes: Vec<Change>,
}

/// A table that is there.
struct There<'r, 'a> {
    table: &'r Table<'a>,
    /// Where the chains are. In a large cluster a binary search would wait for memory at every step.
    at: HashMap<&'r str, usize>,
    /// Whether the chain at a position should be there.
    wanted: Vec<bool>,
}

impl<'r, 'a, S: Scope> Comparison<'r, 'a, S> {
    pub(super) fn new(have: &'r Ruleset<'a>, scope: &'r S) -> Self {
        let tables = have.tables.iter().map(|table| {
            let chains = table.chains.iter().enumerate();
            There {
                table,
                at: chains.map(|(at, c)| (c.name.as_ref(), at)).collect(),
                wanted: vec![false; table.chains.len()],
            }
        });
        Self {
            scope,
            tables: tables.collect(),
            changes: Vec::new(),
        }
    }

    /// Compares what is there with the chain `want` of `table`.
    pub(super) fn chain(&mut self, table: &str, want: &Chain<'_>) {
        let mut tables = self.tables.iter_mut();
        let there = tables.find(|there| there.table.name == table);
        let there = there.and_then(|there| {
            let &at = there.at.get(want.name.as_ref())?;
            there.wanted[at] = true;
            Some(&there.table.chains[at])
        });
        let mut at = At {
            table,
            chain: &want.name,
            scope: self.scope,
            changes: &mut self.changes,
        };
        match there {
            _ if want.policy.is_some() => {
                at.jumps(there.map_or(&[], |chain| &chain.rules), &want.rules);
            }
            None => at.whole(Action::Missing, want),
            Some(there) => at.rules(&there.rules, &want.rules),
        }
    }

    /// Compares the rest of what should be there, and then looks for what should not.
    pub(super) fn finish(mut self, want: &Ruleset<'_>) -> Vec<Change> {
        for table in &want.tables {
            for chain in &table.chains {
                self.chain(&table.name, chain);
            }
        }
        for There { table, wanted, .. } in &self.tables {
            let chains = table.chains.iter().zip(wanted);
            for (chain, _) in chains.filter(|(_, wanted)| !**wanted) {
                if self.scope.is_extra(&table.name, &chain.name) {
                    let mut at = At {
                        table: &table.name,
                        chain: &chain.name,
                        scope: self.scope,
                        changes: &mut self.changes,
                    };
                    at.whole(Action::Extra, chain);
                }
            }
        }
        self.changes
    }
}

/// Where rules are compared.
struct At<'c, S> {
    table: &'c str,
    chain: &'c str,
    scope: &'c S,
    changes: &'c mut Vec<Change>,
}

impl<S: Scope> At<'_, S> {
    /// A chain that is missing or extra with all its rules.
    fn whole(&mut self, action: Action, chain: &Chain<'_>) {
        let rules: Vec<_> = chain.rules.iter().map(text).collect();
        let text = if rules.is_empty() {
            "an empty chain".to_owned()
        } else {
            rules.join("\n")
        };
        let owner = self.scope.owner(&chain.name).map(str::to_owned);
        // What should be there says whose it is; what should not be says it at best in its rules.
        let service = owner.or_else(|| {
            let rules = chain.rules.iter().filter(|_| action == Action::Extra);
            let mut named = rules.map(service);
            named.find(|spn| !spn.is_empty()).map(str::to_owned)
        });
        let (have, want) = match action {
            Action::Missing => (None, Some(text)),
            Action::Extra | Action::Differs => (Some(text), None),
        };
        let object = Object::Chain {
            table: self.table.to_owned(),
            chain: self.chain.to_owned(),
        };
        self.push(action, object, service, have, want);
    }

    /// A chain whose rules are all kube-proxy's.
    fn rules(&mut self, have: &[Rule<'_>], want: &[Rule<'_>]) {
        if self.scope.is_shared(self.table, self.chain) {
            return;
        }
        let edits = if self.scope.is_free(self.table, self.chain) {
            if have.len() == want.len() && have.iter().zip(want).all(|(a, b)| same(a, b)) {
                return;
            }
            let mut edits = sequence::grouped(have, want, key, same, service);
            edits.extend(misplaced(have, want));
            edits
        } else {
            sequence::ordered(have, want, key, same)
        };
        for edit in edits {
            self.edit(edit, have, want);
        }
    }

    /// A built-in chain: the jumps must be there, in any order; what else is there is not kube-proxy's.
    fn jumps(&mut self, have: &[Rule<'_>], want: &[Rule<'_>]) {
        for (want_at, other) in jumps(have, want) {
            let edit = match other {
                Some(have_at) => Edit::Differs(have_at, want_at),
                None => Edit::Missing(want_at),
            };
            self.edit(edit, have, want);
        }
    }

    fn edit(&mut self, edit: Edit, have: &[Rule<'_>], want: &[Rule<'_>]) {
        let (action, number, there, wanted) = match edit {
            Edit::Missing(want_at) => (Action::Missing, want_at, None, Some(&want[want_at])),
            Edit::Extra(have_at) => (Action::Extra, have_at, Some(&have[have_at]), None),
            Edit::Differs(have_at, want_at) | Edit::Moved(have_at, want_at) => (
                Action::Differs,
                have_at,
                Some(&have[have_at]),
                Some(&want[want_at]),
            ),
        };
        let owner = self.scope.owner(self.chain).map(str::to_owned);
        let service = owner.or_else(|| {
            let rule = wanted.or(there)?;
            let spn = match service(rule) {
                "" => self.scope.owner_of(rule)?,
                spn => spn,
            };
            Some(spn.to_owned())
        });
        let mut have = there.map(text);
        let mut want = wanted.map(text);
        if let Edit::Moved(have_at, want_at) = edit {
            for (text, at) in [(&mut have, have_at), (&mut want, want_at)] {
                *text = text.take().map(|text| format!("at {}: {text}", at + 1));
            }
        }
        let object = Object::Rule {
            table: self.table.to_owned(),
            chain: self.chain.to_owned(),
            number: number + 1,
        };
        self.push(action, object, service, have, want);
    }

    fn push(
        &mut self,
        action: Action,
        object: Object,
        service: Option<String>,
        have: Option<String>,
        want: Option<String>,
    ) {
        self.changes.push(Change {
            action,
            layer: Layer::Iptables,
            family: Some(self.scope.family()),
            object,
            service,
            have,
            want,
        });
    }
}

/// Returns where in `want` the jumps stand that `have`, the rules of a built-in chain, does not have, each with where in
/// `have` one stands that is wrong in its place.
pub fn jumps(have: &[Rule<'_>], want: &[Rule<'_>]) -> Vec<(usize, Option<usize>)> {
    let missing = want
        .iter()
        .enumerate()
        .filter(|(_, rule)| !have.iter().any(|there| same(there, rule)));
    let found = missing.map(|(want_at, rule)| {
        let other = have.iter().position(|there| {
            there.target == rule.target
                && !want.iter().any(|wanted| same(there, wanted))
                && !is_other_modes(there, rule)
        });
        (want_at, other)
    });
    found.collect()
}

/// Finds rules that stand where they do harm in a chain whose Services may stand in any order: the rules that lead to
/// NodePorts must come last.
fn misplaced(have: &[Rule<'_>], want: &[Rule<'_>]) -> Vec<Edit> {
    let is_tail = |rule: &Rule<'_>| rule.comment() == Some(TAIL);
    let Some(last) = have.iter().rposition(|rule| !service(rule).is_empty()) else {
        return Vec::new();
    };
    let early = have[..last].iter().enumerate().filter(|(_, r)| is_tail(r));
    early
        .filter_map(|(have_at, rule)| {
            let want_at = want.iter().position(|wanted| same(wanted, rule))?;
            Some(Edit::Moved(have_at, want_at))
        })
        .collect()
}

/// Returns the service port that the comment of `rule` begins with, or nothing.
fn service<'r>(rule: &'r Rule<'_>) -> &'r str {
    let comment = rule.comment().unwrap_or("");
    let word = comment.split(' ').next().unwrap_or("");
    if word.contains('/') { word } else { "" }
}

/// Returns whether `rule` is the jump of another mode to a chain that both modes have.
fn is_other_modes(rule: &Rule<'_>, wanted: &Rule<'_>) -> bool {
    rule.comment() != wanted.comment()
        && matches!(
            rule.comment(),
            Some("kube-proxy firewall rules" | "kubernetes load balancer firewall")
        )
}

fn text(rule: &Rule<'_>) -> String {
    // Every word has a space before it.
    rule.to_string().trim_start().to_owned()
}

/// Returns whether both rules do the same; the order of matches says nothing.
pub fn same(a: &Rule<'_>, b: &Rule<'_>) -> bool {
    if a.target != b.target || a.matches.len() != b.matches.len() {
        return false;
    }
    a.matches == b.matches || {
        let mut left: Vec<_> = b.matches.iter().collect();
        a.matches.iter().all(|m| {
            let at = left.iter().position(|other| *other == m);
            at.map(|at| left.swap_remove(at)).is_some()
        })
    }
}

/// Returns a number that is equal for rules that are the [`same`].
fn key(rule: &Rule<'_>) -> u64 {
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish()
    };
    let matches = rule.matches.iter().map(|m| hash(&|h| m.hash(h)));
    matches.fold(hash(&|h| rule.target.hash(h)), u64::wrapping_add)
}
