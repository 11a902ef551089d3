//! The nftables mode, and the tables of other software on the same hooks.

pub mod model;
pub mod parse;
pub mod print;
