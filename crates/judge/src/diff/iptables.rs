//! The iptables rules of one family compared with the desired ones.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::change::{Change, ChangeKind, Delta, Object};
use super::sequence::{self, Edit};
use kpx_node::backend::chain_owner::hashed;
use kpx_node::backend::iptables::change::missing_jumps;
use kpx_node::backend::iptables::expect::{Names, TAIL};
use kpx_node::backend::iptables::model::{Chain, Match, Rule, Ruleset, Table, Target};
use kpx_node::backend::iptables::names::XLB;
use kpx_node::desired::FamilyState;
use kpx_node::net::{Family, Mark};

/// The mark of packets that the kubelet's rules drop.
const DROP_MARK: Mark = Mark {
    value: 0x8000,
    mask: 0x8000,
};

/// The properties of a mode's rules that a list of rules cannot express.
pub(super) trait Scope {
    /// The family.
    fn family(&self) -> Family;
    /// Returns whether Services may be in any order in `chain`.
    fn is_free(&self, _table: &str, _chain: &str) -> bool {
        false
    }
    /// Returns whether an extra chain is drift.
    fn is_extra(&self, _table: &str, _chain: &str) -> bool {
        false
    }
    /// Returns whether other software may write in `chain`, in which case kube-proxy ignores it.
    fn is_shared(&self, _table: &str, _chain: &str) -> bool {
        false
    }
    /// Returns whether `rule` of `chain` may be other software's, in which case kube-proxy leaves it there.
    fn is_others(&self, _table: &str, _chain: &str, _rule: &Rule<'_>) -> bool {
        false
    }
    /// Returns the service port that `chain` serves.
    fn owner(&self, _chain: &str) -> Option<&str> {
        None
    }
    /// Returns the service port that `rule` serves if its comment does not name it.
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
        table == "nat"
            && !self.state.large
            && hashed(chain).is_some_and(|(prefix, _)| prefix != XLB)
    }

    fn is_shared(&self, table: &str, chain: &str) -> bool {
        // kubelet's too: kube-proxy writes it only where NodePorts answer on localhost.
        (table, chain) == ("filter", "KUBE-FIREWALL") && !self.state.node_ports.localhost
    }

    fn is_others(&self, table: &str, chain: &str, rule: &Rule<'_>) -> bool {
        // A kubelet before 1.28 writes it, and it stays until the node boots.
        let is_its_mark = |matched: &Match<'_>| match matched {
            Match::Mark(matched) => !matched.inverted && matched.value == DROP_MARK,
            _ => false,
        };
        (table, chain) == ("filter", "KUBE-FIREWALL")
            && rule.target == Some(Target::Drop)
            && rule.matches.iter().any(is_its_mark)
    }

    fn owner(&self, chain: &str) -> Option<&str> {
        let owners = self.owners.get_or_init(|| self.owners());
        owners.get(chain).copied()
    }
}

/// Compares the chains that `want` names, and those kube-proxy would remove.
pub(super) fn compare(have: &Ruleset<'_>, want: &Ruleset<'_>, scope: &impl Scope) -> Vec<Change> {
    Comparison::new(have, scope).finish(want)
}

/// A comparison that receives the desired chains one by one.
pub(super) struct Comparison<'r, 'a, S> {
    scope: &'r S,
    tables: Vec<There<'r, 'a>>,
    changes: Vec<Change>,
}

/// A live table.
struct There<'r, 'a> {
    table: &'r Table<'a>,
    /// The position of each chain. In a large cluster a binary search would wait for memory at every step.
    at: HashMap<&'r str, usize>,
    /// For each chain, whether it is desired.
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

    /// Compares the live chain with the desired chain `want` of `table`.
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
            None => at.whole(ChangeKind::Missing, want),
            Some(there) => at.rules(&there.rules, &want.rules),
        }
    }

    /// Compares the remaining desired chains, then finds the extra ones.
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
                    at.whole(ChangeKind::Extra, chain);
                }
            }
        }
        self.changes
    }
}

/// The chain whose rules are compared.
struct At<'c, S> {
    table: &'c str,
    chain: &'c str,
    scope: &'c S,
    changes: &'c mut Vec<Change>,
}

