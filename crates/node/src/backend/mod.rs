//! The proxy modes: reading, expected state and changes of the rules of each.

pub mod chain_owner;
pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub mod nftables;
pub mod program;
pub mod requirements;

pub use crate::cluster::config::Mode;
