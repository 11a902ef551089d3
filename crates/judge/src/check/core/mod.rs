//! The engine: the input and the result of a check, and code that checks of several groups share.

mod advice;
mod collector;
mod config_fields;
mod config_source;
mod containers;
mod example;
mod facts;
mod finding;
mod idle;
pub mod ignore;
mod links;
mod looks;
mod not_checked;
mod objects;
mod observed;
mod obstacle;
mod obstacle_owner;
mod path;
mod reads;
mod rows;
mod rule;
mod rules;
mod run;
mod running;
mod settle;
mod slices;
mod subject;
mod syncs;
mod tunnel;
mod versions;
mod way;

pub use advice::{Advice, Fix, Line, Prose, Reach, Reader, Runs, Word, on, quoted, runs};
pub(crate) use collector::Collector;
pub(in crate::check) use config_fields::{leaves, plain};
pub(in crate::check) use config_source::{COPY, Source, mounted, text_of};
pub(in crate::check) use containers::{containers, flags_of, mounts, with_flags};
pub use example::{Example, Text};
pub(in crate::check) use facts::SOCKETS;
pub use facts::{Explain, Facts, MODE, ModeSource};
pub use finding::{Finding, Proof, Weight, lead, stated};
pub(crate) use idle::{SHORT_IDLE, of_tcp};
pub(in crate::check) use links::{PODS, address_proof, bridges, link_proof, split_addresses};
pub use not_checked::NOT_CHECKED;
pub use objects::some_services;
pub(in crate::check) use objects::{
    Served, is_served, leaving, name_of, node_ports, proto_of, service_proof, services_at,
};
pub(in crate::check) use observed::FAMILIES;
pub use observed::{LEFTOVERS, OBSERVED};
pub(in crate::check) use obstacle::neighbours_fix;
pub(in crate::check) use obstacle::{HOME_GONE, port_range_fix, reserved_ports_fix};
pub use obstacle::{hairpin_fix, ipv6_fix, ipv6_refusal, obstacle_fix, selector_fix};
pub use obstacle_owner::obstacle_owner;
pub(in crate::check) use path::{PATH, Paths, deciding, ended, own_address};
pub(in crate::check) use reads::{
    IPVS_TABLE, TRACKING, by_family, connection_proof, is_tracked, number, setting, sysctl_proof,
    tracking,
};
pub(in crate::check) use rows::{DRIFT_NEEDS, RESTART};
pub(in crate::check) use rule::proof_of;
pub use rule::{limit_fix, rule_fix};
pub(in crate::check) use rules::{
    IDLE, NFT, RULES, all_rules, idle_rules, is_open, is_proxys, known_rules, rule_proof,
    rules_in_use, sets_of_others, stores, there, tool,
};
pub use run::{Outcome, Unknown, run};
pub(in crate::check) use running::{
    KUBE_ROUTER_LINK, REPLACED, REPLACEMENT, is_kube_router, is_replaced, left_to, runs_here,
    still_held,
};
pub use settle::{drifted, is_as_complete, keep_persistent, temper};
pub(crate) use slices::unlabelled;
pub use slices::{Writer, get_slices};
pub use subject::{ProcessState, ServiceRef, Subject};
pub use syncs::first_sync_seconds;
pub(in crate::check) use syncs::{family_or_proxy, proxy_metrics, queued, syncs_slower_than};
pub(in crate::check) use versions::{VERSION, kernel_proof, newer_nft, tool_version, version_in};
pub(in crate::check) use way::{RANGE_OF_ITS_OWN, one_mac_fix, wireguard_fix};
pub use way::{
    bypass_fix, diverter_fix, early_demux_fix, home_fix, host_family_fix, no_report, no_route_fix,
    route_fix, silent_fix, stale_fix, taken_fix, unnetworked_fix, way_there_fix, without_family,
};
