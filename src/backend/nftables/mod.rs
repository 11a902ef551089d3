//! The nftables mode, and the tables of other software on the same hooks.

pub(crate) mod build;
pub(crate) mod change;
pub(crate) mod dispatch;
pub(crate) mod draft;
pub(crate) mod expect;
pub mod model;
pub(crate) mod names;
pub mod parse;
pub mod print;
pub(crate) mod requirements;
pub(crate) mod sticky;
