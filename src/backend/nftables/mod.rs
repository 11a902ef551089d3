//! The nftables mode, and the tables of other software on the same hooks.

pub(crate) mod build;
pub mod change;
pub mod dispatch;
pub(crate) mod draft;
pub mod expect;
pub mod model;
pub mod names;
pub mod parse;
pub mod print;
pub mod requirements;
pub(crate) mod sticky;
