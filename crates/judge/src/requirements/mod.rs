//! The requirements of a mode, with the state of the node: pure functions of the node.
//!
//! The requirements themselves are in `backend/requirements.rs` and `backend/<mode>/requirements.rs`.

mod access;
mod configuration;
mod kernel;
mod list;
mod modules;
mod mounts;
mod need;
mod sysctls;
mod tools;

pub use kpx_node::node::modules::Standing;
pub use list::{NEEDS, Requirements, of};
pub use need::{Area, Need, Status};
pub use sysctls::sysctls;
