//! The bridge lease, which is renewed in parallel with other changes.

use super::tools;
use crate::Options;
use crate::linux::context::Context;
use kpx_node::apply::StepError;

/// Renews the lease with `input`, an nft transaction that only adds elements to an existing set. Unlike other changes,
/// this needs no lock.
pub async fn renew(options: &Options, input: &str) -> Result<(), StepError> {
    tools::run(&Context::new(options), "nft", &["-f", "-"], input).await
}
