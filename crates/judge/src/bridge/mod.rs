//! The bridge: kpx's own nftables table, which serves new connections while kube-proxy changes its mode.
//!
//! kube-proxy removes the old mode's rules before it writes the new mode's. The bridge is loaded before the first and removed
//! after the second. Its nat chains run just before those of kube-proxy and the CNI plugin, so new connections take the
//! bridge; conntrack knows the established ones, which bypass it.
//!
//! The table has few objects. Every address and port of a Service leads to a chain that all ports with the same number of
//! endpoints share. A random number selects a chain, which looks the endpoint up by address and port. All endpoints at
//! the same position of their lists share a chain. A Service has a chain of its own only if it needs one, and most
//! changes of the cluster change elements only.
//!
//! The bridge serves while its [`Lease`] is renewed, so an abandoned bridge ends on its own.

mod build;
mod chains;
mod change;
mod lease;
mod mark;
mod probes;

use thiserror::Error;

pub use change::change;
use kpx_node::backend::chain_owner;
use kpx_node::backend::nftables::model::Table;
use kpx_node::backend::nftables::print;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::Gap;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
pub use lease::{Held, Lease, SET as LEASE};
pub use mark::{Marks, NoBit};
pub use probes::{SET as PROBES, pass};

/// The name of the bridge's tables; there is one for each family.
pub const TABLE: &str = chain_owner::BRIDGE;

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
