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
mod names;
mod probes;
mod table;

pub use change::change;
pub use lease::{Held, Lease, SET as LEASE};
pub use mark::{Marks, NoBit};
pub use names::TABLE;
pub use probes::{SET as PROBES, pass};
pub use table::{Unbuildable, marks, tables, text};
