//! The iptables mode, and the rules every mode and other software write with iptables.

pub(crate) mod build;
pub(crate) mod change;
pub(crate) mod dispatch;
pub mod expect;
pub(crate) mod listing;
pub mod model;
pub mod names;
mod own;
pub mod parse;
pub mod portals;
pub mod print;
pub(crate) mod requirements;
