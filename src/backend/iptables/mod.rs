//! The iptables mode, and the rules every mode and other software write with iptables.

pub(crate) mod build;
pub mod change;
pub mod dispatch;
pub mod expect;
pub mod listing;
pub mod model;
pub mod names;
mod own;
pub mod parse;
pub mod print;
pub mod requirements;
