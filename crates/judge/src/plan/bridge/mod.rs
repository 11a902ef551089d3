//! The plans that load and remove the bridge.

mod routes;

use std::fmt::Write as _;

use crate::bridge::{self, LEASE, Lease, PROBES, TABLE, Unbuildable};
use crate::proof;
use kpx_node::action::{Action, Plan, Undo};
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::{Set, Table};
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::words::number_of;

pub use routes::{ROUTE_NEEDS, Served, has_routes, routes_down, routes_up};

/// The items of [`bridge_up`] in addition to those of the desired state: the loaded bridge, and other rules that mark
/// packets.
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

/// The items of [`bridge_down`].
pub const BRIDGE_DOWN: &[Item] = &[Item::Nft, Item::NftText, Item::Addresses, Item::Routes];

/// Returns the plan that loads the bridge on `node`, for `families`, serving as `mode`: all tables at once, replacing the
/// loaded ones, with `lease`; and routes to the addresses of kube-ipvs0.
///
/// # Errors
///
/// If the Services, or other rules on the node, are unknown.
pub fn bridge_up(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    lease: &Lease,
) -> Result<Plan, Unbuildable> {
    let state = node.desired(mode)?;
    // Without its Node, its endpoints are unknown.
    node.nodes()?;
    let marks = bridge::marks(node, state)?;
    let tables = bridge::tables(state, families, marks, lease)?;
    let ports: usize = state.families.iter().map(|family| family.ports.len()).sum();
    let proof = if ports > MOST_PROVED {
        Some(format!(
            "not proved that the bridge sends every packet where mode {mode} would: with more than {MOST_PROVED} ports of \
             Services that would take long"
        ))
    } else {
        prove(node, mode, families, &tables)?
    };
    let mut plan = Plan::default();
    let standing = standing(node, families)?;
    let mut undo = bridge::text(&standing);
    for table in &tables {
        if !standing
            .iter()
            .any(|standing| standing.family == table.family)
        {
            delete(&mut undo, &table.family);
        }
    }
    let verb = if standing.is_empty() {
        "load"
    } else {
        "replace"
    };
    plan.push(
        format!(
            "{verb} the bridge for {} of Services, as mode {mode} serves them",
            number_of(ports, "port")
        ),
        Action::Nft {
            input: bridge::text(&tables),
        },
        Undo::Do(Action::Nft { input: undo }),
    );
    plan.notes.extend(proof);
    plan.notes.extend(state.notes.iter().cloned());
    let routes = routes_up(node, &Served::of(state), families)?;
    plan.steps.extend(routes.steps);
    plan.notes.extend(routes.notes);
    Ok(plan)
}

/// The number of ports of Services up to which the bridge is proved: the proof takes about 3 ms for each.
const MOST_PROVED: usize = 200;

/// Proves that `tables` send every packet to a Service where kube-proxy would in `mode`; returns a note if it cannot.
///
/// The bridge applies traffic policies as modes iptables and nftables do, for mode ipvs, too. For that mode it is compared with
/// mode nftables, where NodePorts do not answer on localhost either; like mode ipvs, and unlike mode nftables by default, it
/// serves them at every other address of the node.
fn prove(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    tables: &[Table],
) -> Result<Option<String>, Unbuildable> {
    let like = match mode {
        Mode::Iptables | Mode::Nftables => mode,
        Mode::Ipvs => Mode::Nftables,
        Mode::Userspace => Mode::Iptables,
    };
    let everywhere;
    let node = match node.proxy_config() {
        Ok(config) if mode == Mode::Ipvs && config.node_port_addresses.is_empty() => {
            let name = node.name().ok();
            let mut config = config.clone();
            config.node_port_addresses = ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec();
            everywhere = NodeSnapshot::new(node.evidence())
                .called(name.as_deref())
                .with_proxy_config(config);
            &everywhere
        }
        _ => node,
    };
    match proof::served_otherwise(node, tables.to_vec(), like, families) {
        Ok(None) => Ok(None),
        Ok(Some(found)) => Err(Unbuildable::Unequal(found)),
        Err(gap) => {
            let why = match gap {
                Gap::NotApplicable(why) => why,
                gap => gap.to_string(),
            };
            Ok(Some(format!(
                "not proved that the bridge sends every packet where mode {like} would: {why}"
            )))
        }
    }
}

/// Returns the plan that removes the bridge of `families` from `node`; empty if there is none. The tables are removed last:
/// while they exist, the bridge is known to need removal.
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

/// Returns the loaded tables of the bridge, without elements that its rules or probes add.
fn standing(node: &NodeSnapshot<'_>, families: &[Family]) -> Result<Vec<Table>, Gap> {
    let rules = match node.nft() {
        Ok(rules) => rules,
        Err(Gap::Absent(..) | Gap::NotApplicable(_)) => return Ok(Vec::new()),
        Err(gap) => return Err(gap),
    };
    let tables = families
        .iter()
        .filter_map(|&family| rules.table(family.nft_name(), TABLE));
    Ok(tables
        .cloned()
        .map(|mut table| {
            let is_filled = |set: &&mut Set| set.timeout.is_some() || set.name == PROBES;
            let filled = table.sets.iter_mut().filter(is_filled);
            filled.for_each(|set| set.elements.clear());
            // Comments name the keeper, which differs between the loaded bridge and the new one. An expired lease has no elements, so
            // it still differs.
            let leases = table.sets.iter_mut().filter(|set| set.name == LEASE);
            let elements = leases.flat_map(|set| &mut set.elements);
            elements.for_each(|element| element.comment = None);
            table
        })
        .collect())
}
