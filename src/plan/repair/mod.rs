//! The plan that removes a difference.

mod iptables;
mod nftables;

use crate::action::{Action, Backend};
use crate::backend::Mode;
use crate::backend::iptables::expect::{Names, expect};
use crate::backend::nftables::expect as nft;
use crate::desired::{DesiredState, FamilyState};
use crate::diff::{self, Change, Diff, Layer, Object};
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::{NodeSnapshot, Store};
use crate::plan::{Plan, Undo};

/// Returns the steps that bring `node` from what it has to what it should have in `mode`: those of `found` whose layer is
/// one of `layers`.
pub fn repair(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    found: &Diff,
    layers: &[Layer],
) -> Result<Plan, Gap> {
    let desired = node.desired(mode)?;
    let changes: Vec<&Change> = found
        .changes
        .iter()
        .filter(|change| layers.contains(&change.layer))
        .collect();
    let mut plan = Plan::default();
    plan.sysctls(&changes);
    for state in &desired.families {
        let of: Vec<&Change> = changes
            .iter()
            .copied()
            .filter(|change| change.family.is_none_or(|family| family == state.family))
            .collect();
        if of.is_empty() {
            continue;
        }
        match mode {
            Mode::Iptables => plan.iptables(node, desired, state, &of)?,
            Mode::Nftables => plan.nftables(node, desired, state, &of)?,
            Mode::Ipvs => {
                return Err(Gap::NotApplicable(
                    "the ipvs mode cannot be repaired yet".to_owned(),
                ));
            }
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
                None => Undo::Never("its value was not there to be read"),
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
        let have = node.iptables(Store::InUse, state.family)?;
        let backend = backend(node, state.family);
        for edits in iptables::edits(have, &want, changes) {
            edits.push(self, backend, state.family);
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

/// Returns the back end that the rules of `family` were read from, by the heading that its program wrote.
pub(super) fn backend(node: &NodeSnapshot<'_>, family: Family) -> Backend {
    let heading = node
        .evidence()
        .text(Item::iptables(family))
        .ok()
        .and_then(|text| text.lines().find(|line| line.contains("enerated by ")));
    match heading {
        Some(line) if line.contains("-nft-save") || line.contains("(nf_tables)") => Backend::Nft,
        Some(line) if line.contains("-legacy-save") => Backend::Legacy,
        _ => Backend::Plain,
    }
}