impl<S: Scope> At<'_, S> {
    /// A chain that is missing or extra with all its rules.
    fn whole(&mut self, kind: ChangeKind, chain: &Chain<'_>) {
        let owner = self.scope.owner(&chain.name).map(str::to_owned);
        // The desired state has the owner; for a live chain, only its rules may name it.
        let service = owner.or_else(|| {
            let rules = chain.rules.iter().filter(|_| kind == ChangeKind::Extra);
            let mut named = rules.map(service);
            named.find(|spn| !spn.is_empty()).map(str::to_owned)
        });
        let rules = chain.rules.iter().map(Rule::owned).collect();
        let rules = match kind {
            ChangeKind::Missing => Delta::missing(rules),
            ChangeKind::Extra | ChangeKind::Differs => Delta::extra(rules),
        };
        let object = Object::IptablesChain {
            table: self.table.to_owned(),
            chain: self.chain.to_owned(),
            rules,
        };
        self.push(object, service);
    }

    /// A chain whose rules are all kube-proxy's.
    fn rules(&mut self, have: &[Rule<'_>], want: &[Rule<'_>]) {
        if self.scope.is_shared(self.table, self.chain) {
            return;
        }
        let mut edits = if self.scope.is_free(self.table, self.chain) {
            if have.len() == want.len() && have.iter().zip(want).all(|(a, b)| a.is_same(b)) {
                return;
            }
            let mut edits = sequence::grouped(have, want, key, Rule::is_same, service);
            edits.extend(misplaced(have, want));
            edits
        } else {
            sequence::ordered(have, want, key, Rule::is_same)
        };
        let (scope, table, chain) = (self.scope, self.table, self.chain);
        edits.retain(
            |edit| !matches!(edit, Edit::Extra(at) if scope.is_others(table, chain, &have[*at])),
        );
        for edit in edits {
            self.edit(edit, have, want);
        }
    }

    /// A built-in chain: the jumps must be live, in any order; other rules in it are not kube-proxy's.
    fn jumps(&mut self, have: &[Rule<'_>], want: &[Rule<'_>]) {
        for (want_at, other) in missing_jumps(have, want) {
            let edit = match other {
                Some(have_at) => Edit::Differs(have_at, want_at),
                None => Edit::Missing(want_at),
            };
            self.edit(edit, have, want);
        }
    }

    fn edit(&mut self, edit: Edit, have: &[Rule<'_>], want: &[Rule<'_>]) {
        let (at, rule) = edit.delta(have, want);
        let owner = self.scope.owner(self.chain).map(str::to_owned);
        let service = owner.or_else(|| {
            let rule = rule.want().or(rule.have())?;
            let spn = match service(rule) {
                "" => self.scope.owner_of(rule)?,
                spn => spn,
            };
            Some(spn.to_owned())
        });
        let object = Object::IptablesRule {
            table: self.table.to_owned(),
            chain: self.chain.to_owned(),
            at,
            rule: rule.map(Rule::owned),
        };
        self.push(object, service);
    }

    fn push(&mut self, object: Object, service: Option<String>) {
        self.changes.push(Change {
            family: Some(self.scope.family()),
            service,
            object,
        });
    }
}

/// Finds misplaced rules in a chain whose Services may be in any order: the rules that lead to NodePorts must come last.
fn misplaced(have: &[Rule<'_>], want: &[Rule<'_>]) -> Vec<Edit> {
    let is_tail = |rule: &Rule<'_>| rule.comment() == Some(TAIL);
    let Some(last) = have.iter().rposition(|rule| !service(rule).is_empty()) else {
        return Vec::new();
    };
    let early = have[..last].iter().enumerate().filter(|(_, r)| is_tail(r));
    early
        .filter_map(|(have_at, rule)| {
            let want_at = want.iter().position(|wanted| wanted.is_same(rule))?;
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

/// Returns a number that is equal for rules that are [`Rule::is_same`].
fn key(rule: &Rule<'_>) -> u64 {
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish()
    };
    let matches = rule.matches.iter().map(|m| hash(&|h| m.hash(h)));
    matches.fold(hash(&|h| rule.target.hash(h)), u64::wrapping_add)
}
