//! Changes to a node as data: ordered steps, each with its undo.
//!
//! A plan is built from evidence, shown, and built again from fresh evidence just before it runs. Both must have the
//! same [`Fingerprint`], which covers every step and its undo.

mod bridge;
mod cleanup;
mod config;
mod conntrack;
mod draft;
mod evict;
mod modules;
mod proxies;
mod repair;

pub use bridge::{
    BRIDGE_DOWN, BRIDGE_RULES, ROUTE_NEEDS, Served, bridge_down, bridge_up, has_routes,
    routes_down, routes_up,
};
pub use cleanup::{CLEANUP_NEEDS, Refusal, cleanup};
pub use config::{CONFIG_NEEDS, ConfigSource, Place, Unwritable, Written};
pub use conntrack::{FORGET_NEEDS, forget};
pub use evict::{
    Consent, EVICT_NEEDS, Lossy, Unevictable, cordon, evict, evicted_addresses, evicted_count,
};
pub use kpx_node::action::{Fingerprint, Plan, Step, Undo};
pub use modules::{AT_BOOT, NotOurs, load_modules, name_at_boot, stays};
pub use proxies::{OtherProxy, hangs, kube_proxy, refuse_other, running};
pub use repair::{Drain, Programmed, repair, repair_to};
