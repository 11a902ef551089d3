//! Tests against a real kernel, as root.
//!
//! Each works in network namespaces of its own. Those named `vm_…` need what the machine's kernel may lack (`ip_vs`,
//! dummy links, modules to load); `make test` runs them inside the virtual machine of `tests/vm`, with the others.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its part fails its test"
)]

mod kernel {
    mod ipvs;
    mod links;
    mod live_trace;
    mod netns;
    mod probe;
    mod proxy;
    mod render;
    mod script;
    mod show;
    mod sockets;
    mod tools;
    mod trace;
}

#[path = "random.rs"]
mod random;
