//! The nftables mode, and the tables of other software on the same hooks.

pub mod affinity;
pub mod build;
pub mod change;
pub mod dispatch;
pub mod expect;
pub mod model;
pub mod names;
pub mod parse;
pub mod print;
pub(crate) mod requirements;
pub mod table_builder;
