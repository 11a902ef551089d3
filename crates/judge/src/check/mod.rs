//! Checks of the doctor, as data.
//!
//! A check is a row in a table of its group, and a function in the same file. The group is the letters of the id: the check
//! `MX01` is below `mx/`. The function reads evidence with `?`: missing evidence returns a [`Gap`], and the runner reports
//! the check as skipped or unknown, never as passed. `core` has the engine and everything that several groups share.

mod api;
mod bugs;
mod cni;
mod conntrack;
mod core;
mod deprecation;
mod diagnosis;
mod drift;
mod dummy_device;
mod groups;
mod ipset;
mod iptables_backend;
mod iptables_rules;
mod kernel;
mod kube_proxy;
mod mixed_modes;
mod nftables_rules;
mod node_port;
mod row;
mod services;
mod sysctl;
mod upgrade;
mod virtual_servers;

pub use self::conntrack::{Stale, Why, room_fix, stale};
pub use self::core::ignore;
pub use self::core::{
    Advice, Example, Explain, Facts, Finding, Fix, LEFTOVERS, Line, MODE, ModeSource, NOT_CHECKED,
    OBSERVED, Outcome, ProcessState, Proof, Prose, Reach, Reader, Runs, ServiceRef, Subject, Text,
    Unknown, Weight, Word, Writer, bypass_fix, diverter_fix, drifted, early_demux_fix,
    first_sync_seconds, get_slices, hairpin_fix, home_fix, host_family_fix, ipv6_fix, ipv6_refusal,
    is_as_complete, keep_persistent, lead, limit_fix, no_report, no_route_fix, obstacle_fix,
    obstacle_owner, on, quoted, route_fix, rule_fix, run, runs, selector_fix, silent_fix,
    some_services, stale_fix, stated, taken_fix, temper, unnetworked_fix, way_there_fix,
    without_family,
};
pub(crate) use self::core::{Collector, unlabelled};
pub use self::diagnosis::{
    Because, Block, Checked, Consequence, Diagnosed, Diagnosis, Next, Reason, Status, Summary,
    flushed, idle_proxy, root,
};
pub use self::diagnosis::{EntryStatus, EntryUse, Hidden, diagnose};
pub use self::drift::{Drift, is_repairable, restart_fix, rewriting_fix};
pub use self::groups::{
    GROUPS, Group, all, asked, beside_the_verdict, explains, named, names, needs, of_proxy,
};
pub use self::iptables_backend::lost_conditions;
pub use self::kube_proxy::fold;
pub(crate) use self::row::CONFIG_MAP;
pub use self::row::{Check, Question, Severity, Verdict, When};
