//! The iptables mode, and the rules every mode and other software write with iptables.

pub mod model;
pub mod names;
pub mod parse;
pub mod print;
