//! The iptables mode, and the rules every mode and other software write with iptables.

pub mod build;
pub mod change;
pub(crate) mod dispatch;
pub mod expect;
pub mod listing;
pub mod model;
pub mod names;
mod owned;
pub mod parse;
pub mod portals;
pub mod print;
pub(crate) mod requirements;
