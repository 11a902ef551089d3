//! Tests against a real kernel, as root.
//!
//! Each works in network namespaces of its own and is `#[ignore]`d with what it needs. `make test` runs them as root:
//! those named `vm_…`, which need `ip_vs`, dummy links, or modules to load and unload, inside the virtual machine of
//! `tests/vm`, on Debian's kernel; all others on this machine's kernel.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its part fails its test"
)]

mod kernel {
    mod advance;
    mod bpf;
    mod bridge;
    mod change;
    mod concurrent;
    mod confine;
    mod conntrack;
    mod demo;
    mod faults;
    mod ipvs;
    mod links;
    mod live_trace;
    mod migration;
    mod modules;
    mod netns;
    mod nftables;
    mod others;
    mod pastes;
    mod preflight;
    mod privilege;
    mod probe;
    mod proxy;
    mod reconcile_ipvs;
    mod reconcile_watch;
    mod render;
    mod script;
    mod serve;
    mod sets;
    mod show;
    mod sockets;
    mod stages;
    mod stand_in;
    mod tools;
    mod top;
    mod trace;
    mod traffic;
    mod trouble;
    mod watch;
    mod xtables;
}

#[expect(dead_code, unused_imports, reason = "the suite uses all of it")]
mod fake_api;

#[path = "random.rs"]
mod random;

#[expect(dead_code, reason = "the suite uses all of it")]
mod schema;

#[expect(dead_code, reason = "the suite uses all of it")]
mod support;
