//! The bridge: an nftables table of kpx's own that serves new connections while kube-proxy changes its mode.
//!
//! kube-proxy removes the mode it leaves before it programs the one it enters. The bridge stands from before the first
//! to after the second. Its nat chains run just before those of kube-proxy and the CNI plugin, so that a connection
//! that begins takes the bridge; one that has begun is known to conntrack and passes it by.
//!
//! The table is drawn up for few objects. Every address and port of a Service leads to a chain that all ports with as
//! many endpoints share. A random number leads on to a chain that all endpoints at that place of their lists share, which
//! looks the endpoint up by the address and port: no Service has a chain of its own unless it needs one, and most changes
//! of the cluster are changes of elements alone.
//!
//! It serves as long as its [`Lease`] is renewed, so that one that nobody keeps up to date does not stay.

mod build;
mod chains;
mod change;
mod lease;
mod mark;

use thiserror::Error;

use crate::backend::nftables::model::Table;
use crate::backend::nftables::print;
use crate::desired::DesiredState;
use crate::evidence::Gap;
use crate::net::Family;
use crate::node::NodeSnapshot;
pub use change::change;
pub use lease::{Held, Lease, SET as LEASE};
pub use mark::{Marks, NoBit};

/// The name of the bridge's tables, one for each family.
pub const TABLE: &str = "kpx-bridge";

/// Why there can be no bridge.
#[derive(Debug, Error)]
pub enum Unbuildable {
    /// What it would have to serve, or what it must not disturb, is not known.
    #[error("cannot tell what the bridge has to serve, or what it must not disturb")]
    Unknown(#[from] Gap),
    /// It cannot mark packets.
    #[error(transparent)]
    NoBit(#[from] NoBit),
}

/// Returns the bits to mark packets with on `node`, beside the rules that are there.
pub fn marks(node: &NodeSnapshot<'_>, state: &DesiredState) -> Result<Marks, Unbuildable> {
    Ok(Marks::free(node, state)??)
}

/// Returns the bridge for all of `families` that `state` serves, with `lease` from when it is loaded: a table each.
///
/// # Errors
///
/// [`Gap`] where NodePorts are served on some addresses and the node's are not known.
pub fn tables(
    state: &DesiredState,
    families: &[Family],
    marks: Marks,
    lease: &Lease,
) -> Result<Vec<Table>, Gap> {
    let states = state.families.iter();
    let states = states.filter(|of| families.contains(&of.family));
    states
        .map(|of| build::table(state, of, marks, lease))
        .collect()
}

/// Returns what `nft -f` reads to have `tables`, in the place of those that stand under the same names.
pub fn text(tables: &[Table]) -> String {
    tables.iter().map(print::table).collect()
}
