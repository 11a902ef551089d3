//! Sets: the changes made before anything refers to their members, and those made after.

use std::collections::{HashMap, HashSet};

use super::super::counted;
use crate::diff::{Change, Delta, Object};
use kpx_node::backend::ipset::change::Edits;
use kpx_node::backend::ipset::{Member, Set, Sets};
use kpx_node::backend::iptables::model::Match;
use kpx_node::backend::ipvs::expect::{SETS, set_name};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// Sets whose members are added first and deleted last. The first two exempt packets from a drop by another set. The last has
/// every address of kube-ipvs0: the rules reject packets to its members that match no Service, so an address stays in it until
/// it is removed from kube-ipvs0.
const WIDE: &[&str] = &[
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-IPVS-IPS",
];

/// The changes of sets, in two steps, each with its title.
#[derive(Debug, Default)]
pub(super) struct SetPhases {
    pub(super) first: (Vec<String>, Edits),
    pub(super) last: (Vec<String>, Edits),
}

/// How one set differs.
#[derive(Debug, Default)]
struct Touched<'c> {
    /// Whether the set itself, or the options of a member, differ.
    differs: bool,
    missing: Vec<&'c str>,
    extra: Vec<&'c str>,
}

impl SetPhases {
    pub(super) fn new(
        node: &NodeSnapshot<'_>,
        want: &Sets<'_>,
        family: Family,
        changes: &[&Change],
    ) -> Result<Self, Gap> {
        let have = node.ipset_or_none()?;
        let mut touched: HashMap<&str, Touched<'_>> = HashMap::new();
        for change in changes {
            match &change.object {
                Object::Set { name, .. } => touched.entry(name).or_default().differs = true,
                Object::Member { set, member } => {
                    let of = touched.entry(set).or_default();
                    match member {
                        Delta::Missing(member) => of.missing.push(&member.element),
                        Delta::Extra(member) => of.extra.push(&member.element),
                        Delta::Differs { .. } => of.differs = true,
                    }
                }
                _ => {}
            }
        }
        let mut plan = Self::default();
        let mut writer = Writer::default();
        for kind in SETS {
            let name = set_name(kind.name, family);
            if plan.first.1.clear(have, &name) {
                writer.left += 1;
            }
        }
        // Sets that exempt packets from a drop come before the sets that drop them.
        let mut order: Vec<_> = SETS.iter().map(|kind| kind.name).collect();
        order.sort_by_key(|name| !name.contains("-SOURCE-"));
        for name in order {
            let full = set_name(name, family);
            let (Some(of), Some(want)) = (touched.get(full.as_ref()), want.set(&full)) else {
                continue;
            };
            writer.set(
                &mut plan,
                node,
                WIDE.contains(&name),
                have.set(&full),
                want,
                of,
            )?;
        }
        writer.titles(&mut plan);
        Ok(plan)
    }
}

/// The number of changes, for the titles.
#[derive(Debug, Default)]
struct Writer {
    left: usize,
    created: usize,
    replaced: usize,
    added: usize,
    deleted: usize,
    deleted_last: usize,
}

impl Writer {
    fn set(
        &mut self,
        plan: &mut SetPhases,
        node: &NodeSnapshot<'_>,
        wide: bool,
        have: Option<&Set<'_>>,
        want: &Set<'_>,
        of: &Touched<'_>,
    ) -> Result<(), Gap> {
        let Some(have) = have else {
            self.created += 1;
            plan.first.1.create(want);
            return Ok(());
        };
        let same = |option| have.option(option) == want.option(option);
        if have.kind != want.kind || !same("family") {
            if is_matched(node, &have.name)? {
                let why = format!(
                    "set {} is of type {} and should be of type {}, but rules match it, so its type cannot change: delete \
                     these rules (see `iptables-save`), or run `kpx reconcile --cleanup ipvs`",
                    have.name, have.kind, want.kind
                );
                return Err(Gap::Failed(Item::Ipset, why));
            }
            self.replaced += 1;
            plan.first.1.exchange(have, want);
            return Ok(());
        }
        // A plan is easier to read with the changed members alone.
        let kept = have.members.len().saturating_sub(of.extra.len());
        let few = of.missing.len() + of.extra.len() <= kept.max(1);
        if of.differs || !(few || wide) {
            self.replaced += 1;
            plan.first.1.replace(have, want);
            return Ok(());
        }
        let missing = members(want, &of.missing);
        let extra = members(have, &of.extra);
        self.added += missing.len();
        if wide {
            self.deleted_last += extra.len();
            plan.first.1.edit(&want.name, missing, []);
            plan.last.1.edit(&want.name, [], extra);
        } else {
            self.deleted += extra.len();
            plan.first.1.edit(&want.name, missing, extra);
        }
        Ok(())
    }

    fn titles(&self, plan: &mut SetPhases) {
        plan.first.0 = counted(&[
            (self.left, "delete", "leftover set of an interrupted run"),
            (self.created, "create", "set"),
            (self.replaced, "replace", "set"),
            (self.added, "add", "member"),
            (self.deleted, "delete", "member"),
        ]);
        plan.last.0 = counted(&[(self.deleted_last, "delete", "member")]);
    }
}

/// Returns whether a rule of the back end in use matches the set `name`.
fn is_matched(node: &NodeSnapshot<'_>, name: &str) -> Result<bool, Gap> {
    for family in Family::BOTH {
        let rules = node.iptables(IptablesBackend::InUse, family)?;
        let mut chains = rules.tables.iter().flat_map(|table| &table.chains);
        let matches = |m: &Match<'_>| matches!(m, Match::Set { name: of, .. } if of.value == name);
        if chains.any(|chain| {
            chain
                .rules
                .iter()
                .any(|rule| rule.matches.iter().any(matches))
        }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the members of `set` that `elements` name, with their options.
fn members<'s>(set: &'s Set<'_>, elements: &[&str]) -> Vec<&'s Member<'s>> {
    let named: HashSet<&str> = elements.iter().copied().collect();
    // A comparison has single addresses without their length.
    let bare = |element: &'s str| {
        let bare = element.strip_suffix("/32");
        bare.or_else(|| element.strip_suffix("/128"))
            .unwrap_or(element)
    };
    let members = set.members.iter();
    members
        .filter(|member| named.contains(bare(&member.element)))
        .collect()
}
