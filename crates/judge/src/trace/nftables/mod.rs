//! Packets in the tables of nftables.

pub(crate) mod chain;
mod matches;
pub(crate) mod value;
