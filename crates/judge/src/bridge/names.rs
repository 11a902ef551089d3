//! The names of the table.

use kpx_node::backend::chain_owner;

/// The name of the bridge's tables; there is one for each family.
pub const TABLE: &str = chain_owner::BRIDGE;
