//! Packets in the tables of nftables.

mod chain;
pub(crate) mod matches;
