//! The plans that set the bridge up and take it down.

mod routes;

use std::fmt::Write as _;

use crate::action::Action;
use crate::backend::Mode;
use crate::backend::nftables::model::Table;
use crate::bridge::{self, LEASE, Lease, TABLE, Unbuildable};
use crate::evidence::{Gap, IPTABLES, Item, join};
use crate::net::Family;
use crate::node::NodeSnapshot;
use crate::plan::{Plan, Undo};
pub use routes::{ROUTE_NEEDS, Served, has_routes, routes_down, routes_up};

/// What [`bridge_up`] looks at beside what the desired state is built from: what stands, and what others mark packets with.
pub const BRIDGE_RULES: &[Item] = &join::<11>(&[
    IPTABLES,
    &[
        Item::Nft,
        Item::NftText,
        Item::Rules,
        Item::Processes,
        Item::Routes,
    ],
]);

/// What [`bridge_down`] looks at.
pub const BRIDGE_DOWN: &[Item] = &[Item::Nft, Item::NftText, Item::Addresses, Item::Routes];

/// Returns the steps that have `node` bridged, for `families`, with what it serves in `mode`: all tables at once, in the
/// place of those that stand, with `lease`, and routes to the addresses that kube-ipvs0 holds.
///
/// # Errors
///
/// Where anything is not known that the bridge has to serve or must not disturb.
pub fn bridge_up(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    lease: &Lease,
) -> Result<Plan, Unbuildable> {
    let state = node.desired(mode)?;
    // Without its Node, it is not known which endpoints are meant for it.
    node.nodes()?;
    let marks = bridge::marks(node, state)?;
    let tables = bridge::tables(state, families, marks, lease)?;
    let ports: usize = state.families.iter().map(|of| of.ports.len()).sum();
    let mut plan = Plan::default();
    let standing = standing(node, families)?;
    let mut undo = bridge::text(&standing);
    for table in &tables {
        if !standing.iter().any(|of| of.family == table.family) {
            delete(&mut undo, &table.family);
        }
    }
    let verb = if standing.is_empty() {
        "load"
    } else {
        "replace"
    };
    plan.push(
        format!("{verb} the bridge for {ports} ports of Services, as mode {mode} serves them"),
        Action::Nft {
            input: bridge::text(&tables),
        },
        Undo::Do(Action::Nft { input: undo }),
    );
    plan.notes.extend(state.notes.iter().cloned());
    let routes = routes_up(node, &Served::of(state), families)?;
    plan.steps.extend(routes.steps);
    plan.notes.extend(routes.notes);
    Ok(plan)
}

/// Returns the steps that have no bridge on `node`, of `families`; none where there is none. The tables are the last to
/// go: while they stand, somebody has to take the bridge down.
pub fn bridge_down(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Plan, Gap> {
    let standing = standing(node, families)?;
    let mut plan = routes_down(node, families)?;
    if !standing.is_empty() {
        let mut input = String::new();
        for table in &standing {
            delete(&mut input, &table.family);
        }
        plan.push(
            "remove the bridge",
            Action::Nft { input },
            Undo::Do(Action::Nft {
                input: bridge::text(&standing),
            }),
        );
    }
    Ok(plan)
}

fn delete(text: &mut String, family: &str) {
    writeln!(text, "delete table {family} {TABLE}").expect("writing to a String does not fail");
}

/// Returns the bridge's tables that stand, without what a rule fills in by itself.
fn standing(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Vec<Table>, Gap> {
    let rules = match node.nft() {
        Ok(rules) => rules,
        Err(Gap::Absent(..) | Gap::NotApplicable(_)) => return Ok(Vec::new()),
        Err(gap) => return Err(gap),
    };
    let tables = families
        .iter()
        .filter_map(|&of| rules.table(of.nft_name(), TABLE));
    Ok(tables
        .cloned()
        .map(|mut table| {
            let filled = table.sets.iter_mut().filter(|set| set.timeout.is_some());
            filled.for_each(|set| set.elements.clear());
            // One that has expired stays so; who kept the other is not who loads it again.
            let leases = table.sets.iter_mut().filter(|set| set.name == LEASE);
            let elements = leases.flat_map(|set| &mut set.elements);
            elements.for_each(|element| element.comment = None);
            table
        })
        .collect())
}
