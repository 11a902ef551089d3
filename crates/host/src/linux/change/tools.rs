//! Changes made by one call of a standard tool.

use std::sync::Arc;
use std::time::Duration;

use super::super::context::Context;
use super::super::exec;
use kpx_node::action::Backend;
use kpx_node::apply::StepError;
use kpx_node::evidence::Item;
use kpx_node::net::Family;

/// Time that `iptables-restore` waits for the xtables lock, as a multiple of the time limit of a read.
const LOCK_WAIT: u32 = 3;

/// Restores rules of `family`.
pub(super) async fn iptables(
    context: &Arc<Context>,
    backend: Backend,
    family: Family,
    input: &str,
) -> Result<(), StepError> {
    let wait = (context.options.timeout * LOCK_WAIT).as_secs().max(1);
    let args = ["--noflush", "--wait", &wait.to_string()];
    let done = run(context, backend.restore(family), &args, input).await;
    // A distribution with a single back end may only have the plain name.
    match done {
        Err(StepError::Absent(_)) if is_plain(context, backend, family).await => {
            run(context, Backend::Plain.restore(family), &args, input).await
        }
        done => done,
    }
}

/// Returns whether the program's plain name is that of `backend`.
async fn is_plain(context: &Arc<Context>, backend: Backend, family: Family) -> bool {
    let plain = Backend::Plain.restore(family);
    let version = exec::run(context, Item::IptablesVersion, plain, &["--version"]).await;
    let is_nft = version.map(|text| text.contains("nf_tables"));
    is_nft.is_ok_and(|is_nft| is_nft == (backend == Backend::Nft))
}

/// Number of attempts, and the pause between them, to change a set that rules used until now: the nft back end releases
/// it shortly after the rules are deleted.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Restores sets.
pub(super) async fn ipset(context: &Arc<Context>, input: &str) -> Result<(), StepError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let done = run(context, "ipset", &["restore"], input).await;
        let in_use = |why: &str| why.contains("in use by a kernel component");
        match done {
            Err(StepError::Refused(why)) if in_use(&why) && tries < TRIES => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Restarts the systemd unit `unit` of the host.
pub(super) async fn restart(context: &Arc<Context>, unit: &str) -> Result<(), StepError> {
    run(context, "systemctl", &["restart", unit], "").await
}

/// Runs `program` with `input`.
pub(super) async fn run(
    context: &Arc<Context>,
    program: &'static str,
    args: &[&str],
    input: &str,
) -> Result<(), StepError> {
    let args = args.iter().map(|&arg| arg.to_owned()).collect();
    exec::feed(context, program, args, input.to_owned()).await
}
