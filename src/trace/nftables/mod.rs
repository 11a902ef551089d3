//! Packets in the tables of nftables.

pub(crate) mod chain;
pub(crate) mod matches;
