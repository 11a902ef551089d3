//! A node and its cluster: the evidence, the rules of each mode, and the desired state of kube-proxy.
//!
//! Everything is pure: no clock, no environment, no sockets.

pub mod access;
pub mod action;
pub mod apply;
pub mod backend;
pub mod cluster;
pub mod desired;
pub mod dns;
pub mod evidence;
pub mod foreign;
pub mod net;
pub mod node;
pub mod owner;
#[cfg(feature = "testing")]
mod schema;
pub mod words;
