//! Packets in the rules of iptables.

pub(crate) mod chain;
pub(crate) mod matches;
mod options;
mod sets;

pub(crate) use options::{fits_state, tells_data};
