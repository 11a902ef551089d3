//! Permissions of kpx at the API server: the only list of them.
//!
//! `kpx access` prints and reviews them, the manifests in `deploy/` are written from them, and the test `access` compares them
//! with the requests of each command.

mod manifest;
mod permission;
mod rules;

pub use manifest::{Selection, deployed, manifest};
pub use permission::{Level, Request, Rule, Subject, of_preflight};
pub use rules::{COMMANDS, RULES};
