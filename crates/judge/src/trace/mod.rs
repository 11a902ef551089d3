//! The path of one packet through the node, computed from the parsed state.
//!
//! The walk does no I/O. Over a whole snapshot it always finishes; over rules that are read chain by chain it returns the
//! chain it needs next, and runs again once that chain is read. A repeated walk costs less than starting a process.

pub mod affinity;
mod assume;
mod branch;
mod ending;
mod enter;
mod forwarding;
mod home;
pub(crate) mod hop;
mod index;
mod iptables;
mod ipvs;
pub(crate) mod link_hooks;
mod link_layer;
pub mod mismatch;
pub mod nearby;
pub(crate) mod nftables;
mod notes;
pub mod observed;
mod opening;
mod order;
pub(crate) mod packet;
pub mod question;
pub mod region;
pub(crate) mod route;
mod routing;
mod rule;
pub mod sources;
mod stage;
mod tail;
pub mod target;
mod tos;
mod ttl;
pub(crate) mod userspace;
pub(crate) mod walk;
mod walks;
pub mod why;
mod world;

pub use assume::Assumed;
pub use ending::overall;
pub use forwarding::{forwarded, not_forwarding};
pub(crate) use hop::COUNT;
pub use hop::{Assumption, Effect, Hook, Hop, Outcome, Pace, Question, Subsystem, Verdict};
pub(crate) use iptables::{fits_state, tells_data};
pub use ipvs::choose;
pub use notes::{Tracked, end_tracked, end_tracked_to, knows_endpoints, notes, tracked, unread};
pub(crate) use opening::TPROXY;
pub(crate) use packet::SENT_TTL;
pub use packet::{Carried, Entry, Flow, Follow, Further, OriginalTuple, Reply};
pub(crate) use rule::own_policies;
pub use rule::{Accepted, Insertion, PODS, Rule};
pub use stage::base_chains;
pub(crate) use walks::Kept;
pub use walks::Walks;
pub(crate) use why::end;
pub use why::why;
pub(crate) use world::Stop;
pub use world::{Chains, NEEDS, NOTES_NEEDS, Need, Rules, World};
