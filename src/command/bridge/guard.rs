//! `kpx bridge guard`

use super::args::BridgeArgs;
use super::run::hinted;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::local_bridge::{LocalBridge, LocalKeeper};
use crate::command::shared::session::Session;
use crate::report::CLEAN;
use kpx_migrate::controller::guard::{self, GuardError};
use kpx_migrate::controller::keep::Order;

/// Refuses `--from`: a guard protects this machine.
pub(in crate::command) fn refuse_bundle(session: &Session) -> Result<(), Failure> {
    session.refuse_bundle("`bridge guard` works on")
}

/// Guards until the bridge is gone.
pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &BridgeArgs,
) -> Result<u8, Failure> {
    refuse_bundle(session)?;
    let mode = session.mode(args.mode).await?;
    let keeper = LocalKeeper::start(session, args.lease, "kpx bridge guard", Order::Rest)?;
    let node = LocalBridge::new(session, None, keeper);
    let mut notify = |line: &str| {
        // The guard continues even if stderr is closed.
        writeln!(io.err, "kpx: {line}").ok();
    };
    match guard::run(node, mode, args.awaits, &mut notify).await {
        Ok(()) => Ok(CLEAN),
        Err(GuardError::Failed(error)) => Err(hinted(error)),
        Err(error @ GuardError::Another) => Err(error).hint("one guard is enough"),
    }
}
