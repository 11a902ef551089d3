//! The move of many nodes of a cluster, one after the other.
//!
//! What there is to do is a list of [`task`]s, which follows from what was agreed to. Where it stands is in a ConfigMap,
//! written before each task and after it, so that another machine can go on or take it all back. A task is planned anew
//! from what is there, so one that was cut short is simply gone through again. Only [`engine`] waits.

pub mod engine;
pub mod lease;
pub mod order;
pub mod pod;
pub mod staged;
pub mod state;
pub mod task;

use sha2::{Digest as _, Sha256};

/// Returns a short name for `text`: ten digits of its digest.
fn digest(text: &str) -> String {
    let all = Sha256::digest(text);
    let first = all
        .iter()
        .take(5)
        .fold(0, |sum: u64, &byte| sum << 8 | u64::from(byte));
    format!("{first:010x}")
}
