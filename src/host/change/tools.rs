//! Changes that a standard tool makes in one go.

use std::sync::Arc;

use super::super::context::Context;
use super::super::exec;
use crate::action::Backend;
use crate::apply::StepError;
use crate::net::Family;

/// How many seconds `iptables-restore` waits for whoever holds the xtables lock.
const LOCK_WAIT: &str = "30";

/// Restores rules of `family`.
pub(super) async fn iptables(
    context: &Arc<Context>,
    backend: Backend,
    family: Family,
    input: &str,
) -> Result<(), StepError> {
    let args = ["--noflush", "--wait", LOCK_WAIT];
    run(context, backend.restore(family), &args, input).await
}

/// Runs `program` with `input` until it ends, however long it takes: cut short, it would leave half a change.
pub(super) async fn run(
    context: &Arc<Context>,
    program: &'static str,
    args: &[&str],
    input: &str,
) -> Result<(), StepError> {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    exec::feed(context, program, args, input.to_owned()).await
}
