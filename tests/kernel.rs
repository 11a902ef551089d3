//! Tests against a real kernel, as root.
//!
//! Each works in network namespaces of its own and is `#[ignore]`d with what it needs. `make test` runs them twice, as
//! root: on this machine's kernel, and inside the virtual machine of `tests/vm`, on Debian's. A name's beginning says
//! where it runs:
//!
//! - `vm_…` only in the virtual machine: it needs `ip_vs`, dummy links, or modules to load and unload.
//! - `host_…` only on this machine: it would take minutes there, where everything is ten to twenty times slower, and
//!   Debian's kernel has nothing to add to it.
//! - any other in both, so it may rely on no module being loaded or absent: `nf_conntrack` is loaded there at the start,
//!   everything else once a test has had it loaded.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its part fails its test"
)]

mod kernel {
    mod ipvs;
    mod links;
    mod live_trace;
    mod netns;
    mod privilege;
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
