//! The lease of the bridge, which is renewed beside whatever else is done to the node.

use super::tools;
use crate::apply::StepError;
use crate::host::Options;
use crate::host::context::Context;

/// Renews the lease by `input`, a transaction of nft that adds nothing but elements to a set that is there. Unlike any
/// other change, this needs no lock.
pub async fn renew(options: &Options, input: &str) -> Result<(), StepError> {
    tools::run(&Context::new(options), "nft", &["-f", "-"], input).await
}
