//! Everything that is tested from outside the library.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up should stop")]

mod access;
mod architecture;
mod bridge;
mod bundle;
mod clients;
mod cluster;
mod command_lines;
mod config_source;
mod converge;
mod deploy;
mod diff;
mod doctor;
mod edit;
mod fake;
mod fake_api;
mod fleet;
mod frame;
mod generated;
mod help;
mod history;
mod migrate;
mod nodes;
mod owner;
mod parse;
mod preflight;
mod proof;
mod random;
mod reach;
mod readme;
mod reconcile;
mod redact;
mod registry;
mod remote;
mod render;
mod repository;
mod resolve;
mod show;
mod snapshot;
mod support;
mod trace;
mod watch;
mod why;
mod wording;
mod writes;
