//! Deleting entries of the connection table.

use std::collections::BTreeMap;

use crate::check::{Why, stale};
use kpx_node::action::{Action, Flow, Plan, Undo};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::words::number_of;

/// The items that [`forget`] reads.
pub const FORGET_NEEDS: &[Item] = &[
    Item::Conntrack,
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::Addresses,
];

/// Returns the steps that delete the connections of `node` that no endpoint answers; `mode` is the one in force.
///
/// # Errors
///
/// The missing data that this needs.
pub fn forget(node: &NodeSnapshot<'_>, mode: Mode) -> Result<Plan, Gap> {
    let mut plan = Plan::default();
    let mut elsewhere = 0;
    let mut by_service: BTreeMap<_, Vec<Flow>> = BTreeMap::new();
    for of in stale(node, Some(mode))? {
        let entry = of.entry;
        if entry.zone != 0 {
            elsewhere += 1;
            continue;
        }
        let key = (of.service, of.why, entry.proto);
        by_service.entry(key).or_default().push(Flow {
            proto: entry.proto,
            source: entry.original.source,
            destination: entry.original.destination,
        });
    }
    for ((service, why, proto), flows) in by_service {
        let why = match why {
            Why::Gone => "whose endpoint is gone",
            Why::WithoutEndpoints => "to a Service without endpoints",
            Why::Untranslated => "that no rule translated",
        };
        let count = number_of(flows.len(), &format!("{proto} connection"));
        let title = format!("{service}: forget {count} {why}");
        let undo = Undo::never("the next packet begins a new connection, by the rules as they are");
        plan.push(title, Action::Conntrack { flows }, undo);
    }
    if elsewhere > 0 {
        plan.notes.push(format!(
            "left alone: {} in conntrack zones of other software",
            number_of(elsewhere, "stale connection")
        ));
    }
    Ok(plan)
}
