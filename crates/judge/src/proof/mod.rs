//! Every packet, not a sample: the first packets of connections through a node, divided into classes with the same fate.
//!
//! The walk of [`crate::trace`] answers for one packet. Here it also records each question that it asks about the packet: is its
//! destination this address, is its source in that prefix? All packets with the same answers share its fate. The next packet
//! walked is one outside that region, until no packet is left. Almost all rules of kube-proxy have exact keys, which cost one
//! look-up: so a class costs as much as one walk.
//!
//! A class is walked on several sides at once, such as the live rules and the expected ones, and parts of the packets side by side on all
//! processors. What the state does not determine (limits, owners, unknown matches) stays a condition of a fate. A walk assumes a new
//! client, as in a trace, and every client may be bound to one backend by affinity afterwards.

mod classes;
pub mod difference;
mod fate;
mod marks;
mod packets;
mod space;

pub use classes::{Class, around};
pub(crate) use classes::{classes, with_fate};
pub use fate::{Fate, Way};
pub(crate) use marks::clears_mark;
pub use packets::{Comparison, Packets, Proved, beside_others, in_mode, of_node, served_otherwise};
pub use space::Space;
