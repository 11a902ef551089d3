//! The plan that removes a difference.

mod iptables;
mod ipvs;
mod nftables;

use crate::action::{Action, Backend};
use crate::backend::Mode;
use crate::backend::iptables::expect::{Names, expect};
use crate::backend::iptables::model::Ruleset;
use crate::backend::nftables::expect as nft;
use crate::desired::{DesiredState, FamilyState};
use crate::diff::{self, Change, Diff, Layer, Object};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::{NodeSnapshot, Store};
use crate::plan::{Plan, Undo};

pub(super) use iptables::Edits;

/// What becomes of real servers that go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drain {
    /// They take no new connections, and go when they have none.
    First,
    /// They go with their connections.
    No,
}

/// Returns the steps that bring `node` from what it has to what it should have in `mode`: those of `found` whose layer is
/// one of `layers`.
pub fn repair(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    found: &Diff,
    layers: &[Layer],
    drain: Drain,
) -> Result<Plan, Gap> {
    let desired = node.desired(mode)?;
    let changes: Vec<&Change> = found
        .changes
        .iter()
        .filter(|change| layers.contains(&change.layer))
        .collect();
    let mut plan = Plan::default();
    let programs_ipvs = layers.contains(&Layer::Ipvs) || layers.contains(&Layer::Sysctl);
    if mode == Mode::Ipvs && programs_ipvs {
        plan.modules(node, desired);
    }
    plan.sysctls(&changes);
    let states = desired.families.iter();
    for state in states.filter(|state| families.contains(&state.family)) {
        let of: Vec<&Change> = changes
            .iter()
            .copied()
            .filter(|change| change.family.is_none_or(|family| family == state.family))
            .collect();
        // In ipvs mode something may have to go that is no difference.
        if of.is_empty() && mode != Mode::Ipvs {
            continue;
        }
        match mode {
            Mode::Iptables => plan.iptables(node, desired, state, &of)?,
            Mode::Nftables => plan.nftables(node, desired, state, &of)?,
            Mode::Ipvs => plan.ipvs(node, desired, state, &of, layers, drain)?,
        }
    }
    Ok(plan)
}

impl Plan {
    fn sysctls(&mut self, changes: &[&Change]) {
        for change in changes {
            let (Object::Sysctl { key }, Some(want)) = (&change.object, &change.want) else {
                continue;
            };
            let set = |value: &String| Action::Sysctl {
                key: key.clone(),
                value: value.clone(),
            };
            let undo = match &change.have {
                Some(have) => Undo::Do(set(have)),
                None => match fresh(key) {
                    Some(value) => Undo::Do(set(&value.to_owned())),
                    None => Undo::Never("its value was not there to be read"),
                },
            };
            self.push(format!("set {key} to {want}"), set(want), undo);
        }
    }

    fn iptables(
        &mut self,
        node: &NodeSnapshot<'_>,
        desired: &DesiredState,
        state: &FamilyState,
        changes: &[&Change],
    ) -> Result<(), Gap> {
        let names = Names::of(state);
        let want = expect(desired, state, &names)?;
        self.rules(node, state.family, &want, changes)
    }

    fn rules(
        &mut self,
        node: &NodeSnapshot<'_>,
        family: Family,
        want: &Ruleset<'_>,
        changes: &[&Change],
    ) -> Result<(), Gap> {
        let have = node.iptables(Store::InUse, family)?;
        let backend = backend(node, family);
        for edits in iptables::edits(have, want, changes) {
            edits.push(self, backend, family);
        }
        Ok(())
    }

    fn nftables(
        &mut self,
        node: &NodeSnapshot<'_>,
        desired: &DesiredState,
        state: &FamilyState,
        changes: &[&Change],
    ) -> Result<(), Gap> {
        let cidrs = diff::service_cidrs(node);
        if cidrs.is_empty() {
            self.notes.push(format!(
                "{}: the ranges that cluster IPs come from are not known here, so the rule that drops what goes to \
                 unallocated ones is left to kube-proxy",
                state.family
            ));
        }
        let want = nft::expect(desired, state, &cidrs)?;
        let rules = node.nft()?;
        let have = rules.table(nft::family_name(state.family), nft::TABLE);
        let (input, undo) = nftables::change(have, &want, changes);
        let count = changes.len();
        let s = if count == 1 { "" } else { "s" };
        let title = match have {
            None => format!("{}: create table {}", state.family, nft::TABLE),
            Some(_) => format!(
                "{}: {count} change{s} in table {}",
                state.family,
                nft::TABLE
            ),
        };
        self.push(
            title,
            Action::Nft { input },
            Undo::Do(Action::Nft { input: undo }),
        );
        Ok(())
    }
}

/// Returns what the kernel sets `key` to when the module that brings it is loaded.
fn fresh(key: &str) -> Option<&'static str> {
    match key.strip_prefix("net.ipv4.vs.")? {
        "conn_reuse_mode" => Some("1"),
        "conntrack" | "expire_nodest_conn" | "expire_quiescent_template" => Some("0"),
        _ => None,
    }
}

/// Returns the back end that the rules of `family` were read from, by the heading that its program wrote.
///
/// `iptables-save` of the legacy back end names none; before 1.8 there was no other.
pub(super) fn backend(node: &NodeSnapshot<'_>, family: Family) -> Backend {
    let heading = node
        .evidence()
        .text(Item::iptables(family))
        .ok()
        .and_then(|text| text.lines().find(|line| line.contains("enerated by ")));
    match heading {
        Some(line) if line.contains("-nft-save") || line.contains("(nf_tables)") => Backend::Nft,
        Some(line) if line.contains("-legacy-save") || of_two(line) => Backend::Legacy,
        _ => Backend::Plain,
    }
}

/// Tells whether the program of this heading (`# Generated by iptables-save v1.8.9 on …`) is of a release with two back
/// ends.
fn of_two(heading: &str) -> bool {
    let version = heading.split_once("-save v").map(|(_, rest)| rest);
    let mut numbers = version.into_iter().flat_map(|text| text.split(['.', ' ']));
    let mut next = || numbers.next()?.parse::<u32>().ok();
    (next(), next()) >= (Some(1), Some(8))
}
