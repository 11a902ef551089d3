//! The migration of a cluster's nodes, one after the other.
//!
//! The confirmed plan yields a list of [`task`]s. The state is in a ConfigMap, written before and after each task, so that
//! another machine can resume the migration or roll it back. A task is planned from the live state, so an interrupted
//! task is simply run again. Only [`engine`] waits.

pub mod engine;
pub mod lease;
pub mod order;
pub mod pod;
pub mod staged;
pub mod state;
pub mod task;

use sha2::{Digest as _, Sha256};

/// Returns a short name for `text`: ten hexadecimal digits of its digest.
fn digest(text: &str) -> String {
    let all = Sha256::digest(text);
    let first = all
        .iter()
        .take(5)
        .fold(0, |sum: u64, &byte| sum << 8 | u64::from(byte));
    format!("{first:010x}")
}
