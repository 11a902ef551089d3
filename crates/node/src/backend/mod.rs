//! The proxy modes: how each one's rules are read, what they should be, how they change.

pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub mod nftables;
pub mod program;
pub mod requirements;
pub mod software;

pub use crate::cluster::config::Mode;
