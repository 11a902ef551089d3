//! Inspect, explain, repair and migrate the service proxy of a Kubernetes node.
//!
//! This library is the program's own; it is not an API and promises nothing to others.
//!
//! Data flows in one direction:
//!
//! ```text
//! host ──▶ evidence ──▶ node, cluster ──▶ desired, backend ──▶ check, trace, diff ──▶ plan ──▶ report ──▶ render
//! ```
//!
//! `host` and `render` are the edges and do not know each other. Everything between them is pure: no clock, no
//! environment, no sockets, no async.
//!
//! A module is public if tests or benchmarks use it. The compiler finds unused code in the others.
#![cfg_attr(
    not(target_os = "linux"),
    expect(
        dead_code,
        unused_imports,
        reason = "the readers of a live node use it"
    )
)]

pub mod access;
pub mod action;
pub mod apply;
pub mod backend;
pub mod bridge;
pub mod check;
pub mod cli;
pub mod cluster;
mod command;
pub mod desired;
pub mod diff;
mod dns;
pub mod evidence;
#[cfg(fuzzing)]
pub mod fuzzing;
mod history;
pub mod host;
mod meter;
pub mod migrate;
pub mod net;
pub mod node;
pub mod owner;
mod pages;
pub mod plan;
pub mod proof;
pub mod provider;
mod redact;
mod render;
pub mod repair;
mod report;
mod requirements;
pub mod trace;
pub mod verdict;
mod view;
pub mod why;
mod words;

pub use command::{Io, main, run};
pub use redact::Redactor;
