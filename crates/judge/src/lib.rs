//! What happens to a connection, what is wrong with a node and why, and plans that repair it.
//!
//! Everything is pure: no clock, no environment, no sockets.

pub mod bridge;
pub mod check;
pub mod diff;
pub mod history;
pub mod meter;
pub mod plan;
pub mod proof;
pub mod redact;
pub mod repair;
pub mod requirements;
#[cfg(feature = "testing")]
mod schema;
pub mod trace;
pub mod verdict;
pub mod why;
