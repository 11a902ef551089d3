//! The nftables mode, and the tables of other software on the same hooks.

mod build;
pub mod expect;
pub mod model;
pub mod names;
pub mod parse;
pub mod print;
