//! The table as a whole.

use thiserror::Error;

use super::build;
use super::lease::Lease;
use super::mark::{Marks, NoBit};
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::nftables::print;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Why a bridge cannot be built.
#[derive(Debug, Error)]
pub enum Unbuildable {
    /// The Services, or other rules on the node, are unknown.
    #[error("cannot build the bridge without the Services and the other rules on this node")]
    Unknown(#[from] Gap),
    /// No bit of the packet mark is free.
    #[error(transparent)]
    NoBit(#[from] NoBit),
    /// It would treat packets to Services differently; the text names one. Rules of other software can be the reason, such as the
    /// policy DROP of the chain FORWARD, which KUBE-FORWARD of kube-proxy's rules precedes.
    #[error(
        "the bridge, without kube-proxy's rules, would not serve as they do: {0}; rules of other software on this node can be the reason"
    )]
    Unequal(String),
}

/// Returns the bits of the packet mark that no other rule of `node` uses.
pub fn marks(node: &NodeSnapshot<'_>, state: &DesiredState) -> Result<Marks, Unbuildable> {
    Ok(Marks::free(node, state)??)
}

/// Returns the tables of the bridge: one for each of `families` that `state` serves. `lease` begins when they are loaded.
///
/// # Errors
///
/// [`Gap`] if NodePorts are restricted to some addresses, and the node's addresses are unknown.
pub fn tables(
    state: &DesiredState,
    families: &[Family],
    marks: Marks,
    lease: &Lease,
) -> Result<Vec<Table>, Gap> {
    let states = state.families.iter();
    let states = states.filter(|state| families.contains(&state.family));
    states
        .map(|family_state| build::table(state, family_state, marks, lease))
        .collect()
}

/// Returns the input of `nft -f` that loads `tables`, replacing those of the same names.
pub fn text(tables: &[Table]) -> String {
    tables.iter().map(print::table).collect()
}
