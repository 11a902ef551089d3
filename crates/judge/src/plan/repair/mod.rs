//! The plan that removes the differences of a node.

mod advance;
mod ipvs;

pub use advance::Programmed;

use super::draft::Draft;
use crate::diff::{self, Change, ChangeKind, Diff, Layer, Object};
use kpx_node::action::{Action, Backend, Plan, Undo};
use kpx_node::backend::iptables::expect::Names;
use kpx_node::backend::iptables::model::Ruleset;
use kpx_node::backend::iptables::portals::unknown_ports;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::{Mode, iptables, nftables};
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use kpx_node::words::number_of;

/// How removed real servers end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drain {
    /// They take no new connections, and are deleted when idle.
    First,
    /// They are deleted with their connections.
    No,
}

/// Returns the steps that remove the differences `found` of `node` from the desired state of `mode`, in `layers` only.
pub fn repair(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    found: &Diff,
    layers: &[Layer],
    drain: Drain,
) -> Result<Plan, Gap> {
    repair_to(node, node.desired(mode)?, families, found, layers, drain)
}

/// Returns the steps of [`repair`] for `desired`, which need not be the state that the evidence of `node` gives.
pub fn repair_to(
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    families: &[Family],
    found: &Diff,
    layers: &[Layer],
    drain: Drain,
) -> Result<Plan, Gap> {
    let mode = desired.mode;
    let changes: Vec<&Change> = found
        .changes
        .iter()
        .filter(|change| layers.contains(&change.layer()))
        .collect();
    let mut draft = Draft::default();
    let programs_ipvs = layers.contains(&Layer::Ipvs) || layers.contains(&Layer::Sysctl);
    if mode == Mode::Ipvs && programs_ipvs {
        draft.modules(node, desired);
    }
    draft.sysctls(&changes);
    let states = desired.families.iter();
    for state in states.filter(|state| families.contains(&state.family)) {
        let of: Vec<&Change> = changes
            .iter()
            .copied()
            .filter(|change| change.family.is_none_or(|family| family == state.family))
            .collect();
        // Mode ipvs also removes drained real servers, which count as no difference.
        if of.is_empty() && mode != Mode::Ipvs {
            continue;
        }
        match mode {
            Mode::Iptables => draft.iptables(node, desired, state, &of)?,
            Mode::Nftables => draft.nftables(node, desired, state, &of)?,
            Mode::Ipvs => draft.ipvs(node, desired, state, &of, layers, drain)?,
            Mode::Userspace => return Err(unknown_ports()),
        }
    }
    Ok(draft.plan)
}

impl Draft {
    fn sysctls(&mut self, changes: &[&Change]) {
        for change in changes {
            let Object::Sysctl { key, value } = &change.object else {
                continue;
            };
            let Some(want) = value.want() else {
                continue;
            };
            let set = |value: &str| Action::Sysctl {
                key: (*key).to_owned(),
                value: value.to_owned(),
            };
            let undo = match value.have() {
                Some(have) => Undo::Do(set(have)),
                None => match fresh(key) {
                    Some(value) => Undo::Do(set(value)),
                    None => Undo::never("its value could not be read before"),
                },
            };
            self.plan
                .push(format!("set {key} to {want}"), set(want), undo);
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
        let want = iptables::expect::expect(desired, state, &names)?;
        self.rules(node, state.family, &want, changes)
    }

    fn rules(
        &mut self,
        node: &NodeSnapshot<'_>,
        family: Family,
        want: &Ruleset<'_>,
        changes: &[&Change],
    ) -> Result<(), Gap> {
        let have = node.iptables(IptablesBackend::InUse, family)?;
        self.edits(have, want, changes, backend(node, family), family);
        Ok(())
    }

    fn edits(
        &mut self,
        have: &Ruleset<'_>,
        want: &Ruleset<'_>,
        changes: &[&Change],
        backend: Backend,
        family: Family,
    ) {
        let chains = changes
            .iter()
            .filter_map(|change| change.object.iptables_chain());
        for edits in iptables::change::edits(have, want, &chains.collect()) {
            self.table(edits, backend, family);
        }
    }

    /// Adds the steps that change one table.
    pub(super) fn table(
        &mut self,
        edits: iptables::change::Edits<'_, '_>,
        backend: Backend,
        family: Family,
    ) {
        for part in edits.parts(backend) {
            let words = counted(&part.counts()).join(", ");
            let (change, undo) = part.actions(backend, family);
            let title = format!("{family} table {}: {words}", part.table());
            self.plan.push(title, change, Undo::Do(undo));
        }
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
            self.plan.notes.push(format!(
                "{}: the Service IP ranges are unknown, so the rule that drops traffic to unallocated cluster IPs is left \
                 to kube-proxy",
                state.family
            ));
        }
        let want = nftables::expect::expect(desired, state, &cidrs)?;
        let rules = node.nft()?;
        let table = nftables::expect::TABLE;
        let have = rules.table(state.family.nft_name(), table);
        self.nft_table(have, &want, changes, state.family);
        Ok(())
    }

