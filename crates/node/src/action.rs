//! One change to a node or its cluster, as data. [`fmt::Display`] prints the equivalent command.
//!
//! An action is the largest unit that its tool handles at once: all rules of a table, all members of all sets, all virtual
//! servers. It is idempotent if its tool is, so an interrupted change can be repeated.

mod change;
mod objects;
mod plan;
mod routes;
mod yaml;

pub use change::{Action, Backend, Flow, IpvsCommand, IpvsVerb, LinkCommand};
pub use objects::{
    COPY, COPY_LABEL, Field, HELD, KubeCommand, OURS, Object, Only, PLAN, PROXY_LABEL, READER,
    Resource, START, UNSCHEDULABLE, eviction, merge_patch, waits_for_copy,
};
pub use plan::{Fingerprint, Plan, Step, Undo};
pub use routes::{Bound, LocalRoute, ROUTE_PROTOCOL, RouteCommand};