    fn nft_table(
        &mut self,
        have: Option<&Table>,
        want: &Table,
        changes: &[&Change],
        family: Family,
    ) {
        let table = nftables::expect::TABLE;
        let what = match changes.len() {
            _ if have.is_none() => format!("create table {table}"),
            1 => format!("1 change in table {table}"),
            count => format!("{count} changes in table {table}"),
        };
        let title = format!("{family}: {what}");
        let (change, undo) = in_table(changes).actions(have, want);
        self.plan.push(title, change, Undo::Do(undo));
    }
}

/// Returns the objects of the nftables table that `changes` name.
fn in_table<'c>(changes: &[&'c Change]) -> nftables::change::Edits<'c> {
    let mut edits = nftables::change::Edits::default();
    for change in changes {
        match &change.object {
            // A hook or type cannot be altered in place; a dormant table gets its hooks anew.
            Object::NftablesTable { .. }
            | Object::NftablesChain { .. }
            | Object::NftablesSet { .. }
                if change.kind() == ChangeKind::Differs =>
            {
                edits.replace();
            }
            Object::NftablesChain { chain, .. } | Object::NftablesRule { chain, .. } => {
                edits.chain(chain);
            }
            Object::NftablesSet { name, .. } => edits.set(name),
            Object::NftablesElement { set, element } => {
                edits.element(set, element.have(), element.want());
            }
            _ => {}
        }
    }
    edits
}

/// Returns the changes in words, without those whose number is 0: "add 1 member", "delete 2 members".
fn counted(parts: &[(usize, &str, &str)]) -> Vec<String> {
    let parts = parts.iter().filter(|(number, _, _)| *number > 0);
    let words = parts.map(|(number, verb, what)| format!("{verb} {}", number_of(*number, what)));
    words.collect()
}

/// Returns the value of `key` right after the module that defines it is loaded; `None` if it is no sysctl of a module.
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
        Some(line)
            if line.contains("-legacy-save") || line.contains("(legacy)") || of_two(line) =>
        {
            Backend::Legacy
        }
        _ => Backend::Plain,
    }
}

/// Returns whether the program of this heading (`# Generated by iptables-save v1.8.9 on …`) is of a release with two back
/// ends.
fn of_two(heading: &str) -> bool {
    let version = heading.split_once("-save v").map(|(_, rest)| rest);
    let mut numbers = version.into_iter().flat_map(|text| text.split(['.', ' ']));
    let mut next = || numbers.next()?.parse::<u32>().ok();
    (next(), next()) >= (Some(1), Some(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Evidence;

    #[test]
    fn the_heading_of_saved_rules_names_the_back_end() {
        for (heading, want) in [
            ("# Generated by iptables-nft-save v1.8.9 on x", Backend::Nft),
            (
                "# Generated by iptables-save v1.8.9 (nf_tables) on x",
                Backend::Nft,
            ),
            (
                "# Generated by iptables-legacy-save v1.8.9 on x",
                Backend::Legacy,
            ),
            (
                "# Generated by iptables-save v1.8.4 (legacy) on x",
                Backend::Legacy,
            ),
            (
                "# Generated by kpx from the kernel (legacy)",
                Backend::Legacy,
            ),
            ("# Generated by iptables-save v1.8.2 on x", Backend::Legacy),
            ("# Generated by iptables-save v2.0 on x", Backend::Legacy),
            ("# Generated by iptables-save v1.6.1 on x", Backend::Plain),
            ("# Generated by a program", Backend::Plain),
            ("# no heading", Backend::Plain),
        ] {
            let mut evidence = Evidence::default();
            evidence.insert(
                Item::Iptables4,
                Ok(format!("# first\n{heading}\n*nat\nCOMMIT\n")),
            );
            let node = NodeSnapshot::new(&evidence);
            assert_eq!(backend(&node, Family::V4), want, "{heading}");
            assert_eq!(backend(&node, Family::V6), Backend::Plain);
        }
    }
}
